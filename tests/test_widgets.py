"""Widgets on the model's parts: the numbers behind each figure, and that a handle changes the picture."""

import numpy as np
import pytest
import torch

from bornlib import evidence, models, overlaps, widgets
from bornlib.corpus import SEP_ID, Encoded


@pytest.fixture(scope="module")
def model():
    return models.build("born", 50, 2).double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def pair():
    tokens = "men play <sep> al$iens play".split()
    return Encoded(tokens, [5, 6, SEP_ID, 7, 6], [0, 0, 1, 1, 1])


def pictures(widget):
    return bytes(widget.children[1].value)


@pytest.mark.parametrize("block, head", [(0, 0), (1, 1)])
def test_attention_is_the_overlap_to_the_fourth_over_its_row_sum(model, pair, block, head):
    q, k = (x[head] for x in overlaps.queries_keys(model, pair, block))  # (n, 16) complex
    w = np.abs(np.einsum("im,jm->ij", q.conj(), k))
    squares, fourth, attention = widgets.attention_steps(model, pair, block, head)
    assert np.allclose(squares, w**2) and np.allclose(fourth, w**4)
    assert np.allclose(attention, w**4 / (w**4).sum(1, keepdims=True))


def test_the_path_ends_where_the_evidence_does(model, pair):
    path = widgets.walk_path(model, pair, target=1, points=2001)
    exact = evidence.word_evidence(model, [pair], [1], nodes="exact")[0]
    assert path.scores[-1] == pytest.approx(exact.probabilities) and path.scores[0, 1] == pytest.approx(exact.baseline)
    assert np.allclose(np.trapezoid(path.integrand, path.t, axis=0), exact.values, atol=2e-4)
    title = widgets.draw_path(path, 1.0).axes[1].get_title()
    assert title == ""  # the style puts titles left
    assert f"{exact.values.sum():+.3f} for neutral" in widgets.draw_path(path, 1.0).axes[1].get_title("left")
    assert "t = 0.00: +0.000" in widgets.draw_path(path, 0.0).axes[1].get_title("left")


def test_readings_are_those_of_single_runs(model, pair):
    settled = widgets.settle(model, pair, 30, repeats=6, seed=4)
    noise = overlaps.hadamard_noise(30, torch.Generator().manual_seed(4))
    exact = evidence.word_evidence(model, [pair])[0]
    read = overlaps.read_evidence(model, [exact] * 6, noise)
    words = np.flatnonzero(pair.words)
    tops = [words[np.argmax(e.values[words])] for e in read]
    assert settled.tops.tolist() == [tops.count(s) / 6 for s in range(5)]
    assert settled.answers.tolist() == [[int(e.probabilities.argmax()) for e in read].count(c) / 6 for c in range(3)]
    assert settled.exact.values == pytest.approx(exact.values) and settled.tops[2] == 0, "<sep> is never the top word"


def test_many_shots_give_the_exact_answer_and_few_do_not(model, pair):
    assert widgets.settle(model, pair, 10**9, repeats=4).right == (1.0, 1.0)
    few = widgets.settle(model, pair, 1, repeats=12)
    assert min(few.right) < 1 and few.tops.max() == 1, "one shot reads 1 or -1: every |w|^2 is 2 and all readings are alike"
    some = widgets.settle(model, pair, 8, repeats=12)
    assert np.array_equal(widgets.settle(model, pair, 8, repeats=12).tops, some.tops)
    assert not np.array_equal(widgets.settle(model, pair, 8, repeats=12, seed=1).tops, some.tops)


def test_handles_change_the_picture(model, pair):
    for widget, turn in (
        (widgets.attention_explorer(model, pair), lambda h: setattr(h[0], "value", 1)),
        (widgets.path_explorer(model, pair), lambda h: setattr(h[0], "value", 0.5)),
        (widgets.shots_explorer(widgets.settle_all(model, pair, (1, 10**6), repeats=3)), lambda h: setattr(h[0], "value", 0)),
    ):
        before = pictures(widget)
        assert before.startswith(b"\x89PNG")
        turn(widget.children[0].children)
        assert pictures(widget).startswith(b"\x89PNG") and pictures(widget) != before


def test_what_makes_no_sense_is_refused(model, pair):
    softmax = models.build("softmax", 50, 1).double().eval()
    path = widgets.walk_path(model, pair, points=5)
    cases = [
        (lambda: widgets.draw_attention(softmax, pair), "model: expected a Born Transformer, got 'softmax'"),
        (lambda: widgets.draw_attention(model, pair, 2), "block: expected 0 to 1, got 2"),
        (lambda: widgets.draw_attention(model, pair, 0, -1), "head: expected 0 to 1, got -1"),
        (lambda: widgets.draw_path(path, 1.5), "t: expected a number in 0 to 1, got 1.5"),
        (lambda: widgets.draw_path(path, 1.0, 0), "nodes: expected 1 to 324, got 0"),
        (lambda: widgets.walk_path(model, pair, points=1), "points: expected at least 2, got 1"),
        (lambda: widgets.walk_path(softmax, pair), "model: expected a polynomial one"),
        (lambda: widgets.settle(model, pair, 0), "shots: expected at least 1"),
        (lambda: widgets.settle(model, pair, 10, repeats=0), "repeats: expected at least 1, got 0"),
        (lambda: widgets.settle(model, Encoded(["<sep>"], [SEP_ID], [1]), 10), "encoded: expected a pair with a word"),
    ]
    for attempt, message in cases:
        with pytest.raises(ValueError, match=message):
            attempt()
