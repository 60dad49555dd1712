"""Executes the notebooks in order: every figure and table comes from here, and only what has changed is run again."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

import nbformat
import yaml
from filelock import FileLock, Timeout

from . import corpus, profiles
from .corpus import ROOT
from .training import atomic_write

NOTEBOOKS = ROOT / "notebooks"
BUILD = ROOT / "build"
NOT_INPUTS = ("__main__.py", "cli.py", "regenerate.py")  # modules that no notebook imports
STAMP_FORMAT = 1


# ---------------------------------------------------------------------------------------------- notebooks and parameters
def find(only: list[str] | None = None, folder: Path | None = None) -> list[Path]:
    """The notebooks in number order; `only` keeps those whose name begins with one of its entries ("03")."""
    folder = NOTEBOOKS if folder is None else folder
    paths = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    for prefix in only or ():
        if not prefix or not any(p.stem.startswith(prefix) for p in paths):
            raise ValueError(f"only: expected the beginning of one of {[p.stem for p in paths]}, got {prefix!r}")
    return [p for p in paths if not only or any(p.stem.startswith(prefix) for prefix in only)]


def parameters(path: Path) -> dict[str, object]:
    """Names and defaults from the cell tagged `parameters`. ValueError for a cell with anything but literals."""
    notebook = nbformat.read(path, 4)
    out: dict[str, object] = {}
    for cell in notebook.cells:
        if cell.cell_type != "code" or "parameters" not in cell.metadata.get("tags", []):
            continue
        for node in ast.parse(cell.source).body:
            try:
                (target,) = node.targets  # type: ignore[attr-defined]
                out[target.id] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            except (AttributeError, ValueError) as error:
                raise ValueError(f"{path.name}: expected `name = literal` in the parameters cell, got {ast.unparse(node)!r}") from error
    return out


class _Yaml12(yaml.SafeLoader):
    """YAML 1.2's scalars: 1_000, 1:30, 010, yes and on are what they look like, not 1000, 90, 8 and true."""

    yaml_implicit_resolvers: dict = {}


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def parse_assignments(assignments: list[str], notebooks: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """Values of `name=value` (YAML 1.2) for each notebook that has the parameter.

    Refused with a ValueError before anything runs: a name that no chosen notebook has, a value of another type
    than the default's, a name given twice, and `profile`, which has an option of its own.
    """
    out: dict[str, dict[str, object]] = {name: {} for name in notebooks}
    seen = set()
    for text in assignments:
        name, equals, value_text = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise ValueError(f"-p: expected NAME=VALUE, got {text!r}")
        if name == "profile":
            raise ValueError("-p profile: use --profile")
        if name in seen:
            raise ValueError(f"-p {name}: given twice")
        seen.add(name)
        having = [n for n, defaults in notebooks.items() if name in defaults]
        if not having:
            known = sorted({k for defaults in notebooks.values() for k in defaults} - {"profile"})
            raise ValueError(f"-p {name}: unknown parameter; the chosen notebooks have {', '.join(known) or 'none'}")
        try:
            value = yaml.load(value_text, _Yaml12)
        except yaml.YAMLError as error:
            raise ValueError(f"-p {name}: not YAML: {value_text!r}") from error
        for notebook in having:
            out[notebook][name] = _as_default(name, value, notebooks[notebook][name], value_text)
    return out


def _as_default(name: str, value, default, text: str):
    """The value, if it has the default's type (a whole number may stand for a float, a list for a tuple)."""
    if default is None:
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, tuple):
        default = list(default)
    if type(value) is not type(default):
        raise ValueError(f"-p {name}: expected {type(default).__name__} as in the default {default!r}, got {text!r}")
    if isinstance(default, list) and default:
        return [_as_default(name, v, default[0], text) for v in value]
    return value


