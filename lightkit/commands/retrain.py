"""`lightkit retrain`: fit, test, export, gate and promote, one after another, each in a forked process of its own."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import runpy
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from lightkit import runs
from lightkit.cli.command_line import Takes, parse_options
from lightkit.cli.config_loader import options_of
from lightkit.cli.console import configure_console, print_line
from lightkit.cli.context import RunContext, create_job_lock, find_job
from lightkit.cli.export_options import ExportOptions
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.stage_runner import open_context
from lightkit.config import error_at, near, read_scalar, shown_path
from lightkit.config.loader import find_plain_secrets
from lightkit.errors import ConfigError, OutOfTime
from lightkit.launch.plan import THREADS
from lightkit.registry.gate import RECORD, read_gate, require_rule
from lightkit.runs.ci_report import Case, add_step_summary, junit_on_failure, markdown_table, write_junit
from lightkit.runs.deadline import format_duration, parse_deadline, parse_duration
from lightkit.runs.index import PROMOTED
from lightkit.runs.resume import RunSettings
from lightkit.runs.retrain_state import (
    IS_TESTED,
    RUN_FILE,
    RetrainState,
    StageState,
    find_unfinished,
    median_durations,
)
from lightkit.runs.signals import SignalWatch, kill_children

__all__ = ["CommandRunner", "Retrain", "RetrainOptions", "StageResult", "retrain"]

HELP = """\
usage: lightkit retrain -c FILE... [--deadline WHEN] [--skip STAGE]... [--key=value]... [key=value]...

Fit, test, export, gate and promote, as a schedule does at night. -c and keys are those of lightkit fit. Each stage is a
process, forked from one that has imported torch once; the run's retrain.json says how far they have come. After a kill
the same command goes on with the stage that was not finished: nothing is trained or promoted twice. It holds the job's
lock from the first stage to the last. The gate takes the scores of test where it can. Without gate.metric nothing is
judged, and nothing promoted.

  -c FILE              a layer of the config; later ones win over earlier ones
  --deadline WHEN      be done by then: 05:30 (the next), a duration such as 4h, 90m or 1h30m, or 2026-11-23T05:30.
                       Training stops in time for what follows; what does not fit any more is left to the next start
  --reserve DURATION   time to leave for what follows the training; default: one and a half times what it took in the
                       last retrains, and 10 s; the first time a quarter of the time there is, at most 15m
  --skip STAGE...      leave out test, export, or promote; may be given again
  --export-format FORMAT  as for lightkit export; default: torch_export
  --if-changed         train only if config, data or code changed since the last run that ended well; else code 6
  --unchanged-ok       with --if-changed: code 0 in place of 6
  --reason TEXT        why, for the log of promotions
  --junit FILE         write a case for each stage, for CI systems
  --ckpt_path CKPT     start the training from a checkpoint: best, last or a file
  --trust              load a checkpoint that holds more than tensors and plain values, and so may run code
  --quiet              print warnings and errors only
  --output json        print the events of all stages, one JSON object a line

Exit code 0: done; 4: the gate failed, and the next start trains anew; 6: nothing has changed; 75: interrupted, out of
time, or another process runs the job: the same command goes on; another: that of the stage that failed, at which the
same command goes on until it has failed three times.

