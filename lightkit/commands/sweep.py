"""`lightkit sweep`: a search whose trials are ordinary runs, and which goes on where it stopped."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import OF_FIT
from lightkit.cli.console import print_line
from lightkit.cli.heap import allow_quick_end
from lightkit.cli.monitors import find_config_modes, list_monitors
from lightkit.cli.notifications import IN_RETRAIN, CommandNotifier
from lightkit.cli.session import create_job_lock, find_job
from lightkit.cli.stage_config import StageConfig, read_run_settings
from lightkit.cli.stage_processes import OF_TRAINING, StageProcesses, list_packages_of
from lightkit.cli.stage_runner import count_devices, open_command_config
from lightkit.cli.sweep_check import check_space, read_own_values, read_plan, write_layer
from lightkit.cli.sweep_display import Display
from lightkit.cli.trial_processes import Job, TrialProcesses, remove_verdict
from lightkit.config import Resolved, shown_path
from lightkit.config.identity import select_identity
from lightkit.config.secret_values import refuse_plain_secrets
from lightkit.errors import ConfigError, LightkitError, OutOfTime, TooLittleTime
from lightkit.hardware import Machine, this_machine
from lightkit.hardware.processor import available_memory_bytes
from lightkit.reports.statistics import wilson_interval
from lightkit.runs.ci_report import STEP_SUMMARY, Case, CiReport, markdown_table
from lightkit.runs.deadline import Deadline, parse_deadline
from lightkit.runs.index import flatten
from lightkit.runs.signals import SignalWatch
from lightkit.runs.trial import find_trial
from lightkit.sweep.record import FILE, SweepRecord, Trial, find_sweeps
from lightkit.sweep.results import (
    choose_best,
    describe_result,
    describe_without_effect,
    find_data,
    is_share,
    rank_trials,
    write_table,
)
from lightkit.sweep.search import Search, describe_space, require_optuna
from lightkit.sweep.settings import Plan, find_mode, read_seed, require_space
from lightkit.sweep.space import Space, identify_point

_log = logging.getLogger("lightkit")
_CHECKPOINTS = ("Checkpoint", "ModelCheckpoint")
_INTERRUPTED = 75
_MISTAKES = (2, 3)  # exit codes of `lightkit check`: the config is wrong, the data is
_POLL_S = 0.01
_WAIT_S = 20.0  # for trials of a killed sweep, which save and end by themselves
_RESERVE_S = 15.0  # before a deadline, for trials to be saved
_RESERVE_SHARE = 0.25
_MEMORY_SHARE = 0.8


def sweep(invocation: Invocation) -> int:
    """Run the trials that are left, and return the exit code.

    Raises:
        ConfigError: If the arguments or the config are wrong.
        OutOfTime: If the deadline ends the sweep before it is done.
        RunLocked: If another process runs the job.
    """
    invocation.raise_errors()
    options = invocation.options
    if "run" in options:
        raise ConfigError(
            "sweep: --run is no option of it; to see how a sweep stands, use --status"
        )
    fit = _add_space(invocation.for_stage("fit", keep=OF_FIT), options)
    if "status" in options:
        return _show_status(fit, options)
    notifier = CommandNotifier(fit)
    junit = Path(options["junit"]).expanduser() if "junit" in options else None
    with CiReport("lightkit sweep", junit, case="sweep") as report:
        with notifier:
            report.code = notifier.code = _sweep(fit, options, notifier, report)
        return report.code


def _add_space(fit: Invocation, options: Mapping[str, Any]) -> Invocation:
    """Add the grid of ``--space`` as flags.

    Raises:
        ConfigError: If it is none.
    """
    if "space" not in options:
        return fit
    if "seeds" in options:
        raise ConfigError(
            "--space and --seeds: a sweep of seeds searches no values; leave one of them out"
        )
    space: dict[str, list[str]] = {}
    key = ""
    for word in options["space"]:  # which the commas have split
        name, is_pair, value = word.partition("=")
        if is_pair:
            key = name
            space.setdefault(key, [])
        elif not key:
            raise ConfigError(
                "--space: expected KEY=VALUE,VALUE, such as"
                f" model.learning_rate=1e-3,1e-2, got {word!r}"
            )
        space[key].append(value if is_pair else word)

    # Below the other flags, which may set another sampler.
    from lightkit.config import Flag, dump_yaml, read_scalar

    flags = [Flag("sweep.sampler", "grid", "--space")]
    for key, words in space.items():
        values = dump_yaml({key: [read_scalar(word) for word in words]})
        flags.append(Flag("sweep.space", values, f"--space {key}={','.join(words)}"))
    changed = fit._replace(overrides=(*flags, *fit.overrides))
    return changed._replace(words=tuple(changed.spell()))


def _sweep(
    fit: Invocation, options: Mapping[str, Any], notifier: CommandNotifier, report: CiReport
) -> int:
    deadline = parse_deadline(options["deadline"]) if "deadline" in options else None
    stage_config = open_command_config(fit)
    plan = _read_plan(stage_config.invocation, stage_config.resolved, options)
    refuse_plain_secrets(stage_config.resolved.tree, stage_config.resolved.references)
    settings = read_run_settings(stage_config.resolved, stage_config.job_name)
    uses_mlflow = "MLflow" in str(stage_config.resolved.section("logger"))
    modules = [*OF_TRAINING, *list_packages_of(stage_config.resolved)]
    if uses_mlflow:
        modules.append("mlflow")
    on_gpu = stage_config.hardware.kind == "gpu"
    with StageProcesses(
        preloads=not on_gpu, modules=modules, overlaps=not on_gpu, deadline=deadline
    ) as processes:
        notifier.begin(
            stage_config.resolved, stage_config.job_name, runs_stage=not stage_config.only_prints
        )
        root, job = find_job(settings)
        if _needs_check(stage_config, plan, root, job):
            _check_in_process(stage_config, processes, deadline)
        patient = replace(settings, wait_s=max(settings.wait_s, _WAIT_S))
        with create_job_lock(patient, SignalWatch()) as lock:
            record = find_record(stage_config, plan, root, job)
            record.check_with(lock)
            search = Sweep(
                stage_config, plan, record, lock, processes, deadline, report, root=root, job=job
            )
            try:
                code = search.run()
            finally:
                notifier.known = search.describe_end()
                # after a signal there is no time to load torch
                notifier.sends_each_end = processes.received is None
    if not stage_config.needs_imports:
        allow_quick_end()
    return code


def _needs_check(stage_config: StageConfig, plan: Plan, root: Path, job: str) -> bool:
    """Return whether classes must be imported to check the space.

    So it is before the first trial of a search alone.

    Raises:
        ConfigError: If a record that may be the one is damaged.
    """
    if not stage_config.needs_imports or plan.sampler == "seeds":
        return False
    record = find_record(stage_config, plan, root, job, creates=False)
    search = describe_search(plan)
    digest = _compute_digest(stage_config.resolved, stage_config.ckpt_path, search)
    return record.head.get("digest") != digest or not record.trials


def _check_in_process(
    stage_config: StageConfig, processes: StageProcesses, deadline: Deadline | None
) -> None:
    """Check config and space by the classes that they name, in a process that imports them.

    Where it ends in another way, as by a signal or at the deadline, the trials show what is wrong.

    Raises:
        LightkitError: If config or data are wrong.
    """
    words = _spell_fit(stage_config)
    environment = {STEP_SUMMARY: ""}  # the page of the job is the sweep's
    command = processes.start(["check", *words], environment, output=Path(os.devnull))
    code = None
    while code is None:
        code = command.poll(_POLL_S)
        if deadline is not None and deadline.left_s <= 0:
            command.end()
    processes.forget(command)
    if code in _MISTAKES:
        raise _create_error(code, command.reason)


def _spell_fit(stage_config: StageConfig, *layers: str, is_quiet: bool = False) -> list[str]:
    """Return the words of a fit of a sweep's config, with layers on top of its own."""
    fit = stage_config.invocation
    kept = {name: value for name, value in fit.options.items() if name in ("trust", "ckpt_path")}
    if is_quiet:
        kept["quiet"] = True
    return fit._replace(files=(*fit.files, *layers), options=kept, inputs=()).spell()


