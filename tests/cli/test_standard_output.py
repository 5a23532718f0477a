"""Standard output that cannot be written: what real processes say of it, and what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import SMALL, Ended, events, run, summary, workplace

FULL = Path("/dev/full")
LOST = "error: standard output cannot be written: No space left on device"

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def _run_full(folder: Path, *words: str, **settings: Any) -> Ended:
    with FULL.open("w") as full:
        return run(folder, *words, stdout=full, **settings)


@pytest.mark.parametrize(
    "words", [("--help",), ("fit", "--help"), ("tune", "--help"), ("devices",), ("schema",)], ids="_".join
)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_standard_output_is_told_in_one_line(words: tuple[str, ...], unbuffered: str, tmp_path: Path) -> None:
    done = _run_full(tmp_path, *words, environ={"PYTHONUNBUFFERED": unbuffered})
    assert (done.code, done.err) == (74, f"{LOST}\n")


def test_where_standard_error_is_full_too_the_exit_code_tells(tmp_path: Path) -> None:
    with FULL.open("w") as full:
        assert _run_full(tmp_path, "--help", stderr=full).code == 74
        assert run(tmp_path, "fitt", stderr=full).code == 2


@pytest.mark.slow
@pytest.mark.parametrize("form", [(), ("--json",), ("--quiet",)], ids=["table", "json", "quiet"])
def test_what_tune_has_found_stays_for_the_fit(form: tuple[str, ...], tmp_path: Path) -> None:
    folder = workplace(tmp_path, {**SMALL, "accelerator": {"memory_format": "auto"}})
    done = _run_full(folder, "tune", "-c", "job.yaml", *form)
    assert (done.code, done.err.splitlines()[-1:]) == (74, [LOST])
    assert "Traceback" not in done.err
    assert run(folder, "fit", "-c", "job.yaml").code == 0
    assert [event["source"] for event in events(folder, "tune")] == ["cache"]


@pytest.mark.slow
@pytest.mark.parametrize("form", [(), ("--output", "json")], ids=["lines", "json"])
def test_a_fit_says_that_it_is_standard_output_and_no_file_of_its_run(form: tuple[str, ...], tmp_path: Path) -> None:
    folder = workplace(tmp_path)
    done = _run_full(folder, "fit", "-c", "job.yaml", *form)
    assert (done.code, done.err.splitlines()[-1:]) == (74, [LOST])
    assert "Traceback" not in done.err
    assert (summary(folder)["status"], summary(folder)["exit_code"]) == ("failed", 74)
    resumed = run(folder, "fit", "-c", "job.yaml")
    assert resumed.code == 0, resumed.err
