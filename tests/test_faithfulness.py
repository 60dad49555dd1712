"""Rankings and their measures: against brute force, hand-made cases, and a model whose reasons are known."""

import numpy as np
import pytest
import torch
from torch import nn

from bornlib import faithfulness as F
from bornlib.corpus import PAD, SEP, UNK, Pair, Vocabulary, encode
from bornlib.models import Trace, build

WORDS = "a the man woman dog cat runs sleeps eats in park house red blue two three not happy . ,".split()
VOCABULARY = Vocabulary([PAD, UNK, SEP, *WORDS])
NOT = VOCABULARY.ids["not"]


class NotModel(nn.Module):
    """Answers contradiction where "not" occurs, else entailment: its reason is known."""

    kind, degree = "not", None

    def forward(self, ids, sentence):
        p = torch.where((ids == NOT).any(1, keepdim=True), torch.tensor([0.1, 0.1, 0.8]), torch.tensor([0.7, 0.2, 0.1]))
        return p.log()


def random_model(kind, seed=0):
    return build(kind, len(VOCABULARY), seed).double().eval().requires_grad_(False)


def random_pairs(count, seed=0, longest=8):
    rng = np.random.default_rng(seed)
    draw = lambda: [str(w) for w in rng.choice(WORDS, rng.integers(1, longest + 1))]  # noqa: E731
    return [encode(draw(), draw(), VOCABULARY) for _ in range(count)]


def marks_of(encoded, *slots):
    out = np.zeros(len(encoded.ids), bool)
    out[list(slots)] = True
    return out


# ---------------------------------------------------------------------------------------------- pairs
def test_the_sample_is_fixed_sorted_and_nested_in_size():
    a, b = F.sample_pairs(9824, 1000), F.sample_pairs(9824, 300)
    np.testing.assert_array_equal(a, F.sample_pairs(9824, 1000))
    assert len(set(a)) == 1000 and (np.diff(a) > 0).all() and set(b) <= set(a)
    assert set(a) != set(F.sample_pairs(9824, 1000, seed=1))
    np.testing.assert_array_equal(F.sample_pairs(5, 1000), np.arange(5))
    np.testing.assert_array_equal(F.sample_pairs(5, None), np.arange(5))
    with pytest.raises(ValueError, match="size: expected at least 1, got 0"):
        F.sample_pairs(5, 0)


def test_marks_follow_the_slots():
    one, two = ((True, False), (False, True, False)), ((False, False), (True, False, True))
    pair = Pair("a dog", "the cat .", 0, (one, two))
    e = encode(pair.premise, pair.hypothesis, VOCABULARY)
    assert F.marked_slots(pair, e).tolist() == [True, False, False, True, True, False], "a full stop is no word"
    assert F.marked_slots(pair, e, 0).tolist() == [True, False, False, False, True, False]
    assert not F.marked_slots(Pair("a dog", "the cat .", 0), e).any()


def test_marks_of_a_pair_that_was_cut():
    premise, hypothesis = " ".join(["dog"] * 70), "a cat"
    pair = Pair(premise, hypothesis, 0, (((True,) * 70, (False, True)),))
    e = encode(premise, hypothesis, VOCABULARY)
    found = F.marked_slots(pair, e)
    assert len(found) == len(e.ids) == 64 and found.sum() == 61 + 1 and found[-1]


# ---------------------------------------------------------------------------------------------- deletion
@pytest.mark.parametrize("kind", ["born", "softmax", "poly"])
def test_deletions_against_encoding_the_shorter_text(kind):
    model, pairs = random_model(kind), random_pairs(5)
    deletions = F.Deletions(model, pairs)
    drops, flips = deletions.singles()
    for i, e in enumerate(pairs):
        n = e.tokens.index(SEP)
        whole = model(torch.tensor([e.ids]), torch.tensor([e.sentence])).exp()[0]
        assert deletions.answers[i] == whole.argmax()
        for k, slot in enumerate(np.flatnonzero(e.words)):
            premise = [t for s, t in enumerate(e.tokens[:n]) if s != slot]
            hypothesis = [t for s, t in enumerate(e.tokens[n + 1 :], n + 1) if s != slot]
            short = encode(premise, hypothesis, VOCABULARY)
            after = model(torch.tensor([short.ids]), torch.tensor([short.sentence])).exp()[0]
            answer = whole.argmax()
            assert drops[i][k] == pytest.approx(float(whole[answer] - after[answer]), abs=1e-4)
            assert flips[i][k] == (after.argmax() != answer)


