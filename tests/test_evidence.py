"""Evidence: exact for polynomial models, independent of batching, never certified below its true error."""

import numpy as np
import pytest
import scipy.integrate
import torch

from bornlib import evidence, models
from bornlib.corpus import PAD, SEP, UNK, Vocabulary, encode
from bornlib.evidence import gauss_legendre, integrated_gradients, word_evidence
from bornlib.models import HEADS, MODES, build

WORDS = "a the man woman dog cat runs sleeps eats in park house red blue two three not happy . ,".split()
VOCABULARY = Vocabulary([PAD, UNK, SEP, *WORDS])


def random_model(kind, seed=0, size=1.0):
    model = build(kind, len(VOCABULARY), seed).double().eval().requires_grad_(False)
    model.embedding.mul_(size)
    return model


def random_pairs(count, seed=0, shortest=1, longest=6):
    rng = np.random.default_rng(seed)
    draw = lambda: list(rng.choice(WORDS, rng.integers(shortest, longest + 1)))  # noqa: E731
    return [encode(draw(), draw(), VOCABULARY) for _ in range(count)]


def values(found):
    return np.concatenate([e.values for e in found])


# ---------------------------------------------------------------------------------------------- quadrature
@pytest.mark.parametrize(("degree", "nodes"), [(648, 324), (100, 50), (1, 1), (2, 1), (3, 2)])
def test_exact_nodes_are_half_the_degree(degree, nodes):
    assert evidence.exact_nodes(degree) == nodes


@pytest.mark.parametrize("nodes", [1, 2, 7, 50, 324])
def test_gauss_legendre_is_exact_up_to_its_degree(nodes):
    t, w = gauss_legendre(nodes)
    for power in (0, 1, nodes, 2 * nodes - 1):
        assert w @ t**power == pytest.approx(1 / (power + 1), rel=1e-12)
    if nodes < 8:  # beyond, what is missed is below double precision
        assert abs(w @ t ** (2 * nodes) * (2 * nodes + 1) - 1) > 1e-10


def test_legendre_polynomials_are_orthonormal():
    t, w = gauss_legendre(60)
    p = evidence.legendre(t, np.arange(50))
    np.testing.assert_allclose((p * w) @ p.T, np.eye(50), atol=1e-12)


@pytest.mark.parametrize("powers", [evidence.block_powers(4, True), evidence.block_powers(2, False)])
def test_ten_powers_are_interpolated_from_as_many_anchors(powers):
    coefficients = np.random.default_rng(0).normal(size=len(powers))
    curve = lambda t: (t[:, None] ** np.array(powers)) @ coefficients  # noqa: E731
    spread = evidence.interpolation(powers, 56)
    assert spread.shape == (56, len(powers))
    np.testing.assert_allclose(spread @ curve(evidence.anchors(powers)), curve(gauss_legendre(56)[0]), atol=1e-13)
    assert np.abs(spread).sum(1).max() < 5, "noise at the anchors is not blown up"


def test_block_powers():
    assert evidence.block_powers(4, True) == (0, 1, 2, 4, 5, 8, 9, 10, 13, 18)
    assert evidence.block_powers(2, False) == (1, 2, 5, 6, 10)


# ---------------------------------------------------------------------------------------------- degree
def local_degree(model, encoded, boost=1e8):
    """d log N / d log t at t = 1 with everything but the highest power turned down."""
    for block in model.blocks:
        for weight in (block.output.weight, block.third.weight) if model.kind == "born" else (block.output, block.last):
            weight.mul_(boost)
    if model.kind == "born":
        model.reference_gain.zero_()
    samples, scores = evidence.integrand(model, encoded, [0.0, 1.0], target=0)
    return samples[1].sum() / (scores[1, 0] - scores[0, 0])


@pytest.mark.parametrize(("kind", "degree"), [("born", 648), ("poly", 100)])
def test_degree_of_the_scores(kind, degree):
    model = random_model(kind)
    assert model.degree == degree
    assert local_degree(model, random_pairs(1, longest=3)[0]) == pytest.approx(degree, abs=1e-4)


def test_another_power_of_the_overlap_has_another_degree(monkeypatch):
    def first_power(amounts, held):  # |<q|k>|^2 in place of |<q|k>|^4
        sums = amounts.sum(-1) if held is None else held
        return amounts / sums.masked_fill(sums == 0, 1.0).unsqueeze(-1), sums

    monkeypatch.setattr(models, "normalise_rows", first_power)
    assert local_degree(random_model("born"), random_pairs(1, longest=3)[0]) == pytest.approx(200, abs=1e-3)


