"""The `watchdog` block: what is accepted, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.cli.command_table import parse
from lightkit.cli.stage_runner import open_stage_config
from lightkit.config import Flag, Problems, resolve
from lightkit.config.validation import check_sections
from lightkit.errors import ConfigError, ConfigErrors
from lightkit.launch.watchdog import WatchdogSettings, read_watchdog


def settings(folder: Path, block: str) -> WatchdogSettings:
    file = folder / "job.yaml"
    file.write_text(f"watchdog: {block}\n", encoding="utf-8")
    problems = Problems()
    resolved = check_sections(resolve([file], environ={}), problems)
    problems.raise_any()
    return read_watchdog(resolved)


def test_what_is_not_said_is_as_documented(tmp_path: Path) -> None:
    assert read_watchdog(resolve([], environ={})) == WatchdogSettings()
    assert settings(tmp_path, "null") == WatchdogSettings(
        factor=20, floor_s=300, on_nonfinite="stop"
    )
    found = settings(tmp_path, "{floor_s: 0, on_nonfinite: skip}")
    assert found == WatchdogSettings(floor_s=0, on_nonfinite="skip")


def test_a_flags_text_is_a_number() -> None:
    flags = [Flag("watchdog.floor_s", "1.5", "--watchdog.floor_s=1.5")]
    assert read_watchdog(resolve([], flags=flags, environ={})) == WatchdogSettings(floor_s=1.5)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("{factor: 0}", r"watchdog\.factor: expected a number above 0, got 0"),
        ("{floor_s: -1}", r"watchdog\.floor_s: expected seconds, or 0 to end nothing, got -1"),
        ("{floor_s: .nan}", r"watchdog\.floor_s: expected seconds, or 0 to end nothing, got nan"),
    ],
    ids=["factor_zero", "negative", "nan"],
)
def test_an_error_is_reported_with_its_place(tmp_path: Path, block: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        settings(tmp_path, block)
    assert "job.yaml" in str(caught.value)


def test_each_error_is_reported_once(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("watchdog: {floor: 3, factor: much, on_nonfinite: ignore}\n", encoding="utf-8")
    with pytest.raises(ConfigErrors) as caught:
        open_stage_config(parse(["fit", "-c", str(file), "--watchdog.floor_s=-1"]))
    problems = [str(problem) for problem in caught.value.problems if "watchdog" in str(problem)]
    assert len(problems) == 4
