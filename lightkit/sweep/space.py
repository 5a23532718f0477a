"""The space of a sweep: the keys of a config that are searched, each with its values."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lightkit.config import Origin, Problems, Resolved, error_at, near, shown_path
from lightkit.config.bounds import is_number
from lightkit.config.origins import near_files

Kind = Literal["float", "int", "choice", "layers"]
Params = Mapping[str, Any]
"""Values by key, of the keys that are in effect."""

_KINDS = ("log", "float", "int", "choice", "layers")
_OPTIONS = {"log": (), "float": ("step", "log"), "int": ("step", "log"), "choice": (), "layers": ()}
_EXAMPLE = (
    "{log: [1e-5, 1e-1]}, {float: [0, 0.3]}, {int: [16, 128]}, [a, b] or {layers: [a.yaml, b.yaml]}"
)
_ROUND_DIGITS = 12


@dataclass(frozen=True)
class Dimension:
    """One searched key.

    Args:
        key: Dotted key of the config; for ``layers`` a free name.
        kind: Kind of its values.
        low: Lowest value of a range.
        high: Highest value of a range.
        step: Distance of two values of a range; None for any.
        is_log: Whether the range is searched on a logarithmic scale.
        choices: The values of a choice, or the paths of layers.
        when: Values of other keys with which this key is in effect.
    """

    key: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    is_log: bool = False
    choices: tuple[Any, ...] = ()
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    @property
    def is_range(self) -> bool:
        """Return whether its values are numbers of a range."""
        return self.kind in ("float", "int")

    @property
    def num_values(self) -> int | None:
        """Number of its values; None for a range without steps."""
        if not self.is_range:
            return len(self.choices)
        step = self._grid_step
        return None if step is None else math.floor((self.high - self.low) / step + 1e-9) + 1

    @property
    def _grid_step(self) -> float | None:
        if self.step is not None:
            return self.step
        return 1.0 if self.kind == "int" else None

    def iterate_values(self) -> Iterator[Any]:
        """Iterate over all values of a choice or of a range with steps, which may be millions."""
        if not self.is_range:
            yield from self.choices
            return
        for number in range(self.num_values or 0):
            yield self._value_at(number)

    @property
    def last_value(self) -> Any:
        """Last value of a range with steps, which need not be its end."""
        return self._value_at((self.num_values or 1) - 1)

    def _value_at(self, number: int) -> Any:
        return self._round(self.low + number * (self._grid_step or 1.0))

    def list_ends(self) -> list[Any]:
        """List the values that a check tries: the ends of a range, or each choice."""
        if not self.is_range:
            return list(self.choices)
        ends = [self._round(self.low), self._round(self.high)]
        return ends if ends[0] != ends[1] else ends[:1]

    def list_branches(self) -> list[dict[str, Any]]:
        """List values of other keys with which it is in effect, together each value of ``when``."""
        num_branches = max((len(values) for _, values in self.when), default=1)
        return [
            {key: values[min(number, len(values) - 1)] for key, values in self.when}
            for number in range(num_branches)
        ]

    def from_unit(self, share: float) -> Any:
        """Return the value at a share of the dimension, from 0 up to, and without, 1."""
        if not self.is_range:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        count = self.num_values
        if count is not None and not self.is_log:
            return self._round(
                self.low + min(int(share * count), count - 1) * (self._grid_step or 1.0)
            )
        if not self.is_log:
            return self.low + share * (self.high - self.low)
        # an integer stands for the half open range around it
        margin = 0.5 if self.kind == "int" else 0.0
        low = math.log(self.low - margin)
        high = math.log(self.high + margin)
        value = math.exp(low + share * (high - low))
        return self._round(min(max(value, self.low), self.high))

    def contains(self, value: Any) -> bool:
        """Return whether a value is one of the dimension."""
        if not self.is_range:
            return find_choice(self.choices, value) is not None
        if not is_number(value) or not self.low <= value <= self.high:
            return False
        if self.kind == "int" and value != int(value):
            return False
        if self.step is None:
            return True
        steps = (value - self.low) / self.step
        return bool(abs(steps - round(steps)) < 1e-6)

    def clean(self, value: Any) -> Any:
        """Return a value as the config has it: an integer.

        Other numbers come without the error of a sum of steps.
        """
        return self._round(value) if self.is_range else value

    def _round(self, value: float) -> Any:
        if self.kind == "int":
            return round(value)
        if self.step is None:
            return float(value)
        return float(f"{value:.{_ROUND_DIGITS}g}")  # 0.1 * 3 is 0.30000000000000004


def find_choice(choices: Sequence[Any], value: Any) -> int | None:
    """Return the position of a value among choices, for which 1, 1.0 and true are three values.

    The position is None for a value that is no choice.
    """
    wanted = _identify(value)
    return next((number for number, each in enumerate(choices) if _identify(each) == wanted), None)


def _identify(value: Any) -> str:
    """Return a text that two values share only if a file would have the same for both."""
    return json.dumps(value, sort_keys=True, default=str)


@dataclass(frozen=True)
class Space:
    """All searched keys, each after those that its ``when`` names."""

    dimensions: tuple[Dimension, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The searched keys."""
        return [each.key for each in self.dimensions]

    def __getitem__(self, key: str) -> Dimension:
        return next(each for each in self.dimensions if each.key == key)

    def is_active(self, dimension: Dimension, params: Params) -> bool:
        """Return whether a key is in effect, by the values of the keys before it."""
        return all(
            key in params and find_choice(values, params[key]) is not None
            for key, values in dimension.when
        )

    def contains(self, params: Params) -> bool:
        """Return whether values are a point of the space.

        All keys in effect have one of their values.
        """
        active = [each for each in self.dimensions if self.is_active(each, params)]
        return all(each.key in params and each.contains(params[each.key]) for each in active)

    def from_unit(self, shares: Sequence[float]) -> dict[str, Any]:
        """Return the point at shares of the dimensions."""
        params: dict[str, Any] = {}
        for share, each in zip(shares, self.dimensions, strict=True):
            if self.is_active(each, params):
                params[each.key] = each.from_unit(share)
        return params

    def iterate_points(self) -> Iterator[dict[str, Any]]:
        """Iterate over all points of a space without ranges that have no steps.

        The last key changes the fastest.
        """
        yield from self._extend({}, 0)

    def _extend(self, params: dict[str, Any], at: int) -> Iterator[dict[str, Any]]:
        if at == len(self.dimensions):
            yield params
            return
        dimension = self.dimensions[at]
        if not self.is_active(dimension, params):
            yield from self._extend(params, at + 1)
            return
        for value in dimension.iterate_values():
            yield from self._extend({**params, dimension.key: value}, at + 1)

    @property
    def is_finite(self) -> bool:
        """Return whether it has a number of points."""
        return all(each.num_values is not None for each in self.dimensions)

    def count_points(self, most: int) -> int | None:
        """Count the points, at most so many; None where there is no end of them."""
        if not self.is_finite:
            return None
        return sum(1 for _ in itertools.islice(self.iterate_points(), most))

    def list_probes(self) -> list[tuple[str, dict[str, Any]]]:
        """List points that together have each choice and both ends of each range, with its key.

        A conditional key is in them with each value of its ``when``. They are as many as there are
        values, not as their combinations.
        """
        probes: list[tuple[str, dict[str, Any]]] = []
        seen: set[str] = set()
        for dimension in self.dimensions:
            for branch, value in itertools.product(
                dimension.list_branches(), dimension.list_ends()
            ):
                params = self._complete({**branch, dimension.key: value})
                if params is not None and _identify(params) not in seen:
                    seen.add(_identify(params))
                    probes.append((dimension.key, params))
        return probes

    def _complete(self, wanted: Params) -> dict[str, Any] | None:
        """Return a point with these values; None if no other values allow them."""
        needed = dict(wanted)
        for dimension in reversed(self.dimensions):
            if dimension.key in needed:
                for key, values in dimension.when:
                    needed.setdefault(key, values[0])
        params: dict[str, Any] = {}
        for dimension in self.dimensions:
            if self.is_active(dimension, params):
                params[dimension.key] = needed.get(dimension.key, dimension.list_ends()[0])
        return params if all(key in params for key in wanted) else None


