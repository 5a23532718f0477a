"""Detect losses and weights that are NaN or infinite.

Report their samples, and keep them out of checkpoints.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torchmetrics import Metric

from lightkit import runs
from lightkit.callbacks.resume import gather, list_indices
from lightkit.errors import ConfigError, NonfiniteLoss

_MAX_IN_A_ROW = 10
_MAX_SHOWN = 10  # batches on the screen; events.jsonl has all
# in a message
_MAX_NAMES = 3
_MAX_SAMPLES = 8
_NUM_BATCHES_LATE = 16
_MIN_BYTES = 2  # torch adds no 8-bit floating-point numbers
_log = logging.getLogger("lightkit")


class FiniteLoss(Callback):
    """Watch the loss of each training batch, and the weights before each checkpoint.

    On the CPU, in one process, it is looked at before the backward pass. On a GPU, and where
    several processes train together, `stop` looks at the losses of 16 batches at once, and always
    before a validation and before a checkpoint is written, so that the device is waited for once in
    16 steps; `skip` waits for each loss. Every loss is looked at of which gradients are computed,
    also where a model steps its optimizers itself.

    A finite loss can have gradients that are not: no checkpoint is written of weights that are NaN
    or infinite, nor of running statistics, unless they were so from the beginning as masks are.
    Files of weights alone, which a `ModelCheckpoint` of your own may write, are not looked at.

    Args:
        action: `stop` ends the run. `skip` leaves the batch out: its optimizer step changes
            nothing, and nothing of it is in metrics and running statistics. The batches of other
            processes in that step, and those of the same accumulation, are left out with it. Ten
            such batches in a row end the run.
        events: Gets an event for each such batch.
        last_good: Finds the newest checkpoint that can be trusted.
    """

    def __init__(
        self,
        action: Literal["stop", "skip"],
        *,
        events: runs.EventStream,
        last_good: Callable[[], Path | None],
    ) -> None:
        self._action = action
        self._events = events
        self._last_good = last_good
        self._interval = 1  # batches
        # position and loss of the batches that wait
        self._losses: list[tuple[dict[str, Any], Tensor]] = []
        self._restore: Callable[[], None] | None = None
        self._is_bad = self._drops_gradients = False
        self._error: NonfiniteLoss | None = None
        self._num_losses = self._num_left_out = self._num_skipped = self._num_in_a_row = 0
        self._on_purpose: set[str] = set()

    @property
    def num_used(self) -> int:
        """Number of losses from which the weights were changed.

        Without those of batches that were left out.
        """
        return self._num_losses - self._num_left_out

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See the training batches, and what is saved.

        Raises:
            ConfigError: If the model steps its optimizers itself, so that nothing can be left out.
        """
        if self._action != "stop" and not pl_module.automatic_optimization:
            raise ConfigError(
                f"watchdog.on_nonfinite: {self._action} needs automatic optimization, but"
                f" {type(pl_module).__name__} steps its optimizers itself, before anybody else sees"
                " the loss. Expected stop."
            )
        state = {**dict(pl_module.named_parameters()), **dict(pl_module.named_buffers())}
        self._on_purpose = {*find_nonfinite_weights(state)}
        strategy: Any = trainer.strategy
        is_immediate = self._action == "skip" or (
            trainer.world_size == 1 and strategy.root_device.type == "cpu"
        )
        self._interval = 1 if is_immediate else _NUM_BATCHES_LATE

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note what is restored where the batch is left out."""
        if self._action == "skip":
            self._restore = _snapshot(trainer, pl_module)

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Look at a loss, or keep it for later.

        Raises:
            NonfiniteLoss: If it is not finite and the run ends.
        """
        self._num_losses += 1
        self._losses.append((self._position(trainer), loss.detach().sum()))
        if self._interval > 1:
            return
        found = self._find_bad(trainer)
        self._num_in_a_row = self._num_in_a_row + 1 if found else 0
        if not found:
            return
        if self._action == "stop":
            self._stop(trainer, found)
        self._is_bad = self._drops_gradients = True
        if self._num_in_a_row >= _MAX_IN_A_ROW:
            self._stop(
                trainer, found, f"So were those of the {_MAX_IN_A_ROW - 1} batches before it. "
            )
        self._num_left_out += 1
        self._num_skipped += len(found)  # of all ranks
        self._write_events(trainer, found, "skip")
        if trainer.is_global_zero and self._num_skipped <= _MAX_SHOWN:
            _log.warning("%s: the batch is left out.", _describe(found[0]))

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Clear the gradients before the optimizer's step where those of a batch are not finite."""
        if self._drops_gradients:
            for group in optimizer.param_groups:  # Horovod refuses `zero_grad` here
                for parameter in group["params"]:
                    parameter.grad = None
            self._drops_gradients = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Restore what a batch that is left out has changed, or look at the losses that wait.

        Raises:
            NonfiniteLoss: If one of them was not finite.
        """
        # not before: the backward pass reads running statistics
        if self._is_bad and self._restore is not None:
            self._restore()
            self._is_bad = False
        if self._interval > 1 and batch_idx % self._interval == self._interval - 1:
            self._stop_if_bad(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do not validate weights that are not finite."""
        if not trainer.sanity_checking:
            self._stop_if_bad(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the losses that wait.

        Raises:
            NonfiniteLoss: If a loss was not finite.
        """
        self._stop_if_bad(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write no checkpoint after a loss that was not finite, nor of weights that are not.

        Raises:
            NonfiniteLoss: On all processes, if they are not.
        """
        self._stop_if_bad(trainer)
        found = find_nonfinite_weights(checkpoint["state_dict"], apart_from=self._on_purpose)
        names = sorted({name for share in gather(trainer, found) for name in share})
        if names:
            position = self._position(trainer)
            more = ", ..." * (len(names) > _MAX_NAMES)
            self._write_events(trainer, [{**position, "indices": None, "weights": names}], "stop")
            raise NonfiniteLoss(
                f"After epoch {position['epoch']}, step {position['step']} weights are NaN or"
                f" infinite ({', '.join(names[:_MAX_NAMES])}{more}), though the losses were finite."
                f" No checkpoint has them: {self._describe_last_good()}. Look at the loss for the"
                " gradient of a root or a quotient at 0 (trainer.detect_anomaly finds it), and at"
                f" the learning rate.{_describe_precision(trainer)}"
            )

    def _position(self, trainer: Trainer) -> dict[str, Any]:
        return {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "batch": trainer.fit_loop.batch_idx,
        }

    def _find_bad(self, trainer: Trainer) -> list[dict[str, Any]]:
        """Look at the losses that wait.

        Return the earliest bad batch, of each process whose loss was not finite there.

        Those after it have its NaN in their weights.
        """
        waiting = self._losses
        self._losses = []
        values = torch.stack([loss for _, loss in waiting]).tolist() if waiting else []
        bad = [
            _with_samples(trainer, {**position, "loss": str(value), "rank": trainer.global_rank})
            for (position, _), value in zip(waiting, values, strict=True)
            if not math.isfinite(value)
        ][:1]
        if trainer.world_size > 1:
            if not trainer.strategy.reduce_boolean_decision(bool(bad), all=False):
                return []
            bad = [each for others in gather(trainer, bad) for each in others]
        first = min(((each["epoch"], each["batch"]) for each in bad), default=None)
        return [each for each in bad if (each["epoch"], each["batch"]) == first]

    def _stop_if_bad(self, trainer: Trainer) -> None:
        """End the run on all processes where a loss on one of them was not finite."""
        if self._error is not None:  # a callback saves what an exception has left
            raise self._error
        if found := self._find_bad(trainer):
            self._stop(trainer, found)

    def _stop(self, trainer: Trainer, found: Sequence[dict[str, Any]], why: str = "") -> NoReturn:
        self._write_events(trainer, found, "stop")
        skip = "; watchdog.on_nonfinite=skip leaves such batches out" * (self._action == "stop")
        self._error = NonfiniteLoss(
            f"{_describe(found[0])}. {why}Nothing of it is in a checkpoint:"
            f" {self._describe_last_good()}. Look at these samples and the learning"
            f" rate{skip}.{_describe_precision(trainer)}"
        )
        raise self._error

    def _describe_last_good(self) -> str:
        good = self._last_good()
        return (
            "there is no checkpoint yet" if good is None else f"the last good checkpoint is {good}"
        )

    def _write_events(self, trainer: Trainer, bad: Sequence[dict[str, Any]], action: str) -> None:
        for each in bad if trainer.is_global_zero else ():
            self._events.write("nonfinite", **each, action=action, count=max(1, self._num_skipped))


def _describe_precision(trainer: Trainer) -> str:
    """Write which key computes in float32, where the training computes in less.

    Empty where it does not.
    """
    precision = str(trainer.precision)
    if precision.startswith(("32", "64")):
        return ""
    return f" The training computes in {precision}: accelerator.precision=32-true turns that off."


def _with_samples(trainer: Trainer, event: Mapping[str, Any]) -> dict[str, Any]:
    """Add the indices and names of the samples of an event's batch; None where they are unknown."""
    loader: Any = trainer.train_dataloader
    indices = list_indices(loader, epoch=event["epoch"], batch=event["batch"])
    source: Any = getattr(getattr(loader, "dataset", None), "source", None)
    names = (
        None
        if indices is None or not hasattr(source, "name")
        else [source.name(index) for index in indices]
    )
    return {**event, "indices": indices, "names": names}


def _describe(bad: Mapping[str, Any]) -> str:
    """Say which batch has a loss that is not finite, and of which samples it is."""
    samples = (
        "its samples are unknown: the loader is shuffled, and its sampler does not name them"
        " (indices_of)"
    )
    if bad["indices"] is not None:
        names = bad["names"] or [*map(str, bad["indices"])]
        more = ", ..." * (len(names) > _MAX_SAMPLES)
        samples = f"samples {', '.join(names[:_MAX_SAMPLES])}{more} of the training split"
    rank = f" on rank {bad['rank']}" if bad["rank"] else ""
    return (
        f"The loss of epoch {bad['epoch']}, step {bad['step']}, batch {bad['batch']}{rank} is"
        f" {bad['loss']} ({samples})"
    )


@torch.no_grad()
def find_nonfinite_weights(
    state: Mapping[str, Any], *, apart_from: Collection[str] = ()
) -> list[str]:
    """Return the names of the tensors that are not finite.

    Integers, and tensors that are not kept as plain numbers (sparse or quantised ones), are not
    looked at.

    Args:
        state: Tensors by name, as a state dict has them; of those that are spread over processes,
            the part here counts.
        apart_from: Names that may hold anything, such as the mask of an attention.
    """
    found = []
    for name, value in state.items():
        local = value.to_local() if hasattr(value, "to_local") else value  # a DTensor
        is_plain = (
            type(local) in (Tensor, Parameter)
            and local.layout == torch.strided
            and not local.is_meta
        )
        if name in apart_from or not is_plain or local.element_size() < _MIN_BYTES:
            continue
        # A sum is ten times as fast as a look at each value; it can be infinite where no value is.
        if not local.sum().isfinite() and not local.isfinite().all():
            found.append(name)
    return found


@torch.no_grad()
def _snapshot(trainer: Trainer, module: LightningModule) -> Callable[[], None]:
    """Copy running statistics and metrics before a batch, and return a function that restores them.

    A NaN would stay in the buffers of layers such as BatchNorm and in the sums of metrics for ever.
    """
    buffers = [
        (buffer, buffer.clone()) for buffer in module.buffers() if buffer.is_floating_point()
    ]
    metrics = [metric for metric in module.modules() if isinstance(metric, Metric)]
    # Lightning 2.6 replaces their tensors and never changes one
    results: Any = trainer.fit_loop.epoch_loop._results
    logged = set(results)
    attributes = [(vars(result), dict(vars(result))) for result in results.values()]
    for metric in metrics:
        values = {
            name: vars(metric)[name] for name in (*metric._defaults, "_update_count", "_computed")
        }
        copies = {
            name: each.clone() if isinstance(each, Tensor) else copy.copy(each)
            for name, each in values.items()
        }
        attributes.append((vars(metric), copies))

    @torch.no_grad()
    def restore() -> None:
        for buffer, before in buffers:
            buffer.copy_(before)
        for current, before_attributes in attributes:
            current.update(before_attributes)
        for name in set(results) - logged:
            del results[name]

    return restore
