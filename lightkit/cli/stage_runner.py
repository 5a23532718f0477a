"""Run a stage: load its config, start the ranks that it asks for or join them, and run LightkitCLI in this process."""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from lightkit import runs
from lightkit.cli.command_line import Invocation, parse_command
from lightkit.cli.command_table import COMMANDS, OF_MODEL, RANK, WITH_MODEL
from lightkit.cli.console import configure_console, format_traceback, print_error, quiet_libraries
from lightkit.cli.context import RunContext, load_context
from lightkit.cli.notifications import IN_RETRAIN, CommandNotifier, warn_of_lost_addresses
from lightkit.cli.parser_errors import explain_full_disk
from lightkit.cli.up_to_date import check_up_to_date
from lightkit.cli.validation import validate, validate_signatures
from lightkit.config import Hardware, Problems, error_at
from lightkit.errors import CheckpointError, ConfigError, DataChanged, Interrupted, format_interruption
from lightkit.hardware import Machine, this_machine
from lightkit.hardware.processor import keep_memory
from lightkit.launch.plan import Plan, plan_launch
from lightkit.launch.queue_feeder import end_workers_that_cannot_send
from lightkit.launch.ranks import complete_torch_variables, this_rank
from lightkit.launch.supervisor import LaunchResult, Supervisor
from lightkit.launch.torchrun import complete_settings
from lightkit.launch.worker import DATA_CHANGED, INHERITED, PREEMPTING, join_launch
from lightkit.runs.ci_report import CiReport
from lightkit.runs.deadline import parse_deadline
from lightkit.runs.signals import SignalWatch


def run_stage(invocation: Invocation, watch: SignalWatch, notifier: CommandNotifier | None = None) -> int:
    """Run `fit`, `validate`, `test`, `predict` or `export`, and return the exit code.

    Args:
        invocation: The command line.
        watch: Handler of the signals.
        notifier: Gets the run and the message of an error in another process, for a caller that goes on.
    """
    notifier = notifier or CommandNotifier(invocation)
    complete_torch_variables(os.environ)
    if (rank := this_rank(os.environ)) is not None and rank.engine == "slurm":
        for signum in PREEMPTING:  # before Slurm ends a job of `lightkit submit`
            watch.add(signum, patiently=True)
    stage = partial(notifier.around, partial(_run_stage, invocation, watch, notifier))
    if (rank_context := join_launch(os.environ)) is None:
        if invocation.command != "fit" or INHERITED in os.environ:  # a rank of Lightning's own launcher
            return stage()
        with CiReport("lightkit fit", None, case="fit", shares_page=True) as report:
            report.code = stage()
            report.reason = notifier.message
            return report.code
    rank_context.open()  # from here on its supervisor reports errors
    rank_context.watch_stop_requests()
    return rank_context.run(stage, format_traceback)


def _run_stage(invocation: Invocation, watch: SignalWatch, notifier: CommandNotifier) -> int:
    context = open_context(invocation, watch)
    command = invocation.command
    if context.invocation.has("deadline"):
        _set_deadline(context)
    context.attach_notifier(notifier)
    configure_console(context.mode, context.resolved.masked)
    if context.base is not None and command != "export":
        warn_of_lost_addresses(context.resolved, context.base)
    ranks = context.rank_context
    if command == "export" or (ranks is not None and ranks.supervised):  # an export is one process on any hardware
        return run_in_process(context)
    for notice in context.hardware.notices:
        logging.getLogger("lightkit").warning(notice)
    if ranks is not None:
        ranks.open()
        return ranks.run(partial(run_in_process, context), format_traceback)
    require_srun(context)
    if (code := check_up_to_date(context)) is not None:
        return code
    try:
        return _start(context)
    except DataChanged as change:
        context.tell(f"begins a new run: {change}")
        again = open_context(add_words(context.invocation, "--run.resume=never"), watch)
        again.notifier = notifier
        return _start(again)


def _set_deadline(context: RunContext) -> None:
    """Read ``--deadline``, and put the moment in its place, from which ranks that start later count, too."""
    is_resolved = bool(os.environ.get(INHERITED) or os.environ.get(IN_RETRAIN)) or join_launch(os.environ) is not None
    context.deadline = parse_deadline(str(context.options["deadline"]), is_resolved=is_resolved)
    context.invocation = add_words(context.invocation, f"--deadline={context.deadline.word}")
    os.environ.update(context.deadline.environment())


