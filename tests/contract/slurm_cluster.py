"""A real Slurm of two nodes.

Debian's packages unpacked into a folder, with namespaces of their own, nothing installed.

One controller and two daemons run on this machine, each daemon under its own host name. All of it
is gone with the process that holds the namespaces.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import psutil

from tests.contract.workspace import Result, wait_until

PACKAGES = ("slurmd", "slurmctld", "slurm-client", "slurm-wlm-basic-plugins", "munge")
NODES = ("n1", "n2")
ADDRESS = "10.77.0.1"
"""Of all hosts. The loopback's would be refused: Slurm has to resolve the name of its controller to
another one."""

CONFIG = """\
ClusterName=two
SlurmctldHost=ctl({address})
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
PluginDir={libraries}/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
SlurmdTimeout=300
NodeName=n1 NodeAddr={address} NodeHostname=n1 Port=16821 CPUs=2 State=UNKNOWN
NodeName=n2 NodeAddr={address} NodeHostname=n2 Port=16822 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

WRAPPER = """\
#!/bin/sh
LD_LIBRARY_PATH={libraries}:{libraries}/slurm-wlm exec {program} "$@"
"""

START_UP = """\
set -e
cd {folder}
mount --bind hosts /etc/hosts
hostname ctl
ip link add v0 type veth peer name v1
ip addr add {address}/24 dev v0
ip link set v0 up
ip link set v1 up
ip link set lo up
bin/munged --foreground --force --key-file=munge.key --socket=run/munge.socket \\
  --pid-file=run/munged.pid --log-file=munged.log --seed-file=run/munged.seed 2>>munged.err &
while [ ! -S run/munge.socket ]; do sleep 0.05; done
bin/slurmctld -D -c >>slurmctld.log 2>&1 &
touch run/up
wait
"""


class CannotRun(Exception):
    """This machine cannot run Slurm; the text is the reason."""


