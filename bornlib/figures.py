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
