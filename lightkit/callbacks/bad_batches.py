"""Batches whose loss is not finite, in words and as events."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightkit import runs

__all__ = ["BadBatch", "BadBatches", "fault_of_loss", "loss_of"]

_MOST_TOLD = 10  # on the screen; events.jsonl has all
_NUM_NAMED = 8
_log = logging.getLogger("lightkit")


@dataclass(frozen=True)
class BadBatch:
    """A batch whose loss is not finite.

    Args:
        epoch: From 0.
        step: Optimizer steps before it.
        batch: Its number in the epoch, from 0.
        loss: What the loss is: nan, inf or -inf.
        indices: Of its samples in the split; None where nobody knows them.
        names: What people know these samples by, such as the paths of image files, where that is known.
        rank: The process that had it.
    """

    epoch: int
    step: int
    batch: int
    loss: str
    indices: list[int] | None = None
    names: list[str] | None = None
    rank: int = 0

    def __str__(self) -> str:
        where = f"epoch {self.epoch}, step {self.step}, batch {self.batch}"
        return f"The loss of {where}{f' on rank {self.rank}' if self.rank else ''} is {self.loss} ({self._samples})"

    @property
    def _samples(self) -> str:
        if self.indices is None:
            return "nobody knows its samples: the loader tells no indices"
        named = [*map(str, self.indices)] if self.names is None else self.names
        return f"samples {', '.join(named[:_NUM_NAMED])}{', ...' * (len(named) > _NUM_NAMED)} of the training split"


class BadBatches:
    """Tells of them, and counts them.

    Args:
        events: Gets an event for each.
    """

    def __init__(self, events: runs.EventStream) -> None:
        self._events = events
        self.num_left_out = self.num_in_a_row = 0

    def left_out(self, found: Iterable[BadBatch]) -> None:
        """Tell that batches of one step are left out.

        Args:
            found: Those of all processes.
        """
        for bad in found:
            self.num_left_out += 1
            self.note(bad, "skip")
            if self.num_left_out <= _MOST_TOLD:
                more = " Further ones are told in events.jsonl only." * (self.num_left_out == _MOST_TOLD)
                _log.warning("%s: the batch is left out.%s", bad, more)

    def note(self, bad: BadBatch, action: str, *, weights: Sequence[str] = ()) -> None:
        """Write the event.

        Args:
            bad: The batch.
            action: stop or skip.
            weights: Tensors that are not finite, found after this batch.
        """
        self._events.write(
            "nonfinite",
            epoch=bad.epoch,
            step=bad.step,
            batch=bad.batch,
            indices=bad.indices,
            action=action,
            loss=bad.loss,
            rank=bad.rank,
            names=bad.names,
            count=max(1, self.num_left_out),
            **({"weights": list(weights)} if weights else {}),
        )


def loss_of(output: Any) -> Tensor | None:
    """Give the loss in what a training step returns, if there is one."""
    loss = output.get("loss") if isinstance(output, dict) else output
    return loss if isinstance(loss, Tensor) else None


def fault_of_loss(loss: Tensor) -> str | None:
    """Say what a loss is where it is not finite: nan, inf or -inf."""
    value = float(loss.detach().sum()) if loss.numel() != 1 else loss.item()
    return None if math.isfinite(value) else str(value)
