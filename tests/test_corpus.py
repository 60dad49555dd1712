"""Corpus input: files, sentences, marks, tokens, truncation, batches and the download, good and bad."""

import csv
import hashlib
import http.server
import os
import random
import threading
import unicodedata

import numpy as np
import pytest
import torch

from bornlib import corpus
from bornlib.corpus import (
    FULL_TRAIN_SIZE,
    LABELS,
    MAX_TOKENS,
    PAD_ID,
    SEP,
    SEP_ID,
    UNK_ID,
    Batches,
    CorpusError,
    Pair,
    Vocabulary,
    collate,
    encode,
    encode_pairs,
    is_word,
    load_split,
    parse_marks,
    read_csv,
    tokenise,
)

WORDS = Vocabulary(["<pad>", "<unk>", "<sep>", *"a man dog runs in the park . don't sep pad".split()])


# ---------------------------------------------------------------------------------------------- tokens
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        (" \t\n", []),
        ("A dog runs.", ["a", "dog", "runs", "."]),
        ("... !?", [".", ".", ".", "!", "?"]),
        ("a\tdog\u00a0runs\u2003fast", ["a", "dog", "runs", "fast"]),
        ("don't", ["don't"]),
        ("do n't", ["don't"]),
        ("don\u2019t", ["don't"]),
        ("The man 's dogs' toy", ["the", "man's", "dogs", "'", "toy"]),
        ("rock 'n roll", ["rock", "'", "n", "roll"]),
        ("cafe\u0301", ["caf\u00e9"]),  # combining accent, composed by NFC
        ("q\u0308x", ["q\u0308x"]),  # a combining accent that NFC can't compose stays with its letter
        ("<sep> pad <pad> <unk>", ["<", "sep", ">", "pad", "<", "pad", ">", "<", "unk", ">"]),
        ("<script>a & b</script>", ["<", "script", ">", "a", "&", "b", "<", "/", "script", ">"]),
        ("well-known snow_man", ["well", "-", "known", "snow", "_", "man"]),
        ("2 boys, 10:30", ["2", "boys", ",", "10", ":", "30"]),
        ("\U0001f600\ufe0f", ["\U0001f600", "\ufe0f"]),
        ("\U0001f468\u200d\U0001f469", ["\U0001f468", "\u200d", "\U0001f469"]),
        ("\u4e00\u4e8c", ["\u4e00\u4e8c"]),
    ],
)
def test_tokenise(text, tokens):
    assert tokenise(text) == tokens


def test_tokens_of_composed_and_combining_spelling_are_the_same():
    assert (
        tokenise(unicodedata.normalize("NFD", "Déjà vu à Zürich"))
        == tokenise("déjà vu à zürich")
        == ["déjà", "vu", "à", "zürich"]
    )


def test_no_special_token_can_be_typed():
    text = " ".join((corpus.PAD, corpus.UNK, SEP, "<SEP>", "<sep >"))
    assert not {corpus.PAD, corpus.UNK, SEP} & set(tokenise(text))
    assert SEP_ID not in [WORDS.ids.get(t) for t in tokenise(text)]


def test_the_fast_path_for_ascii_gives_the_tokens_of_the_general_one():
    rng = random.Random(0)
    for _ in range(3000):
        text = "".join(rng.choice("ab Z0'_-.<>*\t&ndt") for _ in range(rng.randrange(25)))
        assert tokenise(text) == corpus._TOKEN.findall(corpus._CLITIC.sub(r"\1", text.lower())), text


def test_callers_can_change_their_tokens():
    tokenise("a shared sentence").append("changed")
    assert tokenise("a shared sentence") == ["a", "shared", "sentence"]


def test_words_are_tokens_with_a_letter_or_digit():
    assert [t for t in tokenise("It's 5 o'clock - & <sep> \U0001f600 é!") if is_word(t)] == ["it's", "5", "o'clock", "sep", "é"]


