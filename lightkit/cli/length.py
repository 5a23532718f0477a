"""How long the training of a config is, in batches, and how many processes share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytorch_lightning.callbacks import Timer

from lightkit.cli.context import RunContext
from lightkit.cli.launching import plan_of

__all__ = ["Length"]

_EPOCHS = 1000  # of Lightning's trainer that is told of none
_KEYS = ("max_epochs", "max_steps", "accumulate_grad_batches", "limit_train_batches", "overfit_batches")


class Length:
    """The length of a training.

    Args:
        session: The invocation.
        values: The config's `trainer` section.
    """

    def __init__(self, session: RunContext, values: Mapping[str, Any]) -> None:
        self._session, self._values = session, values

    @property
    def said(self) -> dict[str, str]:
        """What the config says of it."""
        return {key: str(self._values.get(key)) for key in _KEYS}

    def _num_taken(self, per_epoch: int | None) -> int | None:
        """Count the batches that a process takes of its own in an epoch: limits are for each process."""
        limit = self._values.get("overfit_batches") or self._values.get("limit_train_batches")
        if isinstance(limit, int):
            return limit if per_epoch is None else min(per_epoch, limit)
        return per_epoch if limit is None or per_epoch is None else int(per_epoch * limit)

    def num_steps(self, per_epoch: int | None) -> int | None:
        """Count the batches of the whole training that each process computes; None where nobody knows.

        Args:
            per_epoch: Batches of the data in an epoch, for all processes and whatever limits them; None where nobody
                knows.
        """
        taken = self._num_taken(None if per_epoch is None else -(-per_epoch // self.processes))
        epochs, steps = self._values.get("max_epochs"), self._values.get("max_steps", -1)
        limits = [] if steps in (None, -1) else [steps * int(self._values.get("accumulate_grad_batches") or 1)]
        if taken is not None and epochs != -1 and not (epochs is None and limits):
            limits.append(taken * (_EPOCHS if epochs is None else epochs))
        return min(limits, default=None)

    @property
    def most_s(self) -> float | None:
        """Seconds after which the trainer ends it, as Lightning reads `max_time`; None where nothing does."""
        return Timer(duration=self._values.get("max_time")).time_remaining()

    @property
    def ranks(self) -> int:
        """Processes that train on this machine."""
        rank = None if self._session.seat is None else self._session.seat.rank
        if rank is not None and rank.engine != "local":
            return max(1, rank.local_size)
        plan = plan_of(self._session)  # rank 0 of Lightning's own launcher knows of no others yet
        return 1 if plan is None else max(1, plan.local_processes)

    @property
    def processes(self) -> int:
        """Processes that train, which share an epoch."""
        rank = None if self._session.seat is None else self._session.seat.rank
        if rank is not None and rank.engine != "local":
            return max(1, rank.size)
        plan = plan_of(self._session)
        return 1 if plan is None else max(1, abs(plan.processes))
