"""What the benches share: contests, ratios beside their reach, and the table that is made of stored results."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
FOUND: dict[str, Any] = {
    "bench": "memory",
    "settings": {"repeat": 3},
    "environment": {
        "cpu": "A CPU", "cores": {"usable": 2}, "threads": 1,
        "versions": {"torch": "2.15", "pytorch-lightning": "2.6.6"},
        "commit": "abc", "dirty": False, "date": "2026-11-22T10:00:00+00:00", "load_before": [0.1, 0.1, 0.1],
    },
}  # fmt: skip


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give what imports a module of the benches."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return lambda name: importlib.import_module(f"benches.{name}")


def test_contestants_take_turns_in_orders_of_the_seed(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def orders() -> list[str]:
        turns: list[str] = []

        def contestant(name: str) -> Callable[[int], float]:
            def measured(seed: int) -> float:
                turns.append(f"{name}{seed}")
                return 1.0

            return measured

        contestants = {name: contestant(name) for name in "abc"}
        measured = bench("contest").contest(contestants, repeat=4, seed=7, warm_up=1)
        assert measured == {name: [1.0] * 4 for name in "abc"}
        return turns

    turns = orders()
    rounds = [turns[start : start + 3] for start in range(0, 15, 3)]
    assert [sorted(each) for each in rounds] == [[f"{name}{seed}" for name in "abc"] for seed in range(6, 11)]
    assert len({"".join(one[0] for one in each) for each in rounds}) > 1
    assert turns == orders()
    assert capsys.readouterr().err.splitlines()[:2] == ["a round that does not count, before 4", "round 1 of 4"]


@pytest.mark.parametrize(
    ("bound", "reached", "verdict"),
    [
        ({"at_most": 1.1}, True, " ≤ 1.1 | reached |"),
        ({"at_most": 1.0}, False, " ≤ 1 | missed |"),
        ({"at_least": 1.04}, True, " ≥ 1.04 | reached |"),
        ({"at_least": 1.2}, False, " ≥ 1.2 | missed |"),
        ({}, None, " | |"),
    ],
    ids=["at most, reached", "at most, missed", "at least, reached", "at least, missed", "reported"],
)
def test_a_ratio_is_the_median_of_the_rounds_beside_its_reach(
    bench: Any, bound: dict[str, float], reached: bool | None, verdict: str
) -> None:
    rounds = {"lightkit": [10.5, 1.2, 3.0], "loop": [10.0, 1.0, 3.0]}
    row = bench("contest").comparison("ResNet-18", rounds, of="lightkit", to="loop", unit="s", **bound)
    assert row["ratio"] == {"median": 1.05, "min": 1.0, "max": 1.2}
    assert row["reached"] is reached
    line = bench("table").markdown([{**FOUND, "comparisons": [row]}]).splitlines()[2]
    assert line == f"| `memory` | ResNet-18 | 3 s | loop 3 s | 1.05 (1.00 to 1.20) |{verdict}"


def test_the_readmes_table_is_made_of_the_stored_results(bench: Any) -> None:
    table, readme = bench("table"), (ROOT / "README.md").read_text(encoding="utf-8")
    if table.START not in readme:
        pytest.skip("README.md has no place for the table")
    assert readme == table.with_table(readme, table.markdown(table.stored(table.RESULTS)))


def test_the_table_is_written_between_its_marks(bench: Any, tmp_path: Path) -> None:
    row = bench("contest").comparison("all", {"lightkit": [1.0], "loop": [2.0]}, of="lightkit", to="loop", unit="s")
    tmp_path.joinpath("memory.json").write_text(json.dumps({**FOUND, "comparisons": [row]}), encoding="utf-8")
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n", encoding="utf-8")
    words = ["--results", str(tmp_path), "--readme", str(readme), "--write"]
    assert bench("table").run(words) == 0
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert (lines[:2], lines[-2:]) == (["before", "<!-- bench -->"], ["<!-- /bench -->", "after"])
    assert "old" not in lines
    assert "| `memory` | all | 1 s | loop 2 s | 0.50 (0.50 to 0.50) | | |" in lines
    readme.write_text("no marks\n", encoding="utf-8")
    assert bench("table").run(words) == 2


def test_each_bench_that_is_listed_can_be_run(bench: Any) -> None:
    listing = bench("listing")
    assert all(callable(listing.runner(name)) for name in listing.BENCHES)


def test_the_overhead_is_what_is_over_the_loop_in_the_same_round(bench: Any) -> None:
    step = bench("step")
    rounds = {"hand-written loop": [1e-3, 2e-3], "LightningCLI": [3e-3, 6e-3], "lightkit": [1.5e-3, 3e-3]}
    rows = step.compared(step.NETS["two_layer"], rounds)
    overhead = next(row for row in rows if row["reach"])
    assert overhead["values"] == {
        "lightkit": {"median": 750.0, "min": 500.0, "max": 1000.0},
        "LightningCLI": {"median": 3000.0, "min": 2000.0, "max": 4000.0},
    }
    assert (overhead["ratio"]["median"], overhead["reach"], overhead["reached"]) == (0.25, {"at most": 0.5}, True)


def test_two_processes_are_compared_with_twice_one(bench: Any) -> None:
    scaling = bench("scaling")
    speeds = {scaling.ALONE: [10.0], scaling.APART: [19.0], scaling.HOROVOD: [18.0], scaling.DDP: [19.5]}
    ratios = {
        (row["of"], row["to"]): (row["ratio"]["median"], row["reached"])
        for row in scaling.compared(speeds, batch_size=32)
    }
    assert ratios[scaling.HOROVOD, scaling.TWICE] == (0.9, False)
    assert ratios[scaling.DDP, scaling.TWICE] == (0.975, True)
    assert ratios[scaling.APART, scaling.TWICE] == (0.95, None)


def test_a_training_that_does_not_begin_is_told_in_its_own_words(bench: Any, tmp_path: Path) -> None:
    turns = bench("turns")
    command = [sys.executable, "-c", "import sys; sys.exit('no such net')"]
    with (
        pytest.raises(bench("contest").BenchError, match=r"loop did not begin to train \(1\):\nno such net"),
        turns.training("loop", command, tmp_path),
    ):
        pass


@pytest.mark.slow
def test_a_loop_and_lightkit_take_turns_with_the_same_batches(bench: Any) -> None:
    turns = bench("turns")
    with turns.side_by_side(turns.Job("two_layer"), {turns.BY_HAND: {}, turns.LIGHTKIT: {}}) as trainings:
        seconds = {name: each.seconds(5) for name, each in trainings.items()}
        assert all(0 < value < 60 for value in seconds.values())
        assert all(each.peak_bytes() > 1e8 for each in trainings.values())
    assert [each.process.returncode for each in trainings.values()] == [0, 0]


def test_mistakes_of_the_command_line_are_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPTS / "bench", "memory", "--repeat", "0"], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 2
    assert "--repeat: expected 1 or more, got 0" in done.stderr
