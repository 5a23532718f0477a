"""What all threads and loading processes of this process are doing, and the line at which one of them stands.

A data loader's workers are forked from this process; each then lets `faulthandler` write its stack to a nameless file
that it shares with this process whenever it gets SIGUSR2, also while it sleeps in native code. A worker that is spawned
has no such file, and shows no stack.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

import psutil

__all__ = ["Place", "Samples", "Stack", "own_stacks", "place_of", "samples_of", "show_forks", "stacks_of_children"]

_ANSWER_S = 1.0  # a process in native code never gets to the end of its answer
_ANSWERS_S = 3.0  # of all: other ranks wait, and end too
_LEAST_ANSWER_S = 0.1
_ENDS = "-- end of the stack of process"
_SAMPLES = "samples: "
_LINE = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
# Where what a process was started for begins, from the outside in: what is above is how it came to that.
_BEGINNINGS = ("torch/utils/data/_utils/worker.py", "pytorch_lightning/", "lightning/pytorch/")
_FRAMEWORKS = ("/torch/", "/pytorch_lightning/", "/lightning/", "/lightning_fabric/", "/lightning_utilities/")
_LOADER = "torch/utils/data/dataloader.py"
_FORKED = 'multiprocessing/popen_fork.py"'
_FETCH = "torch/utils/data/_utils/fetch.py"
_paths = sysconfig.get_paths()
_STANDARD = tuple({f"{Path(_paths[key]).resolve().as_posix()}/" for key in ("stdlib", "platstdlib")})
_OWN = f"{Path(__file__).resolve().parent.parent.as_posix()}/"


class Place(NamedTuple):
    """A line of code on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Write it as ``mine.py:37 in __getitem__``, its path from the working directory where it is below that."""
        path = Path(self.file)
        with suppress(ValueError, OSError):
            path = path.relative_to(Path.cwd())
        return f"{path}:{self.line} in {self.function}"


class Samples(NamedTuple):
    """What a process was loading: the indices of its batch, and that of the sample."""

    batch: tuple[int, ...] | None = None
    sample: int | None = None


@dataclass(frozen=True)
class Stack:
    """The stack of a thread or of another process.

    Args:
        who: Which one it is.
        text: The stack, as Python writes it.
        places: Its lines, the innermost last.
        samples: What it was loading.
        waits_for_loader: Whether it waits for a batch that other processes load.
    """

    who: str
    text: str
    places: tuple[Place, ...] = ()
    samples: Samples = Samples()  # noqa: RUF009 (a tuple)
    waits_for_loader: bool = False

    @property
    def at(self) -> Place | None:
        """The line at which it stands."""
        return place_of(self.places)


def place_of(places: Sequence[Place]) -> Place | None:
    """Give the innermost line of the user's own code, or else of any but Python, torch and Lightning.

    Args:
        places: A stack, the innermost line last.
    """
    inside = _inside(places)
    installed = [place for place in inside if not _is_standard(place.file)]
    own = [place for place in installed if not _is_installed(place.file)]
    others = [place for place in installed if not any(part in place.file for part in _FRAMEWORKS)]
    return next((found[-1] for found in (own, others) if found), None)


def _inside(places: Sequence[Place]) -> Sequence[Place]:
    for beginning in _BEGINNINGS:
        if begins := [at for at, place in enumerate(places) if beginning in place.file.replace(os.sep, "/")]:
            return places[begins[0] :]
    return places


def _is_standard(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_STANDARD) and not _is_package(file))


def _is_installed(file: str) -> bool:
    return _is_package(file) or file.startswith(_OWN)


def _is_package(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file


# -- this process ----------------------------------------------------------------------------------------------


def own_stacks(main: int) -> list[Stack]:
    """Give what all threads but the one that asks are doing, the main thread last, where a reader looks first.

    Args:
        main: Number of the main thread.
    """
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    others = [ident for ident in frames if ident not in (main, threading.get_ident())]
    shown = [*others, main] if main in frames else others
    return [_stack_of_thread(frames[ident], str(names.get(ident, ident))) for ident in shown]


def _stack_of_thread(frame: FrameType, name: str) -> Stack:
    places = tuple(
        Place(each.f_code.co_filename, line or 0, each.f_code.co_name) for each, line in traceback.walk_stack(frame)
    )[::-1]
    text = f"thread {name} (most recent call last):\n{''.join(traceback.format_stack(frame))}"
    waits = any(_LOADER in place.file.replace(os.sep, "/") and "_get_data" in place.function for place in places)
    return Stack(f"thread {name}", text, places, samples_of(frame), waits)


def samples_of(frame: FrameType | None) -> Samples:
    """Give the indices that a stack is loading, as far as its local variables tell.

    Args:
        frame: The innermost one.
    """
    batch: tuple[int, ...] | None = None
    sample: int | None = None
    for each, _ in traceback.walk_stack(frame):
        code = each.f_code
        if code.co_name == "__getitem__" and sample is None and code.co_argcount > 1:
            sample = _index(each.f_locals.get(code.co_varnames[1]))
        if _FETCH in code.co_filename.replace(os.sep, "/") and "possibly_batched_index" in each.f_locals:
            asked = each.f_locals["possibly_batched_index"]
            indices = [_index(item) for item in asked] if isinstance(asked, list | tuple) else []
            batch = tuple(index for index in indices if index is not None) or None
            return Samples(batch, sample)
    return Samples()  # no data loader's: any other `__getitem__` is none of a data set


def _index(value: Any) -> int | None:
    number = getattr(value, "index", value)  # a sampler's key may hold more than the number
    try:
        return int(number.__index__())
    except (AttributeError, TypeError):
        return None


# -- other processes ---------------------------------------------------------------------------------------------


class _Shared:
    """The file into which this process and those that it forks write their stacks."""

    file: IO[bytes] | None = None


def show_forks() -> None:
    """Let every process that this one forks from now on write its stack when it is asked to."""
    if _Shared.file is None and hasattr(os, "register_at_fork") and hasattr(signal, "SIGUSR2"):
        _Shared.file = tempfile.TemporaryFile(prefix="lightkit-stacks-")  # noqa: SIM115 (open as long as the process)
        os.register_at_fork(after_in_child=_answer)


def _answer() -> None:
    """In a process that has just been forked: its stack on SIGUSR2, and what only Python knows, if it gets to that."""
    with suppress(OSError, ValueError, RuntimeError):
        signal.signal(signal.SIGUSR2, _tell_samples)
        assert _Shared.file is not None
        faulthandler.register(signal.SIGUSR2, file=_Shared.file, all_threads=True, chain=True)


def _tell_samples(_signum: int, frame: FrameType | None) -> None:
    if _Shared.file is not None:
        told = f"{_SAMPLES}{json.dumps(samples_of(frame))}\n{_ENDS} {os.getpid()}\n"
        os.write(_Shared.file.fileno(), told.encode())


def stacks_of_children() -> list[Stack]:
    """Give what the processes that this one has started are doing, one after another."""
    deadline_s = time.monotonic() + _ANSWERS_S
    return [_stack_of(child, deadline_s) for child in _children()]


def _children() -> list[psutil.Process]:
    try:
        return psutil.Process().children(recursive=True)
    except psutil.Error:
        return []


def _stack_of(child: psutil.Process, deadline_s: float) -> Stack:
    who = f"process {child.pid}"
    file = _Shared.file
    if file is None or not _answers(child.pid, file):
        return Stack(who, f"{who} ({_name(child)}) shows no stack: it was not forked from this process\n")
    began = os.fstat(file.fileno()).st_size
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGUSR2)
    patience_s = min(_ANSWER_S, max(_LEAST_ANSWER_S, deadline_s - time.monotonic()))
    told = _read_answer(file, began, f"{_ENDS} {child.pid}\n", patience_s)
    calls = told.rpartition("Current thread")[2]  # all_threads: the newest stack with this name is the main thread's
    places = tuple(Place(m["file"], int(m["line"]), m["function"]) for m in _LINE.finditer(calls.partition("\n\n")[0]))
    samples = next((line for line in told.splitlines() if line.startswith(_SAMPLES)), "")
    if any(_BEGINNINGS[0] in place.file.replace(os.sep, "/") for place in places):
        who = f"data loader worker {child.pid}"
    return Stack(who, f"{who}:\n{_shown(told)}", places[::-1], _parsed(samples))


def _shown(answer: str) -> str:
    """Leave out the stack of this process at the moment of the fork, which the child has below its own."""
    lines, is_inherited = [], False
    for line in answer.splitlines(keepends=True):
        is_inherited = is_inherited and line.startswith("  File ")
        if not is_inherited and not line.startswith((_SAMPLES, _ENDS)):
            lines.append(line)
        is_inherited = is_inherited or _FORKED in line
    return "".join(lines)


def _answers(pid: int, file: IO[bytes]) -> bool:
    """Tell whether a process was forked from this one and runs no other program: SIGUSR2 would end that."""
    try:
        theirs, ours = os.stat(f"/proc/{pid}/fd/{file.fileno()}"), os.fstat(file.fileno())  # noqa: PTH116
        masks = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", masks, re.MULTILINE)
    is_caught = caught is not None and int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1
    return bool(is_caught) and (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def _read_answer(file: IO[bytes], began: int, end: str, patience_s: float) -> str:
    told, deadline = "", time.monotonic() + patience_s
    while not told.endswith(end) and time.monotonic() < deadline:
        time.sleep(0.01)
        size = os.fstat(file.fileno()).st_size
        told = os.pread(file.fileno(), size - began, began).decode(errors="replace")
    return told


def _parsed(line: str) -> Samples:
    try:
        batch, sample = json.loads(line.removeprefix(_SAMPLES))
    except ValueError:
        return Samples()
    return Samples(None if batch is None else tuple(batch), sample)


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return "gone"
