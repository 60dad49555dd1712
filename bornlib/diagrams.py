"""The three models drawn step by step, bottom to top, with matplotlib's patches (paper Figure 2)."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Arc, Circle, Ellipse, FancyBboxPatch, Polygon, Rectangle, Wedge

from .figures import INK, LABEL_COLOURS

# box colours of the original transformer figure
EMBEDDING, ATTENTION, NORM, FEED_FORWARD, LINEAR, OUTPUT = "#FCE0E1", "#FFE2BB", "#F2F4C1", "#C2E8F7", "#DCDFF0", "#CCE7CF"
BEAM, WIRE, BAND = "#C1272D", "#444444", "#F4F4F4"
BANDS = (  # stage, bottom, top
    ("words", 0.0, 1.3),
    ("fields", 1.5, 4.3),
    ("attention", 4.5, 10.5),
    ("feed-forward", 10.7, 15.1),
    ("read-out", 15.3, 19.3),
    ("answer", 19.5, 20.7),
)


# ------------------------------------------------------------------------------------------------- symbols
def _box(ax, x, y, width, height, text, colour, size=7.5):
    """A rounded box centred on (x, y)."""
    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.12",
        fc=colour,
        ec=INK,
        lw=0.9,
        zorder=3,
    )
    ax.add_patch(shape)
    ax.text(x, y, text, ha="center", va="center", fontsize=size, zorder=5, linespacing=1.15)


def _mesh(ax, x, y, width, height, text, colour):
    """An interferometer: a box with crossing beams below its name."""
    _box(ax, x, y, width, height, "", colour)
    ax.text(x, y + 0.24 * height, text, ha="center", va="center", fontsize=7.5, zorder=5)
    left, low, step = x - 0.36 * width, y - 0.4 * height, 0.24 * width
    for k in range(3):
        a, b = left + k * step, left + (k + 1) * step
        ax.plot([a, b], [low, low + 0.4 * height], color=BEAM, lw=0.8, zorder=4)
        ax.plot([b, a], [low, low + 0.4 * height], color=BEAM, lw=0.8, zorder=4)


def _splitter(ax, x, y, size=0.42):
    """A beam splitter: a glass cube with its diagonal."""
    ax.add_patch(Rectangle((x - size / 2, y - size / 2), size, size, fc="#E7F3FA", ec=INK, lw=0.8, zorder=4))
    ax.plot([x - size / 2, x + size / 2], [y - size / 2, y + size / 2], color=INK, lw=0.8, zorder=5)


def _detector(ax, x, y, size=0.3, colour="#555555"):
    """A photodiode, light entering from below."""
    ax.add_patch(Wedge((x, y), size, 0, 180, fc=colour, ec=INK, lw=0.8, zorder=4))
    ax.plot([x, x], [y + size, y + size + 0.14], color=INK, lw=0.9, zorder=4)


def _balanced(ax, x, y, gap=0.8):
    """Two photodiodes whose currents are subtracted."""
    for side in (-gap / 2, gap / 2):
        _detector(ax, x + side, y)
    ax.plot([x - gap / 2, x + gap / 2], [y + 0.44, y + 0.44], color=INK, lw=0.9, zorder=4)
    ax.add_patch(Circle((x, y + 0.44), 0.15, fc="white", ec=INK, lw=0.8, zorder=5))
    ax.plot([x - 0.08, x + 0.08], [y + 0.44, y + 0.44], color=INK, lw=1.1, zorder=6)


def _meter(ax, x, y, size=0.62):
    """A measurement of a register."""
    ax.add_patch(Rectangle((x - size / 2, y - size / 2), size, size, fc=OUTPUT, ec=INK, lw=0.9, zorder=4))
    ax.add_patch(Arc((x, y - 0.14), 0.42, 0.42, theta1=15, theta2=165, color=INK, lw=0.9, zorder=5))
    ax.plot([x, x + 0.16], [y - 0.14, y + 0.18], color=INK, lw=0.9, zorder=5)


def _plus(ax, x, y, size=0.24):
    ax.add_patch(Circle((x, y), size, fc="white", ec=INK, lw=0.9, zorder=5))
    ax.plot([x - size, x + size], [y, y], color=INK, lw=0.8, zorder=6)
    ax.plot([x, x], [y - size, y + size], color=INK, lw=0.8, zorder=6)


def _arrow(ax, points, colour=INK, width=0.9, style="-", head=True):
    xs, ys = zip(*points, strict=True)
    ax.plot(xs, ys, color=colour, lw=width, ls=style, zorder=2, solid_joinstyle="round")
    if head:
        dx, dy = np.sign(xs[-1] - xs[-2]), np.sign(ys[-1] - ys[-2])
        tip = np.array([xs[-1], ys[-1]])
        along, across = np.array([dx, dy]), np.array([-dy, dx])
        ax.add_patch(
            Polygon([tip, tip - 0.2 * along + 0.1 * across, tip - 0.2 * along - 0.1 * across], fc=colour, ec="none", zorder=2)
        )


def _note(ax, x, y, text, **options):
    ax.text(
        x, y, text, **{"ha": "center", "va": "center", "fontsize": 7, "color": INK, "zorder": 6, "linespacing": 1.15, **options}
    )


def _bars(ax, x, y):
    """The three class probabilities."""
    for k, (colour, height) in enumerate(zip(LABEL_COLOURS.values(), (0.25, 0.4, 0.75), strict=True)):
        ax.add_patch(Rectangle((x - 0.6 + 0.42 * k, y - 0.4), 0.34, height, fc=colour, ec="none", zorder=4))
    ax.plot([x - 0.7, x + 0.72], [y - 0.4, y - 0.4], color=INK, lw=0.8, zorder=4)


# ------------------------------------------------------------------------------------------------- the three columns
def _encoder(ax, x):
    """Softmax transformer, pre-LayerNorm, main line at x."""
    ax.add_patch(Rectangle((x - 2.75, 4.6), 5.5, 10.4, fc="white", ec="#999999", lw=0.9, zorder=1))
    _note(ax, x + 2.45, 14.6, "2×", fontsize=10)
    _note(ax, x, 0.65, "men play hockey . <sep> aliens play", fontsize=7.5, style="italic")
    _arrow(ax, [(x, 0.95), (x, 1.75)])
    _box(ax, x, 2.15, 4.2, 0.8, "word embedding, 64 reals", EMBEDDING)
    _arrow(ax, [(x, 2.55), (x, 3.3)], head=False)
    _plus(ax, x, 3.5)
    _note(ax, x + 1.62, 3.5, "+ position\n+ sentence", fontsize=7)
    _arrow(ax, [(x, 3.74), (x, 5.35)])
    for low, middle, top, text, colour in (
        (5.7, 7.5, 9.6, "two heads\n" + r"softmax$(q_i\cdot k_j/\sqrt{32})$" + "\nweights the values", ATTENTION),
        (11.6, 13.0, 14.3, "feed-forward\n64 → 256, GELU → 64", FEED_FORWARD),
    ):
        tall = 1.9 if colour == ATTENTION else 1.1
        _box(ax, x, low, 4.2, 0.7, "LayerNorm", NORM)
        _arrow(ax, [(x, low + 0.35), (x, middle - tall / 2)])
        _box(ax, x, middle, 4.2, tall, text, colour)
        _arrow(ax, [(x, middle + tall / 2), (x, top - 0.24)])
        _plus(ax, x, top)
        _arrow(ax, [(x, low - 0.75), (x - 2.45, low - 0.75), (x - 2.45, top), (x - 0.24, top)])
    _arrow(ax, [(x, 9.84), (x, 11.25)])
    _arrow(ax, [(x, 14.54), (x, 15.65)])
    _box(ax, x, 16.0, 4.2, 0.7, "LayerNorm", NORM)
    _arrow(ax, [(x, 16.35), (x, 16.65)])
    _box(ax, x, 17.0, 4.2, 0.7, "mean over the words, linear", LINEAR)
    _arrow(ax, [(x, 17.35), (x, 18.25)])
    _box(ax, x, 18.6, 4.2, 0.7, "softmax", OUTPUT)
    _arrow(ax, [(x, 18.95), (x, 19.65)])
    _bars(ax, x, 20.15)


def _beams(ax, x, low, high):
    """Four parallel beams: the reference and three words."""
    for k, colour in enumerate(("#777777", BEAM, BEAM, BEAM)):
        ax.plot([x - 0.24 + 0.16 * k] * 2, [low, high], color=colour, lw=1.0, zorder=2)


def _optics(ax, x):
    """Born Transformer as optics; the beams run at x, what they pass lies to the right."""
    ax.add_patch(Rectangle((x - 0.75, 4.6), 7.45, 10.4, fc="white", ec="#999999", lw=0.9, zorder=1))
    _note(ax, x + 6.35, 14.6, "2×", fontsize=10)
    _note(ax, x + 2.9, 0.65, "men play hockey . <sep> aliens play", fontsize=7.5, style="italic")
    _box(ax, x - 0.1, 0.65, 0.95, 0.6, "laser", "white", 7)
    _beams(ax, x, 0.95, 15.95)
    _box(ax, x + 2.55, 2.75, 6.2, 1.2, "", EMBEDDING)
    _note(ax, x + 3.05, 3.0, r"modulator: $x_i=e^{i\varphi_i}(E[w_i]+f_i+s)$", fontsize=7.5)
    _note(ax, x + 3.05, 2.5, "32 modes a slot; slot 0: the reference", fontsize=7)
    for k, hue in enumerate(("#777777", "#E4572E", "#3B8EA5", "#8F5DB7")):
        ax.add_patch(Circle((x - 0.24 + 0.16 * k, 2.75), 0.075, fc=hue, ec="none", zorder=5))
    _arrow(ax, [(x + 2.9, 0.95), (x + 2.9, 2.15)], style=":")

    q, k, v = x + 1.75, x + 3.5, x + 5.5
    _splitter(ax, x, 5.1, 0.62)
    _arrow(ax, [(x + 0.3, 5.1), (v, 5.1)], BEAM, head=False)
    for centre, text in ((q, "$W_q$"), (k, "$W_k$"), (v, "$W_v$")):
        _arrow(ax, [(centre, 5.1), (centre, 5.5)], BEAM, head=False)
        _mesh(ax, centre, 5.95, 1.35, 0.9, text, ATTENTION)
    middle = (q + k) / 2
    for centre, side in ((q, -0.4), (k, 0.4)):
        _arrow(ax, [(centre, 6.4), (centre, 6.7), (middle, 6.7)], BEAM, head=False)
        ax.plot([middle, middle + side], [6.7, 7.0], color=BEAM, lw=0.9, zorder=2)
    _splitter(ax, middle, 6.7)
    _balanced(ax, middle, 7.0)
    _note(ax, middle + 0.62, 7.35, r"Re, Im $\langle q_i|k_j\rangle$", ha="left")
    _arrow(ax, [(middle, 7.58), (middle, 7.9)])
    _box(ax, middle, 8.25, 2.9, 0.7, "square twice, ÷ row sum", ATTENTION, 7)
    _arrow(ax, [(v, 6.4), (v, 9.05), (v - 0.68, 9.05)], BEAM, head=False)
    _arrow(ax, [(middle + 1.45, 8.25), (v - 0.42, 8.25)], style=":")
    ax.add_patch(
        Polygon([(v - 0.42, 8.02), (v + 0.42, 8.02), (v + 0.42, 8.48), (v - 0.42, 8.48)], fc="#DDDDDD", ec=INK, lw=0.8, zorder=4)
    )
    _note(ax, v, 8.25, "$A_{ij}$", fontsize=7.5)
    _mesh(ax, v - 1.35, 9.3, 1.35, 0.9, "$W_o$", ATTENTION)
    _arrow(ax, [(v - 2.02, 9.05), (x + 1.3, 9.05), (x + 1.3, 9.95), (x + 0.31, 9.95)], BEAM)
    _splitter(ax, x, 9.95, 0.62)
    _note(ax, x + 1.5, 10.12, "adds to the fields", fontsize=7, color="#666666", ha="left")

    _splitter(ax, x, 11.15, 0.62)
    _arrow(ax, [(x + 0.3, 11.15), (k, 11.15)], BEAM, head=False)
    for centre, text in ((q, "$W_1$"), (k, "$W_2$")):
        _arrow(ax, [(centre, 11.15), (centre, 11.5)], BEAM, head=False)
        _mesh(ax, centre, 11.95, 1.35, 0.9, text, FEED_FORWARD)
    for centre, side in ((q, -0.4), (k, 0.4)):
        _arrow(ax, [(centre, 12.4), (centre, 12.7), (middle, 12.7)], BEAM, head=False)
        ax.plot([middle, middle + side], [12.7, 13.0], color=BEAM, lw=0.9, zorder=2)
    _splitter(ax, middle, 12.7)
    _balanced(ax, middle, 13.0)
    _note(ax, k + 0.95, 11.95, "170 channels", ha="left")
    _note(ax, middle + 0.62, 13.35, r"Re$[(W_1h)(W_2h)]$", ha="left")
    _arrow(ax, [(middle, 13.58), (middle, 13.85)], head=False)
    _box(ax, middle, 14.2, 2.9, 0.7, "gain $g$, modulate, $W_3$", FEED_FORWARD, 7)
    _arrow(ax, [(middle - 1.45, 14.2), (x + 0.3, 14.2)], BEAM)
    _splitter(ax, x, 14.2, 0.62)

    ax.add_patch(Ellipse((x, 16.1), 2.0, 0.5, fc="#E7F3FA", ec=INK, lw=0.9, zorder=4))
    _note(ax, x + 1.25, 16.1, r"lens: $z=\Sigma_i\,h_i$", ha="left", fontsize=7.5)
    for k_, side in enumerate((-0.24, -0.08, 0.08, 0.24)):
        ax.plot([x + side, x], [16.3, 16.85], color="#777777" if k_ == 0 else BEAM, lw=0.9, zorder=2)
    _mesh(ax, x, 17.3, 1.5, 0.9, "$R$", LINEAR)
    _arrow(ax, [(x, 17.75), (x, 18.2)], BEAM)
    _box(ax, x + 2.0, 18.6, 5.4, 0.8, "", OUTPUT)
    for c, colour in enumerate(LABEL_COLOURS.values()):
        for pixel in range(4):
            _detector(ax, x - 0.45 + 0.72 * c + 0.16 * pixel, 18.52, 0.07, colour)
    _note(ax, x + 3.1, 18.6, "camera: $P_c=N_c/\\Sigma N$", fontsize=7.5)
    _note(ax, x + 1.25, 17.3, "192 pixels, 64 a class", ha="left", fontsize=7)
    _arrow(ax, [(x + 2.9, 19.0), (x + 2.9, 19.65)])
    _bars(ax, x + 2.9, 20.15)


def _gate(ax, left, right, y, height, text, colour, size=7.5):
    _box(ax, (left + right) / 2, y, right - left, height, text, colour, size)


def _projection(ax, x, y, text):
    """A register that must be found in one state."""
    ax.add_patch(Polygon([(x - 0.42, y - 0.27), (x + 0.42, y - 0.27), (x, y + 0.36)], fc="white", ec=INK, lw=0.9, zorder=4))
    _note(ax, x, y - 0.08, text, fontsize=6.5)


def _circuit(ax, x):
    """The coherent attention layer, wires upwards: head, query, key features and slots, value slots and features."""
    head, query, key, key_slot, value_slot, value = (x + d for d in (0.0, 1.45, 2.9, 4.1, 5.3, 6.5))
    for wire, top in ((head, 19.2), (query, 8.3), (key, 8.3), (key_slot, 9.4), (value_slot, 8.3), (value, 19.2)):
        ax.plot([wire, wire], [1.3, top], color=WIRE, lw=1.2, zorder=2)
    for wire, text in zip((head, query, key, key_slot, value_slot, value), ("2", "5", "5", "$p$", "$p$", "5"), strict=True):
        ax.plot([wire - 0.14, wire + 0.14], [1.32, 1.6], color=WIRE, lw=0.9, zorder=3)
        _note(ax, wire + 0.3, 1.5, text, fontsize=7)
        _note(ax, wire, 0.95, r"$|0\rangle$", fontsize=7)
    _note(ax, (head + value) / 2, 0.35, "three copies of the sentence, $17+2p$ qubits", fontsize=7.5, style="italic")
    _gate(ax, head - 0.5, head + 0.5, 2.85, 1.2, "$H$", EMBEDDING, 8)
    _gate(ax, query - 0.6, query + 0.6, 2.85, 1.2, "$|s\\rangle$\n$s=\\Sigma_j\\,x_j$", EMBEDDING, 7)
    _gate(ax, key - 0.5, key_slot + 0.42, 2.85, 1.2, r"$\Sigma_j\,|j\rangle|x_j^*\rangle$", EMBEDDING)
    _gate(ax, value_slot - 0.42, value + 0.55, 2.85, 1.2, r"$\Sigma_j\,|j\rangle|x_j\rangle$", EMBEDDING)
    _note(ax, head, 3.85, r"$|+\rangle^2$", fontsize=7)
    for wire, text in ((query, "query"), (key, "key"), (key_slot, "slot"), (value_slot, "slot"), (value, "value")):
        _note(ax, wire + 0.12, 3.85, text, fontsize=6.5, ha="left", color="#666666")
    _gate(ax, head - 0.5, query + 0.6, 5.6, 1.2, "$U_M$: four heads\n$m_h=M_h s$", ATTENTION)
    _gate(ax, query - 0.6, key + 0.5, 7.4, 1.0, "Bell projection\n" + r"$c_{jh}=\langle x_j|m_h\rangle$", ATTENTION, 7)
    for wire in (query, key):
        _projection(ax, wire, 8.5, r"$\langle0|$")
    ax.plot([key_slot, value_slot], [7.4, 7.4], color=INK, lw=1.0, zorder=2)
    ax.add_patch(Circle((key_slot, 7.4), 0.11, fc=INK, zorder=4))
    _plus(ax, value_slot, 7.4, 0.2)
    _note(ax, (key_slot + value_slot) / 2, 6.7, "pairs\nthe slots", fontsize=7)
    _projection(ax, value_slot, 8.5, r"$\langle0|$")
    _gate(ax, key_slot - 0.4, key_slot + 0.4, 8.55, 0.6, "$H$", ATTENTION)
    _projection(ax, key_slot, 9.55, r"$\langle0|$")
    _note(ax, key_slot - 0.6, 9.5, r"sums the slots: $z_h=\Sigma_j\,c_{jh}\,x_j$", fontsize=7, ha="right")
    _note(ax, (head + value) / 2, 12.9, "no feed-forward:\none layer, one measurement", fontsize=7.5, color="#666666")
    _gate(ax, head - 0.5, value + 0.5, 16.6, 1.2, "$U$ on heads and value:  $y=Uz$,  $z\\in\\mathbb{C}^{128}$", LINEAR)
    for wire in (head, value):
        _meter(ax, wire, 18.55)
    _note(
        ax,
        (head + value) / 2,
        18.55,
        "7 qubits measured once:\n" + r"$P_c=\Sigma_{k\in c}\,|y_k|^2\,/\,\Vert y\Vert^2$",
        fontsize=7.5,
    )
    middle = (head + value) / 2
    _arrow(ax, [(head, 18.9), (head, 19.2), (middle, 19.2), (middle, 19.65)], head=False)
    _arrow(ax, [(value, 18.9), (value, 19.2), (middle, 19.2), (middle, 19.65)])
    _bars(ax, middle, 20.15)


def draw_models() -> plt.Figure:
    """Softmax encoder, Born Transformer as optics and the coherent attention layer as a circuit, stage by stage (Figure 2)."""
    figure, ax = plt.subplots(figsize=(11.6, 10.2), layout="none")
    figure.subplots_adjust(0.005, 0.005, 0.995, 0.995)
    ax.set(xlim=(-0.6, 24.3), ylim=(-0.2, 21.9), aspect="equal")
    ax.axis("off")
    for name, low, high in BANDS:
        ax.add_patch(Rectangle((-0.5, low), 24.7, high - low, fc=BAND, ec="none", zorder=0))
        ax.text(-0.15, (low + high) / 2, name, rotation=90, ha="center", va="center", fontsize=8, color="#666666")
    for centre, name in (
        (3.3, "Softmax encoder"),
        (11.3, "Born Transformer, as optics"),
        (19.95, "Coherent attention layer, as a circuit"),
    ):
        ax.text(centre, 21.3, name, ha="center", va="center", fontsize=10, weight="bold")
    _encoder(ax, 3.3)
    _optics(ax, 8.3)
    _circuit(ax, 16.7)
    return figure
