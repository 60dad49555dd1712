"""The command line: `python -m bornlib` or `bornlib`. Every command is a thin cover of one module."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import unicodedata
from pathlib import Path

from .corpus import CorpusError

EPILOG = {
    "": """\
examples:
  python -m bornlib data status
  python -m bornlib reproduce --profile quick
  python -m bornlib explain "A man plays guitar." "A woman is asleep."
  python -m bornlib explore
  python -m bornlib train --model born --seed 0 --out my-born.safetensors
  python -m bornlib evaluate my-born.safetensors

Set NO_COLOR to print without colours, BORNLIB_DATA to e-SNLI's folder, BORNLIB_TRACEBACK to see where an error came from.""",
    "data": """\
examples:
  python -m bornlib data status          what is there, and whether it is the official file
  python -m bornlib data fetch           download what is missing into data/esnli (goes on after a break)
  python -m bornlib data verify          compare every official file with its git blob id""",
    "train": """\
examples:
  python -m bornlib train --model born --seed 0 --out born.safetensors
  python -m bornlib train --model poly --train-size 30000 --epochs 4 --device cuda
  python -m bornlib train --model softmax --unselected      without the pairs picked for difficulty
  python -m bornlib train --profile quick --model born      a mini model on the mini corpus
  python -m bornlib train --list                            the runs behind the shipped checkpoints and notebook 02
  python -m bornlib train --run ship_born_seed0             one of them

A run that was stopped goes on where it was when the same command is given again, and ends with the same weights.""",
    "evaluate": """\
examples:
  python -m bornlib evaluate born-seed0 poly-seed0
  python -m bornlib evaluate my-born.safetensors --split dev --json

CHECKPOINT is a file, or the name of a shipped checkpoint.""",
    "reproduce": """\
examples:
  python -m bornlib reproduce                               everything; what has not changed is left as it is
  python -m bornlib reproduce --profile quick --only 03
  python -m bornlib reproduce --only 03 -p pairs=200 -p seeds=[0]
  python -m bornlib reproduce --profile full --write-notebooks

Executed copies lie in build/PROFILE. Values of -p are YAML 1.2 and must have the type of the notebook's default.""",
    "explain": """\
examples:
  python -m bornlib explain "A man plays guitar." "A woman is asleep."
  python -m bornlib explain "A man plays guitar." "A woman is asleep." --model poly --png strip.png
  python -m bornlib explain "A man plays guitar." "A woman is asleep." --json | jq .answer

--model takes born, poly, softmax or an ablation (the shipped weights of --seed), or a checkpoint file. The evidence of
born and poly is exact; of the others integrated gradients of the class logit are shown.""",
    "explore": """\
examples:
  python -m bornlib explore                                      with the shipped Born Transformer
  python -m bornlib explore --model poly --dark
  python -m bornlib explore --model mine.safetensors --pairs mine.csv

FILE is a CSV with columns gold_label, Sentence1 and Sentence2, like e-SNLI's. The page is for this machine only and asks nothing of others.""",
    "device": """\
examples:
  python -m bornlib device "Men play hockey ." "Aliens play"                          on the noise model of five of ibm_kingston's qubits
  python -m bornlib device "Men play hockey ." "Aliens play" --without 5              with a slot deleted (the first is 0)
  python -m bornlib device "Men play hockey ." "Aliens play" --backend ibm_kingston   what it would cost; nothing is sent
  python -m bornlib device "Men play hockey ." "Aliens play" --backend ibm_kingston --submit

A run that was stopped goes on where it was: submitted jobs are fetched by their id, and circuits that the ledger holds are not run again.""",
}


