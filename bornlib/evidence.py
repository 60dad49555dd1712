"""Evidence per word: exact for the polynomial models, integrated gradients for all (paper Tables 1-3, 9, Figure 4).

With every denominator held at its value for the input, a class probability of the Born Transformer is a
polynomial in the words' amplitudes. Scale all word fields by t, keep the reference: word i receives

    e_i = integral from 0 to 1 of  Re<x_i, d N_c(t x) / d x_i> / D  dt,      sum_i e_i = P_c - b_c,

with the no-information share b_c = N_c(0) / D. The integrand has degree 647, so 324 Gauss-Legendre
nodes are exact. Poly-sim-born's logits are polynomials of degree 100: 50 nodes.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import mpmath
import numpy as np
import scipy.linalg
import torch
from torch import Tensor
from tqdm.auto import tqdm

from .corpus import LABELS, PAD_ID, Encoded, collate
from .models import Model, Trace

LADDER = (32, 56, 80, 112, 176)  # node counts that `auto` tries before the exact rule, from 1.75 sqrt(degree) on
CACHE_SLOTS = 2000  # slots a pass (nodes x pairs x slots): more of them leave the processor's cache and gain nothing
ANCHORS = 10  # passes of the first block that give it at every node, see `block_powers`
ROUNDING = 1e-13  # float64 noise of a word's evidence, relative to the largest integrand of its pair


@dataclass(eq=False)
class Evidence:
    """One pair explained: `values` (slots,) float64 in slot order, `<sep>` included, for class `target`.

    `score` is the explained score (Born: class probability; others: logit), `baseline` its value
    without any word (Born: no-information share b_c), `gap` = |sum(values) - (score - baseline)|,
    `nodes` the quadrature nodes used, `error_bound` the largest quadrature error of a word's value (NaN: not
    known), `unit` "probability" or "logit", `probabilities` (3,) the model's answer, `baselines` (3,) the baselines of all classes.
    """

    encoded: Encoded
    target: int
    values: np.ndarray
    score: float
    baseline: float
    probabilities: np.ndarray
    gap: float
    nodes: int
    error_bound: float
    unit: str
    baselines: np.ndarray


# ---------------------------------------------------------------------------------------------- quadrature
@functools.cache
def gauss_legendre(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (nodes,) on [0, 1]; exact for polynomials up to degree 2 nodes - 1 (paper Table 9)."""
    x = np.polynomial.legendre.leggauss(nodes)[0].astype(np.longdouble)
    for _ in range(2):  # Newton steps: numpy's weights lose two digits at 324 nodes
        before, here = np.ones_like(x), x
        for k in range(2, nodes + 1):
            before, here = here, ((2 * k - 1) * x * here - (k - 1) * before) / k
        slope = nodes * (x * here - before) / (x * x - 1)
        x = x - here / slope
    return ((x + 1) / 2).astype(float), (1 / ((1 - x * x) * slope * slope)).astype(float)


