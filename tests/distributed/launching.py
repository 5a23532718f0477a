"""Real ranks: the processes that Horovod's launcher starts, and what each of them found."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from lightkit.distributed.collectives import hvd

ROOT = Path(__file__).parents[2]
needs_horovod = pytest.mark.skipif(hvd is None, reason="Horovod is not installed: make horovod")


def environ() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "PL_", "PYTEST_"))
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": path,
        "PYTHONPATH": str(ROOT),
    }


def launched(*words: str, ranks: int, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Run ``python -m WORDS`` on so many ranks; none is left behind."""
    launcher = [
        sys.executable,
        "-m",
        "horovod.runner.launch",
        "--gloo",
        "-np",
        str(ranks),
        "-H",
        f"localhost:{ranks}",
    ]
    command = [*launcher, sys.executable, "-m", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(
        command, cwd=ROOT, env=environ(), start_new_session=True, **pipes
    ) as process:
        try:
            out, _ = process.communicate(timeout=timeout_s)
        finally:
            if process.poll() is None:
                _kill(psutil.Process(process.pid))
    return subprocess.CompletedProcess(command, process.returncode, out, "")


def _kill(launcher: psutil.Process) -> None:
    """End the launcher and its ranks, which have sessions of their own."""
    for process in [*launcher.children(recursive=True), launcher]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def results_of(
    factory: pytest.TempPathFactory, *, ranks: int, is_swept: bool = False
) -> list[dict[str, Any]]:
    """Give what each rank found in all cases.

    They run once, also when tests are spread over workers.

    Args:
        factory: Makes the folder of the results.
        ranks: Number of ranks.
        is_swept: Run the cases of `make test-long` in place of the others.
    """
    base = factory.getbasetemp()
    folder = (
        base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    ) / f"ranks-{ranks}{'-swept' if is_swept else ''}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "said").exists():
            ended = launched(
                "tests.distributed.job", str(folder), *(["swept"] if is_swept else []), ranks=ranks
            )
            (folder / "said").write_text(f"code {ended.returncode}\n{ended.stdout}")
    files = [folder / f"rank-{rank}-of-{ranks}.pt" for rank in range(ranks)]
    assert all(file.exists() for file in files), (folder / "said").read_text()[-4000:]
    return [torch.load(file, weights_only=False) for file in files]


def case(results: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Give what each rank found in one case."""
    for found in results:
        broken = next((result["failed"] for result in found.values() if "failed" in result), "")
        assert name in found, f"the case was not reached: {broken}"
        assert "failed" not in found[name], found[name]["failed"]
    return [found[name] for found in results]
