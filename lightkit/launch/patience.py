"""How long a supervisor waits: for ranks that have not arrived, have failed, are to save, or do not end."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from lightkit.launch.board import Standing
from lightkit.launch.plan import Plan

__all__ = ["Patience", "saving_s"]

_LOOK_S = 0.25
_PEERS_S = 10.0
_RESTART_S = 90.0
_EXIT_S = 20.0


def saving_s(signum: int) -> float:
    """Give the seconds that ranks have to save and to end once a signal has come.

    After Ctrl-C all is to be over within ten seconds, with the time that killing takes. Whoever sends SIGTERM, such as
    a scheduler, often waits for no more than fifteen; a rank that is not done by then ends itself a little earlier.
    """
    return 7.0 if signum == signal.SIGINT else 14.0


class Patience:
    """What a supervisor has seen of its ranks, and since when.

    Args:
        plan: What it has started.
        num_here: Number of ranks that it has to see.
        now: Seconds on a clock that never goes back, as for all methods.
    """

    def __init__(self, plan: Plan, num_here: int, now: float) -> None:
        self._plan = plan
        self._num_here = num_here
        self._began_at = now
        self._looked_at = now
        self._attempt = -1
        self._failed_at: float | None = None
        self._failed_attempt = -1
        self._done_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Tell whether it is time to look again: the folder may be on a slow disk of many machines."""
        return now - self._looked_at >= _LOOK_S

    def note(self, attempt: int, now: float) -> None:
        """Wait anew for all ranks where all of them have been started again.

        Args:
            attempt: The newest start of all ranks that any of them has told of.
            now: Seconds.
        """
        self._looked_at = now
        if attempt != self._attempt:
            self._attempt, self._began_at = attempt, now

    def is_over(self, standings: Sequence[Standing], now: float) -> bool:
        """Tell whether ranks have failed and the others should have ended, or been started again, by now."""
        failed = [s for s in standings if s.is_gone or (s.state != "began" and s.code != 0)]
        if not failed:
            self._failed_at = None
            return False
        if self._failed_at is None or failed[0].attempt != self._failed_attempt:
            self._failed_at, self._failed_attempt = now, failed[0].attempt
        settings = self._plan.settings
        fewest, most = settings.num_nodes  # a machine that comes or goes costs no restart
        may_restart = settings.max_restarts + settings.max_failures > 0 or fewest < most
        return now - self._failed_at > (max(_RESTART_S, settings.timeout_s) if may_restart else _PEERS_S)

    def misses(self, standings: Sequence[Standing], num_everywhere: int, now: float) -> bool:
        """Tell whether ranks have not arrived in time.

        Args:
            standings: The supervisor's own ranks.
            num_everywhere: Number of ranks that have arrived on all machines.
            now: Seconds.
        """
        settings = self._plan.settings
        if len(standings) >= self._num_here or now - self._began_at <= settings.timeout_s:
            return False
        fewest, most = settings.num_nodes
        return fewest == most or num_everywhere < abs(self._plan.processes)  # else they train without this machine

    def is_done(self, standings: Sequence[Standing], now: float) -> bool:
        """Tell whether torch's agents wait for one another in vain: at the end they do, sometimes for minutes."""
        done = [s for s in standings if s.state == "ended" and s.code == 0 and s.has_ended]
        if self._plan.engine != "torchrun" or len(done) < self._num_here:
            self._done_at = None
            return False
        self._done_at = self._done_at or now
        return now - self._done_at > _EXIT_S
