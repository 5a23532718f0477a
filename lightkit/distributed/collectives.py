"""Horovod's collectives as Lightning and torchmetrics want them: named, outside inference mode, for every dtype.

Every collective has a name of ours. Without one Horovod counts operations or takes the type of the object for a name,
and two ranks that differ in either wait for each other forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torchmetrics import Metric
from torchmetrics.metric import jit_distributed_available
from torchmetrics.utilities.distributed import gather_all_tensors

from lightkit.config import error_at
from lightkit.errors import LightkitError
from lightkit.launch import waiting

hvd: Any = None
try:
    import horovod.torch

    hvd = horovod.torch
except (ImportError, OSError) as error:  # not installed, or built for another torch
    _MISSING = str(error)


_OPS = {"none": "Average", "mean": "Average", "avg": "Average", "sum": "Sum", "max": "Max", "min": "Min"}
_OPS["product"] = "Product"
_SENT_AS = {torch.bfloat16: torch.float32, torch.bool: torch.uint8}  # Horovod 0.28 has neither


def require_horovod() -> None:
    """Check that Horovod can be imported.

    Raises:
        ConfigError: If it cannot, with how to build it.
    """
    if hvd is None:
        raise error_at(
            f"strategy: horovod needs Horovod for torch {torch.__version__}, which cannot be imported ({_MISSING}). "
            "Build it: make horovod, or python scripts/build_horovod.py in lightkit's sources."
        )


@contextmanager
def plain() -> Iterator[None]:
    """Leave inference mode: Horovod's own thread resizes outputs, which inference tensors do not allow."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def operation(reduce_op: Any) -> Any:
    """Translate a reduction of Lightning's or torch.distributed's into Horovod's.

    Raises:
        ValueError: If Horovod has no such reduction.
    """
    name = str(reduce_op).rsplit(".", 1)[-1].lower()
    if name not in _OPS:
        raise ValueError(f"Horovod cannot reduce with {reduce_op!r}; it can with {', '.join(sorted(_OPS))}.")
    return getattr(hvd, _OPS[name])


class _GatherWithGradient(torch.autograd.Function):
    """Stack the tensors of all ranks; the gradient of each is the sum over the ranks, as torch.distributed's is."""

    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        with plain():
            stacked: Tensor = hvd.allgather(tensor.detach().contiguous().unsqueeze(0), name="lightkit.gather")
        return stacked

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        with plain(), waiting("all-reduce of a gathered tensor's gradient"):
            summed: Tensor = hvd.allreduce(gradients[0].contiguous(), op=hvd.Sum, name="lightkit.gather.gradient")
        return summed[hvd.rank()]


