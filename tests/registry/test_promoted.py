"""Which versions were champions of late, and their scores."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.registry.promotion import Move, last_scored, recent_champions


def done(kind: str, version: str, before: str | None = None, alias: str = "champion", **more: Any) -> Move:
    scores = {"challenger": float(version)} if kind == "promote" else {}
    return Move(kind, alias, before, version, **{"scores": scores, **more})


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([done("promote", "1"), done("promote", "2", "1"), done("promote", "3", "2")], ["2", "3"]),
        ([done("promote", "1"), done("promote", "9", alias="staging"), done("promote", "8", alias="staging")], ["1"]),
        ([done("promote", "1"), done("promote", "2", "1"), done("rollback", "1", "2")], ["1"]),
        ([done("promote", "2", "1")], ["1", "2"]),
        ([done("promote", "1"), done("promote", "2", "1"), done("promote", "1", "2")], ["2", "1"]),
        ([], []),
    ],
    ids=["the last", "of another alias", "rolled back", "moved by other means", "twice", "none"],
)
def test_only_champions_of_the_alias_count(moves: list[Move], expected: list[str]) -> None:
    assert [move.to for move in recent_champions(moves, "champion", 2)] == expected


def test_a_version_comes_with_its_scores_whatever_moved_last() -> None:
    moves = [done("promote", "1"), done("promote", "2", "1"), done("rollback", "1", "2")]
    assert recent_champions(moves, "champion", 5)[0].scores == {"challenger": 1.0}
    assert last_scored(moves, "3") is None
    assert recent_champions([done("promote", "2", "1")], "champion", 5)[0].scores == {}
