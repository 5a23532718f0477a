"""What all tests start from."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator

import pytest

# nohup, or a shell in the background, has programs ignore what some tests send to those that they start.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _globals_as_before() -> Iterator[None]:
    """Take back what commands run in this process, and MLflow's own functions, leave behind for later tests."""
    own = logging.getLogger("lightkit")
    handlers, propagate, level = [*own.handlers], own.propagate, own.level
    experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
    fluent = sys.modules.get("mlflow.tracking.fluent")
    active = getattr(fluent, "_active_experiment_id", None)
    yield
    own.handlers[:], own.propagate = handlers, propagate
    own.setLevel(level)
    if (fluent := sys.modules.get("mlflow.tracking.fluent")) is not None:
        fluent._active_experiment_id = active  # type: ignore[attr-defined]
    if experiment is None:
        os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
