"""The tables of rules against the Lightning that is installed."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from lightkit.config.upgrade_rules import (
    CHANGED_ARGUMENTS,
    CLASS_ARGUMENTS,
    OLD_HARDWARE_KEYS,
    REMOVED_ARGUMENTS,
    REMOVED_CLASSES,
    RENAMED_CLASSES,
    find_class,
)

pytestmark = pytest.mark.slow
VALUES: list[Any] = [None, True, False, 0, 1, 20, -1, "top", "full", "simple", "path", {4: 2}]
RENAMED = [
    *(f"{modules[0]}.{name}" for modules, _, names in RENAMED_CLASSES for name in names),
    *(
        "profiler.SimpleProfiler",
        "plugins.HorovodPlugin",
        "callbacks.gpu_stats_monitor.GPUStatsMonitor",
    ),
    *(
        f"plugins.{name}PrecisionPlugin"
        for name in ("", "Double", "Half", "DeepSpeed", "Mixed", "XLA", "FSDP")
    ),
    *("plugins.BitsandbytesPrecisionPlugin", "plugins.TransformerEnginePrecisionPlugin"),
]


def trainer_arguments() -> set[str]:
    """Give the arguments of today's trainer."""
    from pytorch_lightning import Trainer

    return set(inspect.signature(Trainer.__init__).parameters) - {"self"}


def found(path: str) -> Any:
    """Import a class by its path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_what_a_rule_removes_is_no_argument_of_todays_trainer() -> None:
    assert not {*REMOVED_ARGUMENTS, *OLD_HARDWARE_KEYS} & trainer_arguments()
    assert set(CHANGED_ARGUMENTS) <= trainer_arguments()


@pytest.mark.parametrize("key", [*REMOVED_ARGUMENTS, *CHANGED_ARGUMENTS])
def test_what_a_rule_writes_is_an_argument_of_todays_trainer(key: str) -> None:
    rule = {**REMOVED_ARGUMENTS, **CHANGED_ARGUMENTS}[key]
    written = [today for value in VALUES if isinstance(today := rule.convert(value, {}), dict)]

    assert {
        place for today in written for place in today if "." not in place
    } <= trainer_arguments()
    for value in [value for today in written for value in today.values()]:
        if isinstance(value, dict) and "class_path" in value:
            assert set(value["init_args"]) <= set(
                inspect.signature(found(value["class_path"])).parameters
            )


@pytest.mark.parametrize("old", RENAMED)
def test_the_path_of_a_renamed_class_can_be_imported(old: str) -> None:
    today, _ = find_class(f"pytorch_lightning.{old}") or (None, "")
    assert today is not None
    assert callable(found(today))
    assert find_class(today) is None


# these still warn alone
@pytest.mark.parametrize("old", [old for old in REMOVED_CLASSES if "Bf16" not in old])
def test_a_class_that_is_gone_cannot_be_used(old: str) -> None:
    assert find_class(f"pytorch_lightning.{old}") == (None, REMOVED_CLASSES[old])
    try:
        cls = found(f"pytorch_lightning.{old}")
    except (ImportError, AttributeError):
        return
    with pytest.raises(NotImplementedError, match="has been removed"):
        cls()


@pytest.mark.parametrize("name", ["ModelCheckpoint", "EarlyStopping"])
def test_the_arguments_that_are_written_are_those_of_the_class(name: str) -> None:
    parameters = set(inspect.signature(found(f"pytorch_lightning.callbacks.{name}")).parameters)
    for key, rule in CLASS_ARGUMENTS[name].items():
        for value in ("folder/name", "auto", True, 3):
            keys = rule.convert(value, {})
            if isinstance(keys, dict):
                assert set(keys) <= parameters
                assert key == "mode" or key not in parameters
