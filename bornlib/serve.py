"""The explorer as a page of its own, by voila, on this machine only: `make explore`, `python -m bornlib explore`.

Nothing is loaded from elsewhere: voila's own template asks servers on the internet for icons and diagrams, which the explorer does not use.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

from . import explorer

TEMPLATE = """\
{%- extends 'lab/index.html.j2' -%}
{%- block notebook_css -%}
{%- set css = super() -%}
{%- for line in css.splitlines() if 'href="https://' not in line %}
{{ line | safe }}
{%- endfor %}
{%- endblock notebook_css -%}
{%- block html_head_js_mermaidjs -%}{%- endblock html_head_js_mermaidjs -%}
"""


def prepare(folder: Path, code: str) -> list[str]:
    """Write a notebook of one code cell and voila's template into a folder; the arguments with which voila serves it from there."""
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "title": "Evidence per word",
    }
    nbformat.write(notebook, folder / "explorer.ipynb")
    template = folder / "voila" / "templates" / "bornlib"
    template.mkdir(parents=True)
    (template / "index.html.j2").write_text(TEMPLATE, encoding="utf-8")
    (template / "conf.json").write_text(json.dumps({"base_template": "lab"}), encoding="utf-8")
    return [str(folder / "explorer.ipynb"), "--Voila.ip=127.0.0.1", "--VoilaConfiguration.template=bornlib"]


def explore_code(model: str, seed: int, profile: str | None, pairs: Path | None) -> str:
    """The cell behind the page."""
    pairs = None if pairs is None else str(pairs.resolve())
    model = str(Path(model).resolve()) if Path(model).is_file() else model
    return f"from bornlib import explorer\nexplorer.explore(model={model!r}, seed={seed}, profile={profile!r}, pairs={pairs!r})"


def free_port(first: int, tries: int = 50) -> int:
    """The first port from `first` on that nobody uses. ValueError where there is none."""
    if not 1 <= first <= 65535:
        raise ValueError(f"port: expected 1 to 65535, got {first}")
    for port in range(first, min(first + tries, 65536)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ValueError(f"port: expected a free one from {first} on, all {tries} are taken or not allowed")


def serve(
    model: str = "born",
    seed: int = 0,
    profile: str | None = None,
    pairs: Path | None = None,
    port: int = 8866,
    browser: bool = True,
    dark: bool = False,
) -> None:
    """Serve the explorer until it is stopped (Ctrl-C); opens a browser where there is one."""
    port = free_port(port)
    choice = explorer.Choice(model, seed)
    explorer.look(explorer.Subject.typed("", ""), choice, profile)  # what is wrong is said here, not on the page
    if pairs is not None:
        explorer.galleries(profile, pairs)["your pair"]()
    with tempfile.TemporaryDirectory(prefix="bornlib-") as folder:
        arguments = prepare(Path(folder), explore_code(model, seed, profile, pairs))
        os.environ["JUPYTER_PATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("JUPYTER_PATH")])])
        from voila.app import main

        print(f"The explorer is at http://127.0.0.1:{port}/  (Ctrl-C stops it)", flush=True)
        extra = [
            f"--port={port}",
            "--Voila.log_level=ERROR",
            "--Voila.open_browser=" + str(browser),
            "--VoilaConfiguration.theme=" + ("dark" if dark else "light"),
        ]
        main([*arguments, *extra])
