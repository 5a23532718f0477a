"""What was measured of a config before, and whether there is more time now than there was then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lightkit.tuning import findings_cache
from lightkit.tuning.allowance import Part

__all__ = ["Keepable", "Shelf"]

_log = logging.getLogger("lightkit")


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
        is_read: Whether what is there counts. What is found now is kept in any case.
    """

    def __init__(self, root: Path, *, is_read: bool) -> None:
        self._root, self._is_read = root, is_read
        self.before: set[str] = set()
        """Searches whose findings were there, see `kept_or_new`."""

    def kept_or_new(
        self,
        search: str,
        name: str | None,
        of_json: Callable[[dict[str, Any]], T],
        look: Callable[[], T],
        part: Part,
        *,
        counts: Callable[[T], bool] = lambda _: True,
        otherwise: Callable[[], T | None] = lambda: None,
        is_worth: Callable[[T], bool],
    ) -> T:
        """Give what was found before, if it counts, or something else that tells more; else search, and keep it.

        What time has cut short is kept only if it `is_worth` it: else a busy moment would decide for good.

        Args:
            search: What is looked for.
            name: What `findings_cache.name_of` gives; None where nothing is kept.
            of_json: Reads what was kept.
            look: Searches.
            part: Of the time that there is now; it begins with a search.
            counts: Tells whether what was found before fits.
            otherwise: Gives something else that was found before.
            is_worth: Tells whether what time has cut short says anything.
        """
        before = None if name is None else self.kept(name, of_json, part)
        if before is not None and not counts(before):
            before = None
        if before is None or before.left_out:
            other = otherwise()
            if before is None or (other is not None and len(other.left_out) < len(before.left_out)):
                before = other
        if before is not None:
            self.before.add(search)
            return before
        part.begin()
        found = look()
        if name is not None and (not found.left_out or is_worth(found)):
            self.keep(name, found, part)
        return found

    def kept(self, name: str, of_json: Callable[[dict[str, Any]], T], part: Part) -> T | None:
        """Give what was found before, unless something was left out then for which there is more time now.

        Args:
            name: What `findings_cache.name_of` gives.
            of_json: Reads it.
            part: Of the time that there is now.
        """
        told = findings_cache.read(self._root, name) if self._is_read else None
        found = None if told is None else _read(told, of_json)
        if told is None or found is None or not found.left_out:
            return found
        try:
            return None if part.has_more_than(told["limit"]) else found
        except (KeyError, TypeError, ValueError):  # of another version
            return None

    def alike(
        self, start: str, of_json: Callable[[dict[str, Any]], T], part: Part, *, took_s: Callable[[T], float]
    ) -> Iterator[tuple[T, Callable[[], bool]]]:
        """Give all findings whose name has this start, newest first; each with what tells if there is time for more.

        Args:
            start: Of the names.
            of_json: Reads them.
            part: Of the time that there is now.
            took_s: Gives the seconds that a search took.
        """
        for told in findings_cache.read_all(self._root, start) if self._is_read else []:
            if (found := _read(told, of_json)) is not None:
                yield found, partial(_has_time, part, told, found, took_s(found))

    def keep(self, name: str, found: Keepable, part: Part) -> None:
        """Keep what was found, unless what is there had more time or left out less.

        Where it cannot be written, nothing else is lost.

        Args:
            name: What `findings_cache.name_of` gives.
            found: What was found.
            part: Of the time that there was for it.
        """
        told = findings_cache.read(self._root, name) if found.left_out else None
        before = None if told is None else _read(told, type(found).of_json)
        try:
            content = _content(found, part) if told is None or before is None else _better(found, part, before, told)
            findings_cache.write(self._root, name, content)
        except OSError as error:
            _log.warning("accelerator: what was measured is not kept for other runs: %s", error)


def _read(told: dict[str, Any], of_json: Callable[[dict[str, Any]], T]) -> T | None:
    try:
        return of_json(told["found"])
    except (KeyError, TypeError, ValueError, AttributeError):  # of another version
        return None


def _has_time(part: Part, told: dict[str, Any], found: Keepable, seconds: float) -> bool:
    """Tell whether there is more time than there was, where that was too little, else as much as the search took."""
    try:
        limit = told["limit"]
        return part.has_more_than(limit) if found.left_out else part.has_time_for(limit, seconds=seconds)
    except (KeyError, TypeError, ValueError):  # of another version
        return True


def _content(found: Keepable, part: Part) -> dict[str, Any]:
    return {"limit": part.as_json(), "found": found.as_json()}


def _better(found: Keepable, part: Part, before: Keepable, told: dict[str, Any]) -> dict[str, Any]:
    """Give the one of two that tells more; that it was looked for again is noted, so that it is not each time."""
    if not before.left_out:
        return told
    try:
        is_kept = len(before.left_out) < len(found.left_out) or part.had_less_than(told["limit"])
        limit = part.as_json_after(told["limit"], is_kept=is_kept)
    except (KeyError, TypeError):  # of another version
        return _content(found, part)
    return {"limit": limit, "found": (before if is_kept else found).as_json()}
