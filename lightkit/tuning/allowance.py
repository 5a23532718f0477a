"""How long measuring may take: seconds for all searches together, and a share of the training that waits for them."""

from __future__ import annotations

import time

__all__ = ["SHARE_OF_TRAINING", "Allowance"]

SHARE_OF_TRAINING = 0.05
"""Of the time that training is expected to take; measuring takes no more."""


class Allowance:
    """Seconds that searches share which come one after the other, from now on.

    Args:
        budget_s: For all of them; None for as many as it takes.
        num_searches: That are to come. None takes more than its share of what those before it have left.
    """

    def __init__(self, budget_s: float | None, *, num_searches: int = 1) -> None:
        self._began_s = time.perf_counter()
        self._budget_s = budget_s
        self._num_to_come = num_searches

    def next_s(self) -> float | None:
        """Give the seconds of the next search."""
        share = max(1, self._num_to_come)
        self._num_to_come -= 1
        return None if self._budget_s is None else max(0.0, self._budget_s - self.spent_s) / share

    @property
    def spent_s(self) -> float:
        """Seconds that were taken so far."""
        return time.perf_counter() - self._began_s
