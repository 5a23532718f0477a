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
        ({"at_most": 1.2}, True, " ≤ 1.2 | reached |"),
        ({"at_most": 0.9}, False, " ≤ 0.9 | missed |"),
        ({"at_most": 1.1}, None, " ≤ 1.1 | undecided |"),
        ({"at_least": 1.0}, True, " ≥ 1 | reached |"),
        ({"at_least": 1.3}, False, " ≥ 1.3 | missed |"),
        ({"at_least": 1.2}, None, " ≥ 1.2 | undecided |"),
        ({"at_most_s": 11.0}, True, " ≤ 11 s | reached |"),
        ({"at_most": 1.2, "provided": False}, False, " ≤ 1.2 | missed |"),
        ({}, None, " | |"),
    ],
)
def test_a_ratio_is_the_median_of_the_rounds_and_all_of_them_decide_on_its_reach(
    bench: Any, bound: dict[str, Any], reached: bool | None, verdict: str
) -> None:
    rounds = {"lightkit": [10.5, 1.2, 3.0], "loop": [10.0, 1.0, 3.0]}
    row = bench("contest").comparison("ResNet-18", rounds, of="lightkit", to="loop", unit="s", **bound)
    assert row["ratio"] == {"median": 1.05, "min": 1.0, "max": 1.2}
    assert row["reached"] is reached
    line = bench("table").markdown([{**FOUND, "comparisons": [row]}]).splitlines()[2]
    assert line == f"| `memory` | ResNet-18 | 3 s | loop 3 s | 1.05 (1.00 to 1.20) | 3 |{verdict}"


def test_the_verdict_of_one_round_says_that_it_is_one(bench: Any) -> None:
    row = bench("contest").comparison("all", {"a": [1.0], "b": [2.0]}, of="a", to="b", unit="s", at_most=0.9)
    assert bench("table").markdown([{**FOUND, "comparisons": [row]}]).splitlines()[2].endswith("| reached, once |")


def test_what_could_not_be_measured_has_a_row_that_says_so(bench: Any) -> None:
    row = bench("contest").unmeasured("2 processes", of="lightkit, Horovod", to="one", why="not there", at_least=0.95)
    found = {**FOUND, "comparisons": [row]}
    line = bench("table").markdown([found]).splitlines()[2]
    assert line == "| `memory` | 2 processes | lightkit, Horovod | one | | 0 | ≥ 0.95 | not measured: not there |"
    assert "not measured: not there" in bench("table").text_of(found)


def test_what_is_as_small_as_quick_has_it_says_so_in_the_table(bench: Any) -> None:
    rounds = {"lightkit": [1.0], "loop": [2.0]}
    row = bench("contest").comparison("all", rounds, of="lightkit", to="loop", unit="s", at_most=0.9)
    made = bench("table").markdown([{**FOUND, "settings": {"repeat": 1, "quick": True}, "comparisons": [row]}])
    assert made.splitlines()[2].endswith("| 1 | ≤ 0.9 | |")
    assert "a single round, as small as --quick has it, which tells nothing of speed;" in made


def test_all_tells_before_how_long_it_takes_by_the_last_time(bench: Any, tmp_path: Path) -> None:
    listing = bench("listing")
    others = sum(each.minutes for name, each in listing.BENCHES.items() if name != "memory")
    for quick, seconds, minutes in ((False, 6000.0, 100), (True, 1.0, listing.BENCHES["memory"].minutes)):
        found = {"settings": {"quick": quick}, "seconds": seconds}
        tmp_path.joinpath("memory.json").write_text(json.dumps(found), encoding="utf-8")
        assert listing.told_before(tmp_path).startswith(f"about {others + minutes:.0f} minutes ")


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
    assert "| `memory` | all | 1 s | loop 2 s | 0.50 (0.50 to 0.50) | 1 | | |" in lines
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
    del speeds[scaling.HOROVOD]
    assert [
        (row["of"], row["unmeasured"]) for row in scaling.compared(speeds, batch_size=32) if "unmeasured" in row
    ] == [(scaling.HOROVOD, "Horovod is not installed")]


def test_on_a_terminal_lightkit_is_compared_with_lightning_on_a_terminal(bench: Any) -> None:
    step = bench("step")
    rounds = {name: [2e-3] for name in (*step.CONTESTANTS, *step.MORE)} | {"hand-written loop": [1e-3]}
    rows = step.compared(step.NETS["two_layer"], rounds, clock="cpu")
    assert [(row["of"], row["to"]) for row in rows if "terminal" in row["of"] + row["to"]] == [
        ("lightkit on a terminal", "LightningCLI on a terminal")
    ]
    assert all("cpu clock" in row["what"] for row in rows)


def test_photos_that_are_known_and_never_seen_have_rows_of_their_own(bench: Any) -> None:
    first_step = bench("first_step")
    rounds = {name: [1.0] for name in (first_step.SCRIPT, "lightkit", first_step.IMPORTS, first_step.FIRST_TIME)}
    rows = [(row["what"], row["of"], row["to"], row["reach"]) for row in first_step.compared(rounds)]
    title = "to the first optimizer step, ResNet-18"
    known = f"{title}, from the second run on (photos known)"
    assert rows == [
        (known, "lightkit", first_step.SCRIPT, {"at most": 1.25}),
        (f"{title}, the first run", first_step.FIRST_TIME, first_step.SCRIPT, None),
        (known, "lightkit", first_step.IMPORTS, None),
    ]


def test_memory_is_compared_with_held_batches_and_with_photos(bench: Any) -> None:
    held = {"lightkit": [10.0], "hand-written loop": [10.0], "LightningCLI": [5.0]}
    photos = {"lightkit": [30.0], "hand-written loop": [10.0], "LightningCLI": [10.0]}
    rows = bench("memory").compared(held, photos, batch_size=32)
    assert [(row["what"].rpartition(", ")[2], row["ratio"]["median"], row["reached"]) for row in rows] == [
        ("batches of 32 held in memory", 1.0, True),
        ("batches of 32 held in memory", 2.0, None),
        ("photos of an epoch", 3.0, False),
        ("photos of an epoch", 3.0, None),
    ]


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
        assert all(value > 0 for value in seconds.values())
        assert all(each.peak_bytes() > 0 for each in trainings.values())
    assert [each.process.returncode for each in trainings.values()] == [0, 0]


def test_mistakes_of_the_command_line_are_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPTS / "bench", "memory", "--repeat", "0"], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 2
    assert "--repeat: expected 1 or more, got 0" in done.stderr
