"""The values that a config itself has of the keys that its sweep searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.sweep_check import read_own_values, read_plan
from lightkit.config import resolve


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("optimizer: AdamW\n", {"optimizer.weight_decay": 0.01}),
        (
            "optimizer: {class_path: AdamW, weight_decay: 0.03}\n",
            {"optimizer.weight_decay": 0.03},
        ),
        ("", {}),
    ],
    ids=["default-of-the-class", "written", "no-class"],
)
def test_a_searched_argument_has_the_value_of_the_config_or_the_default_of_its_class(
    optimizer: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    text = (
        f"{optimizer}sweep:\n  metric: val/loss\n  mode: min\n  trials: 2\n"
        "  space: {optimizer.weight_decay: {log: [0.001, 0.1]}}\n"
    )
    (tmp_path / "c.yaml").write_text(text)
    resolved = resolve([tmp_path / "c.yaml"], environ={})
    assert read_own_values(resolved, read_plan(resolved).space) == expected
