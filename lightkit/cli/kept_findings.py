"""What was measured of a config before: whether it is the same code, and whether there is more time now than then."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lightkit.cli.own_code import own_code
from lightkit.cli.twin import class_of_section
from lightkit.images.file_digests import file_digests
from lightkit.tuning import findings_cache
from lightkit.tuning.findings_cache import source_digest

if TYPE_CHECKING:
    from lightkit.cli.lightning import LightkitCLI

__all__ = ["Keepable", "Limit", "Shelf", "code_of"]

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


T = TypeVar("T", bound=Keepable)


def code_of(cli: LightkitCLI) -> dict[str, Any]:
    """Give the names of a config's classes, and digests of what they are made of.

    Args:
        cli: Has parsed the config, and knows the classes that Python has fixed.
    """
    section = cli.config[cli.subcommand]
    fixed = {"model": cli.model_class, "data": cli.datamodule_class}
    kinds = {name: class_of_section(section.get(name)) or fixed[name] for name in fixed}
    names = {name: _name_of(kind) for name, kind in kinds.items() if kind is not None}
    said = [one.as_dict() for key in ("model", "data", "optimizer") if hasattr(one := section.get(key), "as_dict")]
    files = own_code([*names.values(), *said]).files
    return {
        "classes": names,
        "sources": {name: source_digest(kind) for name, kind in kinds.items() if isinstance(kind, type)},
        "own": dict(zip(files, (one.digest for one in file_digests(map(str, files.values()))), strict=True)),
    }


def _name_of(kind: Any) -> str:
    """Give the name of a class or a function by which its module is found, that of a script by its file."""
    module = str(kind.__module__)
    if module == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        module = Path(file).stem
    return f"{module}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"


class Shelf:
    """The findings of a config that are kept below its folder of runs.

    Args:
        root: Folder of runs.
        limit: What limits a search now.
        is_read: Whether what is there counts. What is found now takes its place anyhow.
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
        same = "budget_s" in then and then.get("trainer") == self._limit["trainer"]
        return found if same and _is_no_more(self._limit["budget_s"], then["budget_s"]) else None

    def alike(self, start: str, of_json: Callable[[dict[str, Any]], T]) -> Iterator[T]:
        """Give all findings whose name has this start, newest first."""
        for told in findings_cache.read_all(self._root, start) if self._is_read else []:
            if (found := _read(told, of_json)) is not None:
                yield found

    def keep(self, name: str, found: Keepable) -> None:
        """Keep what was found; where it cannot be written, only the next search is longer."""
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