def identify_point(params: Params) -> str:
    """Return a text that two points share only if they are the same."""
    return _identify(dict(params))


# -- the section -----------------------------------------------------------------------------------


def parse_space(resolved: Resolved, problems: Problems) -> Space:
    """Read the `space` of a config's `sweep` section.

    Args:
        resolved: The config.
        problems: Takes what is wrong, with its place.
    """
    given = resolved.section("sweep").get("space") or {}
    dimensions: dict[str, Dimension] = {}
    for key, value in given.items():
        if value is None:  # a layer has removed it
            continue
        with problems.noted():
            dimensions[str(key)] = _parse_dimension(str(key), value, resolved)
    return Space(tuple(_sort_by_conditions(dimensions, resolved, problems)))


def _parse_dimension(key: str, value: Any, resolved: Resolved) -> Dimension:
    """Read one key of the space.

    Raises:
        ConfigError: If it is none.
    """
    place = ("sweep", "space", key)
    origin = resolved.origin_of(place)
    if isinstance(value, list):
        value = {"choice": value}
    if not isinstance(value, Mapping):
        raise error_at(
            f"sweep.space.{key}: expected values such as {_EXAMPLE}, got {value!r}", origin
        )
    kinds = [kind for kind in _KINDS if kind in value]
    if "log" in kinds and len(kinds) > 1:  # as in {int: [1, 100], log: true}
        kinds.remove("log")
    if len(kinds) != 1:
        found = " and ".join(kinds) or ", ".join(map(str, value)) or "nothing"
        hint = near(next(iter(map(str, value)), ""), _KINDS)
        raise error_at(
            f"sweep.space.{key}: expected one of {', '.join(_KINDS)}, got {found}{hint}", origin
        )
    kind = kinds[0]
    known = (kind, "when", *_OPTIONS[kind])
    for option in value:
        if option not in known:
            text = f"sweep.space.{key}: {kind} has no {option!r}{near(str(option), known)}"
            raise error_at(
                f"{text}; it has {', '.join(known)}", resolved.origin_of((*place, option))
            )
    when = _parse_when(key, value.get("when"), resolved)
    if kind in ("choice", "layers"):
        return _parse_choice(key, kind, value[kind], when, resolved)
    return _parse_range(key, kind, value, when, resolved)


