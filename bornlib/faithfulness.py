"""Rankings of words and what they are worth: deletion and agreement with annotators (paper Tables 1-3).

Only words are ranked and deleted, never `<sep>` or punctuation. Deletion removes the token, re-encodes the
rest (later positions shift) and looks at the class that the model predicted for the whole pair.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm.auto import tqdm

from .corpus import PAD_ID, SEP_ID, Encoded, Pair, Vocabulary, collate, encode_pairs
from .evidence import Evidence, integrated_gradients, word_evidence
from .models import Model, Trace

DEPTH = 5  # deletions in AOPC and in "flip@5, lowest" (paper Tables 1-3)
RANDOM = "random order"
EVIDENCE, GATED, ATTENTION, ATTENTION_GRADIENT = "evidence", "gated integrated gradients", "attention", "attention × gradient"
GRADIENT, ROLLOUT, LEAVE_ONE_OUT = "gradient × input", "rollout", "leave-one-out"
BENT_RULE = {"nodes": 96, "bend": 1e-3}  # of the softmax model's gated integrated gradients: median gap about 2e-3 of a logit (notebook 03)


def ranking_names(model: Model) -> tuple[str, ...]:
    """The rankings of Table 2 for this model; "evidence" is exact for polynomials, else integrated gradients (256 nodes)."""
    gated = (GATED,) if model.kind == "softmax" else ()
    return (EVIDENCE, *gated, ATTENTION, ATTENTION_GRADIENT, GRADIENT, ROLLOUT, LEAVE_ONE_OUT)


def sample_pairs(total: int, size: int | None = 1000, seed: int = 0) -> np.ndarray:
    """Sorted indices of `size` of `total` pairs drawn by `seed`: the fixed sample of Tables 1-3. None takes all."""
    if size is None or size >= total:
        return np.arange(total)
    if size < 1:
        raise ValueError(f"size: expected at least 1, got {size}")
    return np.sort(np.random.default_rng(seed).permutation(total)[:size])


def marked_slots(pair: Pair, encoded: Encoded, annotator: int | None = None) -> np.ndarray:
    """Booleans (slots,): words marked by one annotator, or by any (the default); truncated like `encoded`."""
    premise, hypothesis = pair.marked_words(annotator)
    n = encoded.ids.index(SEP_ID)
    m = len(encoded.ids) - n - 1
    return np.concatenate([premise[:n], [False], hypothesis[:m]]) & encoded.words


# ---------------------------------------------------------------------------------------------- deletion
class Deletions:
    """A model's class probabilities for pairs with words deleted; float32, every case computed once.

    `probabilities` (pairs, 3) and `answers` (pairs,) are those of the whole pairs.
    """

    def __init__(self, model: Model, encoded: Sequence[Encoded], progress: bool = False):
        self.model = copy.deepcopy(model).float().eval().requires_grad_(False)
        self.encoded, self.progress = list(encoded), progress
        self.words = [np.flatnonzero(e.words) for e in self.encoded]
        self._known: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        self.probabilities = self([(i, ()) for i in range(len(self.encoded))])
        self.answers = self.probabilities.argmax(1) if len(self.encoded) else np.zeros(0, np.int64)

    def __call__(self, cases: Sequence[tuple[int, Sequence[int]]]) -> np.ndarray:
        """Probabilities (cases, 3) of pair `i` without `slots`, for cases (i, slots)."""
        keys = [(int(i), tuple(sorted(int(s) for s in slots))) for i, slots in cases]
        missing = [key for key in dict.fromkeys(keys) if key not in self._known]
        if missing:
            rows = _probabilities(self.model, [self.encoded[i].without(slots) for i, slots in missing], self.progress)
            self._known.update(zip(missing, rows, strict=True))
        return np.array([self._known[key] for key in keys]).reshape(len(keys), 3)

    def drops(self, cases: Sequence[tuple[int, Sequence[int]]]) -> tuple[np.ndarray, np.ndarray]:
        """For cases (i, slots): fall of the predicted class's probability, and whether the answer changed."""
        pair = np.array([i for i, _ in cases], np.int64)
        after = self(cases)
        answer = self.answers[pair]
        rows = np.arange(len(pair))
        return self.probabilities[pair, answer] - after[rows, answer], after.argmax(1) != answer

    def singles(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Per pair, for each of its words deleted alone: fall of probability, and whether the answer changed."""
        drop, flip = self.drops([(i, (s,)) for i, words in enumerate(self.words) for s in words])
        ends = np.cumsum([len(w) for w in self.words])[:-1]
        return np.split(drop, ends), np.split(flip, ends)

    def ceiling(self) -> np.ndarray:
        """Booleans (pairs,): some single deletion changes the answer."""
        return np.array([flips.any() for flips in self.singles()[1]], bool)


@torch.no_grad()
def _probabilities(model: Model, encoded: list[Encoded], progress: bool, slots: int = 4096) -> np.ndarray:
    """Class probabilities (pairs, 3) in batches of similar length, about `slots` slots a batch."""
    lengths = np.array([len(e.ids) for e in encoded])
    order = np.argsort(lengths, kind="stable")
    out = np.zeros((len(encoded), 3), np.float32)
    with tqdm(total=len(order), desc=f"deletions {model.kind}", disable=not progress, leave=False, mininterval=1) as bar:
        start = 0
        while start < len(order):
            size = max(1, slots // max(1, int(lengths[order[start]])))
            index = order[start : start + size]
            out[index] = model(*collate([encoded[i] for i in index])).exp().numpy()
            start += size
            bar.update(len(index))
    return out


# ---------------------------------------------------------------------------------------------- rankings
def _first_order(model: Model, encoded: list[Encoded], progress: bool) -> dict[str, list[np.ndarray]]:
    """The rankings that one forward and one backward pass give; float64, explained class: the model's answer."""
    out = {name: [np.zeros(0)] * len(encoded) for name in (ATTENTION, ATTENTION_GRADIENT, GRADIENT, ROLLOUT)}
    order = np.argsort([len(e.ids) for e in encoded], kind="stable")
    extra = int(model.kind == "born")  # the reference slot
    for index in tqdm([order[i : i + 32] for i in range(0, len(order), 32)], desc=f"gradients {model.kind}", disable=not progress, leave=False):
        ids, sentence = collate([encoded[i] for i in index])
        mask, trace = ids != PAD_ID, Trace()
        x = model.fields(ids, sentence).requires_grad_()
        scores = model.scores(x, mask, trace=trace)
        target = scores.argmax(-1, keepdim=True)
        last = trace.attention[-1]
        by_input, by_attention = torch.autograd.grad(scores.gather(1, target).sum(), (x, last))
        queries = torch.cat([mask.new_ones(len(index), extra), mask], 1).double()  # (B, L'), padding asks nothing
        asked = queries / queries.sum(-1, keepdim=True)
        with torch.no_grad():
            received = torch.einsum("bq,bhqk->bk", asked, last) / last.shape[1]
            weighted = torch.einsum("bq,bhqk->bk", queries, last * by_attention)
            flow = asked.unsqueeze(1)  # (B, 1, L'): mean over queries, followed back through the blocks
            eye = torch.eye(last.shape[-1], dtype=last.dtype)
            for attention in reversed(trace.attention):
                flow = flow @ ((attention.mean(1) + eye) / 2)
            product = (x * by_input).sum(-1)
        found = {ATTENTION: received[:, extra:], ATTENTION_GRADIENT: weighted[:, extra:], GRADIENT: product, ROLLOUT: flow[:, 0, extra:]}
        for name, values in found.items():
            for row, i in enumerate(index):
                out[name][i] = values[row, : len(encoded[i].ids)].detach().numpy().copy()
    return out


def leave_one_out(deletions: Deletions) -> list[np.ndarray]:
    """Per pair the fall of the answer's probability when a word is deleted, (slots,); 0 where nothing may be deleted."""
    out = []
    for e, words, drops in zip(deletions.encoded, deletions.words, deletions.singles()[0], strict=True):
        values = np.zeros(len(e.ids))
        values[words] = drops
        out.append(values)
    return out


def explain(model: Model, encoded: list[Encoded], progress: bool = False, **options) -> list[Evidence]:
    """Evidence for a polynomial model, integrated gradients for any other; `options` go to either."""
    method = integrated_gradients if model.degree is None else word_evidence
    return method(model, encoded, progress=progress, **options)


def rankings(
    model: Model,
    deletions: Deletions,
    evidence: Sequence[Evidence] | None = None,
    names: Sequence[str] | None = None,
    gated_rule: dict | None = None,
    progress: bool = False,
) -> dict[str, list[np.ndarray]]:
    """Every ranking of Table 2: name to one score a slot for each pair of `deletions`, high = ranked first.

    `model` is in float64; `evidence` saves computing it again. `names` chooses some of `ranking_names(model)`.
    """
    possible = ranking_names(model)
    names = possible if names is None else tuple(names)
    if set(names) - set(possible):
        raise ValueError(f"names: expected some of {possible}, got {names}")
    encoded = deletions.encoded
    out = {}
    if EVIDENCE in names:
        found = explain(model, encoded, progress) if evidence is None else evidence
        out[EVIDENCE] = [e.values for e in found]
    if GATED in names:
        found = integrated_gradients(model, encoded, gated=True, progress=progress, **(gated_rule or BENT_RULE))
        out[GATED] = [e.values for e in found]
    if set(names) & {ATTENTION, ATTENTION_GRADIENT, GRADIENT, ROLLOUT}:
        out.update(_first_order(model, encoded, progress))
    if LEAVE_ONE_OUT in names:
        out[LEAVE_ONE_OUT] = leave_one_out(deletions)
    return {name: out[name] for name in names}


def random_ranking(encoded: Sequence[Encoded], seed: int) -> list[np.ndarray]:
    """A random order of every pair's words, as scores (slots,)."""
    rng = np.random.default_rng(seed)
    return [rng.random(len(e.ids)) for e in encoded]


# ---------------------------------------------------------------------------------------------- measures
def orders(words: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Per pair its word slots, highest score first; ties in slot order."""
    out = []
    for i, (slots, values) in enumerate(zip(words, scores, strict=True)):
        if not np.isfinite(values[slots]).all():
            raise ValueError(f"scores: expected finite numbers, got {values} for pair {i}")
        out.append(slots[np.argsort(-values[slots], kind="stable")])
    return out


def deletion_measures(deletions: Deletions, scores: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Per pair: `flip1` (deleting the top word changes the answer), `flip5_lowest` (the five ranked last do), and
    `aopc` (mean over k = 1..5 of P(x) - P(x without the top k)). A pair with fewer words loses all of them.
    """
    order = orders(deletions.words, scores)
    n = len(order)
    cases = [(i, o[:k]) for k in range(1, DEPTH + 1) for i, o in enumerate(order)]
    cases += [(i, o[::-1][:DEPTH]) for i, o in enumerate(order)]
    drop, flip = (v.reshape(DEPTH + 1, n) for v in deletions.drops(cases))
    return {"flip1": flip[0], "aopc": drop[:DEPTH].mean(0), "flip5_lowest": flip[DEPTH]}


def agreement(encoded: Sequence[Encoded], scores: Sequence[np.ndarray], marks: Sequence[np.ndarray]) -> np.ndarray:
    """Per pair the share of the top-k words that are marked, k = number of marked words; NaN where none is."""
    words = [np.flatnonzero(e.words) for e in encoded]
    out = np.full(len(words), np.nan)
    for i, (order, marked) in enumerate(zip(orders(words, scores), marks, strict=True)):
        k = int(marked.sum())
        if k:
            out[i] = marked[order[:k]].mean()
    return out


def chance_agreement(encoded: Sequence[Encoded], marks: Sequence[np.ndarray]) -> np.ndarray:
    """Per pair the agreement expected of a random order: the share of words that are marked; NaN where none is."""
    return np.array([m.sum() / e.words.sum() if m.any() else np.nan for e, m in zip(encoded, marks, strict=True)])


def top_is_marked(encoded: Sequence[Encoded], scores: Sequence[np.ndarray], marks: Sequence[np.ndarray]) -> np.ndarray:
    """Per pair 1 where the word ranked first is marked, 0 where not; NaN where no word is marked."""
    words = [np.flatnonzero(e.words) for e in encoded]
    return np.array([float(m[o[0]]) if m.any() else np.nan for o, m in zip(orders(words, scores), marks, strict=True)])


def bootstrap(
    values: np.ndarray, denominator: np.ndarray | None = None, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> tuple[float, float, float]:
    """Mean and bootstrap interval (mean, low, high) over pairs of `values` (seeds, pairs) or (pairs,).

    Seeds are pooled per pair first, pairs resampled; pairs that are NaN in every seed are left out.
    With a `denominator` the statistic is the ratio of the two means ("of ceiling").
    """
    parts = [np.atleast_2d(np.asarray(v, float)) for v in (values, denominator) if v is not None]
    kept = ~np.all(np.isnan(parts[0]), 0)
    pooled = np.stack([np.nanmean(p[:, kept], 0) for p in parts])  # (1 or 2, pairs)
    n = pooled.shape[1]
    if n == 0:
        return float("nan"), float("nan"), float("nan")
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), resamples)  # (resamples, pairs)
    means, point = counts @ pooled.T / n, pooled.mean(1)
    if denominator is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            means, point = means[:, :1] / means[:, 1:], point[:1] / point[1:]
    low, high = np.nanquantile(means[:, 0], [(1 - level) / 2, (1 + level) / 2])
    return float(point[0]), float(low), float(high)


def rank_correlation(words: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Spearman correlation of two rankings of one pair's words; NaN with fewer than 3 words."""
    if len(words) < 3:
        return float("nan")
    ranks = [np.argsort(np.argsort(v[words], kind="stable"), kind="stable") for v in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


# ---------------------------------------------------------------------------------------------- studies
@dataclass
class Study:
    """One model on one sample of pairs: everything that Tables 1 and 2 need of it.

    `scores` maps each ranking, and "random order", to one score a slot for every pair, `measures` to arrays over pairs:
    flip1, aopc, flip5_lowest, agreement. `evidence` is the ranking's of that name.
    """

    deletions: Deletions
    evidence: list[Evidence]
    scores: dict[str, list[np.ndarray]]
    measures: dict[str, dict[str, np.ndarray]]
    ceiling: np.ndarray


def study(model: Model, encoded: list[Encoded], marks: Sequence[np.ndarray], seed: int, progress: bool = False) -> Study:
    """Rank the words of all pairs in every way and measure each ranking (Tables 1, 2). `model` in float64; `seed`: random order."""
    deletions = Deletions(model, encoded, progress)
    evidence = explain(model, encoded, progress)
    scores = rankings(model, deletions, evidence, progress=progress) | {RANDOM: random_ranking(encoded, seed)}
    measures = {}
    for name, values in scores.items():
        measures[name] = deletion_measures(deletions, values) | {"agreement": agreement(encoded, values, marks)}
    return Study(deletions, evidence, scores, measures, deletions.ceiling())


def top_word_hits(
    model: Model, vocabulary: Vocabulary, pairs: Sequence[Pair], progress: bool = False
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Where the deciding words are known (marks): is one of them ranked first?

    Returns ranking to (pairs,) of 0, 1 or NaN (none is known); booleans (pairs,), answered right; and the hits expected of a
    random order. Integrated gradients use `BENT_RULE` here. `model` in float64.
    """
    encoded = encode_pairs(list(pairs), vocabulary)
    marks = [marked_slots(p, e) for p, e in zip(pairs, encoded, strict=True)]
    deletions = Deletions(model, encoded, progress)
    evidence = explain(model, encoded, progress, **(BENT_RULE if model.degree is None else {}))
    scores = rankings(model, deletions, evidence, progress=progress)
    hits = {name: top_is_marked(encoded, values, marks) for name, values in scores.items()}
    return hits, deletions.answers == np.array([p.label for p in pairs]), chance_agreement(encoded, marks)
