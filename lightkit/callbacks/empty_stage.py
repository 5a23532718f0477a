"""A stage that did nothing ends with an error.

No training batch, no tested batch, every batch skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from lightkit.errors import DataError


class RequireWork(Callback):
    """Raise an error at the end of a stage that has seen no batch, or has skipped each.

    An explicit zero in the config (`limit_train_batches: 0`, `max_epochs: 0`) is no error, nor is a
    fit that has nothing left to train.

    Args:
        count_batches: Returns how many training batches this process has seen.
        count_losses: Returns for how many of them there was a loss, without those that were left
            out; None where nobody counts them.
    """

    def __init__(
        self, *, count_batches: Callable[[], int], count_losses: Callable[[], int] | None
    ) -> None:
        self._count_batches = count_batches
        self._count_losses = count_losses
        self._has_begun = False
        self._num_evaluated = 0
        self._num_predicted = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that there was something to train."""
        self._has_begun = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that a batch was trained.

        Raises:
            DataError: If there was none though one was due, or each was skipped.
        """
        if self._count_batches() == 0:
            if trainer.limit_train_batches != 0 and self._was_due(trainer):
                raise DataError(f"the training loader has given no batch{_smallest(trainer)}")
            return
        if self._count_losses is None or not pl_module.automatic_optimization:
            return
        if self._count_losses() == 0:
            raise DataError(
                f"each of the {self._count_batches()} training batches was skipped: training_step"
                " has returned None, or the loss was not finite and watchdog.on_nonfinite left it"
                " out. Nothing was trained."
            )

    def _was_due(self, trainer: Trainer) -> bool:
        if self._has_begun:
            return trainer.global_step == 0  # else it goes on after the last batch of an epoch
        epochs_left = trainer.max_epochs in (None, -1) or trainer.current_epoch < trainer.max_epochs
        steps_left = trainer.max_steps == -1 or trainer.global_step < trainer.max_steps
        return trainer.num_training_batches == 0 and epochs_left and steps_left

    def on_validation_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Count a batch."""
        self._num_evaluated += 1

    on_test_batch_end = on_validation_batch_end

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Count a batch, and whether it has given rows.

        None is no error, as a module may write by itself.
        """
        self._num_evaluated += 1
        is_sized = isinstance(outputs, (list, tuple)) or (
            isinstance(outputs, Tensor) and outputs.ndim > 0
        )
        if not is_sized or len(outputs) > 0:
            self._num_predicted += 1

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check a stage that only evaluates.

        Lightning leaves out the hooks of its end where a loader is empty.

        Ranks without a batch are no error where another one has had some.

        Raises:
            DataError: If there was no batch though one was due, or no batch has given a row.
        """
        limits = {
            "validate": trainer.limit_val_batches,
            "test": trainer.limit_test_batches,
            "predict": trainer.limit_predict_batches,
        }
        # Lightning 2.6 gives a member of its enumeration
        name = str(getattr(stage, "value", stage))
        if limits.get(name, 0) == 0:
            return
        if not trainer.strategy.reduce_boolean_decision(self._num_evaluated > 0, all=False):
            text = (
                f"the {name} loader has given no batch: there is nothing to report. Look at the"
                " data's split."
            )
            raise DataError(text)
        if name != "predict":
            return
        if not trainer.strategy.reduce_boolean_decision(self._num_predicted > 0, all=False):
            raise DataError(
                "predict_step has returned no row for any batch: there is nothing to write. Look at"
                " the data, and at what predict_step leaves out."
            )


def _smallest(trainer: Trainer) -> str:
    """Describe the smallest data of which the training loader would make a batch."""
    loader = trainer.train_dataloader
    if not isinstance(loader, DataLoader):
        return ". Look at what it yields."
    try:
        num_samples = len(loader.sampler)  # type: ignore[arg-type]  # one without a length has no answer
    except TypeError:
        return ". Look at what it yields."
    size = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
    drops_last = getattr(loader.batch_sampler, "drop_last", loader.drop_last)
    if num_samples and drops_last and isinstance(size, int):
        ranks = f" for each of the {trainer.world_size} processes" if trainer.world_size > 1 else ""
        return (
            f": it has {num_samples} samples, batches of {size}, and drops the last, incomplete one"
            f" (drop_last). At least {size} samples are needed{ranks}, or a smaller batch_size."
        )
    return f": its sampler has {num_samples} samples. At least 1 is needed."


def find_reached_limit(trainer: Trainer) -> str | None:
    """Describe the limit of the trainer that has left nothing to train; None where none has."""
    epochs = trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]
    limits = (
        ("epochs", epochs, trainer.max_epochs),
        ("steps", trainer.global_step, trainer.max_steps),
    )
    for unit, done, limit in limits:
        if limit is not None and 0 <= limit <= done:
            return f"{done} of {limit} {unit} are done; raise trainer.max_{unit}"
    return None
