"""The batch run: what is run again and what is not, what a failure or a kill leaves, what is committed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from bornlib import corpus, regenerate
from bornlib.cli import main
from bornlib.corpus import ROOT


def notebook(path, *code, defaults="profile = None\npairs = 10\nrate = 0.5\nname = 'a'\nseeds = [0, 1]", markdown="# Title"):
    cells = [nbformat.v4.new_markdown_cell(markdown), nbformat.v4.new_code_cell(defaults, metadata={"tags": ["parameters"]})]
    cells += [nbformat.v4.new_code_cell(c) for c in code]
    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(made, path)
    return path


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder for notebooks and one for what they leave; profile quick."""
    monkeypatch.setattr(regenerate, "BUILD", tmp_path / "build")
    monkeypatch.setattr(regenerate, "NOTEBOOKS", tmp_path / "notebooks")
    (tmp_path / "notebooks").mkdir()
    return tmp_path


def output_text(project, name):
    cells = nbformat.read(project / "build" / "quick" / f"{name}.ipynb", 4).cells
    return "".join(o.get("text", "") for c in cells if c.cell_type == "code" for o in c.outputs)


# ---------------------------------------------------------------------------------------------- parameters
DEFAULTS = {"01_a": {"profile": None, "pairs": 10, "rate": 0.5, "name": "a", "seeds": [0, 1], "on": True}, "02_b": {"profile": None, "size": 3}}


