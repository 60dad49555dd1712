"""The explorer: what it computes, what it shows, and a person's use of it in a real browser."""

import csv
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from bornlib import corpus, explorer, faithfulness, minicorpus, models, training
from bornlib import explorer_html as render
from bornlib.corpus import LABELS, Pair, Vocabulary, encode
from bornlib.explorer_view import CURVE, Choice, Gallery, Subject, as_csv, galleries, look, record, ring

PREMISE, HYPOTHESIS = "A man plays guitar on stage.", "A woman is asleep."
NASTY = "<script>alert(1)</script> & \"x\" 'y' $a$"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoint files of small untrained models by kind: every identity holds for any weights."""
    folder = tmp_path_factory.mktemp("checkpoints")
    pairs = minicorpus.load_split("dev").pairs[:300]
    vocabulary = Vocabulary.from_pairs(pairs)
    for kind in ("born", "poly", "softmax"):
        model = models.build(kind, len(vocabulary), 3)
        training.save_checkpoint(
            folder / f"{kind}.safetensors", model, vocabulary, training.Recipe(kind, 3), {"train_pairs": 300, "epochs": []}
        )
    return {p.stem: p for p in folder.glob("*.safetensors")}


def choose(checkpoints, kind="born", **options):
    return Choice(str(checkpoints[kind]), **options)


def seen(checkpoints, kind="born", premise=PREMISE, hypothesis=HYPOTHESIS, deleted=(), **options):
    return look(Subject.typed(premise, hypothesis).without(deleted), choose(checkpoints, kind, **options))


def explained(checkpoints, kind="born", premise=PREMISE, hypothesis=HYPOTHESIS, **options):
    model, vocabulary, _ = explorer.open_model(str(checkpoints[kind]))
    return explorer.explain(model, encode(premise, hypothesis, vocabulary), **options)


class Reader(HTMLParser):
    """Tags and text of a page, as a browser reads them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


# ---------------------------------------------------------------------------------------------- what it computes
@pytest.mark.parametrize("kind", ["born", "poly", "softmax"])
def test_json_is_complete_and_adds_up(checkpoints, kind):
    evidence = explained(checkpoints, kind)
    record = json.loads(json.dumps(explorer.as_json(evidence), allow_nan=False))
    assert list(record) == ["answer", "class", "probabilities", "no_information_share", "words", "gap", "nodes", "error_bound"]
    assert [w["text"] for w in record["words"]] == [
        *"a man plays guitar on stage .".split(),
        "<sep>",
        *"a woman is asleep .".split(),
    ]
    assert [w["sentence"] for w in record["words"]] == ["premise"] * 7 + ["hypothesis"] * 6
    assert record["answer"] == record["class"] == max(record["probabilities"], key=record["probabilities"].get)
    assert sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-12)
    total = record["no_information_share"] + sum(w["evidence"] for w in record["words"])
    if kind == "born":
        assert total == pytest.approx(record["probabilities"][record["class"]], abs=1e-11)
    assert (record["error_bound"] is None) == (kind == "softmax")
    assert [w["known"] for w in record["words"]][7] is True  # <sep> is in every vocabulary


def test_another_class_can_be_explained(checkpoints):
    for c in range(3):
        evidence = explained(checkpoints, target=c)
        assert explorer.as_json(evidence)["class"] == LABELS[c]
        assert evidence.baseline + evidence.values.sum() == pytest.approx(evidence.probabilities[c], abs=1e-11)


