"""Born evidence: seconds a pair (exact, auto, against captum at the same gap), memory by length, time by number of pairs.

Shipped weights where they are, else random ones; one thread, float64. The pairs are random words, 24 slots long
where nothing else is said, like e-SNLI's. Run with `python -m tests.benchmarks.bench_evidence`.
"""

from __future__ import annotations

import multiprocessing
import re
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from bornlib import evidence
from bornlib.corpus import SEP_ID, Encoded
from bornlib.models import Model, Trace, build
from bornlib.profiles import CHECKPOINTS, checkpoint_name
from bornlib.training import load_checkpoint

SLOTS, PAIRS, REPEATS = 24, 12, 3
AIM = 0.03  # seconds a pair of `auto`, certified at 1e-11
WORDS = 2000  # drawn from the most frequent
CAPTUM_GAP = 1e-8  # about the best of captum, which rounds its quadrature weights to float32


def model_and_name(kind: str) -> tuple[Model, str]:
    path = CHECKPOINTS / checkpoint_name(kind, 0)
    if path.is_file():
        return load_checkpoint(path, torch.float64)[0], "shipped weights"
    return build(kind, WORDS).double().eval().requires_grad_(False), "random weights"


def random_pairs(count: int, slots: int, seed: int = 0) -> list[Encoded]:
    rng = np.random.default_rng(seed)
    premise = slots * 2 // 3
    out = []
    for _ in range(count):
        ids = rng.integers(SEP_ID + 1, WORDS, slots)
        ids[premise] = SEP_ID
        out.append(Encoded([f"w{i}" for i in ids], ids.tolist(), [0] * premise + [1] * (slots - premise)))
    return out


def seconds(function) -> float:
    """Median processor time of a call; other processes are left out of it."""
    function()
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def largest_gap(found: list[evidence.Evidence]) -> float:
    return max(e.gap for e in found)


# ---------------------------------------------------------------------------------------------- captum
def captum_gap(model: Model, e: Encoded, nodes: int) -> float:
    """Completeness gap of captum's integrated gradients of the held score."""
    return abs(float(_captum(model, e, nodes).sum()) - _total(model, e))


def _captum(model: Model, e: Encoded, nodes: int) -> torch.Tensor:
    from captum.attr import IntegratedGradients

    ids, sentence = torch.tensor([e.ids]), torch.tensor([e.sentence])
    x, held = model.fields(ids, sentence), Trace()
    with torch.no_grad():
        target = int(model.scores(x, trace=held).argmax())

    def score(y: torch.Tensor) -> torch.Tensor:
        copies = [s.expand(len(y), *s.shape[1:]) for s in held.row_sums]
        return model.scores(y, held=Trace(row_sums=copies, total=held.total.expand(len(y))))

    return IntegratedGradients(score).attribute(x, torch.zeros_like(x), target=target, n_steps=nodes, method="gausslegendre")


def _total(model: Model, e: Encoded) -> float:
    found = evidence.word_evidence(model, [e], nodes="exact")[0]
    return found.score - found.baseline


def captum_nodes(model: Model, pairs: list[Encoded], gap: float) -> int:
    """The fewest of captum's steps, in eights up to 324, that reach the gap on every pair."""
    return next((n for n in range(16, 324, 8) if max(captum_gap(model, e, n) for e in pairs) <= gap), 324)


# ---------------------------------------------------------------------------------------------- memory
def peak_mib(slots: int, allowed: float) -> float:
    """Growth of a fresh process's memory at its highest while it explains 4 pairs; NaN where the system does not tell (no Linux)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    torch.set_num_threads(1)
    model, pairs = model_and_name("born")[0], random_pairs(4, slots)
    evidence.word_evidence(model, random_pairs(1, 2), nodes=8)  # what is needed once
    read = lambda key: int(re.search(rf"{key}:\s+(\d+)", status.read_text()).group(1)) / 1024  # noqa: E731
    before = read("VmRSS")
    evidence.word_evidence(model, pairs, nodes=56, slots_a_pass=10**9, memory_mib=allowed)
    return max(0.0, read("VmHWM") - before)


def peaks(cases: list[tuple[int, float]]) -> list[float]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        return list(pool.map(peak_mib, *zip(*cases, strict=True)))


# ---------------------------------------------------------------------------------------------- tables
def main() -> None:
    torch.set_num_threads(1)
    model, weights = model_and_name("born")
    pairs = random_pairs(PAIRS, SLOTS)
    print(f"Born evidence, {weights}, {PAIRS} pairs of {SLOTS} slots, one thread\n")
    print(f"{'method':34}{'s a pair':>10}{'of auto':>10}{'of 0.03 s':>11}{'largest gap':>13}")
    auto = evidence.word_evidence(model, pairs)
    base = seconds(lambda: evidence.word_evidence(model, pairs)) / PAIRS

    def row(name: str, value: float, gap: float) -> None:
        print(f"{name:34}{value:>10.4f}{value / base:>10.2f}{value / AIM:>11.2f}{gap:>13.0e}")

    row(f"auto ({max(e.nodes for e in auto)} nodes at most)", base, largest_gap(auto))
    exact = evidence.word_evidence(model, pairs, nodes="exact")
    row("exact (324 nodes)", seconds(lambda: evidence.word_evidence(model, pairs, nodes="exact")) / PAIRS, largest_gap(exact))
    t = evidence.gauss_legendre(64)[0]
    row("64 nodes, both blocks at each", seconds(lambda: [evidence.integrand(model, e, t) for e in pairs]) / PAIRS, float("nan"))
    few = pairs[:4]
    loose = evidence.word_evidence(model, pairs, tolerance=CAPTUM_GAP)
    row(f"auto to {CAPTUM_GAP:g}", seconds(lambda: evidence.word_evidence(model, pairs, tolerance=CAPTUM_GAP)) / PAIRS, largest_gap(loose))
    nodes = captum_nodes(model, few, CAPTUM_GAP)
    row(f"captum to {CAPTUM_GAP:g}, {nodes} nodes", seconds(lambda: [_captum(model, e, nodes) for e in few]) / len(few), max(captum_gap(model, e, nodes) for e in few))
    poly = model_and_name("poly")[0]
    row("Poly-sim-born, auto", seconds(lambda: evidence.word_evidence(poly, pairs)) / PAIRS, largest_gap(evidence.word_evidence(poly, pairs)))

    lengths, allowances = (8, 16, 32, 64), (512, 64)
    memory = iter(peaks([(slots, allowed) for slots in lengths for allowed in allowances]))
    print(f"\n{'slots':>6}{'s a pair':>10}" + "".join(f"{f'peak MiB, {a} allowed':>24}" for a in allowances))
    for slots in lengths:
        some = random_pairs(4, slots)
        cost = seconds(lambda some=some: evidence.word_evidence(model, some)) / len(some)
        print(f"{slots:>6}{cost:>10.4f}" + "".join(f"{next(memory):>24.0f}" for _ in allowances))

    print(f"\n{'pairs':>6}{'s a pair':>10}")
    for count in (1, 4, 16, 64):
        some = random_pairs(count, SLOTS)
        print(f"{count:>6}{seconds(lambda some=some: evidence.word_evidence(model, some)) / count:>10.4f}")


if __name__ == "__main__":
    main()
