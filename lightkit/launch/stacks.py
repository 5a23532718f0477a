"""Stacks of this process's threads and of its data loader workers, and the line of the user's code on a stack.

A process that is forked from this one lets `faulthandler` write its stack to a shared file on SIGUSR2, which works also
while it sleeps in native code. Of a child process that is not forked, `py-spy` shows the stack if it is installed.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

__all__ = ["SourceLine", "Stack", "capture_children", "capture_threads", "find_samples", "register_in_forks"]

_ANSWER_S = 1.0  # of one process; one in native code never comes to the end of its answer
_ANSWERS_S = 3.0  # of all: other ranks wait, and end too
_LINE = re.compile(r'^\s*File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_WORKER = "torch/utils/data/_utils/worker.py"
_FETCH = "torch/utils/data/_utils/fetch.py"
_ENTRY_POINTS = (_WORKER, "pytorch_lightning/", "lightning/pytorch/")  # frames outside of them load or train nothing
_FRAMEWORKS = re.compile(r"/(torch|pytorch_lightning|lightning|lightning_fabric|lightning_utilities)/")
_PACKAGES = re.compile(r"/(site|dist)-packages/")
_STANDARD_LIBRARY = tuple(str(Path(sysconfig.get_paths()[key]).resolve()) for key in ("stdlib", "platstdlib"))
_LIGHTKIT = str(Path(__file__).resolve().parents[1])


class SourceLine(NamedTuple):
    """A line of code on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Format it as ``mine.py:37 in __getitem__``, with a path relative to the working directory if possible."""
        path = Path(self.file)
        with suppress(ValueError, OSError):
            path = path.relative_to(Path.cwd())
        return f"{path}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Stack:
    """Stack of a thread of this process or of a child process.

    Args:
        name: Name of the thread or process.
        text: The stack as Python writes it.
        lines: Its lines, the innermost last.
        batch: Indices of the batch that a data loader fetches on this stack.
        sample: Index of the sample that it fetches.
    """

    name: str
    text: str
    lines: tuple[SourceLine, ...] = ()
    batch: tuple[int, ...] | None = None
    sample: int | None = None

    @property
    def own_line(self) -> SourceLine | None:
        """Innermost line of the user's code, or else of a package other than Python, torch and Lightning."""
        lines = self.lines
        for entry_point in _ENTRY_POINTS:
            if starts := [index for index, line in enumerate(lines) if entry_point in line.file]:
                lines = lines[starts[0] :]
                break
        user, packages = [], []
        for line in lines:
            if _PACKAGES.search(line.file) or line.file.startswith(_LIGHTKIT):
                packages += [] if _FRAMEWORKS.search(line.file) else [line]
            elif not line.file.startswith(("<frozen", *_STANDARD_LIBRARY)):
                user.append(line)
        return user[-1] if user else packages[-1] if packages else None

    @property
    def waits_for_worker(self) -> bool:
        """Whether it waits for a batch from a data loader worker."""
        return any(line.file.endswith("data/dataloader.py") and "_get_data" in line.function for line in self.lines)


