"""Training runs that resume bit for bit, batches, checkpoints that refuse what they can't trust (paper Table 9)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bornlib import minicorpus, training
from bornlib.corpus import FULL_TRAIN_SIZE, PAD_ID, SEP_ID, UNK_ID, Batches, Pair, Vocabulary, encode_pairs
from bornlib.models import build
from bornlib.training import (
    CheckpointError,
    Recipe,
    atomic_write,
    controls,
    drop_words,
    evaluate,
    learning_rate,
    load_checkpoint,
    save_checkpoint,
    shuffled_premises,
    train,
    training_pairs,
)

torch.set_num_threads(1)
RECIPE = Recipe("born", epochs=2, batch_size=32)


@pytest.fixture(scope="module")
def train_set():
    return minicorpus.load_split("train").pairs[:480]


@pytest.fixture(scope="module")
def dev_set():
    return minicorpus.load_split("dev").pairs[:120]


@pytest.fixture(scope="module")
def run(train_set, dev_set):
    """One uninterrupted run: model, vocabulary, log."""
    return train(RECIPE, train_set, dev_set, progress=False)


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def without_times(log):
    return [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in log["epochs"]]


# ------------------------------------------------------------------------------------------------- learning
@pytest.mark.parametrize("kind", ["born", "softmax", "poly"])
def test_loss_goes_down(kind):
    """A corpus in which one word of the hypothesis decides the label."""
    words = ("animal", "tired", "cat")
    pairs = [
        Pair(f"a dog runs {place} .", f"the {words[k % 3]} runs .", k % 3)
        for k, place in enumerate(["here", "there", "away"] * 64)
    ]
    _, vocabulary, log = train(Recipe(kind, epochs=6, batch_size=16, word_dropout=0.0), pairs, pairs[:30], progress=False)
    losses = [e["train_loss"] for e in log["epochs"]]
    assert [e["epoch"] for e in log["epochs"]] == [1, 2, 3, 4, 5, 6]
    assert losses[-1] < 0.5 * losses[0]
    assert log["epochs"][-1]["dev_accuracy"] == 1
    assert (log["train_pairs"], log["vocabulary"]) == (192, len(vocabulary))


def test_a_step_is_adam_on_clipped_gradients_of_the_dropped_words(train_set, dev_set):
    """Three steps by hand, from the recipe in Table 9, with torch's plain Adam."""
    recipe = replace(RECIPE, epochs=1)
    trained, vocabulary, _ = train(recipe, train_set, dev_set, progress=False, stop=lambda step: step == 3)
    batches = Batches(encode_pairs(train_set, vocabulary), [p.label for p in train_set], 32)
    model = build("born", len(vocabulary), 0)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3, foreach=False, fused=False)
    generator = torch.Generator().manual_seed(1)
    for step, index in enumerate(batches.order(0, 0)[:3]):
        ids, sentence, labels = batches.take(index)
        log_p = model(drop_words(ids, 0.1, generator), sentence)
        optimiser.param_groups[0]["lr"] = 2e-3 * (1 + np.cos(np.pi * step / 15)) / 2
        optimiser.zero_grad()
        (-log_p[torch.arange(len(labels)), labels].mean()).backward()
        norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
        for p in model.parameters():
            p.grad *= min(1.0, 1.0 / float(norm))
        optimiser.step()
    for k, v in trained.state_dict().items():
        torch.testing.assert_close(v, model.state_dict()[k], rtol=0, atol=2e-5, msg=k)


def test_the_recipe_decides_the_weights(run, train_set, dev_set):
    again, _, log = train(RECIPE, train_set, dev_set, progress=False)
    assert same_weights(run[0], again)
    assert without_times(log) == without_times(run[2])
    other, _, _ = train(replace(RECIPE, seed=1), train_set, dev_set, progress=False)
    assert not same_weights(run[0], other)


