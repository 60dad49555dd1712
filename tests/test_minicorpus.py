"""The mini corpus: same on every machine, split cleanly, marked by construction, and not to be solved without relating the sentences."""

import hashlib
import random

import pytest

from bornlib import baselines, minicorpus
from bornlib.corpus import LABELS, Vocabulary, is_word, read_csv, tokenise

SPLITS = {name: minicorpus.load_split(name).pairs for name in ("train", "dev", "test")}
ALL = [pair for pairs in SPLITS.values() for pair in pairs]


def marked(pair):
    return [
        [t for t, m in zip(tokens, marks, strict=True) if m]
        for tokens, marks in zip(pair.tokens, pair.marked_words(), strict=True)
    ]


def test_sizes_and_balance():
    assert {name: len(pairs) for name, pairs in SPLITS.items()} == {"train": 12_000, "dev": 2_001, "test": 2_001}
    for pairs in SPLITS.values():
        assert [p.label for p in pairs] == [0, 1, 2] * (len(pairs) // 3)


def test_no_premise_is_in_two_splits_or_twice_in_one():
    premises = [p.premise for p in ALL]
    assert len(set(premises)) == len(premises) / 3
    assert all(p.premise != p.hypothesis for p in ALL)


def test_the_corpus_is_the_same_everywhere():
    text = "\n".join(f"{p.premise}\t{p.hypothesis}\t{p.label}\t{p.marks}" for p in ALL)
    assert hashlib.sha256(text.encode()).hexdigest() == "fc10a61de6ea16370cc79687b560545dc5478e9eff5ae90be89d8bb8d55d2e69"


def test_generation_ignores_the_global_generator():
    before = list(SPLITS["dev"])
    random.seed(99)
    minicorpus._splits.cache_clear()
    assert minicorpus.load_split("dev").pairs == before


def test_callers_get_lists_of_their_own():
    minicorpus.load_split("dev").pairs.clear()
    assert len(minicorpus.load_split("dev")) == 2_001


def test_unknown_split():
    with pytest.raises(ValueError, match=r"split: expected one of \('train', 'dev', 'test'\), got 'valid'"):
        minicorpus.load_split("valid")


def test_sentences_are_captions_whose_marks_fit_their_tokens():
    for pair in ALL:
        for sentence, marks in zip((pair.premise, pair.hypothesis), pair.marks[0], strict=True):
            tokens = tokenise(sentence)
            assert sentence[0].isupper()
            assert sentence.endswith(".")
            assert len(tokens) == len(marks) <= 31
            assert all(is_word(t) for t, m in zip(tokens, marks, strict=True) if m)


def test_every_pair_has_planted_words_and_neutral_ones_only_in_the_hypothesis():
    for pair in ALL:
        premise, hypothesis = marked(pair)
        assert hypothesis
        assert bool(premise) == (LABELS[pair.label] != "neutral")
        assert not set(hypothesis) & set(tokenise(pair.premise)), "a planted word is what the premise does not say"
        assert not set(premise) & set(hypothesis)


def implied_by():
    """More general word: the words that imply it, read from the grammar's tables."""
    tables = [minicorpus.COUNTS, minicorpus.TRAITS, minicorpus.CLOTHES, minicorpus.PLACES]
    for by_kind in (minicorpus.SUBJECTS, minicorpus.ACTIONS, minicorpus.EXTRAS):
        tables += by_kind.values()
    found = {}
    for value, general in ((v, g) for table in tables for v, generals in table.items() for g in generals):
        for specific, wide in zip(value.split("/"), general.split("/"), strict=True):  # singular, plural
            for word in set(wide.split()) - set(specific.split()) - minicorpus.FUNCTION_WORDS:
                found.setdefault(word, set()).update(set(specific.split()) - set(wide.split()))
    return found


def test_planted_words_decide():
    """Every word that is new in a hypothesis is implied by the premise, but for the planted ones of neutral and contradiction."""
    implied = implied_by()
    for pair in ALL:
        premise, hypothesis = map(set, pair.tokens)
        planted = set() if LABELS[pair.label] == "entailment" else set(marked(pair)[1])
        for word in hypothesis - premise - minicorpus.FUNCTION_WORDS:
            assert bool(implied.get(word, set()) & premise) == (word not in planted), (word, pair)


@pytest.mark.parametrize("label", [1, 2])
def test_planted_words_also_occur_unmarked_in_entailment_pairs(label):
    """No word of the hypothesis gives the label away by itself."""
    entailed = {
        t for p in SPLITS["train"] if p.label == 0 for t, m in zip(p.tokens[1], p.marked_words()[1], strict=True) if not m
    }
    assert {w for p in SPLITS["train"] if p.label == label for w in marked(p)[1]} <= entailed


def test_words_of_dev_and_test_are_known():
    vocabulary = Vocabulary.from_pairs(SPLITS["train"])
    assert 100 <= len(vocabulary) <= 500
    assert {t for p in SPLITS["dev"] + SPLITS["test"] for side in p.tokens for t in side} <= set(vocabulary.words)


def test_neither_the_hypothesis_nor_a_bag_of_words_decides():
    found = baselines.accuracies(SPLITS["train"], SPLITS["test"])
    assert found["majority"] == pytest.approx(1 / 3)
    assert found["hypothesis only"] < 0.55
    assert found["bag of words"] < 0.67


def test_csv_round_trip(tmp_path):
    for path, pairs in zip(minicorpus.write_csv(tmp_path), SPLITS.values(), strict=True):
        assert read_csv(path).pairs == pairs
