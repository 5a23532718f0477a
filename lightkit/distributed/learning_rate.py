"""The learning rate for a larger batch: times the number of ranks, after a warm-up."""

from __future__ import annotations

from itertools import chain
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import LearningRateFinder
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightkit.config import error_at
from lightkit.config.bounds import NonNegativeFloat
from lightkit.optimizer_steps import count_epoch_steps

# what torch's schedulers keep in an optimizer's groups
_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
# and in themselves; a floor such as eta_min stays as it was set
_BASES = ("base_lrs", "max_lrs", "_last_lr")


class ScaledLearningRate(Callback):
    """Multiply the learning rate by the number of ranks.

    Every step sees that many times the samples.

    The linear scaling rule with gradual warm-up of Goyal et al. 2017, arXiv:1706.02677, section 2.
    The rate of each step is the schedule's, times a factor that grows evenly from 1 / ranks to 1;
    schedules do not see that factor. The rates of schedules are scaled too, except for floors
    (`eta_min`, `min_lr` of ReduceLROnPlateau). A resumed run is not scaled again; with another
    number of ranks it is scaled to that number. A group of parameters that is added after the start
    keeps the rate that it is given. metrics.csv and the screen show rates with the warm-up's
    factor; LearningRateMonitor shows the schedule's, without it.

    Args:
        warmup_epochs: Epochs until the full rate is reached; a part of one counts by its steps.

    Raises:
        ConfigError: If `warmup_epochs` is negative; from `on_train_start`, if another callback sets
            the rate, or the rates of a scheduler cannot be found.
    """

    def __init__(self, warmup_epochs: NonNegativeFloat = 0) -> None:
        if warmup_epochs < 0:
            raise error_at(
                f"ScaledLearningRate.warmup_epochs: expected 0 or more, got {warmup_epochs}"
            )
        self.warmup_epochs = warmup_epochs
        self._factor = 1.0
        self._hooks: list[Any] = []
        # groups within a step, and their rates before it
        self._lowered: list[tuple[dict[str, Any], Any]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget an earlier fit, whose optimizers are gone.

        Lightning restores a checkpoint's state after this.
        """
        self._factor = 1.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Scale what is not scaled yet; by now Lightning has restored optimizers and schedulers.

        Raises:
            ConfigError: If rates cannot be scaled, or the warm-up has no length.
        """
        self._scale(trainer, trainer.world_size / self._factor)
        self._factor = float(trainer.world_size)
        if not self.warmup_epochs or trainer.world_size == 1:
            return
        if trainer.num_training_batches == float("inf"):
            raise error_at(
                "ScaledLearningRate.warmup_epochs needs to know how many batches an epoch has; the"
                " training data has no length. Set trainer.limit_train_batches, or"
                " warmup_epochs: 0."
            )

        def lower(optimizer: Optimizer, *_: Any) -> None:
            for group in optimizer.param_groups:
                rate = group["lr"]
                self._lowered.append((group, rate.clone() if isinstance(rate, Tensor) else rate))
                _set_rate(group, "lr", rate * self.warmup_factor(trainer))

        for optimizer in trainer.optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(lower))
            self._hooks.append(optimizer.register_step_post_hook(self._restore))

    def _scale(self, trainer: Trainer, factor: float) -> None:
        """Multiply all rates of optimizers and schedulers by a factor."""
        if factor == 1:
            return
        if any(isinstance(each, LearningRateFinder) for each in trainer.callbacks):  # type: ignore[attr-defined]
            raise error_at(
                "ScaledLearningRate would scale the rate that LearningRateFinder finds, which is"
                " that of all ranks together already. Leave out one of the"
                " callbacks scale_lr and lr_finder."
            )
        for group in chain.from_iterable(
            optimizer.param_groups for optimizer in trainer.optimizers
        ):
            for key in _RATES:
                if isinstance(group.get(key), int | float | Tensor):
                    _set_rate(group, key, group[key] * factor)
        for config in trainer.lr_scheduler_configs:
            _scale_scheduler(config.scheduler, factor)

    def warmup_factor(self, trainer: Trainer) -> float:
        """Return the factor of the next step's rate: 1 / ranks at first, 1 after the warm-up."""
        if not self.warmup_epochs or trainer.world_size == 1:
            return 1.0
        whole = int(self.warmup_epochs)
        of_part = (self.warmup_epochs - whole) * count_epoch_steps(trainer, whole)
        length = of_part + sum(count_epoch_steps(trainer, epoch) for epoch in range(whole))
        # Lightning counts those of all optimizers
        num_steps = trainer.global_step // len(trainer.optimizers)
        part = min(num_steps / length, 1.0)
        return 1 / trainer.world_size + (1 - 1 / trainer.world_size) * part

    def state_dict(self) -> dict[str, Any]:
        """Return what keeps a resumed run from scaling again."""
        return {"factor": self._factor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._factor = state_dict["factor"]

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the schedule's rates in the optimizers."""
        self._restore()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Release the optimizers."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _restore(self, *_: Any) -> None:
        for group, rate in self._lowered:
            _set_rate(group, "lr", rate)
        self._lowered.clear()


def _set_rate(group: dict[str, Any], key: str, rate: Any) -> None:
    """Set a rate; a tensor's in place, as a captured optimizer reads that very tensor."""
    if isinstance(group[key], Tensor):
        group[key].copy_(rate)
    else:
        group[key] = rate


def _scale_scheduler(scheduler: Any, factor: float) -> None:
    """Scale the rates that a scheduler keeps, also within the schedulers that it is made of."""
    parts = getattr(scheduler, "_schedulers", ())
    for part in parts:
        _scale_scheduler(part, factor)
    if (
        not parts
        and not isinstance(scheduler, ReduceLROnPlateau)
        and not hasattr(scheduler, "base_lrs")
    ):
        name = f"{type(scheduler).__module__}.{type(scheduler).__qualname__}"
        raise error_at(
            f"ScaledLearningRate cannot find the rates of {name}, which has no"
            " base_lrs; scale them by hand."
        )
    for key in _BASES:
        if isinstance(rates := getattr(scheduler, key, None), list):
            setattr(scheduler, key, [rate * factor for rate in rates])
