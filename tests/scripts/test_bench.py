"""The bench of the front door: what it runs, and what it makes of the numbers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
startup: Any = importlib.import_module("benches.startup")
sys.path.remove(str(SCRIPTS))


def _bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPTS / "bench", *words], capture_output=True, text=True, check=False, env=_ENVIRONMENT)


_ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_rows_are_those_of_the_front_door_and_a_class_of_ones_own() -> None:
    assert [row.name for row in startup.ROWS] == [
        "lightkit --help",
        "lightkit fit --help",
        "lightkit check -c BAD",
        "lightkit check -c OWN (own class)",
        "lightkit fit --print_config -c GOOD",
    ]


def test_the_report_has_medians_spreads_and_ratios() -> None:
    row = startup.Row("both", ("a",), ("b",), reach_s=0.1)
    seconds = {"imports": [2.0, 4.0, 3.0], "own both": [1.0, 9.0, 1.5], "plain both": [6.0, 5.0, 7.0]}
    found = startup.report(seconds, [row])
    assert found["imports_s"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert found["rows"] == [
        {
            "command": "both",
            "lightkit_s": {"median": 1.5, "min": 1.0, "max": 9.0},
            "lightning_cli_s": {"median": 6.0, "min": 5.0, "max": 7.0},
            "ratio": 0.25,
            "of_imports": 0.5,
            "reach_s": 0.1,
            "reach_of_imports": None,
        }
    ]


def test_a_row_reaches_seconds_and_a_ratio_to_the_imports() -> None:
    rows = [startup.Row("a", ("a",), ("a",), reach_s=0.1), startup.Row("b", ("b",), ("b",), reach_of_imports=1.1)]
    seconds = {"imports": [3.0], "own a": [0.2], "plain a": [6.0], "own b": [3.0], "plain b": [6.0]}
    found = startup.compared(seconds, rows)
    assert [(row["what"], row["to"], row["reach"], row["reached"]) for row in found] == [
        ("`a`", "plain LightningCLI", {"at most s": 0.1}, False),
        ("`b`", "plain LightningCLI", None, None),
        ("`b`", "imports", {"at most": 1.1}, True),
    ]


def test_a_command_that_ends_otherwise_than_it_should_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(startup.BenchError, match="ended with 3, expected 0:\nwhy"):
        startup._seconds([sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"], tmp_path, 0)


def test_a_command_that_does_not_end_is_no_measurement(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    with pytest.raises(startup.BenchError, match=r"has not ended after 0\.1 s; --timeout gives it more"):
        startup._seconds(command, tmp_path, 0, timeout_s=0.1)


def test_each_turn_is_told_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "_seconds", lambda *_, **__: 1.0)
    found = startup.measure(2, [startup.Row("both", ("a",), ("b",))])
    assert found == {"imports": [1.0, 1.0], "own both": [1.0, 1.0], "plain both": [1.0, 1.0]}
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.partition(":")[0] for line in said.err.splitlines()] == [
        "a first turn, which does not count, before 2",
        "turn 1 of 2",
        "turn 2 of 2",
    ]


def test_what_cannot_be_measured_is_told_in_words() -> None:
    done = _bench("startup", "--timeout", "0.001")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "has not ended after 0.001 s; --timeout gives it more" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_table_has_a_line_for_each_row() -> None:
    names = [f"{which} {row.name}" for row in startup.ROWS for which in ("own", "plain")]
    table = startup._table(startup.report({name: [1.0] for name in ["imports", *names]}), 1)
    for row in startup.ROWS:
        assert f"\n{row.name} " in table
    assert "OWN has its mistake in a class of the user's own, which check imports" in table


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "usage: scripts/bench BENCH"),
        (["nothing"], 2, "benches: step, "),
        (["--help"], 0, "\n  startup      help, mistakes and --print_config; against a plain LightningCLI: "),
        (["startup", "--timeout", "0"], 2, "--timeout: expected more than 0 seconds, got 0"),
        (["startup", "--repeat", "0"], 2, "--repeat: expected 1 or more, got 0"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_a_bench_that_there_is_not(words: list[str], code: int, says: str) -> None:
    done = _bench(*words)
    assert done.returncode == code
    assert says in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_command_of_the_bench_does_what_it_should(tmp_path: Path) -> None:
    done = _bench("startup", "--quick", "--out", str(tmp_path / "startup.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads(tmp_path.joinpath("startup.json").read_text(encoding="utf-8"))
    assert found["environment"]["threads"] == 1
    assert [row["command"] for row in found["rows"]] == [row.name for row in startup.ROWS]
    for name, text in startup.FILES.items():
        tmp_path.joinpath(name).write_text(text, encoding="utf-8")
    for row, once in zip(startup.ROWS[:3], found["rows"], strict=False):  # they load no torch
        command = [sys.executable, "-m", "lightkit", *row.own]
        again = [startup._seconds(command, str(tmp_path), row.code) for _ in range(2)]
        # A tenth where nothing else runs; what else runs makes it more, hardly three times in a row.
        assert min(once["lightkit_s"]["min"], *again) < 0.5 * once["lightning_cli_s"]["min"], row


def test_a_python_without_lightkits_packages_is_told_from_a_crash() -> None:
    bare = [sys.executable, "-S", str(SCRIPTS / "bench"), "step"]
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not installed for" in done.stderr
    assert "Traceback" not in done.stderr
