"""A training step of each model as a share of what the machine's own matrix product would need for the same FLOPs.

FLOPs are those of every matrix product in a step, forward and backward, as torch dispatches them. Two yardsticks, both
one thread and float32: the rate on 1024 x 1024 matrices, and the same products alone, at their own shapes.
Run with `python -m tests.benchmarks.bench_training`.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bornlib.models import build

PAIRS, SLOTS, WORDS = 64, 24, 15_000  # a typical batch of e-SNLI and a typical vocabulary
STEPS, WARM_UP = 40, 5
AIM = 0.65
KINDS = ("born", "softmax", "poly")


class Products(TorchDispatchMode):
    """Counts the matrix products of what runs inside, by kind and shape (batch, rows, inner, columns)."""

    def __init__(self):
        super().__init__()
        self.found: Counter[tuple[int, int, int, int]] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"):
            a, b = args[:2] if name in ("mm", "bmm") else args[1:3]
            batch = a.shape[0] if a.dim() == 3 else 1
            self.found[batch, a.shape[-2], a.shape[-1], b.shape[-1]] += 1
        return function(*args, **(kwargs or {}))

    @property
    def flops(self) -> int:
        return sum(2 * b * m * k * n * count for (b, m, k, n), count in self.found.items())


def seconds(function, steps: int = STEPS) -> float:
    """Median processor time of a call; other processes are left out of it."""
    times = []
    for _ in range(WARM_UP + steps):
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)
    return statistics.median(times[WARM_UP:])


def training_step(kind: str, compile: bool = False):
    """A function that does one step of training on a fixed batch; `compile` as `bornlib train --compile` does it."""
    generator = torch.Generator().manual_seed(0)
    model = build(kind, WORDS)
    forward = torch.compile(model, dynamic=True) if compile else model
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    ids = torch.randint(3, WORDS, (PAIRS, SLOTS), generator=generator)
    sentence = (torch.arange(SLOTS) > SLOTS // 2).long().expand(PAIRS, SLOTS)
    labels = torch.randint(0, 3, (PAIRS,), generator=generator)

    def step():
        optimiser.zero_grad()
        F.nll_loss(forward(ids, sentence), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


def products_alone(found: Counter) -> float:
    """Seconds of the counted matrix products, each at its shape, without anything between them."""
    total = 0.0
    for (batch, rows, inner, columns), count in found.items():
        a, b = torch.randn(batch, rows, inner), torch.randn(batch, inner, columns)
        if batch == 1:
            a, b = a[0], b[0]
        out = a @ b
        total += count * seconds(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out), 20)
    return total


def measure() -> list[dict]:
    """Two rows a model, as it is and compiled: seconds of a step, GFLOP, share of the large product's rate and of the products at their shapes."""
    a = torch.randn(1024, 1024)
    out = torch.empty_like(a)
    rate = 2 * 1024**3 / seconds(lambda: torch.mm(a, a, out=out), 20)
    rows = []
    for kind in KINDS:
        step = training_step(kind)
        with Products() as products:
            step()
        alone = products_alone(products.found)
        for name, duration in ((kind, seconds(step)), (f"{kind}, compiled", seconds(training_step(kind, compile=True)))):
            rows.append(
                {
                    "model": name,
                    "step (ms)": 1e3 * duration,
                    "GFLOP": products.flops / 1e9,
                    "of sgemm 1024^3": products.flops / rate / duration,
                    "of sgemm, same shapes": alone / duration,
                }
            )
    return rows


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows = measure()
    torch.set_flush_denormal(False)
    print(f"training step, {PAIRS} pairs x {SLOTS} slots, one thread (aim for Born: {AIM})")
    print("  ".join(f"{key:>22}" for key in rows[0]))
    for row in rows:
        print("  ".join(f"{value:>22}" if isinstance(value, str) else f"{value:>22.2f}" for value in row.values()))


if __name__ == "__main__":
    main()