class SlurmCluster:
    """A controller, `ctl`, and two nodes, `n1` and `n2`.

    Args:
        folder: Empty folder with a short path; takes the packages and all that Slurm writes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        self._holder: subprocess.Popen[bytes] | None = None
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Unpack and start everything, and wait until both nodes are idle.

        Raises:
            CannotRun: If this machine cannot do that.
        """
        if os.geteuid() != 0:
            raise CannotRun("a Slurm of one's own needs root privileges")
        for tool in ("apt-get", "dpkg", "unshare", "nsenter", "ip"):
            if shutil.which(tool) is None:
                raise CannotRun(f"a Slurm of one's own needs {tool}")
        self._unpack()
        self._write_files()
        words = [
            "unshare",
            "--mount",
            "--uts",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        with (self.folder / "up.log").open("wb") as log:
            self._holder = subprocess.Popen(
                [*words, "bash", str(self.folder / "up.sh")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
                start_new_session=True,
            )
        holder = self._holder

        def is_up() -> bool:
            if holder.poll() is not None:
                raise CannotRun(
                    f"namespaces cannot be made here: {(self.folder / 'up.log').read_text()}"
                )
            return (self.folder / "run" / "up").exists()

        wait_until(is_up)
        for node in NODES:
            self.start_node(node)
        wait_until(lambda: self.states() == dict.fromkeys(NODES, "idle"))

    def stop(self) -> None:
        """End everything."""
        if self._holder is not None:
            for process in (self._holder, *self._daemons):
                # `--kill-child` ends the first process of the namespace, and so all of them
                process.kill()
                process.wait()

    def run(
        self, *words: str, environ: dict[str, str] | None = None, folder: Path | None = None
    ) -> Result:
        """Run a command in the cluster, as somebody on a login node, and return how it ended."""
        ended = subprocess.run(
            [*self._enter(), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=folder,
            env={**(os.environ if environ is None else environ), **self.environ},
        )
        return Result(ended.returncode, ended.stdout, ended.stderr)

    def start_node(self, name: str) -> None:
        """Start the daemon of a node, under the node's host name."""
        daemon = (
            f"hostname {name}; exec {self.folder}/bin/slurmd -D -N {name} -d"
            f" {self.folder}/bin/slurmstepd"
        )
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                [*self._enter(), "unshare", "--uts", "sh", "-c", daemon],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
                start_new_session=True,
            )
        self._daemons.append(started)

    def lose_node(self, name: str) -> None:
        """Kill the daemon of a node and all that it has started at once, as a power cut does."""
        lost = []
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.environ().get("SLURMD_NODENAME") == name or f"-N {name}" in " ".join(
                    process.cmdline()
                ):
                    process.suspend()  # so that none of them can report the end of another
                    lost.append(process)
        for process in lost:
            process.kill()

    def states(self) -> dict[str, str]:
        """Return the state of each node, such as `idle`, `alloc` or `down*`."""
        lines = self.run("sinfo", "--Node", "--noheader", "--format=%N %t").out.splitlines()
        return dict(line.split() for line in lines)

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm knows of a job: `JobState`, `Restarts`, `ExitCode`, ..."""
        text = self.run("scontrol", "show", "job", number, "--oneliner").ok().out
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def wait_for_job(
        self, number: str, condition: Callable[[dict[str, str]], bool], *, timeout_s: float = 150
    ) -> None:
        """Wait until a condition on a job is true.

        One that was put back is begun soon after both nodes are idle.

        Slurm waits for two minutes, so that no node takes the new start for the one that it has
        ended ("Job credential revoked"): its times are whole seconds, and five of them are enough
        here.
        """

        def is_true() -> bool:
            job = self.job(number)
            is_put_back = job["JobState"] == "PENDING" and job["Restarts"] != "0"
            if is_put_back and {*self.states().values()} == {"idle"}:
                begins = datetime.fromisoformat(job["EligibleTime"])
                if begins > datetime.now() + timedelta(seconds=10):
                    self.run("scontrol", "update", f"jobid={number}", "StartTime=now+5").ok()
            return condition(job)

        wait_until(is_true, timeout_s=timeout_s)

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until both nodes are idle."""
        self.run("scancel", "--user=root").ok()
        wait_until(lambda: self.states() == dict.fromkeys(NODES, "idle"))

    def read_log(self) -> str:
        """Return the last lines of the controller's log."""
        lines = (
            (self.folder / "slurmctld.log")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        )
        return "\n".join(lines[-30:])

    def _unpack(self) -> None:
        """Download and unpack the packages.

        The lists are read into the folder, so that the machine stays as it is.
        """
        for name in ("lists/partial", "cache/archives/partial", "debs"):
            (self.folder / name).mkdir(parents=True)
        options = [
            "-o",
            f"Dir::State::lists={self.folder}/lists",
            "-o",
            f"Dir::Cache={self.folder}/cache",
        ]
        options += ["-o", "APT::Sandbox::User=root"]
        self._prepare("apt-get", *options, "update")
        depends = self._prepare("apt-cache", *options, "depends", *PACKAGES)
        libraries = sorted({*re.findall(r"Depends: (lib(?:munge|hwloc|numa|slurm)\S*)", depends)})
        self._prepare("apt-get", *options, "download", *PACKAGES, *libraries)
        for package in sorted((self.folder / "debs").glob("*.deb")):
            self._prepare("dpkg", "-x", str(package), str(self.folder / "root"))

    def _prepare(self, *words: str) -> str:
        ended = subprocess.run(
            words, cwd=self.folder / "debs", capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            raise CannotRun(
                f"Slurm's packages cannot be had: {' '.join(words)}: {ended.stderr.strip()}"
            )
        return ended.stdout

    def _write_files(self) -> None:
        folder = self.folder
        libraries = next((folder / "root").glob("usr/lib/*/slurm-wlm")).parent
        for name in ("bin", "run", "state", "spool-n1", "spool-n2"):
            (folder / name).mkdir()
        for program in [
            *(folder / "root/usr/bin").iterdir(),
            *(folder / "root/usr/sbin").iterdir(),
        ]:
            if program.is_file():
                wrapper = folder / "bin" / program.name.removesuffix("-wlm")
                wrapper.write_text(WRAPPER.format(libraries=libraries, program=program.resolve()))
                wrapper.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (folder / "run").chmod(0o711)
        (folder / "slurm.conf").write_text(
            CONFIG.format(folder=folder, address=ADDRESS, libraries=libraries)
        )
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} ctl {' '.join(NODES)}\n")
        (folder / "up.sh").write_text(START_UP.format(folder=folder, address=ADDRESS))
        for daemon in ("slurmctld-wlm", "slurmd-wlm", "munged"):
            linked = subprocess.run(
                ["ldd", str(folder / "root/usr/sbin" / daemon)],
                env={**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm"},
                capture_output=True,
                text=True,
                check=False,
            )
            if missing := re.findall(r"(\S+) => not found", linked.stdout):
                raise CannotRun(f"{daemon} needs {', '.join(missing)}")

    def _processes(self) -> list[psutil.Process]:
        """List what runs in the cluster.

        What has entered its namespaces is no child of the first process there.
        """
        namespace = Path(f"/proc/{self._first_pid()}/ns/pid").readlink()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process.pid}/ns/pid").readlink() == namespace:
                    found.append(process)
        return found

    def _first_pid(self) -> int:
        assert self._holder is not None
        (first,) = psutil.Process(self._holder.pid).children()
        return first.pid

    def _enter(self) -> list[str]:
        """Return the words that run a command in the cluster's namespaces."""
        return [
            "nsenter",
            "--target",
            str(self._first_pid()),
            "--mount",
            "--uts",
            "--net",
            "--pid",
            "--wd=.",
        ]


# python -m tests.contract.slurm_cluster FOLDER: a cluster to try things on
if __name__ == "__main__":
    cluster = SlurmCluster(Path(sys.argv[1]).absolute())
    cluster.folder.mkdir(parents=True)
    try:
        cluster.start()
        print(cluster.states())
        print(cluster.run("srun", "-N2", "-n2", "hostname").ok().out)
    finally:
        cluster.stop()