def test_every_case_is_computed_once(monkeypatch):
    deletions = F.Deletions(random_model("poly"), random_pairs(4))
    deletions.singles()
    known = deletions([(0, (int(deletions.words[0][0]),))])
    monkeypatch.setattr(F, "_probabilities", None)  # a second computation would fail
    np.testing.assert_array_equal(deletions([(0, deletions.words[0][:1])]), known)
    deletions.ceiling()


def test_a_model_whose_reason_is_known():
    pairs = [encode("a man is not happy", "a dog runs in the park", VOCABULARY), encode("a man", "a dog", VOCABULARY)]
    deletions = F.Deletions(NotModel(), pairs)
    assert deletions.answers.tolist() == [2, 0] and deletions.ceiling().tolist() == [True, False]
    loo = F.leave_one_out(deletions)
    assert loo[0].argmax() == 3 and loo[0][3] == pytest.approx(0.7) and not loo[1].any()
    found = F.deletion_measures(deletions, loo)
    assert found["flip1"].tolist() == [True, False] and found["flip5_lowest"].tolist() == [False, False]
    assert found["aopc"] == pytest.approx([0.7, 0.0])
    upside_down = F.deletion_measures(deletions, [-v for v in loo])
    assert upside_down["flip1"].tolist() == [False, False] and upside_down["flip5_lowest"][0]
    assert upside_down["aopc"][0] == 0  # "not" is ranked last, beyond the first five


def test_aopc_is_the_mean_over_one_to_five_deletions():
    e = encode("a not man", "the not dog runs not", VOCABULARY)  # three of "not": only all three change the answer
    scores = np.array([0, 9, 0, 0, 0, 8, 0, 0, 7.0])
    found = F.deletion_measures(F.Deletions(NotModel(), [e]), [scores])
    assert found["aopc"][0] == pytest.approx((0 + 0 + 0.7 + 0.7 + 0.7) / 5) and not found["flip1"][0]


def test_pairs_with_few_words_or_none():
    pairs = [encode("", "", VOCABULARY), encode(". ,", "!", VOCABULARY), encode("not", "", VOCABULARY)]
    deletions = F.Deletions(NotModel(), pairs)
    scores = [np.zeros(len(e.ids)) for e in pairs]
    found = F.deletion_measures(deletions, scores)
    assert found["flip1"].tolist() == [False, False, True] and found["flip5_lowest"].tolist() == [False, False, True]
    assert deletions.ceiling().tolist() == [False, False, True]
    assert F.agreement(pairs, scores, [marks_of(e) for e in pairs]) == pytest.approx([np.nan] * 3, nan_ok=True)


def test_leave_one_out_reaches_the_ceiling_and_nothing_passes_it():
    model, pairs = random_model("born", 2), random_pairs(20)
    deletions = F.Deletions(model, pairs)
    ceiling = deletions.ceiling()
    for scores in (F.leave_one_out(deletions), F.random_ranking(pairs, 0)):
        flip = F.deletion_measures(deletions, scores)["flip1"]
        assert not (flip & ~ceiling).any()


# ---------------------------------------------------------------------------------------------- rankings
@pytest.mark.parametrize("kind", ["born", "softmax", "poly", "poly-gelu"])
def test_every_ranking_ranks_every_slot(kind):
    model, pairs = random_model(kind), random_pairs(4)
    deletions = F.Deletions(model, pairs)
    found = F.rankings(model, deletions)
    assert tuple(found) == F.ranking_names(model) and (F.GATED in found) == (kind == "softmax")
    for scores in found.values():
        assert [len(v) for v in scores] == [len(e.ids) for e in pairs]
        assert all(np.isfinite(v).all() for v in scores)
    some = F.rankings(model, deletions, names=(F.ROLLOUT,))
    assert tuple(some) == (F.ROLLOUT,)
    with pytest.raises(ValueError, match="names: expected some of"):
        F.rankings(model, deletions, names=("magic",))


