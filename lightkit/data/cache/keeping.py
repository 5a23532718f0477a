"""The file of a layout: found where somebody has made it, else made, by one process of a machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lightkit.data.cache.building import built
from lightkit.data.cache.layout import Layout
from lightkit.data.cache.locks import only_one, remove_unused
from lightkit.data.cache.pixel_file import BrokenFileError, PixelFile, file_bytes, identity_of, opened
from lightkit.data.cache.places import Place

__all__ = ["Kept", "kept_file"]

log = logging.getLogger("lightkit.data")


class Kept(NamedTuple):
    """What came of looking for a file.

    Args:
        file: Open; None where there is none, and no room for it.
        says: Where it is and how large, or why there is none.
        is_new: Whether this process has made it.
    """

    file: PixelFile | None
    says: str
    is_new: bool = False


def kept_file(
    layout: Layout,
    places: Sequence[Place],
    *,
    limit_bytes: float | None,
    lock_folder: Path | None,
    waiting: Callable[[], None] = lambda: None,
) -> Kept:
    """Find the file of a layout, or make it.

    Of several processes that want the same, one makes it while the others wait.

    Args:
        layout: What is wanted.
        places: Where it may be, or be made, the best first.
        limit_bytes: See `Place.room_bytes`.
        lock_folder: For the lock of who makes it.
        waiting: Called where another process makes it.
    """
    lock = None if lock_folder is None else lock_folder / f"{layout.file_name}.lock"
    seen: dict[Place, tuple[int, int]] = {}
    while True:
        file, place = _found(layout, places, seen)
        if file is not None and place is not None:
            return Kept(file, f"found decoded, {_what(layout, file, place)}")
        with only_one(lock, waiting=waiting):
            if all(_identity(place, layout) in (None, seen.get(place)) for place in places):
                for place in seen:
                    remove_unused(place.folder / layout.file_name)
                return _made(layout, places, limit_bytes)
        # somebody else has made it meanwhile


def _found(
    layout: Layout, places: Sequence[Place], seen: dict[Place, tuple[int, int]]
) -> tuple[PixelFile | None, Place | None]:
    """Look for a whole file; note those that are broken."""
    for place in places:
        path = place.folder / layout.file_name
        try:
            file = opened(path, key=layout.key, is_temporary=place.is_temporary)
        except BrokenFileError as error:
            log.warning("data: %s is broken (%s); the photos are decoded again", path, error)
            seen[place] = error.identity
            continue
        except OSError as error:  # such as a map that the system refuses
            log.warning("data: %s cannot be used: %s", path, error.strerror or error)
            seen[place] = _identity(place, layout) or (0, 0)
            continue
        if file is not None:
            return file, place
    return None, None


def _made(layout: Layout, places: Sequence[Place], limit_bytes: float | None) -> Kept:
    """Make it in the first place that takes it, or say why none does."""
    begin = time.monotonic()
    num_bytes = file_bytes(len(layout.photos), layout.num_pixel_bytes)
    reasons = []
    for place in places:
        try:
            if not place.make_room(num_bytes, limit_bytes):
                room = place.room_bytes(limit_bytes)
                reasons.append(f"there is room for {_megabytes(room)} {place.words}")
                continue
            file = built(layout, place.folder, is_temporary=place.is_temporary)
        except OSError as error:
            reasons.append(f"{place.folder}: {error.strerror or error}")
            continue
        if file is not None:
            took_s = time.monotonic() - begin
            return Kept(file, f"decoded once, {_what(layout, file, place)} ({took_s:.1f} s)", is_new=True)
    why = "; ".join(reasons) or "there is no folder for them"
    return Kept(None, f"decoded they take {_megabytes(num_bytes)}: {why}")


def _what(layout: Layout, file: PixelFile, place: Place) -> str:
    return f"shorter side {layout.shorter} px, {_megabytes(file.num_bytes)} {place.words}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.{0 if num_bytes >= 1e7 else 1}f} MB"


def _identity(place: Place, layout: Layout) -> tuple[int, int] | None:
    try:
        return identity_of((place.folder / layout.file_name).stat())
    except OSError:
        return None
