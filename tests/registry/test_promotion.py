"""The promotion log in a real registry: one mover at a time, no half state, and nothing written twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from lightkit.errors import ConfigError, LightkitError, RunLocked
from lightkit.registry import promotion
from lightkit.registry.promotion import Move, PromotionLog, champions, who
from lightkit.runs.process import describe_process
from tests.cli.mlflow_process import started

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # 2026-11: mlflow 3.17 leaves connections to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def with_versions(client: MlflowClient, folder: Path, count: int = 3) -> PromotionLog:
    """A registered model `net` of so many versions."""
    client.create_registered_model("net")
    for _ in range(count):
        client.create_model_version("net", str(folder))
    return PromotionLog(client, "net")


@pytest.fixture
def log(database: str, tmp_path: Path) -> PromotionLog:
    """The empty log of a model of three versions, in SQLite."""
    return with_versions(MlflowClient(database), tmp_path)


def to(version: str, before: str | None = None, **more: Any) -> Move:
    """A promotion."""
    return Move("promote", "champion", before, version, **more)


def of_the_dead() -> dict[str, Any]:
    """A process of before this machine was started."""
    return {**describe_process(), "boot": "another"}


def test_a_move_leaves_its_intent_and_its_end(log: PromotionLog) -> None:
    log.move(to("1", reason="first", scores={"challenger": 0.9}, data="abc"))
    log.move(to("2", "1", forced=True))
    assert log.current("champion") == "2"
    first, second = log.moves()
    assert (first.number, first.to, first.before, first.status, first.reason) == (1, "1", None, "done", "first")
    assert first.scores == {"challenger": 0.9}
    assert (second.number, second.before, second.forced) == (2, "1", True)
    assert first.by == second.by == who()
    tags = log._client.get_registered_model("net").tags
    assert sorted(key.count(".") for key in tags) == [3, 3, 4, 4]
    assert json.loads(tags[first.key])["time"] == first.time


def test_entries_are_not_written_again(log: PromotionLog) -> None:
    log.move(to("1"))
    before = dict(log._client.get_registered_model("net").tags)
    log.move(to("2", "1"))
    after = log._client.get_registered_model("net").tags
    assert {key: after[key] for key in before} == before


def test_a_champion_that_has_changed_meanwhile_is_not_replaced(log: PromotionLog) -> None:
    log.move(to("1"))
    with pytest.raises(RunLocked, match="has moved meanwhile, from version none to 1"):
        log.move(to("2", None))
    assert log.current("champion") == "1"
    assert [move.status for move in log.moves()] == ["done", "aborted"]


@pytest.mark.parametrize(("arrived", "status"), [(False, "aborted"), (True, "done")], ids=["before", "after"])
def test_a_kill_around_the_alias_is_settled_by_the_alias(
    log: PromotionLog, monkeypatch: pytest.MonkeyPatch, arrived: bool, status: str
) -> None:
    class Killed(BaseException):
        pass

    set_alias = log._client.set_registered_model_alias

    def killed(*words: str) -> None:
        if arrived:
            set_alias(*words)
        raise Killed

    log.move(to("1"))
    with monkeypatch.context() as patched:
        patched.setattr(log._client, "set_registered_model_alias", killed)
        patched.setattr(promotion, "describe_process", of_the_dead)
        with pytest.raises(Killed):
            log.move(to("2", "1"))
    assert [move.status for move in log.moves()] == ["done", "pending"]
    assert [move.status for move in log.settle()] == [status]
    assert log.settle() == []
    assert [move.status for move in log.moves()] == ["done", status]
    current = log.current("champion")
    log.move(to("3", current))
    assert log.current("champion") == "3"


def test_a_dead_move_to_where_a_later_one_went_back_is_aborted(
    log: PromotionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(promotion, "describe_process", of_the_dead)
        log._claim(to("2"))
    log.move(to("2"))
    assert [move.status for move in log.moves()] == ["aborted", "done"]


def test_a_living_mover_is_named_and_not_disturbed(log: PromotionLog) -> None:
    log._claim(to("1", by="ann@home"))
    with pytest.raises(RunLocked, match="ann@home is moving net@champion to version 1, since 20"):
        log.move(to("2"))
    assert log.current("champion") is None
    assert [(move.to, move.status) for move in log.moves()] == [("1", "pending"), ("2", "aborted")]


def test_another_alias_is_another_matter(log: PromotionLog) -> None:
    log._claim(to("1", by="ann@home"))
    log.move(Move("promote", "shadow", None, "2"))
    assert log.current("shadow") == "2"


def test_an_earlier_claim_that_was_seen_late_wins_once_the_later_one_has_gone(
    log: PromotionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("secrets.token_hex", lambda _: "00000001")
        mine = log._claim(to("1"))
        patched.setattr("secrets.token_hex", lambda _: "00000002")
        patched.setattr(log, "moves", list)  # as it was when the other began
        other = log._claim(to("2", by="bob@work"))
    assert mine.number == other.number == 1
    with pytest.raises(RunLocked):
        log._check_sole(other)
    waited: list[float] = []

    def gone(seconds: float) -> None:
        waited.append(seconds)
        log._end(other, "aborted", "")

    monkeypatch.setattr("time.sleep", gone)
    log._check_sole(mine)
    assert len(waited) == 1


def raced(uri: str, count: int) -> list[str]:
    """Let threads, each with a client of its own, promote versions at the same moment; give what each says."""
    barrier, said = threading.Barrier(count), [""] * count

    def one(at: int) -> None:
        log = PromotionLog(MlflowClient(uri), "net")
        barrier.wait()
        try:
            log.move(to(str(at + 1), by=f"mover {at + 1}"))
            said[at] = "done"
        except LightkitError as error:
            said[at] = str(error)

    threads = [threading.Thread(target=one, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def check_race(log: PromotionLog, said: list[str]) -> None:
    """One has won, the log and the alias agree, and the others name somebody."""
    assert said.count("done") == 1, said
    winner = str(said.index("done") + 1)
    assert log.current("champion") == winner
    assert [move.to for move in log.moves() if move.status == "done"] == [winner]
    assert {move.status for move in log.moves()} <= {"done", "aborted"}
    assert all("mover" in words or f"to {winner}" in words for words in said if words != "done")


@pytest.mark.slow
def test_of_four_at_once_one_promotes(database: str, tmp_path: Path) -> None:
    log = with_versions(MlflowClient(database), tmp_path, count=4)
    check_race(log, raced(database, 4))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server of MLflow."""
    folder = tmp_path_factory.mktemp("server")
    store = ("--backend-store-uri", f"sqlite:///{folder}/server.db", "--workers", "1")
    with started(folder, "server", *store, "--artifacts-destination", str(folder), healthy="/health") as address:
        yield address


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_keeps_the_log_and_lets_one_of_several_win(server: str, tmp_path: Path) -> None:
    client = MlflowClient(server)
    client.create_registered_model("net")
    run = client.create_run("0").info
    for _ in range(3):
        client.create_model_version("net", f"{run.artifact_uri}/model", run.run_id)
    log = PromotionLog(client, "net")
    check_race(log, raced(server, 3))
    current = log.current("champion")
    log.move(Move("rollback", "champion", current, "1" if current != "1" else "2", reason="ünlike"))
    assert [move.reason for move in log.moves()][-1] == "ünlike"


