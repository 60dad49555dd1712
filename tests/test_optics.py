"""Optics: meshes against their matrices and piquasso, the device against the model, imperfections against their definitions."""

import math

import numpy as np
import piquasso
import pytest
import scipy.stats
import torch
from piquasso.decompositions import clements

from bornlib import evidence, optics
from bornlib.corpus import PAD, SEP, UNK, Vocabulary, collate, encode
from bornlib.models import CHANNELS, HEADS, MODES, Trace, build

SIZES = (1, 2, 3, 5, 32, 64)
WORDS = "a the man woman dog cat runs sleeps eats in park house".split()
VOCABULARY = Vocabulary([PAD, UNK, SEP, *WORDS])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def haar(n, seed=0):
    return torch.from_numpy(np.asarray(scipy.stats.unitary_group.rvs(n, random_state=seed), complex).reshape(n, n))


def phases(n):
    return torch.polar(torch.ones(n, dtype=torch.float64), torch.arange(n).double() ** 2)


def blocks(n):
    out = torch.eye(n, dtype=torch.complex128)
    for start in range(0, n - 1, 3):
        size = min(2, n - start)
        out[start : start + size, start : start + size] = haar(size, start)
    return out


UNITARIES = {
    "haar": haar,
    "identity": lambda n: torch.eye(n, dtype=torch.complex128),
    "diagonal": lambda n: torch.diag(phases(n)),
    "permutation": lambda n: torch.eye(n, dtype=torch.complex128)[torch.randperm(n, generator=seeded(1))],
    "blocks": blocks,
    "anti-diagonal": lambda n: torch.diag(phases(n)).flip(0),
    "rotation": lambda n: torch.linalg.qr(haar(n).real)[0].to(torch.complex128),
    "Fourier": lambda n: torch.fft.fft(torch.eye(n, dtype=torch.complex128), norm="ortho"),
}


@pytest.fixture(scope="module")
def model():
    out = build("born", len(VOCABULARY), 3).double().eval().requires_grad_(False)
    for block in out.blocks:
        block.gain.copy_(torch.rand(CHANNELS, generator=seeded(5), dtype=torch.float64) + 0.5)
    out.phase.copy_(torch.randn(out.phase.shape, generator=seeded(6), dtype=torch.float64))
    out.reference_gain.fill_(1.7)
    return out


@pytest.fixture(scope="module")
def device(model):
    return optics.compile_model(model)


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    return [encode(list(rng.choice(WORDS, n)), list(rng.choice(WORDS, m)), VOCABULARY) for n, m in ((4, 3), (1, 1), (6, 2))]


# ---------------------------------------------------------------------------------------------- meshes
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", UNITARIES)
def test_a_mesh_realises_its_matrix(kind, n):
    unitary = UNITARIES[kind](n)
    mesh = optics.decompose(unitary)
    assert (optics.mesh_matrix(mesh) - unitary).abs().max() < 1e-12
    fields = torch.randn(4, n, generator=seeded(), dtype=torch.complex128)
    assert (optics.propagate(mesh, fields) - fields @ unitary.T).abs().max() < 1e-12


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
def test_a_rectangle_has_every_place_taken_once(n):
    places = [(layer, mode) for _, _, _, mode, layer in optics._schedule(n)]
    assert len(set(places)) == len(places) == n * (n - 1) // 2
    assert all(layer < optics.mesh_layers(n) and mode % 2 == layer % 2 for layer, mode in places)


