"""The explorer's views rendered: as pieces of HTML, as a self-contained page, and as a figure for those who read and don't run."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from . import faithfulness, figures
from .corpus import LABELS, Encoded
from .explorer_view import SIDES, View
from .models import NAMES, Model

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
GONE = "#dddddd", "#555555"  # background and ink of a deleted word


# ---------------------------------------------------------------------------------------------- words
def colours(value: float, scale: float) -> tuple[str, str]:
    """Background and text colour of a word: blue speaks against the class, red for it, white is 0. Deleted (NaN): grey."""
    if math.isnan(value):
        return GONE
    background = mpl.colors.to_rgb(figures.EVIDENCE(0.5 + 0.5 * (value / scale if scale > 0 else 0.0)))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in background]
    dark = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.179  # white text reads better below this
    return mpl.colors.to_hex(background), "#ffffff" if dark else "#000000"


def scale_of(*values: np.ndarray | None) -> float:
    """The score of full colour: the largest amount among some arrays by slot."""
    return max((float(np.nanmax(np.abs(v), initial=0.0)) for v in values if v is not None), default=0.0)


def mark_digits(annotators: Sequence[int]) -> str:
    """Who marked a word, as small digits: ¹³."""
    return "".join(map(str, annotators)).translate(SUPERSCRIPTS)


def number(value: float) -> str:
    """A word's score as text; a deleted word has none."""
    return "deleted" if math.isnan(value) else f"{value:+.3f}"


def strip_html(view: View, scores: np.ndarray | None = None, name: str | None = None, scale: float | None = None) -> str:
    """The slots as an escaped HTML list: each word on its colour with its number below. By default the first ranking's scores."""
    scores = view.scores if scores is None else scores
    scale = scale or scale_of(scores)
    cells = []
    for i, token in enumerate(view.full.tokens):
        value = float(scores[i])
        background, ink = colours(value, scale)
        text = html.escape(token)
        if math.isnan(value):
            text = f"<del>{text}</del>"
        if view.marks[i]:
            text += (
                f'<sup title="marked by annotator {", ".join(map(str, view.marks[i]))}">{"".join(map(str, view.marks[i]))}</sup>'
            )
        note = "" if view.full.known[i] else " <small>(unknown)</small>"
        style = (
            "display:inline-block;vertical-align:top;text-align:center;margin:2px;padding:3px 6px;border:1px solid #999;border-radius:3px;"
            f"background:{background};color:{ink}"
        )
        cells.append(f'<li style="{style}">{text}{note}<br><small>{number(value)}</small></li>')
    title = html.escape(name or view.choice.ranking)
    return f'<ul aria-label="{title}, word by word" style="list-style:none;padding:0;margin:4px 0;line-height:1.3">{"".join(cells)}</ul>'


def key_html(scale: float, unit: str) -> str:
    """The colour scale in words and as a bar."""
    stops = ",".join(mpl.colors.to_hex(figures.EVIDENCE(x)) for x in np.linspace(0, 1, 9))
    bar = f'<span style="display:inline-block;width:9em;height:0.8em;border:1px solid #999;background:linear-gradient(90deg,{stops})"></span>'
    return (
        f'<span class="bornlib-key">against {-scale:.3g} {bar} +{scale:.3g} for; {html.escape(unit)}. '
        "Small digits: the annotators who marked the word.</span>"
    )


def unit_of(view: View) -> str:
    """What a score of the first ranking is."""
    if view.choice.ranking == faithfulness.EVIDENCE:
        amount = "probability" if view.evidence.unit == "probability" else "logit"
        return f"evidence, in shares of the {amount} of {LABELS[view.evidence.target]}"
    return f"{view.choice.ranking}, about the answer {LABELS[view.answer]}"


# ---------------------------------------------------------------------------------------------- answer and check
def check_text(view: View) -> str:
    """How the evidence adds up: no-information share + evidence = probability."""
    e = view.evidence
    start = "no-information share" if e.unit == "probability" else "logit without words"
    return f"{start} {e.baseline:.4f} + evidence {e.values.sum():+.4f} = {LABELS[e.target]} {e.score:.4f}"


