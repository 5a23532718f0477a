"""A working directory as a user has it, `lightkit` as processes in it.

Also readers of what they leave behind.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

LIGHTKIT = Path(sys.executable).with_name("lightkit")
"""The installed console script."""

CLOCK_COLUMNS = ("epoch_seconds", "samples_per_s")
"""Columns of metrics.csv that depend on the clock."""

_OWN_VARIABLES = ("LIGHTKIT_", "PL_", "MLFLOW_", "SLURM_", "COMET_", "GITHUB_", "PYTEST_")
_PF_EXITING = 0x4  # of Linux


@dataclass(frozen=True)
class Result:
    """How a process ended.

    Args:
        code: Exit code, negative for the signal that killed it.
        out: Standard output.
        err: Standard error.
    """

    code: int
    out: str
    err: str

    def ok(self) -> Result:
        """Assert that the exit code is 0, and show standard error if not."""
        assert self.code == 0, f"exit code {self.code}\n{self.out[-3000:]}\n{self.err[-6000:]}"
        return self

    @property
    def yaml(self) -> dict[str, Any]:
        """Standard output as YAML, after `--print_config`."""
        config: dict[str, Any] = yaml.safe_load(self.ok().out)
        return config

    @property
    def json_lines(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines, after `--output json`."""
        return [json.loads(line) for line in self.out.splitlines()]