# ---------------------------------------------------------------------------------------------- what has changed
def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def inputs(path: Path, workspace: profiles.Profile, values: dict[str, object]) -> str:
    """A digest of all that a notebook's results depend on.

    The code and markdown of its cells (not their outputs), the modules, parameters, profile, package versions,
    the repository's data and checkpoints by content, and e-SNLI's large files by size and time of change.
    """
    notebook = nbformat.read(path, 4)
    source = [(c.cell_type, c.source, c.metadata.get("tags", [])) for c in notebook.cells]
    files = {p.name: _digest(p) for p in sorted((ROOT / "bornlib").glob("*.py")) if p.name not in NOT_INPUTS}
    files["requirements.lock"] = _digest(ROOT / "requirements.lock")
    for folder in ("paper", "checkpoints", "training", "ledger"):
        files |= {str(p.relative_to(ROOT)): _digest(p) for p in sorted((ROOT / "data" / folder).rglob("*")) if p.is_file()}
    files |= {p.name: _digest(p) for p in sorted((ROOT / "data").glob("*.*")) if p.is_file()}
    if workspace.name != "quick":
        folder = corpus.data_folder()
        swapped = corpus.breaking_nli_path()
        large = [*(sorted(folder.glob("*.csv")) if folder else ()), *([swapped] if swapped else ())]
        files |= {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in large}
    if workspace.name == "paper":
        files |= {p.name: _digest(p) for p in sorted(workspace.checkpoints.glob("*.safetensors"))}
    text = json.dumps([STAMP_FORMAT, source, files, values, workspace.name, sys.version_info[:2]], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass
class Result:
    """How one notebook ended: `error` is None where it ran, `seconds` None where nothing had changed."""

    name: str
    seconds: float | None = None
    written: list[str] = dataclasses.field(default_factory=list)
    error: str | None = None

    def row(self) -> tuple[str, str, str, str]:
        """Name, result, time, number of files written: a row of the closing table."""
        state = "FAILED" if self.error else "unchanged" if self.seconds is None else "done"
        time_text = "" if self.seconds is None else f"{self.seconds:.0f} s"
        return self.name, state, time_text, f"{len(self.written)} files" if self.written else ""


def _fresh(output: Path, stamp: Path, digest: str) -> list[str] | None:
    """The files that the finished run wrote, or None where it has to run (again)."""
    if not (output.is_file() and stamp.is_file()):
        return None
    try:
        record = json.loads(stamp.read_text(encoding="utf-8"))
        done = record["inputs"] == digest and record["output"] == _digest(output)
        return record["written"] if done and all((ROOT / name).is_file() for name in record["written"]) else None
    except (json.JSONDecodeError, KeyError, TypeError):
        return None  # a stamp of another version: run again


# ---------------------------------------------------------------------------------------------- running
@contextlib.contextmanager
def kernel(profile: str, folder: Path):
    """For the time of a run `python3` is this very interpreter, and figures are drawn into the notebook.

    A kernel of that name that is registered elsewhere, or MPLBACKEND, would otherwise decide both.
    """
    spec = folder / "jupyter" / "kernels" / "python3" / "kernel.json"
    environment = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "BORNLIB_PROFILE": profile}
    argv = [sys.executable, "-m", "ipykernel_launcher", "--log-level=ERROR", "-f", "{connection_file}"]
    content = {"argv": argv, "display_name": "Python 3", "language": "python", "env": environment}
    atomic_write(spec, lambda p: p.write_text(json.dumps(content), encoding="utf-8"))
    before = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_PATH"] = os.pathsep.join([str(spec.parents[2]), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["JUPYTER_PATH"]
        else:
            os.environ["JUPYTER_PATH"] = before


def choose_profile(name: str | None) -> profiles.Profile:
    """As `profiles.resolve`, but `auto` first tries to download e-SNLI where it is not there."""
    wanted = name or os.environ.get("BORNLIB_PROFILE") or "auto"
    if wanted == "auto" and corpus.data_folder() is None:
        try:
            corpus.fetch()
        except (corpus.CorpusError, OSError) as error:
            print(f"e-SNLI is not here and can't be downloaded ({' '.join(str(error).split())}): profile quick on the mini corpus")
            wanted = "quick"
    return profiles.resolve(wanted)


def reproduce(
    profile: str | None = None,
    only: list[str] | None = None,
    force: bool = False,
    assignments: list[str] = (),
    write_notebooks: bool = False,
    notebooks: Path | None = None,
) -> list[Result]:
    """Execute the notebooks through papermill into `build/PROFILE`; returns one Result a notebook.

    A notebook whose inputs have not changed since it finished is left alone, unless `force`; one that fails
    does not stop the others. `write_notebooks` copies the cleaned outputs back into `notebooks/`.
    Raises ValueError for an unknown notebook or parameter, before anything runs.
    """
    paths = find(only, notebooks)
    if not paths:
        raise ValueError(f"no notebooks in {notebooks or NOTEBOOKS}")
    values = parse_assignments(list(assignments), {p.name: parameters(p) for p in paths})
    if write_notebooks and assignments:
        raise ValueError("--write-notebooks: expected no -p, the committed notebooks show the defaults")
    workspace = choose_profile(profile)
    folder = BUILD / workspace.name
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    try:
        with FileLock(folder / ".lock", timeout=0), kernel(workspace.name, folder):
            for path in paths:
                results.append(_run(path, workspace, folder, values[path.name], force))
                if write_notebooks and not results[-1].error:
                    executed = clean(nbformat.read(folder / path.name, 4))
                    atomic_write(path, lambda p, n=executed: nbformat.write(n, p))
    except Timeout as error:
        raise ValueError(f"another run is going on in {folder}") from error
    return results


