"""Figure 1: one pair through the trained model, (a) on light and (b) on qubits, drawn from the model's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Arc, FancyBboxPatch, Rectangle

from . import optics, overlaps
from .corpus import LABELS, Encoded
from .figures import FAINT, INK, LABEL_COLOURS, MODEL_COLOURS, draw_word_strip, escape, use_style
from .ledger import Ledger
from .models import BLOCKS, HEADS, BornTransformer
from .optics_figures import Walk, phase_colours, walk

WIDTH, HEIGHT = 7.5, 5.45  # inches
SIZE = 7  # points of small text
BEAM = "#C1272D"
SHORT = {"entailment": "entailm.", "neutral": "neutral", "contradiction": "contrad."}


@dataclass
class Overview:
    """What Figure 1 shows: the pair's `walk` through the optics, the same pair as read by Hadamard tests with all its words (`whole`) and without
    the word that the evidence ranks `first` (`less`), the probabilities `exact` of both (2, 3), and where they were read (`place`).
    """

    walk: Walk
    whole: overlaps.PairRun
    less: overlaps.PairRun
    first: int
    exact: np.ndarray
    read: np.ndarray
    query: np.ndarray
    place: Mapping


def collect(model: BornTransformer, encoded: Encoded, ledger: Ledger) -> Overview:
    """Compute what Figure 1 shows; the readings are replayed from the ledger. `model` in float64.

    Raises LedgerError where the ledger lacks a circuit of the pair, or of the pair without its first word.
    """
    seen = walk(optics.compile_model(model), model, encoded)
    words = np.flatnonzero(encoded.words)
    first = int(words[np.argmax(seen.evidence.values[words])])
    pairs = encoded, encoded.without([first])
    runs = overlaps.run_pair(model, pairs[0], ledger), overlaps.run_pair(model, pairs[1], ledger, calibrate=False)
    exact = np.concatenate([overlaps.probabilities(model, [e]) for e in pairs])
    query = overlaps.unit(overlaps.queries_keys(model, encoded, 0)[0][0, 1 + first])  # head 1, block 1
    return Overview(seen, *runs, first, exact, np.array([overlaps.answer(model, run) for run in runs]), query, ledger.settings)


def overlap_fit(run: overlaps.PairRun) -> tuple[np.ndarray, np.ndarray, float]:
    """Ideal and read overlaps of both blocks, and the correlation between them."""
    ideal, read = (np.concatenate([getattr(r, name).ravel() for r in run.readings]) for name in ("ideal", "values"))
    return ideal, read, overlaps.fit_readings(ideal, read)["r"]


def draw_overview(overview: Overview, marks: Sequence[bool] | None = None) -> plt.Figure:
    """Figure 1 at page width. `marks` are the annotators' words by slot. Best for short pairs: a row of a panel is a slot."""
    with plt.rc_context():
        use_style()
        figure = plt.figure(figsize=(WIDTH, HEIGHT))
        figure.set_layout_engine("none")
        page = _Page(figure)
        _light(page, overview, marks)
        _qubits(page, overview)
        plt.close(figure)  # shown where it is returned, not a second time by the notebook
    return figure


