"""The running trials of a sweep: each a fit in a process of its own, followed, judged and resumed.

No torch.
"""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from lightkit import runs
from lightkit.cli.stage_processes import CommandProcess, StageProcesses, describe_kill
from lightkit.errors import MAKE_ROOM, join_names, near
from lightkit.runs.index import find_metric, list_metrics
from lightkit.runs.metrics import STEP_SUFFIX
from lightkit.runs.trial import (
    FACTS,
    PRUNED,
    VERDICT,
    EventFollower,
    find_run_of_trial,
    write_verdict,
)
from lightkit.sweep.record import Trial
from lightkit.sweep.search import Search
from lightkit.sweep.settings import Plan

_ENDS = {0: "done", 2: "fatal", 3: "fatal", 70: "killed", 74: "fatal", 75: "preempted"}
"""End of a trial by its exit code, `failed` where none stands here.

`fatal` are the codes that each further trial would have, too: the config or the data is wrong, or
the output is lost. So is a full disk, whose code is 1.
"""
_MOST_AGAIN = {"killed": 1, "preempted": 3}
"""How often a trial that ended so, though nobody had asked it to, goes on from its checkpoint."""
_LOOK_S = 0.2  # between two looks for the run of a trial
_MEMORY_S = 0.5
OUTPUT = "output.log"


class TrialFailed(Exception):
    """A trial that is over, without a value.

    Args:
        reason: Why.
    """


@dataclass
class Active:
    """A trial that runs.

    Args:
        trial: The trial.
        folder: Its folder in that of the sweep.
        process: Its process.
        slot: Its place among those that run at the same time.
        began_s: When this start of it began.
        run: Its run, once it has one.
        follower: Reads the events of the run.
        values: Values of the metric by epoch; NaN where one was not finite.
        num_again: How often it has gone on from its checkpoint, by its end.
        is_tested: Whether the test of its best checkpoint runs, or has run.
        looked_s: When its run was looked for.
    """

    trial: Trial
    folder: Path
    process: CommandProcess
    slot: int
    began_s: float = field(default_factory=time.monotonic)
    run: runs.Run | None = None
    follower: EventFollower | None = None
    values: dict[int, float] = field(default_factory=dict)
    num_again: Counter[str] = field(default_factory=Counter)
    is_tested: bool = False
    looked_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """Settings that all trials of a sweep have in common.

    Args:
        name: Name of the sweep.
        root: Folder of all runs.
        job: Name of the job, below which the runs are.
        folder: Folder of the sweep.
        environment: Variables of each trial.
        build_words: Returns the words of a fit for a layer, after ``fit``.
        find_data: Returns the fingerprint of the data that a trial must have; None where no trial
            before it tells.
        words_of_test: Words of the test of a run, after ``test``.
    """

    name: str
    root: Path
    job: str
    folder: Path
    environment: Mapping[str, str]
    build_words: Callable[[Path, Trial], list[str]]
    find_data: Callable[[Trial], str | None]
    words_of_test: Sequence[str] = ()

    def find_folder(self, trial: Trial) -> Path:
        """Return the folder of a trial."""
        return self.folder / "trials" / f"{trial.number:04}"

    def name_trial(self, trial: Trial) -> str:
        """Return the name by which a run knows its trial."""
        return f"{self.name}/{trial.number}"


