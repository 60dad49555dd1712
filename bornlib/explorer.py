"""Evidence of a pair's words to look at and to play with: as a page, a figure, and an interactive widget (paper Figure 4)."""

from __future__ import annotations

import base64
import csv
import functools
import html
import io
import json
import math
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch

from . import corpus, faithfulness, figures, profiles
from .corpus import LABELS, SEP, Encoded, Vocabulary, encode
from .evidence import Evidence
from .models import NAMES, Model
from .training import CheckpointError, load_checkpoint

SIDES = ("premise", "hypothesis")


# ---------------------------------------------------------------------------------------------- models and evidence
def find_checkpoint(name: str) -> Path:
    """A checkpoint by file name, or a shipped one by its name ("born-seed0"). CheckpointError where there is none."""
    path = Path(name)
    shipped = profiles.CHECKPOINTS / f"{name}.safetensors"
    if not path.is_file() and path.name == name and shipped.is_file():
        return shipped
    if not path.is_file():
        known = sorted(p.stem for p in profiles.CHECKPOINTS.glob("*.safetensors"))
        raise CheckpointError(f"{name}: no such checkpoint; shipped are {', '.join(known) or 'none'}")
    return path


@functools.lru_cache(maxsize=4)
def open_model(name: str = "born", seed: int = 0, profile: str | None = None) -> tuple[Model, Vocabulary, dict]:
    """Model (float64), vocabulary and metadata by model name or checkpoint file.

    A model name takes the shipped weights, on every profile: they need no corpus. Profile "quick", or weights
    that are not shipped (said once), take a mini model, trained on the spot.
    """
    if name not in NAMES:
        return load_checkpoint(find_checkpoint(name), torch.float64)
    path = profiles.CHECKPOINTS / profiles.checkpoint_name(name, seed)
    if profile != "quick" and path.is_file():
        return load_checkpoint(path, torch.float64)
    if profile != "quick":
        print(f"{path.name} is not shipped: a mini model of the mini corpus is used", file=sys.stderr)
    return profiles.Profile("quick").model(name, seed, torch.float64)


def explain(model: Model, encoded: Encoded, target: int | None = None, nodes: str | int = "auto") -> Evidence:
    """Evidence for one pair and class (default: the answer): exact for polynomial models, else integrated gradients.

    `nodes` "auto" and "exact" are 256 and 4,096 nodes for integrated gradients, which no number makes exact.
    """
    if model.degree is None:
        nodes = {"auto": 256, "exact": 4096}.get(nodes, nodes)
    return faithfulness.explain(model, [encoded], targets=None if target is None else [target], nodes=nodes)[0]


def as_json(evidence: Evidence) -> dict:
    """The pair explained, as plain data: `words` in slot order with `<sep>`; `error_bound` is None where not known."""
    e = evidence
    return {
        "answer": LABELS[int(np.argmax(e.probabilities))],
        "class": LABELS[e.target],
        "probabilities": {name: float(p) for name, p in zip(LABELS, e.probabilities, strict=True)},
        "no_information_share": float(e.baseline),
        "words": [
            {"text": token, "sentence": SIDES[sentence], "evidence": float(value), "known": bool(known)}
            for token, sentence, value, known in zip(e.encoded.tokens, e.encoded.sentence, e.values, e.encoded.known, strict=True)
        ],
        "gap": float(e.gap),
        "nodes": int(e.nodes),
        "error_bound": None if math.isnan(e.error_bound) else float(e.error_bound),
    }