lightkit retrain -c configs/flowers.yaml --gate.metric test/accuracy --gate.min 0.8 --deadline 05:30
"""
_REFUSED = {
    "--run": "it trains; to go on in a run's folder, give --run.resume=RUN",
    "--print_config": "lightkit fit has it",
}
_SKIPPABLE = ("test", "export", "promote")
_AFTER_FIT = ("test", "export", "gate", "promote")
_REJECTED, _INTERRUPTED = 4, 75  # exit codes of a gate and of a command that can be continued
_INTERRUPTIONS = (_INTERRUPTED, 129, 130, 138, 143)
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))
_RESERVE_FACTOR, _RESERVE_EXTRA_S = 1.5, 10.0
_FIRST_RESERVE_SHARE, _MAX_FIRST_RESERVE_S = 0.25, 900.0
_HEAVY_MODULES = (
    *("lightkit.cli.lightning_cli", "lightkit.cli.model_export", "lightkit.cli.gate_evaluation"),
    *("lightkit.cli.registration", "mlflow.pytorch"),  # not onnxruntime: a fork waits forever for its threads
)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's <sys/prctl.h>
_NOTIFIERS = ("lightkit.callbacks.SlackNotifier", "lightkit.callbacks.WebhookNotifier")


@dataclass(frozen=True)
class RetrainOptions:
    """The command's own options.

    Args:
        deadline: Value of ``--deadline``.
        reserve_s: Seconds for the stages after the training; None to derive them from earlier retrains.
        skip: Stages that are left out.
        export_format: Formats, as `lightkit export` takes them.
        if_changed: ``--if-changed`` and ``--unchanged-ok``, if given.
        reason: For the log of promotions.
        junit: File for CI systems.
    """

    deadline: str | None = None
    reserve_s: float | None = None
    skip: tuple[str, ...] = ()
    export_format: str = "torch_export"
    if_changed: tuple[str, ...] = ()
    reason: str | None = None
    junit: Path | None = None


def retrain(args: list[str]) -> int:
    """Run the stages that are left, and return the exit code.

    Raises:
        ConfigError: If the arguments or the config are wrong.
        OutOfTime: If the deadline leaves no time for the next stage.
        RunLocked: If another process runs the job.
    """
    options, fit_args = _parse(args)
    notifier = CommandNotifier("fit", fit_args)
    with junit_on_failure(options.junit, "lightkit retrain", "retrain"):
        return notifier.around(lambda: _retrain(fit_args, options, notifier))


def _parse(args: Sequence[str]) -> tuple[RetrainOptions, list[str]]:
    """Split the arguments into this command's options and the arguments of `fit`.

    Raises:
        ConfigError: If one is wrong.
    """
    for arg in args:
        if (option := arg.partition("=")[0]) in _REFUSED:
            raise ConfigError(f"retrain: unexpected argument {arg!r}: {_REFUSED[option]}")
    of_fit: dict[str, Takes] = {
        f"--{name}": "switch" if takes == "switch" else "value"
        for name, takes in options_of("fit").items()
        if name not in ("deadline", "if-changed", "unchanged-ok")
    }
    line = parse_options(HELP, args, config={"-c": "value", "--config": "value", **of_fit})
    given = line.options
    if "--unchanged-ok" in given and "--if-changed" not in given:
        raise line.error("--unchanged-ok has no effect without --if-changed")
    export_format = given.get("--export-format", RetrainOptions.export_format)
    try:
        ExportOptions.parse({"format": export_format})
    except ConfigError as error:
        raise error.reworded(lambda text: text.replace("--format", "--export-format")) from None
    reserve_s = parse_duration(given["--reserve"]) if "--reserve" in given else None
    if "--reserve" in given and reserve_s is None:
        raise ConfigError(f"--reserve: expected a duration such as 10m, 90s or 1h30m, got {given['--reserve']!r}")
    skip = [stage.strip() for stage in given["--skip"].split(",")] if "--skip" in given else []
    for stage in skip:
        if stage == "gate":
            raise ConfigError(
                "--skip: nothing is promoted that was not judged: leave gate.metric out of the config, or skip promote"
            )
        if stage not in _SKIPPABLE:
            raise ConfigError(f"--skip: expected {', '.join(_SKIPPABLE)}, got {stage!r}{near(stage, _SKIPPABLE)}")
    return RetrainOptions(
        deadline=given.get("--deadline"),
        reserve_s=reserve_s,
        skip=tuple(skip),
        export_format=export_format,
        if_changed=tuple(option for option in ("--if-changed", "--unchanged-ok") if option in given),
        reason=given.get("--reason"),
        junit=Path(given["--junit"]).expanduser() if "--junit" in given else None,
    ), list(line.config_args)


def _retrain(args: list[str], options: RetrainOptions, notifier: CommandNotifier) -> int:
    deadline = None if options.deadline is None else parse_deadline(options.deadline)
    context = open_context("fit", args, SignalWatch())
    configure_console(context.mode, context.resolved.masked)
    values = {
        key: read_scalar(value) if key in ("wait_s", "stale_s") and isinstance(value, str) else value
        for key, value in (context.resolved.values.get("run") or {}).items()
    }
    settings = RunSettings(**{**values, "name": values.get("name") or context.default_name})
    root, name = find_job(settings)
    _check(context, options)
    if context.launch.threads is not None:
        os.environ[THREADS] = str(context.launch.threads)  # which torch reads when it is imported
    with CommandRunner() as runner:
        context.attach_notifier(notifier)
        with create_job_lock(context, settings) as lock:
            work = Retrain(
                context,
                options,
                root=root,
                name=name,
                deadline=deadline,
                runner=runner,
                environment=lock.delegate(),
            )
            try:
                return work.run(may_continue=settings.resume == "auto")
            finally:
                notifier.has_sent_end, notifier.message = work.has_notified, work.failure


def _check(context: RunContext, options: RetrainOptions) -> None:
    """Find errors that would end the retrain only after hours of training.

    Raises:
        ConfigError: If there are any.
    """
    resolved = context.resolved
    if context.passthrough:
        raise ConfigError(
            f"retrain: unexpected argument {context.passthrough[0]!r}; lightkit fit --help lists the keys"
        )
    if (resolved.values.get("trainer") or {}).get("fast_dev_run") not in (None, False, "false", 0, "0"):
        raise error_at(
            "trainer.fast_dev_run: leaves nothing that could be tested and promoted; use lightkit fit",
            resolved.origin_of("trainer.fast_dev_run"),
        )
    if (plain_secret := next(find_plain_secrets(resolved.tree, resolved.references), None)) is not None:
        raise plain_secret
    gate = read_gate(resolved)
    if gate.metric is not None:
        require_rule(gate)
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError("gate.metric: models are promoted in MLflow's registry, and mlflow is not installed.")
    elif options.reason is not None:
        raise ConfigError("--reason: nothing is promoted without gate.metric; leave it out, or set gate.metric.")
    if {"onnx", "all"} & {*options.export_format.split(",")} and importlib.util.find_spec("onnx") is None:
        raise ConfigError("--export-format: onnx is not installed. Install it, or choose another format.")


def _digest_config(context: RunContext) -> str:
    """Return a digest of the config without `run`, `gate` and notifiers, which do not decide the training."""
    values = context.resolved.with_references(context.resolved.values)
    if isinstance(callbacks := values.get("callbacks"), Mapping):
        kept = {
            name: entry
            for name, entry in callbacks.items()
            if not (isinstance(entry, Mapping) and entry.get("class_path") in _NOTIFIERS)
        }
        values = {**values, "callbacks": kept}
    training = {key: value for key, value in values.items() if key not in ("run", "gate")}
    return hashlib.sha256(json.dumps([context.ckpt_path, training], sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class StageResult:
    """The end of a stage's process.

    Args:
        code: Its exit code; minus the number of the signal that killed it.
        seconds: Its duration.
        was_late: Whether it was asked to end at the deadline.
    """

    code: int
    seconds: float
    was_late: bool = False


class CommandRunner:
    """Run commands of lightkit one after another and forward signals to the running one; a context manager.

    Each command is a process forked from one that has imported torch, Lightning and MLflow once: a command that crashes
    or fills the memory of a GPU leaves the others alone. Between two commands a signal is remembered. Signals that this
    process was started to ignore are left alone, but for SIGTERM. Enter it before this process starts a thread.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._pid: int | None = None

    def __enter__(self) -> CommandRunner:
        self._connection, connection = multiprocessing.Pipe()
        self._server_pid = os.fork()
        if self._server_pid == 0:
            self._connection.close()
            _serve_commands(connection)
        connection.close()
        self._before = {signum: signal.signal(signum, self._handle) for signum in _list_handled_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._connection.close()
        os.kill(self._server_pid, signal.SIGKILL)
        os.waitpid(self._server_pid, 0)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        self.received = self.received or signum
        self._forward(signum)

    def _forward(self, signum: int) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signum)

    def run(
        self,
        args: Sequence[str],
        *,
        environment: Mapping[str, str],
        deadline: datetime | None = None,
        on_poll: Callable[[], None] = lambda: None,
        is_silent: bool = False,
    ) -> StageResult:
        """Run a command, and wait for its end and that of all its processes.

        It shares standard output and error, and a terminal stays one. It gets SIGTERM if this process is killed.

        Args:
            args: The arguments after the program's name.
            environment: Variables in addition to those of this process.
            deadline: Moment at which it is asked to end.
            on_poll: Called again and again, and once more after the end.
            is_silent: Whether its standard output is discarded.
        """
        began_s, was_late = time.monotonic(), False
        sys.stdout.flush()
        try:
            self._connection.send((list(args), {**os.environ, **environment}, is_silent))
            self._pid = self._connection.recv()
            if self.received is not None:  # while it was being started
                self._forward(self.received)
            while not self._connection.poll(0.1):
                on_poll()
                if not was_late and deadline is not None and _now() >= deadline:
                    was_late = True
                    self._forward(signal.SIGTERM)
            code = self._connection.recv()
        except (EOFError, ConnectionError):  # the process that forks them was killed, and with it the command
            code = -signal.SIGKILL
        self._pid = None
        on_poll()
        return StageResult(code, time.monotonic() - began_s, was_late)


