"""The files of a fit's inputs, its code and its data, with their digests. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from lightkit.cli.class_sources import find_own_files
from lightkit.images.verdicts import compute_file_digests
from lightkit.runs import git_output

_CHEAP_BYTES = 1_000_000_000
_CHEAP_FILES = 20_000
_COMMIT = re.compile(r"(\d{20})(\.json|\.checkpoint.*\.parquet)")


def compute_data_digests(
    texts: Mapping[str, str], run_root: Path, *, asked: bool
) -> tuple[dict[str, dict[str, str]] | None, int]:
    """Compute the digests of the files that texts of a config name, by key and by file.

    Args:
        texts: Texts that may name a file or a folder, by their dotted keys.
        run_root: Folder of all runs, which are no data.
        asked: Whether files are read that are more than 1 GB or 20,000.

    Returns:
        The digests, and the size of all files in bytes; None and 0 where they are not read.
    """
    places = {key: path for key, text in texts.items() if (path := _find_path(text)) is not None}
    files = _list_files_of(places, run_root)
    found = list(islice(files, None if asked else _CHEAP_FILES + 1))
    if not asked and not _is_cheap(found):
        return None, 0

    digests: dict[str, dict[str, str]] = {key: {} for key in places}
    size_bytes = 0
    for (key, name, _), file in zip(
        found, compute_file_digests(path for *_, path in found), strict=True
    ):
        digests[key][_printable(name)] = file.digest[:32]
        size_bytes += file.size_bytes
    return digests, size_bytes


def compute_code_digests(run_root: Path, class_paths: Collection[str] = ()) -> dict[str, str]:
    """Compute the digests of the Python files of the working directory.

    Also compute those of the own classes that a config names.

    In a git work tree they are the files that git tracks or would add; else all but those in hidden
    folders, virtual environments and the folder of runs. A class from elsewhere, or of a file that
    git ignores, counts with its package.

    Args:
        run_root: Folder of all runs.
        class_paths: Paths of classes.

    Returns:
        By their paths in the working directory, or in the folder that they are imported from.
    """
    files = {name: Path(name) for name in _list_python_files(run_root)}
    known = {path.resolve() for path in files.values()}
    for class_path in class_paths:
        for name, path in find_own_files(class_path).items():
            if path.resolve() not in known:
                files.setdefault(name, path)
    found = compute_file_digests(map(str, files.values()))
    return {_printable(name): each.digest for name, each in zip(files, found, strict=True)}


def _list_python_files(run_root: Path) -> list[str]:
    """List the Python files of the working directory, see `compute_code_digests`."""
    tracked = git_output(
        "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py"
    )
    names = sorted({name for name in (tracked or "").split("\0") if Path(name).is_file()})
    return names or [name for name, _ in _walk(Path(), run_root) if name.endswith(".py")]


def _list_files_of(places: Mapping[str, Path], run_root: Path) -> Iterator[tuple[str, str, str]]:
    """List the files of each place: its key, the name within, and the path."""
    for key, place in places.items():
        for name, path in _list_files(place, run_root):
            yield key, name, path


def _is_cheap(files: Sequence[tuple[str, str, str]]) -> bool:
    """Return whether files, as `_list_files_of` lists them, are read without being asked for."""
    if len(files) > _CHEAP_FILES:
        return False
    return sum(_read_size(path) for *_, path in files) <= _CHEAP_BYTES


def _read_size(path: str) -> int:
    """Return the size of a file in bytes; 0 of one that is gone since its folder was listed."""
    try:
        return os.path.getsize(path)  # noqa: PTH202 (pathlib would make an object of each)
    except OSError:
        return 0


def _find_path(text: str) -> Path | None:
    try:
        path = Path(text.removeprefix("file://")).expanduser()
        return path if text.strip() and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        # too long for a name, with a null in it, or of an unknown user
        return None


def _list_files(path: Path, run_root: Path) -> Iterator[tuple[str, str]]:
    """List the files of a folder, the newest commit of a Delta table, or a file.

    The name within, and the path.
    """
    log = path / "_delta_log"
    if log.is_dir():  # each state of the table has a new commit, and its files never change
        names = (entry.name for entry in log.iterdir() if _COMMIT.fullmatch(entry.name))
        if newest := max(names, key=lambda name: (name[:20], name.endswith(".json")), default=None):
            yield f"_delta_log/{newest}", str(log / newest)
    elif path.is_dir():
        yield from _walk(path, run_root)
    else:
        yield path.name, str(path)


def _walk(top: Path, run_root: Path) -> Iterator[tuple[str, str]]:
    """List the visible files below a folder.

    Also below links, without virtual environments and the runs.
    """
    seen = {str(run_root.resolve())}
    for folder, folders, names in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen or "pyvenv.cfg" in names:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118 (pathlib would make an object of each of very many)
            if name[0] != "." and os.path.isfile(path):  # noqa: PTH113
                yield os.path.relpath(path, top), path


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