def as_csv(evidence: Evidence) -> str:
    """The words of `as_json` as CSV. A text that a spreadsheet would take for a formula gets a leading apostrophe."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ["text", "sentence", "evidence", "known"], lineterminator="\n")
    writer.writeheader()
    for word in as_json(evidence)["words"]:
        writer.writerow(word | {"text": "'" * word["text"].startswith(("=", "+", "-", "@")) + word["text"]})
    return stream.getvalue()


# ---------------------------------------------------------------------------------------------- page and figure
def colours(value: float, scale: float) -> tuple[str, str]:
    """Background and text colour of a word: blue speaks against the class, red for it, white is 0."""
    background = mpl.colors.to_rgb(figures.EVIDENCE(0.5 + 0.5 * (value / scale if scale > 0 else 0.0)))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in background]
    dark = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.179  # white text reads better below this
    return mpl.colors.to_hex(background), "#ffffff" if dark else "#000000"


def strip_html(evidence: Evidence) -> str:
    """The slots as an escaped HTML list: each word on its colour with its number below; for readers of both kinds."""
    e = evidence
    scale = float(np.abs(e.values).max(initial=0.0))
    cells = []
    for token, value, known in zip(e.encoded.tokens, e.values, e.encoded.known, strict=True):
        background, ink = colours(float(value), scale)
        note = "" if known else " <small>(unknown)</small>"
        style = f"display:inline-block;text-align:center;margin:2px;padding:3px 6px;border:1px solid #999;border-radius:3px;background:{background};color:{ink}"
        cells.append(f'<li style="{style}">{html.escape(token)}{note}<br><small>{value:+.3f}</small></li>')
    title = f"evidence for {LABELS[e.target]}, word by word"
    return f'<ul aria-label="{title}" style="list-style:none;padding:0;margin:4px 0">{"".join(cells)}</ul>'


def answer_html(evidence: Evidence) -> str:
    """The answer, the three probabilities as bars, and how the evidence adds up."""
    e = evidence
    rows = []
    for name, p in zip(LABELS, e.probabilities, strict=True):
        bar = f'<div style="background:{figures.LABEL_COLOURS[name]};height:0.8em;width:{160 * float(p):.0f}px"></div>'
        rows.append(f'<tr><th scope="row" style="text-align:left;font-weight:normal">{name}</th><td>{p:.3f}</td><td style="width:165px">{bar}</td></tr>')
    start = "no-information share" if e.unit == "probability" else "logit without words"
    bound = "" if math.isnan(e.error_bound) else f", each word's error below {e.error_bound:.0e}"
    cut = "".join(f"<p>The last {n} tokens of the {side} were cut.</p>" for side, n in zip(SIDES, e.encoded.cut, strict=True) if n)
    return (
        f"<p>answer: <strong>{LABELS[int(np.argmax(e.probabilities))]}</strong></p>"
        f'<table><caption style="position:absolute;left:-9999px">class probabilities</caption>{"".join(rows)}</table>'
        f"<p>{start} {e.baseline:.4f} + evidence {e.values.sum():+.4f} = {LABELS[e.target]} {e.score:.4f}"
        f"<br><small>gap {e.gap:.0e} with {e.nodes} nodes{bound}</small></p>{cut}"
    )


def rankings_html(model: Model, encoded: Encoded, depth: int = 8) -> str:
    """Every ranking of Table 2 for one pair as an escaped HTML table: a column a ranking, the words from first to last.

    P and H name the sentence. A star: deleting the word alone changes the answer.
    """
    if not encoded.words.any():
        return "<p>There is no word to rank.</p>"
    deletions = faithfulness.Deletions(model, [encoded])
    (words,), (flips,) = deletions.words, deletions.singles()[1]
    decides = dict(zip(words, flips, strict=True))
    scores = faithfulness.rankings(model, deletions)
    orders = {name: faithfulness.orders([words], values)[0] for name, values in scores.items()}
    head = "".join(f'<th scope="col" style="text-align:left;padding:2px 10px">{html.escape(name)}</th>' for name in orders)
    rows = []
    for k in range(min(depth, len(words))):
        cells = "".join(
            f'<td style="padding:2px 10px">{html.escape(encoded.tokens[o[k]])}{"*" if decides[o[k]] else ""} <small>{"PH"[encoded.sentence[o[k]]]}</small></td>'
            for o in orders.values()
        )
        rows.append(f'<tr><th scope="row">{k + 1}</th>{cells}</tr>')
    caption = "words from first to last (P premise, H hypothesis); * deleting this word alone changes the answer"
    return f'<table><caption style="text-align:left">{caption}</caption><tr><th scope="col">rank</th>{head}</tr>{"".join(rows)}</table>'


def page(evidence: Evidence, model: str = "born") -> str:
    """A self-contained HTML page about one pair; every text is escaped."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Evidence per word</title></head>\n'
        '<body style="font-family:sans-serif;max-width:60em;margin:2em auto;color:#222;background:#fff">\n'
        f"<h1>Evidence for {LABELS[evidence.target]}</h1>\n<p>model: {html.escape(model)}. Red words speak for the class, blue ones against it.</p>\n"
        f"{strip_html(evidence)}\n{answer_html(evidence)}\n</body></html>\n"
    )


def draw(evidence: Evidence, marks: np.ndarray | None = None) -> plt.Figure:
    """One pair's strip of words, shaded by evidence, with the answer as its title."""
    e = evidence
    with plt.rc_context():
        figures.use_style()
        lines = math.ceil(sum(8 + 6.5 * len(token) for token in e.encoded.tokens) / 560)  # points of text on 560 points of width
        figure, ax = plt.subplots(figsize=(8.0, 0.4 + 0.3 * lines))
        figures.draw_word_strip(ax, e.encoded.tokens, e.values, marks)
        answer = LABELS[int(np.argmax(e.probabilities))]
        ax.set_title(f"answer {answer} (P = {e.probabilities.max():.3f}), evidence for {LABELS[e.target]}")
        plt.close(figure)  # shown where it is returned, not a second time by the notebook
    return figure