def exact_nodes(degree: int) -> int:
    """The fewest Gauss-Legendre nodes that integrate the derivative of a polynomial of `degree` exactly: 648 gives 324."""
    return max(1, -(-degree // 2))


def legendre(nodes: np.ndarray, degrees) -> np.ndarray:
    """Legendre polynomials orthonormal on [0, 1], of the given degrees, at `nodes`: (degrees, nodes)."""
    degrees = np.asarray(degrees)
    return (np.polynomial.legendre.legvander(2 * nodes - 1, degrees.max())[:, degrees] * np.sqrt(2 * degrees + 1)).T


def block_powers(order: int, reference: bool) -> tuple[int, ...]:
    """The powers of t in the fields after one block that sees t x, denominators held.

    Attention weights are overlaps to the power `order` (Born 4, Poly 2), times the value, added to the field; the
    product then adds sums of two powers. The reference slot, where there is one, enters with power 0.
    """
    slots = {1, 0} if reference else {1}
    out = set()
    for own in slots:
        attended = {own} | {order * (own + other) + other for other in slots}
        out |= attended | {a + b for a in attended for b in attended}
    return tuple(sorted(out))


@functools.cache
def anchors(powers: tuple[int, ...]) -> np.ndarray:
    """As many points of [0, 1] as powers, from which combinations of t^powers are interpolated well (Fekete points)."""
    grid = (1 - np.cos(np.linspace(0, np.pi, 801))) / 2
    chosen = scipy.linalg.qr((grid[:, None] ** np.array(powers)).T, pivoting=True, mode="r")[1][: len(powers)]
    return np.sort(grid[chosen])


@functools.cache
def interpolation(powers: tuple[int, ...], nodes: int) -> np.ndarray:
    """(nodes, anchors): takes values at the anchors to values at the Gauss nodes, exact for combinations of t^powers."""
    with mpmath.workdps(50):  # the power basis is too skew for float64, the result is not

        def basis(points):
            return mpmath.matrix([[mpmath.mpf(float(t)) ** p for p in powers] for t in points])

        out = basis(gauss_legendre(nodes)[0]) * basis(anchors(powers)) ** -1
        return np.array(out.tolist(), float)


# ---------------------------------------------------------------------------------------------- shared steps
def _double(model: Model) -> Model:
    """The model in float64 without parameter gradients; refuses weights that are not finite."""
    with torch.no_grad():  # a sum, ten times as fast as a look at every weight, is finite where all of them are
        suspects = [(name, value) for name, value in model.named_parameters() if not torch.isfinite(value.sum())]
    bad = [name for name, value in suspects if not torch.isfinite(value).all()]
    if bad:
        raise ValueError(f"model: expected finite weights, got NaN or infinity in {bad}")
    ready = all(p.dtype == torch.float64 and not p.requires_grad for p in model.parameters())
    return model if ready else copy.deepcopy(model).double().requires_grad_(False)


def _groups(encoded: list[Encoded], slots: int) -> Iterator[np.ndarray]:
    """Indices of pairs of similar length, at most `slots` padded slots a group (one pair at least)."""
    lengths = np.array([len(e.ids) for e in encoded])
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= slots:
            stop += 1
        yield order[start:stop]
        start = stop


def _limit(memory_mib: float, length: int, slots_a_pass: int = CACHE_SLOTS) -> int:
    """Slots (nodes x pairs x slots) of one pass, whose activations and gradients fit `memory_mib`."""
    bytes_a_slot = 8 * (9000 + 60 * length)  # measured on the Born Transformer
    return max(1, min(slots_a_pass, int(memory_mib * 2**20 / bytes_a_slot)))


def _targets(encoded: list[Encoded], targets) -> np.ndarray | None:
    if targets is None:
        return None
    out = np.asarray(targets)
    if out.shape != (len(encoded),) or not np.isin(out, range(len(LABELS))).all():
        raise ValueError(f"targets: expected {len(encoded)} classes in 0..{len(LABELS) - 1}, got {targets!r}")
    return out.astype(np.int64)


@dataclass
class _Group:
    """Some pairs, padded to one length: fields x (B, L, C), mask (B, L), target (B,), scores (B, 3) and their trace."""

    x: Tensor
    mask: Tensor
    target: Tensor
    scores: Tensor
    held: Trace


def _prepare(model: Model, encoded: list[Encoded], targets: np.ndarray | None) -> _Group:
    ids, sentence = collate(encoded)
    mask, held = ids != PAD_ID, Trace()
    with torch.no_grad():
        x = model.fields(ids, sentence)
        scores = model.scores(x, mask, trace=held)
    target = scores.argmax(-1) if targets is None else torch.from_numpy(targets)
    return _Group(x, mask, target, scores, held)


def _expand(value: Tensor, nodes: int) -> Tensor:
    """Repeat (B, ...) for every node: (nodes * B, ...)."""
    return value.expand(nodes, *value.shape).reshape(-1, *value.shape[1:])


def _integrand(model: Model, group: _Group, t: Tensor, held: bool, gated: bool, limit: int) -> np.ndarray:
    """Samples (B, nodes, L) of the integrand at the nodes t, at most `limit` slots a pass."""
    B, L, C = group.x.shape
    step = max(1, limit // (B * L))
    out = []
    for part in t.split(step):
        n = len(part)
        scale = _expand(group.mask.double(), n) * part.repeat_interleave(B).unsqueeze(-1)  # (n B, L)
        options = {"gates": scale.requires_grad_()} if gated else {}
        y = scale.unsqueeze(-1) * _expand(group.x, n)
        leaf = scale if gated else y.requires_grad_()
        scores = model.scores(y, _expand(group.mask, n), held=_held(group, n) if held else None, **options)
        (gradient,) = torch.autograd.grad(scores.gather(1, _expand(group.target, n).unsqueeze(-1)).sum(), leaf)
        f = gradient if gated else (gradient.view(n, B, L, C) * group.x).sum(-1)
        out.append(f.view(n, B, L))
    return torch.cat(out).transpose(0, 1).numpy()


def integrand(model: Model, encoded: Encoded, t, target: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """One pair along the path t x, denominators held: Re<x_i, d N_c(t x) / d x_i> / D (nodes, slots), and the scores
    N_c(t x) / D of all classes (nodes, 3); for a polynomial model, class `target` (default: the answer), float64.
    """
    if model.degree is None:
        raise ValueError(f"model: expected a polynomial one (born, poly), got {model.kind!r}")
    model = _double(model)
    group = _prepare(model, [encoded], None if target is None else _targets([encoded], [target]))
    t = torch.as_tensor(np.asarray(t, float).reshape(-1))
    samples = _integrand(model, group, t, True, False, CACHE_SLOTS)[0]
    n = len(t)
    with torch.no_grad():
        y = t.view(n, 1, 1) * group.x
        scores = model.scores(y, _expand(group.mask, n), held=_held(group, n))
    return samples, scores.numpy()


def _held(group: _Group, copies: int) -> Trace:
    """The group's denominators, repeated."""
    total = group.held.total
    return Trace(row_sums=[_expand(s, copies) for s in group.held.row_sums], total=None if total is None else _expand(total, copies))


def _baseline(model: Model, group: _Group, held: bool, gated: bool) -> Tensor:
    """Scores (B, 3) at t = 0."""
    options = {"gates": torch.zeros(group.mask.shape, dtype=torch.float64)} if gated else {}
    with torch.no_grad():
        return model.scores(torch.zeros_like(group.x), group.mask, held=group.held if held else None, **options)


def _collect(encoded, group: _Group, baseline: Tensor, values: np.ndarray, nodes: int, bound: np.ndarray, unit: str) -> list[Evidence]:
    probabilities = group.scores if unit == "probability" else group.scores.softmax(-1)
    out = []
    for b, e in enumerate(encoded):
        target, own = int(group.target[b]), values[b, : len(e.ids)].copy()
        score, zero = float(group.scores[b, target]), float(baseline[b, target])
        gap = abs(own.sum() - (score - zero))
        both = probabilities[b].numpy().copy(), baseline[b].numpy().copy()
        out.append(Evidence(e, target, own, score, zero, both[0], float(gap), nodes, float(bound[b]), unit, both[1]))
    return out


# ---------------------------------------------------------------------------------------------- exact evidence
def _quadrature(model: Model, group: _Group, nodes: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Evidence (B, L) by `nodes` Gauss-Legendre nodes, and a bound (B,) on its quadrature error.

    The first block sees t x, so with denominators held its output is a combination of a few powers of t: values at
    as many anchors give it at every node, and only the later blocks are computed node by node.

    Bound: n nodes integrate degrees below 2n exactly, so the error of a word is what the Legendre
    coefficients of its integrand hold from 2n on. Those of degrees n - 2 and n - 1 are computed word by word; from
    there on they are taken to fall as fast as the gradient's coefficients fell between n / 2 and n (they fall faster).
    """
    B, L, C = group.x.shape
    born = model.kind == "born"
    powers = block_powers(4, True) if born else block_powers(2, False)
    points = torch.from_numpy(anchors(powers))
    A = len(points)
    y = (points.view(A, 1, 1, 1) * group.x).view(A * B, L, C).requires_grad_()
    sums, mask = _expand(group.held.row_sums[0], A), _expand(group.mask, A)
    first = model.blocks[0](model.enter(y), sums, None) if born else model.blocks[0](y, mask, sums, None, None)
    values = first.detach().view(A, -1)

    t, w = gauss_legendre(nodes)
    certify = 2 * nodes - 1 < model.degree - 1 and nodes >= 8
    orders = [0, nodes - 2, nodes - 1] if certify else [0]
    spread = interpolation(powers, nodes)  # (n, A)
    weights = (legendre(t, orders) * w / t)[:, :, None] * spread  # (orders, n, A)
    rows = weights.transpose(0, 2, 1).reshape(-1, nodes)
    if certify:
        half = nodes // 2
        rows = np.concatenate([rows, legendre(t, [half - 1, half, nodes - 2, nodes - 1]) * w])
    rows, spread = torch.from_numpy(rows), torch.from_numpy(spread)
    moments = values.new_zeros(len(rows), values.shape[1])
    for part in torch.arange(nodes).split(max(1, limit // (B * L))):
        n = len(part)
        h = (spread[part] @ values).view(n * B, -1, C).requires_grad_()
        scores = model.scores(h, _expand(group.mask, n), held=_held(group, n), start=1)
        (gradient,) = torch.autograd.grad(scores.gather(1, _expand(group.target, n).unsqueeze(-1)).sum(), h)
        moments += rows[:, part] @ gradient.view(n, -1)

    coefficients = []
    for k in range(len(orders)):
        cotangent = moments[k * A : (k + 1) * A].view_as(first)
        (gradient,) = torch.autograd.grad(first, y, cotangent, retain_graph=k + 1 < len(orders))
        coefficients.append((gradient * y.detach()).view(A, B, L, C).sum((0, 3)).numpy())
    evidence = coefficients[0]
    bound = ROUNDING * np.abs(evidence).max(1)
    if not certify:
        return evidence, bound if nodes >= exact_nodes(model.degree) else np.full(B, np.nan)
    tail = np.abs(coefficients[1:]).max((0, 2))
    size = moments[-4:].view(2, 2, B, -1).abs().amax((1, 3)).numpy()  # (half or tail, B)
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = np.where(size[0] > 0, size[1] / size[0], 0.0)
        geometric = np.where(fall < 1, np.sqrt(4 * nodes + 1) / (1 - fall ** (2 / nodes)), np.inf)
        return evidence, np.where(tail > 0, tail * fall**2 * geometric, 0.0) + bound


def word_evidence(
    model: Model,
    encoded: list[Encoded],
    targets=None,
    nodes: str | int = "auto",
    tolerance: float = 1e-11,
    memory_mib: float = 512,
    slots_a_pass: int = CACHE_SLOTS,
    progress: bool = False,
) -> list[Evidence]:
    """Evidence of every slot for a class score, complete by construction (paper Tables 1, 2, 9, Figure 4; float64).

    `targets` (pairs,) are the classes explained, by default the model's answers. `nodes` is "exact" (324 for the
    Born Transformer, 50 for Poly-sim-born), a number of Gauss-Legendre nodes, or "auto": more and more nodes
    until `error_bound` and the gap are below `tolerance`, pair by pair, the exact rule at last. A pass computes at most
    `slots_a_pass` slots (nodes x pairs x slots), fewer if `memory_mib` does not hold them; results depend neither on
    these nor on the other pairs. Raises ValueError for a model that is no polynomial.
    """
    if model.degree is None:
        raise ValueError(f"model: expected a polynomial one (born, poly), got {model.kind!r}; use integrated_gradients")
    exact = exact_nodes(model.degree)
    if nodes == "auto":
        ladder = [n for n in LADDER if 1.75 * model.degree**0.5 < n < exact] + [exact]
    elif nodes == "exact":
        ladder = [exact]
    elif isinstance(nodes, int) and not isinstance(nodes, bool) and nodes > 0:
        ladder = [nodes]
    else:
        raise ValueError(f"nodes: expected 'auto', 'exact' or a positive number, got {nodes!r}")
    model, targets = _double(model), _targets(encoded, targets)
    out: list[Evidence | None] = [None] * len(encoded)
    todo = list(range(len(encoded)))
    with tqdm(total=len(encoded), desc=f"evidence {model.kind}", disable=not progress) as bar:
        for n in ladder:
            failed = []
            longest = max((len(encoded[i].ids) for i in todo), default=1)
            limit = _limit(memory_mib, longest, slots_a_pass)
            for local in _groups([encoded[i] for i in todo], max(1, limit // ANCHORS)):
                index = [todo[i] for i in local]
                chosen = [encoded[i] for i in index]
                group = _prepare(model, chosen, None if targets is None else targets[index])
                values, bound = _quadrature(model, group, n, limit)
                for i, e in zip(index, _collect(chosen, group, _baseline(model, group, True, False), values, n, bound, model.score_unit), strict=True):
                    if n == ladder[-1] or (e.error_bound <= tolerance and e.gap <= tolerance):
                        out[i] = e
                        bar.update()
                    else:
                        failed.append(i)
            todo = sorted(failed)
    return out


# ---------------------------------------------------------------------------------------------- integrated gradients
def integrated_gradients(
    model: Model,
    encoded: list[Encoded],
    targets=None,
    nodes: int = 256,
    gated: bool = False,
    bend: float | None = None,
    memory_mib: float = 512,
    progress: bool = False,
) -> list[Evidence]:
    """Integrated gradients of a class score along t x, t from 0 to 1, nothing held (paper Tables 1-3; float64).

    x are the slots' fields with position and sentence field. `gated`: a gate a slot, from 0 to 1 together, scales the
    slot's field and the attention weight of that key after the softmax. The sum is complete only as far as `nodes`
    Gauss-Legendre nodes integrate, which LayerNorm makes hard: the integrand has poles at t = +-i sqrt(1e-5) / |x|, and later
    LayerNorms bring nearer ones. `bend` a puts the nodes at t = a sinh(u asinh(1/a)), evenly in log t above a, which
    keeps the path clear of poles; None is the paper's rule. The Born Transformer's free denominators jump at t = 0: no
    rule is complete there.
    """
    if not isinstance(nodes, int) or nodes < 1 or not (bend is None or bend > 0):
        raise ValueError(f"nodes and bend: expected a positive whole number, and None or a positive number; got {nodes!r} and {bend!r}")
    if gated and model.kind == "born":
        raise ValueError("gated: expected a model with attention gates, got 'born'")
    model, targets = _double(model), _targets(encoded, targets)
    t, w = gauss_legendre(nodes)
    if bend is not None:
        stretch = np.arcsinh(1 / bend)
        t, w = bend * np.sinh(t * stretch), w * bend * stretch * np.cosh(t * stretch)
    limit = _limit(memory_mib, max((len(e.ids) for e in encoded), default=1))
    out: list[Evidence | None] = [None] * len(encoded)
    with tqdm(total=len(encoded), desc=f"integrated gradients {model.kind}", disable=not progress) as bar:
        for index in _groups(encoded, max(1, limit // nodes)):
            chosen = [encoded[i] for i in index]
            group = _prepare(model, chosen, None if targets is None else targets[index])
            samples = _integrand(model, group, torch.from_numpy(t), False, gated, limit)
            values = np.einsum("n,pns->ps", w, samples)
            unknown = np.full(len(chosen), np.nan)
            baseline = _baseline(model, group, False, gated)
            for i, e in zip(index, _collect(chosen, group, baseline, values, nodes, unknown, model.score_unit), strict=True):
                out[i] = e
            bar.update(len(index))
    return out
