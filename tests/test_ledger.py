"""The ledger: what is kept, what is refused, kills, two writers, replay."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from bornlib.corpus import ROOT
from bornlib.ledger import FORMAT, LedgerError, open_ledger, pack, parse, render, text_hash, unpack

SETTINGS = {"backend": "fake_kingston", "kind": "noise model", "shots": 100, "versions": {"qiskit": "2.6.2"}}


def job(name, keys=("a", "b"), backend="fake_kingston", counts=(60, 40)):
    circuits = [
        {"key": f"{name}-{k}", "hash": text_hash(f"{name}{k}"), "counts": None if counts is None else list(counts)} for k in keys
    ]
    return {"id": name, "name": f"job {name}", "backend": backend, "circuits": circuits}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some" / "ledger.json"


def filled(path, names="xyz"):
    ledger = open_ledger(path, SETTINGS)
    for name in names:
        ledger.append(job(name))
    return ledger


def test_what_is_appended_is_read_back_in_order(path):
    filled(path)
    ledger = open_ledger(path)
    assert [j["id"] for j in ledger.jobs] == list("xyz")
    assert ledger.settings == SETTINGS
    assert ledger.counts(["y-b", "x-a", "y-b"]).tolist() == [[60, 40]] * 3
    content = json.loads(path.read_text("utf-8"))  # plain JSON, whatever else
    assert content["format"] == FORMAT and len(content["jobs"]) == 3


def test_a_job_with_the_same_id_is_replaced_not_doubled(path):
    ledger = open_ledger(path, SETTINGS)
    ledger.append(job("x", counts=None))
    assert [j["id"] for j in ledger.unread()] == ["x"] and not ledger.known()
    ledger.append(job("x"))
    assert not ledger.unread() and len(open_ledger(path).jobs) == 1


def test_missing_circuits_are_named(path):
    ledger = filled(path, "x")
    with pytest.raises(LedgerError, match="2 of 3 circuits are not in it .the first: q."):
        ledger.counts(["x-a", "q", "r", "q"])


def test_missing_file_needs_settings(path):
    with pytest.raises(LedgerError, match="no such file"):
        open_ledger(path)
    assert open_ledger(path, SETTINGS).jobs == [] and not path.exists()


@pytest.mark.parametrize("share", [0.35, 0.5, 0.75, 0.95])
def test_cut_file_keeps_complete_jobs_and_says_which(path, share):
    filled(path)
    text = path.read_text("utf-8")
    path.write_text(text[: int(share * len(text))], "utf-8")
    with pytest.warns(UserWarning, match="cut short; complete jobs that are kept"):
        ledger = open_ledger(path)
    kept = [j["id"] for j in ledger.jobs]
    assert kept == list("xyz")[: len(kept)] and len(kept) == {0.35: 0, 0.5: 1, 0.75: 2, 0.95: 2}[share]
    assert path.with_name("ledger.json.cut").read_text("utf-8") == text[: int(share * len(text))], "the damaged file stays"
    with pytest.warns(UserWarning, match="cut short"):
        ledger.append(job("new"))
    assert [j["id"] for j in open_ledger(path).jobs] == [*kept, "new"], "healthy again, nothing kept was lost"


def test_cut_in_the_header_or_no_ledger_is_refused(path):
    filled(path, "x")
    for text in (path.read_text("utf-8")[:40], "", "PK\x03\x04", "[1, 2]", '{"format": 1, "settings": {}}'):
        path.write_text(text, "utf-8")
        with pytest.raises(LedgerError, match="nothing can be kept|expected an object"):
            open_ledger(path)


def test_other_format_is_refused(path):
    filled(path, "x")
    path.write_text(path.read_text("utf-8").replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'), "utf-8")
    with pytest.raises(LedgerError, match=f"expected ledger format {FORMAT}, got {FORMAT + 1}"):
        open_ledger(path)


def test_other_versions_or_device_are_refused(path):
    filled(path, "x")
    for changed in (
        {"versions": {"qiskit": "3.0.0"}},
        {"backend": "ibm_kingston"},
        {"shots": 200},
        {"kind": "device"},
        {"extra": 1},
    ):
        (name,) = changed
        with pytest.raises(LedgerError, match=f"expected {name} .* got .* use another ledger"):
            open_ledger(path, SETTINGS | changed)
    assert len(open_ledger(path, dict(SETTINGS)).jobs) == 1


def test_job_of_another_backend_is_refused_on_writing_and_on_reading(path):
    ledger = filled(path, "x")
    with pytest.raises(LedgerError, match="expected jobs of backend 'fake_kingston', got job y of 'ibm_fez'"):
        ledger.append(job("y", backend="ibm_fez"))
    path.write_text(render(SETTINGS, [job("x"), job("y", backend="ibm_fez")]), "utf-8")
    with pytest.raises(LedgerError, match="got job y of 'ibm_fez'"):
        open_ledger(path)


@pytest.mark.parametrize("counts", [(60, 41), (-1, 101), (100,)])
def test_counts_that_do_not_add_up_are_refused(path, counts):
    with pytest.raises(LedgerError, match="expected two counts with sum 100"):
        open_ledger(path, SETTINGS).append(job("x", counts=counts))


def test_jobs_without_their_fields_are_refused(path):
    ledger = open_ledger(path, SETTINGS)
    with pytest.raises(LedgerError, match="'circuits'.* missing"):
        ledger.append({"id": "x", "name": "x", "backend": "fake_kingston"})
    with pytest.raises(LedgerError, match="circuits with key, hash and counts"):
        ledger.append(job("x") | {"circuits": [{"key": "a"}]})
    assert not path.exists()


KILLED = """
    import os, signal
    from bornlib import ledger, training
    from tests.test_ledger import SETTINGS, job
    from pathlib import Path

    path = Path({path!r})
    book = ledger.open_ledger(path, SETTINGS)
    book.append(job("first"))
    def write_then_die(target, write):
        temporary = target.with_name("." + target.name + ".tmp")
        write(temporary)
        temporary.write_text(temporary.read_text()[:100])
        os.kill(os.getpid(), signal.SIGKILL)
    ledger.atomic_write = write_then_die
    book.append(job("second"))
