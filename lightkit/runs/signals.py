"""Signals that ask a run to end, turned into one exception where stopping loses nothing."""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from lightkit.errors import Interrupted, is_interruption

PATIENCE_S = 11.5
"""Seconds from a signal to the end of a process that does not end by itself; with its last words
less than 15 s."""

_LAST_WORDS_S = 2.0
_SAME_WISH_S = 0.5  # `timeout` sends its signal to the process and then to its group
_ASKING = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    if hasattr(signal, name)
)
_LISTENING: set[int] = set()
"""Ids of the processes that read their signals' numbers from a pipe."""
_Handler = Callable[[int, FrameType | None], object] | int | None


def _stop_listening() -> None:
    """Write no signal of a forked process into the pipe that it shares with its parent."""
    if os.getppid() in _LISTENING:
        _LISTENING.clear()
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_stop_listening)


def kill_children() -> None:
    """Kill processes that descend from this one; return once they are gone, or after 1 s.

    The process with which Python removes shared memory that others leave behind is spared: it ends
    by itself.
    """
    import psutil  # slow to import, and rarely needed by a program that begins

    for _ in range(20):  # what a killed one has started meanwhile too
        left = []
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(
                    child.cmdline()
                ):
                    left.append(child)
                    child.kill()
        if not left:
            return
        time.sleep(0.05)