class _Page:
    """Places in inches from the upper left, and one set of axes over the whole page for arrows and words."""

    def __init__(self, figure: plt.Figure):
        self.figure = figure
        self.ground = figure.add_axes([0, 0, 1, 1])
        self.ground.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
        self.ground.axis("off")

    def axes(self, x: float, y: float, width: float, height: float) -> plt.Axes:
        return self.figure.add_axes([x / WIDTH, 1 - (y + height) / HEIGHT, width / WIDTH, height / HEIGHT])

    def text(self, x: float, y: float, text: str, **options) -> None:
        self.ground.text(x, y, text, **{"fontsize": SIZE, "ha": "center", "va": "center", "linespacing": 1.25, **options})

    def arrow(self, x: float, y: float, to: float, colour: str = BEAM) -> None:
        self.ground.annotate(
            "",
            (to, y),
            (x, y),
            arrowprops={
                "arrowstyle": "-|>,head_width=0.18,head_length=0.32",
                "color": colour,
                "lw": 1.3,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )

    def image(self, x: float, y: float, width: float, height: float, picture, **options) -> plt.Axes:
        ax = self.axes(x, y, width, height)
        ax.imshow(picture, aspect="auto", interpolation="nearest", **options)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set(visible=True, lw=0.6)
        return ax


# ---------------------------------------------------------------------------------------------- (a) on light
def _light(page: _Page, overview: Overview, marks: Sequence[bool] | None) -> None:
    seen = overview.walk
    s, names = seen.stages, seen.slots
    top, high = 0.72, 1.2
    middle = top + high / 2
    page.text(0.08, 0.14, "(a) On light", ha="left", fontsize=10, weight="bold")
    side = " ".join(t for t, k in zip(seen.encoded.tokens, seen.encoded.sentence, strict=True) if k == 0)
    other = " ".join(
        t
        for t, k in zip(seen.encoded.tokens[side.count(" ") + 2 :], seen.encoded.sentence[side.count(" ") + 2 :], strict=True)
        if k == 1
    )
    page.text(1.15, 0.14, f"premise: {escape(side)}    hypothesis: {escape(other)}", ha="left", fontsize=8, style="italic")

    fields = s.fields[0].numpy()
    ax = page.image(0.66, top, 0.95, high, phase_colours(fields, np.quantile(np.abs(fields), 0.98)))
    ax.set_yticks(range(len(names)), [escape(n) for n in names], fontsize=SIZE)
    ax.tick_params(axis="y", length=0, pad=2)
    page.text(1.135, top - 0.17, "modulator:\none field a word", fontsize=SIZE)
    page.text(1.135, top + high + 0.09, "32 modes, hue: phase", color="#555555", fontsize=6.5)
    _wheel(page.axes(0.22, top + high + 0.06, 0.3, 0.3))

    x, square, gap = 1.78, 0.5, 0.05
    for b in range(BLOCKS):
        page.arrow(x - 0.15, middle, x - 0.02)
        left = x
        for head in range(HEADS):
            page.image(x, top, square, high, s.attention[b][0, head].numpy(), cmap="Greys", vmin=0, vmax=1)
            page.text(x + square / 2, top + high + 0.09, f"head {head + 1}", color="#555555", fontsize=6.5)
            x += square + gap
        page.arrow(x - gap + 0.02, middle, x + 0.13)
        x += 0.15
        readings = s.readings[b][0].numpy()
        limit = np.quantile(np.abs(readings), 0.99)
        page.image(x, top, 0.62, high, readings, cmap="PuOr_r", vmin=-limit, vmax=limit)
        page.text(x + 0.31, top + high + 0.09, "170 readings", color="#555555", fontsize=6.5)
        page.text(
            left + square + gap / 2, top - 0.17, "Born attention\n" + r"$|\langle q_i|k_j\rangle|^4$ / row sum", fontsize=SIZE
        )
        page.text(x + 0.31, top - 0.17, "homodyne\n" + r"Re$[(Wh)(Vh)]$", fontsize=SIZE)
        page.text((left + x + 0.62) / 2, top - 0.42, f"block {b + 1}", weight="bold", fontsize=8)
        x += 0.62 + 0.19
    page.arrow(x - 0.17, middle, x - 0.02)

    pixels = s.pixels[0].view(len(LABELS), -1).sqrt().numpy()  # amplitudes: regions that lose are not just black
    size, pitch = 0.36, high / 3
    page.text(x + size / 2, top - 0.17, "camera", fontsize=SIZE)
    page.text(x + size + 0.68, top - 0.17, "Born probability", fontsize=SIZE)
    for c, (name, p) in enumerate(zip(LABELS, s.probabilities[0], strict=True)):
        y = top + c * pitch + (pitch - size) / 2
        square_side = int(pixels.shape[1] ** 0.5)
        region = page.image(
            x, y, size, size, pixels[c].reshape(square_side, -1), cmap="inferno", vmin=0, vmax=np.quantile(pixels, 0.99)
        )
        region.spines[:].set(color=LABEL_COLOURS[name], lw=1.6)
        page.ground.add_patch(Rectangle((x + size + 0.08, y + 0.21), 0.9 * float(p), 0.12, fc=LABEL_COLOURS[name], ec="none"))
        weight = "bold" if c == seen.evidence.target else "normal"
        page.text(x + size + 0.08, y + 0.1, f"{name} {float(p):.3f}", ha="left", weight=weight, color=LABEL_COLOURS[name])
    _evidence(page, overview, marks, top + high + 0.36)


def _evidence(page: _Page, overview: Overview, marks: Sequence[bool] | None, y: float) -> None:
    """The words shaded by their evidence with numbers below, and how it adds up."""
    e = overview.walk.evidence
    page.text(0.66, y + 0.2, "Born evidence\nof each word", ha="left", fontsize=8, weight="bold")
    x, width, scale = 1.62, 0.58, float(np.abs(e.values).max())
    for k, (token, value) in enumerate(zip(e.encoded.tokens, e.values, strict=True)):
        ax = page.axes(x + k * width, y, width, 0.26)
        shown = f"{value:+.3f}"
        draw_word_strip(ax, [token], [value], None if marks is None else [marks[k]], scale, size=8)
        ax.set_xlim(-0.5 * (72 * width - _box_width(ax)), ax.get_xlim()[1] - 0.5 * (72 * width - _box_width(ax)))
        page.text(x + (k + 0.5) * width, y + 0.36, shown, fontsize=6.5, color="#555555")
    end = x + len(e.values) * width + 0.1
    page.text(end, y + 0.13, f"sum {e.values.sum():.4f} = P − b", ha="left", fontsize=8, weight="bold")
    page.text(
        end,
        y + 0.34,
        f"P {e.score:.4f}, b {_power(e.baseline)},\noff by {_power(e.gap)}",
        ha="left",
        fontsize=SIZE,
        color="#555555",
    )
    page.text(
        x + 0.1,
        y + 0.55,
        "red speaks for the answer, blue against it; ● marked by annotators",
        ha="left",
        fontsize=6.5,
        color="#555555",
    )


def _power(value: float) -> str:
    """A small number for print: 1.6 · 10⁻⁵."""
    digits, power = f"{value:.1e}".split("e")
    return f"{digits} · 10{str(int(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}" if value else "0"


def _box_width(ax: plt.Axes) -> float:
    """Points that the one word of a strip takes."""
    return ax.patches[0].get_width()


def _wheel(ax: plt.Axes) -> None:
    y, x = np.mgrid[-1:1:81j, -1:1:81j]
    z = x - 1j * y
    ax.imshow(phase_colours(np.where(np.abs(z) <= 1, z, 0), 1), extent=(-1, 1, -1, 1), interpolation="bilinear")
    ax.axis("off")


# ---------------------------------------------------------------------------------------------- (b) on qubits
def _qubits(page: _Page, overview: Overview) -> None:
    top, high = 3.75, 1.2
    place = overview.place
    where = f"noise model of {place['backend'].replace('fake_', 'ibm_')}" if place["kind"] == "noise model" else place["backend"]
    page.ground.plot([0.08, WIDTH - 0.08], [top - 0.72] * 2, color=FAINT, lw=0.7)
    page.text(0.08, top - 0.53, "(b) On qubits", ha="left", fontsize=10, weight="bold")
    asked = [len(t) for t in overview.whole.tests]
    page.text(
        1.25,
        top - 0.53,
        f"the same weights; {where}, {len(asked)} × {asked[0]} circuits of {place['shots']:,} shots",
        ha="left",
        fontsize=8,
    )

    token = escape(overview.walk.encoded.tokens[overview.first])
    ax = page.axes(0.42, top + 0.1, 1.25, high - 0.1)
    ax.bar(range(16), np.abs(overview.query), 0.8, color=phase_colours(overview.query / np.abs(overview.query), 1))
    ax.set(xticks=(0, 15), xticklabels=("|0000⟩", "|1111⟩"), ylim=(0, 1.08 * np.abs(overview.query).max()))
    ax.tick_params(labelsize=6.5, pad=1.5, length=2)
    ax.set_ylabel("amplitude", fontsize=SIZE, labelpad=2)
    page.text(1.05, top - 0.2, f"query of “{token}”: 16 complex\nnumbers on four qubits", fontsize=SIZE)

    _circuit(page, 1.95, top, 1.95, high)
    page.text(2.95, top - 0.2, "Hadamard test of one overlap", fontsize=SIZE)
    page.arrow(1.74, top + 0.62, 1.92, INK)

    ideal, read, r = overlap_fit(overview.whole)
    ax = page.axes(4.38, top, high, high)
    ax.plot([-1, 1], [-1, 1], color=FAINT, lw=0.8)
    ax.plot(ideal, read, ".", color=MODEL_COLOURS["born"], markersize=2, alpha=0.6)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    ax.tick_params(labelsize=6.5, pad=1.5, length=2)
    ax.set_xlabel("ideal overlap", fontsize=SIZE, labelpad=1)
    ax.set_ylabel("as read", fontsize=SIZE, labelpad=-2)
    ax.text(-0.92, 0.78, f"r = {r:.3f}", fontsize=SIZE)
    page.text(4.98, top - 0.2, f"{len(ideal):,} overlaps", fontsize=SIZE)
    page.arrow(3.92, top + 0.62, 4.1, INK)

    page.arrow(5.62, top + 0.62, 5.8, INK)
    titles = ("all words", f"“{token}” deleted")
    for k, (title, exact, device) in enumerate(zip(titles, overview.exact, overview.read, strict=True)):
        ax = page.axes(5.92 + 0.8 * k, top, 0.7, high)
        ax.bar(range(3), device, 0.66, color=[LABEL_COLOURS[n] for n in LABELS])
        ax.plot(range(3), exact, "_", color=INK, markersize=11, mew=1.4)
        ax.set(xlim=(-0.6, 2.6), ylim=(0, 1.12), yticks=(0, 1) if k == 0 else ())
        ax.set_xticks(range(3), [SHORT[n] for n in LABELS], rotation=40, ha="right", rotation_mode="anchor", fontsize=6.5)
        ax.tick_params(labelsize=6.5, pad=1.5, length=2)
        best = int(device.argmax())
        ax.text(best, max(device[best], exact[best]) + 0.03, f"{device[best]:.3f}", ha="center", fontsize=6.5)
        page.text(6.27 + 0.8 * k, top - 0.1, title, fontsize=SIZE)
    page.text(6.67, top - 0.27, "answer: bar as read, line exact", fontsize=SIZE)


def _circuit(page: _Page, x: float, y: float, width: float, height: float) -> None:
    """Prepare (|0>|q> + |1>|k>) / sqrt 2, read the ancilla in X (Re) or Y (Im)."""
    ax = page.axes(x, y, width, height)
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    wires = np.linspace(0.16, height - 0.12, 5)
    for k, wire in enumerate(wires):
        ax.plot([0.32, 1.65 if k == 0 else 0.42], [wire] * 2, color="#444444", lw=0.9, zorder=1)
        ax.text(0.28, wire, r"$|0\rangle$", fontsize=6.5, ha="right", va="center")
    box = FancyBboxPatch(
        (0.42, 0.04), 0.82, height - 0.06, boxstyle="round,pad=0,rounding_size=0.06", fc="#FCE0E1", ec=INK, lw=0.8, zorder=2
    )
    ax.add_patch(box)
    ax.text(
        0.83,
        height / 2,
        "prepare\n" + r"$|0\rangle|q\rangle+|1\rangle|k\rangle$" + "\n" + r"over $\sqrt{2}$",
        fontsize=6.5,
        ha="center",
        va="center",
        zorder=3,
        linespacing=1.5,
    )
    ax.add_patch(Rectangle((1.36, wires[0] - 0.1), 0.2, 0.2, fc="#FFE2BB", ec=INK, lw=0.8, zorder=2))
    ax.text(1.46, wires[0], "$H$", fontsize=6.5, ha="center", va="center", zorder=3)
    ax.add_patch(Rectangle((1.65, wires[0] - 0.1), 0.2, 0.2, fc="#CCE7CF", ec=INK, lw=0.8, zorder=2))
    ax.add_patch(Arc((1.75, wires[0] + 0.05), 0.14, 0.14, theta1=195, theta2=345, color=INK, lw=0.8, zorder=3))
    ax.plot([1.75, 1.81], [wires[0] + 0.05, wires[0] - 0.06], color=INK, lw=0.8, zorder=3)
    ax.text(1.3, wires[1] + 0.04, r"Re$\,\langle q|k\rangle$", fontsize=6.5, ha="left", va="center")
    ax.text(1.3, wires[2] - 0.02, r"Im with $S^\dagger$", fontsize=6.5, ha="left", va="center")