# ---------------------------------------------------------------------------------------------- marks
@pytest.mark.parametrize(
    ("marked", "sentence", "words"),
    [
        ("", "a dog runs", []),
        ("{}", "a dog runs", []),
        (" {} ", "a dog runs", []),
        ("a dog runs", "a dog runs", []),
        ("a *dog* runs", "a dog runs", [1]),
        ("*a* dog *runs*", "a dog runs", [0, 2]),
        ("a dog *runs.*", "a dog runs.", [2]),  # glued punctuation: the word is marked, the full stop is not
        ("a dog *runs*.", "a dog runs.", [2]),
        ('"*dog*", (*runs*)!', '"dog", (runs)!', [1, 5]),
        ("a *dog runs", "a *dog runs", []),  # unpaired: a literal
        ("a dog* runs", "a dog* runs", []),
        ("5 * 3 = *15*", "5 * 3 = 15", [4]),
        ("a * *dog*", "a * dog", [2]),
        ("** *** *.*", "** *** .", []),
        ("*&* *dog*", "& dog", [1]),
        ("*don't* go", "don't go", [0]),
        ("*do* n't go", "don't go", [0]),
        ("do *n't* go", "don't go", [0]),
        ("*don\u2019t* go", "do n't go", [0]),
        ("*black-haired* man", "black-haired man", [0, 2]),
        ("*DOG* runs", "Dog runs", [0]),
        ("the dog and *the* cat", "the dog and the cat", [3]),  # the second of two equal words
        ("  a\t*dog*   runs ", "a dog runs", [1]),
        ("dog *runs*", "a dog runs fast", [2]),  # a copy that lacks words
        ("and *the* cat", "the dog and the cat", [3]),
        ("a big *dog* runs", "a dog runs", [1]),  # a copy with a word too many
        ("*cats* sleep", "a dog runs", []),
        ("*cafe\u0301* bar", "café bar", [0]),
        ("*dog*", "", []),
    ],
)
def test_marks(marked, sentence, words):
    marks = parse_marks(marked, sentence)
    assert len(marks) == len(tokenise(sentence))
    assert [i for i, m in enumerate(marks) if m] == words


def test_marked_words_are_the_union_of_annotators_or_those_of_one():
    none = (False, False)
    pair = Pair("a dog", "a cat", 2, (((False, True), none), (none, (False, True)), ((True, False), none)))
    assert [m.tolist() for m in pair.marked_words()] == [[True, True], [False, True]]
    assert [m.tolist() for m in pair.marked_words(1)] == [[False, False], [False, True]]
    assert not any(m.any() for m in Pair("a dog", "a cat", 2).marked_words())


# ---------------------------------------------------------------------------------------------- files
HEADER = "pairID,gold_label,Sentence1,Sentence2,Sentence1_marked_1,Sentence2_marked_1"
ROW = "1,neutral,A dog runs .,A dog is happy .,{},A dog is *happy* ."


def write(folder, text, name="esnli_test.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_csv_with_either_newline_and_byte_order_mark(tmp_path, newline, bom):
    split = read_csv(write(tmp_path, bom + newline.join((HEADER, ROW, ""))))
    assert [(p.premise, p.hypothesis, p.label) for p in split.pairs] == [("A dog runs .", "A dog is happy .", 1)]
    assert [m.tolist() for m in split.pairs[0].marked_words()] == [[False] * 4, [False, False, False, True, False]]


def test_pairs_without_gold_label_are_dropped_and_counted(tmp_path):
    split = read_csv(write(tmp_path, "\n".join((HEADER, ROW, ROW.replace("neutral", "-"), ROW))))
    assert len(split) == 2
    assert split.dropped == {"no gold label": 1}


def test_explanations_stand_beside_the_pairs_that_are_kept(tmp_path):
    text = (
        "gold_label,Sentence1,Sentence2,Explanation_1",
        "neutral,a,b,first",
        "-,a,b,dropped",
        "neutral,a,b,",
        "neutral,a,c,last",
    )
    path = write(tmp_path, "\n".join(text))
    assert corpus.read_explanations(path) == ["first", "", "last"]
    assert len(read_csv(path)) == 3
    assert corpus.read_explanations(write(tmp_path, "\n".join((HEADER, ROW)))) == [""]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n".join((HEADER, ROW, ROW.replace("neutral", "maybe"))), "line 3: .*entailment.*got label 'maybe'"),
        ("\n".join((HEADER, ROW.replace("neutral", ""))), "got label ''"),
        ("\n".join((HEADER, "1,neutral,A dog runs .")), "too few fields"),
        ("gold_label,Sentence1\nneutral,A dog runs .", r"missing columns \['Sentence2'\]"),
        ("", "missing columns"),
    ],
)
def test_bad_csv_names_file_place_and_what_came(tmp_path, text, message):
    with pytest.raises(CorpusError, match=message) as caught:
        read_csv(write(tmp_path, text))
    assert "esnli_test.csv" in str(caught.value)


