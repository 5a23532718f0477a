"""One builder at a time, and no file goes while somebody uses it."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from lightkit.data.cache.locks import is_gone, only_one, own, remove_after_last_use, remove_unused, use


@pytest.fixture
def held(tmp_path: Path) -> tuple[Path, int, int]:
    """A file that was opened twice."""
    path = tmp_path / "a.pixels"
    path.write_bytes(b"pixels")
    return path, os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)


def test_a_second_one_waits_and_the_lock_leaves_nothing(tmp_path: Path) -> None:
    path, order, waits = tmp_path / "a.lock", [], threading.Event()

    def second() -> None:
        with only_one(path, waiting=waits.set):
            order.append("second")

    with only_one(path, waiting=pytest.fail):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(timeout=60)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_a_used_file_stays_until_it_is_closed(held: tuple[Path, int, int]) -> None:
    path, one, other = held
    use(one)
    use(other)
    os.close(one)
    assert not remove_unused(path)
    os.close(other)
    assert remove_unused(path)
    assert not path.exists()


def test_a_file_that_is_written_stays(held: tuple[Path, int, int]) -> None:
    path, one, other = held
    own(one)
    assert not remove_unused(path)
    os.close(one)
    os.close(other)
    assert remove_unused(path)


def test_the_last_user_removes_it(held: tuple[Path, int, int]) -> None:
    path, one, other = held
    use(one)
    use(other)
    remove_after_last_use(path, one)
    assert path.exists()
    os.close(one)
    remove_after_last_use(path, other)
    assert not path.exists()
    assert is_gone(other)
    os.close(other)


def test_the_last_user_leaves_another_file_of_that_name(held: tuple[Path, int, int]) -> None:
    path, one, other = held
    use(one)
    os.close(other)
    (path.parent / "new").write_bytes(b"new")
    (path.parent / "new").replace(path)
    remove_after_last_use(path, one)
    assert path.read_bytes() == b"new"
    os.close(one)


def test_without_locks_everybody_goes_on_and_only_old_files_go(
    held: tuple[Path, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, one, _ = held

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    use(one)
    with only_one(path.with_suffix(".lock"), waiting=pytest.fail):
        assert not remove_unused(path)
    os.utime(path, (0, 0))
    assert remove_unused(path)


@pytest.mark.parametrize("found", ["a link", "a folder", "no folder to make it in"])
def test_where_the_file_of_a_lock_cannot_be_opened_everybody_goes_on(found: str, tmp_path: Path) -> None:
    lock = tmp_path / "here" / "lock"
    if found != "no folder to make it in":
        lock.parent.mkdir()
        lock.symlink_to(tmp_path / "elsewhere") if found == "a link" else lock.mkdir()
    with only_one(lock, waiting=pytest.fail):
        pass
    assert lock.is_symlink() or not lock.is_file()
    assert not (tmp_path / "elsewhere").exists()
