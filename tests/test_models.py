"""Models against slow loops written from the formulas, gradients, degrees, padding and size (paper Tables 3, 8, 9)."""

import math

import numpy as np
import pytest
import torch
from torch.func import functional_call

from bornlib.corpus import MAX_TOKENS, Vocabulary, collate, encode
from bornlib.models import NAMES, BornBlock, RealBlock, Trace, build, normalise_rows, parameter_counts

torch.set_num_threads(1)
WORDS = Vocabulary(["<pad>", "<unk>", "<sep>", *"a man dog plays sleeps outside hockey the . two people".split()])
SHORT = encode("two people", "a man .", WORDS)
LONG = encode("a man plays hockey outside .", "the dog sleeps", WORDS)


def model_of(kind, seed=0):
    model = build(kind, len(WORDS), seed).double()
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():  # phases, gains, biases and norms start at constants that could hide an error
        for name, p in model.named_parameters():
            if any(part in name for part in ("phase", "gain", "bias", "norm")):
                p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


def numpy_weights(model, dtype=np.float64):
    return {k: v.detach().numpy().astype(dtype) for k, v in model.state_dict().items()}


# ------------------------------------------------------------------------------- the formulas, one number at a time
def slow_born(w, ids, sentence, t=1.0, held_sums=None, dtype=np.complex128):
    """N_c of one pair from the formulas in complex numbers; word fields scaled by t, row sums optionally all `held_sums`."""

    def matrix(name):
        return (w[name + ".weight"][0] + 1j * w[name + ".weight"][1]).astype(dtype)

    def vector(row):
        return (row[:32] + 1j * row[32:]).astype(dtype)

    h = [w["reference_gain"] * vector(w["reference"])]
    for i, (word, side) in enumerate(zip(ids, sentence, strict=True)):
        field = vector(w["embedding"][word]) + vector(w["position"][i]) + vector(w["sentence"][side])
        h.append(t * np.exp(dtype(1j * w["phase"][i])) * field)
    for b in range(2):
        names = {n: matrix(f"blocks.{b}.{n}") for n in ("query", "key", "value", "output", "first", "second", "third")}
        q, k, v = ([names[n] @ x for x in h] for n in ("query", "key", "value"))
        after = []
        for i in range(len(h)):
            heads = []
            for part in (slice(0, 16), slice(16, 32)):
                weights = [abs(sum(q[i][part].conj() * k[j][part])) ** 4 for j in range(len(h))]
                norm = sum(weights) if held_sums is None else held_sums
                heads.append(sum(weights[j] / norm * v[j][part] for j in range(len(h))))
            after.append(h[i] + names["output"] @ np.concatenate(heads))
        gain = w[f"blocks.{b}.gain"]
        h = [x + names["third"] @ (gain * ((names["first"] @ x) * (names["second"] @ x)).real) for x in after]
    amplitudes = matrix("camera") @ sum(h)
    return np.array([sum((a * a.conj()).real for a in amplitudes[64 * c : 64 * c + 64]) for c in range(3)])


def slow_real(w, ids, sentence, attention, feed_forward, norm, t=1.0, held_sums=None):
    """Logits of one pair from the formulas; attention `square` or `softmax`, feed-forward `bilinear` or `gelu`."""

    def layer_norm(x, name):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[name + ".weight"] + w[name + ".bias"] if norm else x

    h = [
        t * (w["embedding"][a] + w["position"][i] + w["sentence"][s]) for i, (a, s) in enumerate(zip(ids, sentence, strict=True))
    ]
    for b in range(2):
        p = f"blocks.{b}."
        rows = w[p + "qkv"]
        x = [layer_norm(y, p + "norms.0") for y in h]
        q, k, v = ([rows[64 * part : 64 * part + 64] @ y for y in x] for part in range(3))
        after = []
        for i in range(len(h)):
            heads = []
            for part in (slice(0, 32), slice(32, 64)):
                products = [sum(q[i][part] * k[j][part]) for j in range(len(h))]
                weights = [s**2 if attention == "square" else math.exp(s / math.sqrt(32)) for s in products]
                total = sum(weights) if held_sums is None else held_sums
                heads.append(sum(weights[j] / total * v[j][part] for j in range(len(h))))
            after.append(h[i] + w[p + "output"] @ np.concatenate(heads))
        h = []
        for y in after:
            u = w[p + "first"] @ layer_norm(y, p + "norms.1")
            if feed_forward == "bilinear":
                u = u[:170] * u[170:]
            else:
                u = np.array([a * 0.5 * (1 + math.erf(a / math.sqrt(2))) for a in u])
            h.append(y + w[p + "last"] @ u)
    pooled = sum(layer_norm(y, "norm") for y in h) / len(h)
    return w["head"] @ pooled + w["bias"]


