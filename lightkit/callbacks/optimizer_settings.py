"""The settings of optimizers and schedules: those of the config, in a resumed run too."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import LearningRateFinder, StochasticWeightAveraging
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from lightkit.callbacks.descriptions import describing
from lightkit.errors import ConfigError
from lightkit.optimizer_steps import count_optimizer_steps, count_schedule_steps

_log = logging.getLogger(__name__)
_KEY = "lightkit_optimizers"
_RATES = ("lr", "initial_lr")
_OWN_RATES = (LearningRateFinder, StochasticWeightAveraging)
"""Callbacks that set the rate themselves, so that a rate which differs is none that the config has
changed."""


@dataclass(frozen=True)
class CountedSchedule:
    """A schedule with arguments that are ``auto``.

    Numbers of its steps, which are known when training starts.

    Args:
        names: Those arguments.
        build: Builds the schedule for an optimizer, with values for them.
        optimizer: Settings of its optimizer, as they were before a schedule changed them.
    """

    names: Collection[str]
    build: Callable[[Optimizer, Mapping[str, int]], Any]
    optimizer: Optimizer


class OptimizerSettings(Callback):
    """Apply to a resumed run the settings that config or code have changed.

    Apply their number of steps to schedules.

    Lightning 2.6 restores all settings of optimizers and schedules from the checkpoint: a rate, a
    ``T_max`` or a weight decay that was changed for the resume has no effect. Here each checkpoint
    also has the settings that its training began with. Where those of the resumed training differ,
    the differing ones are set, and the schedule is stepped from its beginning to where it stands,
    as if it had been this one all along. Where nothing differs nothing is touched. A checkpoint
    without such settings, of Lightning's own or an older one, keeps what it has, with a warning
    that names what has no effect.

    Args:
        is_of_config: Whether the config names the optimizer and the schedule, for the names in
            messages.
    """

    def __init__(self, is_of_config: Callable[[str], bool] = lambda _section: False) -> None:
        self.counted: CountedSchedule | None = None
        """The config's schedule, where it counts the steps of the training."""
        self._is_of_config = is_of_config
        self._optimizers: list[Optimizer] = []
        self._schedules: list[Any] = []
        self._recorded: dict[str, Any] | None = None
        self._checkpoint: dict[str, Any] | None = None
        self._record: dict[str, Any] | None = None

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the settings that the checkpoint's training began with."""
        self._checkpoint = checkpoint
        self._recorded = checkpoint.get(_KEY)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy the settings before Lightning restores those of the checkpoint."""
        self._optimizers = []
        self._schedules = []
        with describing("the settings of the optimizers"):
            optimizers = [copy_settings(optimizer) for optimizer in trainer.optimizers]
            # Copies of the schedules change the copies of the optimizers, and reach no module or
            # trainer.
            memo: dict[int, Any] = {id(each): each for each in (trainer, pl_module)}
            memo |= {
                id(real): copied
                for real, copied in zip(trainer.optimizers, optimizers, strict=True)
            }
            schedules = [
                copy.deepcopy(config.scheduler, memo) for config in trainer.lr_scheduler_configs
            ]
            self._optimizers = optimizers
            self._schedules = schedules
        self._drop_other_states(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count steps, and set what has changed since the checkpoint.

        By now Lightning has restored it.

        Raises:
            ConfigError: If a schedule is to count the steps of a training that has no end.
        """
        self._count_steps(trainer)
        self._warn_of_short_schedules(trainer)
        if len(self._optimizers) != len(trainer.optimizers):
            return
        now = self._describe(trainer)
        is_restored = self._checkpoint is not None
        self._checkpoint = None
        if not is_restored:
            self._record = now
            if self.counted is not None:
                self._start_counted(trainer)
            return
        if self._recorded is None:
            is_same = not self._report_no_effect(self._list_unrecorded(trainer))
            self._record = now if is_same else None
            return
        self._record = now
        # whose states Lightning has not restored
        if len(self._recorded["optimizers"]) != len(now["optimizers"]):
            return
        changes = _compare(self._recorded, now)
        if not changes:
            return
        if self._sets_rates(trainer):
            self._record = self._recorded
            self._report_no_effect(changes)
            return
        self._apply(trainer, self._recorded, now)
        self._report_applied(changes)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave out the step of the epoch that `StochasticWeightAveraging` adds for BatchNorm.

        Lightning 2.6 computes no gradients in it, and at its end still takes a step with those of
        the epoch before, which would move the average. Without gradients the scaler of 16-mixed
        refuses the step.
        """
        if _is_added_for_batch_norm(trainer, pl_module):
            module: Any = pl_module
            module.optimizer_step = _skip_step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have the model take its steps again."""
        if vars(pl_module).get("optimizer_step") is _skip_step:
            del vars(pl_module)["optimizer_step"]

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the settings that the training began with."""
        if self._record is not None:
            checkpoint[_KEY] = self._record

    def _drop_other_states(self, trainer: Trainer) -> None:
        """Remove the checkpoint's state of an optimizer whose class has changed."""
        recorded = [] if self._recorded is None else self._recorded["optimizers"]
        states = [] if self._checkpoint is None else self._checkpoint.get("optimizer_states", [])
        for index, (optimizer, before) in enumerate(
            zip(trainer.optimizers, recorded, strict=False)
        ):
            if before["class"] != type(optimizer).__name__ and index < len(states):
                states[index] = optimizer.state_dict()

    # -- numbers of steps --------------------------------------------------------------------------

    def _count_steps(self, trainer: Trainer) -> None:
        """Build the config's schedule again where it counts the steps of the training."""
        if self.counted is None:
            return
        if not self._schedules:
            raise ConfigError(
                "lr_scheduler: auto cannot count the steps of a schedule that cannot be copied"
            )
        config = trainer.lr_scheduler_configs[0]
        planned = _planned_steps(trainer, config)
        if planned is None:
            names = ", ".join(self.counted.names)
            raise ConfigError(
                f"lr_scheduler.init_args.{names}: auto counts the steps of a training that has an"
                " end, and data of a known length; set trainer.max_epochs or"
                " trainer.max_steps, or a number."
            )
        number = max(1, planned)
        self._optimizers[0] = copy_settings(self.counted.optimizer)
        self._schedules[0] = self.counted.build(
            self._optimizers[0], dict.fromkeys(self.counted.names, number)
        )

    def _start_counted(self, trainer: Trainer) -> None:
        """Start the config's schedule with its number of steps."""
        trainer.lr_scheduler_configs[0].scheduler.load_state_dict(self._schedules[0].state_dict())
        _set_groups(trainer.optimizers[0], self._optimizers[0])

    def _warn_of_short_schedules(self, trainer: Trainer) -> None:
        """Warn of a schedule that torch refuses to step as often as the training will."""
        for config, schedule in zip(trainer.lr_scheduler_configs, self._schedules, strict=False):
            planned = _planned_steps(trainer, config)
            if isinstance(schedule, OneCycleLR) and schedule.total_steps < (planned or 0):
                _warn(
                    f"lr_scheduler: OneCycleLR has {schedule.total_steps} steps, but the training"
                    f" takes {planned}: it will end with an error. total_steps: auto counts them."
                )

    # -- a resumed run -----------------------------------------------------------------------------

    def _describe(self, trainer: Trainer) -> dict[str, Any]:
        """Return all settings as the training begins with them.

        Plain values, which a checkpoint can hold.
        """
        configs = trainer.lr_scheduler_configs
        return {
            "optimizers": [
                {"class": type(real).__name__, "groups": _list_groups(settings)}
                for real, settings in zip(trainer.optimizers, self._optimizers, strict=True)
            ],
            "schedules": [
                {
                    "class": type(schedule).__name__,
                    "interval": str(config.interval),
                    "frequency": int(config.frequency),
                    "state": copy.deepcopy(schedule.state_dict()),
                }
                for config, schedule in zip(configs, self._schedules, strict=True)
            ],
        }

    def _apply(self, trainer: Trainer, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Set what differs from the recorded settings."""
        for index, (optimizer, settings) in enumerate(
            zip(trainer.optimizers, self._optimizers, strict=True)
        ):
            before = recorded["optimizers"][index]
            scheduled = [
                number
                for number, config in enumerate(trainer.lr_scheduler_configs)
                if getattr(config.scheduler, "optimizer", None) is optimizer
            ]
            first = _list_groups(settings)
            differs = _list_differing(before, {"class": type(optimizer).__name__, "groups": first})
            if _was_scheduled(recorded, index, now=bool(scheduled)):
                differs = [{*keys, "lr"} for keys in differs]

            # Rates that no schedule moves, and what is no rate.
            for group, fresh, keys in zip(optimizer.param_groups, first, differs, strict=False):
                for key in keys - ({*_RATES} if scheduled else set()):
                    _set_value(group, key, fresh[key])
            for number in scheduled:
                old = recorded["schedules"][number] if number < len(recorded["schedules"]) else None
                if any(differs) or old is None or not _is_same(old, now["schedules"][number]):
                    self._apply_schedule(trainer, number, old, index=index, before=before["groups"])

    def _apply_schedule(
        self,
        trainer: Trainer,
        number: int,
        old: Mapping[str, Any] | None,
        *,
        index: int,
        before: list[dict[str, Any]],
    ) -> None:
        """Move a schedule to the place where it would be, had it been this one all along."""
        config = trainer.lr_scheduler_configs[number]
        schedule: Any = config.scheduler
        fresh = self._schedules[number]
        settings = self._optimizers[index]
        optimizer = trainer.optimizers[index]
        first = _list_groups(settings)
        if old is not None and old["class"] != type(schedule).__name__:
            old = None

        # A plateau schedule goes by metrics, which are gone: what it has reached stays, its
        # settings change.
        if isinstance(schedule, ReduceLROnPlateau):
            state = fresh.state_dict()
            if old is not None:
                keys = _differing(old["state"], state)
                schedule.load_state_dict({key: state[key] for key in keys})
                for group, then, now in zip(optimizer.param_groups, before, first, strict=False):
                    ratio = now["lr"] / then["lr"] if then["lr"] else 1.0
                    _set_value(group, "lr", group["lr"] * ratio)
                return
            schedule.load_state_dict(state)
            _set_groups(optimizer, settings)
            return

        # Any other one depends on the number of its steps alone.
        position = None
        if old is not None and (old["interval"], old["frequency"]) == (
            config.interval,
            config.frequency,
        ):
            position = getattr(schedule, "last_epoch", None)
        if position is None:
            position = _count_done(trainer, config.interval) // config.frequency
        with warnings.catch_warnings():
            # of the order of steps, which an optimizer that is a copy does not take
            warnings.simplefilter("ignore")
            for _ in range(position):
                fresh.step()
        schedule.load_state_dict(fresh.state_dict())
        moved = [
            _differing(old, new) | {*_RATES}
            for old, new in zip(first, _list_groups(settings), strict=True)
        ]
        _set_groups(optimizer, settings, keys=moved)

    def _list_unrecorded(self, trainer: Trainer) -> list[tuple[str, str, Any, Any]]:
        """List settings that differ from a checkpoint's own and that no training has moved."""
        found: list[tuple[str, str, Any, Any]] = []
        is_scheduled = bool(trainer.lr_scheduler_configs)
        for real, settings in zip(trainer.optimizers, self._optimizers, strict=True):
            for old, new in zip(real.param_groups, _list_groups(settings), strict=False):
                rate = "initial_lr" if is_scheduled and "initial_lr" in old else "lr"
                moved = (
                    {*_RATES, "momentum", "betas", "max_lr", "min_lr"}
                    if is_scheduled
                    else {*_RATES}
                )
                keys = {rate, *(key for key in new if key not in moved)}
                found += [
                    ("optimizer", key, old.get(key), new[key])
                    for key in keys & _differing(old, new)
                ]
        for config, fresh in zip(trainer.lr_scheduler_configs, self._schedules, strict=True):
            old = vars(config.scheduler)
            new = vars(fresh)
            names = _constructor_names(type(fresh)) & _differing(old, new) - {
                "last_epoch",
                "optimizer",
            }
            found += [("lr_scheduler", key, old[key], new[key]) for key in names]
        return [] if self._sets_rates(trainer) else found

    def _sets_rates(self, trainer: Trainer) -> bool:
        callbacks: Iterable[Any] = trainer.callbacks  # type: ignore[attr-defined]
        return any(
            isinstance(each, _OWN_RATES) or hasattr(each, "warmup_factor") for each in callbacks
        )

    # -- messages ----------------------------------------------------------------------------------

    def _name(self, section: str, key: str) -> str:
        key = "lr" if key == "initial_lr" else key
        if not self._is_of_config(section):
            return f"{'the optimizer' if section == 'optimizer' else 'the schedule'}'s {key}"
        return (
            f"{section}.{key}"
            if key in ("interval", "frequency", "class")
            else f"{section}.init_args.{key}"
        )

    def _report_no_effect(self, changes: Iterable[tuple[str, str, Any, Any]]) -> bool:
        """Warn of settings that the checkpoint overrides, and return whether there are any."""
        texts = dict.fromkeys(
            f"{self._name(section, key)}: {_format(new)} has no effect: the checkpoint has"
            f" {_format(old)}"
            for section, key, old, new in changes
        )
        for text in texts:
            _warn(text)
        return bool(texts)

    def _report_applied(self, changes: Iterable[tuple[str, str, Any, Any]]) -> None:
        """Say which settings the resumed training has in the place of the checkpoint's."""
        texts = dict.fromkeys(
            f"{self._name(section, key)} {_format(new)} in place of {_format(old)}"
            for section, key, old, new in changes
        )
        _warn(f"goes on with {', '.join(texts)}, which the checkpoint was trained with")


def _is_added_for_batch_norm(trainer: Trainer, module: LightningModule) -> bool:
    """Check whether `StochasticWeightAveraging` has added the epoch that begins."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    averages = any(isinstance(each, StochasticWeightAveraging) for each in callbacks)
    has_norm = StochasticWeightAveraging.pl_module_contains_batch_norm(module)
    return averages and has_norm and trainer.current_epoch + 1 == trainer.max_epochs


def _skip_step(
    _epoch: int, _batch_idx: int, _optimizer: Any, optimizer_closure: Callable[[], Any]
) -> None:
    """Compute the last batch of an epoch in the place of a model's ``optimizer_step``."""
    optimizer_closure()


def copy_settings(optimizer: Any) -> Optimizer:
    """Copy the settings of an optimizer without its parameters and their state."""
    groups = [
        {
            **{
                key: copy.deepcopy(value)
                for key, value in group.items()
                if key not in ("params", "param_names")
            },
            "params": [torch.nn.Parameter(torch.zeros(0))],
        }
        for group in optimizer.param_groups
    ]
    return Optimizer(groups, dict(getattr(optimizer, "defaults", {})))


@rank_zero_only
def _warn(text: str) -> None:
    _log.warning(text)


def _list_groups(optimizer: Any) -> list[dict[str, Any]]:
    """List the settings of each group of parameters."""
    left_out = ("params", "param_names")
    return [
        {key: copy.deepcopy(value) for key, value in group.items() if key not in left_out}
        for group in optimizer.param_groups
    ]


def _set_groups(optimizer: Any, settings: Optimizer, *, keys: list[set[str]] | None = None) -> None:
    """Set the settings of each group of parameters, all or those of some keys."""
    for index, (group, values) in enumerate(
        zip(optimizer.param_groups, _list_groups(settings), strict=False)
    ):
        for key, value in values.items():
            if keys is None or key in keys[index]:
                _set_value(group, key, value)


def _set_value(group: dict[str, Any], key: str, value: Any) -> None:
    """Set a value; a tensor's in place, as a captured optimizer reads that very tensor."""
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(float(value))
    else:
        group[key] = value


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """Return the keys of both whose values differ."""
    return {key for key in old.keys() & new.keys() if not _is_same(old[key], new[key])}


def _list_differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[set[str]]:
    """Return the keys of each group of an optimizer whose values differ: all of another class."""
    if old["class"] != new["class"]:
        return [set(group) for group in new["groups"]]
    return [
        _differing(then, group) for then, group in zip(old["groups"], new["groups"], strict=False)
    ]


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, torch.Tensor) or isinstance(new, torch.Tensor):
        return bool(torch.equal(torch.as_tensor(old).cpu(), torch.as_tensor(new).cpu()))
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_is_same, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and not _differing(old, new)
    return bool(old == new) or (
        isinstance(old, float) and isinstance(new, float) and old != old and new != new
    )


