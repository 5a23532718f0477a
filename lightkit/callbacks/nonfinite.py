"""Detect losses and weights that are NaN or infinite, report their samples, and keep them out of checkpoints."""

from __future__ import annotations

import copy
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loops.optimization.automatic import Closure
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import Metric

from lightkit import runs
from lightkit.callbacks.resume import gather
from lightkit.errors import ConfigError, NonfiniteLoss

_MOST_IN_A_ROW = 10
_NUM_NAMED = 3
_OF_NONE = "`training_step` returned `None`. If this was on purpose, ignore this warning..."  # Lightning 2.6.6


class FiniteLoss(Callback):
    """Watch the loss of each training batch, and the weights before each checkpoint.

    On the CPU, in one process, it is looked at before the backward pass. On a GPU, and where several processes train
    together, `stop` looks at the losses of 16 batches at once, and always before a validation and before a checkpoint
    is written, so that no step waits for the device; `skip` must know before the optimizer steps, and waits for each
    loss. A model that steps its optimizers itself is watched by what it returns, or where it returns
    nothing by what it gives `manual_backward`.

    A finite loss can have gradients that are not: no checkpoint is written of weights that are NaN or infinite, nor of
    running statistics, unless they were so from the beginning as masks are.

    Args:
        action: `stop` ends the run. `skip` leaves the batch out: no optimizer step, and nothing of it in metrics and
            running statistics; several processes leave out all their batches of that step, and the accumulation that
            it is part of. Ten such batches in a row, or an epoch that has no other, end the run.
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
        self._action, self._last_good = action, last_good
        self._bad = BadBatches(events)
        self._indices = BatchIndices()
        self._late: LateLosses | None = None
        self._trainer: Trainer | None = None
        self._snapshot: StateSnapshot | None = None
        self._batch = 0
        self._drops_gradients = False
        self._spoilt: NonfiniteLoss | None = None
        self._backward: list[Tensor] = []
        self._left_out: list[BadBatch] = []
        self._num_left_out = 0
        self._on_purpose: set[str] = set()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See the training batches, and what their steps give.

        Raises:
            ConfigError: If the model steps its optimizers itself, so that nothing can be left out.
        """
        if self._action != "stop" and not pl_module.automatic_optimization:
            raise ConfigError(
                f"watchdog.on_nonfinite: {self._action} needs automatic optimization, but {type(pl_module).__name__} "
                "steps its optimizers itself, before anybody else sees the loss. Expected stop."
            )
        self._trainer = trainer
        self._on_purpose = not_finite_at_first(pl_module)
        strategy: Any = trainer.strategy
        step, process = strategy.training_step, strategy.process_dataloader
        # Lightning has no hook between a step and its backward pass that could leave the batch out.
        strategy.training_step = lambda *args, **kwargs: self._checked(trainer, lambda: step(*args, **kwargs))
        strategy.process_dataloader = lambda loader: process(
            self._indices.watch(loader) if trainer.training else loader
        )
        # Here, not in a hook: there is none for checkpoints of weights alone.
        strategy.save_checkpoint = partial(self._save, trainer, strategy.save_checkpoint)
        if not pl_module.automatic_optimization:
            strategy.backward = partial(self._go_back, strategy.backward)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what can be needed to undo a batch."""
        if self._action == "stop":
            on_cpu = trainer.strategy.root_device.type == "cpu"
            self._late = None if on_cpu and trainer.world_size == 1 else LateLosses()
            return
        self._snapshot = StateSnapshot(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the batches that are skipped from 0 again."""
        self._num_left_out = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Know which batch it is."""
        self._batch = batch_idx

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Let the optimizer find no gradients where the batch of one process has spoilt those of all."""
        if self._drops_gradients:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            self._drops_gradients = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the losses of some batches where that is due."""
        if self._late is not None and self._late.is_due:
            self._judge(trainer, self._late.older())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do not measure weights that are spoilt."""
        if self._late is not None and not trainer.sanity_checking:
            self._judge(trainer, self._late.all())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing is left to look at when the epoch is over.

        Raises:
            NonfiniteLoss: If a loss was not finite, or all batches of the epoch were left out.
        """
        if self._num_left_out > self._batch:
            raise self._stopped(trainer, self._left_out, "So were those of all batches of this epoch. ")
        if self._late is not None:
            self._judge(trainer, self._late.all())

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let no spoilt weights into a checkpoint.

        Raises:
            NonfiniteLoss: If they are.
        """
        if self._spoilt is not None:
            raise self._spoilt
        if self._late is not None:
            self._judge(trainer, self._late.all())

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let the strategy be as it was."""
        for name in ("training_step", "process_dataloader", "save_checkpoint", "backward"):
            vars(trainer.strategy).pop(name, None)

    def _checked(self, trainer: Trainer, step: Callable[[], Any]) -> Any:
        """Run a training step; give None in place of its output where its batch is to be left out."""
        place = BatchPosition(trainer.current_epoch, trainer.global_step, self._batch)
        if self._snapshot is not None:
            self._snapshot.take()
        output = step()
        loss = loss_of(output)
        if self._backward:
            loss = torch.stack(self._backward).sum() if loss is None else loss
            self._backward.clear()
        if self._late is not None:
            self._late.add(place, loss)
            return output
        found = self._found(trainer, place, None if loss is None else fault_of_loss(loss))
        if not found:
            self._bad.num_in_a_row = 0
            return output
        if self._action == "stop":
            raise self._stopped(trainer, found, spoilt=not trainer.lightning_module.automatic_optimization)
        self._leave_out(trainer, found)
        if trainer.world_size == 1:
            Closure.warning_cache.add(_OF_NONE)  # which Lightning would say of what comes now
            return None
        # Every process must go through the backward pass, in which they wait for each other.
        self._drops_gradients = True
        return output

    def _leave_out(self, trainer: Trainer, found: Sequence[BadBatch]) -> None:
        assert self._snapshot is not None
        self._snapshot.restore()
        self._bad.num_in_a_row += 1
        self._num_left_out, self._left_out = self._num_left_out + 1, list(found)
        if self._bad.num_in_a_row >= _MOST_IN_A_ROW:
            raise self._stopped(trainer, found, f"So were those of the {_MOST_IN_A_ROW - 1} batches before it. ")
        if trainer.is_global_zero:
            self._bad.left_out(found)

    def _judge(self, trainer: Trainer, losses: Sequence[tuple[BatchPosition, float]]) -> None:
        """End the run on all processes where a loss on one of them was not finite."""
        place, value = next(
            ((at, value) for at, value in losses if not math.isfinite(value)), (BatchPosition(0, 0, 0), 0.0)
        )
        found = self._found(trainer, place, None if math.isfinite(value) else str(value))
        if found:
            raise self._stopped(trainer, found, spoilt=True)

    def _go_back(self, backward: Callable[..., Tensor], loss: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self._backward.append(loss.detach().sum())
        return backward(loss, *args, **kwargs)

    def _save(self, trainer: Trainer, save: Callable[..., None], checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        self._judge_weights(trainer, checkpoint.get("state_dict") or {})
        save(checkpoint, *args, **kwargs)

    def _judge_weights(self, trainer: Trainer, state: Mapping[str, Any]) -> None:
        """End the run on all processes where weights that are about to be saved are not finite."""
        if self._spoilt is not None:
            raise self._spoilt
        names = spoilt_weights(state, apart_from=self._on_purpose)
        if trainer.world_size > 1 and trainer.strategy.reduce_boolean_decision(bool(names), all=False):
            names = sorted({name for others in gather(trainer, names) for name in others})
        if names:
            raise self._spoilt_weights(trainer, names)

    def _spoilt_weights(self, trainer: Trainer, names: Sequence[str]) -> NonfiniteLoss:
        """Tell of weights that became bad between two checkpoints; the samples of the newest batch are a hint only."""
        place = BatchPosition(trainer.current_epoch, trainer.global_step, self._batch)
        if trainer.is_global_zero:
            indices = self._indices.of(epoch=place.epoch, batch=place.batch)
            self._bad.note(BadBatch(*place, "finite", indices, self._indices.names(indices)), "stop", weights=names)
        more = ", ..." * (len(names) > _NUM_NAMED)
        self._spoilt = NonfiniteLoss(
            f"After epoch {place.epoch}, step {place.step} weights are NaN or infinite ({', '.join(names[:_NUM_NAMED])}"
            f"{more}), though the losses were finite. No checkpoint has them: {self._whence()}. "
            "Look at the loss for the gradient of a root or a quotient at 0 (trainer.detect_anomaly finds it), and at "
            "the learning rate."
        )
        return self._spoilt

    def _whence(self) -> str:
        good = self._last_good()
        return "there is no checkpoint yet" if good is None else f"the last good checkpoint is {good}"

    def _found(self, trainer: Trainer, place: BatchPosition, fault: str | None) -> list[BadBatch]:
        """Give the earliest bad batches, one of each process that has one then."""
        own = None
        if fault is not None:
            indices = self._indices.of(epoch=place.epoch, batch=place.batch)
            own = BadBatch(*place, fault, indices, self._indices.names(indices), trainer.global_rank)
        if trainer.world_size == 1:
            return [] if own is None else [own]
        if not trainer.strategy.reduce_boolean_decision(own is not None, all=False):
            return []
        found = [bad for bad in gather(trainer, own) if bad is not None]
        first = min((bad.epoch, bad.batch) for bad in found)
        return [bad for bad in found if (bad.epoch, bad.batch) == first]

    def _stopped(
        self, trainer: Trainer, found: Sequence[BadBatch], why: str = "", *, spoilt: bool = False
    ) -> NonfiniteLoss:
        if trainer.is_global_zero:
            for bad in found:
                self._bad.note(bad, "stop")
        advice = "Look at these samples and the learning rate"
        more = f"{advice}; watchdog.on_nonfinite=skip leaves such batches out." * (self._action == "stop")
        error = NonfiniteLoss(
            f"{found[0]}. {why}Nothing of it is in a checkpoint: {self._whence()}. {more or advice + '.'}"
        )
        self._spoilt = error if spoilt else None
        return error


_MOST_TOLD = 10  # on the screen; events.jsonl has all
_NUM_SAMPLES = 8
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
        return f"samples {', '.join(named[:_NUM_SAMPLES])}{', ...' * (len(named) > _NUM_SAMPLES)} of the training split"


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


_MIN_BYTES = 2  # torch computes no norms of 8-bit floating-point numbers


@torch.no_grad()
def spoilt_weights(state: Mapping[str, Any], *, apart_from: Collection[str] = ()) -> list[str]:
    """Name the tensors that are not finite, which waits once for each device.

    Whole numbers, and tensors that are not kept as plain numbers (sparse or quantised ones), are not looked at.

    Args:
        state: Tensors by name, as a state dict has them; of those that are spread over processes, the part here counts.
        apart_from: Names that may hold anything, such as the mask of an attention.
    """
    groups: dict[tuple[Any, Any], dict[str, Tensor]] = defaultdict(dict)
    for name, value in state.items():
        tensor = None if name in apart_from else _plain(value)
        if tensor is not None:
            groups[tensor.device, tensor.dtype][name] = tensor
    return [name for group in groups.values() for name in _not_finite(group)]


def nan_weights(state: Mapping[str, Any]) -> list[str]:
    """Name the tensors that hold NaN: masks and extremes are infinite on purpose, and nothing is NaN so."""
    return [name for name in spoilt_weights(state) if (own := _plain(state[name])) is not None and own.isnan().any()]


def not_finite_at_first(module: Module) -> set[str]:
    """Name what a model holds on purpose that is not finite, such as masks, or the least value seen so far."""
    return set(spoilt_weights({**dict(module.named_parameters()), **dict(module.named_buffers())}))


def _plain(value: Any) -> Tensor | None:
    """Give the numbers of a tensor; None where they cannot be looked at."""
    if hasattr(value, "to_local"):  # a DTensor
        value = value.to_local()
    if type(value) not in (Tensor, Parameter) or value.layout != torch.strided or value.is_meta or not value.numel():
        return None
    if value.is_complex():
        return torch.view_as_real(value.resolve_conj())
    return value if value.is_floating_point() and value.element_size() >= _MIN_BYTES else None


def _not_finite(group: Mapping[str, Tensor]) -> list[str]:
    """All sums of squares, ten times as fast as to look at each value; one can be infinite where no value is."""
    norms = torch.stack(torch._foreach_norm(list(group.values())))
    suspects = [name for name, is_finite in zip(group, norms.isfinite().tolist(), strict=True) if not is_finite]
    return [name for name in suspects if not group[name].isfinite().all()]


_NUM_BATCHES = 16


class BatchPosition(NamedTuple):
    """Where a batch is.

    Args:
        epoch: From 0.
        step: Optimizer steps before it.
        batch: Its number in the epoch, from 0.
    """

    epoch: int
    step: int
    batch: int


class LateLosses:
    """Keep the losses of batches on their device; after some batches they are sent, and read after as many more.

    So a bad loss is seen late, by up to twice as many batches; on a GPU no step waits for it in return.
    """

    def __init__(self) -> None:
        self._losses: list[tuple[BatchPosition, Tensor]] = []
        self._sent: list[_Block] = []
        self._num_batches = 0

    @property
    def is_due(self) -> bool:
        """Whether it is time to look; after the same batch on every process."""
        return self._num_batches >= _NUM_BATCHES

    def add(self, place: BatchPosition, loss: Tensor | None) -> None:
        """Keep the loss of a batch, if it has one."""
        self._num_batches += 1
        if loss is not None:
            self._losses.append((place, loss.detach().sum().clone()))

    def older(self) -> list[tuple[BatchPosition, float]]:
        """Give what was sent the time before, and send the rest."""
        before, self._sent = self._sent, []
        self._send()
        return [each for block in before for each in block.read()]

    def all(self) -> list[tuple[BatchPosition, float]]:
        """Give all, which waits for the device."""
        self._send()
        blocks, self._sent = self._sent, []
        return [each for block in blocks for each in block.read()]

    def _send(self) -> None:
        self._num_batches = 0
        if self._losses:
            self._sent.append(_Block(self._losses))
            self._losses = []


class _Block:
    """The losses of some batches on their way to the CPU."""

    def __init__(self, losses: list[tuple[BatchPosition, Tensor]]) -> None:
        self._places = [place for place, _ in losses]
        values = torch.stack([loss.float() for _, loss in losses])
        self._copied = torch.cuda.Event() if values.is_cuda else None  # type: ignore[no-untyped-call]
        self._values = values.to("cpu", non_blocking=values.is_cuda)
        if self._copied is not None:
            self._copied.record()

    def read(self) -> list[tuple[BatchPosition, float]]:
        """Give the losses; the copy is done long ago where others were computed since."""
        if self._copied is not None:
            self._copied.synchronize()
        return list(zip(self._places, self._values.tolist(), strict=True))


_NUM_KEPT = 1024  # batches: more than any loader prepares ahead


@runtime_checkable
class KnownOrder(Protocol):
    """A sampler that can tell at any time which samples a batch has."""

    def indices_of(self, *, epoch: int, batch: int) -> list[int]:
        """Give the indices, in the split, of the samples of a batch of this process."""


@runtime_checkable
class NamedSource(Protocol):
    """Samples that people know by a name."""

    def name(self, index: int, /) -> str:
        """Give the name of a sample."""


class BatchIndices:
    """Keeps, for anybody's loader, the indices that its batch sampler has given for the newest batches."""

    def __init__(self) -> None:
        self._loader: object = None
        self._kept: deque[tuple[int, list[int]]] = deque(maxlen=_NUM_KEPT)

    def watch(self, loader: object) -> object:
        """Give the loader back, noting what its batch sampler will give from now on."""
        self._loader = loader
        self._kept.clear()
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return loader
        if loader.batch_sampler is not None and not isinstance(loader.sampler, KnownOrder):
            # torch lets nobody exchange the batch sampler of a loader, because it would not take back what it derived
            # from it; this one gives the same batches.
            vars(loader)["batch_sampler"] = _Noted(loader.batch_sampler, self._kept)
        return loader

    def of(self, *, epoch: int, batch: int) -> list[int] | None:
        """Give the indices of a batch's samples in the split; None where nobody knows them.

        Args:
            epoch: From 0.
            batch: Its number in the epoch, from 0.
        """
        sampler = getattr(self._loader, "sampler", None)
        if isinstance(sampler, KnownOrder):
            return sampler.indices_of(epoch=epoch, batch=batch)
        found = (indices for number, indices in reversed(self._kept) if number == batch)  # the newest is this epoch's
        indices = next(found, None)
        return indices if indices is not None and all(isinstance(index, int) for index in indices) else None

    def names(self, indices: list[int] | None) -> list[str] | None:
        """Give what people know the samples by, such as paths of files; None where the data does not tell."""
        source = getattr(getattr(self._loader, "dataset", None), "source", None)
        if indices is None or not isinstance(source, NamedSource):
            return None
        return [source.name(index) for index in indices]


