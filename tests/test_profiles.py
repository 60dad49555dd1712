"""Profiles: what is found decides, and profile `quick` leaves the repository's own results alone."""

from dataclasses import replace

import pytest
import torch

from bornlib import minicorpus, profiles
from bornlib.corpus import CorpusError
from bornlib.profiles import Profile, checkpoint_name, resolve
from bornlib.training import CheckpointError, Recipe

torch.set_num_threads(1)
HEADER = "gold_label,Sentence1,Sentence2\n"


@pytest.fixture
def nothing_found(monkeypatch, tmp_path):
    """A machine without e-SNLI and with an empty repository folder."""
    monkeypatch.delenv("BORNLIB_DATA", raising=False)
    monkeypatch.delenv("BORNLIB_PROFILE", raising=False)
    monkeypatch.setattr("bornlib.corpus.ROOT", tmp_path)
    monkeypatch.setattr(profiles, "ROOT", tmp_path)
    monkeypatch.setattr(profiles, "CHECKPOINTS", tmp_path / "data" / "checkpoints")
    profiles._split.cache_clear()
    yield tmp_path
    profiles._split.cache_clear()


@pytest.fixture
def corpus_found(nothing_found, monkeypatch):
    """A machine with a small corpus in e-SNLI's files."""
    folder = nothing_found / "elsewhere"
    folder.mkdir()
    for name, n in {"train_1": 3, "train_2": 2, "dev": 2, "test": 1}.items():
        rows = "".join(f"neutral,A man {i} .,A dog {name} .\n" for i in range(n))
        (folder / f"esnli_{name}.csv").write_text(HEADER + rows, encoding="utf-8")
    monkeypatch.setenv("BORNLIB_DATA", str(folder))
    return folder


def test_without_the_corpus_auto_is_quick_and_says_so(nothing_found, capsys):
    assert resolve().name == "quick"
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "e-SNLI not found" in out and "quick" in out and "data fetch" in out
    assert resolve("quick").name == "quick"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["full", "paper"])
def test_without_the_corpus_full_and_paper_are_refused(name, nothing_found):
    with pytest.raises(CorpusError, match=f"profile '{name}' needs e-SNLI: set BORNLIB_DATA or run .*data fetch"):
        resolve(name)


def test_with_the_corpus_auto_is_full(corpus_found, capsys):
    assert resolve().name == resolve("auto").name == "full"
    assert capsys.readouterr().out == ""
    assert [len(resolve().split(s)) for s in ("train", "dev", "test")] == [5, 2, 1]


def test_the_environment_names_the_profile(corpus_found, monkeypatch):
    monkeypatch.setenv("BORNLIB_PROFILE", "quick")
    assert resolve().name == "quick"
    assert resolve("full").name == "full"  # an argument goes before the environment
    monkeypatch.setenv("BORNLIB_PROFILE", "fast")
    with pytest.raises(ValueError, match=r"profile: expected one of \('quick', 'full', 'paper', 'auto'\), got 'fast'"):
        resolve()


def test_quick_and_paper_do_not_write_over_the_repository_s_results(nothing_found):
    folders = {name: Profile(name) for name in ("quick", "full", "paper")}
    assert folders["full"].figures == nothing_found / "figures"
    assert folders["full"].tables == nothing_found / "data" / "tables"
    assert folders["full"].checkpoints == nothing_found / "data" / "checkpoints"
    quick = folders["quick"]
    for path in (quick.figures, quick.tables, quick.checkpoints, folders["paper"].checkpoints):
        assert path.is_relative_to(nothing_found / "build")
    assert len({p.checkpoints for p in folders.values()}) == 3


def test_recipes(nothing_found):
    assert Profile("paper").recipe("softmax", 2) == Recipe("softmax", 2, epochs=20, word_dropout=0.1)  # Table 9
    assert Profile("full").recipe("poly", 1) == Recipe("poly", 1)
    assert checkpoint_name("poly-gelu", 2) == "poly-gelu-seed2.safetensors"


def test_quick_reads_the_mini_corpus(nothing_found):
    assert Profile("quick").split("dev").pairs == minicorpus.load_split("dev").pairs


def test_full_does_not_train(corpus_found):
    with pytest.raises(CheckpointError, match="born-seed0.safetensors: no such checkpoint"):
        Profile("full").model("born")


def test_quick_trains_once(nothing_found, monkeypatch):
    whole = minicorpus.load_split
    monkeypatch.setattr(minicorpus, "load_split", lambda name: replace(whole(name), pairs=whole(name).pairs[:90]))
    quick = Profile("quick")
    model, vocabulary, metadata = quick.model("poly", 1)
    path = quick.checkpoints / "poly-seed1.safetensors"
    written = path.stat().st_mtime_ns
    again, _, _ = quick.model("poly", 1, torch.float64)
    assert path.stat().st_mtime_ns == written
    assert metadata["recipe"] == quick.recipe("poly", 1)
    assert metadata["train_pairs"] == 90
    assert all(torch.equal(a.double(), b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert "a" in vocabulary
