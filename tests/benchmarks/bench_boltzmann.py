"""Decoding with sampled attention against the untouched model: one token after the other through the cache, on one thread.

SmolLM2-135M-Instruct (a small LLaMA of random weights where its package can't be had), layer 19, alpha = 0.3, K = 500, as in section 4.4 of the Boltzmann
paper, where thrml reaches 0.10 of the other backends. Processor time, everything compiled before the clock runs; the untouched model is timed before and after each backend.
Run with `python -m tests.benchmarks.bench_boltzmann`.
"""

from __future__ import annotations

import statistics

import torch

from bornlib import boltzmann, frozen

AIM = 0.5  # of the untouched model's tokens per second, with thrml
PROMPT, TOKENS = 40, 24
DRAWS = (10, 500, 2000)


def speeds(model, ids: torch.Tensor, layer: int, backend: str, draws: int) -> tuple[float, float, float]:
    """Tokens per processor second, their share of the untouched model's, and the sampler's share of the time."""
    settings = {"layers": layer, "backend": backend, "draws": draws, "blend": 0.3}
    boltzmann.through_cache(model, ids, PROMPT, **settings)  # compiles
    plain = boltzmann.through_cache(model, ids, PROMPT)[1]
    _, seconds, trace = boltzmann.through_cache(model, ids, PROMPT, **settings)
    plain = statistics.mean((plain, boltzmann.through_cache(model, ids, PROMPT)[1]))
    return TOKENS / seconds, plain / seconds, trace.seconds / seconds


def main() -> None:
    torch.set_num_threads(1)
    try:
        (model, _), layer, name = frozen.load(), 19, frozen.SMOLLM2
    except frozen.ModelUnavailable:
        (model, _), layer, name = frozen.miniature(), 2, "random weights"
    ids = torch.randint(0, 250, (1, PROMPT + TOKENS), generator=torch.Generator().manual_seed(0))
    print(f"decoding, {name}, layer {layer}, alpha = 0.3 (aim: thrml at K = 500 at least {AIM:g} of the untouched model)\n")
    print(f"{'backend':10}{'K':>6}{'tokens/s':>10}{'of vanilla':>12}{'in sampler':>12}")
    for backend in boltzmann.BACKENDS:
        for draws in DRAWS if backend == "thrml" else (500,):
            per_second, share, sampler = speeds(model, ids, layer, backend, draws)
            print(f"{backend:10}{draws:>6}{per_second:>10.1f}{share:>12.2f}{sampler:>12.2f}")


if __name__ == "__main__":
    main()
