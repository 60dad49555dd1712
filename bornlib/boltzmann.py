"""Attention weights as Boltzmann draws in a frozen LLaMA: four samplers, the bridge into the model, and what verifies them.

A row of attention logits J (one query of one head against S keys) is a field on one categorical unit; its Boltzmann distribution is softmax(J).
K draws give the frequencies p = counts / K, and (1 - alpha) softmax(J) + alpha p takes the place of the attention weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import scipy.special
import torch
from scipy import stats

from .frozen import ModelUnavailable
from .training import atomic_write

BACKENDS = ("exact", "gumbel", "rbm", "thrml")
BLOCK = 1 << 18  # random numbers at a time: 1 MiB stays in a core's cache
HIDDEN, COUPLING = 8, 0.7  # hidden units of the rbm and the standard deviation of its weights
CHAINS, BURN_IN = 25, 30  # chains a row at most, and sweeps before the first draw counts
MEASUREMENTS = 2  # see Store
NAME = "bornlib_boltzmann"  # in transformers' tables of attention and mask functions


# ---------------------------------------------------------------------------------------------- samplers
Seed = int | Sequence[int] | np.random.SeedSequence


def draw(logits: np.ndarray, draws: int, backend: str | Callable = "exact", seed: Seed = 0) -> np.ndarray:
    """How often each key was drawn in `draws` draws from softmax(logits), row by row: whole numbers (rows, S).

    `logits` (rows, S) may hold -inf (masked keys, never drawn). `backend`: "exact" draws multinomial counts from the softmax, "gumbel" takes the
    argmax of logits plus Gumbel noise, "rbm" runs block Gibbs on a restricted Boltzmann machine, "thrml" on thrml's categorical graph; or a
    function of your own of (logits, draws, numpy SeedSequence).
    The same arguments give the same counts. Memory is of order rows * S for every `draws`. ValueError for logits without a finite entry
    in some row or with NaN or +inf, draws < 1, or an unknown backend.
    """
    logits = np.asarray(logits)
    if logits.ndim != 2 or not logits.size:
        raise ValueError(f"logits: expected rows and keys (rows, S), got shape {logits.shape}")
    if np.isnan(logits).any() or np.isposinf(logits).any() or np.isneginf(logits).all(1).any():
        raise ValueError("logits: expected no NaN, no +inf, and a finite entry in every row")
    check(backend=backend, draws=draws)
    if not isinstance(seed, np.random.SeedSequence):
        seed = np.random.SeedSequence((seed,) if isinstance(seed, (int, np.integer)) else tuple(seed))
    own = {"exact": _exact, "gumbel": _gumbel, "rbm": _rbm, "thrml": _thrml}
    return (backend if callable(backend) else own[backend])(logits, draws, seed)


def check(backend: str | Callable = "exact", draws: int = 1, blend: float = 1.0) -> None:
    """ValueError for an unknown backend, draws that are no whole number from 1 on, or a blend (alpha) outside [0, 1]."""
    if not callable(backend) and backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {BACKENDS}, got {backend!r}")
    if isinstance(draws, bool) or not isinstance(draws, (int, np.integer)) or draws < 1:
        raise ValueError(f"draws: expected a whole number K >= 1, got {draws!r}")
    if not 0 <= blend <= 1:
        raise ValueError(f"blend: expected alpha in [0, 1], got {blend!r}")


def softmax(logits: np.ndarray) -> np.ndarray:
    """softmax along the last axis in float64; exactly 0 where a logit is -inf."""
    return scipy.special.softmax(np.asarray(logits, np.float64), axis=-1)


def _exact(logits: np.ndarray, draws: int, seed: np.random.SeedSequence) -> np.ndarray:
    p = softmax(logits)
    rows, top, last = np.arange(len(p)), p.argmax(1), p.shape[1] - 1
    # the last category gets what is left: give it the largest probability, else rounding could leave a draw for a masked key
    p[rows, top], p[:, last] = p[:, last].copy(), p[rows, top].copy()
    counts = np.random.Generator(np.random.SFC64(seed)).multinomial(draws, p)
    counts[rows, top], counts[:, last] = counts[:, last].copy(), counts[rows, top].copy()
    return counts


def _race(rng: np.random.Generator, slowness: np.ndarray, draws: int) -> np.ndarray:
    """Winners (n, draws) of races between keys with exponential times; `slowness` exp(-J) (n, S), inf never wins.

    The argmin of E * exp(-J) is the argmax of J + G: G = -log(E) is Gumbel noise.
    """
    times = rng.standard_exponential((len(slowness), draws, slowness.shape[1]), np.float32)
    np.maximum(times, np.float32(1e-30), out=times)  # an exact zero would beat a masked key's inf to NaN
    times *= slowness[:, None]
    return times.argmin(-1)


def _gumbel(logits: np.ndarray, draws: int, seed: np.random.SeedSequence) -> np.ndarray:
    rng = np.random.Generator(np.random.SFC64(seed))
    counts = np.zeros(logits.shape, np.int64)
    with np.errstate(over="ignore"):
        slowness = np.exp(logits.max(1, keepdims=True) - logits).astype(np.float32)
    width = logits.shape[1] - np.isfinite(logits)[:, ::-1].argmax(1)  # keys up to the last one that is not masked
    order, start = np.argsort(width, kind="stable"), 0
    while start < len(order):
        few = max(1, min(64, BLOCK // (8 * int(width[order[start]]))))
        some = order[start : start + few]
        keys, start = int(width[some[-1]]), start + len(some)
        at_once, local = max(1, BLOCK // (len(some) * keys)), np.arange(len(some))[:, None] * keys
        for done in range(0, draws, at_once):
            winners = _race(rng, slowness[some, :keys], min(at_once, draws - done)) + local
            counts[some, :keys] += np.bincount(winners.ravel(), minlength=len(some) * keys).reshape(len(some), keys)
    return counts


# ---------------------------------------------------------------------------------------------- restricted Boltzmann machine
def rbm_weights(keys: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random couplings W (HIDDEN, keys) and hidden biases c (HIDDEN,) of the rbm backend, float64, the same for every row."""
    rng = np.random.default_rng([seed, 8])
    return COUPLING * rng.standard_normal((keys, HIDDEN)).T, COUPLING * rng.standard_normal(HIDDEN)


