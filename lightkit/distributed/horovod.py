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
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_utilities.core import rank_zero as utilities
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import ParallelStrategy
from pytorch_lightning.utilities import rank_zero as lightning
from torch import Tensor
from torch.nn import Embedding, EmbeddingBag, Module
from torch.optim import Optimizer

from lightkit.config import mistake
from lightkit.distributed.collectives import Collectives, begin_syncing, end_syncing, hvd, require_horovod
from lightkit.distributed.gradients import AveragedGradients
from lightkit.distributed.uneven import even_training, is_uneven
from lightkit.errors import LightkitError
from lightkit.hardware import this_machine
from lightkit.launch import this_rank, waiting

_ENDED: list[bool] = []  # after an error: Horovod does not start again in the same process


class HorovodEnvironment(ClusterEnvironment):
    """Ranks as Horovod numbers them, kept because Lightning asks for them also after Horovod has been shut down."""

    creates_processes_externally = True

    def __init__(self) -> None:
        super().__init__()
        self._size, self._rank, self._local_rank, self._local_size, self._node = 1, 0, 0, 1, 0

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
        self._size, self._rank, self._node = hvd.size(), hvd.rank(), hvd.cross_rank()
        self._local_rank, self._local_size = hvd.local_rank(), hvd.local_size()
        self.set_global_rank(self._rank)

    @property
    def main_address(self) -> str:
        """Address of the launcher's rendezvous."""
        return os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """Port of the launcher's rendezvous."""
        return int(os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "0"))

    @staticmethod
    def detect() -> bool:
        """Say whether Horovod's launcher with gloo started this process; one with MPI sets MPI's own variables."""
        return "HOROVOD_RANK" in os.environ

    def world_size(self) -> int:
        """Number of ranks."""
        return self._size

    def global_rank(self) -> int:
        """Number of this rank."""
        return self._rank

    def local_rank(self) -> int:
        """Number of this rank among those of its machine."""
        return self._local_rank

    def local_size(self) -> int:
        """Number of ranks on this machine."""
        return self._local_size

    def node_rank(self) -> int:
        """Number of this machine among those with a rank of this local number."""
        return self._node

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has set it."""

    def set_global_rank(self, rank: int) -> None:
        """Tell both places that decide what only rank 0 does; HOROVOD_RANK is in neither's list of variables."""
        utilities.rank_zero_only.rank = lightning.rank_zero_only.rank = rank  # type: ignore[attr-defined]

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Do nothing: the strategy checks what it is given."""


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
            raise mistake(f"trainer.strategy.init_args.compression: expected fp16 or null, got {compression!r}")
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
            raise mistake(
                f"strategy: horovod trains on one device a process, but trainer.devices gives {len(devices)}. Set "
                "trainer.devices: 1, and the number of ranks in launch.processes."
            )
        if devices[0].type not in ("cpu", "cuda"):
            raise mistake(f"strategy: horovod trains on CPUs and NVIDIA GPUs, not on {devices[0].type}.")
        if devices[0].type == "cuda" and not hvd.nccl_built():
            raise mistake("this Horovod was built without NCCL: HOROVOD_GPU_OPERATIONS=NCCL make horovod")
        self._environment.start(on_cpu=devices[0].type == "cpu")
        if self._layer_sync is not None and self.world_size > 1:
            raise mistake("trainer.sync_batchnorm does not work with strategy: horovod; ddp has it.")
        if devices[0].type == "cuda":
            self._check_gpu(devices[0].index or 0)

    def _check_gpu(self, index: int) -> None:
        if index and self._environment.local_size() > 1:
            raise mistake(f"trainer.devices names GPU {index} for every rank. Set CUDA_VISIBLE_DEVICES instead.")
        own, count = self.root_device.index, torch.cuda.device_count()
        uuid = str(torch.cuda.get_device_properties(own).uuid) if own < count else None
        uuids = self.collectives.gather_objects(uuid)
        if uuid is None:
            raise mistake(f"rank {self.local_rank} of this machine needs GPU {own}, but only {count} can be seen.")
        sharing = ", ".join(str(rank) for rank, other in enumerate(uuids) if other == uuid)
        if uuids.count(uuid) > 1:
            raise mistake(
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
            raise mistake(
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
                raise mistake("LBFGS decides by each rank's own loss how often it asks for gradients; Horovod waits.")
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
            raise mistake(f"{name} is a {type(layer).__module__}.SyncBatchNorm, which does not work {where}.")
        if isinstance(layer, Embedding | EmbeddingBag) and layer.sparse:
            raise mistake(f"{name} has sparse gradients, which are not averaged under Horovod: set sparse=False.")
