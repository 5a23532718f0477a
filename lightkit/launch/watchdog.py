"""The `watchdog` block of a config, and the thread that ends a process which makes no progress."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import FrameType
from typing import Literal

from lightkit.config import Resolved, mistake, read_scalar
from lightkit.launch.heartbeat import Heartbeat
from lightkit.launch.stacks import Stack, capture_children, capture_threads, register_in_forks

__all__ = ["STALLED", "Hung", "Stall", "Watchdog", "WatchdogSettings", "read_watchdog"]

STALLED = 70
"""Exit code of a process that its watchdog has ended."""

_UNTIMED_FACTOR = 4.0
_COLLECTIVE_GRACE_S = 5.0  # a rank that waits for others is ended after the rank that hangs
_UNWINDING_S = 20.0
_LONGEST_UNWINDING_S = 600.0
_POLL_S = 1.0
_IO_BYTES = 2**20  # less than that is a loop that asks a file again and again
# A frame of one of these files that is innermost stands for a collective: native code waits there for other ranks.
_COLLECTIVES = (
    "torch/autograd/graph.py",
    "torch/distributed/",
    "torch/nn/parallel/",
    "horovod/torch/",
    "horovod/common/",
)
_DEBUGGERS = ("/bdb.py", "/pdb.py", "/pydevd", "/debugpy/", "/pudb/", "/ipdb/")


@dataclass(frozen=True)
class WatchdogSettings:
    """When training that goes wrong by itself is ended.

    A step is a stall once nothing has been finished for longer than `factor` times the median of the last 50 steps of
    its kind (training, validation, test, prediction), and for longer than `floor_s` seconds. Untimed work has
    four times as long: the first two batches of a kind, the end of an epoch, a checkpoint; and longer as long as it
    reads or writes files. Downloads and the preparation of data before the first batch are not watched, nor is a
    debugger's prompt, and the time in which the whole process stood still does not count.

    Args:
        factor: Times the median step.
        floor_s: Seconds, however short the steps are; 0: nothing counts as a stall.
        on_nonfinite: After a loss that is NaN or infinite: `stop` ends the run and names its last good checkpoint;
            `skip` leaves the batch out.
    """

    factor: float = 20.0
    floor_s: float = 300.0
    on_nonfinite: Literal["stop", "skip"] = "stop"

    def limit_s(self, heartbeat: Heartbeat) -> float:
        """Compute the seconds that the current step or work may take; infinite if nothing counts as a stall."""
        if not self.floor_s:
            return math.inf
        step_s = heartbeat.step_s
        if step_s is not None:
            return max(self.factor * step_s, self.floor_s)
        return _UNTIMED_FACTOR * max(self.factor * heartbeat.longest_step_s, self.floor_s)


def read_watchdog(resolved: Resolved) -> WatchdogSettings:
    """Read the `watchdog` block of a config, whose keys and types are checked with all others.

    Raises:
        ConfigError: If a number in it is out of range.
    """
    block = resolved.values.get("watchdog")
    known = [field.name for field in fields(WatchdogSettings)]
    values = {
        key: read_scalar(value) if isinstance(value, str) else value
        for key, value in (block if isinstance(block, dict) else {}).items()
        if key in known
    }
    for key, least, expected in (
        ("factor", 1e-300, "a number above 0"),
        ("floor_s", 0, "seconds, or 0 to end nothing"),
    ):
        value = values.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and not least <= value < math.inf:
            raise mistake(f"watchdog.{key}: expected {expected}, got {value!r}", resolved.origin_of(("watchdog", key)))
    return WatchdogSettings(**values)


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

    @property
    def line(self) -> str | None:
        """Line of code at which it hangs, if any is known that is not Python's, torch's or Lightning's own."""
        return None if self.culprit.own_line is None else str(self.culprit.own_line)

    def __str__(self) -> str:
        """Format it as one line."""
        line = f" at {self.line}" if self.line else ""
        sample = f", loading sample {self.culprit.sample}" if self.culprit.sample is not None else ""
        return (
            f"nothing was finished for {self.seconds:.0f} s in phase {self.phase}, which may take {self.limit_s:.0f} s "
            f"(watchdog.factor, watchdog.floor_s): {self.culprit.name} hangs{line}{sample}"
        )


class Hung(BaseException):
    """Raised in the main thread where it hangs; no `Exception`, since a data set may skip samples that raise one."""

    def __init__(self, stall: Stall) -> None:
        super().__init__(str(stall))
        self.stall = stall


