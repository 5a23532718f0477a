"""Ranks here are threads, whose messages pass through a barrier.

Real ones are in tests/contract/test_ranks.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightkit.callbacks import checkpoint
from lightkit.callbacks.checkpoint import MOST_BATCHES, DistributedFlag

NUM_BATCHES = 60


class Rank:
    """A trainer's view of one of two ranks, and the time on its clock."""

    world_size = 2

    def __init__(
        self, number: int, meeting: threading.Barrier, shared: dict[int, torch.Tensor]
    ) -> None:
        self.number, self.now_s = number, 0.0
        self._meeting, self._shared = meeting, shared
        self.strategy = SimpleNamespace(all_gather=self._gathered, root_device=torch.device("cpu"))
        self.num_messages = 0

    def _gathered(self, own: torch.Tensor) -> torch.Tensor:
        self.num_messages += 1
        self._shared[self.number] = own
        self._meeting.wait(timeout=60)
        every = torch.stack([self._shared[rank] for rank in range(2)])
        self._meeting.wait(timeout=60)
        return every


def agreed(
    monkeypatch: pytest.MonkeyPatch,
    batch_s: Callable[[int, int], float],
    *,
    wants_from: int | None = None,
    at_once: int | None = None,
) -> tuple[list[list[bool]], int]:
    """Return the answers to each rank after each batch, and the number of messages.

    Rank 1 wants it from a batch on.
    """
    meeting, shared, here = threading.Barrier(2), dict[int, torch.Tensor](), threading.local()
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: here.rank.now_s))
    ranks = [Rank(number, meeting, shared) for number in range(2)]

    def trained(rank: Any) -> list[bool]:
        here.rank = rank
        asked, answers = DistributedFlag(), []
        for batch in range(NUM_BATCHES):
            rank.now_s += batch_s(rank.number, batch)
            wants = rank.number == 1 and wants_from is not None and batch >= wants_from
            answers.append(asked.after_batch(rank, wants, at_once=batch == at_once))
        return answers

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(trained, ranks))
    assert ranks[0].num_messages == ranks[1].num_messages
    return answers, ranks[0].num_messages


def test_after_long_batches_ranks_ask_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, num_messages = agreed(monkeypatch, lambda rank, batch: 0.3, wants_from=7)
    assert answers[0] == answers[1] == [batch >= 7 for batch in range(NUM_BATCHES)]
    assert num_messages == NUM_BATCHES


def test_between_short_batches_few_messages_pass_and_all_know_after_the_same_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, num_messages = agreed(monkeypatch, lambda rank, batch: 0.001)
    assert not any(answers[0] + answers[1])
    # after these batches
    assert num_messages == len([1, 3, 7, *range(15, NUM_BATCHES, MOST_BATCHES)])
    answers, _ = agreed(monkeypatch, lambda rank, batch: 0.001, wants_from=24)
    # and asked again
    assert answers[0] == answers[1] == [batch >= 30 for batch in range(NUM_BATCHES)]


def test_they_ask_before_something_long(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, _ = agreed(monkeypatch, lambda rank, batch: 0.001, wants_from=24, at_once=26)
    assert answers[0] == answers[1] == [batch >= 26 for batch in range(NUM_BATCHES)]
    _, num_messages = agreed(monkeypatch, lambda rank, batch: 0.001, at_once=26)
    assert num_messages == len([1, 3, 7, 15, 23, *range(27, NUM_BATCHES, MOST_BATCHES)])


def test_the_slowest_rank_decides_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    _, of_even = agreed(monkeypatch, lambda rank, batch: 0.01)
    _, of_slow = agreed(monkeypatch, lambda rank, batch: 0.1 if rank else 0.01)
    _, of_later = agreed(monkeypatch, lambda rank, batch: 0.001 if batch < 30 else 1.0)
    assert of_even < of_slow
    assert of_slow >= NUM_BATCHES // 2
    assert of_later >= NUM_BATCHES - 30 - MOST_BATCHES


def test_one_process_asks_nobody() -> None:
    asked, alone = DistributedFlag(), Rank(0, threading.Barrier(1), {})
    alone.world_size = 1
    assert [asked.after_batch(alone, wanted) for wanted in (True, False)] == [True, False]  # type: ignore[arg-type]
    assert alone.num_messages == 0
