"""How far a prediction has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

__all__ = ["Lines", "shown"]

T = TypeVar("T")
_EVERY_S = 10.0


def shown(
    items: Iterable[T], total: int | None, *, stream: TextIO, is_terminal: bool, every_s: float = _EVERY_S
) -> Iterator[T]:
    """Give the items, and tell how many there have been.

    Args:
        items: Predictions.
        total: How many there will be; None where that is not known.
        stream: Where it is told.
        is_terminal: Whether a bar can be drawn there.
        every_s: Seconds between two lines where none can.
    """
    return _with_bar(items, total, stream) if is_terminal else _with_lines(items, total, stream, every_s)


class Lines:
    """Tell now and then in a line how many images there have been.

    Args:
        total: How many there will be; None where that is not known.
        stream: Where it is told.
        every_s: Seconds between two lines.
    """

    def __init__(self, total: int | None, *, stream: TextIO, every_s: float = _EVERY_S) -> None:
        self._total, self._stream, self._every_s = total, stream, every_s
        self._num = 0
        self._begin = self._last = time.monotonic()

    def add(self, num: int) -> None:
        """Count so many more images."""
        self._num += num
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._last = now
            of = "" if self._total is None else f" of {self._total}"
            speed = self._num / (now - self._begin)
            print(f"predict  {self._num}{of} images  {speed:.0f} images/s", file=self._stream, flush=True)


def _with_bar(items: Iterable[T], total: int | None, stream: TextIO) -> Iterator[T]:
    from rich.console import Console  # 0.1 s, spared where nobody watches
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("predict"), BarColumn(), MofNCompleteColumn(), TextColumn("images"), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("predict", total=total)
        for item in items:
            yield item
            bar.advance(task)


def _with_lines(items: Iterable[T], total: int | None, stream: TextIO, every_s: float) -> Iterator[T]:
    lines = Lines(total, stream=stream, every_s=every_s)
    for item in items:
        yield item
        lines.add(1)
