"""What the explorer shows, as data: a pair under study, what a person chose, and all that follows from them. No widgets, no HTML."""

from __future__ import annotations

import csv
import functools
import io
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from . import corpus, faithfulness, profiles
from .corpus import LABELS, SEP_ID, Encoded, Pair, Vocabulary, collate, encode, tokenise
from .evidence import Evidence
from .models import NAMES, Model
from .training import CheckpointError, load_checkpoint

SIDES = ("premise", "hypothesis")
CURVE = 10  # words deleted one after the other in the deletion curve
LOWEST = faithfulness.DEPTH  # words of “delete the lowest five”


# ---------------------------------------------------------------------------------------------- models and evidence
def find_checkpoint(name: str) -> Path:
    """A checkpoint by file name, or a shipped one by its name ("born-seed0"). CheckpointError where there is none."""
    path = Path(name)
    shipped = profiles.CHECKPOINTS / f"{name}.safetensors"
    if not path.is_file() and path.name == name and shipped.is_file():
        return shipped
    if not path.is_file():
        known = sorted(p.stem for p in profiles.CHECKPOINTS.glob("*.safetensors"))
        raise CheckpointError(f"{name}: no such checkpoint; shipped are {', '.join(known) or 'none'}")
    return path


@functools.lru_cache(maxsize=4)
def open_model(name: str = "born", seed: int = 0, profile: str | None = None) -> tuple[Model, Vocabulary, dict]:
    """Model (float64), vocabulary and metadata by model name or checkpoint file.

    A model name takes the shipped weights, on every profile: they need no corpus. Profile "quick", or weights
    that are not shipped (said once), take a mini model, trained on the spot.
    """
    if name not in NAMES:
        return load_checkpoint(find_checkpoint(name), torch.float64)
    path = profiles.CHECKPOINTS / profiles.checkpoint_name(name, seed)
    if profile != "quick" and path.is_file():
        return load_checkpoint(path, torch.float64)
    if profile != "quick":
        print(f"{path.name} is not shipped: a mini model of the mini corpus is used", file=sys.stderr)
    return profiles.Profile("quick").model(name, seed, torch.float64)


def models_at_hand(profile: str | None = None) -> list[tuple[str, int]]:
    """Names and seeds of the models that need no training now."""
    folder = profiles.Profile("quick").checkpoints if profile == "quick" else profiles.CHECKPOINTS
    return [(m, s) for m in NAMES for s in profiles.SEEDS if (folder / profiles.checkpoint_name(m, s)).is_file()]


def explain(model: Model, encoded: Encoded, target: int | None = None, nodes: str | int = "auto") -> Evidence:
    """Evidence for one pair and class (default: the answer): exact for polynomial models, else integrated gradients.

    `nodes` "auto" and "exact" are 256 and 4,096 nodes for integrated gradients, which no number makes exact.
    """
    if model.degree is None:
        nodes = {"auto": 256, "exact": 4096}.get(nodes, nodes)
    return faithfulness.explain(model, [encoded], targets=None if target is None else [target], nodes=nodes)[0]


@torch.no_grad()
def answers(model: Model, encoded: Sequence[Encoded]) -> np.ndarray:
    """Class probabilities (pairs, 3), one pass."""
    return model(*collate(list(encoded))).exp().numpy()


