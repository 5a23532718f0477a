"""Which rank Horovod's launcher made this process."""

from __future__ import annotations

import os

import torch
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_utilities.core import rank_zero as utilities
from pytorch_lightning.utilities import rank_zero as lightning

from lightkit.distributed.collectives import hvd, spare_cores, start_horovod
from lightkit.hardware import this_machine
from lightkit.launch import this_rank

__all__ = ["HorovodEnvironment"]


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
            ConfigError: If Horovod is not installed.
        """
        rank = this_rank(os.environ)
        if on_cpu and rank is not None:
            threads, cores = torch.get_num_threads(), this_machine().cores or 1
            spare_cores(os.environ, num_ranks=rank.local_size, num_threads=threads, num_cores=cores)
        start_horovod()
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
