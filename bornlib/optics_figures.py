"""Light in the compiled device, drawn: one pair stage by stage (paper Figure 5), and what imperfections do."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import matplotlib.pyplot as plt
import matplotlib.ticker
import numpy as np
import torch

from . import optics
from .corpus import LABELS, SEP, Encoded
from .evidence import Evidence, word_evidence
from .figures import INK, LABEL_COLOURS, draw_word_strip, escape, turned, use_style, word_layout
from .models import BLOCKS, HEADS, PIXELS, BornTransformer

ANSWER, WORD, RIGHT = "#0072B2", "#D55E00", "#222222"  # colours of the robustness study


@dataclass
class Walk:
    """One pair through the device: its `stages` (batch of one), share of `light` by stage, exact `evidence` and `attention` received (slots,)."""

    encoded: Encoded
    stages: optics.Stages
    light: dict[str, float]
    evidence: Evidence
    attention: np.ndarray

    @property
    def slots(self) -> list[str]:
        return ["reference", *self.encoded.tokens]


def walk(device: optics.Device, model: BornTransformer, encoded: Encoded) -> Walk:
    """Send one pair through the device and keep everything that Figure 5 shows; `model` in float64."""
    with torch.no_grad():
        stages = optics.simulate(device, *optics.word_fields(model, [encoded]))
    light = {name: float(share[0]) for name, share in optics.light_left(device, stages)}
    attention = stages.attention[-1][0].mean((0, 1))[1:].numpy()
    return Walk(encoded, stages, light, word_evidence(model, [encoded])[0], attention)


# ---------------------------------------------------------------------------------------------- panels
def percent(share: float) -> str:
    """A share of the light as text with two digits: `12 %`, `0.012 %`, `6.3 · 10⁻⁹`."""
    if share >= 1e-4 or share == 0:
        return f"{np.format_float_positional(100 * share, precision=2, fractional=False, trim='-')} %"
    digits, power = f"{share:.1e}".split("e")
    return f"{digits} · 10{str(int(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def phase_colours(fields: np.ndarray, brightest: float) -> np.ndarray:
    """Complex fields as colours (..., 3): phase as hue, from white (dark) to full colour at amplitude `brightest`."""
    hue = np.mod(np.angle(fields) / (2 * np.pi), 1)
    full = mpl.colors.hsv_to_rgb(np.stack([hue, np.ones_like(hue), np.full_like(hue, 0.88)], -1))
    return 1 - np.clip(np.abs(fields) / brightest, 0, 1)[..., None] * (1 - full)


def _image(ax, picture, title, **options):
    ax.imshow(picture, aspect="auto", interpolation="nearest", **options)
    ax.set_title(title, fontsize=8)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, lw=0.5)


def _fields(ax, fields, title, share=1.0):
    fields = fields[0].numpy()
    _image(ax, phase_colours(fields, np.quantile(np.abs(fields), 0.98)), title)
    ax.set_xlabel("32 modes" if share == 1 else f"32 modes; light left {percent(share)}", fontsize=7, labelpad=2)


def _attention(ax, attention, title):
    _image(ax, attention.numpy(), title, cmap="Greys", vmin=0, vmax=1)
    ax.set_xlabel("key", fontsize=7, labelpad=2)


def _readings(ax, readings, title):
    values = readings[0].numpy()
    limit = np.quantile(np.abs(values), 0.99)
    _image(ax, values, title, cmap="PuOr_r", vmin=-limit, vmax=limit)
    ax.set_xlabel("170 channels", fontsize=7, labelpad=2)


def _camera(axes, stages):
    pixels = stages.pixels[0].view(len(LABELS), -1).sqrt().numpy()  # amplitudes: regions that lose are not just black
    side = int(PIXELS**0.5)
    for ax, name, region, share in zip(axes, LABELS, pixels, stages.probabilities[0], strict=True):
        _image(ax, region.reshape(side, side), f"{name}: {share:.3f}", cmap="inferno", vmin=0, vmax=np.quantile(pixels, 0.99))
        ax.set_aspect("equal")
        ax.spines[:].set(color=LABEL_COLOURS[name], lw=2)


def _wheel(ax, ink_size=7):
    """The legend of `phase_colours`."""
    y, x = np.mgrid[-1:1:121j, -1:1:121j]
    z = x - 1j * y
    picture = phase_colours(np.where(np.abs(z) <= 1, z, 0), 1)
    ax.imshow(picture, extent=(-1, 1, -1, 1), interpolation="bilinear")
    ax.axis("off")
    for place, text, align in (((1.1, 0), "0", "left"), ((-1.1, 0), "π", "right")):
        ax.text(*place, text, fontsize=ink_size, ha=align, va="center")
    ax.text(0, 1.12, "phase π/2", fontsize=ink_size, ha="center", va="bottom")


def _words(ax, names, size):
    ax.set_yticks(range(len(names)), [escape(n) for n in names], fontsize=size)
    ax.tick_params(axis="y", length=0, pad=2)


# ---------------------------------------------------------------------------------------------- Figure 5
def draw_walk(walk: Walk, marks: Sequence[bool] | None = None, width: float = 7.5) -> plt.Figure:
    """Figure 5: one pair stage by stage, top to bottom; `width` in inches. Best for short pairs: a row of a panel is a slot."""
    s, names = walk.stages, walk.slots
    high = max(0.85, 0.125 * len(names))
    lines = word_layout(walk.encoded.tokens, 72 * (width - 0.2), 8.5)[1]
    pitch, camera, strip = high + 0.62, 1.0, 0.22 + 0.25 * lines
    total = 3 * pitch + camera + 0.72 + 2 * strip + 0.1
    figure = plt.figure(figsize=(width, total))
    figure.set_layout_engine("none")

    def place(x, top, w, h):
        return figure.add_axes([x / width, 1 - (top + h) / total, w / width, h / total])

    left, top = 0.78, 0.32
    ax = place(left, top, 1.5, high)
    _fields(ax, s.fields, "Modulators: the fields")
    _words(ax, names, 7)
    _wheel(place(left + 1.95, top + 0.2, 0.62, 0.62))
    tokens = list(zip(walk.encoded.tokens, walk.encoded.sentence, strict=True))
    text = [
        f"{name}: " + escape(" ".join(t for t, s in tokens if s == k and t != SEP))
        for k, name in enumerate(("premise", "hypothesis"))
    ]
    text += [
        f"answer: {LABELS[walk.evidence.target]}, $P$ = {walk.evidence.score:.4f}",
        f"light left at the camera: {percent(walk.light['camera'])}",
    ]
    text = "\n".join(line for part in text for line in textwrap.wrap(part, 58, subsequent_indent="    "))
    figure.text((left + 3.15) / width, 1 - (top + 0.1) / total, text, fontsize=8, va="top", linespacing=1.5)
    for b in range(BLOCKS):
        top = 0.32 + (b + 1) * pitch
        for head in range(HEADS):
            ax = place(left + 0.8 * head, top, 0.72, high)
            _attention(ax, s.attention[b][0, head], f"Head {head + 1}")
            if head == 0:
                _words(ax, names, 7)
        figure.text(0.02, 1 - (top - 0.2) / total, f"Block {b + 1}", fontsize=8.5, weight="bold", va="center")
        _fields(place(left + 1.68, top, 1.3, high), s.attended[b], "After attention", walk.light[f"attention {b + 1}"])
        _readings(place(left + 3.12, top, 1.9, high), s.readings[b], "Homodyne readings")
        _fields(place(left + 5.16, top, 1.3, high), s.after[b], "After the product", walk.light[f"product {b + 1}"])
    top = 0.32 + 3 * pitch
    _camera([place(left + 1.25 * c, top, camera, camera) for c in range(3)], s)
    figure.text(0.02, 1 - (top - 0.2) / total, "Camera", fontsize=8.5, weight="bold", va="center")
    bars = place(left + 4.75, top, 1.7, camera - 0.1)
    draw_answer(bars, walk.evidence)
    rows = (("Evidence of each word", walk.evidence.values, marks), ("Attention in the last block", walk.attention, None))
    for k, (title, values, dots) in enumerate(rows):
        y = top + camera + 0.42 + k * strip
        figure.text(0.02, 1 - (y - 0.08) / total, title, fontsize=8, weight="bold", va="center")
        draw_word_strip(place(0.1, y, width - 0.2, 0.25 * lines), walk.encoded.tokens, values, dots, size=8.5)
    return figure


def draw_answer(ax: plt.Axes, evidence: Evidence) -> None:
    """Class probabilities as bars with their values."""
    p = evidence.probabilities
    ax.barh(range(len(LABELS)), p, color=[LABEL_COLOURS[n] for n in LABELS], height=0.7)
    for c, name in enumerate(LABELS):
        ax.text(p[c] + 0.03, c, f"{name} {p[c]:.2f}", va="center", fontsize=7, weight="bold" if c == evidence.target else None)
    ax.set(xlim=(0, 2.0), ylim=(2.6, -0.6), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set_title("Answer", fontsize=8)


# ---------------------------------------------------------------------------------------------- stage by stage
def stage_list(walk: Walk) -> list[tuple[str, Callable]]:
    """Title and drawing function (figure) of every stage of a pair, in the light's order."""
    s, names = walk.stages, walk.slots

    def one(panel: Callable, data, title: str) -> Callable:
        def draw(figure):
            ax = figure.subplots()
            panel(ax, data, title)
            _words(ax, names, 8)

        return draw

    def heads(b: int) -> Callable:
        def draw(figure):
            axes = figure.subplots(1, HEADS)
            for h, ax in enumerate(axes):
                _attention(ax, s.attention[b][0, h], f"head {h + 1}: weight of each key for each query")
            _words(axes[0], names, 8)

        return draw

    def evidence(figure):
        axes = figure.subplots(3, 1, height_ratios=(1.2, 1, 1))
        draw_answer(axes[0], walk.evidence)
        rows = (("evidence of each word", walk.evidence.values), ("attention received in the last block", walk.attention))
        for ax, (title, values) in zip(axes[1:], rows, strict=True):
            ax.set_title(title, fontsize=8)
            draw_word_strip(ax, walk.encoded.tokens, values)

    out = [("Modulators", one(_fields, s.fields, "one field a slot: phase as hue, amplitude as strength"))]
    for b in range(BLOCKS):
        out += [
            (f"Block {b + 1}: attention", heads(b)),
            (f"Block {b + 1}: fields after attention", one(_fields, s.attended[b], f"share of light left: {percent(walk.light[f'attention {b + 1}'])}")),
            (f"Block {b + 1}: homodyne readings", one(_readings, s.readings[b], r"Re[($W_1h$)($W_2h$)]: positive orange, negative purple")),
            (f"Block {b + 1}: fields after the product", one(_fields, s.after[b], f"share of light left: {percent(walk.light[f'product {b + 1}'])}")),
        ]  # fmt: skip
    return [*out, ("Camera", lambda figure: _camera(figure.subplots(1, len(LABELS)), s)), ("Answer and evidence", evidence)]


