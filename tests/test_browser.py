"""A person's use of the explorer in a real browser: as a page by voila and in JupyterLab. Numbers on the page are the library's, and no other
machine is asked for anything.

Chromium is needed (Debian's package). With BORNLIB_SCREENSHOTS set to a folder, a picture of each state is left there.
"""

import contextlib
import json
import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from browser import CHROMIUM, PATIENCE, opened, serving
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from bornlib import explorer_html, serve
from bornlib.corpus import LABELS, load_examples
from bornlib.explorer_view import Choice, Subject, look, record

PREMISE, HYPOTHESIS = "A dog sleeps <script>alert(1)</script> $x$ here", "A woman is asleep."
PICTURES = os.environ.get("BORNLIB_SCREENSHOTS")


class Person:
    """What a person does on the page, and what then must be there; `checkpoint` is the page's model."""

    def __init__(self, page, checkpoint: Path, name: str):
        from playwright.sync_api import expect

        self.page, self.model, self.name, self.expect = page, str(checkpoint), name, expect
        self.states = 0

    def sees(self, subject: Subject, **choice):
        """The page shows the library's numbers for this pair and choice."""
        view = look(subject, Choice(self.model, **choice))
        page, expect = self.page, self.expect
        expect(page.locator(".bornlib-check")).to_contain_text(explorer_html.check_text(view))
        expect(page.locator(".bornlib-p")).to_have_text([f"{p:.3f}" for p in view.evidence.probabilities])
        expect(page.locator(".bornlib-answer")).to_contain_text(f"answer: {LABELS[view.answer]}")
        expect(page.locator(".bornlib-key")).to_contain_text(f"+{explorer_html.scale_of(view.scores):.3g} for")
        for slot in (0, len(view.full.ids) - 1, int(np.nanargmax(np.abs(view.scores)))):
            text = f"{view.full.tokens[slot]}{explorer_html.mark_digits(view.marks[slot])}"
            note = "" if view.full.known[slot] else " (unknown)"
            expect(
                page.get_by_role("button", name=f"{text}{note} {explorer_html.number(view.scores[slot])}", exact=True).first
            ).to_be_visible()
        self.states += 1
        if PICTURES:
            page.screenshot(path=Path(PICTURES) / f"{self.name}-{self.states}.png")
        return view

    def types_and_deletes(self) -> Subject:
        """Types a pair with markup in it, deletes a word by mouse and the next by keyboard, brings them back; returns the pair."""
        page, expect = self.page, self.expect
        self.sees(Subject.typed("A man plays guitar on stage.", HYPOTHESIS))
        page.get_by_label("Premise").fill(PREMISE)
        subject = Subject.typed(PREMISE, HYPOTHESIS)
        self.sees(subject)
        word = page.get_by_role("button", name="dog")
        word.click()
        expect(word).to_have_accessible_name("dog deleted")
        expect(word).to_have_css("text-decoration-line", "line-through")
        expect(word).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        self.sees(subject.toggled(1).toggled(2))
        page.get_by_role("button", name="Restore all").click()
        return subject

    def chooses(self, subject: Subject) -> tuple[Subject, dict]:
        """Switches class and rankings, deletes the top word; returns what is seen then."""
        page, expect = self.page, self.expect
        page.get_by_label("Explain").select_option("neutral")
        self.sees(subject, target=1)
        page.get_by_label("Shade by").select_option("attention")
        page.get_by_label("Beside it").select_option("leave-one-out")
        choice = {"target": 1, "ranking": "attention", "second": "leave-one-out"}
        view = self.sees(subject, **choice)
        expect(page.get_by_text(f"Rank correlation of attention and leave-one-out: {view.correlation:+.2f}")).to_be_visible()
        page.get_by_role("button", name="Delete the top word").click()
        subject = subject.without(view.order[:1])
        self.sees(subject, **choice)
        return subject, choice

    def steps_and_compares(self, choice: dict) -> None:
        page, expect = self.page, self.expect
        page.get_by_label("Pairs").select_option("our example")
        page.get_by_role("button", name="Next", exact=True).click()
        self.sees(Subject.of(load_examples()[1], "our example 1"), **choice)
        page.get_by_role("button", name="Compare two pairs").click()
        expect(page.get_by_label("Premise")).to_have_count(2)
        expect(page.locator(".bornlib-check")).to_have_count(2)

    def exports(self, subject: Subject, **choice) -> None:
        page = self.page
        page.get_by_role("button", name="Export").click()
        files = {}
        for kind in ("html", "png", "json", "csv"):
            with page.expect_download() as download:
                page.get_by_role("link", name=f"evidence.{kind}").click()
            files[kind] = Path(download.value.path()).read_bytes()
        view = look(subject, Choice(self.model, **choice))
        ours, theirs = (json.loads(text) for text in (json.dumps(record(view)), files["json"]))
        for key in ("slots", "probabilities", "words", "deletion_curves"):
            assert flat(theirs[key]) == pytest.approx(flat(ours[key]), abs=1e-12), key
        assert files["png"].startswith(b"\x89PNG") and len(files["csv"].splitlines()) == len(view.evidence.values) + 1
        assert b"<script" not in files["html"] and explorer_html.check_text(view).encode() in files["html"]