# ---------------------------------------------------------------------------------------------- against the formulas
def slow_born(model, x, held=None):
    """N_c(x) / D from the formulas, complex numbers and loops; returns it with the denominators used."""
    number = lambda z: (z[..., :MODES] + 1j * z[..., MODES:]).numpy()  # noqa: E731
    h = [number(model.reference_gain * model.reference), *x]
    sums = []
    for b, block in enumerate(model.blocks):
        Q, K, V, O, W1, W2, W3 = (m.matrix.numpy() for m in (block.query, block.key, block.value, block.output, block.first, block.second, block.third))
        after = []
        for i, hi in enumerate(h):
            heads = []
            for a in range(HEADS):
                part = slice(a * MODES // HEADS, (a + 1) * MODES // HEADS)
                weights = np.array([abs(np.vdot((Q @ hi)[part], (K @ hj)[part])) ** 4 for hj in h])
                row = weights.sum() if held is None else held[0][b][i, a]
                sums.append(row)
                heads.append(sum(w / row * (V @ hj)[part] for w, hj in zip(weights, h, strict=True)))
            after.append(hi + O @ np.concatenate(heads))
        h = [z + W3 @ (block.gain.numpy() * ((W1 @ z) * (W2 @ z)).real) for z in after]
    counts = (np.abs(model.camera.matrix.numpy() @ sum(h)) ** 2).reshape(3, -1).sum(1)
    total = counts.sum() if held is None else held[1]
    return counts / total, (np.array(sums).reshape(len(model.blocks), len(h), HEADS), total)


def test_born_evidence_against_loops_and_adaptive_quadrature():
    model, e = random_model("born", 3), random_pairs(1, seed=5, shortest=1, longest=2)[0]
    ids, sentence = torch.tensor([e.ids]), torch.tensor([e.sentence])
    fields = model.fields(ids, sentence)[0]
    x = (fields[:, :MODES] + 1j * fields[:, MODES:]).numpy()
    full, held = slow_born(model, x)
    target, step = int(full.argmax()), 1e-4

    def along(t):
        scale = np.full(len(x), t)
        out = []
        for i in range(len(x)):
            up, down = scale.copy(), scale.copy()
            up[i], down[i] = t + step, t - step
            at = [slow_born(model, x * s[:, None], held)[0][target] for s in (up, down)]
            out.append((at[0] - at[1]) / (2 * step))
        return np.array(out)

    expected, _ = scipy.integrate.quad_vec(along, 0, 1, epsabs=1e-5)
    found = word_evidence(model, [e], nodes="exact")[0]
    np.testing.assert_allclose(found.probabilities, full, atol=1e-12)
    np.testing.assert_allclose(found.values, expected, atol=2e-5 * np.abs(expected).max())
    assert found.target == target and found.baseline == pytest.approx(slow_born(model, 0 * x, held)[0][target])


@pytest.mark.parametrize("kind", ["born", "poly"])
def test_first_block_from_anchors_equals_every_node_in_full(kind):
    model, e = random_model(kind, 1), random_pairs(1, seed=2)[0]
    for nodes in (12, 40):
        t, w = gauss_legendre(nodes)
        samples, scores = evidence.integrand(model, e, t, target=1)
        found = word_evidence(model, [e], targets=[1], nodes=nodes)[0]
        np.testing.assert_allclose(found.values, w @ samples, rtol=1e-11, atol=1e-13)
        assert scores.shape == (nodes, 3)


# ---------------------------------------------------------------------------------------------- completeness
@pytest.mark.parametrize("kind", ["born", "poly"])
@pytest.mark.parametrize("nodes", ["exact", "auto"])
def test_evidence_is_complete(kind, nodes):
    for e in word_evidence(random_model(kind), random_pairs(8), nodes=nodes):
        assert e.gap < 1e-11 and e.error_bound < 1e-11
        assert e.gap == pytest.approx(abs(e.values.sum() - (e.score - e.baseline)), abs=1e-15)
        assert e.unit == ("probability" if kind == "born" else "logit")
        assert e.probabilities.sum() == pytest.approx(1) and e.target == e.probabilities.argmax()


def test_too_few_nodes_are_not_complete():
    assert max(e.gap for e in word_evidence(random_model("born"), random_pairs(8), nodes=8)) > 1e-7


@pytest.mark.parametrize("nodes", [64, 324])
def test_denominators_that_are_not_held_never_close_the_gap(monkeypatch, nodes):
    monkeypatch.setattr(evidence, "_held", lambda group, copies: None)
    assert min(e.gap for e in word_evidence(random_model("born"), random_pairs(4), nodes=nodes)) > 1e-5


def test_explains_the_class_asked_for():
    model, pairs = random_model("born"), random_pairs(3)
    per_class = [word_evidence(model, pairs, targets=[c] * 3) for c in range(3)]
    for b in range(3):
        assert sum(per_class[c][b].score for c in range(3)) == pytest.approx(1)
        # the total light is held, so evidence for all classes together is that of the total count
        assert sum(per_class[c][b].baseline for c in range(3)) + sum(per_class[c][b].values.sum() for c in range(3)) == pytest.approx(1)


# ---------------------------------------------------------------------------------------------- batching
@pytest.mark.parametrize("kind", ["born", "poly"])
def test_chunks_do_not_matter(kind):
    model, pairs = random_model(kind), random_pairs(3)
    whole = values(word_evidence(model, pairs, nodes=40, slots_a_pass=10**6))
    for options in ({"slots_a_pass": 1}, {"slots_a_pass": 333}, {"memory_mib": 0.2}):
        np.testing.assert_allclose(values(word_evidence(model, pairs, nodes=40, **options)), whole, atol=1e-13)


@pytest.mark.parametrize("kind", ["born", "poly"])
def test_padding_does_not_matter(kind):
    model, (short, long) = random_model(kind), [random_pairs(1, 1, 1, 2)[0], random_pairs(1, 2, 20, 20)[0]]
    alone = word_evidence(model, [short], nodes=40)[0]
    padded = word_evidence(model, [short, long], nodes=40, slots_a_pass=10**6)[0]
    np.testing.assert_allclose(padded.values, alone.values, atol=1e-12)
    assert padded.encoded is short and len(padded.values) == len(short.ids)


@pytest.mark.parametrize("gated", [False, True])
def test_padding_does_not_matter_for_integrated_gradients(gated):
    model, (short, long) = random_model("softmax"), [random_pairs(1, 1, 1, 2)[0], random_pairs(1, 2, 20, 20)[0]]
    alone = integrated_gradients(model, [short], nodes=16, gated=gated)[0]
    padded = integrated_gradients(model, [short, long], nodes=16, gated=gated)[0]
    np.testing.assert_allclose(padded.values, alone.values, atol=1e-12)


def test_a_float32_model_is_explained_in_float64_and_left_alone():
    model, pairs = random_model("born").float(), random_pairs(2)
    found = word_evidence(model, pairs)
    assert model.embedding.dtype == torch.float32
    np.testing.assert_array_equal(values(found), values(word_evidence(model.double(), pairs)))
    assert found[0].values.dtype == np.float64


# ---------------------------------------------------------------------------------------------- certificate
@pytest.mark.parametrize("kind", ["born", "poly"])
def test_the_bound_is_never_below_the_error(kind):
    for seed in range(4):  # larger embeddings: more weight on high powers, slower convergence
        model, pairs = random_model(kind, seed, size=1 + seed), random_pairs(4, seed)
        exact = word_evidence(model, pairs, nodes="exact")
        for nodes in (8, 12, 16, 24, 32, 48, 80, "auto"):
            for a, b in zip(word_evidence(model, pairs, nodes=nodes), exact, strict=True):
                # the exact rule has float64 noise of its own, which its bound tells
                assert np.abs(a.values - b.values).max() <= a.error_bound + b.error_bound, (seed, nodes)


def test_auto_takes_more_nodes_where_it_must():
    easy, hard = (word_evidence(random_model("born", size=size), random_pairs(4)) for size in (0.3, 6.0))
    assert max(e.nodes for e in easy) < max(e.nodes for e in hard) <= 324
    assert all(e.error_bound <= 1e-11 or e.nodes == 324 for e in (*easy, *hard))
    loose = word_evidence(random_model("born", size=6.0), random_pairs(4), tolerance=1e-3)
    assert max(e.nodes for e in loose) < max(e.nodes for e in hard)


# ---------------------------------------------------------------------------------------------- integrated gradients
def test_softmax_against_captum():
    from captum.attr import IntegratedGradients

    model, e = random_model("softmax"), random_pairs(1, seed=4)[0]
    ids, sentence = torch.tensor([e.ids]), torch.tensor([e.sentence])
    x, mask = model.fields(ids, sentence), ids != 0
    found = integrated_gradients(model, [e], targets=[2], nodes=40)[0]
    captum = IntegratedGradients(lambda y: model.scores(y, mask.expand(len(y), -1)))
    expected = captum.attribute(x, torch.zeros_like(x), target=2, n_steps=40, method="gausslegendre").sum(-1)[0]
    np.testing.assert_allclose(found.values, expected.numpy(), rtol=1e-6)  # captum's quadrature weights are float32
    assert found.unit == "logit" and found.baseline == pytest.approx(float(model.scores(0 * x, mask)[0, 2]))


def test_gated_against_finite_differences():
    model, e = random_model("softmax"), random_pairs(1, seed=4, longest=3)[0]
    ids, sentence = torch.tensor([e.ids]), torch.tensor([e.sentence])
    x, mask, step = model.fields(ids, sentence), ids != 0, 1e-5

    def score(gates):
        return float(model.scores(x * gates[None, :, None], mask, gates=gates[None])[0, 1])

    (t, w), L = gauss_legendre(3), len(e.ids)
    eye = torch.eye(L, dtype=torch.float64) * step
    slopes = [[(score(t[k] + eye[i]) - score(t[k] - eye[i])) / (2 * step) for i in range(L)] for k in range(3)]
    found = integrated_gradients(model, [e], targets=[1], nodes=3, gated=True)[0]
    np.testing.assert_allclose(found.values, w @ np.array(slopes), atol=1e-6)
    assert np.abs(found.values - integrated_gradients(model, [e], targets=[1], nodes=3)[0].values).max() > 1e-3


def test_nodes_dense_near_zero_do_more():
    model, pairs = random_model("softmax"), random_pairs(3)
    plain = integrated_gradients(model, pairs, nodes=256, gated=True)
    bent = integrated_gradients(model, pairs, nodes=96, gated=True, bend=1e-8)
    assert min(e.gap for e in plain) > 1e-2 and max(e.gap for e in bent) < 1e-8
    finer = integrated_gradients(model, pairs, nodes=160, gated=True, bend=1e-8)
    np.testing.assert_allclose(values(bent), values(finer), atol=1e-8)
    assert np.isnan(plain[0].error_bound)


@pytest.mark.parametrize("kind", ["poly", "poly-gelu", "poly-softmax", "poly-softmax-gelu"])
def test_integrated_gradients_run_for_every_real_model(kind):
    for e in integrated_gradients(random_model(kind), random_pairs(3), nodes=200):
        assert np.isfinite(e.values).all() and e.gap < 1e-3


def test_free_denominators_jump_at_zero():
    """A word's attention row is all on the reference for t just above 0 and empty at 0: no rule closes this gap."""
    for nodes in (100, 200):
        assert min(e.gap for e in integrated_gradients(random_model("born"), random_pairs(3), nodes=nodes)) > 1e-4


# ---------------------------------------------------------------------------------------------- bad and odd input
def test_refusals():
    model, pairs = random_model("born"), random_pairs(2)
    for nodes in ("fast", 0, -3, 2.5, True, None):
        with pytest.raises(ValueError, match="nodes: expected"):
            word_evidence(model, pairs, nodes=nodes)
    for targets in ([0], [0, 3], [0, -1], 1):
        with pytest.raises(ValueError, match="targets: expected 2"):
            word_evidence(model, pairs, targets=targets)
    with pytest.raises(ValueError, match="polynomial"):
        word_evidence(random_model("softmax"), pairs)
    with pytest.raises(ValueError, match="polynomial"):
        evidence.integrand(random_model("poly-gelu"), pairs[0], [0.5])
    with pytest.raises(ValueError, match="gated"):
        integrated_gradients(model, pairs, gated=True)
    for options in ({"nodes": 0}, {"nodes": "exact"}, {"bend": 0.0}, {"bend": -1}):
        with pytest.raises(ValueError, match="nodes and bend"):
            integrated_gradients(model, pairs, **options)


@pytest.mark.parametrize("method", [word_evidence, integrated_gradients])
def test_weights_that_are_not_finite_are_refused(method):
    model = random_model("poly")
    model.blocks[1].first[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"NaN or infinity in \['blocks.1.first'\]"):
        method(model, random_pairs(1))


@pytest.mark.parametrize("kind", ["born", "poly"])
@pytest.mark.parametrize(("premise", "hypothesis"), [("", ""), ("", "a man"), ("a man", ""), (". , .", "!"), ("zzz qqq", "xxx")])
def test_odd_pairs_are_explained(kind, premise, hypothesis):
    e = word_evidence(random_model(kind), [encode(premise, hypothesis, VOCABULARY)])[0]
    assert np.isfinite(e.values).all() and e.gap < 1e-11
    assert len(e.values) == len(e.encoded.ids)


def test_no_pairs_no_evidence():
    assert word_evidence(random_model("born"), []) == []
    assert integrated_gradients(random_model("softmax"), []) == []


@pytest.mark.parametrize("kind", ["born", "poly"])
def test_attention_rows_of_zeros_are_defined(kind):
    model = random_model(kind)
    if kind == "born":
        model.blocks[0].query.weight.zero_()
    else:
        model.blocks[0].qkv[:64] = 0
    for nodes in ("exact", "auto"):
        for e in word_evidence(model, random_pairs(3), nodes=nodes):
            assert np.isfinite(e.values).all() and e.gap < 1e-11 and np.isfinite(e.error_bound)


def test_a_dark_camera_is_defined():
    model = random_model("born")
    model.camera.weight.zero_()
    e = word_evidence(model, random_pairs(1))[0]
    assert e.score == e.baseline == 0 and not e.values.any()