def test_many_matrices_at_once_are_each_its_own():
    stack = torch.stack([UNITARIES[kind](5) for kind in UNITARIES]).view(2, -1, 5, 5)
    together = optics.decompose(stack)
    assert together.theta.shape == (2, len(UNITARIES) // 2, 5, 2) and together.out.shape == (2, len(UNITARIES) // 2, 5)
    assert torch.equal(together.phi[1, 0], optics.decompose(stack[1, 0]).phi)
    assert (optics.mesh_matrix(together) - stack).abs().max() < 1e-12


def test_every_phase_matters():
    """No phase is left out of the mesh: moving any one of them by 0.1 moves the matrix."""
    mesh = optics.decompose(haar(5))
    matrix = optics.mesh_matrix(mesh)
    changed = 0
    for name in ("theta", "phi", "out"):
        for place in np.ndindex(*getattr(mesh, name).shape):
            moved = {k: getattr(mesh, k).clone() for k in ("theta", "phi", "out")}
            moved[name][place] += 0.1
            changed += bool((optics.mesh_matrix(optics.Mesh(**moved)) - matrix).abs().max() > 1e-3)
    assert changed == 2 * 10 + 5


@pytest.mark.parametrize("scale", [1.0, 1 + 1e-6, 0.5])
def test_a_matrix_that_is_not_unitary_is_refused_with_its_defect(scale):
    matrix = scale * haar(4)
    if scale == 1.0:
        assert optics.decompose(matrix).theta.shape == (4, 2)
        return
    with pytest.raises(ValueError, match=rf"unitary.*defect of {abs(scale**2 - 1):.3g}"):
        optics.decompose(matrix)


@pytest.mark.parametrize("bad", [torch.full((3, 3), torch.nan), torch.ones(3, 2), torch.ones(3), torch.ones(0, 0)])
def test_what_is_no_matrix_is_refused(bad):
    with pytest.raises(ValueError, match="unitary: expected (finite|square)"):
        optics.decompose(bad)


@pytest.mark.parametrize("n", [2, 5, 32])
def test_piquasso_finds_the_same_interferometers(n):
    """An independent decomposition has the same splitting ratios. Its rectangle of an even number of modes begins with the
    shorter layer: ours for the transposed matrix, last layer first.
    """
    unitary = haar(n, n)
    mesh, layers = optics.decompose(unitary), optics.mesh_layers(n)
    turned = unitary.T if n % 2 == 0 else unitary
    free = [0] * n
    for gate in clements.clements(turned.numpy().copy(), piquasso.NumpyConnector()).beamsplitters:
        mode = min(gate.modes)
        layer = max(free[mode : mode + 2])
        free[mode : mode + 2] = [layer + 1] * 2
        ours = mesh.theta[layers - 1 - layer if n % 2 == 0 else layer, mode // 2]
        assert math.cos(ours / 2) ** 2 == pytest.approx(math.cos(gate.params[0]) ** 2, abs=1e-10)
    assert set(free) <= {layers, layers - 1}


@pytest.mark.parametrize("n", [2, 5, 32])
def test_piquasso_simulates_our_phases_to_the_same_matrix(n):
    unitary = haar(n, n)
    mesh, gates = optics.decompose(unitary), []
    for layer in range(optics.mesh_layers(n)):
        for k in range((n - layer % 2) // 2):
            mode, params = 2 * k + layer % 2, (float(mesh.theta[layer, k]) / 2, float(mesh.phi[layer, k]))
            gates.append(clements.BS(modes=(mode, mode + 1), params=params))
    last = [clements.PS(mode=m, phi=float(p)) for m, p in enumerate(mesh.out)]
    theirs = clements.inverse_clements(
        clements.Decomposition(beamsplitters=gates, phaseshifters=last), piquasso.NumpyConnector(), complex
    )
    assert np.abs(theirs - unitary.numpy()).max() < 1e-12


def test_a_mesh_keeps_light_and_loss_takes_it():
    mesh, fields = optics.decompose(haar(6)), torch.randn(3, 6, generator=seeded(), dtype=torch.complex128)
    power = lambda h: h.abs().square().sum(-1)  # noqa: E731
    assert torch.allclose(power(optics.propagate(mesh, fields)), power(fields), rtol=1e-13)
    # an even number of modes: inner paths meet 6 MZIs, the outermost at least 3
    left = power(optics.propagate(mesh, fields, 0.5)) / power(fields)
    assert (left > 10 ** (-0.05 * 6)).all() and (left < 10 ** (-0.05 * 3)).all()
    two = optics.decompose(haar(2))
    assert torch.allclose(power(optics.propagate(two, fields[:, :2], 3.0)), 10**-0.3 * power(fields[:, :2]), rtol=1e-13)


# ---------------------------------------------------------------------------------------------- any matrix
@pytest.mark.parametrize("n", [1, 3, 32])
@pytest.mark.parametrize("kind", ["random", "rank 1", "zero", "unitary"])
def test_any_matrix_is_mesh_attenuators_mesh(kind, n):
    matrix = {
        "random": torch.randn(n, n, generator=seeded(), dtype=torch.complex128),
        "rank 1": torch.outer(haar(n)[0], haar(n, 1)[0]) * 30,
        "zero": torch.zeros(n, n, dtype=torch.complex128),
        "unitary": haar(n),
    }[kind]
    compiled, gain = optics.compile_matrices(matrix)
    passive = optics.through(compiled, torch.eye(n, dtype=torch.complex128)).T
    assert (gain * passive - matrix).abs().max() < 1e-12 * max(1, float(gain))
    assert torch.linalg.matrix_norm(passive, 2) < 1 + 1e-12
    assert float(gain) == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)) or 1.0)


