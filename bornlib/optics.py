"""A trained Born Transformer on light: interferometer meshes, attenuators, detectors and a camera (paper Figure 5).

A complex matrix W is compiled by its singular values to mesh, attenuators, mesh, with an overall gain kept apart:
W = gain * U diag(s / gain) V. A mesh is Clements' rectangle of Mach-Zehnder interferometers (MZIs), here with

    T(theta, phi) = [[e^{i phi} cos(theta/2), -sin(theta/2)], [e^{i phi} sin(theta/2), cos(theta/2)]],

theta the phase between the MZI's arms, phi the phase before it; a phase per mode follows at the end. An attenuator is an MZI with one
output thrown away: cos(theta/2). The larger matrices (W_1, W_2*, W_3, camera) are cut into 32 x 32 tiles, so that every mesh has
32 modes. Choices that the paper leaves open:

- amplitudes of modulators and attention weights are set by absorption, anew for each sentence, and have no phase;
- one copy of each mesh, through which a sentence's slots pass one after the other; W_2* acts on the phase-conjugated field;
- electronics multiplies readings by known gains; it subtracts no background.

Letters in shape comments: B pairs, S slots with the reference, H heads, M = 32 modes, T tiles.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from .corpus import LABELS, MAX_TOKENS, PAD_ID, Encoded, collate
from .evidence import gauss_legendre
from .models import BLOCKS, CHANNELS, HEADS, MODES, PIXELS, BornTransformer, normalise_rows

MAPS = ("query", "key", "value", "output", "first", "second", "third")  # of each block
UNITARY = 1e-10  # largest defect |U* U - 1| that counts as rounding
MOST_PHOTONS = 1e14  # a mean; single detectors see up to some thousand times as much, and counts must fit 63 bits
NODES = 56  # of the path when every reading is noisy: quadrature error below 1e-10, far below any noise


# ---------------------------------------------------------------------------------------------- meshes
@dataclass(frozen=True)
class Mesh:
    """Phases of rectangular meshes of n modes: `theta`, `phi` (..., layers, n // 2) and `out` (..., n), radians, float64.

    MZI k of layer l joins modes 2k + l % 2 and the next; places beyond the rectangle's edge are not used.
    """

    theta: Tensor
    phi: Tensor
    out: Tensor


@functools.cache
def _schedule(n: int) -> list[tuple[bool, int, int, int, int]]:
    """Clements' order of nulling: (from the right, row, column, mode, layer of the MZI), mode the upper of the MZI's two."""
    steps = []
    for k in range(n - 1):  # along the k-th anti-diagonal from the lower left
        for j in range(k + 1):
            steps.append((True, n - 1 - j, k - j, k - j) if k % 2 == 0 else (False, n - 1 - k + j, j, n - 2 - k + j))
    free, layers = [0] * n, {}
    for i in [i for i, s in enumerate(steps) if s[0]] + [
        i for i, s in reversed(list(enumerate(steps))) if not s[0]
    ]:  # as light meets them
        m = steps[i][3]
        layers[i] = max(free[m], free[m + 1])
        free[m] = free[m + 1] = layers[i] + 1
    return [(*step, layers[i]) for i, step in enumerate(steps)]


def mesh_layers(n: int) -> int:
    """Layers of a rectangle of n modes: n, but one for 2 modes and none for 1."""
    return n if n > 2 else n - 1


def decompose(unitary: Tensor) -> Mesh:
    """Phases of the meshes that realise unitary matrices (..., n, n), all at once; complex128.

    Raises ValueError for a matrix that is not unitary, stating its defect, the largest entry of |U* U - 1|.
    """
    u = np.array(torch.as_tensor(unitary).resolve_conj().numpy(), np.complex128)
    if u.ndim < 2 or u.shape[-1] != u.shape[-2] or u.shape[-1] < 1:
        raise ValueError(f"unitary: expected square matrices (..., n, n), got shape {u.shape}")
    if not np.isfinite(u).all():
        raise ValueError("unitary: expected finite entries, got NaN or infinity")
    batch, n = u.shape[:-2], u.shape[-1]
    u = u.reshape(-1, n, n)
    defect = np.abs(u.conj().swapaxes(1, 2) @ u - np.eye(n)).max(initial=0.0)
    if defect > UNITARY:
        raise ValueError(f"unitary: expected |U* U - 1| below {UNITARY:g}, got a matrix with a defect of {defect:.3g}")
    shape = (len(u), mesh_layers(n), n // 2)
    theta, phi = np.zeros(shape), np.zeros(shape)
    steps = _schedule(n)
    for right, row, column, m, layer in steps:
        if right:  # U T* has a zero at (row, m)
            a, b = u[:, row, m], u[:, row, m + 1]
            half, p = np.arctan2(np.abs(a), np.abs(b)), np.angle(a) - np.angle(b)
            c, s, e = (v[:, None] for v in (np.cos(half), np.sin(half), np.exp(-1j * p)))
            x, y = u[:, :, m] * e, u[:, :, m + 1]
            u[:, :, m], u[:, :, m + 1] = c * x - s * y, s * x + c * y
        else:  # T U has a zero at (row, column)
            a, b = u[:, m, column], u[:, row, column]
            half, p = np.arctan2(np.abs(b), np.abs(a)), np.angle(b) - np.angle(a) + np.pi
            c, s, e = (v[:, None] for v in (np.cos(half), np.sin(half), np.exp(1j * p)))
            x, y = u[:, m] * e, u[:, row]
            u[:, m], u[:, row] = c * x - s * y, s * x + c * y
        theta[:, layer, m // 2], phi[:, layer, m // 2] = 2 * half, p
    out = np.angle(np.diagonal(u, axis1=1, axis2=2)).copy()
    for right, _, _, m, layer in reversed(steps):  # T* D = D' T' takes the left ones to the other side
        if not right:
            place = (slice(None), layer, m // 2)
            phi[place], out[:, m] = out[:, m] - out[:, m + 1] + np.pi, out[:, m + 1] + np.pi - phi[place]
    wrap = lambda v, size: torch.from_numpy(np.mod(v, 2 * np.pi).reshape(*batch, *size))  # noqa: E731
    return Mesh(torch.from_numpy(theta.reshape(*batch, *shape[1:])), wrap(phi, shape[1:]), wrap(out, (n,)))


def propagate(mesh: Mesh, fields: Tensor, loss_db: float = 0.0) -> Tensor:
    """Fields (..., N, n) after the meshes (...): layer by layer, each MZI losing `loss_db` dB of the power in both of its modes."""
    n = mesh.out.shape[-1]
    kept = 10 ** (-loss_db / 20)
    c, s = (mesh.theta / 2).cos() * kept, (mesh.theta / 2).sin() * kept
    e = torch.polar(torch.ones_like(mesh.phi), mesh.phi)
    h = torch.empty(torch.broadcast_shapes(fields.shape[:-2], mesh.out.shape[:-1]) + fields.shape[-2:], dtype=torch.complex128)
    h[:] = fields
    for layer in range(mesh.theta.shape[-2]):
        first = layer % 2
        k = (n - first) // 2
        C, S, E = (v[..., layer, :k].unsqueeze(-2) for v in (c, s, e))
        a, b = h[..., first : first + 2 * k : 2] * E, h[..., first + 1 : first + 2 * k : 2].clone()
        h[..., first : first + 2 * k : 2] = C * a - S * b
        h[..., first + 1 : first + 2 * k : 2] = S * a + C * b
    return h * torch.polar(torch.ones_like(mesh.out), mesh.out).unsqueeze(-2)


def mesh_matrix(mesh: Mesh, loss_db: float = 0.0) -> Tensor:
    """The matrices (..., n, n) that meshes realise; with loss they are no longer unitary."""
    return propagate(mesh, torch.eye(mesh.out.shape[-1], dtype=torch.complex128), loss_db).transpose(-1, -2)


# ---------------------------------------------------------------------------------------------- any matrix
@dataclass(frozen=True)
class Compiled:
    """Mesh `right`, attenuators (..., n) as MZI phases, mesh `left`: passive, so that no singular value is above 1."""

    right: Mesh
    attenuator: Tensor
    left: Mesh


def compile_matrices(matrices: Tensor, gain: Tensor | float | None = None) -> tuple[Compiled, Tensor]:
    """Square complex matrices (..., n, n) by their singular values, and the gains (...) that were taken out.

    `gain` is by default each matrix's largest singular value (1 for a matrix of zeros); ValueError where it is smaller than that.
    """
    w = np.asarray(torch.as_tensor(matrices).detach().resolve_conj().numpy(), np.complex128)
    if w.ndim < 2 or w.shape[-1] != w.shape[-2]:
        raise ValueError(f"matrices: expected square ones (..., n, n), got shape {w.shape}")
    if not np.isfinite(w).all():
        raise ValueError("matrices: expected finite entries, got NaN or infinity")
    u, s, v = np.linalg.svd(w)
    largest = torch.from_numpy(s)[..., 0]
    gain = (
        torch.where(largest == 0, 1.0, largest) if gain is None else torch.as_tensor(gain, dtype=torch.float64).expand_as(largest)
    )
    if (largest > gain * (1 + 1e-12)).any():
        raise ValueError(
            f"gain: expected at least the largest singular value {float(largest.max()):.4g}, got {float(gain.min()):.4g}"
        )
    attenuator = 2 * torch.acos((torch.from_numpy(s) / gain.unsqueeze(-1)).clamp(0, 1))
    meshes = decompose(torch.from_numpy(np.stack([v, u])))
    right, left = (Mesh(meshes.theta[i], meshes.phi[i], meshes.out[i]) for i in range(2))
    return Compiled(right, attenuator, left), gain


def through(compiled: Compiled, fields: Tensor, loss_db: float = 0.0) -> Tensor:
    """Fields (..., N, n) after mesh, attenuators, mesh; the attenuators are MZIs and lose as much."""
    weaker = (compiled.attenuator / 2).cos().unsqueeze(-2) * 10 ** (-loss_db / 20)
    return propagate(compiled.left, propagate(compiled.right, fields, loss_db) * weaker, loss_db)


# ---------------------------------------------------------------------------------------------- the device
@dataclass(frozen=True)
class Place:
    """Where a map's tiles are in the device: the first one, in rows of tiles; the map's size, and its overall gain."""

    start: int
    outputs: int
    inputs: int
    gain: float

    @property
    def grid(self) -> tuple[int, int]:
        return -(-self.outputs // MODES), -(-self.inputs // MODES)


@dataclass(frozen=True)
class Device:
    """A compiled Born Transformer: `tiles` (T, ...) of all maps, their `places` by name ("1.query", "camera"), the electronic
    `channel_gains` (blocks, 170), the `reference` field (32,), and its imperfections, see `imperfect`: `modulator` (65, 32) phase
    errors in radians, `phase_step` of the drivers (0: none), `loss_db` per MZI.
    """

    tiles: Compiled
    places: dict[str, Place]
    channel_gains: Tensor
    reference: Tensor
    modulator: Tensor
    phase_step: float = 0.0
    loss_db: float = 0.0


def model_maps(model: BornTransformer) -> dict[str, Tensor]:
    """The matrices that a device holds, by name; W_2 is conjugated, for it acts on the conjugated field."""
    with torch.no_grad():
        maps = {f"{b + 1}.{name}": getattr(block, name).matrix for b, block in enumerate(model.blocks) for name in MAPS}
        maps = {name: m.conj() if name.endswith("second") else m for name, m in maps.items()} | {"camera": model.camera.matrix}
        return {name: m.to(torch.complex128).resolve_conj() for name, m in maps.items()}


def compile_model(model: BornTransformer) -> Device:
    """Every map of a trained model as meshes of 32 modes (paper Figure 5). ValueError for another kind of model."""
    if not isinstance(model, BornTransformer):
        raise ValueError(f"model: expected a Born Transformer, got {model.kind!r}")
    tiles, places = [], {}
    for name, w in model_maps(model).items():
        place = Place(sum(map(len, tiles)), *w.shape, 0.0)
        rows, columns = place.grid
        padded = torch.zeros(rows * MODES, columns * MODES, dtype=torch.complex128)
        padded[: w.shape[0], : w.shape[1]] = w
        cut = padded.view(rows, MODES, columns, MODES).transpose(1, 2).reshape(-1, MODES, MODES)
        gain = float(torch.linalg.matrix_norm(cut, 2).max()) or 1.0
        tiles.append(cut)
        places[name] = replace(place, gain=gain)
    gains = torch.cat(
        [torch.full((len(cut),), p.gain, dtype=torch.float64) for cut, p in zip(tiles, places.values(), strict=True)]
    )
    with torch.no_grad():
        channels = torch.stack([block.gain for block in model.blocks]).double()
        reference = _complex((model.reference_gain * model.reference).double())
    nothing = torch.zeros(1 + MAX_TOKENS, MODES, dtype=torch.float64)
    return Device(compile_matrices(torch.cat(tiles), gains)[0], places, channels, reference, nothing)


def _complex(h: Tensor) -> Tensor:
    """Fields stored as 64 reals, real parts first, as 32 complex numbers."""
    return torch.complex(*h.chunk(2, -1))


def _part(compiled: Compiled, chosen) -> Compiled:
    cut = lambda mesh: Mesh(mesh.theta[chosen], mesh.phi[chosen], mesh.out[chosen])  # noqa: E731
    return Compiled(cut(compiled.right), compiled.attenuator[chosen], cut(compiled.left))


def apply(device: Device, name: str, fields: Tensor) -> Tensor:
    """Fields (..., inputs) through one map's meshes, times its gain: (..., outputs). Tiles of one row are summed coherently."""
    place = device.places[name]
    rows, columns = place.grid
    flat = fields.reshape(-1, place.inputs)
    beams = torch.zeros(len(flat), columns * MODES, dtype=torch.complex128)
    beams[:, : place.inputs] = flat
    beams = beams.view(-1, columns, MODES).transpose(0, 1).repeat(rows, 1, 1)  # (rows * columns, N, 32)
    out = through(_part(device.tiles, slice(place.start, place.start + rows * columns)), beams, device.loss_db)
    out = out.view(rows, columns, -1, MODES).sum(1).transpose(0, 1).reshape(len(flat), -1)
    return place.gain * out[:, : place.outputs].reshape(*fields.shape[:-1], -1)


def matrices(device: Device) -> dict[str, Tensor]:
    """What each map of the device really is, gain included: name to (outputs, inputs) complex128."""
    identity = torch.eye(MODES, dtype=torch.complex128)
    tiles = through(device.tiles, identity, device.loss_db).transpose(-1, -2)  # (T, 32, 32)
    out = {}
    for name, place in device.places.items():
        rows, columns = place.grid
        cut = tiles[place.start : place.start + rows * columns].view(rows, columns, MODES, MODES)
        whole = cut.transpose(1, 2).reshape(rows * MODES, columns * MODES)
        out[name] = place.gain * whole[: place.outputs, : place.inputs]
    return out


def modulate(device: Device, fields: Tensor, slot: int = 1) -> Tensor:
    """Complex fields (..., L, 32) of slots `slot`, `slot` + 1, ... as the modulators really set them."""
    if device.phase_step:
        fields = torch.polar(fields.abs(), (fields.angle() / device.phase_step).round() * device.phase_step)
    error = device.modulator[slot : slot + fields.shape[-2]]
    return fields * torch.polar(torch.ones_like(error), error)


# ---------------------------------------------------------------------------------------------- imperfections
def imperfect(
    device: Device,
    phase_noise: float = 0.0,
    phase_bits: int | None = None,
    loss_db: float = 0.0,
    generator: torch.Generator | None = None,
) -> Device:
    """The device as it might be built. Every phase (theta, phi and output phases of the meshes, attenuators, modulators) is
    rounded to 2^`phase_bits` levels on the circle, then off by a normal error of standard deviation `phase_noise` radians, drawn once from
    `generator`; every MZI loses `loss_db` dB. The gains stay what they were, see `recalibrate`.
    """
    if not (math.isfinite(phase_noise) and phase_noise >= 0 and math.isfinite(loss_db) and loss_db >= 0):
        raise ValueError(f"phase_noise and loss_db: expected numbers from 0 up, got {phase_noise!r} and {loss_db!r}")
    if phase_bits is not None and (not isinstance(phase_bits, int) or isinstance(phase_bits, bool) or phase_bits < 1):
        raise ValueError(f"phase_bits: expected a whole number from 1 up, or None, got {phase_bits!r}")
    if phase_noise and generator is None:
        raise ValueError("generator: expected a torch.Generator to draw the phase noise from, got None")
    step = 2 * math.pi / 2**phase_bits if phase_bits else 0.0

    def off(phase: Tensor) -> Tensor:
        phase = (phase / step).round() * step if step else phase
        return phase + phase_noise * torch.randn(phase.shape, generator=generator, dtype=torch.float64) if phase_noise else phase

    mesh = lambda m: Mesh(off(m.theta), off(m.phi), off(m.out))  # noqa: E731
    tiles = Compiled(mesh(device.tiles.right), off(device.tiles.attenuator), mesh(device.tiles.left))
    return replace(device, tiles=tiles, modulator=off(device.modulator), phase_step=step, loss_db=loss_db)


def recalibrate(device: Device, model: BornTransformer) -> Device:
    """Each map's gain set anew, by least squares, to bring what it is nearest to what it should be: undoes uniform loss."""
    wanted, found = model_maps(model), matrices(device)
    ratio = {n: float((wanted[n].conj() * w).sum().real / w.abs().square().sum().clamp_min(1e-300)) for n, w in found.items()}
    return replace(device, places={n: replace(p, gain=p.gain * ratio[n]) for n, p in device.places.items()})


class OpticalModel(BornTransformer):
    """A Born Transformer with a device's maps, whose words are set by the device's modulators. Made by `as_model`."""

    device: Device

    def fields(self, ids: Tensor, sentence: Tensor) -> Tensor:
        x = modulate(self.device, _complex(super().fields(ids, sentence)))
        return torch.cat([x.real, x.imag], -1)


def as_model(device: Device, model: BornTransformer) -> OpticalModel:
    """What an imperfect device computes, again as a Born Transformer (float64): its maps are still linear, so
    `evidence.word_evidence` is exact for it too. Shot noise is not in it, see `simulate` and `measured_evidence`.
    """
    out = copy.deepcopy(model).double().requires_grad_(False)
    out.__class__, out.device = OpticalModel, device
    for name, w in matrices(device).items():
        block, _, map_name = name.rpartition(".")
        linear = getattr(out.blocks[int(block) - 1], map_name) if block else out.camera
        w = w.conj() if map_name == "second" else w
        linear.weight.copy_(torch.stack([w.real, w.imag]))
    reference = modulate(device, device.reference.unsqueeze(0), 0)[0]
    out.reference.copy_(torch.cat([reference.real, reference.imag]))
    out.reference_gain.fill_(1.0)
    return out


# ---------------------------------------------------------------------------------------------- light through the device
@dataclass
class Stages:
    """What light shows on its way, complex128 and float64: `fields` (B, S, 32) of all slots, reference first; for each block `overlaps`
    (B, H, S, S) <q_i|k_j> as read, `row_sums` (B, H, S), `attention` (B, H, S, S), the field `attended` (B, S, 32), the homodyne
    `readings` (B, S, 170) and the field `after` (B, S, 32); `lens` (B, 32), `pixels` (B, 192) and their `total` (B,),
    `probabilities` (B, 3). `exposures` (B,) are photons per unit of light, one for each kind of detector as they come.
    """

    fields: Tensor
    overlaps: list[Tensor] = field(default_factory=list)
    row_sums: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    attended: list[Tensor] = field(default_factory=list)
    readings: list[Tensor] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)
    exposures: list[Tensor] = field(default_factory=list)
    lens: Tensor | None = None
    pixels: Tensor | None = None
    total: Tensor | None = None
    probabilities: Tensor | None = None


