"""The explorer: what it computes, what it shows, and a person's use of it in a real browser."""

import csv
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pytest

from bornlib import explorer, minicorpus, models, training
from bornlib.corpus import LABELS, Vocabulary, encode

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
        training.save_checkpoint(folder / f"{kind}.safetensors", model, vocabulary, training.Recipe(kind, 3), {"train_pairs": 300, "epochs": []})
    return {p.stem: p for p in folder.glob("*.safetensors")}


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
    assert [w["text"] for w in record["words"]] == [*"a man plays guitar on stage .".split(), "<sep>", *"a woman is asleep .".split()]
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
    evidence = explained(checkpoints, premise="=1+1 a, \"b\"", hypothesis="-x")
    rows = list(csv.DictReader(io.StringIO(explorer.as_csv(evidence))))
    assert len(rows) == len(evidence.values)
    assert not any(r["text"].startswith(("=", "+", "-", "@")) for r in rows)
    assert np.allclose([float(r["evidence"]) for r in rows], evidence.values, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------- what it shows
def test_page_escapes_what_was_typed(checkpoints):
    text = explorer.page(explained(checkpoints, premise=NASTY), model="<b>born")
    reader = Reader(text)
    assert "script" not in reader.tags and "b" not in reader.tags
    assert "<script>" not in text and "&lt;" in text
    for token in ("alert", "script", "$", "&", '"'):
        assert token in reader.text
    assert reader.tags.count("li") == len(explained(checkpoints, premise=NASTY).values)


def test_colours_show_sign_and_can_be_read():
    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    for value in np.linspace(-1, 1, 41):
        background, ink = explorer.colours(value, 1.0)
        a, b = sorted((luminance(background), luminance(ink)))
        assert (b + 0.05) / (a + 0.05) >= 4.5  # WCAG AA
        red, blue = int(background[1:3], 16), int(background[5:7], 16)
        assert (red > blue) == (value > 0.01) or abs(value) <= 0.01
    background, ink = explorer.colours(0.0, 0.0)
    assert luminance(background) > 0.98 and ink == "#000000"


@pytest.mark.parametrize("premise, hypothesis", [("", ""), ("...", "!"), (NASTY, ""), ("word " * 80, "other " * 3)])
def test_odd_pairs_are_shown(checkpoints, premise, hypothesis):
    evidence = explained(checkpoints, premise=premise, hypothesis=hypothesis)
    assert np.isfinite(evidence.values).all()
    page = explorer.page(evidence)
    assert ("tokens of the premise were cut" in page) == (evidence.encoded.cut[0] > 0) == premise.startswith("word")
    figure = explorer.draw(evidence)
    figure.canvas.draw()
    model, _, _ = explorer.open_model(str(checkpoints["born"]))
    table = Reader(explorer.rankings_html(model, evidence.encoded))
    assert ("table" in table.tags) == bool(evidence.encoded.words.any())


# ---------------------------------------------------------------------------------------------- the widget
def buttons(explored):
    return {b.description.rsplit(" ", 1)[0]: b for b in explored.words.children}


def test_deleting_undoing_and_choosing(checkpoints):
    explored = explorer.Explorer(PREMISE, HYPOTHESIS, str(checkpoints["born"]), 0, None)
    assert buttons(explored)["<sep>"].disabled and explored.undo.disabled
    before = explored.evidence.values
    name = next(n for n in buttons(explored) if n.startswith("guitar"))
    buttons(explored)[name].click()
    model, vocabulary, _ = explorer.open_model(str(checkpoints["born"]))
    fresh = explorer.explain(model, encode("A man plays on stage.", HYPOTHESIS, vocabulary))
    assert np.allclose(explored.evidence.values, fresh.values, atol=1e-12)  # deletion re-encodes: positions shift
    assert "<del>guitar</del>" in explored.first.value and not explored.undo.disabled
    explored.undo.click()
    assert np.array_equal(explored.evidence.values, before) and explored.first.value == ""
    explored.example.index = 5
    pair = list(explored.examples.values())[4]
    assert (explored.premise.value, explored.hypothesis.value) == (pair.premise, pair.hypothesis)
    explored.premise.value = "Something else."
    assert explored.example.value == explorer.OWN and explored.hypothesis.value == pair.hypothesis
    explored.export.click()
    assert all(f'download="evidence.{kind}"' in explored.links.value for kind in ("png", "csv", "json"))
    explored.rank.click()
    assert "leave-one-out" in explored.rankings.value
    explored.target.value = "entailment"
    assert explored.evidence.target == 0 and explored.rankings.value == ""


def test_errors_are_shown_in_place(checkpoints, tmp_path):
    broken = tmp_path / "broken<b>.safetensors"
    broken.write_bytes(b"not a checkpoint")
    explored = explorer.Explorer(PREMISE, HYPOTHESIS, str(checkpoints["born"]), 0, None)
    explored.model.options = [*explored.model.options, ("broken", (str(broken), 0))]
    explored.model.value = (str(broken), 0)
    assert "not a readable safetensors file" in explored.message.value and "<b>" not in explored.message.value
    assert explored.export.disabled and not explored.words.children, "nothing of another model stays in sight"
    explored.model.index = 0
    assert explored.message.value == "" and not explored.export.disabled and explored.words.children


# ---------------------------------------------------------------------------------------------- in a browser
CHROMIUM = Path("/usr/bin/chromium")


def wait_for(address, process, seconds=120):
    for _ in range(int(seconds * 4)):
        assert process.poll() is None, "voila has ended"
        try:
            return urllib.request.urlopen(address, timeout=5)
        except OSError:
            time.sleep(0.25)
    raise AssertionError(f"no answer from {address} in {seconds} s")


@pytest.fixture
def served(checkpoints, tmp_path):
    """Address of the explorer served by voila on this machine."""
    code = f"from bornlib import explorer\nexplorer.explore(model={str(checkpoints['born'])!r})"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(notebook, tmp_path / "explorer.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "voila", "explorer.ipynb", "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        yield f"http://127.0.0.1:{port}/", process
    finally:
        process.terminate()
        process.wait(20)


if CHROMIUM.exists():

    def test_a_person_explores_in_a_browser(served):
        from playwright.sync_api import expect, sync_playwright

        address, process = served
        arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
            page = browser.new_page(viewport={"width": 1000, "height": 800})
            page.set_default_timeout(120_000)
            expect.set_options(timeout=120_000)
            alerts = []
            page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
            wait_for(address, process)
            page.goto(address, timeout=180_000)
            answer = page.locator(".bornlib-answer")
            expect(answer).to_contain_text("no-information share")
            first = answer.inner_text()

            field = page.get_by_label("Premise")  # a label that belongs to its field
            field.fill("A dog sleeps <script>alert(1)</script> here")
            field.press("Enter")
            expect(page.get_by_role("button", name="dog")).to_be_visible()
            assert answer.inner_text() != first and not alerts

            typed = answer.inner_text()
            word = page.get_by_role("button", name="dog")
            word.focus()
            word.press("Enter")  # by keyboard
            expect(page.locator("del")).to_have_text("dog")
            expect(page.get_by_role("button", name="dog")).to_have_count(0)
            assert answer.inner_text() != typed
            expect(page.get_by_role("button", name="sleeps")).to_be_focused()

            page.get_by_role("button", name="Undo").click()
            expect(page.get_by_role("button", name="dog")).to_be_visible()
            expect(answer).to_have_text(typed, use_inner_text=True)

            page.get_by_role("button", name="Export").click()
            link = page.get_by_role("link", name="evidence.json")
            with page.expect_download() as download:
                link.click()
            record = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
            assert [w["text"] for w in record["words"]][:3] == ["a", "dog", "sleeps"]
            if os.environ.get("BORNLIB_SCREENSHOT"):
                page.screenshot(path=os.environ["BORNLIB_SCREENSHOT"], full_page=True)
            browser.close()
