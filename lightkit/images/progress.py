"""Progress of work on many images: checking, decoding, computing features, predicting. No torch."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from lightning_utilities.core.rank_zero import rank_zero_only

log = logging.getLogger("lightkit.data")

T = TypeVar("T")
_LINE_EVERY_S = 10.0


def is_first_rank() -> bool:
    """Return whether this process is rank 0, also before there is a trainer."""
    return getattr(rank_zero_only, "rank", 0) == 0


class ProgressLines:
    """A line every 10 s that says how much is done.

    Args:
        what: Is counted, and done with it, such as ``photos decoded``.
        total: Of what is counted; None if unknown.
        print_line: Takes the lines.
    """

    def __init__(self, what: str, total: int | None, print_line: Callable[[str], object]) -> None:
        self._what = what
        self._total = total
        self._print_line = print_line
        self._num = 0
        self._began_s = self._printed_s = time.monotonic()

    def add(self, num: int) -> None:
        """Count more."""
        self._num += num
        now_s = time.monotonic()
        if now_s - self._printed_s >= _LINE_EVERY_S:
            self._printed_s = now_s
            of = "" if self._total is None else f" of {self._total}"
            self._print_line(
                f"{self._num}{of} {self._what}  {self._num / (now_s - self._began_s):.0f}/s"
            )


def show_progress(
    items: Iterable[T],
    total: int | None,
    what: str,
    *,
    size: Callable[[T], int] = lambda _: 1,
    stream: TextIO | None = None,
    print_line: Callable[[str], object] = lambda text: log.info("data: %s", text),
) -> Iterator[T]:
    """Yield items, with a bar on a terminal and a line every 10 s elsewhere.

    Args:
        items: To be yielded.
        total: Sum of their sizes; None if unknown.
        what: Is counted, and done with it, such as ``photos decoded``.
        size: Of an item.
        stream: Where a bar would be; None is standard error, of rank 0 alone.
        print_line: Takes the lines.
    """
    if stream is None and not (is_first_rank() and log.isEnabledFor(logging.INFO)):
        yield from items
        return
    stream = stream or sys.stderr
    if not stream.isatty():
        lines = ProgressLines(what, total, print_line)
        for item in items:
            yield item
            lines.add(size(item))
        return
    from rich.console import Console  # 0.1 s, only for a terminal
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn()
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task, size(item))
