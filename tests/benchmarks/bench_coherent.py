"""The coherent circuit's state: folded and contracted against Aer gate by gate, as ratios of processor time.

All three give the same class probabilities; the largest difference from the closed formula is shown beside.
Run with `python -m tests.benchmarks.bench_coherent [SLOT_QUBITS]`: 17 + 2 p qubits, by default p = 2.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from bornlib import coherent
from bornlib.models import build

AIM = 5  # times as fast as gate by gate


def measure(p: int) -> list[dict]:
    """One row a method: seconds, how many times as fast as gate by gate, largest difference in a class probability."""
    rng = np.random.default_rng(0)
    slots = rng.normal(size=(2**p, 32)) + 1j * rng.normal(size=(2**p, 32))
    maps = coherent.maps_of(build("coherent-brickwall", 10).double())
    parts, exact = coherent.stages(slots, maps), coherent.predict([slots], maps).classes[0]
    basis = coherent.in_basis(parts)
    circuit = coherent.assemble(basis)
    methods = {
        "Aer, gate by gate": lambda: coherent.read(coherent.statevector(circuit), circuit),
        "Aer, gates fused": lambda: coherent.read(coherent.statevector(circuit, fusion=True), circuit),
        "folded": lambda: coherent.read(coherent.folded_state(parts), coherent.assemble(parts)),
        "contracted, gate by gate": lambda: coherent.contract(basis),
        "contracted": lambda: coherent.contract(parts),
        "closed formula": lambda: coherent.predict([slots], maps),
    }
    rows = []
    for name, method in methods.items():
        start = time.process_time()
        reading = method()
        seconds = time.process_time() - start
        ratio = rows[0]["seconds"] / seconds if rows else 1.0
        rows.append(
            {"method": name, "seconds": seconds, "times as fast": ratio, "difference": np.abs(reading.classes - exact).max()}
        )
    return rows


def main(p: int = 2) -> None:
    torch.set_num_threads(1)
    print(
        f"coherent circuit, {17 + 2 * p} qubits, {coherent.brickwall_cnots(p)} CNOTs, one thread (aim for folded: {AIM} times as fast)"
    )
    print("  ".join(f"{key:>26}" for key in ("method", "seconds", "times as fast", "largest difference")))
    for row in measure(p):
        print(f"{row['method']:>26}  {row['seconds']:>26.3f}  {row['times as fast']:>26.1f}  {row['difference']:>26.0e}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
