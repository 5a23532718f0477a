"""`lightkit fit`, `validate`, `test`, `predict` and `export`: the commands that build a config's model."""

from __future__ import annotations

from lightkit import config
from lightkit.cli.config_loader import options_of, read_artefact_option
from lightkit.cli.stage_runner import run_stage
from lightkit.export.formats import holds_weights_alone
from lightkit.runs.signals import SignalWatch


def run(command: str, args: list[str], watch: SignalWatch) -> int:
    """Run one of the commands, and return the exit code.

    Args:
        command: Its name.
        args: The command line after it.
        watch: Handler of the signals.
    """
    is_predict, problems = command == "predict", config.Problems()
    words = read_artefact_option(args) if is_predict else args
    arguments = config.split_arguments(words, options=options_of(command), takes_inputs=is_predict, problems=problems)
    artefact, reference = (str(arguments.options.get(name, "")) for name in ("artefact", "run"))
    if artefact and not arguments.passthrough and not holds_weights_alone(artefact):
        from lightkit.cli.predict_file import predict_by_file  # here: it loads numpy

        return predict_by_file(words)  # which needs no config, no run, and for ONNX no torch
    if command == "export" and reference.startswith(("models:/", "runs:/")) and not arguments.passthrough:
        from lightkit.cli.model_export import export_logged_model  # here: it loads torch

        problems.raise_any()
        return export_logged_model(arguments)
    return run_stage(command, args, watch)
