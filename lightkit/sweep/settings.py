"""The `sweep` section of a config: which values are searched, how, and by which metric.

No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from lightkit.config import Problems, Resolved, error_at, read_scalar
from lightkit.config.bounds import Bounds, FiniteFloat, Form, NonNegativeInt, PositiveInt
from lightkit.errors import ConfigError
from lightkit.runs.metric_mode import infer_mode
from lightkit.sweep.space import Space, parse_space

SECTION = "sweep"
NUM_STARTUP = 5
"""Number of complete trials before the median prunes one, as Optuna's `MedianPruner` has it."""
_DEFAULT_TRIALS = 40
_MOST_GRID_POINTS = 100_000
_PRUNER_OF = {"warmup_epochs": "median", "min_epochs": "hyperband"}
"""Keys of a pruner, each with the only kind that has it."""
_METRIC = Form(
    r"(?s)(?!test([/_]|$)).*\S.*",
    "a metric of the validation split, such as val/loss (a model that is chosen by the test split"
    " has none left to be judged by)",
)
_PrunerKind = Literal["median", "hyperband", "none"]


class PrunerKeys(TypedDict, total=False):
    """Which trials are stopped early, as a config has it."""

    kind: _PrunerKind
    warmup_epochs: NonNegativeInt
    min_epochs: PositiveInt


class MetricBounds(TypedDict, total=False):
    """Bounds of a metric."""

    min: FiniteFloat
    max: FiniteFloat


class Confirmation(TypedDict):
    """How many points are trained again, and with how many seeds."""

    top: PositiveInt
    seeds: Annotated[int, Bounds(ge=2)]


@dataclass
class SweepSettings:
    """A search for the best values of keys by `lightkit sweep`; `lightkit fit` passes it over.

    Args:
        metric: Logged metric that is searched for its best value, such as `val/loss`, not of the
            test split: a model that is chosen by it has none left to be judged by. `null`: the one
            that the checkpoint monitors.
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

    metric: Annotated[str, _METRIC] | None = None
    mode: Literal["min", "max"] | None = None
    trials: PositiveInt | None = None
    parallel: PositiveInt | Literal["auto"] = 1
    sampler: Literal["tpe", "random", "grid", "qmc"] = "tpe"
    pruner: PrunerKeys | _PrunerKind | None = None
    constraints: dict[str, MetricBounds | None] | None = None
    confirm: Confirmation | None = None
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
    settings = resolved.read_section(SECTION, SweepSettings)
    space = parse_space(resolved, problems)
    max_epochs = read_scalar(resolved.section("trainer").get("max_epochs"))
    confirm = settings.confirm or {"top": 0, "seeds": 0}
    plan = Plan(
        metric=settings.metric,
        mode=settings.mode,
        num_trials=settings.trials or _count_trials(settings.sampler, space),
        parallel=settings.parallel,
        sampler=settings.sampler,
        pruner=_read_pruner(settings.pruner, resolved, problems),
        constraints=_read_constraints(settings.constraints or {}, resolved, problems),
        num_confirmed=confirm["top"],
        num_seeds=confirm["seeds"],
        max_failures=settings.max_failures,
        seed=read_seed(resolved) if settings.seed is None else settings.seed,
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


def _read_pruner(
    given: PrunerKeys | _PrunerKind | None, resolved: Resolved, problems: Problems
) -> Pruner:
    """Read which trials are stopped early: a word, or a mapping with its kind."""
    if given is None or isinstance(given, str):
        return Pruner(kind=given or "none")
    keys: Mapping[str, Any] = {"kind": "median", **given}
    pruner = Pruner(**keys)
    for key in given:
        kind = _PRUNER_OF.get(key, pruner.kind)
        if kind != pruner.kind:
            text = f"sweep.pruner.{key}: is for the kind {kind} only, and the kind is {pruner.kind}"
            problems.add(error_at(text, resolved.origin_of((SECTION, "pruner", key))))
    return pruner


def _read_constraints(
    given: Mapping[str, MetricBounds | None], resolved: Resolved, problems: Problems
) -> dict[str, dict[str, float]]:
    """Read the bounds of metrics; a layer has removed those that are null."""
    found: dict[str, dict[str, float]] = {}
    for name, bounds in given.items():
        if bounds is None:
            continue
        # floats, whatever is written: the digest of a search has them
        numbers: Mapping[str, Any] = dict(bounds)
        found[name] = {key: float(number) for key, number in numbers.items()}
        if not bounds or bounds.get("min", -math.inf) > bounds.get("max", math.inf):
            text = f"sweep.constraints.{name}: expected bounds such as {{max: 0.8}}, got {bounds!r}"
            problems.add(error_at(text, resolved.origin_of((SECTION, "constraints", name))))
    return found


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
