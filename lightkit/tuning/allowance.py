"""How long measuring may take: seconds for all searches together, and a share of the training that waits for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["SHARE_OF_TRAINING", "Allowance", "Part"]

SHARE_OF_TRAINING = 0.05
"""Of the time that training is expected to take; measuring takes no more."""
_MORE = 1.5  # times the seconds of before are more: less is a busier moment


class Allowance:
    """Seconds that searches share which come one after the other, from now on.

    Args:
        budget_s: For all of them; None for as many as it takes.
        num_searches: That are to come. None takes more than its part of what those before it have left.
        num_steps: Gives the batches of the training that waits, from those of the data; None where nobody knows. With
            a budget no more than 5 % of their time is taken.
        most_s: Seconds after which that training ends, however long its batches take; None where nothing ends it. With
            a budget no more than 5 % of them are taken.
    """

    def __init__(
        self,
        budget_s: float | None = None,
        *,
        num_searches: int = 1,
        num_steps: Callable[[int | None], int | None] = lambda _: None,
        most_s: float | None = None,
    ) -> None:
        self._began_s = time.perf_counter()
        self._num_to_come = num_searches
        self.budget_s = math.inf if budget_s is None else budget_s
        """For all searches; infinite for as many as it takes."""
        self.share_s = math.inf if budget_s is None or most_s is None else SHARE_OF_TRAINING * most_s
        """Seconds of the training that all searches may take; without limit until its length is known."""
        self.num_steps = num_steps
        """Gives the batches of the training that waits."""

    def next(self) -> Part:
        """Give what the next search may take, from now on."""
        part = Part(self, num=max(1, self._num_to_come))
        self._num_to_come -= 1
        return part

    def expect(self, batch_s: float, per_epoch: int | None) -> None:
        """Take no more than a share of a training whose batches take so long.

        Args:
            batch_s: Seconds of a batch.
            per_epoch: Batches of the data in an epoch, whatever limits the training; None where nobody knows.
        """
        num_steps = None if math.isinf(self.budget_s) else self.num_steps(per_epoch)
        if num_steps is not None:
            self.share_s = min(self.share_s, SHARE_OF_TRAINING * num_steps * batch_s)

    @property
    def spent_s(self) -> float:
        """Seconds that were taken so far."""
        return time.perf_counter() - self._began_s


class Part:
    """What one search may take of an allowance, from now on.

    Args:
        allowance: Of all searches.
        num: Searches that are to come, with this one.
    """

    def __init__(self, allowance: Allowance, *, num: int) -> None:
        self._allowance, self._num = allowance, num
        self._began_s, self._spent_s = time.perf_counter(), allowance.spent_s
        self._loaded_s = 0.0
        self._expected: tuple[float, int | None] | None = None

    def begin(self) -> None:
        """Tell that what is measured on is there: the time until now was no search."""
        self._loaded_s = time.perf_counter() - self._began_s

    def num_steps(self, per_epoch: int | None) -> int | None:
        """Give the batches of the training that waits: see `Allowance`."""
        return self._allowance.num_steps(per_epoch)

    def expect(self, batch_s: float, per_epoch: int | None) -> None:
        """Tell how long a batch takes, and how many an epoch has: see `Allowance.expect`."""
        self._expected = batch_s, per_epoch
        self._allowance.expect(batch_s, per_epoch)

    @property
    def budget_until(self) -> float:
        """Reading of `time.perf_counter` at which the seconds end, whatever the training takes."""
        return self._began_s + self._part_of(self._allowance.budget_s)

    @property
    def until(self) -> float:
        """Reading of `time.perf_counter` at which seconds or share end."""
        return self._began_s + self._seconds

    def as_json(self) -> dict[str, Any]:
        """Give what to compare another part with.

        `seconds` are those that there were for the search, None for as many as it takes; `loaded_s` went by before it.
        """
        seconds = None if math.isinf(self._seconds) else max(0.0, self._seconds - self._loaded_s)
        return {"seconds": seconds, "loaded_s": self._loaded_s, "loads_s": 0.0, "expected": self._expected}

    def as_json_after(self, then: Mapping[str, Any], *, is_kept: bool) -> dict[str, Any]:
        """Give the same, of a search that was made again: the least time of loading is now known to be no accident.

        Args:
            then: What `as_json` gave before.
            is_kept: Whether what was found then stays, which had its own seconds.
        """
        now = self.as_json()
        now["loads_s"] = min(now["loaded_s"], then["loaded_s"])
        return {**now, "seconds": then["seconds"]} if is_kept else now

    def has_more_than(self, then: Mapping[str, Any]) -> bool:
        """Tell whether there is clearly more time than there was, where a batch takes as long as it did.

        Args:
            then: What `as_json` gave.

        Raises:
            KeyError: If something else gave it.
            TypeError: Likewise.
            ValueError: Likewise.
        """
        self._expect_as(then)
        return then["seconds"] is not None and bool(self._seconds - then["loads_s"] > _MORE * then["seconds"])

    def has_time_for(self, then: Mapping[str, Any], *, seconds: float) -> bool:
        """Tell whether there is as much time as a search took, where a batch takes as long as it did.

        Args:
            then: What `as_json` gave.
            seconds: That it took.

        Raises:
            KeyError: If something else gave it.
            TypeError: Likewise.
            ValueError: Likewise.
        """
        self._expect_as(then)
        return bool(self._seconds - then["loads_s"] >= seconds)

    def had_less_than(self, then: Mapping[str, Any]) -> bool:
        """Tell whether there was less time for the search than there was.

        Args:
            then: What `as_json` gave.
        """
        seconds = self.as_json()["seconds"]
        return seconds is not None and bool(then["seconds"] is None or seconds < then["seconds"])

    def _expect_as(self, then: Mapping[str, Any]) -> None:
        if then["expected"] is not None:
            batch_s, per_epoch = then["expected"]
            self.expect(batch_s, per_epoch)

    @property
    def _seconds(self) -> float:
        return self._part_of(min(self._allowance.budget_s, self._allowance.share_s))

    def _part_of(self, seconds: float) -> float:
        return max(0.0, seconds - self._spent_s) / self._num
