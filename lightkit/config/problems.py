"""Collect the errors of a config, so that all are reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightkit.config.origins import Origin
from lightkit.errors import ConfigError, ConfigErrors, DataError, LightkitError

__all__ = ["Problems", "UnreadableText"]


_MOST_TOLD = 100  # a config that has more mistakes is not the one that was meant


class UnreadableText(str):
    """The text of a value that has been told as a mistake, kept so that what stands around it can be judged."""

    __slots__ = ()


class Problems:
    """What is wrong with a config, as far as it is known.

    Args:
        is_incomplete: Whether a part of the config could not be read, so that what seems to be missing may stand there.
    """

    def __init__(self, *, is_incomplete: bool = False) -> None:
        self.is_incomplete = is_incomplete
        self._found: list[LightkitError] = []
        self._known: set[str] = set()
        self._files: list[Path] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[LightkitError]:
        return iter(self._in_order())

    @property
    def is_full(self) -> bool:
        """Whether more mistakes would be counted and not told, so that looking for near names is of no use."""
        return len(self._found) > _MOST_TOLD

    def add(self, error: LightkitError) -> None:
        """Keep a mistake, or each of several; what is known already is not told again."""
        for problem in error.problems if isinstance(error, ConfigError) else (error,):
            if str(problem) not in self._known:
                self._known.add(str(problem))
                self._found.append(problem)

    def read(self, file: Path) -> None:
        """Note that a file is the next layer above those read before it; mistakes are told in this order."""
        if file not in self._files:
            self._files.append(file)

    @contextmanager
    def noted(self, *, leaves_gap: bool = False) -> Iterator[None]:
        """Keep the mistake that the block raises, and go on after it.

        Args:
            leaves_gap: Whether the block gives a part of the config, which is missing where it fails.
        """
        try:
            yield
        except LightkitError as error:
            self.add(error)
            self.is_incomplete = self.is_incomplete or leaves_gap

    def error(self) -> LightkitError | None:
        """Give one error that tells all of them, in the order of their places; None where there are none."""
        found = self._in_order()
        if len(found) < 2:
            return next(iter(found), None)
        if len(found) > _MOST_TOLD:
            rest = ConfigError(f"{len(found) - _MOST_TOLD} more mistakes like these")
            found = [*found[:_MOST_TOLD], rest]
        if all(isinstance(problem, DataError) for problem in found):
            return DataError("\nerror: ".join(map(str, found)))
        return ConfigErrors([_as_config_error(problem) for problem in found])

    def raise_any(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            ConfigError: If there are mistakes in the config.
            DataError: If only data is missing.
        """
        if (error := self.error()) is not None:
            raise error

    def _in_order(self) -> list[LightkitError]:
        """Sort by place: files from the lowest layer up, then by line; the rest stays as it was found."""
        places = [_first_place(problem) for problem in self._found]
        met = (place.file for place in places if place is not None and place.file is not None)
        files = list(dict.fromkeys([*self._files, *met]))

        def key(index: int) -> tuple[int, int, int]:
            place = places[index]
            if place is None or place.file is None:
                return (len(files), index, 0)
            if place.line is None:  # the whole file
                return (-1, files.index(place.file), 0)
            return (files.index(place.file), place.line, place.column or 0)

        return [self._found[index] for index in sorted(range(len(self._found)), key=key)]


def _first_place(problem: LightkitError) -> Origin | None:
    return next((place for place in problem.places if isinstance(place, Origin)), None)


def _as_config_error(problem: LightkitError) -> ConfigError:
    return problem if isinstance(problem, ConfigError) else ConfigError(str(problem))