# ---------------------------------------------------------------------------------------------- a pair under study
@dataclass(frozen=True)
class Subject:
    """A pair under study: the tokens of both sentences, for each token the annotators (1, 2, 3) who marked it, and what was deleted.

    `label` is its class where it is known, `origin` says where the pair comes from. `deleted` lists slots of the whole
    pair (premise, `<sep>`, hypothesis) in the order in which they were deleted. `written` are the sentences as they were written.
    """

    premise: tuple[str, ...]
    hypothesis: tuple[str, ...]
    marks: tuple[tuple[int, ...], ...] = ()
    label: int | None = None
    origin: str = ""
    deleted: tuple[int, ...] = ()
    written: tuple[str, str] | None = field(default=None, compare=False)

    @classmethod
    def typed(cls, premise: str, hypothesis: str) -> Subject:
        """Two sentences as a person types them."""
        return cls(tuple(tokenise(premise)), tuple(tokenise(hypothesis)), written=(premise, hypothesis))

    @classmethod
    def of(cls, pair: Pair, origin: str = "") -> Subject:
        """A pair of a corpus, with its label and marks."""
        premise, hypothesis = pair.tokens
        by_annotator = [np.concatenate(pair.marked_words(k)) for k in range(len(pair.marks))]
        marks = tuple(tuple(k + 1 for k, m in enumerate(by_annotator) if m[i]) for i in range(len(premise) + len(hypothesis)))
        return cls(tuple(premise), tuple(hypothesis), marks, pair.label, origin, written=(pair.premise, pair.hypothesis))

    def slot_marks(self, full: Encoded) -> list[tuple[int, ...]]:
        """The annotators of each slot; `full` is this pair encoded, perhaps cut."""
        if not self.marks:
            return [()] * len(full.ids)
        n = full.ids.index(SEP_ID)
        start = len(self.premise)
        return [*self.marks[:n], (), *self.marks[start : start + len(full.ids) - n - 1]]

    def toggled(self, slot: int) -> Subject:
        """The slot deleted, or back where it was deleted."""
        if slot in self.deleted:
            return replace(self, deleted=tuple(s for s in self.deleted if s != slot))
        return replace(self, deleted=(*self.deleted, slot))

    def without(self, slots: Iterable[int]) -> Subject:
        """More slots deleted."""
        return replace(self, deleted=(*self.deleted, *(int(s) for s in slots)))

    def restored(self) -> Subject:
        """Every word back."""
        return replace(self, deleted=())

    def replaced(self, full: Encoded, slot: int, text: str) -> Subject:
        """The word at a slot of `full`, this pair encoded, replaced by one or more others, unmarked. The label is no longer known."""
        new = tuple(tokenise(text))
        if not 0 <= slot < len(full.ids) or not full.words[slot]:
            raise ValueError(f"slot: expected a word of the pair, got slot {slot}")
        if not new:
            raise ValueError(f"replacement: expected a word, got {text!r}")
        n = full.ids.index(SEP_ID)
        premise, hypothesis, marks = list(self.premise), list(self.hypothesis), list(self.marks)
        side, place = (premise, slot) if slot < n else (hypothesis, slot - n - 1)
        side[place : place + 1] = new
        if marks:
            at = place if side is premise else len(self.premise) + place
            marks[at : at + 1] = [()] * len(new)
        moved = tuple(d + (len(new) - 1) * (d > slot) for d in self.deleted if d != slot)
        if any(full.cut):
            moved = ()  # other words may be cut now, slots no longer name the same ones
        return Subject(
            tuple(premise), tuple(hypothesis), tuple(marks), None, self.origin and "changed from " + self.origin, moved
        )

    def with_text(self, side: int, text: str) -> Subject:
        """A sentence typed anew; nothing else of the pair is kept. Itself where the words are the same."""
        tokens = tuple(tokenise(text))
        if tokens == (self.premise, self.hypothesis)[side]:
            return self
        return Subject.typed(*((text, self.texts[1]) if side == 0 else (self.texts[0], text)))

    @property
    def texts(self) -> tuple[str, str]:
        """Both sentences: as they were written, or word by word after a replacement."""
        return self.written or (" ".join(self.premise), " ".join(self.hypothesis))


@dataclass(frozen=True)
class Choice:
    """What a person chose to see: model and seed, the class explained (None: the answer), a ranking and perhaps a second one."""

    model: str = "born"
    seed: int = 0
    target: int | None = None
    ranking: str = faithfulness.EVIDENCE
    second: str | None = None


