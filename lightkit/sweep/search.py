"""Proposals and pruning.

Optuna is asked through its public interface, on a study that is rebuilt from the record.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lightkit.errors import ConfigError
from lightkit.sweep.record import Trial
from lightkit.sweep.settings import NUM_STARTUP, Plan
from lightkit.sweep.space import Dimension, Space, find_choice, identify_point

if TYPE_CHECKING:
    import optuna

STUDY = "lightkit"
"""Name of each study: Optuna's Hyperband assigns brackets by a checksum of the name and the trial's
number."""
_MOST_ATTEMPTS = 50  # to propose a point that no trial has had
_ADVICE = "install it with pip install 'lightkit-train[sweep]'"


def require_optuna(plan: Plan) -> None:
    """Refuse a sweep that needs Optuna where it is missing or too old.

    Raises:
        ConfigError: If it is.
    """
    if plan.sampler != "tpe" and not plan.pruner.prunes:
        return
    try:
        from optuna.trial import Trial as OptunaTrial  # here: it is an extra
    except ImportError:
        key = "sampler" if plan.sampler == "tpe" else "pruner"
        raise ConfigError(
            f"sweep.{key}: it needs Optuna 5: {_ADVICE}; or choose sampler: random, no pruner"
        ) from None
    if not hasattr(OptunaTrial, "set_constraint"):
        raise ConfigError(f"sweep: it needs Optuna 5, and an older one is installed: {_ADVICE}")


def derive_seed(seed: int, number: int, attempt: int = 0) -> int:
    """Return the seed of one proposal, by that of the sweep and the number of the trial.

    A sampler that is seeded once repeats its first proposals after each restart.
    """
    text = f"{seed}/{number}/{attempt}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")


class Search:
    """The search: which point comes next, and which trial is stopped early.

    The study holds all trials of the search in the order in which they began, but for a trial 0
    outside the space.

    Args:
        plan: The sweep.
        mode: ``min`` or ``max``.
    """

    def __init__(self, plan: Plan, mode: str) -> None:
        self._plan = plan
        self._mode = mode
        self._points: set[str] = set()
        self._live: dict[int, optuna.Trial] = {}  # those of the study, by their numbers here
        self._reported: dict[int, set[int]] = {}
        self._stopped: dict[int, int] = {}
        self._uses_study = plan.sampler == "tpe" or plan.pruner.prunes
        self._study = self._create_study() if self._uses_study else None

    def rebuild(self, trials: Iterable[Trial]) -> None:
        """Add the trials of a record."""
        for trial in trials:
            if trial.kind != "search":
                continue
            self.begin(trial)
            for epoch, value in sorted(trial.values.items()):
                if trial.is_finished:
                    self.report(trial, epoch, value)
            if trial.is_finished:
                self.finish(trial)

    def propose(self, number: int) -> dict[str, Any] | None:
        """Return the values of a trial; None where each point of the space has had its trial.

        Args:
            number: Number of the trial.
        """
        if self._plan.sampler == "grid":
            return next(
                (each for each in self._plan.space.iterate_points() if not self._is_known(each)),
                None,
            )
        for attempt in range(_MOST_ATTEMPTS):
            params = self._sample(number, attempt)
            if not self._is_known(params):
                return params
        if self._plan.space.is_finite:  # what is left of it is hard to hit
            return next(
                (each for each in self._plan.space.iterate_points() if not self._is_known(each)),
                None,
            )
        return None

    def _is_known(self, params: Mapping[str, Any]) -> bool:
        return identify_point(params) in self._points

    def _sample(self, number: int, attempt: int) -> dict[str, Any]:
        space = self._plan.space
        seed = derive_seed(self._plan.seed, number, attempt)
        if self._plan.sampler == "tpe":
            return self._ask(seed)
        if self._plan.sampler == "qmc":
            from scipy.stats import qmc  # here: it takes half a second

            engine = qmc.Sobol(len(space.dimensions), scramble=True, rng=self._plan.seed)
            # a power of two is advised, and no trial count is known before
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                shares = engine.random(number + attempt * 1021 + 1)[-1]
            return space.from_unit([float(share) for share in shares])
        import numpy as np  # here: the help needs none of it

        return space.from_unit(np.random.default_rng(seed).random(len(space.dimensions)).tolist())

    # -- Optuna ------------------------------------------------------------------------------------

    def _create_study(self, *, seed: int | None = None) -> optuna.Study:
        import optuna  # here: it takes half a second, and is an extra

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        direction: Literal["minimize", "maximize"] = (
            "minimize" if self._mode == "min" else "maximize"
        )
        sampler = optuna.samplers.TPESampler(seed=seed)
        return optuna.create_study(
            study_name=STUDY, direction=direction, sampler=sampler, pruner=self._create_pruner()
        )

    def _create_pruner(self) -> optuna.pruners.BasePruner:
        import optuna

        pruner = self._plan.pruner
        if pruner.kind == "median":
            return optuna.pruners.MedianPruner(
                n_startup_trials=NUM_STARTUP, n_warmup_steps=pruner.warmup_epochs
            )
        if pruner.kind == "hyperband":
            most = self._plan.max_epochs
            return optuna.pruners.HyperbandPruner(
                min_resource=pruner.min_epochs, max_resource="auto" if most is None else most
            )
        return optuna.pruners.NopPruner()

    def _ask(self, seed: int) -> dict[str, Any]:
        """Ask a new sampler on a copy of the study, which the proposal itself leaves as it is."""
        assert self._study is not None
        probe = self._create_study(seed=seed)
        probe.add_trials(self._study.get_trials(deepcopy=False))
        trial = probe.ask()
        params: dict[str, Any] = {}
        space = self._plan.space
        for each in space.dimensions:
            if space.is_active(each, params):
                params[each.key] = _suggest(trial, each)
        return params

    def begin(self, trial: Trial) -> None:
        """Add a trial that is about to run."""
        self._points.add(identify_point(trial.params))
        space = self._plan.space
        if self._study is None or not space.contains(trial.params):
            return
        active = [each for each in space.dimensions if space.is_active(each, trial.params)]
        self._study.enqueue_trial(
            {each.key: _encode(each, trial.params[each.key]) for each in active}
        )
        live = self._study.ask()
        for each in active:
            _suggest(live, each)
        self._live[trial.number] = live

    def report(self, trial: Trial, epoch: int, value: float) -> bool:
        """Report a value and return whether the trial is to be stopped after this epoch.

        The first one is never.

        Args:
            trial: The trial, which has begun.
            epoch: The epoch, from 0.
            value: Its value of the metric.
        """
        if self._study is None or not self._plan.pruner.prunes or trial.number not in self._live:
            return False
        stopped = self._stopped.get(trial.number)
        if stopped is not None:
            return epoch >= stopped
        known = self._reported.setdefault(trial.number, set())
        if epoch in known:  # trained again after a resume
            return False
        known.add(epoch)
        live = self._live[trial.number]
        live.report(value, epoch + 1)
        if live.should_prune() and trial.number > 0:
            self._stopped[trial.number] = epoch
            return True
        return False

    def find_stop(self, trial: Trial) -> int | None:
        """Return the epoch after which a trial was to be stopped; None if it was not."""
        return self._stopped.get(trial.number)

    def finish(self, trial: Trial) -> None:
        """Add the end of a trial to the study.

        A trial that has failed ranks below all complete ones, as one that was stopped early does.
        """
        if self._study is None or trial.number not in self._live:
            return
        import optuna

        states = optuna.trial.TrialState
        live = self._live[trial.number]
        if trial.state == "complete":
            violations = trial.list_violations(self._plan.constraints)
            for name in self._plan.constraints:
                live.set_constraint(name, violations.get(name, 0.0))
            self._study.tell(live, trial.value)
        else:
            # also of one that failed: samplers leave FAIL out, and propose such points again
            self._study.tell(live, state=states.PRUNED)


def _distribute(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """Return the distribution of a dimension; a choice is known by its position.

    Of two choices that Python holds equal, 1 and 1.0, Optuna would propose the second alone.
    """
    import optuna

    if not dimension.is_range:
        return optuna.distributions.CategoricalDistribution(range(len(dimension.choices)))
    if dimension.kind == "int":
        step = 1 if dimension.step is None else int(dimension.step)
        return optuna.distributions.IntDistribution(
            int(dimension.low), _align_end(dimension, step), log=dimension.is_log, step=step
        )
    high = dimension.high if dimension.step is None else dimension.last_value
    return optuna.distributions.FloatDistribution(
        float(dimension.low), float(high), log=dimension.is_log, step=dimension.step
    )


def _align_end(dimension: Dimension, step: int) -> int:
    """Return the last value of a range with steps; Optuna would warn of another."""
    low = int(dimension.low)
    return low + (int(dimension.high) - low) // step * step


def _encode(dimension: Dimension, value: Any) -> Any:
    if dimension.is_range:
        return value
    return find_choice(dimension.choices, value)


def _suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    import optuna

    distribution = _distribute(dimension)
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        position = trial.suggest_categorical(dimension.key, distribution.choices)
        return dimension.choices[int(str(position))]
    if isinstance(distribution, optuna.distributions.IntDistribution):
        return dimension.clean(
            trial.suggest_int(
                dimension.key,
                distribution.low,
                distribution.high,
                log=distribution.log,
                step=distribution.step,
            )
        )
    assert isinstance(distribution, optuna.distributions.FloatDistribution)
    value = trial.suggest_float(
        dimension.key,
        distribution.low,
        distribution.high,
        log=distribution.log,
        step=distribution.step,
    )
    return dimension.clean(value)


def _make_study(
    dimensions: Sequence[Dimension], mode: str, trials: Iterable[Trial]
) -> optuna.Study:
    """Make a study of Optuna from trials that are complete, with the given dimensions alone."""
    import optuna  # here: it is optional

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name=STUDY, direction="minimize" if mode == "min" else "maximize"
    )
    distributions = {one.key: _distribute(one) for one in dimensions}
    for each in trials:
        params = {one.key: _encode(one, each.params[one.key]) for one in dimensions}
        study.add_trial(
            optuna.create_trial(value=each.value, params=params, distributions=distributions)
        )
    return study


def compute_importance(
    plan: Plan, mode: str, trials: Iterable[Trial]
) -> tuple[dict[str, float], int]:
    """Compute the share of each key in the metric by PED-ANOVA.

    Also compute the number of trials that it is made of.

    https://arxiv.org/abs/2304.10255. It is empty where Optuna is not installed, there are too few
    trials, or one key alone varies, whose share is 1 whatever it does.
    """
    complete = [
        each
        for each in trials
        if (each.kind, each.state) == ("search", "complete") and plan.space.contains(each.params)
    ]
    varied = [each for each in plan.space.dimensions if _is_varied(each.key, complete)]
    if len(complete) < NUM_STARTUP or len(varied) < 2:
        return {}, len(complete)
    try:
        import optuna
    except ImportError:
        return {}, len(complete)
    study = _make_study(varied, mode, complete)
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(value) for key, value in found.items()}, len(complete)


def _is_varied(key: str, trials: Sequence[Trial]) -> bool:
    """Return whether all trials have a value of a key, and not all the same."""
    values = [trial.params[key] for trial in trials if key in trial.params]
    return len(values) == len(trials) and len({identify_point({"": value}) for value in values}) > 1


def describe_space(space: Space) -> dict[str, Any]:
    """Describe a space for the record."""
    described = {}
    for each in space.dimensions:
        fields: dict[str, Any] = {"kind": each.kind}
        if each.is_range:
            fields |= {"low": each.low, "high": each.high, "step": each.step, "log": each.is_log}
        else:
            fields["choices"] = list(each.choices)
        if each.when:
            fields["when"] = {key: list(values) for key, values in each.when}
        described[each.key] = fields
    return described
