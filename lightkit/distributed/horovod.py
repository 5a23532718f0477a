"""Training with Horovod, which left Lightning in 2.0. Own hooks instead of Horovod's DistributedOptimizer.

DistributedOptimizer makes a new optimizer, of which a learning-rate scheduler knows nothing after a resume, and never
hooks parameters that are unfrozen later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.utilities.data import has_iterable_dataset, sized_len
from lightning_utilities.core.rank_zero import rank_zero_warn
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import ParallelStrategy
from torch import Tensor
from torch.nn import Embedding, EmbeddingBag, Module, Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightkit.config import error_at
from lightkit.distributed.collectives import Collectives, begin_syncing, end_syncing, hvd, plain, require_horovod
from lightkit.distributed.lr_scaling import before_update
from lightkit.errors import DataError, LightkitError
from lightkit.hardware import this_machine
from lightkit.launch import this_rank, waiting

_ENDED: list[bool] = []  # after an error: Horovod does not start again in the same process


class HorovodEnvironment(LightningEnvironment):
    """Ranks as Horovod numbers them, kept because Lightning asks for them also after Horovod has been shut down."""

    creates_processes_externally = True

    def __init__(self) -> None:
        super().__init__()
        self.local_size, self._local_rank, self._node_rank = 1, 0, 0

    def start(self, *, on_cpu: bool = False) -> None:
        """Meet the other ranks.

        Args:
            on_cpu: This rank computes on the CPU, so that Horovod's own thread takes time from it.

        Raises:
            LightkitError: If Horovod was shut down in this process: Horovod 0.28 with gloo then aborts the process.
        """
        rank = this_rank(os.environ)
        num_ranks, num_cores = 1 if rank is None else rank.local_size, this_machine().cores or 1
        if on_cpu and num_ranks > 1 and num_ranks * torch.get_num_threads() >= num_cores:
            # Horovod's thread wakes each millisecond and asks all ranks, work or none: with two ranks on two cores that
            # took 11 to 16 % of the time of ResNet-18's training, 9 % at five milliseconds, and 3 to 4 % at ten. A step
            # waits for one cycle or two. It is read when Horovod starts, and never again.
            os.environ.setdefault("HOROVOD_CYCLE_TIME", "10")
        if _ENDED:
            raise LightkitError("Horovod was shut down after an error, and does not start again in the same process.")
        with waiting("start of all ranks"):
            hvd.init()
        self.local_size, self._local_rank, self._node_rank = hvd.local_size(), hvd.local_rank(), hvd.cross_rank()
        self.set_world_size(hvd.size())
        self.set_global_rank(hvd.rank())

    @staticmethod
    def detect() -> bool:
        """Say whether Horovod's launcher with gloo started this process; one with MPI sets MPI's own variables."""
        return "HOROVOD_RANK" in os.environ

    def local_rank(self) -> int:
        """Number of this rank among those of its machine."""
        return self._local_rank

    def node_rank(self) -> int:
        """Number of this machine among those with a rank of this local number."""
        return self._node_rank


class HorovodStrategy(ParallelStrategy):
    """One process a device, started by Horovod's launcher; gradients are averaged while backward computes the rest.

    Two ranks with batch b train as one process with batch 2b, but for layers that look across the batch, as BatchNorm
    does. The rate stays what the config says; the callback `lightkit.distributed.ScaledLearningRate` multiplies it by
    the number of ranks.

    Args:
        compression: fp16 sends gradients in half precision: half the traffic, three decimal digits; gradients beyond
            65504 overflow, those under 6e-8 vanish. Null sends them as they are, and bfloat16 as float32.
        sync_buffers: Give every rank rank 0's buffers, such as BatchNorm's running means, before each evaluation and
            at the end of training.

    Raises:
        ConfigError: If Horovod is not installed.
    """

    strategy_name = "horovod"

    def __init__(self, compression: Literal["fp16"] | None = None, sync_buffers: bool = True) -> None:
        require_horovod()
        if compression not in (None, "fp16"):
            raise error_at(f"trainer.strategy.init_args.compression: expected fp16 or null, got {compression!r}")
        self._environment = HorovodEnvironment()
        super().__init__(cluster_environment=self._environment)
        self.compression, self.sync_buffers = compression, sync_buffers
        self.collectives = Collectives()
        self._is_uneven = False  # any of the loaders to evaluate
        self._gradients: AveragedGradients | None = None

    def set_world_ranks(self) -> None:
        """Check the devices and meet the other ranks; Lightning calls it once it has chosen the devices."""
        devices = self.parallel_devices or []
        if len(devices) != 1:
            raise error_at(
                f"strategy: horovod trains on one device a process, but trainer.devices gives {len(devices)}. Set "
                "trainer.devices: 1, and the number of ranks in launch.processes."
            )
        if devices[0].type not in ("cpu", "cuda"):
            raise error_at(f"strategy: horovod trains on CPUs and NVIDIA GPUs, not on {devices[0].type}.")
        if devices[0].type == "cuda" and not hvd.nccl_built():
            raise error_at("this Horovod was built without NCCL: HOROVOD_GPU_OPERATIONS=NCCL make horovod")
        self._environment.start(on_cpu=devices[0].type == "cpu")
        if self._layer_sync is not None and self.world_size > 1:
            raise error_at("trainer.sync_batchnorm does not work with strategy: horovod; ddp has it.")
        if devices[0].type == "cuda":
            self._check_gpu(devices[0].index or 0)

    def _check_gpu(self, index: int) -> None:
        if index and self._environment.local_size > 1:
            raise error_at(f"trainer.devices names GPU {index} for every rank. Set CUDA_VISIBLE_DEVICES instead.")
        own, count = self.root_device.index, torch.cuda.device_count()
        uuid = str(torch.cuda.get_device_properties(own).uuid) if own < count else None
        uuids = self.collectives.gather_objects(uuid)
        if uuid is None:
            raise error_at(f"rank {self.local_rank} of this machine needs GPU {own}, but only {count} can be seen.")
        sharing = ", ".join(str(rank) for rank, other in enumerate(uuids) if other == uuid)
        if uuids.count(uuid) > 1:
            raise error_at(
                f"ranks {sharing} would share the GPU with the UUID {uuid}. Start one rank a GPU, and show each rank "
                "all GPUs of its machine, or its own: CUDA_VISIBLE_DEVICES."
            )

    @property
    def is_distributed(self) -> bool:
        """Whether Lightning shards the data."""
        return self.world_size > 1

    @property
    def root_device(self) -> torch.device:
        """The CPU, or the GPU that has this rank's number on its machine, or the only one that this rank is shown."""
        device = (self.parallel_devices or [torch.device("cpu")])[0]
        if device.type == "cpu":
            return device
        number = self.local_rank if torch.cuda.device_count() > 1 else 0  # srun --gpus-per-task=1 shows each its own
        return torch.device(device.type, (device.index or 0) + number)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """This rank's share of the data."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def model_to_device(self) -> None:
        """Move the model to this rank's device."""
        assert self.model is not None
        self.model.to(self.root_device)

    def setup_environment(self) -> None:
        """Make sure that the ranks draw the same order of samples."""
        super().setup_environment()
        seeds = self.collectives.gather_objects(os.environ.get("PL_GLOBAL_SEED"))
        if len(set(seeds)) > 1:
            raise error_at(
                f"the ranks have the seeds {', '.join(map(str, seeds))}, so their shares of the data would overlap. "
                "Set seed_everything to a number."
            )

    def _setup_model(self, model: Module) -> Module:
        """Give all ranks rank 0's weights, before an optimizer is made of them."""
        if self.world_size > 1:
            _refuse_layers(model, on_cpu=self.root_device.type == "cpu")
            state = [*model.named_parameters(), *model.named_buffers()]
            self.collectives.broadcast_tensors(state, what="the initial state")
        return super()._setup_model(model)

    def setup(self, trainer: Trainer) -> None:
        """Broadcast the weights, make the optimizers, hook the gradients, and let metrics ask Horovod."""
        super().setup(trainer)
        assert self.lightning_module is not None
        if self.world_size == 1:
            return
        begin_syncing(self.collectives)
        module = self.lightning_module
        self.collectives.where = lambda: module._current_fx_name
        for optimizer in self.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise error_at("LBFGS decides by each rank's own loss how often it asks for gradients; Horovod waits.")
        if self.optimizers:
            self._gradients = AveragedGradients(self.lightning_module, compression=self.compression)
            self._gradients.watch(self.optimizers)

    def process_dataloader(self, dataloader: object) -> object:
        """Look at how many batches the ranks have."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        if self.world_size == 1 or trainer.predicting:
            return dataloader
        if trainer.training:
            return even_training(dataloader, self.collectives)
        self._is_uneven = is_uneven(dataloader, self.collectives) or self._is_uneven
        return dataloader

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Compute gradients, and average them before anybody clips, unscales or logs them."""
        assert self.lightning_module is not None
        if self._gradients is not None:
            self._gradients.watch(self.optimizers)
        self.pre_backward(closure_loss)
        closure_loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        with self._gradients.averaging() if self._gradients is not None else nullcontext():
            self.precision_plugin.backward(closure_loss, self.lightning_module, optimizer, *args, **kwargs)
        closure_loss = self.precision_plugin.post_backward(closure_loss, self.lightning_module)
        self.post_backward(closure_loss)
        return closure_loss

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate without sending anything."""
        if self._gradients is None:
            yield
            return
        with self._gradients.blocked():
            yield

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        self.collectives.barrier(f"barrier {name}" if name else "barrier")

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Give the object of rank ``src``."""
        return self.collectives.broadcast(obj, src=src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a tensor over all ranks; anything else is given back."""
        return self.collectives.reduce(tensor, reduce_op) if isinstance(tensor, Tensor) else tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 - Lightning's name
        """Say whether all ranks decide so, or whether any does."""
        return self.collectives.agree(bool(decision), everyone=all)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Give the tensors of all ranks, ``(world_size, ...)``."""
        return self.collectives.stack(tensor, sync_grads=sync_grads)

    def _share_buffers(self) -> None:
        assert self.lightning_module is not None
        if self.world_size > 1 and self.sync_buffers:
            self.collectives.broadcast_tensors(self.lightning_module.named_buffers(), what="the buffers")

    def on_validation_start(self) -> None:
        """Evaluate the same model on each rank; look at collectives where the ranks' numbers of batches may differ."""
        self._share_buffers()
        self.collectives.checked = self._is_uneven

    def on_test_start(self) -> None:
        """Do as before a validation."""
        self.on_validation_start()

    def on_validation_end(self) -> None:
        """Find out here, where all ranks pass, if one of them waits in a collective of its own."""
        if self.collectives.checked:
            self.barrier("end of the evaluation")
            self.collectives.checked = False

    def on_test_end(self) -> None:
        """Find out here, where all ranks pass, if one of them waits in a collective of its own."""
        self.on_validation_end()

    def on_train_end(self) -> None:
        """Leave the same model on each rank."""
        self._share_buffers()

    def on_exception(self, exception: BaseException) -> None:
        """End the other ranks' collectives with an error; `hvd.join` would feed them zeros instead."""
        _ENDED.append(True)
        hvd.shutdown()

    def teardown(self) -> None:
        """Remove the hooks."""
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None
        end_syncing(self.collectives)
        self._is_uneven = self.collectives.checked = False
        super().teardown()


def _refuse_layers(model: Module, *, on_cpu: bool) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.SyncBatchNorm) or (on_cpu and isinstance(layer, hvd.SyncBatchNorm)):
            where = "on CPUs" if isinstance(layer, hvd.SyncBatchNorm) else "with Horovod, which has one of its own"
            raise error_at(f"{name} is a {type(layer).__module__}.SyncBatchNorm, which does not work {where}.")
        if isinstance(layer, Embedding | EmbeddingBag) and layer.sparse:
            raise error_at(f"{name} has sparse gradients, which are not averaged under Horovod: set sparse=False.")


