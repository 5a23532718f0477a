"""The record of a sweep, and the space that it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.errors import ConfigError
from lightkit.sweep.record import SweepRecord, Trial
from lightkit.sweep.results import compute_mean, describe_without_effect
from lightkit.sweep.space import Dimension, Space


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A record of one trial that is complete and one that runs."""
    record = SweepRecord(tmp_path / "sweeps/job/trials.jsonl")
    record.write_head({}, "digest")
    for number in range(2):
        record.begin(Trial(number, {"rate": number}))
    done = record.trials[0]
    done.state = "complete"
    done.value = 0.5
    done.values = {0: 0.75, 1: 0.5}
    record.end(done)
    return record.path


def test_a_record_is_read_as_it_was_written(path: Path) -> None:
    first, second = SweepRecord(path).read().trials
    assert (first.state, first.value, first.values) == ("complete", 0.5, {0: 0.75, 1: 0.5})
    assert (second.state, second.params) == ("running", {"rate": 1})


@pytest.mark.parametrize("length", [1, 20, 60])
def test_a_last_line_that_was_cut_is_left_out(length: int, path: Path) -> None:
    before = path.read_bytes()
    last = before.splitlines(keepends=True)[-1]
    path.write_bytes(before[: len(before) - len(last) + length])
    record = SweepRecord(path)
    assert [each.state for each in record.read().trials] == ["running", "running"]
    record.trim()
    assert path.read_bytes() == before[: len(before) - len(last)]


def test_a_damaged_line_is_an_error_that_names_it(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:1], "{", *lines[1:]]) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"trials\.jsonl, line 2: this is no line of a sweep"):
        SweepRecord(path).read()


def test_a_mean_has_the_interval_of_students_t() -> None:
    mean = compute_mean([1.0, 2.0, 4.0])
    half = 4.302652729911275 * (7 / 3) ** 0.5 / 3**0.5  # two degrees of freedom; variance 7/3
    found = [mean.mean, mean.deviation, mean.low, mean.high]
    assert found == pytest.approx([7 / 3, (7 / 3) ** 0.5, 7 / 3 - half, 7 / 3 + half])


SPACE = Space(
    (
        Dimension("net", "choice", choices=(1, 1.0, "a")),
        Dimension("size", "int", low=16, high=64, step=16),
        Dimension("share", "float", low=0.0, high=0.3, step=0.1),
        Dimension("frozen", "choice", choices=(True, False), when=(("net", ("a",)),)),
    )
)


def test_all_points_of_a_space_are_listed_and_conditions_hold() -> None:
    points = list(SPACE.iterate_points())
    assert len(points) == SPACE.count_points(1000) == 2 * 4 * 4 + 4 * 4 * 2
    assert all(("frozen" in point) == (point["net"] == "a") for point in points)
    assert sorted({point["share"] for point in points}) == [0.0, 0.1, 0.2, 0.3]  # and no 0.30000000000000004
    assert all(SPACE.contains(point) for point in points)


@pytest.mark.parametrize(
    ("key", "value"),
    [("net", True), ("size", 17), ("size", 80), ("share", 0.15), ("share", True), ("frozen", 1)],
    ids=str,
)
def test_what_is_no_value_of_a_key_is_outside_of_the_space(key: str, value: object) -> None:
    point = {"net": "a", "size": 32, "share": 0.1, "frozen": True}
    assert SPACE.contains(point)
    assert not SPACE.contains({**point, key: value})


@pytest.mark.parametrize("share", [0.0, 0.4999, 0.9999])
def test_a_logarithmic_range_is_searched_by_its_logarithm(share: float) -> None:
    dimension = Dimension("rate", "float", low=1e-5, high=1e-1, is_log=True)
    assert dimension.from_unit(share) == pytest.approx(10 ** (-5 + 4 * share))
    whole = Dimension("size", "int", low=1, high=1000, is_log=True)
    assert isinstance(whole.from_unit(share), int)
    assert 1 <= whole.from_unit(share) <= 1000


def _complete(number: int, values: dict[int, float], **params: object) -> Trial:
    return Trial(number, params, state="complete", value=min(values.values()), epoch=0, values=values)


def test_a_key_whose_trials_are_equal_to_the_last_digit_has_no_effect() -> None:
    loss = {0: 0.5, 1: 0.4}
    trials = [
        _complete(0, loss, rate=0.1, decay=0.0),
        _complete(1, {0: 0.6, 1: 0.3}, rate=0.2, decay=0.0),
        _complete(2, dict(loss), rate=0.1, decay=0.5),
    ]
    (line,) = describe_without_effect(trials, "val/loss")
    assert "trials 0 and 2" in line
    assert "decay" in line
    assert "rate" not in line
    assert describe_without_effect(trials[:2], "val/loss") == []


def test_equal_accuracies_of_few_epochs_say_nothing() -> None:
    trials = [_complete(at, {0: 0.5, 1: 0.75}, decay=at) for at in range(2)]
    assert describe_without_effect(trials, "val/accuracy") == []
    assert describe_without_effect(trials, "val/loss")