def _read_plan(fit: Invocation, resolved: Resolved, options: Mapping[str, Any]) -> Plan:
    """Read the sweep of a config and the command line.

    Raises:
        ConfigError: If anything in it is wrong.
    """
    plan = read_plan(resolved)
    if "seeds" in options:
        number = int(options["seeds"])
        plan = replace(
            plan, sampler="seeds", num_trials=number, space=Space(), num_confirmed=0, num_seeds=0
        )
    require_space(plan)
    require_optuna(plan)
    if plan.sampler != "seeds":
        check_space(fit, resolved, plan, imports=False)
        plan = replace(plan, num_trials=_count_trials(resolved, plan))
    if plan.metric is None:
        monitored = [each for each in list_monitors(resolved) if each.name in _CHECKPOINTS]
        plan = replace(plan, metric=monitored[0].metric if monitored else None)
    if plan.metric is not None:
        plan = replace(plan, mode=find_mode(plan.metric, plan, find_config_modes(resolved)))
    return plan


def _count_trials(resolved: Resolved, plan: Plan) -> int:
    """Count the trials of a search, which ends early once all points of its space are tried.

    The config itself is one of them, or one more.
    """
    if not plan.space.is_finite:
        return plan.num_trials
    own = identify_point(read_own_values(resolved, plan.space))
    points = itertools.islice(plan.space.iterate_points(), plan.num_trials)
    tried = {own, *map(identify_point, points)}
    return min(plan.num_trials, len(tried))