def test_csv_that_is_not_utf8(tmp_path):
    with pytest.raises(CorpusError, match="expected UTF-8 text, got byte 0xe9"):
        read_csv(write(tmp_path, "\n".join((HEADER, ROW.replace("happy", "café"))), encoding="latin-1"))


def test_sentences_that_kept_a_layer_of_csv_quotes_are_unwrapped(tmp_path):
    row = ['"A sign says ""go"" ."', '"Two" and "two"']
    path = tmp_path / "esnli_dev.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["gold_label", "Sentence1", "Sentence2"], ["neutral", *row]])
    assert read_csv(path).pairs[0].premise == 'A sign says "go" .'
    assert read_csv(path).pairs[0].hypothesis == '"Two" and "two"'


def test_train_takes_every_train_file_in_order(tmp_path):
    for name, label in (
        ("esnli_train_2.csv", "neutral"),
        ("esnli_train_1.csv", "contradiction"),
        ("esnli_train_extra.csv", "entailment"),
    ):
        write(tmp_path, "\n".join((HEADER, ROW.replace("neutral", label))), name)
    split = load_split("train", tmp_path)
    assert [LABELS[p.label] for p in split.pairs] == ["contradiction", "neutral", "entailment"]
    assert split.files == ("esnli_train_1.csv", "esnli_train_2.csv", "esnli_train_extra.csv")


def test_missing_split_and_unknown_name(tmp_path):
    with pytest.raises(CorpusError, match="no file for split 'dev'"):
        load_split("dev", tmp_path)
    with pytest.raises(ValueError, match="split: expected 'train', 'dev' or 'test', got 'tests'"):
        load_split("tests", tmp_path)


def test_search_order_of_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    monkeypatch.delenv("BORNLIB_DATA", raising=False)
    assert corpus.data_folder() is None
    with pytest.raises(CorpusError, match="set BORNLIB_DATA"):
        load_split("test")
    inside, outside = tmp_path / "data" / "esnli", tmp_path / "elsewhere" / "esnli"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
        for name in ("esnli_dev.csv", "esnli_test.csv"):
            write(folder, HEADER, name)
    assert corpus.data_folder() == inside
    monkeypatch.setenv("BORNLIB_DATA", str(outside))
    assert corpus.data_folder() == outside
    (outside / "esnli_dev.csv").unlink()
    assert corpus.data_folder() == inside


def test_breaking_nli_path_and_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    monkeypatch.setenv("BORNLIB_DATA", str(tmp_path / "esnli"))
    assert corpus.breaking_nli_path() is None
    folder = tmp_path / "breaking_nli"
    folder.mkdir()
    row = '{"sentence1": "A man holds a red cup.", "sentence2": "A man holds a blue cup.", "gold_label": "contradiction", "category": "colors"}\n'
    (folder / "breaking_nli.jsonl").write_text(row)
    ((pair, category),) = corpus.read_breaking_nli(corpus.breaking_nli_path())
    assert category == "colors"
    assert [np.flatnonzero(m).tolist() for m in pair.marked_words()] == [[4], [4]]


