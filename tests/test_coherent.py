"""The coherent layer against loops written from the formulas, its circuit against the model, counts and post-selection (Tables 4, 6)."""

import functools
import itertools
import json
import math
import re

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from qiskit.quantum_info import Operator, Statevector
from torch.func import functional_call

from bornlib import coherent, minicorpus, runs
from bornlib.corpus import ROOT, Vocabulary, collate, encode
from bornlib.models import COHERENT, build, parameter_counts
from bornlib.training import Recipe, load_checkpoint, save_checkpoint, train

torch.set_num_threads(1)
WORDS = Vocabulary(["<pad>", "<unk>", "<sep>", *"a man dog plays sleeps outside hockey the . two people".split()])
EIGHT = encode("man plays hockey .", "dog plays", WORDS)  # with the reference eight slots, as the paper's two pairs
LONG = encode("a man plays hockey outside .", "the dog sleeps", WORDS)
PAPER = {n: json.loads((ROOT / "data" / "paper" / f"{n}.json").read_text("utf-8")) for n in ("table4", "table6")}


@functools.cache
def model_of(kind):
    model = build(kind, len(WORDS), 1).double().eval()
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():  # phases and the reference's gain start at constants that could hide an error
        model.phase += torch.randn(model.phase.shape, generator=generator, dtype=torch.float64)
        model.reference_gain += 0.4
    return model


@functools.cache
def prepared(kind, slots=8, p=None):
    """Slots of the pair, maps, the circuit's parts and the prediction."""
    model = model_of(kind)
    x, maps = coherent.slots_of(model, [EIGHT])[0][:slots], coherent.maps_of(model)
    return x, maps, coherent.stages(x, maps, p), coherent.predict([x], maps, p)


# ------------------------------------------------------------------------------- the formulas, one number at a time
PAULI = [np.array(m, complex) for m in ([[1, 0], [0, 1]], [[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]])]


def slow_brickwall(angles):
    """The whole 128 x 128 matrix, gate after gate as Kronecker products with identities."""
    out = np.eye(128, dtype=complex)
    products = [np.kron(a, b) for a, b in itertools.product(PAULI, PAULI)][1:]
    for k, layer in enumerate(angles):
        for g, angle in enumerate(layer):
            gate = scipy.linalg.expm(1j * sum(a * m for a, m in zip(angle, products, strict=True)))
            first = k % 2 + 2 * g
            out = np.kron(np.kron(np.eye(2**first), gate), np.eye(2 ** (5 - first))) @ out
    return out


def slow_layer(model, pair):
    """Slots, z, class probabilities of one pair from the formulas."""
    w = {k: v.detach().numpy() for k, v in model.state_dict().items()}
    vector = lambda row: row[:32] + 1j * row[32:]  # noqa: E731
    x = [w["reference_gain"] * vector(w["reference"])]
    for i, (word, side) in enumerate(zip(pair.ids, pair.sentence, strict=True)):
        field = vector(w["embedding"][word]) + vector(w["position"][i]) + vector(w["sentence"][side])
        x.append(np.exp(1j * w["phase"][i]) * field)
    s = sum(x)
    if "heads.angles" in w:
        spread = np.concatenate([s, s, s, s]) / 2
        m = (slow_brickwall(w["heads.angles"]) @ spread).reshape(4, 32)
    else:
        matrix = w["heads.weight"][0] + 1j * w["heads.weight"][1]
        m = np.array([matrix[32 * h : 32 * h + 32] @ s for h in range(4)])
    z = np.concatenate([sum(np.vdot(xj, m[h]) * xj for xj in x) for h in range(4)])
    u = slow_brickwall(w["readout.angles"]) if "readout.angles" in w else w["readout.weight"][0] + 1j * w["readout.weight"][1]
    light = np.abs(u @ z) ** 2
    classes = np.array([light[:43].sum(), light[43:86].sum(), light[86:].sum()])
    return np.array(x), z, classes / classes.sum()