@dataclass
class _Detectors:
    """Detectors that count whole photons, `photons` on average in each over a sentence's readings of one kind (None: no shot noise)."""

    photons: float | None
    generator: torch.Generator | None
    exposures: list[Tensor] | None  # of another run, to be kept
    used: list[Tensor] = field(default_factory=list)

    def expose(self, light: Tensor) -> Tensor:
        """Photons per unit of light (B, 1, ...) for detectors that see `light` (B, ...); zeros are no detectors."""
        rest = tuple(range(1, light.dim()))
        if self.exposures is None:
            seen = (light > 0).sum(rest).clamp_min(1)
            exposure = self.photons * seen / light.sum(rest).clamp_min(1e-300)
        else:
            exposure = self.exposures[len(self.used)]
        self.used.append(exposure)
        return exposure.view(-1, *[1] * len(rest))

    def _noise(self, light: Tensor, exposure: Tensor) -> Tensor:
        """Counts less their mean, in units of light; the reading's derivative is the light's."""
        mean = (exposure * light.detach()).clamp_min(0)
        return (torch.poisson(mean, self.generator) - mean) / exposure

    def balanced(self, products: Sequence[Tensor], light: Tensor) -> list[Tensor]:
        """Re<u|v> from two detectors behind a 50:50 splitter, which see (light +- 2 Re<u|v>) / 2; light = |u|^2 + |v|^2."""
        if self.photons is None:
            return list(products)
        exposure = self.expose(light.detach() / 2)
        out = []
        for product in products:
            plus, minus = (self._noise(light / 2 + sign * product, exposure) for sign in (1, -1))
            out.append(product + (plus - minus) / 2)
        return out

    def count(self, light: Tensor) -> Tensor:
        """A camera's pixels."""
        return light if self.photons is None else light + self._noise(light, self.expose(light.detach()))


