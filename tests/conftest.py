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

# MLflow writes the address that it is told into its variable, where later tests and their processes find it.
_LEFT_BEHIND = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "MLFLOW_TRACKING_URI")
_TRACKING = "mlflow.tracking._tracking_service.utils"


@pytest.fixture(autouse=True)
def _globals_as_before() -> Iterator[None]:
    """Take back what commands run in this process, Lightning and MLflow leave behind for later tests."""
    seeds = {name: os.environ.get(name) for name in _LEFT_BEHIND}
    own = logging.getLogger("lightkit")
    handlers, propagate, level = [*own.handlers], own.propagate, own.level
    experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
    fluent = sys.modules.get("mlflow.tracking.fluent")
    active = getattr(fluent, "_active_experiment_id", None)
    tracking = getattr(sys.modules.get(_TRACKING), "_tracking_uri", None)
    waking = signal.getsignal(signal.SIGUSR2)
    yield
    if signal.getsignal(signal.SIGUSR2) != waking:  # the watchdog of a fit that failed before it began
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    for name, value in seeds.items():  # the processes that a later test starts would take them for theirs
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    own.handlers[:], own.propagate = handlers, propagate
    own.setLevel(level)
    if (fluent := sys.modules.get("mlflow.tracking.fluent")) is not None:
        fluent._active_experiment_id = active  # type: ignore[attr-defined]
    if (service := sys.modules.get(_TRACKING)) is not None:
        service._tracking_uri = tracking  # type: ignore[attr-defined]
    if experiment is None:
        os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
