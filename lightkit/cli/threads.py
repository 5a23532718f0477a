"""The threads of a stage's process."""

from __future__ import annotations

import os

import torch

from lightkit.cli.session import StageProcess
from lightkit.hardware import this_machine
from lightkit.hardware.cores import share_cores
from lightkit.launch.plan import THREADS


def set_threads(num_threads: int | None, process: StageProcess) -> None:
    """Set torch's threads, and those of processes that are started later, until the stage ends.

    Args:
        num_threads: Of the config. None: a rank of a launcher of the user's own takes its share of
            the cores; else the variable, or torch, decides.
        process: This process.
    """
    rank = process.rank
    variable = os.environ.get(THREADS)
    if num_threads is None and rank is not None and rank.engine != "local" and not variable:
        num_threads = share_cores(this_machine().cores or 1, rank.local_size)
        if rank.engine == "slurm":
            num_threads = int(os.environ.get("SLURM_CPUS_PER_TASK", num_threads))
    if num_threads is None:
        return
    before = torch.get_num_threads()

    def restore() -> None:
        torch.set_num_threads(before)
        os.environ.pop(THREADS, None)
        os.environ.update({} if variable is None else {THREADS: variable})

    process.stack.callback(restore)
    torch.set_num_threads(num_threads)
    os.environ[THREADS] = str(num_threads)