# ---------------------------------------------------------------------------------------------- arguments
def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from .models import COHERENT, NAMES
    from .profiles import PROFILES
    from .training import Recipe

    def add(group, name: str, text: str, epilog: str = "") -> argparse.ArgumentParser:
        return group.add_parser(name, help=text, description=text, epilog=EPILOG.get(epilog or name), formatter_class=_Formatter)

    root = argparse.ArgumentParser(prog="bornlib", description=__doc__.splitlines()[0], epilog=EPILOG[""], formatter_class=_Formatter)
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)

    data = add(commands, "data", "e-SNLI's files: what is there, download, verification")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in (
        ("status", "show which files are there"),
        ("fetch", "download the official files, verified and resumable"),
        ("verify", "check every official file against its git blob id"),
    ):
        action = add(actions, name, text, "data")
        action.add_argument("--folder", type=Path, help="where the files lie (default: $BORNLIB_DATA, else data/esnli)")

    train = add(commands, "train", "train one model; resumable after a kill")
    for field in dataclasses.fields(Recipe):
        flag, default = "--" + field.name.replace("_", "-"), field.default
        if field.name == "model":
            train.add_argument(flag, choices=NAMES + COHERENT, default="born", help="which model (default: born)")
        elif isinstance(default, bool):
            text = "with a field per sentence" if field.name == "sentence_field" else "on or off"
            train.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        elif field.name == "part":
            train.add_argument("--unselected", dest="part", action="store_const", const="unselected", default="all", help="train on the unselected part")
        else:
            kind = int if default is None else type(default)
            unset = {"epochs": "16 for softmax, 10 for the coherent layer, else 8", "train_size": "all pairs"}
            text = f"default: {unset[field.name] if default is None else default}"
            train.add_argument(flag, type=kind, default=default, metavar=kind.__name__.upper(), help=text)
    train.add_argument("--profile", choices=PROFILES, help="corpus: quick is the mini corpus, else e-SNLI")
    train.add_argument("--device", default="cpu", help="cpu (default), cuda, ...")
    train.add_argument("--compile", action="store_true", help="a fifth faster where a C++ compiler is found; ends with other weights (rounding)")
    train.add_argument("--name", help="folder in runs/ that keeps the state (default: made from the options)")
    train.add_argument("--out", type=Path, help="checkpoint to write (default: runs/NAME/model.safetensors)")
    train.add_argument("--run", metavar="NAME", help="carry out a run of the project's plan instead; see --list")
    train.add_argument("--list", action="store_true", help="list the plan's runs and which are finished")

    evaluate = add(commands, "evaluate", "accuracy, also with premises shuffled among the pairs and with empty premises")
    evaluate.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help="a file or a shipped name such as born-seed0")
    evaluate.add_argument("--split", choices=("train", "dev", "test"), default="test")
    evaluate.add_argument("--profile", choices=PROFILES, help="corpus: quick is the mini corpus, else e-SNLI")
    evaluate.add_argument("--device", default="cpu", help="cpu (default), cuda, ...")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object a checkpoint")

    reproduce = add(commands, "reproduce", "execute the notebooks; writes their figures and tables")
    reproduce.add_argument("--profile", choices=PROFILES, help="default: $BORNLIB_PROFILE, else auto")
    reproduce.add_argument("--only", action="append", metavar="NN", help="only this notebook (may be repeated)")
    reproduce.add_argument("--force", action="store_true", help="run also what has not changed")
    reproduce.add_argument("-p", dest="parameters", action="append", default=[], metavar="NAME=VALUE", help="set a notebook's parameter")
    reproduce.add_argument("--write-notebooks", action="store_true", help="copy the cleaned outputs back into notebooks/")
    reproduce.add_argument("--list", action="store_true", help="list notebooks with their parameters, run nothing")

    explain = add(commands, "explain", "the answer for one pair and the evidence of each word")
    explain.add_argument("premise")
    explain.add_argument("hypothesis")
    explain.add_argument("--model", default="born", help="model name or checkpoint file (default: born)")
    explain.add_argument("--seed", type=int, default=0, help="which shipped weights (default: 0)")
    explain.add_argument("--class", dest="target", choices=("entailment", "neutral", "contradiction"), help="class to explain (default: the answer)")
    explain.add_argument("--nodes", default="auto", help="quadrature nodes: auto (default), exact, or a number")
    explain.add_argument("--json", action="store_true", help="print one JSON object")
    explain.add_argument("--html", type=Path, metavar="FILE", help="also write a self-contained page")
    explain.add_argument("--png", type=Path, metavar="FILE", help="also write a figure")

    explore = add(commands, "explore", "the interactive explorer as a page in the browser")
    explore.add_argument("--model", default="born", help="model name or checkpoint file (default: born)")
    explore.add_argument("--seed", type=int, default=0, help="which shipped weights (default: 0)")
    explore.add_argument("--profile", choices=PROFILES, help="corpus to step through: quick is the mini corpus, else e-SNLI where it is found")
    explore.add_argument("--pairs", type=Path, metavar="FILE", help="your own pairs to step through")
    explore.add_argument("--port", type=int, default=8866, help="default: 8866")
    explore.add_argument("--dark", action="store_true", help="light text on a dark ground")
    explore.add_argument("--no-browser", dest="browser", action="store_false", help="don't open a browser")

    device = add(commands, "device", "read a pair's attention by Hadamard tests: simulated, or on a real quantum computer")
    device.add_argument("premise")
    device.add_argument("hypothesis")
    device.add_argument("--without", type=int, action="append", default=[], metavar="SLOT", help="delete this slot first (may be repeated)")
    device.add_argument("--backend", default="fake_kingston", help="fake_kingston (default), ideal, or a real device such as ibm_kingston")
    device.add_argument("--shots", type=int, default=2000, help="shots per circuit (default: 2000)")
    device.add_argument("--seed", type=int, default=0, help="seed of simulated shots (default: 0)")
    device.add_argument("--ledger", type=Path, metavar="FILE", help="where circuits and counts are kept (default: runs/ledger/BACKEND.json)")
    device.add_argument("--submit", action="store_true", help="really run on a real device, which spends its quantum seconds")
    return root


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the examples' line breaks."""