class _Noted:
    """A batch sampler that writes down what it gives; in all else it is the one that it stands for."""

    def __init__(self, sampler: Any, kept: deque[tuple[int, list[int]]]) -> None:
        self._sampler, self._kept_here = sampler, kept

    def __iter__(self) -> Iterator[Any]:
        for number, indices in enumerate(self._sampler):
            if isinstance(indices, list):
                self._kept_here.append((number, indices))
            yield indices

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of a copy or a pickle under way
            raise AttributeError(name)
        return getattr(self._sampler, name)


class StateSnapshot:
    """Statistics of layers and counts of metrics before a batch: a NaN in them would stay for ever.

    Layers such as BatchNorm keep running statistics in buffers; metrics keep sums.

    Args:
        trainer: Its running means of what was logged are kept.
        module: Its buffers and its metrics are kept.
    """

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._metrics = [metric for metric in module.modules() if isinstance(metric, Metric)]
        self._buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        self._before = [torch.empty_like(buffer) for buffer in self._buffers]
        self._trainer = trainer
        self._states: list[dict[str, Any] | None] = []
        self._logged: dict[str, dict[str, Any]] = {}

    @torch.no_grad()
    def take(self) -> None:
        """Keep what is there now."""
        if self._buffers:
            torch._foreach_copy_(self._before, self._buffers)
        self._states = [_state(metric) if metric.update_called else None for metric in self._metrics]
        # Lightning 2.6 replaces these tensors with each value that is logged, and never changes one
        self._logged = {key: dict(vars(result)) for key, result in _results(self._trainer).items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Put it back."""
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._before)
        for metric, state in zip(self._metrics, self._states, strict=True):
            if state is None:
                metric.reset()
            else:
                _put_back(metric, state)
        results = _results(self._trainer)
        for key in list(results):
            if key not in self._logged:
                del results[key]
            else:
                vars(results[key]).update(self._logged[key])


def _results(trainer: Trainer) -> Any:
    return trainer.fit_loop.epoch_loop._results


def _state(metric: Metric) -> dict[str, Any]:
    """Give the tensors of a metric's state, and of those that are lists the length: entries are added, not changed."""
    state: dict[str, Any] = {"": (metric._update_count, metric._computed)}
    for name in metric._defaults:
        value = getattr(metric, name)
        state[name] = value.clone() if isinstance(value, Tensor) else len(value)
    return state


def _put_back(metric: Metric, state: dict[str, Any]) -> None:
    metric._update_count, metric._computed = state[""]
    for name in metric._defaults:
        kept, value = state[name], getattr(metric, name)
        setattr(metric, name, kept if isinstance(kept, Tensor) else copy.copy(value)[:kept])
