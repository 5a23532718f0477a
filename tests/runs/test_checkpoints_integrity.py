from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.runs import checkpoints, files

HERE = Path(__file__).parents[2]


def _save(path: Path, content: bytes, *, previous: Path | None = None) -> Path:
    def write(aside: Path) -> str:
        aside.write_bytes(content)
        return hashlib.sha256(content).hexdigest()

    runs.write_aside(path, write, previous=previous)
    return path


def _is_whole(path: Path) -> bool:
    return path.is_file() and runs.sidecar(path).is_file() and runs.find_fault(path) is None


def _dated(path: Path, when: int) -> Path:
    os.utime(path, (when, when))
    return path


def test_a_written_file_verifies_and_sha256sum_agrees(tmp_path: Path) -> None:
    path = _save(tmp_path / "new" / "last.ckpt", b"weights")
    assert runs.digest(path) == hashlib.sha256(b"weights").hexdigest()
    assert runs.sidecar(path).read_text() == f"{runs.digest(path)}  last.ckpt\n"
    assert _is_whole(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["last.ckpt", "last.ckpt.sha256"]


def test_a_replaced_file_verifies(tmp_path: Path) -> None:
    path = _save(_save(tmp_path / "last.ckpt", b"old"), b"new")
    assert path.read_bytes() == b"new"
    assert _is_whole(path)
    assert runs.sidecar(path).read_text().split() == [runs.digest(path), "last.ckpt"]


@pytest.mark.parametrize(
    "content",
    [b"weight", b"", b"weightz", b"weights!"],
    ids=["truncated", "empty", "altered", "longer"],
)
def test_a_changed_file_does_not_verify(content: bytes, tmp_path: Path) -> None:
    path = _save(tmp_path / "last.ckpt", b"weights")
    path.write_bytes(content)
    assert not _is_whole(path)


def test_a_file_that_cannot_be_read_back_replaces_nothing(tmp_path: Path) -> None:
    path = _save(tmp_path / "last.ckpt", b"old")

    def write(aside: Path) -> str:
        aside.write_bytes(b"new")
        return hashlib.sha256(b"now").hexdigest()

    with pytest.raises(OSError, match="does not read back as it was written"):
        runs.write_aside(path, write)
    assert path.read_bytes() == b"old"
    assert _is_whole(path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_writer_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        runs.write_aside(tmp_path / "last.ckpt", lambda aside: "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["before the rename", "after the rename"])
def test_a_death_between_the_two_renames_leaves_a_file_that_verifies(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _save(tmp_path / "last.ckpt", b"old")
    replace, dies = Path.replace, "last.ckpt" if step == "before the rename" else "last.ckpt.sha256"
    promises: list[int] = []

    def die(self: Path, target: Path) -> Path:
        promises.append(0) if target.name == "last.ckpt.sha256" else None
        if target.name == dies and (dies == "last.ckpt" or len(promises) == 2):
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            _save(path, b"new")
    assert path.read_bytes() == (b"old" if step == "before the rename" else b"new")
    assert _is_whole(path)
    assert len(runs.sidecar(path).read_text().splitlines()) == 2
    _save(path, b"newer")
    assert _is_whole(path)
    assert len(runs.sidecar(path).read_text().splitlines()) == 1


def test_a_loss_of_power_at_any_moment_leaves_files_that_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a flush a name may be on the disk or not, in any order, and no content surely is."""
    flushed: set[tuple[int, int]] = set()
    on_disk: dict[str, bytes | None] = {}
    pending: dict[str, list[bytes | None]] = {}
    replace = Path.replace
    flush = files.flush
    seen: list[int] = []

    def identify(path: Path) -> tuple[int, int]:
        return path.stat().st_ino, path.stat().st_mtime_ns

    def check() -> None:
        names = sorted({*on_disk, *pending})
        choices = [[on_disk.get(name), *pending.get(name, [])] for name in names]
        for contents in itertools.product(*choices):
            state = dict(zip(names, contents, strict=True))
            for name in ("last.ckpt", "last-1.ckpt", "best.ckpt"):
                content = state.get(name)
                if content is not None:
                    digests = state[f"{name}.sha256"]
                    assert digests is not None
                    assert hashlib.sha256(content).hexdigest() in digests.decode()
                    seen.append(1)

    def note_replace(self: Path, target: Path) -> Path:
        content = self.read_bytes() if identify(self) in flushed else b"cut"
        result = replace(self, target)
        pending.setdefault(target.name, []).append(content)
        check()
        return result

    def note_flush(path: Path) -> None:
        flush(path)
        if path.is_dir():
            on_disk.update({name: contents[-1] for name, contents in pending.items()})
            pending.clear()
        else:
            flushed.add(identify(path))

    monkeypatch.setattr(Path, "replace", note_replace)
    monkeypatch.setattr(files, "flush", note_flush)
    monkeypatch.setattr(checkpoints, "flush", note_flush)
    last = tmp_path / "last.ckpt"
    for content in (b"first", b"second", b"third", b"fourth"):
        _save(last, content, previous=tmp_path / "last-1.ckpt")
        if content != b"third":
            runs.write_link(last, tmp_path / "best.ckpt")
    assert len(seen) > 100
    assert (tmp_path / "last-1.ckpt").read_bytes() == b"third"
    for name in ("last.ckpt", "last-1.ckpt", "best.ckpt"):
        assert len(runs.sidecar(tmp_path / name).read_text().splitlines()) == 1


WRITER = """
import hashlib, sys, itertools
from pathlib import Path
from lightkit import runs
path = Path(sys.argv[1])
for number in itertools.count(int(sys.argv[2])):
    content = b"%09d" % number * 20_000
    runs.write_aside(
        path, lambda aside: (aside.write_bytes(content), hashlib.sha256(content).hexdigest())[1]
    )
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    path = _save(tmp_path / "last.ckpt", b"%09d" % 0 * 20_000)
    for kill in range(8):
        command = [sys.executable, "-c", WRITER, str(path), str(kill * 100_000)]
        with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(draw.uniform(0, 0.05))  # the moment of the kill is what is tested
            os.kill(writer.pid, signal.SIGKILL)
        assert _is_whole(path), f"seed {seed}, kill {kill}"
        content = path.read_bytes()
        assert content == content[:9] * 20_000
        assert runs.last_good(tmp_path) == path
        runs.remove_leftovers(tmp_path)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "last.ckpt.sha256"]


def test_last_comes_first_and_then_the_newest(tmp_path: Path) -> None:
    for when, name in enumerate(["last", "epoch=0", "best"]):
        _dated(_save(tmp_path / f"{name}.ckpt", name.encode()), 1_000_000 + when)
    for expected in ("last", "best", "epoch=0"):
        good = runs.last_good(tmp_path)
        assert good == tmp_path / f"{expected}.ckpt"
        good.write_bytes(b"broken")
    assert runs.last_good(tmp_path) is None


def test_who_cannot_wait_takes_the_last_and_else_the_newest(tmp_path: Path) -> None:
    assert runs.newest_written(tmp_path / "checkpoints") is None
    for when, name in enumerate(["last", "epoch=0", "best"]):
        _dated(_save(tmp_path / f"{name}.ckpt", name.encode()), 1_000_000 + when)
    assert runs.newest_written(tmp_path) == tmp_path / "last.ckpt"
    (tmp_path / "last.ckpt").unlink()
    assert runs.newest_written(tmp_path) == tmp_path / "best.ckpt"


def test_what_is_passed_over_is_reported_with_the_reason(tmp_path: Path) -> None:
    _save(tmp_path / "last.ckpt", b"weights").write_bytes(b"weight")
    (tmp_path / "epoch=1.ckpt").write_bytes(b"no archive")
    chosen, passed_over = runs.choose_good(tmp_path)
    assert chosen is None
    assert sorted((path.name, fault) for path, fault in passed_over) == [
        ("epoch=1.ckpt", "it begins with b'no archive'; expected an archive of torch.save"),
        ("last.ckpt", "its digest differs from that in last.ckpt.sha256"),
    ]


def test_a_checkpoint_of_another_program_counts_if_its_archive_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "epoch=1.ckpt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"weights" * 100)
    assert runs.last_good(tmp_path) == path
    path.write_bytes(path.read_bytes().replace(b"weights", b"weightz", 1))
    chosen, passed_over = runs.choose_good(tmp_path)
    assert chosen is None
    assert "data.pkl in its archive is damaged" in passed_over[0][1]


def test_without_its_digest_the_checksums_in_the_archive_decide(tmp_path: Path) -> None:
    for name in ("last", "last-1"):
        with zipfile.ZipFile(tmp_path / f"{name}.ckpt", "w") as archive:
            archive.writestr("data.pkl", name)
        _save(tmp_path / f"{name}.ckpt", (tmp_path / f"{name}.ckpt").read_bytes())
    runs.sidecar(tmp_path / "last.ckpt").unlink()
    assert runs.choose_good(tmp_path) == (tmp_path / "last.ckpt", [])


@pytest.mark.parametrize("what", ["last.ckpt", "last.ckpt.sha256"])
def test_any_flipped_byte_is_noticed(what: str, tmp_path: Path) -> None:
    _save(tmp_path / "last.ckpt", b"0123456789")
    _save(tmp_path / "last-1.ckpt", b"before")
    whole = (tmp_path / what).read_bytes()
    # of the other line, what follows the digest is the name
    count = 10 if what == "last.ckpt" else 64
    for at in range(count):
        (tmp_path / what).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        chosen, passed_over = runs.choose_good(tmp_path)
        assert chosen == tmp_path / "last-1.ckpt", at
        assert [path.name for path, _ in passed_over] == ["last.ckpt"]
    (tmp_path / what).write_bytes(whole)
    assert runs.last_good(tmp_path) == tmp_path / "last.ckpt"


def test_the_file_before_is_kept_under_another_name(tmp_path: Path) -> None:
    path, previous = tmp_path / "last.ckpt", tmp_path / "last-1.ckpt"
    for content, before in ((b"one", None), (b"two", b"one"), (b"three", b"two")):
        _save(path, content, previous=previous)
        assert path.read_bytes() == content
        assert before is None or (_is_whole(previous) and previous.read_bytes() == before)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("has_digest", [True, False], ids=["altered", "without a digest"])
def test_what_is_not_what_was_written_is_not_kept(has_digest: bool, tmp_path: Path) -> None:
    path, previous = _save(tmp_path / "last.ckpt", b"two"), _save(tmp_path / "last-1.ckpt", b"one")
    path.write_bytes(b"tvo")
    if not has_digest:
        runs.sidecar(path).unlink()
    _save(path, b"three", previous=previous)
    assert previous.read_bytes() == b"one"
    assert _is_whole(previous)


def test_without_links_a_file_is_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path, previous = _save(tmp_path / "last.ckpt", b"one"), tmp_path / "last-1.ckpt"
    _save(path, b"two", previous=previous)
    assert (_is_whole(path), _is_whole(previous), previous.read_bytes()) == (True, True, b"one")


@pytest.mark.parametrize("dies", range(7), ids=str)
def test_a_death_while_one_is_kept_costs_nothing(
    dies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, previous = _save(tmp_path / "last.ckpt", b"two"), _save(tmp_path / "last-1.ckpt", b"one")
    replace, count = Path.replace, iter(range(9))

    def die(self: Path, target: Path) -> Path:
        if next(count) == dies:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        if dies < 6:
            with pytest.raises(KeyboardInterrupt):
                _save(path, b"three", previous=previous)
        else:
            _save(path, b"three", previous=previous)
    assert _is_whole(path)
    assert _is_whole(previous)


def test_there_is_no_good_checkpoint_without_a_folder(tmp_path: Path) -> None:
    assert runs.last_good(tmp_path / "none") is None


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    _save(tmp_path / "last.ckpt", b"weights")
    (tmp_path / ".last.ckpt.0a0b0c0d.aside").write_bytes(b"half")
    (tmp_path / ".mine").write_text("")
    runs.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".mine",
        "last.ckpt",
        "last.ckpt.sha256",
    ]
