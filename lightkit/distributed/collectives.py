"""Horovod's collectives as Lightning and torchmetrics want them: named, outside inference mode, for every dtype.

Every collective has a name of ours. Without one Horovod counts operations or takes the type of the object for a name,
and two ranks that differ in either wait for each other forever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from lightkit.config import mistake
from lightkit.errors import LightkitError
from lightkit.launch import waiting

try:
    import horovod.torch as hvd
except (ImportError, OSError) as error:  # not installed, or built for another torch
    hvd: Any = None  # type: ignore[no-redef]
    _MISSING = str(error)

__all__ = ["Collectives", "end_horovod", "hvd", "plain", "require_horovod", "spare_cores", "start_horovod"]

_OPS = {"none": "Average", "mean": "Average", "avg": "Average", "sum": "Sum", "max": "Max", "min": "Min"}
_OPS["product"] = "Product"
_SENT_AS = {torch.bfloat16: torch.float32, torch.bool: torch.uint8}  # Horovod 0.28 has neither
_ENDED: list[bool] = []
_CYCLE_MS = "10"


def require_horovod() -> None:
    """Check that Horovod can be imported.

    Raises:
        ConfigError: If it cannot, with how to build it.
    """
    if hvd is None:
        raise mistake(
            f"strategy: horovod needs Horovod for torch {torch.__version__}, which cannot be imported ({_MISSING}). "
            "Build it: make horovod, or python scripts/build_horovod.py in lightkit's sources."
        )


def spare_cores(environ: MutableMapping[str, str], *, num_ranks: int, num_threads: int, num_cores: int) -> None:
    """Let Horovod's thread look for work less often where the ranks' own threads need all cores of the machine.

    It wakes each millisecond and asks all ranks, work or none: with two ranks on two cores that took 11 to 16 % of the
    time of ResNet-18's training, 9 % at five milliseconds, and 3 to 4 % at ten. A step waits for one cycle or two. A
    ``HOROVOD_CYCLE_TIME`` (milliseconds) of the user's stays. It is read when Horovod starts, and never again.

    Args:
        environ: Where Horovod looks.
        num_ranks: Ranks of this machine.
        num_threads: Threads of one operation, in each rank.
        num_cores: Cores that they may use.
    """
    if num_ranks > 1 and num_ranks * num_threads >= num_cores:
        environ.setdefault("HOROVOD_CYCLE_TIME", _CYCLE_MS)


def start_horovod() -> None:
    """Meet the other ranks.

    Raises:
        ConfigError: If Horovod is not installed.
        LightkitError: If it was shut down in this process: Horovod 0.28 with gloo then aborts the process.
    """
    require_horovod()
    if _ENDED:
        raise LightkitError("Horovod was shut down after an error, and does not start again in the same process.")
    with waiting("start of all ranks"):
        hvd.init()


def end_horovod() -> None:
    """Make the other ranks' collectives raise."""
    _ENDED.append(True)
    hvd.shutdown()


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
        self._check("broadcast")
        with plain(), waiting("broadcast of an object"):
            return hvd.broadcast_object(value, root_rank=src, name="lightkit.broadcast")

    def gather_objects(self, value: Any) -> list[Any]:
        """Give the objects of all ranks, by rank."""
        if not self.available():
            return [value]
        self._check("gathering of objects")
        with plain(), waiting("gathering of objects"):
            return list(hvd.allgather_object(value, name="lightkit.objects"))

    def barrier(self, what: str = "barrier") -> None:
        """Wait for all ranks."""
        if self.available():
            self._check(what)
            with waiting(what):
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
        if tensor.is_complex():
            return self._reduce_complex(tensor, reduce_op, op)
        self._check(f"reduction ({reduce_op})")
        whole = op == hvd.Average and not tensor.is_floating_point()
        staged = torch.float64 if whole else _reducible(tensor.dtype)
        with plain(), waiting("reduction of a metric"):
            reduced: Tensor = hvd.allreduce(
                tensor.detach().clone().contiguous().to(staged), op=op, name="lightkit.reduce"
            )
        return reduced.to(torch.float32 if whole else tensor.dtype)

    def _reduce_complex(self, tensor: Tensor, reduce_op: Any, op: Any) -> Tensor:
        if op not in (hvd.Sum, hvd.Average):
            raise ValueError(f"Horovod cannot reduce complex numbers with {reduce_op!r}; it can with sum and mean.")
        return torch.view_as_complex(self.reduce(torch.view_as_real(tensor.detach().resolve_conj()), reduce_op))

    def agree(self, yes: bool, *, everyone: bool = True, what: str = "decision") -> bool:
        """Say whether all ranks say yes, or whether any does."""
        if not self.available():
            return yes
        self._check(what)
        op = hvd.Min if everyone else hvd.Max
        with plain(), waiting(what):
            return bool(hvd.allreduce(torch.tensor([int(yes)]), op=op, name="lightkit.agree").item())

    def stack(self, tensor: Tensor, *, sync_grads: bool = False) -> Tensor:
        """Give the tensors of all ranks as one of shape ``(world_size, ...)``.

        Args:
            tensor: Of the same shape on each rank.
            sync_grads: Let gradients flow back to each rank's own tensor.
        """
        if not self.available():
            return tensor.unsqueeze(0)
        if tensor.is_complex():
            parts = torch.view_as_real(tensor.resolve_conj())
            return torch.view_as_complex(self.stack(parts, sync_grads=sync_grads))
        self._check("gathering of tensors")
        with torch.inference_mode(False), torch.set_grad_enabled(sync_grads), waiting("gathering of tensors"):
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
        if not self.available() or not self._same_on_all(named):
            return
        with plain(), waiting(f"broadcast of {what}"):
            staged = {name: _bytes(tensor.detach()) for name, tensor in named.items()}
            handles = [hvd.broadcast_async_(tensor, 0, f"lightkit.{name}") for name, tensor in staged.items()]
            for handle in handles:
                hvd.synchronize(handle)
            for name, tensor in named.items():
                if not tensor.is_contiguous():
                    tensor.copy_(staged[name].view(tensor.dtype).reshape(tensor.shape))

    def _same_on_all(self, named: dict[str, Tensor]) -> bool:
        lazy = ", ".join(name for name, tensor in named.items() if is_lazy(tensor))
        if lazy:
            says = "Run the model once on an example in configure_model."
            raise LightkitError(f"Horovod cannot share parameters that have no shape yet ({lazy}). {says}")
        mine = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in named.items()]
        digests = self.gather_objects(hashlib.sha256("\n".join(mine).encode()).hexdigest())
        if len(set(digests)) == 1:
            return bool(mine)
        every = self.gather_objects(mine)
        rank = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
        unlike = sorted(set(every[0]) ^ set(every[rank])) or ["their order"]
        told = f"not on both: {'; '.join(unlike[:4])}"
        raise LightkitError(f"the model of rank {rank} is not that of rank 0 ({told}). All must build the same one.")

    def _check(self, what: str) -> None:
        if not self.checked:
            return
        own = f"{what} in {self.where() or 'the loop'}"
        with plain(), waiting(what):
            doing = hvd.allgather_object(own, name="lightkit.check")
        if len(set(doing)) > 1:
            told = "; ".join(f"rank {rank}: {name}" for rank, name in enumerate(doing))
            raise LightkitError(
                f"the ranks have unlike numbers of batches to evaluate, and are now in different collectives ({told}). "
                "Logging with sync_dist=True and on_step=True, and all_gather in a step, need as many batches on each."
            )


def _reducible(dtype: torch.dtype) -> torch.dtype:
    """Give the dtype in which Horovod can reduce such tensors."""
    if dtype == torch.bfloat16:
        return torch.float32
    return dtype if dtype.is_floating_point else torch.int64


def _bytes(tensor: Tensor) -> Tensor:
    """Give what Horovod can send of any dtype: the bytes, in the tensor's own memory where that is one piece."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
