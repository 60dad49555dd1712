"""A mini corpus in e-SNLI's schema from a small grammar: the words that decide each label are known by construction.

A caption has *parts*: a subject and an action, and often a count, a trait, a colour worn, a place and an extra (company or
purpose). A hypothesis repeats its premise, leaves some parts out, and then

- entailment: says one part more generally or by a synonym ("dog", "animal");
- neutral: adds a part of which the premise says nothing ("for a wedding"), or says one more exactly ("animal", "dog");
- contradiction: says one part differently ("two", "three"; "happy", "sad"; "in a park", "in a library").

The *planted words*, in which the sentences differ there, are the marks of the only annotator; as in e-SNLI
neutral pairs are marked in the hypothesis only. Every added or changed word also occurs unchanged in pairs of
the other labels, and some neutral and contradiction pairs say other parts more generally too, so that neither the
hypothesis alone (0.54) nor a bag of words (0.65) decides well; a mini Born Transformer reaches about 0.85 in six epochs.
"""

from __future__ import annotations

import csv
import functools
import random
from pathlib import Path

from .corpus import LABELS, Pair, Split

PREMISES = {"train": 4000, "dev": 667, "test": 667}  # three pairs each
SEED = 20
ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)

# value: more general values and synonyms, each implied by it. Subjects are singular/plural.
SUBJECTS = {
    "people": {
        "man/men": ("person/people", "guy/guys"),
        "woman/women": ("person/people", "lady/ladies"),
        "boy/boys": ("child/children", "kid/kids"),
        "girl/girls": ("child/children", "kid/kids"),
    },
    "animals": {
        "dog/dogs": ("animal/animals", "pet/pets"),
        "cat/cats": ("animal/animals", "pet/pets"),
        "horse/horses": ("animal/animals",),
        "cow/cows": ("animal/animals",),
    },
}
COUNTS = {"two": ("several",), "three": ("several",), "four": ("several",)}
TRAITS = {"happy": ("cheerful",), "sad": (), "big": ("large",), "small": ("little",), "wet": (), "dry": ()}
ANTONYMS = {"happy": "sad", "sad": "happy", "big": "small", "small": "big", "wet": "dry", "dry": "wet"}
CLOTHES = {"wearing red": (), "wearing blue": (), "wearing green": ()}
ACTIONS = {
    "people": {
        "playing the guitar": ("playing an instrument",), "playing the piano": ("playing an instrument",),
        "playing soccer": ("playing a sport",), "playing tennis": ("playing a sport",),
        "eating an apple": ("eating some fruit",), "eating a pear": ("eating some fruit",),
        "holding a rose": ("holding a flower",), "holding a tulip": ("holding a flower",),
        "running": ("moving",), "walking": ("moving",), "sleeping": ("resting",), "singing": (),
    },
    "animals": {
        "eating an apple": ("eating some fruit",), "eating a pear": ("eating some fruit",),
        "chasing a ball": ("chasing a toy",), "chasing a balloon": ("chasing a toy",),
        "running": ("moving",), "walking": ("moving",), "sleeping": ("resting",),
    },
}  # fmt: skip
PLACES = {
    "in a park": ("outdoors",), "on a beach": ("outdoors",), "in a forest": ("outdoors",),
    "in a kitchen": ("indoors",), "in a barn": ("indoors",), "in a hotel": ("indoors",),
}  # fmt: skip
EXTRAS = {
    "people": {
        "with a brother": ("with a relative",), "with a sister": ("with a relative",), "with a friend": (),
        "for a contest": ("for a competition",), "for a wedding": (), "for money": (),
    },
    "animals": {"for a contest": ("for a competition",), "for a film": ("for a movie",), "with a friend": ()},
}  # fmt: skip

OPTIONAL = ("trait", "clothes", "place", "extra")
SWAPPED = ("count", "trait", "subject", "clothes", "action", "place")
PRESENT = dict(trait=0.4, clothes=0.3, place=0.4, extra=0.3)
KEPT = {ENTAILMENT: 0.65, NEUTRAL: 0.4, CONTRADICTION: 0.6}  # equalises how many parts the hypotheses of each label have
GENERAL = 0.2  # share of premise parts that are said generally from the start
GENERALISED = 0.25  # share of neutral and contradiction pairs in which a part that does not decide is said more generally
FUNCTION_WORDS = {"a", "an", "the", "in", "on", "at", "with", "for", "some", "is", "are", "wearing"}


# ---------------------------------------------------------------------------------------------- captions
def _values(part: str, kind: str) -> dict[str, tuple[str, ...]]:
    table = dict(subject=SUBJECTS, count=COUNTS, trait=TRAITS, clothes=CLOTHES, action=ACTIONS, place=PLACES, extra=EXTRAS)[part]
    return table.get(kind, table)


def _pick(rng: random.Random, items):
    """One of the items; only `rng.random()` is used, whose stream no Python version changes."""
    items = list(items)
    return items[int(rng.random() * len(items))]


def _premise(rng: random.Random) -> tuple[str, dict[str, str]]:
    """Kind of subject and the value of each part that the premise has."""
    kind = _pick(rng, SUBJECTS)
    parts = {"subject": "", "action": ""}
    if rng.random() < 0.5:
        parts["count"] = ""
    for part in OPTIONAL:
        if rng.random() < PRESENT[part]:
            parts[part] = ""
    for part in parts:
        parts[part] = _pick(rng, values := _values(part, kind))
        if values[parts[part]] and rng.random() < GENERAL:
            parts[part] = _pick(rng, values[parts[part]])
    return kind, parts


