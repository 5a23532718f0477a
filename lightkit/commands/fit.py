"""`lightkit fit`, `validate`, `test`, `predict` and `export`: the commands that build a config's model."""

from __future__ import annotations

from functools import partial

from lightkit.cli.export_options import parse_words
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.stage_runner import open_context, run_in_process, run_stage
from lightkit.runs.signals import SignalWatch

__all__ = ["run"]


def run(command: str, words: list[str], watch: SignalWatch) -> int:
    """Run one of the commands, and return the exit code.

    Args:
        command: Its name.
        words: The command line after it.
        watch: Handler of the signals.
    """
    if command == "predict":
        from lightkit.cli.predict_file import names_exported_model, predict_by_file  # here: it loads numpy

        if names_exported_model(words):  # which needs no config, no run, and for ONNX no torch
            return predict_by_file(words)
    if command != "export":
        return run_stage(command, words, watch)
    notifier = CommandNotifier(command, words)
    return notifier.around(partial(_export, words, watch, notifier))


def _export(words: list[str], watch: SignalWatch, notifier: CommandNotifier) -> int:
    """Export in this one process, whatever hardware the config names."""
    options, arguments = parse_words(words)
    if options is not None and options.logged is not None:
        from lightkit.cli.model_export import export_logged_model  # here: it loads torch

        return export_logged_model(options, arguments)
    context = open_context("export", words, watch)
    context.attach_notifier(notifier)
    context.rank_context = None
    return run_in_process(context, words)
