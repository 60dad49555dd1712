"""Baselines on pairs where the right answer is known."""

import itertools

import numpy as np
import pytest

from bornlib import baselines
from bornlib.corpus import Pair, Vocabulary

NOUNS = ("dog", "cat", "man", "girl")


def hypothesis_decides(n=60):
    return [Pair(NOUNS[i % 4], ("sleeps", "laughs", "runs")[i % 3], i % 3) for i in range(n)]


def relation_decides():
    """Same noun: entailment; another: contradiction. Each noun is alike on either side: no bag of words can tell."""
    return [Pair(a, b, 0 if a == b else 2) for a, b in itertools.product(NOUNS, NOUNS) for _ in range(1 + 2 * (a == b))]


def test_majority_answers_the_most_frequent_training_label():
    train = [Pair("a", "b", label) for label in (2, 2, 1, 0)]
    test = [Pair("a", "b", label) for label in (2, 1, 0, 0)]
    assert baselines.majority(train, test) == 0.25
    assert baselines.majority(test, test) == 0.5


def test_words_of_the_hypothesis_are_found():
    pairs = hypothesis_decides()
    found = baselines.accuracies(pairs, pairs)
    assert found == {"majority": 1 / 3, "hypothesis only": 1.0, "bag of words": 1.0}


def test_words_of_the_premise_are_seen_by_the_bag_of_words_only():
    pairs = [Pair(p.hypothesis, p.premise, p.label) for p in hypothesis_decides()]
    found = baselines.accuracies(pairs, pairs)
    assert found["bag of words"] == 1.0
    assert found["hypothesis only"] < 0.5


def test_a_relation_is_seen_by_none():
    pairs = relation_decides()
    assert baselines.bag_of_words(pairs, pairs) <= 0.75
    assert baselines.majority(pairs, pairs) == 0.5


def test_features_are_the_known_words_of_each_sentence():
    pairs = [Pair("a dog dog", "a zebra", 0), Pair("", "dog a", 1)]
    vocabulary = Vocabulary(["<pad>", "<unk>", "<sep>", "a", "dog"])
    assert baselines.word_features(pairs, vocabulary).toarray().tolist() == [[0, 0, 0, 1, 1, 0, 0, 0, 1, 0], [0] * 8 + [1, 1]]
    assert baselines.word_features(pairs, vocabulary, ("hypothesis",)).toarray().tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    assert baselines.word_features([], vocabulary).shape == (0, 10)
    with pytest.raises(ValueError, match="sentences: expected some of"):
        baselines.word_features(pairs, vocabulary, ("hypotheses",))


def test_the_same_seed_gives_the_same_accuracy():
    rng = np.random.default_rng(0)
    pairs = [
        Pair(" ".join(rng.choice(list("abcdefgh"), 4)), " ".join(rng.choice(list("abcdefgh"), 4)), int(rng.integers(3)))
        for _ in range(200)
    ]
    assert len({baselines.bag_of_words(pairs[:100], pairs[100:], seed=5) for _ in range(3)}) == 1
