"""Attention overlaps <q|k> read by Hadamard tests, and a Born Transformer that uses what was read (paper Figure 7, Tables 5, 7, 10).

A query and a key of a head are 16 complex numbers each, computed classically. Their normalised overlap w = <q|k> / (|q| |k|) is what a
device measures: prepare (|0>|q> + |1>|k>) / sqrt 2 on 4 + 1 qubits, read the ancilla in X for Re w and in Y for Im w. The norms are kept
classically, and everything else of the model is computed exactly. Letters in shapes: B pairs, n or L slots (reference first), H heads.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from . import devices, evidence
from .corpus import LABELS, Encoded, collate
from .devices import Device
from .ledger import Ledger, pack, text_hash
from .models import HEADS, MODES, BornTransformer, Trace

AMPLITUDES = MODES // HEADS  # 16, four qubits
QUADRATURES = ("re", "im")
DIGITS = 6  # amplitudes are told apart to this many decimals: far below shot noise, far above float64's
CALIBRATION_OVERLAP = 0.8  # of the visibility circuits
TINY = 1e-100  # products of a query's and a key's norm below this are padding's
NODES = 48  # quadrature nodes of evidence with measured overlaps: gap about 1e-15 on the shipped weights

Measure = Callable[[int, Tensor], Tensor]  # block, w (B, H, 2, L, L) as (Re, Im) -> what a device reads


# ---------------------------------------------------------------------------------------------- one Hadamard test
def unit(vector, name: str = "vector") -> np.ndarray:
    """A vector (16,) divided by its norm, complex128; raises ValueError where it has another length, is zero or is not finite."""
    v = np.asarray(vector)
    if v.shape != (AMPLITUDES,):
        raise ValueError(f"{name}: expected {AMPLITUDES} amplitudes, got shape {v.shape}")
    v = v.astype(np.complex128)
    if not np.isfinite(v).all():
        raise ValueError(
            f"{name}: expected finite amplitudes, got {v[~np.isfinite(v)][0]} at index {int(np.argmin(np.isfinite(v)))}"
        )
    largest = np.abs(v).max()
    if largest == 0:
        raise ValueError(f"{name}: expected a vector with a direction, got zeros")
    v = v / largest  # squares neither over- nor underflow
    return v / np.linalg.norm(v)


@dataclass(frozen=True, eq=False)
class HadamardTest:
    """One circuit: unit vectors `query` and `key` (16,), the `quadrature` "re" or "im", and a `label` for the ledger."""

    query: np.ndarray
    key: np.ndarray
    quadrature: str
    label: str = ""

    def __post_init__(self):
        if self.quadrature not in QUADRATURES:
            raise ValueError(f"quadrature: expected one of {QUADRATURES}, got {self.quadrature!r}")
        object.__setattr__(self, "query", unit(self.query, "query"))
        object.__setattr__(self, "key", unit(self.key, "key"))

    @property
    def ideal(self) -> float:
        """The expectation of the ancilla: Re or Im of <query|key>."""
        w = np.vdot(self.query, self.key)
        return float(w.real if self.quadrature == "re" else w.imag)

    @property
    def amplitudes(self) -> np.ndarray:
        """The state (32,), ancilla the highest bit: (|0>|query> + |1>|key>) / sqrt 2."""
        return np.concatenate([self.query, self.key]) / np.sqrt(2)

    @property
    def identity(self) -> str:
        """24 hex digits that say which circuit this is: amplitudes to six decimals, and the quadrature."""
        rounded = np.round(self.amplitudes.view(float) * 10**DIGITS).astype(np.int64)
        return hashlib.sha256(rounded.tobytes() + self.quadrature.encode()).hexdigest()[:24]


def expectation(counts) -> np.ndarray:
    """(zeros - ones) / shots from counts (..., 2); raises ValueError where there are no shots."""
    counts = np.asarray(counts)
    shots = counts.sum(-1)
    if counts.shape[-1:] != (2,) or (counts < 0).any() or (shots == 0).any():
        raise ValueError(
            f"counts: expected (..., 2) zeros and ones with at least one shot, got {counts.tolist() if counts.size < 9 else counts.shape}"
        )
    return (counts[..., 0] - counts[..., 1]) / shots


def _isometry(u: np.ndarray) -> np.ndarray:
    """An 8 x 8 unitary whose first 4 columns are `u` (8, 4), completed so that its synthesis is shortest.

    By the cosine-sine decomposition u = [V1 C W; V2 S W]; with [-V1 S W; V2 C W] beside it the two-qubit map W acts
    on both halves alike and needs no control: 34 CZ on a line instead of 38 (46 to 50 by qiskit's StatePreparation).
    """
    v1, cosine, w = np.linalg.svd(u[:4])
    q, r = np.linalg.qr(
        (u[4:] @ w.conj().T)[:, ::-1]
    )  # orthogonal columns, the longest first: those of length 0 take what is left
    r = np.diagonal(r)[::-1]
    sine = np.abs(r)
    v2 = q[:, ::-1] * np.where(sine > 0, r / np.where(sine > 0, sine, 1), 1)
    return np.block([[v1 * cosine @ w, -v1 * sine @ w], [v2 * sine @ w, v2 * cosine @ w]])


def preparation(amplitudes: np.ndarray):
    """A circuit on 5 qubits in a line (qubit 0 the lowest bit) that prepares `amplitudes` (32,) from |00000>, up to a global phase.

    Schmidt decomposition across qubits 1 and 2: the coefficients on the middle pair, copied outwards, then a map on either side.
    """
    from qiskit import QuantumCircuit
    from qiskit.circuit.library import StatePreparation, UnitaryGate

    left, schmidt, right = np.linalg.svd(np.asarray(amplitudes, np.complex128).reshape(8, 4), full_matrices=False)
    circuit = QuantumCircuit(devices.QUBITS)
    circuit.append(StatePreparation(schmidt / np.linalg.norm(schmidt)), [1, 2])
    circuit.cx(1, 0)
    circuit.cx(2, 3)
    circuit.swap(1, 2)  # now |ij> on qubits 0, 1 and again on 2, 3
    circuit.append(UnitaryGate(right.T), [0, 1])
    circuit.append(UnitaryGate(_isometry(left)), [2, 3, 4])
    return circuit


def circuit(test: HadamardTest):
    """The Hadamard test as a qiskit circuit: features on qubits 0 to 3, the ancilla, qubit 4, measured in X (Re) or Y (Im)."""
    from qiskit import QuantumCircuit
    from qiskit.circuit import ClassicalRegister, QuantumRegister

    out = QuantumCircuit(QuantumRegister(devices.QUBITS, "q"), ClassicalRegister(1, devices.ANCILLA))
    out.compose(preparation(test.amplitudes), inplace=True)
    if test.quadrature == "im":
        out.sdg(4)
    out.h(4)
    out.measure(4, 0)
    return out


# ---------------------------------------------------------------------------------------------- the circuits of a block
def block_tests(q: np.ndarray, k: np.ndarray, name: str = "") -> list[HadamardTest]:
    """Every test of one block: 2 quadratures x heads x slots^2 circuits (196 for 7 slots, 256 for 8; paper Table 10).

    `q`, `k` (H, n, 16) complex. Order: head, query, key, quadrature.
    """
    heads, n = q.shape[:2]
    return [
        HadamardTest(q[h, i], k[h, j], quadrature, f"{name}head {h} query {i} key {j} {quadrature}")
        for h in range(heads) for i in range(n) for j in range(n) for quadrature in QUADRATURES
    ]  # fmt: skip


def calibration_tests(q: np.ndarray, name: str = "") -> list[HadamardTest]:
    """Circuits whose overlap is known to be 0.8, one a head and slot: what is read over 0.8 is the visibility.

    16 for 8 slots: with 256 they make the paper's 272 [inferred, the paper does not say what its other 16 circuits are]. Each takes
    a query q of the block against 0.8 q + 0.6 r, r being the next slot's query without its part along q.
    """
    heads, n = q.shape[:2]
    out = []
    for h in range(heads):
        for i in range(n):
            a, b = unit(q[h, i]), unit(q[h, (i + 1) % n])
            rest = b - np.vdot(a, b) * a
            if np.linalg.norm(rest) < 1e-6:  # parallel: any other direction does
                rest = np.roll(a, 1) - np.vdot(a, np.roll(a, 1)) * a
            key = CALIBRATION_OVERLAP * a + np.sqrt(1 - CALIBRATION_OVERLAP**2) * unit(rest)
            out.append(HadamardTest(a, key, "re", f"{name}calibration head {h} slot {i}"))
    return out


def run_tests(
    tests: Sequence[HadamardTest],
    ledger: Ledger,
    device: Device | None = None,
    name: str = "",
    seed: int = 0,
    progress: bool = False,
) -> np.ndarray:
    """Counts (tests, 2) of zeros and ones: from the ledger where a circuit is there, else run on `device` in one job.

    Without a device this is a replay. A job that was submitted earlier and not read is read first; a circuit whose transpiled form is
    in the ledger is not run again. The ledger is written before the job is waited for, and after.
    """
    if device is not None and _missing(tests, ledger):
        with ledger.writing():
            read_unfinished(ledger, device)
            missing = _missing(tests, ledger)
            if missing:
                _run(missing, ledger, device, name, seed, progress)
    return ledger.counts([test.identity for test in tests])


def _missing(tests: Sequence[HadamardTest], ledger: Ledger) -> dict[str, HadamardTest]:
    known = ledger.known()
    return {test.identity: test for test in tests if test.identity not in known}


def read_unfinished(ledger: Ledger, device: Device) -> None:
    """Fetch the counts of every job that was submitted and not read; a job that the device does not know is taken out."""
    shots = ledger.settings["shots"]
    for job in ledger.unread():
        found = device.find(job["id"], shots, "")
        if found is None:
            ledger.discard(job["id"])
        else:
            _finish(job, found, ledger)


def _run(missing: dict[str, HadamardTest], ledger: Ledger, device: Device, name: str, seed: int, progress: bool) -> None:
    """Submit what is missing as one job, note it, read it."""
    from qiskit import qasm2

    shots, known = ledger.settings["shots"], ledger.by_hash()
    transpiled = devices.transpile_all([circuit(test) for test in missing.values()], device.target, progress)
    texts = [qasm2.dumps(c) for c, _ in transpiled]
    records, new = [], {}  # new: hash to place, for what really has to run
    for k, (key, test) in enumerate(missing.items()):
        sent, chosen_seed = transpiled[k]
        found = text_hash(texts[k])
        layout = [device.line[q] for q in sent.layout.initial_index_layout(filter_ancillas=True)]
        record = {
            "key": key,
            "hash": found,
            "label": test.label,
            "transpiler_seed": chosen_seed,
            "cz": sent.count_ops()["cz"],
            "layout": layout,
        }
        records.append(record | {"counts": known.get(found)})
        if found not in known:
            new.setdefault(found, k)
    new = list(new.values())
    job = {
        "id": f"reused-{devices.job_tag(list(missing))}", "name": name, "backend": device.backend, "calibrated": device.calibrated,
        "seed": seed, "predicted_seconds": round(devices.quantum_seconds(len(new), shots), 1), "quantum_seconds": None,
        "circuits": records, "qasm": pack([texts[k] for k in new]),
    }  # fmt: skip
    if not new:
        ledger.append(job)
        return
    keys = list(missing)
    tag = devices.job_tag([keys[k] for k in new])
    started = device.find(None, shots, tag)
    if started is None:
        sent = [devices.decouple(transpiled[k][0], device.target) for k in new]
        started = device.submit(sent, shots, [devices.circuit_seed(seed, keys[k]) for k in new], tag)
    job["id"] = started.id
    if device.kind == "device":  # a simulator's result is there already; a device's may take hours
        ledger.append(job)
    _finish(job, started, ledger)


def _finish(job: dict, started: devices.Job, ledger: Ledger) -> None:
    """Wait for a job's counts and write them."""
    counts, seconds = started.result()
    hashes = list(dict.fromkeys(c["hash"] for c in job["circuits"] if c["counts"] is None))
    if len(counts) != len(hashes):
        raise ValueError(f"job {job['id']}: expected counts of {len(hashes)} circuits, got {len(counts)}")
    found = dict(zip(hashes, counts.tolist(), strict=True))
    circuits = [c | {"counts": found.get(c["hash"], c["counts"])} for c in job["circuits"]]
    ledger.append(job | {"circuits": circuits, "quantum_seconds": seconds})


# ---------------------------------------------------------------------------------------------- a model that reads its attention
def measured_model(model: BornTransformer, measure: Measure, row_sum: float = 0.0) -> BornTransformer:
    """A copy (float64) of a Born Transformer whose overlaps pass through `measure`, everything else exact.

    `measure(block, w)` gets the normalised overlaps (B, H, 2, L, L) and returns what is read in their place. What it changes is a constant
    to derivatives: overlap = <q|k> + |q| |k| (read - w). `row_sum` is a calibration error of every row sum: attention is divided by 1 + row_sum.
    """
    if model.kind != "born":
        raise ValueError(f"model: expected a Born Transformer, got {model.kind!r}")
    if row_sum <= -1:
        raise ValueError(f"row_sum: expected a relative error above -1, got {row_sum}")
    out = copy.deepcopy(model).double().requires_grad_(False)
    for b, block in enumerate(out.blocks):
        block.overlaps = _reading(block, b, measure, row_sum)
    return out


def _reading(block, index: int, measure: Measure, row_sum: float):
    exact = block.overlaps

    def overlaps(h: Tensor) -> tuple[Tensor, Tensor]:
        overlap, v = exact(h)
        q, k = (_norms(linear, h) for linear in (block.query, block.key))  # (B, H, L)
        scale = (q.unsqueeze(-1) * k.unsqueeze(-2)).unsqueeze(2)  # (B, H, 1, L, L)
        with torch.no_grad():
            w = overlap / scale.clamp_min(TINY)
            error = (measure(index, w) - w) * (scale > TINY)  # nothing is read of padding
        return overlap + scale * error, v / (1 + row_sum)

    return overlaps


def _norms(linear, h: Tensor) -> Tensor:
    """Norm of each head's part of a complex map of the fields: (B, L, C) to (B, H, L)."""
    parts = torch.stack([h @ linear.real_rows().T, h @ linear.imag_rows().T], 2)  # (B, L, 2, 32)
    squares = parts.square().sum(2).unflatten(-1, (HEADS, -1)).sum(-1)
    return squares.clamp_min(TINY**3).sqrt().transpose(1, 2)  # of padding TINY^(3/2), where a root's slope is still finite


def fixed(errors: Sequence[Tensor | None]) -> Measure:
    """Reads with given errors, one tensor (B, H, 2, L, L) a block or None for exact; a batch may repeat the B pairs node by node."""

    def measure(block: int, w: Tensor) -> Tensor:
        error = errors[block]
        if error is None:
            return w
        if w.shape[0] % error.shape[0] or w.shape[1:] != error.shape[1:]:
            raise ValueError(
                f"errors: expected the shape of the overlaps {tuple(w.shape)}, got {tuple(error.shape)} for block {block}"
            )
        return w + error.repeat(w.shape[0] // error.shape[0], 1, 1, 1, 1)

    return measure


def hadamard_noise(
    shots: int | None,
    generator: torch.Generator,
    visibility: float = 1.0,
    spread: float = 0.0,
    offset: float = 0.0,
    calibrated: float = 1.0,
) -> Measure:
    """Reads every overlap by a Hadamard test of `shots` shots (None: infinitely many): what Table 7 simulates, vectorised.

    The expectation of a circuit is v w + offset, v drawn once a circuit from a normal distribution (`visibility`, `spread`); `offset` is what an
    asymmetric readout adds. What is counted is divided by `calibrated`, the visibility that a calibration found. Every call draws anew.
    """
    if shots is not None and shots < 1:
        raise ValueError(f"shots: expected at least 1, or None for no shot noise, got {shots}")
    if spread < 0:
        raise ValueError(f"spread: expected at least 0, got {spread}")
    if not calibrated > 0:
        raise ValueError(f"calibrated: expected a visibility above 0, got {calibrated}")

    def measure(block: int, w: Tensor) -> Tensor:
        v = visibility + spread * torch.randn(w.shape, generator=generator, dtype=w.dtype) if spread else visibility
        mean = (v * w + offset).clamp(-1, 1)
        if shots is not None:
            zeros = torch.binomial(torch.full_like(mean, shots), (1 + mean) / 2, generator=generator)
            mean = 2 * zeros / shots - 1
        return mean / calibrated

    return measure


@torch.no_grad()
def probabilities(model: BornTransformer, encoded: Sequence[Encoded], slots: int = 2048) -> np.ndarray:
    """Class probabilities (pairs, 3), float64, in batches of similar length of about `slots` slots."""
    lengths = np.array([len(e.ids) for e in encoded])
    order, out, start = np.argsort(lengths, kind="stable"), np.zeros((len(encoded), len(LABELS))), 0
    while start < len(order):
        index = order[start : start + max(1, slots // (1 + int(lengths[order[start]])))]
        ids, sentence = collate([encoded[i] for i in index])
        out[index] = model.scores(model.fields(ids, sentence)).numpy()
        start += len(index)
    return out


@torch.no_grad()
def measured_attention(model: BornTransformer, encoded: Encoded, errors: Sequence[Tensor | None]) -> list[np.ndarray]:
    """Attention (R, H, n, n) of each block for one pair, with R readings' errors (R, H, 2, n, n) or None for exact; rows sum to 1."""
    size, trace = max((len(e) for e in errors if e is not None), default=1), Trace()
    ids, sentence = collate([encoded] * size)
    reading = measured_model(model, fixed(errors))
    reading.scores(reading.fields(ids, sentence), trace=trace)
    return [a.numpy() for a in trace.attention]


@torch.no_grad()
def draw_errors(model: BornTransformer, encoded: Encoded, measure: Measure) -> list[Tensor]:
    """The errors (1, H, 2, L, L) of each block that `measure` makes on one pair, each block reading what the one before gave."""
    errors = []

    def note(block: int, w: Tensor) -> Tensor:
        read = measure(block, w)
        errors.append(read - w)
        return read

    reading = measured_model(model, note)
    ids, sentence = collate([encoded])
    reading.scores(reading.fields(ids, sentence))
    return errors


def measured_evidence(
    model: BornTransformer, encoded: Encoded, errors: Sequence[Tensor | None], target: int | None = None
) -> evidence.Evidence:
    """Evidence per word where the overlaps are read with `errors` (1, H, 2, L, L) a block.

    Along the path t x each overlap keeps the error of its reading at t = 1, relative to its norms: <q|k>(t) + |q(t)| |k(t)| error, the row
    sums held at what was read. In the first block this is what a device would find at every t, since there no normalised overlap depends
    on t; in the second it says that a reading is as good at t as at 1. The sum is complete for the probability that was read. A visibility below 1
    is an error like any other here (a word's derivative does not see it), so readings are to be divided by the calibrated visibility.
    """
    reading = measured_model(model, fixed(errors))
    return evidence.word_evidence(reading, [encoded], targets=None if target is None else [target], nodes=NODES)[0]


# ---------------------------------------------------------------------------------------------- a pair on a device
@dataclass
class Reading:
    """One block of one pair as a device read it: `ideal` (H, 2, n, n) normalised overlaps of the circuits, their `counts` (H, 2, n, n, 2),
    and the counts (2 n, 2) of the calibration circuits where there were any.
    """

    ideal: np.ndarray
    counts: np.ndarray
    calibration: np.ndarray | None = None

    @property
    def values(self) -> np.ndarray:
        """The overlaps as read (H, 2, n, n)."""
        return expectation(self.counts)

    def visibility(self) -> tuple[float, float]:
        """Mean visibility of the calibration circuits and its standard error."""
        if self.calibration is None:
            raise ValueError("calibration: expected counts of calibration circuits, this block ran without")
        v = expectation(self.calibration) / CALIBRATION_OVERLAP
        return float(v.mean()), float(v.std(ddof=1) / np.sqrt(len(v)))

    def redrawn(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Overlaps (size, H, 2, n, n) from shots drawn again at each circuit's own frequency."""
        shots = self.counts.sum(-1)
        return 1 - 2 * rng.binomial(shots, self.counts[..., 1] / shots, (size, *shots.shape)) / shots


@dataclass
class PairRun:
    """A pair whose attention was read block after block; `tests` are the circuits of each block, in the order they were asked for."""

    encoded: Encoded
    readings: list[Reading]
    tests: list[list[HadamardTest]] = field(default_factory=list)

    def errors(self, visibility: float = 1.0) -> list[Tensor]:
        """Errors (1, H, 2, n, n) of each block's normalised overlaps, readings divided by a calibrated `visibility`.

        Answers do not depend on it, since it cancels in the row sums; evidence does.
        """
        return [torch.from_numpy(r.values / visibility - r.ideal).unsqueeze(0) for r in self.readings]

    def redrawn_errors(self, seed: int, size: int, visibility: float = 1.0) -> list[Tensor]:
        """As `errors`, (size, H, 2, n, n), each circuit's shots drawn again; the exact inputs of the circuits stay."""
        rng = np.random.default_rng(seed)
        return [torch.from_numpy(r.redrawn(rng, size) / visibility - r.ideal) for r in self.readings]

    def visibility(self) -> tuple[float, float]:
        """Mean visibility over the calibration circuits of all blocks, and its standard error."""
        found = [r.visibility() for r in self.readings]
        return float(np.mean([v for v, _ in found])), float(np.linalg.norm([e for _, e in found]) / len(found))


@torch.no_grad()
def queries_keys(model: BornTransformer, encoded: Encoded, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys (H, n, 16), complex128, of a block of a (measured or exact) model."""
    ids, sentence = collate([encoded])
    h = model.enter(model.fields(ids, sentence))
    for earlier in model.blocks[:block]:
        h = earlier(h, None, None)
    z = torch.complex(h[0, :, :MODES], h[0, :, MODES:])  # (n, 32)
    own = model.blocks[block]
    q, k = (z @ linear.matrix.T for linear in (own.query, own.key))
    return tuple(x.unflatten(-1, (HEADS, -1)).transpose(0, 1).numpy() for x in (q, k))


def run_pair(
    model: BornTransformer, encoded: Encoded, ledger: Ledger, device: Device | None = None, name: str = "", calibrate: bool = True,
    pilot: int = 0, seed: int = 0, progress: bool = False,
) -> PairRun:  # fmt: skip
    """Read both blocks of a pair: block 2's queries and keys come from what block 1 gave with its attention as read.

    `calibrate` adds the visibility circuits to each block's job; the first `pilot` circuits of block 1 run as a job of their own before.
    Without a device the ledger is replayed.
    """
    model = copy.deepcopy(model).double().requires_grad_(False)
    run = PairRun(encoded, [])
    for b in range(len(model.blocks)):
        errors = [*run.errors(), *[None] * (len(model.blocks) - b)]
        q, k = queries_keys(measured_model(model, fixed(errors)), encoded, b)
        tests = block_tests(q, k)
        calibration = calibration_tests(q) if calibrate else []
        if b == 0 and pilot:
            run_tests(tests[:pilot], ledger, device, f"pilot: first {pilot} circuits of block 1, {name}", seed, progress)
        counts = run_tests([*tests, *calibration], ledger, device, f"{name}, block {b + 1}", seed, progress)
        n = q.shape[1]
        shaped = counts[: len(tests)].reshape(HEADS, n, n, 2, 2).transpose(0, 3, 1, 2, 4)
        ideal = np.array([t.ideal for t in tests]).reshape(HEADS, n, n, 2).transpose(0, 3, 1, 2)
        run.readings.append(Reading(ideal, shaped, counts[len(tests) :] if calibrate else None))
        run.tests.append([*tests, *calibration])
    return run


def circuits_of(slots: int, calibrate: bool = True) -> int:
    """Circuits of one block of a pair with that many slots, the reference among them: 196 for 7, 256 + 16 for 8 (paper Table 10)."""
    if slots < 1:
        raise ValueError(f"slots: expected at least 1, got {slots}")
    return 2 * HEADS * slots**2 + (HEADS * slots if calibrate else 0)


def answer(model: BornTransformer, run: PairRun, blocks: Sequence[int] = (0, 1)) -> np.ndarray:
    """Class probabilities (3,) with the attention of `blocks` as read, everything else exact."""
    errors = [e if b in blocks else None for b, e in enumerate(run.errors())]
    return probabilities(measured_model(model, fixed(errors)), [run.encoded])[0]


def redrawn_answers(
    model: BornTransformer, run: PairRun, size: int = 1000, seed: int = 1, blocks: Sequence[int] = (0, 1)
) -> np.ndarray:
    """Class probabilities (size, 3) with every circuit's shots drawn again: the spread that finite shots leave (Table 5)."""
    errors = [e if b in blocks else None for b, e in enumerate(run.redrawn_errors(seed, size))]
    return probabilities(measured_model(model, fixed(errors)), [run.encoded] * size, slots=size * (len(run.encoded.ids) + 1))


# ---------------------------------------------------------------------------------------------- how good a reading is
def fit_readings(ideal: np.ndarray, read: np.ndarray) -> dict[str, float]:
    """A straight line through readings against ideal overlaps: `visibility` (slope), `offset`, `residual` (sd around it) and `r`."""
    ideal, read = np.ravel(ideal), np.ravel(read)
    slope, offset = np.polyfit(ideal, read, 1)
    residual = (read - slope * ideal - offset).std(ddof=2)
    return {
        "visibility": float(slope),
        "offset": float(offset),
        "residual": float(residual),
        "r": float(np.corrcoef(ideal, read)[0, 1]),
    }


def noisy_expectations(tests: Sequence[HadamardTest], ledger: Ledger, device: Device, readout: bool = True) -> np.ndarray:
    """Expectations (tests,) that infinitely many shots of the ledger's own circuits would give on a simulated device's noise."""
    circuits = [devices.decouple(devices.read_circuit(text), device.target) for text in ledger.texts([t.identity for t in tests])]
    return 1 - 2 * devices.ancilla_probabilities(circuits, device.target, readout=readout)


def read_evidence(model: BornTransformer, exact: Sequence[evidence.Evidence], noise: Measure) -> list[evidence.Evidence]:
    """Measured evidence of each pair, explained class as in `exact`, every overlap read once through `noise` (Table 7)."""
    return [measured_evidence(model, e.encoded, draw_errors(model, e.encoded, noise), e.target) for e in exact]


def top_agreement(read: Sequence[evidence.Evidence], exact: Sequence[evidence.Evidence], k: int = 1) -> np.ndarray:
    """Per pair the share of the exact evidence's `k` first words that are among the measured evidence's first `k` (Table 7)."""
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
    out = []
    for a, b in zip(read, exact, strict=True):
        words = np.flatnonzero(b.encoded.words)
        first = [set(words[np.argsort(-e.values[words], kind="stable")[:k]]) for e in (a, b)]
        out.append(len(first[0] & first[1]) / max(1, len(first[1])))
    return np.array(out)


def correlation(read: Sequence[evidence.Evidence], exact: Sequence[evidence.Evidence]) -> float:
    """Correlation of measured with exact evidence over all slots of all pairs (Table 7)."""
    return float(np.corrcoef(*(np.concatenate([e.values for e in found]) for found in (read, exact)))[0, 1])


def crossing(x: Sequence[float], shares: Sequence[float], level: float = 0.95) -> float | None:
    """The x, interpolated in log x, where `shares` reaches `level` for good (rising) or first leaves it (falling); None where it does not."""
    x, shares = np.log(np.asarray(x, float)), np.asarray(shares, float)
    rising = shares[-1] > shares[0]
    below = np.flatnonzero(shares < level)
    k = -1 if not len(below) else below[-1] if rising else below[0] - 1  # the step that crosses goes from k to k + 1
    if not 0 <= k < len(x) - 1:
        return None
    return float(np.exp(x[k] + (x[k + 1] - x[k]) * (level - shares[k]) / (shares[k + 1] - shares[k])))
