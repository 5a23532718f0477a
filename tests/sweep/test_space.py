"""Ranges of a space, and the share of each key in the metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config import Problems, resolve
from lightkit.sweep.record import Trial
from lightkit.sweep.search import compute_importance
from lightkit.sweep.settings import Plan
from lightkit.sweep.space import Dimension, Space, parse_space


def read_range(folder: Path, text: str) -> tuple[Space, list[str]]:
    """The space of one key, and the errors."""
    (folder / "job.yaml").write_text(
        f"sweep:\n  space:\n    model.rate: {text}\n", encoding="utf-8"
    )
    problems = Problems()
    space = parse_space(resolve([folder / "job.yaml"], environ={}), problems)
    return space, [str(each).splitlines()[0] for each in problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{float: [0.5, 2]}", Dimension("model.rate", "float", low=0.5, high=2)),
        (
            "{float: [0.5, 2], step: 0.5}",
            Dimension("model.rate", "float", low=0.5, high=2, step=0.5),
        ),
        ("{log: [0.1, 1]}", Dimension("model.rate", "float", low=0.1, high=1, is_log=True)),
        ("{int: [1, 9], step: 2}", Dimension("model.rate", "int", low=1, high=9, step=2)),
        ("{int: [1, 9], log: true}", Dimension("model.rate", "int", low=1, high=9, is_log=True)),
        ("{int: [1.0, 9]}", Dimension("model.rate", "int", low=1.0, high=9)),
    ],
    ids=["float", "step", "log", "int", "int by logarithm", "whole float"],
)
def test_a_range_is_read(tmp_path: Path, text: str, expected: Dimension) -> None:
    space, errors = read_range(tmp_path, text)
    assert errors == []
    assert space.dimensions == (expected,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{float: 1}", ": expected two numbers, the least and the greatest, got 1"),
        ("{float: [1, 2, 3]}", ": expected two numbers, the least and the greatest, got [1, 2, 3]"),
        ("{int: [1, true]}", ": expected two numbers, the least and the greatest, got [1, True]"),
        ("{float: [2, 1]}", ": the least value, 2, is above the greatest, 1"),
        ("{log: [0, 1]}", ": a logarithmic range begins above 0, and this at 0"),
        ("{int: [0, 8], log: true}", ": a logarithmic range begins above 0, and this at 0"),
        ("{float: [1, 2], step: 0}", ".step: expected a number above 0, got 0"),
        ("{float: [1, 2], step: a}", ".step: expected a number above 0, got 'a'"),
        ("{int: [1, 8], log: true, step: 2}", ": a logarithmic range has no step"),
        ("{int: [1.5, 3]}", ": expected whole numbers, got 1.5"),
        ("{int: [1, 3], step: 0.5}", ": expected whole numbers, got 0.5"),
    ],
    ids=["one", "three", "true", "turned round", "log of 0", "log of whole 0", "step of 0", "text",
         "step of a log",
         "part of a number", "part of a step"],
)  # fmt: skip
def test_a_range_that_is_none_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    space, errors = read_range(tmp_path, text)
    assert space.dimensions == ()
    assert errors == [f"sweep.space.model.rate{says}"]


def test_a_check_tries_each_value_in_each_branch_and_not_their_product() -> None:
    many = tuple(range(100))
    space = Space(
        (
            Dimension("net", "choice", choices=("a", "b", "c")),
            Dimension("rate", "float", low=0.1, high=0.9),
            Dimension("size", "choice", choices=many),
            Dimension("depth", "int", low=1, high=9, when=(("net", ("b", "c")),)),
            Dimension("width", "choice", choices=many, when=(("net", ("c",)), ("depth", (1, 9)))),
        )
    )
    probes = [params for _, params in space.list_probes()]
    assert all(space.contains(params) for params in probes)
    assert {params["net"] for params in probes} == {"a", "b", "c"}
    assert {params["rate"] for params in probes} == {0.1, 0.9}
    assert {params["size"] for params in probes} == {*many}
    depths = {(params["net"], params["depth"]) for params in probes if "depth" in params}
    assert depths == {("b", 1), ("b", 9), ("c", 1), ("c", 9)}
    widths = {(params["depth"], params["width"]) for params in probes if "width" in params}
    assert widths == {(depth, width) for depth in (1, 9) for width in many}
    assert len(probes) <= 3 + 2 + 100 + 2 * 2 + 2 * 100


def test_importance_is_of_keys_that_vary_in_complete_trials_of_the_search() -> None:
    pytest.importorskip("optuna", reason="needs the extra lightkit[sweep]")
    space = Space(
        (
            Dimension("rate", "float", low=0.0, high=1.0),
            Dimension("size", "int", low=1, high=8),
            Dimension("net", "choice", choices=("a", "b")),
            Dimension("depth", "int", low=1, high=3, when=(("net", ("b",)),)),
        )
    )

    def trial(
        number: int, *, kind: str = "search", state: str = "complete", size: int = 2
    ) -> Trial:
        params = {"rate": number / 10, "size": size, "net": "a"}
        return Trial(number, params, kind=kind, state=state, value=(number / 10) ** 2)  # type: ignore[arg-type]

    plan = Plan(space=space)
    trials = [trial(at, size=2 + at % 2) for at in range(5)]
    others = [
        trial(5, kind="confirm"),
        trial(6, state="failed"),
        Trial(7, {"rate": 2.0}, state="complete", value=4.0),
    ]
    found, number = compute_importance(plan, "min", [*trials, *others])
    assert number == 5
    assert set(found) == {"rate", "size"}
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["rate"] > found["size"]
    assert compute_importance(plan, "min", trials[:4]) == ({}, 4)
    assert compute_importance(plan, "min", [trial(0) for _ in range(6)]) == ({}, 6)
    # the share of a key that varies alone is 1, whatever it does
    assert compute_importance(plan, "min", [trial(at) for at in range(6)]) == ({}, 6)


def test_the_points_of_a_space_of_millions_are_counted_as_far_as_asked(tmp_path: Path) -> None:
    space, errors = read_range(tmp_path, "{int: [0, 2147483647]}")
    assert errors == []
    assert space.count_points(3) == 3
    assert next(space.iterate_points()) == {"model.rate": 0}
    space, errors = read_range(tmp_path, "{float: [0, 1], step: 3e-10}")
    assert errors == []
    assert space.count_points(3) == 3
    assert space.dimensions[0].last_value == pytest.approx(0.9999999999, abs=1e-13)
