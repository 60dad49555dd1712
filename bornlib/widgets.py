"""Small widgets on the model's parts: attention by block and head, the path t, shots of Hadamard tests. Each is a figure with a handle to turn.

`NAME_explorer` is the interactive form (standard ipywidgets), `draw_NAME` the same figure for a notebook that is read, not run. The
optics stage by stage are in `optics_figures` (`step_through`, `draw_stage`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch

from . import evidence, overlaps
from .corpus import LABELS, Encoded, collate
from .figures import EVIDENCE, FAINT, INK, LABEL_COLOURS, MODEL_COLOURS, escape, turned, use_style
from .models import BLOCKS, HEADS, BornTransformer, Model, Trace

SHOTS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


def _born(model: Model) -> None:
    if model.kind != "born":
        raise ValueError(f"model: expected a Born Transformer, got {model.kind!r}")


def _within(name: str, value: int, end: int) -> None:
    if not 0 <= value < end:
        raise ValueError(f"{name}: expected 0 to {end - 1}, got {value!r}")


def _styled(draw: Callable) -> Callable:
    """A drawing in the project's style, closed: shown where it is returned, not a second time by the notebook."""

    @functools.wraps(draw)
    def wrapped(*arguments, **options):
        with plt.rc_context():
            use_style()
            figure = draw(*arguments, **options)
            plt.close(figure)
        return figure

    return wrapped


# ---------------------------------------------------------------------------------------------- attention
@torch.no_grad()
def attention_steps(model: BornTransformer, encoded: Encoded, block: int, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """|<q_i|k_j>|^2, |<q_i|k_j>|^4 and the attention it becomes, each (n, n), query by key; slot 0 is the reference. `model` in float64."""
    _born(model)
    _within("block", block, BLOCKS)
    _within("head", head, HEADS)
    ids, sentence = collate([encoded])
    trace = Trace()
    model.scores(model.fields(ids, sentence), trace=trace)
    h = model.enter(model.fields(ids, sentence))
    for earlier in model.blocks[:block]:
        h = earlier(h, None, None)
    squares = model.blocks[block].overlaps(h)[0].square().sum(2)[0, head].numpy()
    return squares, squares**2, trace.attention[block][0, head].numpy()


@_styled
def draw_attention(model: BornTransformer, encoded: Encoded, block: int = 0, head: int = 0) -> plt.Figure:
    """Overlaps of one head squared, squared again, and divided by their row sums: how light becomes attention."""
    names = [escape(t) for t in ("reference", *encoded.tokens)]
    figure, axes = plt.subplots(1, 3, figsize=(8.0, 1.2 + 0.2 * max(8, len(names))))
    titles = (r"$|\langle q_i|k_j\rangle|^2$", r"$|\langle q_i|k_j\rangle|^4$", "attention (row sum 1)")
    for ax, values, title in zip(axes, attention_steps(model, encoded, block, head), titles, strict=True):
        top = 1.0 if ax is axes[2] else max(float(values.max()), 1e-300)
        picture = ax.imshow(values, cmap="viridis", vmin=0, vmax=top)
        ax.set_title(title, fontsize=8.5)
        ax.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        ax.set_yticks(range(len(names)), names if ax is axes[0] else [""] * len(names), fontsize=7)
        ax.tick_params(length=0)
        figure.colorbar(picture, ax=ax, shrink=0.6, pad=0.02).ax.tick_params(labelsize=6.5)
    axes[0].set_ylabel("query")
    axes[1].set_xlabel("key")
    figure.suptitle(f"Block {block + 1}, head {head + 1}", fontsize=9.5, weight="bold")
    return figure


def attention_explorer(model: BornTransformer, encoded: Encoded):
    """`draw_attention` with a choice of block and head."""
    import ipywidgets as w

    choices = [
        w.ToggleButtons(options=[(f"{name} {k + 1}", k) for k in range(count)], description=name, style={"button_width": "6em"})
        for name, count in (("Block", BLOCKS), ("Head", HEADS))
    ]
    return turned(choices, lambda block, head: draw_attention(model, encoded, block, head))


# ---------------------------------------------------------------------------------------------- the path
@dataclass
class Path:
    """One pair along the path t x: `scores` (points, 3) and the words' `integrand` (points, slots) at `t` (points,), of class `target`."""

    encoded: Encoded
    target: int
    t: np.ndarray
    scores: np.ndarray
    integrand: np.ndarray
    unit: str


def walk_path(model: Model, encoded: Encoded, target: int | None = None, points: int = 201) -> Path:
    """Follow a pair from no words (t = 0) to all of them (t = 1), denominators held; for polynomial models."""
    if points < 2:
        raise ValueError(f"points: expected at least 2, got {points}")
    t = np.linspace(0, 1, points)
    samples, scores = evidence.integrand(model, encoded, t, target)
    return Path(encoded, int(scores[-1].argmax()) if target is None else target, t, scores, samples, model.score_unit)


@_styled
def draw_path(path: Path, t: float = 1.0, nodes: int = 56) -> plt.Figure:
    """Left: every class's N_c(t) with the quadrature's nodes. Right: what each slot adds just there, and has added from 0 to t."""
    if not 0 <= t <= 1:
        raise ValueError(f"t: expected a number in 0 to 1, got {t!r}")
    if not 1 <= nodes <= 324:
        raise ValueError(f"nodes: expected 1 to 324, got {nodes!r}")
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(8.0, 0.9 + max(2.2, 0.17 * len(path.encoded.tokens))), width_ratios=(1.15, 1)
    )
    x, weights = evidence.gauss_legendre(nodes)
    for c, name in enumerate(LABELS):
        left.plot(path.t, path.scores[:, c], color=LABEL_COLOURS[name], lw=1.6 if c == path.target else 1, label=name)
    left.scatter(
        x,
        np.interp(x, path.t, path.scores[:, path.target]),
        s=1.2 + 900 * weights / nodes**0.5,
        fc="none",
        ec=INK,
        lw=0.7,
        zorder=3,
        label=f"{nodes} nodes",
    )
    left.axvline(t, color=INK, lw=0.8, ls=":")
    left.set(
        xlabel="t: strength of all words",
        title="$N_c(t)/D$" if path.unit == "probability" else "logit along the path",
        xlim=(-0.02, 1.02),
    )
    left.legend(fontsize=7)
    here = np.array([np.interp(t, path.t, column) for column in path.integrand.T])
    before = path.t <= t
    so_far = np.trapezoid(np.concatenate([path.integrand[before], here[None]]), np.append(path.t[before], t), axis=0)
    y = np.arange(len(here))
    right.barh(
        y - 0.2,
        so_far,
        0.38,
        color=[EVIDENCE(0.0) if v < 0 else EVIDENCE(1.0) for v in so_far],
        label="evidence from 0 to t",
    )
    scale = max(np.abs(so_far).max(), 1e-12) / max(np.abs(path.integrand).max(), 1e-300)
    right.plot(scale * here, y + 0.2, "d", color=INK, markersize=3.5, label="integrand at t (scaled)")
    right.axvline(0, color=FAINT, lw=0.8)
    right.set_yticks(y, [escape(token) for token in path.encoded.tokens], fontsize=7)
    right.set(ylim=(len(y) - 0.4, -0.6), title=f"t = {t:.2f}: {so_far.sum():+.3f} for {LABELS[path.target]}")
    right.legend(fontsize=7, loc="lower right")
    return figure


