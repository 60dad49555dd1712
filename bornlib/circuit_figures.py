"""Drawings of the coherent circuit and of its post-selection (paper Figure 6, Table 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Circle, FancyBboxPatch, Polygon, Rectangle

from .figures import INK, LABEL_COLOURS

# colours of Figure 2: preparation, attention, linear, output
PREPARED, ATTENTION, READOUT, MEASURED = "#FCE0E1", "#FFE2BB", "#DCDFF0", "#CCE7CF"
ROWS = {"head": 6.0, "query": 5.0, "key": 4.0, "key slot": 3.0, "value slot": 2.0, "value": 1.0}
COLUMNS = {"prepare": 2.15, "heads": 4.4, "Bell": 6.35, "pairing": 8.0, "sum": 9.2, "readout": 11.15, "measure": 12.9}


def _box(ax, x: float, rows: Sequence[str], width: float, text: str, colour: str, size: float = 7.5) -> None:
    low, high = min(ROWS[r] for r in rows) - 0.36, max(ROWS[r] for r in rows) + 0.36
    style = "round,pad=0,rounding_size=0.1"
    ax.add_patch(FancyBboxPatch((x - width / 2, low), width, high - low, boxstyle=style, fc=colour, ec=INK, lw=0.9, zorder=3))
    ax.text(x, (low + high) / 2, text, ha="center", va="center", fontsize=size, zorder=5, linespacing=1.2)


def _projection(ax, x: float, row: str) -> None:
    """The register must be found in 0: its wire ends here."""
    y = ROWS[row]
    ax.add_patch(Polygon([(x, y - 0.24), (x, y + 0.24), (x + 0.42, y)], fc="white", ec=INK, lw=0.9, zorder=4))
    ax.text(x + 0.15, y, "0", ha="center", va="center", fontsize=6.5, zorder=5)


def _meter(ax, x: float, row: str) -> None:
    y = ROWS[row]
    ax.add_patch(Rectangle((x - 0.3, y - 0.3), 0.6, 0.6, fc=MEASURED, ec=INK, lw=0.9, zorder=4))
    angle = np.linspace(0.3, np.pi - 0.3, 30)
    ax.plot(x + 0.21 * np.cos(angle), y - 0.16 + 0.21 * np.sin(angle), color=INK, lw=0.9, zorder=5)
    ax.plot([x, x + 0.14], [y - 0.16, y + 0.18], color=INK, lw=0.9, zorder=5)


def draw_circuit(cnots: Mapping[str, int], passing: Sequence[float], p: int, width: float = 7.5) -> plt.Figure:
    """Figure 6: registers, stages, CNOTs a stage and the share of shots that passes each projection, for one pair.

    `cnots` as `coherent.cnots` gives them for the all-brickwall circuit; `passing` (5,) as in `coherent.Prediction.stages`.
    """
    figure, ax = plt.subplots(figsize=(width, 0.5 * width), layout="none")
    figure.subplots_adjust(0.005, 0.005, 0.995, 0.995)
    ax.set(xlim=(-0.55, 14.35), ylim=(-1.72, 7.1))
    ax.axis("off")
    sizes = {"head": 2, "query": 5, "key": 5, "key slot": p, "value slot": p, "value": 5}
    ends = {"head": 12.7, "query": 7.15, "key": 7.15, "key slot": 9.7, "value slot": 8.45, "value": 12.7}
    for row, y in ROWS.items():
        ax.plot([0.75, ends[row]], [y, y], color="#444444", lw=1.2, zorder=2)
        ax.plot([0.83, 0.97], [y - 0.14, y + 0.14], color="#444444", lw=0.9, zorder=3)
        ax.text(0.98, y + 0.2, f"{sizes[row]}", fontsize=6.5, ha="center", zorder=3)
        ax.text(0.62, y, f"{row} $|0\\rangle$", fontsize=7.5, ha="right", va="center")
    c = COLUMNS
    _box(ax, c["prepare"], ["head"], 1.9, "$H^{\\otimes 2}$", PREPARED)
    _box(ax, c["prepare"], ["query"], 1.9, r"$|s\rangle,\ s=\Sigma_j x_j$", PREPARED)
    _box(ax, c["prepare"], ["key", "key slot"], 1.9, "keys\n" + r"$\Sigma_j|j\rangle|x_j^*\rangle$", PREPARED)
    _box(ax, c["prepare"], ["value slot", "value"], 1.9, "values\n" + r"$\Sigma_j|j\rangle|x_j\rangle$", PREPARED)
    _box(ax, c["heads"], ["head", "query"], 1.7, "$U_M$, 18 layers\n$m_h=M_h s$", ATTENTION)
    _box(ax, c["Bell"], ["query", "key"], 1.35, "Bell\nprojection", ATTENTION)
    ax.text(c["Bell"] + 0.8, 5.62, r"$c_{jh}=\langle x_j|m_h\rangle$", fontsize=7.5, ha="left", va="center")
    ax.plot([c["pairing"]] * 2, [ROWS["value slot"] - 0.18, ROWS["key slot"]], color=INK, lw=1.0, zorder=3)
    ax.add_patch(Circle((c["pairing"], ROWS["key slot"]), 0.1, fc=INK, zorder=4))
    ax.add_patch(Circle((c["pairing"], ROWS["value slot"]), 0.18, fc="white", ec=INK, lw=0.9, zorder=4))
    ax.plot([c["pairing"] - 0.18, c["pairing"] + 0.18], [ROWS["value slot"]] * 2, color=INK, lw=0.9, zorder=5)
    ax.plot([c["pairing"]] * 2, [ROWS["value slot"] - 0.18, ROWS["value slot"] + 0.18], color=INK, lw=0.9, zorder=5)
    _box(ax, c["sum"], ["key slot"], 0.75, f"$H^{{\\otimes {p}}}$", ATTENTION, 7)
    ax.text(c["sum"] - 0.3, 3.62, r"$z_h=\Sigma_j\, c_{jh}\,x_j$", fontsize=7.5, ha="center", va="center")
    for row in ("query", "key", "value slot", "key slot"):
        _projection(ax, ends[row], row)
    _box(ax, c["readout"], ["head", "value"], 1.45, "$U$\n18 layers\n\n$y=Uz$", READOUT)
    headings = {"prepare": "three copies", "heads": "query–key\nbrickwall", "Bell": "overlaps", "pairing": "slots\npaired"}
    headings |= {"sum": "slots\nsummed", "readout": "value–readout\nbrickwall", "measure": "answer"}
    for name, text in headings.items():
        ax.text(c[name], 6.78, text, fontsize=7, ha="center", va="center", color="#666666", linespacing=1.1)
    for row in ("head", "value"):
        _meter(ax, c["measure"], row)
    ax.text(13.3, 3.5, "seven qubits,\nmeasured once", fontsize=7.5, ha="center", va="center", linespacing=1.3)
    for k, (name, colour) in enumerate(LABEL_COLOURS.items()):
        ax.text(13.3, 2.75 - 0.32 * k, name, fontsize=7, ha="center", va="center", color=colour, weight="bold")
    _facts(ax, cnots, passing, 17 + 2 * p)
    return figure


def _facts(ax, cnots: Mapping[str, int], passing: Sequence[float], qubits: int) -> None:
    """CNOTs and passing share below each stage, totals at the right."""
    shares = dict(zip(("heads", "Bell", "pairing", "sum", "readout"), passing, strict=True))
    prepared = "+".join(str(cnots[k]) for k in ("query", "keys", "values"))
    counts = {"prepare": prepared} | {k: str(cnots[k]) for k in ("heads", "Bell", "pairing", "sum", "readout")}
    ax.plot([-0.5, 14.3], [0.3, 0.3], color="#BBBBBB", lw=0.7)
    for y, name in ((-0.2, "CNOTs"), (-0.75, "passes")):
        ax.text(-0.45, y, name, fontsize=7.5, va="center", weight="bold")
    for name, x in COLUMNS.items():
        if name in counts:
            ax.text(x, -0.2, counts[name], fontsize=7.5, ha="center", va="center")
        if name in shares:
            text = "all" if abs(shares[name] - 1) < 1e-9 else f"{shares[name]:.2g}"
            ax.text(x, -0.75, text, fontsize=7.5, ha="center", va="center")
    ax.text(13.3, -0.2, f"{cnots['total']:,} in all", fontsize=7.5, ha="center", va="center", weight="bold")
    digits, power = f"{np.prod(passing):.1e}".split("e")
    ax.text(13.3, -0.75, rf"${digits}\times10^{{{int(power)}}}$", fontsize=7.5, ha="center", va="center", weight="bold")
    ax.text(6.9, -1.4, f"{qubits} qubits, {cnots['total']:,} CNOTs", fontsize=9.5, ha="center", va="center", weight="bold")


def draw_post_selection(
    slots: np.ndarray, passing: np.ndarray, stages: np.ndarray, names: Sequence[str], colour: str
) -> plt.Figure:
    """Left: P_pass against slots (pairs,). Right: the median share that passes each stage, with the middle 90 % of pairs."""
    figure, (a, b) = plt.subplots(1, 2, figsize=(7.5, 2.9))
    a.scatter(slots, passing, s=7, color=colour, alpha=0.6, lw=0)
    for low in (8, 16, 32, 64):
        a.axvline(low + 0.5, color="#BBBBBB", lw=0.7, ls=":", zorder=0)
    a.set(yscale="log", xlabel="slots (words, <sep> and reference)", ylabel="$P_{pass}$", title="Share of runs that pass")
    a.set_xlim(slots.min() - 2, slots.max() + 2)
    low, middle, high = np.quantile(stages, (0.05, 0.5, 0.95), axis=0)
    x = np.arange(len(names))
    b.errorbar(x, middle, yerr=[middle - low, high - middle], fmt="o", color=colour, ms=4, lw=1.2, capsize=3)
    for k, value in enumerate(middle):
        b.annotate(f"{value:.2g}", (k, value), xytext=(8, 0), textcoords="offset points", va="center", fontsize=7.5)
    b.set(yscale="log", xticks=x, xticklabels=names, ylabel="share that passes", title="Stage by stage", ylim=(None, 2.5))
    b.set_xlim(-0.4, len(names) - 0.2)
    return figure


def draw_shots(shots: Sequence[int], agreement: Mapping[str, np.ndarray], colours: Mapping[str, str]) -> plt.Figure:
    """Share of pairs whose sampled answer is the exact one against accepted shots: (shots, pairs) a name; bars are 95 % over pairs."""
    figure, ax = plt.subplots(figsize=(5.2, 2.9))
    for name, values in agreement.items():
        mean, error = values.mean(1), 1.96 * values.std(1, ddof=1) / np.sqrt(values.shape[1])
        around = [error, np.minimum(error, 1 - mean)]  # no share is above 1
        ax.errorbar(shots, mean, yerr=around, fmt="o-", ms=3.5, lw=1.2, capsize=2, color=colours[name], label=name)
    lowest = min(values.mean(1).min() for values in agreement.values())
    ax.axhline(1, color="#BBBBBB", lw=0.7, zorder=0)
    ax.set(xscale="log", xlabel="accepted shots", ylabel="sampled answer is the exact one", ylim=(lowest - 0.12, 1.02))
    ax.legend(loc="lower right")
    return figure
