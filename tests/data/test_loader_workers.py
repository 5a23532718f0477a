"""How many processes load, what they prepare ahead, and how they end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from lightkit.data import loader
from lightkit.data.loader import (
    choose_num_workers,
    local_ranks,
    worker_options,
)

MB = 1_000_000


class Training:
    """As much of a trainer as is asked."""

    def __init__(
        self,
        device: str = "cpu",
        *,
        devices: int = 1,
        ranks: int = 1,
        rank: int = 0,
        local: Any = None,
    ) -> None:
        environment = SimpleNamespace(local_size=local) if local else SimpleNamespace()
        self.strategy = SimpleNamespace(
            root_device=torch.device(device), cluster_environment=environment
        )
        self.num_devices, self.world_size, self.is_global_zero = devices, ranks, rank == 0


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "num_cores", lambda: 2)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.parametrize(
    ("asked", "num_batches", "expected", "says"),
    [
        (3, 3, 3, "data: 3 worker processes load (num_workers: 3)"),
        (3, 9, 3, "data: 3 worker processes load (num_workers: 3)"),
        (3, 1, 1, "data: 1 worker process loads (3 set, batches for 1)"),
        (0, 9, 0, "data: the training process loads (num_workers: 0)"),
    ],
    ids=["any", "many batches", "few batches", "none"],
)
def test_what_is_asked_for_is_taken_and_reported_once(
    asked: int, num_batches: int, expected: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    training: Any = Training()
    with caplog.at_level(logging.INFO, "lightkit.data"):
        for _ in range(2):
            chosen = choose_num_workers(
                asked,
                trainer=training,
                is_cached=True,
                num_samples=4 * num_batches - 3,
                batch_size=4,
            )
            assert chosen == expected
    assert caplog.messages == [says]


def test_without_a_trainer_nobody_else_loads() -> None:
    assert (
        choose_num_workers("auto", trainer=None, is_cached=False, num_samples=100, batch_size=4)
        == 0
    )


@pytest.mark.parametrize(
    ("training", "is_cached", "says"),
    [
        (Training(), False, "data: 1 worker process loads (2 cores, cpu)"),
        (Training(), True, "data: the training process loads (2 cores, cpu, nothing to decode)"),
        (
            Training(devices=2, ranks=2),
            False,
            "data: the training process loads (2 cores, cpu, shared by 2 training processes)",
        ),
    ],
    ids=["one", "cached", "two ranks"],
)
@pytest.mark.usefixtures("two_cores")
def test_the_number_chosen_is_reported_once_a_trainer(
    training: Any, is_cached: bool, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lightkit.data"):
        for _ in range(3):
            choose_num_workers(
                "auto", trainer=training, is_cached=is_cached, num_samples=100, batch_size=4
            )
    assert caplog.messages == [says]


@pytest.mark.usefixtures("two_cores")
def test_only_the_first_rank_reports(caplog: pytest.LogCaptureFixture) -> None:
    training: Any = Training(devices=2, ranks=2, rank=1)
    with caplog.at_level(logging.INFO, "lightkit.data"):
        choose_num_workers("auto", trainer=training, is_cached=False, num_samples=100, batch_size=4)
    assert not caplog.records


@pytest.mark.parametrize(
    ("training", "started", "expected"),
    [
        (Training(), None, 1),
        (Training(devices=4, ranks=8), None, 4),
        (Training(devices=8, ranks=1), None, 1),
        (Training(devices=1, ranks=8, local=lambda: 4), None, 4),
        (Training(devices=1, ranks=8), "2", 2),
        (Training(devices=1, ranks=1), "2", 1),
    ],
    ids=["alone", "two machines", "one process", "Horovod", "torchrun", "a variable left over"],
)
def test_processes_of_this_machine_are_counted(
    training: Any, started: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if started is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", started)
    assert local_ranks(training) == expected


@pytest.mark.parametrize(
    ("own", "of_job", "tasks", "expected"),
    [
        (4, "16", "4", 3),
        (8, "16", "4", 3),
        (16, "16", "4", 3),
        (4, "16", "1", 1),
        (4, None, "4", 1),
        (4, "some", "4", 1),
        (4, "2", "4", 1),
    ],
    ids=[
        "cores of its own",
        "a socket for two",
        "not bound",
        "no task of Slurm's",
        "nothing said",
        "odd",
        "fewer",
    ],
)
def test_cores_that_slurm_binds_to_a_task_are_not_shared_out_again(
    own: int, of_job: str | None, tasks: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "num_cores", lambda: own)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("SLURM_NTASKS", tasks)
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    if of_job is not None:
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", of_job)
    training: Any = Training("cuda", devices=4, ranks=4)
    assert (
        choose_num_workers("auto", trainer=training, is_cached=False, num_samples=100, batch_size=4)
        == expected
    )


@pytest.mark.parametrize(
    ("free_mb", "expected"),
    [(1000, (4, 2)), (180, (4, 2)), (179, (4, 1)), (99, (3, 1)), (40, (1, 1)), (39, (0, 1))],
    ids=["plenty", "just enough", "less ahead", "fewer workers", "one", "none"],
)
def test_what_is_prepared_ahead_fits_into_the_shared_memory(
    free_mb: int,
    expected: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free_mb * MB))
    options = worker_options(4, 2, keep=False, batch_bytes=10 * MB)
    assert (options["num_workers"], options.get("prefetch_factor", 1)) == expected
    assert bool(caplog.messages) == (expected != (4, 2))


def test_too_little_shared_memory_is_reported_with_what_to_do(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100 * MB))
    training: Any = Training(devices=2, ranks=2)
    worker_options(4, 2, keep=False, batch_bytes=10 * MB, trainer=training)
    assert caplog.messages == [
        "data: /dev/shm has 100 MB free, batches ready at a time would take up to 360 MB; 1 worker"
        " process loads, 1 ahead, instead. Give the container more (docker run --shm-size=2g), or"
        " lower data.init_args.batch_size, num_workers or prefetch_factor."
    ]


def test_where_there_is_no_such_memory_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loader, "_SHARED_MEMORY", str(tmp_path / "nowhere"))
    assert worker_options(4, 2, keep=False, batch_bytes=10**15)["num_workers"] == 4


def test_a_loader_without_workers_is_reported_nothing_of_them() -> None:
    assert worker_options(0, 2, keep=True) == {"num_workers": 0}


SCRIPT = """\
import os, sys, threading
import torch
from lightkit.data.loader import worker_options

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return torch.tensor([os.getpid(), torch.get_num_threads()])

if __name__ == "__main__":
    torch.set_num_threads(2)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=1, **worker_options(2, 1, keep=True))
    for number, batch in enumerate(loader):
        print(*batch[0].tolist(), flush=True)
        if number == 3:
            threading.Event().wait()
"""


def _ended(pids: set[int], within_s: float = 60.0) -> bool:
    """Wait until none of these processes is there."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(processes, timeout=within_s)[1]


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_workers_have_one_thread_and_end_with_the_process_that_trains(
    tmp_path: Path, signum: int
) -> None:
    """A terminal sends Ctrl-C to the whole group; kill -9 reaches the training alone."""
    script = tmp_path / "loading.py"
    script.write_text(SCRIPT, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline().split() for _ in range(4)]
        pids = {int(pid) for pid, _ in lines}
        if signum == signal.SIGINT:
            os.killpg(process.pid, signum)
        else:
            process.kill()
        said = process.stderr.read()
        assert process.wait() == -signum
        assert _ended(pids)
    assert {threads for _, threads in lines} == {"1"}
    assert len(pids) == 2
    # of the training alone
    assert said.count("Traceback") == (1 if signum == signal.SIGINT else 0), said