def test_example_pairs_are_balanced_and_marked_as_esnli_marks():
    examples = corpus.load_examples()
    assert len(examples) == 36
    assert len({p.premise for p in examples}) == 12
    assert all(text.endswith(".") for text in corpus.read_explanations(corpus.ROOT / "data" / "examples.csv"))
    assert [p.label for p in examples] == [0, 1, 2] * 12
    for pair in examples:
        premise, hypothesis = pair.marked_words()
        assert hypothesis.any()
        assert premise.any() == (LABELS[pair.label] != "neutral")
        assert len(encode(pair.premise, pair.hypothesis, WORDS).tokens) <= MAX_TOKENS


# ---------------------------------------------------------------------------------------------- vocabulary, encoding
def test_vocabulary_holds_words_seen_three_times_by_falling_count():
    pairs = [Pair("b b b a", "b a c", 0), Pair("d a", "c d e a", 0), Pair("d", "<sep>", 0)]
    assert Vocabulary.from_pairs(pairs).words == ["<pad>", "<unk>", "<sep>", "a", "b", "d"]
    assert "e" not in Vocabulary.from_pairs(pairs)
    with pytest.raises(ValueError, match="expected to begin with"):
        Vocabulary(["a", "b", "c"])


def test_encoding_of_a_pair_with_unknown_and_special_looking_words():
    e = encode("A zebra runs <sep>", "The dog .", WORDS)
    assert e.tokens == ["a", "zebra", "runs", "<", "sep", ">", SEP, "the", "dog", "."]
    assert [e.ids[i] for i in (1, 3, 5)] == [UNK_ID] * 3
    assert e.ids.count(SEP_ID) == 1
    assert e.ids[4] == WORDS.ids["sep"] > SEP_ID
    assert e.sentence == [0] * 6 + [1] * 4
    assert e.words.tolist() == [True, True, True, False, True, False, False, True, True, False]
    assert not e.known[1]
    assert e.known[6]


@pytest.mark.parametrize(
    ("premise", "hypothesis", "tokens"),
    [
        ("", "", [SEP]),
        ("", "a dog", [SEP, "a", "dog"]),
        ("a dog", " \t", ["a", "dog", SEP]),
        ("!?", "...", ["!", "?", SEP, ".", ".", "."]),
    ],
)
def test_empty_sentences_and_only_punctuation(premise, hypothesis, tokens):
    e = encode(premise, hypothesis, WORDS)
    assert e.tokens == tokens
    assert e.cut == (0, 0)
    assert PAD_ID not in e.ids


@pytest.mark.parametrize(
    ("n", "m", "kept"),
    [
        (40, 23, (40, 23)), (41, 23, (40, 23)), (100, 5, (58, 5)), (5, 100, (5, 58)), (63, 0, (63, 0)), (64, 0, (63, 0)),
        (0, 90, (0, 63)), (50, 50, (31, 32)), (51, 50, (31, 32)), (50, 53, (31, 32)), (1000, 1000, (31, 32)),
    ],
)  # fmt: skip
def test_truncation_takes_from_the_longer_sentence_and_is_reported(n, m, kept):
    e = encode(["a"] * n, ["dog"] * m, WORDS)
    assert len(e.ids) == len(e.tokens) == len(e.sentence) == sum(kept) + 1 <= MAX_TOKENS
    assert (e.tokens.count("a"), e.tokens.count("dog")) == kept
    assert e.cut == (n - kept[0], m - kept[1])


def test_truncation_cuts_at_the_end():
    e = encode([f"p{i}" for i in range(80)], ["h0", "h1"], WORDS)
    assert e.tokens == [f"p{i}" for i in range(61)] + [SEP, "h0", "h1"]


def test_encoding_many_pairs_is_encoding_each():
    pairs = [Pair("a man runs in the park .", h, 0) for h in ("a man runs .", "", "a zebra don't", "a dog " * 60)]
    assert encode_pairs(pairs, WORDS) == [encode(p.premise, p.hypothesis, WORDS) for p in pairs]
    together = encode_pairs(pairs, WORDS)
    together[0].tokens[0] = "changed"
    assert together[1].tokens[0] == "a"


