"""Checkpoints that a thread puts in place while training goes on."""

from __future__ import annotations

import argparse
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch import serialization

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO, checkpoint_io
from lightkit.errors import CheckpointError
from lightkit.runs import disk


class Gate:
    """A writer whose thread waits, and goes on where a test says so, or once somebody waits for it."""

    def __init__(self) -> None:
        self.writer = Waited(self.open)
        self.writer.begin()
        self._bars = list[threading.Event]()
        self.shut()

    def shut(self) -> None:
        self._bars.append(threading.Event())
        self.writer.put(self._bars[-1].wait)

    def open(self) -> None:
        for bar in self._bars:
            bar.set()


class Waited(runs.Writer):
    def __init__(self, opens: Callable[[], None]) -> None:
        super().__init__()
        self._opens = opens

    def wait(self) -> None:
        self._opens()
        super().wait()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()
    gate.writer.end()


def content(step: int) -> dict[str, Any]:
    return {"state_dict": {"weight": torch.full((30,), float(step))}, "epoch": 0, "global_step": step}


def step_of(path: Path) -> int:
    assert runs.verify(path)
    saved = torch.load(path, weights_only=True)
    assert saved["state_dict"]["weight"].unique().tolist() == [saved["global_step"]]
    return int(saved["global_step"])


def asides(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*.aside"))


def test_what_is_saved_is_as_it_was_and_comes_into_place_later(gate: Gate, tmp_path: Path) -> None:
    path, told = tmp_path / "last.ckpt", list[str]()
    saver = VerifiedCheckpointIO(
        writer=gate.writer,
        on_saved=lambda path, facts: told.append(f"{facts} in {threading.current_thread().name}"),
        on_taken=lambda: told.append("taken"),
    )
    checkpoint = content(1)
    saver.save_checkpoint(checkpoint, path)
    checkpoint["state_dict"]["weight"].fill_(2.0)  # as the next step does
    assert told == ["taken"]
    assert (path.exists(), len(asides(tmp_path))) == (False, 1)
    gate.open()
    gate.writer.drain()
    assert step_of(path) == 1
    assert told[1:] == ["{'epoch': 0, 'global_step': 1} in lightkit-writer"]
    assert asides(tmp_path) == []


def test_of_one_path_a_second_checkpoint_waits_for_the_first(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, path = VerifiedCheckpointIO(writer=gate.writer), tmp_path / "last.ckpt"
    in_place, save = list[int | None](), torch.save

    def saves(checkpoint: object, file: BinaryIO) -> None:
        in_place.append(step_of(path) if path.exists() else None)
        gate.shut()
        save(checkpoint, file)

    monkeypatch.setattr(torch, "save", saves)
    gate.open()
    for step in range(4):
        saver.save_checkpoint(content(step), path)
    gate.writer.drain()
    assert in_place == [None, 0, 1, 2]
    assert (step_of(path), step_of(path.with_name("last-1.ckpt"))) == (3, 2)


def test_who_loads_or_removes_a_checkpoint_waits_for_it(gate: Gate, tmp_path: Path) -> None:
    saver = VerifiedCheckpointIO(writer=gate.writer)
    whole = {**content(1), "pytorch-lightning_version": "2.6.6"}
    for action in (saver.load_checkpoint, saver.remove_checkpoint):
        saver.save_checkpoint(dict(whole), tmp_path / "a.ckpt")
        action(tmp_path / "a.ckpt")
        gate.shut()
    assert sorted(tmp_path.iterdir()) == []


def damage(folder: Path) -> None:
    (aside,) = asides(folder)
    with aside.open("r+b") as file:
        file.seek(-400, os.SEEK_END)
        file.write(b"\xff" * 300)


def put_in_the_way(folder: Path) -> None:
    for name in ("last.ckpt", "last.ckpt.sha256"):
        (folder / name).unlink()
    (folder / "last.ckpt" / "something").mkdir(parents=True)


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (damage, r"last\.ckpt cannot be written: .*read back as it was written.* The one before it, if any, is unt"),
        (put_in_the_way, r"last\.ckpt cannot be written: .*Is a directory.*Free space or change the folder's perm"),
    ],
    ids=["damaged", "in_the_way"],
)
def test_what_cannot_be_put_in_place_is_raised_and_nothing_later_is(
    gate: Gate, tmp_path: Path, happens: Any, says: str
) -> None:
    told: list[str] = []
    saver = VerifiedCheckpointIO(writer=gate.writer, on_saved=lambda path, _: told.append(path.name))
    gate.open()
    saver.save_checkpoint(content(1), tmp_path / "last.ckpt")
    gate.writer.drain()
    gate.shut()
    saver.save_checkpoint(content(2), tmp_path / "last.ckpt")
    happens(tmp_path)
    saver.save_checkpoint(content(2), tmp_path / "best.ckpt")
    gate.open()
    with pytest.raises(CheckpointError, match=says):
        gate.writer.drain()
    assert told == ["last.ckpt"]
    assert not (tmp_path / "best.ckpt").exists()
    assert asides(tmp_path) == []
    if happens is damage:
        assert step_of(tmp_path / "last.ckpt") == 1


