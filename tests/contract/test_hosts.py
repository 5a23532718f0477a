"""Trainings over two hosts.

They are network namespaces of this machine with names and interfaces of their own.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.conftest import Once
from tests.contract.rank_jobs import (
    JOB,
    assert_same_metrics,
    assert_same_weights,
    engine,
    processes_in,
    train_alone,
    wait_until_nobody_works_in,
    write_job,
)
from tests.contract.workspace import Process, Workspace, read_events, read_json

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = ("hosta", "hostb")
PODS = ("flowers-node-0-0.flowers", "flowers-node-0-1.flowers")
"""The same hosts by the names that a JobSet gives to the pods of a TrainJob."""
ADDRESSES = ("10.77.0.1", "10.77.0.2")
RENDEZVOUS = "hosta:29511"

ON_HOST = """\
import os, shlex, sys

namespace, host, *command = sys.argv[1:]
inside = f"hostname {host}; exec {shlex.join(command)}"
os.execvp("ip", ["ip", "netns", "exec", namespace, "unshare", "--uts", "bash", "-c", inside])
"""
"""Becomes a command on a host."""

SSH = """\
#!{python}
import os, sys

words = sys.argv[1:]
plain = []
while words:
    word = words.pop(0)
    if word in ("-o", "-p", "-i", "-l"):
        words.pop(0)
    elif not word.startswith("-"):
        plain.append(word)
host, *command = plain
namespace = {{"hosta": "{prefix}a", "hostb": "{prefix}b"}}[host]
inside = f"hostname {{host}}; " + " ".join(command)
os.execvp("ip", ["ip", "netns", "exec", namespace, "unshare", "--uts", "bash", "-c", inside])
"""
"""Stands for ssh: options before and after the host, then a command for a shell on that host."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """Two hosts with an interface eth0 each, joined by a cable, and a shared disk.

    Args:
        prefix: Of the names of their network namespaces.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.namespaces = {name: prefix + name[-1] for name in NAMES}

    def make(self) -> None:
        """Make both.

        Raises:
            OSError: If files in /etc/netns cannot be written.
            subprocess.CalledProcessError: If `ip` refuses.
        """
        lines = [" ".join(words) for words in zip(ADDRESSES, NAMES, PODS, strict=True)]
        table = "\n".join(["127.0.0.1 localhost", *lines, ""])
        for namespace in self.namespaces.values():
            ip("netns", "add", namespace)
            # `ip netns exec` lays its files over those of /etc
            folder = Path("/etc/netns") / namespace
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(table, encoding="utf-8")
        first, second = self.namespaces.values()
        ip(
            "link",
            "add",
            "eth0",
            "netns",
            first,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            second,
        )
        for namespace, address in zip(self.namespaces.values(), ADDRESSES, strict=True):
            ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", namespace, "link", "set", "lo", "up")
            ip("-n", namespace, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """Remove both, as far as they were made."""
        for namespace in self.namespaces.values():
            with contextlib.suppress(subprocess.CalledProcessError, OSError):
                ip("netns", "del", namespace)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)

    def start(
        self, host: str, workspace: Workspace, *words: str, path: str | None = None
    ) -> Process:
        """Start `lightkit` with these words on a host."""
        workspace.write("on_host.py", ON_HOST)
        command = [sys.executable, "-m", "lightkit", *words]
        environ: dict[str, str | None] = {} if path is None else {"PATH": path}
        return workspace.start(
            self.namespaces[host], host, *command, script="on_host.py", environ=environ
        )

    def start_container(
        self, host: str, workspace: Workspace, script: str, environ: dict[str, str]
    ) -> Process:
        """Start a shell script on a host, with the workspace as the shared disk at /mnt/work."""
        workspace.write("on_host.py", ON_HOST)
        mount = (
            f"mount -t tmpfs none /mnt && mkdir /mnt/work && mount --bind {workspace.folder}"
            f" /mnt/work && {script}"
        )
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        words = (self.namespaces[host], host, "bash", "-c", mount)
        return workspace.start(*words, script="on_host.py", environ={"PATH": path, **environ})


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts; a test is skipped where they cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root privileges and iproute2")
    hosts = Hosts(f"lk{os.getpid()}")
    try:
        try:
            hosts.make()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(
                f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}"
            )
        yield hosts
    finally:
        hosts.remove()


@pytest.fixture(scope="module")
def alone(made_once: Once) -> Path:
    """Run folder of one process with twice the batch."""
    return next(made_once("one_process", train_alone).glob("runs/job/2*"))


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    """Each test of this file promises that no process is left on either host."""
    yield
    wait_until_nobody_works_in(tmp_path)


def start_both(hosts: Hosts, workspace: Workspace, *words: str) -> list[Process]:
    """Start the same command of torchrun's engine on both hosts."""
    return [hosts.start(name, workspace, "fit", "-c", "job.yaml", *words) for name in NAMES]


def write_two_hosts(workspace: Workspace, **launch: object) -> None:
    callbacks = {**JOB["callbacks"], "hold": {"class_path": "my_project.Hold"}}
    two = {"processes": 1, "nodes": 2, "rendezvous": RENDEZVOUS, **launch}
    write_job(workspace, "torchrun", launch=two, callbacks=callbacks)


def test_two_hosts_with_torchrun_train_the_weights_of_one_process(
    hosts: Hosts, workspace: Workspace, alone: Path
) -> None:
    write_two_hosts(workspace)
    results = [process.result() for process in start_both(hosts, workspace)]
    assert [result.code for result in results] == [0, 0], "\n".join(
        result.err for result in results
    )
    assert any("on 2 devices" in result.out for result in results)
    assert_same_weights(workspace.only_run, alone)
    assert_same_metrics(workspace.only_run, alone)


