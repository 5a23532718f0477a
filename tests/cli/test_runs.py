"""`lightkit runs`: the table."""

from __future__ import annotations

import json
import re

import pytest

from lightkit import runs
from tests.cli.conftest import House
from tests.runs.trees import plant, run_id


@pytest.fixture
def tree(house: House) -> House:
    root = house.folder / "runs"
    plant(root, "roses", 1, value=0.75, size=1000)
    plant(root, "roses", 3, value=0.9, status="failed")
    plant(root, "tulips", 2, value=0.5, size=5000)
    runs.write_json(root / "tulips" / run_id(2) / "promoted.json", {"name": "tulips", "version": "3"})
    return house


def ids(text: str) -> list[str]:
    return re.findall(r"\d{8}-\d{6}-[0-9a-f]{4}", text)


def test_the_table_has_a_line_a_run_the_newest_first(tree: House) -> None:
    done = tree("runs")
    assert (done.code, done.err) == (0, "")
    head, *lines = done.out.splitlines()
    assert head.split() == ["name", "id", "status", "metric", "size", "age"]
    assert ids(done.out) == [run_id(3), run_id(2), run_id(1)]
    assert re.fullmatch(rf"tulips +{run_id(2)} +done +val/accuracy 0\.5 +[\d.]+ kB +\d+ d +promoted", lines[1])
    assert ids(tree("runs", "roses").out) == [run_id(3), run_id(1)]


@pytest.mark.parametrize(
    ("words", "days"),
    [
        (["--sort", "metric"], [3, 1, 2]),
        (["--sort=size"], [2, 1, 3]),
        (["--sort", "name"], [3, 1, 2]),
        (["--filter", "status=done"], [2, 1]),
        (["--filter=status=done", "--filter", "name=roses"], [1]),
        (["--filter=promoted=true"], [2]),
        (["--filter=locked=true"], []),
    ],
    ids=["metric", "size", "name", "status", "two", "promoted", "locked"],
)
def test_runs_are_sorted_and_filtered(words: list[str], days: list[int], tree: House) -> None:
    assert ids(tree("runs", *words).out) == [run_id(day) for day in days]


def test_what_is_best_is_asked_for_where_nobody_knows(tree: House) -> None:
    root = tree.folder / "runs"
    for day, value in ((4, 0.1), (5, 0.3)):
        plant(root, "lilies", day, value=value, monitor="val/closeness")
    done = tree("runs", "lilies", "--sort=metric")
    assert (done.code, done.out) == (2, "")
    assert "neither the runs of lilies nor its name tell" in done.err
    assert ids(tree("runs", "lilies", "--sort=metric", "--mode=min").out) == [run_id(4), run_id(5)]
    assert ids(tree("runs", "lilies", "--sort=metric", "--mode=max").out) == [run_id(5), run_id(4)]


def test_programs_get_json(tree: House) -> None:
    first = json.loads(tree("runs", "--json").out)[0]
    assert {key: first[key] for key in ("name", "id", "status", "metric", "value", "locked", "promoted")} == {
        "name": "roses",
        "id": run_id(3),
        "status": "failed",
        "metric": "val/accuracy",
        "value": 0.9,
        "locked": False,
        "promoted": False,
    }
    assert first["size_bytes"] > 100
    assert first["age_s"] > 0


def test_a_run_that_a_process_works_on_is_marked(tree: House) -> None:
    root = tree.folder / "runs"
    with runs.Lock(root, "roses") as lock:
        lock.note_folder(root / "roses" / run_id(3))
        assert ids(tree("runs", "--filter", "locked=true").out) == [run_id(3)]
        assert " locked" in tree("runs").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sort=loss"], "--sort: expected age, name, status, metric, size, got 'loss'"),
        (["--filter=status"], "--filter: expected KEY=VALUE, such as status=done, got 'status'"),
        (["--filter=stats=done"], "expected name, status, locked, promoted, got 'stats'; did you mean 'status'?"),
        (["rose"], "there is no job 'rose' in runs; did you mean 'roses'?"),
        (["--root=none"], "none is no folder"),
        (["--srot"], "unexpected argument '--srot'; did you mean '--sort'"),
        (["a", "b"], "expected the name of one job"),
    ],
    ids=["sort", "filter", "key", "job", "root", "option", "two"],
)
def test_a_wrong_word_is_told(words: list[str], says: str, tree: House) -> None:
    done = tree("runs", *words)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
