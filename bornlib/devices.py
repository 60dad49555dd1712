"""Where five-qubit circuits run: an ideal simulator, the noise model of a device's best line of qubits, or the device itself.

All three get the same circuits: transpiled to the line at level 3, the best of 8 seeds, idle times filled with XY4 (paper Table 10). qiskit
is imported when a function needs it: replaying a ledger does not.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from tqdm.auto import tqdm

QUBITS = 5
LEVEL, TRANSPILER_SEEDS = 3, range(1, 9)  # paper Table 10
SHOTS = 2000  # paper Table 10
ANCILLA = "ancilla"  # name of the classical register that is read
STARTUP, PER_SHOT = 2.0, 266.5e-6  # seconds; fitted to Table 10: 30, 196 and 272 circuits took 18, 106 and 147 s
PACKAGES = ("qiskit", "qiskit-aer", "qiskit-ibm-runtime")
TYPICAL_CZ, TYPICAL_SECONDS = 34, 8e-6  # of a Hadamard test of 16 amplitudes: what the choice of the line assumes
NO_ACCOUNT = (
    "no IBM Quantum account is saved on this machine. Make one at quantum.cloud.ibm.com, then run once in Python: "
    "from qiskit_ibm_runtime import QiskitRuntimeService; QiskitRuntimeService.save_account(token='...'). "
    "Everything but the real device works without it (`--backend fake_kingston`)"
)


@dataclass
class Job:
    """A submitted job: its `id`, and `result()`, which waits and gives counts (circuits, 2) and quantum seconds (None: not known)."""

    id: str
    result: Callable[[], tuple[np.ndarray, float | None]]


@dataclass
class Device:
    """`kind` is "ideal", "noise model" or "device"; `line` the physical qubits, `target` (a qiskit Target) that of the line, qubits 0 to 4.

    `submit(circuits, shots, seeds, tag)` starts a job, `find(id, shots, tag)` gives one that was started earlier (id None: by its tag), or None.
    """

    backend: str
    kind: str
    calibrated: str
    line: tuple[int, ...]
    target: object
    submit: Callable[[list, int, Sequence[int], str], Job]
    find: Callable[[str | None, int, str], Job | None]

    def settings(self, shots: int) -> dict:
        """What a ledger of this device holds on to: jobs with other settings do not belong into it."""
        if shots < 1:
            raise ValueError(f"shots: expected at least 1, got {shots}")
        return {
            "backend": self.backend, "kind": self.kind, "line": list(self.line), "shots": shots, "level": LEVEL,
            "transpiler_seeds": len(TRANSPILER_SEEDS), "decoupling": "XY4",
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        }  # fmt: skip


def quantum_seconds(circuits: int, shots: int = SHOTS) -> float:
    """Predicted seconds of the quantum computer for one job; 272 circuits of 2,000 shots give 147 (paper Table 10)."""
    return STARTUP + circuits * shots * PER_SHOT if circuits else 0.0


# ---------------------------------------------------------------------------------------------- the line of qubits
def best_line(target) -> tuple[int, ...]:
    """The five neighbouring qubits that a Hadamard test loses least on: CZ errors, decoherence and the best qubit's readout."""
    quality = {edge: p.error for edge, p in target["cz"].items() if p is not None and p.error is not None and p.error < 0.5}
    neighbours: dict[int, list[int]] = {}
    for a, b in quality:
        neighbours.setdefault(a, []).append(b)

    def extend(path):
        if len(path) == QUBITS:
            return [path] if path[0] < path[-1] else []
        return [p for q in sorted(neighbours[path[-1]]) if q not in path for p in extend((*path, q))]

    def loss(path):
        gates = sum(-math.log1p(-quality[e]) for e in zip(path, path[1:], strict=False)) * TYPICAL_CZ / (QUBITS - 1)
        idle = sum(TYPICAL_SECONDS / target.qubit_properties[q].t2 for q in path) / 2
        return gates + idle + min(target["measure"][(q,)].error for q in path)

    lines = [path for start in sorted(neighbours) for path in extend((start,))]
    if not lines:
        raise ValueError(f"target: expected a line of {QUBITS} qubits with working CZ gates, found none")
    return min(lines, key=loss)


def line_target(target, line: Sequence[int]):
    """The part of a device's target that concerns `line`, its qubits renumbered from 0."""
    from qiskit.transpiler import Target

    place = {q: i for i, q in enumerate(line)}
    timing = {name: getattr(target, name) for name in ("dt", "granularity", "min_length", "pulse_alignment", "acquire_alignment")}
    out = Target(num_qubits=len(line), qubit_properties=[target.qubit_properties[q] for q in line], **timing)
    for name in ("cz", "rz", "sx", "x", "id", "measure", "reset", "delay"):
        if name in target.operation_names:
            properties = {tuple(place[q] for q in qubits): p for qubits, p in target[name].items() if set(qubits) <= set(line)}
            out.add_instruction(target.operation_from_name(name), properties)
    return out


