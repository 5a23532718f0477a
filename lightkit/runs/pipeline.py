"""retrain.json: how far `lightkit retrain` has come in a run, so that the next start goes on there.

===========  =========================================================================================================
schema       1
run          ``NAME/ID``
config       digest of the config that the retrain was started with
began        ISO 8601, UTC; ``ended`` too, which is null until nothing is left to do
outcome      ``promoted``; ``not promoted``: the gate said no; ``trained``: done, where promoting was left out; null
stages       in their order: ``stage``, ``status`` (pending, running, done, failed, interrupted, skipped), ``began``,
             ``ended``, ``seconds`` and ``exit_code`` of the last attempt, number of ``attempts`` and of ``failures``,
             and ``says``: why it was skipped, or what ended it
===========  =========================================================================================================

The file is replaced as a whole at each step. A process that is killed leaves a stage ``running``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lightkit.runs.files import read_json, write_json
from lightkit.runs.folder import list_runs
from lightkit.runs.run import Run

__all__ = ["MOST_FAILURES", "STAGES", "TELLS_RUN", "Pipeline", "StageState", "newest_unfinished", "usual_seconds"]

STAGES = ("fit", "test", "export", "gate", "promote")
"""What a retrain does, in this order."""
MOST_FAILURES = 3
"""Failures of a stage after `fit`, after which the next start begins a new training."""
TELLS_RUN = "_LIGHTKIT_RETRAIN"
"""Variable that names the file in which `fit` tells the retrain that has started it which run it is."""

_FILE = "retrain.json"
_OVER = ("done", "skipped")
_EARLIER_RUNS = 5
_SCHEMA = 1


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass
class StageState:
    """How one stage stands; each field is described at the top of the module."""

    stage: str
    status: str = "pending"
    began: str | None = None
    ended: str | None = None
    seconds: float | None = None
    exit_code: int | None = None
    attempts: int = 0
    failures: int = 0
    says: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is not run (again)."""
        return self.status in _OVER


@dataclass
class Pipeline:
    """The stages of one retrain.

    Args:
        config: Digest of its config.
        run: Its run, once that is known: `fit` decides.
        stages: In their order.
        began: ISO 8601, UTC.
        ended: The same, once nothing is left to do.
        outcome: What came of it then.
    """

    config: str
    run: Run | None = None
    stages: list[StageState] = field(default_factory=lambda: [StageState(stage) for stage in STAGES])
    began: str = field(default_factory=_now)
    ended: str | None = None
    outcome: str | None = None

    def __getitem__(self, stage: str) -> StageState:
        return next(state for state in self.stages if state.stage == stage)

    @property
    def next_stage(self) -> StageState | None:
        """The first stage that is not over; None where nothing is left to do."""
        return None if self.ended else next((state for state in self.stages if not state.is_over), None)

    @property
    def is_given_up(self) -> bool:
        """Whether a stage has failed so often that trying it again is not what a new start is for."""
        return any(state.failures >= MOST_FAILURES for state in self.stages[1:])

    def begin(self, stage: str) -> None:
        """Note that a stage is run."""
        state = self[stage]
        state.status, state.began, state.ended = "running", _now(), None
        state.seconds = state.exit_code = state.says = None
        state.attempts += 1
        self.write()

    def end(self, stage: str, status: str, *, seconds: float, code: int, says: str | None = None) -> None:
        """Note how the attempt at a stage has ended: done, failed or interrupted."""
        state = self[stage]
        state.status, state.ended, state.seconds, state.exit_code = status, _now(), round(seconds, 3), code
        state.failures += status == "failed"
        state.says = says
        self.write()

    def skip(self, stage: str, says: str) -> None:
        """Note that a stage is left out, and why."""
        self[stage].status, self[stage].says = "skipped", says
        self.write()

    def finish(self, outcome: str) -> None:
        """Note that nothing is left to do."""
        self.ended, self.outcome = _now(), outcome
        self.write()

    def move_to(self, run: Run) -> None:
        """Keep the state in the folder of the run that `fit` has begun or goes on in."""
        if self.run is not None and self.run.folder == run.folder:
            return
        self.run = run
        if (before := _read(run)) is not None and before.next_stage is before["fit"]:  # it was interrupted in its fit
            self.began = before.began
            self["fit"].attempts += before["fit"].attempts
            self["fit"].failures += before["fit"].failures
        self.write()

    def write(self) -> None:
        """Replace the file, once the run is known."""
        if self.run is not None:
            write_json(self.run.folder / _FILE, self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "schema": _SCHEMA,
            "run": None if self.run is None else f"{self.run.name}/{self.run.id}",
            "config": self.config,
            "began": self.began,
            "ended": self.ended,
            "outcome": self.outcome,
            "stages": [asdict(state) for state in self.stages],
        }


def newest_unfinished(root: Path | str, name: str, *, config: str) -> tuple[Pipeline | None, str | None]:
    """Find the retrain of a job that was not finished. The caller holds the job's lock.

    Only the newest training counts: what was left undone before another one began is history.

    Args:
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
        config: Digest of the config.

    Returns:
        The retrain, whose fit is done, or None; and why one that is unfinished is left as it is.
    """
    for run in list_runs(root, name):
        if not _is_training(run):
            continue
        found = _read(run)
        if found is None or found.next_stage is None:
            return None, None
        _settle(found, run)
        if not found["fit"].is_over:  # fit itself finds what to resume
            return None, None
        left = f"begins a new training: the retrain of {run.folder} was not finished, but"
        if found.config != config:
            return None, f"{left} had another config"
        if found.is_given_up:
            worst = max(found.stages[1:], key=lambda state: state.failures)
            return None, f"{left} its {worst.stage} has failed {worst.failures} times"
        return found, None
    return None, None


def usual_seconds(root: Path | str, name: str, stages: Iterable[str]) -> dict[str, float]:
    """Give how long stages took in the last retrains of a job: the median of at most five; none that never was done."""
    seconds: dict[str, list[float]] = {stage: [] for stage in stages}
    for run in list_runs(root, name):
        found = _read(run)
        for state in [] if found is None else found.stages:
            if state.status == "done" and state.seconds and state.stage in seconds:
                seconds[state.stage].append(state.seconds)
    return {stage: statistics.median(each[:_EARLIER_RUNS]) for stage, each in seconds.items() if each}


def _settle(found: Pipeline, run: Run) -> None:
    """Take a training for done whose process was killed after it had ended well, and before that was noted here."""
    if not found["fit"].is_over and (read_json(run.summary_path) or {}).get("status") == "done":
        found["fit"].status = "done"


def _is_training(run: Run) -> bool:
    manifest = read_json(run.manifest_path)
    if manifest is None:
        return any(run.checkpoints.glob("*.ckpt"))
    return manifest.get("subcommand") == "fit" and not manifest.get("fast_dev_run")


def _read(run: Run) -> Pipeline | None:
    """Give what a run's file says; None where there is none, or none that can be read."""
    said = read_json(run.folder / _FILE)
    if said is None or said.get("schema") != _SCHEMA or not isinstance(said.get("config"), str):
        return None
    stages = said.get("stages")
    states = [state for each in (stages if isinstance(stages, list) else []) if (state := _state(each)) is not None]
    if [state.stage for state in states] != list(STAGES):
        return None
    return Pipeline(said["config"], run, states, str(said.get("began")), said.get("ended"), said.get("outcome"))


def _state(said: Any) -> StageState | None:
    if not isinstance(said, Mapping) or said.get("stage") not in STAGES:
        return None
    return StageState(**{known.name: said[known.name] for known in fields(StageState) if known.name in said})
