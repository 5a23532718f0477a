"""MLflow's own servers as processes: started, waited for, and ended with their children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

__all__ = ["started"]

_PATIENCE_S = 120


@contextmanager
def started(
    folder: Path, *words: str, healthy: str, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run ``mlflow WORDS --host 127.0.0.1 --port PORT``, and give its address once it answers.

    Args:
        folder: Working directory; its log goes there.
        words: The command.
        healthy: Path that answers when it is up.
        environment: Further variables.
    """
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    # it starts `uvicorn` by name
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {
        **os.environ,
        "PATH": path,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        **(environment or {}),
    }
    with (folder / "mlflow.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words, "--host", "127.0.0.1", "--port", str(port)],
            stdout=log, stderr=log, cwd=folder, start_new_session=True, env=variables,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not _answers(f"{address}{healthy}"):
            said = (folder / "mlflow.log").read_text()[-2000:]
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
