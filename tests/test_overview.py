"""Figure 1: what it says is what the model and the ledger say."""

import numpy as np
import pytest

from bornlib import models, overlaps, overview_figure
from bornlib.corpus import ROOT, SEP_ID, Encoded, encode
from bornlib.explorer_view import open_model
from bornlib.ledger import Ledger, LedgerError, open_ledger

SETTINGS = {"backend": "fake_kingston", "kind": "noise model", "shots": 2000}
LEDGER = ROOT / "data" / "ledger" / "fake_kingston.json"


@pytest.fixture(scope="module")
def model():
    return models.build("born", 50, 2).double().eval().requires_grad_(False)


@pytest.fixture
def pair():
    return Encoded("me$n play <sep> aliens play$".split(), [5, 6, SEP_ID, 7, 6], [0, 0, 1, 1, 1])


@pytest.fixture
def shots(monkeypatch):
    """Readings at 2,000 shots and nothing else, in place of the ledger's."""
    rng = np.random.default_rng(0)

    def run_tests(tests, *_):
        zeros = rng.binomial(2000, (1 + np.array([t.ideal for t in tests])) / 2)
        return np.stack([zeros, 2000 - zeros], -1)

    monkeypatch.setattr(overlaps, "run_tests", run_tests)


def texts(figure):
    return "\n".join([t.get_text() for ax in figure.axes for t in ax.texts] + [ax.get_title() for ax in figure.axes])


def test_the_figure_says_what_was_computed(model, pair, shots, tmp_path):
    overview = overview_figure.collect(model, pair, Ledger(tmp_path / "none.json", SETTINGS, []))
    e = overview.walk.evidence
    words = [0, 1, 3, 4]
    assert overview.first == max(words, key=lambda s: e.values[s])
    assert overview.less.encoded.tokens == [t for s, t in enumerate(pair.tokens) if s != overview.first]
    assert np.allclose(overview.exact[0], e.probabilities, atol=1e-12) and np.allclose(overview.read, overview.exact, atol=0.05)
    q = overlaps.queries_keys(model, pair, 0)[0][0, 1 + overview.first]
    assert np.allclose(overview.query, q / np.linalg.norm(q))
    said = texts(overview_figure.draw_overview(overview, [True, False, False, True, False]))
    ideal, read, r = overview_figure.overlap_fit(overview.whole)
    assert r == pytest.approx(np.corrcoef(ideal, read)[0, 1]) and 0.98 < r < 1 and len(ideal) == 2 * 2 * 2 * 6**2
    for text in (
        f"r = {r:.3f}",
        f"sum {e.values.sum():.4f} = P − b",
        f"P {e.score:.4f}",
        f"{e.values[3]:+.3f}",
        "2 × 156 circuits of 2,000 shots",
        "noise model of ibm_kingston",
    ):
        assert text in said, text
    for c in range(3):
        assert f" {e.probabilities[c]:.3f}" in said
    assert "me\\$n" in said, "a dollar sign is no mathematics"


def test_two_drawings_are_alike(model, pair, shots, tmp_path):
    overview = overview_figure.collect(model, pair, Ledger(tmp_path / "none.json", SETTINGS, []))
    for name in "ab":
        overview_figure.draw_overview(overview).savefig(tmp_path / f"{name}.png", metadata={"Software": None})
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_what_the_ledger_lacks_is_said(model, pair, tmp_path):
    with pytest.raises(LedgerError, match="circuits are not in it"):
        overview_figure.collect(model, pair, Ledger(tmp_path / "none.json", SETTINGS, []))


if LEDGER.is_file():

    def test_the_shipped_ledger_holds_the_papers_pair():
        model, vocabulary, _ = open_model()
        overview = overview_figure.collect(model, encode("Men play hockey .", "Aliens play", vocabulary), open_ledger(LEDGER))
        assert overview.walk.encoded.tokens[overview.first] == "aliens" and [len(t) for t in overview.whole.tests] == [272, 272]
        assert overview.exact.argmax(1).tolist() == overview.read.argmax(1).tolist() == [2, 0], (
            "without “aliens” the answer turns to entailment"
        )
