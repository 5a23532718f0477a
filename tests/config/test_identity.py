"""Which keys of a config are in the identity of its model."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.config.identity import is_in_earlier_identity, select_identity

SLACK = {
    "callbacks.slack.class_path": "lightkit.callbacks.SlackNotifier",
    "callbacks.slack.init_args.webhook_url": "x",
}
FLOWERS = {"data.class_path": "Flowers"}


@pytest.mark.parametrize(
    "values",
    [
        {"run.wait_s": 1, "run.name": "n"},
        {"gate.min": 0.8, "gate.slices.roses": 0.7},
        {"gate": None},
        {"watchdog.factor": 3.0, "watchdog.floor_s": 9.0},
        {"launch.timeout_s": 99.0, "launch.slurm.time": "4:00:00", "launch.rendezvous": "a:1"},
        {"logger.csv.class_path": "lightkit.loggers.CSV", "trainer.logger": False},
        {"trainer.enable_progress_bar": False, "trainer.profiler": "simple"},
        SLACK,
        {"callbacks.mine.class_path": "SlackNotifier"},
        {"callbacks.slack": None},
        {"callbacks.stats.class_path": "lightning.pytorch.callbacks.DeviceStatsMonitor"},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_key_that_can_change_no_weight_is_not_in_the_identity(values: dict[str, Any]) -> None:
    assert select_identity({"seed_everything": 7, **values}) == {"seed_everything": 7}


@pytest.mark.parametrize(
    "values",
    [
        {"watchdog.on_nonfinite": "skip"},
        {"launch.processes": 2, "launch.threads": 1, "launch.nodes": 2},
        {"trainer.max_epochs": 3, "trainer.logger_of_mine": 1},
        {"callbacks.slack.class_path": "my.SlackNotifier"},
        {"callbacks.slack.class_path": "my.Own", "callbacks.slack.init_args.a": 1},
        {"callbacks.checkpoint": None},
        {"callbacks.mine": None},
        {"callbacks.lr_monitor.class_path": "pytorch_lightning.callbacks.LearningRateMonitor"},
        {"runner": 1, "model.run": 2, "gates.min": 3},
    ],
    ids=lambda values: next(iter(values)),
)
def test_any_other_key_is_in_the_identity(values: dict[str, Any]) -> None:
    assert select_identity(values) == values


@pytest.mark.parametrize(
    ("class_path", "is_exact"),
    [
        ("Flowers", True),
        ("lightkit.data.ImageFolder", True),
        ("lightkit.data.Table", False),
        ("my.Flowers", False),
    ],
)
def test_arguments_of_loading_are_in_the_identity_of_data_modules_whose_batches_depend_on_them(
    class_path: str, is_exact: bool
) -> None:
    values = {
        "data.class_path": class_path,
        "data.init_args.batch_size": 8,
        "data.init_args.num_workers": 2,
    }
    kept = {key: value for key, value in values.items() if key != "data.init_args.num_workers"}
    assert select_identity(values) == (kept if is_exact else values)


def test_the_identity_of_earlier_versions_is_known() -> None:
    values = {"run.name": "n", "gate.min": 1, "launch.timeout_s": 9.0, **SLACK, **FLOWERS}
    assert [key for key in values if is_in_earlier_identity(key, values)] == [*SLACK, *FLOWERS]
