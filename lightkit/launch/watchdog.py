"""Ends a process that makes no progress, and says where it stands."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from lightkit.launch.effort import Effort
from lightkit.launch.heartbeat import Heartbeat
from lightkit.launch.stacks import Samples, Stack, own_stacks, show_forks, stacks_of_children

__all__ = ["STALLED", "Hung", "Stall", "Watchdog"]

STALLED = 70
"""Exit code of a process that its watchdog has ended."""
_GRACE_S = 5.0
_UNWINDING_S = 20.0
_MOST_UNWINDING_S = 600.0
_MOST_SWALLOWED = 3
_LOOK_S = 1.0
# A frame of one of these files that is innermost stands for a collective: native code waits there for other ranks.
_COLLECTIVES = (
    "torch/autograd/graph.py",
    "torch/distributed/",
    "torch/nn/parallel/",
    "horovod/torch/",
    "horovod/common/",
)
# Whose stack has one of these is being looked at by a person.
_DEBUGGERS = ("/bdb.py", "/pdb.py", "/pydevd", "/debugpy/", "/pudb/", "/ipdb/")


@dataclass(frozen=True)
class Stall:
    """What is known of a process that makes no progress.

    Args:
        phase: What it did last: train, validate, ...
        seconds: Since its last progress.
        limit_s: Seconds that it had.
        who: The thread or process that stands still.
        at: The line at which it stands, if any is known that is not Python's, torch's or Lightning's own.
        samples: What it was loading.
        waits_for: Collective in which it waits for other ranks.
        stacks: The stacks of all threads and of all processes that were started here, the main thread's last.
    """

    phase: str
    seconds: float
    limit_s: float
    who: str
    at: str | None
    samples: Samples
    waits_for: str | None
    stacks: str

    @property
    def told(self) -> str:
        """Say what has happened, in one line."""
        return (
            f"nothing was finished for {self.seconds:.0f} s in phase {self.phase}, which may take {self.limit_s:.0f} s "
            f"(watchdog.factor, watchdog.floor_s): {self.where}"
        )

    @property
    def where(self) -> str:
        """Say where it stands."""
        line = f" at {self.at}" if self.at else ""
        sample = f", loading sample {self.samples.sample}" if self.samples.sample is not None else ""
        return f"{self.who} stands still{line}{sample}"


class Hung(BaseException):
    """Raised in the main thread where it hangs. No `Exception`: a data set that passes over what fails must not."""

    def __init__(self, stall: Stall) -> None:
        super().__init__(stall.told)
        self.stall = stall


class Watchdog:
    """A thread that ends this process once nothing has been finished for too long.

    Whoever waits for other ranks in a collective waits a little longer than the rank that hangs, so that this one
    is the first to say where it stands.

    Args:
        heartbeat: Progress of this process.
        limit_s: Gives the seconds that what is under way may take; 0 or infinity: it is not watched.
        report: Told of a stall.
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
        self._limit_s = limit_s
        self._report = report
        self._end = end
        self._stopped = threading.Event()
        self._main = threading.current_thread()
        self._wakes = self.is_heard = False  # the latter once `Hung` has come to whoever records the end
        self._raised: weakref.ref[Hung] | None = None
        self._effort = Effort(self._main)
        self._thread: threading.Thread | None = None

    def prepare(self, *, gently: bool) -> None:
        """Let loading processes that begin from now on show their stacks.

        Args:
            gently: Raise `Hung` in the main thread first, and end the process only where that does not end.
        """
        if not self._is_on:
            return
        show_forks()
        if gently and _can_handle(signal.SIGUSR2):
            signal.signal(signal.SIGUSR2, self._wake)
            self._wakes = True

    def start(self) -> None:
        """Begin to watch; a second call, and no limit, change nothing."""
        if self._is_on and self._thread is None and not self._stopped.is_set():
            self._heartbeat.beat()
            self._main = threading.current_thread()  # under Spark and Ray no rank's is the process's own
            self._effort = Effort(self._main)
            self._thread = threading.Thread(target=self._watch, name="lightkit-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()
        if self._wakes and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
            self._wakes = False

    @property
    def _is_on(self) -> bool:
        return 0 < self._limit_s() < float("inf")

    def _wake(self, _signum: int, _frame: FrameType | None) -> None:
        if self.stall is None or self.is_heard or not (self._raised is None or self._is_swallowed):
            return
        hung = Hung(self.stall)
        self._raised = weakref.ref(hung)
        try:
            raise hung
        finally:
            del hung  # of which this frame, kept by its traceback, would be the last owner

    @property
    def _is_swallowed(self) -> bool:
        """Whether nobody has the exception any more, as after `except BaseException: pass` in the code that hung."""
        return self._raised is not None and self._raised() is None and not self.is_heard

    def _watch(self) -> None:
        looked_s = time.monotonic()
        while not self._stopped.wait(wait_s := min(_LOOK_S, self._limit_s() / 4)):
            late_s = time.monotonic() - looked_s - wait_s
            if late_s > _LOOK_S:  # this thread stood still too: a machine that slept, a process that was stopped
                self._heartbeat.postpone(late_s)
            looked_s = time.monotonic()
            if (stall := self._found()) is not None:
                self._end_of(stall)
                return

    def _found(self) -> Stall | None:
        limit_s, silent_s = self._limit_s(), self._heartbeat.silent_s
        if self._effort.grew() and self._heartbeat.step_s is None:
            self._heartbeat.beat()
            return None
        if silent_s <= limit_s:
            return None
        if _is_debugged(self._main.ident):
            self._heartbeat.beat()
            return None
        waits_for = self._waits_for()
        if waits_for is not None and silent_s <= limit_s + _GRACE_S:
            return None
        return self._described(silent_s, limit_s, waits_for)

    def _described(self, silent_s: float, limit_s: float, waits_for: str | None) -> Stall | None:
        before_s, phase = self._heartbeat.progress_at_s, self._heartbeat.phase
        own, children = own_stacks(self._main.ident or 0), stacks_of_children()
        if self._heartbeat.progress_at_s != before_s:  # at the last moment
            return None
        culprit = _culprit(own, children)
        return Stall(
            phase=phase,
            seconds=round(silent_s, 3),
            limit_s=limit_s,
            who=culprit.who,
            at=None if culprit.at is None else str(culprit.at),
            samples=culprit.samples,
            waits_for=waits_for,
            stacks="\n".join(stack.text for stack in (*children, *own)),
        )

    def _end_of(self, stall: Stall) -> None:
        self.stall = stall
        try:
            self._report(stall)
        finally:
            if not (self._wakes and self._has_ended()):
                self._end(stall)

    def _has_ended(self) -> bool:
        """Wake the main thread and wait for it to save and to end, longer as long as it reads and writes.

        Where its own code passes over that, it is woken again, and not waited for after the third time.
        """
        assert self._main.ident is not None
        signal.pthread_kill(self._main.ident, signal.SIGUSR2)
        most_s = time.monotonic() + _MOST_UNWINDING_S
        deadline_s = time.monotonic() + _UNWINDING_S
        num_swallowed = 0
        while time.monotonic() < deadline_s:
            if self._stopped.wait(_LOOK_S):
                return True
            if self._is_swallowed:
                num_swallowed += 1
                if num_swallowed == _MOST_SWALLOWED:
                    return False
                signal.pthread_kill(self._main.ident, signal.SIGUSR2)
            if self._effort.grew():
                deadline_s = min(time.monotonic() + _UNWINDING_S, most_s)
        return False

    def _waits_for(self) -> str | None:
        if self._heartbeat.waits_for is not None:
            return self._heartbeat.waits_for
        frame = sys._current_frames().get(self._main.ident or 0)
        path = "" if frame is None else frame.f_code.co_filename.replace(os.sep, "/")
        return "a collective" if any(part in path for part in _COLLECTIVES) else None


def _can_handle(signum: int) -> bool:
    """Whether a handler can be set here, and nobody else has set one."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signum) == signal.SIG_DFL


def _is_debugged(main: int | None) -> bool:
    frame = sys._current_frames().get(main or 0)
    files = (each.f_code.co_filename.replace(os.sep, "/") for each, _ in traceback.walk_stack(frame))
    return any(part in file for file in files for part in _DEBUGGERS)


def _culprit(own: list[Stack], children: list[Stack]) -> Stack:
    """Choose who stands still: a process that loads where the main thread waits for it, else the main thread."""
    main = own[-1] if own else Stack("this process", "")
    loading = [stack for stack in children if stack.at is not None] if main.waits_for_loader else []
    if loading:
        return max(loading, key=lambda stack: stack.samples != Samples())
    return Stack("the main thread", main.text, main.places, main.samples)