@pytest.mark.parametrize("kind", ["born", "softmax", "poly"])
def test_first_order_rankings_against_one_pair_at_a_time(kind):
    """The batch pads; here each pair is alone, and attention x gradient is a finite difference."""
    model, pairs = random_model(kind), random_pairs(6)
    found = F.rankings(model, F.Deletions(model, pairs), names=F.ranking_names(model)[-5:-1])
    extra = int(kind == "born")
    for i, e in enumerate(pairs):
        ids, sentence = torch.tensor([e.ids]), torch.tensor([e.sentence])
        x, trace = model.fields(ids, sentence).requires_grad_(), Trace()
        scores = model.scores(x, ids != 0, trace=trace)
        target = int(scores.argmax())
        (slope,) = torch.autograd.grad(scores[0, target], x)
        np.testing.assert_allclose(found[F.GRADIENT][i], (slope * x)[0].sum(-1).detach().numpy(), atol=1e-12)
        first, last = (a.detach()[0].mean(0).numpy() for a in trace.attention)
        np.testing.assert_allclose(found[F.ATTENTION][i], last.mean(0)[extra:], atol=1e-12)
        assert found[F.ATTENTION][i].sum() <= 1 + 1e-12
        eye = np.eye(len(first))
        rollout = ((last + eye) / 2 @ ((first + eye) / 2)).mean(0)
        assert rollout.sum() == pytest.approx(1)
        np.testing.assert_allclose(found[F.ROLLOUT][i], rollout[extra:], atol=1e-12)


def test_attention_gradient_against_gates():
    """For the softmax model a gate scales the weights of one key in both blocks; with the first block's held, that is A x dA."""
    model, e = random_model("softmax"), random_pairs(1)[0]
    found = F.rankings(model, F.Deletions(model, [e]), names=(F.ATTENTION_GRADIENT,))[F.ATTENTION_GRADIENT][0]
    ids, sentence = torch.tensor([e.ids]), torch.tensor([e.sentence])
    mask = ids != 0
    h = model.blocks[0](model.fields(ids, sentence), mask, None, None, None)
    target = int(model.scores(h, mask, start=1).argmax())

    def score(gates):
        return float(model.scores(h, mask, gates=gates[None], start=1)[0, target])

    one, eye = torch.ones(len(e.ids), dtype=torch.float64), torch.eye(len(e.ids), dtype=torch.float64) * 1e-6
    expected = [(score(one + d) - score(one - d)) / 2e-6 for d in eye]
    np.testing.assert_allclose(found, expected, atol=1e-7)


# ---------------------------------------------------------------------------------------------- agreement
def test_agreement_by_hand():
    e = encode("a red dog", "the dog runs .", VOCABULARY)
    scores = np.array([0.1, 0.9, 0.8, 99.0, 0.0, 0.7, -5.0, 99.0])  # <sep> and the full stop are never ranked
    assert F.agreement([e], [scores], [marks_of(e, 1)]) == [1.0]
    assert F.agreement([e], [scores], [marks_of(e, 0, 1, 6)]) == pytest.approx([1 / 3])
    assert F.top_is_marked([e], [scores], [marks_of(e, 1, 6)]) == [1.0]
    assert F.top_is_marked([e], [scores], [marks_of(e, 2)]) == [0.0]
    assert F.chance_agreement([e], [marks_of(e, 1, 2, 6)]) == [0.5]
    assert np.isnan(F.agreement([e], [scores], [marks_of(e)]))[0] and np.isnan(F.top_is_marked([e], [scores], [marks_of(e)]))[0]