def _compare(
    recorded: Mapping[str, Any], now: Mapping[str, Any]
) -> list[tuple[str, str, Any, Any]]:
    """List what differs: section, name, old and new value.

    What a schedule has derived from others is left out.
    """
    found: list[tuple[str, str, Any, Any]] = []
    for old, new in zip(recorded["optimizers"], now["optimizers"], strict=False):
        found += [("optimizer", *difference) for difference in _compare_optimizer(old, new)]
    olds = recorded["schedules"]
    news = now["schedules"]
    if len(olds) != len(news):
        names = [", ".join(each["class"] for each in those) or "none" for those in (olds, news)]
        found.append(("lr_scheduler", "class", names[0], names[1]))
    for old, new in zip(olds, news, strict=False):
        found += [("lr_scheduler", *difference) for difference in _compare_schedule(old, new)]
    return found


def _compare_optimizer(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """List the settings of an optimizer that differ: name, old and new value."""
    if old["class"] != new["class"]:
        yield "class", old["class"], new["class"]
        return
    for then, group in zip(old["groups"], new["groups"], strict=False):
        keys = _differing(then, group)
        if "initial_lr" in keys:
            keys -= {"lr", "max_lr", "min_lr"}
        for key in sorted(keys):
            yield key, then[key], group[key]


def _compare_schedule(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """List the settings of a schedule that differ: name, old and new value."""
    for key in sorted(_differing({**old, "state": None}, {**new, "state": None})):
        yield key, old[key], new[key]
    if old["class"] != new["class"]:
        return
    states = _differing(old["state"], new["state"])
    shown = {key for key in states if key[0] != "_" and key != "base_lrs"} or states - {
        "base_lrs",
        "_last_lr",
    }
    for key in sorted(shown):
        yield key, old["state"][key], new["state"][key]


def _was_scheduled(recorded: Mapping[str, Any], index: int, *, now: bool) -> bool:
    """Check whether an optimizer had a schedule, which has moved its rate, and has none now."""
    groups = recorded["optimizers"][index]["groups"]
    return not now and any("initial_lr" in group for group in groups)


def _planned_steps(trainer: Trainer, config: Any) -> int | None:
    """Return the number of steps of a schedule in the whole training.

    None where that has no known end.

    Args:
        trainer: The trainer.
        config: Lightning's, of the schedule: its interval and its frequency.
    """
    if config.interval == "epoch":
        epochs = trainer.max_epochs
        return None if epochs is None or epochs <= 0 else epochs // int(config.frequency)
    number = count_optimizer_steps(trainer)
    if math.isinf(number) or number <= 0:
        return None
    return count_schedule_steps(trainer, int(config.frequency))


def _count_done(trainer: Trainer, interval: str) -> int:
    """Return the number of epochs, or of optimizer steps, that are done."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    return trainer.global_step if interval == "step" else int(epochs.processed)


def _constructor_names(cls: type) -> set[str]:
    names: set[str] = set()
    for owner in cls.__mro__:
        code = getattr(vars(owner).get("__init__"), "__code__", None)
        names |= set(code.co_varnames[1 : code.co_argcount]) if code is not None else set()
    return names


def _format(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else value.tolist()
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) < 60 else f"{text[:57]}..."
