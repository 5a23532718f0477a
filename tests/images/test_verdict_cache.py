"""Verdicts are kept; whatever befalls their file, a wrong one is never given."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lightkit.images import verdict_cache as module
from lightkit.images.verdict_cache import Verdict, VerdictCache

DIGEST = "ab" * 32
VERDICT = Verdict(DIGEST, None, 3, 4, is_jpeg=True)
BAD = Verdict("cd" * 32, "Größe\nunknown \udcff", 0, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "verdicts.sqlite"


def test_what_is_put_is_got_by_the_next(path: Path) -> None:
    with VerdictCache(path, rules="1") as cache:
        cache.put(VERDICT)
        cache.put(BAD)
    with VerdictCache(path, rules="1") as cache:
        assert cache.get(DIGEST) == VERDICT
        assert cache.get(BAD.digest) == BAD
        assert cache.get("ef" * 32) is None


def test_other_rules_do_not_find_it_and_do_not_replace_it(path: Path) -> None:
    with VerdictCache(path, rules="1") as cache:
        cache.put(VERDICT)
    with VerdictCache(path, rules="2") as cache:
        assert cache.get(DIGEST) is None
        cache.put(Verdict(DIGEST, "other"))
    with VerdictCache(path, rules="1") as cache:
        assert cache.get(DIGEST) == VERDICT


@pytest.mark.parametrize("column", ["says", "seal"])
def test_a_row_that_was_changed_is_not_believed(path: Path, column: str) -> None:
    with VerdictCache(path, rules="1") as cache:
        cache.put(VERDICT)
    with sqlite3.connect(path) as file:
        file.execute(f"UPDATE verdicts SET {column} = '[\"bad\", 0, 0, false]'")
    file.close()
    with VerdictCache(path, rules="1") as cache:
        assert cache.get(DIGEST) is None


@pytest.mark.parametrize("columns", ["other TEXT", "key BLOB PRIMARY KEY, says TEXT, seal BLOB"])
@pytest.mark.parametrize("table", ["verdicts", "files"])
def test_another_table_of_the_name_is_replaced(path: Path, table: str, columns: str) -> None:
    with sqlite3.connect(path) as file:
        file.execute(f"CREATE TABLE {table} ({columns})")
    file.close()
    with VerdictCache(path, rules="1") as cache:
        cache.put(VERDICT)
    with VerdictCache(path, rules="1") as cache:
        assert cache.get(DIGEST) == VERDICT


def test_a_files_digest_is_that_of_its_last_state(path: Path) -> None:
    with VerdictCache(path, rules="1") as cache:
        cache.put_digest("/a\udcff", (1, 2**63), "older")
        cache.put_digest("/a\udcff", (1, 2), DIGEST)
    with VerdictCache(path, rules="other") as cache:
        assert cache.digest_of("/a\udcff", (1, 2)) == DIGEST
        assert cache.digest_of("/a\udcff", (1, 2**63)) is None
        assert cache.digest_of("/b", (1, 2)) is None


def test_a_digest_that_was_changed_is_not_believed(path: Path) -> None:
    with VerdictCache(path, rules="1") as cache:
        cache.put_digest("/a", (1, 2), DIGEST)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE files SET says = replace(says, 'ab', 'cd')")
    file.close()
    with VerdictCache(path, rules="1") as cache:
        assert cache.digest_of("/a", (1, 2)) is None


def test_what_is_not_asked_for_in_half_a_year_is_removed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, unused = Verdict("11" * 32, None, 1, 1), Verdict("22" * 32, None, 1, 1)

    def on(day: int, *asked: Verdict) -> list[bool]:
        monkeypatch.setattr(module, "_today", lambda: 20_000 + day)
        with VerdictCache(path, rules="1") as cache:
            return [cache.get(one.digest) == one and cache.digest_of(one.digest, (1,)) == "d" for one in asked]

    on(0)
    with VerdictCache(path, rules="1") as cache:
        for one in (used, unused):
            cache.put(one)
            cache.put_digest(one.digest, (1,), "d")
    assert on(100, used) == [True]
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM verdicts").fetchone() == (2,)
    file.close()
    on(200)
    assert on(201, used, unused) == [True, False]


def test_what_is_asked_for_each_day_is_not_written_each_day(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with VerdictCache(path, rules="1") as cache:
        cache.put(VERDICT)
    content, today = path.read_bytes(), module._today()
    monkeypatch.setattr(module, "_today", lambda: today + 20)
    with VerdictCache(path, rules="1") as cache:
        assert cache.get(DIGEST) == VERDICT
    assert path.read_bytes() == content


def test_while_another_process_holds_it_nothing_is_found_nor_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    with VerdictCache(path, rules="1") as cache:
        cache.put(VERDICT)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with VerdictCache(path, rules="1") as cache:
        assert cache.get(DIGEST) is None
        cache.put(BAD)
    holder.execute("ROLLBACK")
    holder.close()
    with VerdictCache(path, rules="1") as cache:
        assert cache.get(DIGEST) == VERDICT
        assert cache.get(BAD.digest) is None


def test_one_that_is_taken_while_it_is_open_only_costs_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    with VerdictCache(path, rules="1") as cache:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        cache.put(VERDICT)
    holder.close()
    with VerdictCache(path, rules="1") as cache:
        assert cache.get(DIGEST) is None


def test_many_threads_share_it(path: Path) -> None:
    found: list[bool] = []

    def work(start: int) -> None:
        for number in range(start, start + 300):
            verdict = Verdict(f"{number:064x}", None, number, 1)
            cache.put(verdict)
            found.append(cache.get(verdict.digest) in (verdict, None))

    with VerdictCache(path, rules="1") as cache:
        threads = [threading.Thread(target=work, args=(number * 300,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 1200
    with VerdictCache(path, rules="1") as cache:
        assert all(cache.get(f"{number:064x}") is not None for number in range(1200))


WRITER = """
import sys
from pathlib import Path
from lightkit.images.verdict_cache import Verdict, VerdictCache
first, last = map(int, sys.argv[2:])
with VerdictCache(Path(sys.argv[1]), rules="1") as cache:
    for number in range(first, last):
        cache.put(Verdict(f"{number:064x}", None, number, 1))
        if number % 2000 == 0:
            print(number, flush=True)
"""


def writer(path: Path, first: int, last: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(first), str(last)], stdout=subprocess.PIPE)


@pytest.mark.slow
def test_two_processes_write_at_once(path: Path) -> None:
    with writer(path, 0, 3000) as first, writer(path, 2000, 5000) as second:
        assert (first.wait(60), second.wait(60)) == (0, 0)
    with VerdictCache(path, rules="1") as cache:
        assert all(cache.get(f"{number:064x}") == Verdict(f"{number:064x}", None, number, 1) for number in range(5000))


@pytest.mark.slow
def test_a_kill_while_it_is_written_leaves_whole_verdicts(path: Path) -> None:
    with writer(path, 0, 10_000_000) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    with VerdictCache(path, rules="1") as cache:
        found = [cache.get(f"{number:064x}") for number in range(2000)]
        cache.put(VERDICT)
    assert all(verdict is not None and verdict.height == number for number, verdict in enumerate(found))
    with VerdictCache(path, rules="1") as cache:
        assert cache.get(DIGEST) == VERDICT
