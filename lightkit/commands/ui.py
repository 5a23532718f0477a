"""`lightkit ui`: TensorBoard and MLflow on the runs of this machine, until a signal comes."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lightkit import runs
from lightkit.cli.command_line import Invocation
from lightkit.config import shown_path
from lightkit.config.run_root import find_run_root
from lightkit.errors import Interrupted, LightkitError
from lightkit.launch.process_tree import ProcessTree

_HOST = "127.0.0.1"
_PATIENCE_S = 120.0  # MLflow takes 15 s on two busy cores
_POLL_S = 0.2
_END_S = 5.0
_NUM_LINES = 15


@dataclass(frozen=True)
class _Program:
    """A program that shows runs in a browser.

    Args:
        name: Its name.
        port: That it listens at.
        tree: Its processes.
        log: Its output.
    """

    name: str
    port: int
    tree: ProcessTree
    log: Path

    @property
    def address(self) -> str:
        """Address of its page."""
        return f"http://{_HOST}:{self.port}"

    def check(self) -> None:
        """Check that it runs.

        Raises:
            LightkitError: If it has ended.
        """
        code = self.tree.poll()
        if code is None:
            return
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_NUM_LINES:]
        raise LightkitError("\n".join([f"{self.name} ended with {code}. Its last lines:", *lines]))

    def answers(self) -> bool:
        """Return whether its port takes connections."""
        with closing(socket.socket()) as probe:
            probe.settimeout(1)
            return probe.connect_ex((_HOST, self.port)) == 0


def ui(invocation: Invocation) -> int:
    """Start both, print their links, and return the exit code once a signal has ended them.

    Raises:
        ConfigError: If there is no such run.
        LightkitError: If a program cannot be started, or ends by itself.
    """
    root = find_run_root(invocation.options.get("root"))
    name = invocation.inputs[0] if invocation.inputs else None
    run = runs.find(name or "latest", root)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="lightkit-ui-") as folder,
            _end_together() as programs,
        ):
            logs = run.folder if name else root
            programs.append(
                _start("TensorBoard", ("tensorboard.main", "--logdir", str(logs)), Path(folder))
            )
            tracked = _find_tracking(run if name else None, root)
            if tracked.startswith("sqlite:"):
                words = ("mlflow", "server", "--workers", "1", "--backend-store-uri", tracked)
                programs.append(_start("MLflow", words, Path(folder)))
            _wait_until_ready(programs)
            _print_links(programs, tracked, run)
            while True:
                for program in programs:
                    program.check()
                time.sleep(_POLL_S)
    except Interrupted:  # the way in which it ends
        return 0


def _find_tracking(run: runs.Run | None, root: Path) -> str:
    """Return MLflow's address; empty where it would be a database that is not there."""
    # here: other commands need none of it
    from lightkit.registry.store import address_of_root, tracked_run

    noted = None if run is None else tracked_run(run).get("tracking_uri")
    for uri in (noted, None):
        address = address_of_root(uri, root)
        if address.database is None or address.database.is_file():
            return address.uri
    return ""


def _start(name: str, words: Sequence[str], folder: Path) -> _Program:
    """Start a Python module that listens at a free port of this machine alone."""
    with closing(socket.socket()) as free:
        free.bind((_HOST, 0))
        port = free.getsockname()[1]
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", *words, "--host", _HOST, "--port", str(port)]
    # MLflow would look for jobs of its assistant, and both keep a GPU's memory if they see one
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with log.open("wb") as output:
        tree = ProcessTree(command, environment=environment, stdout=output, stderr=output)
    return _Program(name, port, tree, log)


@contextmanager
def _end_together() -> Iterator[list[_Program]]:
    programs: list[_Program] = []
    try:
        yield programs
    finally:
        for program in programs:
            program.tree.program.terminate()
        for program in programs:
            program.tree.end(timeout_s=_END_S)


def _wait_until_ready(programs: Sequence[_Program]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    for program in programs:
        while not program.answers():
            program.check()
            if time.monotonic() > deadline_s:
                raise LightkitError(
                    f"{program.name} has not answered at {program.address} in {_PATIENCE_S:.0f} s."
                )
            time.sleep(_POLL_S)


def _print_links(programs: Sequence[_Program], tracked: str, run: runs.Run) -> None:
    from lightkit.config.secrets import mask
    from lightkit.reports.pages import try_run_report  # here: it loads numpy and Matplotlib

    for program in programs:
        print(f"{program.name:<11}  {program.address}")
    if not tracked:
        print(
            "MLflow       no mlflow.db in the run root; extends: [lightkit:logger/mlflow] of a"
            " config makes it"
        )
    elif not tracked.startswith("sqlite:"):
        print(f"MLflow       {mask(tracked, hides_users=True)}")
    report = run.folder / "report.html"
    if not report.is_file():
        try_run_report(run)
    if report.is_file():
        print(f"report       {report.absolute().as_uri()}")
    print(f"run          {shown_path(run.folder)}; Ctrl-C ends it", flush=True)