# ---------------------------------------------------------------------------------------------- commands
def run_data(options) -> int:
    from . import corpus

    if options.action == "fetch":
        folder = corpus.fetch(options.folder)
        print(f"e-SNLI is complete in {folder}")
        return 0
    found = corpus.status(options.folder) if options.action == "status" else {"files": corpus.verify(options.folder), "extra": []}
    folder = options.folder or corpus.data_folder() or Path(os.environ.get("BORNLIB_DATA") or corpus.ROOT / "data" / "esnli")
    words = {"official": "official", "other": "DIFFERS from the official file", "missing": "missing"}
    rows = [(name, words[state]) for name, state in found["files"].items()]
    rows += [(name, "not an official file") for name in found["extra"]]
    size = lambda name: f"{(folder / name).stat().st_size / 2**20:.1f} MiB" if (folder / name).is_file() else ""  # noqa: E731
    print(f"folder: {folder}" + ("" if folder.is_dir() else " (not there)"))
    print_table(("file", "state", "size"), [(name, state, size(name)) for name, state in rows])
    if options.action == "verify":
        states = set(found["files"].values())
        if "other" in states:
            raise corpus.CorpusError("some files differ from the official ones; move them away and run `python -m bornlib data fetch`")
        if states == {"missing"}:
            raise corpus.CorpusError("there is no official file to verify; `python -m bornlib data fetch` gets e-SNLI")
        return 0
    for name, pairs in found["pairs"].items():
        of = f" of {corpus.FULL_TRAIN_SIZE:,}" if name == "train" else ""
        left_out = "".join(f", {n:,} rows left out ({reason})" for reason, n in found["dropped"][name].items())
        print(f"{name}: {pairs:,}{of} pairs{left_out}")
    if not {"dev", "test"} <= set(found["pairs"]):
        print("without dev and test the mini corpus is used; `python -m bornlib data fetch` gets e-SNLI")
    return 0


