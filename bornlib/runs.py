"""Every training run behind the shipped checkpoints and the figures of notebook 02, by name, resumable."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from .corpus import ROOT
from .models import COHERENT, NAMES
from .profiles import CHECKPOINTS, SEEDS, Profile, checkpoint_name
from .training import Recipe, atomic_write, controls, save_checkpoint, train

LOGS = ROOT / "data" / "training"
MAIN = ("born", "softmax", "poly")
CURVE_SIZES = (5_000, 15_000, 45_000)  # the shipped runs give the last point, all pairs
SWEEP = {  # (epochs, word dropout) tried on dev with seed 0 beside the shipped run
    "born": ((16, 0.1), (5, 0.1)),
    "poly": ((5, 0.1), (8, 0.2)),
    "softmax": ((8, 0.1), (5, 0.1)),
}


def plan() -> dict[str, Recipe]:
    """Run name to recipe, in order of need. `ship_*` end as checkpoints, the others as a log in `data/training`."""
    ablations = [kind for kind in NAMES if kind not in MAIN]
    runs = {f"ship_{kind}_seed{seed}": Recipe(kind, seed) for kinds in (MAIN, ablations) for seed in SEEDS for kind in kinds}
    runs |= {f"nofield_{kind}_seed0": Recipe(kind, 0, sentence_field=False) for kind in ("poly", "poly-softmax")}
    for size in CURVE_SIZES:
        runs |= {f"curve_{kind}_seed{seed}_{size}": Recipe(kind, seed, train_size=size) for kind in MAIN for seed in SEEDS}
    runs["unselected_poly_seed0"] = Recipe("poly", 0, part="unselected")
    for kind, points in SWEEP.items():
        runs |= {f"sweep_{kind}_seed0_{e}_{p}": Recipe(kind, 0, epochs=e, word_dropout=p) for e, p in points}
    for kind in COHERENT:  # Table 4: ten epochs, three seeds of the all-brickwall layer; the dense one at twenty beside
        seeds = SEEDS if kind == "coherent-brickwall" else (0,)
        runs |= {f"ship_{kind}_seed{seed}": Recipe(kind, seed) for seed in seeds}
    return runs | {f"long_coherent_seed{seed}": Recipe("coherent", seed, epochs=20) for seed in SEEDS}


def finished(name: str) -> Path:
    """The file that a finished run leaves."""
    chosen = plan()[name]
    return CHECKPOINTS / checkpoint_name(chosen.model, chosen.seed) if name.startswith("ship_") else LOGS / f"{name}.json"


def run(name: str, folder: Path = ROOT / "runs", device: str = "cpu", progress: bool = True, compile: bool = False) -> Path:
    """Carry out one run of the plan (or finish it after a kill); a finished one is left as it is."""
    path = finished(name)
    if path.exists():
        return path
    chosen, split = plan()[name], Profile("full").split
    model, vocabulary, log = train(chosen, split("train").pairs, split("dev").pairs, folder / name, device, progress=progress, compile=compile)
    log["test"] = controls(model.cpu(), vocabulary, split("test").pairs)
    if name.startswith("ship_"):
        save_checkpoint(path, model, vocabulary, chosen, log)
    else:
        text = json.dumps({**log, "recipe": dataclasses.asdict(chosen)}, indent=1) + "\n"
        atomic_write(path, lambda p: p.write_text(text, encoding="utf-8"))
    return path
