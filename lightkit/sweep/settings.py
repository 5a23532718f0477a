"""The `sweep` section of a config: which values are searched, how, and by which metric.

No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from lightkit.config import Problems, Resolved, error_at, near, read_scalar
from lightkit.config.bounds import PositiveInt, is_int, is_number
from lightkit.errors import ConfigError
from lightkit.runs.metric_mode import infer_mode
from lightkit.sweep.space import Space, parse_space

SECTION = "sweep"
NUM_STARTUP = 5
"""Number of complete trials before the median prunes one, as Optuna's `MedianPruner` has it."""
_DEFAULT_TRIALS = 40
_MOST_GRID_POINTS = 100_000
_PRUNERS = ("median", "hyperband", "none")
_PRUNER_KEYS = {
    "median": ("kind", "warmup_epochs"),
    "hyperband": ("kind", "min_epochs"),
    "none": ("kind",),
}
_CONFIRM_KEYS = ("top", "seeds")
_BOUNDS = ("min", "max")


@dataclass
class SweepSettings:
    """A search for the best values of keys by `lightkit sweep`; `lightkit fit` passes it over.

    Args:
        metric: Logged metric that is searched for its best value, such as `val/loss`. `null`: the
            one that the checkpoint monitors.
        mode: Whether small (`min`) or large (`max`) values are good. `null`: as the config, the
            metric's object or its name says.
        trials: Number of finished trials in total, over all starts; the config itself is the first.
            `null`: 40, or the whole grid.
        parallel: Number of trials at a time. `auto`: by the cores, the GPUs and the memory that the
            first trial takes.
        sampler: `tpe`: Optuna's tree of Parzen estimators; `random`; `qmc`: a Sobol sequence; or
            `grid`: all points.
        pruner: Which trials are stopped early: `median`: those worse than the median at their
            epoch, as `{kind: median, warmup_epochs: 3}`; `hyperband`, as
            `{kind: hyperband, min_epochs: 1}`; or `none`.
        constraints: Bounds of logged metrics, or of `params`, the number of the model's parameters,
            as `{params: {max: 5e6}}`; a trial that breaks one is never the best. One of the test
            split has each trial tested.
        confirm: `{top: 3, seeds: 3}`: train the best three and the config itself again, each with
            three fresh seeds; the mean decides. `null`: nothing is trained again.
        max_failures: Number of trials that fail for the same reason, one after another, after which
            the sweep ends.
        seed: Seed of the proposals. `null`: `seed_everything`, or 0.
        space: The searched keys, each with its values: `{log: [1e-5, 1e-1]}`,
            `{float: [0, 0.3], step: 0.1}`, `{int: [16, 128], step: 16}`, a list of choices, or
            `{layers: [a.yaml, b.yaml]}`, of which one is added to the config;
            `when: {OTHER: [VALUES]}` has a key in effect with these values of another alone.
    """

    metric: str | None = None
    mode: Literal["min", "max"] | None = None
    trials: PositiveInt | None = None
    parallel: PositiveInt | Literal["auto"] = 1
    sampler: Literal["tpe", "random", "grid", "qmc"] = "tpe"
    pruner: dict[str, Any] | str | None = None
    constraints: dict[str, dict[str, float]] | None = None
    confirm: dict[str, int] | None = None
    max_failures: PositiveInt = 5
    seed: int | None = None
    space: dict[str, Any] | None = None


@dataclass(frozen=True)
class Pruner:
    """Which trials are stopped early.

    Args:
        kind: ``median``, ``hyperband`` or ``none``.
        warmup_epochs: Number of epochs after which the median may stop a trial.
        min_epochs: Fewest epochs of a trial under Hyperband.
    """

    kind: str = "none"
    warmup_epochs: int = 0
    min_epochs: int = 1

    @property
    def prunes(self) -> bool:
        """Return whether it stops any trial."""
        return self.kind != "none"


@dataclass(frozen=True)
class Plan:
    """A sweep as it is run.

    Args:
        metric: The metric; None where the first trial has to tell.
        mode: ``min`` or ``max``; None where the first trial has to tell.
        num_trials: Number of finished trials in total.
        parallel: Number of trials at a time, or ``auto``.
        sampler: How points are proposed; ``seeds`` where the same config is trained with other
            seeds.
        pruner: Which trials are stopped early.
        constraints: Bounds by metric.
        num_confirmed: Number of points that are trained again.
        num_seeds: Number of fresh seeds for each of them.
        max_failures: Number of equal failures in a row that ends the sweep.
        seed: Seed of the proposals.
        space: What is searched.
        max_epochs: Epochs of a trial, where the config says.
    """

    metric: str | None = None
    mode: str | None = None
    num_trials: int = _DEFAULT_TRIALS
    parallel: int | Literal["auto"] = 1
    sampler: str = "tpe"
    pruner: Pruner = field(default_factory=Pruner)
    constraints: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    num_confirmed: int = 0
    num_seeds: int = 0
    max_failures: int = 5
    seed: int = 0
    space: Space = field(default_factory=Space)
    max_epochs: int | None = None

    @property
    def needs_test(self) -> bool:
        """Return whether a constraint is of the test split, so that each trial is tested."""
        return any(name.startswith("test/") for name in self.constraints)


