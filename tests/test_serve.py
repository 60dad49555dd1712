"""The explorer as a page of its own: what is written for voila, which port is taken, and what is refused before anything is served."""

import socket
from pathlib import Path

import nbformat
import pytest

from bornlib import serve
from bornlib.cli import main


def test_a_taken_port_is_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert port < serve.free_port(port) <= port + 49
        with pytest.raises(ValueError, match=f"port: expected a free one from {port} on"):
            serve.free_port(port, tries=1)
    for wrong in (0, -1, 65536):
        with pytest.raises(ValueError, match=f"port: expected 1 to 65535, got {wrong}"):
            serve.free_port(wrong)


def test_the_page_is_one_cell_and_asks_nothing_of_other_machines(tmp_path):
    model = tmp_path / 'it\'s "mine".safetensors'
    model.write_bytes(b"")
    arguments = serve.prepare(tmp_path, serve.explore_code(str(model), 3, "quick", tmp_path / "a.csv"))
    (cell,) = nbformat.read(tmp_path / "explorer.ipynb", 4).cells
    called = {}
    exec(cell.source.replace("explorer.explore(", "called.update(").split("\n")[1], {"called": called})
    assert called == {"model": str(model), "seed": 3, "profile": "quick", "pairs": str(tmp_path / "a.csv")}
    assert arguments[0] == str(tmp_path / "explorer.ipynb") and "--Voila.ip=127.0.0.1" in arguments
    assert 'href="https://' in (tmp_path / "voila" / "templates" / "bornlib" / "index.html.j2").read_text(), (
        "lines with it are left out"
    )


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--model", "nothing"], "no such checkpoint"),
        (["--pairs", "nowhere.csv"], "nowhere.csv"),
        (["--port", "70000"], "port: expected 1 to 65535, got 70000"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["explore", "--no-browser", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_own_pairs_must_be_readable(capsys, tmp_path):
    Path(tmp_path / "mine.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    assert main(["explore", "--no-browser", "--pairs", str(tmp_path / "mine.csv")]) == 2
    assert "missing columns" in capsys.readouterr().err