def run_train(options) -> int:
    from . import runs
    from .corpus import ROOT
    from .profiles import resolve
    from .training import Recipe, save_checkpoint, train

    if options.list:
        print_table(("run", "finished"), [(name, "yes" if runs.finished(name).exists() else "") for name in runs.plan()])
        return 0
    if options.run:
        if options.run not in runs.plan():
            raise ValueError(f"run: expected a name that `train --list` shows, got {options.run!r}")
        print(runs.run(options.run, device=checked_device(options.device), compile=options.compile))
        return 0
    recipe = Recipe(**{f.name: getattr(options, f.name) for f in dataclasses.fields(Recipe)})
    workspace = resolve(options.profile)
    name = options.name or default_name(recipe, workspace.name)
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"name: expected a plain folder name, got {name!r}")
    folder = ROOT / "runs" / name
    out = options.out or folder / "model.safetensors"
    check_writable(out)
    sets = [workspace.split(split).pairs for split in ("train", "dev")]
    model, vocabulary, log = train(recipe, *sets, folder, checked_device(options.device), compile=options.compile)
    save_checkpoint(out, model, vocabulary, recipe, log)
    last = log["epochs"][-1]
    print(f"{out}: {recipe.model}, {log['train_pairs']:,} training pairs, dev accuracy {last['dev_accuracy']:.4f} after {last['epoch']} epochs")
    return 0


def default_name(recipe, profile: str) -> str:
    """A run's name: model, seed and every option that differs from the default."""
    default = dataclasses.replace(recipe, **{f.name: f.default for f in dataclasses.fields(recipe) if f.name not in ("model", "seed")})
    parts = [recipe.model, f"seed{recipe.seed}"] + (["quick"] if profile == "quick" else [])
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if value != getattr(default, field.name):
            parts.append(f"{field.name}-{value}")
    return "_".join(parts)


def run_evaluate(options) -> int:
    from tqdm import tqdm

    from .corpus import FULL_TRAIN_SIZE
    from .explorer import find_checkpoint
    from .profiles import resolve
    from .training import controls, load_checkpoint

    device = checked_device(options.device)
    paths = [find_checkpoint(name) for name in options.checkpoints]
    loaded = [load_checkpoint(path) for path in paths]  # all are checked before the first is evaluated
    workspace = resolve(options.profile)
    pairs = workspace.split(options.split).pairs
    rows = []
    for path, (model, vocabulary, metadata) in tqdm(list(zip(paths, loaded, strict=True)), desc=f"evaluate on {options.split}", leave=False):
        result = controls(model.to(device), vocabulary, pairs)
        record = {
            "checkpoint": path.stem, "split": options.split, "pairs": len(pairs), "corpus": "mini corpus" if workspace.name == "quick" else "e-SNLI",
            "train_pairs": metadata["train_pairs"], **result,
        }  # fmt: skip
        if options.json:
            print(json.dumps(record), flush=True)
        rows.append((record["checkpoint"], f"{record['train_pairs']:,}", *(f"{v:.4f}" for v in result.values())))
    if not options.json:
        print(f"{len(pairs):,} {options.split} pairs of " + ("the mini corpus" if workspace.name == "quick" else "e-SNLI"))
        print_table(("checkpoint", "training pairs", "accuracy", "premises shuffled", "premise empty"), rows)
        if workspace.name != "quick":
            print(f"(the whole training set has {FULL_TRAIN_SIZE:,} pairs)")
    return 0


def run_reproduce(options) -> int:
    from . import regenerate

    if options.list:
        for path in regenerate.find(options.only):
            defaults = ", ".join(f"{k}={v!r}" for k, v in regenerate.parameters(path).items())
            print(f"{path.stem}: {defaults}")
        return 0
    results = regenerate.reproduce(options.profile, options.only, options.force, options.parameters, options.write_notebooks)
    print_table(("notebook", "result", "time", "written"), [r.row() for r in results])
    for r in results:
        if r.error:
            print(f"{r.name}: {r.error}", file=sys.stderr)
    return 1 if any(r.error for r in results) else 0


