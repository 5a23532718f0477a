"""Two runs are compared by their metrics, epoch by epoch, and by their weights, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit import runs
from lightkit.commands.reproduce import compare_runs, format_comparison


def made(
    root: Path, name: str, rows: list[dict[str, float]], weights: dict[str, Any], **manifest: Any
) -> runs.Run:
    run = runs.create(root, name)
    table = runs.MetricsTable(run.metrics_path)
    for epoch, row in enumerate(rows):
        table.record(epoch, epoch + 1, row)
    run.checkpoints.mkdir()
    content = {
        "state_dict": weights,
        "epoch": 0,
        "global_step": 1,
        "pytorch-lightning_version": "2.6.6",
    }
    torch.save(content, run.checkpoints / "last.ckpt")
    runs.write_json(run.summary_path, {"status": "done", "best": {"epoch": 0}})
    runs.write_json(run.manifest_path, {"hardware": {"accelerator": "cpu"}, **manifest})
    return run


ROWS = [
    {"loss": 1.0, "samples_per_s": 5.0},
    {"loss": float("nan"), "acc": 0.5, "samples_per_s": 6.0},
]
WEIGHTS = {
    "a": torch.tensor([1.0, float("nan")]),
    "b": torch.tensor(3),
    "half": torch.ones(2, dtype=torch.bfloat16),
}


def test_equal_runs_are_equal_whatever_they_took(tmp_path: Path) -> None:
    slower = [{**row, "samples_per_s": 1.0} for row in ROWS]
    found = compare_runs(
        made(tmp_path, "one", ROWS, WEIGHTS), made(tmp_path, "again", slower, WEIGHTS)
    )
    assert found["equal"] is True
    assert format_comparison(found).endswith("(2 epochs; 3 tensors of last.ckpt, bit for bit)")


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({**WEIGHTS, "b": torch.tensor(5)}, "1 of 3 tensors differ, b by up to 2.0"),
        ({**WEIGHTS, "a": torch.tensor([1.0, 2.0])}, "1 of 3 tensors differ, a by up to nan"),
        ({**WEIGHTS, "b": torch.tensor(3.0)}, "1 of 3 tensors differ, b by up to 0.0"),
        ({**WEIGHTS, "b": torch.ones(2)}, "1 of 3 tensors differ, b by up to None"),
        ({**WEIGHTS, "more": torch.ones(2)}, "1 of 3 tensors differ, more by up to None"),
        (
            {**WEIGHTS, "half": torch.tensor([1.0, 1.0078125], dtype=torch.bfloat16)},
            "half by up to 0.00781",
        ),
    ],
    ids=["value", "nan", "dtype", "shape", "added", "bfloat16"],
)
def test_weights_that_differ_in_a_bit_are_reported(
    tmp_path: Path, weights: dict[str, Any], says: str
) -> None:
    found = compare_runs(
        made(tmp_path, "one", ROWS, WEIGHTS), made(tmp_path, "again", ROWS, weights)
    )
    assert found["equal"] is False
    assert says in format_comparison(found)
    assert "metrics  equal" in format_comparison(found)


def test_metrics_that_differ_are_a_table(tmp_path: Path) -> None:
    other = [{"loss": 1.25}, {"loss": float("nan"), "acc": 0.75}, {"loss": 0.0}]
    found = compare_runs(
        made(tmp_path, "one", ROWS, WEIGHTS), made(tmp_path, "again", other, WEIGHTS)
    )
    lines = [line.split() for line in format_comparison(found).splitlines()]
    assert ["loss", "0", "1.0", "1.25"] in lines
    assert ["acc", "1", "0.5", "0.75"] in lines
    assert ["loss", "2", "None", "0.0"] in lines
    assert "weights  last.ckpt: 0 of 3 tensors differ" in format_comparison(found)
    assert found["equal"] is False


def test_other_data_is_a_difference_even_where_the_numbers_agree(tmp_path: Path) -> None:
    both = [
        made(tmp_path, name, ROWS, WEIGHTS, data={"fingerprint": name}) for name in ("one", "again")
    ]
    assert "the fingerprint was one, is again" in format_comparison(compare_runs(*both))