class Watchdog:
    """A thread that ends this process once nothing has been finished for too long.

    Args:
        heartbeat: Progress of this process.
        limit_s: Returns the seconds that the current work may take; 0 or infinity: it is not watched.
        report: Called with a stall.
        end: Ends the process with the exit code `STALLED`.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        *,
        limit_s: Callable[[], float],
        report: Callable[[Stall], None],
        end: Callable[[Stall], object] = lambda _: os._exit(STALLED),
    ) -> None:
        self.stall: Stall | None = None
        self._heartbeat = heartbeat
        self._limit_s, self._report, self._end = limit_s, report, end
        self._stopped = threading.Event()
        self._main = threading.current_thread()
        self._io_bytes = 0
        self._raises = False
        self._thread: threading.Thread | None = None

    def prepare(self, *, gently: bool) -> None:
        """Let data loader workers that begin from now on show their stacks.

        Args:
            gently: Raise `Hung` in the main thread first, and end the process only if it does not end by itself.
        """
        if not 0 < self._limit_s() < math.inf:
            return
        register_in_forks()
        is_main = threading.current_thread() is threading.main_thread()
        if gently and is_main and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR2, self._raise_hung)
            self._raises = True

    def start(self) -> None:
        """Begin to watch; without a limit, or after the first call, do nothing."""
        if 0 < self._limit_s() < math.inf and self._thread is None and not self._stopped.is_set():
            self._heartbeat.beat()
            self._main = threading.current_thread()  # under Ray no rank's is the process's own
            self._io_bytes = _count_io_bytes(self._main)
            self._thread = threading.Thread(target=self._watch, name="lightkit-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()
        if self._raises and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
            self._raises = False

    def _raise_hung(self, _signum: int, _frame: FrameType | None) -> None:
        if self.stall is not None:
            raise Hung(self.stall)

    def _watch(self) -> None:
        woke_s = time.monotonic()
        while not self._stopped.wait(wait_s := min(_POLL_S, self._limit_s() / 4)):
            late_s = time.monotonic() - woke_s - wait_s
            if late_s > _POLL_S:  # this thread stood still too: a machine that slept, a process that was stopped
                self._heartbeat.postpone(late_s)
            woke_s = time.monotonic()
            if (stall := self._find_stall()) is not None:
                self.stall = stall
                try:
                    self._report(stall)
                finally:
                    if not self._unwind():
                        self._end(stall)
                return

    def _find_stall(self) -> Stall | None:
        limit_s, progress_at_s, phase = self._limit_s(), self._heartbeat.progress_at_s, self._heartbeat.phase
        silent_s = self._heartbeat.silent_s
        main = self._main.ident or 0
        frame = sys._current_frames().get(main)
        files = (
            [each.f_code.co_filename.replace(os.sep, "/") for each, _ in traceback.walk_stack(frame)] if frame else []
        )
        is_slow_io = self._does_io() and self._heartbeat.step_s is None
        if is_slow_io or (silent_s > limit_s and any(part in file for file in files for part in _DEBUGGERS)):
            self._heartbeat.beat()
            return None
        waits_for = self._heartbeat.waits_for
        if waits_for is None and files and any(part in files[0] for part in _COLLECTIVES):
            waits_for = "a collective"
        if silent_s <= limit_s + (_COLLECTIVE_GRACE_S if waits_for else 0):
            return None
        threads, children = capture_threads(main), capture_children()
        if self._heartbeat.progress_at_s != progress_at_s:  # at the last moment
            return None
        main_stack = replace(threads[-1], name="the main thread")
        # Where it waits for a worker, a worker that shows what it loads is the one that hangs.
        loading = [child for child in children if child.own_line is not None] if main_stack.waits_for_worker else []
        culprit = max(loading, key=lambda child: child.batch is not None, default=main_stack)
        stacks = "\n".join(stack.text for stack in (*children, *threads))
        return Stall(phase, round(silent_s, 3), limit_s, culprit, waits_for, stacks)

    def _unwind(self) -> bool:
        """Raise `Hung` in the main thread and wait for its end, longer as long as it reads or writes files."""
        if not self._raises:
            return False
        assert self._main.ident is not None
        signal.pthread_kill(self._main.ident, signal.SIGUSR2)
        last_s = time.monotonic() + _LONGEST_UNWINDING_S
        deadline_s = time.monotonic() + _UNWINDING_S
        while time.monotonic() < min(deadline_s, last_s):
            if self._stopped.wait(_POLL_S):
                return True
            if self._does_io():
                deadline_s = time.monotonic() + _UNWINDING_S
        return False

    def _does_io(self) -> bool:
        """Tell whether the main thread has read or written a good deal since this was last true."""
        num_bytes = _count_io_bytes(self._main)
        if num_bytes - self._io_bytes < _IO_BYTES:
            return False
        self._io_bytes = num_bytes
        return True


def _count_io_bytes(thread: threading.Thread) -> int:
    try:
        lines = Path(f"/proc/self/task/{thread.native_id}/io").read_text(encoding="ascii").splitlines()
    except OSError:  # no Linux, not allowed, or ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))