def path_explorer(model: Model, encoded: Encoded, target: int | None = None):
    """`draw_path` with sliders for t and for the number of quadrature nodes."""
    import ipywidgets as w

    path = walk_path(model, encoded, target)
    t = w.FloatSlider(value=1.0, min=0, max=1, step=0.01, description="t", readout_format=".2f")
    nodes = w.SelectionSlider(options=[4, 8, 16, 32, 56, 112, 324], value=32, description="Nodes")
    return turned([t, nodes], lambda t, nodes: draw_path(path, t, nodes))


# ---------------------------------------------------------------------------------------------- shots
@dataclass
class Settled:
    """One pair read again and again with finite shots: how often each class is the `answers` (3,) and each slot the `tops` (slots,), as
    shares of the `repeats`; `exact` is what infinitely many shots give.
    """

    exact: evidence.Evidence
    shots: int
    repeats: int
    answers: np.ndarray
    tops: np.ndarray

    @property
    def top(self) -> int:
        """The slot of the word that the exact evidence ranks first."""
        words = np.flatnonzero(self.exact.encoded.words)
        return int(words[np.argmax(self.exact.values[words])])

    @property
    def right(self) -> tuple[float, float]:
        """Shares of readings with the exact answer, and with the exact top word."""
        return float(self.answers[self.exact.target]), float(self.tops[self.top])