def draw_stage(walk: Walk, stage: int) -> plt.Figure:
    """One stage of a pair, large."""
    stages = stage_list(walk)
    if not 0 <= stage < len(stages):
        raise ValueError(f"stage: expected 0 to {len(stages) - 1}, got {stage!r}")
    title, draw = stages[stage]
    with plt.rc_context():
        use_style()
        figure = plt.figure(figsize=(6.5, 3.0))
        figure.suptitle(f"{stage + 1}. {title}", fontsize=9.5, weight="bold")
        draw(figure)
        plt.close(figure)  # shown where it is returned, not a second time by the notebook
    return figure


def step_through(walk: Walk):
    """A widget that goes through `draw_stage` one stage at a time (ipywidgets); `draw_stage` alone is its static form."""
    import ipywidgets as w

    titles = [title for title, _ in stage_list(walk)]
    choice = w.SelectionSlider(
        options=[(t, i) for i, t in enumerate(titles)],
        description="Stage",
        continuous_update=False,
        layout=w.Layout(width="40em"),
    )
    return turned([choice], lambda stage: draw_stage(walk, stage), dpi=180, width="46em")


# ---------------------------------------------------------------------------------------------- robustness
def draw_robustness(rows: Sequence[Mapping], kinds: Mapping[str, str]) -> plt.Figure:
    """Answers and evidence against imperfections, worse to the right.

    Rows have `kind`, `level`, and `accuracy`, `answer`, `word` with `_low`, `_high` (95 % intervals), and `correlation`, with quartiles as its
    `_low` and `_high`. `kinds` gives the axis label of each kind.
    """
    figure, axes = plt.subplots(2, len(kinds), figsize=(7.5, 4.4), sharey="row", squeeze=False, height_ratios=(1.35, 1))
    series = {
        "accuracy": ("accuracy", RIGHT, "s--"),
        "answer": ("answer unchanged", ANSWER, "o-"),
        "word": ("top word of the evidence unchanged", WORD, "^-"),
    }
    for (above, below), (kind, label) in zip(axes.T, kinds.items(), strict=True):
        mine = [r for r in rows if r["kind"] == kind]
        x = np.array([r["level"] for r in mine], float)
        for key, (name, colour, mark) in series.items():
            mean, low, high = (np.array([r[key + end] for r in mine]) for end in ("", "_low", "_high"))
            above.errorbar(x, mean, [mean - low, high - mean], fmt=mark, ms=3.5, lw=1, elinewidth=0.8, color=colour, label=name)
        middle, low, high = (np.array([r["correlation" + end] for r in mine]) for end in ("", "_low", "_high"))
        below.fill_between(x, low, high, color=WORD, alpha=0.2, lw=0, label="correlation, middle half of the pairs")
        below.plot(x, middle, "^-", color=WORD, ms=3.5, lw=1, label="correlation, median")
        for ax in (above, below):
            ax.grid(axis="y", color="#EEEEEE")
            if kind.startswith("bits"):
                ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5, integer=True))
            else:
                ax.set_xscale("log")
                ax.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
            if kind.startswith(("bits", "photons")):
                ax.invert_xaxis()
        above.axhline(0.95, color=INK, lw=0.6, ls=":")
        above.tick_params(labelbottom=False)
        below.set_xlabel(label)
    axes[0, 0].set(ylabel="share of pairs", ylim=(0, 1.03))
    axes[1, 0].set(ylabel="correlation of\nthe evidence", ylim=(-0.3, 1.05))
    handles = [h for ax in (axes[0, 0], axes[1, 0]) for h in zip(*ax.get_legend_handles_labels(), strict=True)]
    figure.legend(*zip(*handles, strict=True), loc="outside upper center", ncols=3)
    return figure