# ---------------------------------------------------------------------------------------------- circuits as they are sent
@functools.lru_cache(maxsize=4)
def _pass_managers(target):
    from qiskit.transpiler import generate_preset_pass_manager

    return [(seed, generate_preset_pass_manager(LEVEL, target=target, seed_transpiler=seed)) for seed in TRANSPILER_SEEDS]


def transpile(circuit, target) -> tuple[object, int]:
    """A circuit at level 3 on the line, the best of 8 seeds (fewest CZ, then depth), and the seed; not deterministic."""
    found = [(manager.run(circuit), seed) for seed, manager in _pass_managers(target)]
    return min(found, key=lambda f: (f[0].count_ops().get("cz", 0), f[0].depth()))


@functools.lru_cache(maxsize=4)
def _padding(target):
    from qiskit.circuit.library import RZGate, XGate
    from qiskit.transpiler import PassManager
    from qiskit.transpiler.passes import ALAPScheduleAnalysis, PadDelay, PadDynamicalDecoupling, TimeUnitConversion

    gates, spacing = [], []
    for k, axis in enumerate((0.0, math.pi / 2, math.pi, -math.pi / 2)):  # X, Y, -X, -Y: an X between two virtual rotations
        gates += [RZGate(axis), XGate(), RZGate(-axis)] if axis else [XGate()]
        spacing += [0.125 if k == 0 else 0.25] + ([0, 0] if axis else [])
    pad = PadDynamicalDecoupling(target=target, dd_sequence=gates, spacing=[*spacing, 0.125], skip_reset_qubits=False)
    return PassManager([TimeUnitConversion(target=target), ALAPScheduleAnalysis(target=target), pad, PadDelay(target=target)])


def decouple(circuit, target):
    """A transpiled circuit, scheduled as late as possible, with XY4 in every idle time that is long enough."""
    return _padding(target).run(circuit)


def place(circuit, line: Sequence[int], qubits: int):
    """A circuit on the line as one on the whole device: wire k on physical qubit line[k]."""
    from qiskit.circuit import ClassicalRegister, QuantumCircuit, QuantumRegister

    out = QuantumCircuit(QuantumRegister(qubits, "q"), *(ClassicalRegister(c.size, c.name) for c in circuit.cregs))
    return out.compose(circuit, qubits=list(line), clbits=range(circuit.num_clbits))


def read_circuit(text: str):
    """A transpiled circuit from its text in a ledger (OpenQASM 2)."""
    from qiskit import qasm2

    return qasm2.loads(text, custom_instructions=qasm2.LEGACY_CUSTOM_INSTRUCTIONS)


# ---------------------------------------------------------------------------------------------- counts
def count_pair(counts: dict, shots: int) -> tuple[int, int]:
    """Zeros and ones from an outcome dictionary of one bit; a missing outcome was seen 0 times.

    Raises ValueError for outcomes of more bits, and where the counts do not add up to `shots`.
    """
    strange = set(counts) - {"0", "1"}
    if strange:
        raise ValueError(
            f"counts: expected the outcomes '0' and '1' of one bit, got {sorted(strange)}; read the register {ANCILLA!r} alone"
        )
    zeros, ones = int(counts.get("0", 0)), int(counts.get("1", 0))
    if zeros + ones != shots:
        raise ValueError(f"counts: expected {shots} shots, got {zeros + ones}")
    return zeros, ones


def result_counts(result, shots: int) -> np.ndarray:
    """Counts (circuits, 2) of the ancilla's register from a sampler's result, whatever other registers there are."""
    return np.array(
        [count_pair(getattr(publication.data, ANCILLA).get_counts(), shots) for publication in result], np.int64
    ).reshape(-1, 2)


# ---------------------------------------------------------------------------------------------- simulators
def noise_model(target):
    """Aer's noise model of a line: gate, readout and relaxation errors; idle times are left to `with_idling`."""
    from qiskit_aer.noise import NoiseModel

    device = SimpleNamespace(version=2, target=target, operation_names=list(target.operation_names), dt=target.dt, name="line")
    return NoiseModel.from_backend(device)


def with_idling(circuit, target, errors: dict):
    """A circuit whose delays are replaced by their relaxation channels, kept in `errors`; Aer does the same five times as slowly."""
    from qiskit_aer.noise import thermal_relaxation_error

    out = circuit.copy_empty_like()
    for instruction in circuit.data:
        if instruction.operation.name != "delay":
            out._append(instruction)
            continue
        qubit, duration = circuit.find_bit(instruction.qubits[0]).index, int(instruction.operation.duration)
        if (qubit, duration) not in errors:
            p = target.qubit_properties[qubit]
            errors[qubit, duration] = thermal_relaxation_error(p.t1, min(p.t2, 2 * p.t1), duration * target.dt).to_instruction()
        out.append(errors[qubit, duration], instruction.qubits)
    return out


