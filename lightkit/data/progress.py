"""Progress of what is done once before training: checking, decoding, computing features."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

log = logging.getLogger("lightkit.data")

T = TypeVar("T")
_LINE_EVERY_S = 10.0


def is_first_rank() -> bool:
    """Whether this process is rank 0, also before there is a trainer."""
    return getattr(rank_zero_only, "rank", 0) == 0


def show_progress(items: Iterable[T], total: int, what: str, *, size: Callable[[T], int] = lambda _: 1) -> Iterator[T]:
    """Yield items, with a bar on a terminal and a line every 10 s elsewhere; on rank 0 alone.

    Args:
        items: To be yielded.
        total: Sum of their sizes.
        what: Is counted, and done with it, such as ``photos decoded``.
        size: Of an item.
    """
    console = Console(stderr=True)
    if not (is_first_rank() and log.isEnabledFor(logging.INFO)):
        yield from items
        return
    columns = BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, num, reported_s = bar.add_task(what, total=total), 0, time.monotonic()
        for item in items:
            num += size(item)
            bar.update(task, completed=num)
            if not console.is_terminal and time.monotonic() - reported_s >= _LINE_EVERY_S:
                reported_s = time.monotonic()
                log.info("data: %d of %d %s", num, total, what)
            yield item
