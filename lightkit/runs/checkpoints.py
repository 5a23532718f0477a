"""Files that are whole or not there: written aside, renamed, a digest beside each."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from lightkit.errors import ConfigError, join_names
from lightkit.runs.fence import aside_of
from lightkit.runs.files import atomic_write, flush, write_text

_log = logging.getLogger("lightkit")


def digest(path: Path | str) -> str:
    """Return the sha256 of a file's content, in hex."""
    with Path(path).open("rb") as file:
        hasher = hashlib.sha256()
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def digest_checkpoint(path: Path | str) -> str:
    """Return the sha256 of a checkpoint that must be a file.

    Raises:
        ConfigError: If it is a folder of shards.
    """
    if Path(path).is_dir():
        raise ConfigError(refuse_folder(path))
    return digest(path)


def sidecar(path: Path | str) -> Path:
    """Return the file beside ``path`` that holds its digest, in the format of ``sha256sum``."""
    return Path(f"{path}.sha256")


def known_digest(path: Path) -> str | None:
    """Return the digest of a file.

    What stands beside it if that is as new as the file, else what it holds.

    None where there is no such file, or it cannot be read.
    """
    digests = _read_digests(path)
    try:
        # two stand there while the file changes over, and an older one is of what was there before
        if len(digests) == 1 and sidecar(path).stat().st_mtime_ns >= path.stat().st_mtime_ns:
            return digests[0]
        return digest(path)
    except OSError:
        return None


def write_aside(
    path: Path,
    writer: Callable[[Path], str],
    *,
    previous: Path | None = None,
    on_progress: Callable[[], object] = lambda: None,
) -> None:
    """Replace a file and its digest as one.

    A kill at any moment leaves the old or the new file, verified.

    So does a loss of power. Two renames cannot be one, so the digest file names the old and the new
    content while the file changes over: from before the flush of the folder that comes before it,
    until after the one that comes after it.

    Args:
        path: The file to write or replace; its folder is made.
        writer: Gets a path in the same folder, writes the content there and returns its sha256,
            with which the file is compared once it is on disk.
        previous: Another name in the same folder, under which the old file is kept.
        on_progress: Called after each phase, of which each takes as long as the disk needs for the
            whole file: it is written, flushed and read back, and so is the old file.

    Raises:
        OSError: If the file cannot be written, or does not read back as it was written; nothing is
            replaced.
    """
    with atomic_write(path, is_flushed=True) as aside:
        written = writer(aside)
        on_progress()
        flush(aside)
        on_progress()
        _forget_cached(aside)
        if digest(aside) != written:
            raise OSError("it does not read back as it was written")
        identity = _identify(aside)
        on_progress()
        kept = None if previous is None else _digest_whole(path)
        on_progress()

        # Of both files before either is renamed: one flush of the folder is for both.
        if previous is not None and kept is not None:
            _write_digests(previous, [*_read_digests(previous), kept], flushes_folder=False)
        _write_digests(path, [*_read_digests(path), written])
        if previous is not None and kept is not None:
            _keep(path, previous)

    # The renames are on the disk by now.
    if previous is not None and kept is not None:
        _write_digests(previous, [kept], flushes_folder=False)
    _write_digests(path, [written], flushes_folder=False)
    if previous is not None:
        _written[path] = (identity, written)


def write_link(path: Path, name: Path) -> None:
    """Link a file that `write_aside` wrote, or a folder of shards, by another name in its folder.

    It replaces what has that name. A kill at any moment leaves the old or the new file there,
    verified; of folders it may leave none. It takes no more space; where the file system has no
    links it is a copy.

    Args:
        path: The file or folder, whose digests are beside it.
        name: The other name.

    Raises:
        OSError: If it cannot be written, or the copy does not read back as the file; nothing is
            replaced.
    """
    if path.is_dir():
        _link_folder(path, name)
        return
    digests = _read_digests(path)
    value = digests[0] if len(digests) == 1 else digest(path)
    with atomic_write(name, is_flushed=True) as aside:
        try:
            os.link(path, aside)
        except OSError:  # a file system without links
            shutil.copyfile(path, aside)
            flush(aside)
            _forget_cached(aside)
            if digest(aside) != value:
                raise OSError(f"it does not read back as {path.name}") from None
        _write_digests(name, [*_read_digests(name), value])
    _write_digests(name, [value], flushes_folder=False)