class Collectives:
    """What ranks do together, apart from gradients.

    Attributes:
        checked: Make sure before each collective that all ranks are in the same one. It costs a message, and is for
            evaluations in which the ranks have unlike numbers of batches.
        where: Tells in which hook of the model this rank is.
    """

    def __init__(self) -> None:
        self.checked = False
        self.where: Callable[[], str | None] = lambda: None

    def available(self) -> bool:
        """Say whether there are other ranks."""
        return hvd is not None and hvd.is_initialized() and hvd.size() > 1

    def broadcast(self, value: Any, *, src: int = 0) -> Any:
        """Give the object of rank ``src``."""
        if not self.available():
            return value
        with self._collective("broadcast of an object"):
            return hvd.broadcast_object(value, root_rank=src, name="lightkit.broadcast")

    def gather_objects(self, value: Any) -> list[Any]:
        """Give the objects of all ranks, by rank."""
        if not self.available():
            return [value]
        with self._collective("gathering of objects"):
            return list(hvd.allgather_object(value, name="lightkit.objects"))

    def barrier(self, what: str = "barrier") -> None:
        """Wait for all ranks."""
        if self.available():
            with self._collective(what):
                hvd.barrier()

    def reduce(self, tensor: Tensor, reduce_op: Any = "mean") -> Tensor:
        """Reduce a tensor over the ranks.

        Args:
            tensor: Of any shape, the same on each rank.
            reduce_op: Lightning's name or torch.distributed's operation.

        Returns:
            Of the same shape and dtype; the mean of integers is float32, as a half would be lost.
        """
        op = operation(reduce_op)
        if not self.available():
            return tensor
        whole = op == hvd.Average and not tensor.is_floating_point()
        staged = torch.float64 if whole else torch.int64
        if tensor.is_floating_point():
            staged = _SENT_AS.get(tensor.dtype, tensor.dtype)
        with self._collective(f"reduction ({reduce_op})"):
            own = tensor.detach().clone().contiguous().to(staged)
            reduced: Tensor = hvd.allreduce(own, op=op, name="lightkit.reduce")
        return reduced.to(torch.float32 if whole else tensor.dtype)

    def agree(self, yes: bool, *, everyone: bool = True, what: str = "decision") -> bool:
        """Say whether all ranks say yes, or whether any does."""
        if not self.available():
            return yes
        op = hvd.Min if everyone else hvd.Max
        with self._collective(what):
            return bool(hvd.allreduce(torch.tensor([int(yes)]), op=op, name="lightkit.agree").item())

    def stack(self, tensor: Tensor, *, sync_grads: bool = False) -> Tensor:
        """Give the tensors of all ranks as one of shape ``(world_size, ...)``.

        Args:
            tensor: Of the same shape on each rank.
            sync_grads: Let gradients flow back to each rank's own tensor.
        """
        if not self.available():
            return tensor.unsqueeze(0)
        with self._collective("gathering of tensors"), torch.set_grad_enabled(sync_grads):
            own = tensor if sync_grads else tensor.detach().clone()
            stacked: Tensor = _GatherWithGradient.apply(own.to(_SENT_AS.get(own.dtype, own.dtype)))
            return stacked.to(tensor.dtype)

    def gather_states(self, state: Tensor, group: Any = None) -> list[Tensor]:
        """Give a metric's state on each rank, of possibly different shapes: torchmetrics' ``dist_sync_fn``."""
        facts = self.gather_objects((tuple(state.shape), state.dtype))
        with plain(), waiting("gathering of a metric"):
            gathered = hvd.allgather(_bytes(state.detach().clone()), name="lightkit.metric")
        sizes = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in facts]
        parts = zip(facts, gathered.split(sizes), strict=True)
        return [part.clone().view(dtype).reshape(shape) for (shape, dtype), part in parts]

    def broadcast_tensors(self, tensors: Iterable[tuple[str, Tensor]], *, what: str) -> None:
        """Overwrite each tensor with rank 0's.

        Raises:
            LightkitError: If the ranks have unlike tensors.
        """
        named = dict(tensors)
        if not self.available():
            return
        if lazy := ", ".join(name for name, tensor in named.items() if is_lazy(tensor)):
            raise LightkitError(
                f"Horovod cannot share parameters that have no shape yet ({lazy}). Run the model once on an example in "
                "configure_model."
            )
        mine = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in named.items()]
        every = self.gather_objects(mine)
        if (rank := next((rank for rank, other in enumerate(every) if other != every[0]), None)) is not None:
            unlike = sorted(set(every[0]) ^ set(every[rank])) or ["their order"]
            raise LightkitError(
                f"the model of rank {rank} is not that of rank 0 (not on both: {'; '.join(unlike[:4])}). All must "
                "build the same one."
            )
        with plain(), waiting(f"broadcast of {what}"):
            staged = {name: _bytes(tensor.detach()) for name, tensor in named.items()}
            handles = [hvd.broadcast_async_(tensor, 0, f"lightkit.{name}") for name, tensor in staged.items()]
            for handle in handles:
                hvd.synchronize(handle)
            for name, tensor in named.items():
                if not tensor.is_contiguous():
                    tensor.copy_(staged[name].view(tensor.dtype).reshape(tensor.shape))

    @contextmanager
    def _collective(self, what: str) -> Iterator[None]:
        """Enter a collective, once all ranks are known to be in the same one if that is `checked`."""
        with plain(), waiting(what):
            if self.checked:
                own = f"{what} in {self.where() or 'the loop'}"
                names = hvd.allgather_object(own, name="lightkit.check")
                if len(set(names)) > 1:
                    found = "; ".join(f"rank {rank}: {name}" for rank, name in enumerate(names))
                    raise LightkitError(
                        "the ranks have unlike numbers of batches to evaluate, and are now in different collectives "
                        f"({found}). Logging with sync_dist=True and on_step=True, and all_gather in a step, need as "
                        "many batches on each."
                    )
            yield


def _bytes(tensor: Tensor) -> Tensor:
    """Give what Horovod can send of any dtype: the bytes, in the tensor's own memory where that is one piece."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


_sync = Metric.sync
_living: list[Collectives] = []


def begin_syncing(collectives: Collectives) -> None:
    """Make metrics that would ask torch.distributed ask these collectives, until `end_syncing`.

    The method of the class is replaced, because a metric holds on to torchmetrics' question from the moment it is made.
    Metrics with a ``distributed_available_fn`` or a ``dist_sync_fn`` of their own keep theirs.
    """
    if collectives not in _living:
        _living.append(collectives)
    Metric.sync = _sync_over_horovod  # type: ignore[assignment, method-assign]


def end_syncing(collectives: Collectives) -> None:
    """Give the metrics back to torch.distributed."""
    if collectives in _living:
        _living.remove(collectives)
    if not _living:
        Metric.sync = _sync  # type: ignore[method-assign]


def _sync_over_horovod(
    metric: Metric,
    dist_sync_fn: Callable[..., Any] | None = None,
    process_group: Any = None,
    should_sync: bool = True,
    distributed_available: Callable[[], bool] | None = None,
) -> None:
    available = distributed_available or metric.distributed_available_fn
    if available is jit_distributed_available and not jit_distributed_available():
        available = _living[-1].available
        if dist_sync_fn in (None, gather_all_tensors):
            dist_sync_fn = _living[-1].gather_states
    _sync(metric, dist_sync_fn, process_group, should_sync, available)
