"""`lightkit fit`, `validate`, `test`, `predict` and `export`: the commands that build a config's model."""

from __future__ import annotations

from lightkit import config
from lightkit.cli.config_loader import options_of, read_artefact_option
from lightkit.cli.stage_runner import run_stage
from lightkit.runs.signals import SignalWatch


def run(command: str, args: list[str], watch: SignalWatch) -> int:
    """Run one of the commands, and return the exit code.

    Args:
        command: Its name.
        args: The command line after it.
        watch: Handler of the signals.
    """
    if command == "predict":
        from lightkit.cli.predict_file import names_exported_model, predict_by_file  # here: it loads numpy

        args = read_artefact_option(args)
        if names_exported_model(args):  # which needs no config, no run, and for ONNX no torch
            return predict_by_file(args)
    if command == "export":
        arguments = config.split_arguments(args, options=options_of("export"), problems=config.Problems())
        is_logged = str(arguments.options.get("run", "")).startswith(("models:/", "runs:/"))
        if is_logged and not arguments.passthrough:
            from lightkit.cli.model_export import export_logged_model  # here: it loads torch

            return export_logged_model(arguments)
    return run_stage(command, args, watch)