class SignalWatch:
    """Remember SIGINT, SIGTERM, SIGUSR1 and SIGHUP while a step is computed.

    Raise `Interrupted` at once elsewhere.

    A second signal ends the process immediately, without saving: whoever sends two means it. A
    process that has not ended `PATIENCE_S` after the first is ended, with the processes that it has
    started. SIGHUP and SIGINT are left alone where the process was started to ignore them, as
    `nohup` and a script's `&` have it.

    Python calls no handler while the main thread is in native code, as when ranks wait for one that
    never comes. The signal's number is therefore also written into a pipe, from which a thread
    starts the clock.

    Args:
        to_the_end: Go on after the block until the process has ended, if a signal has come; so for
            a whole program.
        owns_process: Whether the process may be ended by force; False in a script or a notebook,
            which goes on.
    """

    def __init__(self, *, to_the_end: bool = False, owns_process: bool = True) -> None:
        self.owns_process = owns_process
        self.received: int | None = None
        self.deferred = False
        self.has_raised = False
        """Whether `Interrupted` was raised at once, in the middle of other code."""
        self.last_words: Callable[[int], int] | None = None
        """Called in a thread, with the signal, when the process is ended by force: it gives the
        exit code."""
        self.code: int | None = None
        """The exit code, once it is known."""
        self._to_the_end = to_the_end
        self._previous: dict[int, _Handler] = {}
        self._patient: set[int] = set()
        self._first: tuple[int, float] | None = None
        self._over = threading.Event()
        self._is_handed_over = False
        self._pid = os.getpid()
        self._pipe: tuple[int, int] | None = None
        self._wakeup_before = -1

    def __enter__(self) -> SignalWatch:
        """Install the handlers; outside the main thread, where Python allows none, do nothing."""
        for signum in _ASKING:
            handler = signal.getsignal(signum)
            if signum == signal.SIGINT and handler == signal.SIG_IGN:
                continue  # as a shell has it for what a script runs in the background
            if signum not in (signal.SIGINT, signal.SIGTERM) and handler != signal.SIG_DFL:
                continue  # ignored, or somebody else's
            self.add(signum)
        if self._to_the_end:
            atexit.register(self._leave_none)
        if self.owns_process and threading.current_thread() is threading.main_thread():
            self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        """Put the handlers back that were there before.

        At the end of a whole program, signals that could wait for as long as it takes are ignored
        from here on: nothing is left to save, and Slurm's, in the seconds until the process has
        ended, would make a failure of a success.
        """
        if self._to_the_end and self.received is not None:
            return
        self._over.set()
        for signum, handler in self._previous.items():
            is_over = self._to_the_end and signum in self._patient
            signal.signal(signum, signal.SIG_IGN if is_over else handler)
        self._previous.clear()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup_before)
            os.close(self._pipe[1])  # the thread reads the end of the pipe, and closes its side
            self._pipe = None

    def add(self, signum: int, *, patiently: bool = False) -> None:
        """Treat a signal as such a wish.

        Outside the main thread, where Python allows no handler, do nothing.

        Args:
            signum: Its number.
            patiently: Let it wait for as long as it takes until training can be resumed.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.signal(signum, self._handle)
        self._previous.setdefault(signum, before)
        if patiently:
            self._patient.add(signum)

    def note(self, signum: int) -> None:
        """Take a wish of another way for a signal that waits for the end of the batch."""
        self.received = self.received or signum

    def explains(self, error: BaseException) -> bool:
        """Return whether an error is what became of the signal, and no news of its own.

        A library may swallow what was raised while it was being loaded, and stumble over its own
        half afterwards.
        """
        return self.received is not None and (self.has_raised or is_interruption(error))

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Defer signals to the end of a block that must not be cut off.

        Such as the last line of the records.
        """
        before = self.deferred
        self.deferred = True
        try:
            yield
        finally:
            self.deferred = before

    def stop_deferring(self) -> None:
        """Raise signals at once from here on, and the one that has come meanwhile.

        Raises:
            Interrupted: If one has come.
        """
        self.deferred = False
        if self.received is not None:
            self.has_raised = True
            raise Interrupted(self.received)

    def cut(self, code: int, words: str | None = None) -> None:
        """End this process and those that it has started, at once.

        Interrupt a process that is not owned.

        Args:
            code: Exit code.
            words: What to say on standard error.
        """
        if words is not None:
            with suppress(OSError):
                os.write(2, f"{words}\n".encode(errors="replace"))
        if not self.owns_process:
            _thread.interrupt_main()
            return
        kill_children()
        os._exit(code)

    @contextmanager
    def handed_over(self) -> Iterator[None]:
        """Leave signals to a block that has handlers and a clock of its own.

        The supervisor of a launch has these.
        """
        self._is_handed_over = True
        try:
            yield
        finally:
            self._is_handed_over = False

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        # a loader's, which Ctrl-C reaches too: the batch that is being saved may need it
        if os.getpid() != self._pid:
            if signum == signal.SIGTERM:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
            return
        if signum in self._patient:
            self.note(signum)
            return
        if self.received is None:
            self.received = signum
            if not self.deferred:
                self.has_raised = True
                raise Interrupted(signum)

    def _listen(self) -> None:
        """Start a thread that reads the number of each signal, whatever the main thread does."""
        self._pipe = reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        _LISTENING.add(self._pid)

        def listen() -> None:
            while numbers := os.read(reader, 64):
                for signum in numbers:
                    self._hear(signum)
            os.close(reader)

        threading.Thread(target=listen, name="signals", daemon=True).start()

    def _hear(self, signum: int) -> None:
        if signum in self._previous and signum not in self._patient and not self._is_handed_over:
            self._come(signum)

    def _come(self, signum: int) -> None:
        """Start the clock with the first signal, and end the process with the second."""
        if self._first is None:
            self._first = signum, time.monotonic()
            threading.Thread(target=self._end_in_time, daemon=True).start()
        elif signum != self._first[0] or time.monotonic() - self._first[1] > _SAME_WISH_S:
            self.cut(128 + signum)

    def _leave_none(self) -> None:
        """End what libraries, whose own ends come before this one, should have ended by now."""
        if self.received is not None and os.getpid() == self._pid:
            kill_children()

    def _end_in_time(self) -> None:
        assert self._first is not None
        signum, _ = self._first
        if self._over.wait(PATIENCE_S):
            return
        codes = [128 + signum]
        if (last_words := self.last_words) is not None:
            speaker = threading.Thread(target=lambda: codes.append(last_words(signum)), daemon=True)
            speaker.start()  # in a thread of its own: what it needs may be held by what hangs
            speaker.join(_LAST_WORDS_S)
        self.cut(
            codes[-1] if self.code is None else self.code,
            f"ended by force: not all had ended {PATIENCE_S:g} s after the signal",
        )
