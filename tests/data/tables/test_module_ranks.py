"""All ranks read the state of a table that rank 0 has found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightkit.errors import ConfigError, DataError
from lightkit.rank_zero import make_on_rank_zero


def rank(number: int, sent: list[Any]) -> Any:
    """A trainer of two ranks, whose rank 0 puts into ``sent`` what the other takes out."""

    def broadcast(value: Any) -> Any:
        if number == 0:
            sent.append(value)
            return value
        return sent.pop(0)

    return SimpleNamespace(
        world_size=2,
        global_rank=number,
        is_global_zero=number == 0,
        strategy=SimpleNamespace(broadcast=broadcast),
    )


def test_all_ranks_have_the_table_of_rank_0_though_it_has_grown() -> None:
    sent: list[Any] = []
    assert make_on_rank_zero(lambda: 3, rank(0, sent)) == 3
    assert make_on_rank_zero(lambda: 4, rank(1, sent)) == 3


@pytest.mark.parametrize("kind", [ConfigError, DataError])
def test_what_rank_0_cannot_do_is_reported_by_every_rank(kind: type[Exception]) -> None:
    sent: list[Any] = []

    def fail() -> int:
        raise kind("in words")

    with pytest.raises(kind, match="in words"):
        make_on_rank_zero(fail, rank(0, sent))
    with pytest.raises(kind, match="in words"):
        make_on_rank_zero(lambda: pytest.fail("not asked for"), rank(1, sent))


@pytest.mark.parametrize("kind", [OSError, MemoryError, KeyError])
def test_whatever_ends_rank_0_is_reported_by_every_rank(kind: type[Exception]) -> None:
    sent: list[Any] = []

    def fail() -> Any:
        raise kind("in words")

    with pytest.raises(kind, match="in words"):
        make_on_rank_zero(fail, rank(0, sent))
    with pytest.raises(DataError, match=rf"rank 0 failed \({kind.__name__}: '?in words'?\)"):
        make_on_rank_zero(fail, rank(1, sent))


def test_one_process_asks_nobody() -> None:
    assert make_on_rank_zero(lambda: 5, None) == 5
