"""Proposals: equal after a restart, none twice, and good ones where there is an optimum."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from lightkit.errors import ConfigError
from lightkit.sweep.record import Trial
from lightkit.sweep.results import rank_trials
from lightkit.sweep.search import Search, require_optuna
from lightkit.sweep.settings import Plan, Pruner
from lightkit.sweep.space import Dimension, Space

pytest.importorskip("optuna", reason="needs the extra lightkit[sweep]")

SPACE = Space(
    (
        Dimension("rate", "float", low=1e-5, high=1e-1, is_log=True),
        Dimension("smoothing", "float", low=0.0, high=0.3, step=0.1),
        Dimension("size", "int", low=16, high=128, step=16),
        Dimension("net", "choice", choices=(1, 1.0, True, "a")),
        Dimension("frozen", "choice", choices=("none", "all"), when=(("net", ("a",)),)),
    )
)


def measure(params: dict[str, Any]) -> float:
    """A planted optimum: rate 3e-3, smoothing 0.1, size 64, net a, frozen all."""
    loss: float = (math.log10(params["rate"] / 3e-3)) ** 2 + 10 * (params["smoothing"] - 0.1) ** 2
    loss += ((params["size"] - 64) / 64) ** 2 + (0 if params["net"] == "a" else 0.5)
    return loss + (0.2 if params.get("frozen") == "none" else 0.0)


def run(
    plan: Plan,
    number: int,
    *,
    restarts: bool = False,
    measured: Callable[[dict[str, Any]], float] = measure,
    epochs: int = 0,
) -> list[Trial]:
    """Run a search without a training; with restarts the study is rebuilt before each proposal."""
    trials: list[Trial] = []
    search = Search(plan, "min")
    for at in range(number):
        if restarts:
            search = Search(plan, "min")
            search.rebuild(trials)
        params = search.propose(at)
        if params is None:
            break
        trial = Trial(at, params)
        trials.append(trial)
        search.begin(trial)
        trial.state = "complete"
        trial.value = measured(params)
        for epoch in range(epochs):
            trial.values[epoch] = trial.value + 1.0 / (epoch + 1)
            if search.report(trial, epoch, trial.values[epoch]):
                trial.state = "pruned"
                trial.value = trial.values[epoch]
                break
        search.finish(trial)
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
def test_a_search_that_restarts_proposes_the_same_points(sampler: str) -> None:
    plan = Plan(sampler=sampler, seed=3, space=SPACE)
    whole = [each.params for each in run(plan, 25)]
    assert [each.params for each in run(plan, 25, restarts=True)] == whole
    assert len({repr(each) for each in whole}) == 25
    other = Plan(sampler=sampler, seed=4, space=SPACE)
    assert [each.params for each in run(other, 25)] != whole


@pytest.mark.parametrize("kind", ["median", "hyperband"])
def test_a_search_that_restarts_prunes_the_same_trials(kind: str) -> None:
    plan = Plan(seed=1, space=SPACE, pruner=Pruner(kind, warmup_epochs=1), max_epochs=9)
    whole = [(each.params, each.state, each.values) for each in run(plan, 30, epochs=9)]
    states = [state for _, state, _ in whole]
    assert states.count("pruned") >= 3
    assert states.count("complete") >= 5
    assert [
        (each.params, each.state, each.values) for each in run(plan, 30, epochs=9, restarts=True)
    ] == whole


def test_choices_that_python_holds_equal_are_all_proposed() -> None:
    plan = Plan(seed=0, space=Space((SPACE["net"], SPACE["rate"])))
    proposed = {
        repr(each.params["net"]) for each in run(plan, 40, measured=lambda params: params["rate"])
    }
    assert proposed == {"1", "1.0", "True", "'a'"}


def test_a_key_is_proposed_only_where_its_condition_holds() -> None:
    for trial in run(Plan(seed=0, space=SPACE), 30):
        assert ("frozen" in trial.params) == (trial.params["net"] == "a")
        assert trial.params["smoothing"] in (0.0, 0.1, 0.2, 0.3)


def test_a_grid_is_each_point_once_in_order() -> None:
    space = Space(
        (Dimension("a", "choice", choices=(1, 2)), Dimension("b", "int", low=0, high=4, step=2))
    )
    grid = run(Plan(sampler="grid", space=space), 99, measured=lambda params: 0.0)
    points = [(each.params["a"], each.params["b"]) for each in grid]
    assert points == [(1, 0), (1, 2), (1, 4), (2, 0), (2, 2), (2, 4)]


def test_a_small_space_ends_once_all_of_it_is_tried() -> None:
    space = Space((Dimension("a", "choice", choices=(1, 2, 3)),))
    found = run(Plan(seed=0, space=space), 50, measured=lambda params: float(params["a"]))
    assert sorted(each.params["a"] for each in found) == [1, 2, 3]


def test_a_trial_that_breaks_a_constraint_draws_the_search_away() -> None:
    """The optimum is where a bound is broken: most later proposals keep it."""

    def search(bounds: dict[str, dict[str, float]]) -> int:
        plan = Plan(seed=0, space=Space((SPACE["rate"],)), constraints=bounds)
        trials: list[Trial] = []
        asked = Search(plan, "min")
        for number in range(40):
            params = asked.propose(number)
            assert params is not None
            trial = Trial(number, params, state="complete", value=-math.log10(params["rate"]))
            trial.constraints = {"rate": params["rate"]} if bounds else {}
            trials.append(trial)
            asked.begin(trial)
            asked.finish(trial)
        return sum(each.params["rate"] > 1e-3 for each in trials[20:])

    assert search({"rate": {"max": 1e-3}}) < search({}) / 2


def test_trials_that_fail_draw_the_search_away() -> None:
    """Rates above 1e-3 diverge, close to the best; at random half of the trials do."""
    space = Space((Dimension("rate", "float", low=1e-5, high=1e-1, is_log=True),))
    num_failed = []
    for seed in range(5):
        search = Search(Plan(seed=seed, space=space), "min")
        trials: list[Trial] = []
        for at in range(40):
            params = search.propose(at)
            assert params is not None
            trial = Trial(at, params)
            search.begin(trial)
            is_stable = params["rate"] <= 1e-3
            trial.state = "complete" if is_stable else "failed"
            trial.value = abs(math.log10(params["rate"] / 5e-4)) if is_stable else None
            search.finish(trial)
            trials.append(trial)
        num_failed.append(sum(each.state == "failed" for each in trials))
        rebuilt = Search(Plan(seed=seed, space=space), "min")
        rebuilt.rebuild(trials)
        assert rebuilt.propose(40) == search.propose(40)
    assert max(num_failed) < 20


def test_a_config_outside_of_the_space_is_compared_and_changes_no_proposal() -> None:
    plan = Plan(seed=2, space=SPACE)
    own = Trial(
        0, {"rate": 0.5, "smoothing": 0.0, "size": 16, "net": "a"}, state="complete", value=-1.0
    )
    with_own = Search(plan, "min")
    with_own.rebuild([own])
    assert with_own.propose(1) == Search(plan, "min").propose(1)
    inside = Search(plan, "min")
    inside.rebuild(
        [Trial(0, {**own.params, "rate": 0.05, "frozen": "all"}, state="complete", value=-1.0)]
    )
    others = [inside.propose(number) for number in range(1, 4)]
    assert all(each is not None and SPACE.contains(each) for each in others)
    assert rank_trials([own, Trial(1, {}, state="complete", value=0.0)], plan, "min")[0] is own


def test_without_optuna_a_search_says_what_to_install_and_a_random_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setitem(sys.modules, "optuna.trial", None)
    with pytest.raises(
        ConfigError, match=r"sweep\.sampler: it needs Optuna 5: install it with pip install"
    ):
        require_optuna(Plan(space=SPACE))
    with pytest.raises(ConfigError, match=r"sweep\.pruner: it needs Optuna 5"):
        require_optuna(Plan(sampler="random", pruner=Pruner("median"), space=SPACE))
    plan = Plan(sampler="random", space=SPACE)
    require_optuna(plan)
    assert len(run(plan, 5)) == 5


@pytest.mark.slow
def test_forty_trials_are_within_the_best_two_percent_for_nine_of_ten_seeds() -> None:
    draw = random.Random(0)
    losses = sorted(
        measure(SPACE.from_unit([draw.random() for _ in SPACE.dimensions])) for _ in range(1000)
    )
    bound = losses[20]

    def count(sampler: str) -> int:
        best = (
            min(
                run(Plan(sampler=sampler, seed=seed, space=SPACE), 40), key=lambda t: t.value or 0.0
            )
            for seed in range(10)
        )
        return sum((each.value or 0.0) <= bound for each in best)

    assert count("tpe") >= 9
    assert count("random") < 9