def add_words(invocation: Invocation, *words: str) -> Invocation:
    """Return an invocation with options or keys in addition, which win over those before."""
    added = parse_command(COMMANDS[invocation.command], words)
    return invocation._replace(
        words=(*invocation.words, *words),
        options={**invocation.options, **added.options},
        overrides=(*invocation.overrides, *added.overrides),
    )


def _start(context: RunContext) -> int:
    """Start the processes that the config asks for, or run the stage in this one."""
    if (plan := make_plan(context)) is not None:
        return supervise(context, plan)
    return run_in_process(context)


def run_in_process(context: RunContext) -> int:
    """Run the stage in this process.

    Raises:
        DataChanged: If an interrupted run had other data.
    """
    os.environ.update(context.hardware.environment)
    if context.command == "fit":
        keep_memory()
    end_workers_that_cannot_send()
    # Late: they load torch and Lightning, which takes seconds.
    from lightkit.callbacks.checkpoint_io import missing_checkpoint
    from lightkit.cli.lightning_cli import LightkitCLI
    from lightkit.cli.model_builder import translate_model_errors
    from lightkit.cli.trainer_components import find_reached_limit, print_run_end

    quiet_libraries()
    with explain_full_disk(), translate_model_errors(context):
        try:
            cli = LightkitCLI(context=context)
        except SystemExit as done:  # of argparse, which has printed help or the config
            if done.code or not context.only_prints:
                raise
            return 0
        if context.command == "export":
            return 0
        trainer = cli.trainer
        if context.command == "fit" and not getattr(trainer, "fast_dev_run", False):
            if (limit := find_reached_limit(trainer, context)) is not None:
                logging.getLogger("lightkit").warning(limit)
                context.nothing_left = True
                return 0
            if trainer.is_global_zero and (fault := missing_checkpoint(trainer)):
                raise CheckpointError(
                    f"Training ended, but {fault}. The same command writes it again, or ends with the reason."
                )
        print_run_end(trainer, context)
    return 0


def make_plan(context: RunContext) -> Plan | None:
    """Decide which processes are to be started; None if this process is the only one.

    Raises:
        ConfigError: If engine, strategy and numbers of processes do not fit.
    """
    if context.only_prints:
        return None
    resolved = context.resolved
    hardware = context.hardware
    processes = hardware.processes
    if processes is None and hardware.kind != "tpu":  # torch-xla forks its ranks itself, inside the trainer
        processes = count_devices(hardware)  # of Lightning's own launcher
        if processes is None and hardware.kind in (None, "gpu"):
            processes = len(this_machine().gpus or ()) or None
    keys = (("launch", "engine"), ("launch", "processes"), ("launch", "hosts"), ("trainer", "strategy"))
    given = next((key for key in keys if resolved.section(key[0]).get(key[1]) is not None), None)
    return plan_launch(
        complete_settings(context.launch, os.environ, num_devices=processes),
        strategy=hardware.strategy,
        processes=processes,
        uses_gpus=hardware.kind == "gpu",
        origin=None if given is None else resolved.origin_of(given),
    )


def count_devices(hardware: Hardware) -> int | None:
    """Count the devices that a config names; None where it asks for all, or Lightning decides."""
    if isinstance(hardware.devices, tuple):
        return len(hardware.devices)
    return hardware.devices if isinstance(hardware.devices, int) and hardware.devices > 0 else None


def require_srun(context: RunContext) -> None:
    """Check that a config for the ranks of a Slurm job is not trained by one process alone.

    Raises:
        ConfigError: If `srun` has not started this process.
    """
    if context.launch.engine == "slurm" and context.command == "fit" and this_rank(os.environ) is None:
        raise error_at(
            "launch.engine: slurm: the ranks are started by srun, which is not the case here; use lightkit submit "
            "with the same arguments, or another launch.engine",
            context.resolved.origin_of("launch.engine"),
        )