def capture_threads(main: int) -> list[Stack]:
    """Capture the stacks of all threads but the calling one, the main thread last.

    Args:
        main: Identifier of the main thread.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = []
    frames = sys._current_frames()
    for ident in sorted(frames.keys() - {threading.get_ident()}, key=lambda ident: ident == main):
        frame, name = frames[ident], f"thread {names.get(ident, ident)}"
        lines = [
            SourceLine(each.f_code.co_filename, line or 0, each.f_code.co_name)
            for each, line in traceback.walk_stack(frame)
        ]
        text = f"{name} (most recent call last):\n{''.join(traceback.format_stack(frame))}"
        stacks.append(Stack(name, text, tuple(reversed(lines)), *find_samples(frame)))
    return stacks


def find_samples(frame: FrameType | None) -> tuple[tuple[int, ...] | None, int | None]:
    """Find the batch's indices and the sample's index that a data loader fetches on a stack.

    Args:
        frame: The innermost frame.
    """
    sample: int | None = None
    for each, _ in traceback.walk_stack(frame):
        code, names = each.f_code, each.f_locals
        if code.co_name == "__getitem__" and sample is None and code.co_argcount > 1:
            sample = _read_index(names.get(code.co_varnames[1]))
        if code.co_filename.endswith(_FETCH) and "possibly_batched_index" in names:
            asked = names["possibly_batched_index"]
            indices = [_read_index(item) for item in asked] if isinstance(asked, list | tuple) else []
            return tuple(index for index in indices if index is not None) or None, sample
    return None, None  # any other `__getitem__` is not that of a data set


def _read_index(value: Any) -> int | None:
    try:
        return int(getattr(value, "index", value).__index__())  # a sampler's key may hold more than the number
    except (AttributeError, TypeError):
        return None


# -- other processes ---------------------------------------------------------------------------------------------


class _Shared:
    """File to which this process's forks write their stacks."""

    file: IO[bytes] | None = None

    @classmethod
    def read(cls, start: int = 0) -> str:
        """Read what was written from an offset on."""
        if cls.file is None:
            return ""
        size = os.fstat(cls.file.fileno()).st_size
        return os.pread(cls.file.fileno(), size - start, start).decode(errors="replace")

    @classmethod
    def write(cls, text: str) -> None:
        if cls.file is not None:
            os.write(cls.file.fileno(), text.encode())


def register_in_forks() -> None:
    """Let every process that is forked from now on write its stack on SIGUSR2."""
    if _Shared.file is None and hasattr(os, "register_at_fork") and hasattr(signal, "SIGUSR2"):
        _Shared.file = tempfile.TemporaryFile(prefix="lightkit-stacks-")  # noqa: SIM115 (open as long as the process)
        os.register_at_fork(after_in_child=_register)


def _register() -> None:
    with suppress(OSError, ValueError, RuntimeError):
        signal.signal(signal.SIGUSR2, _write_samples)  # runs after faulthandler, if Python gets to it
        assert _Shared.file is not None
        faulthandler.register(signal.SIGUSR2, file=_Shared.file, all_threads=True, chain=True)
        _Shared.write(f"ready: {os.getpid()}\n")


def _write_samples(_signum: int, frame: FrameType | None) -> None:
    _Shared.write(f"samples: {json.dumps(find_samples(frame))}\n")


def capture_children() -> list[Stack]:
    """Capture the stacks of the processes that this one has started with `multiprocessing`, as data loaders do."""
    deadline_s = time.monotonic() + _ANSWERS_S
    registered = _Shared.read()
    stacks = []
    for process in multiprocessing.active_children():
        if f"ready: {process.pid}\n" in registered:
            stacks.append(_capture_fork(int(process.pid or 0), deadline_s))
        elif program := shutil.which("py-spy"):
            command = [program, "dump", "--pid", str(process.pid)]
            with suppress(subprocess.TimeoutExpired):
                shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWERS_S)
                stacks.append(Stack(f"process {process.pid}", shown.stdout + shown.stderr))
        else:
            text = f"process {process.pid} ({process.name}) was not forked: pip install py-spy shows its stack\n"
            stacks.append(Stack(f"process {process.pid}", text))
    return stacks


def _capture_fork(pid: int, deadline_s: float) -> Stack:
    start = len(_Shared.read().encode())
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
    deadline_s = min(time.monotonic() + _ANSWER_S, max(deadline_s, time.monotonic() + 0.1))
    answer, samples = "", None
    while samples is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
        answer = _Shared.read(start)
        samples = re.search(r"^samples: (.*)\n", answer, re.MULTILINE)
    # Below the frames of the child are those of this process at the moment of the fork.
    own = re.sub(r"(  File .*multiprocessing/popen_fork\.py.*\n)(  File .*\n)*", r"\1", answer)
    own = re.sub(r"^samples: .*\n", "", own, flags=re.MULTILINE)
    main = own.rpartition("Current thread")[2].partition("\n\n")[0]
    lines = tuple(SourceLine(file, int(line), function) for file, line, function in _LINE.findall(main))[::-1]
    is_worker = any(_WORKER in line.file for line in lines)
    name = f"data loader worker {pid}" if is_worker else f"process {pid}"
    batch, sample = json.loads(samples[1]) if samples else (None, None)
    return Stack(name, f"{name}:\n{own}", lines, None if batch is None else tuple(batch), sample)
