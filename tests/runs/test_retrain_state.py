"""retrain.json, also where it is damaged, and what it tells of how long stages take."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit import runs
from lightkit.runs.retrain_state import STAGES, RetrainState, StageState, find_unfinished, median_durations


def _run(root: Path, *, status: str = "done", subcommand: str = "fit") -> runs.Run:
    run = runs.create(root, "job")
    runs.write_json(run.manifest_path, {"subcommand": subcommand})
    runs.write_json(run.summary_path, {"run": f"job/{run.id}", "status": status})
    return run


def _retrained(root: Path, upto: str, *, seconds: float = 1.0) -> RetrainState:
    """A retrain that was killed in a stage."""
    pipeline = RetrainState("digest", _run(root))
    for stage in STAGES[: STAGES.index(upto)]:
        pipeline.begin(stage)
        pipeline.end(stage, "done", seconds=seconds, code=0)
    pipeline.begin(upto)
    return pipeline


def _unfinished(root: Path, config: str = "digest") -> RetrainState | None:
    return find_unfinished(root, "job", config=config)[0]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    before = _retrained(tmp_path, "gate")
    found = _unfinished(tmp_path)
    assert found is not None
    assert found == before
    assert found.next_stage == StageState("gate", "running", began=before["gate"].began, attempts=1)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"schema": 1}',
        '{"schema": 1, "config": "digest", "stages": 5}',
        '{"schema": 1, "config": "digest", "stages": [{"stage": "fit"}]}',
        '{"schema": 1, "config": "digest", "stages": [1, null, {"stage": "nap"}]}',
        '{"schema": 99, "config": "digest"}',
    ],
    ids=["empty", "torn", "a list", "bare", "stages of a number", "too few", "strange ones", "of later years"],
)
def test_a_file_that_cannot_be_read_is_no_retrain(tmp_path: Path, content: str) -> None:
    pipeline = _retrained(tmp_path, "gate")
    assert pipeline.run is not None
    (pipeline.run.folder / "retrain.json").write_text(content, encoding="utf-8")
    assert find_unfinished(tmp_path, "job", config="digest") == (None, None)
    assert median_durations(tmp_path, "job", STAGES) == {}


def test_only_the_newest_training_counts(tmp_path: Path) -> None:
    _retrained(tmp_path, "gate")
    _run(tmp_path, subcommand="test")
    assert _unfinished(tmp_path) is not None  # a test by itself is no training
    _run(tmp_path)
    assert _unfinished(tmp_path) is None


def test_a_finished_retrain_is_not_gone_on_with(tmp_path: Path) -> None:
    pipeline = _retrained(tmp_path, "gate")
    pipeline.finish("not promoted")
    assert find_unfinished(tmp_path, "job", config="digest") == (None, None)


@pytest.mark.parametrize("status", ["running", "failed", "preempted"])
def test_a_training_that_is_not_done_is_left_to_fit(tmp_path: Path, status: str) -> None:
    run = _run(tmp_path, status=status)
    RetrainState("digest", run).begin("fit")
    assert find_unfinished(tmp_path, "job", config="digest") == (None, None)


def test_times_are_the_medians_of_the_last_five_that_were_done(tmp_path: Path) -> None:
    for seconds in (1000, 1, 2, 3, 4, 50):  # the oldest first
        _retrained(tmp_path, "gate", seconds=seconds)
    assert median_durations(tmp_path, "job", STAGES) == {"fit": 3, "test": 3, "export": 3}
