"""Work on many things in threads, ahead of whoever takes the results, in order and with few of them in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order"]

T = TypeVar("T")
R = TypeVar("R")


def in_order(pool: ThreadPoolExecutor, work: Callable[[T], R], things: Iterable[T], *, ahead: int) -> Iterator[R]:
    """Give the result of each thing, in their order; what is not begun when nobody takes more is not done.

    Args:
        pool: Does it.
        work: Is done to each; what it raises is raised here.
        things: May be without end.
        ahead: How many are done at most before they are asked for.
    """
    begun: deque[Future[R]] = deque()
    try:
        for thing in things:
            begun.append(pool.submit(work, thing))
            if len(begun) > ahead:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()
