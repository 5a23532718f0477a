"""Small files that are replaced as a whole: text and JSON.

A JSON file that was cut, or holds what its reader does not expect, counts as missing: it is named
in a warning, with the key, and what replaces it leaves it under another name.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightkit.runs.fence import NoFence, aside_of, find_fence
from lightkit.runs.records import RECORDS, find_excess, find_mismatch

DAMAGED = ".damaged"
"""Ending of what could not be read, and was replaced."""
_log = logging.getLogger("lightkit")
# files that could not be read, each with the reason that a warning gave
_damaged: dict[str, str] = {}


@contextmanager
def atomic_write(
    path: Path, *, durable: bool = True, is_flushed: bool = False, flushes_folder: bool = True
) -> Iterator[Path]:
    """Yield another path on the same disk.

    What the block writes there replaces ``path``, unless it fails.

    A file of a job whose lock this process holds is replaced as long as it holds it, see
    `lightkit.runs.fence`.

    Args:
        path: The file; its folder is made.
        durable: Return once it is on the disk, so that it outlives a loss of power and not only a
            kill.
        is_flushed: Whether the block itself has flushed what it has written.
        flushes_folder: Whether ``durable`` is meant of the name too. Else a loss of power leaves
            the old or the new file there, each whole, until the next flush of the folder.

    Raises:
        RunLocked: If this process has lost the lock of the job that the file belongs to.
    """
    fence = find_fence(path) or NoFence()
    fence.check()
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(path)
    try:
        aside = fence.aside_of(path)
        yield aside
        if durable and not is_flushed:
            flush(aside)
        fence.check()
        aside.replace(path)
        if durable and flushes_folder:
            flush(path.parent)
    except OSError as error:
        fence.check()  # which says why, where the folder of its asides has gone
        if str(error.filename) == str(aside):
            error.filename = str(path)  # which the user knows
        raise
    finally:
        with suppress(OSError):  # what failed before it is what is reported
            aside.unlink()


def write_text(path: Path, text: str, *, durable: bool = True, flushes_folder: bool = True) -> None:
    """Replace a small file as a whole, without a digest.

    The arguments are those of `atomic_write`.
    """
    with atomic_write(path, durable=durable, flushes_folder=flushes_folder) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Mapping[str, Any]) -> None:
    """Replace a JSON file as a whole.

    Numbers that are not finite become null, and unknown types their text.

    One that this process could not read is kept beside it, with the ending `DAMAGED`.
    """
    text = json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False, default=str)
    if _damaged.pop(str(path), None) is not None:
        keep_damaged(Path(path))
    write_text(Path(path), text + "\n")


def keep_damaged(path: Path) -> None:
    """Keep what cannot be read under a name that ends in `DAMAGED`.

    What is no file, such as a folder, is moved there.

    Args:
        path: The file, which the caller is about to write.
    """
    kept = path.with_name(f"{path.name}{DAMAGED}")
    if kept.is_dir():
        kept = kept.with_name(f"{kept.name}-{secrets.token_hex(4)}")
    if path.is_file():
        shutil.copyfile(path, kept)
    elif path.exists():
        path.rename(kept)


def read_json(path: Path | str) -> dict[str, Any] | None:
    """Return the object in a JSON file.

    None where there is none, or, with a warning, where it cannot be read.

    A file that `lightkit.runs.records` describes is of the type that stands there.
    """
    value, damage = inspect_json(path)
    if damage is not None and _damaged.get(str(path)) != damage:
        _damaged[str(path)] = damage
        _log.warning("%s cannot be read: %s. It counts as missing.", path, damage)
    return value


def find_value(record: Any, *keys: Any) -> Any:
    """Find the value under a key of a record, under further keys in that.

    None where one is missing or null.
    """
    for key in keys:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def inspect_json(path: Path | str) -> tuple[dict[str, Any] | None, str | None]:
    """Return the object in a JSON file and None, or None and why the file cannot be read.

    None twice without a file.

    Args:
        path: The file. By its name it is known what it holds.
    """
    try:
        # A pipe would be waited for, and a device has no end.
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a path object is slow
            return None, "it is no file"
        value = parse_json(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except OSError as error:
        return None, error.strerror or str(error)
    except UnicodeDecodeError:
        return None, "it is no text in UTF-8"
    except ValueError as error:
        return None, str(error)
    shape = RECORDS.get(Path(path).name)
    if value == {} and shape is not None:
        return None, "it has no keys"
    damage = find_mismatch(value, shape or dict[str, Any])
    return (value, None) if damage is None else (None, damage)


def parse_json(text: str | bytes) -> Any:
    """Return a value of JSON.

    Raises:
        ValueError: If it is none, or one that nobody could work with, see
            `lightkit.runs.records.find_excess`.
    """
    try:
        value = json.loads(text)
    except UnicodeDecodeError:
        raise
    except RecursionError as error:
        raise ValueError("it has too many levels") from error
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from error
    if (excess := find_excess(value)) is not None:
        raise ValueError(excess)
    return value


def finite(value: Any) -> Any:
    """Return ``value`` with None for every number that JSON cannot say: NaN and the infinities."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def remove_leftovers(folder: Path | str, name: str = "*") -> None:
    """Delete what killed writers of a file left under names of `aside_of`.

    Only where no writer of it can be alive.
    """
    for path in Path(folder).glob(f".{name}.*.aside"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Return once a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def existing_folder(path: Path) -> Path:
    """Return the nearest folder or file above, or at, a path that is there."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def in_bytes(number: float) -> str:
    """Write a number of bytes with a unit: `14.2 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