def test_chance_is_what_random_orders_reach():
    pairs = random_pairs(40, longest=10)
    rng = np.random.default_rng(1)
    marks = [e.words & (rng.random(len(e.ids)) < 0.4) for e in pairs]
    mean = np.mean([np.nanmean(F.agreement(pairs, F.random_ranking(pairs, seed), marks)) for seed in range(300)])
    assert mean == pytest.approx(np.nanmean(F.chance_agreement(pairs, marks)), abs=0.01)


def test_random_rankings_are_fixed_by_their_seed():
    pairs = random_pairs(3)
    np.testing.assert_array_equal(np.concatenate(F.random_ranking(pairs, 1)), np.concatenate(F.random_ranking(pairs, 1)))
    assert not np.array_equal(np.concatenate(F.random_ranking(pairs, 1)), np.concatenate(F.random_ranking(pairs, 2)))


def test_scores_that_are_not_finite_are_refused():
    e = encode("a dog", "a cat", VOCABULARY)
    with pytest.raises(ValueError, match="scores: expected finite numbers"):
        F.agreement([e], [np.array([np.nan, 0, 0, 0, 0])], [marks_of(e, 1)])


# ---------------------------------------------------------------------------------------------- bootstrap
def test_bootstrap_intervals_cover():
    covered = 0
    for seed in range(200):
        mean, low, high = F.bootstrap(np.random.default_rng(seed).random(100) < 0.3, resamples=500)
        assert low <= mean <= high
        covered += low <= 0.3 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_bootstrap_is_over_pairs_not_seeds():
    values = np.random.default_rng(0).normal(size=400)
    single, tripled = F.bootstrap(values), F.bootstrap(np.stack([values] * 3))
    assert tripled == pytest.approx(single), "three equal seeds are no more pairs"
    width = (single[2] - single[1]) / 2
    assert width == pytest.approx(1.96 * values.std() / 20, rel=0.1)


def test_bootstrap_of_a_ratio_and_of_missing_pairs():
    ceiling = np.array([1, 1, 1, 0] * 50, float)
    flips = np.array([1, 0, 1, 0] * 50, float)
    mean, low, high = F.bootstrap(flips, ceiling)
    assert mean == pytest.approx(2 / 3) and low < mean < high
    assert F.bootstrap(ceiling, ceiling) == (1.0, 1.0, 1.0)
    assert F.bootstrap(np.array([[1.0, np.nan], [0.0, np.nan]]))[0] == 0.5
    assert np.isnan(F.bootstrap(np.array([np.nan]))).all()
    assert F.bootstrap(flips) == F.bootstrap(flips) != F.bootstrap(flips, seed=1)


def test_rank_correlation():
    words = np.array([0, 1, 3, 4])
    a = np.array([1.0, 2, 100, 3, 4])
    assert F.rank_correlation(words, a, 5 * a) == pytest.approx(1)
    assert F.rank_correlation(words, a, -a) == pytest.approx(-1)
    assert np.isnan(F.rank_correlation(words[:2], a, a))


# ---------------------------------------------------------------------------------------------- studies
def test_a_study_holds_what_the_tables_need():
    model, pairs = random_model("poly"), random_pairs(5)
    marks = [e.words & (np.arange(len(e.ids)) % 2 == 0) for e in pairs]
    found = F.study(model, pairs, marks, seed=0)
    assert set(found.measures) == {*F.ranking_names(model), F.RANDOM}
    for name, measures in found.measures.items():
        assert set(measures) == {"flip1", "aopc", "flip5_lowest", "agreement"}
        assert all(v.shape == (5,) for v in measures.values()), name
    np.testing.assert_array_equal(found.evidence[2].values, found.scores[F.EVIDENCE][2])


def test_hits_on_known_words():
    pairs = [Pair("a red dog", "a blue dog", 2, (((False, True, False), (False, True, False)),)), Pair("a dog", "a dog", 0)]
    hits, right, chance = F.top_word_hits(random_model("poly"), VOCABULARY, pairs)
    assert right.shape == (2,) and chance[0] == pytest.approx(2 / 6) and np.isnan(chance[1])
    assert all(v[0] in (0.0, 1.0) and np.isnan(v[1]) for v in hits.values())
