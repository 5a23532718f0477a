"""Ranks exchange their status, the run and requests to stop through files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lightkit.launch.ranks import Rank
from lightkit.launch.worker import LeftAlone, RankContext, list_ranks, request_stop
from lightkit.runs.signals import SignalWatch


def rank_of(folder: Path, number: int, key: str = "a-1") -> RankContext:
    """A rank of torchrun that lightkit's supervisor has started."""
    return RankContext(Rank(number, 2, engine="torchrun", key=key), folder, supervised=True)


def test_a_rank_that_its_watchdog_has_ended_keeps_that_status(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, 0)
    rank.record("began")
    rank.record("stalled", code=70, message="here")
    rank.record("ended", code=1)
    (status,) = list_ranks(tmp_path)
    assert (status.state, status.code, status.message) == ("stalled", 70, "here")


def test_a_launch_whose_folder_another_rank_has_removed_has_no_ranks(tmp_path: Path) -> None:
    assert list_ranks(tmp_path / "removed") == []


def test_only_ranks_of_the_newest_start_count(tmp_path: Path) -> None:
    for number in (0, 1):
        rank_of(tmp_path, number).record("ended", code=1)
    rank_of(tmp_path, 1, key="a-2").record("began")
    assert [(status.rank, status.state) for status in list_ranks(tmp_path)] == [(1, "began")]


@pytest.mark.parametrize("folder_of_rank_0", ["b", "c"], ids=["same_machine", "other_machine"])
def test_a_rank_waits_until_rank_0_has_a_run_which_it_keeps_for_a_restart(
    folder_of_rank_0: str, tmp_path: Path
) -> None:
    rank_of(tmp_path / "d", 0, key="another-launch").announce_run({"folder": "wrong"})
    rank = rank_of(tmp_path / "b", 1)
    first = rank_of(tmp_path / folder_of_rank_0, 0)
    late = threading.Timer(0.2, first.announce_run, [{"folder": str(tmp_path)}])
    late.start()
    assert rank.wait_for_run(30)["folder"] == str(tmp_path)
    late.join()
    assert rank.earlier_run() is None
    again = rank_of(tmp_path / "b", 0, key="a-2").earlier_run()
    assert again is not None
    assert again["folder"] == str(tmp_path)


def test_a_rank_does_not_wait_for_a_rank_0_that_has_ended(tmp_path: Path) -> None:
    rank_of(tmp_path / "c", 0).record("ended", code=2)
    with pytest.raises(LeftAlone):
        rank_of(tmp_path / "b", 1).wait_for_run(3600)


def test_the_log_of_a_rank_moves_into_the_run_where_an_earlier_one_keeps_another_name(
    tmp_path: Path,
) -> None:
    script = """
import sys
from pathlib import Path
from lightkit.launch.ranks import Rank
from lightkit.launch.worker import RankContext

rank = RankContext(Rank(1, 2), Path(sys.argv[1]), supervised=True)
rank.open()
print("before", sys.argv[1], flush=True)
rank.keep_log(Path("run").absolute())
print("after", flush=True)
"""
    (tmp_path / "run").mkdir()
    for launch in ("a", "b", "b"):  # the last is a restart
        subprocess.run([sys.executable, "-c", script, launch], cwd=tmp_path, check=True)
    expected = {"rank-1.1.log": "before a\nafter\n", "rank-1.log": 2 * "before b\nafter\n"}
    logs = (tmp_path / "run" / "logs").iterdir()
    assert {path.name: path.read_text(encoding="utf-8") for path in logs} == expected
    assert (tmp_path / "b" / "rank-1.log").read_text(encoding="utf-8") == expected["rank-1.log"]


def test_the_log_of_a_launch_that_was_killed_does_not_keep_the_next_one_from_its_own(
    tmp_path: Path,
) -> None:
    launch = tmp_path / ".launch" / "torchrun-none"
    launch.mkdir(parents=True)
    (launch / "rank-1.log").symlink_to(tmp_path / "deleted" / "logs" / "rank-1.log")
    script = f"""
from pathlib import Path
from lightkit.launch.ranks import Rank
from lightkit.launch.worker import RankContext

RankContext(Rank(1, 2, engine="torchrun"), Path({str(launch)!r}), supervised=False).open()
print("here")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (launch / "rank-1.log").read_text(encoding="utf-8") == "here\n"


def test_a_request_to_stop_is_as_a_signal(tmp_path: Path) -> None:
    request_stop(tmp_path, signal.SIGTERM)
    with SignalWatch() as watch, watch.deferring():
        rank_of(tmp_path, 0).watch_stop_requests()
        while watch.received is None:
            os.sched_yield()
        assert watch.received == signal.SIGTERM
