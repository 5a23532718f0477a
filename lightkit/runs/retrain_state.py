"""retrain.json: the progress of `lightkit retrain` in a run, so that the next start goes on there.

===========  =========================================================================================================
schema       1
run          ``NAME/ID``
config       digest of the config that the retrain was started with
began        ISO 8601, UTC; ``ended`` too, which is null until nothing is left to do
outcome      ``promoted``; ``not promoted``: the gate rejected the model; ``trained``: done without a promotion; null
stages       in their order: ``stage``, ``status`` (pending, running, done, failed, interrupted, skipped), ``began``,
             ``ended``, ``seconds`` and ``exit_code`` of the last attempt, number of ``attempts`` and of ``failures``,
             and ``message``: why it was skipped, or what ended it
===========  =========================================================================================================

The file is replaced as a whole at each step. A process that is killed leaves a stage ``running``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lightkit.runs.files import read_json, write_json
from lightkit.runs.folder import Run, list_runs

STAGES = ("fit", "test", "export", "gate", "promote")
RUN_FILE = "_LIGHTKIT_RETRAIN"
"""Variable of the stages of a retrain, which prints the closing block: path of the file to which `fit` writes its run
folder; empty for the others."""
IS_TESTED = "_LIGHTKIT_TESTED"
"""Variable by which a retrain tells its gate that the scores of its test are new."""
_MAX_FAILURES = 3  # of a stage after `fit`; then the next start begins a new training
_FILE = "retrain.json"
_NUM_EARLIER_RUNS = 5
_SCHEMA = 1


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass
class StageState:
    """State of one stage; each field is described at the top of the module."""

    stage: str
    status: str = "pending"
    began: str | None = None
    ended: str | None = None
    seconds: float | None = None
    exit_code: int | None = None
    attempts: int = 0
    failures: int = 0
    message: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is not run (again)."""
        return self.status in ("done", "skipped")


@dataclass
class RetrainState:
    """State of one retrain; each field is described at the top of the module. `fit` chooses the run."""

    config: str
    run: Run | None = None
    stages: list[StageState] = field(default_factory=lambda: [StageState(stage) for stage in STAGES])
    began: str = field(default_factory=_now)
    ended: str | None = None
    outcome: str | None = None

    def __getitem__(self, stage: str) -> StageState:
        return self.stages[STAGES.index(stage)]

    @property
    def next_stage(self) -> StageState | None:
        """The first stage that is not over; None where nothing is left to do."""
        return None if self.ended else next((state for state in self.stages if not state.is_over), None)

    def begin(self, stage: str) -> None:
        """Note that a stage is started."""
        before = self[stage]
        self.stages[STAGES.index(stage)] = StageState(
            stage, "running", began=_now(), attempts=before.attempts + 1, failures=before.failures
        )
        self.write()

    def end(self, stage: str, status: str, *, seconds: float, code: int, text: str | None = None) -> None:
        """Note the end of an attempt at a stage: done, failed or interrupted."""
        state = self[stage]
        state.status, state.ended, state.seconds, state.exit_code = status, _now(), round(seconds, 3), code
        state.failures += status == "failed"
        state.message = text
        self.write()

    def skip(self, stage: str, text: str) -> None:
        """Note that a stage is left out, and why."""
        self[stage].status, self[stage].message = "skipped", text
        self.write()

    def finish(self, outcome: str) -> None:
        """Note that nothing is left to do."""
        self.ended, self.outcome = _now(), outcome
        self.write()

    def write(self) -> None:
        """Replace the file, once the run is known."""
        if self.run is not None:
            run = f"{self.run.name}/{self.run.id}"
            fields = {key: getattr(self, key) for key in ("config", "began", "ended", "outcome")}
            stages = [asdict(state) for state in self.stages]
            write_json(self.run.folder / _FILE, {"schema": _SCHEMA, "run": run, **fields, "stages": stages})


def find_unfinished(root: Path | str, name: str, *, config: str) -> tuple[RetrainState | None, str | None]:
    """Find the unfinished retrain of a job. The caller holds the job's lock.

    Only the newest training counts: an unfinished retrain before it is history.

    Args:
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
        config: Digest of the config.

    Returns:
        The retrain, whose fit is done, or None; and why an unfinished one is not resumed.
    """
    manifests = ((run, read_json(run.manifest_path) or {}) for run in list_runs(root, name))
    trainings = (run for run, each in manifests if each.get("subcommand") == "fit" and not each.get("fast_dev_run"))
    run = next(trainings, None)
    found = None if run is None else _read(run)
    if run is None or found is None or found.next_stage is None:
        return None, None
    if not found["fit"].is_over:
        if (read_json(run.summary_path) or {}).get("status") != "done":  # fit itself finds what to resume
            return None, None
        found["fit"].status = "done"  # killed after the training, and before that was noted
    unfinished = f"begins a new training: the retrain of {run.folder} was not finished, but"
    if found.config != config:
        return None, f"{unfinished} had another config"
    worst = max(found.stages[1:], key=lambda state: state.failures)
    if worst.failures >= _MAX_FAILURES:
        return None, f"{unfinished} its {worst.stage} has failed {worst.failures} times"
    return found, None


def median_durations(root: Path | str, name: str, stages: Iterable[str]) -> dict[str, float]:
    """Return the median seconds of each stage in at most the last five retrains of a job where it was done."""
    states = [state for run in list_runs(root, name) if (found := _read(run)) is not None for state in found.stages]
    done = {
        stage: [each.seconds for each in states if each.stage == stage and each.status == "done" and each.seconds]
        for stage in stages
    }
    return {stage: statistics.median(seconds[:_NUM_EARLIER_RUNS]) for stage, seconds in done.items() if seconds}


def _read(run: Run) -> RetrainState | None:
    """Read a run's file; None if there is none, or it is damaged or of another version."""
    record: Any = read_json(run.folder / _FILE)
    try:
        states = [StageState(**each) for each in record["stages"]]
        if record["schema"] != _SCHEMA or tuple(state.stage for state in states) != STAGES:
            return None
        return RetrainState(record["config"], run, states, record["began"], record["ended"], record["outcome"])
    except (KeyError, TypeError):
        return None
