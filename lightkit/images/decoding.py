"""Many image files, read in threads ahead of whoever takes them, in order and with few of them in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from PIL import Image

from lightkit.errors import visible
from lightkit.images.ahead import in_order
from lightkit.images.reading import decoded, pillow_warnings

__all__ = ["Prepared", "num_threads", "prepared"]

T = TypeVar("T")
_MOST_THREADS = 8


@dataclass(frozen=True)
class Prepared(Generic[T]):
    """An image that is ready for a model, or why there is none.

    Args:
        path: As it was named.
        image: What was made of it; None where there is none.
        defect: Why; None where all is well.
    """

    path: str
    image: T | None
    defect: str | None


def prepared(
    paths: Iterable[str], prepare: Callable[[Image.Image], T], *, ahead: int, threads: int | None = None
) -> Iterator[Prepared[T]]:
    """Read images and prepare each, in the order of the paths.

    Args:
        paths: May be without end.
        prepare: Makes of an image in RGB what is wanted; it runs in threads.
        ahead: How many are prepared at most before they are asked for.
        threads: How many are read at a time; `num_threads` if None.

    Raises:
        RuntimeError: If ``prepare`` fails otherwise than for the size of an image; it names that.
    """
    with pillow_warnings(), ThreadPoolExecutor(threads or num_threads(), thread_name_prefix="lightkit-images") as pool:
        yield from in_order(pool, partial(_one, prepare=prepare), paths, ahead=ahead)


def num_threads() -> int:
    """Give the number of images that are read at a time: that of the cores that this process may use, at most 8."""
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))


def _one(path: str, prepare: Callable[[Image.Image], T]) -> Prepared[T]:
    image, defect = decoded(path)
    if image is None:
        return Prepared(path, None, defect)
    try:
        return Prepared(path, prepare(image), None)
    except (MemoryError, OverflowError, ValueError) as error:  # of one that is a thousand times as long as wide
        return Prepared(
            path, None, f"{image.width} x {image.height} pixels cannot be prepared ({str(error) or 'too much memory'})"
        )
    except Exception as error:  # whatever the user's own function raises; its traceback stays
        raise RuntimeError(f"{visible(path)}: its preprocessing fails: {type(error).__name__}: {error}") from error