def test_without_the_sentence_field(train_set, dev_set):
    model, _, _ = train(replace(RECIPE, epochs=1, sentence_field=False), train_set, dev_set, progress=False)
    assert model.sentence.abs().max() == 0
    assert build("born", 10).sentence.abs().max() > 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_run_is_the_same_mathematics(train_set, dev_set, tmp_path):
    """One pass ends where the plain one does, up to rounding; its log says so; a plain run does not take up its state."""
    short = replace(RECIPE, model="poly", epochs=1, train_size=64)
    plain, _, _ = train(short, train_set, dev_set, progress=False)
    compiled, _, log = train(short, train_set, dev_set, tmp_path, progress=False, compile=True)
    assert log["compiled"] is True
    for name, weights in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], weights, rtol=0, atol=1e-4, msg=name)
    with pytest.raises(ValueError, match="belongs to another run"):
        train(short, train_set, dev_set, tmp_path, progress=False)


def test_a_diverging_run_stops(train_set, dev_set):
    with pytest.raises(FloatingPointError, match=r"poly seed 0, step \d+: loss (nan|inf), gradient norm nan"):
        train(Recipe("poly", epochs=1, batch_size=32, learning_rate=1e4), train_set, dev_set, progress=False)


def test_denormals_are_kept_again_after_a_run(run):
    assert float(torch.tensor(1e-39) + torch.tensor(0.0)) > 0


# ------------------------------------------------------------------------------------------------- resuming
@pytest.mark.parametrize("at", [7, 15, 22])  # in the first epoch, at its end, in the second
def test_a_stopped_run_resumes_to_the_same_weights(at, tmp_path, run, train_set, dev_set):
    train(RECIPE, train_set, dev_set, tmp_path, save_seconds=0, progress=False, stop=lambda step: step == at)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert 0 < state["step"] < 30
    resumed, _, log = train(RECIPE, train_set, dev_set, tmp_path, save_seconds=0, progress=False)
    assert same_weights(run[0], resumed)
    assert without_times(log) == without_times(run[2])


def start(code, *arguments):
    """A Python process of its own with one thread, in this repository."""
    head = "import os, sys, torch\ntorch.set_num_threads(1)\n"
    root = Path(training.__file__).resolve().parent.parent
    return subprocess.Popen([sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)], cwd=root)


def test_a_run_killed_at_any_moment_resumes_to_the_same_weights(tmp_path, run, train_set, dev_set):
    code = """
        import time
        from pathlib import Path
        from bornlib import minicorpus
        from bornlib.training import Recipe, train
        pairs = [minicorpus.load_split(s).pairs[:n] for s, n in (("train", 480), ("dev", 120))]
        train(Recipe("born", epochs=2, batch_size=32), *pairs, Path(sys.argv[1]), save_seconds=0, progress=False,
              stop=lambda step: step > 18 and time.sleep(60))
    """
    process = start(code, tmp_path)
    deadline = time.monotonic() + 60
    step = 0
    while step < 18 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
        if (tmp_path / "state.pt").exists():
            step = torch.load(tmp_path / "state.pt", weights_only=True)["step"]
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert step == 18
    resumed, _, log = train(RECIPE, train_set, dev_set, tmp_path, progress=False)
    assert same_weights(run[0], resumed)
    assert without_times(log) == without_times(run[2])


def test_a_finished_run_is_not_trained_again(tmp_path, train_set, dev_set):
    first, _, log = train(RECIPE, train_set, dev_set, tmp_path, progress=False)
    again, _, log_again = train(RECIPE, train_set, dev_set, tmp_path, progress=False, stop=lambda step: pytest.fail("a step"))
    assert same_weights(first, again)
    assert log == log_again


@pytest.mark.parametrize(
    "change", [dict(seed=1), dict(epochs=3), dict(model="poly"), dict(word_dropout=0.2), dict(train_size=100)]
)
def test_the_state_of_another_run_is_refused(change, tmp_path, train_set, dev_set):
    train(RECIPE, train_set, dev_set, tmp_path, save_seconds=0, progress=False, stop=lambda step: step == 3)
    with pytest.raises(ValueError, match="state.pt belongs to another run: expected .* got "):
        train(replace(RECIPE, **change), train_set, dev_set, tmp_path, progress=False)


