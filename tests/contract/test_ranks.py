"""Ranks of one launch begin, fail and end together, and give the numbers of one process."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.conftest import Once
from tests.contract.examples import MY_PROJECT
from tests.contract.rank_jobs import (
    ENGINES,
    JOB,
    NEEDS,
    assert_same_metrics,
    assert_same_weights,
    engine,
    failing,
    processes_in,
    train_alone,
    wait_until_nobody_works_in,
    write_job,
)
from tests.contract.workspace import ForkServer, Result, Workspace, read_events, read_json
from tests.ports import free_port

HELD_STEP = 4
FAULTS = [engine("ddp"), engine("torchrun", is_long=True), engine("horovod", is_long=True)]
TRAINED = [
    engine("ddp"),
    engine("horovod"),
    *(engine(name, is_long=True) for name in ENGINES if name not in ("ddp", "horovod")),
]


@dataclass(frozen=True)
class Launch:
    """A training of two ranks that has ended.

    Args:
        workspace: Its working directory.
        result: How it ended.
    """

    workspace: Workspace
    result: Result

    @property
    def run(self) -> Path:
        """Its run folder."""
        return self.workspace.only_run


@pytest.fixture(scope="module")
def alone(made_once: Once) -> Path:
    """Run folder of one process with twice the batch."""
    return next(made_once("one_process", train_alone).glob("runs/job/2*"))


@pytest.fixture(scope="module")
def launches(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Callable[[str], Launch]]:
    """Trains two ranks of an engine, once for all tests of this file."""
    ended: dict[str, Launch] = {}

    def launch(name: str) -> Launch:
        if name not in ended:
            workspace = Workspace(tmp_path_factory.mktemp("launch") / "work", fork_server)
            workspace.write("my_project.py", MY_PROJECT)
            threads = {"class_path": "my_ranks.WriteThreads"}
            write_job(workspace, name, callbacks={"threads": threads})
            more: list[str] = []
            if "horovod" in name:
                more = ["optimizer.init_args.lr=0.025", "callbacks.scale_lr={}"]
            words = ("fit", "-c", "job.yaml", *more)
            # a forked command would fork the ranks of ddp from itself
            run = workspace.run_cold if name == "ddp" else workspace.run
            result = run(*words, environ={"OMP_NUM_THREADS": None}, timeout_s=280).ok()
            ended[name] = Launch(workspace, result)
        return ended[name]

    yield launch
    for each in ended.values():
        each.workspace.close()


@pytest.fixture
def trained(launches: Callable[[str], Launch]) -> Launch:
    """Two ranks with ddp."""
    return launches("ddp")


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    """Each test of this file promises that its launch leaves no process."""
    yield
    wait_until_nobody_works_in(tmp_path)


@pytest.mark.parametrize("name", TRAINED)
def test_two_ranks_train_the_weights_of_one_process_with_twice_the_batch(
    name: str, launches: Callable[[str], Launch], alone: Path
) -> None:
    """Under Horovod half the learning rate, which `scale_lr` makes that of one process."""
    assert_same_weights(launches(name).run, alone)


@pytest.mark.parametrize("name", TRAINED)
def test_metrics_are_those_of_all_ranks_and_count_each_sample_once(
    name: str, launches: Callable[[str], Launch], alone: Path
) -> None:
    assert_same_metrics(launches(name).run, alone)


def test_two_ranks_are_one_run(trained: Launch) -> None:
    assert [event["event"] for event in read_events(trained.run)].count("start") == 1
    assert read_json(trained.run / "summary.json")["status"] == "done"
    assert read_json(trained.run / "manifest.json")["hardware"]["devices"] == 2
    assert [path.name for path in (trained.workspace.folder / "runs").iterdir()] == ["job"]


def test_rank_0_has_the_screen(trained: Launch) -> None:
    epochs = re.findall(r"^epoch (\d) \(\d of 2\)", trained.result.out, re.MULTILINE)
    assert epochs == ["0", "1"]
    assert (trained.run / "logs" / "rank-1.log").is_file()


def test_steps_batch_and_learning_rate_are_shown_for_the_ranks_in_use(trained: Launch) -> None:
    assert re.search(r"6 an epoch.*4 x 2 ranks = 8.*learning rate 0\.05\b", trained.result.out)


def test_each_rank_has_its_share_of_the_cores_as_threads(trained: Launch) -> None:
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    threads = [
        (trained.workspace.folder / f"threads-{rank}").read_text(encoding="utf-8")
        for rank in (0, 1)
    ]
    assert threads == [str(share)] * 2


@pytest.mark.parametrize("name", FAULTS)
def test_a_rank_that_raises_ends_all_with_its_traceback_first(
    name: str, workspace: Workspace
) -> None:
    write_job(workspace, name, callbacks=failing("raise"))
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 1, result.err
    before, traceback, _ = result.err.partition("Traceback")
    assert traceback
    assert re.search(r"rank 1 \(process \d+.*:\n(This was .*\n)?(The .*\n)*$", before)
    assert result.err.count("Traceback") == 1
    assert "ValueError: this rank is out of stock" in result.err
    assert read_json(workspace.only_run / "summary.json")["status"] == "failed"
    log = (workspace.only_run / "logs" / "rank-1.log").read_text(encoding="utf-8")
    assert "this rank is out of stock" in log


@pytest.mark.parametrize("name", FAULTS)
def test_a_rank_that_is_killed_is_named_and_ends_all(name: str, workspace: Workspace) -> None:
    write_job(workspace, name, callbacks=failing("kill"))
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 1, result.err
    assert re.search(r"error: rank 1 \(process \d+", result.err)
    assert "Traceback" not in result.err
    summary = read_json(workspace.only_run / "summary.json")
    assert summary["status"] == "failed"
    assert "rank 1" in summary["error"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_rank_that_hangs_is_named_with_its_place_and_ends_all_with_70(
    name: str, workspace: Workspace
) -> None:
    write_job(workspace, name, callbacks=failing("hang"), launch={"stall_timeout_s": 10})
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 70, result.err
    assert re.search(r"error: rank 1 \(process \d+", result.err)
    assert "time.sleep(3600)" in result.err
    assert read_json(workspace.only_run / "summary.json")["status"] == "failed"


@pytest.mark.long
def test_a_rank_that_is_stopped_is_named_and_ends_all_with_70(workspace: Workspace) -> None:
    write_job(workspace, "ddp", callbacks=failing("stop"), launch={"stall_timeout_s": 10})
    result = workspace.run("fit", "-c", "job.yaml")
    assert result.code == 70, result.err
    assert re.search(r"error: rank 1 \(process \d+", result.err)


@pytest.mark.parametrize("name", [engine("torchrun"), engine("ray", is_long=True)])
def test_where_restarts_are_asked_for_a_lost_rank_costs_the_work_since_the_last_checkpoint(
    name: str, workspace: Workspace, alone: Path
) -> None:
    limit = {"torchrun": "max_restarts", "ray": "max_failures"}[name]
    write_job(workspace, name, callbacks=failing("kill"), launch={limit: 1})
    workspace.run("fit", "-c", "job.yaml", timeout_s=280).ok()
    (resume,) = read_events(workspace.only_run, "resume")
    assert 0 < resume["step"] <= 3
    assert_same_weights(workspace.only_run, alone)
    assert_same_metrics(workspace.only_run, alone)


def hold(workspace: Workspace, name: str) -> None:
    """Write a job that waits after `HELD_STEP` steps as long as the file `hold` is there."""
    write_job(
        workspace, name, callbacks={**JOB["callbacks"], "hold": {"class_path": "my_project.Hold"}}
    )
    workspace.write("hold", str(HELD_STEP))


def interrupt(workspace: Workspace, name: str, signum: int) -> Result:
    """Send the command a signal in the middle of the training."""
    hold(workspace, name)
    process = workspace.start("fit", "-c", "job.yaml")
    process.wait_for((workspace.folder / "held").exists)
    assert len(processes_in(workspace.folder)) >= 3  # two ranks, and what has started them
    process.signal(signum)
    (workspace.folder / "hold").unlink()
    return process.result()


def test_a_launch_that_sigterm_interrupts_resumes_to_the_weights_of_an_undisturbed_one(
    workspace: Workspace, alone: Path
) -> None:
    result = interrupt(workspace, "ddp", signal.SIGTERM)
    assert result.code == 75, result.err
    assert "Traceback" not in result.err
    assert processes_in(workspace.folder) == []
    assert read_json(workspace.only_run / "summary.json")["status"] == "preempted"
    workspace.run("fit", "-c", "job.yaml").ok()
    assert len(read_events(workspace.only_run, "resume")) == 1
    assert_same_weights(workspace.only_run, alone)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "signum"),
    [
        engine("ddp", signal.SIGINT),
        engine("ddp", signal.SIGHUP),
        engine("torchrun", signal.SIGTERM),
        engine("horovod", signal.SIGINT),
        engine("spark", signal.SIGTERM),
        engine("ray", signal.SIGINT),
    ],
)
def test_a_signal_ends_the_ranks_of_each_engine_with_a_checkpoint(
    name: str, signum: int, workspace: Workspace
) -> None:
    result = interrupt(workspace, name, signum)
    assert result.code == 75, result.err
    assert f"interrupted by {signal.Signals(signum).name}" in result.err
    assert read_json(workspace.only_run / "summary.json")["status"] == "preempted"


@pytest.mark.parametrize("name", FAULTS)
def test_ranks_do_not_outlive_the_command_that_started_them(
    name: str, workspace: Workspace
) -> None:
    hold(workspace, name)
    process = workspace.start("fit", "-c", "job.yaml")
    process.wait_for((workspace.folder / "held").exists)
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    wait_until_nobody_works_in(workspace.folder)


def test_ranks_of_a_launcher_of_the_users_own_join(workspace: Workspace, alone: Path) -> None:
    write_job(workspace, "torchrun")
    workspace.write("torchrun.py", "from torch.distributed.run import main\n\nmain()\n")
    launcher = ("--standalone", "--nproc-per-node", "2", "-m", "lightkit")
    result = workspace.run(*launcher, "fit", "-c", "job.yaml", script="torchrun.py").ok()
    assert len(re.findall(r"^epoch ", result.out, re.MULTILINE)) == 2
    assert len(read_events(workspace.only_run, "start")) == 1
    assert_same_weights(workspace.only_run, alone)


@pytest.mark.long
def test_a_rank_that_raises_under_a_launcher_of_the_users_own_says_so(workspace: Workspace) -> None:
    write_job(workspace, "torchrun", callbacks=failing("raise"))
    workspace.write("torchrun.py", "from torch.distributed.run import main\n\nmain()\n")
    launcher = ("--standalone", "--nproc-per-node", "2", "-m", "lightkit")
    result = workspace.run(*launcher, "fit", "-c", "job.yaml", script="torchrun.py")
    assert result.code == 1
    assert re.search(r"rank 1:\n(This was .*\n)?(The .*\n)*Traceback", result.err)
    assert "ValueError: this rank is out of stock" in result.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["accelerator.strategy=ddp", "launch.engine=torchrun", "launch.processes=2",
          "--trainer.max_epoch=3"],
         r"max_epoch\b.*did you mean"),
        (["accelerator.strategy=horovod", "launch.processes=2", "launch.hosts=localhost:1"],
         r"localhost:1 .*1 slot"),
        (["launch.engine=slurm"], r"launch\.engine: slurm: .*srun.*lightkit submit"),
        (["trainer.num_nodes=2"], r"trainer\.num_nodes"),
        (["launch.engine=torchrun", "launch.processes=1", "launch.nodes=2"], r"launch\.rendezvous"),
        pytest.param(
            ["accelerator={strategy: ddp, gpus: 0}", "launch.engine=spark", "launch.processes=3",
             "launch.master=local[2]"], r"3 slots.*local\[2\] has 2", marks=NEEDS["spark"],
        ),
    ],
    ids=["abbreviated_flag", "slots", "slurm", "nodes_by_hand", "rendezvous", "spark_slots"],
)  # fmt: skip
def test_a_launch_that_cannot_be_is_refused_once_and_starts_nothing(
    workspace: Workspace, words: list[str], says: str
) -> None:
    write_job(workspace, "ddp")
    workspace.write("job.yaml", JOB)
    result = workspace.run("fit", "-c", "job.yaml", *words)
    assert result.code == 2, result.err
    assert re.search(says, result.err, re.DOTALL)
    assert result.err.count("error:") == 1
    assert not (workspace.folder / "runs").exists()


def test_standard_input_is_refused_for_processes_that_would_not_get_it(finished: Workspace) -> None:
    words = ("predict", "--run", "latest", "-", "accelerator.strategy=ddp")
    result = finished.run(*words, "launch.engine=torchrun", "launch.processes=2")
    assert result.code == 2, result.err
    assert re.search(r"-: standard input", result.err)


@pytest.mark.long
def test_a_rank_that_never_arrives_is_named(workspace: Workspace) -> None:
    write_job(workspace, "torchrun", launch={"timeout_s": 30})
    late = "import os, time\nif os.environ.get('RANK') == '1': time.sleep(600)\n"
    workspace.write("sitecustomize.py", late)  # Python imports it before anything else
    environ = {"PYTHONPATH": str(workspace.folder), "NO_SHORTCUTS": "1"}
    result = workspace.run("fit", "-c", "job.yaml", environ=environ)
    assert result.code == 1
    assert re.search(
        r"error: rank 1 of 2 did not arrive within 30 s \(launch\.timeout_s\); arrived: rank 0",
        result.err,
    )


@pytest.mark.long
def test_other_ranks_are_shown_where_that_is_asked_for(workspace: Workspace) -> None:
    speak = {"class_path": "my_ranks.Speak"}
    write_job(workspace, "torchrun", callbacks={"speak": speak}, launch={"all_ranks": True})
    result = workspace.run("fit", "-c", "job.yaml").ok()
    assert re.search(r"^\[1\] hello from rank 1$", result.err, re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [engine("ddp"), engine("torchrun"), engine("spark"), engine("ray")]
)
def test_missing_data_is_reported_once_and_leaves_no_run(name: str, workspace: Workspace) -> None:
    write_job(workspace, name, model={"class_path": "ImageClassifier", "init_args": {}})
    data = {"class_path": "ImageFolder", "init_args": {"root": "nowhere"}}
    workspace.write("data.yaml", {"data": data})
    result = workspace.run("fit", "-c", "job.yaml", "-c", "data.yaml")
    assert result.code == 3, result.err
    assert result.err.count("error:") == 1
    assert "nowhere" in result.err
    assert "Traceback" not in result.err
    assert workspace.runs == []


@pytest.mark.long
@pytest.mark.parametrize("name", [engine("spark"), engine("ray")])
def test_a_run_of_a_cluster_is_evaluated_by_one_process(
    name: str, launches: Callable[[str], Launch]
) -> None:
    launch = launches(name)
    result = launch.workspace.run("test", "--run", "latest").ok()
    assert "2 devices" not in result.out


@pytest.mark.long
@pytest.mark.parametrize("name", [engine("horovod")])
def test_two_names_of_this_machine_are_two_hosts(
    name: str, workspace: Workspace, alone: Path
) -> None:
    write_job(workspace, name, launch={"hosts": "localhost:1,127.0.0.1:1"})
    workspace.run("fit", "-c", "job.yaml").ok()
    assert_same_weights(workspace.only_run, alone)


TORCHS = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
"""Variables of a rank on one of two machines, as Kubernetes' and Ray's launchers set them, without
torchrun's."""


def test_ranks_with_torchs_variables_alone_join(workspace: Workspace, alone: Path) -> None:
    write_job(workspace, "torchrun")
    port = str(free_port())
    ranks = [
        workspace.start(
            "fit", "-c", "job.yaml", environ={**TORCHS, "MASTER_PORT": port, "RANK": str(rank)}
        )
        for rank in range(2)
    ]
    for rank in ranks:
        rank.result().ok()
    assert len(read_events(workspace.only_run, "start")) == 1
    assert_same_weights(workspace.only_run, alone)


def test_a_signal_ends_a_rank_that_waits_for_one_that_never_comes(workspace: Workspace) -> None:
    write_job(workspace, "torchrun")
    environ = {**TORCHS, "MASTER_PORT": str(free_port()), "RANK": "0"}
    rank = workspace.start("fit", "-c", "job.yaml", environ=environ)
    rank.wait_for(lambda: is_listening(int(environ["MASTER_PORT"])))
    rank.signal(signal.SIGTERM)
    assert rank.wait(timeout_s=60) in (75, 128 + signal.SIGTERM)


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