def run_explain(options) -> int:
    from . import explorer
    from .corpus import LABELS

    nodes = options.nodes
    if nodes not in ("auto", "exact"):
        if not nodes.isdecimal() or int(nodes) < 1:
            raise ValueError(f"nodes: expected auto, exact or a positive number, got {nodes!r}")
        nodes = int(nodes)
    for path in (options.html, options.png):
        if path:
            check_writable(path)
    target = None if options.target is None else LABELS.index(options.target)
    choice = explorer.Choice(options.model, options.seed, target)
    view = explorer.look(explorer.Subject.typed(options.premise, options.hypothesis), choice, nodes=nodes)
    evidence = view.evidence
    for side, cut in zip(("premise", "hypothesis"), evidence.encoded.cut, strict=True):
        if cut:
            print(f"bornlib: the last {cut} tokens of the {side} were cut (at most 64 in all)", file=sys.stderr)
    if options.html:
        options.html.write_text(explorer.page([view]), encoding="utf-8")
    if options.png:
        explorer.draw([view]).savefig(options.png, format="png", metadata={"Software": None})
    if options.json:
        print(json.dumps(explorer.as_json(evidence), ensure_ascii=False, indent=1, allow_nan=False))
    else:
        print_evidence(evidence)
    return 0


def run_explore(options) -> int:
    from .serve import serve

    serve(**{k: v for k, v in vars(options).items() if k != "command"})
    return 0


def run_device(options) -> int:
    import numpy as np

    from . import devices, explorer, overlaps
    from .corpus import LABELS, ROOT
    from .ledger import open_ledger

    model, vocabulary, _ = explorer.open_model("born", 0)
    encoded = explorer.encode(options.premise, options.hypothesis, vocabulary)
    if any(not 0 <= slot < len(encoded.ids) for slot in options.without):
        raise ValueError(f"without: expected slots in 0..{len(encoded.ids) - 1}, got {options.without}")
    encoded = encoded.without(options.without)
    slots, real = len(encoded.ids) + 1, options.backend not in ("fake_kingston", "ideal")
    circuits = overlaps.circuits_of(slots)
    seconds = 2 * devices.quantum_seconds(circuits, options.shots)
    print(f"{slots} slots: 2 jobs of {circuits} circuits, {options.shots} shots each; on a Heron device at most {seconds:.0f} quantum seconds")
    if real and not options.submit:
        print(f"nothing was submitted; add --submit to run this on {options.backend}")
        return 0
    path = options.ledger or ROOT / "runs" / "ledger" / f"{options.backend}.json"
    line = open_ledger(path).settings["line"] if path.exists() else None
    device = devices.connect(options.backend, line) if real else devices.simulator(noisy=options.backend != "ideal", line=line)
    name = " ".join(encoded.tokens)
    run = overlaps.run_pair(model, encoded, open_ledger(path, device.settings(options.shots)), device, name, seed=options.seed, progress=True)
    exact, read = overlaps.probabilities(model, [encoded])[0], overlaps.answer(model, run)
    low, high = np.quantile(overlaps.redrawn_answers(model, run), [0.025, 0.975], axis=0)
    rows = [(LABELS[c], f"{exact[c]:.3f}", f"{read[c]:.3f}", f"{low[c]:.3f} to {high[c]:.3f}") for c in range(len(LABELS))]
    print_table(("class", "exact", device.kind, "95 % of shots redrawn"), rows)
    print(f"ledger: {path}")
    return 0


COMMANDS = {"data": run_data, "train": run_train, "evaluate": run_evaluate, "reproduce": run_reproduce, "explain": run_explain, "explore": run_explore, "device": run_device}


def check_writable(path: Path) -> None:
    """Refuse an output file before the work, not after it."""
    if path.is_dir():
        raise ValueError(f"{path}: expected a file to write, got a folder")
    if path.parent.exists() and not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path}: the folder can't be written to")
    path.parent.mkdir(parents=True, exist_ok=True)