class TrialProcesses:
    """Start, follow and judge trials.

    Args:
        job: What they have in common.
        plan: The sweep.
        processes: Runs the commands.
    """

    def __init__(self, job: Job, plan: Plan, processes: StageProcesses) -> None:
        self.active: list[Active] = []
        self.metric = plan.metric
        self.search: Search | None = None
        self.fatal: tuple[int, str] | None = None
        """Exit code and error that end the sweep."""
        self.peak_bytes = 0
        """Most memory that one trial was seen to take."""
        self.num_slots = 1
        """Most trials at a time."""
        self.devices: Sequence[str] = ()
        """Numbers of the GPUs of each slot; empty where each sees all."""
        self.threads: int | None = None
        """Threads of a trial; None where the config or torch decides."""
        self._job = job
        self._plan = plan
        self._processes = processes
        self._runs_of_others: dict[int, set[str]] = {}
        self._memory_s = 0.0
        self._is_interrupted = False

    @property
    def is_stopping(self) -> bool:
        """Return whether trials are being interrupted, to go on with the next start."""
        return self._is_interrupted or self._processes.received is not None

    # -- the start ---------------------------------------------------------------------------------

    def start(self, trial: Trial, *, resumes: bool = False) -> Active | None:
        """Start a trial, or go on with one that was interrupted.

        None where it turns out to be done.

        Args:
            trial: The trial.
            resumes: Whether an earlier start may have left a run of it.
        """
        slot = min({*range(self.num_slots)} - {one.slot for one in self.active})
        folder = self._job.find_folder(trial)
        run = self._find_run(trial) if resumes else None
        active = Active(trial, folder, CommandProcess((), None, None), slot, run=run)
        self.active.append(active)
        summary = {} if run is None else runs.read_summary(run.summary_path) or {}
        # it ended before that was recorded
        if run is not None and summary.get("status") in ("done", PRUNED):
            self._follow(active)
            active.began_s -= float(runs.find_value(summary, "durations", "total") or 0.0)
            self._end_well(active)
            return active if active in self.active else None
        self._start_fit(active)
        return active

    def _start_fit(self, active: Active) -> None:
        """Start the training of a trial, from its newest checkpoint if it has one."""
        run = active.run
        if run is not None and runs.last_good(run.checkpoints) is None:
            run = active.run = None  # nothing is lost, and nothing to go on from
        trial = active.trial
        if run is None:
            # those that are there are of other trials, or of earlier starts of this one
            there = {each.id for each in runs.list_runs(self._job.root, self._job.job)}
            self._runs_of_others[trial.number] = there
            active.follower = None
            resume = "never"
        else:
            active.follower = EventFollower(run.events_path)
            resume = str(run.folder)
        words = [
            "fit",
            *self._job.build_words(active.folder / "trial.yaml", trial),
            f"--run.resume={resume}",
        ]
        words += self._build_words_of_trial(active)
        if self._plan.pruner.prunes and trial.kind == "search" and self.search is not None:
            words.append("--trial-waits")
        if self.threads is not None:
            words.append(f"--launch.threads={self.threads}")
        self._start_command(active, words)

    def _build_words_of_trial(self, active: Active) -> list[str]:
        """Build the words by which a process knows its trial, and the data that it must have."""
        words = [f"--trial={self._job.name_trial(active.trial)}"]
        data = self._job.find_data(active.trial)
        if data is None and active.run is not None:
            data = runs.read_data_fingerprint(active.run)
        return words if data is None else [*words, f"--trial-data={data}"]

    def _start_command(self, active: Active, words: Sequence[str]) -> None:
        environment = dict(self._job.environment)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[active.slot % len(self.devices)]
        active.process = self._processes.start(words, environment, output=active.folder / OUTPUT)

    def _find_run(self, trial: Trial) -> runs.Run | None:
        others = self._runs_of_others.setdefault(trial.number, set())
        return find_run_of_trial(
            self._job.root, self._job.job, self._job.name_trial(trial), but=others
        )

    # -- the end -----------------------------------------------------------------------------------

    def poll(self) -> list[Trial]:
        """Look after all trials, and return those that are finished now."""
        finished = []
        for active in list(self.active):
            self._follow(active)
            code = active.process.poll()
            ended_s = time.monotonic()
            if code is not None:
                self._processes.forget(active.process)  # may wait for the end of the one before
                self._follow(active)
                self._judge(active, code)
            if active.trial.is_finished:
                active.trial.seconds = ended_s - active.began_s
                self.active.remove(active)
                finished.append(active.trial)
            elif code is not None and active.process.poll() is not None and active in self.active:
                self.active.remove(active)  # interrupted, for the next start
        self._measure_memory()
        return finished

    def interrupt(self, signum: int = signal.SIGTERM) -> None:
        """Ask all trials to save and end."""
        self._is_interrupted = True
        for active in self.active:
            active.process.send_signal(signum)

    def end(self) -> None:
        """End all trials, and wait for their ends; after an error of this process."""
        self.interrupt()
        for active in self.active:
            active.process.end()

    def _judge(self, active: Active, status: int) -> None:
        """Decide what becomes of a trial whose process has ended."""
        code = status
        reason = active.process.reason or f"exit code {code}"
        if status < 0:
            code = 128 - status
            reason = describe_kill(-status, active.process.reason)
        end = "killed" if code > 128 else _ENDS.get(code, "failed")
        if end == "failed" and MAKE_ROOM in reason:  # which says nothing of the trial
            end = "fatal"
        most = _MOST_AGAIN.get(end, 0)
        if end == "done":
            self._end_well(active)
        elif most and self.is_stopping:
            return  # the next start of the sweep goes on with it
        elif active.num_again[end] < most:
            active.num_again[end] += 1
            self._go_on(active)
        elif end in ("fatal", "preempted"):
            self.fatal = self.fatal or (code, reason)
        else:
            self._fail(active, reason)

    def _go_on(self, active: Active) -> None:
        """Start a trial again, from its newest checkpoint."""
        active.run = active.run or self._find_run(active.trial)
        if active.is_tested:
            self._start_test(active)
        else:
            self._start_fit(active)

    def _fail(self, active: Active, reason: str) -> None:
        trial = active.trial
        trial.state = "failed"
        trial.value = None
        trial.reason = " ".join(reason.split())
        trial.values = {
            epoch: value for epoch, value in active.values.items() if math.isfinite(value)
        }
        trial.run = None if active.run is None else f"{active.run.name}/{active.run.id}"

    def _end_well(self, active: Active) -> None:
        """Take the value of a trial that has ended well, or start its test."""
        try:
            self._take_value(active)
        except TrialFailed as error:
            self._fail(active, str(error))

    def _take_value(self, active: Active) -> None:
        """Take the value of the best checkpoint, and all that is bounded.

        Raises:
            TrialFailed: If it has none.
        """
        trial = active.trial
        run = active.run or self._find_run(trial)
        if run is None:
            raise TrialFailed("its training has left no run")
        active.run = run
        trial.run = f"{run.name}/{run.id}"
        summary = runs.read_summary(run.summary_path) or {}
        trial.num_params = runs.find_value(runs.read_json(run.folder / FACTS), "params")
        trial.data = runs.read_data_fingerprint(run)
        best = summary.get("best") or {}
        self._learn_metric(best)
        if not all(map(math.isfinite, active.values.values())):
            raise TrialFailed(f"{self.metric} was not finite")
        if self._cut_pruned(active):
            self._mark_pruned(run, summary)
            return
        value = self._read_metric(summary)
        if self._needs_test(active, summary):
            if not self.is_stopping:  # else the next start tests it
                self._start_test(active)
            return
        trial.values = dict(active.values)
        trial.constraints = self._measure_constraints(trial, summary)
        trial.value = value
        epoch = best.get("epoch")
        trial.epoch = epoch if isinstance(epoch, int) else None
        trial.state = "complete"

    def _read_metric(self, summary: Mapping[str, Any]) -> float:
        """Return the value of the metric of a trial's run.

        Raises:
            TrialFailed: If it has none, or one that is not finite.
        """
        value = find_metric(str(self.metric), summary)
        if value is None:
            logged = sorted(list_metrics(summary))
            text = f"sweep.metric: {self.metric!r} is not logged; logged are"
            text += f" {join_names(logged) or 'no metrics'}{near(str(self.metric), logged)}"
            self.fatal = self.fatal or (2, text)
            raise TrialFailed(text)
        if not math.isfinite(value):
            raise TrialFailed(f"{self.metric} was not finite")
        return value

    def _learn_metric(self, best: Mapping[str, Any]) -> None:
        """Take the metric that the checkpoint monitors, where the config names none."""
        if self.metric is not None:
            return
        monitor = best.get("monitor")
        if monitor is None:
            self.fatal = (
                2,
                "sweep.metric: the checkpoint monitors no metric; set sweep.metric to a logged one",
            )
            raise TrialFailed(self.fatal[1])
        self.metric = str(monitor)
        for active in self.active:
            if active.run is not None:
                active.follower = EventFollower(active.run.events_path)
                self._follow(active)

    def _cut_pruned(self, active: Active) -> bool:
        """Return whether a trial was stopped early.

        Then it has the values up to that epoch alone.
        """
        trial = active.trial
        if self.search is None or trial.kind != "search":
            return False
        stopped = self.search.find_stop(trial)
        if stopped is None:
            return False
        trial.values = {epoch: value for epoch, value in active.values.items() if epoch <= stopped}
        trial.value = trial.values[stopped]
        trial.state = "pruned"
        return True

    def _mark_pruned(self, run: runs.Run, summary: Mapping[str, Any]) -> None:
        if summary.get("status") != PRUNED:
            runs.write_summary(run.summary_path, {**summary, "status": PRUNED})

    def _measure_constraints(self, trial: Trial, summary: Mapping[str, Any]) -> dict[str, float]:
        """Return the value of each bounded name.

        One that was not measured would count as within its bounds.

        Raises:
            TrialFailed: If one is missing or not finite.
        """
        found = {}
        for name in self._plan.constraints:
            value = trial.num_params if name == "params" else find_metric(name, summary)
            if value is None:
                logged = join_names(sorted(list_metrics(summary)))
                raise TrialFailed(
                    f"sweep.constraints: {name} was not measured; logged are {logged}, and params"
                )
            if not math.isfinite(value):
                raise TrialFailed(f"sweep.constraints: {name} was not finite")
            found[name] = float(value)
        return found

    def _needs_test(self, active: Active, summary: Mapping[str, Any]) -> bool:
        """Return whether something of the test split is bounded and the trial not tested yet."""
        return (
            self._plan.needs_test
            and not active.is_tested
            and "test" not in (summary.get("stages") or {})
        )

    def _start_test(self, active: Active) -> None:
        assert active.run is not None
        active.is_tested = True
        words = [
            "test",
            f"--run={active.run.folder}",
            *self._build_words_of_trial(active),
        ]
        self._start_command(active, [*words, *self._job.words_of_test])

    # -- while it runs -----------------------------------------------------------------------------

    def _follow(self, active: Active) -> None:
        """Read the new events of a trial, and answer each epoch."""
        if active.run is None:
            now_s = time.monotonic()
            if now_s - active.looked_s < _LOOK_S and active.process.poll() is None:
                return
            active.looked_s = now_s
            active.run = self._find_run(active.trial)
        if active.run is None:
            return
        active.follower = active.follower or EventFollower(active.run.events_path)
        for event in active.follower.read():
            if event["event"] == "epoch" and {"epoch", "metrics"} <= event.keys():
                self._judge_epoch(active, int(event["epoch"]), event["metrics"])

    def _judge_epoch(self, active: Active, epoch: int, metrics: Mapping[str, Any]) -> None:
        assert active.run is not None
        stops = False
        value = self._read_epoch(metrics)
        if value is not None:
            active.values[epoch] = value
            if not math.isfinite(value):
                stops = True
            elif self.search is not None and active.trial.kind == "search":
                stops = self.search.report(active.trial, epoch, value)
        if stops or self._plan.pruner.prunes:
            write_verdict(active.run, epoch, stops=stops)

    def _read_epoch(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the metric of an epoch, NaN where it is not finite; None where it has none."""
        # of a metric that is logged by step alone an epoch has the last step's value
        for key in (str(self.metric), f"{self.metric}{STEP_SUFFIX}"):
            if key in metrics:
                value = metrics[key]
                return float(value) if isinstance(value, (int, float)) else math.nan
        return None

    def _measure_memory(self) -> None:
        """Note the most memory that a trial takes, for `parallel: auto`."""
        now_s = time.monotonic()
        if self._plan.parallel != "auto" or now_s - self._memory_s < _MEMORY_S:
            return
        self._memory_s = now_s
        for active in self.active:
            with suppress(psutil.Error):
                process = psutil.Process(active.process.pid)
                family = [process, *process.children(recursive=True)]
                self.peak_bytes = max(
                    self.peak_bytes, sum(each.memory_info().rss for each in family)
                )


def remove_verdict(root: Path, name: str | None) -> None:
    """Remove the verdict of a sweep from the run of a trial that is over.

    Args:
        root: Folder of all runs.
        name: Its run, as ``NAME/ID``.
    """
    if name is not None:
        with suppress(OSError):  # the run was deleted, or what stands there is no file of the sweep
            (root / name / VERDICT).unlink()
