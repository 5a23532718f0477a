"""The record of a sweep, and the space that it is about."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightkit.config import Problems, resolve
from lightkit.errors import ConfigError
from lightkit.sweep.record import SweepRecord, Trial
from lightkit.sweep.results import compute_mean, describe_without_effect, find_data
from lightkit.sweep.space import Dimension, Space, parse_space


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


KEYS = (
    *("trial", "params", "kind", "seed", "of", "state", "value", "values", "constraints", "run"),
    *("seconds", "reason", "data"),
)
WRONG = [
    (key, value)
    for key in KEYS
    for value in ([1], {"found": 1}, "ab", "digits", "nesting")
    if value != "ab" or key not in ("kind", "run", "reason", "data")
    if (key, value) != ("constraints", {"found": 1})
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=str)
def test_a_line_with_another_type_is_an_error_that_names_it(
    key: str, value: object, path: Path
) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    at = max(number for number, line in enumerate(lines) if key in line)
    lines[at][key] = value
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    text = text.replace('"digits"', "7" * 400).replace('"nesting"', "[" * 2000 + "]" * 2000)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(
        ConfigError, match=rf"trials\.jsonl, line {at + 1}: this is no line of a sweep"
    ):
        SweepRecord(path).read()


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_file_is_an_error_and_not_waited_for(kind: str, path: Path) -> None:
    path.unlink()
    UNREADABLE[kind](path)
    for read in (SweepRecord(path).read, SweepRecord(path).trim):
        with pytest.raises(ConfigError, match=r"trials\.jsonl cannot be read: it is no file"):
            read()


def edit(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the lines of a record in place."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


ODD: dict[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "first line lost": (lambda lines: lines.pop(0), "line 1: .*begins with one line 'sweep'"),
    "two first lines": (lambda lines: lines.insert(0, lines[0]), "line 2: .*one line 'sweep'"),
    "end of no trial": (lambda lines: lines[-1].update(trial=7), "trial 7 has not begun"),
    "end before the first": (lambda lines: lines[-1].update(trial=-1), "trial -1 has not begun"),
    "bound without a value": (lambda lines: lines[-1].update(constraints={}), "no value of params"),
    "no mode": (lambda lines: lines[1].update(mode="least"), "mode is 'least'"),
    "no kind": (lambda lines: lines[2].update(kind="other"), "of the kind 'other'"),
    "key lost": (lambda lines: lines[-1].pop("state"), "'state' is missing"),
}


@pytest.mark.parametrize("name", ODD)
def test_lines_that_no_sweep_writes_are_an_error(name: str, tmp_path: Path) -> None:
    record = SweepRecord(tmp_path / "sweeps/job/trials.jsonl")
    record.write_head({"constraints": {"params": {"max": 9}}}, "digest")
    record.note_metric("val/loss", "min")
    record.begin(Trial(0, {"rate": 1}))
    record.end(replace(record.trials[0], state="complete", value=0.5, constraints={"params": 3.0}))
    assert SweepRecord(record.path).read().trials[0].constraints == {"params": 3.0}

    change, says = ODD[name]
    edit(record.path, change)
    with pytest.raises(ConfigError, match=says):
        SweepRecord(record.path).read()


def test_a_record_that_has_lost_all_its_lines_may_need_each_run(path: Path) -> None:
    path.write_bytes(b"")
    assert SweepRecord(path).read().needs_run(0)
    path.unlink()
    assert not SweepRecord(path).read().needs_run(0), "its folder was deleted"


def test_a_record_says_whether_anything_is_left_and_which_runs_are_needed_for_it(
    path: Path,
) -> None:
    record = SweepRecord(path).read()
    assert not record.is_done
    pruned = record.trials[1]
    pruned.state = "pruned"
    record.end(pruned)
    assert [record.needs_run(number) for number in range(3)] == [True, False, True]
    record.note_done()
    record.note_done()
    assert path.read_text(encoding="utf-8").count('"done"') == 1
    assert SweepRecord(path).read().is_done
    assert not record.needs_run(0)
    record.begin(Trial(2, {"rate": 2}))  # of more trials
    assert not record.is_done
    assert not SweepRecord(path).read().is_done


def test_trials_compare_on_the_same_data_alone(path: Path) -> None:
    space = Space(
        (
            Dimension("model.rate", "float", low=0.0, high=1.0),
            Dimension("data.batch_size", "int", low=1, high=8),
            Dimension("data.path", "choice", choices=("a.csv", "b.csv")),
        )
    )
    own = {"model.rate": 0.5, "data.batch_size": 2, "data.path": "a.csv"}
    trials = [
        Trial(0, own),
        Trial(1, {**own, "model.rate": 0.1}, state="complete", data="of a"),
        Trial(2, {**own, "data.path": "b.csv"}, state="pruned", data="of b"),
    ]
    other = {"model.rate": 0.7, "data.batch_size": 8}
    assert find_data(trials[:1], Trial(1, own), space) is None
    assert find_data(trials, Trial(3, {**other, "data.path": "a.csv"}), space) == "of a"
    assert find_data(trials, Trial(3, {**other, "data.path": "b.csv"}), space) == "of b"
    assert find_data(trials, Trial(3, {**other, "data.path": "c.csv"}), space) is None


def test_the_data_of_a_trial_is_recorded_and_a_record_of_before_has_none(path: Path) -> None:
    record = SweepRecord(path).read()
    trial = record.trials[1]
    trial.state = "complete"
    trial.value = 0.5
    trial.data = "0" * 64
    record.end(trial)
    assert SweepRecord(path).read().trials[1].data == "0" * 64
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    del lines[-1]["data"]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert SweepRecord(path).read().trials[1].data is None


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
    # and no 0.30000000000000004
    assert sorted({point["share"] for point in points}) == [0.0, 0.1, 0.2, 0.3]
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


SECTION = """\
sweep:
  space:
    model.weights: [null, imagenet]
    model.dropout: {float: [0, 0.5], step: 0.25}
    model.size: {int: [16, 32]}
    regime: {layers: [sgd.yaml, my_sgd.yaml]}
    a: {choice: [1, 2], when: {model.weights: [null]}}
    b: {choice: [1, 2], when: {model.dropout: [0, 0.25]}}
    c: {choice: [1, 2], when: {model.size: [16.0]}}
    d: {choice: [1, 2], when: {regime: [sgd.yaml]}}