def checked_device(name: str) -> str:
    """The device's name, or a ValueError where torch does not have it."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {name!r} can't be used here ({str(error).splitlines()[0]})") from error
    return name


# ---------------------------------------------------------------------------------------------- terminal
def width(text: str) -> int:
    """Columns of a terminal that a text takes: wide characters two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def printable(text: str) -> str:
    """Text with what a terminal would obey (escape sequences, direction marks) replaced by its code."""
    return "".join(c if c.isprintable() else f"<{ord(c):02x}>" for c in text)


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Left-aligned columns, two spaces apart."""
    cells = [[printable(str(c)) for c in row] for row in (header, *rows)]
    widths = [max(width(row[k]) for row in cells) for k in range(len(header))]
    for i, row in enumerate(cells):
        print("  ".join(c + " " * (w - width(c)) for c, w in zip(row, widths, strict=True)).rstrip())
        if i == 0:
            print("  ".join("-" * w for w in widths))


def coloured() -> bool:
    """True where standard output is a terminal that wants colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


BAR = 18  # columns on each side of zero


def print_evidence(evidence) -> None:
    """The answer, a line for each slot with a bar left (against) or right (for) of zero, and the sum."""
    import numpy as np

    from .corpus import LABELS, SEP

    e, colour = evidence, coloured()
    red, blue, bold, faint, plain = ("\033[31m", "\033[34m", "\033[1m", "\033[2m", "\033[0m") if colour else ("",) * 5
    answer, explained = LABELS[int(np.argmax(e.probabilities))], LABELS[e.target]
    print(f"answer: {bold}{answer}{plain}   " + "   ".join(f"{n} {p:.3f}" for n, p in zip(LABELS, e.probabilities, strict=True)))
    print(f"evidence for {bold}{explained}{plain}, " + ("in probability" if e.unit == "probability" else "in logits") + "\n")
    unknown = ["" if known else " (unknown)" for known in e.encoded.known]
    names = [printable(t) + u for t, u in zip(e.encoded.tokens, unknown, strict=True)]
    column = max(12, *(width(n) for n in names))
    scale = max(np.abs(e.values).max(initial=0.0), 1e-300)
    ranks = {i: r + 1 for r, i in enumerate(sorted(np.flatnonzero(e.encoded.words), key=lambda i: -e.values[i]))}
    side = ("premise", "hypothesis")
    print(f"{'word':{column}}  {'sentence':10}  {'rank':>4}  {'evidence':>9}  {'against ':>{BAR}}| for")
    for i, (name, token, sentence, value) in enumerate(zip(names, e.encoded.tokens, e.encoded.sentence, e.values, strict=True)):
        length = round(BAR * abs(value) / scale)
        left, right = (length, 0) if value < 0 else (0, length)
        bar = " " * (BAR - left) + blue + "#" * left + plain + "|" + red + "#" * right + plain
        where = "" if token == SEP else side[sentence]
        tone = faint if i not in ranks else ""
        print(f"{tone}{name}{' ' * (column - width(name))}  {where:10}  {ranks.get(i, ''):>4}  {value:+9.4f}{plain if tone else ''}  {bar}".rstrip())
    total = float(e.values.sum())
    start = "no-information share" if e.unit == "probability" else "logit without words"
    print(f"\n{start} {e.baseline:.4f} + evidence {total:+.4f} = {explained} {e.score:.4f}")
    bound = "" if np.isnan(e.error_bound) else f", each word's error below {e.error_bound:.0e}"
    print(f"gap {e.gap:.0e} with {e.nodes} nodes{bound}")


# ---------------------------------------------------------------------------------------------- entry
def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit status: 0, 1 (a notebook failed), 2 (an error, said in one line), 130 (stopped)."""
    try:
        options = parser().parse_args(arguments)
        return COMMANDS[options.command](options)
    except KeyboardInterrupt:
        print("\nstopped; run again to resume", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CorpusError, ValueError, OSError, FloatingPointError) as error:  # CheckpointError is a ValueError
        if os.environ.get("BORNLIB_TRACEBACK"):
            raise
        print(f"bornlib: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