def test_a_kill_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.pt"
    atomic_write(path, lambda p: p.write_bytes(b"old"))
    code = """
        from pathlib import Path
        import signal
        from bornlib.training import atomic_write
        def half(path):
            path.write_bytes(b"ne")
            os.kill(os.getpid(), signal.SIGKILL)
        atomic_write(Path(sys.argv[1]), half)
    """
    assert start(code, path).wait() == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    atomic_write(path, lambda p: p.write_bytes(b"new"))
    assert path.read_bytes() == b"new"


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    atomic_write(path, lambda p: p.write_bytes(b"old"))

    def full_disk(p):
        p.write_bytes(b"ne")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        atomic_write(path, full_disk)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


# ------------------------------------------------------------------------------------------------- parts of a step
def test_learning_rate_is_torchs_cosine():
    recipe = Recipe("born")
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=50)
    for step in range(51):
        assert learning_rate(recipe, step, 50) == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
        optimiser.step()
        schedule.step()
    assert learning_rate(recipe, 0, 50) == 2e-3
    assert learning_rate(recipe, 50, 50) == pytest.approx(0, abs=1e-18)


def test_dropped_words_become_unknown_and_nothing_else_changes():
    ids = torch.randint(3, 500, (200, 30), generator=torch.Generator().manual_seed(0))
    ids[:, 12], ids[:, 25:] = SEP_ID, PAD_ID
    dropped = drop_words(ids, 0.3, torch.Generator().manual_seed(1))
    assert (dropped[:, 12] == SEP_ID).all() and (dropped[:, 25:] == PAD_ID).all()
    changed = dropped != ids
    assert (dropped[changed] == UNK_ID).all()
    words = (ids != SEP_ID) & (ids != PAD_ID)
    assert changed[words].float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(drop_words(ids, 0.0, torch.Generator()), ids)


def test_subsets_are_nested_and_random(train_set):
    chosen = {n: [id(p) for p in training_pairs(train_set, Recipe("born", train_size=n))] for n in (50, 200, 480)}
    assert chosen[200][:50] == chosen[50] and set(chosen[200]) < set(chosen[480])
    assert len(set(chosen[480])) == 480
    assert chosen[50] != [id(p) for p in train_set[:50]]
    other = training_pairs(train_set, Recipe("born", train_size=50, subset_seed=1))
    assert {id(p) for p in other} != set(chosen[50])
    assert training_pairs(train_set, Recipe("born")) is train_set
    for size in (0, 481):
        with pytest.raises(ValueError, match=f"train_size: expected 1 to 480, got {size}"):
            training_pairs(train_set, Recipe("born", train_size=size))


def test_the_unselected_part():
    sources = ["cat", "lola", "lola+cat", "", "category"]
    pairs = [Pair("a", "b", 0, source=s) for s in sources]
    part = training_pairs(pairs, Recipe("born", part="unselected"))
    assert [p.source for p in part] == ["cat", "lola+cat"]
    assert len(training_pairs(pairs, Recipe("born"))) == 5


