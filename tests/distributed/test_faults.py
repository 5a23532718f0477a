"""A rank that fails takes the others with it: nobody goes on with zeros in its place, and nobody waits for it."""

from __future__ import annotations

import re
import time

import pytest

from tests.distributed.launching import launched, needs_horovod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_horovod]
SOON_S = 120  # some seconds where the machine is idle; gloo alone would wait half an hour


def seconds_after_failing(text: str) -> float:
    """Give how long the launcher went on after the moment that the failing rank tells."""
    told = re.search(r"failing at (\d+\.\d+)", text)
    assert told is not None, text[-2000:]
    return time.time() - float(told[1])


def test_a_rank_that_raises_ends_the_other() -> None:
    ended = launched("tests.distributed.failing", "raise", "1", ranks=2)
    assert seconds_after_failing(ended.stdout) < SOON_S
    assert ended.returncode != 0
    assert "[1]<stderr>:ValueError: batches are out of stock" in ended.stdout
    assert "[0]<stderr>:horovod.common.exceptions.HorovodInternalError" in ended.stdout
    assert "max_epochs=2` reached" not in ended.stdout


def test_a_rank_that_is_killed_ends_the_other() -> None:
    ended = launched("tests.distributed.failing", "kill", "0", ranks=2)
    assert seconds_after_failing(ended.stdout) < SOON_S
    assert "Process 0 exit with status code 137" in ended.stdout  # 128 and SIGKILL
    assert ended.returncode != 0
    assert "max_epochs=2` reached" not in ended.stdout
