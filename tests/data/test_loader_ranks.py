"""Two real processes evaluate an odd number of images as one does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.distributed.counting", str(tmp_path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=250, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    expected = json.loads((tmp_path / "alone.json").read_text())
    assert {"val/loss", "val/accuracy", "val/f1", "val/own_epoch"} <= set(expected)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)
