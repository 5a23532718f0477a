"""Training with Horovod, which left Lightning in 2.0.

Own hooks instead of Horovod's DistributedOptimizer.

DistributedOptimizer makes a new optimizer, of which a learning-rate scheduler knows nothing after a
resume, and never hooks parameters that are unfrozen later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import ParallelStrategy
from torch import Tensor
from torch.nn import Embedding, EmbeddingBag, Module, Parameter, SyncBatchNorm
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from torchmetrics import Metric

from lightkit.config import error_at
from lightkit.distributed import collectives
from lightkit.distributed.collectives import WIRE_DTYPES, collective, hvd, require_horovod
from lightkit.errors import DataError, LightkitError
from lightkit.hardware import this_machine
from lightkit.launch.ranks import this_rank
from lightkit.launch.watchdog import waiting

_ENDED: list[bool] = []  # after an error: Horovod does not start again in the same process


class HorovodEnvironment(LightningEnvironment):
    """Ranks as Horovod numbers them.

    Kept because Lightning asks for them also after Horovod has been shut down.
    """

    creates_processes_externally = True

    def __init__(self) -> None:
        super().__init__()
        self._local_rank = 0
        self._node_rank = 0
        self._local_size = 1

    def start(self, *, on_cpu: bool = False) -> None:
        """Meet the other ranks.

        Args:
            on_cpu: This rank computes on the CPU, so that Horovod's own thread takes time from it.

        Raises:
            LightkitError: If Horovod was shut down in this process: Horovod 0.28 with gloo then
                aborts the process.
        """
        rank = this_rank(os.environ)
        num_ranks = 1 if rank is None else rank.local_size
        num_cores = this_machine().cores or 1
        if on_cpu and num_ranks > 1 and num_ranks * torch.get_num_threads() >= num_cores:
            # Horovod's thread wakes each millisecond and asks all ranks, work or none: with two
            # ranks on two cores that took 11 to 16 % of the time of ResNet-18's training, 9 % at
            # five milliseconds, and 3 to 4 % at ten. A step waits for one cycle or two. It is read
            # when Horovod starts, and never again.
            os.environ.setdefault("HOROVOD_CYCLE_TIME", "10")
        if _ENDED:
            raise LightkitError(
                "Horovod was shut down after an error, and does not"
                " start again in the same process."
            )
        with waiting("start of all ranks"):
            hvd.init()
        self._local_rank = hvd.local_rank()
        self._node_rank = hvd.cross_rank()
        self._local_size = hvd.local_size()
        self.set_world_size(hvd.size())
        self.set_global_rank(hvd.rank())

    @staticmethod
    def detect() -> bool:
        """Return whether Horovod's launcher with gloo started this process.

        One with MPI sets MPI's own variables.
        """
        return "HOROVOD_RANK" in os.environ

    def local_rank(self) -> int:
        """Return the number of this rank among those of its machine."""
        return self._local_rank

    def local_size(self) -> int:
        """Return the number of ranks on this machine, which share its cores and its memory."""
        return self._local_size

    def node_rank(self) -> int:
        """Return the number of this machine among those with a rank of this local number."""
        return self._node_rank


class HorovodStrategy(ParallelStrategy):
    """One process a device, started by Horovod's launcher.

    Gradients are averaged while backward computes the rest.

    Two ranks with batch b train as one process with batch 2b, but for layers that look across the
    batch, as BatchNorm does. The rate stays that of the config; the callback
    `lightkit.distributed.ScaledLearningRate` multiplies it by the number of ranks. All ranks need
    equally many batches, as Lightning's and lightkit's samplers give them.

    Args:
        compression: fp16 sends gradients in half precision: half the traffic, three decimal digits;
            gradients beyond 65504 overflow, those under 6e-8 vanish. Null sends them as they are,
            and bfloat16 as float32.
        sync_buffers: Give every rank rank 0's buffers, such as BatchNorm's running means, before
            each evaluation and at the end of training.

    Raises:
        ConfigError: If Horovod is not installed.
    """

    strategy_name = "horovod"

    def __init__(
        self, compression: Literal["fp16"] | None = None, sync_buffers: bool = True
    ) -> None:
        require_horovod()
        if compression not in (None, "fp16"):
            raise error_at(
                "trainer.strategy.init_args.compression: expected fp16 or null, got"
                f" {compression!r}"
            )
        self._environment = HorovodEnvironment()
        super().__init__(cluster_environment=self._environment)
        self.compression = compression
        self.sync_buffers = sync_buffers
        self._gradients: AveragedGradients | None = None

    def set_world_ranks(self) -> None:
        """Check the devices and meet the other ranks.

        Lightning calls it once it has chosen the devices.
        """
        devices = self.parallel_devices or []
        if len(devices) != 1:
            raise error_at(
                "strategy: horovod trains on one device a process, but trainer.devices gives"
                f" {len(devices)}. Set trainer.devices: 1, and the number of ranks in"
                " launch.processes."
            )
        if devices[0].type not in ("cpu", "cuda"):
            raise error_at(
                f"strategy: horovod trains on CPUs and NVIDIA GPUs, not on {devices[0].type}."
            )
        if devices[0].type == "cuda" and not hvd.nccl_built():
            raise error_at(
                "this Horovod was built without NCCL: HOROVOD_GPU_OPERATIONS=NCCL make horovod"
            )
        self._environment.start(on_cpu=devices[0].type == "cpu")
        if self._layer_sync is not None and self.world_size > 1:
            raise error_at(
                "trainer.sync_batchnorm does not work with strategy: horovod; ddp has it."
            )
        if devices[0].type == "cuda":
            own = self.root_device.index
            count = torch.cuda.device_count()
            uuid = str(torch.cuda.get_device_properties(own).uuid) if own < count else None
            uuids = self.gather_objects(uuid)
            if uuid is None:
                raise error_at(
                    f"rank {self.local_rank} of this machine needs GPU {own},"
                    f" but only {count} can be seen."
                )
            if uuids.count(uuid) > 1:
                sharing = ", ".join(str(rank) for rank, other in enumerate(uuids) if other == uuid)
                raise error_at(
                    f"ranks {sharing} would share the GPU with the UUID {uuid}. Start one rank a"
                    " GPU, and show each rank all GPUs of its machine, or its own:"
                    " CUDA_VISIBLE_DEVICES."
                )

    @property
    def is_distributed(self) -> bool:
        """Return whether Lightning shards the data."""
        return self.world_size > 1

    @property
    def root_device(self) -> torch.device:
        """The CPU, or the GPU that has this rank's number on its machine.

        Where this rank is shown only one, that one.
        """
        device = (self.parallel_devices or [torch.device("cpu")])[0]
        if device.type == "cpu":
            return device
        # srun --gpus-per-task=1 shows each its own
        number = self.local_rank if torch.cuda.device_count() > 1 else 0
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
        seeds = self.gather_objects(os.environ.get("PL_GLOBAL_SEED"))
        if len(set(seeds)) > 1:
            raise error_at(
                f"the ranks have the seeds {', '.join(map(str, seeds))}, so their shares of the"
                " data would overlap. Set seed_everything to a number."
            )

    def _setup_model(self, model: Module) -> Module:
        """Send rank 0's weights to all ranks, before an optimizer is made of them."""
        if self.world_size > 1:
            refused = (
                SyncBatchNorm
                if self.root_device.type == "cuda"
                else (SyncBatchNorm, hvd.SyncBatchNorm)
            )
            for name, layer in model.named_modules():
                if isinstance(layer, refused):
                    raise error_at(
                        f"{name}: {type(layer).__module__}.SyncBatchNorm"
                        " does not work with this Horovod."
                    )
                if isinstance(layer, Embedding | EmbeddingBag) and layer.sparse:
                    raise error_at(
                        f"{name} has sparse gradients, which Horovod does not average: set"
                        " sparse=False."
                    )
            state = [*model.named_parameters(), *model.named_buffers()]
            collectives.broadcast_tensors(state, what="the initial state")
        return super()._setup_model(model)

    def setup(self, trainer: Trainer) -> None:
        """Broadcast the weights, make the optimizers, hook the gradients; metrics ask Horovod."""
        super().setup(trainer)
        assert self.lightning_module is not None
        if self.world_size == 1:
            return
        Metric.sync = collectives.sync_over_horovod  # type: ignore[assignment, method-assign]
        if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in self.optimizers):
            raise error_at(
                "LBFGS decides by each rank's own loss how often it asks"
                " for gradients; Horovod waits."
            )
        if self.optimizers:
            self._gradients = AveragedGradients(self.lightning_module, compression=self.compression)
            self._gradients.watch(self.optimizers)

    def process_dataloader(self, dataloader: object) -> object:
        """Check that all ranks have equally many batches, as far as the loaders know.

        Raises:
            DataError: If they have not: the ranks with more would wait forever.
        """
        assert self.lightning_module is not None
        if self.world_size > 1 and not self.lightning_module.trainer.predicting:
            lengths = self.gather_objects(sized_len(dataloader))
            if len(set(lengths)) > 1:
                raise DataError(
                    f"the ranks have {lengths} batches, and Horovod needs equally many on each. Use"
                    " a DistributedSampler, or leave trainer.use_distributed_sampler at true."
                )
        return dataloader

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Compute gradients, and average them before they are clipped, unscaled or logged."""
        assert self.lightning_module is not None
        if self._gradients is not None:
            self._gradients.watch(self.optimizers)
        self.pre_backward(closure_loss)
        closure_loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        with self._gradients.average() if self._gradients is not None else nullcontext():
            self.precision_plugin.backward(
                closure_loss, self.lightning_module, optimizer, *args, **kwargs
            )
        closure_loss = self.precision_plugin.post_backward(closure_loss, self.lightning_module)
        self.post_backward(closure_loss)
        return closure_loss

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Step, where a model that calls ``backward`` itself has averaged gradients.

        Raises:
            LightkitError: If it has others.
        """
        assert self.lightning_module is not None
        if self._gradients is not None and not self.lightning_module.automatic_optimization:
            self._gradients.check_averaged(optimizer)
        return super().optimizer_step(optimizer, closure, model, **kwargs)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate without sending anything."""
        if self._gradients is not None:
            self._gradients.is_blocked = True
        try:
            yield
        finally:
            if self._gradients is not None:
                self._gradients.is_blocked = False

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, by rank."""
        return collectives.gather_objects(value)

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        if collectives.is_available():
            with collective(f"barrier {name}" if name else "barrier"):
                hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object of rank ``src``."""
        if not collectives.is_available():
            return obj
        with collective("broadcast of an object"):
            return hvd.broadcast_object(obj, root_rank=src, name="lightkit.broadcast")

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a tensor over all ranks; anything else is returned as it is.

        Args:
            tensor: Of any shape, the same on each rank.
            group: Not used.
            reduce_op: ``mean``, ``sum``, ``max``, ``min`` or ``product``, or torch.distributed's
                operation.

        Returns:
            Of the same shape and dtype; the mean of integers is float32, as a half would be lost.
        """
        if not isinstance(tensor, Tensor) or not collectives.is_available():
            return tensor
        name = str(reduce_op).rsplit(".", 1)[-1].lower()
        operation = getattr(
            hvd,
            {"mean": "Average", "avg": "Average", "none": "Average"}.get(name, name.capitalize()),
        )
        is_whole = operation == hvd.Average and not tensor.is_floating_point()
        staged = torch.float64 if is_whole else torch.int64
        if tensor.is_floating_point():
            staged = WIRE_DTYPES.get(tensor.dtype, tensor.dtype)
        with self._collective_of_hook(f"reduction ({name})") as what:
            own = tensor.detach().clone().contiguous().to(staged)
            reduced: Tensor = hvd.allreduce(own, op=operation, name=what)
        return reduced.to(torch.float32 if is_whole else tensor.dtype)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 - Lightning's name
        """Return whether all ranks decide so, or whether any does."""
        if not collectives.is_available():
            return bool(decision)
        with collective("decision"):
            own = torch.tensor([int(decision)])
            return bool(
                hvd.allreduce(own, op=hvd.Min if all else hvd.Max, name="lightkit.decision").item()
            )

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Return the tensors of all ranks, ``(world_size, ...)``.

        With ``sync_grads`` gradients flow back to each.
        """
        if not collectives.is_available():
            return tensor.unsqueeze(0)
        with (
            self._collective_of_hook("gathering of tensors") as what,
            torch.set_grad_enabled(sync_grads),
        ):
            own = tensor if sync_grads else tensor.detach().clone()
            own = own.to(WIRE_DTYPES.get(own.dtype, own.dtype)).unsqueeze(0)
            if own.requires_grad:  # Horovod averages its gradients, torch.distributed adds them
                own.register_hook(lambda gradient: gradient * hvd.size())  # type: ignore[no-untyped-call]
            stacked: Tensor = hvd.allgather(own.contiguous(), name=what)
        return stacked.to(tensor.dtype)

    @contextmanager
    def _collective_of_hook(self, what: str) -> Iterator[str]:
        """Name a collective after the model's hook.

        Ranks in different ones wait, and never exchange wrong numbers.
        """
        name = f"{what} in {getattr(self.lightning_module, '_current_fx_name', None) or 'the loop'}"
        with collective(name):
            yield name

    def on_validation_start(self) -> None:
        """Evaluate the same model on each rank."""
        assert self.lightning_module is not None
        if self.world_size > 1 and self.sync_buffers:
            collectives.broadcast_tensors(self.lightning_module.named_buffers(), what="the buffers")

    on_test_start = on_train_end = on_validation_start

    def on_exception(self, exception: BaseException) -> None:
        """End the other ranks' collectives with an error.

        `hvd.join` would feed them zeros instead.
        """
        _ENDED.append(True)
        hvd.shutdown()

    def teardown(self) -> None:
        """Remove the hooks."""
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None
        Metric.sync = collectives.sync  # type: ignore[method-assign]
        super().teardown()


class AveragedGradients:
    """Average gradients over the ranks, each as soon as this rank has it.

    A parameter that had no gradient on any rank keeps none, so that its optimizer leaves it alone,
    as it does in one process. One that had a gradient on some ranks only counts as zero on the
    others.

    Args:
        module: Its parameters are watched.
        compression: ``fp16`` halves what is sent.
    """

    def __init__(self, module: Module, *, compression: Literal["fp16"] | None = None) -> None:
        self.is_blocked = False
        """Gather gradients on this rank only: for all batches of an accumulation but the last."""
        self._module = module
        self._compression = compression
        self._hooks: dict[Parameter, RemovableHandle] = {}
        self._names: dict[Parameter, str] = {}
        # with a gradient that the other ranks have not seen yet
        self._fresh: set[Parameter] = set()
        self._sent: dict[Parameter, tuple[int, Tensor]] = {}
        self._is_sending = False

    def watch(self, optimizers: list[Optimizer]) -> None:
        """Hook every parameter that asks for a gradient.

        Call it before each backward, as more may ask by then.

        Raises:
            LightkitError: If an optimizer moves a parameter that is not in the module, which would
                part the ranks.
        """
        self._names = {parameter: name for name, parameter in self._module.named_parameters()}
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._hooks:
                hook = parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
                self._hooks[parameter] = hook
        for optimizer in optimizers:
            if any(
                each not in self._names
                for group in optimizer.param_groups
                for each in group["params"]
            ):
                raise LightkitError(
                    f"{type(optimizer).__name__} moves a parameter that is not part of the"
                    " LightningModule, so Horovod cannot average its gradient. Make it an"
                    " attribute of the module."
                )

    @contextmanager
    def average(self) -> Iterator[None]:
        """Send the gradients of the backward within, and wait for the averages."""
        self._is_sending = not self.is_blocked
        try:
            yield
        finally:
            self._is_sending = False
        if self.is_blocked:
            return
        for parameter in self._names:  # from a blocked backward, and not used in this one
            if (
                parameter in self._fresh
                and parameter not in self._sent
                and parameter.grad is not None
            ):
                self._send(parameter)
        with collective("all-reduce of the gradients"):
            mine = torch.tensor(
                [parameter in self._sent for parameter in self._names], dtype=torch.int32
            )
            used = hvd.allreduce(mine, op=hvd.Max, name="lightkit.gradients").tolist()
            for parameter, is_used in zip(self._names, used, strict=True):
                if is_used and parameter not in self._sent:
                    self._send(parameter)
            for parameter, (handle, wire) in self._sent.items():
                hvd.synchronize(handle)
                if parameter.grad is not None and wire.data_ptr() != parameter.grad.data_ptr():
                    parameter.grad.detach().copy_(wire)
        self._sent.clear()
        self._fresh.clear()

    def check_averaged(self, optimizer: Optimizer) -> None:
        """Check that an optimizer is about to use no gradient of ``loss.backward()``.

        Such a gradient stays on its rank.

        Raises:
            LightkitError: If it is, which would part the ranks.
        """
        for group in optimizer.param_groups:
            for each in group["params"]:
                if (
                    each.grad is not None
                    and (each in self._fresh or each not in self._hooks)
                    and each.grad.any()
                ):
                    raise LightkitError(
                        f"{type(optimizer).__name__} is about to use a gradient of"
                        f" {self._names[each]} that was not averaged over the ranks, which would"
                        " part them. In manual optimization call self.manual_backward(loss)"
                        " instead of loss.backward(), and step after a backward that synchronizes."
                    )

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.remove()

    def _on_gradient(self, parameter: Tensor) -> None:
        assert isinstance(parameter, Parameter)
        if parameter in self._sent:
            raise LightkitError(
                f"{self._names[parameter]} got its gradient twice in one backward, and the first is"
                " on its way to the other ranks. Checkpoint activations with use_reentrant=False."
            )
        self._fresh.add(parameter)
        if self._is_sending:
            self._send(parameter)

    def _send(self, parameter: Parameter) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad.detach()
        operation = hvd.Average
        if self._compression == "fp16" and gradient.dtype != torch.float16:
            # divided first, so that the sum fits
            gradient = (gradient / hvd.size()).half()
            operation = hvd.Sum
        wire = gradient.to(WIRE_DTYPES.get(gradient.dtype, gradient.dtype)).contiguous()
        name = f"lightkit.gradient.{self._names[parameter]}"
        with torch.inference_mode(False), torch.no_grad():
            self._sent[parameter] = hvd.allreduce_async_(wire, name=name, op=operation), wire
