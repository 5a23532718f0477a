"""One command of lightkit as a process of its own, to which the signals of this one are passed on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from types import FrameType
from typing import Any

from lightkit.launch.processes import Tree, started_tree

__all__ = ["Ended", "Relay", "run_command"]

_LOOK_S = 0.1
_HURRIED_S = 5.0
_LEFT_BEHIND_S = 10.0
_ASKING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))


@dataclass(frozen=True)
class Ended:
    """How a command has ended.

    Args:
        code: Its exit code; above 128 where a signal ended it.
        seconds: How long it took.
        was_late: Whether it was asked to end because its deadline had come.
        killed_by: Signal that has ended it without its doing, if one has.
    """

    code: int
    seconds: float
    was_late: bool = False
    killed_by: int | None = None


class Relay:
    """Passes signals on to the command that runs; a context manager.

    The first one lets it save what it has; after the second one it has a few seconds. Between two commands a signal is
    remembered. Those that this process was started to ignore are left alone,
    but for SIGTERM.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.tree: Tree | None = None
        self._kill_at_s: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Relay:
        for signum in _ASKING:
            if signal.getsignal(signum) != signal.SIG_IGN or signum == signal.SIGTERM:
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()

    @property
    def is_over(self) -> bool:
        """Whether the command was asked twice, and has not ended within a few seconds."""
        return self._kill_at_s is not None and time.monotonic() >= self._kill_at_s

    def pass_on(self, signum: int) -> None:
        """Ask the command that runs to end."""
        if self.tree is not None and self.tree.program.poll() is None:
            self.tree.program.send_signal(signum)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.received is not None and self._kill_at_s is None:
            self._kill_at_s = time.monotonic() + _HURRIED_S
        self.received = self.received or signum
        self.pass_on(signum)


def run_command(
    words: Sequence[str],
    relay: Relay,
    *,
    environment: Mapping[str, str],
    deadline: datetime | None = None,
    look: Callable[[], None] = lambda: None,
    is_silent: bool = False,
) -> Ended:
    """Run ``lightkit`` with these words, and wait for its end and that of all that it has started.

    Its output is that of this process, and a terminal stays one. It is asked to end should this process be killed.

    Args:
        words: The words after the program's name.
        relay: Passes on signals.
        environment: Variables beside those of this process.
        deadline: Moment at which it is asked to end.
        look: Called again and again, and once more after the end.
        is_silent: Leave out its standard output.
    """
    began_s = time.monotonic()
    relay.tree = started_tree(
        [sys.executable, "-m", "lightkit", *words],
        environment={**os.environ, **environment},
        stdout=subprocess.DEVNULL if is_silent else None,
    )
    was_late = False
    try:
        if relay.received is not None:  # while it was being started
            relay.pass_on(relay.received)
        while (code := relay.tree.poll()) is None:
            look()
            if not was_late and deadline is not None and datetime.now(timezone.utc) >= deadline:
                was_late = True
                relay.pass_on(signal.SIGTERM)
            if relay.is_over:
                relay.tree.end(timeout_s=0)
            _wait(relay.tree)
    finally:
        relay.tree.end(timeout_s=_LEFT_BEHIND_S)
        tree, relay.tree = relay.tree, None
    look()
    raw = tree.program.returncode
    return Ended(code, time.monotonic() - began_s, was_late, -raw if raw is not None and raw < 0 else None)


def _wait(tree: Tree) -> None:
    with suppress(subprocess.TimeoutExpired):
        tree.program.wait(_LOOK_S)
