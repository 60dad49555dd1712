"""The ledger: every circuit that ran on a quantum device and what was counted, in one plain JSON file (paper Table 10).

The file holds `format`, `settings` (which device, how circuits were made) and `jobs`, one a line. A job has an `id`, a `name` and
its `circuits`; each has a `key` (of the amplitudes asked for), a `hash` (of the transpiled circuit) and `counts` [zeros, ones], or null
while the job has not been read. A circuit whose hash is there is not run again. Replaying needs no account and no qiskit.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import lzma
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from .training import atomic_write

FORMAT = 1
HEADER_LINES = 3  # format, settings and the opening of jobs


class LedgerError(ValueError):
    """A ledger that can't be read, or a job that does not belong into it; says which, what was expected and what came."""


class Ledger:
    """The jobs of one ledger file; `open_ledger` reads it, `append` writes. `jobs` are in the order of submission."""

    def __init__(self, path: Path, settings: dict, jobs: list[dict]):
        self.path, self.settings, self.jobs = path, settings, jobs
        self._lock = FileLock(path.with_name(f".{path.name}.lock.tmp"))

    def counts(self, keys: Sequence[str]) -> np.ndarray:
        """Counts (circuits, 2) of zeros and ones; raises LedgerError for circuits that have not run."""
        known = self.known()
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        if missing:
            raise LedgerError(
                f"{self.path.name}: {len(missing)} of {len(set(keys))} circuits are not in it (the first: {missing[0]}); "
                "a replay can only repeat what has run, give a device to run them"
            )
        return np.array([known[key] for key in keys], np.int64).reshape(-1, 2)

    def known(self) -> dict[str, list[int]]:
        """Counts by key of every circuit that has been read."""
        return {c["key"]: c["counts"] for job in self.jobs for c in job["circuits"] if c["counts"] is not None}

    def by_hash(self) -> dict[str, list[int]]:
        """Counts by hash of the transpiled circuit."""
        return {c["hash"]: c["counts"] for job in self.jobs for c in job["circuits"] if c["counts"] is not None}

    def texts(self, keys: Sequence[str]) -> list[str]:
        """The transpiled circuits (OpenQASM 2) of these keys."""
        by_hash = {text_hash(text): text for job in self.jobs for text in unpack(job["qasm"])}
        hashes = {c["key"]: c["hash"] for job in self.jobs for c in job["circuits"]}
        return [by_hash[hashes[key]] for key in keys]

    def unread(self) -> list[dict]:
        """Jobs that were submitted and whose counts have not been read."""
        return [job for job in self.jobs if any(c["counts"] is None for c in job["circuits"])]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the ledger for a run: another process that wants to write gets a LedgerError at once."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise LedgerError(
                f"{self.path.name}: another process is writing to it; wait for its end, or use another ledger"
            ) from error
        try:
            if self.path.exists():  # what others wrote before the lock was ours
                self.jobs = open_ledger(self.path, self.settings).jobs
            yield
        finally:
            self._lock.release()

    def append(self, job: dict) -> None:
        """Add a job, or replace the one with its id, and write the file in one step: a kill leaves the old file or the new one.

        Two processes that append take turns and lose nothing.
        """
        check_job(job, self.settings, self.path.name)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.acquire(timeout=60):
            jobs = open_ledger(self.path, self.settings).jobs if self.path.exists() else []
            place = next((i for i, other in enumerate(jobs) if other["id"] == job["id"]), len(jobs))
            jobs[place : place + 1] = [job]
            text = render(self.settings, jobs)
            atomic_write(self.path, lambda p: p.write_text(text, encoding="utf-8"))
            self.jobs = jobs

    def discard(self, job_id: str) -> None:
        """Take a job out: one that the device no longer knows."""
        with self._lock.acquire(timeout=60):
            self.jobs = [job for job in open_ledger(self.path, self.settings).jobs if job["id"] != job_id]
            text = render(self.settings, self.jobs)
            atomic_write(self.path, lambda p: p.write_text(text, encoding="utf-8"))


