"""The line of the user's own code at which a process stands.

In this process and in those that it forks.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import pytest

from lightkit.data.sampler import SampleKey
from lightkit.launch.watchdog import (
    Stack,
    capture_children,
    capture_threads,
    find_samples,
    register_in_forks,
)

PACKAGES = sysconfig.get_paths()["purelib"]
STANDARD = sysconfig.get_paths()["stdlib"]
MINE = FrameSummary("/home/me/mine.py", 37, "__getitem__")
MAIN = FrameSummary("/home/me/train.py", 5, "<module>")
TRAINER = FrameSummary(f"{PACKAGES}/pytorch_lightning/trainer/trainer.py", 600, "fit")
FETCHER = FrameSummary(f"{PACKAGES}/pytorch_lightning/loops/fetchers.py", 60, "__next__")
WORKER = FrameSummary(f"{PACKAGES}/torch/utils/data/_utils/worker.py", 300, "_worker_loop")
PIL = FrameSummary(f"{PACKAGES}/PIL/Image.py", 900, "load")
JSON = FrameSummary(f"{STANDARD}/json/decoder.py", 337, "decode")
OURS = FrameSummary(str(Path(__file__).parents[2] / "lightkit" / "data" / "photos.py"), 10, "read")
TORCH = FrameSummary(f"{PACKAGES}/torch/nn/modules/linear.py", 120, "forward")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([MAIN, TRAINER, FETCHER, MINE, PIL, JSON], MINE),
        ([MAIN, TRAINER, FETCHER, PIL, JSON], PIL),
        ([MAIN, TRAINER, FETCHER, OURS, JSON], OURS),
        ([MAIN, TRAINER, TORCH], None),
        ([MAIN, MINE, TRAINER, FETCHER, WORKER, JSON], None),
        ([MAIN, TRAINER, FETCHER, WORKER, MINE, TORCH], MINE),
        ([MAIN], MAIN),
        ([FrameSummary("<frozen importlib._bootstrap>", 1, "_load")], None),
        ([], None),
    ],
    ids=[
        "own",
        "package",
        "lightkit",
        "torch",
        "idle_worker",
        "worker",
        "no_trainer",
        "import",
        "none",
    ],
)
def test_the_place_is_the_innermost_line_of_the_users_own_code(
    lines: list[FrameSummary],
    expected: FrameSummary | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    place = (
        None if expected is None else f"{expected.filename}:{expected.lineno} in {expected.name}"
    )
    assert Stack("a thread", "", tuple(lines)).own_line == place


def test_a_place_is_reported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = FrameSummary(str(tmp_path / "src" / "mine.py"), 37, "__getitem__")
    assert Stack("a thread", "", [frame]).own_line == "src/mine.py:37 in __getitem__"


class Catalogue:
    """A data set that shows the stack on which it is asked for an item."""

    def __getitem__(self, item: Any) -> object:
        return find_samples(sys._getframe())


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([4, 7], ([4, 7], 7)),
        ([SampleKey(4, 0), SampleKey(7, 0)], ([4, 7], 7)),
        (["a", "b"], (None, None)),
    ],
    ids=["numbers", "keys", "texts"],
)
def test_the_samples_are_those_of_the_batch_that_is_loaded(
    asked: list[Any], expected: object
) -> None:
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    fetcher = _MapDatasetFetcher(
        Catalogue(), auto_collation=True, collate_fn=lambda items: items[-1], drop_last=False
    )
    assert fetcher.fetch(asked) == expected  # type: ignore[no-untyped-call]


def test_an_item_that_no_loader_asks_for_is_no_sample() -> None:
    assert Catalogue()[7] == (None, None)


def test_all_threads_are_shown_the_main_one_last() -> None:
    stop = threading.Event()
    idler = threading.Thread(target=stop.wait, name="idler")
    idler.start()
    try:
        stacks = capture_threads(idler.ident or 0)  # as if it were the main one
    finally:
        stop.set()
        idler.join()
    assert [stack.name for stack in stacks][-1] == "thread idler"
    assert "thread idler (most recent call last):" in stacks[-1].text
    assert "self._cond.wait" in stacks[-1].text or "wait" in stacks[-1].text


def sleeping(ready: Connection) -> None:
    ready.send(True)
    time.sleep(3600)  # where it sleeps


def stubborn(ready: Connection) -> None:
    """Never gets back to Python: its lock is waited for in native code, unended by signals."""
    lock = threading.Lock()
    lock.acquire()
    ready.send(True)
    lock.acquire()


@contextmanager
def forked(target: Any) -> Iterator[int]:
    """A process that was forked from this one, and is where it shall be."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=target, args=(theirs,), daemon=True
    )
    process.start()
    try:
        assert ours.recv()
        assert process.pid is not None
        while (
            Path(f"/proc/{process.pid}/stat")
            .read_text(encoding="utf-8")
            .rpartition(")")[2]
            .split()[0]
            != "S"
        ):
            time.sleep(0.01)
        yield process.pid
        assert process.is_alive(), "asking it for its stack has ended it"
    finally:
        process.kill()
        process.join()


@pytest.mark.skipif(sys.platform != "linux", reason="forks are safe on Linux only")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("target", "line"),
    [(sleeping, "time.sleep(3600)"), (stubborn, "lock.acquire()")],
    ids=["sleep", "lock"],
)
def test_a_forked_process_shows_where_it_stands_and_lives_on(
    target: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest_s = 60.0 if target is sleeping else 2.0  # the other's answer has no end
    monkeypatch.setattr("lightkit.launch.watchdog._ANSWER_S", longest_s)
    register_in_forks()
    with forked(target) as pid:
        (stack,) = (each for each in capture_children() if each.name.endswith(str(pid)))
        (again,) = (each for each in capture_children() if each.name.endswith(str(pid)))
    assert f"in {target.__name__}" in stack.text
    assert stack.frames == again.frames
    at = stack.frames[-1]
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert at.filename == __file__
    assert line in source[(at.lineno or 0) - 1]


def test_without_children_there_is_nothing_to_show() -> None:
    own = str(os.getpid())
    assert not [stack for stack in capture_children() if stack.name.endswith(f" {own}")]
    assert Stack("nobody", "").own_line is None