class AveragedGradients:
    """Average gradients over the ranks, each as soon as this rank has it.

    A parameter that had no gradient on any rank keeps none, so that its optimizer leaves it alone, as it does in one
    process. One that had a gradient on some ranks only counts as zero on the others.

    Args:
        module: Its parameters are watched.
        compression: ``fp16`` halves what is sent.
    """

    def __init__(self, module: Module, *, compression: Literal["fp16"] | None = None) -> None:
        self._module, self._compression = module, compression
        self._hooks: dict[Parameter, RemovableHandle] = {}
        self._names: dict[Parameter, str] = {}
        self._fresh: set[Parameter] = set()  # with a gradient that the other ranks have not seen yet
        self._sent: dict[Parameter, tuple[int, Tensor]] = {}
        self._blocked, self._sending = False, False
        self._guards: dict[Optimizer, RemovableHandle] = {}

    def watch(self, optimizers: list[Optimizer]) -> None:
        """Hook every parameter that asks for a gradient; call it before each backward, as more may ask by then.

        A gradient of a backward that was not announced, as `loss.backward()` is one, stays on this rank; an optimizer
        that is about to use it raises `LightkitError`.

        Raises:
            LightkitError: If an optimizer moves a parameter that is not in the module, which would part the ranks.
        """
        self._names = {parameter: name for name, parameter in self._module.named_parameters()}
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._hooks:
                hook = parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
                self._hooks[parameter] = hook
        for optimizer in optimizers:
            if optimizer not in self._guards:
                self._guards[optimizer] = optimizer.register_step_pre_hook(before_update(self._check_step))
            for group in optimizer.param_groups:
                if any(parameter not in self._names for parameter in group["params"]):
                    raise LightkitError(
                        f"{type(optimizer).__name__} moves a parameter that is not part of the LightningModule, so "
                        "Horovod cannot average its gradient. Make it an attribute of the module."
                    )

    @contextmanager
    def averaging(self) -> Iterator[None]:
        """Send the gradients of the backward within, and wait for the averages."""
        self._sending = not self._blocked
        try:
            yield
        finally:
            self._sending = False
        self._finish()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Gather gradients on this rank only: for all batches of an accumulation but the last."""
        before, self._blocked = self._blocked, True
        try:
            yield
        finally:
            self._blocked = before

    def _finish(self) -> None:
        """Wait until every gradient of this backward, and of the blocked ones before it, is the average."""
        if self._blocked:
            return
        parameters = list(self._names)
        for parameter in parameters:  # from a blocked backward, and not used in this one
            if parameter in self._fresh and parameter not in self._sent and parameter.grad is not None:
                self._send(parameter)
        for parameter, used in zip(parameters, self._used_anywhere(parameters), strict=True):
            if used and parameter not in self._sent:
                self._send(parameter)
        with plain(), waiting("all-reduce of the gradients"):
            for parameter, (handle, wire) in self._sent.items():
                hvd.synchronize(handle)
                if parameter.grad is not None and wire.data_ptr() != parameter.grad.data_ptr():
                    parameter.grad.detach().copy_(wire)
        self._sent.clear()
        self._fresh.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.remove()
        for guard in self._guards.values():
            guard.remove()
        self._hooks.clear()
        self._guards.clear()
        self._sent.clear()

    def _check_step(self, optimizer: Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own = [p for p in parameters if p.grad is not None and (p in self._fresh or p not in self._hooks)]
        unseen = next((parameter for parameter in own if bool(parameter.grad.any())), None)
        if unseen is not None:
            raise LightkitError(
                f"{type(optimizer).__name__} is about to use a gradient of {self._names.get(unseen, 'a parameter')} "
                "that was not averaged over the ranks, which would part them. In manual optimization call "
                "self.manual_backward(loss) instead of loss.backward(), and step after a backward that synchronizes."
            )

    def _on_gradient(self, parameter: Tensor) -> None:
        assert isinstance(parameter, Parameter)
        if parameter in self._sent:
            raise LightkitError(
                f"{self._names[parameter]} got its gradient twice in one backward, and the first is on its way to the "
                "other ranks. Checkpoint activations with use_reentrant=False."
            )
        self._fresh.add(parameter)
        if self._sending:
            self._send(parameter)

    def _used_anywhere(self, parameters: list[Parameter]) -> list[bool]:
        """Say of each parameter whether any rank has sent it."""
        mine = torch.tensor([parameter in self._sent for parameter in parameters], dtype=torch.int32)
        with plain(), waiting("all-reduce of the gradients"):
            used = hvd.allreduce(mine, op=hvd.Max, name="lightkit.gradients")
        return [bool(value) for value in used.tolist()]

    def _send(self, parameter: Parameter) -> None:
        name = self._names[parameter]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout != torch.strided:
            raise LightkitError(f"the gradient of {name} is sparse, which Horovod does not average here: sparse=False.")
        with plain():
            wire, op = self._staged(parameter.grad.detach())
            self._sent[parameter] = hvd.allreduce_async_(wire, name=f"lightkit.gradient.{name}", op=op), wire

    def _staged(self, gradient: Tensor) -> tuple[Tensor, int]:
        """Give what is sent for a gradient, and how it is reduced. Horovod 0.28 has no bfloat16."""
        if self._compression == "fp16" and gradient.dtype != torch.float16:
            return (gradient / hvd.size()).half().contiguous(), hvd.Sum  # divided first, so that the sum fits
        if gradient.dtype == torch.bfloat16:
            return gradient.float().contiguous(), hvd.Average
        return gradient.contiguous(), hvd.Average


_KNOWN = ("torch.", "pytorch_lightning.", "lightning_fabric.", "lightkit.")
_END = object()


class AgreedLoader:
    """Gives a batch only where every rank has one, so that no rank waits for gradients that never come.

    Args:
        loader: This rank's own loader; its attributes are this one's too.
        collectives: For the agreement before each batch.
        length: Number of batches that all ranks have, where all know it.
    """

    def __init__(self, loader: Any, collectives: Collectives, *, length: int | None) -> None:
        self._loader, self._collectives, self._length = loader, collectives, length

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError(f"{type(self._loader).__name__} has no length on each rank")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        batches, num_batches = iter(self._loader), 0
        while True:
            batch = next(batches, _END)
            if not self._collectives.agree(batch is not _END, what="agreement that all ranks have a batch"):
                self._warn_of_a_rest(batch is not _END, num_batches)
                return
            num_batches += 1
            yield batch

    def _warn_of_a_rest(self, has_batch: bool, num_batches: int) -> None:
        if self._collectives.agree(has_batch, everyone=False, what="agreement that no rank has a batch left"):
            rank_zero_warn(
                f"a rank has run out of batches after {num_batches}: the epoch ends there for all, and the further "
                "batches of the others are left out. Give all ranks equally many samples."
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":  # copying asks before there is a loader
            raise AttributeError(name)
        return getattr(self._loader, name)


def even_training(loader: Any, collectives: Collectives) -> Any:
    """Give the loader itself where its length is known to be that of all ranks, else one that ends for all at once.

    Raises:
        DataError: If a rank has no batches at all.
    """
    lengths, are_fixed = _lengths(loader, collectives, what="training")
    if are_fixed and len(set(lengths)) == 1:
        return loader
    known = [length for length in lengths if length is not None]
    length = min(known) if len(known) == len(lengths) else None
    if length is not None and len(set(known)) > 1:
        rank_zero_warn(f"the ranks have {lengths} training batches: an epoch ends for all of them after {length}.")
    return AgreedLoader(loader, collectives, length=length)


def is_uneven(loader: Any, collectives: Collectives) -> bool:
    """Say whether ranks may have unlike numbers of batches to evaluate, so that each sample counts but no rank waits.

    Raises:
        DataError: If a rank has no batches at all: Lightning would not even begin to evaluate there.
    """
    lengths, are_fixed = _lengths(loader, collectives, what="evaluation")
    return not are_fixed or len(set(lengths)) > 1


def _lengths(loader: Any, collectives: Collectives, *, what: str) -> tuple[list[int | None], bool]:
    """Give each rank's number of batches where it is known, and whether those are what each epoch will have."""
    own = None if has_iterable_dataset(loader) else sized_len(loader)
    facts = collectives.gather_objects((own, own is not None and _has_fixed_length(loader)))
    lengths = [length for length, _ in facts]
    empty = [rank for rank, length in enumerate(lengths) if length == 0]
    if empty and len(empty) < len(lengths):
        raise DataError(
            f"of {lengths} {what} batches by rank, rank {', '.join(map(str, empty))} has none. Use fewer ranks, "
            "smaller batches or more samples."
        )
    return lengths, all(is_fixed for _, is_fixed in facts)


def _has_fixed_length(loader: Any) -> bool:
    """Say whether the loader's length is what it gives in every epoch; a user's own sampler may vary it."""
    samplers = (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    return all(sampler is None or type(sampler).__module__.startswith(_KNOWN) for sampler in samplers)