def open_ledger(path: Path, settings: dict | None = None) -> Ledger:
    """Read a ledger. With `settings` a missing file is a new ledger, and an existing one must have these settings.

    A file that was cut short is read as far as its jobs are complete: a warning says what is kept, and the damaged file stays beside it as
    NAME.cut. Raises LedgerError for other damage, another format, a job of another device, or settings that differ.
    """
    path = Path(path)
    if not path.exists():
        if settings is None:
            raise LedgerError(f"{path.name}: expected a ledger, there is no such file")
        return Ledger(path, settings, [])
    text = path.read_text(encoding="utf-8", errors="replace")
    content, cut = parse(text, path.name)
    if content.get("format") != FORMAT:
        raise LedgerError(
            f"{path.name}: expected ledger format {FORMAT}, got {content.get('format')!r} (written by another version)"
        )
    for job in content["jobs"]:
        check_job(job, content["settings"], path.name)
    for name in sorted(set(settings or ()) | set(content["settings"])) if settings is not None else ():
        here, there = settings.get(name), content["settings"].get(name)
        if here != there:
            raise LedgerError(
                f"{path.name}: expected {name} {here!r}, got {there!r}; results of two devices or versions do not mix, use another ledger"
            )
    if cut:
        spare = path.with_name(path.name + ".cut")
        if not spare.exists():
            spare.write_text(text, encoding="utf-8")
        kept = ", ".join(str(job["id"]) for job in content["jobs"]) or "none"
        warnings.warn(
            f"{path.name} is cut short; complete jobs that are kept: {kept}. What came after is lost and will run again",
            stacklevel=2,
        )
    return Ledger(path, content["settings"], content["jobs"])


def parse(text: str, name: str = "ledger") -> tuple[dict, bool]:
    """The content of a ledger's text and whether it was cut short (then the complete jobs are returned)."""
    try:
        content, cut = json.loads(text), False
    except json.JSONDecodeError:
        lines = text.splitlines()
        try:
            content = json.loads("\n".join(lines[:HEADER_LINES]) + "]}")
        except json.JSONDecodeError as error:
            raise LedgerError(
                f"{name}: cut before its first job or no ledger at all; nothing can be kept, delete the file"
            ) from error
        for line in lines[HEADER_LINES:]:
            try:
                content["jobs"].append(json.loads(line.removesuffix(",")))
            except json.JSONDecodeError:
                break
        cut = True
    if (
        not isinstance(content, dict)
        or not isinstance(content.get("settings"), dict)
        or not isinstance(content.get("jobs"), list)
    ):
        raise LedgerError(f"{name}: expected an object with format, settings and jobs, got {str(content)[:60]!r}")
    return content, cut


def render(settings: dict, jobs: Sequence[dict]) -> str:
    """A ledger as text: three header lines, then a line for each job."""
    lines = ",\n".join(json.dumps(job, ensure_ascii=False) for job in jobs)
    return f'{{"format": {FORMAT},\n"settings": {json.dumps(settings)},\n"jobs": [\n{lines}\n]}}\n'


def check_job(job: dict, settings: dict, name: str = "ledger") -> None:
    """Refuse a job that lacks something, ran on another device, or whose counts do not add up to the shots."""
    missing = {"id", "name", "backend", "circuits"} - set(job if isinstance(job, dict) else ())
    if missing:
        raise LedgerError(f"{name}: expected a job with id, name, backend and circuits; {sorted(missing)} missing")
    if job["backend"] != settings.get("backend"):
        raise LedgerError(
            f"{name}: expected jobs of backend {settings.get('backend')!r}, got job {job['id']} of {job['backend']!r}"
        )
    for c in job["circuits"]:
        if not {"key", "hash", "counts"} <= set(c):
            raise LedgerError(f"{name}: expected circuits with key, hash and counts, got {sorted(c)} in job {job['id']}")
        if c["counts"] is not None and (
            len(c["counts"]) != 2 or min(c["counts"]) < 0 or sum(c["counts"]) != settings.get("shots")
        ):
            raise LedgerError(
                f"{name}: expected two counts with sum {settings.get('shots')}, got {c['counts']} in job {job['id']}"
            )


def pack(texts: Sequence[str]) -> str:
    """Circuits' texts (OpenQASM 2) as one compressed string, about 1 kB a circuit."""
    return base64.b85encode(lzma.compress(json.dumps(list(texts)).encode())).decode()


def unpack(packed: str) -> list[str]:
    """The texts that `pack` was given."""
    return json.loads(lzma.decompress(base64.b85decode(packed)))


def text_hash(text: str) -> str:
    """The hash of a transpiled circuit's text: 32 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
