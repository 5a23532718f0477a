"""`lightkit retrain`: what is checked before hours of training, and the lock that is held for all stages. No torch."""

from __future__ import annotations

import importlib.util
from functools import partial

from lightkit.cli.console import configure_console
from lightkit.cli.context import RunContext
from lightkit.cli.full_validation import open_context
from lightkit.cli.job_lock import create_job_lock, find_job
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.resume import RunSettings
from lightkit.cli.retrain_stages import Retraining
from lightkit.cli.retrain_words import config_digest
from lightkit.cli.stage_process import Relay
from lightkit.commands.retrain import RetrainOptions
from lightkit.config import mistake, read_scalar
from lightkit.errors import ConfigError
from lightkit.registry.gate import read_gate
from lightkit.runs.deadlines import parse_deadline
from lightkit.runs.signals import SignalWatch

__all__ = ["retrain_job"]


def retrain_job(words: list[str], options: RetrainOptions) -> int:
    """Run the stages of a job that are left, and return the exit code.

    Args:
        words: What is said for `fit`.
        options: What is said beside.

    Raises:
        ConfigError: If the config is wrong, or cannot be meant for this.
        OutOfTime: If the deadline leaves no time for the next stage.
        RunLocked: If another process runs the job.
    """
    notifier = CommandNotifier("fit", words)
    return notifier.around(partial(_retrain, words, options, notifier))


def _retrain(words: list[str], options: RetrainOptions, notifier: CommandNotifier) -> int:
    deadline = None if options.deadline is None else parse_deadline(options.deadline)
    session = open_context("fit", words, SignalWatch())
    configure_console(session.mode, session.resolved.masked)
    settings = _run_settings(session)
    root, name = find_job(settings)
    _check(session, options)
    session.attach_notifier(notifier)
    lock = create_job_lock(session, settings)
    with lock, Relay() as relay:
        config = config_digest(session)
        work = Retraining(session, options, root=root, name=name, config=config, deadline=deadline, relay=relay)
        try:
            return work.run(lock.delegate(), may_continue=settings.resume == "auto")
        finally:
            notifier.is_told, notifier.words = work.has_told_notifiers, work.words


def _run_settings(session: RunContext) -> RunSettings:
    said = session.resolved.values.get("run") or {}
    read = {key: read_scalar(value) if key in ("wait_s", "stale_s") and isinstance(value, str) else value
            for key, value in said.items()}  # fmt: skip
    return RunSettings(**{**read, "name": read.get("name") or session.default_name})


def _check(session: RunContext, options: RetrainOptions) -> None:
    """Tell what would fail only after hours of training.

    Raises:
        ConfigError: If there is anything of it.
    """
    if session.passthrough:
        raise ConfigError(
            f"retrain: unexpected argument {session.passthrough[0]!r}; lightkit fit --help tells the keys"
        )
    resolved = session.resolved
    trainer = resolved.values.get("trainer") or {}
    if trainer.get("fast_dev_run") not in (None, False, "false", 0, "0"):
        raise mistake(
            "trainer.fast_dev_run: leaves nothing that could be tested and promoted; say lightkit fit",
            resolved.origin_of("trainer.fast_dev_run"),
        )
    is_judged = read_gate(resolved).metric is not None
    if not is_judged and options.reason is not None:
        raise ConfigError("--reason: nothing is promoted without gate.metric; leave it out, or say what is judged.")
    if is_judged and importlib.util.find_spec("mlflow") is None:
        raise ConfigError("gate.metric: what is judged is promoted in MLflow's registry, and mlflow is not installed.")
    if {"onnx", "all"} & {*options.export_format.split(",")} and importlib.util.find_spec("onnx") is None:
        raise ConfigError("--export-format: onnx is not installed. Install it, or say another format.")
