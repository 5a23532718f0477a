"""What any process notes reaches the one that tells it, once; nothing is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightkit.data.bad_samples import Defects
from lightkit.images.image_index import Defect


@pytest.fixture(autouse=True)
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def named(defects: Sequence[Defect]) -> list[str]:
    return [defect.name for defect in defects]


def test_what_is_noted_is_taken_once() -> None:
    defects = Defects([Defect("scanned", "why")])
    assert defects.take_noted() == []
    defects.note(Defect("a b\n\udcff.jpg", "größe"))
    defects.note(Defect("a b\n\udcff.jpg", "another reason"))
    defects.note(Defect("b", "gone"))
    assert defects.take_noted() == [Defect("a b\n\udcff.jpg", "größe"), Defect("b", "gone")]
    defects.note(Defect("b", "gone"))
    defects.note(Defect("c", "gone"))
    assert defects.take_noted() == [Defect("c", "gone")]
    assert defects.found == [Defect("scanned", "why")]


def in_a_worker(defects: Defects, *names: str) -> None:
    """Note in a process that was forked, as a loader's workers do."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_note, args=(defects, names))
    process.start()
    process.join()
    assert process.exitcode == 0


def _note(defects: Defects, names: Sequence[str]) -> None:
    for name in names:
        defects.note(Defect(name, "gone"))


def test_without_a_note_there_is_no_file_and_afterwards_none_is_left(spools: Path) -> None:
    defects = Defects()
    assert named(defects.take_noted()) == []
    assert list(spools.iterdir()) == []
    in_a_worker(defects, "a")
    assert len(list(spools.iterdir())) == 1
    assert named(defects.take_noted()) == ["a"]
    del defects
    gc.collect()
    assert list(spools.iterdir()) == []


def test_a_pickled_copy_notes_for_the_first_one_and_leaves_its_file_alone(spools: Path) -> None:
    defects = Defects([Defect("scanned", "why")])
    copy = pickle.loads(pickle.dumps(defects))
    assert copy.found == defects.found
    copy.note(Defect("a", "gone"))
    del copy
    gc.collect()
    assert named(defects.take_noted()) == ["a"]


def test_a_line_that_a_kill_tore_spoils_no_other(spools: Path) -> None:
    defects = Defects()
    in_a_worker(defects, "a")
    (spool,) = spools.iterdir()
    with spool.open("a") as file:
        file.write('["torn')
    assert named(defects.take_noted()) == ["a"]
    in_a_worker(defects, "b", "c")
    assert named(defects.take_noted()) == ["b", "c"]


def test_what_the_worker_and_the_training_process_note_is_given_once() -> None:
    defects = Defects()
    in_a_worker(defects, "a", "b")
    defects.note(Defect("b", "gone"))
    assert sorted(named(defects.take_noted())) == ["a", "b"]
    in_a_worker(defects, "a", "b", "c")
    assert named(defects.take_noted()) == ["c"]


class Failing(Dataset[torch.Tensor]):
    """Notes each sample, and one that all workers meet."""

    def __init__(self, defects: Defects) -> None:
        self.defects = defects

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        self.defects.note(Defect(f"{index}", "gone"))
        self.defects.note(Defect("all", "gone"))
        return torch.zeros(1)


@pytest.mark.slow
def test_workers_notes_arrive_and_their_end_takes_none_away(spools: Path) -> None:
    defects = Defects()
    loader = DataLoader(Failing(defects), batch_size=2, num_workers=2)
    for _ in range(2):
        list(loader)
    assert sorted(named(defects.take_noted())) == ["0", "1", "2", "3", "4", "5", "all"]
    assert len(list(spools.iterdir())) == 1


def _unpickled(content: bytes) -> None:
    pickle.loads(content).note(Defect("a", "gone"))
    gc.collect()


@pytest.mark.slow
def test_a_copy_that_was_pickled_to_another_process_notes_for_the_first_one(spools: Path) -> None:
    defects = Defects()
    process = multiprocessing.get_context("fork").Process(
        target=_unpickled, args=(pickle.dumps(defects),)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert named(defects.take_noted()) == ["a"]


def _noting(defects: Defects, ready: multiprocessing.synchronize.Event) -> None:
    number = 0
    while True:
        defects.note(Defect(f"{number}", "gone"))
        number += 1
        if number == 200:
            ready.set()


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_notes_holds_nobody_up() -> None:
    defects = Defects()
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_noting, args=(defects, ready))
    process.start()
    ready.wait()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert named(defects.take_noted())[:200] == [str(number) for number in range(200)]
    defects.note(Defect("mine", "gone"))
    defects.note(Defect("mine too", "gone"))
    assert named(defects.take_noted())[-1] == "mine too"
