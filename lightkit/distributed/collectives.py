"""Horovod's collectives for objects, metrics and models. Each has a name of its own.

Without a name Horovod counts operations or takes the type of the object, and two ranks that differ
in either wait for each other forever.
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
from lightkit.launch.watchdog import waiting

hvd: Any = None
try:
    import horovod.torch

    hvd = horovod.torch
except (ImportError, OSError) as error:  # not installed, or built for another torch
    _MISSING = str(error)

WIRE_DTYPES = {torch.bfloat16: torch.float32, torch.bool: torch.uint8}  # Horovod 0.28 has neither


def require_horovod() -> None:
    """Check that Horovod can be imported.

    Raises:
        ConfigError: If it cannot, with how to build it.
    """
    if hvd is None:
        raise error_at(
            f"strategy: horovod needs Horovod for torch {torch.__version__}, which cannot be"
            f" imported ({_MISSING}). Build it: make horovod, or python scripts/build_horovod.py in"
            " lightkit's sources."
        )


def is_available() -> bool:
    """Return whether there are other ranks."""
    return hvd is not None and hvd.is_initialized() and bool(hvd.size() > 1)


@contextmanager
def collective(what: str) -> Iterator[None]:
    """Leave inference mode, in which Horovod's thread cannot resize outputs.

    Let the watchdog name ``what``.
    """
    with torch.inference_mode(False), torch.no_grad(), waiting(what):
        yield


def gather_objects(value: Any) -> list[Any]:
    """Return the objects of all ranks, by rank."""
    if not is_available():
        return [value]
    with collective("gathering of objects"):
        return list(hvd.allgather_object(value, name="lightkit.objects"))


def broadcast_tensors(tensors: Iterable[tuple[str, Tensor]], *, what: str) -> None:
    """Overwrite each tensor with rank 0's.

    Raises:
        LightkitError: If the ranks have unlike tensors.
    """
    named = dict(tensors)
    if lazy := ", ".join(name for name, tensor in named.items() if is_lazy(tensor)):
        raise LightkitError(
            f"Horovod cannot share parameters that have no shape yet ({lazy}). Run the model once"
            " on an example in configure_model."
        )
    every = gather_objects(
        [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in named.items()]
    )
    for rank, other in enumerate(every):
        if other != every[0]:
            unlike = sorted(set(every[0]) ^ set(other)) or ["their order"]
            raise LightkitError(
                f"the model of rank {rank} is not that of rank 0 (not on both:"
                f" {'; '.join(unlike[:4])}). All must build the same one."
            )
    with collective(f"broadcast of {what}"):
        # as bytes, which Horovod can send of any dtype, in the tensor's own memory where that is
        # one piece
        staged = {
            name: each.detach().contiguous().reshape(-1).view(torch.uint8)
            for name, each in named.items()
        }
        for handle in [
            hvd.broadcast_async_(each, 0, f"lightkit.{name}") for name, each in staged.items()
        ]:
            hvd.synchronize(handle)
        for name, tensor in named.items():
            if not tensor.is_contiguous():
                tensor.copy_(staged[name].view(tensor.dtype).reshape(tensor.shape))


def gather_states(state: Tensor, group: Any = None) -> list[Tensor]:  # noqa: ARG001 - of torchmetrics
    """Return a metric's state on each rank, of possibly different shapes.

    Torchmetrics' ``dist_sync_fn``.
    """
    return [other.to(state.device) for other in gather_objects(state.detach().cpu())]


sync = Metric.sync


def sync_over_horovod(
    metric: Metric,
    dist_sync_fn: Callable[..., Any] | None = None,
    process_group: Any = None,
    should_sync: bool = True,
    distributed_available: Callable[[], bool] | None = None,
) -> None:
    """Take the place of ``Metric.sync``.

    A metric keeps torch.distributed's functions from the moment it is made.

    Metrics with a ``distributed_available_fn`` or a ``dist_sync_fn`` of their own keep theirs.
    """
    available = distributed_available or metric.distributed_available_fn
    if available is jit_distributed_available:
        available = is_available
        dist_sync_fn = gather_states if dist_sync_fn in (None, gather_all_tensors) else dist_sync_fn
    sync(metric, dist_sync_fn, process_group, should_sync, available)