@pytest.mark.parametrize("seed", [None, 0, 5])
def test_an_epoch_deals_every_pair_once(seed, train_set):
    vocabulary = Vocabulary.from_pairs(train_set)
    batches = Batches(encode_pairs(train_set[:301], vocabulary), [p.label for p in train_set[:301]], 32)
    dealt = batches.order(seed, epoch=2)
    assert len(dealt) == len(batches) == 10
    assert sorted(np.concatenate(dealt)) == list(range(301))
    assert max(map(len, dealt)) == 32
    if seed is not None:
        assert not all(np.array_equal(a, b) for a, b in zip(dealt, batches.order(seed, epoch=3), strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(dealt, batches.order(seed, epoch=2), strict=True))
    longer = [np.mean(batches.lengths[i].max() - batches.lengths[i]) for i in dealt]
    assert np.mean(longer) < 0.3 * (batches.lengths.max() - batches.lengths.mean())  # bucketed by length
    ids, sentence, labels = batches.take(dealt[0])
    assert ids.shape == sentence.shape == (len(dealt[0]), batches.lengths[dealt[0]].max())
    assert labels.tolist() == [train_set[i].label for i in dealt[0]]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(model="bert"), "model: expected one of .* got 'bert'"),
        (dict(epochs=0), "epochs and batch_size: expected at least 1, got 0"),
        (dict(batch_size=0), "epochs and batch_size: .* and 0"),
        (dict(word_dropout=1.0), "word_dropout: expected 0 <= p < 1, got 1.0"),
        (dict(word_dropout=-0.1), "word_dropout: .* got -0.1"),
        (dict(learning_rate=0.0), "learning_rate and clip: expected above 0, got 0.0"),
        (dict(clip=-1.0), "learning_rate and clip: .* -1.0"),
        (dict(part="easy"), "part: expected 'all' or 'unselected', got 'easy'"),
    ],
)
def test_a_recipe_is_checked(wrong, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**{"model": "born", **wrong})


def test_the_paper_s_recipe_is_the_default():
    """Table 9, but for epochs and dropout, which are chosen on dev."""
    recipe = Recipe("born")
    assert (recipe.learning_rate, recipe.clip, recipe.batch_size, recipe.train_size) == (2e-3, 1.0, 64, None)
    assert Recipe("softmax").epochs == training.EPOCHS["softmax"] and Recipe("softmax", epochs=3).epochs == 3


# ------------------------------------------------------------------------------------------------- evaluation
def test_evaluation_does_not_depend_on_the_order(run, dev_set):
    model, vocabulary, _ = run
    order = np.random.default_rng(0).permutation(len(dev_set))

    def result(pairs, size):
        return evaluate(model, Batches(encode_pairs(pairs, vocabulary), [p.label for p in pairs], size))

    loss, accuracy, predicted = result(dev_set, 64)
    for size in (1, 7, 64):
        other_loss, other_accuracy, other = result([dev_set[i] for i in order], size)
        assert np.array_equal(other, predicted[order])
        assert other_accuracy == accuracy
        assert other_loss == pytest.approx(loss, rel=1e-5)
    assert accuracy == np.mean([p.label == y for p, y in zip(dev_set, predicted, strict=True)])


def test_controls(run, dev_set):
    model, vocabulary, _ = run
    result = controls(model, vocabulary, dev_set)
    assert list(result) == ["accuracy", "premises_shuffled", "premise_empty"]
    empty = [Pair("", p.hypothesis, p.label) for p in dev_set]
    assert result["premise_empty"] == evaluate(model, Batches(encode_pairs(empty, vocabulary), [p.label for p in empty]))[1]
    shuffled = shuffled_premises(dev_set, 3)
    assert sorted(p.premise for p in shuffled) == sorted(p.premise for p in dev_set)
    assert [(p.hypothesis, p.label) for p in shuffled] == [(p.hypothesis, p.label) for p in dev_set]
    assert sum(a.premise == b.premise for a, b in zip(shuffled, dev_set, strict=True)) < 0.2 * len(dev_set)
    assert not model.training or controls(model, vocabulary, dev_set) == result


# ------------------------------------------------------------------------------------------------- checkpoints
@pytest.fixture
def checkpoint(tmp_path, run):
    path = tmp_path / "born-seed0.safetensors"
    save_checkpoint(path, run[0], run[1], RECIPE, run[2])
    return path


def rewrite(path, change_weights=lambda w: w, **metadata):
    """The same checkpoint with some weights or metadata changed (None removes an entry)."""
    from safetensors import safe_open

    with safe_open(path, "pt") as stream:
        kept = {k: v for k, v in {**stream.metadata(), **metadata}.items() if v is not None}
    save_file(change_weights(load_file(path)), path, kept)


