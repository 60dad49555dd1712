"""Hadamard tests on a noise model: 272 circuits on the line of five qubits against the same circuits on the whole fake backend.

The 272 circuits of one block (8 slots) with 2,000 shots each and XY4, as in the paper's Table 10; random queries and keys. Transpiling is
timed apart: both sides get the same circuits. The whole backend is timed on a few circuits, its time for 272 is the straight line through
them. Run with `python -m tests.benchmarks.bench_overlaps`.
"""

from __future__ import annotations

import time

import numpy as np

from bornlib import devices, overlaps

SLOTS, SHOTS, DIFFERENT = 8, 2000, 16  # circuits transpiled; the others repeat them
FEW = (2, 34)
AIM = 1 / 10


def seconds(function) -> float:
    """Processor time of a call, threads included; other processes are left out of it."""
    start = time.process_time()
    function()
    return time.process_time() - start


def block_circuits(target) -> tuple[list, float]:
    """Circuits of one block as they are sent, and the seconds that one took to transpile (8 seeds) and to pad."""
    rng = np.random.default_rng(0)
    q, k = (rng.normal(size=(2, SLOTS, 16)) + 1j * rng.normal(size=(2, SLOTS, 16)) for _ in range(2))
    tests = [*overlaps.block_tests(q, k), *overlaps.calibration_tests(q)]
    made = []
    cost = seconds(
        lambda: made.extend(
            devices.decouple(devices.transpile(overlaps.circuit(t), target)[0], target) for t in tests[:DIFFERENT]
        )
    )
    return [made[i % DIFFERENT] for i in range(len(tests))], cost / DIFFERENT


def main() -> None:
    backend = devices.fake_kingston()
    line = devices.simulator(backend)
    circuits, transpiling = block_circuits(line.target)
    seeds = [np.random.SeedSequence(k) for k in range(len(circuits))]
    ours = seconds(lambda: line.submit(circuits, SHOTS, seeds, "bornlib-bench").result())
    placed = [devices.place(c, line.line, backend.num_qubits) for c in circuits[: max(FEW)]]
    backend.run(placed[:1], shots=SHOTS).result()  # what is built on first use is not timed
    few = [seconds(lambda n=n: backend.run(placed[:n], shots=SHOTS).result()) for n in FEW]
    slope = (few[1] - few[0]) / (FEW[1] - FEW[0])
    whole = few[0] + slope * (len(circuits) - FEW[0])
    print(f"{len(circuits)} circuits, {SHOTS} shots, XY4 (aim: {AIM:g} of the whole backend)\n")
    print(f"{'where':34}{'s':>10}{'of the whole':>14}")
    print(f"{'noise model of the line':34}{ours:>10.1f}{ours / whole:>14.3f}")
    print(f"{'whole fake backend':34}{whole:>10.1f}{1:>14}")
    print(
        f"\ntranspiling one circuit, best of 8 seeds, with XY4: {transpiling:.2f} s; all {len(circuits)}: {transpiling * len(circuits) / ours:.1f} of the run"
    )


if __name__ == "__main__":
    main()
