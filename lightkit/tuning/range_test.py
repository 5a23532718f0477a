"""Lightning's range test in the place of a training, within the time that there is for it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import LearningRateFinder
from pytorch_lightning.tuner import lr_finder
from pytorch_lightning.tuner.lr_finder import _LRCallback
from pytorch_lightning.utilities.seed import isolate_rng
from pytorch_lightning.utilities.types import STEP_OUTPUT
from torch import Tensor

from lightkit.errors import ConfigError
from lightkit.launch import heartbeat
from lightkit.tuning.allowance import Part
from lightkit.tuning.short_fits import MEASURING, num_batches_of, synchronized

__all__ = ["FEWEST_POINTS", "LEAST_RATE", "RangeTest"]

LEAST_RATE, _MOST_RATE = 1e-7, 1.0
FEWEST_POINTS = 20
"""Losses that tell something; a test that was begun may diverge soon after half of its steps."""
_FEWEST_STEPS = 40
_NUM_TIMED = 5  # batches after the first, whose median is a pace: any one of them may have waited
_TIMED_S = 5.0  # of batches that are timed: fewer do then
_SHARE_OF_STEPS = 0.9  # of the time; the rest is for those that take longer than the pace
_RESET = "__lr_finder_reset_params"


class RangeTest(Callback):
    """Has Lightning's finder take its steps in place of the training.

    Args:
        num_steps: Most steps to take.
        part: Of the time that there is.
    """

    def __init__(self, num_steps: int, part: Part) -> None:
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.left_out: tuple[str, ...] = ()
        """What there was no time for."""
        self.refused: str | None = None
        """Why there was no time for anything that tells a rate, or no step at all."""
        self.is_cut = False
        """Whether time has ended it before its last rate, and before the loss had grown to four times its least."""
        self._num_steps, self._part = num_steps, part

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Run it: by now optimizers and schedules are made, for the length of the real training."""
        _check_optimizers(trainer, pl_module)
        trainer.fit_loop.setup_data()  # which counts the batches
        if trainer.num_training_batches >= trainer.accumulate_grad_batches:
            self._search(trainer, pl_module)
        if not self.losses and self.refused is None:
            self.refused = _no_step_of(trainer)
        trainer.fit_loop.max_epochs = 0  # nothing is trained after this

    def _search(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take as many steps as the training has, at most, and as there is time for."""
        estimated = trainer.estimated_stepping_batches
        if estimated < 0:  # the data has no length, and the training ends by its epochs
            estimated = math.inf
        most = int(min(self._num_steps, max(_FEWEST_STEPS, estimated)))
        trainer.fit_loop.max_epochs = -1  # as many epochs as the steps need
        num_steps = most if math.isinf(self._part.budget_until) else self._in_time(trainer, pl_module, most)
        if num_steps is not None:
            self._run(trainer, pl_module, num_steps, early_stop_threshold=4.0)
            if len(self.losses) < FEWEST_POINTS and min(self.losses, default=0) < 0:  # whose fourfold is less
                self._run(trainer, pl_module, num_steps, early_stop_threshold=None)

    def _in_time(self, trainer: Trainer, module: LightningModule, most: int) -> int | None:
        """Give the steps that there is time for; None where these would tell nothing."""
        with isolate_rng():  # as if these had not been
            pace = self._run(trainer, module, most, early_stop_threshold=None, is_trial=True)
        if pace.is_late or not self.losses:
            return None
        step_s = trainer.accumulate_grad_batches * pace.batch_s
        self._part.expect(pace.batch_s, num_batches_of(trainer))
        now_s = time.perf_counter()
        left_s = max(0.0, self._part.budget_until - now_s)
        if _FEWEST_STEPS * step_s > left_s:
            needed = f"{_FEWEST_STEPS} steps take about {_FEWEST_STEPS * step_s:.2g} s, {left_s:.2g} s were left"
            self.refused, self.left_out = f"{needed}, and lightkit tune has more", (needed,)
            return None
        steps = int(min(most, max(_FEWEST_STEPS, _SHARE_OF_STEPS * (self._part.until - now_s) / step_s)))
        self.left_out = (f"there was no time for {most}",) if steps < most else ()
        return steps

    def _run(
        self,
        trainer: Trainer,
        module: LightningModule,
        num_steps: int,
        *,
        early_stop_threshold: float | None,
        is_trial: bool = False,
    ) -> _Pace:
        finder = LearningRateFinder(
            LEAST_RATE, _MOST_RATE, num_steps, early_stop_threshold=early_stop_threshold, update_attr=False
        )
        pace = _Pace(self._part, num_steps, is_trial=is_trial)
        with _paced(pace):
            finder.lr_find(trainer, module)
        assert finder.optimal_lr is not None  # only a fast_dev_run finds nothing
        self.rates = list(finder.optimal_lr.results["lr"])
        self.losses = list(finder.optimal_lr.results["loss"])
        self.is_cut = pace.is_late
        if pace.is_late:
            self.left_out = (f"there was no time for {num_steps}",)
            if (seen := len(self.losses)) < FEWEST_POINTS:
                were = "1 step was" if seen == 1 else f"{seen} steps were"
                self.refused = f"{were} all that there was time for, and lightkit tune has more"
        return pace


class _Pace:
    """How fast the batches of a test are, and its end.

    Args:
        part: Of the time that there is, after which no step begins; the fewest steps may take more of the training.
        num_steps: Of the test.
        is_trial: Whether the test ends as soon as it has shown how fast batches are.
    """

    def __init__(self, part: Part, num_steps: int, *, is_trial: bool) -> None:
        self.is_late = False
        """Whether time has ended the test."""
        self._part, self._num_steps, self._is_trial = part, num_steps, is_trial
        self._ended_s = math.inf
        self._took_s: list[float] = []

    @property
    def batch_s(self) -> float:
        """Seconds of the median batch after the first, which waits for its loaders and warms up; infinite for one."""
        return statistics.median_low(self._took_s) if self._took_s else math.inf

    def batch(self, module: LightningModule) -> None:
        """Note the end of a batch."""
        if not math.isinf(self._part.budget_until):
            synchronized(module.device)
        now_s = time.perf_counter()
        if not math.isinf(self._ended_s):
            self._took_s.append(now_s - self._ended_s)
        self._ended_s = now_s

    def step(self, trainer: Trainer) -> None:
        """End the test after this step, whose last batch was noted, if it is late or has shown what it was to."""
        if trainer.should_stop:  # the loss has grown too much
            return
        until = self._part.budget_until if trainer.global_step < _FEWEST_STEPS else self._part.until
        if self._is_trial and (len(self._took_s) >= _NUM_TIMED or sum(self._took_s) >= _TIMED_S):
            trainer.should_stop = True
        elif trainer.global_step < self._num_steps and self._ended_s >= until:
            self.is_late = trainer.should_stop = True


class _PacedCallback(_LRCallback):
    """Lightning's, whose batches are timed, and are signs of life; it keeps their losses as the model gave them.

    Those of Lightning (2.6.6) are smoothed by the steps of the optimizer, of which it passes over one an epoch where
    the last batches are fewer than are accumulated.
    """

    def __init__(self, pace: _Pace, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pace = pace

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        before = len(self.losses)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        heartbeat().step(MEASURING)
        self._pace.batch(pl_module)
        if len(self.losses) > before:
            self.losses[-1] = _loss_of(outputs) * trainer.accumulate_grad_batches  # by which Lightning has divided it
            self._pace.step(trainer)


def _loss_of(outputs: STEP_OUTPUT) -> float:
    """Give the loss of a step; NaN where the model gave none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss.item() if isinstance(loss, Tensor) else math.nan


def _paced(pace: _Pace) -> AbstractContextManager[Any]:
    """Time the batches of Lightning's finder, which drops all callbacks but its own, always draws a bar, and validates.

    As of 2.6.6 it lets nothing in, draws on standard error by tqdm, and sets `limit_val_batches` to its steps.
    """
    names = vars(lr_finder)
    own = {
        "tqdm": partial(names["tqdm"], disable=True),
        "_LRCallback": partial(_PacedCallback, pace),
        _RESET: partial(_reset_without_validation, names[_RESET]),
    }
    return patch.dict(names, own)


def _reset_without_validation(reset: Callable[..., None], trainer: Trainer, *args: Any) -> None:
    reset(trainer, *args)
    trainer.limit_val_batches = 0


def _no_step_of(trainer: Trainer) -> str:
    """Say why Lightning's finder has seen no step: it looks at those that all batches of a step are there for."""
    number, needed = trainer.num_training_batches, trainer.accumulate_grad_batches
    counted = "" if math.isinf(number) else f" ({int(number)})"
    return f"an epoch has fewer batches{counted} than trainer.accumulate_grad_batches ({needed})"


def _check_optimizers(trainer: Trainer, module: LightningModule) -> None:
    name = type(module).__name__
    if not module.automatic_optimization:
        raise ConfigError(
            f"accelerator.learning_rate: auto cannot be found for {name}, which optimizes by hand "
            "(automatic_optimization = False). Give the rate."
        )
    if len(trainer.optimizers) != 1:
        raise ConfigError(
            f"accelerator.learning_rate: auto needs one optimizer, and {name} has {len(trainer.optimizers)}. "
            "Give the rate."
        )
