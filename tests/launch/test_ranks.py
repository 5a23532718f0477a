"""Which rank a process is, from what each launcher leaves in its environment."""

from __future__ import annotations

import pytest

from lightkit.launch.ranks import Rank, this_rank

CASES = {
    "horovodrun": (
        {
            "HOROVOD_RANK": "3",
            "HOROVOD_SIZE": "4",
            "HOROVOD_LOCAL_RANK": "1",
            "HOROVOD_LOCAL_SIZE": "2",
            "HOROVOD_CROSS_SIZE": "2",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "41",
        },
        Rank(3, 4, 1, 2, "horovod", num_nodes=2, key="10.0.0.1-41"),
    ),
    "torchrun": (
        {
            "TORCHELASTIC_RUN_ID": "job",
            "RANK": "2",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": "2",
            "TORCHELASTIC_RESTART_COUNT": "1",
            "MASTER_ADDR": "a",
            "MASTER_PORT": "5",
        },
        Rank(2, 4, 0, 2, "torchrun", attempt=1, num_nodes=2, key="job-a-5"),
    ),
    "srun": (
        {
            "SLURM_PROCID": "5",
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": "8",
            "SLURM_LOCALID": "1",
            "SLURM_NTASKS_PER_NODE": "4",
            "SLURM_NNODES": "2",
            "SLURM_JOB_ID": "77",
        },
        Rank(5, 8, 1, 4, "slurm", num_nodes=2, key="77-0"),
    ),
    "a batch script of Slurm": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}, None),
    "a shell of Slurm": (
        {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NAME": "interactive"},
        None,
    ),
    "mpirun": (
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        },
        Rank(1, 2, 1, 2, "mpi"),
    ),
    "Lightning's own launcher": (
        {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "5"},
        Rank(1, 2, 1, 2, "local", key="5"),
    ),
    "nobody": ({"RANK": "0", "HOME": "/root"}, None),
}


@pytest.mark.parametrize(("environ", "expected"), CASES.values(), ids=CASES)
def test_a_process_knows_its_launcher_and_its_rank(environ: dict[str, str], expected: Rank | None) -> None:
    assert this_rank(environ) == expected
