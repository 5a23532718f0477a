"""Run a stage.

Load its config, start the ranks that it asks for or join them, and run LightkitCLI in this process.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightkit import runs
from lightkit.cli.command_line import Invocation, parse_command
from lightkit.cli.command_table import COMMANDS, OF_MODEL, RANK, WITH_MODEL
from lightkit.cli.console import configure_console, format_traceback, print_error, quiet_libraries
from lightkit.cli.heap import allow_quick_end, freezing_imports
from lightkit.cli.notifications import IN_RETRAIN, CommandNotifier, warn_of_lost_addresses
from lightkit.cli.session import Session, StageProcess, join_ranks
from lightkit.cli.stage_config import StageConfig, load_stage_config
from lightkit.cli.up_to_date import check_up_to_date
from lightkit.cli.validation import validate, validate_signatures
from lightkit.config import Hardware, Problems, Resolved, error_at
from lightkit.config.accelerator.checks import find_default_kind
from lightkit.config.resolved import drop_paths
from lightkit.errors import (
    CheckpointError,
    ConfigError,
    DataChanged,
    Interrupted,
    explain_full_disk,
    format_interruption,
)
from lightkit.hardware import Machine, this_machine
from lightkit.hardware.processor import keep_memory
from lightkit.launch.plan import Plan, plan_launch
from lightkit.launch.queue_feeder import end_workers_that_cannot_send
from lightkit.launch.ranks import LAUNCH, complete_torch_variables, this_rank
from lightkit.launch.supervisor import LaunchResult, Supervisor
from lightkit.launch.torchrun import complete_settings
from lightkit.launch.worker import (
    DATA_CHANGED,
    INHERITED,
    PREEMPTING,
    RankContext,
    join_supervisor,
)
from lightkit.runs.ci_report import CiReport
from lightkit.runs.deadline import parse_deadline
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from pytorch_lightning import Trainer

    from lightkit.images.early import EarlyImages

_log = logging.getLogger("lightkit")

_EXPLAINED_CODES = (2, 3, 75, 129, 130, 143)
"""Exit codes whose message is the whole reason, without the logs of the ranks."""


def run_stage(
    invocation: Invocation, watch: SignalWatch, notifier: CommandNotifier | None = None
) -> int:
    """Run `fit`, `validate`, `test`, `predict` or `export`, and return the exit code.

    Args:
        invocation: The command line.
        watch: Handler of the signals.
        notifier: Gets the run and the message of an error in another process, for a caller that
            goes on.
    """
    notifier = notifier or CommandNotifier(invocation)
    complete_torch_variables(os.environ)
    if (rank := this_rank(os.environ)) is not None and rank.engine == "slurm":
        for signum in PREEMPTING:  # before Slurm ends a job of `lightkit submit`
            watch.add(signum, patiently=True)
    rank_context = join_supervisor(os.environ)
    if rank_context is not None:
        rank_context.open()  # from here on its supervisor reports errors
        rank_context.watch_stop_requests()
        return rank_context.run(partial(_run_stage, invocation, watch, notifier), format_traceback)
    if invocation.command != "fit" or INHERITED in os.environ:  # a rank of Lightning's own launcher
        return _run_stage(invocation, watch, notifier)
    with CiReport("lightkit fit", None, case="fit", shares_page=True) as report:
        report.code = _run_stage(invocation, watch, notifier)
        report.reason = notifier.message
        return report.code


def _run_stage(invocation: Invocation, watch: SignalWatch, notifier: CommandNotifier) -> int:
    with notifier:
        # Load the config, and announce the command with it.
        stage_config = open_stage_config(invocation)
        if invocation.has("deadline"):
            stage_config = _set_deadline(stage_config)
        resolved = stage_config.resolved
        configure_console(stage_config.mode, resolved.masked)
        # after it: a thread warns of a message that is refused
        notifier.begin(resolved, stage_config.job_name, runs_stage=not stage_config.only_prints)
        if stage_config.command == "export":  # one process on any hardware
            return run_in_process(stage_config, watch=watch, notifier=notifier)
        if stage_config.base is not None:
            warn_of_lost_addresses(resolved, stage_config.base)

        # A rank of a launch runs the stage.
        ranks = join_ranks(stage_config.command, stage_config.run_root)
        run = partial(run_in_process, watch=watch, notifier=notifier, ranks=ranks)
        if ranks is not None and ranks.supervised:
            return run(stage_config)
        for notice in stage_config.hardware.notices:
            _log.warning(notice)
        if ranks is not None:
            ranks.open()
            return ranks.run(partial(run, stage_config), format_traceback)

        # Any other process decides whether the stage is needed, and who runs it.
        require_srun(stage_config)
        code, inputs = check_up_to_date(stage_config)
        if code is not None:
            notifier.code = code
            return code
        plan = make_plan(stage_config)
        if plan is not None:
            run = partial(supervise, plan=plan, watch=watch, notifier=notifier)
        try:
            return run(replace(stage_config, inputs_now=inputs))
        except DataChanged as change:
            _log.info(f"begins a new run: {change}")
            again = open_stage_config(add_words(stage_config.invocation, "--run.resume=never"))
            return run(replace(again, deadline=stage_config.deadline))


def _set_deadline(stage_config: StageConfig) -> StageConfig:
    """Read ``--deadline``, and put the moment in its place.

    Ranks that start later count from it, too.
    """
    is_resolved = any(os.environ.get(name) for name in (INHERITED, IN_RETRAIN, LAUNCH))
    deadline = parse_deadline(str(stage_config.options["deadline"]), is_resolved=is_resolved)
    os.environ.update(deadline.environment())
    invocation = add_words(stage_config.invocation, f"--deadline={deadline.word}")
    return replace(stage_config, deadline=deadline, invocation=invocation)


def add_words(invocation: Invocation, *words: str) -> Invocation:
    """Return an invocation with options or keys in addition, which win over those before."""
    added = parse_command(COMMANDS[invocation.command], words)
    return invocation._replace(
        words=(*invocation.words, *words),
        options={**invocation.options, **added.options},
        overrides=(*invocation.overrides, *added.overrides),
    )


def run_in_process(
    stage_config: StageConfig,
    *,
    watch: SignalWatch,
    notifier: CommandNotifier,
    ranks: RankContext | None = None,
) -> int:
    """Run the stage in this process.

    Raises:
        DataChanged: If an interrupted run had other data.
    """
    early_images = _begin_early_images(stage_config, ranks)
    with nullcontext() if early_images is None else closing(early_images):
        os.environ.update(stage_config.hardware.environment)
        keep_memory()
        end_workers_that_cannot_send()
        with freezing_imports():  # late: they load torch and Lightning, which takes seconds
            from lightkit.cli.lightning_cli import LightkitCLI
            from lightkit.cli.model_builder import translate_model_errors
            from lightkit.cli.run_display import print_run_end

        quiet_libraries()
        purpose = "resume" if stage_config.command in ("fit", "") else "go on"
        with explain_full_disk(purpose), translate_model_errors(stage_config.resolved) as stack:
            process = StageProcess(
                stack=stack,
                watch=watch,
                notifier=notifier,
                rank_context=ranks,
                early_images=early_images,
            )
            try:
                cli = LightkitCLI(stage_config=stage_config, process=process)
            except SystemExit as done:  # of argparse, which has printed help or the config
                if done.code or not stage_config.only_prints:
                    raise
                return 0
            session = cli.session
            if session is None or stage_config.command == "export":
                return 0
            if _check_training(cli.trainer, session):
                print_run_end(cli.trainer, session)
        if not stage_config.needs_imports and cli.trainer.world_size == 1:
            allow_quick_end()
        return 0


def _begin_early_images(stage_config: StageConfig, ranks: RankContext | None) -> EarlyImages | None:
    """Begin to read the images that `predict` names, where the config tells how they are prepared.

    None elsewhere.
    """
    is_alone = ranks is None and not stage_config.only_prints
    if stage_config.command != "predict" or not stage_config.images or not is_alone:
        return None
    size = runs.find_value(stage_config.resolved.value_of("data"), "init_args", "image_size")
    if type(size) is not int or size < 1:
        return None
    from lightkit.images.early import begin_early  # here: Pillow, which only images need
    from lightkit.images.preprocessing import preprocessing_of

    return begin_early(stage_config.images, preprocessing_of(size))


def _check_training(trainer: Trainer, session: Session) -> bool:
    """Check after a fit that it has trained and written its checkpoint.

    Return whether there is anything to report.

    Raises:
        CheckpointError: If it has written none.
    """
    # here: they load torch
    from lightkit.callbacks.checkpoint_io import missing_checkpoint
    from lightkit.callbacks.empty_stage import find_reached_limit

    if not session.trains or getattr(trainer, "fast_dev_run", False):
        return True
    is_untrained = not session.has_trained and not session.start.is_old
    if is_untrained and (limit := find_reached_limit(trainer)) is not None:
        _log.warning(limit)
        session.nothing_left = True
        return False
    if trainer.is_global_zero and (fault := missing_checkpoint(trainer)):
        raise CheckpointError(
            f"Training ended, but {fault}. The same command writes it"
            " again, or ends with the reason."
        )
    return True


def make_plan(stage_config: StageConfig) -> Plan | None:
    """Decide which processes are to be started; None if this process is the only one.

    Raises:
        ConfigError: If engine, strategy and numbers of processes do not fit.
    """
    if stage_config.only_prints:
        return None
    resolved = stage_config.resolved
    hardware = stage_config.hardware
    processes = _count_processes(hardware)
    keys = (
        ("launch", "engine"),
        ("launch", "processes"),
        ("launch", "hosts"),
        ("trainer", "strategy"),
    )
    given = next((key for key in keys if resolved.section(key[0]).get(key[1]) is not None), None)
    return plan_launch(
        complete_settings(stage_config.launch, os.environ, num_devices=processes),
        strategy=hardware.strategy,
        processes=processes,
        uses_gpus=hardware.kind == "gpu",
        can_fork=_can_fork(stage_config),
        origin=None if given is None else resolved.origin_of(given),
    )


def _can_fork(stage_config: StageConfig) -> bool:
    """Return whether the ranks of this machine can be forked from a process with torch.

    They compute on its CPUs: nothing of a GPU survives a fork. A cluster environment or a strategy
    of the user's may start the ranks itself.
    """
    kind = stage_config.hardware.kind or find_default_kind(this_machine())
    trainer = stage_config.resolved.section("trainer")
    is_own = bool(trainer.get("plugins")) or isinstance(trainer.get("strategy"), Mapping)
    return sys.platform == "linux" and kind == "cpu" and not is_own


def _count_processes(hardware: Hardware) -> int | None:
    """Count the processes of a machine; None where Lightning, or torch-xla, decides."""
    # torch-xla forks its ranks itself, inside the trainer
    if hardware.processes is not None or hardware.kind == "tpu":
        return hardware.processes
    named = count_devices(hardware)  # of Lightning's own launcher
    if named is None and hardware.kind in (None, "gpu"):
        return len(this_machine().gpus or ()) or None
    return named


def count_devices(hardware: Hardware) -> int | None:
    """Count the devices that a config names; None where it asks for all, or Lightning decides."""
    if isinstance(hardware.devices, tuple):
        return len(hardware.devices)
    return hardware.devices if isinstance(hardware.devices, int) and hardware.devices > 0 else None


def require_srun(stage_config: StageConfig) -> None:
    """Check that a config for the ranks of a Slurm job is not trained by one process alone.

    Raises:
        ConfigError: If `srun` has not started this process.
    """
    if (
        stage_config.launch.engine == "slurm"
        and stage_config.command == "fit"
        and this_rank(os.environ) is None
    ):
        raise error_at(
            "launch.engine: slurm: the ranks are started by srun, which is not the case here; use"
            " lightkit submit with the same arguments, or another launch.engine",
            stage_config.resolved.origin_of("launch.engine"),
        )


def supervise(
    stage_config: StageConfig, *, plan: Plan, watch: SignalWatch, notifier: CommandNotifier
) -> int:
    """Start all ranks and return the exit code of the launch.

    Raises:
        ConfigError: If images are to come on standard input.
        DataChanged: If a new run has to begin, since an interrupted one had other data.
    """
    if "-" in stage_config.images:
        raise ConfigError(
            "-: standard input has the images, and the processes that predict are started without"
            " it. Write the paths to a table such as list.csv, or predict in one process, with"
            " --trainer.devices=1."
        )
    root = stage_config.base.root if stage_config.base else stage_config.run_root
    words = [RANK, stage_config.invocation.dump()]
    supervisor = Supervisor(plan, words, root=root, num_cores=this_machine().cores or 1)
    try:
        with watch.handed_over():  # ranks may take longer to save than one process has
            result = supervisor.run()
        run = _open_announced_run(supervisor)
        if run is not None:
            notifier.run = run
        if supervisor.signum is not None and result.code != 0:
            result = _describe_interruption(supervisor.signum, run)
        result = _mask_result(result, stage_config.resolved)
        if result.kind == DATA_CHANGED:
            raise DataChanged(str(result.message).splitlines()[0].removeprefix("error: "))
        notifier.code = result.code
        notifier.message = result.message or ""
        _print_end(result, run)
        if run is not None:
            with suppress(OSError):  # a full disk is no reason to hide how the ranks ended
                _complete_run_folder(run, supervisor, result)
    finally:
        supervisor.remove()
    return result.code


def _open_announced_run(supervisor: Supervisor) -> runs.Run | None:
    """Open the run that rank 0 has announced; None where there is none, or its folder is gone."""
    announced = supervisor.newest_run()
    if announced is None or not Path(announced["folder"]).is_dir():
        return None
    return runs.open_run(announced["folder"])


def _describe_interruption(signum: int, run: runs.Run | None) -> LaunchResult:
    """Return the result of a launch that a signal has ended.

    With the checkpoint that the run resumes from.
    """
    checkpoint = None if run is None else runs.last_good(run.checkpoints)
    interruption = Interrupted(signum, checkpoint=checkpoint)
    return LaunchResult(
        interruption.exit_code, format_interruption(interruption), f"signal {signum}"
    )


def _mask_result(result: LaunchResult, resolved: Resolved) -> LaunchResult:
    """Return the result of a launch with references in the place of secrets."""
    message = result.message and resolved.masked(result.message)
    summary = result.summary and resolved.masked(result.summary)
    return replace(result, message=message, summary=summary)


def _print_end(result: LaunchResult, run: runs.Run | None) -> None:
    """Print why the ranks ended, and where their logs are if the message is not all."""
    if not result.message:
        return
    if run is not None and result.code not in _EXPLAINED_CODES:
        print_error(f"{result.message}\nlogs  {run.folder / 'logs'}")
    else:
        print_error(result.message)


def _complete_run_folder(run: runs.Run, supervisor: Supervisor, result: LaunchResult) -> None:
    """Copy the launcher's log, and write the end of the run if rank 0 was killed.

    Rank 0 writes the records.
    """
    log = supervisor.launcher_log
    if log.is_file() and log.stat().st_size:
        (run.folder / "logs").mkdir(exist_ok=True)
        shutil.copyfile(log, run.folder / "logs" / log.name)
    summary = runs.read_summary(run.summary_path)
    if summary is None or summary["status"] == "done" or result.code == 0:
        return
    if summary["status"] == "running" or (result.rank != 0 and result.summary):
        ends = {75: "preempted", **dict.fromkeys((129, 130, 143), "interrupted")}
        summary |= {
            "status": ends.get(result.code, "failed"),
            "exit_code": result.code,
            "error": result.summary,
        }
        runs.write_summary(run.summary_path, summary)


def open_stage_config(
    invocation: Invocation,
    *,
    full: bool = False,
    machine: Machine | Literal["this"] | None = "this",
) -> StageConfig:
    """Load the config of a command, and raise every error in it.

    Args:
        invocation: The command line.
        full: Whether jsonargparse is asked for more errors also where the schema describes every
            class.
        machine: Machine whose hardware the config must fit; None to check against none.

    Raises:
        ConfigError: If anything in it is wrong.
        DataError: If nothing is wrong but data is missing.
    """
    problems = Problems()
    stage_config = load_stage_config(invocation, problems, machine=machine)
    command = invocation.command
    if not stage_config.passthrough:
        result = validate(stage_config, stage_config.given, problems)
        stage_config = replace(stage_config, needs_imports=not result.is_final)
        # more may be found in classes that must be imported
        if problems and (result.undescribed or full):
            resolved = drop_paths(stage_config.resolved, {path for path, _ in result.problems})
            has_model = resolved.value_of("model") is not None
            resolved = validate_signatures(resolved, problems)
            if command in WITH_MODEL and has_model:
                with problems.noted():
                    parse_config(replace(stage_config, resolved=resolved))
    problems.raise_any(stage_config.given.masked)
    return stage_config


def open_command_config(invocation: Invocation) -> StageConfig:
    """Load the config of a command; all that follows is printed by it; raise every error in it.

    Raises:
        ConfigError: If anything in it is wrong.
    """
    stage_config = open_stage_config(invocation)
    configure_console(stage_config.mode, stage_config.resolved.masked)
    return stage_config


def open_run_config(invocation: Invocation, *, is_quiet: bool = False) -> StageConfig:
    """Load the config of a finished run, for one process, wherever it was trained.

    Args:
        invocation: Command line, with ``--run`` or ``--ckpt_path``; of any command that has them.
        is_quiet: Whether only warnings and errors are printed.

    Raises:
        ConfigError: If anything in it is wrong.
    """
    stage_config = open_stage_config(invocation.for_stage("export", keep=OF_MODEL))
    return replace(stage_config, mode="quiet") if is_quiet else stage_config


def parse_config(stage_config: StageConfig, ranks: RankContext | None = None) -> None:
    """Import the classes that the config names and let jsonargparse parse it.

    Raises:
        ConfigError: If there are errors in it.
    """
    with freezing_imports():
        from lightkit.cli.lightning_cli import Checked, LightkitCLI  # here: it loads torch

    quiet_libraries()
    checked = replace(stage_config, only_checks=True, print_config=None)
    with ExitStack() as stack, suppress(Checked):
        LightkitCLI(stage_config=checked, process=StageProcess(stack=stack, rank_context=ranks))
