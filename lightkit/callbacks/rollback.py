"""Back to the last good checkpoint in the middle of a training, without starting it again."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer

__all__ = ["Rollback"]

_MOST_TO_ONE_PLACE = 3


class Rollback:
    """Put back weights, optimizers, schedulers and the scale of gradients.

    The data go on, and so do the counts of epochs and steps. Random states go on too: people's own loaders draw the
    order of the next epoch from them, which would be that of an epoch before.

    Args:
        last_good: Finds the newest checkpoint that can be trusted.
    """

    def __init__(self, last_good: Callable[[], Path | None]) -> None:
        self._last_good = last_good
        self._first: dict[str, Any] | None = None
        self._first_epoch = 0
        self._counts: Counter[tuple[str, int]] = Counter()

    def begin(self, trainer: Trainer) -> None:
        """Keep the state from before the first step until there is a checkpoint."""
        if self._place(trainer) is not None:
            return
        self._first_epoch = trainer.current_epoch
        strategy = trainer.strategy
        self._first = copy.deepcopy(
            {
                "state_dict": strategy.lightning_module_state_dict(),
                "optimizer_states": [strategy.optimizer_state(optimizer) for optimizer in strategy.optimizers],
                "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            }
        )

    def forget_beginning(self, trainer: Trainer) -> None:
        """Free that memory: the end of an epoch has left a checkpoint."""
        if trainer.current_epoch > self._first_epoch:
            self._first = None

    def to(self, trainer: Trainer) -> tuple[str, dict[str, Any]] | None:
        """Read where to go back to, and its name; None where nothing is left to go back to.

        The fourth time there is nothing left at the same place.
        """
        path = self._place(trainer)
        if path is None and self._first is None:
            return None
        name = "the beginning" if path is None else str(path)
        state: Any = self._first if path is None else trainer.strategy.load_checkpoint(path)
        place = (name, int(state.get("global_step", 0)))
        self._counts[place] += 1
        return None if self._counts[place] > _MOST_TO_ONE_PLACE else (name, state)

    def put_back(self, trainer: Trainer, state: dict[str, Any]) -> None:
        """Let training go on from a state."""
        strategy, precision = trainer.strategy, trainer.precision_plugin
        strategy.load_model_state_dict(state, strict=trainer.lightning_module.strict_loading)
        strategy.load_optimizer_state_dict(copy.deepcopy(state))  # whose tensors the optimizer would make its own
        for config, saved in zip(trainer.lr_scheduler_configs, state["lr_schedulers"], strict=True):
            config.scheduler.load_state_dict(copy.deepcopy(saved))
        if (kept := state.get(type(precision).__qualname__)) is not None:
            precision.load_state_dict(kept)
        for parameter in trainer.lightning_module.parameters():
            parameter.grad = None

    def _place(self, trainer: Trainer) -> Path | None:
        path: Path | None = trainer.strategy.broadcast(self._last_good() if trainer.is_global_zero else None)
        return path
