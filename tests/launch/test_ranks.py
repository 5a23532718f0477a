"""Which rank a process is, from what each launcher leaves in its environment."""

from __future__ import annotations

import pytest

from lightkit.errors import ConfigError
from lightkit.launch.ranks import Rank, complete_torch_variables, this_rank

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
    "a batch script of Slurm": (
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"},
        None,
    ),
    "a shell of Slurm": (
        {
            "SLURM_PROCID": "0",
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": "8",
            "SLURM_JOB_NAME": "interactive",
        },
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
def test_a_process_knows_its_launcher_and_its_rank(
    environ: dict[str, str], expected: Rank | None
) -> None:
    assert this_rank(environ) == expected


TORCHS = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5"}
COMPLETED = {
    "one process on each machine": (
        TORCHS,
        Rank(3, 4, 0, 1, "torchrun", num_nodes=4, key="torch-10.0.0.1-5"),
    ),
    "two on each": (
        {**TORCHS, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
        Rank(3, 4, 1, 2, "torchrun", num_nodes=2, key="torch-10.0.0.1-5"),
    ),
    "all on this machine": (
        {**TORCHS, "MASTER_ADDR": "localhost"},
        Rank(3, 4, 3, 4, "torchrun", key="torch-localhost-5"),
    ),
}


@pytest.mark.parametrize(("environ", "expected"), COMPLETED.values(), ids=COMPLETED)
def test_a_rank_with_torchs_variables_alone_has_those_of_torchrun(
    environ: dict[str, str], expected: Rank
) -> None:
    completed = dict(environ)
    complete_torch_variables(completed)
    assert this_rank(completed) == expected
    assert int(completed["GROUP_RANK"]) == expected.rank // expected.local_size


@pytest.mark.parametrize(
    "environ",
    [each for each, rank in CASES.values() if rank],
    ids=[n for n, c in CASES.items() if c[1]],
)
def test_ranks_of_other_launchers_keep_their_variables(environ: dict[str, str]) -> None:
    completed = dict(environ)
    complete_torch_variables(completed)
    assert completed == environ


def test_a_second_process_on_a_machine_needs_their_number() -> None:
    with pytest.raises(
        ConfigError, match="RANK=3, WORLD_SIZE=4 and LOCAL_RANK=1, but no LOCAL_WORLD_SIZE"
    ):
        complete_torch_variables({**TORCHS, "LOCAL_RANK": "1"})