def rbm_biases(logits: np.ndarray, W: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Visible biases b_j = J_j - sum_h softplus(c_h + W_hj) (rows, S): the marginal of one categorical visible unit is then exactly softmax(J)."""
    return np.asarray(logits, np.float64) - np.logaddexp(0, c[:, None] + W).sum(0)


def rbm_chain(logits: np.ndarray, chains: int, sweeps: int, seed: Seed = 0) -> Iterator[np.ndarray]:
    """The visible unit's value (rows, chains) after each of `sweeps` sweeps of block Gibbs (hidden given visible, visible given hidden).

    Every chain starts with all hidden units off, which is not a draw: leave the first sweeps out.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    rows, keys = logits.shape
    W, c = rbm_weights(keys)
    b = rbm_biases(logits, W, c)
    b, W, c = (b - b.max(1, keepdims=True)).astype(np.float32), W.astype(np.float32), c.astype(np.float32)
    hidden = np.zeros((rows, chains, HIDDEN), np.float32)
    for _ in range(sweeps):
        fields = hidden @ W + b[:, None]
        with np.errstate(over="ignore"):
            slowness = np.exp(fields.max(-1, keepdims=True) - fields).reshape(rows * chains, keys)
        visible = _race(rng, slowness, 1).reshape(rows, chains)
        yield visible
        on = 1 / (1 + np.exp(-(c + W.T[visible])))
        hidden = (rng.random(on.shape, np.float32) < on).astype(np.float32)


def _rbm(logits: np.ndarray, draws: int, seed: np.random.SeedSequence) -> np.ndarray:
    counts = np.zeros(logits.shape, np.int64)
    chains = min(draws, CHAINS)
    at_once = max(1, BLOCK // (chains * logits.shape[1]))
    for start, child in zip(range(0, len(logits), at_once), seed.spawn(-(-len(logits) // at_once)), strict=True):
        some = logits[start : start + at_once]
        local = np.arange(len(some))[:, None] * some.shape[1]
        left = draws
        for sweep, visible in enumerate(rbm_chain(some, chains, BURN_IN + -(-draws // chains), child)):
            if sweep >= BURN_IN:
                kept = (visible + local)[:, : min(left, chains)]
                counts[start : start + at_once] += np.bincount(kept.ravel(), minlength=some.size).reshape(some.shape)
                left -= kept.shape[1]
    return counts


def autocorrelation_time(series: np.ndarray) -> float:
    """Integrated autocorrelation time tau of chains (sweeps, chains), in sweeps: K correlated draws are worth K / tau independent ones.

    1 for independent draws; the sum over lags stops at the first pair of neighbours that adds up to nothing (Geyer's rule).
    """
    x = np.asarray(series, np.float64) - np.mean(series)
    n, variance = len(x), float(np.mean(x * x))
    if variance == 0:
        return 1.0
    tau, previous = 1.0, 1.0
    for lag in range(1, n // 2):
        rho = float(np.mean(x[lag:] * x[:-lag])) / variance
        if previous + rho <= 0:
            break
        tau, previous = tau + 2 * rho, rho
    return max(tau, 1.0)


# ---------------------------------------------------------------------------------------------- thrml
def bucket(rows: int, keys: int) -> tuple[int, int]:
    """The shape that a thrml program is compiled for: keys to a power of two from 8 on, rows to sixteenths of one."""
    step = max(1, (1 << (rows - 1).bit_length()) // 16)
    return -(-rows // step) * step, max(8, 1 << (keys - 1).bit_length())


@functools.cache
def thrml_program(rows: int, keys: int) -> Callable:
    """Jitted (logits (rows, keys), jax key, K) -> counts (rows, keys): K sweeps of thrml's block Gibbs over a graph of `rows` categorical nodes.

    The graph is built once while jax traces; logits, key and K are traced, so that a shape is compiled once. Counts are added where a draw falls
    (memory rows * keys, whatever K). A node's state is unsigned and 32 bits wide: thrml's default of 8 bits ends at category 255.
    The initial state is overwritten before the first draw is counted.
    """
    import jax
    import jax.numpy as jnp
    from thrml import Block, BlockGibbsSpec, CategoricalNode
    from thrml.block_sampling import sample_blocks
    from thrml.factor import FactorSamplingProgram
    from thrml.models import CategoricalEBMFactor, CategoricalGibbsConditional

    block = Block([CategoricalNode() for _ in range(rows)])
    spec = BlockGibbsSpec([block], [], {CategoricalNode: jax.ShapeDtypeStruct((), jnp.uint32)})

    def run(logits, key, draws):
        program = FactorSamplingProgram(spec, [CategoricalGibbsConditional(keys)], [CategoricalEBMFactor([block], logits)], [])

        def sweep(k, carry):
            state, counts = carry
            (state,), _ = sample_blocks(jax.random.fold_in(key, k), [state], [], program, [None])
            return state, counts.at[jnp.arange(rows), state].add(1)

        start = (jnp.zeros(rows, jnp.uint32), jnp.zeros((rows, keys), jnp.int32))
        return jax.lax.fori_loop(0, draws, sweep, start)[1]

    return jax.jit(run)


def _thrml(logits: np.ndarray, draws: int, seed: np.random.SeedSequence) -> np.ndarray:
    import jax

    rows, keys = logits.shape
    shape = bucket(rows, keys)
    padded = np.full(shape, -np.inf, np.float32)
    padded[:rows, :keys] = logits
    padded[rows:, 0] = 0  # rows that only fill the shape
    key = jax.random.wrap_key_data(seed.generate_state(2), impl="threefry2x32")
    counts = thrml_program(*shape)(jax.dlpack.from_dlpack(padded), key, draws)
    return np.from_dlpack(counts)[:rows, :keys].astype(np.int64)


# ---------------------------------------------------------------------------------------------- the bridge
@dataclasses.dataclass
class Trace:
    """What happened while a model was sampled: calls of the samplers, processor seconds spent in them, rows drawn."""

    calls: int = 0
    seconds: float = 0.0
    rows: int = 0


@dataclasses.dataclass(frozen=True)
class _Layer:
    backend: str | Callable
    draws: int
    blend: float
    seed: int
    observe: Callable | None
    trace: Trace


@contextlib.contextmanager
def sampled(
    model,
    layers: int | Sequence[int],
    backend: str | Callable = "exact",
    draws: int = 500,
    blend: float = 1.0,
    seed: int = 0,
    observe: Callable[[int, np.ndarray, np.ndarray], None] | None = None,
) -> Iterator[Trace]:
    """Inside this context the softmax of `layers` of a frozen LLaMA is replaced by (1 - blend) softmax + blend * counts / draws.

    Holds for `forward()` and for cached `generate()`, and for grouped queries; no weight changes, and everything is as it was when the context is
    left, also by an error. The draws depend on seed, layer and number of keys only: not on what other layers do. With blend 0 the logits
    are bit-identical to the untouched model's. `observe(layer, logits (rows, S) with -inf where masked, counts (rows, S))` sees every call.
    Several layers are closed-loop: a later one's logits come from the hidden state that an earlier one has perturbed (the paper's is open-loop).

    ValueError for a model that is no LLaMA or does not use attention "eager", a layer that it lacks, and for `check`'s reasons.
    """
    from transformers.models.llama.modeling_llama import LlamaAttention

    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind != "llama":
        raise ValueError(f"model: expected LLaMA architecture (model_type 'llama'), got {kind!r}")
    before = model.config._attn_implementation
    if before != "eager":
        raise ValueError(f"model: expected attention 'eager' (`model.set_attn_implementation('eager')`), got {before!r}")
    wanted = (layers,) if isinstance(layers, (int, np.integer)) else tuple(layers)
    modules = {m.layer_idx: m for m in model.modules() if isinstance(m, LlamaAttention)}
    if not wanted or any(isinstance(layer, bool) or layer not in modules for layer in wanted):
        raise ValueError(f"layers: expected numbers from 0 to {len(modules) - 1}, got {layers!r}")
    check(backend, draws, blend)
    _register()
    trace = Trace()
    try:
        for layer in wanted:
            modules[layer].boltzmann = _Layer(backend, draws, blend, seed, observe, trace)
        model.set_attn_implementation(NAME)
        yield trace
    finally:
        model.set_attn_implementation(before)
        for layer in set(wanted):
            del modules[layer].boltzmann


def _register() -> None:
    """Make NAME known to transformers: the attention function, and eager's mask (without it the model would silently lose causality)."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, eager_mask)


def _attend(module, query, key, value, attention_mask, scaling, dropout=0.0, **others):
    """Attention as transformers' eager one, with draws where the module has a `boltzmann`: (B, Sq, heads, d) and weights (B, heads, Sq, Sk)."""
    from transformers.models.llama.modeling_llama import eager_attention_forward, repeat_kv

    layer: _Layer | None = getattr(module, "boltzmann", None)
    if layer is None:
        return eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout, **others)
    keys, values = (repeat_kv(x, module.num_key_value_groups) for x in (key, value))  # B heads Sk d
    scores = torch.matmul(query, keys.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32)
    p = _frequencies(layer, module.layer_idx, scores, attention_mask).to(weights.device)
    weights = ((1 - layer.blend) * weights + layer.blend * p).to(query.dtype)
    weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, values).transpose(1, 2).contiguous(), weights


def _frequencies(layer: _Layer, index: int, scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """counts / K in float32, of the scores' shape (B, heads, Sq, Sk)."""
    logits = scores.detach().float()
    if mask is not None:
        masked = (mask <= torch.finfo(mask.dtype).min / 2).expand(logits.shape)
        masked = masked & ~masked.all(
            -1, keepdim=True
        )  # a padding query sees nothing: its softmax is uniform, and so are its draws
        logits = logits.masked_fill(masked, -math.inf)
    rows = logits.reshape(-1, logits.shape[-1]).cpu().numpy()
    clock = time.process_time()
    counts = draw(rows, layer.draws, layer.backend, (layer.seed, index, rows.shape[1]))
    layer.trace.seconds += time.process_time() - clock
    layer.trace.calls += 1
    layer.trace.rows += len(rows)
    if layer.observe is not None:
        layer.observe(index, rows, counts)
    return torch.from_numpy(counts).reshape(scores.shape).to(torch.float32) / layer.draws


def capture(model, ids: torch.Tensor, layer: int) -> np.ndarray:
    """The logits (heads * n, n) of one layer for token ids (1, n), after rotary embedding, scale and mask (-inf): what the sampler is given."""
    kept = []
    with sampled(model, layer, blend=0.0, draws=1, observe=lambda _, logits, counts: kept.append(logits)):
        last_logits(model, ids)
    return kept[0]


@torch.no_grad()
def last_logits(model, ids: torch.Tensor) -> np.ndarray:
    """Next-token logits (n, vocabulary) in float32 at every position of token ids (1, n): one teacher-forced forward pass."""
    return model(ids, use_cache=False).logits[0].float().cpu().numpy()


@torch.no_grad()
def through_cache(
    model, ids: torch.Tensor, start: int, layers: int | Sequence[int] | None = None, **settings
) -> tuple[np.ndarray, float, Trace]:
    """Next-token logits (n - start, vocabulary) at positions start ... n-1 of ids (1, n), token by token through the cache.

    The untouched model reads the first `start` tokens at once; the others are read inside `sampled(model, layers, **settings)`, or by the untouched
    model where `layers` is None. Teacher-forced: what the model would say does not change what it reads. Also returned: processor seconds of the
    tokens read one by one (other programs left out), and the samplers' trace.
    """
    from transformers import DynamicCache

    if not 0 < start < ids.shape[1]:
        raise ValueError(f"start: expected 1 to {ids.shape[1] - 1}, got {start!r}")
    cache, out = DynamicCache(config=model.config), []
    model(ids[:, :start], cache=cache, use_cache=True)
    with contextlib.nullcontext(Trace()) if layers is None else sampled(model, layers, **settings) as trace:
        clock = time.process_time()
        for k in range(start, ids.shape[1]):
            out.append(model(ids[:, k : k + 1], cache=cache, use_cache=True).logits[0, -1].float().cpu().numpy())
        seconds = time.process_time() - clock
    return np.stack(out), seconds, trace


@torch.no_grad()
def answer(model, ids: torch.Tensor, tokens: int = 49) -> tuple[torch.Tensor, np.ndarray]:
    """Greedy continuation of ids (1, n) by at most `tokens` through the cache: ids of the continuation (m,) and its logits (m, vocabulary)."""
    mask = torch.ones_like(ids)
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, return_dict_in_generate=True, output_logits=True,
        pad_token_id=model.config.pad_token_id,
    )  # fmt: skip
    return out.sequences[0, ids.shape[1] :], torch.stack(out.logits)[:, 0].float().cpu().numpy()


# ---------------------------------------------------------------------------------------------- how far apart
def output_divergence(reference: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """KL(reference || sampled) in nats between next-token distributions, (n,), float64; exactly 0 for identical logits."""
    a, b = (x - np.logaddexp.reduce(x, -1, keepdims=True) for x in (np.asarray(v, np.float64) for v in (reference, logits)))
    return np.maximum((np.exp(a) * (a - b)).sum(-1), 0.0)


def agreement(reference: np.ndarray, logits: np.ndarray, confident: float = 0.5) -> dict[str, float]:
    """Mean KL, share of positions with the same top token, and confident flips: another top token where the reference gave its own over `confident`."""
    same = reference.argmax(-1) == logits.argmax(-1)
    sure = softmax(reference).max(-1) > confident
    return {
        "kl": float(output_divergence(reference, logits).mean()),
        "top1": float(same.mean()),
        "confident_flips": int((sure & ~same).sum()),
    }


def divergences(logits: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Per row, nats: `kl` of the frequencies from softmax, `kl_back` of softmax from the frequencies, and `tv` total variation; `law` is (S - 1) / 2K.

    In `kl_back` an empty key counts as half a draw (it would be infinite). S is the number of keys that are not masked.
    """
    p, draws = softmax(logits), counts.sum(1, keepdims=True)
    q, open_ = counts / draws, np.isfinite(logits)
    log_p = np.where(open_, logits - np.logaddexp.reduce(logits.astype(np.float64), 1, keepdims=True), 0.0)
    safe = np.log(np.maximum(counts, 0.5) / draws)
    return {
        "kl": np.where(counts > 0, q * (safe - log_p), 0.0).sum(1),
        "kl_back": np.where(open_, p * (log_p - safe), 0.0).sum(1),
        "tv": 0.5 * np.abs(p - q).sum(1),
        "law": (open_.sum(1) - 1) / (2 * draws[:, 0]),
    }


def chi_square(logits: np.ndarray, counts: np.ndarray, smallest: float = 5.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Goodness of fit of each row's counts to softmax: statistic, degrees of freedom, p value (paper section 4.1).

    Keys with an expected count below `smallest` are pooled, never dropped (with the smallest other key where the pool stays below it).
    A draw on a masked key makes the statistic infinite and p 0. Where one cell is left there is nothing to test: p is NaN.
    """
    open_ = np.isfinite(logits)
    expected = softmax(logits) * counts.sum(1, keepdims=True)
    order = np.argsort(np.where(open_, expected, np.inf), 1)
    expected, observed, open_ = (np.take_along_axis(x, order, 1) for x in (expected, counts.astype(np.float64), open_))
    running = np.cumsum(np.where(open_, expected, 0.0), 1)
    small = (expected < smallest) & open_
    pool_end = small.sum(1)  # sorted: the small ones come first
    rows = np.arange(len(expected))
    weak = (pool_end > 0) & (running[rows, pool_end - 1] < smallest) & (pool_end < open_.sum(1))
    pool_end = pool_end + weak
    pooled = np.arange(expected.shape[1]) < pool_end[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        single = np.where(open_ & ~pooled, (observed - expected) ** 2 / expected, 0.0).sum(1)
        e, o = (expected * pooled).sum(1), (observed * pooled).sum(1)
        statistic = single + np.where(pool_end > 0, (o - e) ** 2 / e, 0.0)
    cells = (open_ & ~pooled).sum(1) + (pool_end > 0)
    statistic = np.where((observed * ~open_).sum(1) > 0, np.inf, statistic)
    p = np.where(np.isinf(statistic), 0.0, np.where(cells > 1, stats.chi2.sf(statistic, np.maximum(cells - 1, 1)), np.nan))
    return statistic, cells - 1, p


def energy_scores(logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Standard scores (rows,) of each row's mean drawn logit (its energy's negative): what a wrong temperature shifts first."""
    p, open_ = softmax(logits), np.isfinite(logits)
    J, draws = np.where(open_, logits, 0.0).astype(np.float64), counts.sum(1)
    mean = (p * J).sum(1)
    variance = (p * (J - mean[:, None]) ** 2).sum(1)
    shift = (counts * J).sum(1) / draws - mean
    return np.where(variance > 0, shift / np.sqrt(np.maximum(variance, 1e-300) / draws), 0.0)


def row_tests(logits: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Everything that `summarise` needs of each row, as columns (rows,): parts of the rows may be tested apart and joined.

    ValueError where the shapes differ or the rows have different numbers of draws.
    """
    if logits.shape != counts.shape or len(np.unique(counts.sum(1))) != 1:
        raise ValueError(
            f"counts: expected shape {logits.shape} and the same number of draws in each row, got shape {counts.shape}"
        )
    statistic, dof, p = chi_square(logits, counts)
    p_first, draws = softmax(logits)[:, 0], counts.sum(1)
    return {
        "statistic": statistic,
        "dof": dof,
        "p": p,
        "score": energy_scores(logits, counts),
        "first": counts[:, 0] - draws * p_first,
        "first_variance": draws * p_first * (1 - p_first),
        "masked": np.where(np.isfinite(logits), 0, counts).sum(1),
        **divergences(logits, counts),
    }


@dataclasses.dataclass(frozen=True)
class Verification:
    """What `summarise` found: p values of four tests, and the means over rows that the paper prints."""

    rows: int
    passed: float  # share of rows with chi-square p > 0.05
    mean_p: float
    uniform: float  # Kolmogorov-Smirnov: are the rows' p values uniform?
    total: float  # chi-square summed over rows
    dispersion: float  # that sum over its degrees of freedom: 1 for independent draws
    energy: float  # the rows' energy scores, summed
    first: float  # draws of key 0, where chains start, in all rows together
    masked: int  # draws on masked keys
    kl: float
    kl_back: float
    tv: float
    law: float

    @property
    def rejected(self) -> bool:
        """Whether one of the tests says no at one in a thousand for all of them together, or a masked key was drawn."""
        return self.masked > 0 or min(self.uniform, self.total, self.energy, self.first) < 0.001 / 4


def summarise(tests: Mapping[str, Sequence[float]]) -> Verification:
    """All tests of the rows (columns of `row_tests`): one by one, their p values against uniformity, and the rows together.

    The rows must be independent. Where no row has two cells (too few draws) chi-square says nothing: its means are NaN, its p values 1.
    """
    t = {name: np.asarray(values, np.float64) for name, values in tests.items()}
    known = t["dof"] > 0
    p, statistic, dof = t["p"][known], t["statistic"][known].sum(), t["dof"][known].sum()
    return Verification(
        rows=len(known),
        passed=float((p > 0.05).mean()) if len(p) else math.nan,
        mean_p=float(p.mean()) if len(p) else math.nan,
        uniform=float(stats.kstest(p, "uniform").pvalue) if len(p) else 1.0,
        total=float(stats.chi2.sf(statistic, dof)) if len(p) else 1.0,
        dispersion=float(statistic / dof) if len(p) else math.nan,
        energy=float(2 * stats.norm.sf(abs(t["score"].sum()) / math.sqrt(len(known)))),
        first=float(2 * stats.norm.sf(abs(t["first"].sum()) / math.sqrt(max(t["first_variance"].sum(), 1e-300)))),
        masked=int(t["masked"].sum()),
        **{name: float(t[name].mean()) for name in ("kl", "kl_back", "tv", "law")},
    )


def verify(logits: np.ndarray, counts: np.ndarray) -> Verification:
    """`summarise` of `row_tests`: are these counts (rows, S) draws from softmax(logits)?"""
    return summarise(row_tests(logits, counts))


def causal_logits(size: int, heads: int = 24, seed: int = 0, first: int = 4, channels: int = 128) -> np.ndarray:
    """Synthetic logits (heads * (size - first), size): random q.k / sqrt(channels), row of position i sees keys 0 ... i, positions `first` on.

    With 24 heads of 128 channels as in Llama-3.2-3B the numbers of rows are those of the paper's table in section 4.1 (24 to 12,192).
    Random normal queries and keys are our choice: the paper does not print its logits.
    """
    rng = np.random.default_rng([seed, size])
    q, k = rng.standard_normal((2, heads, size, channels), np.float32)
    J = np.einsum("hid,hjd->hij", q[:, first:], k) / np.float32(math.sqrt(channels))
    allowed = np.arange(size) <= np.arange(first, size)[:, None]
    return np.where(allowed, J, -np.inf).reshape(-1, size).astype(np.float32)


# ---------------------------------------------------------------------------------------------- broken samplers, as controls
FAULTS = {
    "wrap": "an index of 8 bits: key 256 comes back as 0",
    "initial": "the initial state (key 0) counted as the first draw",
    "random initial": "the initial state (any key that is not masked) counted as the first draw",
    "temperature": "temperature off by 1 %",
    "swapped": "Sq and Sk swapped in a step with one query: one key is left",
}


def faulty(logits: np.ndarray, draws: int, fault: str, seed: Seed = 0, size: float = 0.01) -> np.ndarray:
    """Counts (rows, S) of the exact sampler with one fault of FAULTS built in; `size` is the temperature's relative error.

    ValueError for an unknown fault.
    """
    if fault not in FAULTS:
        raise ValueError(f"fault: expected one of {tuple(FAULTS)}, got {fault!r}")
    if fault == "temperature":
        return draw(logits.astype(np.float64) / (1 + size), draws, "exact", seed)
    counts = np.zeros(logits.shape, np.int64)
    if fault == "wrap":
        true = draw(logits, draws, "exact", seed)
        for start in range(0, logits.shape[1], 256):
            part = true[:, start : start + 256]
            counts[:, : part.shape[1]] += part
        return counts
    if "initial" in fault:
        counts = draw(logits, draws - 1, "exact", seed) if draws > 1 else counts
        rng = np.random.default_rng(seed.entropy if isinstance(seed, np.random.SeedSequence) else seed)
        anywhere = np.where(np.isfinite(logits), rng.random(logits.shape), -1.0).argmax(1)
        counts[np.arange(len(counts)), 0 if fault == "initial" else anywhere] += 1
        return counts
    counts[:, 0] = draws
    return counts


# ---------------------------------------------------------------------------------------------- thrml as it is, and as it was
def _first_draws(keys: int, peak: int, bits: int, warmup: int) -> list[int]:
    """`thrml_draws` in this process; stands on its own, so that its source can be run beside another thrml."""
    import jax
    import jax.numpy as jnp
    from thrml import Block, BlockGibbsSpec, CategoricalNode, SamplingSchedule, sample_states
    from thrml.factor import FactorSamplingProgram
    from thrml.models import CategoricalEBMFactor, CategoricalGibbsConditional

    block, kind = Block([CategoricalNode()]), {8: jnp.uint8, 32: jnp.uint32}[bits]
    spec = BlockGibbsSpec([block], [], {CategoricalNode: jax.ShapeDtypeStruct((), kind)})
    factor = CategoricalEBMFactor([block], jnp.full((1, keys), -50.0).at[0, peak].set(50.0))
    program = FactorSamplingProgram(spec, [CategoricalGibbsConditional(keys)], [factor], [])
    start, schedule = [jnp.zeros(1, kind)], SamplingSchedule(warmup, 3, 1)
    return [int(v) for v in sample_states(jax.random.key(0), program, schedule, start, [], [block])[0][:, 0]]


def thrml_draws(keys: int, peak: int, bits: int = 32, warmup: int = 1, version: str | None = None) -> list[int]:
    """Three draws of thrml's own `sample_states` from one unit whose whole probability lies on key `peak`; it starts at key 0.

    `bits` (8 or 32) is the width of the unit's state, `warmup` the sweeps before the first draw is kept. `version` None is the installed thrml;
    another one ("0.1.3") is fetched aside for this call and run in a process of its own. RuntimeError where thrml refuses, ModelUnavailable
    where the version can't be downloaded.
    """
    if version is None:
        return _first_draws(keys, peak, bits, warmup)
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", folder]
        if subprocess.run([*pip, f"thrml=={version}"], capture_output=True).returncode:
            raise ModelUnavailable(f"thrml {version} can't be downloaded")
        code = f"{inspect.getsource(_first_draws)}\nprint(_first_draws({keys}, {peak}, {bits}, {warmup}))"
        environment = {**os.environ, "PYTHONPATH": folder, "JAX_TRACEBACK_FILTERING": "off"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["thrml ended without a message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------------------------------------- numbers that are kept
def slope(draws: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Exponent of a power law in log-log by least squares, and R squared. ValueError for fewer than two points or values that are not positive."""
    x, y = np.log(np.asarray(draws, float)), np.asarray(values, float)
    if len(x) < 2 or len(x) != len(y) or not (y > 0).all():
        raise ValueError(f"values: expected as many positive numbers as draws, two or more, got {list(values)!r}")
    fit = stats.linregress(x, np.log(y))
    return float(fit.slope), float(fit.rvalue**2)


class Store:
    """Results of long measurements, kept one file each as soon as they are there: what was measured is not measured again.

    MEASUREMENTS is part of the folder's name: raise it with a change here or in `frozen` that changes what is measured.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder) / f"measurements-{MEASUREMENTS}"

    def get(self, name: str, settings: Mapping, measure: Callable[[], object]):
        """The result of `measure()` (plain data) for this name and these settings: read if it is kept, else measured and kept."""
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:12]
        path = self.folder / f"{name}-{digest}.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))["result"]
        result = measure()
        text = json.dumps({"settings": settings, "result": result}, default=str)
        atomic_write(path, lambda p: p.write_text(text, encoding="utf-8"))
        return json.loads(text)["result"]