def answer_html(view: View) -> str:
    """The answer, each class's probability and no-information share, and how the evidence adds up."""
    e, deleted = view.evidence, view.subject.deleted
    shares = e.unit == "probability"
    rows = []
    for c, name in enumerate(LABELS):
        p, b = float(e.probabilities[c]), float(e.baselines[c])
        line = f'<div title="no-information share" style="position:absolute;left:{160 * b:.0f}px;top:-2px;width:2px;height:1.1em;background:currentColor"></div>'
        bar = f'<div style="background:{figures.LABEL_COLOURS[name]};height:0.9em;width:{160 * p:.0f}px"></div>{line if shares else ""}'
        text = f"<strong>{name}</strong>" if c == view.answer else name
        rows.append(
            f'<tr><th scope="row" style="text-align:left;font-weight:normal">{text}</th><td class="bornlib-p">{p:.3f}</td>'
            f'<td style="width:165px"><div style="position:relative">{bar}</div></td><td>{b:.2g}</td></tr>'
        )
    start = "no-information share" if shares else "logit without words"
    head = f'<tr><th scope="col">class</th><th scope="col">probability</th><th></th><th scope="col">{start}</th></tr>'
    bound = "" if math.isnan(e.error_bound) else f", each word's error below {e.error_bound:.0e}"
    words = ", ".join(f"<del>{html.escape(view.full.tokens[s])}</del>" for s in deleted)
    before = LABELS[int(np.argmax(view.whole))]
    verdict = "the answer is the same" if before == LABELS[view.answer] else "<strong>the answer has changed</strong>"
    history = (
        f"<p>without {words}: {before} {view.whole.max():.3f} → {LABELS[view.answer]} {e.probabilities.max():.3f}, {verdict}</p>"
        if deleted
        else ""
    )
    return (
        f"<p>answer: <strong>{LABELS[view.answer]}</strong>{_gold(view)}</p>{history}"
        f'<table><caption style="position:absolute;left:-9999px">class probabilities</caption>{head}{"".join(rows)}</table>'
        f'<p class="bornlib-check">{check_text(view)}'
        f"<br><small>gap {e.gap:.0e} with {e.nodes} nodes{bound}</small></p>{_notes(view)}"
    )


def _gold(view: View) -> str:
    label = view.subject.label
    if label is None:
        return ""
    if view.subject.deleted:
        return f" (label of the whole pair: {LABELS[label]})"
    return f" (label: {LABELS[label]}, {'right' if label == view.answer else '<strong>wrong</strong>'})"


def _notes(view: View) -> str:
    """What a reader should know before believing: unknown words, cut words, what a ranking is about."""
    out = []
    unknown = [view.full.tokens[i] for i in np.flatnonzero(~view.full.known)]
    if unknown:
        out.append(f"Not in the vocabulary, and so all alike to the model: {html.escape(', '.join(dict.fromkeys(unknown)))}.")
    for side, words in zip(SIDES, view.cut_words, strict=True):
        if words:
            out.append(f"The last {len(words)} tokens of the {side} were cut: {html.escape(' '.join(words))}.")
    if view.about_answer:
        out.append("Rankings other than evidence are about the answer, whichever class is chosen.")
    if view.second is not None:
        out.append(f"Rank correlation of {view.choice.ranking} and {view.choice.second}: {_correlation(view)}.")
    return "".join(f"<p>{text}</p>" for text in out)


def _correlation(view: View) -> str:
    return "not defined" if math.isnan(view.correlation) else f"{view.correlation:+.2f}"