def simulate(
    device: Device,
    words: Tensor,
    mask: Tensor | None = None,
    photons: float | None = None,
    generator: torch.Generator | None = None,
    held: Stages | None = None,
    maps: dict[str, Tensor] | None = None,
) -> Stages:
    """Send sentences through the device: word fields (B, L, 32) complex, as the model gives them, padding zero.

    `mask` (B, L) is true at words (default: where a field is not zero). `photons` per detector, on average over the sentence's readings of one
    kind, adds shot noise from `generator` to every reading. `held` keeps denominators and exposures of another run. The light passes the meshes
    layer by layer, or, with `maps` from `matrices`, all of them at once, differentiable by autograd.
    """
    if words.dim() != 3 or words.shape[-1] != MODES or not words.is_complex():
        raise ValueError(f"words: expected complex fields (pairs, slots, {MODES}), got {words.dtype} {tuple(words.shape)}")
    if photons is not None and not (0 < photons <= MOST_PHOTONS and generator is not None):
        raise ValueError(
            f"photons: expected a number above 0, at most {MOST_PHOTONS:g}, and a generator, got {photons!r} and {generator!r}"
        )
    B, L, _ = words.shape
    mask = words.detach().abs().sum(-1) > 0 if mask is None else mask
    lit = torch.cat([mask.new_ones(B, 1), mask], 1)
    both = (lit.unsqueeze(-1) & lit.unsqueeze(-2)).unsqueeze(1)  # (B, 1, S, S): pairs of slots that are there
    send: Callable[[str, Tensor], Tensor] = (lambda n, h: apply(device, n, h)) if maps is None else (lambda n, h: h @ maps[n].T)
    detectors = _Detectors(photons, generator, held.exposures if held else None)
    reference = modulate(device, device.reference.unsqueeze(0), 0)
    h = torch.cat([reference.expand(B, 1, MODES), modulate(device, words)], 1)
    out = Stages(h)
    for b in range(BLOCKS):
        q, k, v = (send(f"{b + 1}.{n}", h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for n in ("query", "key", "value"))
        overlap = q.conj() @ k.transpose(-1, -2)  # (B, H, S, S)
        light = _power(q).unsqueeze(-1) + _power(k).unsqueeze(-2)
        re, im = detectors.balanced([overlap.real, overlap.imag], light * both)
        attention, sums = normalise_rows((re.square() + im.square()) * both, held.row_sums[b] if held else None)
        beams = (attention.to(v.dtype) @ v).transpose(1, 2).flatten(-2)  # (B, S, 32)
        h = h + send(f"{b + 1}.output", beams)
        out.overlaps.append(torch.complex(re, im))
        out.row_sums.append(sums)
        out.attention.append(attention)
        out.attended.append(h)
        first, second = send(f"{b + 1}.first", h), send(f"{b + 1}.second", h.conj())
        (reading,) = detectors.balanced([(second.conj() * first).real], _squares(first) + _squares(second))
        h = h + send(f"{b + 1}.third", (device.channel_gains[b] * reading).to(h.dtype))
        out.readings.append(reading)
        out.after.append(h)
    out.lens = h.sum(1)
    out.pixels = detectors.count(_squares(send("camera", out.lens)))
    counts = out.pixels.view(B, len(LABELS), PIXELS).sum(-1)
    out.total = held.total if held else counts.sum(-1)
    out.probabilities = counts / out.total.masked_fill(out.total == 0, 1.0).unsqueeze(-1)
    out.exposures = detectors.used
    return out


def _squares(h: Tensor) -> Tensor:
    return h.real.square() + h.imag.square()


def _power(h: Tensor) -> Tensor:
    return _squares(h).sum(-1)


def word_fields(model: BornTransformer, encoded: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
    """Complex word fields (B, L, 32) of pairs, before the modulators, and the mask (B, L)."""
    ids, sentence = collate(list(encoded))
    with torch.no_grad():
        return _complex(BornTransformer.fields(model, ids, sentence).double()), ids != PAD_ID


def measured_evidence(
    device: Device,
    words: Tensor,
    target: int,
    photons: float,
    generator: torch.Generator,
    nodes: int = NODES,
    slots_a_pass: int = 1500,
) -> tuple[np.ndarray, np.ndarray]:
    """Evidence (L,) of one pair's words (1, L, 32) for class `target` from shot-noisy readings, and the probabilities (3,) as read.

    [choice] The device runs the pair once for the denominators, then once at each Gauss-Legendre node t, words turned down to t and exposures
    kept. Every reading of every run is noisy. Electronics, which knows the maps, follows the derivative back through the *readings* by the chain
    rule; the sum over nodes is the evidence. No noise is averaged away but by the sum over nodes.
    """
    maps = matrices(device)
    t, w = (torch.from_numpy(v) for v in gauss_legendre(nodes))
    with torch.no_grad():
        held = simulate(device, words, None, photons, generator, maps=maps)
    L = words.shape[1]
    out = torch.zeros(L, dtype=torch.float64)
    for part in torch.arange(nodes).split(max(1, slots_a_pass // (L + 1))):
        n = len(part)
        again = lambda v, n=n: v.expand(n, *v.shape[1:])  # noqa: E731
        kept = Stages(
            words,
            row_sums=[again(s) for s in held.row_sums],
            exposures=[again(e) for e in held.exposures],
            total=again(held.total),
        )
        y = (t[part].view(n, 1, 1) * words).requires_grad_()
        run = simulate(device, y, torch.ones(n, L, dtype=torch.bool), photons, generator, kept, maps)
        (gradient,) = torch.autograd.grad(run.probabilities[:, target].sum(), y)
        out += (w[part].view(n, 1, 1) * (words.conj() * gradient).real).sum((0, 2))
    return out.numpy(), held.probabilities[0].numpy()


# ---------------------------------------------------------------------------------------------- accounts
def light_left(device: Device, stages: Stages) -> list[tuple[str, Tensor]]:
    """Stage and share (B,) of the encoded light, sum over slots of |x_i|^2, that is left in the field there.

    [choice] Everything passive, no light added but the beams that carry the homodyne readings. Half of the light goes to the detectors of each
    block's attention, half of the rest to those of its product. The rest is divided between bypass and value beams 1 : G, with
    G = gain_v gain_o S for the gains taken out of W_v and W_o and for S ways of fanning out and in; so h' = (h + G u) / (1 + G). The lens sums S beams (1 / sqrt(S) each).
    """
    S = float(stages.fields.shape[1])
    encoded, scale, out = _power(stages.fields).sum(-1), 1.0, [("fields", torch.ones(len(stages.fields), dtype=torch.float64))]
    for b in range(BLOCKS):
        branch = device.places[f"{b + 1}.value"].gain * device.places[f"{b + 1}.output"].gain * S
        scale = scale / math.sqrt(2) / (1 + branch)
        out.append((f"attention {b + 1}", scale**2 * _power(stages.attended[b]).sum(-1) / encoded))
        scale = scale / math.sqrt(2)
        out.append((f"product {b + 1}", scale**2 * _power(stages.after[b]).sum(-1) / encoded))
    scale = scale / math.sqrt(S)
    out.append(("lens", scale**2 * _power(stages.lens) / encoded))
    place = device.places["camera"]
    out.append(("camera", scale**2 / place.grid[0] / place.gain**2 * stages.pixels.sum(-1) / encoded))
    return out


def components(device: Device, slots: int) -> list[dict[str, int | str]]:
    """What the device is made of, part by part, and how often each works for a sentence of `slots` slots with the reference.

    Rows with `part`, `meshes` (of 32 modes), `MZIs` (those of the meshes and the attenuators), `phases` to set, `detectors`,
    and `a sentence`: settings of modulators and readings of detectors that one sentence takes.
    """
    rows = [_row("modulators", phases=MODES, settings=MODES * slots)]
    mzis = MODES * (MODES - 1) // 2
    for b in [f"{b + 1}." for b in range(BLOCKS)] + [""]:
        parts = (
            {"query, key, value, output": MAPS[:4], "W1, W2* (conjugated field), W3": MAPS[4:]} if b else {"camera": ("camera",)}
        )
        for title, names in parts.items():
            tiles = sum(math.prod(device.places[b + n].grid) for n in names)
            size = {"meshes": 2 * tiles, "mzis": tiles * (2 * mzis + MODES), "phases": tiles * (4 * mzis + 3 * MODES)}
            rows.append(_row(f"block {b[:1]}, {title}" if b else title, **size))
        if b:
            rows.append(
                _row(f"block {b[:1]}, balanced detectors of overlaps", detectors=2 * 2 * MODES, settings=2 * HEADS * slots**2)
            )
            rows.append(_row(f"block {b[:1]}, attenuated value beams", settings=HEADS * slots**2))
            rows.append(_row(f"block {b[:1]}, homodyne detectors", detectors=2 * CHANNELS, settings=CHANNELS * slots))
            rows.append(_row(f"block {b[:1]}, modulators of readings", settings=CHANNELS * slots))
        else:
            rows.append(_row("camera pixels", detectors=len(LABELS) * PIXELS, settings=len(LABELS) * PIXELS))
    total = {key: sum(r[key] for r in rows) for key in list(rows[0])[1:]}
    return [*rows, {"part": "together", **total}]


def _row(
    part: str, meshes: int = 0, mzis: int = 0, phases: int = 0, detectors: int = 0, settings: int = 0
) -> dict[str, int | str]:
    return {"part": part, "meshes": meshes, "MZIs": mzis, "phases": phases, "detectors": detectors, "a sentence": settings}