def _link_folder(folder: Path, name: Path) -> None:
    """Link a folder of shards under another name in the same folder, replacing what has it."""
    aside = aside_of(name)

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copyfile(source, target)
            flush(Path(target))

    shutil.copytree(folder, aside, copy_function=link)
    make_way_for_folder(name)
    name.unlink(missing_ok=True)
    aside.rename(name)
    _write_renamed_digests(folder, name)


def _write_renamed_digests(folder: Path, name: Path) -> None:
    """Write the digests of a folder of shards beside another name of it."""
    lines = sidecar(folder).read_text(encoding="utf-8")
    write_text(sidecar(name), lines.replace(f"  {folder.name}/", f"  {name.name}/"))


_written: dict[Path, tuple[tuple[int, ...], str]] = {}
"""Digest that this process has read back from a file, with what identifies that content."""


def _identify(path: Path) -> tuple[int, ...]:
    """Return what differs once another content stands in a file."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _digest_whole(path: Path) -> str | None:
    """Return the digest of a file that is as it was written.

    None where there is no file, or its content differs from its digest: a file that was kept before
    is worth more then. A file that this process has written, and nobody has touched since, is not
    read again.
    """
    if not path.is_file():
        return None
    identity, value = _written.get(path, ((), ""))
    if identity != _identify(path):
        value = digest(path)
    return value if value in _read_digests(path) else None


def _keep(path: Path, previous: Path) -> None:
    """Keep a file under another name too, before it is replaced. It takes no more space."""
    with atomic_write(previous, durable=False) as aside:
        try:
            os.link(path, aside)
        except OSError:  # a file system without links
            path.replace(aside)


def _forget_cached(path: Path) -> None:
    """Drop a file's cached pages, so that the next read is from the disk.

    It must have been flushed.
    """
    if not hasattr(os, "posix_fadvise"):  # macOS
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def last_good(checkpoints: Path | str) -> Path | None:
    """Find the newest checkpoint that can be trusted, see `choose_good`."""
    return choose_good(checkpoints)[0]


def newest_written(checkpoints: Path) -> Path | None:
    """Find the newest checkpoint without reading it; for callers without time to wait."""
    return next(iter(_list_newest_first(checkpoints)), None)


def choose_good(checkpoints: Path | str) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Find the newest checkpoint without a fault.

    List those that were passed over for it, each with its fault.
    """
    passed_over: list[tuple[Path, str]] = []
    for path in _list_newest_first(Path(checkpoints)):
        if (fault := find_fault(path)) is None:
            return path, passed_over
        passed_over.append((path, fault))
    return None, passed_over


def _list_newest_first(checkpoints: Path) -> list[Path]:
    """List ``last.ckpt``, then the others from the newest to the oldest.

    Without what no training goes on from.
    """
    paths = [
        path for path in checkpoints.glob("*.ckpt") if path.exists() and path.name != "final.ckpt"
    ]
    return sorted(
        paths,
        key=lambda p: (p.name != "last.ckpt", -p.stat().st_mtime, p.name != "best.ckpt", p.name),
    )