def curve_html(view: View) -> str:
    """The deletion curve as inline SVG: probability of the answer with the ranking's first words deleted, and with its last."""
    width, high, left, low = 260, 110, 30, 20
    depth = max(1, len(view.curves["first"]) - 1)
    place = lambda k, p: f"{left + (width - left - 8) * k / depth:.1f},{high - low - (high - low - 8) * p:.1f}"  # noqa: E731
    lines = ""
    for name, colour, dash in (("first", "#D55E00", ""), ("last", "#0072B2", "5 3")):
        points = " ".join(place(k, p) for k, p in enumerate(view.curves[name][:, view.answer]))
        lines += f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
    axis = f'<path d="M{left},8V{high - low}H{width - 8}" fill="none" stroke="currentColor" opacity="0.5"/>'
    ticks = "".join(
        f'<text x="{left - 4}" y="{float(place(0, p).split(",")[1]) + 4:.1f}" text-anchor="end" font-size="10" fill="currentColor">{p}</text>'
        for p in (0, 1)
    )
    ticks += "".join(
        f'<text x="{place(k, 0).split(",")[0]}" y="{high - 6}" text-anchor="middle" font-size="10" fill="currentColor">{k}</text>'
        for k in range(0, depth + 1, 1 if depth < 6 else 2)
    )
    label = f"deletion curve: probability of {LABELS[view.answer]} by number of words deleted"
    return (
        f'<figure style="margin:4px 0"><svg role="img" aria-label="{label}" width="{width}" height="{high}">{axis}{lines}{ticks}</svg>'
        f'<figcaption><small>P({LABELS[view.answer]}) by words deleted: <span style="border-bottom:2px solid #D55E00">first of {html.escape(view.choice.ranking)}</span>, '
        '<span style="border-bottom:2px dashed #0072B2">last</span></small></figcaption></figure>'
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


# ---------------------------------------------------------------------------------------------- page and figure
def model_name(view: View) -> str:
    """The chosen model in words."""
    name = view.choice.model
    return (
        f"{figures.MODEL_NAMES[name]}, seed {view.choice.seed}" if name in NAMES else name.replace("\\", "/").rsplit("/", 1)[-1]
    )


def page(views: Sequence[View]) -> str:
    """A self-contained HTML page about one pair, or some side by side on one colour scale; every text is escaped."""
    scale = scale_of(*(v.scores for v in views))
    parts = []
    for v in views:
        second = (
            f"<h3>{html.escape(v.choice.second)}</h3>{strip_html(v, v.second, v.choice.second)}" if v.second is not None else ""
        )
        parts.append(
            f'<section style="flex:1 1 26em"><h2>Evidence for {LABELS[v.evidence.target]}</h2><p>model: {html.escape(model_name(v))}. {html.escape(v.subject.origin)}</p>'
            f"{strip_html(v, scale=scale)}<p>{key_html(scale, unit_of(v))}</p>{second}{answer_html(v)}{curve_html(v)}</section>"
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>Evidence per word</title></head>\n'
        '<body style="font-family:sans-serif;max-width:76em;margin:2em auto;padding:0 1em">\n<h1>Evidence per word</h1>\n'
        f'<div style="display:flex;flex-wrap:wrap;gap:2em">{"".join(parts)}</div>\n</body></html>\n'
    )


def draw(views: Sequence[View], width: float = 8.0) -> plt.Figure:
    """The same as a figure: for each pair its words shaded by the first ranking (perhaps the second below), the probabilities, the curve."""
    scale, size = scale_of(*(v.scores for v in views)), 9
    rows = [_strips(v, scale) for v in views]
    lines = [[figures.word_layout(tokens, 72 * (width - 0.2), size)[1] for _, tokens, _, _, _ in strips] for strips in rows]
    heights = [sum(0.24 + 2.1 * n * size / 72 for n in counts) + 1.95 for counts in lines]
    total = sum(heights)
    with plt.rc_context():
        figures.use_style()
        figure = plt.figure(figsize=(width, total))
        figure.set_layout_engine("none")
        top = 0.0
        for v, strips, counts, height in zip(views, rows, lines, heights, strict=True):
            y = top
            for (title, tokens, values, marks, full), n in zip(strips, counts, strict=True):
                figure.text(0.1 / width, 1 - (y + 0.15) / total, title, fontsize=8.5, weight="bold", va="center")
                ax = figure.add_axes(
                    [0.1 / width, 1 - (y + 0.2 + 2.1 * n * size / 72) / total, 1 - 0.2 / width, 2.1 * n * size / 72 / total]
                )
                figures.draw_word_strip(ax, tokens, np.nan_to_num(values), [bool(m) for m in marks], full, np.isnan(values), size)
                y += 0.24 + 2.1 * n * size / 72
            _answer(figure.add_axes([0.95 / width, 1 - (y + 1.3) / total, 2.6 / width, 0.9 / total]), v)
            _curve(figure.add_axes([4.7 / width, 1 - (y + 1.3) / total, (width - 4.9) / width, 0.9 / total]), v)
            e = v.evidence
            check = f"{check_text(v)}  (gap {e.gap:.0e}, {e.nodes} nodes)"
            key = f"colour: {-scale:.3g} (blue, against) to +{scale:.3g} (red, for); dots: marked by an annotator; grey: deleted"
            for k, text in enumerate((check, key)):
                figure.text(0.1 / width, 1 - (y + 1.68 + 0.15 * k) / total, text, fontsize=7.5, va="center")
            top += height
        plt.close(figure)  # shown where it is returned, not a second time by the notebook
    return figure


def _strips(view: View, scale: float) -> list[tuple]:
    """Title, tokens, values, marks and scale of each strip of words."""
    title = f"answer {LABELS[view.answer]} (P = {view.evidence.probabilities.max():.3f}), {unit_of(view)}"
    tokens = [f"{t} (deleted)" if i in view.subject.deleted else t for i, t in enumerate(view.full.tokens)]
    out = [(title, tokens, view.scores, view.marks, scale)]
    if view.second is not None:
        title = f"{view.choice.second} (rank correlation {_correlation(view)})"
        out.append((title, tokens, view.second, view.marks, scale_of(view.second)))
    return out


def _answer(ax: plt.Axes, view: View) -> None:
    """Probabilities as bars, no-information shares as black ticks."""
    e = view.evidence
    ax.barh(range(3), e.probabilities, color=[figures.LABEL_COLOURS[n] for n in LABELS], height=0.65)
    for c, p in enumerate(e.probabilities):
        ax.text(p + 0.02, c, f"{p:.3f}", va="center", fontsize=7.5)
    if e.unit == "probability":
        ax.plot(e.baselines, range(3), "|", color=figures.INK, markersize=11, mew=1.4)
    ax.set_yticks(range(3), LABELS, fontsize=7.5)
    ax.set(xlim=(0, 1.2), ylim=(2.5, -0.5), xticks=(0, 0.5, 1))
    ax.set_title("Probabilities" + " (tick: without words)" * (e.unit == "probability"), fontsize=8)


def _curve(ax: plt.Axes, view: View) -> None:
    """The deletion curve of the first ranking."""
    for name, colour, style in (("first", "#D55E00", "o-"), ("last", "#0072B2", "s--")):
        ax.plot(view.curves[name][:, view.answer], style, color=colour, markersize=3, lw=1.2, label=f"{name} words")
    ax.set(ylim=(-0.03, 1.05))
    ax.set_xlabel("words deleted", fontsize=8)
    ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
    ax.set_title(f"P({LABELS[view.answer]}) without the ranking's …", fontsize=8)
    ax.legend(fontsize=7)