def test_deletion_re_encodes_the_rest():
    e = encode("a dog runs", "the dog", WORDS)
    assert e.without([1, 4]) == encode(["a", "runs"], ["dog"], WORDS)
    with pytest.raises(ValueError, match="<sep>"):
        e.without([3])


# ---------------------------------------------------------------------------------------------- batches
def test_batches_of_no_pairs():
    batches = Batches([], [])
    assert len(batches) == 0
    assert batches.order(None) == batches.order(0) == []
    assert [t.shape for t in collate([])] == [torch.Size([0, 1])] * 2


def test_batches_deal_every_pair_once_and_alike_for_the_same_epoch():
    encoded = encode_pairs([Pair("a dog " * (i % 9), "runs", i % 3) for i in range(333)], WORDS)
    batches = Batches(encoded, [i % 3 for i in range(333)], 16)
    for order in (batches.order(None), batches.order(4, 1)):
        assert sorted(np.concatenate(order).tolist()) == list(range(333))
    assert len(batches.order(4, 1)) == len(batches)
    assert all((a == b).all() for a, b in zip(batches.order(4, 1), batches.order(4, 1), strict=True))
    assert [a.tolist() for a in batches.order(4, 1)] != [a.tolist() for a in batches.order(4, 2)]


def test_a_batch_holds_its_pairs_and_nothing_else():
    pairs = [Pair("", "", 0), Pair("a dog runs", "", 1), Pair("", "the dog", 2)]
    batches = Batches(encode_pairs(pairs, WORDS), [0, 1, 2])
    ids, sentence, labels = batches.take(np.array([2, 0, 1]))
    assert labels.tolist() == [2, 0, 1]
    assert ids.shape == sentence.shape == (3, 4)
    for row, field, pair in zip(ids.tolist(), sentence.tolist(), [pairs[2], pairs[0], pairs[1]], strict=True):
        e = encode(pair.premise, pair.hypothesis, WORDS)
        assert row == e.ids + [PAD_ID] * (4 - len(e.ids))
        assert field[: len(e.ids)] == e.sentence


# ---------------------------------------------------------------------------------------------- download
CONTENT = {f"esnli_{name}.csv": (HEADER + "\n" + (ROW + "\n") * n).encode() for name, n in (("dev", 3000), ("test", 500))}


def git_id(content):
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


FILES = {name: git_id(content) for name, content in CONTENT.items()}


class Server(http.server.ThreadingHTTPServer):
    """A file server with faults: `cut` answers break off half way, `ranges` False ignores Range, `wrong` changes a byte."""

    daemon_threads = True

    def __init__(self, cut=0, ranges=True, wrong=False):
        super().__init__(("127.0.0.1", 0), Handler)
        self.cut, self.ranges, self.wrong, self.asked = cut, ranges, wrong, []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def source(self):
        return f"http://127.0.0.1:{self.server_port}/"

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, name = self.server, self.path[1:]
        asked = self.headers.get("Range")
        server.asked.append((name, asked))
        if name not in CONTENT:
            return self.send_error(404)
        body = CONTENT[name]
        if server.wrong:
            body = b"?" + body[1:]
        start = int(asked[6:-1]) if asked and server.ranges else 0
        if start and start >= len(body):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        rest = body[start:]
        if server.cut:
            server.cut -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, *_):
        pass


def fetch(folder, server):
    return corpus.fetch(folder, progress=False, files=FILES, source=server.source)


def assert_complete(folder):
    assert {name: (folder / name).read_bytes() for name in FILES} == CONTENT
    assert sorted(os.listdir(folder)) == sorted(FILES)