def describe_search(plan: Plan) -> dict[str, Any]:
    """Describe a sweep as far as it decides proposals and values."""
    layers = {
        path: hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
        for each in plan.space.dimensions
        if each.kind == "layers"
        for path in each.choices
        if path is not None
    }
    return {
        "metric": plan.metric,
        "mode": plan.mode,
        "sampler": plan.sampler,
        "seed": plan.seed,
        "pruner": asdict(plan.pruner),
        "constraints": {name: dict(bounds) for name, bounds in plan.constraints.items()},
        "space": describe_space(plan.space),
        "layers": layers,
    }


def _compute_digest(resolved: Resolved, ckpt_path: str | None, search: Mapping[str, Any]) -> str:
    """Compute the digest of a search and of what its config can change in a weight."""
    values = resolved.with_references(resolved.values)
    identity = select_identity({".".join(map(str, path)): value for path, value in flatten(values)})
    text = json.dumps([ckpt_path, search, identity], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def find_record(
    stage_config: StageConfig, plan: Plan, root: Path, job: str, *, creates: bool = True
) -> SweepRecord:
    """Find the record of a sweep, or begin one.

    ``sweeps/NAME``, or ``sweeps/NAME-2`` next to that of another search.

    Args:
        stage_config: Command line and config of a fit.
        plan: The sweep.
        root: Folder of all runs; that of the sweeps is next to it.
        job: Name of the job.
        creates: Whether a record is begun where there is none.

    Raises:
        ConfigError: If a record that may be the one is damaged, or one cannot be written.
    """
    search = describe_search(plan)
    digest = _compute_digest(stage_config.resolved, stage_config.ckpt_path, search)
    folder = find_sweeps(root)
    named = {(find_trial(run) or "").rpartition("/")[0] for run in runs.list_runs(root, job)}
    newest = SweepRecord(folder / job / FILE)
    damage: ConfigError | None = None
    for record in _iterate_records(folder, job):
        fault = _read_record(record, trims=creates)
        if fault is not None:
            # one of another search is none of this one's concern
            if record.head.get("digest") in (None, digest):
                damage = damage or fault
            continue
        if record.head.get("digest") == digest:
            return record
        if record.head:
            newest = record
        elif record.path.parent.name not in named:
            # a folder may have been deleted, and its runs are no trials of another sweep
            break
    if damage is not None:
        raise damage
    if not creates:
        return newest
    if record.path.parent.name != job:
        reason = "one before it searched something else, or was deleted"
        _log.info(f"begins a new sweep, {shown_path(record.path.parent)}: {reason}")
    record.write_head(search, digest)
    return record


def _iterate_records(folder: Path, job: str) -> Iterator[SweepRecord]:
    """Yield the records of a job's sweeps unread, and without end those that are not there yet."""
    yield SweepRecord(folder / job / FILE)
    for number in itertools.count(2):
        yield SweepRecord(folder / f"{job}-{number}" / FILE)


def _read_record(record: SweepRecord, *, trims: bool) -> ConfigError | None:
    """Read a record, and return why it cannot be read; None if it can.

    Args:
        record: The record.
        trims: Whether a last line that is cut off is removed: under the job's lock alone, as
            another process may just be writing it.
    """
    try:
        if trims:
            record.trim()
        record.read()
    except ConfigError as error:
        return error
    return None


class Sweep:
    """The trials of one sweep. The caller holds the job's lock.

    Args:
        stage_config: Command line and config of a fit.
        plan: The sweep.
        record: Its record.
        lock: The lock of the job.
        processes: Runs the commands.
        deadline: Moment by which the command has to be done, if there is one.
        report: Gets the cases for JUnit and the page of the CI step.
        root: Folder of all runs.
        job: Name of the job.
    """

    def __init__(
        self,
        stage_config: StageConfig,
        plan: Plan,
        record: SweepRecord,
        lock: runs.Lock,
        processes: StageProcesses,
        deadline: Deadline | None,
        report: CiReport,
        *,
        root: Path,
        job: str,
    ) -> None:
        self._stage_config = stage_config
        self._plan = plan
        self._record = record
        self._processes = processes
        self._deadline = deadline
        self._report = report
        self._root = root.absolute()
        self._folder = record.path.parent
        self._mode = record.head.get("found_mode") or plan.mode
        self._is_exhausted = False
        self._has_advanced = False  # in this process
        self._failures: list[str] = []  # of the newest trials, one after another
        for trial in record.trials:
            if trial.is_finished:
                self._failures = _add_failure(self._failures, trial)
            if self._has_failed_often:  # which has ended an earlier start
                self._failures = []
        environment = {**lock.delegate(), IN_RETRAIN: "1"}
        self._job = Job(
            self._folder.name,
            self._root,
            job,
            self._folder,
            environment,
            self._build_words,
            self._find_data,
            ["--quiet"],
        )
        self._trials = TrialProcesses(self._job, plan, processes)
        self._trials.metric = record.head.get("found_metric") or plan.metric
        left_s = 0.0 if deadline is None else max(0.0, deadline.left_s)
        self._reserve_s = min(_RESERVE_S, _RESERVE_SHARE * left_s)
        self._display = Display(stage_config.mode, self._folder.name, plan)

    def run(self) -> int:
        """Run the trials that are left, and return the exit code.

        Raises:
            LightkitError: If the sweep ends before it is done.
        """
        self._prepare_search()
        if self._plan.sampler != "seeds":
            threading.Thread(target=_import_ahead, args=(self._plan,), daemon=True).start()
        try:
            with self._display:
                self._loop()
        except OSError as error:
            self._trials.end()
            if error.filename is None:  # of a closed pipe
                raise
            raise LightkitError(
                f"sweep: {error.filename} cannot be written: {error.strerror}. Make room, or move"
                " away what stands there; the same command goes on."
            ) from error
        except BaseException:
            self._trials.end()
            raise
        return self._end()

    # -- the loop ----------------------------------------------------------------------------------

    def _loop(self) -> None:
        self._resume_unfinished()
        self._fill()
        while self._trials.active:
            # Before the look at ends: a trial whose start was given up late counts as interrupted.
            is_over = self._is_late() or self._trials.fatal is not None
            if is_over and not self._trials.is_stopping:
                self._trials.interrupt()
            finished = self._trials.poll()
            for trial in finished:
                self._finish(trial)
            if any(each.values for each in self._trials.active):
                self._has_advanced = True
            self._fill()
            if finished:  # while the next trial starts
                self._write_outputs()
            self._display.update(self._record.trials, self._trials.metric, self._mode)
            self._processes.wait(_POLL_S)

    def _is_late(self) -> bool:
        return self._deadline is not None and self._deadline.left_s <= self._reserve_s

    def _resume_unfinished(self) -> None:
        """Go on with the trials that an earlier start has left, all at once."""
        left = [each for each in self._record.trials if not each.is_finished]
        self._trials.num_slots = max(len(left), self._count_slots())
        for trial in left:
            self._write_layer(trial)
            self._trials.start(trial, resumes=True)
        self._collect_finished()
        self._trials.num_slots = max(len(self._trials.active), self._count_slots())

    def _collect_finished(self) -> None:
        """Record the trials that had ended before that was recorded."""
        for active in list(self._trials.active):
            if active.trial.is_finished:
                self._trials.active.remove(active)
                active.trial.seconds = time.monotonic() - active.began_s
                self._finish(active.trial)

    def _fill(self) -> None:
        """Start trials until as many run as may."""
        while self._may_start():
            trial = self._choose_next()
            if trial is None:
                return
            self._write_layer(trial)
            self._record.begin(trial)
            recorded = self._record.trials[trial.number]
            if self._trials.search is not None and recorded.kind == "search":
                self._trials.search.begin(recorded)
            self._trials.start(recorded)
        if self._may_need_another:
            self._processes.prepare()

    def _may_start(self) -> bool:
        is_over = (
            self._trials.is_stopping or self._trials.fatal is not None or self._has_failed_often
        )
        if is_over or self._is_late():
            return False
        num_active = len(self._trials.active)
        if num_active and not self._knows_metric:  # the first trial shows it
            return False
        slots = self._count_slots()
        self._trials.num_slots = max(slots, num_active)
        return num_active < slots

    @property
    def _may_need_another(self) -> bool:
        """Return whether one more trial may follow those that run."""
        most = self._plan.num_trials
        if self._plan.num_confirmed:
            most += (self._plan.num_confirmed + 1) * self._plan.num_seeds
        return bool(self._trials.active) and len(self._record.trials) < most

    @property
    def _knows_metric(self) -> bool:
        return self._trials.metric is not None and self._mode is not None

    @property
    def _has_failed_often(self) -> bool:
        return len(self._failures) >= self._plan.max_failures

    def _count_slots(self) -> int:
        """Return the most trials at a time, and share the GPUs or the cores among them."""
        if self._plan.parallel == 1:
            return 1
        cores = self._machine.cores or 1
        number = self._plan.parallel
        if number == "auto":
            number = self._choose_parallel(len(self._gpu_groups) or cores)
        if number == 1:
            self._trials.devices = ()
            self._trials.threads = None
        elif self._gpu_groups:
            self._trials.devices = self._gpu_groups
        elif self._stage_config.resolved.section("launch").get("threads") is None:
            self._trials.threads = max(1, cores // number)
        return number

    @cached_property
    def _machine(self) -> Machine:
        """This machine as it was at the start: to look at it takes longer than a poll."""
        return this_machine()

    @cached_property
    def _gpu_groups(self) -> list[str]:
        """The GPUs of each trial, for ``CUDA_VISIBLE_DEVICES``; empty where none is used."""
        if self._stage_config.hardware.kind != "gpu":
            return []
        per_trial = count_devices(self._stage_config.hardware) or 1
        num_groups = max(1, len(self._machine.gpus or ()) // per_trial)
        visible = _list_visible(num_groups * per_trial)
        starts = range(0, num_groups * per_trial, per_trial)
        return [",".join(visible[start : start + per_trial]) for start in starts]

    def _choose_parallel(self, groups: int) -> int:
        """Choose the number of trials at a time: one, until the memory of the first is known."""
        peak_bytes = self._trials.peak_bytes
        if not peak_bytes:
            return 1
        in_memory = int(_MEMORY_SHARE * available_memory_bytes() // peak_bytes)
        running = len(self._trials.active)  # whose memory is no longer available
        return max(1, min(groups, in_memory + running))

    # -- which trial comes next --------------------------------------------------------------------

    def _prepare_search(self) -> None:
        """Build the study from the record, once it is known which values are good."""
        if (
            self._trials.search is not None
            or not self._knows_metric
            or self._plan.sampler == "seeds"
        ):
            return
        self._trials.search = Search(self._plan, str(self._mode))
        self._trials.search.rebuild(self._record.trials)

    def _choose_next(self) -> Trial | None:
        trials = self._record.trials
        number = len(trials)
        if self._plan.sampler == "seeds":
            seed = read_seed(self._stage_config.resolved) + number
            return Trial(number, {}, "seed", seed) if number < self._plan.num_trials else None
        of_search = [each for each in trials if each.kind == "search"]
        if len(of_search) < self._plan.num_trials and not self._is_exhausted:
            params = self._propose(number)
            if params is not None:
                return Trial(number, params)
            self._is_exhausted = True
        if any(not each.is_finished for each in of_search):
            return None
        return self._choose_confirmation(number)

    def _propose(self, number: int) -> Mapping[str, Any] | None:
        """Propose the values of the next trial: first the config's own; None if all were tried.

        Raises:
            ConfigError: If the first trial was to show the metric, and has failed.
        """
        if number == 0:
            return read_own_values(self._stage_config.resolved, self._plan.space)
        self._prepare_search()
        if self._trials.search is None:
            text = (
                "sweep.metric: not set, and the first trial, which would tell what the checkpoint"
                " monitors, has failed"
            )
            raise ConfigError(
                f"{text}: {self._record.trials[0].reason}. Set sweep.metric and sweep.mode"
            )
        return self._trials.search.propose(number)

    def _choose_confirmation(self, number: int) -> Trial | None:
        """Return the next run with a fresh seed, of the best points and of the config itself."""
        if not self._plan.num_confirmed or self._mode is None:
            return None
        trials = self._record.trials
        points = rank_trials(trials, self._plan, self._mode)[: self._plan.num_confirmed]
        if not points:
            return None
        if trials[0] not in points:
            points.append(trials[0])
        done = {(each.of, each.seed) for each in trials if each.kind == "confirm"}
        first = read_seed(self._stage_config.resolved) + 1
        seeds = range(first, first + self._plan.num_seeds)
        for seed, point in itertools.product(seeds, points):
            if (point.number, seed) not in done:
                return Trial(number, point.params, "confirm", seed, point.number)
        return None

    def _write_layer(self, trial: Trial) -> None:
        """Write the layer of a trial; that of the config itself sets no searched key."""
        is_own = trial.number == 0 or trial.of == 0
        params = {} if is_own else trial.params
        path = self._job.find_folder(trial) / "trial.yaml"
        write_layer(
            path,
            self._plan.space,
            params,
            head=f"{self._folder.name}, trial {trial.number}",
            seed=trial.seed,
        )

    def _build_words(self, layer: Path, trial: Trial) -> list[str]:
        """Build the words of a trial's fit: the config's own, and its layer."""
        words = _spell_fit(self._stage_config, str(layer), is_quiet=True)
        words += [f"--run.name={self._job.job}", "--run.report=false"]
        if trial.seed is not None:
            words.append(f"--seed_everything={trial.seed}")
        return words

    def _find_data(self, trial: Trial) -> str | None:
        return find_data(self._record.trials, trial, self._plan.space)

    # -- the end of a trial ------------------------------------------------------------------------

    def _finish(self, trial: Trial) -> None:
        """Record the end of a trial, and write what is known so far."""
        if self._record.head.get("found_metric") is None and self._trials.metric is not None:
            self._learn_mode(trial)
        self._record.end(trial)
        self._has_advanced = True
        recorded = self._record.trials[trial.number]
        if self._trials.search is None:
            self._prepare_search()  # which adds each trial of the record
        elif recorded.kind == "search":
            self._trials.search.finish(recorded)
        remove_verdict(self._root, recorded.run)
        self._failures = _add_failure(self._failures, recorded)
        self._display.finish(recorded, self._record.trials, self._trials.metric, self._mode)

    def _learn_mode(self, trial: Trial) -> None:
        """Record the metric and its mode, once a trial has told them."""
        metric = str(self._trials.metric)
        if self._mode is None and trial.run is not None:
            self._mode = self._read_mode(metric, trial.run)
            if self._mode is None:
                text = (
                    "sweep.mode: not set, and nothing tells whether small or large values of"
                    f" {metric} are good"
                )
                # a metric that nothing logs is an error of its own, and the first one
                self._trials.fatal = self._trials.fatal or (
                    2,
                    f"{text}. Set sweep.mode to min or max",
                )
                return
        if self._mode is not None:
            self._record.note_metric(metric, self._mode)

    def _read_mode(self, metric: str, run: str) -> str | None:
        """Read the mode of a metric from the run of a trial: the sweep's, or its checkpoint's."""
        summary = runs.read_summary(self._root / run / "summary.json") or {}
        mode = find_mode(metric, self._plan, summary.get("modes") or {})
        best = summary.get("best") or {}
        if mode is None and best.get("monitor") == metric:
            return best.get("mode")
        return mode

    def _write_outputs(self) -> None:
        """Write ``trials.csv`` and ``best.yaml``."""
        metric = str(self._trials.metric)
        write_table(self._folder / "trials.csv", self._record.trials, self._plan, metric)
        best = self._choose_best()
        path = self._folder / "best.yaml"
        if best is None:
            path.unlink(missing_ok=True)
            return
        head = (
            f"sweep {self._folder.name}, trial {best.number}: {metric}"
            f" {best.value:.6g}, run {best.run}"
        )
        if best.number == 0:
            head += "\nthe config itself: nothing beat it"
        write_layer(path, self._plan.space, {} if best.number == 0 else best.params, head=head)

    # -- the end of the sweep ----------------------------------------------------------------------

    def _end(self) -> int:
        """Report how it ended, and return the exit code.

        Raises:
            LightkitError: If it is not done.
        """
        if any(each.is_finished for each in self._record.trials):
            self._write_outputs()  # also where an earlier start was killed before it could
        self._report_cases()
        error = self._find_error()
        if error is not None:
            raise error
        lines = describe_result(
            self._record.trials, self._plan, str(self._trials.metric), str(self._mode)
        )
        self._record.note_done()
        page = self._write_page()
        self._record_in_mlflow()
        self._report.add_page(f"### lightkit sweep: {self._folder.name}\n\n{self._format_page()}")
        if not self._has_result:
            self._report.reason = lines[0]
            raise LightkitError(
                f"sweep: {self._stage_config.resolved.masked(lines[0])}. The output of each is"
                f" in {shown_path(self._folder)}/trials; to try them again, delete"
                f" {shown_path(self._folder)}"
            )
        lines += self._describe_noise()
        lines += describe_without_effect(self._record.trials, str(self._trials.metric))
        lines.append(f"sweep {shown_path(self._folder)}")
        if page is not None:
            lines.append(f"report {shown_path(page)}")
        lines += self._suggest_next()
        print_line(self._stage_config.resolved.masked("\n".join(lines)), self._stage_config.mode)
        return 0

    def _describe_noise(self) -> list[str]:
        """Say how far an accuracy can be off by chance alone, on so many validation samples."""
        best = self._choose_best()
        if (
            best is None
            or best.run is None
            or best.value is None
            or not is_share(str(self._trials.metric))
        ):
            return []
        summary = runs.read_summary(self._root / best.run / "summary.json") or {}
        num_samples = (summary.get("samples") or {}).get("val")
        if not isinstance(num_samples, int) or not 0 <= best.value <= 1:
            return []
        low, high = wilson_interval(round(best.value * num_samples), num_samples)
        text = (
            f"noise {num_samples} validation samples: an accuracy of"
            f" {best.value:.4g} has the 95 % interval"
        )
        return [f"{text} {low:.3f} to {high:.3f}, on samples alone"]

    @property
    def _has_result(self) -> bool:
        """Return whether a trial is the best, or a seed has a value."""
        if self._plan.sampler == "seeds":
            return any(each.state == "complete" for each in self._record.trials)
        return self._choose_best() is not None

    def _choose_best(self) -> Trial | None:
        return choose_best(self._record.trials, self._plan, self._mode)

    def _suggest_next(self) -> list[str]:
        """Return the command that trains with the best values, where the config has others."""
        best = self._choose_best()
        if best is None or best.number == 0:
            return []
        files = [file for file in self._stage_config.invocation.files if "\n" not in file]
        layer = shown_path(self._folder / "best.yaml")
        return [f"next  lightkit fit {' '.join(f'-c {file}' for file in [*files, layer])}"]

    def _find_error(self) -> BaseException | None:
        """Return why the sweep is not done; None where it is."""
        if self._processes.received is not None:
            name = signal.Signals(self._processes.received).name
            return _Interrupted(
                f"interrupted by {name}; the same command goes on with {self._describe_left()}"
            )
        if self._trials.fatal is not None:
            code, reason = self._trials.fatal
            return _create_error(code, f"{self._stage_config.resolved.masked(reason)}")
        if self._has_failed_often:
            first = self._failures[0]
            text = (
                f"sweep: {len(self._failures)} trials in a row have failed"
                f" (sweep.max_failures): {first}"
            )
            return LightkitError(self._stage_config.resolved.masked(text))
        if (
            any(not each.is_finished for each in self._record.trials)
            or self._choose_next() is not None
        ):
            text = f"The deadline is near; the same command goes on with {self._describe_left()}"
            if self._deadline is not None and self._deadline.is_duration and not self._has_advanced:
                return TooLittleTime(f"{text}, and has no more time. Name a longer --deadline.")
            return OutOfTime(text)
        return None

    def _describe_left(self) -> str:
        number = next(
            (each.number for each in self._record.trials if not each.is_finished),
            len(self._record.trials),
        )
        return f"trial {number} of {self._folder.name}"

    def _report_cases(self) -> None:
        """Write a case a trial for JUnit."""
        cases = []
        for each in self._record.trials:
            output = json.dumps(
                {"params": dict(each.params), "value": each.value, "run": each.run}, default=str
            )
            failure = each.reason if each.state == "failed" else None
            skipped = {"pruned": "stopped early", "running": "not finished"}.get(each.state)
            masked = None if failure is None else self._stage_config.resolved.masked(failure)
            cases.append(
                Case(
                    f"trial {each.number}",
                    each.seconds,
                    failure=masked,
                    output=output,
                    skipped=skipped,
                )
            )
        self._report.write(cases)

    def _format_page(self) -> str:
        """Format the trials in Markdown, the best first."""
        mode = str(self._mode)
        shown = rank_trials(self._record.trials, self._plan, mode) or self._record.trials
        rows = [
            (each.number, each.state, each.value, json.dumps(dict(each.params), default=str))
            for each in shown[:20]
        ]
        return markdown_table(["trial", "state", str(self._trials.metric), "values"], rows)

    def _write_page(self) -> Path | None:
        if self._plan.sampler == "seeds":
            return None
        from lightkit.sweep.page import try_sweep_page  # here: it loads Jinja2 and Matplotlib

        path = self._folder / "report.html"
        return try_sweep_page(
            path,
            self._folder.name,
            self._record.trials,
            self._plan,
            str(self._trials.metric),
            str(self._mode),
        )

    def _record_in_mlflow(self) -> None:
        """Put the trials' MLflow runs below one of the sweep."""
        from lightkit.cli.sweep_tracking import track_sweep  # here: few configs need it

        track_sweep(
            self._stage_config.resolved,
            self._root,
            self._record,
            self._plan,
            self._trials.metric,
            self._mode,
        )

    def describe_end(self) -> dict[str, Any]:
        """Describe the sweep for the message of its end: its folder, and the best value so far."""
        known = {"job": self._job.job, "stage": "sweep", "folder": str(self._folder)}
        best = self._choose_best()
        if best is None:
            return known
        return {**known, "best": {"monitor": self._trials.metric, "value": best.value}}


def _import_ahead(plan: Plan) -> None:
    """Import what samples, draws and weighs, seconds of work, while the first trial imports torch.

    What weighs several keys imports SciPy and scikit-learn, where that is installed.
    """
    names = ["optuna", "lightkit.sweep.page", "matplotlib.figure"]
    if len(plan.space.dimensions) > 1:
        names.append("optuna.importance")
    for name in names:
        with suppress(ImportError, OSError):  # an extra; what needs it says so
            import_module(name)


def _list_visible(number: int) -> list[str]:
    """List the names of the GPUs that this process sees, for ``CUDA_VISIBLE_DEVICES``."""
    named = [
        name.strip()
        for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if name.strip()
    ]
    return named or [str(index) for index in range(number)]


def _add_failure(failures: list[str], trial: Trial) -> list[str]:
    """Return the reasons of equal failures, one after another, after the end of one more trial."""
    if trial.state != "failed":
        return []
    reason = str(trial.reason)
    is_equal = bool(failures) and _without_numbers(failures[-1]) == _without_numbers(reason)
    return [*failures, reason] if is_equal else [reason]


def _without_numbers(reason: str) -> str:
    """Return a reason without what differs from trial to trial: step numbers, ids and values."""
    return re.sub(r"\w*\d[\w.+-]*", "#", reason)


class _Interrupted(LightkitError):
    """A signal has ended the sweep, and the same command goes on."""

    exit_code = _INTERRUPTED


def _create_error(code: int, text: str) -> LightkitError:
    """Return an error with an exit code of a trial."""
    error = LightkitError(text)
    error.exit_code = code
    return error


# -- without running anything ----------------------------------------------------------------------


def _show_status(fit: Invocation, options: Mapping[str, Any]) -> int:
    """Print how a sweep stands."""
    stage_config = open_command_config(fit)
    if "seeds" not in options and not stage_config.resolved.section("sweep"):
        raise ConfigError(
            "sweep: --status of which sweep? The config has no section"
            " `sweep`; add its file with -c"
        )
    plan = _read_plan(stage_config.invocation, stage_config.resolved, options)
    root, job = find_job(read_run_settings(stage_config.resolved, stage_config.job_name))
    record = find_record(stage_config, plan, root, job, creates=False)
    if not record.head:
        raise ConfigError(f"sweep: there is no sweep of {job!r} in {shown_path(find_sweeps(root))}")
    mode = record.head.get("found_mode") or plan.mode
    metric = record.head.get("found_metric") or plan.metric
    if stage_config.mode == "json":
        best = choose_best(record.trials, plan, mode)
        status = {
            "sweep": record.path.parent.name,
            "metric": metric,
            "mode": mode,
            "trials": list(map(asdict, record.trials)),
            "best": None if best is None else best.number,
            "of": plan.num_trials,
        }
        print(json.dumps(status, default=str))
        return 0
    display = Display("plain", record.path.parent.name, plan)
    print(display.format_status(record.trials, metric, mode))
    if any(each.is_finished for each in record.trials):
        print("\n".join(describe_result(record.trials, plan, str(metric), str(mode))))
    return 0
