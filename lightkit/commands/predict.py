"""`lightkit predict`: label images by a model file that needs no module, or run the stage."""

from __future__ import annotations

from lightkit.cli.command_line import Invocation
from lightkit.cli.stage_runner import run_stage
from lightkit.export.formats import holds_weights_alone
from lightkit.runs.signals import SignalWatch


def predict(invocation: Invocation, watch: SignalWatch) -> int:
    """Predict, and return the exit code.

    Args:
        invocation: The command line.
        watch: Handler of the signals.
    """
    model = invocation.options.get("model")
    if invocation.passthrough or model is None or holds_weights_alone(model):
        return run_stage(invocation, watch)
    from lightkit.cli.predict_file import predict_by_file  # here: it loads numpy

    return predict_by_file(invocation)  # which needs no config, no run, and for ONNX no torch
