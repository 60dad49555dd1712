"""Profiles: which corpus and which weights a notebook or a command works with, and where its results go."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from . import minicorpus
from .corpus import ROOT, CorpusError, Split, Vocabulary, data_folder, load_split
from .models import COHERENT, Model
from .training import COHERENT_EPOCHS, Recipe, load_checkpoint, save_checkpoint, train

PROFILES = ("quick", "full", "paper", "auto")
CHECKPOINTS = ROOT / "data" / "checkpoints"
SEEDS = (0, 1, 2)


def checkpoint_name(kind: str, seed: int) -> str:
    return f"{kind}-seed{seed}.safetensors"


@dataclass(frozen=True)
class Profile:
    """`name` is `quick`, `full` or `paper`; figures and tables go to `figures` and `tables`.

    `full` and `paper` read real e-SNLI and write the repository's own results; `quick` uses the mini
    corpus, mini models trained on the spot (kept in `build/quick`), and leaves those results alone.
    """

    name: str

    @property
    def figures(self) -> Path:
        return ROOT / "build" / "quick" / "figures" if self.name == "quick" else ROOT / "figures"

    @property
    def tables(self) -> Path:
        return ROOT / "build" / "quick" / "tables" if self.name == "quick" else ROOT / "data" / "tables"

    @property
    def checkpoints(self) -> Path:
        """Where this profile's weights lie; `quick` has a folder for each state of the code, so that none is out of date."""
        if self.name == "quick":
            return ROOT / "build" / "quick" / "checkpoints" / _code_digest()
        return CHECKPOINTS if self.name == "full" else ROOT / "build" / "paper" / "checkpoints"

    def split(self, name: str) -> Split:
        """`train`, `dev` or `test`: real e-SNLI, or the mini corpus on profile `quick`."""
        return _split(self.name, name)

    def recipe(self, kind: str, seed: int = 0) -> Recipe:
        """The recipe for a model of this profile; `paper` is Table 9, `quick` a short run on the mini corpus."""
        if self.name == "paper":
            return Recipe(kind, seed, epochs=COHERENT_EPOCHS if kind in COHERENT else 20, word_dropout=0.1)
        return Recipe(kind, seed, epochs=6, word_dropout=0.0) if self.name == "quick" else Recipe(kind, seed)

    def model(self, kind: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Model, Vocabulary, dict]:
        """Model, vocabulary and metadata; `quick` and `paper` train what is not there yet (resumable)."""
        path = self.checkpoints / checkpoint_name(kind, seed)
        if self.name != "full" and not path.exists():
            recipe = self.recipe(kind, seed)
            folder = path.parent / "runs" / path.stem
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "lock"):  # a second process that wants the same model waits for the first
                if not path.exists():
                    model, vocabulary, log = train(recipe, self.split("train").pairs, self.split("dev").pairs, folder)
                    save_checkpoint(path, model, vocabulary, recipe, log)
        return load_checkpoint(path, dtype)


@functools.cache
def _code_digest() -> str:
    """Ten hex digits that change with the modules which decide a mini model's weights."""
    modules = ("corpus", "minicorpus", "models", "training", "profiles")
    return hashlib.sha256(b"".join((Path(__file__).parent / f"{m}.py").read_bytes() for m in modules)).hexdigest()[:10]


@functools.lru_cache(maxsize=6)
def _split(profile: str, name: str) -> Split:
    return minicorpus.load_split(name) if profile == "quick" else load_split(name)


def resolve(name: str | None = None) -> Profile:
    """The profile of that name; `auto` (or None: `$BORNLIB_PROFILE`, else `auto`) is `full` where e-SNLI is found.

    Without e-SNLI `auto` is `quick` and says so in one line; `full` and `paper` raise CorpusError.
    """
    name = name or os.environ.get("BORNLIB_PROFILE") or "auto"
    if name not in PROFILES:
        raise ValueError(f"profile: expected one of {PROFILES}, got {name!r}")
    found = data_folder() is not None
    if name == "auto":
        name = "full" if found else "quick"
        if not found:
            print("e-SNLI not found: profile `quick` on the mini corpus (`python -m bornlib data fetch` gets e-SNLI)")
    elif name != "quick" and not found:
        raise CorpusError(f"profile {name!r} needs e-SNLI: set BORNLIB_DATA or run `python -m bornlib data fetch`")
    return Profile(name)
