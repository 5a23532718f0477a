"""Ranks of one launch begin, fail and end together, whichever engine starts them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.cli.commands import (
    PICTURES,
    Ended,
    assert_equal,
    assert_near_rows,
    ended,
    events,
    fit,
    leash,
    needs_horovod,
    only_run,
    rows,
    runs_in,
    started,
    summary,
    wait_for,
    workplace,
)
from tests.ports import free_port

pytestmark = pytest.mark.slow

ENGINES = [
    pytest.param("local", id="local"),
    pytest.param("torchrun", id="torchrun"),
    pytest.param("horovod", id="horovod", marks=needs_horovod),
]
SOON_S = 60  # on a busy machine; gloo itself would wait for half an hour
SPARK = [
    pytest.param(
        engine,
        id=engine,
        marks=[
            needs_horovod,
            pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17"),
            pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="needs lightkit[spark]"),
        ],
    )
    for engine in ("spark", "horovod-on-spark")
]
JOB: dict[str, Any] = {
    **PICTURES,
    "optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.01}},
    "callbacks": {"checkpoint": {"init_args": {"save_last_every_n_steps": 1}}},
    "logger": {},
    "trainer": {"max_epochs": 3, "log_every_n_steps": 1, "enable_progress_bar": True},
}
HARDWARE: dict[str, dict[str, Any]] = {
    "local": {"accelerator": {"num_processes": 2, "strategy": "ddp"}},
    "torchrun": {"accelerator": {"strategy": "ddp", "gpus": 0}, "launch": {"engine": "torchrun", "processes": 2}},
    "horovod": {"accelerator": {"strategy": "horovod", "gpus": 0}, "launch": {"processes": 2}},
    "spark": {
        "accelerator": {"strategy": "ddp", "gpus": 0},
        "launch": {"engine": "spark", "processes": 2, "master": "local[2]"},
    },
    "horovod-on-spark": {
        "accelerator": {"strategy": "horovod", "gpus": 0},
        "launch": {"engine": "spark", "processes": 2, "master": "local[2]"},
    },
}


def job(folder: Path, engine: str, *, trouble: str | None = None, num_steps: int | None = None, **launch: Any) -> Path:
    """A working directory with a job for two ranks, which wait after a number of steps for a signal or a file to go."""
    config = {**JOB, **HARDWARE[engine]}
    config["launch"] = {**config.get("launch", {}), **launch}
    extra: dict[str, Any] = {"leash": {"class_path": "mine.Leash"}}
    if trouble is not None:
        extra["trouble"] = {"class_path": "mine.Trouble", "init_args": {"kind": trouble}}
    workplace(folder, {**config, "callbacks": {**JOB["callbacks"], **extra}}, pictures=60)
    if num_steps is not None:
        leash(folder, num_steps)
    return folder


def processes_in(folder: Path) -> list[int]:
    """Living processes that work in a folder, whatever their session."""
    found = psutil.process_iter(["cwd", "status"])
    inside = (p for p in found if p.info["cwd"] and Path(p.info["cwd"]).is_relative_to(folder))
    return [p.pid for p in inside if p.info["status"] != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def nobody_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    left = processes_in(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def failed(folder: Path, *words: str) -> tuple[Ended, float]:
    """Run a job in which one rank gets into trouble; tell how long all took to end after that."""
    with started(folder, "fit", "-c", "job.yaml", *words) as process:
        befallen = folder / "befallen"
        wait_for(befallen.exists, process)
        began = time.monotonic()
        end = ended(process)
        return end, time.monotonic() - began


@pytest.mark.parametrize("engine", [*ENGINES, *SPARK])
def test_two_ranks_are_one_run(tmp_path: Path, engine: str) -> None:
    folder = job(tmp_path, engine)
    end = fit(folder)
    assert end.code == 0, end.err
    assert "on 2 devices" in end.out
    assert "steps 3 an epoch, batch 8 x 2 ranks = 16, learning rate 0.01" in end.out
    assert [line.split()[1] for line in end.out.splitlines() if line.startswith("epoch")] == ["1/3", "2/3", "3/3"]
    run = only_run(folder)
    assert summary(folder)["status"] == "done"
    assert [row["epoch"] for row in rows(folder)] == ["0", "1", "2"]
    assert (run / "logs" / "rank-1.log").is_file()
    assert len(events(folder, "start")) == 1
    assert not (folder / "runs" / ".launch").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_raises_ends_all_with_its_traceback_first(tmp_path: Path, engine: str) -> None:
    folder = job(tmp_path, engine, trouble="raise")
    end, seconds = failed(folder)
    assert end.code == 1
    assert seconds < SOON_S
    told = [line for line in end.err.splitlines() if line]
    first = next(index for index, line in enumerate(told) if "Traceback" in line)
    assert told[first - 1].startswith("rank 1 (process ")
    assert "ValueError: this rank is out of stock" in end.err
    assert end.err.count("Traceback") == 1
    assert summary(folder)["status"] == "failed"
    assert "this rank is out of stock" in (only_run(folder) / "logs" / "rank-1.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_is_killed_ends_all_and_is_named(tmp_path: Path, engine: str) -> None:
    folder = job(tmp_path, engine, trouble="kill")
    end, seconds = failed(folder)
    assert end.code == 1, end.err
    assert seconds < SOON_S
    assert "error: rank 1 (process " in end.err
    assert "gone without a word" in end.err
    assert "Traceback" not in end.err
    assert summary(folder)["status"] == "failed"
    assert summary(folder)["error"] == "rank 1 was killed or crashed"
    resumed = fit(folder)
    assert resumed.code == 0, resumed.err
    assert "resumes" in resumed.err


@pytest.mark.parametrize(
    ("trouble", "engine"),
    [
        *(pytest.param("hang", *each.values, id=f"hang-{each.id}", marks=each.marks) for each in ENGINES),
        ("stop", "local"),
    ],
)
def test_a_rank_that_hangs_ends_all_and_says_where(tmp_path: Path, engine: str, trouble: str) -> None:
    folder = job(tmp_path, engine, trouble=trouble, stall_timeout_s=8)
    end, seconds = failed(folder)
    assert end.code == 70, end.err
    assert seconds < SOON_S
    if trouble == "hang":
        assert "error: rank 1 (process " in end.err
        assert "hangs. Where it stands:" in end.err
        assert "time.sleep(3600)" in end.err
    else:
        assert "error: rank 1 (process " in end.err
        assert "did not answer" in end.err
    assert summary(folder)["status"] == "failed"


@pytest.mark.parametrize(
    ("engine", "signum"),
    [
        pytest.param("local", signal.SIGINT, id="local-SIGINT"),
        pytest.param("local", signal.SIGHUP, id="local-SIGHUP"),
        pytest.param("torchrun", signal.SIGTERM, id="torchrun-SIGTERM"),
        pytest.param("horovod", signal.SIGINT, id="horovod-SIGINT", marks=needs_horovod),
    ],
)
def test_a_signal_ends_every_process_in_time_with_a_checkpoint(tmp_path: Path, engine: str, signum: int) -> None:
    folder = job(tmp_path, engine, num_steps=3)
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert wait_for(lambda: events(folder, "checkpoint"), process)
        assert len(processes_in(folder)) >= 3
        began = time.monotonic()
        os.kill(process.pid, signum)
        end = ended(process)
        assert time.monotonic() - began < SOON_S  # ten seconds are promised on a machine that has nothing else to do
    assert end.code == 75, end.err
    assert f"interrupted by {signal.Signals(signum).name}; the same command resumes from" in end.err
    assert "Traceback" not in end.err
    assert processes_in(folder) == []
    assert summary(folder)["status"] == "preempted"


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_do_not_outlive_the_process_that_started_them(tmp_path: Path, engine: str) -> None:
    folder = job(tmp_path, engine, num_steps=3)
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert wait_for(lambda: events(folder, "checkpoint"), process)
        process.kill()
        deadline = time.monotonic() + 30
        while processes_in(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert processes_in(folder) == []


def test_a_mistake_in_the_config_is_told_once(tmp_path: Path) -> None:
    folder = job(tmp_path, "torchrun")
    end = fit(folder, "--trainer.max_epoch=3")
    assert end.code == 2
    assert end.err.count("error:") == 1
    assert "did you mean" in end.err
    assert "Traceback" not in end.err
    assert not (folder / "runs" / ".launch").exists()


@needs_horovod
def test_too_few_slots_are_told_before_anything_starts(tmp_path: Path) -> None:
    folder = job(tmp_path, "horovod", hosts="localhost:1")
    end = fit(folder)
    assert end.code == 2
    assert "2 processes, but the hosts localhost:1 have 1 slots" in end.err
    assert not (folder / "runs").exists()


@needs_horovod
def test_two_names_of_this_machine_are_two_hosts(tmp_path: Path) -> None:
    folder = job(tmp_path, "horovod", hosts="localhost:1,127.0.0.1:1")
    end = fit(folder)
    assert end.code == 0, end.err
    assert "on 2 devices" in end.out


def test_a_rank_that_never_arrives_is_named(tmp_path: Path) -> None:
    folder = job(tmp_path, "torchrun", timeout_s=30)
    late = "import os, time\nif os.environ.get('RANK') == '1': time.sleep(600)\n"
    (folder / "sitecustomize.py").write_text(late, encoding="utf-8")  # Python runs it before anything else
    end = fit(folder, environ={"PYTHONPATH": str(folder)})
    assert end.code == 1
    assert "error: rank 1 of 2 did not arrive within 30 s (launch.timeout_s); arrived: rank 0 (process " in end.err


def test_other_ranks_are_shown_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = job(tmp_path, "torchrun", trouble="raise", all_ranks=True)
    end, _ = failed(folder)
    assert any(line.startswith("[1] ") and "out of stock" in line for line in end.err.splitlines())


def test_a_launcher_of_the_users_own_is_joined(tmp_path: Path) -> None:
    """`torchrun -m lightkit fit …` without lightkit's supervisor."""
    folder = job(tmp_path, "torchrun")
    import subprocess
    import sys

    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "lightkit", "fit", "-c", "job.yaml"),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    end = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert end.returncode == 0, end.stderr
    assert "on 2 devices" in end.stdout
    assert summary(folder)["status"] == "done"
    assert not list((folder / "runs").glob(".launch/*"))
    hardware = json.loads((only_run(folder) / "manifest.json").read_text(encoding="utf-8"))["hardware"]
    assert hardware["devices"] == 2