FORMS = {  # paper Tables 3 and 8
    "softmax": ("softmax", "gelu", True),
    "poly": ("square", "bilinear", False),
    "poly-gelu": ("square", "gelu", False),
    "poly-softmax": ("softmax", "bilinear", False),
    "poly-softmax-gelu": ("softmax", "gelu", False),
}


@pytest.mark.parametrize("pair", [SHORT, LONG], ids=["short", "long"])
def test_born_is_its_formulas(pair):
    model = model_of("born")
    n = slow_born(numpy_weights(model), pair.ids, pair.sentence)
    ids, sentence = collate([pair])
    torch.testing.assert_close(model(ids, sentence)[0], torch.tensor(np.log(n / n.sum())), rtol=1e-12, atol=1e-12)
    scores = model.scores(model.fields(ids, sentence))[0]
    torch.testing.assert_close(scores, torch.tensor(n / n.sum()), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", FORMS)
def test_real_models_are_their_formulas(kind):
    model = model_of(kind)
    logits = slow_real(numpy_weights(model), LONG.ids, LONG.sentence, *FORMS[kind])
    ids, sentence = collate([LONG])
    torch.testing.assert_close(
        model.scores(model.fields(ids, sentence), ids != 0)[0], torch.tensor(logits), rtol=1e-11, atol=1e-12
    )
    expected = torch.tensor(logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max())
    torch.testing.assert_close(model(ids, sentence)[0], expected, rtol=1e-11, atol=1e-11)


def test_trace_holds_the_measured_attention():
    """The traced attention of the first block, from overlaps of one query with one key."""
    model = model_of("born")
    ids, sentence = collate([LONG])
    trace = Trace()
    model.scores(model.fields(ids, sentence), trace=trace)
    w = numpy_weights(model)
    reference = float(w["reference_gain"]) * w["reference"]
    x = model.fields(ids, sentence)[0].detach().numpy()
    h = [r[:32] + 1j * r[32:] for r in [reference, *x]]
    q, k = (w[f"blocks.0.{n}.weight"][0] + 1j * w[f"blocks.0.{n}.weight"][1] for n in ("query", "key"))
    overlaps = [[np.vdot((q @ a)[16:], (k @ b)[16:]) for b in h] for a in h]  # second head
    weights = np.abs(overlaps) ** 4
    np.testing.assert_allclose(trace.attention[0][0, 1].detach(), weights / weights.sum(1, keepdims=True), rtol=1e-11)
    np.testing.assert_allclose(trace.row_sums[0][0, 1].detach(), weights.sum(1), rtol=1e-11)
    assert len(trace.attention) == len(trace.row_sums) == 2
    assert trace.attention[1].shape == (1, 2, 1 + len(LONG.ids), 1 + len(LONG.ids))


# ------------------------------------------------------------------------------- gradients
def gradients_agree(module, *inputs):
    """gradcheck of a module with respect to its input and every parameter (random projections: a full Jacobian is minutes)."""
    names, values = zip(*[(n, p.detach().clone().requires_grad_()) for n, p in module.named_parameters()], strict=True)

    def run(x, *parameters):
        return functional_call(module, dict(zip(names, parameters, strict=True)), (x, *inputs[1:]))

    return torch.autograd.gradcheck(run, (inputs[0], *values), fast_mode=True, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("held", [False, True])
def test_gradients_of_the_born_block(held):
    generator = torch.Generator().manual_seed(3)
    block = BornBlock(generator).double()
    h = (0.3 * torch.randn(2, 3, 64, generator=generator, dtype=torch.float64)).requires_grad_()
    sums = 0.5 + torch.rand(2, 2, 3, generator=generator, dtype=torch.float64) if held else None
    assert gradients_agree(block, h, sums, None)


@pytest.mark.parametrize("kind", FORMS)
def test_gradients_of_the_real_blocks(kind):
    generator = torch.Generator().manual_seed(4)
    block = RealBlock(*FORMS[kind], generator).double()
    h = torch.randn(2, 3, 64, generator=generator, dtype=torch.float64).requires_grad_()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    gates = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    assert gradients_agree(block, h, mask, None, None, gates)


@pytest.mark.parametrize("kind", NAMES)
def test_gradients_of_the_models(kind):
    model = model_of(kind)
    ids, sentence = collate([SHORT, LONG])
    names, values = zip(*[(n, p.detach().clone().requires_grad_()) for n, p in model.named_parameters()], strict=True)

    def loss(*parameters):
        return functional_call(model, dict(zip(names, parameters, strict=True)), (ids, sentence))

    assert torch.autograd.gradcheck(loss, values, fast_mode=True, atol=1e-6, rtol=1e-4)


# ------------------------------------------------------------------------------- sizes
def test_parameter_counts():
    """Table 8: about 98k parameters outside the embedding, 98,645 here, 128 of them the two sentence fields."""
    model = build("born", 22_319)
    assert parameter_counts(model) == (98_645 + 22_319 * 64, 98_645)
    assert model.sentence.numel() == 128
    for kind in ("softmax", "poly"):  # "of the same size": within a tenth
        assert abs(parameter_counts(build(kind, 1000))[1] / 98_645 - 1) < 0.1
        assert parameter_counts(build(kind, 1000))[0] - parameter_counts(build(kind, 999))[0] == 64


def test_embeddings_and_positions_start_at_unit_norm():
    model = build("born", 5000)
    for rows in (model.embedding, model.position, model.sentence):
        assert rows.square().sum(1).mean().item() == pytest.approx(1, abs=0.15)
    assert model.phase.abs().max() == 0
    assert model.reference_gain == 1


@pytest.mark.parametrize("kind", NAMES)
def test_build_is_decided_by_the_seed(kind):
    state = torch.get_rng_state()
    first, again, other = (build(kind, 20, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())  # the global generator is left alone
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["embedding"], other["embedding"])
    assert not torch.equal(first["position"], other["position"])


def test_unknown_model_is_refused():
    with pytest.raises(ValueError, match="model: expected one of .*'born'.*got 'bron'"):
        build("bron", 10)


# ------------------------------------------------------------------------------- padding, zeros, held denominators
@pytest.mark.parametrize("kind", NAMES)
def test_a_pair_alone_and_in_a_padded_batch(kind):
    model = model_of(kind)
    longest = encode("a man plays hockey outside . " * 5, "the dog sleeps " * 8, WORDS)
    assert len(longest.ids) == 55 < MAX_TOKENS
    batch = model(*collate([SHORT, longest, LONG, encode("", "", WORDS)]))
    for row, pair in zip(batch, [SHORT, longest, LONG, encode("", "", WORDS)], strict=True):
        torch.testing.assert_close(row, model(*collate([pair]))[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["born", "poly"])
def test_a_row_without_any_overlap_is_defined(kind):
    """Where a query overlaps with no key the row sum is 0: nothing is attended to, and no gradient is NaN."""
    model = model_of(kind)
    with torch.no_grad():
        for block in model.blocks:
            (block.query.weight if kind == "born" else block.qkv[:64]).zero_()
    ids, sentence = collate([SHORT, LONG])
    trace = Trace()
    model.scores(model.fields(ids, sentence), ids != 0, trace=trace)
    assert all((sums == 0).all() and (a == 0).all() for sums, a in zip(trace.row_sums, trace.attention, strict=True))
    out = model(ids, sentence)
    assert torch.isfinite(out).all()
    out[:, 0].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_zero_row_among_others():
    amounts = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    rows, sums = normalise_rows(amounts, None)
    assert rows.tolist() == [[0, 0], [pytest.approx(0.2), pytest.approx(0.8)]]
    assert sums.tolist() == [0, 5]
    rows.square().sum().backward()
    assert torch.isfinite(amounts.grad).all()


@pytest.mark.parametrize("size", [1e-18, 1e-12, 1.0, 1e12, 1e18])
def test_rows_far_outside_of_what_float32_can_square(size):
    amounts = (torch.tensor([[1.0, 2.0], [-3.0, 0.0]]) * size).requires_grad_()
    rows, _ = normalise_rows(amounts, None)
    assert torch.allclose(rows, torch.tensor([[0.2, 0.8], [1.0, 0.0]]))
    rows[0, 0].backward()
    assert torch.allclose(amounts.grad * size, torch.tensor([[0.32, -0.16], [0.0, 0.0]]), rtol=1e-4)


def test_held_sums_are_those_of_the_squares():
    amounts = torch.rand(3, 4, dtype=torch.float64)
    rows, sums = normalise_rows(amounts, None)
    assert torch.allclose(sums, amounts.square().sum(-1), rtol=1e-15)
    assert torch.allclose(normalise_rows(amounts, sums)[0], rows, rtol=1e-14)


def test_an_image_without_light_is_defined():
    model = model_of("born")
    with torch.no_grad():
        model.camera.weight.zero_()
    ids, sentence = collate([SHORT])
    assert model.scores(model.fields(ids, sentence)).tolist() == [[0, 0, 0]]
    assert torch.isfinite(model(ids, sentence)).all()


@pytest.mark.parametrize("kind", ["born", "poly"])
def test_held_denominators_reproduce_the_forward_pass(kind):
    model = model_of(kind)
    ids, sentence = collate([SHORT, LONG])
    x, mask, trace = model.fields(ids, sentence), ids != 0, Trace()
    free = model.scores(x, mask, trace=trace)
    torch.testing.assert_close(model.scores(x, mask, held=trace), free, rtol=1e-14, atol=1e-14)
    assert (model.scores(0.5 * x, mask, held=trace) - model.scores(0.5 * x, mask)).abs().max() > 1e-3


# ------------------------------------------------------------------------------- degree
def growth(function, t):
    """d log|f| / d log t at large t: the degree of a polynomial f."""
    return np.log2(np.abs(function(2 * t) / function(t)))


def test_each_intensity_has_degree_648():
    """Denominators held, N_c grows as t^648 (Table 9); in extended precision, whose range t^648 needs."""
    model = model_of("born")
    w = numpy_weights(model, np.longdouble)
    if np.finfo(np.longdouble).maxexp < 16000:
        pytest.skip("no extended range on this platform")
    rates = growth(lambda t: slow_born(w, SHORT.ids, SHORT.sentence, np.longdouble(t), 1, np.clongdouble), 2.0**16)
    np.testing.assert_allclose(rates.astype(float), model.degree, atol=1e-3)
    assert model.degree == 648


def test_the_model_itself_has_degree_648():
    """The same on the module in float64: small held row sums bring the leading term forward before t^648 overflows."""
    model = model_of("born")
    with torch.no_grad():
        model.reference_gain.zero_()
    ids, sentence = collate([SHORT])
    x = model.fields(ids, sentence)
    trace = Trace()
    model.scores(x, trace=trace)
    ones = torch.ones_like(trace.row_sums[0])
    held = Trace(row_sums=[1e-4 * ones, 1e-4 * ones], total=torch.ones(1).double())
    n = {t: model.scores(t * x, held=held)[0].detach().numpy() for t in (1.0, 1.05)}
    assert all(np.isfinite(v).all() for v in n.values())
    np.testing.assert_allclose(np.log(n[1.05] / n[1.0]) / np.log(1.05), 648, atol=0.5)


def test_each_logit_of_poly_has_degree_100():
    model = model_of("poly")
    w = numpy_weights(model)
    w["bias"] = 0 * w["bias"]
    rates = growth(lambda t: slow_real(w, SHORT.ids, SHORT.sentence, *FORMS["poly"], t=t, held_sums=1.0), 2.0**9)
    np.testing.assert_allclose(rates, model.degree, atol=1e-6)
    assert model.degree == 100
    assert all(build(kind, 5).degree is None for kind in FORMS if kind != "poly")