def static(premise: str, hypothesis: str, model: str = "born", seed: int = 0, profile: str | None = None) -> plt.Figure:
    """What the explorer shows at first, as a figure: for a notebook that is read, not run."""
    loaded, vocabulary, _ = open_model(model, seed, profile)
    return draw(explain(loaded, encode(premise, hypothesis, vocabulary)))


# ---------------------------------------------------------------------------------------------- the widget
OWN = "your own pair"


class Explorer:
    """The interactive explorer; `widget` is what a notebook shows. See `explore`.

    `deleted` lists slots of the full pair in the order in which they were deleted; `evidence` belongs to the pair
    without them.
    """

    def __init__(self, premise: str, hypothesis: str, model: str, seed: int, profile: str | None):
        import ipywidgets as w

        self.profile, self.deleted, self._choosing = profile, [], False
        wide, described = w.Layout(width="46em", max_width="98%"), {"description_width": "6.5em"}
        self.examples = {f"{i + 1}. {p.premise} / {p.hypothesis}": p for i, p in enumerate(corpus.load_examples())}
        self.example = w.Dropdown(options=[OWN, *self.examples], value=OWN, description="Example", layout=wide, style=described)
        self.premise = w.Text(premise, description="Premise", continuous_update=False, layout=wide, style=described)
        self.hypothesis = w.Text(hypothesis, description="Hypothesis", continuous_update=False, layout=wide, style=described)
        choices = [(f"{figures.MODEL_NAMES[m]}, seed {s}" if m in NAMES else Path(m).name, (m, s)) for m, s in self._models(model, seed)]
        self.model = w.Dropdown(options=choices, value=(model, seed), description="Model", style=described)
        self.target = w.Dropdown(options=["the answer", *LABELS], description="Explain", style=described)
        self.message = w.HTML()
        self.first = w.HTML()
        self.words = w.Box(layout=w.Layout(flex_flow="row wrap"))
        self.answer = w.HTML()
        self.undo = w.Button(description="Undo", tooltip="bring the last deleted word back", icon="undo")
        self.reset = w.Button(description="Reset", tooltip="bring every word back", icon="refresh")
        self.rank = w.Button(description="Compare rankings", tooltip="rank the words by every method")
        self.export = w.Button(description="Export", tooltip="links to PNG, CSV and JSON files", icon="download")
        self.links, self.rankings = w.HTML(), w.HTML()
        self.example.observe(self._choose, "value")
        for source in (self.premise, self.hypothesis, self.model):
            source.observe(self._changed, "value")
        self.target.observe(lambda _: self._update(), "value")
        self.undo.on_click(lambda _: self._back(1))
        self.reset.on_click(lambda _: self._back(len(self.deleted)))
        self.rank.on_click(lambda _: self._guarded(self._show_rankings))
        self.export.on_click(lambda _: self._guarded(self._show_links))
        help_text = "<p>Red words speak for the class, blue ones against it. Press a word to delete it; <code>&lt;sep&gt;</code> and punctuation stay.</p>"
        self.widget = w.VBox(
            [
                self.example, self.premise, self.hypothesis, w.HBox([self.model, self.target]), w.HTML(help_text), self.message,
                self.words, self.answer, self.first, w.HBox([self.undo, self.reset, self.rank, self.export]), self.links, self.rankings,
            ]
        )  # fmt: skip
        self._update()

    def _models(self, model: str, seed: int) -> list[tuple[str, int]]:
        """Models and seeds that need no training now."""
        folder = profiles.Profile("quick").checkpoints if self.profile == "quick" else profiles.CHECKPOINTS
        there = [(m, s) for m in NAMES for s in profiles.SEEDS if (folder / profiles.checkpoint_name(m, s)).is_file()]
        return there if (model, seed) in there else [(model, seed), *there]

    # what a person does
    def _choose(self, change) -> None:
        pair = self.examples.get(change["new"])
        if pair is not None:
            self._choosing = True
            self.premise.value, self.hypothesis.value = pair.premise, pair.hypothesis
            self._choosing = False
            self._changed(None)

    def _changed(self, _) -> None:
        if not self._choosing:
            self.deleted = []
            pair = self.examples.get(self.example.value)
            if pair is not None and (pair.premise, pair.hypothesis) != (self.premise.value, self.hypothesis.value):
                self.example.value = OWN
            self._update()

    def delete(self, slot: int) -> None:
        """Delete a slot of the full pair and show the new answer; the next word gets the keyboard's focus."""
        place = slot - sum(i < slot for i in self.deleted)
        self.deleted = [*self.deleted, slot]
        self._update()
        following = [b for b in self.words.children[place:] if not b.disabled] or [self.undo]
        following[0].focus()

    def _back(self, steps: int) -> None:
        if steps and self.deleted:
            self.deleted = self.deleted[:-steps]
            self._update()

    # what is shown
    def _target(self) -> int | None:
        return LABELS.index(self.target.value) if self.target.value in LABELS else None

    def _guarded(self, action) -> bool:
        """Run an action, True where it succeeds; what goes wrong is shown, escaped, instead of a traceback that a widget hides."""
        self.message.value = "<p role='status'>computing …</p>"
        try:
            action()
        except (ValueError, OSError) as error:
            self.message.value = f"<p role='alert'><strong>{html.escape(str(error))}</strong></p>"
            return False
        self.message.value = ""
        return True

    def _update(self) -> None:
        self.links.value = self.rankings.value = ""
        shown = self._guarded(self._show)
        self.rank.disabled = self.export.disabled = not shown
        if not shown:
            self.words.children, self.answer.value, self.first.value = (), "", ""

    def _show(self) -> None:
        self.loaded, vocabulary, _ = open_model(*self.model.value, self.profile)
        self.full = encode(self.premise.value, self.hypothesis.value, vocabulary)
        self.evidence = explain(self.loaded, self.full.without(self.deleted), self._target())
        kept = [i for i in range(len(self.full.ids)) if i not in set(self.deleted)]
        scale = float(np.abs(self.evidence.values).max(initial=0.0))
        before = self.words.children
        self.words.children = [self._button(slot, float(value), scale) for slot, value in zip(kept, self.evidence.values, strict=True)]
        for button in before:
            button.close()
        self.answer.value = f"<div role='status' aria-live='polite' class='bornlib-answer'>{answer_html(self.evidence)}</div>"
        self.first.value = self._history()
        self.undo.disabled = self.reset.disabled = not self.deleted
        self.undo.description = f"Undo ({len(self.deleted)})" if self.deleted else "Undo"

    def _button(self, slot: int, value: float, scale: float):
        import ipywidgets as w

        token, side = self.full.tokens[slot], SIDES[self.full.sentence[slot]]
        background, ink = colours(value, scale)
        note = "" if self.full.known[slot] else " (unknown)"
        button = w.Button(
            description=f"{token}{note} {value:+.3f}",
            tooltip=f"delete “{token}” from the {side}" if self.full.words[slot] else token,
            disabled=not self.full.words[slot],
            style={"button_color": background, "text_color": ink},
            layout=w.Layout(width="auto", border="1px solid #999"),
        )
        if token == SEP:
            button.tooltip = "the separator between the sentences can't be deleted"
        button.on_click(lambda _: self.delete(slot))
        return button

    def _history(self) -> str:
        if not self.deleted:
            return ""
        whole = explain(self.loaded, self.full, self._target())
        before, after = (LABELS[int(np.argmax(e.probabilities))] for e in (whole, self.evidence))
        words = ", ".join(f"<del>{html.escape(self.full.tokens[i])}</del>" for i in self.deleted)
        verdict = "the answer is the same" if before == after else "the answer has changed"
        return f"<p>without {words}: {before} → <strong>{after}</strong> ({verdict})</p>"

    def _show_rankings(self) -> None:
        self.rankings.value = rankings_html(self.loaded, self.evidence.encoded)

    def _show_links(self) -> None:
        picture = io.BytesIO()
        draw(self.evidence).savefig(picture, format="png")
        files = {
            "evidence.png": ("image/png", picture.getvalue()),
            "evidence.csv": ("text/csv", as_csv(self.evidence).encode()),
            "evidence.json": ("application/json", json.dumps(as_json(self.evidence), ensure_ascii=False, indent=1).encode()),
        }
        links = [
            f'<a style="color:#0645ad;text-decoration:underline" download="{name}" href="data:{kind};base64,{base64.b64encode(data).decode()}">{name}</a>' for name, (kind, data) in files.items()
        ]
        self.links.value = f"<p>{' · '.join(links)}</p>"


def explore(
    premise: str = "A man plays guitar on stage.",
    hypothesis: str = "A woman is asleep.",
    model: str = "born",
    seed: int = 0,
    profile: str | None = None,
):
    """An explorer of one pair's evidence, for a live notebook (ipywidgets): type, choose, delete words, export.

    `static` gives the same as a figure where nobody can press a button.
    """
    return Explorer(premise, hypothesis, model, seed, profile).widget
