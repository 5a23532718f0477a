"""`best.ckpt` and `last.ckpt` of a run, the latter also from the middle of an epoch."""

from __future__ import annotations

import logging
import math
import time
import weakref
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from pytorch_lightning.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader

from lightkit import runs
from lightkit.callbacks.metric_modes import find_metric_modes
from lightkit.config import Resolved, near
from lightkit.errors import ConfigError, join_names
from lightkit.runs.metric_mode import infer_mode, override_modes
from lightkit.torch_files import load_file

_log = logging.getLogger("lightkit")
AUTO_MONITORS = ("val/loss", "val_loss")
_SHARDED = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)


class Checkpoint(ModelCheckpoint):
    """Keep the best weights in `best.ckpt` and the newest state in `last.ckpt`, in the run folder.

    Score and weights are taken together at the end of each validation. Where the validation ends
    the epoch, one file is written at the epoch's end, and best and last are two names of it; where
    more steps of the epoch follow, it is written at the validation.

    `last.ckpt` is written at the end of each epoch and of each validation within it, and more often
    in long epochs where the training data can be resumed there (its sampler has a `resume` method,
    as `lightkit.data.ResumableSampler`).

    Args:
        monitor: Logged metric that decides which weights are best. `auto`: `val/loss` or `val_loss`
            where one of them is logged, of the first loader where there are several; otherwise the
            newest weights count as the best. `null`: always the newest.
        mode: Whether the smallest (`min`) or the largest (`max`) value is best; one that is not
            finite never is. `null`: as the metric's object says (torchmetrics' `higher_is_better`),
            else its name (`max` of `val/accuracy`), else `min`.
        dirpath: Folder of the checkpoints. `null`: `checkpoints` in the run folder.
        save_last_every_s: Seconds of training after which `last.ckpt` is written within an epoch;
            `null`: only at its end and after validations. The default loses at most five minutes of
            work for a write of well under a second.
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
            save_on_train_epoch_end=True,
        )
        self.save_last_every_s = save_last_every_s
        self._is_time = DistributedFlag()
        self.save_last_every_n_steps = save_last_every_n_steps
        self.best_epoch: int | None = None
        self.best_step: int | None = None
        self._auto = monitor == "auto"
        self._mode_is_given = mode is not None
        # what a config says of metrics elsewhere, as in its gate
        self.modes_of_config: Mapping[str, str] = {}
        self._saved_at_s = time.monotonic()
        self._saved_at_step = 0
        self._step_seen = 0
        self._validated = False
        self._has_started = False
        self._has_ended_epoch = False
        self._names_seen: list[str] = []
        # Values of the monitor, by identity: Lightning keeps an old value among its metrics until a
        # new one is logged.
        self._value_before: Tensor | None = None
        self._value_judged: Tensor | None = None
        self._validation: tuple[Tensor | None, int] = (None, -1)
        self._scored_weights: dict[str, Tensor] | None = None
        self._weights_before: dict[str, Tensor] | None = None
        self._is_writing_scored = False

    @classmethod
    def for_resume(cls) -> Checkpoint:
        """Build one that keeps the newest state alone, in `resume.ckpt`.

        It stands behind a `ModelCheckpoint` of the user's.
        """
        keeper = cls()
        keeper.keeps_best = False
        keeper._last_name = "resume.ckpt"
        return keeper

    def state_dict(self) -> dict[str, Any]:
        """Return the best score and where it was reached; nothing where no weights are judged."""
        if not self.keeps_best:
            return {}
        return {**super().state_dict(), "best_epoch": self.best_epoch, "best_step": self.best_step}

    @property
    def state_key(self) -> str:
        """The same for every setting: a changed setting loses not the best score on resume."""
        return "lightkit.callbacks.Checkpoint"

    @property
    def last_path(self) -> Path:
        """Where `last.ckpt` is written; known after `setup`."""
        assert self.dirpath is not None
        return Path(self.dirpath) / self._last_name

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting the time and the steps since the last write."""
        super().on_train_start(trainer, pl_module)
        self._has_started = True
        self.last_model_path = str(self.last_path)  # which `best.ckpt` holds too
        self._match_best_file(trainer)
        self._value_judged = self._find_value(trainer)  # of a run that is resumed
        self._saved_at_s = time.monotonic()
        self._saved_at_step = self._step_seen = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write `last.ckpt` if it is due and training could be resumed right here."""
        before = self._step_seen
        self._step_seen = trainer.global_step
        stepped = before != self._step_seen
        if stepped and can_save_within_epoch(trainer, batch_idx) and self._is_due(trainer):
            self.save_last_now(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the monitor's value of an earlier validation."""
        self._value_before = self._find_value(trainer)
        self._scored_weights = self._weights_before = None
        if may_swap_weights(trainer) and overrides(pl_module, LightningModule, "on_validation_end"):
            # its own hook comes after those of callbacks
            self._weights_before = copy_weights(pl_module)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_args: Any, **_kw: Any
    ) -> None:
        """Keep the weights that are scored.

        Hooks may put others in place before they are written.
        """
        is_asked = self._scored_weights is None and self.keeps_best and not trainer.sanity_checking
        if is_asked and trainer.state.fn == TrainerFn.FITTING and may_swap_weights(trainer):
            self._scored_weights = copy_weights(pl_module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the weights that were scored in the place of the module's.

        Those stay in ``current_model_state``.
        """
        if self._is_writing_scored and self._scored_weights is not None:
            current = checkpoint["state_dict"]
            scored = {
                name: self._scored_weights.get(name, value) for name, value in current.items()
            }
            if not holds_weights(scored, current):
                checkpoint["current_model_state"] = current
                checkpoint["state_dict"] = scored

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write `final.ckpt` where a callback or the model has put other weights in place.

        At the end of training.
        """
        is_off = getattr(trainer, "fast_dev_run", False) or not may_end_with_others(trainer)
        if is_off or is_sharded(trainer) or not self.last_path.is_file():
            return
        saved = load_file(
            self.last_path, map_location="cpu", mmap=zipfile.is_zipfile(self.last_path)
        )["state_dict"]
        if trainer.strategy.broadcast(not holds_weights(saved, pl_module.state_dict())):
            trainer.save_checkpoint(self.last_path.with_name(FINAL_NAME))

    def _can_go_on_from_here(self, trainer: Trainer) -> bool:
        """Return whether a training that reads a checkpoint of this step goes on exactly."""
        # Gradients that are being accumulated are in no checkpoint.
        batches_of_step = trainer.accumulate_grad_batches
        if trainer.fit_loop.batch_idx % batches_of_step != batches_of_step - 1:
            return False
        # The model's own hook may take the scored weights out again, after those of callbacks.
        before = self._weights_before
        scored = self._scored_weights
        return before is None or scored is None or holds_weights(before, scored)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the weights that were scored, unless the epoch ends, which writes them then."""
        if trainer.state.fn != TrainerFn.FITTING or getattr(trainer, "fast_dev_run", False):
            return
        self._names_seen = sorted(trainer.callback_metrics)
        if trainer.sanity_checking:
            return
        self._validated = True
        value = self._find_value(trainer)
        is_new = value is not None and value is not self._value_before
        self._validation = (value if is_new else None, trainer.global_step)

        # The ordinary case: no step follows, and nothing changes the weights before the epoch's end
        # is written.
        is_epoch_over = trainer.fit_loop.epoch_loop.done
        if is_epoch_over and not averages_weights(trainer):
            return

        is_last = not is_epoch_over and self._can_go_on_from_here(trainer)
        is_best = (
            self._is_best(trainer, value)
            if is_new
            else self.keeps_best and self.monitor is None and is_last
        )
        self._save(trainer, is_best=is_best, is_last=is_last)
        self._scored_weights = self._weights_before = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write `last.ckpt`, which is `best.ckpt` too if the weights are the best."""
        if getattr(trainer, "fast_dev_run", False):  # Lightning sets it from another module
            return
        self._has_ended_epoch = True
        self._validated = self._validated or not trainer.enable_validation
        self._names_seen = sorted(trainer.callback_metrics) or self._names_seen
        self._save(trainer, is_best=self.keeps_best and self._is_best_epoch(trainer), is_last=True)
        self._scored_weights = self._weights_before = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write a checkpoint again that a run without anything left to train lacks.

        It was resumed from another one than `last.ckpt`, or killed before `best.ckpt` was made a
        second name of it.
        """
        if (
            not self._has_started
            and self.best_model_path
            and not getattr(trainer, "fast_dev_run", False)
        ):
            self._link_resumed(trainer, self._read_best_everywhere(trainer))
        broken = (
            trainer.is_global_zero
            and self.last_path.is_file()
            and runs.find_fault(self.last_path) is not None
        )
        if trainer.strategy.broadcast(broken) and not getattr(trainer, "fast_dev_run", False):
            self.save_last_now(trainer)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Check whether a score is the best: one that is not finite on any process never is."""
        is_worst = current is not None and not bool(torch.as_tensor(current).isfinite().all())
        if self.monitor is not None and trainer.strategy.reduce_boolean_decision(
            is_worst, all=False
        ):
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
        best_k = {
            moved.get("best_model_path", path): score
            for path, score in state_dict["best_k_models"].items()
        }
        if self._auto:
            # known before the next validation logs it again
            self.monitor = state_dict.get("monitor")
        super().load_state_dict(
            {**state_dict, **moved, "best_k_models": best_k, "dirpath": self.dirpath}
        )
        self.best_epoch = state_dict.get("best_epoch")
        self.best_step = state_dict.get("best_step")

    def explain_newest(self, trainer: Trainer) -> str | None:
        """Return why the newest weights count as the best.

        None where a metric decides, or none can be known yet.
        """
        if not self.keeps_best or self.monitor is not None:
            return None
        if not self._auto:
            return "callbacks.checkpoint.init_args.monitor is null"
        if not trainer.enable_validation:
            return "nothing is validated"
        if not self._validated and self._has_ended_epoch:
            return "no validation has run"
        is_known = self._validated or bool(self._names_seen)  # by the sanity check
        if not is_known or _find_monitor(self._names_seen) is not None:
            return None
        # a detector logs dozens of metrics: those of the validation can be monitored
        names = [name for name in self._names_seen if name.startswith("val")] or self._names_seen
        return (
            f"neither {' nor '.join(AUTO_MONITORS)} is logged, but"
            f" {join_names(names, most=10) or 'nothing'}"
        )

    # -- the best ----------------------------------------------------------------------------------

    def _find_value(self, trainer: Trainer) -> Tensor | None:
        """Return the monitor's newest value.

        With `auto` the monitor is chosen once one of its names is logged.
        """
        logged = trainer.callback_metrics
        if self.keeps_best and self._auto and self.monitor is None:
            self.monitor = _find_monitor(logged)
        return None if self.monitor is None else logged.get(self.monitor)

    def _is_best_epoch(self, trainer: Trainer) -> bool:
        """Check whether the weights at the end of an epoch are the best.

        A value is of these weights where the last validation logged it and no step has followed, or
        where it was logged since, as the mean of a training metric.

        Raises:
            ConfigError: If a validation has run and has not logged the monitor.
        """
        value = self._find_value(trainer)
        if self.monitor is None:
            return True
        if value is None:
            logged = trainer.callback_metrics
            if self._validated and not self._auto:
                raise ConfigError(
                    f"callbacks.checkpoint.init_args.monitor: {self.monitor!r} is not"
                    f" logged{near(self.monitor, logged)}; logged are"
                    f" {', '.join(sorted(logged)) or 'no metrics'}"
                )
            return False  # with `check_val_every_n_epoch`, the next validation is epochs away
        of_validation, step = self._validation
        if value is self._value_judged or (value is of_validation and step != trainer.global_step):
            return False
        return self._is_best(trainer, value)

    def _is_best(self, trainer: Trainer, value: Tensor | None) -> bool:
        """Judge a value, once; on all ranks."""
        self._value_judged = value
        self._decide_mode(trainer)
        return self.keeps_best and self.check_monitor_top_k(trainer, value)

    def _save(self, trainer: Trainer, *, is_best: bool, is_last: bool) -> None:
        """Write the present state under one name or both.

        `last.ckpt` comes first: a kill between the two leaves the newest state to resume from, and
        `best.ckpt` as it was, which the resume then replaces.
        """
        if is_best:
            self._note_best(trainer)
        if is_last:
            self.save_last_now(trainer)
        if not is_best:
            return
        scored = self._scored_weights
        is_same = scored is None or holds_weights(scored, trainer.lightning_module.state_dict())
        is_one_file = is_last and trainer.strategy.broadcast(is_same)
        if not (is_one_file and self._link_best(trainer, self.last_path)):
            self._is_writing_scored = True
            trainer.save_checkpoint(self.best_model_path)
            self._is_writing_scored = False
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.after_save_checkpoint(weakref.proxy(self))

    def _note_best(self, trainer: Trainer) -> None:
        """Note the present weights as the best.

        Before they are written: the checkpoint holds that too.
        """
        self.best_model_path = self.format_checkpoint_name({})
        self.best_epoch = trainer.current_epoch
        self.best_step = trainer.global_step
        if self._value_judged is not None and self.monitor is not None:
            self._set_score(self._value_judged.detach().clone())

    def _set_score(self, score: Tensor) -> None:
        self.current_score = self.best_model_score = self.kth_value = score
        self.best_k_models = {self.best_model_path: score}
        self.kth_best_model_path = self.best_model_path

    def _link_best(self, trainer: Trainer, path: Path) -> bool:
        """Make `best.ckpt` a second name of a checkpoint.

        False where its format, or the plugin, cannot do that.
        """
        checkpoint_io: Any = trainer.strategy.checkpoint_io
        can_link = hasattr(checkpoint_io, "link_checkpoint") and trainer.strategy.broadcast(
            path.exists()
        )
        if can_link and trainer.is_global_zero:
            best = Path(self.best_model_path)
            checkpoint_io.link_checkpoint(path, best, epoch=self.best_epoch, step=self.best_step)
        if can_link:
            trainer.strategy.barrier("Checkpoint: best.ckpt")
        return can_link

    def _match_best_file(self, trainer: Trainer) -> None:
        """Take the best score of a resumed run from `best.ckpt`.

        The file may be older or newer than what was restored.

        Newer where the run was killed after a validation that the resume repeats, older where it
        was killed before `best.ckpt` was made a second name of `last.ckpt`, none in another run's
        folder: there the first weights that are judged are the best. All ranks do as the first one:
        its disk has the checkpoints.
        """
        if not self.best_model_path:
            return
        record = self._read_best_everywhere(trainer)
        if self._link_resumed(trainer, record):
            return
        if record is None:
            self.best_k_models.clear()
            self.best_model_path = self.kth_best_model_path = ""
            self.best_model_score = self.current_score = self.best_epoch = self.best_step = None
        elif record:
            self.best_epoch = record.get("best_epoch")
            self.best_step = record.get("best_step")
            if isinstance(score := record.get("best_model_score"), Tensor):
                self._set_score(score)

    def _read_best_everywhere(self, trainer: Trainer) -> dict[str, Any] | None:
        """Return what `_read_best_file` gives on the first rank."""
        record: dict[str, Any] | None = self._read_best_file() if trainer.is_global_zero else None
        return trainer.strategy.broadcast(record)

    def _link_resumed(self, trainer: Trainer, record: Mapping[str, Any] | None) -> bool:
        """Make `best.ckpt` a second name of the checkpoint that was resumed, if it is the best.

        Args:
            trainer: The trainer.
            record: What `best.ckpt` says of itself.

        Returns:
            Whether `best.ckpt` is that checkpoint now.
        """
        resumed = Path(str(trainer.ckpt_path))
        if resumed.absolute() == Path(self.best_model_path).absolute():
            return True
        is_own = resumed.parent.absolute() == self.last_path.parent.absolute()
        is_resumed_best = is_own and self.best_step == trainer.global_step
        is_other_file = record is None or record.get("best_step") != self.best_step
        return is_resumed_best and is_other_file and self._link_best(trainer, resumed)

    def _read_best_file(self) -> dict[str, Any] | None:
        """Return what `best.ckpt` says of itself, empty where it says nothing.

        None where there is none to be read.
        """
        path = Path(self.best_model_path)
        if path.is_dir():
            if (fault := runs.find_fault(path)) is None:
                return {}
            _log.warning("%s is replaced by the next weights that are judged: %s", path, fault)
            return None
        if not path.is_file():
            return None
        try:
            content = load_file(path, map_location="cpu", mmap=zipfile.is_zipfile(path))
        except ConfigError as error:
            _log.warning("%s is replaced by the next weights that are judged: %s", path, error)
            return None
        callbacks = content.get("callbacks") if isinstance(content, dict) else None
        return dict(runs.find_value(callbacks, self.state_key) or {})

    def _is_due(self, trainer: Trainer) -> bool:
        every_n_steps = self.save_last_every_n_steps
        every_s = self.save_last_every_s
        if every_n_steps is not None and trainer.global_step - self._saved_at_step >= every_n_steps:
            return True
        if every_s is None:
            return False
        is_time = time.monotonic() - self._saved_at_s >= every_s
        return self._is_time.after_batch(trainer, is_time)  # clocks differ, ranks must not

    def _decide_mode(self, trainer: Trainer) -> None:
        """Take the mode of the metric that is logged, where none was given."""
        if self._mode_is_given or self.monitor is None:
            return
        known = override_modes(
            find_metric_modes(trainer, trainer.lightning_module), self.modes_of_config
        )
        mode = infer_mode(self.monitor, recorded=known) or "min"
        if mode != self.mode:
            self.mode = mode
            if not self.best_k_models:  # else it is the score of the best so far
                self.kth_value = torch.tensor(math.inf if mode == "min" else -math.inf)


def _find_monitor(logged: Collection[str]) -> str | None:
    """Return the metric that `monitor: auto` means, of the first loader where several log it.

    None without one.
    """
    names = (*AUTO_MONITORS, *(f"{name}/dataloader_idx_0" for name in AUTO_MONITORS))
    return next((name for name in names if name in logged), None)


def averages_weights(trainer: Trainer) -> bool:
    """Check whether a callback of Lightning's scores and saves averaged weights.

    An epoch's end may change these.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return any(isinstance(callback, WeightAveraging) for callback in callbacks)


FINAL_NAME = "final.ckpt"
_SWAPS = (
    ("on_validation_start", "on_validation_epoch_start"),
    ("on_validation_epoch_end", "on_validation_end"),
)


def overrides(receiver: Any, base: type, *hooks: str) -> bool:
    """Check whether one of the hooks of a callback or module is not that of its base class."""
    return any(getattr(type(receiver), hook) is not getattr(base, hook) for hook in hooks)


def list_foreign(trainer: Trainer) -> list[tuple[Any, type]]:
    """List the module and the callbacks that are not lightkit's or Lightning's.

    Each with its base class.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    foreign = [
        each for each in callbacks if type(each).__module__.partition(".")[0] not in _KNOWN_PACKAGES
    ]
    return [
        (trainer.lightning_module, LightningModule),
        *((callback, Callback) for callback in foreign),
    ]


_KNOWN_PACKAGES = ("lightkit", "pytorch_lightning", "lightning")


def may_swap_weights(trainer: Trainer) -> bool:
    """Check whether a hook of the user's could put other weights in place for a validation.

    Also check whether it could take them out again.
    """
    if is_sharded(trainer) or averages_weights(trainer):
        return False
    starts, ends = _SWAPS
    return any(
        overrides(*each, *starts) and overrides(*each, *ends) for each in list_foreign(trainer)
    )


def may_end_with_others(trainer: Trainer) -> bool:
    """Check whether a hook could put other weights in place for the end of training."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    averages = any(isinstance(callback, StochasticWeightAveraging) for callback in callbacks)
    return averages or any(overrides(*each, "on_train_end") for each in list_foreign(trainer))


def is_sharded(trainer: Trainer) -> bool:
    """Check whether no rank has all weights."""
    return isinstance(trainer.strategy, _SHARDED)


def copy_weights(module: LightningModule) -> dict[str, Tensor]:
    """Return a copy of the module's tensors on the CPU."""
    state = module.state_dict()
    return {
        name: value.detach().cpu().clone()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def holds_weights(state: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Check whether two state dicts have the same tensors, bit for bit."""
    names = [name for name, value in other.items() if isinstance(value, Tensor)]
    return all(
        name in state and torch.equal(state[name].cpu(), other[name].cpu()) for name in names
    )


def can_save_within_epoch(trainer: Trainer, batch_idx: int) -> bool:
    """Return whether a checkpoint written after this batch resumes exactly.

    Not after the last batch, and not before a validation within the epoch: Lightning 2.6 skips that
    validation on resume. Not where the data would start the epoch again.
    """
    return not is_last_for_now(trainer, batch_idx) and resumes_within_epoch(trainer)


def save_within_epoch(trainer: Trainer, batch_idx: int) -> None:
    """Write `last.ckpt` after a batch.

    Not where training would not resume exactly there or accumulates gradients.
    """
    keeper = next(
        (each for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoint)), None
    )
    is_accumulating = (batch_idx + 1) % trainer.accumulate_grad_batches != 0
    if keeper is not None and can_save_within_epoch(trainer, batch_idx) and not is_accumulating:
        keeper.save_last_now(trainer)


def is_last_for_now(trainer: Trainer, batch_idx: int) -> bool:
    """Return whether the epoch ends after this batch, or a validation comes."""
    every = trainer.val_check_batch
    across_epochs = trainer.check_val_every_n_epoch is None
    number = trainer.fit_loop.epoch_loop.total_batch_idx if across_epochs else batch_idx
    return trainer.is_last_batch or (isinstance(every, int) and (number + 1) % every == 0)


def is_validated_after(trainer: Trainer, batch_idx: int) -> bool:
    """Check whether a validation comes after this batch, by the number of batches.

    One by the clock is not foreseen.
    """
    every_n_epochs = trainer.check_val_every_n_epoch
    every = trainer.val_check_batch
    is_this_epoch = every_n_epochs is None or (trainer.current_epoch + 1) % every_n_epochs == 0
    if not (trainer.enable_validation and is_this_epoch) or every is None:
        return False
    if not isinstance(every, int):  # a stream is validated where it ends
        return trainer.is_last_batch
    number = trainer.fit_loop.total_batch_idx if every_n_epochs is None else batch_idx
    return (number + 1) % every == 0


def resumes_within_epoch(trainer: Trainer) -> bool:
    """Return whether the training data can start in the middle of an epoch."""
    loader = trainer.train_dataloader
    return isinstance(loader, DataLoader) and hasattr(loader.sampler, "resume")


EVERY_S = 0.2
MOST_BATCHES = 8


class DistributedFlag:
    """Tells all processes after the same batch that one of them wants something.

    A message for which all of them wait takes a millisecond, or several where Horovod looks for
    work less often. Of short batches some pass without one: as many as take `EVERY_S` in the
    slowest process, `MOST_BATCHES` at most. What a process wants it must therefore want until all
    know.
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


def list_checkpoint_callbacks(
    resolved: Resolved, trainer: Mapping[str, Any], callbacks: Sequence[Callback]
) -> list[Callback]:
    """List what is added so that a run can be resumed.

    `Checkpoint`, or its `resume.ckpt` next to a `ModelCheckpoint`.

    Args:
        resolved: The config; with `callbacks: {checkpoint: null}` nothing is added.
        trainer: The trainer's arguments; nor with `enable_checkpointing: false`.
        callbacks: The other callbacks.
    """
    kept = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    is_off = trainer.get("enable_checkpointing") is False or trainer.get("barebones")
    is_removed = resolved.section("callbacks").get("checkpoint", "") is None
    if is_off or is_removed or any(isinstance(callback, Checkpoint) for callback in kept):
        return []
    return [Checkpoint.for_resume() if kept else Checkpoint()]


def rank_as_best(callback: Callback) -> int:
    """Return the place of a callback in the trainer's list.

    Lightning takes the first one's checkpoint for the best.

    One that chooses by a metric comes before those that keep all or the newest, and `resume.ckpt`
    last, behind those that LightningCLI adds.
    """
    if not isinstance(callback, ModelCheckpoint):
        return 0
    if isinstance(callback, Checkpoint) and not callback.keeps_best:
        return 3
    return 1 if callback.monitor is not None and callback.save_top_k != 0 else 2