def test_csv_reads_back_and_is_no_formula(checkpoints):
    evidence = explained(checkpoints, premise='=1+1 a, "b"', hypothesis="-x")
    rows = list(csv.DictReader(io.StringIO(as_csv(evidence))))
    assert len(rows) == len(evidence.values)
    assert not any(r["text"].startswith(("=", "+", "-", "@")) for r in rows)
    assert np.allclose([float(r["evidence"]) for r in rows], evidence.values, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------- the view: pure
def test_a_view_adds_up_with_words_deleted(checkpoints):
    view = seen(checkpoints, deleted=(3, 9))
    model, vocabulary, _ = explorer.open_model(str(checkpoints["born"]))
    fresh = explorer.explain(model, encode("A man plays on stage.", "A is asleep.", vocabulary))
    assert np.array_equal(np.flatnonzero(np.isnan(view.scores)), [3, 9])
    assert np.allclose(
        view.scores[~np.isnan(view.scores)], fresh.values, rtol=0, atol=1e-12
    )  # deletion re-encodes: positions shift
    assert view.evidence.baselines[view.evidence.target] + np.nansum(view.scores) == pytest.approx(
        view.evidence.probabilities.max(), abs=1e-11
    )
    assert np.allclose(view.whole, seen(checkpoints).evidence.probabilities, atol=1e-12)


@pytest.mark.parametrize("kind", ["born", "poly"])
def test_no_information_shares_are_the_scores_without_words(checkpoints, kind):
    shares = [seen(checkpoints, kind, target=c).evidence.baseline for c in range(3)]
    assert np.allclose(seen(checkpoints, kind).evidence.baselines, shares, rtol=1e-12)


@pytest.mark.parametrize("kind", ["born", "poly", "softmax"])
def test_every_ranking_is_that_of_the_library(checkpoints, kind):
    model, vocabulary, _ = explorer.open_model(str(checkpoints[kind]))
    encoded = encode(PREMISE, HYPOTHESIS, vocabulary)
    deletions = faithfulness.Deletions(model, [encoded])
    expected = faithfulness.rankings(model, deletions)
    for name in faithfulness.ranking_names(model):
        view = seen(checkpoints, kind, ranking=name, second=faithfulness.EVIDENCE)
        assert np.allclose(view.scores, expected[name][0], atol=1e-7), name
        words = np.flatnonzero(encoded.words)
        assert view.correlation == pytest.approx(faithfulness.rank_correlation(words, expected[name][0], expected["evidence"][0]))


def test_the_deletion_curve_deletes_in_the_rankings_order(checkpoints):
    view = seen(checkpoints, ranking=faithfulness.LEAVE_ONE_OUT)
    model, vocabulary, _ = explorer.open_model(str(checkpoints["born"]))
    assert len(view.curves["first"]) == len(view.curves["last"]) == min(CURVE, len(view.order)) + 1
    gone = []
    for k, slot in enumerate(view.order[:3], 1):
        gone.append(slot)
        tokens = [t for i, t in enumerate(view.full.tokens) if i not in gone]
        n = tokens.index("<sep>")
        p = model(*corpus.collate([encode(tokens[:n], tokens[n + 1 :], vocabulary)])).exp()[0].numpy()
        assert np.allclose(view.curves["first"][k], p, atol=1e-12)
    assert view.curves["first"][1, view.answer] == pytest.approx(
        min(seen(checkpoints, deleted=[s]).evidence.probabilities[view.answer] for s in view.order), abs=1e-6
    )
    assert view.curves["last"][1, view.answer] == pytest.approx(
        max(seen(checkpoints, deleted=[s]).evidence.probabilities[view.answer] for s in view.order), abs=1e-6
    )


def test_marks_say_which_annotators(checkpoints):
    marks = (((True, False), (False, True)), ((True, False), (True, False)), ((False, False), (False, False)))
    subject = Subject.of(Pair("Dogs run", "Cats sleep", 2, marks), "pair 7")
    view = look(subject, choose(checkpoints))
    assert view.marks == [(1, 2), (), (), (2,), (1,)]
    changed = look(subject.replaced(view.full, 0, "two wolves"), choose(checkpoints))
    assert changed.marks == [(), (), (), (), (2,), (1,)] and changed.subject.label is None


def test_replacing_keeps_what_was_deleted(checkpoints):
    view = seen(checkpoints, deleted=(3, 9))
    assert [view.full.tokens[s] for s in view.subject.deleted] == ["guitar", "woman"]
    wider = look(view.subject.replaced(view.full, 1, "tall old man"), choose(checkpoints))
    assert [wider.full.tokens[s] for s in wider.subject.deleted] == ["guitar", "woman"]
    assert wider.subject.texts == ("a tall old man plays guitar on stage .", "a woman is asleep .")
    assert look(view.subject.replaced(view.full, 3, "piano"), choose(checkpoints)).subject.deleted == (9,)
    for slot, text in ((7, "x"), (6, "x"), (99, "x")):
        with pytest.raises(ValueError, match="slot: expected a word"):
            view.subject.replaced(view.full, slot, text)
    with pytest.raises(ValueError, match="replacement: expected a word, got ' '"):
        view.subject.replaced(view.full, 0, " ")


def test_toggling_twice_is_nothing():
    subject = Subject.typed(PREMISE, HYPOTHESIS)
    assert subject.toggled(3).toggled(1).toggled(3).deleted == (1,)
    assert subject.toggled(3).toggled(3) == subject == subject.without([1, 2]).restored()
    assert subject.with_text(0, "A man  plays guitar on STAGE.") is subject, "spaces and capitals change nothing"
    assert subject.with_text(1, "Nobody").premise == subject.premise


@pytest.mark.parametrize(
    "options, said",
    [
        ({"deleted": (7,)}, "deleted"),
        ({"deleted": (40,)}, "deleted"),
        ({"ranking": "wisdom"}, "ranking"),
        ({"target": 3}, "targets"),
    ],
)
def test_bad_choices_are_refused(checkpoints, options, said):
    with pytest.raises(ValueError, match=f"{said}: expected"):
        seen(checkpoints, **options)


def test_what_was_cut_is_named(checkpoints):
    view = seen(checkpoints, premise=" ".join(f"w{i}" for i in range(80)), hypothesis="other words")
    assert view.full.cut == (80 - 61, 0)
    assert view.cut_words == (tuple(f"w{i}" for i in range(61, 80)), ())
    assert "w79" in render.answer_html(view) and "19 tokens of the premise were cut" in render.answer_html(view)


def test_the_record_is_plain_data(checkpoints):
    view = seen(checkpoints, deleted=(3,), second="attention")
    data = json.loads(json.dumps(record(view), allow_nan=False))
    assert [s["text"] for s in data["slots"] if s["deleted"]] == ["guitar"]
    assert [s["score"] for s in data["slots"]] == [None if np.isnan(v) else v for v in view.scores]
    assert (
        data["rank_correlation"] == pytest.approx(view.correlation)
        and data["deletion_curves"]["first"][0] == view.curves["first"][0].tolist()
    )
    assert {k: data[k] for k in explorer.as_json(view.evidence)} == explorer.as_json(view.evidence)


# ---------------------------------------------------------------------------------------------- stepping
def test_stepping_goes_around():
    matching = np.array([2, 5, 9])
    assert list(ring(matching, 5, 1)) == [9, 2, 5] and list(ring(matching, 5, -1)) == [2, 9, 5]
    assert (
        list(ring(matching, 4, 1)) == [5, 9, 2]
        and list(ring(matching, 99, 1)) == [2, 5, 9]
        and list(ring(matching[:0], 0, 1)) == []
    )


def test_pairs_are_found_by_label_word_and_mistake(checkpoints):
    gallery = galleries("quick")["our example"]()
    assert all(gallery.pairs[i].label == 1 for i in gallery.matching(1)) and len(gallery.matching(1)) == 12
    some = gallery.matching(None, "Man the")
    assert list(some) == [i for i, p in enumerate(gallery.pairs) if {"man", "the"} <= set(p.tokens[0] + p.tokens[1])]
    model, vocabulary, _ = explorer.open_model(str(checkpoints["born"]))
    every = gallery.matching()
    singly = [model(*corpus.collate([encode(p.premise, p.hypothesis, vocabulary)])).argmax() for p in gallery.pairs]
    wrong = [i for i, p in enumerate(gallery.pairs) if int(singly[i]) != p.label]
    found, at = [], -1
    while (
        at := gallery.find(every[every > at], ("born", model, vocabulary), batch=5) if (every > at).any() else None
    ) is not None:
        found.append(at)
    assert found == wrong and 0 < len(wrong) < 36
    assert gallery.find(every[:0]) is None
    assert gallery.subject(3).origin == "our example 3" and gallery.subject(3).label == gallery.pairs[3].label
    with pytest.raises(ValueError, match="index: expected 0 to 35, got 36"):
        gallery.subject(36)


def test_own_pairs_come_first(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("gold_label,Sentence1,Sentence2\nneutral,One dog.,Two dogs.\n", encoding="utf-8")
    made = galleries("quick", path)
    assert list(made) == ["your pair", "our example", "mini test pair"]
    assert made["your pair"]().subject(0).texts == ("One dog.", "Two dogs.")
    with pytest.raises(ValueError, match="pairs: expected at least one"):
        Gallery("your pair", [])


# ---------------------------------------------------------------------------------------------- what it shows
def test_page_escapes_what_was_typed(checkpoints):
    view = seen(checkpoints, premise=NASTY, second="rollout", deleted=(1,))
    text = explorer.page([view, view])
    reader = Reader(text)
    assert "script" not in reader.tags and "b" not in reader.tags and "img" not in reader.tags
    assert "<script>" not in text and "&lt;" in text
    for token in ("alert", "script", "$", "&", '"'):
        assert token in reader.text
    assert reader.tags.count("li") == 4 * len(view.full.tokens) and reader.tags.count("svg") == 2
    assert "http" not in text and "src=" not in text, "self-contained"


def test_colours_show_sign_and_can_be_read():
    def luminance(colour):
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        ]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    for value in [*np.linspace(-1, 1, 41), np.nan]:
        background, ink = render.colours(value, 1.0)
        a, b = sorted((luminance(background), luminance(ink)))
        assert (b + 0.05) / (a + 0.05) >= 4.5  # WCAG AA
        red, blue = int(background[1:3], 16), int(background[5:7], 16)
        assert (red > blue) == (value > 0.01) or not abs(value) > 0.01
    background, ink = render.colours(0.0, 0.0)
    assert luminance(background) > 0.98 and ink == "#000000"


def test_pairs_side_by_side_have_one_scale(checkpoints):
    a, b = seen(checkpoints), seen(checkpoints, premise="Dogs run", hypothesis="Cats sleep")
    largest = max(np.abs(a.scores).max(), np.abs(b.scores).max())
    assert render.scale_of(a.scores, b.scores) == largest
    assert explorer.page([a, b]).count(f"+{largest:.3g} for") == 2


@pytest.mark.parametrize("premise, hypothesis", [("", ""), ("...", "!"), (NASTY, ""), ("word " * 80, "other " * 3)])
def test_odd_pairs_are_shown(checkpoints, premise, hypothesis):
    view = seen(checkpoints, premise=premise, hypothesis=hypothesis, second="attention")
    assert np.isfinite(view.evidence.values).all()
    page = explorer.page([view])
    assert ("tokens of the premise were cut" in page) == (view.full.cut[0] > 0) == premise.startswith("word")
    explorer.draw([view]).canvas.draw()
    json.dumps(record(view), allow_nan=False)
    model, _, _ = explorer.open_model(str(checkpoints["born"]))
    table = Reader(render.rankings_html(model, view.full))
    assert ("table" in table.tags) == bool(view.full.words.any())


# ---------------------------------------------------------------------------------------------- the widgets
def buttons(panel):
    return {b.description: b for b in panel.words.children}


def shown(panel, button):
    """What the style sheet says about a button: its number, and whether it is struck through."""
    rule, after = (
        re.search(rf"\.bornlib-word\.bornlib-{button.model_id}{part}\{{(.*?)\}}", panel.key.value).group(1)
        for part in ("", "::after")
    )
    return re.search('content:" (.*)"', after).group(1), "line-through" in rule


@pytest.fixture
def explored(checkpoints):
    return explorer.Explorer(PREMISE, HYPOTHESIS, str(checkpoints["born"]), 0, "quick")


def test_deleting_and_bringing_back(explored):
    (panel,) = explored.panels
    before = panel.view.scores
    button = buttons(panel)["guitar"]
    button.click()
    assert button is panel.words.children[3], "the same button, so that the keyboard's focus stays"
    assert shown(panel, button) == ("deleted", True) and "bring back" in button.tooltip
    assert np.isnan(panel.view.scores[3]) and "<del>guitar</del>" in panel.answer.value
    buttons(panel)["<sep>"].click()
    buttons(panel)["."].click()
    assert panel.subject.deleted == (3,), "<sep> and punctuation stay"
    button.click()
    assert np.array_equal(panel.view.scores, before) and shown(panel, button) == (f"{before[3]:+.3f}", False)
    top = panel.view.order
    panel.first.click()
    assert panel.subject.deleted == (top[0],)
    panel.restore.click()
    panel.lowest.click()
    assert set(panel.subject.deleted) == set(top[-5:]) and not panel.restore.disabled
    panel.restore.click()
    assert panel.subject.deleted == () and panel.restore.disabled


def test_typing_and_replacing(explored):
    (panel,) = explored.panels
    buttons(panel)["guitar"].click()
    panel.texts[1].value = "A woman is awake now."
    assert panel.subject.deleted == () and "now" in "".join(buttons(panel)) and len(panel.words.children) == 14
    last = panel.words.children[-3:]
    panel.texts[0].value = "A man"
    assert len(panel.words.children) == 9 and panel.words.children[-3:] == last
    assert [b.description.split()[0] for b in panel.words.children] == panel.view.full.tokens
    for text in ("", "x x x", "man a man a", "a", "a man"):  # words that repeat, more and fewer of them
        panel.texts[0].value = text
        assert [b.description.split()[0] for b in panel.words.children] == panel.view.full.tokens
        assert [shown(panel, b)[0] for b in panel.words.children] == [f"{v:+.3f}" for v in panel.view.scores]
    panel.old.value = 1
    panel.new.value = "dog"
    assert panel.texts[0].value == "a dog" and panel.new.value == "" and panel.texts[1].value == "A woman is awake now."
    panel.new.value = "  "
    assert "replacement: expected a word" in explored.message.value


def test_choosing_class_rankings_and_a_second_pair(explored):
    (panel,) = explored.panels
    explored.target.value = "entailment"
    assert panel.view.evidence.target == 0
    explored.ranking.value, explored.second.value = "attention", "rollout"
    assert (panel.view.choice.ranking, panel.view.choice.second) == ("attention", "rollout") and "rollout" in panel.second.value
    assert "about the answer, whichever class" in panel.answer.value or panel.view.answer == 0
    explored.compare.value = True
    first, second = explored.panels
    second.texts[1].value = "Nobody sleeps"
    assert first.subject.texts[1] == HYPOTHESIS and second.view.full.tokens[-1] == "sleeps"
    assert len(explored.pairs.children) == 2 and explorer.page([p.view for p in explored.panels]).count("<section") == 2
    explored.compare.value = False
    assert len(explored.pairs.children) == 1
    explored.rank.click()
    assert "leave-one-out" in explored.rankings.value
    explored.export.click()
    assert all(f'download="evidence.{kind}"' in explored.links.value for kind in ("html", "png", "json", "csv"))
    explored.target.value = "neutral"
    assert explored.rankings.value == explored.links.value == "", "nothing of another view stays in sight"


def test_stepping_through_pairs(explored):
    (panel,) = explored.panels
    assert explored.next.disabled
    explored.source.value = "our example"
    assert panel.subject.origin == "our example 0" and not explored.next.disabled and "label:" in panel.answer.value
    explored.label.value = "neutral"
    explored.next.click()
    assert panel.subject.label == 1 and explored.index.value > 0
    explored.index.value = 7
    assert panel.subject.origin == "our example 7"
    explored.wrong.value = True
    explored.next.click()
    assert panel.view.answer != panel.subject.label == 1
    explored.random.click()
    assert panel.view.answer != panel.subject.label == 1
    explored.search.value = "zyzzyva"
    assert "no pair fits" in explored.message.value


def test_errors_are_shown_in_place(explored, tmp_path):
    broken = tmp_path / "broken<b>.safetensors"
    broken.write_bytes(b"not a checkpoint")
    explored.model.options = [*explored.model.options, ("broken", (str(broken), 0))]
    explored.model.value = (str(broken), 0)
    assert "not a readable safetensors file" in explored.message.value and "<b>" not in explored.message.value
    assert explored.export.disabled and not explored.panels[0].words.children, "nothing of another model stays in sight"
    explored.model.index = 0
    assert explored.message.value == "" and not explored.export.disabled and explored.panels[0].words.children


def test_another_model_has_other_rankings(explored, checkpoints):
    explored.model.options = [*explored.model.options, ("softmax", (str(checkpoints["softmax"]), 0))]
    explored.model.value = (str(checkpoints["softmax"]), 0)
    assert "gated integrated gradients" in explored.ranking.options
    explored.ranking.value = "gated integrated gradients"
    explored.model.index = 0
    assert explored.ranking.value == "evidence" and explored.message.value == ""