def _run(path: Path, workspace: profiles.Profile, folder: Path, values: dict[str, object], force: bool) -> Result:
    import papermill

    output, stamp = folder / path.name, folder / f"{path.stem}.json"
    partial, failed = folder / f".{path.stem}.partial.ipynb", folder / f"{path.stem}.failed.ipynb"
    digest = inputs(path, workspace, values)
    written = None if force else _fresh(output, stamp, digest)
    if written is not None:
        return Result(path.stem, None, written)
    stamp.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    started, clock = time.time_ns(), time.monotonic()
    result = Result(path.stem)
    try:
        papermill.execute_notebook(
            str(path), str(partial), parameters=values, kernel_name="python3", cwd=str(path.parent), progress_bar={"desc": path.stem},
        )  # fmt: skip
    except (papermill.PapermillExecutionError, RuntimeError) as error:  # RuntimeError: a kernel that died
        cell = f"In [{error.exec_count}]: " if isinstance(error, papermill.PapermillExecutionError) else ""
        what = f"{error.ename}: {error.evalue}" if cell else str(error)
        result.error = f"{cell}{' '.join(what.split())[:300]} (see {failed.relative_to(ROOT) if failed.is_relative_to(ROOT) else failed})"
        if partial.exists():
            partial.replace(failed)
    result.seconds = time.monotonic() - clock
    if result.error:
        return result
    places = [p for place in (workspace.figures, workspace.tables) if place.is_dir() for p in place.iterdir()]
    result.written = sorted(str(p.relative_to(ROOT)) for p in places if p.is_file() and p.stat().st_mtime_ns >= started)
    partial.replace(output)
    record = {"inputs": digest, "output": _digest(output), "written": result.written, "seconds": round(result.seconds, 1)}
    atomic_write(stamp, lambda p: p.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8"))
    return result


# ---------------------------------------------------------------------------------------------- what is committed
_REPR = re.compile(r"^<.*>$|^\[?<.* at 0x[0-9a-f]+>.*$", re.DOTALL)


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """An executed notebook as it is committed: prose, code and pictures, tables and printed text as outputs.

    Left out: times, versions, papermill's and widgets' state, progress bars and warnings (stderr), reprs of
    objects, and this machine's paths.
    """
    out = nbformat.v4.new_notebook()
    spec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    out.metadata = nbformat.from_dict({"kernelspec": spec, "language_info": {"name": "python"}})
    count = 0
    for k, cell in enumerate(notebook.cells):
        kept = nbformat.from_dict({"id": f"cell-{k:02d}", "cell_type": cell.cell_type, "metadata": {}, "source": cell.source})
        tags = [t for t in cell.metadata.get("tags", []) if not t.startswith("papermill")]
        if tags:
            kept.metadata["tags"] = tags
        if cell.cell_type == "code":
            count += 1
            kept.execution_count = count
            kept.outputs = [o for o in (_clean_output(o, count) for o in cell.outputs) if o is not None]
        out.cells.append(kept)
    nbformat.validate(out)
    return out


def _clean_output(output, count: int):
    """One output, or None where nothing of it is kept."""
    if output.output_type == "stream":
        text = _without_paths("".join(output.text))
        return None if output.name == "stderr" or not text.strip() else nbformat.v4.new_output("stream", name="stdout", text=text)
    if output.output_type not in ("display_data", "execute_result"):
        return output
    data = {k: v if k.startswith("image/png") else _without_paths(v) for k, v in output.data.items() if "widget" not in k}
    plain = data.get("text/plain", "")
    if any("widget" in k for k in output.data) or (_REPR.match(plain.strip()) and plain):
        data.pop("text/plain", None)
    if not data:
        return None
    extra = {"execution_count": count} if output.output_type == "execute_result" else {}
    return nbformat.v4.new_output(output.output_type, data=data, metadata={}, **extra)


def _without_paths(value):
    """Text with this checkout's folder and the home folder taken out."""
    if not isinstance(value, str):
        return value
    return value.replace(f"{ROOT}{os.sep}", "").replace(str(ROOT), ".").replace(str(Path.home()) + os.sep, "~" + os.sep)
