"""`best.ckpt` and `last.ckpt` of a run, the latter also from the middle of an epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

from lightkit import runs
from lightkit.callbacks.metric_modes import find_metric_modes
from lightkit.config import near
from lightkit.errors import ConfigError
from lightkit.runs.metric_mode import infer_mode, override_modes

AUTO_MONITORS = ("val/loss", "val_loss")


class Checkpoint(ModelCheckpoint):
    """Keep the best epoch in `best.ckpt` and the newest state in `last.ckpt`, in the run folder.

    `last.ckpt` is written at the end of each epoch, and within long epochs too where the training data can be
    resumed there (its sampler has a `resume` method, as `lightkit.data.ResumableSampler`); other data resumes at the
    last epoch.

    Args:
        monitor: Logged metric that decides which epoch is best. `auto`: `val/loss` or `val_loss` where one of them is
            logged, otherwise the newest epoch counts as the best. `null`: always the newest.
        mode: Whether the smallest (`min`) or the largest (`max`) value is best; one that is not finite never is.
            `null`: as the metric's object says (torchmetrics' `higher_is_better`), else its name (`max` of
            `val/accuracy`), else `min`.
        dirpath: Folder of the checkpoints. `null`: `checkpoints` in the run folder.
        save_last_every_s: Seconds of training after which `last.ckpt` is written within an epoch; `null`: only at its
            end. The default loses at most five minutes of work for a write of well under a second.
        save_last_every_n_steps: The same, counted in optimizer steps.
    """

    keeps_best = True
    _last_name = "last.ckpt"

    def __init__(
        self,
        monitor: str | None = "auto",
        mode: Literal["min", "max"] | None = None,
        dirpath: str | None = None,
        save_last_every_s: float | None = 300.0,
        save_last_every_n_steps: int | None = None,
    ) -> None:
        super().__init__(
            dirpath=dirpath,
            filename="best",
            monitor=None if monitor == "auto" else monitor,
            mode=mode or infer_mode(str(monitor)) or "min",
            save_last=False,  # Lightning's own is written only together with a new best
            save_top_k=1,
            auto_insert_metric_name=False,
            enable_version_counter=False,
            # At this point validation has run, and Lightning resumes at the next epoch without replaying any hook.
            save_on_train_epoch_end=True,
        )
        self.save_last_every_s = save_last_every_s
        self._is_time = DistributedFlag()
        self.save_last_every_n_steps = save_last_every_n_steps
        self._auto = monitor == "auto"
        self._mode_is_given = mode is not None
        self.modes_of_config: Mapping[str, str] = {}  # what a config says of metrics elsewhere, as in its gate
        self._saved_at_s = time.monotonic()
        self._saved_at_step = 0
        self._step_seen = 0
        self._validated = False

    @classmethod
    def for_resume(cls) -> Checkpoint:
        """Build one that keeps the newest state alone, in `resume.ckpt`, behind a `ModelCheckpoint` of the user's."""
        keeper = cls()
        keeper.keeps_best, keeper._last_name = False, "resume.ckpt"
        return keeper

    def state_dict(self) -> dict[str, Any]:
        """Return the best scores; nothing where no epoch is judged."""
        return super().state_dict() if self.keeps_best else {}

    @property
    def state_key(self) -> str:
        """The same for every setting, so that a changed setting does not lose the best score on resume."""
        return "lightkit.callbacks.Checkpoint"

    @property
    def last_path(self) -> Path:
        """Where `last.ckpt` is written; known after `setup`."""
        assert self.dirpath is not None
        return Path(self.dirpath) / self._last_name

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting the time and the steps since the last write."""
        super().on_train_start(trainer, pl_module)
        self.last_model_path = str(self.last_path)  # which `best.ckpt` holds too
        self._forget_a_best_of_another_run(trainer)
        self._saved_at_s = time.monotonic()
        self._saved_at_step = self._step_seen = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write `last.ckpt` if it is due and training could be resumed right here."""
        before, self._step_seen = self._step_seen, trainer.global_step
        stepped = before != self._step_seen
        if stepped and can_save_within_epoch(trainer, batch_idx) and self._is_due(trainer):
            self.save_last_now(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on everything that is logged has been logged once."""
        self._validated = self._validated or not trainer.sanity_checking
        super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write `best.ckpt` if this epoch is the best, and `last.ckpt`."""
        self._validated = self._validated or not trainer.enable_validation
        if self._can_judge(trainer):
            super().on_train_epoch_end(trainer, pl_module)
        if not getattr(trainer, "fast_dev_run", False):  # Lightning sets it from another module
            self.save_last_now(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write `last.ckpt` again where a run that had nothing left to train was resumed from another checkpoint."""
        broken = trainer.is_global_zero and self.last_path.is_file() and runs.find_fault(self.last_path) is not None
        if trainer.strategy.broadcast(broken) and not getattr(trainer, "fast_dev_run", False):
            self.save_last_now(trainer)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Tell whether this epoch is the best: one whose monitor is not finite on any process never is."""
        is_worst = current is not None and not bool(torch.as_tensor(current).isfinite().all())
        if self.monitor is not None and trainer.strategy.reduce_boolean_decision(is_worst, all=False):
            return False
        return super().check_monitor_top_k(trainer, current)

    def save_last_now(self, trainer: Trainer) -> None:
        """Write `last.ckpt` with the present state."""
        trainer.save_checkpoint(self.last_path)
        self._saved_at_s = time.monotonic()
        self._saved_at_step = trainer.global_step

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score, also where the run folder was moved or copied since."""
        moved = {
            key: str(Path(self.dirpath) / Path(state_dict[key]).name)
            for key in ("best_model_path", "last_model_path", "kth_best_model_path")
            if self.dirpath and state_dict.get(key)
        }
        best_k = {moved.get("best_model_path", path): score for path, score in state_dict["best_k_models"].items()}
        if self._auto:
            self.monitor = state_dict.get("monitor")  # known before the next validation logs it again
        super().load_state_dict({**state_dict, **moved, "best_k_models": best_k, "dirpath": self.dirpath})

    def _forget_a_best_of_another_run(self, trainer: Trainer) -> None:
        """Let the first epoch be the best where the score that was restored has no checkpoint in this run's folder.

        All ranks do as the first one: its disk has the checkpoints.
        """
        if trainer.strategy.broadcast(not self.best_model_path or Path(self.best_model_path).is_file()):
            return
        self.best_k_models.clear()
        self.best_model_path = self.kth_best_model_path = ""
        self.best_model_score = self.current_score = None

    def _is_due(self, trainer: Trainer) -> bool:
        every_n_steps, every_s = self.save_last_every_n_steps, self.save_last_every_s
        if every_n_steps is not None and trainer.global_step - self._saved_at_step >= every_n_steps:
            return True
        if every_s is None:
            return False
        is_time = time.monotonic() - self._saved_at_s >= every_s
        return self._is_time.after_batch(trainer, is_time)  # clocks differ, ranks must not

    def _can_judge(self, trainer: Trainer) -> bool:
        """Tell whether this epoch can be compared with others, and find the metric to do so by.

        Raises:
            ConfigError: If a validation has run and has not logged the monitor.
        """
        if not self.keeps_best:
            return False
        logged = trainer.callback_metrics
        if self._auto and self.monitor is None:
            self.monitor = next((name for name in AUTO_MONITORS if name in logged), None)
        if self.monitor is None:
            return True
        if self.monitor in logged:
            self._decide_mode(trainer)
            return True
        if self._validated and not self._auto and not getattr(trainer, "fast_dev_run", False):
            raise ConfigError(
                f"callbacks.checkpoint.init_args.monitor: {self.monitor!r} is not logged{near(self.monitor, logged)}; "
                f"logged are {', '.join(sorted(logged)) or 'no metrics'}"
            )
        return False  # with `check_val_every_n_epoch`, the next validation is epochs away

    def _decide_mode(self, trainer: Trainer) -> None:
        """Take the mode of the metric that is logged, where none was given."""
        if self._mode_is_given or self.monitor is None:
            return
        known = override_modes(find_metric_modes(trainer, trainer.lightning_module), self.modes_of_config)
        mode = infer_mode(self.monitor, recorded=known) or "min"
        if mode != self.mode:
            self.mode = mode
            if not self.best_k_models:  # else it is the score of the best so far
                self.kth_value = torch.tensor(math.inf if mode == "min" else -math.inf)


def can_save_within_epoch(trainer: Trainer, batch_idx: int) -> bool:
    """Tell whether a checkpoint written after this batch resumes exactly.

    Not after the last batch, and not before a validation within the epoch: Lightning 2.6 skips that validation on
    resume. Not where the data would start the epoch again.
    """
    return not is_last_for_now(trainer, batch_idx) and resumes_within_epoch(trainer)


def save_within_epoch(trainer: Trainer, batch_idx: int) -> None:
    """Write `last.ckpt` after a batch, unless training would not resume exactly there or accumulates gradients."""
    keeper = next((each for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoint)), None)
    is_accumulating = (batch_idx + 1) % trainer.accumulate_grad_batches != 0
    if keeper is not None and can_save_within_epoch(trainer, batch_idx) and not is_accumulating:
        keeper.save_last_now(trainer)


def is_last_for_now(trainer: Trainer, batch_idx: int) -> bool:
    """Tell whether the epoch ends after this batch, or a validation comes."""
    every = trainer.val_check_batch
    across_epochs = trainer.check_val_every_n_epoch is None
    number = trainer.fit_loop.epoch_loop.total_batch_idx if across_epochs else batch_idx
    return trainer.is_last_batch or (isinstance(every, int) and (number + 1) % every == 0)


def resumes_within_epoch(trainer: Trainer) -> bool:
    """Tell whether the training data can start in the middle of an epoch."""
    loader = trainer.train_dataloader
    return isinstance(loader, DataLoader) and hasattr(loader.sampler, "resume")


EVERY_S = 0.2
MOST_BATCHES = 8


class DistributedFlag:
    """Tells all processes after the same batch that one of them wants something.

    A message for which all of them wait takes a millisecond, or several where Horovod looks for work less often. Of
    short batches some pass without one: as many as take `EVERY_S` in the slowest process, `MOST_BATCHES` at most. What
    a process wants it must therefore want until all know.
    """

    def __init__(self) -> None:
        self._num_batches = self._num_left = 1
        self._asked_at_s = time.monotonic()

    def after_batch(self, trainer: Trainer, wanted: bool, *, at_once: bool = False) -> bool:
        """Say whether any process wants it; False where it is too early to ask.

        Args:
            trainer: Of this process. All must call it after the same batches.
            wanted: What this process wants.
            at_once: Ask now, since something long comes next; the same in all processes.
        """
        if trainer.world_size == 1:
            return wanted
        self._num_left -= 1
        if self._num_left and not at_once:
            return False
        num_passed = self._num_batches - self._num_left
        own = [float(wanted), time.monotonic() - self._asked_at_s]
        every = trainer.strategy.all_gather(torch.tensor(own, device=trainer.strategy.root_device))
        is_wanted, seconds = every.reshape(-1, len(own)).amax(0).tolist()
        self._asked_at_s = time.monotonic()
        in_time = int(num_passed * EVERY_S / max(seconds, 1e-6))
        most = 1 if is_wanted else min(in_time, 2 * self._num_batches, MOST_BATCHES)
        self._num_batches = self._num_left = max(1, most)
        return bool(is_wanted)