def _hypothesis(rng: random.Random, kind: str, premise: dict[str, str], label: int) -> tuple[dict[str, str], str] | None:
    """Parts of a hypothesis with that label and the part that decides it; None where the premise offers no such edit."""
    values = {part: _values(part, kind) for part in (*premise, *OPTIONAL)}
    if label == ENTAILMENT:
        edits = {p: values[p].get(v, ()) for p, v in premise.items()}
    elif label == NEUTRAL:
        edits = {p: [s for s, general in values[p].items() if v in general] for p, v in premise.items()}
        edits |= {p: list(values[p]) for p in OPTIONAL if p not in premise}
    else:
        edits = {p: _contrary(p, v, values[p]) for p, v in premise.items() if p in SWAPPED}
    edits = {p: e for p, e in edits.items() if e}
    if not edits:
        return None
    part = _pick(rng, edits)
    hypothesis = {p: v for p, v in premise.items() if p == part or p not in OPTIONAL or rng.random() < KEPT[label]}
    others = [p for p in hypothesis if p != part and values[p].get(premise[p])]
    if label != ENTAILMENT and others and rng.random() < GENERALISED:
        other = _pick(rng, others)
        hypothesis[other] = _pick(rng, values[other][premise[other]])
    hypothesis[part] = _pick(rng, edits[part])
    return hypothesis, part


def _contrary(part: str, value: str, values: dict[str, tuple[str, ...]]) -> list[str]:
    """Values of a part that exclude this one: the antonym of a trait; else any that shares no meaning with it."""
    if part == "trait":
        return [ANTONYMS[v] for v, general in values.items() if value in (v, *general)]
    if part not in ("action", "place") and value not in values:
        return []
    return [v for v in values if v != value and value not in values[v] and v not in values.get(value, ())]


def _words(parts: dict[str, str]) -> list[tuple[str, str]]:
    """The caption as (word, part) pairs, punctuation included, everything in lower case."""
    plural = "count" in parts
    said = parts | {"subject": parts["subject"].split("/")[plural], "verb": "are" if plural else "is", "stop": "."}
    order = ("count", "trait", "subject", "clothes", "verb", "action", "place", "extra", "stop")
    words = [(word, part) for part in order if part in said for word in said[part].split()]
    article = "an" if words[0][0][0] in "aeiou" else "a"
    return words if plural else [(article, "count"), *words]


def _sentence(words: list[tuple[str, str]]) -> str:
    text = " ".join(word for word, _ in words).replace(" .", ".")
    return text[0].upper() + text[1:]


# ---------------------------------------------------------------------------------------------- corpus
def _pair(premise: dict[str, str], hypothesis: dict[str, str], part: str, label: int) -> Pair:
    sides = _words(premise), _words(hypothesis)
    here, there = ({word for word, p in side if p == part} for side in sides)
    differing = (here ^ there) - FUNCTION_WORDS
    marks = tuple(tuple(p == part and word in differing for word, p in side) for side in sides)
    if label == NEUTRAL:
        marks = ((False,) * len(sides[0]), marks[1])
    return Pair(_sentence(sides[0]), _sentence(sides[1]), label, (marks,))


@functools.cache
def _splits() -> dict[str, tuple[Pair, ...]]:
    rng = random.Random(SEED)
    seen: set[str] = set()
    out = {}
    for name, count in PREMISES.items():
        pairs: list[Pair] = []
        while len(pairs) < 3 * count:
            kind, parts = _premise(rng)
            made = [_hypothesis(rng, kind, parts, label) for label in range(3)]
            premise = _sentence(_words(parts))
            if premise in seen or None in made:
                continue
            seen.add(premise)
            pairs += [_pair(parts, hypothesis, part, label) for label, (hypothesis, part) in enumerate(made)]
        out[name] = tuple(pairs)
    return out


def load_split(name: str) -> Split:
    """`train` (12,000 pairs), `dev` or `test` (2,001 each), the same on every machine; no premise is in two splits."""
    if name not in PREMISES:
        raise ValueError(f"split: expected one of {tuple(PREMISES)}, got {name!r}")
    return Split(list(_splits()[name]), files=("mini corpus",))


def write_csv(folder: Path) -> list[Path]:
    """Write `esnli_train_mini.csv`, `esnli_dev.csv`, `esnli_test.csv` in e-SNLI's schema with marks as `*word*`; returns their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, pairs in _splits().items():
        paths.append(folder / ("esnli_train_mini.csv" if name == "train" else f"esnli_{name}.csv"))
        with paths[-1].open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(("pairID", "gold_label", "Sentence1", "Sentence2", "Sentence1_marked_1", "Sentence2_marked_1"))
            for i, pair in enumerate(pairs):
                marked = (_starred(s, m) for s, m in zip((pair.premise, pair.hypothesis), pair.marks[0], strict=True))
                writer.writerow((f"mini-{name}-{i}", LABELS[pair.label], pair.premise, pair.hypothesis, *marked))
    return paths


def _starred(sentence: str, marks: tuple[bool, ...]) -> str:
    """The sentence with marked words between stars; `{}` where none is marked."""
    if not any(marks):
        return "{}"
    words = sentence.removesuffix(".").split()
    return " ".join(f"*{w}*" if m else w for w, m in zip(words, marks, strict=False)) + "."