# ---------------------------------------------------------------------------------------------- all that follows
@dataclass(frozen=True, eq=False)
class View:
    """Everything shown about a pair. Arrays "by slot" are in slots of the whole pair `full`, NaN where a word is deleted.

    `evidence` belongs to the pair without its deleted words. `whole` (3,) are the probabilities of the pair with all its words.
    `scores` and `second` (None: not chosen) are the rankings' scores by slot, `correlation` is Spearman's between them.
    `curves` maps "first" and "last" to probabilities (k + 1, 3) with the k words deleted that the ranking puts first, or last.
    """

    subject: Subject
    choice: Choice
    full: Encoded
    marks: list[tuple[int, ...]]
    evidence: Evidence
    whole: np.ndarray
    scores: np.ndarray
    second: np.ndarray | None
    correlation: float
    curves: dict[str, np.ndarray] = field(repr=False)

    @property
    def answer(self) -> int:
        return int(np.argmax(self.evidence.probabilities))

    @property
    def order(self) -> np.ndarray:
        """Slots of the words that are left, the ranking's first word first."""
        words = np.flatnonzero(self.full.words & ~np.isnan(self.scores))
        return faithfulness.orders([words], [self.scores])[0]

    @property
    def cut_words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words that truncation removed from the end of each sentence."""
        return tuple(
            side[len(side) - n :] for side, n in zip((self.subject.premise, self.subject.hypothesis), self.full.cut, strict=True)
        )

    @property
    def about_answer(self) -> bool:
        """True where the ranking explains the answer although another class was chosen: only evidence can explain any class."""
        chosen = self.choice.target not in (None, self.answer)
        return chosen and (
            self.choice.ranking != faithfulness.EVIDENCE or self.choice.second not in (None, faithfulness.EVIDENCE)
        )


def compute(subject: Subject, choice: Choice, model: Model, vocabulary: Vocabulary, nodes: str | int = "auto") -> View:
    """Evidence, rankings and deletion curve of a pair for what was chosen; `model` in float64.

    Raises ValueError for a deleted slot that is no word, an unknown class or a ranking that the model does not have.
    """
    possible = faithfulness.ranking_names(model)
    names = [choice.ranking, *([choice.second] if choice.second else [])]
    if set(names) - set(possible):
        raise ValueError(f"ranking: expected one of {', '.join(possible)}; got {', '.join(sorted(set(names) - set(possible)))}")
    full = encode(list(subject.premise), list(subject.hypothesis), vocabulary)
    if any(not 0 <= s < len(full.ids) or not full.words[s] for s in subject.deleted):
        raise ValueError(f"deleted: expected slots of words, got {subject.deleted}")
    left = full.without(subject.deleted)
    kept = np.setdiff1d(np.arange(len(full.ids)), subject.deleted)
    evidence = explain(model, left, choice.target, nodes)

    found = {faithfulness.EVIDENCE: evidence.values}
    others = [n for n in dict.fromkeys(names) if n not in found]
    if others:
        scored = faithfulness.rankings(model, faithfulness.Deletions(model, [left]), names=others)
        found |= {name: values[0] for name, values in scored.items()}
    words = np.flatnonzero(left.words)
    order = faithfulness.orders([words], [found[choice.ranking]])[0]
    depth = range(1, min(CURVE, len(order)) + 1)
    cases = [left.without(order[:k]) for k in depth] + [left.without(order[-k:]) for k in depth]
    cases = answers(model, [full, left, *cases])
    start, depth = cases[1:2], len(depth)
    curves = {"first": np.concatenate([start, cases[2 : 2 + depth]]), "last": np.concatenate([start, cases[2 + depth :]])}

    def by_slot(values: np.ndarray) -> np.ndarray:
        out = np.full(len(full.ids), np.nan)
        out[kept] = values
        return out

    second = found[choice.second] if choice.second else None
    correlation = faithfulness.rank_correlation(words, found[choice.ranking], second) if choice.second else math.nan
    return View(
        subject, choice, full, subject.slot_marks(full), evidence, cases[0], by_slot(found[choice.ranking]),
        None if second is None else by_slot(second), correlation, curves,
    )  # fmt: skip


def look(subject: Subject, choice: Choice, profile: str | None = None, nodes: str | int = "auto") -> View:
    """`compute` with the chosen model opened (and kept)."""
    model, vocabulary, _ = open_model(choice.model, choice.seed, profile)
    return compute(subject, choice, model, vocabulary, nodes)


# ---------------------------------------------------------------------------------------------- pairs to step through
class Gallery:
    """Pairs to step through; `name` says what they are. Indices count from 0 in file order."""

    def __init__(self, name: str, pairs: Sequence[Pair]):
        if not pairs:
            raise ValueError(f"pairs: expected at least one in {name!r}, got none")
        self.name, self.pairs = name, list(pairs)
        self.labels = np.array([p.label for p in self.pairs])
        self._answers: dict[tuple, np.ndarray] = {}

    def subject(self, index: int) -> Subject:
        if not 0 <= index < len(self.pairs):
            raise ValueError(f"index: expected 0 to {len(self.pairs) - 1}, got {index}")
        return Subject.of(self.pairs[index], f"{self.name} {index}")

    def matching(self, label: int | None = None, word: str = "") -> np.ndarray:
        """Indices of the pairs of a class that have every one of the words (None and "": all of them)."""
        wanted = set(tokenise(word))
        index = np.arange(len(self.pairs)) if label is None else np.flatnonzero(self.labels == label)
        if not wanted:
            return index
        return np.array([i for i in index if wanted <= {t for side in self.pairs[i].tokens for t in side}], np.int64)

    def find(self, candidates: Sequence[int], wrong: tuple[str, Model, Vocabulary] | None = None, batch: int = 64) -> int | None:
        """The first of the candidates, or the first that a model answers wrongly (its name, model and vocabulary); None: there is none.

        Answers are computed a batch at a time and kept.
        """
        if wrong is None:
            return int(candidates[0]) if len(candidates) else None
        name, model, vocabulary = wrong
        known = self._answers.setdefault(name, np.full(len(self.pairs), -1))
        for start in range(0, len(candidates), batch):
            index = np.asarray(candidates[start : start + batch])
            new = index[known[index] < 0]
            if len(new):
                encoded = corpus.encode_pairs([self.pairs[i] for i in new], vocabulary)
                known[new] = answers(model, encoded).argmax(1)
            missed = index[known[index] != self.labels[index]]
            if len(missed):
                return int(missed[0])
        return None


def ring(matching: np.ndarray, index: int, step: int) -> np.ndarray:
    """The matching indices in the order in which stepping from `index` meets them: forwards (1) or backwards (-1), around the end."""
    after = matching[matching > index] if step > 0 else matching[matching < index][::-1]
    rest = matching[matching <= index] if step > 0 else matching[matching >= index][::-1]
    return np.concatenate([after, rest])


def galleries(profile: str | None = None, pairs: Sequence[Pair] | str | Path | None = None) -> dict[str, Callable[[], Gallery]]:
    """What there is to step through, read when it is asked for: our examples, the test split, and a person's own pairs or CSV file."""
    out = {"our example": lambda: Gallery("our example", corpus.load_examples())}
    quick = profile == "quick" or (profile is None and corpus.data_folder() is None)
    name = "mini test pair" if quick else "test pair"
    out[name] = lambda: Gallery(name, profiles.resolve("quick" if quick else "full").split("test").pairs)
    if pairs is not None:
        own = corpus.read_csv(Path(pairs)).pairs if isinstance(pairs, str | Path) else pairs
        out = {"your pair": lambda: Gallery("your pair", own)} | out
    return {name: functools.cache(make) for name, make in out.items()}


