"""The `watchdog` block of a config, the heartbeat, and the thread that ends a hanging process.

A process that is forked from this one lets `faulthandler` write its stack to a shared file on
SIGURG, which works also while it sleeps in native code. A process that has no handler for it
ignores it, and no scheduler sends it.
"""

from __future__ import annotations

import faulthandler
import json
import math
import multiprocessing
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import FrameSummary
from types import FrameType
from typing import IO, Annotated, Any, Literal

from lightkit.config import Resolved
from lightkit.config.bounds import MAX_FLOAT, Bounds

STALLED = 70
"""Exit code of a process that its watchdog has ended."""

_KEPT_STEPS = 50  # of each phase: enough for a median, and soon those of today's speed only
_UNTIMED_FACTOR = 4.0
_COLLECTIVE_GRACE_S = 5.0  # a rank that waits for others is ended after the rank that hangs
_UNWINDING_S = 20.0
_POLL_S = 1.0
_ANSWER_S = 0.5  # of one forked process; one in native code never comes to the end of its answer
# A frame of one of these files that is innermost stands for a collective: native code waits there
# for other ranks.
_COLLECTIVE = re.compile(
    r"torch/(?:autograd/graph\.py|distributed/|nn/parallel/)|horovod/(?:torch|common)/"
)
_DEBUGGER = re.compile(r"/(?:bdb\.py|pdb\.py|pydevd|debugpy/|pudb/|ipdb/)")
_LINE = re.compile(r'^\s*File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_FETCH = "torch/utils/data/_utils/fetch.py"
_ENTRY_POINT = re.compile(
    r"torch/utils/data/_utils/worker\.py|pytorch_lightning/|lightning/pytorch/"
)
_FRAMEWORK = re.compile(
    r"/(?:torch|pytorch_lightning|lightning|lightning_fabric|lightning_utilities)/"
)
_PACKAGE = re.compile(
    rf"/(?:site|dist)-packages/|^{re.escape(str(Path(__file__).resolve().parents[1]))}/"
)
_STANDARD_LIBRARY = ("<frozen", str(Path(os.__file__).parent))


# -- heartbeat -------------------------------------------------------------------------------------


class Heartbeat:
    """Progress of this process.

    When it last finished something, in which phase, and for which collective it waits.

    A phase (train, validate, ...) has steps, each of which is timed; what comes before its first
    and between two phases is no step, and takes an unknown time.
    """

    def __init__(self) -> None:
        self.progress_at_s = time.monotonic()
        self.phase = "start"
        self.waits_for: str | None = None
        self._in_step = False
        self._before = "start"
        self._steps: dict[str, deque[float]] = {}

    def beat(self) -> None:
        """Record progress."""
        self.progress_at_s = time.monotonic()

    def enter(self, phase: str) -> None:
        """Begin work that is no step, such as the wait for the first batch of a phase."""
        if self.phase != phase:
            self._before = self.phase
        self.phase = phase
        self._in_step = False
        self.beat()

    def leave(self) -> None:
        """End it and return to the phase before."""
        self.enter(self._before)

    def step(self, phase: str) -> None:
        """End a step of a phase and begin the next one."""
        now = time.monotonic()
        if self._in_step and phase == self.phase:
            self._steps.setdefault(phase, deque(maxlen=_KEPT_STEPS)).append(
                now - self.progress_at_s
            )
        self.phase = phase
        self._in_step = True
        self.progress_at_s = now

    @property
    def silent_s(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self.progress_at_s

    @property
    def step_s(self) -> float | None:
        """Median seconds of the phase's newest steps while one is under way.

        The value is None where no step is under way, or none was timed.
        """
        kept = tuple(self._steps.get(self.phase, ()))
        return statistics.median(kept) if self._in_step and kept else None

    @property
    def longest_step_s(self) -> float:
        """The longest of all phases' medians, in seconds; 0 before any step."""
        return max(
            (statistics.median(tuple(kept)) for kept in tuple(self._steps.values())), default=0.0
        )


_HEARTBEAT = Heartbeat()


def heartbeat() -> Heartbeat:
    """Return the heartbeat of this process."""
    return _HEARTBEAT


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Mark a block in which this process waits for all other ranks: then another one hangs.

    Args:
        what: Collective that it waits in, such as ``all-reduce of the gradients``.
    """
    before = _HEARTBEAT.waits_for
    _HEARTBEAT.waits_for = what
    try:
        yield
    finally:
        _HEARTBEAT.waits_for = before


# -- stacks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """Stack of a thread of this process or of a child process.

    Args:
        name: Name of the thread or process.
        text: The stack as Python writes it.
        frames: Its frames, the innermost last.
        batch: Indices of the batch that a data loader fetches on this stack.
        sample: Index of the sample that it fetches.
    """

    name: str
    text: str
    frames: Sequence[FrameSummary] = ()
    batch: Sequence[int] | None = None
    sample: int | None = None

    @property
    def own_line(self) -> str | None:
        """Innermost line of the user's code, else of a package besides Python, torch, Lightning.

        Formatted as ``mine.py:37 in __getitem__``, with a path relative to the working directory if
        possible.
        """
        files = [frame.filename for frame in self.frames]
        start = next((at for at, file in enumerate(files) if _ENTRY_POINT.search(file)), 0)
        packages = [frame for frame in self.frames[start:] if _PACKAGE.search(frame.filename)]
        others = [frame for frame in self.frames[start:] if frame not in packages]
        own = [frame for frame in others if not frame.filename.startswith(_STANDARD_LIBRARY)]
        own = own or [frame for frame in packages if not _FRAMEWORK.search(frame.filename)]
        if not own:
            return None
        path = Path(own[-1].filename)
        with suppress(ValueError):
            path = path.relative_to(Path.cwd())
        return f"{path}:{own[-1].lineno} in {own[-1].name}"


def capture_threads(main: int) -> list[Stack]:
    """Capture the stacks of all threads but the calling one, the main thread last.

    Args:
        main: Identifier of the main thread.
    """
    names = {thread.ident: f"thread {thread.name}" for thread in threading.enumerate()}
    stacks = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] == main):
        if ident != threading.get_ident():
            name = names.get(ident, f"thread {ident}")
            frames = traceback.extract_stack(frame)
            text = f"{name} (most recent call last):\n{''.join(frames.format())}"
            stacks.append(Stack(name, text, frames, *find_samples(frame)))
    return stacks


def find_samples(frame: FrameType | None) -> tuple[list[int] | None, int | None]:
    """Find the batch's indices and the sample's index that a data loader fetches on a stack.

    Args:
        frame: The innermost frame.
    """
    sample: int | None = None
    for each, _ in traceback.walk_stack(frame):
        code = each.f_code
        names = each.f_locals
        if code.co_name == "__getitem__" and sample is None and code.co_argcount > 1:
            sample = _read_index(names.get(code.co_varnames[1]))
        if code.co_filename.endswith(_FETCH) and "possibly_batched_index" in names:
            asked = names["possibly_batched_index"]
            indices = (
                [_read_index(item) for item in asked] if isinstance(asked, list | tuple) else []
            )
            return [index for index in indices if index is not None] or None, sample
    return None, None  # any other `__getitem__` is not that of a data set


def _read_index(value: Any) -> int | None:
    try:
        # a sampler's key may hold more than the number
        return int(getattr(value, "index", value).__index__())
    except (AttributeError, TypeError):
        return None


_STACK_FILE: list[IO[bytes]] = []  # to which this process's forks write their stacks


def register_in_forks() -> None:
    """Register SIGURG in all processes that are forked from now on.

    It writes their stacks and samples.
    """
    if _STACK_FILE:
        return
    file = tempfile.TemporaryFile(prefix="lightkit-stacks-")  # noqa: SIM115 (open as long as the process)
    _STACK_FILE.append(file)

    def write_samples(_signum: int, frame: FrameType | None) -> None:
        os.write(file.fileno(), f"samples: {json.dumps(find_samples(frame))}\n".encode())

    def register() -> None:
        with suppress(OSError, ValueError, RuntimeError):
            # runs after faulthandler, if Python gets to it
            signal.signal(signal.SIGURG, write_samples)
            faulthandler.register(signal.SIGURG, file=file, all_threads=True, chain=True)
            os.write(file.fileno(), f"ready: {os.getpid()}\n".encode())

    os.register_at_fork(after_in_child=register)


def _read_stack_file(start: int = 0) -> str:
    file = _STACK_FILE[0].fileno()
    return os.pread(file, os.fstat(file).st_size - start, start).decode(errors="replace")


def capture_children() -> list[Stack]:
    """Capture the stacks of the processes that `multiprocessing` has forked from this one.

    Data loaders do so.
    """
    registered = _read_stack_file() if _STACK_FILE else ""
    pids = [process.pid or 0 for process in multiprocessing.active_children()]
    return [_capture_fork(pid) for pid in pids if f"ready: {pid}\n" in registered]


def _capture_fork(pid: int) -> Stack:
    start = os.fstat(_STACK_FILE[0].fileno()).st_size
    deadline_s = time.monotonic() + _ANSWER_S
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGURG)
    text = ""
    samples = None
    while samples is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
        text = _read_stack_file(start)
        samples = re.search(r"^samples: (.*)\n", text, re.MULTILINE)
    main = text.rpartition("Current thread")[2].partition("\n\n")[0]
    frames = [
        FrameSummary(file, int(line), function) for file, line, function in _LINE.findall(main)
    ][::-1]
    name = f"data loader worker {pid}"
    return Stack(name, f"{name}:\n{text}", frames, *(json.loads(samples[1]) if samples else ()))


# -- watchdog --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WatchdogSettings:
    """When training that goes wrong by itself is ended.

    A step is a stall once nothing has been finished for longer than `factor` times the median of
    the last 50 steps of its kind (training, validation, test, prediction), and for longer than
    `floor_s` seconds. Untimed work has four times as long: the first two batches of a kind, the end
    of an epoch, a checkpoint. Downloads and the preparation of data before the first batch are not
    watched, nor is a debugger's prompt, and the time in which the whole process stood still does
    not count.

    Args:
        factor: Times the median step.
        floor_s: Seconds, however short the steps are; 0: nothing counts as a stall.
        on_nonfinite: After a loss that is NaN or infinite: `stop` ends the run and names its last
            good checkpoint; `skip` leaves the batch out.
    """

    factor: Annotated[float, Bounds(gt=0, le=MAX_FLOAT, expected="a number above 0")] = 20.0
    floor_s: Annotated[
        float, Bounds(ge=0, le=MAX_FLOAT, expected="seconds, or 0 to end nothing")
    ] = 300.0
    on_nonfinite: Literal["stop", "skip"] = "stop"

    def limit_s(self, heartbeat: Heartbeat) -> float:
        """Compute the seconds that the current step or work may take.

        Infinite if nothing counts as a stall.
        """
        if not self.floor_s:
            return math.inf
        step_s = heartbeat.step_s
        if step_s is not None:
            return max(self.factor * step_s, self.floor_s)
        return _UNTIMED_FACTOR * max(self.factor * heartbeat.longest_step_s, self.floor_s)


def read_watchdog(resolved: Resolved) -> WatchdogSettings:
    """Read the `watchdog` block of a config, whose keys and values are checked with all others."""
    return resolved.read_section("watchdog", WatchdogSettings)


@dataclass(frozen=True)
class Stall:
    """Description of a process that makes no progress.

    Args:
        phase: Its last work: train, validate, ...
        seconds: Since its last progress.
        limit_s: Seconds that it may take.
        culprit: Stack of the thread or process that hangs.
        waits_for: Collective in which it waits for other ranks.
        stacks: Text of the stacks of all child processes and threads, the main thread last.
    """

    phase: str
    seconds: float
    limit_s: float
    culprit: Stack
    waits_for: str | None
    stacks: str

    def __str__(self) -> str:
        """Format it as one line."""
        line = f" at {self.culprit.own_line}" if self.culprit.own_line else ""
        sample = (
            f", loading sample {self.culprit.sample}" if self.culprit.sample is not None else ""
        )
        return (
            f"nothing was finished for {self.seconds:.0f} s in phase {self.phase}, which may take"
            f" {self.limit_s:.0f} s (watchdog.factor, watchdog.floor_s): {self.culprit.name}"
            f" hangs{line}{sample}"
        )


class Hung(BaseException):
    """Raised in the main thread where it hangs.

    No `Exception`, since a data set may skip samples that raise one.
    """

    def __init__(self, stall: Stall) -> None:
        super().__init__(str(stall))
        self.stall = stall


class Watchdog:
    """A thread that ends this process once nothing has been finished for too long.

    Args:
        heartbeat: Progress of this process.
        limit_s: Returns the seconds that the current work may take; 0 or infinity: it is not
            watched.
        report: Called with a stall.
        end: Ends the process with the exit code `STALLED`.
        sample: Called about once a second by the thread, such as for the use of memory.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        *,
        limit_s: Callable[[], float],
        report: Callable[[Stall], None],
        end: Callable[[Stall], object] = lambda _: os._exit(STALLED),
        sample: Callable[[], object] = lambda: None,
    ) -> None:
        self.stall: Stall | None = None
        self._heartbeat = heartbeat
        self._limit_s = limit_s
        self._report = report
        self._end = end
        self._sample = sample
        self._stopped = threading.Event()
        self._main = 0
        self._raises = False
        self._thread: threading.Thread | None = None

    def prepare(self, *, gently: bool) -> None:
        """Make data loader workers that begin from now on show their stacks.

        Args:
            gently: Raise `Hung` in the main thread first, and end the process only if it does not
                end by itself.
        """
        if not 0 < self._limit_s() < math.inf:
            return
        register_in_forks()
        is_main = threading.current_thread() is threading.main_thread()
        if gently and is_main and signal.getsignal(signal.SIGURG) == signal.SIG_DFL:
            signal.signal(signal.SIGURG, self._raise_hung)
            self._raises = True

    def start(self) -> None:
        """Begin to watch; without a limit, or after the first call, do nothing."""
        if 0 < self._limit_s() < math.inf and self._thread is None and not self._stopped.is_set():
            self._heartbeat.beat()
            self._main = threading.get_ident()
            self._thread = threading.Thread(
                target=self._watch, name="lightkit-watchdog", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()
        if self._raises and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGURG, signal.SIG_DFL)
            self._raises = False

    def _raise_hung(self, _signum: int, _frame: FrameType | None) -> None:
        if self.stall is not None:
            raise Hung(self.stall)

    def _watch(self) -> None:
        beat = self._heartbeat
        woke_s = time.monotonic()
        while not self._stopped.wait(wait_s := min(_POLL_S, self._limit_s() / 4)):
            before_s = woke_s
            woke_s = time.monotonic()
            late_s = woke_s - before_s - wait_s
            # this thread stood still too: a machine that slept, a process that was stopped
            if late_s > _POLL_S:
                beat.progress_at_s = min(beat.progress_at_s + late_s, woke_s)
            self._sample()
            if (stall := self._find_stall()) is not None:
                self.stall = stall
                try:
                    self._report(stall)
                finally:
                    if not self._unwind():
                        self._end(stall)
                return

    def _find_stall(self) -> Stall | None:
        beat = self._heartbeat
        limit_s = self._limit_s()
        progress_at_s = beat.progress_at_s
        phase = beat.phase
        silent_s = beat.silent_s
        waits_for = beat.waits_for
        if silent_s <= limit_s:
            return None
        threads = capture_threads(self._main)
        culprit = replace(threads[-1], name="the main thread")
        files = [frame.filename for frame in culprit.frames]
        if any(map(_DEBUGGER.search, files)):
            beat.beat()
            return None
        waits_for = waits_for or ("a collective" if _COLLECTIVE.search(files[-1]) else None)
        if waits_for and silent_s <= limit_s + _COLLECTIVE_GRACE_S:
            return None
        children = capture_children()
        if beat.progress_at_s != progress_at_s:  # at the last moment
            return None
        # Where it waits for a worker, a worker that shows what it loads is the one that hangs.
        if any(
            each.filename.endswith("data/dataloader.py") and "_get_data" in each.name
            for each in culprit.frames
        ):
            loading = [child for child in children if child.own_line is not None]
            culprit = max(loading, key=lambda child: child.batch is not None, default=culprit)
        stacks = "\n".join(stack.text for stack in (*children, *threads))
        return Stall(phase, round(silent_s, 3), limit_s, culprit, waits_for, stacks)

    def _unwind(self) -> bool:
        """Raise `Hung` in the main thread and wait for its end.

        It waits for as long as a checkpoint may take, too.
        """
        if not self._raises:
            return False
        signal.pthread_kill(self._main, signal.SIGURG)
        deadline_s = time.monotonic() + _UNWINDING_S
        beat = self._heartbeat
        while time.monotonic() < deadline_s or (
            beat.phase == "checkpoint" and beat.silent_s < self._limit_s()
        ):
            if self._stopped.wait(_POLL_S):
                return True
        return False