def has_sweep(resolved: Resolved) -> bool:
    """Return whether a config has the section, and something in it."""
    return bool(resolved.section(SECTION))


def read_sweep(resolved: Resolved, problems: Problems) -> Plan:
    """Read the `sweep` section of a config, whose keys and types are checked with all others.

    Args:
        resolved: The config.
        problems: Takes what is wrong, with its place.
    """
    section = resolved.section(SECTION)
    known = {each.name for each in fields(SweepSettings)}
    given = {
        key: read_scalar(value)
        for key, value in section.items()
        if key in known and value is not None
    }
    reader = _Reader(resolved, given, problems)
    space = parse_space(resolved, problems)
    max_epochs = read_scalar(resolved.section("trainer").get("max_epochs"))
    sampler = reader.read_word("sampler", ("tpe", "random", "grid", "qmc"), "tpe")
    metric = reader.read_metric()
    num_trials = reader.read_count("trials", 0)
    confirm = reader.read_confirm()
    plan = Plan(
        metric=metric,
        mode=reader.read_word("mode", ("min", "max"), None),
        num_trials=num_trials or _count_trials(sampler, space),
        parallel=reader.read_parallel(),
        sampler=str(sampler),
        pruner=reader.read_pruner(),
        constraints=reader.read_constraints(),
        num_confirmed=confirm.get("top", 0),
        num_seeds=confirm.get("seeds", 0),
        max_failures=reader.read_count("max_failures", 5),
        seed=int(given["seed"]) if isinstance(given.get("seed"), int) else read_seed(resolved),
        space=space,
        max_epochs=max_epochs if isinstance(max_epochs, int) and max_epochs > 0 else None,
    )
    _check_together(plan, resolved, problems)
    return plan


def read_seed(resolved: Resolved) -> int:
    """Return the seed of a config; 0 where it sets none."""
    seed = read_scalar(resolved.value_of("seed_everything"))
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else 0


def find_mode(metric: str, plan: Plan, known: Mapping[str, Any]) -> str | None:
    """Return whether small or large values of the metric are good; None if nothing tells.

    Args:
        metric: The metric.
        plan: The sweep.
        known: Modes by metric, of the config or of a run.
    """
    return infer_mode(metric, explicit=plan.mode, recorded=known)


def _count_trials(sampler: str | None, space: Space) -> int:
    """Return the number of trials if none is named: the whole grid and the config itself."""
    if sampler != "grid":
        return _DEFAULT_TRIALS
    return (space.count_points(_MOST_GRID_POINTS) or 0) + 1