def supervise(context: RunContext, plan: Plan) -> int:
    """Start all ranks and return the exit code of the launch.

    Raises:
        ConfigError: If images are to come on standard input.
        DataChanged: If a new run has to begin, since an interrupted one had other data.
    """
    if "-" in context.inputs:
        raise ConfigError(
            "-: standard input has the images, and the processes that predict are started without it. Write the paths "
            "to a table such as list.csv, or predict in one process, with --trainer.devices=1."
        )
    root = context.base.root if context.base else context.run_root
    words = [RANK, context.invocation.dump()]
    supervisor = Supervisor(plan, words, root=root, num_cores=this_machine().cores or 1)
    try:
        with context.watch.handed_over():  # ranks may take longer to save than one process has
            result = supervisor.run()
        announced = supervisor.newest_run()
        run = None
        if announced is not None and Path(announced["folder"]).is_dir():
            context.notifier.run = run = runs.open_run(announced["folder"])
        if (signum := supervisor.signum) is not None and result.code != 0:
            checkpoint = None if run is None else runs.last_good(run.checkpoints)
            interruption = Interrupted(signum, checkpoint=checkpoint)
            result = LaunchResult(interruption.exit_code, format_interruption(interruption), f"signal {signum}")
        message, summary = (text and context.resolved.masked(text) for text in (result.message, result.summary))
        result = replace(result, message=message, summary=summary)
        if result.kind == DATA_CHANGED:
            raise DataChanged(str(result.message).splitlines()[0].removeprefix("error: "))
        context.notifier.message = result.message or ""
        if result.message:
            needs_logs = run is not None and result.code not in (2, 3, 75, 129, 130, 143)
            logs = f"logs  {run.folder / 'logs'}\n" if run is not None and needs_logs else ""
            print_error(f"{result.message}\n{logs}".removesuffix("\n"))
        if run is not None:
            with suppress(OSError):  # a full disk is no reason to hide how the ranks ended
                _complete_run_folder(run, supervisor, result)
    finally:
        supervisor.remove()
    return result.code


def _complete_run_folder(run: runs.Run, supervisor: Supervisor, result: LaunchResult) -> None:
    """Copy the launcher's log, and write the end of the run if rank 0, which writes the records, was killed."""
    log = supervisor.launcher_log
    if log.is_file() and log.stat().st_size:
        (run.folder / "logs").mkdir(exist_ok=True)
        shutil.copyfile(log, run.folder / "logs" / log.name)
    summary = runs.read_summary(run.summary_path)
    if summary is None or summary["status"] == "done" or result.code == 0:
        return
    if summary["status"] == "running" or (result.rank != 0 and result.summary):
        ends = {75: "preempted", **dict.fromkeys((129, 130, 143), "interrupted")}
        summary |= {"status": ends.get(result.code, "failed"), "exit_code": result.code, "error": result.summary}
        runs.write_summary(run.summary_path, summary)


def open_context(
    invocation: Invocation,
    watch: SignalWatch,
    *,
    full: bool = False,
    machine: Machine | Literal["this"] | None = "this",
) -> RunContext:
    """Load the context of a command, and raise every error in its config.

    Args:
        invocation: The command line.
        watch: Handler of SIGINT and SIGTERM.
        full: Whether jsonargparse is asked for more errors also where the schema describes every class.
        machine: Machine whose hardware the config must fit; None to check against none.

    Raises:
        ConfigError: If anything in it is wrong.
        DataError: If nothing is wrong but data is missing.
    """
    problems = Problems()
    context, loaded = load_context(invocation, watch, problems, machine=machine)
    command = invocation.command
    if not context.passthrough:
        context.resolved, result = validate(command, loaded, context.resolved, problems)
        context.needs_imports = not result.is_final
        if problems and (result.undescribed or full):  # more may be found in classes that must be imported
            remaining = replace(context, resolved=validate_signatures(context.resolved, problems))
            if command in WITH_MODEL and context.resolved.values.get("model") is not None:
                with problems.noted():
                    parse_config(remaining)
    problems.raise_any(loaded.resolved.masked)
    return context


def open_run_context(invocation: Invocation, *, is_quiet: bool = False) -> RunContext:
    """Open a context on a finished run, for one process, wherever it was trained.

    Args:
        invocation: Command line, with ``--run`` or ``--ckpt_path``; of any command that has them.
        is_quiet: Whether only warnings and errors are printed.

    Raises:
        ConfigError: If anything in it is wrong.
    """
    context = open_context(invocation.for_stage("export", keep=OF_MODEL), SignalWatch())
    context.mode = "quiet" if is_quiet else context.mode
    return context


def parse_config(context: RunContext) -> None:
    """Import the classes that the config names and let jsonargparse parse it.

    Raises:
        ConfigError: If there are errors in it.
    """
    from lightkit.cli.lightning_cli import Checked, LightkitCLI  # here: it loads torch

    quiet_libraries()
    with context.stack, suppress(Checked):
        LightkitCLI(context=replace(context, only_checks=True, print_config=None))