def ancilla_probabilities(circuits: Sequence, target, noisy: bool = True, readout: bool = True) -> np.ndarray:
    """Exact probability (circuits,) that the measured bit reads 1, with the line's noise or without, and with its readout error or without."""
    from qiskit_aer import AerSimulator

    errors: dict = {}
    prepared, flips = [], []
    for circuit in circuits:
        (last,) = [i for i in circuit.data if i.operation.name == "measure"]
        flips.append(target["measure"][(circuit.find_bit(last.qubits[0]).index,)].error if noisy and readout else 0.0)
        open_end = with_idling(circuit, target, errors) if noisy else circuit.copy()
        open_end.remove_final_measurements()
        open_end.save_probabilities(qubits=list(last.qubits))
        prepared.append(open_end)
    options = {"method": "density_matrix", "noise_model": noise_model(target)} if noisy else {"method": "statevector"}
    result = AerSimulator(**options).run(prepared, shots=1).result()
    one = np.array([result.data(k)["probabilities"][1] for k in range(len(prepared))])
    return one + np.array(flips) * (1 - 2 * one)


def circuit_seed(seed: int, key: str) -> np.random.SeedSequence:
    """The seed of one circuit, spawned from the run's `seed` by the circuit's key: no two circuits share one, in whatever order they run."""
    return np.random.SeedSequence(seed, spawn_key=tuple(int(key[i : i + 8], 16) for i in range(0, 24, 8)))


def simulator(backend=None, noisy: bool = True, line: Sequence[int] | None = None) -> Device:
    """The noise model of a backend's line (default: FakeKingston, its best line), or the same line without noise.

    A density matrix gives each circuit's exact probability; its shots are then drawn with the circuit's own seed.
    """
    backend = fake_kingston() if backend is None else backend
    line = best_line(backend.target) if line is None else tuple(line)
    target = line_target(backend.target, line)

    def submit(circuits, shots, seeds, tag):
        one = np.clip(ancilla_probabilities(circuits, target, noisy), 0, 1)
        ones = np.array([np.random.default_rng(s).binomial(shots, p) for s, p in zip(seeds, one, strict=True)], np.int64)
        return Job(tag.replace("bornlib", "simulated"), lambda: (np.stack([shots - ones, ones], 1), None))

    kind = "noise model" if noisy else "ideal"
    return Device(backend.name, kind, calibration_time(backend), line, target, submit, lambda job_id, shots, tag: None)


def fake_kingston():
    """The Heron r2 device ibm_kingston as recorded in qiskit-ibm-runtime: coupling, timing and one calibration."""
    from qiskit_ibm_runtime.fake_provider import FakeKingston

    return FakeKingston()


def calibration_time(backend) -> str:
    """When the backend was last calibrated, as text; empty where it does not say."""
    properties = getattr(backend, "properties", None)
    return str(properties().last_update_date) if callable(properties) and properties() is not None else ""


# ---------------------------------------------------------------------------------------------- the real device
def runtime_device(backend, service=None, line: Sequence[int] | None = None) -> Device:
    """A backend behind qiskit-ibm-runtime's Sampler: `submit` sends circuits and costs quantum seconds on a real one.

    Circuits are sent as they are (XY4 is in them), so the Sampler's own decoupling and twirling stay off.
    """
    line = best_line(backend.target) if line is None else tuple(line)

    def wrap(job, shots):
        def result():
            counts = result_counts(job.result(), shots)
            return counts, (float(job.usage()) or None) if hasattr(job, "usage") else None  # 0 until the service has counted

        return Job(job.job_id(), result)

    def submit(circuits, shots, seeds, tag):
        from qiskit_ibm_runtime.executor_sampler import Sampler

        sampler = Sampler(mode=backend)
        sampler.options.default_shots = shots
        sampler.options.environment.job_tags = [tag]
        return wrap(sampler.run([place(c, line, backend.num_qubits) for c in circuits], shots=shots), shots)

    def find(job_id, shots, tag):
        from qiskit_ibm_runtime.exceptions import RuntimeJobNotFound

        if service is None:
            return None
        try:
            jobs = [service.job(job_id)] if job_id else service.jobs(limit=None, backend_name=backend.name, job_tags=[tag])
        except RuntimeJobNotFound:
            return None
        alive = [job for job in jobs if job.status() not in ("ERROR", "CANCELLED")]
        return wrap(alive[0], shots) if alive else None

    return Device(backend.name, "device", calibration_time(backend), line, line_target(backend.target, line), submit, find)


def connect(name: str = "ibm_kingston", line: Sequence[int] | None = None) -> Device:
    """The real device of that name through the saved account. Raises ValueError, with what to do, where there is none."""
    from qiskit_ibm_runtime import QiskitRuntimeService
    from qiskit_ibm_runtime.accounts import AccountNotFoundError

    try:
        service = QiskitRuntimeService()
    except AccountNotFoundError as error:
        raise ValueError(NO_ACCOUNT) from error
    return runtime_device(service.backend(name), service, line)


def job_tag(keys: Sequence[str]) -> str:
    """A tag that names the circuits of a job, so that a job whose id was lost in a crash is found again."""
    return "bornlib-" + hashlib.sha256("".join(keys).encode()).hexdigest()[:16]


def transpile_all(circuits: Sequence, target, progress: bool = False) -> list[tuple[object, int]]:
    """`transpile` for many circuits, with a progress bar."""
    return [transpile(c, target) for c in tqdm(circuits, desc="transpile", disable=not progress, leave=False)]