def test_gains_that_would_need_amplifiers_are_refused():
    matrix = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.complex128))
    assert torch.allclose(
        optics.compile_matrices(matrix, 6.0)[0].attenuator, 2 * torch.acos(torch.tensor([1 / 2, 1 / 6], dtype=torch.float64))
    )
    with pytest.raises(ValueError, match="gain: expected at least .* 3, got 2"):
        optics.compile_matrices(matrix, 2.0)
    for bad in (matrix * torch.inf, matrix[:1]):
        with pytest.raises(ValueError, match="matrices: expected"):
            optics.compile_matrices(bad)


# ---------------------------------------------------------------------------------------------- the device
def test_the_device_is_the_model(model, device, pairs):
    """Attention and fields of every slot and block, homodyne readings and probabilities to 1e-12, layer by layer and by its matrices."""
    ids, sentence = collate(pairs)
    words, mask = optics.word_fields(model, pairs)
    trace = Trace()
    x = model.fields(ids, sentence)
    probabilities = model.scores(x, trace=trace)
    fields = [model.enter(x)]
    for block in model.blocks:
        fields.append(block(fields[-1], None, None))
    for maps in (None, optics.matrices(device)):
        stages = optics.simulate(device, words, mask, maps=maps)
        assert (stages.probabilities - probabilities).abs().max() < 1e-12
        for b in range(2):
            assert (stages.attention[b] - trace.attention[b]).abs().max() < 1e-12
            assert (stages.row_sums[b] - trace.row_sums[b]).abs().max() < 1e-10
            assert (torch.cat([stages.after[b].real, stages.after[b].imag], -1) - fields[b + 1]).abs().max() < 1e-12


def test_a_pair_shows_the_same_alone_and_beside_a_longer_one(model, device, pairs):
    for photons in (None, 1e4):
        together = optics.simulate(device, *optics.word_fields(model, pairs), photons, seeded())
        assert (together.attention[0][1, :, :, 4:] == 0).all(), "nothing is attended where no word is"
        assert (together.readings[0][1, 4:] == 0).all()
    alone = optics.simulate(device, *optics.word_fields(model, pairs[1:2]))
    together = optics.simulate(device, *optics.word_fields(model, pairs))
    assert (together.probabilities[1] - alone.probabilities[0]).abs().max() < 1e-12


def test_detectors_see_interference(model, device, pairs):
    """The reading Re<u|v> is the difference of what two detectors behind a 50:50 splitter see."""
    u, v = torch.randn(2, 7, 16, generator=seeded(), dtype=torch.complex128)
    one, other = (u + v) / math.sqrt(2), (u - v) / math.sqrt(2)
    seen = [h.abs().square().sum(-1) for h in (one, other)]
    product, light = (u.conj() * v).sum(-1).real, u.abs().square().sum(-1) + v.abs().square().sum(-1)
    for sign, power in zip((1, -1), seen, strict=True):
        assert torch.allclose(power, light / 2 + sign * product)
    (reading,) = optics._Detectors(None, None, None).balanced([product], light)
    assert torch.allclose(reading, (seen[0] - seen[1]) / 2)


def test_shot_noise_is_that_of_whole_photons():
    """Counts are whole numbers, unbiased, with the variance of Poisson light; `photons` is their mean over detectors."""
    light, product = torch.full((1, 40_000), 3.0, dtype=torch.float64), torch.full((1, 40_000), 0.7, dtype=torch.float64)
    detectors = optics._Detectors(50.0, seeded(), None)
    (reading,) = detectors.balanced([product], light)
    exposure = float(detectors.used[0])
    assert exposure == pytest.approx(50 / 1.5)
    assert torch.allclose(reading * 2 * exposure, (reading * 2 * exposure).round(), atol=1e-9)
    deviation = math.sqrt(3.0 / exposure) / 2
    assert float(reading.mean()) == pytest.approx(0.7, abs=4 * deviation / 200)
    assert float(reading.std()) == pytest.approx(deviation, rel=0.02)
    pixels = optics._Detectors(50.0, seeded(1), None).count(torch.cat([light, 2 * light], 1))
    assert float(pixels.mean()) == pytest.approx(4.5, rel=0.01)
    # the mean of 3 and 6 is exposed to 50 photons: a pixel of 3 has 33 of them, and 3^2 / 33 is its variance
    assert float(pixels[:, :40_000].var()) == pytest.approx(9 / (50 * 3 / 4.5), rel=0.05)


