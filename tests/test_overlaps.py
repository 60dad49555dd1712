"""Hadamard tests of overlaps: amplitudes, circuits, counts, devices, resuming, and models that read their attention."""

import subprocess
import sys
import textwrap
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from qiskit import QuantumCircuit
from qiskit.circuit import ClassicalRegister, QuantumRegister
from qiskit.primitives import StatevectorSampler
from qiskit.quantum_info import Statevector

from bornlib import cli, corpus, devices, evidence, overlaps, profiles
from bornlib.corpus import ROOT
from bornlib.ledger import open_ledger, text_hash
from bornlib.models import build
from bornlib.overlaps import HadamardTest, hadamard_noise, measured_model

SHOTS = 2000


def vectors(seed, count=2):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=16) + 1j * rng.normal(size=16) for _ in range(count)]


@pytest.fixture(scope="module")
def backend():
    return devices.fake_kingston()


@pytest.fixture(scope="module")
def noisy(backend):
    return devices.simulator(backend)


@pytest.fixture(scope="module")
def ideal(backend, noisy):
    return devices.simulator(backend, noisy=False, line=noisy.line)


@pytest.fixture(scope="module")
def sent(noisy):
    """Six tests, transpiled and with XY4."""
    tests = [HadamardTest(*vectors(seed), quadrature) for seed in range(3) for quadrature in ("re", "im")]
    transpiled = [devices.transpile(overlaps.circuit(t), noisy.target)[0] for t in tests]
    return tests, transpiled, [devices.decouple(c, noisy.target) for c in transpiled]


@pytest.fixture(scope="module")
def model():
    return build("born", 40, seed=3).double().requires_grad_(False)


def pair(*ids, premise=3):
    ids = [*ids[:premise], corpus.SEP_ID, *ids[premise:]]
    return corpus.Encoded([f"w{i}" for i in ids], list(ids), [0] * premise + [1] * (len(ids) - premise))


# ---------------------------------------------------------------------------------------------- amplitudes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1j * np.inf])
def test_amplitudes_that_are_not_finite_are_refused(bad):
    v = vectors(0, 1)[0]
    v[5] = bad
    with pytest.raises(ValueError, match="query: expected finite amplitudes, got .* at index 5"):
        HadamardTest(v, vectors(1, 1)[0], "re")


@pytest.mark.parametrize("length", [0, 3, 5, 12, 32])
def test_other_lengths_are_refused(length):
    with pytest.raises(ValueError, match=rf"key: expected 16 amplitudes, got shape \({length},\)"):
        HadamardTest(vectors(0, 1)[0], np.ones(length), "re")


def test_a_vector_of_zeros_has_no_direction():
    with pytest.raises(ValueError, match="query: expected a vector with a direction"):
        HadamardTest(np.zeros(16), np.ones(16), "re")


def test_unknown_quadrature():
    with pytest.raises(ValueError, match="quadrature: expected one of"):
        HadamardTest(np.ones(16), np.ones(16), "abs")


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_norm_is_one_in_float64_for_any_scale(scale):
    assert abs(np.linalg.norm(overlaps.unit(scale * vectors(2, 1)[0])) - 1) < 1e-15


def test_float32_rounded_amplitudes_are_normalised_in_float64():
    q, k = vectors(3)
    test = HadamardTest(q.astype(np.complex64), k.astype(np.complex64), "re")
    assert test.query.dtype == np.complex128 and abs(np.linalg.norm(test.query) - 1) < 1e-15
    circuit = overlaps.preparation(test.amplitudes)  # qiskit's own check of the norm, 1e-10, must pass
    assert abs(abs(np.vdot(Statevector(circuit).data, test.amplitudes)) - 1) < 1e-12
    assert test.identity == HadamardTest(7.5 * q, k, "re").identity, "the same circuit as in double precision"


# ---------------------------------------------------------------------------------------------- the circuit
def probability_of_zero(circuit):
    state = Statevector(circuit.remove_final_measurements(inplace=False))
    return float(state.probabilities([4])[0])