def _parse_when(
    key: str, given: Any, resolved: Resolved
) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if given is None:
        return ()
    origin = resolved.origin_of(("sweep", "space", key, "when"))
    if not isinstance(given, Mapping) or not given:
        text = f"sweep.space.{key}.when: expected keys of the space with their values, such as"
        raise error_at(f"{text} {{model.backbone: [resnet18]}}, got {given!r}", origin)
    return tuple(
        (str(name), tuple(each) if isinstance(each, list) else (each,))
        for name, each in given.items()
    )


def _parse_choice(
    key: str,
    kind: str,
    values: Any,
    when: tuple[tuple[str, tuple[Any, ...]], ...],
    resolved: Resolved,
) -> Dimension:
    place = ("sweep", "space", key)
    origin = resolved.origin_of((*place, kind)) or resolved.origin_of(place)
    if not isinstance(values, list) or not values:
        raise error_at(
            f"sweep.space.{key}: expected a list of values to choose from, got {values!r}", origin
        )
    choices: list[Any] = []
    for value in values:
        if find_choice(choices, value) is not None:
            raise error_at(f"sweep.space.{key}: {value!r} is listed twice", origin)
        choices.append(value)
    if kind == "choice":
        return Dimension(key, "choice", choices=tuple(choices), when=when)
    files = [None if name is None else str(_find_layer(key, name, origin)) for name in choices]
    return Dimension(key, "layers", choices=tuple(files), when=when)


def _find_layer(key: str, name: Any, origin: Origin | None) -> Path:
    """Find a layer next to the file that names it, else in the working directory.

    Raises:
        ConfigError: If there is none.
    """
    if not isinstance(name, str):
        raise error_at(
            f"sweep.space.{key}: expected the names of config files, got {name!r}", origin
        )
    folders = [Path()] if origin is None or origin.file is None else [origin.file.parent, Path()]
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).absolute()
    wanted = folders[0] / name
    raise error_at(
        f"sweep.space.{key}: {shown_path(wanted)}: no such file{near_files(wanted)}", origin
    )