class Process:
    """A running process, started by the fork server or cold.

    Args:
        pid: Its id, which is also that of its session and process group.
        wait: Wait for its end, at most as many seconds as given, and return the exit code as
            `subprocess` counts.
        files: Where its standard output and error go.
    """

    def __init__(self, pid: int, wait: Callable[[float], int], files: tuple[Path, Path]) -> None:
        self.pid = pid
        self.code: int | None = None
        self._wait = wait
        self._files = files

    def poll(self) -> int | None:
        """Return the exit code if the process has ended, else None."""
        with contextlib.suppress(TimeoutError):
            self.wait(timeout_s=0)
        return self.code

    def wait(self, *, timeout_s: float = 150) -> int:
        """Wait for the end and return the exit code."""
        if self.code is None:
            self.code = self._wait(timeout_s)
        return self.code

    def result(self, *, timeout_s: float = 150) -> Result:
        """Wait for the end and return what the process wrote."""
        return Result(self.wait(timeout_s=timeout_s), self.out, self.err)

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._files[0].read_text(encoding="utf-8", errors="replace")

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._files[1].read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the whole process group, as a terminal does."""
        os.killpg(self.pid, number)

    def wait_for(self, condition: Callable[[], Any], *, timeout_s: float = 120) -> None:
        """Wait until a condition is true while the process runs; fail if it ends before."""

        def is_true() -> bool:
            has_ended = self.poll() is not None
            result = bool(condition())
            assert result or not has_ended, (
                f"ended with {self.code} before that\n{self.out}\n{self.err}"
            )
            return result

        wait_until(is_true, timeout_s=timeout_s)


class ForkServer:
    """Client of `tests/contract/forkserver.py`; see there what it can show and what not.

    Args:
        folder: Where its socket and its log are put.
    """

    def __init__(self, folder: Path) -> None:
        self._address = str(folder / "fork.sock")
        self._log = (folder / "forkserver.log").open("wb")
        environ = {k: v for k, v in os.environ.items() if not k.startswith(_OWN_VARIABLES)}
        environ.update(
            OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", JSONARGPARSE_DEPRECATION_WARNINGS="off"
        )
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forkserver.py")), self._address],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environ,
            start_new_session=True,
        )
        deadline = time.monotonic() + 240
        while not Path(self._address).exists():
            assert self._process.poll() is None, Path(self._log.name).read_text(encoding="utf-8")
            assert time.monotonic() < deadline, "the fork server has not started"
            time.sleep(0.02)

    def start(
        self,
        words: list[str],
        folder: Path,
        environ: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> Any:
        """Fork a process; return its id and the function that waits for its exit code."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(self._address)
        request = json.dumps(
            {"words": words, "folder": str(folder), "environ": dict(environ)}
        ).encode()
        socket.send_fds(connection, [request], list(streams))
        reader = connection.makefile("rb", buffering=0)
        pid = int(reader.readline())

        def wait(timeout_s: float) -> int:
            connection.settimeout(max(timeout_s, 0.001))
            line = connection.recv(64)
            assert line, "the fork server has ended"
            code = os.waitstatus_to_exitcode(int(line))
            reader.close()
            connection.close()
            return code

        return pid, wait

    def stop(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()
        self._log.close()


class Workspace:
    """A working directory, with a HOME of its own.

    Args:
        folder: The working directory; made if it does not exist.
        server: Where `run` and `start` fork from.
    """

    def __init__(self, folder: Path, server: ForkServer) -> None:
        self.folder = folder
        self.home = folder.parent / f".home-{folder.name}"
        self._server = server
        self._started: list[Process] = []
        for path in (folder, self.home):
            path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, content: str | Mapping[str, Any]) -> Path:
        """Write a text, or a mapping as YAML, to a file below the working directory."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (
            content if isinstance(content, str) else yaml.safe_dump(dict(content), sort_keys=False)
        )
        path.write_text(text, encoding="utf-8")
        return path

    def environ(self, **changes: str | None) -> dict[str, str]:
        """This process's environment without variables that steer lightkit.

        It has some changes (None: unset).
        """
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OWN_VARIABLES)}
        kept.update(HOME=str(self.home), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        kept.pop("COLUMNS", None)
        for name, value in changes.items():
            kept.pop(name, None)
            if value is not None:
                kept[name] = value
        return kept

    def start(
        self,
        *words: str,
        cold: bool = False,
        script: str | Path | None = None,
        environ: Mapping[str, str | None] | None = None,
        stdin: int | IO[bytes] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        folder: Path | None = None,
    ) -> Process:
        """Start `lightkit` with these words, in a session and process group of its own.

        Args:
            words: Arguments of the command line.
            cold: Start a new Python process in place of a fork.
            script: Python file to run in place of `lightkit`.
            environ: Changes to the environment; None unsets a variable.
            stdin: Standard input, empty by default.
            stdout: Standard output, by default a file that `Process.out` reads.
            stderr: Standard error, likewise.
            folder: Working directory, if not this workspace's.
        """
        program = str(LIGHTKIT if script is None else (self.folder / script))
        variables = self.environ(**(environ or {}))
        number = len(self._started)
        out, err = self.home / f"{number}.out", self.home / f"{number}.err"
        cwd = folder or self.folder
        with (
            Path(os.devnull).open("rb") as empty,
            out.open("wb") as out_file,
            err.open("wb") as err_file,
        ):
            streams = (
                empty if stdin is None else stdin,
                out_file if stdout is None else stdout,
                err_file if stderr is None else stderr,
            )
            if cold:
                started = subprocess.Popen(
                    [sys.executable, program, *words],
                    cwd=cwd,
                    env=variables,
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                    start_new_session=True,
                )
                process = Process(
                    started.pid, lambda timeout_s: _wait_cold(started, timeout_s), (out, err)
                )
            else:
                numbers = [
                    stream if isinstance(stream, int) else stream.fileno() for stream in streams
                ]
                pid, wait = self._server.start(
                    [program, *words], cwd, variables, (numbers[0], numbers[1], numbers[2])
                )
                process = Process(pid, wait, (out, err))
        self._started.append(process)
        return process

    def run(self, *words: str, timeout_s: float = 150, **options: Any) -> Result:
        """Run `lightkit` with these words to its end, forked; options are those of `start`."""
        return self.start(*words, **options).result(timeout_s=timeout_s)

    def run_cold(self, *words: str, timeout_s: float = 150, **options: Any) -> Result:
        """Run `lightkit` in a new Python process, for what a fork cannot show."""
        return self.start(*words, cold=True, **options).result(timeout_s=timeout_s)

    def fit(self, *words: str, **options: Any) -> Path:
        """Run `lightkit fit`, assert that it ends with 0, and return the newest run's folder."""
        self.run("fit", *words, **options).ok()
        return self.runs[-1]

    def close(self) -> None:
        """Kill all that was started here and still runs."""
        for process in self._started:
            for pid in session_members(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._started:
            with contextlib.suppress(TimeoutError):
                process.wait(timeout_s=10)

    @property
    def runs(self) -> list[Path]:
        """Run folders, oldest first."""
        found = [
            path
            for path in self.folder.glob("runs/[!.]*/2*-*")
            if path.is_dir() and not path.is_symlink()
        ]
        return sorted(found)

    @property
    def only_run(self) -> Path:
        """The folder of the one run."""
        (run,) = self.runs
        return run


def _wait_cold(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


def wait_until(condition: Callable[[], Any], *, timeout_s: float = 120) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not true in {timeout_s} s"
        time.sleep(0.005)


def session_members(session: int) -> list[int]:
    """List the living processes of a session: a command, its workers and its ranks."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX" and not int(fields[6]) & _PF_EXITING:
            found.append(int(stat.parent.name))
    return found


def wait_until_gone(session: int) -> None:
    """Wait until no process of a session is left."""
    deadline = time.monotonic() + 60
    while left := session_members(session):
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.05)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_events(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Read the complete lines of a run's events.jsonl, of one kind if given.

    None if the file is not there yet.
    """
    path = run / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]  # a kill can cut a line off
    return [event for event in found if kind is None or event["event"] == kind]


def read_metrics(run: Path) -> list[dict[str, str]]:
    """Read metrics.csv without the columns that depend on the clock."""
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [
            {k: v for k, v in row.items() if k not in CLOCK_COLUMNS} for row in csv.DictReader(file)
        ]


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint as tensors and plain values."""
    import torch  # here, since few tests read checkpoints

    content: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    return content


def assert_same_training(one: Path, other: Path) -> None:
    """Assert that two runs hold the same training: last.ckpt bit for bit, metrics.csv by row."""
    first, second = (load_checkpoint(run / "checkpoints" / "last.ckpt") for run in (one, other))
    for key in ("epoch", "global_step", "state_dict", "optimizer_states", "lr_schedulers"):
        assert_equal(first[key], second[key], key)
    assert read_metrics(one) == read_metrics(other)
    epochs = [int(row["epoch"]) for row in read_metrics(one)]
    assert epochs == list(range(len(epochs)))


def assert_equal(one: Any, other: Any, at: str) -> None:
    """Assert that two nested containers of tensors are equal bit for bit."""
    import torch  # here, since few tests compare weights

    assert type(one) is type(other), at
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), f"{at} differs"
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), at
        for key, value in one.items():
            assert_equal(value, other[key], f"{at}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), at
        for index, value in enumerate(one):
            assert_equal(value, other[index], f"{at}.{index}")
    else:
        assert one == other, at


def copy_run(run: Path, workspace: Workspace) -> Path:
    """Copy a run folder with `latest` and all that stands beside it in `runs/` into a workspace."""
    root = run.parent.parent
    shutil.copytree(root, workspace.folder / "runs", symlinks=True, dirs_exist_ok=True)
    return workspace.folder / "runs" / run.parent.name / run.name
