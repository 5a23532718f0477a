"""Each bench runs, and leaves a result of which the table can be made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "bench"


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_every_bench_runs_and_leaves_its_result(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "all", "--quick", "--results", str(tmp_path / "results")]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    results = {path.stem for path in (tmp_path / "results").glob("*.json")}
    assert {
        "step",
        "end_to_end",
        "first_step",
        "time_to_loss",
        "scaling",
        "memory",
        "export",
    } <= results
