"""Run a stage: load its config, start the ranks that it asks for or join them, and run LightkitCLI in this process."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
from functools import partial

from lightkit.cli.config_loader import STAGES
from lightkit.cli.console import configure_console, format_traceback, quiet_libraries
from lightkit.cli.context import RunContext
from lightkit.cli.deadline_option import fix_deadline
from lightkit.cli.full_validation import open_context
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.parser_errors import add_place
from lightkit.cli.supervision import make_plan, require_srun, supervise
from lightkit.cli.threads import num_threads
from lightkit.cli.up_to_date import check_up_to_date, warn_unchecked_rank
from lightkit.errors import CheckpointError, ConfigError, DataChanged, LightkitError
from lightkit.hardware import this_machine
from lightkit.hardware.processor import keep_memory
from lightkit.launch import join_launch, this_rank
from lightkit.launch.plan import THREADS
from lightkit.runs.signals import SignalWatch

__all__ = ["import_lightning", "run_in_process", "run_stage"]


def run_stage(command: str, words: list[str], watch: SignalWatch) -> int:
    """Run `fit`, `validate`, `test` or `predict`, and return the exit code.

    Args:
        command: The stage.
        words: The command line after it.
        watch: Handler of the signals.
    """
    notifier = CommandNotifier(command, words)
    return notifier.around(partial(_run_stage, command, words, watch, notifier))


def _run_stage(command: str, words: list[str], watch: SignalWatch, notifier: CommandNotifier) -> int:
    if command == "fit":
        words = fix_deadline(words)
    if (rank := this_rank(os.environ)) is not None and rank.engine == "slurm":
        watch.add(signal.SIGUSR1, patiently=True)  # of Slurm, before it ends a job of `lightkit submit`
    rank_context = join_launch(os.environ)
    if rank_context is not None:  # from here on its supervisor reports errors
        rank_context.open()
        if rank_context.rank.engine != "local":  # perhaps on another machine, where no signal of the supervisor comes
            rank_context.watch_stop_requests(watch)
        return rank_context.run(partial(_run_rank, command, words, watch, notifier), format_traceback)
    context = open_context(command, words, watch)
    context.attach_notifier(notifier)
    configure_console(context.mode, context.resolved.masked)
    for notice in context.hardware.notices:
        logging.getLogger("lightkit").warning(notice)
    if context.rank_context is not None:
        warn_unchecked_rank(context)
        context.rank_context.open()
        _set_thread_variables(context)
        return context.rank_context.run(partial(run_in_process, context, words), format_traceback)
    require_srun(context)
    if (code := check_up_to_date(context)) is not None:
        return code
    if (plan := make_plan(context)) is not None:
        return supervise(context, plan)
    _set_thread_variables(context)
    return run_in_process(context, words)


def _run_rank(command: str, words: list[str], watch: SignalWatch, notifier: CommandNotifier) -> int:
    context = open_context(command, words, watch)
    context.attach_notifier(notifier)
    return run_in_process(context, words)


def _set_thread_variables(context: RunContext) -> None:
    """Set the number of threads for libraries that are loaded later, where no launch of lightkit's has set it."""
    if context.launch.threads is not None:
        os.environ[THREADS] = str(context.launch.threads)
        return
    rank = None if context.rank_context is None else context.rank_context.rank
    if rank is not None and rank.engine != "local" and not os.environ.get(THREADS):
        os.environ[THREADS] = str(num_threads(rank, num_cores=this_machine().cores or 1))


def run_in_process(context: RunContext, words: list[str]) -> int:
    """Run the stage in this process; where an interrupted run had other data, begin a new one.

    Raises:
        DataChanged: If all ranks have to begin again.
        ConfigError: If a new run has to begin and only the user can say so.
    """
    configure_console(context.mode, context.resolved.masked)
    os.environ.update(context.hardware.environment)
    if context.command == "fit":
        keep_memory()
    import_lightning()
    try:
        return _run_once(context)
    except DataChanged as change:
        if context.rank_context is not None and context.rank_context.supervised:  # all ranks begin again
            raise
        if context.rank_context is not None and context.rank_context.rank.size > 1:
            reason = str(change).replace("begins a new run: ", "")
            raise ConfigError(f"run.resume: {reason}, and --run.resume=never begins a new run") from change
        context.tell(str(change))
        again = open_context(context.command, [*words, "--run.resume=never"], context.watch)
        again.notifier = context.notifier
        return _run_once(again)


def import_lightning() -> None:
    """Import torch and Lightning, which takes a tenth less time without the garbage collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("lightkit.cli.lightning_cli")
    finally:
        if was_enabled:
            gc.enable()


def _run_once(context: RunContext) -> int:
    # Late: they load torch and Lightning, which takes seconds.
    from lightkit.callbacks.checkpoint_io import missing_checkpoint
    from lightkit.cli.lightning_cli import LightkitCLI
    from lightkit.cli.lightning_errors import explain_full_disk, explain_lightning_errors
    from lightkit.cli.run_header import print_run_end
    from lightkit.distributed.process_group import process_group_left

    quiet_libraries()
    with context.notifier.stage(), explain_full_disk(), context.stack, process_group_left():
        try:
            with explain_lightning_errors(context.resolved):
                cli = LightkitCLI(context=context)
                if context.command == "export":
                    from lightkit.cli.model_export import export_model

                    export_model(context, cli.model, cli.datamodule)
        except SystemExit as done:  # of argparse, which has printed help or the config
            if done.code or not (context.passthrough or context.print_config is not None):
                raise
            return 0
        except LightkitError as error:
            raise add_place(error, context.resolved) from error
        trainer = cli.trainer
        has_trained = context.command == "fit" and not getattr(trainer, "fast_dev_run", False)
        if has_trained and trainer.is_global_zero and (fault := missing_checkpoint(trainer)):
            raise CheckpointError(
                f"Training ended, but {fault}. The same command writes it again, or says why it cannot."
            )
        if context.command in STAGES:
            print_run_end(trainer, context.run, context)
    return 0
