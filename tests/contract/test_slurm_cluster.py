"""`lightkit submit` on a real Slurm of two nodes; see `slurm_cluster.py` for what it needs."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.conftest import Once
from tests.contract.rank_jobs import (
    JOB,
    assert_same_metrics,
    assert_same_weights,
    train_alone,
    wait_until_nobody_works_in,
    write_job,
)
from tests.contract.slurm_cluster import CannotRun, SlurmCluster
from tests.contract.workspace import Workspace, read_events, read_json, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

NOTE_SIGNALS = '''\
"""A callback of a user who watches signals."""

import signal
from pathlib import Path

from pytorch_lightning import Callback


class NoteSignals(Callback):
    """Writes `signalled-RANK` once a signal of Slurm's has come, before lightkit hears of it."""

    def on_train_start(self, trainer, module):
        for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            self._note(signum, f"signalled-{trainer.global_rank}", signal.getsignal(signum))

    def _note(self, signum, name, handler):
        def note(number, frame):
            Path(name).touch()
            handler(number, frame)

        signal.signal(signum, note)
'''


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """The cluster; all tests of this file are skipped where it cannot be made."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a socket's path must be short
    cluster = SlurmCluster(folder)
    try:
        try:
            cluster.start()
        except CannotRun as reason:
            pytest.skip(str(reason))
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def alone(made_once: Once) -> Path:
    """Run folder of one process with twice the batch."""
    return next(made_once("one_process", train_alone).glob("runs/job/2*"))


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path: Path, cluster: SlurmCluster) -> Iterator[None]:
    """Each test of this file promises that no process is left on either node."""
    yield
    cluster.cancel_all()
    wait_until_nobody_works_in(tmp_path)


def submit(
    cluster: SlurmCluster, workspace: Workspace, *, is_held: bool = True, **slurm: str
) -> str:
    """Submit the job of two ranks on two nodes, which waits after four steps if it is held.

    Return its number.
    """
    callbacks = {
        **JOB["callbacks"],
        "signals": {"class_path": "my_signals.NoteSignals"},
        "hold": {"class_path": "my_project.Hold"},
    }
    hardware = {"accelerator": {"strategy": "ddp", "gpus": 0}}
    launch = {"engine": "slurm", "nodes": 2, "processes": 1, "threads": 1, "slurm": slurm}
    write_job(workspace, "ddp", callbacks=callbacks)
    workspace.write("my_signals.py", NOTE_SIGNALS)
    workspace.write("job.yaml", {**JOB, **hardware, "launch": launch, "callbacks": callbacks})
    if is_held:
        workspace.write("hold", "4")
    words = [sys.executable, "-m", "lightkit", "submit", "-c", "job.yaml"]
    result = cluster.run(*words, folder=workspace.folder, environ=workspace.environ()).ok()
    found = re.search(r"^job +(\d+)$", result.out, re.MULTILINE)
    assert found is not None
    return found[1]


def wait_until_held(workspace: Workspace) -> None:
    wait_until((workspace.folder / "held").exists)


def release_after_signal(workspace: Workspace) -> None:
    """Let both ranks go on once a signal has reached them."""
    wait_until(
        lambda: all((workspace.folder / f"signalled-{rank}").exists() for rank in (0, 1)),
        timeout_s=150,
    )
    (workspace.folder / "hold").unlink()


def read_log(workspace: Workspace, number: str) -> str:
    return (workspace.folder / f"runs/job/slurm-{number}.out").read_text(encoding="utf-8")


def assert_job(cluster: SlurmCluster, workspace: Workspace, number: str, **expected: str) -> str:
    """Assert what Slurm says of a job that has ended, and return the job's log."""
    job = cluster.job(number)
    log = read_log(workspace, number)
    assert {name: job[name] for name in expected} == expected, f"{log}\n{cluster.read_log()}"
    return log


def has_ended(job: dict[str, str]) -> bool:
    return job["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "NODE_FAIL")


def assert_resumed_to_the_same(workspace: Workspace, alone: Path) -> None:
    """Assert that one run was resumed once.

    It has each epoch once and the weights of an undisturbed training.
    """
    assert len(read_events(workspace.only_run, "resume")) == 1
    assert read_json(workspace.only_run / "summary.json")["status"] == "done"
    assert_same_weights(workspace.only_run, alone)
    assert_same_metrics(workspace.only_run, alone)


def test_two_nodes_of_slurm_train_the_weights_of_one_process(
    cluster: SlurmCluster, workspace: Workspace, alone: Path
) -> None:
    number = submit(cluster, workspace, is_held=False)
    cluster.wait_for_job(number, has_ended)
    log = assert_job(
        cluster, workspace, number, JobState="COMPLETED", NodeList="n[1-2]", NumTasks="2"
    )
    assert "2 devices" in log
    assert_same_weights(workspace.only_run, alone)
    assert_same_metrics(workspace.only_run, alone)


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_a_signal_of_slurm_puts_the_job_back_and_it_resumes(
    name: str, cluster: SlurmCluster, workspace: Workspace, alone: Path
) -> None:
    number = submit(cluster, workspace)
    wait_until_held(workspace)
    cluster.run("scancel", f"--signal={name}", number).ok()
    release_after_signal(workspace)
    cluster.wait_for_job(number, has_ended)
    log = assert_job(cluster, workspace, number, JobState="COMPLETED", Restarts="1")
    assert f"interrupted by SIG{name}" in log
    assert {*re.findall(r"tasks? \S+: Exited with exit code (\d+)", log)} == {"75"}
    assert_resumed_to_the_same(workspace, alone)


def test_a_time_limit_of_slurm_puts_the_job_back_and_it_resumes(
    cluster: SlurmCluster, workspace: Workspace, alone: Path
) -> None:
    number = submit(cluster, workspace, time="3", signal="USR1@60")
    release_after_signal(workspace)
    cluster.wait_for_job(number, has_ended)
    log = assert_job(
        cluster, workspace, number, JobState="COMPLETED", Restarts="1", TimeLimit="00:03:00"
    )
    assert "interrupted by SIGUSR1" in log
    assert_resumed_to_the_same(workspace, alone)


def test_a_job_on_a_node_of_slurm_that_dies_is_put_back_and_resumes(
    cluster: SlurmCluster, workspace: Workspace, alone: Path
) -> None:
    number = submit(cluster, workspace)
    wait_until_held(workspace)
    cluster.lose_node("n2")
    try:
        (workspace.folder / "hold").unlink()
        cluster.wait_for_job(number, lambda job: job["Restarts"] == "1" or has_ended(job))
    finally:
        cluster.start_node("n2")
    cluster.wait_for_job(number, has_ended)
    log = assert_job(cluster, workspace, number, JobState="COMPLETED", Restarts="1")
    assert "a node of this job does not answer any more" in log
    assert_resumed_to_the_same(workspace, alone)


def test_a_job_that_slurm_cancels_saves_and_does_not_come_back(
    cluster: SlurmCluster, workspace: Workspace
) -> None:
    number = submit(cluster, workspace)
    wait_until_held(workspace)
    cluster.run("scancel", number).ok()
    release_after_signal(workspace)
    cluster.wait_for_job(number, has_ended)
    assert_job(cluster, workspace, number, JobState="CANCELLED", Restarts="0")
    assert read_json(workspace.only_run / "summary.json")["status"] == "preempted"
    assert [*(workspace.only_run / "checkpoints").glob("*.ckpt")]