def test_fetch_downloads_verifies_and_asks_no_second_time(tmp_path):
    with Server() as server:
        assert fetch(tmp_path / "new" / "folder", server) == tmp_path / "new" / "folder"
        assert_complete(tmp_path / "new" / "folder")
        fetch(tmp_path / "new" / "folder", server)
        assert server.asked == [(name, None) for name in FILES]


def test_fetch_goes_on_where_a_connection_broke(tmp_path):
    with Server(cut=2) as server:
        fetch(tmp_path, server)
        n = len(CONTENT["esnli_dev.csv"])
        assert [r for name, r in server.asked if name == "esnli_dev.csv"] == [
            None,
            f"bytes={n // 2}-",
            f"bytes={n // 2 + (n - n // 2) // 2}-",
        ]
    assert_complete(tmp_path)


def test_fetch_resumes_the_part_of_an_earlier_run(tmp_path):
    (tmp_path / "esnli_dev.csv.part").write_bytes(CONTENT["esnli_dev.csv"][:1000])
    with Server() as server:
        fetch(tmp_path, server)
        assert server.asked[0] == ("esnli_dev.csv", "bytes=1000-")
    assert_complete(tmp_path)


def test_fetch_finishes_a_part_that_is_already_complete(tmp_path):
    (tmp_path / "esnli_dev.csv.part").write_bytes(CONTENT["esnli_dev.csv"])
    with Server() as server:
        fetch(tmp_path, server)
    assert_complete(tmp_path)


def test_fetch_starts_over_where_the_server_ignores_range(tmp_path):
    (tmp_path / "esnli_dev.csv.part").write_bytes(b"x" * 1000)
    with Server(cut=1, ranges=False) as server:
        fetch(tmp_path, server)
    assert_complete(tmp_path)


def test_fetch_keeps_the_part_when_the_connection_never_holds(tmp_path):
    with Server(cut=1000) as server, pytest.raises(CorpusError, match="the connection broke 5 times; esnli_dev.csv.part is kept"):
        fetch(tmp_path, server)
    part = tmp_path / "esnli_dev.csv.part"
    assert CONTENT["esnli_dev.csv"].startswith(part.read_bytes())
    assert not (tmp_path / "esnli_dev.csv").exists()
    with Server() as server:
        fetch(tmp_path, server)
    assert_complete(tmp_path)


def test_fetch_refuses_wrong_bytes_and_keeps_them_as_a_part(tmp_path):
    with (
        Server(wrong=True) as server,
        pytest.raises(CorpusError, match=f"refused, expected blob id {FILES['esnli_dev.csv']}, got [0-9a-f]{{40}}"),
    ):
        fetch(tmp_path, server)
    assert os.listdir(tmp_path) == ["esnli_dev.csv.part"]
    with Server() as server, pytest.raises(CorpusError, match="delete it"):
        fetch(tmp_path, server)
    (tmp_path / "esnli_dev.csv.part").unlink()
    with Server() as server:
        fetch(tmp_path, server)
    assert_complete(tmp_path)


def test_a_truncated_download_is_refused_and_resumed(tmp_path):
    """A proxy that claims the short length: only the blob id shows it."""
    whole = CONTENT["esnli_dev.csv"]
    short = dict(CONTENT, **{"esnli_dev.csv": whole[:777]})
    with pytest.MonkeyPatch.context() as patch, Server() as server:
        patch.setitem(CONTENT, "esnli_dev.csv", short["esnli_dev.csv"])
        with pytest.raises(CorpusError, match="refused"):
            fetch(tmp_path, server)
    assert (tmp_path / "esnli_dev.csv.part").read_bytes() == whole[:777]
    with Server() as server:
        fetch(tmp_path, server)
        assert server.asked[0] == ("esnli_dev.csv", "bytes=777-")
    assert_complete(tmp_path)


def test_fetch_leaves_a_file_that_is_not_the_official_one_alone(tmp_path):
    write(tmp_path, "mine", "esnli_test.csv")
    with Server() as server, pytest.raises(CorpusError, match="not the official file"):
        fetch(tmp_path, server)
    assert (tmp_path / "esnli_test.csv").read_text() == "mine"