@pytest.mark.parametrize("machines", [1, 2], ids=["one machine", "two machines"])
def test_torchrun_starts_all_again_and_the_weights_are_those_of_an_undisturbed_run(
    tmp_path: Path, machines: int
) -> None:
    """Two machines are two supervisors with a rank each; here on one, as only the shared folder and the port know."""
    there: dict[str, Any] = {} if machines == 1 else {"nodes": 2, "rendezvous": free_address(), "processes": 1}
    folder = job(tmp_path / "killed", "torchrun", max_restarts=2, num_steps=2 * machines + 2, **there)
    whole = job(tmp_path / "whole", "torchrun")
    words = ("fit", "-c", "job.yaml", f"--seed_everything={machines}")
    with ExitStack() as all_machines:
        processes = [all_machines.enter_context(started(folder, *words)) for _ in range(machines)]
        assert wait_for(lambda: len(events(folder, "checkpoint")) >= 2 * machines + 1, processes[0])
        os.kill(rank_in(folder, 2 - machines), signal.SIGKILL)
        (folder / "leash").unlink()
        ends = [ended(process) for process in processes]
    assert [end.code for end in ends] == [0] * machines, "".join(end.err for end in ends)
    assert any("on 2 devices" in end.out for end in ends)
    assert len(events(folder, "resume")) == 1
    assert summary(folder)["status"] == "done"
    assert not (folder / "runs" / ".launch").exists()
    expected = fit(whole, *words[3:])
    assert expected.code == 0, expected.err
    checkpoints = [torch.load(only_run(f) / "checkpoints" / "last.ckpt", weights_only=True) for f in (folder, whole)]
    for key in ("epoch", "global_step", "state_dict", "optimizer_states", "lr_schedulers"):
        assert_equal(checkpoints[0][key], checkpoints[1][key], key)
    assert_near_rows(folder, whole)