A, B = vectors(4)
CASES = {
    "random": (A, B),
    "negative": (A, -A),
    "imaginary": (A, 1j * A),
    "equal up to a phase": (A, np.exp(0.7j) * A),
    "equal": (A, A),
    "orthogonal": (np.eye(16)[1], np.eye(16)[6]),
    "real": (A.real, B.real),
    "one amplitude": (np.eye(16)[5], (1 - 2j) * np.eye(16)[5]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("swapped", [False, True], ids=["<q|k>", "<k|q>"])
def test_expectation_is_numpys_vdot_in_either_order(case, swapped):
    q, k = reversed(CASES[case]) if swapped else CASES[case]
    w = np.vdot(q, k) / np.linalg.norm(q) / np.linalg.norm(k)
    read = [2 * probability_of_zero(overlaps.circuit(HadamardTest(q, k, quadrature))) - 1 for quadrature in ("re", "im")]
    np.testing.assert_allclose(read, [w.real, w.imag], atol=1e-12)


@pytest.mark.parametrize("index", [0, 1, 2, 8, 16, 17, 31])
def test_preparation_keeps_the_order_of_bits(index):
    amplitudes = np.zeros(32, complex)
    amplitudes[[index, 13]] = 0.6, 0.8j
    state = Statevector(overlaps.preparation(amplitudes)).data
    np.testing.assert_allclose(np.abs(state), np.abs(amplitudes), atol=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_preparation_of_states_with_few_schmidt_coefficients(rank):
    rng = np.random.default_rng(rank)
    a, b = (rng.normal(size=(rank, n)) + 1j * rng.normal(size=(rank, n)) for n in (8, 4))
    amplitudes = (a.T @ b).reshape(-1)
    amplitudes /= np.linalg.norm(amplitudes)
    assert abs(abs(np.vdot(Statevector(overlaps.preparation(amplitudes)).data, amplitudes)) - 1) < 1e-12


def test_transpiled_circuits_measure_the_same_with_at_most_39_cz(sent, noisy):
    tests, transpiled, padded = sent
    assert all(c.count_ops()["cz"] <= 39 and set(c.count_ops()) <= {"cz", "rz", "sx", "x", "measure"} for c in transpiled)
    for circuits in (transpiled, padded):
        one = devices.ancilla_probabilities(circuits, noisy.target, noisy=False)
        np.testing.assert_allclose(1 - 2 * one, [t.ideal for t in tests], atol=1e-9)


def test_gates_stay_on_the_line_of_the_whole_device(sent, noisy, backend):
    whole = devices.place(sent[2][0], noisy.line, backend.num_qubits)
    edges = {tuple(whole.find_bit(q).index for q in i.qubits) for i in whole.data if i.operation.name == "cz"}
    assert whole.num_qubits == 156 and edges <= set(backend.target["cz"]) and {q for e in edges for q in e} <= set(noisy.line)
    assert [c.name for c in whole.cregs] == [devices.ANCILLA]


def steps(circuit):
    """Every instruction by wire, its delays and angles to ten digits."""
    return [
        (
            i.operation.name,
            tuple(circuit.find_bit(q).index for q in i.qubits),
            tuple(round(float(p), 10) for p in i.operation.params),
        )
        for i in circuit.data
    ]


def test_xy4_is_visible_and_is_what_ibms_sampler_would_insert(sent, noisy):
    from qiskit_ibm_runtime.executor.dynamical_decoupling import generate_dd_pass_manager
    from qiskit_ibm_runtime.options_models.dynamical_decoupling import DynamicalDecouplingOptions

    class Line:
        target = noisy.target

    ibms = generate_dd_pass_manager(Line(), DynamicalDecouplingOptions(enable=True, sequence_type="XY4"))
    for transpiled, padded in zip(*sent[1:], strict=True):
        assert steps(padded) == steps(ibms.run(transpiled))
        added = Counter(padded.count_ops()) - Counter(transpiled.count_ops())
        assert added["x"] > 0 and added["x"] % 4 == 0, "whole XY4 sequences"
        assert padded.count_ops()["cz"] == transpiled.count_ops()["cz"]
        delays = {q for name, (q, *_), _ in steps(padded) if name == "delay"}
        assert len(delays) >= 3, "idle times are there to be filled"


def test_the_best_line_is_a_path_and_better_than_most(backend, noisy):
    line, cz = noisy.line, backend.target["cz"]
    assert len(set(line)) == 5
    errors = [cz[e].error for e in zip(line, line[1:], strict=False)]
    assert max(errors) < np.median([p.error for p in cz.values()])
    with pytest.raises(ValueError, match="found none"):
        devices.best_line(devices.line_target(backend.target, line[:4]))


def test_circuits_per_block():
    rng = np.random.default_rng(0)
    for slots, expected, calibration in ((7, 196, 14), (8, 256, 16)):
        q, k = rng.normal(size=(2, 2, slots, 16))
        assert len(overlaps.block_tests(q, k)) == expected == overlaps.circuits_of(slots, calibrate=False)
        assert len(overlaps.calibration_tests(q)) == calibration
    assert overlaps.circuits_of(8) == 272  # paper Table 10
    with pytest.raises(ValueError, match="slots: expected at least 1"):
        overlaps.circuits_of(0)


def test_calibration_circuits_have_a_known_overlap():
    rng = np.random.default_rng(1)
    q = rng.normal(size=(2, 8, 16)) + 1j * rng.normal(size=(2, 8, 16))
    q[1] = q[1, 0]  # parallel queries
    for test in overlaps.calibration_tests(q):
        assert abs(np.vdot(test.query, test.key) - 0.8) < 1e-12


def test_predicted_quantum_seconds_are_those_of_table_10():
    for circuits, seconds in ((30, 18), (272, 147), (196, 106)):
        assert abs(devices.quantum_seconds(circuits, 2000) - seconds) < 1
    assert devices.quantum_seconds(0) == 0


# ---------------------------------------------------------------------------------------------- counts
def test_no_shots():
    with pytest.raises(ValueError, match="at least one shot"):
        overlaps.expectation([[0, 0]])
    with pytest.raises(ValueError, match="shots: expected at least 1"):
        hadamard_noise(0, torch.Generator())


def test_no_shots_for_a_device(noisy):
    with pytest.raises(ValueError, match="shots: expected at least 1, got 0"):
        noisy.settings(0)


def test_an_outcome_that_was_never_seen_counts_zero():
    assert devices.count_pair({"0": 50}, 50) == (50, 0)
    assert devices.count_pair({"1": 50}, 50) == (0, 50)
    assert overlaps.expectation([50, 0]) == 1 and overlaps.expectation([0, 50]) == -1


@pytest.mark.parametrize("counts", [{"0": 20, "1": 29}, {}, {"00": 50}, {"0 1": 50}])
def test_counts_that_make_no_sense_are_refused(counts):
    with pytest.raises(ValueError, match="expected (50 shots|the outcomes)"):
        devices.count_pair(counts, 50)


@pytest.mark.parametrize("excited", ["features", "ancilla"])
def test_with_several_registers_the_ancillas_is_read(excited):
    """|01> is not |10>: one register is all ones, the other all zeros, whichever was added first."""
    features, ancilla = QuantumRegister(4, "f"), QuantumRegister(1, "a")
    others = ClassicalRegister(4, "features")
    for registers in ((others, ClassicalRegister(1, devices.ANCILLA)), (ClassicalRegister(1, devices.ANCILLA), others)):
        circuit = QuantumCircuit(features, ancilla, *registers)
        circuit.x(features if excited == "features" else ancilla)
        circuit.measure(features, others)
        circuit.measure(ancilla[0], next(r for r in registers if r.name == devices.ANCILLA)[0])
        counts = devices.result_counts(StatevectorSampler(seed=1).run([circuit], shots=20).result(), 20)
        assert counts.tolist() == ([[20, 0]] if excited == "features" else [[0, 20]])


# ---------------------------------------------------------------------------------------------- noise
def test_noisy_probabilities_are_aers(sent, noisy):
    """Aer's own run with its own relaxation pass and readout error, 40,000 shots, against the density matrix and one flip."""
    from qiskit_aer import AerSimulator

    circuits = sent[2][:2]
    one = devices.ancilla_probabilities(circuits, noisy.target)
    simulator = AerSimulator(noise_model=devices.noise_model(noisy.target), method="density_matrix")
    for k, circuit in enumerate(circuits):
        found = simulator.run(circuit, shots=40_000, seed_simulator=11 + k).result().get_counts()["1"] / 40_000
        assert abs(found - one[k]) < 5 * np.sqrt(one[k] * (1 - one[k]) / 40_000)


def test_noise_shrinks_every_overlap(sent, noisy):
    tests, _, padded = sent
    visibility = (1 - 2 * devices.ancilla_probabilities(padded, noisy.target)) / [t.ideal for t in tests]
    without_readout = (1 - 2 * devices.ancilla_probabilities(padded, noisy.target, readout=False)) / [t.ideal for t in tests]
    assert ((visibility > 0.75) & (visibility < without_readout) & (without_readout < 1)).all()


def test_every_circuit_has_a_seed_of_its_own():
    """base + i would give circuit 1 of seed 0 the numbers of circuit 0 of seed 1."""
    keys = [HadamardTest(*vectors(s), "re").identity for s in range(40)]
    states = {tuple(devices.circuit_seed(seed, key).generate_state(4)) for seed in range(5) for key in keys}
    assert len(states) == 200


def test_counts_over_seeds_spread_as_binomials_and_circuits_are_independent(sent, ideal, monkeypatch):
    tests, _, padded = sent
    p = devices.ancilla_probabilities(padded[:2], ideal.target, noisy=False)
    monkeypatch.setattr(devices, "ancilla_probabilities", lambda *_: p)
    keys = [t.identity for t in tests[:2]]
    ones = np.array([
        ideal.submit(padded[:2], SHOTS, [devices.circuit_seed(seed, key) for key in keys], "bornlib-x").result()[0][:, 1]
        for seed in range(400)
    ])  # fmt: skip
    z = (ones / SHOTS - p) / np.sqrt(p * (1 - p) / SHOTS)
    assert len(set(ones[:, 0])) > 30, "seed 0 is a seed like the others"
    assert np.all(np.abs(z.mean(0)) < 5 / np.sqrt(400))
    assert np.all(np.abs(z.var(0) - 1) < 5 * np.sqrt(2 / 400))
    assert abs(np.corrcoef(z.T)[0, 1]) < 5 / np.sqrt(400)
    assert abs(np.corrcoef(z[:-1, 0], z[1:, 1])[0, 1]) < 5 / np.sqrt(400), "the next seed's other circuit"


# ---------------------------------------------------------------------------------------------- running and resuming
class Bench:
    """A device that counts what it is sent; every circuit reads (1200, 800). A job may be slow: then `result` breaks until it is done."""

    def __init__(self, device, kind="device"):
        self.sent, self.jobs, self.broken, self.lost, self.done = [], {}, False, False, True
        self.device = devices.Device(device.backend, kind, "today", device.line, device.target, self.submit, self.find)

    def job(self, name):
        size = self.jobs[name][0]

        def result():
            if not self.done:
                raise KeyboardInterrupt
            return np.array([[1200, 800]] * size), 3.5

        return devices.Job(name, result)

    def submit(self, circuits, shots, seeds, tag):
        if self.broken:
            raise ConnectionError("the network is gone")
        assert len({tuple(s.generate_state(2)) for s in seeds}) == len(circuits)
        self.sent.append(len(circuits))
        self.jobs[f"job{len(self.jobs)}"] = (len(circuits), tag)
        return self.job(f"job{len(self.jobs) - 1}")

    def find(self, name, shots, tag):
        if self.lost:
            return None
        names = [n for n, (_, t) in self.jobs.items() if n == name or (name is None and t == tag)]
        return self.job(names[0]) if names else None


@pytest.fixture
def bench(noisy, monkeypatch):
    quick = devices._pass_managers(noisy.target)[:1]
    monkeypatch.setattr(devices, "_pass_managers", lambda target: quick)  # one transpiler seed is enough here
    return Bench(noisy)


@pytest.fixture
def ledger(bench, tmp_path):
    return open_ledger(tmp_path / "ledger.json", bench.device.settings(SHOTS))


TESTS = [HadamardTest(*vectors(seed), "re", f"test {seed}") for seed in range(20, 25)]


def test_equal_circuits_are_run_once(bench, ledger):
    counts = overlaps.run_tests([*TESTS[:2], TESTS[0]], ledger, bench.device, "first")
    assert counts.tolist() == [[1200, 800]] * 3 and bench.sent == [2]
    overlaps.run_tests(TESTS[:3], ledger, bench.device, "second")
    assert bench.sent == [2, 1], "only what is new"
    overlaps.run_tests(TESTS[:3], open_ledger(ledger.path), bench.device)
    assert bench.sent == [2, 1]
    job = open_ledger(ledger.path).jobs[1]
    assert job["name"] == "second" and job["quantum_seconds"] == 3.5 and job["predicted_seconds"] == 2.5
    assert job["circuits"][0]["label"] == "test 22" and sorted(job["circuits"][0]["layout"]) == sorted(bench.device.line)


def test_the_ledgers_circuits_are_whole_and_measure_the_overlap(bench, ledger):
    overlaps.run_tests(TESTS[:2], ledger, bench.device)
    texts = ledger.texts([t.identity for t in TESTS[1::-1]])
    assert [text_hash(t) for t in texts] == [c["hash"] for c in ledger.jobs[0]["circuits"]][::-1]
    for text, test in zip(texts, TESTS[1::-1], strict=True):
        one = devices.ancilla_probabilities([devices.read_circuit(text)], bench.device.target, noisy=False)[0]
        assert abs(1 - 2 * one - test.ideal) < 1e-9
    visibility = overlaps.noisy_expectations(TESTS[:2], ledger, bench.device) / [t.ideal for t in TESTS[:2]]
    assert ((visibility > 0.75) & (visibility < 1)).all()


def test_another_circuit_that_transpiles_to_the_same_is_not_run_again(bench, ledger, monkeypatch):
    overlaps.run_tests(TESTS[:1], ledger, bench.device)
    known = overlaps.circuit(TESTS[0])
    monkeypatch.setattr(overlaps, "circuit", lambda test: known)
    counts = overlaps.run_tests(TESTS[1:3], ledger, bench.device)
    assert bench.sent == [1] and counts.tolist() == [[1200, 800]] * 2


def test_level_3_may_transpile_otherwise_next_time(bench, ledger, monkeypatch):
    """The key is that of the amplitudes, so another transpilation of the same circuit is not run."""
    overlaps.run_tests(TESTS[:1], ledger, bench.device)
    monkeypatch.setattr(devices, "transpile", lambda *_: pytest.fail("transpiled again"))
    overlaps.run_tests(TESTS[:1], ledger, bench.device)
    assert bench.sent == [1]


def test_a_break_between_two_jobs_loses_nothing(bench, ledger):
    overlaps.run_tests(TESTS[:2], ledger, bench.device)
    bench.broken = True
    with pytest.raises(ConnectionError):
        overlaps.run_tests(TESTS, ledger, bench.device)
    again = open_ledger(ledger.path, bench.device.settings(SHOTS))
    assert len(again.known()) == 2
    bench.broken = False
    overlaps.run_tests(TESTS, again, bench.device)
    assert bench.sent == [2, 3]


def test_a_kill_while_a_job_runs_is_resumed_by_its_id(bench, ledger):
    bench.done = False
    with pytest.raises(KeyboardInterrupt):
        overlaps.run_tests(TESTS[:3], ledger, bench.device)
    again = open_ledger(ledger.path, bench.device.settings(SHOTS))
    assert [j["id"] for j in again.unread()] == ["job0"] and not again.known()
    bench.done = True
    overlaps.run_tests(TESTS[:4], again, bench.device)
    assert bench.sent == [3, 1], "the job is read, not sent again"
    assert not open_ledger(ledger.path).unread()


def test_a_job_whose_id_was_lost_is_found_by_its_tag(bench, ledger, monkeypatch):
    """Killed after submitting and before writing: the same circuits must not be paid for twice."""
    monkeypatch.setattr(ledger, "append", lambda job: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        overlaps.run_tests(TESTS[:2], ledger, bench.device)
    assert bench.sent == [2] and not ledger.path.exists()
    overlaps.run_tests(TESTS[:2], open_ledger(ledger.path, bench.device.settings(SHOTS)), bench.device)
    assert bench.sent == [2]


def test_a_job_that_the_device_forgot_is_run_again(bench, ledger):
    bench.done = False
    with pytest.raises(KeyboardInterrupt):
        overlaps.run_tests(TESTS[:2], ledger, bench.device)
    bench.done = bench.lost = True
    overlaps.run_tests(TESTS[:2], ledger, bench.device)
    assert bench.sent == [2, 2] and [j["id"] for j in ledger.jobs] == ["job1"]


def test_a_job_with_too_few_results_is_refused(bench, ledger):
    bench.jobs["short"] = (1, devices.job_tag([t.identity for t in TESTS[:2]]))
    with pytest.raises(ValueError, match="expected counts of 2 circuits, got 1"):
        overlaps.run_tests(TESTS[:2], ledger, bench.device)


def test_without_a_device_what_is_missing_is_said(bench, ledger):
    overlaps.run_tests(TESTS[:1], ledger, bench.device)
    with pytest.raises(ValueError, match="1 of 2 circuits are not in it"):
        overlaps.run_tests(TESTS[:2], open_ledger(ledger.path))


def test_a_replay_needs_no_qiskit(bench, ledger):
    overlaps.run_tests(TESTS[:2], ledger, bench.device)
    code = textwrap.dedent("""
        import sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0].startswith("qiskit"):
                    raise ImportError(f"{name} must not be needed")
        sys.meta_path.insert(0, Refuse())
        import numpy as np
        from pathlib import Path
        from bornlib.ledger import open_ledger
        from bornlib.overlaps import HadamardTest, run_tests
        tests = []
        for seed in (20, 21):
            rng = np.random.default_rng(seed)
            tests.append(HadamardTest(*[rng.normal(size=16) + 1j * rng.normal(size=16) for _ in range(2)], "re"))
        print(run_tests(tests, open_ledger(Path(sys.argv[1]))).tolist())
    """)
    done = subprocess.run([sys.executable, "-c", code, str(ledger.path)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[[1200, 800], [1200, 800]]", done.stderr


def test_ideal_noisy_and_real_device_share_one_path(noisy, ideal, tmp_path):
    """The same six circuits through simulator and noise model; a small backend behind IBM's Sampler stands for the real one."""
    from qiskit.providers.fake_provider import GenericBackendV2

    small = GenericBackendV2(
        6, ["cz", "rz", "sx", "x", "id"], coupling_map=[[i, j] for i in range(6) for j in (i - 1, i + 1) if 0 <= j < 6], seed=1
    )
    local = devices.runtime_device(small)
    test = HadamardTest(A, B, "re")
    for device in (ideal, noisy, local):
        ledger = open_ledger(tmp_path / f"{device.kind}.json", device.settings(SHOTS))
        value = overlaps.expectation(overlaps.run_tests([test], ledger, device, "one"))[0]
        assert abs(value - test.ideal) < 0.15 * abs(test.ideal) + 5 / np.sqrt(SHOTS)
        assert ledger.jobs[0]["id"] and open_ledger(ledger.path).counts([test.identity]).sum() == SHOTS


class Service:
    """Jobs by id, as IBM's service keeps them."""

    def __init__(self, **states):
        self.states = states

    def job(self, name):
        from qiskit_ibm_runtime.exceptions import RuntimeJobNotFound

        if name not in self.states:
            raise RuntimeJobNotFound("no such job")
        return SimpleNamespace(job_id=lambda: name, status=lambda: self.states[name])

    def jobs(self, limit, backend_name, job_tags):
        return [self.job(name) for name in self.states if job_tags == ["tag"]]


def test_failed_jobs_are_not_waited_for(backend, noisy):
    find = devices.runtime_device(backend, Service(a="ERROR", b="CANCELLED", c="QUEUED", d="DONE"), noisy.line).find
    assert [find(name, SHOTS, "") is None for name in "abcdx"] == [True, True, False, False, True]
    assert find(None, SHOTS, "tag").id == "c" and find(None, SHOTS, "other") is None
    assert devices.runtime_device(backend, None, noisy.line).find("c", SHOTS, "tag") is None


def test_no_account_is_said_with_what_to_do(tmp_path, monkeypatch):
    from qiskit_ibm_runtime.accounts import management

    for name in ("QISKIT_IBM_TOKEN", "QISKIT_IBM_URL", "QISKIT_IBM_CHANNEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(management, "_DEFAULT_ACCOUNT_CONFIG_JSON_FILE", str(tmp_path / "none.json"))
    with pytest.raises(ValueError, match=r"no IBM Quantum account .*save_account\(token="):
        devices.connect()


# ---------------------------------------------------------------------------------------------- a model that reads its attention
PAIRS = [pair(5, 6, 7, 8, 9), pair(10, 11, 12, 13), pair(5, 6, 30, 8, 9, 20, 21)]


def test_exact_reading_changes_nothing(model):
    exact = overlaps.probabilities(model, PAIRS)
    np.testing.assert_array_equal(overlaps.probabilities(measured_model(model, lambda b, w: w), PAIRS), exact)
    alone = np.concatenate([overlaps.probabilities(model, [p]) for p in PAIRS])
    np.testing.assert_allclose(exact, alone, atol=1e-13)


def test_nothing_is_read_of_padding(model):
    """Shorter pairs of a batch must not let an error of reading wake up the slots that they do not have."""
    off = measured_model(model, lambda b, w: w + 0.05)
    alone = np.concatenate([overlaps.probabilities(off, [p]) for p in PAIRS])
    np.testing.assert_allclose(overlaps.probabilities(off, PAIRS), alone, atol=1e-13)
    assert np.abs(alone - overlaps.probabilities(model, PAIRS)).max() > 1e-4


def test_a_common_visibility_cancels_in_the_rows(model):
    dim = overlaps.probabilities(measured_model(model, hadamard_noise(None, torch.Generator(), visibility=0.6)), PAIRS)
    np.testing.assert_allclose(dim, overlaps.probabilities(model, PAIRS), atol=1e-12)
    uneven = overlaps.probabilities(
        measured_model(model, hadamard_noise(None, torch.Generator().manual_seed(0), spread=0.2)), PAIRS
    )
    assert np.abs(uneven - dim).max() > 1e-4


def test_a_row_sum_that_is_off_scales_the_attention(model):
    off = measured_model(model, lambda b, w: w, row_sum=0.25)
    h = model.enter(model.fields(*corpus.collate(PAIRS[:1])))
    np.testing.assert_allclose(off.blocks[0].overlaps(h)[1] * 1.25, model.blocks[0].overlaps(h)[1], atol=1e-14)
    with pytest.raises(ValueError, match="row_sum"):
        measured_model(model, lambda b, w: w, row_sum=-1)


def test_measured_attention_is_normalised_and_near_the_exact(model):
    errors = overlaps.draw_errors(model, PAIRS[0], hadamard_noise(10**6, torch.Generator().manual_seed(0)))
    exact = overlaps.measured_attention(model, PAIRS[0], [None, None])
    for a, b in zip(overlaps.measured_attention(model, PAIRS[0], [e.repeat(3, 1, 1, 1, 1) for e in errors]), exact, strict=True):
        assert a.shape == (3, 2, 7, 7) and b.shape == (1, 2, 7, 7)
        np.testing.assert_allclose(a.sum(-1), 1, atol=1e-12)
        assert 0 < np.abs(a - b).max() < 0.05


def test_only_a_born_transformer_has_overlaps():
    with pytest.raises(ValueError, match="expected a Born Transformer, got 'softmax'"):
        measured_model(build("softmax", 10), lambda b, w: w)


def test_circuits_ask_for_the_models_own_overlaps(model):
    q, k = overlaps.queries_keys(model, PAIRS[0], 0)
    h = model.enter(model.fields(*corpus.collate(PAIRS[:1])))
    exact = model.blocks[0].overlaps(h)[0][0].numpy()  # (H, 2, n, n)
    for test in overlaps.block_tests(q, k)[::37]:
        words = test.label.split()
        head, i, j = int(words[1]), int(words[3]), int(words[5])
        scale = np.linalg.norm(q[head, i]) * np.linalg.norm(k[head, j])
        assert abs(test.ideal * scale - exact[head, int(test.quadrature == "im"), i, j]) < 1e-12


def test_shot_noise_has_the_binomials_mean_and_spread():
    w = torch.full((200, 2, 2, 5, 5), 0.3, dtype=torch.float64)
    read = hadamard_noise(500, torch.Generator().manual_seed(0), visibility=0.9, offset=0.02)(0, w)
    sd = np.sqrt((1 - 0.29**2) / 500)
    assert abs(read.mean() - 0.29) < 5 * sd / np.sqrt(read.numel())
    assert abs(read.std() / sd - 1) < 5 / np.sqrt(2 * read.numel())
    assert hadamard_noise(None, torch.Generator())(0, torch.ones(1)).item() == 1
    with pytest.raises(ValueError, match="spread"):
        hadamard_noise(10, torch.Generator(), spread=-0.1)


def test_evidence_with_exact_reading_is_the_exact_evidence(model):
    found = overlaps.measured_evidence(model, PAIRS[0], [None, None])
    exact = evidence.word_evidence(model, [PAIRS[0]], nodes="exact")[0]
    np.testing.assert_allclose(found.values, exact.values, atol=1e-10)


def test_evidence_with_measured_overlaps_sums_to_the_measured_probability(model):
    errors = overlaps.draw_errors(model, PAIRS[0], hadamard_noise(300, torch.Generator().manual_seed(1)))
    found = overlaps.measured_evidence(model, PAIRS[0], errors)
    read = overlaps.probabilities(measured_model(model, overlaps.fixed(errors)), [PAIRS[0]])[0]
    assert abs(found.score - read[found.target]) < 1e-12
    assert found.gap < 1e-9
    exact = evidence.word_evidence(model, [PAIRS[0]], targets=[found.target])[0]
    assert np.abs(found.values - exact.values).max() > 1e-6


def test_evidence_needs_the_visibility_that_answers_do_not(model):
    exact = evidence.word_evidence(model, [PAIRS[0]])[0]
    dim, calibrated = hadamard_noise(None, torch.Generator(), 0.8), hadamard_noise(None, torch.Generator(), 0.8, calibrated=0.8)
    found = [overlaps.read_evidence(model, [exact], noise)[0] for noise in (dim, calibrated)]
    assert abs(found[0].score - exact.score) < 1e-12, "the answer's probability is the same"
    assert np.abs(found[0].values - exact.values).max() > 1e-4
    np.testing.assert_allclose(found[1].values, exact.values, atol=1e-9)
    with pytest.raises(ValueError, match="calibrated: expected a visibility above 0"):
        hadamard_noise(10, torch.Generator(), calibrated=0.0)


def test_more_shots_bring_the_evidence_nearer(model):
    exact = evidence.word_evidence(model, [PAIRS[2]])[0]
    distance = []
    for shots in (100, 10_000, 1_000_000):
        errors = overlaps.draw_errors(model, PAIRS[2], hadamard_noise(shots, torch.Generator().manual_seed(2)))
        distance.append(np.abs(overlaps.measured_evidence(model, PAIRS[2], errors, exact.target).values - exact.values).max())
    assert distance[0] > 3 * distance[1] > 9 * distance[2] > 0


def test_errors_of_another_pair_are_refused(model):
    errors = overlaps.draw_errors(model, PAIRS[0], hadamard_noise(300, torch.Generator().manual_seed(1)))
    with pytest.raises(ValueError, match="errors: expected the shape"):
        overlaps.probabilities(measured_model(model, overlaps.fixed(errors)), [PAIRS[2]])


def exact_counts(monkeypatch, shots):
    """Every circuit reads its ideal expectation, rounded to `shots`."""

    def counts(tests, ledger, device=None, *_):
        zeros = np.array([round(shots * (1 + t.ideal) / 2) for t in tests])
        return np.stack([zeros, shots - zeros], 1)

    monkeypatch.setattr(overlaps, "run_tests", counts)


def test_a_run_with_very_many_shots_gives_the_models_answer(model, monkeypatch):
    exact_counts(monkeypatch, 10**9)
    run = overlaps.run_pair(model, PAIRS[0], ledger=None, calibrate=True)
    assert [len(t) for t in run.tests] == [2 * (196 + 14) // 2] * 2 and run.readings[0].counts.shape == (2, 2, 7, 7, 2)
    exact = overlaps.probabilities(model, [PAIRS[0]])[0]
    for blocks in ((0, 1), (0,), (1,), ()):
        np.testing.assert_allclose(overlaps.answer(model, run, blocks), exact, atol=1e-6)
    np.testing.assert_allclose([run.readings[1].visibility()[0], run.visibility()[0]], 1, atol=1e-8)
    np.testing.assert_allclose(run.errors(0.5)[0][0], 2 * run.readings[0].values - run.readings[0].ideal)
    assert overlaps.run_pair(model, PAIRS[0], ledger=None, calibrate=False).readings[0].calibration is None


def test_redrawn_answers_spread_like_finite_shots(model, monkeypatch):
    spread = {}
    for shots in (200, 20_000):
        exact_counts(monkeypatch, shots)
        run = overlaps.run_pair(model, PAIRS[1], ledger=None, calibrate=False)
        spread[shots] = overlaps.redrawn_answers(model, run, 200).std(0).max()
        with pytest.raises(ValueError, match="ran without"):
            run.readings[0].visibility()
    assert 4 < spread[200] / spread[20_000] < 25  # 10, were the answer linear in the overlaps


def test_block_two_starts_from_what_block_one_gave(model, monkeypatch):
    exact_counts(monkeypatch, 10)  # coarse readings
    run = overlaps.run_pair(model, PAIRS[0], ledger=None, calibrate=False)
    exact = overlaps.queries_keys(model, PAIRS[0], 1)[0]
    assert np.abs(run.tests[1][0].query - overlaps.unit(exact[0, 0])).max() > 1e-3
    fine = [t.query for t in run.tests[0]]
    assert np.abs(fine[0] - overlaps.unit(overlaps.queries_keys(model, PAIRS[0], 0)[0][0, 0])).max() < 1e-15


def test_agreement_of_the_first_words(model):
    exact = evidence.word_evidence(model, PAIRS)
    assert (overlaps.top_agreement(exact, exact, 3) == 1).all() and overlaps.correlation(exact, exact) == pytest.approx(1)
    turned = evidence.word_evidence(model, PAIRS)
    for e in turned:
        e.values *= -1
    assert (overlaps.top_agreement(turned, exact) == 0).all() and overlaps.correlation(turned, exact) == pytest.approx(-1)
    with pytest.raises(ValueError, match="k: expected at least 1"):
        overlaps.top_agreement(exact, exact, 0)


def test_where_a_share_crosses_95_percent():
    x = [100, 1000, 10_000]
    assert overlaps.crossing(x, [0.85, 0.94, 0.96]) == pytest.approx(10**3.5)
    assert overlaps.crossing(x, [0.97, 0.93, 0.5]) == pytest.approx(10**2.5)
    assert overlaps.crossing(x, [0.96, 0.94, 0.99]) == pytest.approx(10**3.2), "for good, not for the first time"
    for never in ([0.5, 0.6, 0.7], [0.96, 0.97, 0.98], [0.9, 0.8, 0.7]):
        assert overlaps.crossing(x, never) is None


def test_the_line_through_readings():
    ideal = np.linspace(-0.8, 0.9, 50).reshape(5, 10)
    fit = overlaps.fit_readings(ideal, 0.9 * ideal - 0.01)
    assert (
        fit["visibility"] == pytest.approx(0.9)
        and fit["offset"] == pytest.approx(-0.01)
        and fit["residual"] < 1e-12
        and fit["r"] == pytest.approx(1)
    )


# ---------------------------------------------------------------------------------------------- the ledger that is shipped
SHIPPED = ROOT / "data" / "ledger" / "fake_kingston.json"


def test_the_shipped_ledger_is_whole_and_small():
    """Every circuit on the line with 34 CZ, counts of 2,000 shots, its text there; jobs no larger than the paper's."""
    ledger = open_ledger(SHIPPED)
    circuits = [c for job in ledger.jobs for c in job["circuits"]]
    assert SHIPPED.stat().st_size < 6 << 20 and not ledger.unread()
    assert (
        ledger.settings["shots"] == SHOTS and ledger.settings["decoupling"] == "XY4" and ledger.settings["kind"] == "noise model"
    )
    assert {c["cz"] for c in circuits} == {34} and all(set(c["layout"]) == set(ledger.settings["line"]) for c in circuits)
    assert len({c["key"] for c in circuits}) == len(circuits), "no circuit ran twice"
    texts = ledger.texts([c["key"] for c in circuits])
    assert [text_hash(t) for t in texts] == [c["hash"] for c in circuits]
    assert all(t.count("\ncz ") == 34 for t in texts)
    assert max(len(job["circuits"]) for job in ledger.jobs) <= 272


@pytest.mark.parametrize(
    ("hypothesis", "without", "answer"),
    [
        ("Aliens play", [], "contradiction"),
        ("Aliens play", [5], "entailment"),
        ("Men play", [], "entailment"),
        ("Men play", [5], "entailment"),
    ],
)
def test_the_papers_pairs_are_replayed_without_a_device(hypothesis, without, answer):
    """Pair 3763 with and without "aliens", 3765 with and without "men" (Table 5); the two deletions are the same circuits."""
    model, vocabulary, _ = profiles.Profile("full").model("born", 0, torch.float64)
    encoded = corpus.encode("Men play hockey .", hypothesis, vocabulary).without(without)
    run = overlaps.run_pair(model, encoded, open_ledger(SHIPPED), calibrate=not without)
    assert [len(t) for t in run.tests] == ([196, 196] if without else [272, 272])
    read, exact = overlaps.answer(model, run), overlaps.probabilities(model, [encoded])[0]
    assert corpus.LABELS[read.argmax()] == corpus.LABELS[exact.argmax()] == answer
    assert np.abs(read - exact).max() < 0.1
    fit = overlaps.fit_readings(*(np.concatenate([getattr(r, n).ravel() for r in run.readings]) for n in ("ideal", "values")))
    assert fit["r"] > 0.99 and 0.85 < fit["visibility"] < 0.95
    if not without:
        mean, error = run.visibility()
        assert abs(mean - fit["visibility"]) < 5 * error


# ---------------------------------------------------------------------------------------------- the command
SENTENCES = ["Men play hockey .", "Aliens play"]


def test_nothing_is_submitted_unless_it_is_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(devices, "connect", lambda *_: pytest.fail("connected"))
    assert cli.main(["device", *SENTENCES, "--backend", "ibm_kingston"]) == 0
    said = capsys.readouterr().out
    assert "8 slots: 2 jobs of 272 circuits, 2000 shots each; on a Heron device at most 294 quantum seconds" in said
    assert "nothing was submitted; add --submit" in said


def test_the_estimate_comes_before_the_account_is_needed(capsys, monkeypatch, tmp_path):
    def connect(*_):
        raise ValueError(devices.NO_ACCOUNT)

    monkeypatch.setattr(devices, "connect", connect)
    assert cli.main(["device", *SENTENCES, "--backend", "ibm_kingston", "--submit", "--ledger", str(tmp_path / "x.json")]) == 2
    said = capsys.readouterr()
    assert "quantum seconds" in said.out and said.err.startswith("bornlib: no IBM Quantum account") and said.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_slot_that_is_not_there_can_not_be_deleted(capsys):
    assert cli.main(["device", *SENTENCES, "--without", "7"]) == 2
    assert "without: expected slots in 0..6" in capsys.readouterr().err


def test_the_command_runs_a_pair_and_replays_it(bench, capsys, monkeypatch, tmp_path):
    bench.device.kind = "noise model"
    monkeypatch.setattr(devices, "simulator", lambda **_: bench.device)
    made = devices.transpile(overlaps.circuit(TESTS[0]), bench.device.target)
    monkeypatch.setattr(overlaps, "circuit", lambda test: None)
    monkeypatch.setattr(devices, "transpile", lambda *_: made)
    for _ in range(2):
        assert cli.main(["device", *SENTENCES, "--ledger", str(tmp_path / "x.json")]) == 0
        said = capsys.readouterr().out
        assert "contradiction" in said and "noise model" in said
    assert bench.sent == [1], "both blocks, twice: every circuit transpiles to the same one"
