"""Compiling meshes: all 32-mode meshes of a Born Transformer together, one by one, and by piquasso and lightworks.

One thread. lightworks makes triangles (Reck), piquasso rectangles (Clements) as we do. Ratios are to `together`, a mesh.
Run with `python -m tests.benchmarks.bench_optics`.
"""

from __future__ import annotations

import lightworks
import numpy as np
import piquasso
import torch
from lightworks import interferometers
from piquasso.decompositions import clements

from bornlib import optics
from bornlib.models import MODES

from .bench_evidence import model_and_name, seconds

AIM = 2.0  # seconds for every map of a model
FEW = 4  # meshes that the other packages are timed on


def main() -> None:
    torch.set_num_threads(1)
    model, weights = model_and_name("born")
    device = optics.compile_model(model)
    meshes = 2 * len(device.tiles.attenuator)
    unitaries = torch.cat([optics.mesh_matrix(device.tiles.left), optics.mesh_matrix(device.tiles.right)])
    whole = seconds(lambda: optics.compile_model(model))
    together = seconds(lambda: optics.decompose(unitaries)) / meshes
    few = unitaries[:FEW]
    print(
        f"All maps of a Born Transformer, {weights}: {meshes} meshes of {MODES} modes and the SVDs in {whole:.3f} s, {whole / AIM:.3f} of the {AIM:g} s aimed at\n"
    )
    print(f"{'decomposition':38}{'ms a mesh':>11}{'of together':>13}{'largest error':>15}")

    def row(name: str, time: float, error: float) -> None:
        print(f"{name:38}{1e3 * time:>11.2f}{time / together:>13.1f}{error:>15.0e}")

    row(
        f"bornlib, {meshes} meshes together",
        together,
        float((optics.mesh_matrix(optics.decompose(unitaries)) - unitaries).abs().max()),
    )
    one = lambda: [optics.decompose(u) for u in few]  # noqa: E731
    row(
        "bornlib, one by one",
        seconds(one) / FEW,
        max(float((optics.mesh_matrix(m) - u).abs().max()) for m, u in zip(one(), few, strict=True)),
    )
    connector = piquasso.NumpyConnector()
    theirs = lambda: [clements.clements(u.numpy(), connector) for u in few]  # noqa: E731
    back = [clements.inverse_clements(d, connector, complex) for d in theirs()]
    row(
        "piquasso, rectangle",
        seconds(theirs) / FEW,
        max(float(np.abs(b - u.numpy()).max()) for b, u in zip(back, few, strict=True)),
    )
    circuits = [lightworks.Unitary(u.numpy()) for u in few]
    reck = lambda: [interferometers.Reck().map(c) for c in circuits]  # noqa: E731
    row(
        "lightworks, triangle",
        seconds(reck) / FEW,
        max(float(np.abs(c.U - u.numpy()).max()) for c, u in zip(reck(), few, strict=True)),
    )


if __name__ == "__main__":
    main()
