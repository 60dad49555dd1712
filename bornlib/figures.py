"""One style for every figure, and the drawings that several notebooks share."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import matplotlib.textpath
import numpy as np

# Okabe-Ito colours, told apart by colour-blind readers: one a model, everywhere
MODEL_COLOURS = {
    "born": "#0072B2",
    "softmax": "#E69F00",
    "poly": "#009E73",
    "coherent": "#CC79A7",
    "poly-gelu": "#56B4E9",
    "poly-softmax": "#D55E00",
    "poly-softmax-gelu": "#999999",
}
MODEL_NAMES = {
    "born": "Born Transformer",
    "softmax": "Softmax",
    "poly": "Poly-sim-born",
    "coherent": "Coherent layer",
    "poly-gelu": "Poly, GELU",
    "poly-softmax": "Poly, softmax attention",
    "poly-softmax-gelu": "Poly, softmax attention + GELU",
}
LABEL_COLOURS = {"entailment": "#3B7D4F", "neutral": "#7A7A7A", "contradiction": "#8C4A8C"}
EVIDENCE = mpl.colors.LinearSegmentedColormap.from_list("evidence", ["#2166AC", "#92C5DE", "#FFFFFF", "#F4A582", "#B2182B"])
INK, FAINT = "#222222", "#BBBBBB"


def use_style() -> None:
    """Set the project's matplotlib style (fonts, sizes, grid); called once in a notebook's import cell."""
    plt.rcParams.update(
        {
            "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9,
            "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False,
            "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK, "text.color": INK,
            "axes.titleweight": "bold", "axes.titlelocation": "left", "figure.dpi": 110, "savefig.dpi": 180,
            "savefig.bbox": "tight", "svg.fonttype": "none", "svg.hashsalt": "bornlib", "figure.constrained_layout.use": True,
        }
    )  # fmt: skip


def save_figure(figure: plt.Figure, folder: Path, name: str) -> None:
    """Write `name.png` and `name.svg`, byte-identical for the same drawing (no dates inside)."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def save_table(rows: Sequence[Mapping], folder: Path, name: str, caption: str) -> None:
    """Write a table's rows (same keys in each) as `name.csv` and, with its caption, `name.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = json.dumps({"caption": caption, "rows": list(rows)}, indent=1, ensure_ascii=False, default=lambda value: value.item())  # numpy's numbers
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def turned(handles: Sequence, draw: Callable[..., plt.Figure], dpi: int = 110, width: str = "98%"):
    """A widget: the handles (ipywidgets) above the picture that `draw` makes of their values, drawn anew when one is moved."""
    import ipywidgets as w

    picture = w.Image(format="png", layout=w.Layout(max_width=width, object_fit="contain"))

    def show(_=None) -> None:
        buffer = io.BytesIO()
        draw(*(h.value for h in handles)).savefig(buffer, format="png", dpi=dpi)
        picture.value = buffer.getvalue()

    for handle in handles:
        handle.observe(show, "value")
    show()
    return w.VBox([w.HBox(handles, layout=w.Layout(flex_flow="row wrap")), picture])


# ---------------------------------------------------------------------------------------------- evidence
def escape(text: str) -> str:
    """Text from a corpus as matplotlib should print it: a `$` is a dollar sign, not mathematics."""
    return text.replace("$", r"\$")


def word_layout(tokens: Sequence[str], width: float, size: float) -> tuple[list[tuple[float, float, float]], int]:
    """Left edge, line (0, 1, ...) and box width of every word at font `size` in a column of `width` points, and the number of lines."""
    x, line, out = 0.0, 0, []
    for token in tokens:
        wide = mpl.textpath.TextPath((0, 0), escape(token), size=size).get_extents().width if token.strip() else 0.0
        wide = (wide if np.isfinite(wide) else 0.0) + 0.55 * size
        if x > 0 and x + wide > width:
            x, line = 0.0, line + 1
        out.append((x, line, wide))
        x += wide + 0.35 * size
    return out, line + 1


def draw_word_strip(
    ax: plt.Axes,
    tokens: Sequence[str],
    values: Sequence[float],
    marks: Sequence[bool] | None = None,
    scale: float | None = None,
    faint: Sequence[bool] | None = None,
    size: float = 9,
) -> None:
    """Words of one sentence (or any run of slots) shaded by evidence; dots mark annotators' words (Figure 4).

    Red speaks for the answer, blue against it; `scale` is the evidence of full colour (default: the largest in
    `values`; give the pair's own to compare two sentences). `faint` words (unknown ones) are grey.
    Lines break at the axes' width and are 2.1 `size` points apart; the axes' scale is in points, origin top left.
    """
    if len(tokens) != len(values):
        raise ValueError(f"values: expected one per token ({len(tokens)}), got {len(values)}")
    scale = scale or max((abs(v) for v in values), default=0) or 1.0
    figure = ax.figure
    figure.canvas.draw()  # constrained layout places the axes only now
    box = ax.get_window_extent()
    width, height = box.width * 72 / figure.dpi, box.height * 72 / figure.dpi
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    for i, (x, line, wide) in enumerate(word_layout(tokens, width, size)[0]):
        y = (0.5 + 2.1 * line) * size
        colour = EVIDENCE(0.5 + 0.5 * max(-1.0, min(1.0, float(values[i]) / scale)))
        ax.add_patch(plt.Rectangle((x, y), wide, 1.5 * size, facecolor=colour, edgecolor="none", in_layout=False, clip_on=False))
        luminance = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]
        ink = "white" if luminance < 0.45 else ("#888888" if faint is not None and faint[i] else INK)
        place = {"ha": "center", "va": "center_baseline", "in_layout": False}
        ax.text(x + wide / 2, y + 0.75 * size, escape(tokens[i]), fontsize=size, color=ink, **place)
        if marks is not None and marks[i]:
            ax.plot([x + wide / 2], [y - 0.2 * size], "o", color=INK, markersize=0.22 * size, clip_on=False)


def draw_word_evidence(items: Sequence[Mapping], width: float = 7.5, size: float = 9) -> plt.Figure:
    """Figure 4: pairs with their words shaded by evidence, and the class probabilities as bars.

    Each item has `title`, `tokens`, `values`, `marks` (or None) in slot order, `sentence` (0 premise, 1 the rest),
    `probabilities` (3,) and `answer` (class index). One colour scale for all pairs, drawn below them.
    """
    scale = max((float(np.abs(item["values"]).max()) for item in items), default=0.0) or 1.0
    column = 0.76 * width * 72 - 12
    lines = [sum(word_layout(part, column, size)[1] for part in _sides(item, item["tokens"])) for item in items]
    heights = [(1.4 + 2.1 * n) * size / 72 + 0.28 for n in lines]
    figure = plt.figure(figsize=(width, sum(heights) + 0.45))
    grid = figure.add_gridspec(len(items) + 1, 2, width_ratios=(0.76, 0.24), height_ratios=[*heights, 0.45])
    axes = [[figure.add_subplot(grid[row, column]) for column in range(2)] for row in range(len(items))]
    key = figure.add_subplot(grid[-1, 0])
    names = list(LABEL_COLOURS)
    for (strip, bars), item in zip(axes, items, strict=True):
        strip.set_title(escape(item["title"]))
        strip.axis("off")
        p = np.asarray(item["probabilities"])
        bars.barh(range(3), p, color=[LABEL_COLOURS[n] for n in names], height=0.7)
        for c in range(3):
            bars.text(p[c] + 0.03, c, f"{names[c]} {p[c]:.2f}", va="center", fontsize=7, weight="bold" if c == item["answer"] else None)
        bars.set(xlim=(0, 2.2), ylim=(2.6, -0.6), xticks=[], yticks=[])
        bars.spines[:].set_visible(False)
    key.axis("off")
    figure.canvas.draw()
    figure.set_layout_engine("none")
    draw_evidence_key(figure, key.get_position(), scale)
    for (strip, _), item in zip(axes, items, strict=True):
        place, top = strip.get_position(), 0.0
        marks = item["marks"] if item["marks"] is not None else [False] * len(item["tokens"])
        for side in range(2):
            tokens, values, dots = (_sides(item, item[k] if k != "marks" else marks)[side] for k in ("tokens", "values", "marks"))
            if len(tokens):
                high = (0.5 + 2.1 * word_layout(tokens, column, size)[1]) * size / 72 / figure.get_figheight()
                ax = figure.add_axes([place.x0, place.y1 - top - high, column / 72 / width, high])
                draw_word_strip(ax, tokens, values, dots, scale, size=size)
                top += high
    return figure


def draw_evidence_key(figure: plt.Figure, place: mpl.transforms.Bbox, scale: float) -> None:
    """The colours of evidence from -`scale` to `scale` as a bar at the upper left of `place`, with what they mean."""
    bar = figure.add_axes([place.x0, place.y1 - 0.1 / figure.get_figheight(), 0.45 * place.width, 0.1 / figure.get_figheight()])
    bar.imshow(np.linspace(-1, 1, 256)[None], cmap=EVIDENCE, aspect="auto", extent=(-scale, scale, 0, 1))
    bar.set(yticks=[], xticks=np.array([-1, -0.5, 0, 0.5, 1]) * scale, xticklabels=[f"{v * scale:+.2f}" if v else "0" for v in (-1, -0.5, 0, 0.5, 1)])
    bar.tick_params(labelsize=7, length=2)
    text = "evidence: share of the answer's probability\nblue against, red for the answer;  ● marked by an annotator"
    figure.text(place.x0 + 0.5 * place.width, place.y1, text, fontsize=7, va="top", linespacing=1.5)


def _sides(item: Mapping, values: Sequence) -> tuple[list, list]:
    """Values per slot split into the premise's and the rest."""
    pairs = list(zip(item["sentence"], values, strict=True))
    return [v for s, v in pairs if s == 0], [v for s, v in pairs if s == 1]


def draw_quadrature(
    coefficients: Mapping[str, Sequence[float]], errors: Mapping[int, float], bounds: Mapping[int, float], hardest: Mapping[int, float]
) -> plt.Figure:
    """Left: Legendre coefficients of counts along the path. Right: error of the evidence, its bound and the hardest polynomial by nodes."""
    figure, (a, b) = plt.subplots(1, 2, figsize=(7.5, 3.2))
    for name, values in coefficients.items():
        a.semilogy(np.maximum(values, 1e-19), lw=0.8, label=name)
    a.set(xlabel="degree", ylabel="Legendre coefficient of $N_c(t)/D$", title="Four test pairs, trained model")
    a.legend()
    blue = MODEL_COLOURS["born"]
    b.semilogy(list(errors), list(errors.values()), "o-", color=blue, label="true error, worst word of all pairs")
    b.semilogy(list(bounds), list(bounds.values()), "o--", color=blue, mfc="white", label="its bound")
    b.semilogy(list(hardest), np.maximum(list(hardest.values()), 1e-17), color="#888888", label="$648\\,t^{647}$, the hardest case")
    b.axhline(1e-11, color=INK, lw=0.6, ls=":")
    b.set(xlabel="Gauss-Legendre nodes", ylabel="error of the evidence", title="What a number of nodes is worth", ylim=(1e-18, 1e3))
    b.legend()
    return figure


def draw_rankings(rows: Sequence[Mapping]) -> plt.Figure:
    """Rows of Table 2 (`model`, `ranking`, each measure with `_low` and `_high`) as points with intervals."""
    figure, axes = plt.subplots(1, 3, figsize=(7.5, 3.1), sharey=True)
    kinds = list(dict.fromkeys(r["model"] for r in rows))
    names = max(([r["ranking"] for r in rows if r["model"] == kind] for kind in kinds), key=len)
    titles = {"flip1": "flip@1", "flip5_lowest": "flip@5, lowest", "agreement": "agreement"}
    for ax, (measure, title) in zip(axes, titles.items(), strict=True):
        for k, kind in enumerate(kinds):
            mine = [r for r in rows if r["model"] == kind]
            y = np.array([names.index(r["ranking"]) for r in mine]) + (k - (len(kinds) - 1) / 2) * 0.22
            x, low, high = np.array([[r[measure], r[f"{measure}_low"], r[f"{measure}_high"]] for r in mine], float).T
            error = np.maximum([x - low, high - x], 0)
            ax.errorbar(x, y, xerr=error, fmt="o", ms=3.5, lw=1, color=MODEL_COLOURS[kind], label=MODEL_NAMES[kind])
        ax.set(title=title, xlim=(0, None))
        ax.grid(axis="x", color="#EEEEEE")
    axes[0].set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


# ---------------------------------------------------------------------------------------------- the task
def draw_highlighted(
    ax: plt.Axes, tokens: Sequence[str], marks: Sequence[bool], colour: str, corner: tuple[float, float], width: float, size: float
) -> float:
    """Words from a left upper corner on in axes whose scale is in points, marked ones on a coloured ground; returns the lower edge."""
    places, lines = word_layout(tokens, width, size)
    for (x, line, wide), token, marked in zip(places, tokens, marks, strict=True):
        x, y = x + corner[0], corner[1] + 1.65 * size * line
        if marked:
            ax.add_patch(plt.Rectangle((x, y), wide, 1.45 * size, facecolor=colour, alpha=0.3, edgecolor="none"))
        ax.text(x + wide / 2, y + 0.72 * size, escape(token), fontsize=size, ha="center", va="center_baseline")
    return corner[1] + 1.65 * size * lines


def draw_marked_pairs(items: Sequence[Mapping], width: float = 4.6, size: float = 8.5, ax: plt.Axes | None = None) -> plt.Figure:
    """Pairs with the words that one annotator marked: premise, hypothesis and, where there is one, the written explanation.

    Each item has `label` (a key of LABEL_COLOURS), `premise` and `hypothesis` (token lists), `marks` (booleans per token
    of either) and `explanation` (may be empty). `width` is in inches; with `ax` given, it is drawn there.
    """
    points, indent = 72 * width, 3.2 * size
    text = [textwrap.wrap(item["explanation"], int((points - indent) / (0.46 * size))) for item in items]
    lines = [[word_layout(item[s], points - indent, size)[1] for s in ("premise", "hypothesis")] for item in items]
    heights = [(1.7 + 1.65 * sum(n) + 1.45 * len(t) + 1.6) * size for n, t in zip(lines, text, strict=True)]
    if ax is None:
        figure, ax = plt.subplots(figsize=(width, sum(heights) / 72))
        figure.set_layout_engine("none")
        ax.set_position((0, 0, 1, 1))
    ax.set(xlim=(0, points), ylim=(sum(heights), 0))
    ax.axis("off")
    top = 0.0
    for item, explanation, height in zip(items, text, heights, strict=True):
        colour, y = LABEL_COLOURS[item["label"]], top + 1.7 * size
        ax.text(0, top + 0.75 * size, item["label"], color=colour, weight="bold", fontsize=size * 1.05, va="center_baseline")
        ax.plot([0.7 * size] * 2, [y, top + height - 1.5 * size], color=colour, lw=2, solid_capstyle="butt")
        for s in ("premise", "hypothesis"):
            y = draw_highlighted(ax, item[s], item["marks"][s == "hypothesis"], colour, (indent / 2, y), points - indent, size)
        for line in explanation:
            place = (indent / 2 + 0.25 * size, y + 0.75 * size)
            ax.text(*place, escape(line), fontsize=size * 0.94, style="italic", color="#555555", va="center_baseline")
            y += 1.45 * size
        top += height
    return ax.figure


def draw_task(items: Sequence[Mapping], bars: Sequence[Mapping], facts: Sequence[tuple[str, str]], width: float = 7.5) -> plt.Figure:
    """Figure 3: marked pairs (as `draw_marked_pairs`), bars of test accuracies, and the data in numbers below.

    Each bar has `name`, `value`, `sd` (0 where there is one run), `paper` (a number or None) and `colour`; each fact a number and its caption.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(width, 4.0))
    figure.set_layout_engine("none")
    draw_marked_pairs(items, 0.62 * width, ax=left)
    content = left.get_ylim()[0] / 72
    height = content + 0.85
    figure.set_size_inches(width, height)
    left.set_position((0.0, 0.85 / height, 0.62, content / height))
    right.set_position((0.775, (0.85 + 0.42) / height, 0.2, (content - 0.42 - 0.3) / height))
    y = np.arange(len(bars))
    value, sd, colour = ([b[key] for b in bars] for key in ("value", "sd", "colour"))
    right.barh(y, value, xerr=sd, color=colour, height=0.62, error_kw={"lw": 1})
    for k, bar in enumerate(bars):
        right.text(0.02, k, f"{100 * bar['value']:.1f} %", va="center", color="white", fontsize=7.5, weight="bold")
        if bar["paper"] is not None:
            right.plot([bar["paper"]] * 2, [k - 0.31, k + 0.31], color=INK, lw=1.2, ls=(0, (1.5, 1)))
    right.set(yticks=y, yticklabels=[b["name"] for b in bars], xlim=(0, 1), ylim=(len(bars) - 0.5, -0.6))
    right.set_xlabel("test accuracy" + " (dotted: paper)" * any(bar["paper"] is not None for bar in bars))
    right.axvline(1 / 3, color="#888888", lw=0.6, zorder=0)
    right.tick_params(axis="y", length=0)
    for k, (number, caption) in enumerate(facts):
        x = (k + 0.5) / len(facts)
        figure.text(x, 0.58 / height, number, ha="center", fontsize=11, weight="bold")
        for i, line in enumerate(caption.split("\n")):
            figure.text(x, (0.4 - 0.125 * i) / height, line, ha="center", fontsize=7, color="#555555")
    return figure
