"""What every committed notebook keeps to; nbval executes them (`make test`)."""

import re

import nbformat
import pytest

from bornlib import regenerate
from bornlib.corpus import ROOT

NOTEBOOKS = regenerate.find()
LONGEST_CELL, HEAVIEST = 25, 3 << 20


def test_numbers_are_the_order_of_reading():
    assert [int(p.stem[:2]) for p in NOTEBOOKS] == list(range(1, len(NOTEBOOKS) + 1))
    assert len(NOTEBOOKS) >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
class TestNotebook:
    def test_opens_with_title_imports_and_parameters(self, path):
        cells = nbformat.read(path, 4).cells
        assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
        tagged = [c for c in cells if "parameters" in c.metadata.get("tags", [])]
        assert len(tagged) == 1
        assert "profile" in regenerate.parameters(path)

    def test_cells_are_short_and_explained(self, path):
        notebook = nbformat.read(path, 4)
        code = [c for c in notebook.cells if c.cell_type == "code"]
        lengths = [len([line for line in c.source.splitlines() if line.strip()]) for c in code]
        assert max(lengths) <= LONGEST_CELL
        assert len(notebook.cells) >= 2 * len(code), "at least as many cells of prose as of code"

    def test_committed_outputs_are_clean(self, path):
        notebook = nbformat.read(path, 4)
        outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
        assert any("image/png" in o.get("data", {}) for o in outputs), "executed, with figures"
        assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
        assert "widgets" not in notebook.metadata and "papermill" not in notebook.metadata
        text = path.read_text(encoding="utf-8")
        assert len(text) < HEAVIEST
        assert "widget-view" not in text
        assert not re.search(r"/home/|/Users/|C:\\\\|/wor[k]/|/roo[t]/", text) and str(ROOT) not in text
        assert not re.search(r"<[A-Za-z_.]+ at 0x[0-9a-f]+>|Axes: ", text), "reprs of objects"

    def test_cleaning_it_again_changes_nothing(self, path):
        notebook = nbformat.read(path, 4)
        assert nbformat.writes(regenerate.clean(notebook)) == nbformat.writes(notebook)
