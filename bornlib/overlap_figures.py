"""Drawings of notebook 07: a circuit as it is sent, the device's runs (paper Figure 7), and what shots and calibration do (Table 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from .corpus import LABELS
from .figures import FAINT, INK, LABEL_COLOURS, MODEL_COLOURS, escape

DEVICE, PULSE = MODEL_COLOURS["born"], MODEL_COLOURS["softmax"]


def schedule(circuit, target) -> list[tuple[str, tuple[int, ...], float, float]]:
    """Every instruction of a padded circuit as (name, wires, start, duration), in microseconds; virtual rotations are left out."""
    clock, out = [0.0] * circuit.num_qubits, []
    for instruction in circuit.data:
        wires = tuple(circuit.find_bit(q).index for q in instruction.qubits)
        name = instruction.operation.name
        seconds = instruction.operation.duration * target.dt if name == "delay" else target[name][wires].duration
        start = max(clock[w] for w in wires)
        for w in wires:
            clock[w] = start + 1e6 * seconds
        if name != "rz":
            out.append((name, wires, start, 1e6 * seconds))
    return out


def draw_schedule(circuit, target, line: Sequence[int], decoupled: Sequence[str] = ("x",), width: float = 7.5) -> plt.Figure:
    """A circuit as it is sent, in time: CZ as bars between two wires, pulses as ticks (those of XY4 in colour), the measurement at the end."""
    steps = schedule(circuit, target)
    end = max(start for name, _, start, _ in steps if name == "measure")
    figure, ax = plt.subplots(figsize=(width, 2.3))
    for name, wires, start, duration in steps:
        middle = start + duration / 2
        if name == "cz":
            ax.plot([middle, middle], wires, color=DEVICE, lw=1.6, solid_capstyle="round", marker="o", markersize=3)
        elif name == "measure":
            ax.add_patch(plt.Rectangle((start, wires[0] - 0.28), 0.25, 0.56, facecolor=INK))
            around = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            ax.text(start + 0.32, wires[0], "read", va="center", fontsize=8, bbox=around)
        elif name != "delay":
            pulse = name in decoupled
            ax.plot([middle] * 2, [wires[0] - 0.2, wires[0] + 0.2], color=PULSE if pulse else INK, lw=1.6 if pulse else 0.8)
    for k in range(circuit.num_qubits):
        ax.axhline(k, color=FAINT, lw=0.6, zorder=0)
    for colour, wide, text in ((DEVICE, 1.6, "CZ"), (INK, 0.8, "√X pulse"), (PULSE, 1.6, "X or Y pulse (XY4)")):
        ax.plot([], [], color=colour, lw=wide, label=text)
    ax.set(xlim=(-0.05, end + 0.8), ylim=(circuit.num_qubits - 0.4, -0.6), xlabel="time (µs)")
    ax.set_yticks(range(circuit.num_qubits), [f"qubit {q}" for q in line])
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper right", ncols=3)
    return figure


def draw_runs(runs: Sequence[Mapping], scatter: Mapping, received: Mapping, width: float = 7.5) -> plt.Figure:
    """Figure 7. Left: overlaps as read against ideal ones, and the attention that each word receives; right: the answer of each run.

    A run has `title`, `exact`, `device`, `low`, `high` (3,) and, where the paper printed it, `paper` (class, probability). `scatter` has `ideal`,
    `read` and `r`; `received` has `tokens`, `exact`, `device`, `low`, `high` for each slot.
    """
    figure = plt.figure(figsize=(width, 4.9))
    grid = figure.add_gridspec(2, 5, width_ratios=(1.9, 0.12, 1, 1, 1))
    ax = figure.add_subplot(grid[0, 0])
    ax.plot([-1, 1], [-1, 1], color=FAINT, lw=0.8)
    ax.plot(scatter["ideal"], scatter["read"], ".", color=DEVICE, markersize=2.2, alpha=0.6)
    ax.set(
        xlim=(-1, 1), ylim=(-1, 1), xlabel="ideal overlap", ylabel="overlap as read", title=f"Overlaps, r = {scatter['r']:.3f}"
    )
    ax = figure.add_subplot(grid[1, 0])
    x = np.arange(len(received["tokens"]))
    error = np.abs(np.array([received["low"], received["high"]]) - received["device"])
    ax.bar(x, received["device"], 0.62, color=DEVICE, yerr=error, error_kw={"lw": 1, "capsize": 2})
    ax.plot(x, received["exact"], "_", color=INK, markersize=11, mew=1.6)
    ax.set_xticks(x, [escape(t) for t in received["tokens"]], rotation=40, ha="right", rotation_mode="anchor")
    ax.set(ylabel="share", ylim=(0, None), title="Attention received")
    for k, run in enumerate(runs):
        ax = figure.add_subplot(grid[k // 3, 2 + k % 3])
        device, x = np.asarray(run["device"]), np.arange(len(LABELS))
        error = np.abs(np.array([run["low"], run["high"]]) - device)
        ax.bar(x, device, 0.62, color=[LABEL_COLOURS[name] for name in LABELS], yerr=error, error_kw={"lw": 1, "capsize": 2})
        ax.plot(x, run["exact"], "_", color=INK, markersize=15, mew=1.6)
        if run.get("paper") is not None:
            ax.plot(
                [run["paper"][0] + 0.42],
                [run["paper"][1]],
                "D",
                color="white",
                markeredgecolor=INK,
                markersize=4.5,
                clip_on=False,
            )
        ax.set_xticks(
            x, [name[:7] + "." * (len(name) > 7) for name in LABELS], rotation=40, ha="right", rotation_mode="anchor", fontsize=7
        )
        ax.set(xlim=(-0.5, 2.65), ylim=(0, 1.04), yticks=(0, 0.5, 1))
        ax.set_title(run["title"], fontsize=8)
        if k % 3:
            ax.set_yticklabels([])
        else:
            ax.set_ylabel("probability")
    handles = [
        plt.Rectangle((0, 0), 1, 1, color="#888888", label="as read, 95 % of redraws"),
        plt.Line2D([], [], ls="", marker="_", color=INK, markersize=11, mew=1.6, label="exact model"),
        plt.Line2D([], [], ls="", marker="D", color="white", markeredgecolor=INK, markersize=4.5, label="the paper's device"),
    ]
    figure.legend(handles=handles, loc="outside lower right", ncols=3)
    return figure


def draw_needs(panels: Sequence[Mapping], width: float = 7.5) -> plt.Figure:
    """Agreement of measured evidence with exact evidence against an imperfection, a panel each; the dashed line is 95 %.

    A panel has `x`, `xlabel`, `series` (name to shares, each (mean, low, high) arrays over x) and `need`, the x where the top word is right in 95 %.
    """
    colours = {"top word": DEVICE, "top 3 words": MODEL_COLOURS["poly"], "top word, noise model": PULSE}
    rows = -(-len(panels) // 2)
    lowest = min(np.min(low) for panel in panels for _, low, _ in panel["series"].values())
    figure, axes = plt.subplots(rows, 2, figsize=(width, 2.3 * rows), sharey=True)
    for ax, panel in zip(axes.flat, panels, strict=True):
        for name, (mean, low, high) in panel["series"].items():
            ax.plot(panel["x"], mean, "o-", color=colours[name], markersize=3, lw=1.2, label=name)
            ax.fill_between(panel["x"], low, high, color=colours[name], alpha=0.15, lw=0)
        ax.axhline(0.95, color=INK, lw=0.7, ls=(0, (4, 3)))
        if panel["need"] is not None:
            ax.axvline(panel["need"], color=DEVICE, lw=0.8, ls=(0, (1, 2)))
        ax.set(xscale="log", xlabel=panel["xlabel"])
    for ax in axes[:, 0]:
        ax.set_ylabel("share right")
    axes[0, 0].set_ylim(min(lowest, 0.85) - 0.03, 1.01)
    axes[0, 0].legend(loc="lower right")
    return figure


def draw_evidence_readings(items: Sequence[Mapping], width: float = 7.5) -> plt.Figure:
    """Evidence per word: exact, and with the overlaps as read; a panel a pair with `title`, `tokens`, `exact`, `read`, `low`, `high` (slots,)."""
    figure, axes = plt.subplots(1, len(items), figsize=(width, 2.6), sharey=True)
    for ax, item in zip(np.atleast_1d(axes), items, strict=True):
        x = np.arange(len(item["tokens"]))
        error = np.stack([item["read"] - np.asarray(item["low"]), np.asarray(item["high"]) - item["read"]])
        ax.axhline(0, color=FAINT, lw=0.8)
        ax.bar(
            x,
            item["read"],
            0.62,
            color=DEVICE,
            yerr=error.clip(0),
            error_kw={"lw": 1, "capsize": 2},
            label="as read, 95 % of redraws",
        )
        ax.plot(x, item["exact"], "_", color=INK, markersize=12, mew=1.6, label="exact")
        ax.set_xticks(x, [escape(t) for t in item["tokens"]], rotation=40, ha="right", rotation_mode="anchor")
        ax.set_title(item["title"], fontsize=9)
    np.atleast_1d(axes)[0].set_ylabel("evidence")
    np.atleast_1d(axes)[0].legend(loc="upper left", fontsize=7)
    return figure
