"""Baselines that can't relate the sentences: majority class, hypothesis only, bag of words (paper: Figure 3, right)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from .corpus import LABELS, UNK_ID, Pair, Vocabulary, tokenise

SENTENCES = ("premise", "hypothesis")


def majority(train: Sequence[Pair], test: Sequence[Pair]) -> float:
    """Accuracy on `test` of always answering the most frequent label of `train` (the first of `LABELS` on a tie)."""
    label = np.bincount(_labels(train), minlength=len(LABELS)).argmax()
    return float((_labels(test) == label).mean())


def word_features(pairs: Sequence[Pair], vocabulary: Vocabulary, sentences: Sequence[str] = SENTENCES) -> sp.csr_matrix:
    """Sparse 0/1 matrix (pairs, sentences x vocabulary): which words each of the sentences holds, a block a sentence.

    Unknown words and the order of words are ignored. `sentences` is a part of `("premise", "hypothesis")`.
    """
    wrong = set(sentences) - set(SENTENCES)
    if wrong or not sentences:
        raise ValueError(f"sentences: expected some of {SENTENCES}, got {tuple(sentences)}")
    columns, ends = [], [0]
    for pair in pairs:
        for block, sentence in enumerate(sentences):
            ids = set(vocabulary.lookup(tokenise(getattr(pair, sentence)))) - {UNK_ID}
            columns.extend(i + block * len(vocabulary) for i in sorted(ids))
        ends.append(len(columns))
    data = np.ones(len(columns), np.float32)
    return sp.csr_matrix((data, np.array(columns, np.int32), np.array(ends)), (len(pairs), len(sentences) * len(vocabulary)))


def bag_of_words(
    train: Sequence[Pair],
    test: Sequence[Pair],
    sentences: Sequence[str] = SENTENCES,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
    epochs: int = 10,
) -> float:
    """Test accuracy of logistic regression on the words of the given sentences, each sentence with its own weights.

    Averaged stochastic gradient descent, one classifier a label; deterministic by `seed`. With
    `sentences=("hypothesis",)` this is the hypothesis-only baseline. `vocabulary` defaults to the training pairs' own.
    """
    from sklearn.linear_model import SGDClassifier

    vocabulary = vocabulary or Vocabulary.from_pairs(list(train))
    model = SGDClassifier(loss="log_loss", alpha=1e-6, average=True, max_iter=epochs, tol=None, random_state=seed)
    model.fit(word_features(train, vocabulary, sentences), _labels(train))
    return float(model.score(word_features(test, vocabulary, sentences), _labels(test)))


def accuracies(train: Sequence[Pair], test: Sequence[Pair], seed: int = 0) -> dict[str, float]:
    """Test accuracy of every baseline of Figure 3: `majority`, `hypothesis only`, `bag of words`."""
    vocabulary = Vocabulary.from_pairs(list(train))
    return {
        "majority": majority(train, test),
        "hypothesis only": bag_of_words(train, test, ("hypothesis",), vocabulary, seed),
        "bag of words": bag_of_words(train, test, SENTENCES, vocabulary, seed),
    }


def _labels(pairs: Sequence[Pair]) -> np.ndarray:
    return np.array([pair.label for pair in pairs], np.int64)
