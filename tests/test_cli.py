"""The command line as a person types it: what it prints, what it refuses, and its exit status."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from bornlib import cli, corpus, minicorpus, profiles, runs, training
from bornlib.cli import main
from bornlib.corpus import ROOT

PREMISE, HYPOTHESIS = "A man plays guitar on stage.", "A woman is asleep."


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Profile quick with a small part of the mini corpus; runs go to a folder of the test."""
    whole = minicorpus.load_split
    monkeypatch.setattr(minicorpus, "load_split", lambda name: corpus.Split(whole(name).pairs[:128]))
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    profiles._split.cache_clear()
    yield tmp_path
    profiles._split.cache_clear()


def fails(capsys, *arguments):
    """The one line on stderr with which a command ends in status 2."""
    assert main([*map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("bornlib: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


# ---------------------------------------------------------------------------------------------- help
@pytest.mark.parametrize("command", ["", "data", "data status", "data fetch", "data verify", "train", "evaluate", "reproduce", "explain", "explore", "device"])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    _, examples = capsys.readouterr().out.split("examples:\n")
    assert f"  python -m bornlib {command}" in examples


@pytest.mark.parametrize("arguments", [[], ["fly"], ["explain", "only one"], ["train", "--epochs", "many"], ["explain", "a", "b", "--class", "maybe"]])
def test_wrong_usage_is_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: bornlib" in capsys.readouterr().err


def test_module_and_script_are_the_same():
    outputs = []
    for command in ([sys.executable, "-m", "bornlib"], [os.path.join(os.path.dirname(sys.executable), "bornlib")]):
        done = subprocess.run([*command, "data", "status", "--folder", "nowhere"], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] and "missing" in outputs[0]


# ---------------------------------------------------------------------------------------------- explain
def test_explain_json_is_one_object_with_the_agreed_keys(checkpoint, capsys):
    assert main(["explain", PREMISE, "A zyzzyva sleeps", "--model", str(checkpoint), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record) == ["answer", "class", "probabilities", "no_information_share", "words", "gap", "nodes", "error_bound"]
    assert list(record["probabilities"]) == ["entailment", "neutral", "contradiction"]
    assert [list(w) for w in record["words"]] == [["text", "sentence", "evidence", "known"]] * 11
    assert [w["text"] for w in record["words"]][7] == "<sep>"
    assert not next(w for w in record["words"] if w["text"] == "zyzzyva")["known"]
    total = record["no_information_share"] + sum(w["evidence"] for w in record["words"])
    assert total == pytest.approx(record["probabilities"][record["class"]], abs=1e-11)
    assert record["error_bound"] <= 1e-11 and record["gap"] <= 1e-11


def test_explain_prints_a_table(checkpoint, capsys):
    assert main(["explain", PREMISE, "A zyzzyva sleeps", "--model", str(checkpoint), "--class", "neutral", "--nodes", "exact"]) == 0
    out = capsys.readouterr().out
    assert "\033" not in out, "no colours where nobody sees them"
    assert "zyzzyva (unknown)" in out and "evidence for neutral" in out and "324 nodes" in out
    ranks = [int(m) for m in re.findall(r"(?:premise|hypothesis) +(\d+) ", out)]
    assert sorted(ranks) == list(range(1, 10))  # neither <sep> nor the full stop is ranked


def test_colours_go_to_terminals_that_want_them(checkpoint, capsys, monkeypatch):
    arguments = ["explain", PREMISE, HYPOTHESIS, "--model", str(checkpoint)]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(arguments)
    coloured = capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(arguments)
    plain = capsys.readouterr().out
    assert "\033[31m" in coloured and "\033" not in plain
    assert re.sub("\033\\[[0-9]+m", "", coloured) == plain


def test_a_terminal_is_not_obeyed(checkpoint, capsys):
    main(["explain", "\033[31mred\007 a\u202eb", "日本 e\u0301", "--model", str(checkpoint)])
    out = capsys.readouterr().out
    assert not re.search("[\033\007\u202e]", out) and "<1b>" in out and "日本" in out
    bars = {cli.width(line.rsplit("|", 1)[0]) for line in out.splitlines() if "|" in line}
    assert len(bars) == 1, "wide characters do not shift the columns"


def test_explain_writes_page_and_figure(checkpoint, capsys, tmp_path):
    page, figure = tmp_path / "new" / "a.html", tmp_path / "a.png"
    arguments = ["explain", "<b>bold</b> & $x$", HYPOTHESIS, "--model", str(checkpoint), "--html", str(page), "--png", str(figure)]
    assert main(arguments) == 0
    assert "<b>" not in page.read_text(encoding="utf-8") and page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert figure.read_bytes().startswith(b"\x89PNG")
    first = figure.read_bytes()
    main(arguments)
    assert figure.read_bytes() == first


def test_what_was_cut_is_reported_aside(checkpoint, capsys):
    assert main(["explain", "dog " * 70, "cat " * 3, "--model", str(checkpoint), "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["words"]) == 64
    assert err == "bornlib: the last 10 tokens of the premise were cut (at most 64 in all)\n"


@pytest.mark.parametrize("premise, hypothesis", [("", ""), ("", "A dog."), ("?!", "..."), ("\t\u00a0", "don\u2019t do n't 😀 e\u0301"), ("<sep> pad", "&")])
def test_odd_sentences_are_explained(checkpoint, capsys, premise, hypothesis):
    assert main(["explain", premise, hypothesis, "--model", str(checkpoint), "--json"]) == 0
    words = json.loads(capsys.readouterr().out)["words"]
    assert [w["text"] for w in words].count("<sep>") == 1
    assert main(["explain", premise, hypothesis, "--model", str(checkpoint)]) == 0


def test_explain_takes_the_shipped_weights(capsys):
    assert (profiles.CHECKPOINTS / "born-seed0.safetensors").is_file()
    assert main(["explain", "Men play hockey.", "Aliens play", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["gap"] < 1e-11 and record["error_bound"] < 1e-11
    assert all(w["known"] for w in record["words"])


# ---------------------------------------------------------------------------------------------- refusals
def test_refusals_are_one_line(checkpoint, capsys, tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(b"x" * 100)
    pair = (PREMISE, HYPOTHESIS, "--model", checkpoint)
    assert "no such checkpoint" in fails(capsys, "explain", "a", "b", "--model", "nothing")
    assert "not a readable safetensors file" in fails(capsys, "explain", "a", "b", "--model", foreign)
    assert "nodes: expected auto, exact or a positive number, got '0'" in fails(capsys, "explain", *pair, "--nodes", "0")
    assert "expected a file to write" in fails(capsys, "explain", *pair, "--html", tmp_path)
    assert "no such checkpoint" in fails(capsys, "evaluate", checkpoint, "born-seed9")
    assert "device: 'warp' can't be used here" in fails(capsys, "evaluate", checkpoint, "--device", "warp", "--profile", "quick")
    assert "word_dropout: expected 0 <= p < 1, got 1.5" in fails(capsys, "train", "--profile", "quick", "--word-dropout", "1.5")
    assert "name: expected a plain folder name" in fails(capsys, "train", "--profile", "quick", "--name", "../up")
    assert "run: expected a name that `train --list` shows" in fails(capsys, "train", "--run", "ship_nothing")
    assert "only: expected the beginning of one of" in fails(capsys, "reproduce", "--only", "99")
    assert "missing columns" in fails_on_bad_corpus(capsys, tmp_path)


def fails_on_bad_corpus(capsys, folder):
    (folder / "esnli_train_1.csv").write_text("a,b\n", encoding="utf-8")
    for name in ("dev", "test"):
        (folder / f"esnli_{name}.csv").write_text("gold_label,Sentence1,Sentence2\n", encoding="utf-8")
    assert main(["data", "status", "--folder", str(folder)]) == 2
    return capsys.readouterr().err


def test_a_stop_by_hand_is_status_130(checkpoint, capsys, monkeypatch):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "evaluate", stopped)
    assert main(["evaluate", str(checkpoint)]) == 130
    assert capsys.readouterr().err == "\nstopped; run again to resume\n"


def test_a_closed_pipe_is_no_error(checkpoint):
    code = f"{sys.executable} -m bornlib explain 'a b c' 'd e f' --model {checkpoint} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == "" and done.stdout.splitlines()[-1] == "0"


# ---------------------------------------------------------------------------------------------- data
def test_data_status_tells_official_from_other_files(capsys, tmp_path, monkeypatch):
    header = "gold_label,Sentence1,Sentence2\n"
    for name in ("esnli_dev.csv", "esnli_test.csv", "esnli_train_mine.csv"):
        (tmp_path / name).write_text(header + "neutral,a,b\n", encoding="utf-8")
    monkeypatch.setitem(corpus.BLOB_IDS, "esnli_test.csv", corpus.blob_id(tmp_path / "esnli_test.csv"))
    assert main(["data", "status", "--folder", str(tmp_path)]) == 0
    rows = dict(re.findall(r"^(esnli_\S+) +(\S+(?: \S+)*)", capsys.readouterr().out, re.MULTILINE))
    assert rows["esnli_train_1.csv"] == "missing"
    assert rows["esnli_test.csv"].startswith("official")
    assert rows["esnli_dev.csv"].startswith("DIFFERS")
    assert rows["esnli_train_mine.csv"].startswith("not an official file")


def test_data_verify_fails_on_a_damaged_file(capsys, tmp_path):
    for name in corpus.BLOB_IDS:
        (tmp_path / name).write_text("gold_label,Sentence1,Sentence2\n", encoding="utf-8")
    assert main(["data", "verify", "--folder", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out.count("DIFFERS") == 4 and "some files differ" in err and err.count("\n") == 1
    assert main(["data", "verify", "--folder", str(tmp_path / "empty")]) == 2


# ---------------------------------------------------------------------------------------------- train and evaluate
def test_train_evaluate_explain(small, capsys, monkeypatch):
    out = small / "mini.safetensors"
    arguments = ["train", "--profile", "quick", "--model", "poly", "--seed", "4", "--epochs", "2", "--batch-size", "32", "--out", str(out)]
    assert main(arguments) == 0
    assert "poly, 128 training pairs, dev accuracy" in capsys.readouterr().out
    recipe = training.load_checkpoint(out)[2]["recipe"]
    assert recipe == training.Recipe("poly", 4, epochs=2, batch_size=32)
    assert (small / "runs" / "poly_seed4_quick_epochs-2_batch_size-32" / "state.pt").is_file()
    assert main(["evaluate", str(out), "--profile", "quick", "--split", "dev", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["pairs"] == 128 and record["train_pairs"] == 128 and record["corpus"] == "mini corpus"
    assert all(0 <= record[k] <= 1 for k in ("accuracy", "premises_shuffled", "premise_empty"))
    assert main(["evaluate", str(out), "--profile", "quick", "--split", "dev"]) == 0
    assert f"{record['accuracy']:.4f}" in capsys.readouterr().out
    assert main(["explain", PREMISE, HYPOTHESIS, "--model", str(out)]) == 0


def test_every_recipe_option_arrives(small, monkeypatch):
    seen = {}

    def record(recipe, *_, **__):
        seen["recipe"] = recipe
        raise ValueError("enough")

    monkeypatch.setattr(training, "train", record)
    options = "--model softmax --seed 2 --epochs 3 --word-dropout 0.2 --batch-size 16 --learning-rate 0.01 --clip 2 --train-size 50"
    assert main(["train", "--profile", "quick", *options.split(), "--subset-seed", "7", "--unselected", "--no-sentence-field"]) == 2
    values = dict(
        model="softmax", seed=2, epochs=3, word_dropout=0.2, batch_size=16, learning_rate=0.01, clip=2.0, train_size=50, subset_seed=7,
        part="unselected", sentence_field=False,
    )  # fmt: skip
    assert seen["recipe"] == training.Recipe(**values)


def test_a_run_s_name_tells_what_differs(small):
    assert cli.default_name(training.Recipe("softmax", 1), "full") == "softmax_seed1"
    assert cli.default_name(training.Recipe("softmax", 1, epochs=8), "full") == "softmax_seed1_epochs-8"


def test_a_stopped_training_goes_on(tmp_path):
    """Interrupted from the keyboard, `train` says how to go on, and going on gives the weights of an unbroken run."""
    code = (
        "import sys, pathlib\nfrom bornlib import cli, corpus, minicorpus\nwhole = minicorpus.load_split\n"
        "minicorpus.load_split = lambda name: corpus.Split(whole(name).pairs[:1500])\n"
        "corpus.ROOT = pathlib.Path(sys.argv[1])\nsys.exit(cli.main(sys.argv[2:]))"
    )
    options = ["train", "--profile", "quick", "--model", "poly", "--epochs", "6", "--name", "broken", "--out", str(tmp_path / "a.safetensors")]
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *options], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    state = tmp_path / "runs" / "broken" / "state.pt"
    for _ in range(1200):
        if state.exists():
            break
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.endswith("stopped; run again to resume\n")
    assert not (tmp_path / "a.safetensors").exists()
    subprocess.run([sys.executable, "-c", code, str(tmp_path), *options], cwd=ROOT, check=True, capture_output=True)
    options[options.index("broken")] = "whole"
    options[-1] = str(tmp_path / "b.safetensors")
    subprocess.run([sys.executable, "-c", code, str(tmp_path), *options], cwd=ROOT, check=True, capture_output=True)
    broken, whole = (training.load_checkpoint(tmp_path / f"{x}.safetensors")[0].state_dict() for x in "ab")
    assert all((broken[k] == whole[k]).all() for k in whole)


def test_the_plan_is_listed(capsys):
    assert main(["train", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == list(runs.plan())
