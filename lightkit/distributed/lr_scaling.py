"""The learning rate for a larger batch: times the number of ranks, after a warm-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import GradientAccumulationScheduler, LearningRateFinder
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightkit.config import error_at

_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")  # what torch's schedulers keep in an optimizer's groups
_BASES = ("base_lrs", "max_lrs", "_last_lr")  # and in themselves; a floor such as eta_min stays as it was set


class ScaledLearningRate(Callback):
    """Multiply the learning rate by the number of ranks, as every step sees that many times the samples.

    The linear scaling rule with gradual warm-up of Goyal et al. 2017, arXiv:1706.02677, section 2. The rate of each
    step is the schedule's, times a factor that grows evenly from 1 / ranks to 1; schedules do not see that factor. The
    rates of schedules are scaled too, except for floors (`eta_min`, `min_lr` of ReduceLROnPlateau). A resumed run
    is not scaled again; with another number of ranks it is scaled to that number. A group of parameters that is added
    after the start, as by a callback that unfreezes them, keeps the rate that it is given: it is neither scaled nor
    warmed up, also after a resume. metrics.csv and the screen show rates with the warm-up's factor;
    LearningRateMonitor shows the schedule's, without it.

    Args:
        warmup_epochs: Epochs until the full rate is reached; a part of one counts by its steps.

    Raises:
        ConfigError: If `warmup_epochs` is negative; from `setup`, if another callback sets the rate, or changes the
            number of steps in an epoch during a warm-up.
    """

    def __init__(self, warmup_epochs: float = 0) -> None:
        if warmup_epochs < 0:
            raise error_at(f"ScaledLearningRate.warmup_epochs: expected 0 or more, got {warmup_epochs}")
        self.warmup_epochs = warmup_epochs
        self._reset()

    def _reset(self) -> None:
        self._factor = 1.0
        self._steps: list[int] = []
        self._num_groups: list[int] = []  # of each optimizer; those added later are left alone
        self._steps_per_epoch: float | None = None
        self._lowered: dict[Optimizer, list[Any]] = {}
        self._hooks: list[Any] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget an earlier fit, whose optimizers are gone; Lightning restores a checkpoint's state after this.

        Raises:
            ConfigError: If another callback does not go together with this one.
        """
        if stage == "fit":
            self._reset()
            self._check_company(trainer)

    def _check_company(self, trainer: Trainer) -> None:
        if trainer.world_size == 1:
            return
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, LearningRateFinder):
                raise error_at(
                    "ScaledLearningRate would scale the rate that LearningRateFinder finds, which is that of all ranks "
                    "together already. Leave one of them out: accelerator.scale_lr: false, or the callback lr_finder."
                )
            if isinstance(callback, GradientAccumulationScheduler) and self.warmup_epochs:
                raise error_at(
                    "ScaledLearningRate.warmup_epochs needs as many steps in each epoch, which "
                    "GradientAccumulationScheduler changes. Set trainer.accumulate_grad_batches, or warmup_epochs: 0."
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Scale what is not scaled yet; by now Lightning has restored optimizers and schedulers.

        Raises:
            ConfigError: If a scheduler keeps its rates where they cannot be found, or the warm-up has no length.
        """
        more = trainer.world_size / self._factor
        self._num_groups = self._num_groups or [len(optimizer.param_groups) for optimizer in trainer.optimizers]
        if more != 1:
            numbers = dict(zip(trainer.optimizers, self._num_groups, strict=True))
            for optimizer, number in numbers.items():
                _scale_groups(optimizer.param_groups[:number], more)
            for config in trainer.lr_scheduler_configs:
                _scale_scheduler(config.scheduler, more, numbers)
        self._factor = float(trainer.world_size)
        if self.warmup_epochs and trainer.world_size > 1:
            self._begin_warmup(trainer)

    def _begin_warmup(self, trainer: Trainer) -> None:
        accumulated = trainer.accumulate_grad_batches if trainer.lightning_module.automatic_optimization else 1
        if trainer.num_training_batches == float("inf"):
            raise error_at(
                "ScaledLearningRate.warmup_epochs needs to know how many batches an epoch has; the training data has "
                "no length. Set trainer.limit_train_batches, or warmup_epochs: 0."
            )
        steps_per_epoch = -(-trainer.num_training_batches // accumulated)
        before = self._steps_per_epoch or steps_per_epoch
        self._steps = [round(steps * steps_per_epoch / before) for steps in self._steps]
        self._steps = self._steps or [0] * len(trainer.optimizers)
        self._steps_per_epoch = steps_per_epoch
        for index, optimizer in enumerate(trainer.optimizers):
            self._hooks.append(optimizer.register_step_pre_hook(before_update(self._before_step(index))))
            self._hooks.append(optimizer.register_step_post_hook(self._after_step(index)))

    def _before_step(self, index: int) -> Callable[[Optimizer], None]:
        """Lower the rate once the closure, if there is one, has computed gradients: it may raise, or save."""
        return lambda optimizer: self._lower(optimizer, index)

    def _after_step(self, index: int) -> Callable[..., None]:
        def hook(optimizer: Optimizer, *_: Any) -> None:
            self._raise(optimizer)
            self._steps[index] += 1

        return hook

    def warmup(self, index: int = 0) -> float:
        """Give what the next step's rate is multiplied by: 1 / ranks at first, 1 after the warm-up.

        Args:
            index: Of the optimizer.
        """
        length = self.warmup_epochs * (self._steps_per_epoch or 0)
        if not self._steps or self._steps[index] >= length:
            return 1.0
        return 1 / self._factor + (1 - 1 / self._factor) * self._steps[index] / length

    def rate_factors(self, optimizer: int) -> list[float]:
        """Give what the next step's rate of each group is multiplied by; of those added later, none.

        Args:
            optimizer: Its index.
        """
        return [self.warmup(optimizer)] * (self._num_groups[optimizer] if optimizer < len(self._num_groups) else 0)

    def _lower(self, optimizer: Optimizer, index: int) -> None:
        factor = self.warmup(index)
        if factor == 1 or optimizer in self._lowered:
            return
        groups = optimizer.param_groups[: self._num_groups[index]]
        self._lowered[optimizer] = [_copy(group["lr"]) for group in groups]
        for group in groups:
            _set(group, "lr", group["lr"] * factor)

    def _raise(self, optimizer: Optimizer) -> None:
        for group, rate in zip(optimizer.param_groups, self._lowered.pop(optimizer, []), strict=False):
            _set(group, "lr", rate)

    def _raise_all(self) -> None:
        for optimizer in list(self._lowered):
            self._raise(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Give what keeps a resumed run from scaling again."""
        self._raise_all()
        return {
            "factor": self._factor,
            "steps": list(self._steps),
            "steps_per_epoch": self._steps_per_epoch,
            "num_groups": list(self._num_groups),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._factor = state_dict["factor"]
        self._steps, self._steps_per_epoch = list(state_dict["steps"]), state_dict["steps_per_epoch"]
        self._num_groups = list(state_dict.get("num_groups", ()))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the schedule's rates to whoever saves the optimizer now."""
        self._raise_all()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go of the optimizers."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _copy(rate: Any) -> Any:
    return rate.clone() if isinstance(rate, Tensor) else rate


def _set(place: Any, key: Any, rate: Any) -> None:
    """Set a rate; a tensor's in place, as a captured optimizer reads that very tensor."""
    if isinstance(place[key], Tensor):
        place[key].copy_(rate)
    else:
        place[key] = rate


def _scale_groups(groups: Sequence[dict[str, Any]], factor: float) -> None:
    for group in groups:
        for key in _RATES:
            if _is_rate(group.get(key)):
                _set(group, key, group[key] * factor)


def _scale_scheduler(scheduler: Any, factor: float, numbers: Mapping[Optimizer, int]) -> None:
    """Scale the rates that a scheduler keeps, also within the schedulers that it is made of.

    Args:
        scheduler: The scheduler.
        factor: What its rates are multiplied by.
        numbers: How many of an optimizer's groups are scaled.
    """
    parts = [*getattr(scheduler, "_schedulers", ())]
    for part in parts:
        _scale_scheduler(part, factor, numbers)
    if not parts and not isinstance(scheduler, ReduceLROnPlateau) and not hasattr(scheduler, "base_lrs"):
        name = f"{type(scheduler).__module__}.{type(scheduler).__qualname__}"
        raise error_at(
            f"ScaledLearningRate cannot find the rates of {name}, which has no base_lrs; scale them by hand."
        )
    for key in _BASES:
        rates = getattr(scheduler, key, None)
        if isinstance(rates, list):
            own = numbers.get(getattr(scheduler, "optimizer", None), len(rates))  # type: ignore[arg-type]
            setattr(scheduler, key, [rate * factor for rate in rates[:own]] + rates[own:])


def _is_rate(value: Any) -> TypeGuard[float | Tensor]:
    return isinstance(value, int | float | Tensor)


def before_update(act: Callable[[Optimizer], None]) -> Callable[..., Any]:
    """Make a pre-hook of a step that acts once the closure, if there is one, has computed gradients.

    Args:
        act: Told the optimizer.
    """

    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            act(optimizer)
            return None

        def closing() -> Any:
            loss = closure()
            act(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": closing}

    return hook
