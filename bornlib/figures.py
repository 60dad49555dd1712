"""One style for every figure, and the drawings that several notebooks share."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

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
    text = json.dumps({"caption": caption, "rows": list(rows)}, indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------- evidence
def escape(text: str) -> str:
    """Text from a corpus as matplotlib should print it: a `$` is a dollar sign, not mathematics."""
    return text.replace("$", r"\$")


def draw_word_strip(
    ax: plt.Axes,
    tokens: Sequence[str],
    values: Sequence[float],
    marks: Sequence[bool] | None = None,
    scale: float | None = None,
    faint: Sequence[bool] | None = None,
    size: float = 10,
) -> None:
    """Words of one sentence (or any run of slots) on one line or more, shaded by evidence; dots mark annotators' words (Figure 4).

    Red speaks for the answer, blue against it; `scale` is the evidence of full colour (default: the largest in
    `values`; give the pair's own to compare two sentences). `faint` words (punctuation, unknown words) are grey.
    Axes are in points, origin top left; lines break at the axes' width.
    """
    if len(tokens) != len(values):
        raise ValueError(f"values: expected one per token ({len(tokens)}), got {len(values)}")
    scale = scale or max((abs(v) for v in values), default=0) or 1.0
    figure = ax.figure
    figure.canvas.draw()  # constrained layout places the axes only now
    box = ax.get_window_extent()
    points = 72 / figure.dpi
    width, height = box.width * points, box.height * points
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    x, y, line, space, pad = 0.0, 0.3 * size, 2.1 * size, 0.35 * size, 0.22 * size
    for i, (token, value) in enumerate(zip(tokens, values, strict=True)):
        text = escape(token)
        probe = ax.text(0, 0, text, fontsize=size)
        wide = probe.get_window_extent().width * points + 2 * pad
        probe.remove()
        if x + wide > width and x > 0:
            x, y = 0.0, y + line
        colour = EVIDENCE(0.5 + 0.5 * max(-1.0, min(1.0, float(value) / scale)))
        ax.add_patch(plt.Rectangle((x, y), wide, 1.5 * size, facecolor=colour, edgecolor="none"))
        luminance = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]
        ink = "white" if luminance < 0.45 else ("#888888" if faint is not None and faint[i] else INK)
        ax.text(x + wide / 2, y + 0.75 * size, text, fontsize=size, color=ink, ha="center", va="center_baseline", in_layout=False)
        if marks is not None and marks[i]:
            ax.plot([x + wide / 2], [y - 0.2 * size], "o", color=INK, markersize=0.22 * size, clip_on=False)
        x += wide + space