@pytest.mark.long
@pytest.mark.parametrize("name", [engine("horovod")])
def test_two_hosts_with_horovod_train_the_weights_of_one_process(
    hosts: Hosts, workspace: Workspace, alone: Path, name: str
) -> None:
    launch = {"hosts": "hosta:1,hostb:1", "network_interface": "eth0"}
    write_job(workspace, name, launch=launch)
    ssh = workspace.write("bin/ssh", SSH.format(python=sys.executable, prefix=hosts.prefix))
    ssh.chmod(0o755)
    path = f"{ssh.parent}{os.pathsep}{os.environ['PATH']}"
    result = hosts.start("hosta", workspace, "fit", "-c", "job.yaml", path=path).result().ok()
    assert "on 2 devices" in result.out
    assert_same_weights(workspace.only_run, alone)


@pytest.mark.long
def test_hosts_that_cannot_reach_each_other_any_more_both_end_with_70(
    hosts: Hosts, workspace: Workspace
) -> None:
    write_two_hosts(workspace, stall_timeout_s=40)
    workspace.write("hold", "4")
    processes = start_both(hosts, workspace)
    processes[0].wait_for((workspace.folder / "held").exists)
    ip("-n", hosts.namespaces["hostb"], "link", "set", "eth0", "down")
    (workspace.folder / "hold").unlink()
    assert [process.wait(timeout_s=200) for process in processes] == [70, 70]
    wait_until_nobody_works_in(workspace.folder)
    assert read_json(workspace.only_run / "summary.json")["status"] == "failed"


@pytest.mark.long
def test_a_host_that_is_lost_is_not_waited_for(hosts: Hosts, workspace: Workspace) -> None:
    write_two_hosts(workspace, stall_timeout_s=40)
    workspace.write("hold", "4")
    here, there = start_both(hosts, workspace)
    here.wait_for((workspace.folder / "held").exists)
    there.signal_group(signal.SIGKILL)
    (workspace.folder / "hold").unlink()
    # by its watchdog, or by torchrun's SIGTERM
    assert here.wait(timeout_s=200) in (70, 75), here.err
    assert "the same command resumes from" in here.err.lower()


@pytest.mark.long
def test_a_slow_link_that_loses_packets_changes_no_number(
    hosts: Hosts, workspace: Workspace, alone: Path
) -> None:
    for namespace in hosts.namespaces.values():
        words = [
            "tc",
            "-n",
            namespace,
            "qdisc",
            "add",
            "dev",
            "eth0",
            "root",
            "netem",
            "delay",
            "50ms",
            "loss",
            "1%",
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"the kernel has no netem: {done.stderr.strip()}")
    write_two_hosts(workspace)
    assert [process.wait(timeout_s=200) for process in start_both(hosts, workspace)] == [0, 0]
    assert_same_weights(workspace.only_run, alone)
    assert processes_in(workspace.folder) == []


def start_train_job(hosts: Hosts, workspace: Workspace) -> list[Process]:
    """Start the pods of the TrainJob.

    With the variables that Kubeflow Trainer 2.3 sets for its runtime `torch`.
    """
    runtime, job = yaml.safe_load_all(
        (CONFIGS / "kubernetes" / "train_job.yml").read_text(encoding="utf-8")
    )
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
    environ = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    script = f"cd {container['workingDir']} && exec {shlex.join(trainer['command'])}"
    return [
        hosts.start_container(host, workspace, script, {**environ, "PET_NODE_RANK": str(rank)})
        for rank, host in enumerate(NAMES)
    ]


def start_skypilot_task(hosts: Hosts, workspace: Workspace) -> list[Process]:
    """Start the task on both hosts, with the variables that SkyPilot sets."""
    task = yaml.safe_load((CONFIGS / "skypilot" / "task.yml").read_text(encoding="utf-8"))
    environ = {
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NODE_IPS": "\n".join(ADDRESSES),
    }
    return [
        hosts.start_container(
            host, workspace, f"(\n{task['run']})", {**environ, "SKYPILOT_NODE_RANK": str(rank)}
        )
        for rank, host in enumerate(NAMES)
    ]


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start_train_job, id="kubernetes"),
        pytest.param(start_skypilot_task, id="skypilot", marks=pytest.mark.long),
    ],
)
def test_two_hosts_of_a_manifest_train_the_weights_of_one_process(
    start: Callable[[Hosts, Workspace], list[Process]],
    hosts: Hosts,
    workspace: Workspace,
    alone: Path,
) -> None:
    workspace.write("flowers.yaml", {**JOB, "run": {**JOB["run"], "name": "job"}})
    first, second = [process.result() for process in start(hosts, workspace)]
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert "on 2 devices" in first.out
    assert "epoch" not in second.out
    assert_same_weights(workspace.only_run, alone)
    assert_same_metrics(workspace.only_run, alone)


@pytest.mark.long
def test_a_pod_that_is_evicted_ends_both_with_75_and_their_next_start_resumes(
    hosts: Hosts, workspace: Workspace, alone: Path
) -> None:
    callbacks = {**JOB["callbacks"], "hold": {"class_path": "my_project.Hold"}}
    workspace.write(
        "flowers.yaml", {**JOB, "run": {**JOB["run"], "name": "job"}, "callbacks": callbacks}
    )
    workspace.write("hold", "4")
    first, second = start_train_job(hosts, workspace)
    first.wait_for((workspace.folder / "held").exists)
    second.signal(signal.SIGTERM)
    (workspace.folder / "hold").unlink()
    assert (first.wait(), second.wait()) == (75, 75), first.err + second.err
    assert [process.wait() for process in start_train_job(hosts, workspace)] == [0, 0]
    assert len(read_events(workspace.only_run, "resume")) == 1
    assert_same_weights(workspace.only_run, alone)