@pytest.mark.parametrize(
    "text, value",
    [
        ("pairs=1000", 1000), ("pairs=-3", -3), ("rate=1e-3", 1e-3), ("rate=2", 2.0), ("name=1_000", "1_000"), ("name=1:30", "1:30"),
        ("name=yes", "yes"), ("name=010", "010"), ("name='7'", "7"), ("name=a=b", "a=b"), ("seeds=[2]", [2]), ("on=false", False),
    ],
)  # fmt: skip
def test_values_are_yaml_1_2(text, value):
    name = text.split("=")[0]
    got = regenerate.parse_assignments([text], DEFAULTS)["01_a"][name]
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    "texts, message",
    [
        (["pears=3"], "unknown parameter; the chosen notebooks have name, on, pairs, rate, seeds, size"),
        (["pairs=1_000"], "expected int as in the default 10, got '1_000'"), (["pairs=1.5"], "expected int"), (["pairs=true"], "expected int"),
        (["on=1"], "expected bool"), (["on=yes"], "expected bool"), (["rate=fast"], "expected float"), (["name=7"], "expected str"),
        (["seeds=3"], "expected list"), (["seeds=[a]"], "expected int"), (["pairs"], "expected NAME=VALUE"), (["=3"], "expected NAME=VALUE"),
        (["profile=quick"], "use --profile"), (["pairs=1", "pairs=2"], "given twice"), (["seeds=[0"], "not YAML"), (["pairs="], "expected int"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused(texts, message):
    with pytest.raises(ValueError) as caught:
        regenerate.parse_assignments(texts, DEFAULTS)
    assert message in str(caught.value)


def test_each_notebook_gets_the_parameters_it_has():
    assert regenerate.parse_assignments(["size=5", "pairs=1"], DEFAULTS) == {"01_a": {"pairs": 1}, "02_b": {"size": 5}}


def test_parameters_are_literals(tmp_path):
    path = notebook(tmp_path / "01_a.ipynb", defaults="size = 1 + len([])")
    with pytest.raises(ValueError, match=r"01_a.ipynb: expected `name = literal`.*got 'size = 1 \+ len"):
        regenerate.parameters(path)


def test_only_takes_beginnings_of_names(project):
    for name in ("02_b", "01_a", "draft"):
        notebook(project / "notebooks" / f"{name}.ipynb")
    assert [p.stem for p in regenerate.find()] == ["01_a", "02_b"]
    assert [p.stem for p in regenerate.find(["02"])] == ["02_b"]
    with pytest.raises(ValueError, match="only: expected the beginning of one of .*'01_a', '02_b'.*got '07'"):
        regenerate.find(["01", "07"])


# ---------------------------------------------------------------------------------------------- running
@pytest.fixture
def counted(project):
    """Runs count themselves in a file; the notebook shows its parameters, interpreter and profile."""
    log = project / "runs.log"
    code = f"import os, sys\nopen({str(log)!r}, 'a').write('run\\n')\nprint(pairs, seeds, sys.executable, os.environ['BORNLIB_PROFILE'])"
    notebook(project / "notebooks" / "01_a.ipynb", code, "import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    return lambda: log.read_text().count("run")


def test_a_finished_notebook_runs_again_only_when_an_input_changed(project, counted, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    (first,) = regenerate.reproduce("quick")
    assert first.error is None and first.seconds is not None and counted() == 1
    assert output_text(project, "01_a").split() == ["10", "[0,", "1]", sys.executable, "quick"]
    text = (project / "build" / "quick" / "01_a.ipynb").read_text()
    assert "image/png" in text, "figures are drawn into the notebook whatever MPLBACKEND says"
    assert "injected-parameters" not in text

    (second,) = regenerate.reproduce("quick")
    assert second.row()[1] == "unchanged" and counted() == 1
    regenerate.reproduce("quick", force=True)
    assert counted() == 2
    regenerate.reproduce("quick", assignments=["pairs=7"])
    assert counted() == 3 and output_text(project, "01_a").startswith("7 ")
    regenerate.reproduce("quick")
    assert counted() == 4, "another parameter's result is not taken for this one's"

    source = project / "notebooks" / "01_a.ipynb"
    executed = nbformat.read(project / "build" / "quick" / "01_a.ipynb", 4)
    nbformat.write(regenerate.clean(executed), source)
    regenerate.reproduce("quick")
    assert counted() == 4, "outputs in the source are no input"
    changed = nbformat.read(source, 4)
    changed.cells[0].source += " with more"
    nbformat.write(changed, source)
    regenerate.reproduce("quick")
    assert counted() == 5

    (project / "build" / "quick" / "01_a.ipynb").write_text("{}")
    regenerate.reproduce("quick")
    assert counted() == 6, "a damaged result is made again"


def test_a_module_or_data_file_is_an_input(tmp_path, monkeypatch):
    path = notebook(tmp_path / "01_a.ipynb")
    root = tmp_path / "root"
    for folder in ("bornlib", "data/checkpoints"):
        (root / folder).mkdir(parents=True)
    for name in ("bornlib/models.py", "bornlib/cli.py", "requirements.lock", "data/checkpoints/a.safetensors", "data/examples.csv"):
        (root / name).write_text("one")
    monkeypatch.setattr(regenerate, "ROOT", root)
    quick = regenerate.profiles.Profile("quick")
    before = regenerate.inputs(path, quick, {})
    assert before == regenerate.inputs(path, quick, {})
    for name in ("bornlib/models.py", "requirements.lock", "data/checkpoints/a.safetensors", "data/examples.csv"):
        (root / name).write_text("two")
        after = regenerate.inputs(path, quick, {})
        assert after != before, name
        before = after
    (root / "bornlib/cli.py").write_text("two")
    assert regenerate.inputs(path, quick, {}) == before
    assert regenerate.inputs(path, quick, {"pairs": 1}) != before


def test_a_failing_notebook_does_not_stop_the_others(project, capsys, monkeypatch):
    notebook(project / "notebooks" / "01_a.ipynb", "raise ValueError('no such <thing>')")
    notebook(project / "notebooks" / "02_b.ipynb", "import os\nos.kill(os.getpid(), 9)")
    notebook(project / "notebooks" / "03_c.ipynb", "print('fine')")
    assert main(["reproduce", "--profile", "quick"]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines()[-3:]] == [["01_a", "FAILED"], ["02_b", "FAILED"], ["03_c", "done"]]
    assert "01_a: In [2]: ValueError: no such <thing> (see " in err
    assert "02_b: " in err and "Traceback" not in err.split("01_a: In")[1]
    assert (project / "build" / "quick" / "01_a.failed.ipynb").is_file()
    assert main(["reproduce", "--profile", "quick", "--only", "03"]) == 0
    assert "unchanged" in capsys.readouterr().out


def test_nothing_runs_when_a_parameter_is_unknown(project, counted, capsys):
    assert main(["reproduce", "--profile", "quick", "-p", "pears=3"]) == 2
    assert capsys.readouterr().err.startswith("bornlib: -p pears: unknown parameter")
    assert not (project / "runs.log").exists()


def test_a_killed_run_is_never_taken_as_finished(project):
    marker = project / "started"
    notebook(project / "notebooks" / "01_a.ipynb", "print('first')", f"open({str(marker)!r}, 'w').close()\nimport time\ntime.sleep(60)")
    code = (
        "import sys, pathlib\nfrom bornlib import regenerate\nfolder = pathlib.Path(sys.argv[1])\n"
        "regenerate.BUILD, regenerate.NOTEBOOKS = folder / 'build', folder / 'notebooks'\nregenerate.reproduce('quick')"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(project)], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(1200):
            if marker.exists():
                break
            assert process.poll() is None
            time.sleep(0.1)
        assert marker.exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    left = {p.name for p in (project / "build" / "quick").iterdir()}
    assert "01_a.ipynb" not in left and "01_a.json" not in left
    notebook(project / "notebooks" / "01_a.ipynb", "print('first')")
    (result,) = regenerate.reproduce("quick")
    assert result.error is None and output_text(project, "01_a") == "first\n"


def test_two_runs_at_once_are_refused(project, counted):
    folder = project / "build" / "quick"
    folder.mkdir(parents=True)
    with regenerate.FileLock(folder / ".lock"), pytest.raises(ValueError, match="another run is going on"):
        regenerate.reproduce("quick")


def test_without_corpus_and_network_it_says_so_in_one_line(monkeypatch, capsys, tmp_path):
    def no_network(*_, **__):
        raise corpus.CorpusError("esnli_dev.csv: no connection")

    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    monkeypatch.delenv("BORNLIB_DATA", raising=False)
    monkeypatch.delenv("BORNLIB_PROFILE", raising=False)
    monkeypatch.setattr(corpus, "fetch", no_network)
    assert regenerate.choose_profile(None).name == "quick"
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and "no connection" in out and "quick" in out


# ---------------------------------------------------------------------------------------------- what is committed
def test_cleaning_keeps_results_and_drops_the_rest():
    new = nbformat.v4
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/plain": "FloatProgress()"}
    outputs = [
        new.new_output("stream", name="stderr", text="100%|####| 3/3"),
        new.new_output("stream", name="stdout", text=f"saved {ROOT}/figures/a.png\n"),
        new.new_output("display_data", data=widget),
        new.new_output("display_data", data={"image/png": "AAAA", "text/plain": "<Figure size 1x1 with 1 Axes>"}),
        new.new_output("execute_result", data={"text/plain": "<matplotlib.lines.Line2D at 0x7f00aa>"}, execution_count=9),
        new.new_output("execute_result", data={"text/html": f"<b>{Path.home()}/x</b>", "text/plain": "   a"}, execution_count=9),
    ]
    cell = new.new_code_cell("x", outputs=outputs, execution_count=9, metadata={"tags": ["parameters", "papermill-error-cell-tag"], "execution": {"iopub.status.busy": "1"}})
    made = new.new_notebook(cells=[cell], metadata={"widgets": {"a": 1}, "papermill": {"duration": 3}, "language_info": {"name": "python", "version": "3.11.7"}})
    cleaned = regenerate.clean(made)
    assert cleaned.cells[0].metadata == {"tags": ["parameters"]}
    kept = cleaned.cells[0].outputs
    assert [o.output_type for o in kept] == ["stream", "display_data", "execute_result"]
    assert kept[0].text == "saved figures/a.png\n"
    assert kept[1].data == {"image/png": "AAAA"}
    assert kept[2].data == {"text/html": "<b>~/x</b>", "text/plain": "   a"} and kept[2].execution_count == 1
    assert set(cleaned.metadata) == {"kernelspec", "language_info"} and cleaned.metadata.language_info == {"name": "python"}
    assert str(ROOT) not in json.dumps(cleaned)
    assert regenerate.clean(cleaned) == cleaned


def test_write_notebooks_copies_cleaned_outputs_back(project, counted):
    regenerate.reproduce("quick", write_notebooks=True)
    committed = nbformat.read(project / "notebooks" / "01_a.ipynb", 4)
    assert committed.cells[2].outputs[0].text.startswith("10 [0, 1]")
    assert "image/png" in committed.cells[3].outputs[0].data
    with pytest.raises(ValueError, match="--write-notebooks: expected no -p"):
        regenerate.reproduce("quick", assignments=["pairs=3"], write_notebooks=True)