def free_address() -> str:
    """A place on this machine at which supervisors can meet."""
    return f"127.0.0.1:{free_port()}"


def rank_in(folder: Path, rank: int) -> int:
    """Process number of a rank of the launch that is under way in a folder."""
    (path,) = folder.glob(f"runs/.launch/*/rank-{rank}-0.json")
    pid: int = json.loads(path.read_text(encoding="utf-8"))["process"]["pid"]
    return pid


def test_data_that_has_changed_begins_a_new_run_of_all_ranks(tmp_path: Path) -> None:
    folder = job(tmp_path, "torchrun", trouble="raise")
    assert fit(folder).code == 1
    next(folder.glob("pictures/*/*.png")).unlink()
    again = fit(folder)
    assert again.code == 0, again.err
    assert "begins a new run: the data has changed since" in again.err
    assert "Traceback" not in again.err
    assert len(runs_in(folder)) == 2


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_mistake_in_the_data_is_told_once_and_leaves_no_run(tmp_path: Path, engine: str) -> None:
    folder = job(tmp_path, engine)
    end = fit(folder, "--data.init_args.root=nowhere")
    assert end.code == 3, end.err
    assert end.err.count("error:") == 1
    assert "nowhere" in end.err
    assert "Traceback" not in end.err
    assert runs_in(folder) == []


def test_a_reader_that_leaves_costs_no_work(tmp_path: Path) -> None:
    folder = job(tmp_path, "torchrun", num_steps=3)
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert process.stdout is not None
        assert wait_for(lambda: events(folder, "checkpoint"), process)
        process.stdout.close()
        (folder / "leash").unlink()
        assert process.wait(timeout=120) in (141, 120)
    assert processes_in(folder) == []
    assert summary(folder)["status"] in ("preempted", "done")
    resumed = fit(folder)
    assert resumed.code == 0, resumed.err
    assert "resumes" in resumed.err or len(runs_in(folder)) == 2
