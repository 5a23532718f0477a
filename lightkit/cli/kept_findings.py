"""What was measured of a config before, and whether there is more time now than there was then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lightkit.tuning import findings_cache

__all__ = ["Keepable", "Limit", "Shelf"]

_log = logging.getLogger("lightkit")
Limit = Mapping[str, Any]
"""`budget_s`: seconds that a search may take. `trainer`: what the length of the training comes from, of which it takes
no more than a share; None where the seconds alone count."""


class Keepable(Protocol):
    """What a search has found."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """What there was no time for, in words."""

    def as_json(self) -> dict[str, Any]:
        """Give what a JSON file can hold."""

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> Keepable:
        """Read what `as_json` gave."""


T = TypeVar("T", bound=Keepable)


class Shelf:
    """The findings of a config that are kept below its folder of runs.

    Args:
        root: Folder of runs.
        limit: What limits a search now.
        is_read: Whether what is there counts. What is found now takes its place, unless it leaves out more.
    """

    def __init__(self, root: Path, limit: Limit, *, is_read: bool) -> None:
        self._root, self._limit, self._is_read = root, limit, is_read

    def kept(self, name: str, of_json: Callable[[dict[str, Any]], T]) -> T | None:
        """Give what was found before, unless something was left out then for which there is more time now.

        Args:
            name: What `findings_cache.name_of` gives.
            of_json: Reads it.
        """
        told = findings_cache.read(self._root, name) if self._is_read else None
        found = None if told is None else _read(told, of_json)
        if told is None or found is None or not found.left_out:
            return found
        then = told.get("limit") or {}
        same = "budget_s" in then and then.get("trainer") in (None, self._limit["trainer"])
        return found if same and _is_no_more(self._limit["budget_s"], then["budget_s"]) else None

    def alike(self, start: str, of_json: Callable[[dict[str, Any]], T]) -> Iterator[T]:
        """Give all findings whose name has this start, newest first."""
        for told in findings_cache.read_all(self._root, start) if self._is_read else []:
            if (found := _read(told, of_json)) is not None:
                yield found

    def keep(self, name: str, found: Keepable) -> None:
        """Keep what was found, unless what is there left out less; where it cannot be written, nothing else is lost."""
        told = findings_cache.read(self._root, name) if found.left_out else None
        before = None if told is None else _read(told, type(found).of_json)
        if before is not None and len(before.left_out) < len(found.left_out):
            return
        try:
            findings_cache.write(self._root, name, {"limit": dict(self._limit), "found": found.as_json()})
        except OSError as error:
            _log.warning("accelerator: what was measured is not kept for other runs: %s", error)


def _read(told: dict[str, Any], of_json: Callable[[dict[str, Any]], T]) -> T | None:
    try:
        return of_json(told["found"])
    except (KeyError, TypeError, ValueError, AttributeError):  # of another version
        return None


def _is_no_more(now_s: float | None, then_s: float | None) -> bool:
    return then_s is None or (now_s is not None and now_s <= then_s)
