"""Several real processes: one decodes, all share; and what a kill leaves is nobody's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lightkit.data.cache import building
from lightkit.data.cache.keeping import Kept, kept_file
from lightkit.data.cache.layout import Layout, layout_of
from lightkit.data.cache.places import Place
from lightkit.images.preprocessing import resized
from lightkit.images.reading import read_rgb
from tests.data.cache.conftest import FindPhotos

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")]

_AT = 5  # the image at which something happens
_LONG_S = 60


class Other(NamedTuple):
    """A process that looks for the photos' file, tells what it does, and goes on when it is told to."""

    process: ForkProcess
    line: Connection

    def told(self) -> Any:
        assert self.line.poll(_LONG_S)
        return self.line.recv()

    def ended(self) -> int | None:
        self.process.join(_LONG_S)
        return self.process.exitcode


Start = Callable[..., Other]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


@pytest.fixture
def laid(find_photos: FindPhotos) -> Layout:
    return layout_of(find_photos(*[(12, 16)] * 40), 8)


@pytest.fixture
def start(folder: Path, laid: Layout) -> Iterator[Start]:
    started: list[Other] = []

    def begin(kind: str, happens: str = "nothing") -> Other:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_look, args=(laid, folder, kind, happens, there))
        started.append(Other(process, here))
        process.start()
        return started[-1]

    yield begin
    for other in started:
        other.process.kill()
        other.process.join()


def _look(laid: Layout, folder: Path, kind: str, happens: str, line: Connection) -> None:
    decode_one = building._decode_one

    def decode(layout: Layout, index: Any, slot: int, write: Any) -> None:
        if slot == _AT and happens == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if slot == _AT and happens == "paused":
            line.send("decoding")
            line.recv()
        decode_one(layout, index, slot, write)

    building._decode_one = decode
    kept = _kept(laid, folder, kind, waiting=lambda: line.send("waiting"))
    assert kept.file is not None
    line.send((kept.file.inode, kept.is_new))
    line.recv()


def _kept(laid: Layout, folder: Path, kind: str, *, waiting: Callable[[], None] = lambda: None) -> Kept:
    place = Place(folder, kind)  # type: ignore[arg-type]
    return kept_file(laid, [place], limit_bytes=None, lock_folder=folder.parent, waiting=waiting)


def was_there(laid: Layout, folder: Path, kind: str) -> bool:
    """Look for the file in this process; tell whether it was there, after comparing all its pixels."""
    kept = _kept(laid, folder, kind)
    assert kept.file is not None
    for slot, photo in enumerate(laid.photos):
        np.testing.assert_array_equal(kept.file.image(slot), np.asarray(resized(read_rgb(photo.path), 8)))
    return not kept.is_new


def test_of_two_one_decodes_and_both_share_what_goes_with_the_last(start: Start, folder: Path) -> None:
    one = start("memory", "paused")
    assert one.told() == "decoding"
    other = start("memory")
    assert other.told() == "waiting"
    one.line.send("go on")
    inode, is_new = one.told()
    assert is_new
    assert other.told() == (inode, False)
    assert [file.stat().st_ino for file in folder.iterdir()] == [inode]
    for process, left in ((one, 1), (other, 0)):
        process.line.send("end")
        assert process.ended() == 0
        assert len(list(folder.iterdir())) == left
    assert not list(folder.parent.glob("*.lock"))


def test_a_kill_while_decoding_leaves_nothing_that_is_taken_for_a_cache(
    start: Start, folder: Path, laid: Layout
) -> None:
    assert start("disk", "killed").ended() == -signal.SIGKILL
    assert [file.suffix for file in folder.iterdir()] == [building.UNFINISHED]
    assert not was_there(laid, folder, "disk")  # and the dead one's lock is free at once
    assert was_there(laid, folder, "disk")
    Place(folder, "disk").clean(keep=laid.file_name)
    assert [file.name for file in folder.iterdir()] == [laid.file_name]


def test_who_waits_for_one_that_is_killed_decodes_itself(start: Start, laid: Layout) -> None:
    killed = start("disk", "paused")
    assert killed.told() == "decoding"
    waiting = start("disk")
    assert waiting.told() == "waiting"
    killed.process.kill()
    assert waiting.told()[1]


def test_what_is_in_memory_after_a_kill_is_used_or_goes_at_the_next_start(
    start: Start, folder: Path, laid: Layout
) -> None:
    killed = start("memory")
    assert killed.told()[1]
    (folder / "unwanted.pixels").hardlink_to(folder / laid.file_name)
    Place(folder, "memory").clean(keep="other")
    assert len(list(folder.iterdir())) == 2  # both names are of a file in use
    killed.process.kill()
    killed.process.join()
    Place(folder, "memory").clean(keep=laid.file_name)
    assert [file.name for file in folder.iterdir()] == [laid.file_name]
    assert was_there(laid, folder, "memory")
    assert list(folder.iterdir()) == []


@pytest.mark.long
def test_a_program_that_ends_takes_its_memory_along(folder: Path, find_photos: FindPhotos) -> None:
    (photo,) = find_photos((12, 16))
    program = f"""
from pathlib import Path
from lightkit.data.cache.building import built
from lightkit.data.cache.layout import layout_of
from lightkit.data.photos import Photo
photo = Photo(Path({str(photo.path)!r}), 0, {photo.digest!r}, 12, 16, False)
file = built(layout_of([photo], 8), Path({str(folder)!r}), is_temporary=True)
print(file.path.exists())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200)
    assert ended.stdout == "True\n"
    assert list(folder.iterdir()) == []