@pytest.mark.slow
def test_a_process_that_is_killed_before_the_alias_moves_leaves_it_where_it_was(
    database: str, log: PromotionLog
) -> None:
    log.move(to("1"))
    code = f"""
import os, signal
from mlflow import MlflowClient
from lightkit.registry.promotion import Move, PromotionLog
client = MlflowClient({database!r})
client.set_registered_model_alias = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
PromotionLog(client, "net").move(Move("promote", "champion", "1", "2"))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=120, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert [move.status for move in log.moves()] == ["done", "pending"]
    assert log.current("champion") == "1"
    log.move(to("3", "1"))
    assert [move.status for move in log.moves()] == ["done", "aborted", "done"]


def done(kind: str, version: str, before: str | None = None, status: str = "done") -> Move:
    """A move that has ended."""
    return Move(kind, "champion", before, version, status=status)


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], []),
        ([done("promote", "1"), done("promote", "2", "1")], ["1", "2"]),
        ([done("promote", "5", "4")], ["4", "5"]),
        ([done("promote", "1"), done("promote", "2"), done("rollback", "1")], ["1"]),
        ([done("promote", "1"), done("promote", "2"), done("promote", "3"), done("rollback", "2"),
          done("rollback", "1")], ["1"]),
        ([done("promote", "1"), done("promote", "2"), done("rollback", "1"), done("promote", "3")], ["1", "3"]),
        ([done("promote", "1"), done("promote", "2", status="aborted")], ["1"]),
        ([done("promote", "1"), done("rollback", "7")], ["1", "7"]),
    ],
    ids=["none", "two", "first by other means", "back", "twice back", "forth again", "aborted", "to another"],
)  # fmt: skip
def test_versions_that_were_rolled_back_from_are_no_champions(moves: list[Move], expected: list[str]) -> None:
    assert champions(moves, "champion") == expected
    assert champions(moves, "shadow") == []


def test_who_is_the_actor_in_ci_and_else_the_user() -> None:
    assert who({"GITHUB_ACTOR": "octo", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "7"}) == "octo (CI a/b/7)"
    assert "@" in who({})


def test_a_reason_that_no_tag_can_hold_is_refused_before_anything_is_written(log: PromotionLog) -> None:
    with pytest.raises(ConfigError, match="--reason: 1001 characters are too many"):
        log.move(to("1", reason="x" * 1001))
    assert log.moves() == []


def test_tags_of_somebody_else_are_passed_over(log: PromotionLog) -> None:
    for key, text in {"lightkit.promotion.000001.ab": "no JSON", "owner": "ann", "lightkit.promotion.2": "{}"}.items():
        log._client.set_registered_model_tag("net", key, text)
    assert log.moves() == []
