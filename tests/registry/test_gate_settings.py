"""The config's `gate` block: what is wrong in it is told with its place, without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config import resolve, split_arguments
from lightkit.config.loader import Resolved
from lightkit.errors import ConfigError
from lightkit.registry.gate import GateSettings, read_gate, split_of


def resolved(folder: Path, gate: str, *flags: str) -> Resolved:
    """A config file with a gate block, and flags on top."""
    (folder / "job.yaml").write_text(f"gate: {gate}\n", encoding="utf-8")
    arguments = split_arguments(["-c", str(folder / "job.yaml"), *flags], options={})
    return resolve([*map(Path, arguments.files)], flags=arguments.flags, environ={})


def test_what_flags_say_is_read_as_numbers_on_top_of_the_file(tmp_path: Path) -> None:
    config = resolved(
        tmp_path,
        "{metric: test/accuracy, min: 0.8, drift: {window: 5.0, max_drop: 0.03}}",
        "--gate.min=0.7",
        "--gate.slices.roses=0.5",
        "--gate.baseline=3",
    )
    assert read_gate(config) == GateSettings(
        "test/accuracy", min=0.7, baseline="3", slices={"roses": 0.5}, drift={"window": 5.0, "max_drop": 0.03}
    )


def test_no_block_judges_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("run: {name: a}\n", encoding="utf-8")
    assert read_gate(resolve([tmp_path / "job.yaml"], environ={})) == GateSettings()


@pytest.mark.parametrize(
    ("gate", "says", "places"),
    [
        ("3", "gate: expected a mapping", 1),
        ("{metrik: a}", "gate.metrik: there is no such key; did you mean 'metric'?", 1),
        ("{metric: train/accuracy}", "gate.metric: expected a metric of the test or the validation split", 1),
        ("{metric: test/a, mode: most}", "gate.mode: expected max or min, got 'most'", 1),
        ("{metric: test/a, min: high}", "gate.min: expected a number, got 'high'", 1),
        ("{metric: test/a, min: .nan}", "gate.min: expected a number, got nan", 1),
        ("{metric: test/a, min: true}", "gate.min: expected a number, got True", 1),
        ("{metric: test/a, max_drop: -0.1}", "gate.max_drop: expected a number of at least 0, got -0.1", 1),
        ("{metric: test/a, slices: [roses]}", "gate.slices: expected numbers by class", 1),
        ("{metric: test/a, slices: {roses: x}}", "gate.slices: expected numbers by class", 1),
        ("{metric: test/a, drift: 3}", "gate.drift: expected a window and a drop", 1),
        ("{metric: test/a, drift: {windw: 3, max_drop: 1}}", "gate.drift.windw: there is no such key; did you mean", 1),
        ("{metric: test/a, drift: {window: 0, max_drop: 1}}", "gate.drift.window: expected a number of promoted", 1),
        ("{metric: test/a, drift: {window: 1.5, max_drop: 1}}", "gate.drift.window: expected a number of promoted", 1),
        ("{metric: test/a, drift: {window: 2, max_drop: -1}}", "gate.drift.max_drop: expected a number of at least", 1),
        ("{metric: test/a, drift: {window: 2}}", "gate.drift: max_drop is missing", 1),
        ("{metric: test/a, min: 0.9, max: 0.5}", "gate.min: 0.9 is above gate.max, which is 0.5", 2),
        ("{metric: test/a, max_drop: 0.1, baseline: null}", "gate.max_drop: there is nothing that the model could", 2),
        ("{min: 0.5}", "gate.min: of which metric?", 1),
        ("{slices: {roses: 0.7}}", "gate.slices: of which metric?", 1),
        ("{metric: null, drift: {window: 2, max_drop: 1}}", "gate.drift: of which metric?", 1),
    ],
    ids=["no mapping", "key", "train", "mode", "text", "nan", "bool", "drop", "slices", "slice", "drift", "drift key",
         "window", "part of a window", "drift drop", "half a drift", "min above max", "no baseline", "no metric",
         "slices of no metric", "drift of no metric"],
)  # fmt: skip
def test_a_mistake_is_told_with_its_places(tmp_path: Path, gate: str, says: str, places: int) -> None:
    with pytest.raises(ConfigError) as told:
        read_gate(resolved(tmp_path, gate))
    assert str(told.value).startswith(says)
    assert str(told.value).count("job.yaml:1:") == places


@pytest.mark.parametrize(
    ("metric", "split"),
    [("test/accuracy", "test"), ("val/loss", "val"), ("val_loss", "val"), ("valid/f1", "val"), ("f1", "test")],
)
def test_the_first_part_of_a_metric_names_the_split(metric: str, split: str) -> None:
    assert split_of(metric) == split