@pytest.mark.parametrize("kind", COHERENT)
def test_the_layer_is_its_formulas(kind):
    model = model_of(kind)
    x, _, classes = slow_layer(model, LONG)
    ids, sentence = collate([LONG])
    with torch.no_grad():
        torch.testing.assert_close(model(ids, sentence)[0].exp().numpy(), classes, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(model.scores(model.fields(ids, sentence))[0].numpy(), classes, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(coherent.slots_of(model, [LONG])[0], x, rtol=1e-13)
    prediction = coherent.predict([x], coherent.maps_of(model))
    np.testing.assert_allclose(prediction.classes[0], classes, rtol=1e-12)


def test_the_passing_probability_is_equation_9():
    model = model_of("coherent-brickwall")
    pairs = [EIGHT, LONG, encode("two people .", "a man", WORDS)]
    got = coherent.predict(coherent.slots_of(model, pairs), coherent.maps_of(model))
    for pair, passing, stages, p in zip(pairs, got.passing, got.stages, (3, 4, 3), strict=True):
        x, z, _ = slow_layer(model, pair)
        s, whole = np.linalg.norm(x.sum(0)), np.linalg.norm(x)
        assert passing == pytest.approx(np.linalg.norm(z) ** 2 / (s**2 * whole**4 * 32 * 2**p), rel=1e-11)
        assert stages.prod() == pytest.approx(passing, rel=1e-12)
        assert (stages[0], stages[4]) == pytest.approx((1, 1), rel=1e-12)  # unitary maps lose nothing


# ------------------------------------------------------------------------------- the model
@pytest.mark.parametrize("kind", COHERENT)
def test_gradients_of_the_layer(kind):
    model = build(kind, len(WORDS), 2).double()
    names, values = zip(*[(n, p.detach().clone().requires_grad_()) for n, p in model.named_parameters()], strict=True)

    def loss(*parameters):
        return functional_call(model, dict(zip(names, parameters, strict=True)), collate([EIGHT, LONG]))

    assert torch.autograd.gradcheck(loss, values, fast_mode=True, atol=1e-6, rtol=1e-4)
    loss(*values)[:, 0].sum().backward()
    for name, value in zip(names, values, strict=True):
        rows = value.grad.reshape(len(value.grad), -1) if value.grad.dim() else value.grad.reshape(1, 1)
        reached = rows.abs().sum(1) > 0
        assert reached.any() if name in ("embedding", "position", "phase") else reached.all(), name


@pytest.mark.parametrize("kind", COHERENT)
def test_a_pair_alone_and_in_a_padded_batch(kind):
    model = model_of(kind)
    longest = encode("a man plays hockey outside . " * 6, "the dog sleeps " * 8, WORDS)
    pairs = [EIGHT, longest, LONG, encode("", "", WORDS)]
    with torch.no_grad():
        for row, pair in zip(model(*collate(pairs)), pairs, strict=True):
            torch.testing.assert_close(row, model(*collate([pair]))[0], rtol=1e-12, atol=1e-12)


def test_each_intensity_has_degree_6():
    x = torch.from_numpy(coherent.slots_of(model_of("coherent"), [LONG])[0])[None]
    with torch.no_grad():
        once, twice = (model_of("coherent").intensities(t * x) for t in (1, 2))
    torch.testing.assert_close(twice, 2**6 * once, rtol=1e-13, atol=0)
    assert model_of("coherent").degree == 6


def test_parameter_counts():
    """Outside the embedding: fields (64 + 2) x 64, 64 phases, reference and gain, then the maps."""
    fields = 66 * 64 + 64 + 64 + 1
    maps = {
        "coherent": 2 * 128 * (32 + 128),
        "coherent-readout": 2 * 128 * 32 + 18 * 3 * 15,
        "coherent-brickwall": 2 * 18 * 3 * 15,
    }
    for kind, expected in maps.items():
        assert parameter_counts(build(kind, 100)) == (6400 + fields + expected, fields + expected)


def test_a_brickwall_is_unitary_and_mixes_all_modes():
    model = model_of("coherent-brickwall")
    with torch.no_grad():
        u, m = model.readout_map().numpy(), model.head_map().numpy()
    np.testing.assert_allclose(u @ u.conj().T, np.eye(128), atol=1e-13)
    np.testing.assert_allclose(m.conj().T @ m, np.eye(32), atol=1e-13)
    assert np.abs(u).min() > 0
    np.testing.assert_allclose(u, slow_brickwall(model.readout.angles.detach().numpy()), atol=1e-13)


# ------------------------------------------------------------------------------- the circuit
@pytest.mark.parametrize(("p", "qubits"), [(3, 23), (4, 25), (5, 27), (6, 29)])
def test_qubits_are_17_plus_2p(p, qubits):
    x, maps, _, _ = prepared("coherent-brickwall")
    circuit = coherent.assemble(coherent.stages(x, maps, p), measured=True)
    assert circuit.num_qubits == qubits == 17 + 2 * p
    assert {r.name: r.size for r in circuit.cregs} == {"outcome": 7, "flags": 10 + 2 * p}


@pytest.mark.parametrize(("kind", "qubits"), [("coherent", 25), ("coherent-readout", 24)])
def test_a_dense_map_costs_one_ancilla(kind, qubits):
    assert coherent.assemble(prepared(kind)[2]).num_qubits == qubits


def test_852_cnots():
    """Table 4: 36 layers of three gates with three CNOTs each, preparations of 5, 8 and 8 qubits, 5 + 3 for Bell and pairing."""
    counts = coherent.cnots(coherent.in_basis(prepared("coherent-brickwall")[2]))
    assert counts["total"] == 852 == PAPER["table4"]["rows"][2]["cnots"] == coherent.brickwall_cnots(3)
    assert counts["heads"] == counts["readout"] == 18 * 3 * 3
    assert (counts["query"], counts["keys"], counts["values"], counts["Bell"], counts["pairing"]) == (26, 247, 247, 5, 3)


@pytest.mark.parametrize("kind", COHERENT)
def test_the_contracted_circuit_is_the_model(kind):
    """To 1e-14 with the maps as they are; in u and CNOT gates to the precision of their synthesis."""
    _, _, parts, prediction = prepared(kind)
    with torch.no_grad():
        exact = model_of(kind)(*collate([EIGHT]))[0].exp().numpy()
    for version, tolerance in ((parts, 1e-14), (coherent.in_basis(parts), 1e-13)):
        reading = coherent.contract(version)
        np.testing.assert_allclose(reading.classes, exact, rtol=0, atol=tolerance)
        np.testing.assert_allclose(reading.outcomes, prediction.outcomes[0], rtol=0, atol=tolerance)
        assert reading.passing == pytest.approx(prediction.passing[0], rel=1e-11)


@pytest.mark.parametrize(("own_gates", "tolerance"), [(True, 1e-14), (False, 1e-13)])
def test_every_gate_of_the_assembled_circuit_counts(own_gates, tolerance):
    """19 qubits by Aer, every gate and CNOT: every stage's probability and every outcome as predicted."""
    _, _, parts, prediction = prepared("coherent-brickwall", 2, 1)
    circuit = coherent.assemble(coherent.in_basis(parts, own_gates))
    assert circuit.num_qubits == 19
    reading = coherent.read(coherent.statevector(circuit, fusion=True), circuit)
    np.testing.assert_allclose(reading.stages, prediction.stages[0], rtol=1e-11)
    np.testing.assert_allclose(reading.outcomes, prediction.outcomes[0], rtol=0, atol=tolerance)
    np.testing.assert_allclose(reading.classes, prediction.classes[0], rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", COHERENT)
def test_the_folded_state_is_the_prediction(kind):
    _, _, parts, prediction = prepared(kind, 2, 1)
    reading = coherent.read(coherent.folded_state(parts), coherent.assemble(parts))
    np.testing.assert_allclose(reading.stages, prediction.stages[0], rtol=1e-11)
    np.testing.assert_allclose(reading.classes, prediction.classes[0], rtol=0, atol=3e-14)


def test_slots_that_are_not_there_change_only_what_passes():
    """Five slots among eight: the same answer, and half of what passes among four would."""
    x, maps, _, _ = prepared("coherent-brickwall")
    parts = coherent.stages(x[:5], maps)
    reading, larger = coherent.contract(parts), coherent.predict([x[:5]], maps, 4)
    np.testing.assert_allclose(reading.classes, larger.classes[0], rtol=0, atol=1e-14)
    assert larger.passing[0] == pytest.approx(reading.passing / 2, rel=1e-11)


@pytest.mark.parametrize("fault", ["keys not conjugated", "gates reversed", "heads before modes", "no superposition of heads"])
def test_a_wrong_circuit_is_caught(fault):
    x, maps, parts, prediction = prepared("coherent-brickwall")
    by_name = {s.name: s for s in parts}
    if fault == "keys not conjugated":
        by_name["keys"] = coherent.Stage("keys", by_name["values"].circuit, ("key", "key_slot"))
    elif fault == "gates reversed":
        by_name["readout"] = coherent.Stage("readout", coherent.brickwall(maps.readout_gates[::-1]), ("value", "head"))
    elif fault == "heads before modes":
        turned = by_name["readout"].circuit.reverse_bits()
        by_name["readout"] = coherent.Stage("readout", turned, ("value", "head"))
    else:
        by_name["heads"] = coherent.Stage("heads", coherent.brickwall(maps.head_gates), ("query", "head"))
    reading = coherent.contract(list(by_name.values()))
    assert np.abs(reading.classes - prediction.classes[0]).max() > 1e-3


def test_the_brickwall_circuit_is_the_models_matrix():
    _, maps, _, _ = prepared("coherent-brickwall")
    np.testing.assert_allclose(Operator(coherent.brickwall(maps.readout_gates)).data, maps.readout, atol=1e-13)


@pytest.mark.parametrize("columns", [32, 128])
def test_a_block_encoding_holds_its_contraction(columns):
    rng = np.random.default_rng(columns)
    matrix = rng.normal(size=(128, columns)) + 1j * rng.normal(size=(128, columns))
    matrix /= np.linalg.norm(matrix, 2)
    whole = Operator(coherent.block_encoding(matrix)).data
    assert whole.shape == (256, 256)
    np.testing.assert_allclose(whole[:128, :columns], matrix, atol=1e-13)
    np.testing.assert_allclose(whole @ whole.conj().T, np.eye(256), atol=1e-12)


def test_a_preparation_is_its_vector():
    v = 3j * np.random.default_rng(0).normal(size=32) + np.random.default_rng(1).normal(size=32)
    np.testing.assert_allclose(Statevector(coherent.prepare(v)).data, v / np.linalg.norm(v), atol=1e-14)


# ------------------------------------------------------------------------------- Table 6
def test_rounds_are_those_of_table_6():
    """pi / (4 sqrt(P)) gives the printed rounds from the printed P, and 852 CNOTs in two passes a round the printed CNOTs."""
    for row in PAPER["table6"]["rows"]:
        rounds = coherent.amplification_rounds(row["passing_median"])
        assert rounds == pytest.approx(row["rounds"], rel=0.025)
        assert round(2 * PAPER["table6"]["cnots_per_pass"] * rounds, -5) == row["cnots_per_accepted_shot"]
        assert 1 / row["passing_median"] == pytest.approx(row["runs_per_accepted_shot"], rel=0.03)
        low, high = map(int, row["slots"].split("–"))
        p = coherent.slot_qubits(high)
        assert 17 + 2 * p == row["qubits"] and (p == coherent.slot_qubits(low))
        assert math.pi / (4 * row["passing_median"]) > 1e4  # as the text prints it, without the root: not the table's


def test_cnots_grow_with_the_slots():
    """852 CNOTs are those of eight slots: the keys' and values' preparations double with each slot qubit."""
    x, maps, _, _ = prepared("coherent-brickwall")
    more = coherent.cnots(coherent.in_basis(coherent.stages(x, maps, 4)))
    assert more["total"] == coherent.brickwall_cnots(4) == 1363
    assert [coherent.brickwall_cnots(p) for p in (5, 6)] == [2386, 4433]


def test_the_most_frequent_class_by_hand():
    """Two classes and five shots: the binomial; a tie counts half."""
    rng = np.random.default_rng(1)
    classes = np.array([[0.6, 0.4, 0.0], [0.0, 0.0, 1.0], [0.3, 0.7, 0.0]])
    got = coherent.shot_agreement(classes, 5, 20_000, rng)
    np.testing.assert_allclose(got, [scipy.stats.binom.sf(2, 5, 0.6), 1, scipy.stats.binom.sf(2, 5, 0.7)], atol=0.015)
    even = coherent.shot_agreement(classes[:1], 2, 20_000, rng)
    assert even[0] == pytest.approx(0.36 + 0.5 * 0.48, abs=0.015)
    assert coherent.shot_agreement(classes, 2000, 50, rng).min() == 1


def test_samples_follow_the_state():
    state = np.sqrt([0.5, 0.0, 0.2, 0.3]) * np.exp(1j * np.arange(4))
    draws = coherent.sample(state, 40_000, np.random.default_rng(3))
    counts = np.bincount(draws, minlength=4)
    assert counts[1] == 0
    assert scipy.stats.chisquare(counts[[0, 2, 3]], 40_000 * np.array([0.5, 0.2, 0.3])).pvalue > 1e-4
    assert not np.array_equal(draws, coherent.sample(state, 40_000, np.random.default_rng(4)))


# ------------------------------------------------------------------------------- bad input
SOME = np.ones((3, 32), complex)


@pytest.mark.parametrize(
    ("slots", "p", "message"),
    [
        (np.zeros((0, 32)), None, "at least 1 slot, got .0, 32"),
        (np.ones((9, 32)), 3, "at most 2.p = 8 with p = 3.*got 9"),
        (SOME, 0, "p at least 1"),
        (np.ones((3, 16)), None, "expected shape .slots, 32.*got .3, 16"),
        (np.ones(32), None, "expected shape"),
        (SOME * np.nan, None, "finite amplitudes, got NaN"),
        (np.where(np.eye(3, 32) > 0, np.inf, SOME), None, "finite amplitudes"),
        (0 * SOME, None, "got zeros only"),
        (np.stack([SOME[0], -SOME[0]]), None, "the slots sum to 0"),
    ],
)
def test_slots_that_no_circuit_can_hold(slots, p, message):
    maps = prepared("coherent-brickwall")[1]
    for use in (lambda: coherent.stages(slots, maps, p), lambda: coherent.predict([slots], maps, p)):
        with pytest.raises(ValueError, match=f"slots: .*{message}"):
            use()


def test_other_bad_input():
    rng = np.random.default_rng(0)
    for passing in (0.0, -1e-3, 1.5, math.nan):
        with pytest.raises(ValueError, match="passing: expected 0 < P <= 1"):
            coherent.amplification_rounds(passing)
    with pytest.raises(ValueError, match="shots and repeats: expected at least 1, got 0 and 3"):
        coherent.shot_agreement(np.ones((1, 3)) / 3, 0, 3, rng)
    with pytest.raises(ValueError, match="shots: expected at least 1, got 0"):
        coherent.sample(np.ones(4), 0, rng)
    with pytest.raises(ValueError, match="slots: expected at least 1, got 0"):
        coherent.slot_qubits(0)
    with pytest.raises(ValueError, match="model: expected a coherent layer, got BornTransformer"):
        coherent.maps_of(build("born", 10))
    broken = build("coherent", 10)
    with torch.no_grad():
        broken.heads.weight[0, 0, 0] = math.nan
    with pytest.raises(ValueError, match="weights that are not finite"):
        coherent.maps_of(broken)


@pytest.mark.parametrize("change", [lambda g: 1.001 * g, lambda g: g * np.nan, lambda g: g + np.eye(4)[:1] * 1e-3])
def test_gates_that_are_not_unitary_are_refused_with_their_defect(change):
    _, maps, _, _ = prepared("coherent-brickwall")
    gates = maps.readout_gates.copy()
    gates[7, 1] = change(gates[7, 1])
    defect = np.abs(gates[7, 1].conj().T @ gates[7, 1] - np.eye(4)).max()
    with pytest.raises(ValueError, match=re.escape(f"got a gate with a defect of {defect:.3g}")):
        coherent.brickwall(gates)
    with pytest.raises(ValueError, match="gates: expected shape .layers, 3, 4, 4., got .18, 3, 2, 2."):
        coherent.brickwall(gates[..., :2, :2])


def test_a_map_that_makes_states_longer_is_refused():
    matrix = np.eye(128, 32) * 1.25
    with pytest.raises(ValueError, match="matrix: expected a contraction.*got 1.25"):
        coherent.block_encoding(matrix)
    assert coherent.block_encoding(matrix / 1.25).num_qubits == 8


def test_one_slot_and_more_than_a_power_of_two():
    assert [coherent.slot_qubits(n) for n in (1, 2, 3, 8, 9, 64, 65)] == [1, 1, 2, 3, 4, 6, 7]
    x, maps, _, _ = prepared("coherent-brickwall")
    one = coherent.contract(coherent.stages(x[:1], maps))
    np.testing.assert_allclose(one.classes, coherent.predict([x[:1]], maps).classes[0], atol=1e-14)


# ------------------------------------------------------------------------------- training
def test_it_trains_resumes_and_is_shipped_like_every_model(tmp_path):
    pairs = minicorpus.load_split("train").pairs[:480]
    dev = minicorpus.load_split("dev").pairs[:64]
    recipe = Recipe("coherent-brickwall", 0, epochs=2, batch_size=16, learning_rate=1e-2)
    whole, vocabulary, log = train(recipe, pairs, dev, progress=False)
    train(recipe, pairs, dev, tmp_path / "run", save_seconds=0, progress=False, stop=lambda step: step == 37)
    resumed, _, _ = train(recipe, pairs, dev, tmp_path / "run", progress=False)
    for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert log["epochs"][1]["train_loss"] < log["epochs"][0]["train_loss"] < 1.2
    path = tmp_path / "layer.safetensors"
    save_checkpoint(path, whole, vocabulary, recipe, log)
    loaded, words, _ = load_checkpoint(path, torch.float64)
    assert loaded.kind == "coherent-brickwall" and words.words == vocabulary.words
    ids, sentence = collate([encode("a man", "a dog", words)])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids, sentence).float(), whole(ids, sentence), atol=5e-3, rtol=0)


def test_the_plan_has_table_4():
    plan = runs.plan()
    kinds = {name: recipe for name, recipe in plan.items() if recipe.model in COHERENT and name.startswith("ship_")}
    assert [(r.model, r.seed) for r in kinds.values()] == [
        (COHERENT[0], 0),
        (COHERENT[1], 0),
        *((COHERENT[2], s) for s in (0, 1, 2)),
    ]
    assert all(r.epochs == 10 for r in kinds.values())
    assert runs.finished("ship_coherent-brickwall_seed2").name == "coherent-brickwall-seed2.safetensors"
