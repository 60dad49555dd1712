"""The e-SNLI corpus: files, sentences, marks, tokens, vocabulary and batches (paper: Figure 3, Table 9)."""

from __future__ import annotations

import csv
import difflib
import functools
import gc
import hashlib
import http.client
import itertools
import json
import os
import re
import unicodedata
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

LABELS = ("entailment", "neutral", "contradiction")
MAX_TOKENS = 64  # paper Table 9
MIN_COUNT = 3  # paper Table 9: words seen at least 3 times
FULL_TRAIN_SIZE = 549_367  # paper Table 9
PAD, UNK, SEP = "<pad>", "<unk>", "<sep>"  # never produced by `tokenise`
PAD_ID, UNK_ID, SEP_ID = 0, 1, 2

ROOT = Path(__file__).resolve().parent.parent


# ---------------------------------------------------------------------------------------------- pairs
@dataclass(slots=True)
class Pair:
    """One premise and hypothesis.

    `label` indexes `LABELS`. `marks` holds one entry an annotator: two tuples of booleans, one
    value per token of the premise and of the hypothesis. Pairs without annotation have no entry.
    """

    premise: str
    hypothesis: str
    label: int
    marks: tuple = ()
    source: str = ""

    @property
    def tokens(self) -> tuple[list[str], list[str]]:
        return tokenise(self.premise), tokenise(self.hypothesis)

    def marked_words(self, annotator: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Booleans per token of premise and hypothesis: marked by one annotator, or by any (the default)."""
        premise, hypothesis = self.tokens
        out = np.zeros(len(premise), bool), np.zeros(len(hypothesis), bool)
        chosen = self.marks if annotator is None else self.marks[annotator : annotator + 1]
        for marks in chosen:
            for side in (0, 1):
                out[side][: len(marks[side])] |= np.asarray(marks[side], bool)
        return out


@dataclass
class Split:
    """Pairs of one file set, in file order, and what was left out: `dropped` counts rows by reason."""

    pairs: list[Pair]
    dropped: Counter = field(default_factory=Counter)
    files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.pairs)


# ---------------------------------------------------------------------------------------------- tokens
_CLITIC = re.compile(r"(?<=\w) +(n't|'(?:s|re|ve|ll|d|m))(?!\w)")
_TOKEN = re.compile(r"(?:[^\W_][\u0300-\u036f]*)+(?:'(?:[^\W_][\u0300-\u036f]*)+)*|\S")
_ASCII_TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*|\S")  # the same on lower-case ASCII, three times as fast


def normalise(text: str) -> str:
    """Unicode NFC, lower case, one kind of apostrophe; split-off clitics ("do n't", "man 's") are rejoined."""
    if text.isascii():
        text = text.lower()
    else:
        text = unicodedata.normalize("NFC", text).lower().replace("\u2019", "'").replace("\u2018", "'")
    return _CLITIC.sub(r"\1", text) if "'" in text else text


def tokenise(text: str) -> list[str]:
    """Words (inner apostrophes kept) and single other characters, lower case: "Don't!" gives ["don't", "!"].

    Special tokens can't be typed: "<sep>" gives "<", "sep", ">".
    """
    return _tokenise(text).copy()


@functools.lru_cache(maxsize=1 << 16)
def _tokenise(text: str) -> list[str]:
    text = normalise(text)
    return (_ASCII_TOKEN if text.isascii() else _TOKEN).findall(text)


_APOSTROPHE, _BARE_CLITIC = re.compile("['\u2018\u2019]"), re.compile(r"n't|'(?:s|re|ve|ll|d|m)")


def is_word(token: str) -> bool:
    """True where a token holds a letter or digit: the words that are ranked, marked and deleted."""
    return any(c.isalnum() for c in token)


def parse_marks(marked: str, sentence: str) -> tuple[bool, ...]:
    """Booleans per token of `sentence` from an annotator's `*marked*` copy of it.

    A space-separated piece that starts and ends with `*` is marked; punctuation glued around the
    stars is stripped; an unpaired `*` is a literal; an empty copy or `{}` marks nothing.
    """
    tokens = _tokenise(sentence)
    out = [False] * len(tokens)
    if "*" not in marked:
        return tuple(out)
    copy, starred = [], []
    for piece in _rejoined_pieces(marked):
        inside = _starred(piece)
        for token in _tokenise(piece if inside is None else inside):
            copy.append(token)
            starred.append(inside is not None and is_word(token))
    if copy == tokens:
        return tuple(starred)
    for i, j, n in difflib.SequenceMatcher(a=tokens, b=copy, autojunk=False).get_matching_blocks():
        out[i : i + n] = starred[j : j + n]
    return tuple(out)


def _rejoined_pieces(marked: str) -> list[str]:
    """Space-separated pieces of a marked sentence, with split-off clitics glued back to their word."""
    pieces: list[str] = []
    for piece in marked.split():
        if pieces and _APOSTROPHE.search(piece) and _BARE_CLITIC.fullmatch(normalise(piece.replace("*", ""))):
            either = _starred(piece) is not None or _starred(pieces[-1]) is not None
            word = pieces.pop().replace("*", "") + piece.replace("*", "")
            pieces.append(f"*{word}*" if either else word)
        else:
            pieces.append(piece)
    return pieces


def _starred(piece: str) -> str | None:
    """The inside of `*inside*`, glued outer punctuation allowed ("(*dog*)," gives "dog"), else None."""
    match = re.fullmatch(r"[^\w*]*\*(.*\w.*)\*[^\w*]*", piece, re.DOTALL) if piece.count("*") > 1 else None
    return match.group(1).replace("*", " ") if match else None


# ---------------------------------------------------------------------------------------------- files
class CorpusError(ValueError):
    """A corpus file that can't be read; says which file and row, what was expected and what came."""


# git blob ids (sha1 of "blob <size>\0<bytes>") of the official files, to verify a download
COMMIT = "7b585a3f077fdea899780eb0473940522ae44a2e"
SOURCE = f"https://raw.githubusercontent.com/OanaMariaCamburu/e-SNLI/{COMMIT}/dataset/"
BLOB_IDS = {
    "esnli_train_1.csv": "04b098c83c88500a68bf4979fdecd5e796898891",
    "esnli_train_2.csv": "1288666e01ecc3ec391d64f11a4d24a6591c229d",
    "esnli_dev.csv": "4ce63116003f2ca8ddbf12035cebb9d019a0cf46",
    "esnli_test.csv": "58e3400341dd20296dedb7a539aa51dcb8750fef",
}


def blob_id(path: Path) -> str:
    """The git blob id of a file."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as stream:
        for chunk in iter(lambda: stream.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def verify(folder: Path | None = None, files: dict[str, str] = BLOB_IDS) -> dict[str, str]:
    """State of each official file in a folder (the one in use by default): `official`, `other` or `missing`."""
    folder = _folder(folder)
    paths = {name: folder / name for name in files}
    return {
        name: "missing" if not path.is_file() else "official" if blob_id(path) == files[name] else "other"
        for name, path in paths.items()
    }


def status(folder: Path | None = None) -> dict:
    """Where the corpus is and what is there: `folder`, `files` (as `verify`), `extra` training files, and per split that
    can be read `pairs` and `dropped` (rows by reason). Training pairs are to be read against `FULL_TRAIN_SIZE`.
    """
    folder = _folder(folder)
    present = sorted(p.name for p in folder.glob("esnli_*.csv"))
    splits = {
        name: load_split(name, folder) for name in ("train", "dev", "test") if any(f.startswith(f"esnli_{name}") for f in present)
    }
    return {
        "folder": folder,
        "files": verify(folder),
        "extra": [name for name in present if name not in BLOB_IDS],
        "pairs": {name: len(split) for name, split in splits.items()},
        "dropped": {name: dict(split.dropped) for name, split in splits.items()},
    }


def _folder(folder: Path | None) -> Path:
    """The folder given, else the one with the data, else where a download would go."""
    if folder is not None:
        return Path(folder)
    return data_folder() or Path(os.environ.get("BORNLIB_DATA") or ROOT / "data" / "esnli")


def fetch(folder: Path | None = None, progress: bool = True, files: dict[str, str] = BLOB_IDS, source: str = SOURCE) -> Path:
    """Download the official files that are missing into a folder (by default `data/esnli/`) and return it.

    A file grows as NAME.part, is resumed from there after an interruption, and gets its name only
    when its git blob id is right. Raises CorpusError in one line: no network, a connection that
    keeps breaking (the part is kept), a wrong blob id (the part is kept, never used), or a file of
    that name that is not the official one (it is left alone).
    """
    folder = ROOT / "data" / "esnli" if folder is None else Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, state in verify(folder, files).items():
        if state == "other":
            raise CorpusError(
                f"{folder / name} is there but is not the official file (blob id {blob_id(folder / name)}): move it away first"
            )
        if state == "missing":
            _download(source + name, folder / name, files[name], progress)
    return folder


def _download(url: str, path: Path, expected: str, progress: bool, attempts: int = 5) -> None:
    part = path.with_name(path.name + ".part")
    for _ in range(attempts):
        try:
            complete = _receive(url, part, progress)
        except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
            reason = getattr(error, "reason", None) or error
            have = f"; {part.name} is kept and resumed next time" if part.exists() else ""
            raise CorpusError(
                f"can't download {url}: {reason}; check the network, or put the file into {path.parent}{have}"
            ) from error
        if complete:
            break
    else:
        raise CorpusError(
            f"can't download {url}: the connection broke {attempts} times; {part.name} is kept and resumed next time"
        )
    got = blob_id(part)
    if got != expected:
        raise CorpusError(
            f"{part}: refused, expected blob id {expected}, got {got}; it is kept, delete it to download the file anew"
        )
    part.replace(path)


def _receive(url: str, part: Path, progress: bool) -> bool:
    """Append what is missing of a download to `part`; False where the connection broke before the end."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing is left to send; the blob id will tell
            return True
        raise
    with response:
        if response.status != 206:  # the server sends the whole file: start over
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        bar = tqdm(total=total, initial=start, desc=part.stem, unit="B", unit_scale=True, disable=not progress)
        with bar, part.open("r+b" if start else "wb") as stream:
            stream.seek(start)
            for chunk in iter(lambda: response.read(1 << 16), b""):
                stream.write(chunk)
                bar.update(len(chunk))
    return total is None or part.stat().st_size >= total


def data_folder() -> Path | None:
    """The folder with e-SNLI's files: `$BORNLIB_DATA`, else `data/esnli/`; None where neither has dev and test."""
    candidates = [Path(os.environ["BORNLIB_DATA"])] if os.environ.get("BORNLIB_DATA") else []
    for folder in (*candidates, ROOT / "data" / "esnli"):
        if (folder / "esnli_dev.csv").is_file() and (folder / "esnli_test.csv").is_file():
            return folder
    return None


def load_split(name: str, folder: Path | None = None) -> Split:
    """Read `train`, `dev` or `test` in file order. Rows with gold label `-` are dropped and counted.

    `train` takes every `esnli_train*.csv` in the folder. Raises CorpusError for a missing file or
    column, or a label outside `LABELS`.
    """
    if name not in ("train", "dev", "test"):
        raise ValueError(f"split: expected 'train', 'dev' or 'test', got {name!r}")
    folder = data_folder() if folder is None else Path(folder)
    if folder is None:
        raise CorpusError("e-SNLI not found: set BORNLIB_DATA to its folder or run `python -m bornlib data fetch`")
    files = sorted(folder.glob("esnli_train*.csv")) if name == "train" else [folder / f"esnli_{name}.csv"]
    if not files or not files[0].is_file():
        raise CorpusError(f"no file for split {name!r} in {folder}: expected esnli_{name}*.csv")
    split = Split([], files=tuple(f.name for f in files))
    for path in files:
        part = read_csv(path)
        split.pairs += part.pairs
        split.dropped += part.dropped
    return split


def read_csv(path: Path) -> Split:
    """Read one CSV in e-SNLI's schema (gold_label, Sentence1, Sentence2, optional marks of up to 3 annotators)."""
    split = Split([], files=(Path(path).name,))
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            _read_rows(csv.DictReader(stream), path, split)
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: expected UTF-8 text, got byte {error.object[error.start]:#04x}") from error
    except csv.Error as error:
        raise CorpusError(f"{path}: not a readable CSV file ({error})") from error
    return split


def _read_rows(reader: csv.DictReader, path: Path, split: Split) -> None:
    missing = {"gold_label", "Sentence1", "Sentence2"} - set(reader.fieldnames or ())
    if missing:
        raise CorpusError(f"{path}: missing columns {sorted(missing)}; it has {reader.fieldnames}")
    annotators = [
        k for k in (1, 2, 3) if f"Sentence1_marked_{k}" in reader.fieldnames and f"Sentence2_marked_{k}" in reader.fieldnames
    ]
    for row in reader:
        label = row["gold_label"]
        if label == "-":
            split.dropped["no gold label"] += 1
            continue
        if label not in LABELS or row["Sentence1"] is None or row["Sentence2"] is None:
            raise CorpusError(
                f"{path}, line {reader.line_num}: expected one of {LABELS} and two sentences, got label {label!r}"
                + (" and too few fields" if row["Sentence2"] is None else "")
            )
        premise, hypothesis = _unwrap(row["Sentence1"]), _unwrap(row["Sentence2"])
        marks = tuple(
            (
                parse_marks(row[f"Sentence1_marked_{k}"] or "", premise),
                parse_marks(row[f"Sentence2_marked_{k}"] or "", hypothesis),
            )
            for k in annotators
        )
        split.pairs.append(Pair(premise, hypothesis, LABELS.index(label), marks, row.get("source") or ""))


def read_explanations(path: Path) -> list[str]:
    """The first annotator's written explanation of each pair that `read_csv` keeps, in its order; empty where there is none."""
    with open(path, encoding="utf-8-sig", newline="") as stream:
        return [row.get("Explanation_1") or "" for row in csv.DictReader(stream) if row["gold_label"] != "-"]


def _unwrap(sentence: str) -> str:
    '''Undo one layer of CSV quoting that some collections left in the text: "say ""hi""" becomes say "hi".'''
    if len(sentence) > 2 and sentence[0] == sentence[-1] == '"':
        inner = sentence[1:-1].replace('""', "\0")
        if '"' not in inner:
            return inner.replace("\0", '"')
    return sentence


def load_examples() -> list[Pair]:
    """The 36 pairs written for this project, 12 premises with one hypothesis a label; marks and explanation by the authors."""
    return read_csv(ROOT / "data" / "examples.csv").pairs


def breaking_nli_path() -> Path | None:
    """Breaking-NLI's file: `breaking_nli/breaking_nli.jsonl` beside `$BORNLIB_DATA` or in `data/`; None where it is not there."""
    places = [Path(os.environ["BORNLIB_DATA"]).parent] if os.environ.get("BORNLIB_DATA") else []
    for place in (*places, ROOT / "data"):
        path = place / "breaking_nli" / "breaking_nli.jsonl"
        if path.is_file():
            return path
    return None


def read_breaking_nli(path: Path) -> list[tuple[Pair, str]]:
    """Breaking-NLI pairs with their category; the swapped words are marked (they differ between the sentences)."""
    out = []
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            row = json.loads(line)
            premise, hypothesis = row["sentence1"], row["sentence2"]
            a, b = tokenise(premise), tokenise(hypothesis)
            marks = [False] * len(a), [False] * len(b)
            for tag, i0, i1, j0, j1 in difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes():
                if tag != "equal":
                    marks[0][i0:i1] = [True] * (i1 - i0)
                    marks[1][j0:j1] = [True] * (j1 - j0)
            pair = Pair(premise, hypothesis, LABELS.index(row["gold_label"]), ((tuple(marks[0]), tuple(marks[1])),))
            out.append((pair, row["category"]))
    return out


# ---------------------------------------------------------------------------------------------- vocabulary
class Vocabulary:
    """Words to ids: 0 `<pad>`, 1 `<unk>`, 2 `<sep>`, then words by falling count (ties by spelling)."""

    def __init__(self, words: list[str]):
        if list(words[:3]) != [PAD, UNK, SEP]:
            raise ValueError(f"words: expected to begin with {[PAD, UNK, SEP]}, got {list(words[:3])}")
        self.words = list(words)
        self.ids = {w: i for i, w in enumerate(self.words)}

    @classmethod
    def from_pairs(cls, pairs: list[Pair], min_count: int = MIN_COUNT) -> Vocabulary:
        sentences = itertools.chain.from_iterable((pair.premise, pair.hypothesis) for pair in pairs)
        counts = Counter(itertools.chain.from_iterable(map(_tokenise, sentences)))
        kept = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
        return cls([PAD, UNK, SEP, *kept])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.ids

    def lookup(self, tokens: list[str]) -> list[int]:
        """One id a token; 1 (`<unk>`) for words that are not in the vocabulary."""
        get = self.ids.get
        return [get(token, UNK_ID) for token in tokens]


@dataclass(slots=True)
class Encoded:
    """One pair as slots: `tokens` (premise, `<sep>`, hypothesis), `ids`, `sentence` (0 premise, 1 the rest).

    `cut` counts the tokens that truncation removed from (premise, hypothesis).
    """

    tokens: list[str]
    ids: list[int]
    sentence: list[int]
    cut: tuple[int, int] = (0, 0)

    @property
    def words(self) -> np.ndarray:
        """Booleans per slot: a word that may be ranked and deleted (not `<sep>`, not punctuation)."""
        return np.array([t != SEP and is_word(t) for t in self.tokens], bool)

    @property
    def known(self) -> np.ndarray:
        return np.array([i != UNK_ID for i in self.ids], bool)

    def without(self, drop) -> Encoded:
        """The pair with the slots in `drop` removed and re-encoded: later positions shift."""
        gone = {int(i) for i in drop}
        if any(self.ids[i] == SEP_ID for i in gone):
            raise ValueError("drop: <sep> is no word and can't be deleted")
        keep = [i for i in range(len(self.ids)) if i not in gone]
        pick = lambda values: [values[i] for i in keep]  # noqa: E731
        return Encoded(pick(self.tokens), pick(self.ids), pick(self.sentence), self.cut)


def encode(premise: str | list[str], hypothesis: str | list[str], vocabulary: Vocabulary) -> Encoded:
    """Tokenise and encode a pair: premise, `<sep>`, hypothesis, at most 64 tokens.

    Truncation takes from the end of the longer sentence and is reported in `cut`.
    """
    a = tokenise(premise) if isinstance(premise, str) else list(premise)
    b = tokenise(hypothesis) if isinstance(hypothesis, str) else list(hypothesis)
    return _join(a, vocabulary.lookup(a), b, vocabulary.lookup(b))


def _join(a: list[str], a_ids: list[int], b: list[str], b_ids: list[int]) -> Encoded:
    n, m = len(a), len(b)
    excess = n + m + 1 - MAX_TOKENS
    while excess > 0:
        longer = max(n, m)
        step = min(excess, max(1, abs(n - m)))
        n, m = (n - step, m) if n == longer else (n, m - step)
        excess -= step
    cut = (len(a) - n, len(b) - m)
    return Encoded([*a[:n], SEP, *b[:m]], [*a_ids[:n], SEP_ID, *b_ids[:m]], [0] * n + [1] * (m + 1), cut)


def encode_pairs(pairs: list[Pair], vocabulary: Vocabulary) -> list[Encoded]:
    """Every pair encoded, in order; a premise that repeats is tokenised once."""
    known: dict[str, tuple[list[str], list[int]]] = {}

    def look(sentence: str) -> tuple[list[str], list[int]]:
        if sentence not in known:
            tokens = _tokenise(sentence)
            known[sentence] = tokens, vocabulary.lookup(tokens)
        return known[sentence]

    collecting = gc.isenabled()
    gc.disable()  # a million new lists make the garbage collector walk over all of them again and again
    try:
        return [_join(*look(p.premise), *look(p.hypothesis)) for p in pairs]
    finally:
        if collecting:
            gc.enable()


# ---------------------------------------------------------------------------------------------- batches
def collate(encoded: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """`ids` and `sentence`, both int64 (pairs, slots), padded with 0; the models know padding by id 0."""
    length = max(1, max((len(e.ids) for e in encoded), default=1))
    ids = np.zeros((len(encoded), length), np.int64)
    sentence = np.zeros((len(encoded), length), np.int64)
    for i, e in enumerate(encoded):
        ids[i, : len(e.ids)] = e.ids
        sentence[i, : len(e.ids)] = e.sentence
    return torch.from_numpy(ids), torch.from_numpy(sentence)


class Batches:
    """Encoded pairs held as arrays and dealt in length-bucketed batches (little padding, shuffled).

    Batches of one epoch depend on (seed, epoch) alone, so a resumed run deals the same ones.
    """

    def __init__(self, encoded: list[Encoded], labels: list[int], batch_size: int = 64):
        self.ids, self.sentence = (t.to(torch.int32) for t in collate(encoded))
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self.lengths = np.array([len(e.ids) for e in encoded])
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def order(self, seed: int | None, epoch: int = 0) -> list[np.ndarray]:
        """Index arrays, one a batch; `seed=None` sorts by length alone (for evaluation)."""
        n, size = len(self.labels), self.batch_size
        if seed is None:
            index = np.argsort(self.lengths, kind="stable")
            return [index[i : i + size] for i in range(0, n, size)]
        rng = np.random.default_rng([seed, epoch])
        index = rng.permutation(n)
        pool = size * 64
        batches = []
        for start in range(0, n, pool):
            part = index[start : start + pool]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            batches += [part[i : i + size] for i in range(0, len(part), size)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def take(self, index: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`ids`, `sentence` (pairs, slots) and `labels` (pairs,) of one batch, cut to its longest pair."""
        length = int(self.lengths[index].max())
        rows = torch.from_numpy(index)
        return self.ids[rows, :length].long(), self.sentence[rows, :length].long(), self.labels[rows]
