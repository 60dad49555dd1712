"""Drawings of notebook 08: the paper's Figure 1, what holds and what does not, and two answers side by side to look at and to play with."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch

from . import boltzmann, frozen
from .figures import FAINT, INK, MODEL_COLOURS

COLOURS = {
    "exact": MODEL_COLOURS["born"],
    "thrml": MODEL_COLOURS["poly-softmax"],
    "gumbel": MODEL_COLOURS["poly"],
    "rbm": MODEL_COLOURS["coherent"],
}
MARKS = {"exact": "o", "thrml": "s", "gumbel": "^", "rbm": "D"}


# ---------------------------------------------------------------------------------------------- figures
def draw_envelope(
    curves: Mapping, blends: Mapping, draws: int, backends: Sequence[Mapping], fits: Sequence[Mapping], paper: Mapping
) -> plt.Figure:
    """The paper's Figure 1 with our numbers (filled) and the paper's (hollow): KL against K, against alpha, KL against speed, chi-square against S.

    `curves` and `blends` give for "exact" and "thrml" lists of (K or alpha, mean, standard deviation), the second with K = `draws`; `backends` rows with backend, kl, speed
    (share of the untouched model's); `fits` rows with backend, S, mean_p, rows; `paper` the printed tables k_sweep, alpha_sweep, backends, chi2.
    """
    figure, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(7.5, 6.0))
    for ax, mine, theirs, key in ((a, curves, paper["k_sweep"], "draws"), (b, blends, paper["alpha_sweep"], "blend")):
        for name in ("exact", "thrml"):
            x, mean, spread = np.array(mine[name]).T
            keep = mean > 0
            ax.errorbar(
                x[keep], mean[keep], spread[keep], fmt=MARKS[name] + "-", color=COLOURS[name], ms=3.5, lw=1, capsize=2, label=name
            )
            points = [(r[key], r[name]) for r in theirs["rows"] if r[name] > 0]
            ax.plot(
                *zip(*points, strict=True),
                MARKS[name] + ":",
                color=COLOURS[name],
                mfc="white",
                ms=4,
                lw=0.8,
                label=f"{name}, paper",
            )
        ax.set(yscale="log", ylabel="output KL (nats)")
        ax.legend()
    a.set(xscale="log", xlabel="draws K", title="(a) Noise against draws, α = 1")
    b.set(xlabel="blend α", title=f"(b) Noise against blend, K = {draws}")
    printed = {r["backend"]: r for r in paper["backends"]["rows"]}
    fastest = max(r["tokens_per_second"] for r in printed.values())
    for r in backends:
        name = r["backend"]
        c.plot(r["speed"], r["kl"], MARKS[name], color=COLOURS[name], ms=7, label=name)
        if name in printed:
            c.plot(
                printed[name]["tokens_per_second"] / fastest,
                printed[name]["kl"],
                MARKS[name],
                color=COLOURS[name],
                mfc="white",
                ms=6,
            )
    c.set(
        yscale="log",
        xlim=(0, 1.2),
        xlabel="speed / vanilla (paper: / its fastest)",
        ylabel="output KL (nats)",
    )
    c.set_title("(c) Cost, α = 0.3 (hollow: paper)")
    c.legend()
    sizes = [r["S"] for r in paper["chi2"]["rows"]]
    for k, name in enumerate(("exact", "gumbel", "thrml")):
        rows = [r for r in fits if r["backend"] == name]
        x = [sizes.index(r["S"]) + 0.18 * (k - 1) for r in rows]
        d.errorbar(
            x,
            [r["mean_p"] for r in rows],
            [2 / np.sqrt(12 * r["rows"]) for r in rows],
            fmt=MARKS[name],
            color=COLOURS[name],
            ms=4,
            capsize=2,
            label=name,
        )
    d.plot(range(len(sizes)), [r["mean_p"] for r in paper["chi2"]["rows"]], "s", mfc="none", color=INK, ms=8, label="paper")
    d.axhline(0.5, color=FAINT, lw=0.8, zorder=0)
    d.axvline(sizes.index(20) + 0.5, color=INK, lw=0.8, ls=":")
    d.text(sizes.index(20) + 0.55, 0.32, "8 bits end\nat 255", fontsize=7)
    d.set(
        ylim=(0.3, 0.7),
        xlabel="keys S",
        ylabel="mean χ² p value (bar: 2 s.d.)",
        title="(d) χ² against the exact distribution",
    )
    d.set_xticks(range(len(sizes)), [str(s) for s in sizes])
    d.legend(ncols=2)
    return figure


def draw_checks(
    precision: Mapping, gaps: Mapping, p_values: Mapping, layers: Sequence[tuple[float, float, float]], chosen: int
) -> plt.Figure:
    """What lies behind the numbers: exponents in two precisions, the gap at small K, p values row by row, KL by layer.

    `precision` label -> list of (K, mean, s.d.); `gaps` label -> list of (K, ratio to exact); `p_values` label -> p of all rows;
    `layers` (layer, mean, s.d.) of the KL with that layer alone sampled, of which `chosen` was used everywhere.
    """
    figure, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(7.5, 6.0))
    palette = [MODEL_COLOURS[n] for n in ("born", "softmax", "poly", "coherent", "poly-softmax", "poly-gelu")]
    for (label, points), colour in zip(precision.items(), palette, strict=False):
        x, mean, spread = np.array(points).T
        a.errorbar(x, mean, spread, fmt="o-", color=colour, ms=3, lw=1, capsize=2, label=label)
    x, mean = np.array(next(iter(precision.values()))).T[:2]
    a.plot(x, mean[len(x) // 2] * x[len(x) // 2] / x, color=FAINT, lw=1, ls="--", label="1 / K")
    a.set(xscale="log", yscale="log", xlabel="draws K", ylabel="KL (nats)", title="(a) Rounding bends the power law")
    a.legend(fontsize=7)
    for (label, points), colour in zip(gaps.items(), (INK, *palette), strict=False):
        b.plot(
            *zip(*points, strict=True),
            "s:" if "paper" in label else "o-",
            color=colour,
            mfc="white" if "paper" in label else None,
            ms=4,
            lw=1,
            label=label,
        )
    b.axhline(1, color=FAINT, lw=0.8, zorder=0)
    b.set(
        xscale="log",
        yscale="log",
        xlabel="draws K",
        ylabel="KL / KL of exact",
        title="(b) A gap at small K takes a bias",
    )
    b.legend(fontsize=7)
    for (label, values), colour in zip(p_values.items(), palette, strict=False):
        c.plot(np.sort(values), (np.arange(len(values)) + 0.5) / len(values), color=colour, lw=1.2, label=label)
    c.plot([0, 1], [0, 1], color=FAINT, lw=0.8, zorder=0)
    c.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="χ² p value",
        ylabel="share of rows below",
        title="(c) p values of the rows",
    )
    c.legend(fontsize=7)
    number, mean, spread = np.array(layers).T
    d.errorbar(number, mean, spread, fmt="o", color=COLOURS["exact"], ms=3.5, capsize=2, lw=0.8)
    d.plot(number[number == chosen], mean[number == chosen], "o", color=COLOURS["thrml"], ms=6)
    d.set(
        yscale="log",
        xlabel="layer that is sampled",
        ylabel="output KL (nats)",
        title=f"(d) Layers differ (orange: layer {chosen})",
    )
    return figure


# ---------------------------------------------------------------------------------------------- two answers
def compare(
    model,
    tokenizer,
    text: str,
    layer: int,
    backend: str = "thrml",
    draws: int = 500,
    blend: float = 0.3,
    tokens: int = 49,
    seed: int = 0,
) -> dict:
    """A prompt answered greedily by the untouched and by the sampled model: `vanilla` and `sampled` (pieces of text, a token each), `kl` and `same`.

    `kl` (nats) and `same` (is the top token the same?) compare both models at each token of the sampled answer. ValueError for an empty prompt.
    """
    if not text.strip():
        raise ValueError("text: expected a prompt, got nothing")
    ids = frozen.prompt(tokenizer, text)
    plain, _ = boltzmann.answer(model, ids, tokens)
    with boltzmann.sampled(model, layer, backend, draws, blend, seed):
        chosen, logits = boltzmann.answer(model, ids, tokens)
    read = torch.cat([ids, chosen[None]], 1)
    reference = boltzmann.last_logits(model, read)[ids.shape[1] - 1 : -1]
    return {
        "prompt": text,
        "settings": {"layer": layer, "backend": backend, "draws": draws, "blend": blend, "seed": seed},
        "vanilla": [tokenizer.decode([t]) for t in plain.tolist()],
        "sampled": [tokenizer.decode([t]) for t in chosen.tolist()],
        "kl": boltzmann.output_divergence(reference, logits).tolist(),
        "same": (reference.argmax(-1) == logits.argmax(-1)).tolist(),
    }


def answers_html(result: Mapping) -> str:
    """The two answers of `compare` side by side, escaped; the sampled one's tokens are shaded by their KL, and underlined where the top token changed."""
    shades = np.clip((np.log10(np.maximum(result["kl"], 1e-9)) + 6) / 5, 0, 1)  # 1e-6 is white, 0.1 full colour
    pieces = []
    for piece, kl, shade, same in zip(result["sampled"], result["kl"], shades, result["same"], strict=True):
        line = "" if same else ";text-decoration:underline"
        style = f"background:rgba(213,94,0,{0.75 * shade:.2f}){line}"
        pieces.append(f'<span style="{style}" title="KL {kl:.1e} nats">{html.escape(piece)}</span>')
    s, mean = result["settings"], float(np.mean(result["kl"]))
    cell = "vertical-align:top;text-align:left;white-space:pre-wrap;padding:6px;border:1px solid #999;width:50%"
    head = f"layer {s['layer']}, {html.escape(str(s['backend']))}, K = {s['draws']}, α = {s['blend']:g}"
    changed = sum(not x for x in result["same"])
    return (
        f"<p><b>Prompt:</b> {html.escape(result['prompt'])}</p>"
        f'<table style="width:100%;border-collapse:collapse"><tr><th scope="col" style="{cell}">untouched</th><th scope="col" style="{cell}">sampled ({head})</th></tr>'
        f'<tr><td style="{cell}">{html.escape("".join(result["vanilla"]))}</td><td style="{cell}">{"".join(pieces)}</td></tr></table>'
        f"<p>Mean KL {mean:.1e} nats a token, largest {max(result['kl']):.1e}; the top token changed at {changed} of {len(result['same'])} tokens. "
        "Shading: KL from 1e-6 (white) to 0.1.</p>"
    )


class Chat:
    """A cell to talk to the model with: prompt, layer, backend, K and alpha; both answers and the KL of each token. Needs a running notebook.

    `result` is the last comparison; nothing is run before the button is pressed. A wrong setting is said under the button.
    """

    def __init__(self, model, tokenizer, text: str, layer: int, tokens: int = 49):
        import ipywidgets as w

        self.model, self.tokenizer, self.result = model, tokenizer, None
        described, wide = {"description_width": "6em"}, w.Layout(width="36em")
        self.text = w.Text(text, description="Prompt", layout=wide, style=described)
        self.layer = w.IntSlider(layer, 0, model.config.num_hidden_layers - 1, description="Layer", layout=wide, style=described)
        self.backend = w.Dropdown(options=boltzmann.BACKENDS, value="thrml", description="Backend", style=described)
        self.draws = w.BoundedIntText(500, min=1, max=100_000, description="K", style=described)
        self.blend = w.FloatSlider(0.3, min=0, max=1, step=0.05, description="α", layout=wide, style=described)
        self.tokens = w.BoundedIntText(tokens, min=1, max=400, description="Tokens", style=described)
        self.button = w.Button(description="Answer twice", button_style="primary")
        self.message, self.page = w.HTML(), w.HTML()
        self.button.on_click(lambda _: self.run())
        controls = (
            self.text,
            self.layer,
            self.backend,
            self.draws,
            self.blend,
            self.tokens,
            self.button,
            self.message,
            self.page,
        )
        self.widget = w.VBox(controls)

    def run(self) -> None:
        """Answer the prompt twice with what is set, and show both."""
        self.button.disabled, self.message.value = True, "working ..."
        try:
            settings = (self.layer.value, self.backend.value, self.draws.value, self.blend.value, self.tokens.value)
            self.result = compare(self.model, self.tokenizer, self.text.value, *settings)
            self.page.value, self.message.value = answers_html(self.result), ""
        except ValueError as error:
            self.message.value = html.escape(str(error))
        finally:
            self.button.disabled = False

    def _repr_mimebundle_(self, **options) -> dict:
        return self.widget._repr_mimebundle_(**options)