def _parse_range(
    key: str,
    kind: str,
    given: Mapping[str, Any],
    when: tuple[tuple[str, tuple[Any, ...]], ...],
    resolved: Resolved,
) -> Dimension:
    origin = resolved.origin_of(("sweep", "space", key, kind))
    is_log = kind == "log" or given.get("log") is True
    low, high = _read_ends(key, given[kind], origin)
    if is_log and low <= 0:
        raise error_at(
            f"sweep.space.{key}: a logarithmic range begins above 0, and this at {low:g}", origin
        )
    step = given.get("step")
    if step is not None:
        _check_step(key, step, resolved.origin_of(("sweep", "space", key, "step")), is_log=is_log)
    if kind != "int":
        return Dimension(key, "float", low=low, high=high, step=step, is_log=is_log, when=when)
    for value in (low, high, step):
        if value is not None and value != int(value):
            raise error_at(f"sweep.space.{key}: expected whole numbers, got {value!r}", origin)
    return Dimension(key, "int", low=low, high=high, step=step, is_log=is_log, when=when)


def _read_ends(key: str, ends: Any, origin: Origin | None) -> tuple[float, float]:
    """Return the least and the greatest value of a range.

    Raises:
        ConfigError: If they are no two numbers in this order.
    """
    numbers = ends if isinstance(ends, list) else []
    if len(numbers) != 2 or not all(map(is_number, numbers)):
        raise error_at(
            f"sweep.space.{key}: expected two numbers, the least and the greatest, got {ends!r}",
            origin,
        )
    low, high = numbers
    if low > high:
        raise error_at(
            f"sweep.space.{key}: the least value, {low:g}, is above the greatest, {high:g}", origin
        )
    return low, high


def _check_step(key: str, step: Any, origin: Origin | None, *, is_log: bool) -> None:
    """Check the distance of the values of a range.

    Raises:
        ConfigError: If it is no number above 0, or the range is logarithmic.
    """
    if not is_number(step) or step <= 0:
        raise error_at(f"sweep.space.{key}.step: expected a number above 0, got {step!r}", origin)
    if is_log:
        raise error_at(f"sweep.space.{key}: a logarithmic range has no step", origin)


def _sort_by_conditions(
    dimensions: Mapping[str, Dimension], resolved: Resolved, problems: Problems
) -> Iterator[Dimension]:
    """Put each key after those that its ``when`` names, and note conditions that never hold."""
    left = {}
    for key, dimension in dimensions.items():
        error = _find_impossible(dimension, dimensions)
        given = resolved.section("sweep")["space"]
        if any(
            name in given and name not in dimensions for name, _ in dimension.when
        ):  # whose own values are wrong, which is reported
            continue
        if error is None:
            left[key] = _complete_conditions(dimension, dimensions)
            continue
        problems.add(error_at(error, resolved.origin_of(("sweep", "space", key, "when"))))
    done: set[str] = set()
    while left:
        ready = [
            each
            for each in left.values()
            if all(name in done for name, _ in each.when if name in dimensions)
        ]
        if not ready:
            key = next(iter(left))
            text = f"sweep.space.{key}.when: {' and '.join(left)} depend on one another"
            problems.add(error_at(text, resolved.origin_of(("sweep", "space", key, "when"))))
            return
        for each in ready:
            done.add(each.key)
            del left[each.key]
            yield each


def _find_impossible(dimension: Dimension, dimensions: Mapping[str, Dimension]) -> str | None:
    """Return why a condition never holds; None if it can."""
    for name, values in dimension.when:
        other = dimensions.get(name)
        head = f"sweep.space.{dimension.key}.when"
        if other is None:
            known = [key for key in dimensions if key != dimension.key]
            return (
                f"{head}: {name} is not searched{near(name, known)}; searched are"
                f" {', '.join(known) or 'no others'}"
            )
        wrong = [value for value in values if not _find_values(other, value)]
        if wrong:
            return f"{head}: it never holds: {name} is never {', '.join(map(str, wrong))}"
    return None


def _find_values(dimension: Dimension, value: Any) -> list[Any]:
    """Return the values of a dimension that one in a condition stands for.

    Layers by the end of their paths.
    """
    if dimension.kind == "layers" and isinstance(value, str):
        return [
            each for each in dimension.choices if each == value or str(each).endswith(f"/{value}")
        ]
    return [dimension.clean(value)] if dimension.contains(value) else []


def _complete_conditions(dimension: Dimension, dimensions: Mapping[str, Dimension]) -> Dimension:
    """Put the values of the other keys in the place of those that a condition has.

    The values are those that are proposed.
    """
    when = []
    for name, values in dimension.when:
        found = [each for value in values for each in _find_values(dimensions[name], value)]
        when.append((name, tuple(found)))
    return replace(dimension, when=tuple(when))
