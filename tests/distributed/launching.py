"""Real ranks: the processes that Horovod's launcher starts, and what each of them found."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.distributed.collectives import hvd

ROOT = Path(__file__).parents[2]
needs_horovod = pytest.mark.skipif(hvd is None, reason="Horovod is not installed: make horovod")


def environ() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "PL_", "PYTEST_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PATH": path, "PYTHONPATH": str(ROOT)}


def launched(*words: str, ranks: int, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    """Run ``python -m WORDS`` on so many ranks, or in one process; none is left behind."""
    program = [sys.executable, "-m", *words]
    launcher = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]
    command = [*launcher, *program] if ranks > 1 else program
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environ(), start_new_session=True, **pipes) as process:
        try:
            out, _ = process.communicate(timeout=timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # the launcher ends its ranks, which have sessions of their own
                process.wait(20)
    return subprocess.CompletedProcess(command, process.returncode, out, "")


def results_of(module: str, factory: pytest.TempPathFactory, *, ranks: int) -> list[dict[str, Any]]:
    """Give what each rank found in the cases of a module; they run once, also when tests are spread over workers."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{module}-{ranks}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "said").exists():
            ended = launched("tests.distributed.job", module, str(folder), ranks=ranks)
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
