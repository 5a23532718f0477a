"""The tables of rules against the Lightning that is installed."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from lightkit.config.accelerator.said import OLD_TRAINER_KEYS
from lightkit.config.upgrade import class_arguments, class_paths
from lightkit.config.upgrade.hardware import BACKEND
from lightkit.config.upgrade.trainer_arguments import (
    GONE_ARGUMENTS,
    OTHER_VALUES,
    TRAINER_ARGUMENTS,
    Today,
    rule_of,
)

pytestmark = pytest.mark.slow
VALUES: list[Any] = [None, True, False, 0, 1, 20, -1, "top", "full", "simple", "path", {4: 2}]
DOTTED = [
    *(f"plugins.{name}" for name in (*class_paths._STRATEGIES, *class_paths._PLUGINS, *class_paths._BF16)),
    *(".".join(path) for path, today in class_paths._OTHERS.items() if today.path is not None),
    *("profiler.SimpleProfiler", "utilities.cli.SaveConfigCallback", "plugins.HorovodPlugin"),
    *("metrics.Accuracy", "callbacks.gpu_stats_monitor.GPUStatsMonitor"),
]
GONE = [
    *(f"strategies.{name}" for name in class_paths._GONE_STRATEGIES),
    *(".".join(path) for path, today in class_paths._OTHERS.items() if today.path is None),
]


def trainer_arguments() -> set[str]:
    """Give the arguments of today's trainer."""
    from pytorch_lightning import Trainer

    return set(inspect.signature(Trainer.__init__).parameters) - {"self"}


def found(path: str) -> Any:
    """Import a class by its path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_known_arguments_are_those_of_todays_trainer() -> None:
    assert set(TRAINER_ARGUMENTS) == trainer_arguments()


def test_what_a_rule_removes_is_no_argument_of_todays_trainer() -> None:
    assert not {*GONE_ARGUMENTS, *OLD_TRAINER_KEYS, BACKEND} & trainer_arguments()
    assert set(OTHER_VALUES) <= trainer_arguments()


@pytest.mark.parametrize("key", [*GONE_ARGUMENTS, *OTHER_VALUES])
def test_what_a_rule_writes_is_an_argument_of_todays_trainer(key: str) -> None:
    rule = rule_of(key)
    assert rule is not None
    written = [today for value in VALUES if isinstance(today := rule.today(value, None), Today)]

    assert {name for today in written for name, _ in today.keys} <= trainer_arguments()
    for today in written:
        for _, value in today.beside:
            if isinstance(value, dict) and "class_path" in value:
                assert set(value["init_args"]) <= set(inspect.signature(found(value["class_path"])).parameters)


@pytest.mark.parametrize("old", DOTTED)
def test_the_path_of_a_renamed_class_can_be_imported(old: str) -> None:
    today = class_paths.todays_class(f"pytorch_lightning.{old}")
    assert today is not None
    assert today.path is not None
    new = found(today.path)

    assert class_paths.todays_class(today.path) is None
    parameters = inspect.signature(new).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    assert takes_any or set(today.arguments) <= set(parameters)


@pytest.mark.parametrize("old", GONE)
def test_a_class_that_is_gone_cannot_be_used(old: str) -> None:
    today = class_paths.todays_class(f"pytorch_lightning.{old}")
    assert today is not None
    assert today.path is None
    try:
        cls = found(f"pytorch_lightning.{old}")
    except (ImportError, AttributeError):
        return
    with pytest.raises(NotImplementedError, match="has been removed"):
        cls()


@pytest.mark.parametrize(
    "name", ["ModelCheckpoint", "EarlyStopping", "CometLogger", "PyTorchProfiler", "RichProgressBar"]
)
def test_the_arguments_that_are_written_are_those_of_the_class(name: str) -> None:
    rooms = {"CometLogger": "loggers", "PyTorchProfiler": "profilers"}
    parameters = set(inspect.signature(found(f"pytorch_lightning.{rooms.get(name, 'callbacks')}.{name}")).parameters)
    for key, rule in class_arguments.argument_rules(name).items():
        for value in ("folder/name", "auto", True, 3):
            keys = rule.today(value, {})
            if isinstance(keys, tuple):
                assert {new for new, _ in keys} <= parameters
                assert key == "mode" or key not in parameters