def test_a_full_disk_that_shows_late_ends_the_next_checkpoint_before_it_is_written(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = VerifiedCheckpointIO(writer=gate.writer)
    saver.save_checkpoint(content(1), tmp_path / "last.ckpt")

    def fsync(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    done = threading.Event()
    gate.writer.put(done.set)
    gate.open()
    done.wait()
    for _ in range(2):  # who has caught the first learns it from the second
        with pytest.raises(CheckpointError, match=r"last\.ckpt cannot be written: \[Errno 28\] No space left on"):
            saver.save_checkpoint(content(2), tmp_path / "best.ckpt")
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_room_beside_those_before_it_a_checkpoint_waits_for_their_places(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = VerifiedCheckpointIO(writer=gate.writer)
    monkeypatch.setattr(disk, "free_bytes", lambda _: 10 if asides(tmp_path) else 10**9)
    monkeypatch.setattr(checkpoint_io, "free_bytes", lambda _: 10**9)
    saver.save_checkpoint(content(1), tmp_path / "best.ckpt")
    saver.save_checkpoint(content(1), tmp_path / "last.ckpt")
    gate.writer.drain()
    assert (step_of(tmp_path / "best.ckpt"), step_of(tmp_path / "last.ckpt")) == (1, 1)


def test_a_checkpoint_without_room_is_written_again_also_where_those_before_it_are_in_place_by_then(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, save, full = VerifiedCheckpointIO(writer=gate.writer), torch.save, list[OSError]()

    def saves(checkpoint: object, file: BinaryIO) -> None:
        if Path(file.name).name.startswith(".last.ckpt.") and not full:
            gate.writer.drain()
            full.append(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))
            raise full[0]
        save(checkpoint, file)

    monkeypatch.setattr(torch, "save", saves)
    saver.save_checkpoint(content(1), tmp_path / "best.ckpt")
    saver.save_checkpoint(content(1), tmp_path / "last.ckpt")
    gate.writer.drain()
    assert (step_of(tmp_path / "best.ckpt"), step_of(tmp_path / "last.ckpt"), len(full)) == (1, 1, 1)
    full.clear()
    with pytest.raises(CheckpointError, match=r"last\.ckpt cannot be written: .*Disk quota exceeded"):
        saver.save_checkpoint(content(2), tmp_path / "last.ckpt")


def test_classes_that_need_trust_are_told_once(gate: Gate, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saver = VerifiedCheckpointIO(writer=gate.writer)
    before = serialization.get_safe_globals()
    gate.open()
    for step in range(2):
        kept = {"kept": threading.Event, "place": tmp_path, "values": argparse.Namespace(a=[1])}
        saver.save_checkpoint({**content(step), **kept}, tmp_path / f"{step}.ckpt")
    gate.writer.drain()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path / '0.ckpt'} holds threading.Event beside tensors")
    assert serialization.get_safe_globals() == before
