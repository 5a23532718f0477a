"""What the config's own code raised, as a mistake with the line that raised it."""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import lightning_fabric
import pytorch_lightning

import lightkit
from lightkit.cli.explaining import located
from lightkit.cli.refusals import refusals_told, refused, unwrapped_errors
from lightkit.config import KeyPath, Problems, Resolved, dotted, mistake, shown_path
from lightkit.errors import ConfigError, LightkitError

__all__ = ["crashes_told", "is_same_crash"]

_MOST_FRAMES = 3
_MOST_LETTERS = 600
_OF_WORKER = "Original Traceback"  # torch's loader repeats what its process printed
_FRAME_OF_WORKER = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_LIGHTNING = {Path(str(package.__file__)).resolve().parent for package in (pytorch_lightning, lightning_fabric)}
_NOT_THEIRS = {
    Path(lightkit.__file__).resolve().parent,
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
}


class _Frame(NamedTuple):
    file: Path
    line: int
    function: str


@contextmanager
def crashes_told(
    problems: Problems,
    resolved: Resolved,
    path: Callable[[], KeyPath],
    doing: Callable[[], str],
    *,
    owners: Sequence[tuple[KeyPath, object]] = (),
) -> Iterator[list[BaseException]]:
    """Keep whatever the block raises as a mistake, and go on after it; a signal passes.

    Args:
        problems: Takes the mistake.
        resolved: The config.
        path: Gives what of the config the block is about, once it has failed.
        doing: Gives what does not work, for the words, such as `cannot be built`.
        owners: Objects with what of the config made each; the one whose method was running is named in place of `path`.

    Yields:
        Holds the error after the block.
    """
    raised: list[BaseException] = []
    try:
        with refusals_told(resolved), unwrapped_errors():
            yield raised
    except LightkitError as error:
        raised.append(error)
        problems.add(located(error, resolved))
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever the user's code raises is told)
        raised.append(error)
        problems.add(_told(error, resolved, _owner(error, owners) or path(), doing()))


def is_same_crash(one: BaseException, other: BaseException) -> bool:
    """Tell whether two errors have the same cause: the same words from the same line."""
    return str(one) == str(other) and _frames(one)[:1] == _frames(other)[:1]


def _told(error: BaseException, resolved: Resolved, path: KeyPath, doing: str) -> ConfigError:
    frames = _frames(error)
    if isinstance(error, ValueError) and frames and _is_below(frames[0].file, _LIGHTNING):
        return refused(error, resolved)  # the trainer's own arguments are judged late, and by plain ValueErrors
    text = str(error).strip().splitlines()[-1] if _OF_WORKER in str(error) else f"{type(error).__name__}: {error}"
    words = " ".join(resolved.masked(text).split()).removesuffix(":")
    words = words if len(words) <= _MOST_LETTERS else f"{words[:_MOST_LETTERS]}..."
    return mistake("\n".join([f"{dotted(path)}: {doing}: {words}", *map(_shown, frames)]), resolved.origin_of(path))


def _owner(error: BaseException, owners: Sequence[tuple[KeyPath, object]]) -> KeyPath | None:
    """Find whose method was running, innermost first."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        running = frame.f_locals.get("self")
        for path, owner in owners:
            if running is owner:
                return path
    return None


def _frames(error: BaseException) -> list[_Frame]:
    """Give the lines of the user's code that led to an error, the innermost first; a library's where none did."""
    found = [
        _Frame(Path(frame.filename), frame.lineno or 0, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    if _OF_WORKER in str(error):
        found += [_Frame(Path(file), int(line), name) for file, line, name in _FRAME_OF_WORKER.findall(str(error))]
    found = [frame for frame in found if frame.file.is_file()]
    own = [frame for frame in found if not _is_below(frame.file, _NOT_THEIRS)]
    return own[: -_MOST_FRAMES - 1 : -1] if own else found[-1:]


def _is_below(file: Path, folders: set[Path]) -> bool:
    return not folders.isdisjoint(file.resolve().parents)


def _shown(frame: _Frame) -> str:
    source = linecache.getline(str(frame.file), frame.line).strip()
    return f"  --> {shown_path(frame.file)}:{frame.line}, in {frame.function}\n{frame.line:>5} | {source}"
