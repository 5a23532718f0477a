"""Two ranks that train towards a deadline: real ones, which send each other real messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.callbacks.late_ranks import BATCHES

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each rank found in all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.callbacks.late_ranks", str(folder)]
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
    }
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=said, stderr=said, start_new_session=True
        )
    try:
        code = process.wait(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert code == 0, (folder / "said").read_text()[-4000:]
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]


def _case(ranks: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Give what the first rank found, once it is sure that the second one did the same batches."""
    first, second = (found[name] for found in ranks)
    alike = ("steps", "messages", "stopped")
    assert [first[key] for key in alike] == [second[key] for key in alike]
    assert bool(first["error"]) == bool(second["error"])
    return dict(first)


def test_far_from_the_deadline_ranks_ask_after_few_of_the_short_batches(
    ranks: list[dict[str, Any]],
) -> None:
    found = _case(ranks, "far")
    assert (found["steps"], found["stopped"], found["error"]) == (2 * BATCHES, [], "")
    assert found["messages"] <= 2 * BATCHES // 4


def test_batches_that_become_much_slower_are_stopped_in_time_by_the_first_ranks_clock(
    ranks: list[dict[str, Any]],
) -> None:
    found = _case(ranks, "slower")
    assert found["stopped"] == ["deadline"]
    # of the time that was left, most is used
    assert BATCHES + 20 + 10 < found["steps"] < 2 * BATCHES
    assert found["took_s"] <= 105


def test_without_time_for_one_epoch_all_are_saved_at_the_end_of_an_accumulation(
    ranks: list[dict[str, Any]],
) -> None:
    found = _case(ranks, "accumulating")
    assert "the same command goes on from" in found["error"]
    assert 20 // 4 < found["steps"] < BATCHES // 4
    assert found["took_s"] <= 120