def flat(data) -> list:
    """The numbers of plain data, in order; None as -1."""
    if isinstance(data, dict):
        return [x for v in data.values() for x in flat(v)]
    if isinstance(data, list):
        return [x for v in data for x in flat(v)]
    return [-1.0 if data is None else float(data)] if data is None or isinstance(data, int | float) else []


if CHROMIUM.exists():

    def test_on_a_page_by_voila(checkpoint, tmp_path):
        port = serve.free_port(18866)
        arguments = ["bornlib", "explore", "--no-browser", f"--port={port}", f"--model={checkpoint}", "--profile=quick"]
        with serving(arguments, f"http://127.0.0.1:{port}/", tmp_path) as address, opened() as page:
            page.goto(address)
            person = Person(page, checkpoint, "voila")
            subject, choice = person.chooses(person.types_and_deletes())
            person.exports(subject, **choice)
            person.steps_and_compares(choice)
            assert not page.errors and not page.outside

    def test_in_jupyterlab(checkpoint, tmp_path):
        port = serve.free_port(18966)
        code = serve.explore_code(str(checkpoint), 0, "quick", None)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
        notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(notebook, tmp_path / "explorer.ipynb")
        folders = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
        news = tmp_path / "CONFIG" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
        news.parent.mkdir(parents=True)
        news.write_text('{"fetchNews": "false"}', encoding="utf-8")  # its question may pop up at any moment and take the focus
        arguments = [
            "jupyter",
            "lab",
            "--no-browser",
            f"--port={port}",
            "--ip=127.0.0.1",
            "--allow-root",
            "--IdentityProvider.token=",
        ]
        arguments += ["--LabApp.extension_manager=readonly", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
        with (
            serving(arguments, f"http://127.0.0.1:{port}/lab/tree/explorer.ipynb", tmp_path, **folders) as address,
            opened(height=1300) as page,
        ):
            page.goto(address)
            cell = page.locator(".jp-CodeCell .cm-content").first
            cell.click()
            page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
            prompt = page.locator(".jp-CodeCell .jp-InputPrompt").first
            for _ in range(PATIENCE // 10):  # a page that is still settling may miss the keys: a person presses them again
                cell.press("Shift+Enter")
                with contextlib.suppress(PlaywrightTimeout):
                    prompt.filter(has_text=re.compile(r"[*\d]")).wait_for(timeout=10_000)
                    break
            person = Person(page, checkpoint, "lab")
            subject, choice = person.chooses(person.types_and_deletes())
            person.exports(subject, **choice)
            assert not page.errors and not page.outside