def test_a_checkpoint_comes_back(checkpoint, run, dev_set):
    model, vocabulary, metadata = load_checkpoint(checkpoint)
    assert vocabulary.words == run[1].words
    assert metadata["recipe"] == RECIPE
    assert metadata["train_pairs"] == 480
    assert metadata["log"]["epochs"] == run[2]["epochs"]
    for k, v in model.state_dict().items():
        expected = run[0].state_dict()[k]
        assert torch.equal(v, expected.half().float() if k == "embedding" else expected)
    assert load_file(checkpoint)["embedding"].dtype == torch.float16
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    double = load_checkpoint(checkpoint, torch.float64)[0]
    assert all(torch.equal(a, b.double()) for a, b in zip(double.parameters(), model.parameters(), strict=True))


def test_a_checkpoint_says_how_many_pairs_trained_it(checkpoint):
    from safetensors import safe_open

    with safe_open(checkpoint, "pt") as stream:
        metadata = stream.metadata()
    assert (metadata["train_pairs"], metadata["train_pairs_of"]) == ("480", str(FULL_TRAIN_SIZE))
    assert json.loads(metadata["recipe"]) == asdict(RECIPE)


def test_the_same_run_gives_the_same_file(checkpoint, run, tmp_path):
    save_checkpoint(tmp_path / "again.safetensors", run[0], run[1], RECIPE, run[2])
    assert load_checkpoint(tmp_path / "again.safetensors")[2] == load_checkpoint(checkpoint)[2]


def test_a_missing_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="none.safetensors: no such checkpoint; .*bornlib train"):
        load_checkpoint(tmp_path / "none.safetensors")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x00" * 64])
def test_a_file_that_is_no_checkpoint(content, tmp_path):
    path = tmp_path / "file.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load_checkpoint(path)


def test_a_truncated_checkpoint(checkpoint):
    data = checkpoint.read_bytes()
    for length in (len(data) - 1, len(data) // 2, 100):
        checkpoint.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="not a readable safetensors file"):
            load_checkpoint(checkpoint)


@pytest.mark.parametrize(
    "metadata, message",
    [
        (dict(format=None), "expected format 'bornlib-checkpoint-1', got None"),
        (dict(format="bornlib-checkpoint-0"), "expected format .* got 'bornlib-checkpoint-0'; train it again"),
        (dict(vocabulary=None), "metadata .*vocabulary"),
        (dict(recipe="{"), "metadata"),
        (dict(recipe='{"model": "born", "heads": 2}'), "metadata .*heads"),
        (dict(recipe='{"model": "bert"}'), "metadata .*bert"),
        (dict(vocabulary='["a", "b"]'), "metadata .*words"),
        (dict(train_pairs="many"), "metadata .*many"),
        (dict(recipe='{"model": "poly"}'), "weights do not fit model 'poly'"),
        (dict(vocabulary='["<pad>", "<unk>", "<sep>"]'), "weights do not fit model 'born'"),
    ],
)
def test_an_old_or_foreign_checkpoint(metadata, message, checkpoint):
    rewrite(checkpoint, **metadata)
    with pytest.raises(CheckpointError, match=f"born-seed0.safetensors: {message}"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value, checkpoint):
    def damage(weights):
        weights["blocks.1.gain"][3] = value
        return weights

    rewrite(checkpoint, damage)
    with pytest.raises(CheckpointError, match=r"weights that are not finite in \['blocks.1.gain'\]"):
        load_checkpoint(checkpoint)


def test_a_missing_weight(checkpoint):
    rewrite(checkpoint, lambda weights: {k: v for k, v in weights.items() if k != "phase"})
    with pytest.raises(CheckpointError, match="(?s)weights do not fit .*phase"):
        load_checkpoint(checkpoint)
