"""All ranks read the state of a table that rank 0 has found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lightkit.data.tables.pinning import opened_alike, rank_zero_first
from lightkit.data.tables.snapshot import Snapshot
from lightkit.errors import ConfigError, DataError


def snapshot(version: int, fingerprint: str = "") -> Snapshot:
    return Snapshot("delta", "table", pa.schema([]), version, fingerprint or f"state {version}", [])


def rank(number: int, told: list[Any]) -> Any:
    """A trainer of two ranks, whose rank 0 puts into ``told`` what the other takes out."""

    def broadcast(value: Any) -> Any:
        if number == 0:
            told.append(value)
            return value
        return told.pop(0)

    return SimpleNamespace(
        world_size=2, global_rank=number, is_global_zero=number == 0, strategy=SimpleNamespace(broadcast=broadcast)
    )


def test_the_version_is_that_of_rank_0_though_the_table_has_grown() -> None:
    told: list[Any] = []
    first = opened_alike(lambda version: snapshot(3 if version is None else version), trainer=rank(0, told))
    second = opened_alike(lambda version: snapshot(4 if version is None else version), trainer=rank(1, told))
    assert first.version == second.version == 3


def test_other_files_on_another_rank_are_told() -> None:
    told: list[Any] = []
    opened_alike(lambda _: snapshot(0, "one"), trainer=rank(0, told))
    with pytest.raises(DataError, match="rank 1 finds another table there than rank 0"):
        opened_alike(lambda _: snapshot(0, "other"), trainer=rank(1, told))


@pytest.mark.parametrize("kind", [ConfigError, DataError])
def test_what_rank_0_cannot_do_is_told_by_every_rank(kind: type[Exception]) -> None:
    told: list[Any] = []

    def fail() -> int:
        raise kind("in words")

    with pytest.raises(kind, match="in words"):
        rank_zero_first(fail, trainer=rank(0, told))
    with pytest.raises(kind, match="in words"):
        rank_zero_first(lambda: pytest.fail("not asked for"), trainer=rank(1, told))


@pytest.mark.parametrize("kind", [OSError, MemoryError, KeyError])
def test_whatever_ends_rank_0_is_told_by_every_rank(kind: type[Exception]) -> None:
    told: list[Any] = []

    def fail() -> Any:
        raise kind("in words")

    for shared in (
        lambda trainer: rank_zero_first(fail, trainer=trainer),
        lambda trainer: opened_alike(lambda _: fail(), trainer=trainer),
    ):
        with pytest.raises(kind, match="in words"):
            shared(rank(0, told))
        with pytest.raises(DataError, match=rf"rank 0 could not open the table \({kind.__name__}: '?in words'?\)"):
            shared(rank(1, told))
        assert not told


def test_one_process_asks_nobody() -> None:
    assert rank_zero_first(lambda: 5, trainer=None) == 5
    assert opened_alike(lambda version: snapshot(7), trainer=None).version == 7