# ---------------------------------------------------------------------------------------------- records
def as_json(evidence: Evidence) -> dict:
    """The pair explained, as plain data: `words` in slot order with `<sep>`; `error_bound` is None where not known."""
    e = evidence
    return {
        "answer": LABELS[int(np.argmax(e.probabilities))],
        "class": LABELS[e.target],
        "probabilities": {name: float(p) for name, p in zip(LABELS, e.probabilities, strict=True)},
        "no_information_share": float(e.baseline),
        "words": [
            {"text": token, "sentence": SIDES[sentence], "evidence": float(value), "known": bool(known)}
            for token, sentence, value, known in zip(e.encoded.tokens, e.encoded.sentence, e.values, e.encoded.known, strict=True)
        ],
        "gap": float(e.gap),
        "nodes": int(e.nodes),
        "error_bound": None if math.isnan(e.error_bound) else float(e.error_bound),
    }


def record(view: View) -> dict:
    """A view as plain data: `as_json` of what is left, and the whole pair `slots` by slot with marks, scores and what was deleted."""
    number = lambda v: None if v is None or math.isnan(v) else float(v)  # noqa: E731
    v, choice = view, view.choice
    slots = [
        {
            "text": v.full.tokens[i],
            "sentence": SIDES[v.full.sentence[i]],
            "deleted": i in v.subject.deleted,
            "marked_by": list(v.marks[i]),
            "score": number(v.scores[i]),
            "second": None if v.second is None else number(v.second[i]),
        }
        for i in range(len(v.full.ids))
    ]
    return {
        "model": choice.model, "seed": choice.seed, "pair": v.subject.origin, "label": None if v.subject.label is None else LABELS[v.subject.label],
        "ranking": choice.ranking, "second_ranking": choice.second, "rank_correlation": number(v.correlation),
        **as_json(v.evidence), "baselines": {name: float(b) for name, b in zip(LABELS, v.evidence.baselines, strict=True)}, "unit": v.evidence.unit,
        "whole_pair": {name: float(p) for name, p in zip(LABELS, v.whole, strict=True)}, "cut": [list(words) for words in v.cut_words],
        "slots": slots, "deletion_curves": {name: curve.tolist() for name, curve in v.curves.items()},
    }  # fmt: skip


def as_csv(evidence: Evidence) -> str:
    """The words of `as_json` as CSV. A text that a spreadsheet would take for a formula gets a leading apostrophe."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ["text", "sentence", "evidence", "known"], lineterminator="\n")
    writer.writeheader()
    for word in as_json(evidence)["words"]:
        writer.writerow(word | {"text": "'" * word["text"].startswith(("=", "+", "-", "@")) + word["text"]})
    return stream.getvalue()