def test_fetch_without_network_is_one_line_that_says_what_to_do(tmp_path):
    with Server() as server:
        source = server.source
    with pytest.raises(CorpusError, match="can't download .*; check the network, or put the file into") as caught:
        corpus.fetch(tmp_path, progress=False, files=FILES, source=source)
    assert "\n" not in str(caught.value)


def test_fetch_of_a_file_the_server_lacks(tmp_path):
    with Server() as server, pytest.raises(CorpusError, match="Not Found"):
        corpus.fetch(tmp_path, progress=False, files={"esnli_none.csv": "0" * 40}, source=server.source)
    assert os.listdir(tmp_path) == []


def test_fetch_shows_progress(tmp_path, capsys):
    with Server() as server:
        corpus.fetch(tmp_path, files=FILES, source=server.source)
    assert "esnli_dev.csv" in capsys.readouterr().err


def test_verify_tells_official_other_and_missing(tmp_path):
    (tmp_path / "esnli_dev.csv").write_bytes(CONTENT["esnli_dev.csv"])
    assert corpus.verify(tmp_path, FILES) == {"esnli_dev.csv": "official", "esnli_test.csv": "missing"}
    (tmp_path / "esnli_dev.csv").write_bytes(CONTENT["esnli_dev.csv"][:-1])
    assert corpus.verify(tmp_path, FILES)["esnli_dev.csv"] == "other"


def test_status_counts_what_is_there(tmp_path):
    write(tmp_path, "\n".join((HEADER, ROW, ROW.replace("neutral", "-"))), "esnli_dev.csv")
    write(tmp_path, "\n".join((HEADER, ROW, ROW)), "esnli_train_mine.csv")
    status = corpus.status(tmp_path)
    assert status["pairs"] == {"train": 2, "dev": 1}
    assert status["dropped"] == {"train": {}, "dev": {"no gold label": 1}}
    assert status["extra"] == ["esnli_train_mine.csv"]
    assert status["files"]["esnli_dev.csv"] == "other"
    assert status["files"]["esnli_test.csv"] == "missing"
    assert corpus.status(tmp_path / "nowhere")["pairs"] == {}


# ---------------------------------------------------------------------------------------------- the real corpus
@pytest.mark.real
def test_official_dev_and_test_hold_what_the_paper_says(real):
    assert {n: s for n, s in corpus.verify(real).items() if "train" not in n} == {
        "esnli_dev.csv": "official",
        "esnli_test.csv": "official",
    }
    dev, test = load_split("dev", real), load_split("test", real)
    assert (len(dev), len(test)) == (9842, 9824)
    named = [" / ".join(map(" ".join, test.pairs[i].tokens)) for i in (3763, 3765)]
    assert named == ["men play hockey . / aliens play", "men play hockey . / men play"]
    shares = []
    for pair in test.pairs:
        words = [np.array([is_word(t) for t in side], bool) for side in pair.tokens]
        marked = pair.marked_words()
        assert not any((m & ~w).any() for m, w in zip(marked, words, strict=True))
        if any(m.any() for m in marked):
            shares.append(sum(m.sum() for m in marked) / sum(w.sum() for w in words))
    assert np.mean(shares) == pytest.approx(0.36, abs=0.005)


@pytest.mark.real
def test_neutral_pairs_are_marked_in_the_hypothesis_only(real):
    premises = [p.marked_words()[0].any() for p in load_split("test", real).pairs if LABELS[p.label] == "neutral"]
    assert len(premises) == 3219
    assert not any(premises)


@pytest.mark.real
def test_training_pairs_are_not_in_dev_or_test(real):
    train = load_split("train", real)
    assert 0 < len(train) <= FULL_TRAIN_SIZE
    key = lambda p: tuple(map(tuple, p.tokens))  # noqa: E731
    held_out = {key(p) for name in ("dev", "test") for p in load_split(name, real).pairs}
    assert not any(key(p) in held_out for p in train.pairs[::7])
