"""How long a supervisor waits for its ranks."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from lightkit.launch import LaunchSettings, Plan, Standing, plan_launch
from lightkit.launch.patience import Patience, saving_s
from lightkit.runs.process import describe_process

ALIVE = describe_process()
DEAD = {**ALIVE, "process_started": "another"}


def plan(engine: str, processes: int = 2, **settings: Any) -> Plan:
    strategy = "horovod" if engine == "horovod" else "ddp"
    found = plan_launch(LaunchSettings(engine=engine, processes=processes, **settings), strategy=strategy, processes=2)
    assert found is not None
    return found


def ranks(*numbers: int, process: dict[str, Any] = ALIVE, **how: Any) -> list[Standing]:
    return [Standing(number, process=process, **how) for number in numbers]


@pytest.mark.parametrize(
    ("engine", "process", "ends"),
    [("torchrun", DEAD, True), ("torchrun", ALIVE, False), ("horovod", DEAD, False)],
    ids=["agents that wait for one another", "a rank that still uploads", "another engine"],
)
def test_only_agents_of_torch_are_ended_when_all_ranks_are_done(
    engine: str, process: dict[str, Any], ends: bool
) -> None:
    patience = Patience(plan(engine), 2, 0)
    done = ranks(0, 1, process=process, state="ended", code=0)
    assert not patience.is_done(done, 1)
    assert patience.is_done(done, 60) is ends


@pytest.mark.parametrize(
    ("settings", "limit_s"),
    [
        ({}, 10),
        ({"max_restarts": 1, "timeout_s": 300}, 300),
        ({"max_restarts": 1, "timeout_s": 30}, 90),
        ({"nodes": "1:2", "rendezvous": "a:1", "timeout_s": 30}, 90),
    ],
    ids=["no restart", "a slow restart", "a quick one", "a machine that comes or goes"],
)
def test_ranks_have_time_to_begin_again(settings: dict[str, Any], limit_s: float) -> None:
    patience = Patience(plan("torchrun", **settings), 2, 0)
    assert not patience.is_over(ranks(0, process=DEAD), 1)
    assert not patience.is_over(ranks(0, process=DEAD), 1 + limit_s)
    assert patience.is_over(ranks(0, process=DEAD), 2 + limit_s)


@pytest.mark.parametrize(
    ("engine", "processes", "settings", "num_everywhere", "misses"),
    [
        ("spark", -2, {}, 1, True),
        ("torchrun", 1, {"nodes": 2, "rendezvous": "a:1"}, 1, True),
        ("torchrun", 1, {"nodes": "2:3", "rendezvous": "a:1"}, 1, True),
        ("torchrun", 1, {"nodes": "2:3", "rendezvous": "a:1"}, 2, False),
    ],
    ids=["on Spark's driver", "two machines", "too few machines", "enough without this one"],
)
def test_ranks_that_do_not_arrive_are_missed(
    engine: str, processes: int, settings: dict[str, Any], num_everywhere: int, misses: bool
) -> None:
    patience = Patience(plan(engine, processes, timeout_s=30, **settings), 2, 0)
    assert not patience.misses(ranks(0), num_everywhere, 30)
    assert patience.misses(ranks(0), num_everywhere, 31) is misses
    assert not patience.misses(ranks(0, 1), num_everywhere, 31)


def test_the_time_to_arrive_begins_anew_with_each_start() -> None:
    patience = Patience(plan("torchrun", timeout_s=30), 2, 0)
    patience.note(0, 1)
    patience.note(1, 1000)
    assert not patience.misses([], 0, 1001)
    assert patience.misses([], 0, 1031)


def test_who_sends_sigterm_waits_longer_than_who_presses_ctrl_c() -> None:
    assert [saving_s(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == [7, 14, 14]