"""


def test_a_kill_while_writing_leaves_the_old_ledger(path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED).format(path=str(path))], env=environment, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    ledger = open_ledger(path)  # no warning, no damage, and the dead process's lock is free
    assert [j["id"] for j in ledger.jobs] == ["first"]
    ledger.append(job("second"))
    assert [j["id"] for j in open_ledger(path).jobs] == ["first", "second"]


def _write_jobs(path, name, count):
    ledger = open_ledger(path, SETTINGS)
    for k in range(count):
        ledger.append(job(f"{name}{k}"))


def test_two_processes_that_append_lose_nothing(path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_jobs, args=(path, name, 10)) for name in "pq"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [w.exitcode for w in writers] == [0, 0]
    assert sorted(j["id"] for j in open_ledger(path).jobs) == sorted(f"{n}{k}" for n in "pq" for k in range(10))


def _hold(path, held, release):
    with open_ledger(path, SETTINGS).writing():
        held.set()
        release.wait(30)


def test_a_second_run_on_one_ledger_is_refused_at_once(path):
    filled(path, "x")
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(path, held, release))
    other.start()
    assert held.wait(30)
    start = time.monotonic()
    with pytest.raises(LedgerError, match="another process is writing to it"), open_ledger(path).writing():
        pytest.fail("two runs hold one ledger")
    assert time.monotonic() - start < 5
    release.set()
    other.join()
    with open_ledger(path).writing():  # free again
        pass


def test_a_run_sees_what_was_written_before_it_got_the_lock(path):
    early = open_ledger(path, SETTINGS)
    filled(path, "x")
    with early.writing():
        assert [j["id"] for j in early.jobs] == ["x"]


def test_packed_circuits_come_back_and_fit_into_json():
    texts = ['OPENQASM 2.0;\nrz(0.5) q[0];\n"quoted" é', "second"]
    packed = pack(texts)
    assert unpack(json.loads(json.dumps(packed))) == texts
    assert len(text_hash(texts[0])) == 32 and text_hash(texts[0]) != text_hash(texts[1])


def test_parse_tells_whole_from_cut():
    text = render(SETTINGS, [job("x"), job("y")])
    assert parse(text)[1] is False
    content, cut = parse(text[:-4])
    assert cut and [j["id"] for j in content["jobs"]] == ["x", "y"]
    assert np.all([c["counts"] == [60, 40] for j in content["jobs"] for c in j["circuits"]])