def _list_handled_signals() -> list[int]:
    return [each for each in _SIGNALS if signal.getsignal(each) != signal.SIG_IGN or each == signal.SIGTERM]


def _serve_commands(connection: Connection) -> NoReturn:
    """Fork a process for each command that is received, and send its id and its exit code, until the other end closes.

    In a process group of its own, so that a terminal's Ctrl-C comes to the retrain alone.
    """
    try:
        _die_with_parent()
        for signum in _list_handled_signals():
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
        while True:
            args, environment, is_silent = connection.recv()
            if "--if-changed" not in args and sys.platform == "linux":  # elsewhere torch survives no fork
                for name in _HEAVY_MODULES:
                    with suppress(ImportError):
                        importlib.import_module(name)
                gc.freeze()
            if (pid := os.fork()) == 0:
                connection.close()
                _become_command(args, environment, is_silent=is_silent)
            connection.send(pid)
            _, status = os.waitpid(pid, 0)
            psutil.wait_procs(psutil.Process().children(recursive=True), timeout=10)
            kill_children()
            connection.send(os.waitstatus_to_exitcode(status))
    except EOFError:
        os._exit(0)
    except BaseException:  # noqa: BLE001 (it must not return into the code of the retrain)
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _become_command(args: Sequence[str], environment: Mapping[str, str], *, is_silent: bool) -> NoReturn:
    """Run a command in this forked process, as a new process of `lightkit` would."""
    code = 1
    try:
        _die_with_parent()
        os.environ.clear()
        os.environ.update(environment)
        if is_silent:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if sys.platform != "linux":
            os.execv(sys.executable, [sys.executable, "-m", "lightkit", *args])  # noqa: S606 (no shell is needed)
        sys.argv[1:] = args
        runpy.run_module("lightkit", run_name="__main__")
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    except BaseException:  # noqa: BLE001 (reported as Python itself does)
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _die_with_parent() -> None:
    """Move to a process group of its own, get SIGTERM once the parent is gone, and adopt orphaned descendants."""
    os.setpgid(0, 0)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Retrain:
    """The stages of one job's retrain. The caller holds the job's lock.

    Args:
        context: Context of the invocation, as that of a fit.
        options: The command's own options.
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
        deadline: Moment by which all has to be done, if there is one.
        runner: Runs the commands.
        environment: Variables of their processes.
    """

    def __init__(
        self,
        context: RunContext,
        options: RetrainOptions,
        *,
        root: Path,
        name: str,
        deadline: datetime | None,
        runner: CommandRunner,
        environment: Mapping[str, str],
    ) -> None:
        self._context, self._options, self._runner, self._environment = context, options, runner, environment
        self._root, self._name, self._deadline = root, name, deadline
        self._gate = read_gate(context.resolved)
        self._usual_s = median_durations(root, name, _AFTER_FIT)
        self._if_changed = options.if_changed
        self.state = RetrainState(_digest_config(context))
        self.failure = ""
        """Text on the screen about the stage that has failed."""
        self.has_notified = False
        """Whether the stage that has ended it has notified the notifiers of the config."""

    def run(self, *, may_continue: bool = True) -> int:
        """Run the stages that are left, and return the exit code.

        Args:
            may_continue: Whether an unfinished retrain is continued.

        Raises:
            OutOfTime: If the deadline leaves no time for the next stage.
        """
        if may_continue:
            self._continue()
        try:
            code = self._run_stages()
        except OutOfTime as error:
            self._report(error.exit_code, str(error))
            raise
        late_s = 0.0 if self._deadline is None or code else -self._left_s()
        if late_s > 0:  # a promotion is not cut off
            self._context.tell(f"ended {format_duration(late_s)} after the deadline; --reserve sets how much to leave")
        signum = self._runner.received
        self._report(code, None if signum is None else f"Interrupted by {signal.Signals(signum).name}.")
        is_wanted = (self._context.resolved.values.get("run") or {}).get("report", True)
        if is_wanted and signum is None and self.state.run is not None and code not in _INTERRUPTIONS:
            from lightkit.reports.pages import try_run_report  # here: it loads Jinja2 and Matplotlib

            try_run_report(self.state.run)
        return code

    def _left_s(self) -> float:
        return math.inf if self._deadline is None else (self._deadline - _now()).total_seconds()

    def _continue(self) -> None:
        """Find the stage at which an unfinished retrain of the job goes on."""
        found, notice = find_unfinished(self._root, self._name, config=self.state.config)
        if notice is not None:
            self._context.tell(notice)
            self._if_changed = ()  # perhaps nothing has changed, and still that training came to nothing
        if found is None or found.run is None:
            return
        for state in found.stages:  # they may be asked for now
            state.status = "pending" if state.status == "skipped" else state.status
        self.state = found
        left = [state.stage for state in found.stages if not state.is_over and not self._skip_reason(state.stage)]
        folder = shown_path(found.run.folder)
        self._context.tell(f"goes on with {left[0] if left else 'its end'}: the retrain of {folder} was not finished")

    def _run_stages(self) -> int:
        if not self.state["fit"].is_over and ((code := self._fit()) or self.state.run is None):
            return code
        for stage in _AFTER_FIT:
            if self.state[stage].is_over:
                continue
            if self._runner.received is not None:  # between two stages
                return _INTERRUPTED
            if (reason := self._skip_reason(stage)) is not None:
                self._skip(stage, reason)
            elif code := self._run_stage(stage):
                return code
        self.state.finish("promoted" if self.state["promote"].status == "done" else "trained")
        return 0

    def _skip_reason(self, stage: str) -> str | None:
        if stage in self._options.skip:
            return f"--skip {stage}"
        if stage in ("gate", "promote") and self._gate.metric is None:
            return "gate.metric is not set" if stage == "gate" else "nothing is promoted that was not judged"
        return None

    def _skip(self, stage: str, reason: str) -> None:
        self.state.skip(stage, reason)
        self._write_event(stage, "skipped", says=reason)

    def _fit(self) -> int:
        run_file = (self._root / self._name / ".retrain-run.json").absolute()
        run_file.unlink(missing_ok=True)
        args = ["fit", *self._context.args, *self._if_changed]
        if self._deadline is not None:
            left_s = self._left_s()
            reserve_s = self._reserve_s(left_s)
            reserve, left = format_duration(reserve_s), format_duration(left_s)
            if left_s <= reserve_s:
                raise OutOfTime(
                    f"The deadline is in {left}, and the stages after a training need {reserve} of that; --reserve "
                    f"sets how much to leave for them."
                )
            self._context.tell(f"leaves {reserve} of {left} for the stages after the training")
            args.append(f"--deadline={(self._deadline - timedelta(seconds=reserve_s)).isoformat()}")
        self.state.begin("fit")

        def find_run() -> None:
            """Keep the state in the run's folder as soon as `fit` has written which it is."""
            noted = runs.read_json(run_file)
            if noted is not None and Path(str(noted.get("folder"))).is_dir():
                is_first = self.state.run is None
                self.state.move_to(runs.open_run(str(noted["folder"])))
                if is_first:
                    self._write_event("fit", "begun")

        try:
            result = self._run_process("fit", args, {RUN_FILE: str(run_file)}, on_poll=find_run)
        finally:
            run_file.unlink(missing_ok=True)
        if self.state.run is None or not self.state.run.folder.is_dir():  # nothing to do, or an end before the start
            self.state.run = None
            return self._exit_code("fit", result)
        return self._finish_stage("fit", result)

    def _reserve_s(self, left_s: float) -> float:
        """Return the seconds to leave for the stages after the training."""
        if self._options.reserve_s is not None:
            return self._options.reserve_s
        stages = [stage for stage in _AFTER_FIT if self._skip_reason(stage) is None]
        if any(stage not in self._usual_s for stage in stages):
            return min(_MAX_FIRST_RESERVE_S, _FIRST_RESERVE_SHARE * left_s)
        return _RESERVE_FACTOR * sum(self._usual_s[stage] for stage in stages) + (_RESERVE_EXTRA_S if stages else 0.0)

    def _run_stage(self, stage: str) -> int:
        run = self.state.run
        assert run is not None
        if stage == "promote" and self.state[stage].attempts and (run.folder / PROMOTED).is_file():
            self.state.end(stage, "done", seconds=0.0, code=0)  # before the process that did it was killed
            self._write_event(stage, "done", exit_code=0)
            return 0
        left_s, needs_s = self._left_s(), self._usual_s.get(stage, 0.0)
        if left_s <= needs_s:
            needs = f", and {stage} takes about {format_duration(needs_s)}" if needs_s else ""
            when = f"in {format_duration(left_s)}" if left_s > 0 else "over"
            raise OutOfTime(f"The deadline is {when}{needs}; the same command goes on with {stage}.")
        self.state.begin(stage)
        self._write_event(stage, "begun")
        mode, options = self._context.mode, self._options
        trust = ["--trust"] if self._context.options.get("trust") else []
        if stage in ("test", "export"):
            output = {"json": ["--output=json"], "quiet": ["--quiet"]}.get(mode, [])
            form = [f"--format={options.export_format}"] if stage == "export" else []
            result = self._run_process(stage, [stage, f"--run={run.folder}", *form, *trust, *output])
            return self._finish_stage(stage, result)
        # Today's conditions, which may differ from those of the run's config; null first, or its slices would stay
        gate = ["--gate=null", f"--gate={json.dumps(self._gate.__dict__)}"]
        reason = ["--reason", options.reason] if stage == "promote" and options.reason else []
        quiet = ["--quiet"] if mode in ("json", "quiet") else []
        tested = self.state["test"]
        is_tested = tested.status == "done" and datetime.fromisoformat(str(tested.ended)) > _now() - timedelta(days=1)
        environment = {IS_TESTED: "1"} if stage == "gate" and is_tested else {}
        num_bytes = run.events_path.stat().st_size if run.events_path.exists() else 0
        result = self._run_process(
            stage, [stage, str(run.folder), *gate, *reason, *trust, *quiet], environment, is_silent=mode == "json"
        )
        if mode == "json" and run.events_path.exists():  # they print tables
            with run.events_path.open("rb") as file:
                file.seek(num_bytes)
                print(file.read().decode("utf-8", errors="replace"), end="", flush=True)
        return self._finish_stage(stage, result)

    def _run_process(
        self, stage: str, args: Sequence[str], environment: Mapping[str, str] | None = None, **how: Any
    ) -> StageResult:
        return self._runner.run(
            args,
            environment={**self._environment, RUN_FILE: "", **(environment or {})},
            deadline=None if stage == "promote" else self._deadline,  # it is short, and must not be cut off
            **how,
        )

    def _finish_stage(self, stage: str, result: StageResult) -> int:
        """Record the end of a stage, and return the exit code; 0 where the next one can begin."""
        code, status, reason = self._exit_code(stage, result), "done", None
        is_rejected = code == _REJECTED and stage in ("gate", "promote")
        if code:
            status = "interrupted" if code in _INTERRUPTIONS else "failed"
            if is_rejected:
                reason = "not good enough"
            elif result.was_late:
                reason = "ended at the deadline"
            elif result.code < 0:
                reason = f"killed by {signal.Signals(-result.code).name}"
            else:
                reason = status if status == "interrupted" else f"exit code {code}"
            self.failure = f"{stage}: {reason}"
        self.state.end(stage, status, seconds=result.seconds, code=code, says=reason)
        self._write_event(stage, "failed" if code else "done", exit_code=code, seconds=round(result.seconds, 3))
        self.has_notified = stage in ("fit", "test", "export") or code == _REJECTED
        if is_rejected:  # promote asks the gate again where the champion is another by now
            if stage == "gate":
                self._skip("promote", "the gate failed")
            self.state.finish("not promoted")
        return code

    def _exit_code(self, stage: str, result: StageResult) -> int:
        """Return the exit code of the retrain; an interrupted stage after the training can be continued."""
        code = result.code if result.code >= 0 else 128 - result.code
        if self._runner.received is not None or result.was_late:
            return _INTERRUPTED if code in _INTERRUPTIONS and stage != "fit" else code
        return 1 if result.code < 0 else code

    def _write_event(self, stage: str, status: str, **fields: Any) -> None:
        if self.state.run is not None:
            mirror = sys.stdout if self._context.mode == "json" else None
            events = runs.EventStream(self.state.run.events_path, mirror=mirror)
            events.write("stage", stage=stage, status=status, attempt=self.state[stage].attempts, **fields)

    def _report(self, code: int, reason: str | None) -> None:
        """Report the stages on the screen, in the step summary and in JUnit.

        Args:
            code: Exit code.
            reason: Why it has ended, where that is not a stage's failure.

        Raises:
            ConfigError: If the JUnit file cannot be written.
        """
        state, run, mode = self.state, self.state.run, self._context.mode
        rows, cases = [], []
        for each in state.stages:
            details, has_run = _describe(each, run), each.status not in ("pending", "skipped")
            duration = format_duration(each.seconds) if each.seconds is not None and has_run else ""
            rows.append((each.stage, "not run" if each.status == "pending" else each.status, duration, details))
            details = details or each.says or "not run"
            failure = None
            if each.status in ("failed", "interrupted", "running"):
                exit_code = code if each.exit_code is None else each.exit_code
                failure = f"{each.stage} has ended with exit code {exit_code}: {details}"
            cases.append(Case(each.stage, each.seconds or 0.0, failure=failure, skipped=None if has_run else details))
        if run is not None:
            end = state.outcome
            if end is None and state.next_stage is not None:
                text = f"not finished: the same command goes on with {state.next_stage.stage}"
                end = f"{reason} {text}" if reason else text
            lines = [f"{row[0]:<9}{row[1]:<13}{row[2]:<11}{row[3]}".rstrip() for row in rows]
            lines += [f"end   {end}"] if end else []
            lines.append(f"run   {shown_path(run.folder)}")
            if state.outcome == "promoted":
                is_default = run.root.resolve() == Path("runs").resolve()
                option = "" if is_default else f" --root {shlex.quote(shown_path(run.root))}"
                lines.append(f"next  lightkit history {self._gate.name or run.name}{option}")
            print_line("\n".join(lines), mode)
            outcome = state.outcome or " ".join(filter(None, (reason, "not finished")))
            table = markdown_table(("stage", "status", "time", ""), rows)
            add_step_summary(f"### lightkit retrain: {run.name}/{run.id}: {outcome}\n\n{table}")
        if self._options.junit is not None:
            write_junit(self._options.junit, "lightkit retrain", cases)


def _describe(state: StageState, run: runs.Run | None) -> str:
    """Describe the result of a stage: failed conditions of the gate, the error, or its state's text."""
    if run is None:
        return state.says or ""
    if state.stage == "gate" and state.status in ("done", "failed"):
        gate = runs.read_json(run.folder / RECORD) or {}
        return "; ".join(map(str, gate.get("reasons") or [state.says or ""]))
    if state.stage == "fit" and state.status == "done":
        is_stopped = (runs.read_json(run.summary_path) or {}).get("stopped_by") == "deadline"
        return "stopped by the deadline" if is_stopped else ""
    errors = [
        event["error"]
        for event in runs.read_events(run.events_path)
        if event["event"] == "end" and event.get("error") and event.get("exit_code") == state.exit_code
        if state.began and datetime.fromisoformat(event["time"]) >= datetime.fromisoformat(state.began)
    ]
    if state.status == "failed" and errors:
        return " ".join(str(errors[-1]).split())
    attempt = f"attempt {state.attempts}" if state.attempts > 1 and not state.is_over else ""
    return ", ".join(filter(None, (state.says, attempt)))


def _now() -> datetime:
    return datetime.now(timezone.utc)