"""


def test_a_condition_holds_for_the_value_that_it_names_however_that_is_written(
    tmp_path: Path,
) -> None:
    for name in ("sgd.yaml", "my_sgd.yaml"):
        (tmp_path / name).write_text("{}\n", encoding="utf-8")
    (tmp_path / "config.yaml").write_text(SECTION, encoding="utf-8")
    problems = Problems()
    space = parse_space(resolve([tmp_path / "config.yaml"], environ={}), problems)
    assert [str(each) for each in problems] == []
    first = {
        "model.weights": None,
        "model.dropout": 0.25,
        "model.size": 16,
        "regime": str(tmp_path / "sgd.yaml"),
    }
    assert [key for key in "abcd" if space.is_active(space[key], first)] == ["a", "b", "c", "d"]
    zero = {**first, "model.dropout": next(space["model.dropout"].iterate_values())}
    assert space.is_active(space["b"], zero)
    other = {
        "model.weights": "imagenet",
        "model.dropout": 0.5,
        "model.size": 17,
        "regime": str(tmp_path / "my_sgd.yaml"),
    }
    assert [key for key in "abcd" if space.is_active(space[key], other)] == []


@pytest.mark.parametrize("share", [0.0, 0.4999, 0.9999])
def test_a_logarithmic_range_is_searched_by_its_logarithm(share: float) -> None:
    dimension = Dimension("rate", "float", low=1e-5, high=1e-1, is_log=True)
    assert dimension.from_unit(share) == pytest.approx(10 ** (-5 + 4 * share))
    whole = Dimension("size", "int", low=1, high=1000, is_log=True)
    assert isinstance(whole.from_unit(share), int)
    assert 1 <= whole.from_unit(share) <= 1000


def _complete(number: int, values: dict[int, float], **params: object) -> Trial:
    return Trial(
        number, params, state="complete", value=min(values.values()), epoch=0, values=values
    )


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


def test_the_config_itself_may_have_the_value_of_another_trial_as_a_default() -> None:
    loss = {0: 0.5, 1: 0.4}
    trials = [
        _complete(0, loss),
        _complete(1, dict(loss), rate=0.1),
        _complete(2, {0: 0.3}, rate=0.2),
    ]
    assert describe_without_effect(trials, "val/loss") == []
    trials[2] = _complete(2, dict(loss), rate=0.2)
    (line,) = describe_without_effect(trials, "val/loss")
    assert "trials 1 and 2" in line


def test_equal_accuracies_of_few_epochs_say_nothing() -> None:
    trials = [_complete(at, {0: 0.5, 1: 0.75}, decay=at) for at in range(2)]
    assert describe_without_effect(trials, "val/accuracy") == []
    assert describe_without_effect(trials, "val/loss")
