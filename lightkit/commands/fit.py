"""`lightkit fit`, `validate`, `test`, `predict` and `export`: the commands that build a config's model."""

from __future__ import annotations

from lightkit.cli.command_line import Invocation
from lightkit.cli.stage_runner import run_stage
from lightkit.export.formats import holds_weights_alone
from lightkit.runs.signals import SignalWatch


def run(invocation: Invocation, watch: SignalWatch) -> int:
    """Run one of the commands, and return the exit code.

    Args:
        invocation: The command line.
        watch: Handler of the signals.
    """
    if _names_exported_model(invocation):
        from lightkit.cli.predict_file import predict_by_file  # here: it loads numpy

        return predict_by_file(invocation)  # which needs no config, no run, and for ONNX no torch
    if _names_logged_model(invocation):
        from lightkit.cli.model_export import export_logged_model  # here: it loads torch

        invocation.raise_errors()
        return export_logged_model(invocation)
    return run_stage(invocation, watch)


def _names_exported_model(invocation: Invocation) -> bool:
    """Return whether images are predicted by a file that needs no module."""
    if invocation.passthrough or invocation.command != "predict" or not invocation.has("model"):
        return False
    return not holds_weights_alone(invocation.options["model"])


def _names_logged_model(invocation: Invocation) -> bool:
    """Return whether a model is exported that is logged in MLflow."""
    if invocation.passthrough or invocation.command != "export":
        return False
    reference = str(invocation.options.get("run", ""))
    return reference.startswith(("models:/", "runs:/"))