def settle(model: BornTransformer, encoded: Encoded, shots: int, repeats: int = 20, seed: int = 0) -> Settled:
    """Read every overlap of a pair by Hadamard tests of `shots` shots (no other noise), `repeats` times; `model` in float64."""
    _born(model)
    if repeats < 1:
        raise ValueError(f"repeats: expected at least 1, got {repeats}")
    if not encoded.words.any():
        raise ValueError("encoded: expected a pair with a word, got none")
    generator = torch.Generator().manual_seed(seed)
    noise = overlaps.hadamard_noise(shots, generator)
    exact = evidence.word_evidence(model, [encoded])[0]
    drawn = [overlaps.draw_errors(model, encoded, noise) for _ in range(repeats)]
    errors = [torch.cat(block) for block in zip(*drawn, strict=True)]  # (repeats, H, 2, n, n) a block
    measured = overlaps.measured_model(model, overlaps.fixed(errors))
    room = evidence.ANCHORS * repeats * (len(encoded.ids) + 1)  # all repeats in one group, as `fixed` expects
    read = evidence.word_evidence(
        measured, [encoded] * repeats, [exact.target] * repeats, nodes=overlaps.NODES, slots_a_pass=room, memory_mib=4096
    )
    words = np.flatnonzero(encoded.words)
    answers = np.bincount([int(e.probabilities.argmax()) for e in read], minlength=len(LABELS)) / repeats
    tops = np.bincount([words[np.argmax(e.values[words])] for e in read], minlength=len(encoded.ids)) / repeats
    return Settled(exact, shots, repeats, answers, tops)


@_styled
def draw_shots(settled: Settled, others: tuple[Settled, ...] = ()) -> plt.Figure:
    """How often each answer and each top word came with so many shots; right, where there are others, the share right by shots."""
    figure, axes = plt.subplots(1, 2 + bool(others), figsize=(8.0, 2.7))
    s, encoded = settled, settled.exact.encoded
    axes[0].bar(range(3), s.answers, 0.62, color=[LABEL_COLOURS[n] for n in LABELS])
    axes[0].set_xticks(
        range(3), [f"{n}*" if c == s.exact.target else n for c, n in enumerate(LABELS)], rotation=35, ha="right", fontsize=7
    )
    axes[0].set(ylim=(0, 1.03), ylabel=f"share of {s.repeats} readings", title="The answer")
    words = np.flatnonzero(encoded.words)
    axes[1].bar(range(len(words)), s.tops[words], 0.62, color=[MODEL_COLOURS["born"] if w == s.top else FAINT for w in words])
    names = [escape(encoded.tokens[w]) + "*" * int(w == s.top) for w in words]
    axes[1].set_xticks(range(len(words)), names, rotation=35 if len(words) < 12 else 90, ha="right", fontsize=7)
    axes[1].set(ylim=(0, 1.03), title="The top word")
    if others:
        known = sorted({o.shots: o for o in (*others, s)}.items())
        shots, right = [k for k, _ in known], np.array([o.right for _, o in known])
        for k, (name, colour) in enumerate((("answer", MODEL_COLOURS["softmax"]), ("top word", MODEL_COLOURS["born"]))):
            axes[2].plot(shots, right[:, k], "o-", color=colour, markersize=3.5, lw=1.2, label=name)
        axes[2].axvline(s.shots, color=INK, lw=0.8, ls=":")
        axes[2].set(xscale="log", ylim=(0, 1.03), xlabel="shots a circuit", title="As exact")
        axes[2].xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes[2].legend(fontsize=7, loc="lower right")
    figure.suptitle(f"{s.shots:,} shots a circuit (* exact)", fontsize=9.5, weight="bold")
    return figure


def settle_all(
    model: BornTransformer, encoded: Encoded, shots: tuple[int, ...] = SHOTS, repeats: int = 20, seed: int = 0
) -> tuple[Settled, ...]:
    """`settle` for several numbers of shots, each with its own draws."""
    seeds = np.random.SeedSequence(seed).generate_state(len(shots))
    return tuple(settle(model, encoded, n, repeats, int(k)) for n, k in zip(shots, seeds, strict=True))


def shots_explorer(settled: tuple[Settled, ...]):
    """`draw_shots` with a slider over what `settle_all` gave: how many shots until the answer and the top word settle."""
    import ipywidgets as w

    slider = w.SelectionSlider(
        options=[(f"{s.shots:,}", k) for k, s in enumerate(settled)], value=len(settled) // 2, description="Shots"
    )
    return turned([slider], lambda k: draw_shots(settled[k], settled))
