"""How far a prediction has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

__all__ = ["shown"]

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
    of = "" if total is None else f" of {total}"
    begin = last = time.monotonic()
    for num, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= every_s:
            last = now
            print(f"predict  {num}{of} images  {num / (now - begin):.0f} images/s", file=stream, flush=True)