class _Reader:
    """Reads the keys of the section; what is wrong is noted, and a default takes its place.

    Args:
        resolved: The config.
        given: The section's values.
        problems: Takes the errors.
    """

    def __init__(self, resolved: Resolved, given: Mapping[str, Any], problems: Problems) -> None:
        self._resolved = resolved
        self._given = given
        self._problems = problems

    def _note(self, key: str, text: str, *more: str) -> None:
        origin = self._resolved.origin_of((SECTION, key, *more)) or self._resolved.origin_of(
            (SECTION, key)
        )
        self._problems.add(error_at(f"sweep.{'.'.join((key, *more))}: {text}", origin))

    def read_word(self, key: str, choices: tuple[str, ...], default: str | None) -> str | None:
        """Read one of some words; the schema reports another."""
        value = self._given.get(key, default)
        return str(value) if value in choices else default

    def read_count(self, key: str, default: int) -> int:
        """Read a number of at least 1; the schema reports another value."""
        value = self._given.get(key, default)
        return value if is_int(value, 1) else default

    def read_parallel(self) -> int | Literal["auto"]:
        """Read the number of trials at a time."""
        return "auto" if self._given.get("parallel") == "auto" else self.read_count("parallel", 1)

    def read_metric(self) -> str | None:
        """Read the metric, which is not of the test split."""
        metric = self._given.get("metric")
        if metric is None:
            return None
        if not isinstance(metric, str) or not metric.strip():
            self._note("metric", f"expected a logged metric, such as val/loss, got {metric!r}")
            return None
        if metric.replace("_", "/").startswith("test/"):
            self._note(
                "metric",
                f"expected a metric of the validation split, such as val/loss, got {metric}: a"
                " model that is chosen by the test split has none left to be judged by",
            )
            return None
        return metric

    def read_pruner(self) -> Pruner:
        """Read which trials are stopped early: a word, or a mapping with its kind."""
        given = self._given.get("pruner")
        if given is None:
            return Pruner()
        block = {"kind": given} if isinstance(given, str) else given
        if not isinstance(block, Mapping):
            self._note(
                "pruner",
                f"expected {', '.join(_PRUNERS)}, or a mapping with its kind, got {given!r}",
            )
            return Pruner()
        kind = block.get("kind", "median")
        if kind not in _PRUNERS:
            self._note(
                "pruner", f"expected {', '.join(_PRUNERS)}, got {kind!r}{near(str(kind), _PRUNERS)}"
            )
            return Pruner()
        values = {}
        for key, value in block.items():
            number = read_scalar(value)
            if key not in _PRUNER_KEYS[kind]:
                known = _PRUNER_KEYS[kind]
                self._note(
                    "pruner",
                    f"{kind} has no such key{near(str(key), known)}; it has {', '.join(known)}",
                    key,
                )
            elif key != "kind" and not is_int(number, 1 if key == "min_epochs" else 0):
                self._note("pruner", f"expected a number of epochs, got {value!r}", key)
            elif key != "kind":
                values[str(key)] = number
        return Pruner(kind=str(kind), **values)

    def read_constraints(self) -> dict[str, dict[str, float]]:
        """Read the bounds of metrics."""
        given = self._given.get("constraints")
        found: dict[str, dict[str, float]] = {}
        if given is None:
            return found
        if not isinstance(given, Mapping):
            self._note(
                "constraints",
                f"expected bounds by metric, such as {{params: {{max: 5e6}}}}, got {given!r}",
            )
            return found
        for name, bounds in given.items():
            if bounds is None:
                continue
            block = (
                {key: read_scalar(each) for key, each in bounds.items()}
                if isinstance(bounds, Mapping)
                else {}
            )
            is_right = {*block} <= {*_BOUNDS} and all(is_number(each) for each in block.values())
            if (
                not block
                or not is_right
                or block.get("min", -math.inf) > block.get("max", math.inf)
            ):
                self._note(
                    "constraints",
                    f"expected bounds such as {{max: 0.8}}, got {bounds!r}",
                    str(name),
                )
                continue
            found[str(name)] = {str(key): float(each) for key, each in block.items()}
        return found

    def read_confirm(self) -> dict[str, int]:
        """Read how many points are trained again, and with how many seeds."""
        given = self._given.get("confirm")
        if given is None:
            return {}
        block = (
            {key: read_scalar(each) for key, each in given.items()}
            if isinstance(given, Mapping)
            else {}
        )
        is_right = {*block} == {*_CONFIRM_KEYS} and all(map(is_int, block.values()))
        if not is_right or block["top"] < 1 or block["seeds"] < 2:
            text = (
                "expected {top: 3, seeds: 3}: points, at least 1, and"
                f" seeds, at least 2; got {given!r}"
            )
            self._note("confirm", text)
            return {}
        return {str(key): int(each) for key, each in block.items()}


def _check_together(plan: Plan, resolved: Resolved, problems: Problems) -> None:
    """Check what two keys say together: a grid of ranges, and a pruner that can never prune."""

    def note(text: str, *path: str) -> None:
        problems.add(error_at(text, resolved.origin_of((SECTION, *path))))

    if plan.sampler == "grid":
        for each in plan.space.dimensions:
            if each.num_values is None:
                text = (
                    f"sweep.space.{each.key}: a grid needs a list of values, or a range with a step"
                )
                note(f"{text}; or choose another sweep.sampler", "space", each.key)
    pruner = plan.pruner
    if pruner.kind == "median":
        if plan.max_epochs is not None and pruner.warmup_epochs >= plan.max_epochs:
            note(
                f"sweep.pruner: it can never prune: warmup_epochs is {pruner.warmup_epochs}, and a"
                f" trial has trainer.max_epochs={plan.max_epochs}",
                *("pruner", "warmup_epochs"),
            )
        if plan.num_trials <= NUM_STARTUP:
            note(
                f"sweep.pruner: it can never prune: the median needs {NUM_STARTUP} complete trials"
                f" before it, and sweep.trials is {plan.num_trials}",
                "pruner",
            )
    if (
        pruner.kind == "hyperband"
        and plan.max_epochs is not None
        and pruner.min_epochs >= plan.max_epochs
    ):
        note(
            f"sweep.pruner: it can never prune: min_epochs is {pruner.min_epochs}, and a trial has "
            f"trainer.max_epochs={plan.max_epochs}",
            "pruner",
        )


def require_space(plan: Plan) -> None:
    """Refuse a sweep of nothing.

    Raises:
        ConfigError: If no key is searched.
    """
    if not plan.space.dimensions and plan.sampler != "seeds":
        raise ConfigError(
            "sweep: nothing is searched: set sweep.space in the config, such as"
            " model.learning_rate: {log: [1e-5, 1e-1]}, or give --space"
            " KEY=VALUE,VALUE, or --seeds N"
        )


def list_shadowed(plan: Plan, resolved: Resolved) -> list[ConfigError]:
    """List searched keys that a flag or a variable sets, which would win over each trial."""
    found = []
    for dimension in plan.space.dimensions:
        origin = None if dimension.kind == "layers" else resolved.origin_of(dimension.key)
        if origin is not None and origin.kind in ("flag", "variable"):
            text = (
                f"{dimension.key} is searched (sweep.space), and is set by {origin}, which would"
                " win over each trial"
            )
            found.append(error_at(f"{text}; leave one of them out", origin))
    return found
