"""requirements.lock, pyproject.toml and environment.yml say the same, and the lock is complete."""

import ast
import importlib.metadata
import re
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from bornlib.corpus import ROOT

LINES = [line for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
PINS = {canonicalize_name(name): version for name, version in (line.split("==") for line in LINES)}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = [Requirement(r) for r in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]]


def test_the_lock_pins_every_package_once_and_exactly():
    assert len(PINS) == len(LINES)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in LINES), "no hosts, hashes, paths or local versions"
    assert PINS["torch"] == "2.13.0"
    assert not [name for name in PINS if re.match(r"nvidia|cuda|triton", name)]


def test_pyproject_names_what_the_lock_pins():
    for requirement in DIRECT:
        assert str(requirement.specifier) == f"=={PINS[canonicalize_name(requirement.name)]}", requirement


def test_the_conda_environment_reads_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    plain = [d for d in environment["dependencies"] if isinstance(d, str)]
    (pip,) = (d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    (python,) = (d.removeprefix("python=") for d in plain if d.startswith("python="))
    assert environment["channels"] == ["conda-forge"] and "pip" in plain
    assert Version(python) in Requirement(f"python{PROJECT['requires-python']}").specifier
    assert pip == [f"torch=={PINS['torch']}", "-r requirements.lock", "-e ."]


def test_every_package_that_a_locked_one_needs_is_locked():
    missing, checked = [], 0
    todo = [(canonicalize_name(r.name), frozenset(r.extras)) for r in DIRECT]
    seen = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name not in PINS:
            missing.append(name)
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # a package for another system; the next test says what must be installed
        checked += 1
        for requirement in map(Requirement, requires):
            wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *extras))
            if wanted and not re.match(r"nvidia|cuda|triton", requirement.name):  # what a CUDA build of torch brings along
                assert requirement.specifier.contains(PINS.get(canonicalize_name(requirement.name), "0"), prereleases=True) or (
                    canonicalize_name(requirement.name) not in PINS
                ), f"{name} needs {requirement}"
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    assert not missing
    assert checked > 50


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda r: r.name)
def test_the_installed_version_is_the_locked_one(requirement):
    installed = Version(importlib.metadata.version(requirement.name))
    assert installed.public == PINS[canonicalize_name(requirement.name)]


def test_everything_imported_is_declared():
    """The modules' imports from outside are direct dependencies of pyproject.toml."""
    nodes = [n for path in (ROOT / "bornlib").glob("*.py") for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names += [n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.level == 0]
    modules = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"bornlib"}
    declared = {canonicalize_name(r.name) for r in DIRECT}
    packages = importlib.metadata.packages_distributions()
    assert "torch" in modules
    assert not [m for m in modules if not {canonicalize_name(d) for d in packages.get(m, [])} & declared]