def test_noise_needs_its_generator_and_follows_it(model, device, pairs):
    words, mask = optics.word_fields(model, pairs)
    maps = optics.matrices(device)
    for photons, generator in ((1e3, None), (0.0, seeded()), (-1.0, seeded()), (math.inf, seeded()), (math.nan, seeded())):
        with pytest.raises(ValueError, match="photons"):
            optics.simulate(device, words, mask, photons, generator)
    with pytest.raises(ValueError, match="words: expected complex"):
        optics.simulate(device, words.real, mask)
    with pytest.raises(ValueError, match="generator"):
        optics.imperfect(device, phase_noise=0.1)
    a, b, c = (optics.simulate(device, words, mask, 1e3, seeded(s), maps=maps).probabilities for s in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)
    a, b, c = (optics.imperfect(device, phase_noise=0.1, generator=seeded(s)).tiles.left.phi for s in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_more_photons_bring_the_model_back(model, device, pairs):
    words, mask = optics.word_fields(model, pairs)
    exact = optics.simulate(device, words, mask).probabilities
    errors = [
        float((optics.simulate(device, words, mask, p, seeded(), maps=optics.matrices(device)).probabilities - exact).abs().max())
        for p in (1e4, 1e8, 1e12)
    ]
    assert errors[0] > 3 * errors[1] and errors[1] > 3 * errors[2] and errors[2] < 1e-4


# ---------------------------------------------------------------------------------------------- imperfections
def test_no_imperfection_changes_nothing(model, device, pairs):
    same = optics.imperfect(device)
    ids, sentence = collate(pairs)
    assert all(torch.equal(a, b) for a, b in zip(optics.matrices(same).values(), optics.matrices(device).values(), strict=True))
    assert (optics.as_model(same, model)(ids, sentence) - model(ids, sentence)).abs().max() < 1e-12


def test_every_phase_is_off_by_the_stated_noise(device):
    """theta, phi and output phases of both meshes, attenuators and modulators: normal errors with the given deviation."""
    noisy = optics.imperfect(device, phase_noise=0.03, generator=seeded())
    both = [
        (getattr(getattr(d.tiles, side), name))
        for side in ("left", "right")
        for name in ("theta", "phi", "out")
        for d in (noisy, device)
    ]
    both += [noisy.tiles.attenuator, device.tiles.attenuator, noisy.modulator, device.modulator]
    for off, ideal in zip(both[::2], both[1::2], strict=True):
        error = off - ideal
        assert float(error.std()) == pytest.approx(0.03, rel=0.08) and abs(float(error.mean())) < 0.003


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_phases_are_rounded_to_the_levels_there_are(device, bits):
    rounded = optics.imperfect(device, phase_bits=bits)
    levels = 2**bits / (2 * math.pi)
    for name in ("theta", "phi", "out"):
        steps = getattr(rounded.tiles.left, name) * levels
        assert torch.allclose(steps, steps.round(), atol=1e-9)
        assert (getattr(rounded.tiles.left, name) - getattr(device.tiles.left, name)).abs().max() <= 0.5 / levels + 1e-12
    fields = optics.modulate(rounded, torch.randn(1, 4, MODES, generator=seeded(), dtype=torch.complex128))
    assert torch.allclose(torch.remainder(fields.angle() * levels + 0.5, 1), torch.tensor(0.5, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize(
    "wrong", [{"phase_noise": -1.0}, {"loss_db": math.nan}, {"phase_bits": 0}, {"phase_bits": 2.5}, {"phase_bits": True}]
)
def test_imperfections_that_make_no_sense_are_refused(device, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        optics.imperfect(device, **wrong, generator=seeded())


def test_an_imperfect_device_is_another_born_model(model, device, pairs):
    """The model of a device with noise, rounding and loss together gives what its light shows; its evidence is complete."""
    worse = optics.imperfect(device, 0.05, 7, 0.05, seeded())
    optical = optics.as_model(worse, model)
    words, mask = optics.word_fields(model, pairs)
    seen = optics.simulate(worse, words, mask).probabilities
    ids, sentence = collate(pairs)
    with torch.no_grad():
        assert (optical(ids, sentence).exp() - seen).abs().max() < 1e-12
        assert (seen - model(ids, sentence).exp()).abs().max() > 0.01
    assert max(e.gap for e in evidence.word_evidence(optical, pairs)) < 1e-11
    assert not model.reference.equal(optical.reference) and model.kind == optical.kind, "the model itself stays"


def test_recalibrated_gains_undo_uniform_loss(model, device, pairs):
    """If all of a map's light is weakened alike, its gain brings the matrix back; real loss leaves only what is not uniform."""
    dark = optics.imperfect(device, loss_db=0.1)
    wanted = optics.model_maps(model)
    for name, matrix in optics.matrices(optics.recalibrate(dark, model)).items():
        lossy = optics.matrices(dark)[name]
        remaining, before = ((m - wanted[name]).norm() / wanted[name].norm() for m in (matrix, lossy))
        assert remaining < 0.2 < before
        assert abs(float(((wanted[name] - matrix).conj() * matrix).sum().real)) < 1e-9, "least squares"


# ---------------------------------------------------------------------------------------------- evidence from readings
def test_measured_evidence_tends_to_the_exact_one(model, device, pairs):
    exact = evidence.word_evidence(model, pairs[:1], nodes="exact")[0]
    words = optics.word_fields(model, pairs[:1])[0]
    errors = []
    for photons in (1e6, 1e10, 1e14):
        values, seen = optics.measured_evidence(device, words, exact.target, photons, seeded())
        errors.append(np.abs(values - exact.values).max())
        assert values.shape == exact.values.shape and seen.sum() == pytest.approx(1)
    assert errors[0] > 3 * errors[1] > 9 * errors[2] and errors[2] < 1e-5


def test_measured_evidence_does_not_depend_on_how_nodes_are_batched(model, device, pairs):
    """Noise apart: with so much light that there is hardly any, node by node and all nodes at once give the same."""
    words = optics.word_fields(model, pairs[1:2])[0]
    a, b = (optics.measured_evidence(device, words, 0, 1e14, seeded(), slots_a_pass=n)[0] for n in (1, 10_000))
    assert np.abs(a - b).max() < 1e-5 * np.abs(a).max()


# ---------------------------------------------------------------------------------------------- accounts
def test_light_only_gets_less_on_passive_ways(model, device, pairs):
    stages = optics.simulate(device, *optics.word_fields(model, pairs[:1]))
    shares = dict(optics.light_left(device, stages))
    assert float(shares["fields"]) == 1
    assert 0 < float(shares["camera"]) < float(shares["lens"])
    assert all(0 < float(s) <= 1 for s in shares.values())


def test_components_add_up(device):
    rows = optics.components(device, 8)
    parts, total = rows[:-1], rows[-1]
    mzis = MODES * (MODES - 1) // 2
    # 4 maps of one tile, 3 maps of 6 tiles (170 = 5 x 32 + 10) in each block, 6 tiles of the camera
    assert total["meshes"] == 2 * (2 * (4 + 18) + 6) == 2 * len(device.tiles.attenuator)
    assert total["MZIs"] == total["meshes"] * mzis + 50 * MODES
    phases = (
        sum(p.numel() for m in (device.tiles.left, device.tiles.right) for p in (m.out,))
        + device.tiles.attenuator.numel()
        + 2 * mzis * total["meshes"]
    )
    assert total["phases"] == phases + MODES
    overlaps = next(r for r in parts if "overlaps" in r["part"])
    assert overlaps["a sentence"] == 2 * HEADS * 8 * 8
    for key in ("meshes", "MZIs", "phases", "detectors", "a sentence"):
        assert total[key] == sum(r[key] for r in parts)


def test_only_a_born_transformer_is_compiled():
    with pytest.raises(ValueError, match="model: expected a Born Transformer, got 'poly'"):
        optics.compile_model(build("poly", len(VOCABULARY)))
