"""The stages of a retrain: from the one that is not finished to the last, each a command of its own. No torch."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.context import RunContext
from lightkit.cli.retrain_report import print_events, report
from lightkit.cli.retrain_words import words_of
from lightkit.cli.stage_process import Ended, Relay, run_command
from lightkit.commands.retrain import RetrainOptions
from lightkit.config import shown_path
from lightkit.errors import OutOfTime
from lightkit.registry.gate import read_gate
from lightkit.runs.deadlines import shown_duration
from lightkit.runs.index import PROMOTED
from lightkit.runs.pipeline import TELLS_RUN, Pipeline, newest_unfinished, usual_seconds

__all__ = ["Retraining"]

_TAIL = ("test", "export", "gate", "promote")
_TOLD = ".retrain-run.json"
_NO, _LATER = 4, 75
_INTERRUPTED = (_LATER, 129, 130, 138, 143)
_MARGIN, _LEAST_S = 1.5, 10.0
_FIRST_SHARE, _FIRST_MOST_S = 0.25, 900.0


class Retraining:
    """The stages of one job's retrain. The caller holds the job's lock.

    Args:
        session: The invocation, as that of a fit.
        options: What is said beside.
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
        config: Digest of the config.
        deadline: Moment by which all has to be done, if there is one.
        relay: Passes on signals.
        start: Runs a command; as `run_command`.
    """

    def __init__(
        self,
        session: RunContext,
        options: RetrainOptions,
        *,
        root: Path,
        name: str,
        config: str,
        deadline: datetime | None,
        relay: Relay,
        start: Callable[..., Ended] = run_command,
    ) -> None:
        self._session, self._mode = session, session.mode
        self._options = options
        self._root, self._name = root, name
        self._deadline = deadline
        self._relay = relay
        self._start = start
        self._usual_s = usual_seconds(root, name, _TAIL)
        self._metric = read_gate(session.resolved).metric
        self._environment: dict[str, str] = {}
        self._if_changed = options.if_changed
        self._has_begun = False
        self.pipeline = Pipeline(config)
        self.words = ""
        """What the screen has been told of the end."""
        self.has_told_notifiers = False
        """Whether the stage that has ended it told the notifiers of the config."""

    def run(self, environment: Mapping[str, str], *, may_continue: bool = True) -> int:
        """Run what is left, and return the exit code.

        Args:
            environment: Variables of the processes that are started.
            may_continue: Whether a retrain that was not finished goes on.

        Raises:
            OutOfTime: If the deadline leaves no time for the next stage.
        """
        self._environment = {**environment}
        if may_continue:
            self._continue()
        tell = partial(report, mode=self._mode, junit=self._options.junit)
        try:
            code = self._run_stages()
        except OutOfTime as error:
            tell(self.pipeline, code=error.exit_code, says=str(error))
            raise
        late_s = 0.0 if self._deadline is None or code else (_now() - self._deadline).total_seconds()
        if late_s > 0:  # a promotion is not cut off
            self._session.tell(f"ended {shown_duration(late_s)} after the deadline; --reserve says how much to leave")
        signum = self._relay.received
        says = None if signum is None else f"Interrupted by {signal.Signals(signum).name}."
        tell(self.pipeline, code=code, says=says)
        return code

    def _continue(self) -> None:
        found, notice = newest_unfinished(self._root, self._name, config=self.pipeline.config)
        if notice is not None:
            self._session.tell(notice)
            self._if_changed = ()  # nothing may have changed, and still that training came to nothing
        if found is None or found.run is None:
            return
        for state in found.stages:  # which may be asked for by now
            state.status = "pending" if state.status == "skipped" else state.status
        self.pipeline = found
        left = [state.stage for state in found.stages if not state.is_over and self._left_out(state.stage) is None]
        shown = shown_path(found.run.folder)
        self._session.tell(f"goes on with {left[0] if left else 'its end'}: the retrain of {shown} was not finished")

    def _run_stages(self) -> int:
        if not self.pipeline["fit"].is_over and ((code := self._fit()) or self.pipeline.run is None):
            return code
        for stage in _TAIL:
            if self.pipeline[stage].is_over:
                continue
            if self._relay.received is not None:  # between two stages
                return _LATER
            if (reason := self._left_out(stage)) is not None:
                self.pipeline.skip(stage, reason)
                self._event(stage, "skipped", says=reason)
                continue
            if code := self._tail(stage):
                return code
        self.pipeline.finish("promoted" if self.pipeline["promote"].status == "done" else "trained")
        return 0

    def _left_out(self, stage: str) -> str | None:
        """Give the reason for which a stage is left out."""
        if stage in self._options.skip:
            return f"--skip {stage}"
        if stage in ("gate", "promote") and self._metric is None:
            return "gate.metric is not set" if stage == "gate" else "nothing is promoted that was not judged"
        return None

    # -- the training ------------------------------------------------------------------------------------------

    def _fit(self) -> int:
        told = (self._root / self._name / _TOLD).absolute()
        told.unlink(missing_ok=True)
        words = ["fit", *self._session.words, *self._if_changed]
        if self._deadline is not None:
            words.append(f"--deadline={self._fit_deadline(self._deadline).isoformat()}")
        self.pipeline.begin("fit")
        try:
            ended = self._command("fit", words, {TELLS_RUN: str(told)}, look=partial(self._look, told))
        finally:
            told.unlink(missing_ok=True)
        if self.pipeline.run is None:  # it had nothing to do, or has ended before there was a run
            return self._code_of("fit", ended)
        return self._ended("fit", ended)

    def _fit_deadline(self, deadline: datetime) -> datetime:
        """Give the moment at which the training has to be done.

        Raises:
            OutOfTime: If that is over.
        """
        left_s = (deadline - _now()).total_seconds()
        reserve_s = self._reserve_s(left_s)
        if left_s <= reserve_s:
            raise OutOfTime(
                f"The deadline is in {shown_duration(left_s)}, and what follows a training needs "
                f"{shown_duration(reserve_s)} of that; --reserve says how much to leave for it."
            )
        self._session.tell(f"leaves {shown_duration(reserve_s)} of {shown_duration(left_s)} for what follows training")
        return deadline - timedelta(seconds=reserve_s)

    def _reserve_s(self, left_s: float) -> float:
        """Give the seconds to leave for what follows the training."""
        if self._options.reserve_s is not None:
            return self._options.reserve_s
        stages = [stage for stage in _TAIL if self._left_out(stage) is None]
        if not stages:
            return 0.0
        if any(stage not in self._usual_s for stage in stages):
            return min(_FIRST_MOST_S, _FIRST_SHARE * left_s)
        return _MARGIN * sum(self._usual_s[stage] for stage in stages) + _LEAST_S

    def _look(self, told: Path) -> None:
        """Keep the state in the run's folder from the moment on at which `fit` has told which one it is."""
        said = runs.read_json(told)
        if said is None or not Path(str(said.get("folder"))).is_dir():
            return
        self.pipeline.move_to(runs.open_run(str(said["folder"])))
        if not self._has_begun:
            self._has_begun = True
            self._event("fit", "begun")

    # -- what follows ------------------------------------------------------------------------------------------

    def _tail(self, stage: str) -> int:
        if stage == "promote" and self.pipeline[stage].attempts and (self._run.folder / PROMOTED).is_file():
            self.pipeline.end(stage, "done", seconds=0.0, code=0)  # just before the process that did it was killed
            self._event(stage, "done", exit_code=0)
            return 0
        self._check_time(stage)
        self.pipeline.begin(stage)
        self._event(stage, "begun")
        events = self._run.events_path
        seen_bytes = events.stat().st_size if events.exists() else 0
        ended = self._command(stage, words_of(stage, self._run, self._session, self._options))
        if self._mode == "json" and stage in ("gate", "promote"):
            print_events(events, after_bytes=seen_bytes)
        return self._ended(stage, ended)

    def _check_time(self, stage: str) -> None:
        """Do not begin what would not be done in time.

        Raises:
            OutOfTime: Then.
        """
        if self._deadline is None:
            return
        left_s, needs_s = (self._deadline - _now()).total_seconds(), self._usual_s.get(stage, 0.0)
        if left_s <= needs_s:
            needs = f", and {stage} takes about {shown_duration(needs_s)}" if needs_s else ""
            when = f"in {shown_duration(left_s)}" if left_s > 0 else "over"
            raise OutOfTime(f"The deadline is {when}{needs}; the same command goes on with {stage}.")

    @property
    def _run(self) -> runs.Run:
        assert self.pipeline.run is not None
        return self.pipeline.run

    # -- each of them ------------------------------------------------------------------------------------------

    def _command(
        self, stage: str, words: Sequence[str], environment: Mapping[str, str] | None = None, **how: Any
    ) -> Ended:
        return self._start(
            words,
            self._relay,
            environment={**self._environment, **(environment or {})},
            deadline=None if stage == "promote" else self._deadline,  # which takes a moment, and must not be cut off
            is_silent=self._mode == "json" and stage in ("gate", "promote"),
            **how,
        )

    def _ended(self, stage: str, ended: Ended) -> int:
        """Note how a stage has ended, and give the exit code; 0 where the next one can begin."""
        code = self._code_of(stage, ended)
        status = "done" if code == 0 else "interrupted" if code in _INTERRUPTED else "failed"
        self.pipeline.end(stage, status, seconds=ended.seconds, code=code, says=_says(stage, ended, code))
        self._event(stage, "done" if code == 0 else "failed", exit_code=code, seconds=round(ended.seconds, 3))
        self.words = "" if code == 0 else f"{stage}: {self.pipeline[stage].says}"
        self.has_told_notifiers = stage in ("fit", "test", "export") or code == _NO
        if code == _NO and stage in ("gate", "promote"):  # promote asks again where the champion is another by now
            if stage == "gate":
                self.pipeline.skip("promote", "the gate said no")
                self._event("promote", "skipped", says="the gate said no")
            self.pipeline.finish("not promoted")
        return code

    def _code_of(self, stage: str, ended: Ended) -> int:
        """Give the exit code that a retrain ends with; what was interrupted after the training can go on."""
        if ended.killed_by is not None and self._relay.received is None and not ended.was_late:
            return 1
        is_stopped = self._relay.received is not None or ended.was_late
        return _LATER if is_stopped and ended.code in _INTERRUPTED and stage != "fit" else ended.code

    def _event(self, stage: str, status: str, **fields: Any) -> None:
        if self.pipeline.run is None:
            return
        events = runs.EventStream(self._run.events_path, mirror=sys.stdout if self._mode == "json" else None)
        events.write("stage", stage=stage, status=status, attempt=self.pipeline[stage].attempts, **fields)


def _says(stage: str, ended: Ended, code: int) -> str | None:
    """Say in a few words what has ended a stage."""
    if code == 0:
        return None
    if stage in ("gate", "promote") and code == _NO:
        return "not good enough"
    if ended.was_late:
        return "ended at the deadline"
    if ended.killed_by is not None:
        return f"killed by {signal.Signals(ended.killed_by).name}"
    return "interrupted" if code in _INTERRUPTED else f"exit code {code}"


def _now() -> datetime:
    return datetime.now(timezone.utc)
