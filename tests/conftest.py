"""What all tests start from."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings

from tests.contract.workspace import ForkServer

# The same examples in every run: new ones are looked for by the long run, where a failure stops
# nobody's landing.
settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=250, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# nohup, or a shell in the background, has programs ignore what some tests send to those that they
# start.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TRACKING = "mlflow.tracking._tracking_service.utils"


@contextmanager
def _as_before() -> Iterator[None]:
    """Undo what commands run in this process, Lightning and MLflow leave behind for later tests.

    Variables are among it: MLflow writes the address that it gets into its own, Lightning its
    seed.
    """
    environ = dict(os.environ)
    own = logging.getLogger("lightkit")
    handlers, propagate, level = [*own.handlers], own.propagate, own.level
    active = getattr(sys.modules.get("mlflow.tracking.fluent"), "_active_experiment_id", None)
    tracking = getattr(sys.modules.get(_TRACKING), "_tracking_uri", None)
    waking = signal.getsignal(signal.SIGURG)
    yield
    # the watchdog of a fit that failed before it began
    if signal.getsignal(signal.SIGURG) != waking:
        signal.signal(signal.SIGURG, signal.SIG_DFL)
    for name in set(os.environ) - set(environ) - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]  # the processes that a later test starts would take it for theirs
    os.environ.update(
        {name: value for name, value in environ.items() if name != "PYTEST_CURRENT_TEST"}
    )
    own.handlers[:], own.propagate = handlers, propagate
    own.setLevel(level)
    if (fluent := sys.modules.get("mlflow.tracking.fluent")) is not None:
        fluent._active_experiment_id = active  # type: ignore[attr-defined]
    if (service := sys.modules.get(_TRACKING)) is not None:
        service._tracking_uri = tracking  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _globals_as_before() -> Iterator[None]:
    with _as_before():
        yield


@pytest.fixture(autouse=True, scope="module")
def _globals_of_a_module_as_before() -> Iterator[None]:
    """What fixtures that a module's tests share leave behind, which those of a test rely on."""
    with _as_before():
        yield


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A process with the heavy imports, from which commands are forked."""
    server = ForkServer(tmp_path_factory.mktemp("fork"))
    yield server
    server.stop()
