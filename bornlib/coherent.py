"""The coherent attention layer as one circuit: built, counted, simulated, post-selected (paper Figure 6, Tables 4 and 6).

Three copies of the sentence are prepared: |s> with s = sum_j x_j, the keys sum_j |j>|x_j*> and the values sum_j |j>|x_j>.
A map takes |s> to four heads m_h. A Bell projection of query and key leaves c_jh = <x_j|m_h> as an amplitude, CNOTs
and a projection pair the slots, Hadamards and a projection sum them: z_h = sum_j c_jh x_j. The readout U acts on head and
value, and one measurement of seven qubits gives the class.

Letters in shape comments: B pairs, L slots, 32 modes, 128 = 4 heads x 32 modes (the head is the high digit), p slot qubits.
Maps are contractions: a dense one is divided by its largest singular value, which changes no class probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from qiskit import ClassicalRegister, QuantumCircuit, QuantumRegister, transpile
from qiskit.circuit.library import StatePreparation, UCRYGate, UnitaryGate
from qiskit.quantum_info import Operator, Statevector

from .corpus import Encoded, collate
from .models import COHERENT_HEADS, MODES, OUTCOMES, QUBITS, REGIONS, Brickwall, CoherentLayer

MODE_QUBITS, HEAD_QUBITS = 5, 2
STAGES = ("heads", "Bell", "pairing", "sum", "readout")  # what is post-selected, in order
BASIS = ("u", "cx")  # what CNOTs are counted in
UNITARY = 1e-10  # largest defect |U* U - 1| of a gate, and excess over 1 of a contraction's singular values


# ---------------------------------------------------------------------------------------------- from the model
@dataclass(frozen=True, eq=False)
class Maps:
    """`heads` M (128, 32) and `readout` U (128, 128) as the circuit implements them, complex128.

    The gates of a brickwall are (18, 3, 4, 4); None stands for a dense map, which is block-encoded with one ancilla.
    """

    heads: np.ndarray
    readout: np.ndarray
    head_gates: np.ndarray | None
    readout_gates: np.ndarray | None


@torch.no_grad()
def maps_of(model: CoherentLayer) -> Maps:
    """The maps of a model (give it in float64: its own precision decides), dense ones divided by their largest singular value."""
    if not isinstance(model, CoherentLayer):
        raise ValueError(f"model: expected a coherent layer, got {type(model).__name__}")
    matrices, gates = [], []
    for module, matrix in ((model.heads, model.head_map()), (model.readout, model.readout_map())):
        matrix = matrix.to(torch.complex128).numpy()
        if not np.isfinite(matrix).all():
            raise ValueError("model: expected finite maps, got weights that are not finite")
        brickwall = isinstance(module, Brickwall)
        gates.append(module.gates().to(torch.complex128).numpy() if brickwall else None)
        matrices.append(matrix if brickwall else matrix / np.linalg.norm(matrix, 2))
    return Maps(*matrices, *gates)


@torch.no_grad()
def slots_of(model: CoherentLayer, encoded: Sequence[Encoded]) -> list[np.ndarray]:
    """The slots of every pair, reference first: arrays (1 + tokens, 32), complex128."""
    return [model.slots(*collate([e]))[0].to(torch.complex128).numpy() for e in encoded]


def slot_qubits(slots: int) -> int:
    """The fewest qubits p >= 1 whose 2^p values number the slots: 3 for 8 of them."""
    if slots < 1:
        raise ValueError(f"slots: expected at least 1, got {slots}")
    return max(1, (int(slots) - 1).bit_length())


def checked(slots: np.ndarray, p: int | None = None) -> tuple[np.ndarray, int]:
    """The slots as complex128 (L, 32) and p; ValueError where no state can be prepared from them."""
    x = np.asarray(slots, np.complex128)
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] != MODES:
        raise ValueError(f"slots: expected shape (slots, {MODES}) with at least 1 slot, got {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("slots: expected finite amplitudes, got NaN or infinity")
    p = slot_qubits(len(x)) if p is None else p
    if p < 1 or len(x) > 2**p:
        raise ValueError(f"slots: expected at most 2^p = {2 ** max(p, 0)} with p = {p} (p at least 1), got {len(x)}")
    size = np.linalg.norm(x)
    if size == 0:
        raise ValueError("slots: expected amplitudes other than 0, got zeros only")
    if np.linalg.norm(x.sum(0)) < 1e-12 * size:
        raise ValueError("slots: expected a pooled query other than 0, but the slots sum to 0")
    return x, p


# ---------------------------------------------------------------------------------------------- closed formulas
@dataclass(frozen=True, eq=False)
class Prediction:
    """What the circuit must give for B pairs, from formulas: probability of each of `STAGES` on condition of those before
    it (B, 5), of all of them `passing` (B,), of the 128 `outcomes` in an accepted shot (B, 128), and `classes` (B, 3).
    """

    stages: np.ndarray
    passing: np.ndarray
    outcomes: np.ndarray
    classes: np.ndarray


def class_shares(outcomes: np.ndarray) -> np.ndarray:
    """Probabilities of the classes (..., 3) from those of the outcomes (..., 128)."""
    return np.stack([part.sum(-1) for part in np.split(outcomes, np.cumsum(REGIONS)[:-1], -1)], -1)


def predict(slots: Sequence[np.ndarray], maps: Maps, p: int | None = None) -> Prediction:
    """Post-selection and outcomes by closed formula, all pairs at once (paper Eq. 9, Table 6).

    P_pass = |U z|^2 / (|s|^2 |X|^4 32 2^p) with |X|^2 = sum_j |x_j|^2; p None takes for each pair the fewest slot qubits.
    """
    ready = [checked(x, p) for x in slots]
    x = np.zeros((len(ready), max(len(a) for a, _ in ready), MODES), np.complex128)
    for row, (a, _) in zip(x, ready, strict=True):
        row[: len(a)] = a
    size = np.array([2.0**q for _, q in ready])
    s = x.sum(1)
    m = (s @ maps.heads.T).reshape(-1, COHERENT_HEADS, MODES)
    c = m @ x.conj().transpose(0, 2, 1)  # (B, 4, L): <x_j|m_h>
    z = (c @ x).reshape(-1, OUTCOMES)
    y = z @ maps.readout.T
    norm = lambda a: (np.abs(a) ** 2).reshape(len(a), -1).sum(1)  # noqa: E731
    whole, paired = norm(x), (np.abs(c) ** 2 * (np.abs(x) ** 2).sum(2)[:, None]).sum((1, 2))
    after = np.stack(
        [norm(m) / norm(s), norm(c) / (MODES * norm(s) * whole), paired / (MODES * norm(s) * whole**2)]
        + [norm(a) / (MODES * size * norm(s) * whole**2) for a in (z, y)],
        1,
    )
    outcomes = np.abs(y) ** 2 / norm(y)[:, None]
    stages = after / np.concatenate([np.ones((len(ready), 1)), after[:, :-1]], 1)
    return Prediction(stages, after[:, -1], outcomes, class_shares(outcomes))


def amplification_rounds(passing: float | np.ndarray) -> float | np.ndarray:
    """Rounds of amplitude amplification until a shot is accepted: pi / (4 sqrt(P)), two passes of the circuit each (Table 6)."""
    passing = np.asarray(passing, float)
    if not ((passing > 0) & (passing <= 1)).all():
        raise ValueError(f"passing: expected 0 < P <= 1, got {passing}")
    return math.pi / (4 * np.sqrt(passing))


def preparation_cnots(qubits: int) -> int:
    """CNOTs that prepare a general state: 2^n - n - 1."""
    return 2**qubits - qubits - 1


def brickwall_cnots(p: int, layers: int = 36) -> int:
    """CNOTs of the all-brickwall circuit: three preparations, three a gate, the Bell projection and the pairing; 852 at p = 3."""
    prepared = preparation_cnots(MODE_QUBITS) + 2 * preparation_cnots(MODE_QUBITS + p)
    return prepared + 3 * (QUBITS // 2) * layers + MODE_QUBITS + p


def shot_agreement(classes: np.ndarray, shots: int, repeats: int, generator: np.random.Generator) -> np.ndarray:
    """Share of `repeats` runs of `shots` accepted shots whose most frequent class is the exact answer, per pair (B,).

    A tie is decided by a coin: it counts for its share.
    """
    if shots < 1 or repeats < 1:
        raise ValueError(f"shots and repeats: expected at least 1, got {shots} and {repeats}")
    counts = generator.multinomial(shots, np.asarray(classes, float), (repeats, len(classes)))
    best = counts == counts.max(-1, keepdims=True)
    answer = np.argmax(classes, 1)
    return (best[:, np.arange(len(classes)), answer] / best.sum(-1)).mean(0)


# ---------------------------------------------------------------------------------------------- the circuit
@dataclass(frozen=True, eq=False)
class Stage:
    """A part of the circuit: `circuit` acts on the qubits of `registers`, one after the other, the first being the low digits."""

    name: str
    circuit: QuantumCircuit
    registers: tuple[str, ...]


def prepare(vector: np.ndarray) -> QuantumCircuit:
    """A circuit that takes |0> to the vector over its norm."""
    out = QuantumCircuit(int(len(vector)).bit_length() - 1)
    out.append(StatePreparation(vector / np.linalg.norm(vector)), out.qubits)
    return out


def brickwall(gates: np.ndarray) -> QuantumCircuit:
    """Seven qubits under gates (layers, 3, 4, 4). A brickwall counts its qubits from the high digit, qiskit from the low one.

    Raises ValueError for a gate that is not unitary, stating its defect.
    """
    gates = np.asarray(gates, np.complex128)
    if gates.ndim != 4 or gates.shape[1:] != (QUBITS // 2, 4, 4):
        raise ValueError(f"gates: expected shape (layers, {QUBITS // 2}, 4, 4), got {gates.shape}")
    defect = np.abs(gates.conj().swapaxes(-1, -2) @ gates - np.eye(4)).max(initial=0)
    if not defect < UNITARY:
        raise ValueError(f"gates: expected unitary gates, |U* U - 1| below {UNITARY:g}, got a gate with a defect of {defect:.3g}")
    out = QuantumCircuit(QUBITS)
    for k, layer in enumerate(gates):
        for g, gate in enumerate(layer):
            first = k % 2 + 2 * g
            out.append(UnitaryGate(gate), [QUBITS - 2 - first, QUBITS - 1 - first])
    return out


def block_encoding(matrix: np.ndarray) -> QuantumCircuit:
    """A circuit whose block at ancilla 0 is a contraction (128, 32) or (128, 128) = V cos(theta) W^+, smaller input: zeros above.

    W^+ on the input's qubits, a rotation of the ancilla (the last qubit) by theta for each singular vector, then V.
    Raises ValueError where a singular value is above 1: no circuit can make a state longer.
    """
    rows, columns = matrix.shape
    v, cosines, w = np.linalg.svd(matrix)
    if not cosines[0] < 1 + UNITARY:
        raise ValueError(f"matrix: expected a contraction, singular values of at most 1, got {cosines[0]:.6g}; divide it by that")
    out = QuantumCircuit(rows.bit_length())
    inside, ancilla = out.qubits[: columns.bit_length() - 1], out.qubits[-1]
    out.append(UnitaryGate(w), inside)
    out.append(UCRYGate(list(2 * np.arccos(np.clip(cosines, 0, 1)))), [ancilla, *inside])
    out.append(UnitaryGate(v), out.qubits[:-1])
    return out


def stages(slots: np.ndarray, maps: Maps, p: int | None = None) -> list[Stage]:
    """The circuit in parts, in order: three preparations, heads, Bell, pairing, sum, readout (Figure 6)."""
    x, p = checked(slots, p)
    keyed = np.zeros((2**p, MODES), np.complex128)
    keyed[: len(x)] = x
    if maps.head_gates is None:
        heads, on_heads = block_encoding(maps.heads), ("query", "head", "head_ancilla")
    else:
        heads, on_heads = QuantumCircuit(QUBITS), ("query", "head")
        heads.h(range(MODE_QUBITS, QUBITS))
        heads.compose(brickwall(maps.head_gates), inplace=True)
    dense = maps.readout_gates is None
    readout = block_encoding(maps.readout) if dense else brickwall(maps.readout_gates)
    bell, pairing, total = QuantumCircuit(2 * MODE_QUBITS), QuantumCircuit(2 * p), QuantumCircuit(p)
    bell.cx(range(MODE_QUBITS), range(MODE_QUBITS, 2 * MODE_QUBITS))
    bell.h(range(MODE_QUBITS))
    pairing.cx(range(p), range(p, 2 * p))
    total.h(range(p))
    return [
        Stage("query", prepare(x.sum(0)), ("query",)),
        Stage("keys", prepare(keyed.conj().ravel()), ("key", "key_slot")),
        Stage("values", prepare(keyed.ravel()), ("value", "value_slot")),
        Stage("heads", heads, on_heads),
        Stage("Bell", bell, ("query", "key")),
        Stage("pairing", pairing, ("key_slot", "value_slot")),
        Stage("sum", total, ("key_slot",)),
        Stage("readout", readout, ("value", "head", "readout_ancilla") if dense else ("value", "head")),
    ]


def in_basis(parts: list[Stage], own_gates: bool = False, seed: int = 0) -> list[Stage]:
    """Every part in single-qubit gates and CNOTs. `own_gates` leaves parts of one- and two-qubit gates as they are.

    Splitting a two-qubit gate into CNOTs is good to some 1e-13 only.
    """

    def small(circuit: QuantumCircuit) -> bool:
        return all(step.operation.num_qubits <= 2 for step in circuit.data)

    def compiled(circuit: QuantumCircuit) -> QuantumCircuit:
        return transpile(circuit, basis_gates=list(BASIS), optimization_level=1, seed_transpiler=seed)

    return [s if own_gates and small(s.circuit) else Stage(s.name, compiled(s.circuit), s.registers) for s in parts]


def cnots(parts: list[Stage]) -> dict[str, int]:
    """CNOTs of every part that `in_basis` gave, and their `total`."""
    counts = {s.name: s.circuit.count_ops().get("cx", 0) for s in parts}
    return counts | {"total": sum(counts.values())}


def assemble(parts: list[Stage], measured: bool = False) -> QuantumCircuit:
    """One circuit of 17 + 2p qubits (and an ancilla for each dense map). `measured` adds the measurement of the seven
    qubits that hold the outcome, and of all others, which must read 0, as `outcome` and `flags`.
    """
    width = {r: 0 for r in ("query", "head", "key", "key_slot", "value", "value_slot", "head_ancilla", "readout_ancilla")}
    sizes = {"query": MODE_QUBITS, "key": MODE_QUBITS, "value": MODE_QUBITS, "head": HEAD_QUBITS}
    p = next(s.circuit.num_qubits for s in parts if s.name == "sum")
    sizes |= {"key_slot": p, "value_slot": p, "head_ancilla": 1, "readout_ancilla": 1}
    used = {r for s in parts for r in s.registers}
    registers = {r: QuantumRegister(sizes[r], r) for r in width if r in used}
    out = QuantumCircuit(*registers.values())
    for part in parts:
        out.compose(part.circuit, [q for r in part.registers for q in registers[r]], inplace=True)
    if measured:
        flags = [q for r in registers if r not in ("value", "head") for q in registers[r]]
        outcome = [*registers["value"], *registers["head"]]
        out.add_register(ClassicalRegister(len(outcome), "outcome"), ClassicalRegister(len(flags), "flags"))
        out.measure([*outcome, *flags], out.clbits)
    return out


# ---------------------------------------------------------------------------------------------- simulation
@dataclass(frozen=True, eq=False)
class Reading:
    """What a simulated circuit gives: `stages` (5,) as in `Prediction` (None where not read), `passing`, `outcomes` (128,), `classes` (3,)."""

    stages: np.ndarray | None
    passing: float
    outcomes: np.ndarray
    classes: np.ndarray


def _reading(accepted: np.ndarray, stages: np.ndarray | None = None) -> Reading:
    """From the unnormalised amplitudes of accepted shots (128,)."""
    weights = np.abs(accepted) ** 2
    outcomes = weights / weights.sum()
    return Reading(stages, float(weights.sum()), outcomes, class_shares(outcomes))


def read(state: np.ndarray, circuit: QuantumCircuit) -> Reading:
    """Stage by stage from the final state of an assembled circuit: no later part touches a register that must read 0."""
    names = [r.name for r in circuit.qregs][::-1]  # the last register is the high digit
    psi = np.asarray(state).reshape([2 ** circuit.qregs[-1 - k].size for k in range(len(names))])
    after = []
    for projected in (("head_ancilla",), ("query", "key"), ("value_slot",), ("key_slot",), ("readout_ancilla",)):
        for name in projected:
            if name in names:
                axis = names.index(name)
                psi = psi.take(0, axis)
                names.pop(axis)
        after.append(float(np.vdot(psi, psi).real))
    accepted = psi.transpose([names.index("head"), names.index("value")]).ravel()
    return _reading(accepted, np.array(after) / np.array([1.0, *after[:-1]]))


def statevector(circuit: QuantumCircuit, fusion: bool = False) -> np.ndarray:
    """The final state by Aer in double precision; gate by gate unless `fusion` lets Aer merge gates. 2^(n + 4) bytes, several times."""
    from qiskit_aer import AerSimulator

    run = circuit.copy()
    run.save_statevector()
    simulator = AerSimulator(
        method="statevector", precision="double", fusion_enable=fusion, max_parallel_threads=torch.get_num_threads()
    )
    return np.asarray(simulator.run(run).result().get_statevector(run))


def _from_zero(circuit: QuantumCircuit) -> np.ndarray:
    """What a circuit makes of |0>: of a preparation its vector, of gates what they give."""
    first = circuit.data[0].operation
    return np.asarray(first.params, complex) if isinstance(first, StatePreparation) else Statevector(circuit).data


def folded_state(parts: list[Stage]) -> np.ndarray:
    """The same state with every preparation and every map folded into one vector or matrix; the few gates between them one by one."""
    circuit = assemble(parts)
    n = circuit.num_qubits
    place = {r.name: [circuit.find_bit(q).index for q in r] for r in circuit.qregs}
    psi, order = np.ones(()), []
    for part in parts[:3]:
        psi = np.multiply.outer(psi, _from_zero(part.circuit).reshape([2] * part.circuit.num_qubits))
        order += [q for r in part.registers for q in place[r]][::-1]
    for q in sorted(set(range(n)) - set(order)):
        psi, order = np.multiply.outer(psi, [1.0, 0.0]), [*order, q]
    psi = psi.transpose([order.index(q) for q in reversed(range(n))])  # axis k is qubit n - 1 - k

    def act(psi: np.ndarray, matrix: np.ndarray, qubits: list[int]) -> np.ndarray:
        axes, front = [n - 1 - q for q in reversed(qubits)], list(range(len(qubits)))
        moved = np.moveaxis(psi, axes, front)
        return np.moveaxis((matrix @ moved.reshape(len(matrix), -1)).reshape(moved.shape), front, axes)

    for part in parts[3:]:
        qubits = [q for r in part.registers for q in place[r]]
        if part.name in ("heads", "readout"):
            psi = act(psi, Operator(part.circuit).data, qubits)
        else:
            for step in part.circuit.data:
                psi = act(psi, Operator(step.operation).data, [qubits[part.circuit.find_bit(q).index] for q in step.qubits])
    return psi.ravel()


def contract(parts: list[Stage]) -> Reading:
    """The same by contracting the parts' states, without the state of all qubits: at most 7 + 1 or 5 + p of them at a time.

    A projection is the row <0| of its part, which is what the part's inverse makes of |0>.
    """
    part = {s.name: s.circuit for s in parts}
    row = lambda c: Statevector(c.inverse()).data.conj()  # noqa: E731

    def through(state: np.ndarray, name: str) -> np.ndarray:
        padded = np.zeros(2 ** part[name].num_qubits, complex)
        padded[: len(state)] = state
        return Statevector(padded).evolve(part[name]).data[:OUTCOMES]  # the ancilla is the high digit: 0

    query = through(_from_zero(part["query"]), "heads").reshape(-1, MODES)  # (heads, modes)
    key, value = (_from_zero(part[name]).reshape(-1, MODES) for name in ("keys", "values"))  # (2^p, modes)
    projection = row(part["Bell"]).reshape(MODES, MODES)  # (key, query)
    slots = part["pairing"].copy()
    slots.compose(part["sum"], range(part["sum"].num_qubits), inplace=True)
    paired = row(slots).reshape(len(value), len(key))  # (value slot, key slot)
    z = np.einsum("hq,jk,kq,ij,im->hm", query, key, projection, paired, value, optimize=True)
    return _reading(through(z.ravel(), "readout"))


def sample(state: np.ndarray, shots: int, generator: np.random.Generator) -> np.ndarray:
    """Basis states (shots,) that a measurement of all qubits gives, as indices of `state`."""
    if shots < 1:
        raise ValueError(f"shots: expected at least 1, got {shots}")
    weights = np.cumsum(np.abs(state) ** 2)
    return np.searchsorted(weights, generator.random(shots) * weights[-1], side="right")