def _read_digests(path: Path) -> list[str]:
    try:
        lines = sidecar(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [line.split()[0] for line in lines if line.strip()]


def _write_digests(path: Path, digests: list[str], *, flushes_folder: bool = True) -> None:
    text = "".join(f"{value}  {path.name}\n" for value in dict.fromkeys(digests))
    write_text(sidecar(path), text, flushes_folder=flushes_folder)


def write_digest(path: Path) -> None:
    """Write the digest of a file that others have written, as it is on the disk now.

    Raises:
        OSError: If it cannot be read, or the digest cannot be written.
    """
    flush(path)
    _write_digests(path, [digest(path)])


def write_folder_digests(folder: Path, *, on_progress: Callable[[], object] = lambda: None) -> None:
    """Write the digest of each file of a folder of shards beside the folder, as on the disk now.

    Args:
        folder: The checkpoint.
        on_progress: Called after each file.

    Raises:
        OSError: If one cannot be read, or the digests cannot be written.
    """
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        flush(path)
        lines.append(f"{digest(path)}  {path.relative_to(folder.parent)}\n")
        on_progress()
    write_text(sidecar(folder), "".join(lines))


def make_way_for_folder(path: Path) -> None:
    """Take away a folder of shards before it is written again: `last.ckpt` becomes `last-1.ckpt`.

    The files of a folder cannot be replaced as one. One that is being written has no digests, so
    that no training goes on from it.

    Raises:
        OSError: If that is not allowed.
    """
    if not path.is_dir():
        return
    # what was kept before is worth more then
    if path.name != "last.ckpt" or find_fault(path) is not None:
        sidecar(path).unlink(missing_ok=True)
        shutil.rmtree(path)
        return
    previous = path.with_name("last-1.ckpt")
    sidecar(previous).unlink(missing_ok=True)
    if previous.is_dir():
        shutil.rmtree(previous)
    previous.unlink(missing_ok=True)
    path.rename(previous)
    _write_renamed_digests(path, previous)
    sidecar(path).unlink()


def refuse_folder(path: Path | str) -> str:
    """Format the error for a folder of shards where a file is needed."""
    return (
        f"{path} is a folder of shards: fit, validate, test and predict with the strategy that"
        " wrote it read it, and nothing else does. Expected a file, which FSDPStrategy writes with"
        " state_dict_type: full and ModelParallelStrategy with save_distributed_checkpoint: false."
    )


def _find_folder_fault(folder: Path) -> str | None:
    """Describe how a folder of shards differs from what was written."""
    try:
        lines = sidecar(folder).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return (
            f"it has no {sidecar(folder).name}, so that some of its"
            " files may be missing or cut short"
        )
    for line in lines:
        value, _, name = line.partition("  ")
        path = folder.parent / name
        if not path.is_file():
            return f"{name} is missing"
        if digest(path) != value:
            return f"the digest of {name} differs from that in {sidecar(folder).name}"
    return None


def find_fault(path: Path) -> str | None:
    """Describe how a checkpoint differs from what was written.

    By its digest, else by the checksums in its archive.

    Raises:
        OSError: If it cannot be read.
    """
    if path.is_dir():
        return _find_folder_fault(path)
    if digests := _read_digests(path):
        return (
            None
            if digest(path) in digests
            else f"its digest differs from that in {sidecar(path).name}"
        )
    with path.open("rb") as stream:
        head = stream.read(16)
    if head[:1] == b"\x80":  # a pickle, which torch wrote before 1.6, has no checksums
        return None
    if head[:2] != b"PK":
        found = f"it begins with {head!r}" if head else "it is empty"
        return f"{found}; expected an archive of torch.save"
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {name.partition("/")[2] or name for name in archive.namelist()}
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        return f"it has no {sidecar(path).name}, and its archive cannot be read ({error})"
    if "data.pkl" not in inside or inside & {"archive_format", "constants.pkl"}:
        return "it is another archive, such as one of torch.export or TorchScript"
    return (
        None
        if damaged is None
        else f"it has no {sidecar(path).name}, and {damaged} in its archive is damaged"
    )


_trusted: list[set[str]] = []  # files of which a warning was given, by block
_NAMED = re.compile(
    r"(?:GLOBAL|global:?|class|function|REDUCE|NEWOBJ|BUILD for)\s+`?([A-Za-z_][\w.]*\.[\w.]*\w)"
)


@contextmanager
def trusting() -> Iterator[None]:
    """Allow code in files within the block."""
    _trusted.append(set())
    try:
        yield
    finally:
        _trusted.pop()


def is_trusting() -> bool:
    """Check whether files may bring code along."""
    return bool(_trusted)


def warn_of_trust(path: Path | str, names: Collection[str]) -> None:
    """Warn once that ``--trust`` lets a file bring code along.

    Args:
        path: The file.
        names: Classes and functions that loading it calls, as far as they are known.
    """
    if str(path) not in _trusted[-1]:
        _trusted[-1].add(str(path))
        text = "--trust: %s holds %s besides tensors and plain values; loading it may run code"
        _log.warning(text, path, join_names(sorted(names)) or "objects")


def find_class_names(message: str) -> list[str]:
    """Find the classes and functions that torch names where it refuses a file."""
    return list(dict.fromkeys(_NAMED.findall(message)))


def refusal(path: Path | str, names: Collection[str]) -> str:
    """Format the error for a file that is not loaded.

    The arguments are those of `warn_of_trust`.
    """
    names = join_names(sorted(names)) or "objects"
    return (
        f"{path} holds {names} besides tensors and plain values. Loading that can run code, so"
        " nothing of it was loaded. If you know who made the file, --trust"
        " on the command line allows it."
    )
