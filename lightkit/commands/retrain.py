"""`lightkit retrain`: fit, test, export, gate and promote.

One after another, each in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import OF_FIT, SKIPPABLE
from lightkit.cli.console import print_error, print_line, quiet_libraries
from lightkit.cli.input_digests import compute_inputs, select_identity_of, split_values
from lightkit.cli.notifications import IN_RETRAIN, CommandNotifier, pass_on_notifiers
from lightkit.cli.session import create_job_lock
from lightkit.cli.stage_config import StageConfig, read_run_settings
from lightkit.cli.stage_processes import (
    OF_STAGES,
    StageProcesses,
    describe_kill,
    list_packages_of,
)
from lightkit.cli.stage_runner import open_command_config
from lightkit.cli.up_to_date import compare_inputs
from lightkit.cli.validation import find_missing_forward, require_export_hooks
from lightkit.config import Resolved, near, shown_path
from lightkit.config.identity import is_in_earlier_identity, is_in_identity, select_identity
from lightkit.config.secret_values import refuse_plain_secrets
from lightkit.errors import (
    ConfigError,
    GateFailed,
    OutOfTime,
    ServerAway,
    TooLittleTime,
)
from lightkit.export.options import ExportOptions, parse_formats
from lightkit.registry.gate import RECORD, GateSettings, read_gate, require_rule
from lightkit.registry.promotion import (
    Rejection,
    digests_of_inputs,
    read_rejections,
    require_no_hold,
)
from lightkit.registry.store import (
    address_of_job,
    open_registry,
    read_aliases,
)
from lightkit.runs.ci_report import Case, CiReport, is_failure, markdown_table
from lightkit.runs.deadline import Deadline, format_duration, parse_deadline, parse_duration
from lightkit.runs.index import flatten
from lightkit.runs.resume import RunSettings
from lightkit.runs.signals import SignalWatch

_log = logging.getLogger("lightkit")

STAGES = ("fit", "test", "export", "gate", "promote")
_FILE = "retrain.json"
_SCHEMA = 1
_MAX_FAILURES = 3  # of a stage after `fit`; then the next start begins a new training
# exit codes of a gate and of a command that can be continued
_REJECTED = 4
_INTERRUPTED = 75
_ALIAS = "champion"
_INTERRUPTIONS = (_INTERRUPTED, 129, 130, 138, 143)
_NUM_EARLIER_RUNS = 5
_RESERVE_FACTOR = 1.5
_RESERVE_EXTRA_S = 10.0
_FIRST_RESERVE_SHARE = 0.25
_MAX_FIRST_RESERVE_S = 900.0


def retrain(invocation: Invocation) -> int:
    """Run the stages that are left, and return the exit code.

    Raises:
        ConfigError: If the arguments or the config are wrong.
        OutOfTime: If the deadline leaves no time for the next stage.
        RunLocked: If another process runs the job.
    """
    _check_options(invocation)
    options = invocation.all_options
    fit = invocation.for_stage("fit", keep=OF_FIT)
    notifier = CommandNotifier(fit)
    junit = Path(options["junit"]).expanduser() if "junit" in options else None
    with CiReport("lightkit retrain", junit, case="retrain") as report:
        with notifier:
            report.code = notifier.code = _retrain(fit, options, notifier, report)
        return report.code


def _check_options(invocation: Invocation) -> None:
    """Check what would end the retrain only after hours of training.

    Raises:
        ConfigError: If an option is wrong.
    """
    invocation.raise_errors()
    options = invocation.all_options
    if "run" in options:
        raise ConfigError(
            "retrain: --run is no option of it; to go on in a run's folder, give --run.resume=RUN"
        )
    if "unchanged-ok" in options and "if-changed" not in options:
        raise invocation.error("--unchanged-ok has no effect without --if-changed")
    _parse_export(options)
    if "reserve" in options and parse_duration(options["reserve"]) is None:
        raise ConfigError(
            f"--reserve: expected a duration such as 10m, 90s or 1h30m, got {options['reserve']!r}"
        )
    for stage in options.get("skip", ()):
        if stage not in SKIPPABLE:
            text = (
                "; nothing is promoted that was not judged"
                if stage == "gate"
                else near(stage, SKIPPABLE)
            )
            raise ConfigError(f"--skip: expected {', '.join(SKIPPABLE)}, got {stage!r}{text}")


def _parse_export(options: Mapping[str, Any]) -> ExportOptions:
    """Parse the formats of the export.

    Raises:
        ConfigError: If there is no such format, or its packages are missing.
    """
    formats = parse_formats("export-format", options["export-format"])
    return ExportOptions.parse({"format": ",".join(formats)})


def _require_methods(resolved: Resolved, gate: GateSettings, options: Mapping[str, Any]) -> None:
    """Refuse a model whose class lacks a method by which an export or a registration calls it.

    Raises:
        ConfigError: If it lacks one, or there is no such format.
    """
    skipped = options.get("skip", ())
    is_registered = gate.metric is not None and "promote" not in skipped
    is_exported = False
    if "export" not in skipped:
        export = _parse_export(options)
        require_export_hooks(resolved, export.module_formats, option="export-format")
        is_exported = len(export.module_formats) < len(export.formats)
    if is_registered or is_exported:
        missing = find_missing_forward(resolved, is_registered=is_registered)
        if missing is not None:
            raise missing


def _retrain(
    fit: Invocation, options: Mapping[str, Any], notifier: CommandNotifier, report: CiReport
) -> int:
    deadline = parse_deadline(options["deadline"]) if "deadline" in options else None
    stage_config = open_command_config(fit)
    settings = read_run_settings(stage_config.resolved, stage_config.job_name)
    # errors that would end the retrain only after hours of training
    resolved = stage_config.resolved
    gate = read_gate(resolved)
    refuse_plain_secrets(resolved.tree, resolved.references)
    if gate.metric is not None:
        require_rule(gate)
    elif "reason" in options:
        raise ConfigError(
            "--reason: nothing is promoted without gate.metric; leave it out, or set gate.metric."
        )
    _require_methods(resolved, gate, options)
    preloads = "if-changed" not in options  # with it, perhaps nothing needs torch
    modules = [*OF_STAGES, *list_packages_of(resolved)]
    with StageProcesses(preloads=preloads, modules=modules) as processes:
        notifier.begin(resolved, stage_config.job_name, runs_stage=not stage_config.only_prints)
        with create_job_lock(settings, SignalWatch()) as lock:
            return Retrain(
                stage_config, options, settings, deadline, processes, lock, report, notifier
            ).run()


@dataclass
class StageState:
    """State of one stage, as `Retrain` describes it."""

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
        """Return whether it is not run (again)."""
        return self.status in ("done", "skipped")

    @property
    def has_run(self) -> bool:
        """Return whether it was begun."""
        return self.status not in ("pending", "skipped")

    @property
    def has_failed(self) -> bool:
        """Return whether it was begun and is not done: a killed process leaves it running."""
        return self.status in ("failed", "interrupted", "running")


def read_stages(run: runs.Run) -> list[StageState] | None:
    """Read the stages of a run's ``retrain.json``.

    None if there are none, or they are of another version.
    """
    record = runs.read_json(run.folder / _FILE) or {}
    try:
        stages = [StageState(**each) for each in record["stages"]]
    except (KeyError, TypeError):
        return None
    return (
        stages
        if record.get("schema") == _SCHEMA and [each.stage for each in stages] == [*STAGES]
        else None
    )


def _ask_again(stages: Sequence[StageState]) -> None:
    """Make what was skipped pending, which may be asked for now."""
    for state in stages:
        if state.status == "skipped":
            state.status = "pending"


class Retrain:
    """The stages of one job's retrain. The caller holds the job's lock.

    Its progress is in ``retrain.json`` of the run, so that the next start goes on there. The file
    is replaced as a whole at each step; a process that is killed leaves a stage ``running``.

    ===========  ===================================================================================
    schema       1
    run          ``NAME/ID``
    config       digest of the config that the retrain was started with
    began        ISO 8601, UTC; ``ended`` too, which is null until nothing is left to do
    outcome      ``promoted``; ``not promoted``: the gate rejected the model; ``trained``: without a
                 promotion; null
    stages       in their order: ``stage``, ``status`` (pending, running, done, failed, interrupted,
                 skipped), ``began``, ``ended``, ``seconds`` and ``exit_code`` of the last attempt,
                 number of ``attempts`` and of ``failures``, and ``message``: why it was skipped, or
                 what ended it
    ===========  ===================================================================================

    Args:
        stage_config: Config of the command, as that of a fit.
        options: The command's own options.
        settings: The `run` section of the config, with the name of the job.
        deadline: Moment by which all has to be done, if there is one.
        processes: Runs the commands.
        lock: The lock of the job, which this process holds.
        report: Gets the cases for JUnit and the page of the CI step.
        notifier: Sends the end of the command.
    """

    def __init__(
        self,
        stage_config: StageConfig,
        options: Mapping[str, Any],
        settings: RunSettings,
        deadline: Deadline | None,
        processes: StageProcesses,
        lock: runs.Lock,
        report: CiReport,
        notifier: CommandNotifier,
    ) -> None:
        self._notifier = notifier
        self._stage_config = stage_config
        self._options = options
        self._settings = settings
        self._deadline = deadline
        self._processes = processes
        self._lock = lock
        self._ci = report
        self._earlier = runs.list_runs(lock.path.parent.parent, lock.path.parent.name)
        self._gate = read_gate(stage_config.resolved)
        self._flags = [
            f"--{option}" for option in ("if-changed", "unchanged-ok") if option in options
        ]
        self._skipped = {stage: f"--skip {stage}" for stage in options.get("skip", ())}
        if self._gate.metric is None:
            self._skipped |= {
                "gate": "gate.metric is not set",
                "promote": "nothing is promoted that was not judged",
            }
        values = stage_config.resolved.with_references(stage_config.resolved.values)
        flat = {".".join(map(str, path)): value for path, value in flatten(values)}
        earlier = {key: value for key, value in values.items() if key not in ("run", "gate")}
        self._config = _digest_training(stage_config.ckpt_path, select_identity(flat))
        self._accepted = (
            self._config,
            _digest_training(stage_config.ckpt_path, earlier),
        )  # the latter until November 2026
        self._environment: Mapping[str, str] = {}  # of the stages
        self._run: runs.Run | None = None  # `fit` chooses it
        self._stages = {stage: StageState(stage) for stage in STAGES}
        self._notifiers = pass_on_notifiers(stage_config.resolved)
        self._began = _format_now()
        self._ended: str | None = None
        self._outcome: str | None = None
        self._has_run_a_stage = False  # in this process
        self._unchanged: runs.Run | None = None  # since which nothing has changed

    def run(self) -> int:
        """Run the stages that are left, and return the exit code.

        Raises:
            GateFailed: If nothing may be promoted: the champion is held, or a training would repeat
                one whose model was rolled back.
            OutOfTime: If the deadline leaves no time for the next stage.
        """
        self._choose_run()
        try:
            code = self._run_stages()
        except OutOfTime as error:
            self._report(error.exit_code, f"{error}")
            raise
        signum = self._processes.received
        self._report(
            code, "" if signum is None else f"Interrupted by {signal.Signals(signum).name}."
        )
        if (
            self._run is not None
            and signum is None
            and code not in _INTERRUPTIONS
            and self._settings.report
        ):
            # here: it loads Jinja2 and Matplotlib
            from lightkit.reports.pages import try_run_report

            try_run_report(self._run)
        return code

    def _run_stages(self) -> int:
        """Run the stages left until one ends otherwise than well, and return the exit code.

        Raises:
            OutOfTime: If the deadline leaves no time for the next stage.
        """
        for stage, state in self._stages.items():
            if state.is_over:
                continue
            code = 0
            if self._processes.received is not None:  # between two stages
                code = _INTERRUPTED
            elif stage in self._skipped:
                self._skip(stage, self._skipped[stage])
            else:
                code = self._run_stage(stage)
            if code or self._run is None:  # without a run nothing has changed
                return code
        self._finish("promoted" if self._stages["promote"].status == "done" else "trained")
        return 0

    def _choose_run(self) -> None:
        """Choose the run to go on with, if there is one.

        Refuse to train where nothing may be promoted.

        Raises:
            GateFailed: If the champion is held, or a training would repeat one whose model was
                rolled back.
        """
        if self._settings.resume == "auto":
            self._resume()

        # a gate alone that has changed needs no training
        if self._run is None and "--if-changed" in self._flags:
            self._unchanged = compare_inputs(self._stage_config).run
            if self._unchanged is not None and self._is_judged_otherwise(self._unchanged):
                self._judge_again(self._unchanged)

        has_work = self._run is not None or self._unchanged is None
        if has_work and not self._stages["promote"].is_over and "promote" not in self._skipped:
            self._require_promotable()

    def _resume(self) -> None:
        """Go on with the unfinished retrain of the job.

        Not where its `fit` is not done, which finds what to resume.

        Only the newest training counts: an unfinished retrain before it is history.
        """
        run, record = self._find_unfinished()
        if run is None:
            return
        stages = read_stages(run)
        reason = self._find_obstacle(record, stages)
        if stages is None or reason is not None:
            _log.info(
                f"begins a new training: the retrain of {run.folder} was not finished, but {reason}"
            )
            self._flags = []  # perhaps nothing has changed, and still that training came to nothing
            return

        _ask_again(stages)
        # perhaps it was killed after the training, and before that was noted
        stages[0].status = "done"
        self._run = run
        self._began = record.get("began") or self._began
        self._stages = {state.stage: state for state in stages}
        left = [
            each.stage for each in stages if not each.is_over and each.stage not in self._skipped
        ]
        folder = shown_path(run.folder)
        _log.info(f"goes on with {left[0] if left else 'its end'}: {folder} was not finished")

    def _find_unfinished(self) -> tuple[runs.Run | None, Mapping[str, Any]]:
        """Return the newest training of the job and its record.

        If it is done and the stages after it are not.
        """
        for run in self._earlier:
            if run.is_fit:
                is_trained = runs.find_value(runs.read_json(run.summary_path), "status") == "done"
                record = runs.read_json(run.folder / _FILE)
                is_open = is_trained and record is not None and not record.get("ended")
                return (run if is_open else None), record or {}
        return None, {}

    def _find_obstacle(
        self, record: Mapping[str, Any], stages: Sequence[StageState] | None
    ) -> str | None:
        """Return why an unfinished retrain is not gone on with; None if it is."""
        if stages is None:
            return f"its {_FILE} is of another version of lightkit"
        if record.get("config") not in self._accepted:
            return "had another config"
        worst = max(stages[1:], key=lambda state: state.failures)
        if worst.failures >= _MAX_FAILURES:
            return f"its {worst.stage} has failed {worst.failures} times"
        return None

    @property
    def _model(self) -> str:
        """Name of the registered model."""
        return self._gate.name or self._lock.path.parent.name

    def _is_judged_otherwise(self, run: runs.Run) -> bool:
        """Return whether a run was judged by another gate than that of now, or by none."""
        if self._gate.metric is None:
            return False
        before = runs.find_value(runs.read_json(run.folder / RECORD), "settings") or {}
        now = json.loads(json.dumps({**asdict(self._gate), "name": self._model}))
        return bool({**asdict(GateSettings()), **before} != now)

    def _judge_again(self, run: runs.Run) -> None:
        """Go on with the gate of a run whose training nothing would change."""
        stages = read_stages(run) or [StageState(stage) for stage in STAGES]
        self._run = run
        self._began = runs.find_value(runs.read_json(run.folder / _FILE), "began") or self._began
        self._stages = {state.stage: state for state in stages}
        for stage in ("gate", "promote"):
            self._stages[stage] = StageState(stage)
        _ask_again(stages)
        self._stages["fit"].status = "done"
        _log.info(
            f"only the gate has changed since {shown_path(run.folder)}: it is"
            " judged again, without a training"
        )

    def _require_promotable(self) -> None:
        """Refuse at the beginning, and not after hours of training, where nothing may be promoted.

        A registry that does not answer now is asked again by the promotion.

        Raises:
            GateFailed: If the champion is held, or a training would repeat one whose model was
                rolled back.
        """
        name = self._model
        try:
            rejections = self._ask_registry()
        except ServerAway as error:
            _log.info(f"whether {name} may be promoted is asked later: {error}")
            return
        if self._run is not None:
            return
        for rejection in reversed(rejections):
            if rejection.inputs and self._repeats(rejection):
                raise GateFailed(
                    f"{rejection.describe(name)}, and config, data and code are those that it was"
                    " trained from. Nothing was trained; `lightkit promote RUN --force` promotes"
                    " the run of that version all the same, and --skip"
                    " promote trains without a promotion."
                )

    def _ask_registry(self) -> list[Rejection]:
        """Return the models that were rolled back, unless the champion is held.

        Raises:
            ConfigError: If the registry refuses, or its database can only be read.
            GateFailed: If it is held.
            ServerAway: If MLflow does not answer.
        """
        address = address_of_job(self._stage_config.resolved, self._lock.path.parent.parent)
        if address.database is not None and not address.database.is_file():
            return []
        quiet_libraries()
        with open_registry(address, creates=False) as registry:
            name = self._model
            if read_aliases(registry, name) is None:
                return []
            require_no_hold(registry, name, _ALIAS)
            return read_rejections(registry, name, _ALIAS)

    def _repeats(self, rejection: Rejection) -> bool:
        """Return whether a training now would have the inputs of a model that was rolled back."""
        before = None if rejection.folder is None else runs.read_inputs(rejection.folder)
        salt = "" if before is None else before.salt
        now = compute_inputs(self._stage_config, salt=salt, asked="if-changed" in self._options)
        if before is None:  # on another machine: equal only if nothing in the config is secret
            return dict(rejection.inputs) in self._list_digests(now)
        is_known = now.data is not None and before.data is not None and not now.unseen
        return is_known and not runs.list_changes(select_identity_of(before), now)

    def _list_digests(self, now: runs.Inputs) -> list[dict[str, str]]:
        """List the digests of these inputs, as this version and as earlier ones compute them."""
        found = []
        for counts in (is_in_identity, is_in_earlier_identity):
            config, hidden = split_values(self._stage_config.written, now.salt, counts)
            found.append(
                digests_of_inputs({"inputs": replace(now, config=config, hidden=hidden).digests})
            )
        return found

    def _skip(self, stage: str, reason: str) -> None:
        self._stages[stage].status = "skipped"
        self._stages[stage].message = reason
        self._write()
        self._write_event(stage, "skipped", message=reason)

    def _finish(self, outcome: str) -> None:
        self._ended = _format_now()
        self._outcome = outcome
        self._write()

    def _write(self) -> None:
        """Replace ``retrain.json``, once the run is known."""
        if self._run is not None:
            record = {
                "schema": _SCHEMA,
                "run": f"{self._run.name}/{self._run.id}",
                "config": self._config,
                "began": self._began,
                "ended": self._ended,
                "outcome": self._outcome,
                "stages": [asdict(each) for each in self._stages.values()],
            }
            runs.write_json(self._run.folder / _FILE, record)

    def _build_args(self, stage: str) -> list[str]:
        """Build the command line of a stage."""
        options = self._options
        mode = self._stage_config.mode
        if stage == "fit":
            return ["fit", *self._stage_config.invocation.words, *self._flags]
        assert self._run is not None
        args = [
            stage,
            f"--run={self._run.folder}",
            *["--trust"] * bool(self._stage_config.options.get("trust")),
        ]
        args += self._notifiers[0]
        if stage in ("test", "export"):
            args += [f"--format={options['export-format']}"] if stage == "export" else []
            return args + {"json": ["--json"], "quiet": ["--quiet"]}.get(mode, [])
        # Today's conditions, which may differ from those of the run's config; null first, or its
        # slices would stay
        args += ["--gate=null", f"--gate={json.dumps(self._gate.__dict__)}"]
        args += (
            ["--reason", options["reason"]] if stage == "promote" and "reason" in options else []
        )
        return args + ["--quiet"] * (mode in ("json", "quiet"))

    def _plan_time(self, stage: str) -> list[str]:
        """Return the option by which a training ends in time for the stages after it.

        Raises:
            OutOfTime: If the deadline leaves no time for the stage.
            TooLittleTime: If the same command has no more time for it either.
        """
        if self._deadline is None:
            return []
        left_s = self._deadline.left_s
        usual_s = self._find_usual_times()
        if stage != "fit":
            self._require_time(
                self._deadline, stage, left_s=left_s, needs_s=usual_s.get(stage, 0.0)
            )
            return []

        # A training leaves time for what follows it.
        reserve_s = self._choose_reserve(left_s, usual_s)
        reserve = format_duration(reserve_s)
        left = format_duration(left_s)
        if left_s <= reserve_s:
            kind = TooLittleTime if self._deadline.is_duration else OutOfTime
            raise kind(
                f"The deadline is in {left}, and the stages after a training need {reserve} of"
                " that; --reserve sets how much to leave for them."
            )
        _log.info(f"leaves {reserve} of {left} for the stages after the training")
        of_training = self._deadline.before(reserve_s)
        self._environment = of_training.environment()
        return [f"--deadline={of_training.word}"]

    def _find_usual_times(self) -> dict[str, float]:
        """Return the median of the seconds of each stage in the newest retrains of the job."""
        seconds: dict[str, list[float]] = {}
        for run in self._earlier:
            for state in read_stages(run) or []:
                if state.status == "done" and state.seconds:
                    seconds.setdefault(state.stage, []).append(state.seconds)
        return {
            stage: statistics.median(found[:_NUM_EARLIER_RUNS]) for stage, found in seconds.items()
        }

    def _require_time(
        self, deadline: Deadline, stage: str, *, left_s: float, needs_s: float
    ) -> None:
        """Check that a stage after the training can be done in time.

        Raises:
            OutOfTime: If the deadline leaves no time for the stage.
            TooLittleTime: If the same command has no more time for it either.
        """
        if left_s > needs_s:
            return
        needs = f"{stage} takes about {format_duration(needs_s)}; " if needs_s else ""
        when = f"in {format_duration(left_s)}" if left_s > 0 else "over"
        if deadline.is_duration and not self._has_run_a_stage:
            text = (
                f"The deadline is {when}; {needs}the same command has no more time. Name a longer"
                " --deadline."
            )
            raise TooLittleTime(text)
        raise OutOfTime(f"The deadline is {when}; {needs}the same command goes on with {stage}.")

    def _choose_reserve(self, left_s: float, usual_s: Mapping[str, float]) -> float:
        """Return the seconds that a training leaves for the stages after it."""
        if "reserve" in self._options:
            return parse_duration(self._options["reserve"]) or 0.0
        later = [stage for stage in STAGES[1:] if stage not in self._skipped]
        if not later:
            return 0.0
        if any(stage not in usual_s for stage in later):
            return min(_MAX_FIRST_RESERVE_S, _FIRST_RESERVE_SHARE * left_s)
        return _RESERVE_FACTOR * sum(usual_s[stage] for stage in later) + _RESERVE_EXTRA_S

    def _run_stage(self, stage: str) -> int:
        """Run a stage, record its end, and return the exit code; 0 where the next one can begin.

        Raises:
            OutOfTime: If the deadline leaves no time for it.
        """
        args = [*self._build_args(stage), *self._plan_time(stage)]
        in_retrain = "tested" if self._is_tested() else "1"
        before = self._stages[stage]
        attempts = before.attempts + 1
        state = StageState(
            stage, "running", began=_format_now(), attempts=attempts, failures=before.failures
        )
        self._stages[stage] = state
        self._has_run_a_stage = True
        self._write()

        # Run it as a process of its own.
        num_bytes = 0
        if self._run is not None:
            self._write_event(stage, "begun")
            num_bytes = self._run.events_path.stat().st_size
        began_s = time.monotonic()
        environment = {
            **self._lock.delegate(),
            **self._environment,
            **self._notifiers[1],
            IN_RETRAIN: in_retrain,
        }
        status = self._processes.run(args, environment, self._find_run)

        # Record its end.
        code, reason = self._interpret_end(stage, status)
        state.exit_code = code
        # nothing to do, or an end before the start
        if self._run is None or not self._run.folder.is_dir():
            self._run = None
            unchanged = (
                "" if self._unchanged is None else f" since {shown_path(self._unchanged.folder)}"
            )
            state.status = "failed" if is_failure(code) else "skipped"
            state.message = reason or f"nothing has changed{unchanged}"
            return code
        # they print no events
        if self._stage_config.mode == "json" and stage in ("gate", "promote"):
            _print_events(self._run, num_bytes)
        state.ended = _format_now()
        state.seconds = round(time.monotonic() - began_s, 3)
        self._record_end(state, reason)
        return code

    def _is_tested(self) -> bool:
        """Return whether the test is done and of the last day: the gate may read its scores."""
        tested = self._stages["test"]
        return tested.status == "done" and datetime.fromisoformat(
            str(tested.ended)
        ) > _now() - timedelta(days=1)

    def _interpret_end(self, stage: str, status: int) -> tuple[int, str]:
        """Return the exit code of a stage's process, and why it is none that is well.

        Say what was killed.

        Args:
            stage: The stage.
            status: As from `StageProcesses.run`.
        """
        code = 128 - status if status < 0 else status
        reason = self._stage_config.resolved.masked(self._processes.reason)
        if self._processes.received is not None:
            # what follows it goes on
            code = _INTERRUPTED if code in _INTERRUPTIONS and stage != "fit" else code
        elif status < 0:
            code = 1
            reason = describe_kill(-status, reason)
            print_error(f"error: {stage}: {reason}. The same command goes on with it.")
        if not is_failure(code):
            return code, ""
        reason = reason or f"exit code {code}"
        self._note_failure(stage, code, reason, was_killed=status < 0)
        return code, reason

    def _record_end(self, state: StageState, reason: str) -> None:
        """Record how a stage has ended, and whether the retrain is over with it."""
        code = state.exit_code
        # which asks again about a new champion
        is_rejected = code == _REJECTED and state.stage in ("gate", "promote")
        is_held = is_rejected and state.stage == "promote" and self._is_held()
        state.status = _name_end(code)
        if code:
            state.message = reason
        if state.status == "failed" and not is_held:  # what is held goes on once it is released
            state.failures += 1
        self._write()
        self._write_event(
            state.stage, "failed" if code else "done", exit_code=code, seconds=state.seconds
        )
        if is_rejected and not is_held:
            self._reject(state.stage)

    def _reject(self, stage: str) -> None:
        """End the retrain without a promotion, which the gate or the promotion has refused."""
        if stage == "gate":
            self._skip("promote", "the gate failed")
        self._finish("not promoted")

    def _note_failure(self, stage: str, code: int, reason: str, *, was_killed: bool) -> None:
        """Send the end of this command, unless the stage has sent its own.

        The trainer's stages send their ends, and the gate its decision; what was killed has sent
        nothing.
        """
        notifier = self._notifier
        notifier.message = f"{stage}: {reason}"
        passed = None
        if self._run is not None:
            passed = runs.find_value(runs.read_json(self._run.folder / RECORD), "passed")
        sends_decision = stage in ("gate", "promote") and code == _REJECTED and passed is False
        notifier.has_sent_end = not was_killed and (
            stage in ("fit", "test", "export") or sends_decision
        )

    def _is_held(self) -> bool:
        """Return whether the champion is held, so that the promotion is left to a later start."""
        try:
            self._ask_registry()
        except GateFailed:
            return True
        except (ConfigError, ServerAway):
            return False
        return False

    def _find_run(self) -> None:
        """Keep the state in the run folder once `fit` has noted in the job's lock which it is."""
        folder = runs.find_value(runs.read_json(self._lock.path), "folder")
        if (
            folder is not None
            and (self._run is None or str(self._run.folder) != folder)
            and Path(folder).is_dir()
        ):
            self._run = runs.open_run(folder)
            self._write()
            self._write_event("fit", "begun")

    def _write_event(self, stage: str, status: str, **fields: Any) -> None:
        assert self._run is not None
        mirror = sys.stdout if self._stage_config.mode == "json" else None
        events = runs.EventStream(self._run.events_path, mirror=mirror)
        events.write(
            "stage", stage=stage, status=status, attempt=self._stages[stage].attempts, **fields
        )

    def _report(self, code: int, reason: str) -> None:
        """Report the stages on the screen, on the page of the CI step and in JUnit.

        Args:
            code: Exit code.
            reason: Why it has ended, where that is not a stage's failure.

        Raises:
            ConfigError: If the JUnit file cannot be written.
        """
        details = {stage: self._describe_stage(state) for stage, state in self._stages.items()}
        cases = self._list_cases(code, reason, details)
        failures = [case.failure for case in cases if case.failure]
        self._ci.reason = failures[0] if failures else reason
        if self._run is not None:
            self._print_table(self._run, reason, details)
        elif not is_failure(code):
            self._ci.add_page(f"### lightkit retrain: {self._stages['fit'].message}")
        self._ci.write(cases)

    def _list_cases(self, code: int, reason: str, details: Mapping[str, str]) -> list[Case]:
        """List the stages as cases of JUnit.

        Args:
            code: Exit code of the retrain.
            reason: Why it has ended, where that is not a stage's failure.
            details: As from `_describe_stage`, by stage.
        """
        cases = []
        blocked = self._find_blocked() if is_failure(code) else None
        for stage, state in self._stages.items():
            failure = None
            skipped = None
            if state.has_failed:
                failure = (
                    f"{stage} has ended with exit code {state.exit_code or code}:"
                    f" {details[stage] or reason}"
                )
            elif stage == blocked:
                failure = f"{stage} was not run: {reason}"
            elif not state.has_run:
                skipped = details[stage] or "not run"
            cases.append(Case(stage, state.seconds or 0.0, failure=failure, skipped=skipped))
        return cases

    def _find_blocked(self) -> str | None:
        """Return the stage that was not begun any more.

        None where one has failed, or all are over.
        """
        if any(state.has_failed for state in self._stages.values()):
            return None
        for stage, state in self._stages.items():
            if not state.is_over:
                return stage
        return None

    def _describe_end(self, reason: str) -> str:
        """Describe how the retrain has ended.

        Its outcome, or the stage with which the same command goes on.
        """
        if self._ended:
            return str(self._outcome)
        left = [stage for stage, state in self._stages.items() if not state.is_over]
        return f"{reason} not finished: the same command goes on with {left[0]}".strip()

    def _print_table(self, run: runs.Run, reason: str, details: Mapping[str, str]) -> None:
        """Print a line for each stage, how the retrain has ended, and where.

        The CI step's page gets the same.

        Args:
            run: The run.
            reason: Why it has ended, where that is not a stage's failure.
            details: As from `_describe_stage`, by stage.
        """
        rows = []
        for stage, state in self._stages.items():
            status = "not run" if state.status == "pending" else state.status
            duration = (
                format_duration(state.seconds)
                if state.seconds is not None and state.has_run
                else ""
            )
            first, *_ = details[stage].splitlines() or [""]
            rows.append((stage, status, duration, first))

        end = self._describe_end(reason)
        lines = [f"{row[0]:<9}{row[1]:<13}{row[2]:<11}{row[3]}".rstrip() for row in rows]
        lines += [f"end   {end}", f"run   {shown_path(run.folder)}"]
        if end == "promoted":
            root = shown_path(run.root)
            option = "" if root == "runs" else f" --root {shlex.quote(root)}"
            lines.append(f"next  lightkit history {self._gate.name or run.name}{option}")
        print_line("\n".join(lines), self._stage_config.mode)
        table = markdown_table(("stage", "status", "time", ""), rows)
        self._ci.add_page(f"### lightkit retrain: {run.name}/{run.id}: {end}\n\n{table}")

    def _describe_stage(self, state: StageState) -> str:
        """Return why a stage stands as it does.

        The reasons of the gate's decision, else its message.
        """
        if self._run is not None and state.stage == "gate" and state.exit_code in (0, _REJECTED):
            reasons = runs.find_value(runs.read_json(self._run.folder / RECORD), "reasons")
            if reasons:
                return "; ".join(map(str, reasons))
        return state.message or ""


def _name_end(code: int | None) -> str:
    """Return the status of a stage that has ended with an exit code."""
    if not code:
        return "done"
    return "interrupted" if code in _INTERRUPTIONS else "failed"


def _print_events(run: runs.Run, begin: int) -> None:
    """Print the events of a run from a byte of their file on."""
    with run.events_path.open("rb") as file:
        file.seek(begin)
        print(file.read().decode("utf-8", errors="replace"), end="", flush=True)


def _digest_training(ckpt_path: str | None, values: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps([ckpt_path, values], sort_keys=True, default=str).encode()
    ).hexdigest()


def _now() -> datetime:
    return datetime.now(UTC)


def _format_now() -> str:
    return _now().isoformat(timespec="seconds")
