"""What each command does."""

from __future__ import annotations

import logging
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

from lightkit.cli.console import configure_console, quiet_libraries
from lightkit.cli.context import RunContext
from lightkit.cli.deadline_option import fix_deadline
from lightkit.cli.export_options import parse_words
from lightkit.cli.full_validation import open_context
from lightkit.cli.light_imports import import_lightning
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.parser_errors import add_place
from lightkit.cli.supervision import make_plan, require_srun, supervise
from lightkit.cli.threads import num_threads
from lightkit.cli.tracebacks import format_traceback
from lightkit.cli.up_to_date import check_up_to_date, warn_unchecked_rank
from lightkit.errors import CheckpointError, ConfigError, LightkitError
from lightkit.hardware import this_machine
from lightkit.hardware.allocator import keep_memory
from lightkit.launch import join_launch, this_rank
from lightkit.launch.plan import THREADS
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from lightkit.cli.lightning_cli import LightkitCLI

__all__ = ["run"]


def run(command: str, words: list[str], watch: SignalWatch) -> int:
    """Run fit, validate, test, predict or export, and return the exit code."""
    if command == "predict":
        from lightkit.cli.predict_file import names_exported_model, predict_by_file  # here: it loads numpy

        if names_exported_model(words):  # which needs no config, no run, and for ONNX no torch
            return predict_by_file(words)
    notifier = CommandNotifier(command, words)
    return notifier.around(partial(_run_command, command, words, watch, notifier))


def _run_command(command: str, words: list[str], watch: SignalWatch, notifier: CommandNotifier) -> int:
    if command == "export":
        return _run_export(words, watch, notifier)
    if command == "fit":
        words = fix_deadline(words)
    if (rank := this_rank(os.environ)) is not None and rank.engine == "slurm":
        note_preemption(watch)
    rank_context = join_launch(os.environ)
    if rank_context is not None:  # from here on its supervisor reports errors
        rank_context.open()
        if rank_context.rank.engine != "local":
            rank_context.watch_stop_requests(watch)
        return rank_context.run(partial(_run_opened, command, words, watch, notifier), format_traceback)
    session = _open(command, words, watch, notifier)
    configure_console(session.mode, session.resolved.masked)
    if session.rank_context is not None:
        session.rank_context.open()
    for notice in session.hardware.notices:
        logging.getLogger("lightkit").warning(notice)
    if session.rank_context is None:
        require_srun(session)
        if (code := check_up_to_date(session)) is not None:
            return code
        if (plan := make_plan(session)) is not None:
            return supervise(session, plan)
    os.environ.update(_threads(session))
    if session.rank_context is not None:
        return session.rank_context.run(partial(_run_session, session, words), format_traceback)
    return _run_session(session, words)


def _run_export(words: list[str], watch: SignalWatch, notifier: CommandNotifier) -> int:
    """Export in this one process, whatever the config's hardware is."""
    options, arguments = parse_words(words)
    if options is not None and options.logged is not None:
        from lightkit.cli.model_export import export_logged_model  # here: it loads torch

        return export_logged_model(options, arguments)
    session = _open("export", words, watch, notifier)
    session.rank_context = None
    return _run_session(session, words)


def _open(command: str, words: list[str], watch: SignalWatch, notifier: CommandNotifier) -> RunContext:
    context = open_context(command, words, watch)
    context.attach_notifier(notifier)
    return context


def note_preemption(watch: SignalWatch) -> None:
    """Let SIGUSR1, which Slurm sends before it ends a job of `lightkit submit`, wait until training can be resumed."""
    watch.add(signal.SIGUSR1, patiently=True)


def _threads(session: RunContext) -> dict[str, str]:
    """Tell libraries that are loaded later how many threads to have, where no launch of lightkit's has told them."""
    if session.launch.threads is not None:
        return {THREADS: str(session.launch.threads)}
    if session.rank_context is None or session.rank_context.rank.engine == "local" or os.environ.get(THREADS):
        return {}
    return {THREADS: str(num_threads(session.rank_context.rank, num_cores=this_machine().cores or 1))}


def _run_opened(command: str, words: list[str], watch: SignalWatch, notifier: CommandNotifier) -> int:
    session = _open(command, words, watch, notifier)
    if session.rank_context is not None and not session.rank_context.supervised:
        warn_unchecked_rank(session)
    return _run_session(session, words)


def _run_session(session: RunContext, words: list[str]) -> int:
    configure_console(session.mode, session.resolved.masked)
    os.environ.update(session.hardware.environment)
    if session.command == "fit":
        keep_memory()
    # Here, not above: from this import on torch and Lightning are loaded, which takes seconds.
    import_lightning()
    from lightkit.cli.lightning_cli import DataChanged

    try:
        return _run(session)
    except DataChanged as change:
        if session.rank_context is not None and session.rank_context.supervised:  # all ranks begin again
            raise
        if session.rank_context is not None and session.rank_context.rank.size > 1:
            says = str(change).replace("begins a new run: ", "")
            raise ConfigError(f"run.resume: {says}, and --run.resume=never begins a new run") from change
        session.tell(str(change))
        again = open_context(session.command, [*words, "--run.resume=never"], session.watch)
        again.notifier = session.notifier
        return _run(again)


def _run(session: RunContext) -> int:
    from lightkit.cli.lightning_cli import ConfigPrinted, LightkitCLI  # late as above, and the next ones too
    from lightkit.cli.lightning_errors import explain_full_disk, explain_lightning_errors
    from lightkit.cli.run_header import print_run_end
    from lightkit.distributed.process_group import process_group_left

    quiet_libraries()
    with session.notifier.stage(), explain_full_disk(), session.stack, process_group_left():
        try:
            with explain_lightning_errors(session.resolved):
                cli = LightkitCLI(session=session)
        except ConfigPrinted:
            return 0
        except SystemExit as done:  # argparse's way to end once it has printed help
            if done.code or not session.passthrough:
                raise
            return 0
        except LightkitError as error:
            raise add_place(error, session.resolved) from error
        if session.command == "fit":
            _check_promises(cli)
        if session.command != "export":  # which has told its own end
            assert cli.stage is not None
            print_run_end(cli.trainer, cli.stage.start.run, session)
    return 0


def _check_promises(cli: LightkitCLI) -> None:
    """Fail where training ended well but left no checkpoint that can be read.

    Raises:
        CheckpointError: Then.
    """
    from lightkit.callbacks.checkpoint_audit import missing_checkpoint  # here: it loads Lightning

    trainer = cli.trainer
    if getattr(trainer, "fast_dev_run", False) or not trainer.is_global_zero:
        return
    if (broken := missing_checkpoint(trainer)) is not None:
        raise CheckpointError(f"Training ended, but {broken}. The same command writes it again, or says why it cannot.")
