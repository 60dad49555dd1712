"""The README says what is so: its results, its list of files, its commands. `python tests/test_readme.py` renews the results."""

import json
import re
import shlex

from bornlib import cli, figures
from bornlib.corpus import ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- results: begin.*?-->\n)(.*?)(<!-- results: end -->)", re.DOTALL)
PHOTOGRAPHED = {"explorer.png"}  # taken by a browser (`python -m tests.browser FILE`) and shown in the README without a row


def results() -> str:
    """The results table in Markdown, from Table 1 as notebook 03 wrote it."""
    rows = json.loads((ROOT / "data" / "tables" / "table1.json").read_text(encoding="utf-8"))["rows"]
    head = ("model", "", "training pairs", "test", "dev", "gap", "AOPC", "flip@1", "agreement")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for r in rows:
        cells = (
            figures.MODEL_NAMES[r["model"]], r["where"], f"{r['train_pairs']:,}", f"{r['test']:.2f} ± {r['test_sd']:.2f}", f"{r['dev']:.2f}",
            f"{r['gap_median']:.0e}, {r['gap_largest']:.0e}", f"{r['aopc']:.3f}", f"{r['flip1']:.2f}", f"{r['agreement']:.3f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def test_results_are_those_of_the_tables():
    assert BLOCK.search(README.read_text(encoding="utf-8")).group(2) == results()


def test_every_figure_and_table_is_listed_and_there():
    named = set(re.findall(r"`((?:figures|data/tables)/\w+\.\w+)`", README.read_text(encoding="utf-8")))
    pictures = {p.name for p in (ROOT / "figures").glob("*.png")} - PHOTOGRAPHED
    there = {f"figures/{name}" for name in pictures} | {f"data/tables/{p.name}" for p in (ROOT / "data" / "tables").glob("*.json")}
    assert named == there
    for name in there:
        assert (ROOT / name).with_suffix(".svg" if name.startswith("figures") else ".csv").is_file()


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_every_command_is_one():
    text = README.read_text(encoding="utf-8")
    commands = re.findall(r"^(?:python -m )?bornlib (.+)$", text, re.MULTILINE) + re.findall(r"`(?:python -m )?bornlib ([^`]+)`", text)
    assert len(commands) > 10
    for command in commands:
        cli.parser().parse_args(shlex.split(command))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", text)) <= targets


def test_the_sizes_named_are_those_of_the_weights():
    """The number of training pairs in the text is the one in the shipped checkpoints' metadata."""
    from safetensors import safe_open

    text = README.read_text(encoding="utf-8")
    paths = sorted((ROOT / "data" / "checkpoints").glob("*.safetensors"))
    assert paths
    for path in paths:
        with safe_open(path, "pt") as stream:
            metadata = stream.metadata()
        assert f"**{int(metadata['train_pairs']):,} of {int(metadata['train_pairs_of']):,} pairs**" in text


if __name__ == "__main__":
    README.write_text(BLOCK.sub(lambda m: m.group(1) + results() + m.group(3), README.read_text(encoding="utf-8")), encoding="utf-8")
