"""The word-evidence explorer: ask a model about a sentence pair and see, touch and doubt its reasons (paper Figure 4, Table 2).

`explore` is the interactive explorer, `static` the same view as a figure. What is shown is computed in `explorer_view` and
rendered in `explorer_html`; here are only the standard widgets that hold it.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from . import explorer_html as render
from . import faithfulness, figures
from .corpus import LABELS, Pair, encode
from .explorer_html import draw, page
from .explorer_view import (
    LOWEST,
    SIDES,
    Choice,
    Gallery,
    Subject,
    View,
    as_csv,
    as_json,
    compute,
    explain,
    find_checkpoint,
    galleries,
    look,
    models_at_hand,
    open_model,
    record,
    ring,
)
from .models import NAMES

__all__ = [  # what notebooks and the command line use, in one place
    "Choice", "Explorer", "Subject", "as_json", "compute", "draw", "encode", "explain", "explore", "find_checkpoint", "galleries", "look", "open_model", "page",
    "record", "static",
]  # fmt: skip

PREMISE, HYPOTHESIS = "A man plays guitar on stage.", "A woman is asleep."
OWN, NONE, ANSWER, ANY = "none, I type my own", "none", "the answer", "any"


def static(
    premise: str = PREMISE, hypothesis: str = HYPOTHESIS, model: str = "born", seed: int = 0, profile: str | None = None
) -> plt.Figure:
    """What the explorer shows at first, as a figure: for a notebook that is read, not run."""
    return draw([look(Subject.typed(premise, hypothesis), Choice(model, seed), profile)])


def explore(
    premise: str = PREMISE,
    hypothesis: str = HYPOTHESIS,
    model: str = "born",
    seed: int = 0,
    profile: str | None = None,
    pairs: Sequence[Pair] | str | Path | None = None,
):
    """The explorer of a pair's evidence, for a live notebook or a voila page (standard ipywidgets).

    `model` is a model's name (the shipped weights of `seed`) or a checkpoint file, `pairs` are your own pairs to step through, or a CSV
    file in e-SNLI's schema. `static` gives the same as a figure where nobody can press a button.
    """
    return Explorer(premise, hypothesis, model, seed, profile, pairs).widget


# ---------------------------------------------------------------------------------------------- one pair's panel
class Panel:
    """One pair's widgets. `subject` is the pair with what was deleted, `view` what is shown; `changed` is called when a person changes the pair."""

    def __init__(self, subject: Subject, changed: Callable[[], None], guarded: Callable[[Callable[[], None]], bool]):
        import ipywidgets as w

        self.changed, self.guarded, self.subject, self.view = changed, guarded, subject, None
        self._loading = False
        wide, described = w.Layout(width="98%"), {"description_width": "6.5em"}
        self.texts = [
            w.Text(description=side.capitalize(), continuous_update=True, layout=wide, style=described) for side in SIDES
        ]
        self.words = w.Box(layout=w.Layout(flex_flow="row wrap"))
        self._word_layout = w.Layout(width="auto", height="auto", min_height="32px")
        self.first = w.Button(description="Delete the top word", tooltip="delete the word that the ranking puts first")
        self.lowest = w.Button(description="Delete the lowest five", tooltip="delete the five words that the ranking puts last")
        self.restore = w.Button(description="Restore all", tooltip="bring every deleted word back")
        for button in (self.first, self.lowest, self.restore):
            button.layout.width = "auto"
        self.old = w.Dropdown(description="Replace", layout=w.Layout(width="16em"), style={"description_width": "5em"})
        self.new = w.Text(
            description="by",
            placeholder="word, then Enter",
            continuous_update=False,
            layout=w.Layout(width="14em"),
            style={"description_width": "2em"},
        )
        self.key, self.second, self.answer = w.HTML(), w.HTML(), w.HTML()
        for side, text in enumerate(self.texts):
            text.observe(lambda change, side=side: self._typed(side, change["new"]), "value")
        self.first.on_click(lambda _: self.delete(self.view.order[:1]))
        self.lowest.on_click(lambda _: self.delete(self.view.order[::-1][:LOWEST]))
        self.restore.on_click(lambda _: self.show(self.subject.restored()))
        self.new.observe(lambda _: self._replace(), "value")
        self.widget = w.VBox(
            [
                *self.texts, self.words, self.key,
                w.HBox([self.first, self.lowest, self.restore, self.old, self.new], layout=w.Layout(flex_flow="row wrap")),
                self.answer, self.second,
            ],
            layout=w.Layout(flex="1 1 28em", min_width="0"),
        )  # fmt: skip
        self._fill()

    # what a person does
    def show(self, subject: Subject) -> None:
        """Show another pair, or this one with other words deleted."""
        self.subject = subject
        self._fill()
        self.changed()

    def press(self, slot: int) -> None:
        """Delete a word, or bring it back. `<sep>` and punctuation stay."""
        if self.view is not None and self.view.full.words[slot]:
            self.show(self.subject.toggled(slot))

    def delete(self, slots: Sequence[int]) -> None:
        self.show(self.subject.without(slots))

    def _typed(self, side: int, text: str) -> None:
        if not self._loading:
            self.subject = self.subject.with_text(side, text)
            self.changed()

    def _replace(self) -> None:
        text = self.new.value
        if text and self.view is not None and self.old.value is not None:
            replaced = []
            if self.guarded(lambda: replaced.append(self.subject.replaced(self.view.full, self.old.value, text))):
                self.new.value = ""
                self.show(replaced[0])

    # what is shown
    def _fill(self) -> None:
        self._loading = True
        for text, value, tokens in zip(
            self.texts, self.subject.texts, (self.subject.premise, self.subject.hypothesis), strict=True
        ):
            if not text.value or Subject.typed(text.value, "").premise != tokens:  # what a person typed stays as it was typed
                text.value = value
        self._loading = False

    def fill(self, view: View, scale: float) -> None:
        """Everything about a view, on a colour scale that other panels share. Only what differs is sent."""
        self.view = view
        self._buttons(view)
        self.key.value = self._style(view, scale) + render.key_html(scale, render.unit_of(view))
        second = (
            ""
            if view.second is None
            else f"<p>{html.escape(view.choice.second)}, full colour at {render.scale_of(view.second):.3g}:</p>"
        )
        self.second.value = second and second + render.strip_html(view, view.second, view.choice.second)
        self.answer.value = (
            '<div style="line-height:1.4;display:flex;flex-wrap:wrap;column-gap:2em">'
            f'<div role="status" aria-live="polite" class="bornlib-answer">{render.answer_html(view)}</div>{render.curve_html(view)}</div>'
        )
        options = [(f"{i + 1}. {view.full.tokens[i]}", int(i)) for i in np.flatnonzero(view.full.words)]
        if tuple(options) != tuple(self.old.options):
            place = self.old.index or 0
            self.old.options = options
            self.old.index = min(place, len(options) - 1) if options else None
        self.first.disabled = self.lowest.disabled = not len(view.order)
        self.restore.disabled = not view.subject.deleted

    def clear(self) -> None:
        """Nothing about a pair stays in sight that can't be computed."""
        self.view, self.words.children = None, ()
        for part in (self.key, self.second, self.answer):
            part.value = ""

    def _buttons(self, view: View) -> None:
        """A button a slot. Those of words that stay are used again: that keeps the keyboard's focus, and little is sent."""
        import ipywidgets as w

        marks = [f"; marked by annotator {', '.join(map(str, m))}" if m else "" for m in view.marks]
        wanted = []
        for slot, token in enumerate(view.full.tokens):
            text = token + render.mark_digits(view.marks[slot]) + ("" if view.full.known[slot] else " (unknown)")
            tip = (
                f"press to {'bring back' if slot in view.subject.deleted else 'delete'}"
                if view.full.words[slot]
                else "can't be deleted"
            )
            wanted.append((text, f"{token} ({SIDES[view.full.sentence[slot]]}): {tip}{marks[slot]}"))
        have = list(self.words.children)
        texts = [[b.description for b in have], [text for text, _ in wanted]]
        same = next((k for k, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
        tail = next(
            (k for k, (a, b) in enumerate(zip(*(t[same:][::-1] for t in texts), strict=False)) if a != b),
            min(len(t) - same for t in texts),
        )
        between = have[same : len(have) - tail]
        more = len(wanted) - len(have)
        new = [w.Button(layout=self._word_layout) for _ in range(more)]
        for button in new:
            button.add_class("bornlib-word").add_class(_own_class(button))
            button.on_click(lambda b: self.press(self.words.children.index(b)))
        if more:
            kept = len(between) + more if more < 0 else len(between)
            self.words.children = (*have[:same], *between[:kept], *new, *have[len(have) - tail :])
            for button in between[kept:]:
                button.style.close()
                button.close()
        for button, (text, tip) in zip(self.words.children, wanted, strict=True):
            with button.hold_sync():
                button.description, button.tooltip = text, tip

    def _style(self, view: View, scale: float) -> str:
        """Colours and numbers of all words as one style sheet: one message instead of one or two a word."""
        rules = []
        for slot, button in enumerate(self.words.children):
            value = float(view.scores[slot])
            background, ink = render.colours(value, scale)
            line = ";text-decoration:line-through" if slot in view.subject.deleted else ""
            border = "solid" if view.full.words[slot] else "dotted"
            name = f".bornlib-word.{_own_class(button)}"
            rules.append(f"{name}{{background:{background}!important;color:{ink}!important;border:1px {border} #777{line}}}")
            rules.append(f'{name}::after{{content:" {render.number(value)}"}}')
        return f"<style>.bornlib-word::after{{white-space:pre}}{''.join(rules)}</style>"


def _own_class(button) -> str:
    return f"bornlib-{button.model_id}"


# ---------------------------------------------------------------------------------------------- the whole explorer
class Explorer:
    """The interactive explorer; `widget` is what a notebook shows. See `explore`. `panels` are one pair's, or two side by side."""

    def __init__(self, premise: str, hypothesis: str, model: str, seed: int, profile: str | None, pairs=None):
        import ipywidgets as w

        self.profile, self._quiet = profile, False
        self.galleries = galleries(profile, pairs)
        described = {"description_width": "6.5em"}
        row = w.Layout(flex_flow="row wrap")

        def choice(name: str, options, width: str, value) -> w.Dropdown:
            return w.Dropdown(
                options=options, value=value, description=name, layout=w.Layout(width=width, max_width="98%"), style=described
            )

        def button(name: str, tooltip: str) -> w.Button:
            return w.Button(description=name, tooltip=tooltip, layout=w.Layout(width="auto"))

        there = models_at_hand(profile)
        there = there if (model, seed) in there else [(model, seed), *there]
        names = [(f"{figures.MODEL_NAMES[m]}, seed {s}" if m in NAMES else Path(m).name, (m, s)) for m, s in there]
        self.model = choice("Model", names, "25em", (model, seed))
        self.target = choice("Explain", [ANSWER, *LABELS], "16em", ANSWER)
        self.ranking = choice("Shade by", [faithfulness.EVIDENCE], "20em", faithfulness.EVIDENCE)
        self.second = choice("Beside it", [NONE], "20em", NONE)
        self.compare = w.ToggleButton(
            value=False, description="Compare two pairs", tooltip="a second pair side by side", layout=w.Layout(width="auto")
        )

        self.source = choice("Pairs", [OWN, *self.galleries], "19em", OWN)
        self.label = choice("Label", [ANY, *LABELS], "15em", ANY)
        self.search = w.Text(
            description="With word", placeholder="any", continuous_update=False, layout=w.Layout(width="16em"), style=described
        )
        self.wrong = w.Checkbox(description="only wrong answers", indent=False, layout=w.Layout(width="auto", margin="0 1em"))
        self.index = w.BoundedIntText(description="Number", min=0, max=0, layout=w.Layout(width="12em"), style=described)
        self.previous, self.next, self.random = (
            button(name, tip)
            for name, tip in (
                ("Previous", "the pair before that fits"),
                ("Next", "the next pair that fits"),
                ("Random", "any pair that fits"),
            )
        )
        self.message, self.links, self.rankings = w.HTML(), w.HTML(), w.HTML()
        self.export, self.rank = (
            button("Export", "links to HTML, PNG, JSON and CSV files of this view"),
            button("All rankings", "the words in the order of every ranking"),
        )
        self._generator = np.random.default_rng()
        self.panels = [Panel(Subject.typed(premise, hypothesis), self.update, self._guarded)]
        self.pairs = w.HBox([self.panels[0].widget], layout=w.Layout(flex_flow="row wrap", grid_gap="1em"))

        self.source.observe(lambda _: self._step(0), "value")
        for filter in (self.label, self.search, self.wrong):
            filter.observe(lambda _: self._step(0), "value")
        self.index.observe(lambda _: self._goto(), "value")
        self.previous.on_click(lambda _: self._step(-1))
        self.next.on_click(lambda _: self._step(1))
        self.random.on_click(lambda _: self._step(None))
        for chosen in (self.model, self.target, self.ranking, self.second):
            chosen.observe(lambda _: self._quiet or self.update(), "value")
        self.compare.observe(lambda _: self._compare(), "value")
        self.export.on_click(lambda _: self._guarded(self._show_links))
        self.rank.on_click(lambda _: self._guarded(self._show_rankings))
        text = "<p>Type, or press a word to delete it and again to bring it back. Red speaks for the class, blue against it.</p>"
        self.widget = w.VBox(
            [
                w.HBox([self.source, self.label, self.search, self.wrong], layout=row),
                w.HBox([self.index, self.previous, self.next, self.random], layout=row),
                w.HBox([self.model, self.target, self.ranking, self.second, self.compare], layout=row),
                w.HTML(text), self.message, self.pairs, w.HBox([self.export, self.rank], layout=row), self.links, self.rankings,
            ]
        )  # fmt: skip
        self._step_buttons()
        self.update()

    # what a person does
    def _gallery(self) -> Gallery | None:
        return None if self.source.value == OWN else self.galleries[self.source.value]()

    def _step(self, step: int | None) -> None:
        """To the pair that fits after (1) or before (-1) the number, the first from it on (0), or a random one (None)."""
        if not self._quiet:
            self._guarded(lambda: self._find(step), "looking …")

    def _find(self, step: int | None) -> None:
        gallery = self._gallery()
        self._step_buttons()
        if gallery is None:
            return
        matching = gallery.matching(None if self.label.value == ANY else LABELS.index(self.label.value), self.search.value)
        here = min(self.index.value, len(gallery.pairs) - 1)
        candidates = self._generator.permutation(matching) if step is None else ring(matching, here - (step == 0), step or 1)
        wrong = (self.model.value, *open_model(*self.model.value, self.profile)[:2]) if self.wrong.value else None
        found = gallery.find(candidates, wrong)
        if found is None:
            raise ValueError("no pair fits; take another label, word or model")
        self._quiet = True
        self.index.max = len(gallery.pairs) - 1
        self.index.value = found
        self._quiet = False
        self.panels[0].show(gallery.subject(found))

    def _goto(self) -> None:
        gallery = None if self._quiet else self._gallery()
        if gallery is not None:
            self.panels[0].show(gallery.subject(self.index.value))

    def _step_buttons(self) -> None:
        for part in (self.label, self.search, self.wrong, self.index, self.previous, self.next, self.random):
            part.disabled = self.source.value == OWN

    def _compare(self) -> None:
        self.panels = self.panels[:1]
        if self.compare.value:
            self.panels.append(Panel(self.panels[0].subject, self.update, self._guarded))
        self.pairs.children = [p.widget for p in self.panels]
        self.update()

    # what is shown
    @property
    def choice(self) -> Choice:
        target = LABELS.index(self.target.value) if self.target.value in LABELS else None
        return Choice(*self.model.value, target, self.ranking.value, None if self.second.value == NONE else self.second.value)

    def _guarded(self, action: Callable[[], None], busy: str = "") -> bool:
        """Run an action, True where it succeeds; what goes wrong is shown, escaped, instead of a traceback that a widget hides."""
        self.message.value = busy and f"<p role='status'>{busy}</p>"
        try:
            action()
        except (ValueError, OSError) as error:
            self.message.value = f"<p role='alert'><strong>{html.escape(str(error))}</strong></p>"
            return False
        if busy:
            self.message.value = ""
        return True

    def update(self) -> None:
        """Compute and show everything anew."""
        self.links.value = self.rankings.value = ""
        shown = self._guarded(self._show, "" if self._ready() else "computing …")
        self.rank.disabled = self.export.disabled = not shown
        if not shown:
            for panel in self.panels:
                panel.clear()

    def _ready(self) -> bool:
        """True where the view is there in a moment: the model is open and its evidence needs no integrated gradients."""
        return getattr(self, "_open", None) == self.model.value and self._fast

    def _show(self) -> None:
        model, vocabulary, _ = open_model(*self.model.value, self.profile)
        self._open, self._fast = self.model.value, model.degree is not None
        possible = faithfulness.ranking_names(model)
        if tuple(self.ranking.options) != possible:
            self._quiet = True
            for part, options in ((self.ranking, possible), (self.second, (NONE, *possible))):
                kept = part.value if part.value in options else options[0]
                part.options = options
                part.value = kept
            self._quiet = False
        views = [compute(p.subject, self.choice, model, vocabulary) for p in self.panels]
        scale = render.scale_of(*(v.scores for v in views))
        for panel, view in zip(self.panels, views, strict=True):
            panel.fill(view, scale)

    def _show_rankings(self) -> None:
        model = open_model(*self.model.value, self.profile)[0]
        self.rankings.value = "".join(render.rankings_html(model, p.view.evidence.encoded) for p in self.panels)

    def files(self) -> dict[str, tuple[str, bytes]]:
        """The view as files: name to (media type, content)."""
        views, picture = [p.view for p in self.panels], io.BytesIO()
        draw(views).savefig(picture, format="png", metadata={"Software": None})
        records = [record(v) for v in views]
        text = json.dumps(records[0] if len(records) == 1 else records, ensure_ascii=False, indent=1, allow_nan=False)
        return {
            "evidence.html": ("text/html", page(views).encode()),
            "evidence.png": ("image/png", picture.getvalue()),
            "evidence.json": ("application/json", text.encode()),
            "evidence.csv": ("text/csv", as_csv(views[0].evidence).encode()),
        }

    def _show_links(self) -> None:
        links = [
            f'<a style="text-decoration:underline" download="{name}" href="data:{kind};base64,{base64.b64encode(data).decode()}">{name}</a>'
            for name, (kind, data) in self.files().items()
        ]
        self.links.value = f"<p>{' · '.join(links)}</p>"
