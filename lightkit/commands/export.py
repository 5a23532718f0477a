"""`lightkit export`: write a model that is logged in MLflow to files, or run the stage."""

from __future__ import annotations

from lightkit.cli.command_line import Invocation
from lightkit.cli.heap import freezing_imports
from lightkit.cli.stage_runner import run_stage
from lightkit.runs.signals import SignalWatch


def export(invocation: Invocation, watch: SignalWatch) -> int:
    """Export, and return the exit code.

    Args:
        invocation: The command line.
        watch: Handler of the signals.
    """
    reference = str(invocation.options.get("run", ""))
    if invocation.passthrough or not reference.startswith(("models:/", "runs:/")):
        return run_stage(invocation, watch)
    with freezing_imports():
        from lightkit.cli.logged_model_export import export_logged_model  # here: it loads torch

    invocation.raise_errors()
    return export_logged_model(invocation)
