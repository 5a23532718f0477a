"""Compare two runs of one training: metrics epoch by epoch, weights bit by bit. Loads torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightkit import runs
from lightkit.callbacks.checkpoint_io import read_checkpoint
from lightkit.cli.console import format_table
from lightkit.config import shown_path
from lightkit.runs.files import finite

__all__ = ["RunComparison", "compare_runs"]

_NOT_COMPARED = {"epoch", "epoch_seconds", "samples_per_s"}
_MAX_ROWS = 20


@dataclass(frozen=True)
class RunComparison:
    """Differences between two runs.

    Args:
        run: The first run.
        again: The second.
        num_epochs: Epochs of the first.
        metrics: Each value that differs: `metric`, `epoch`, `before`, `again`, `is_best`, `is_last`.
        weights: Of each checkpoint: `checkpoint`, `num_tensors`, `num_different`, `tensor`, `largest`: the tensor that
            differs most and by how much; None where its two versions cannot be subtracted.
        data: Difference of the data's fingerprints, if any.
        is_on_cpu: Whether the second was trained on CPU.
    """

    run: runs.Run
    again: runs.Run
    num_epochs: int
    metrics: list[dict[str, Any]]
    weights: list[dict[str, Any]]
    data: str | None = None
    is_on_cpu: bool = True

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.metrics or self.data or any(each["num_different"] for each in self.weights))

    def fields(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {
            "schema": 1,
            "run": str(self.run.folder),
            "again": str(self.again.folder),
            "equal": self.is_equal,
            "epochs": self.num_epochs,
            "data": self.data,
            "metrics": [finite(each) for each in self.metrics],
            "weights": [finite(each) for each in self.weights],
        }

    def text(self) -> str:
        """Write one line where all is equal, else a table of the differences."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        before, again = shown_path(self.run.folder), shown_path(self.again.folder)
        if self.is_equal:
            weights = ", ".join(f"{each['num_tensors']} tensors of {each['checkpoint']}" for each in self.weights)
            equal = f"{weights}, bit for bit" if weights else "there are no weights to compare"
            yield f"reproduced: {again} equals {before} ({self.num_epochs} epochs; {equal})"
            return
        yield f"not reproduced: {again} differs from {before}"
        if self.data:
            yield f"data     {self.data}"
        if self.metrics:
            shown = sorted(self.metrics, key=lambda each: not (each["is_best"] or each["is_last"]))[:_MAX_ROWS]
            shown.sort(key=lambda each: (each["epoch"], each["metric"]))
            yield format_table(("metric", "epoch", "before", "again", "difference"), [_cells(each) for each in shown])
        else:
            yield "metrics  equal"
        if len(self.metrics) > _MAX_ROWS:
            yield f"and {len(self.metrics) - _MAX_ROWS} more"
        for each in self.weights:
            gap = "has another form" if each["largest"] is None else f"by up to {each['largest']:.3g}"
            if not each["num_tensors"]:
                text = " is in one of the two only"
            elif not each["num_different"]:
                text = f": {each['num_tensors']} tensors are equal, bit for bit"
            else:
                text = f": {each['num_different']} of {each['num_tensors']} tensors differ, {each['tensor']} {gap}"
            yield f"weights  {each['checkpoint']}{text}"
        if not self.is_on_cpu:
            yield "On a GPU only trainer.deterministic: true promises equal numbers."


def compare_runs(run: runs.Run, again: runs.Run, *, is_trusting: bool = False) -> RunComparison:
    """Compare metrics.csv, and the weights of last.ckpt and best.ckpt.

    Args:
        run: The first run.
        again: The second.
        is_trusting: Load checkpoints that hold more than tensors and plain values.

    Raises:
        ConfigError: If a checkpoint cannot be read.
    """
    old, new = ({int(row["epoch"]): row for row in runs.MetricsTable(each.metrics_path).rows} for each in (run, again))
    best = ((runs.read_json(run.summary_path) or {}).get("best") or {}).get("epoch")
    last = max(old, default=None)
    metrics = []
    for epoch in sorted({*old, *new}):
        before, after = old.get(epoch, {}), new.get(epoch, {})
        for name in sorted({*before, *after} - _NOT_COMPARED):
            if str(before.get(name)) != str(after.get(name)):  # as text, in which NaN equals NaN
                values = {"metric": name, "epoch": epoch, "before": before.get(name), "again": after.get(name)}
                metrics.append({**values, "is_best": epoch == best, "is_last": epoch == last})
    weights = []
    with runs.trusting() if is_trusting else nullcontext():
        for name in ("last.ckpt", "best.ckpt"):
            paths = [each.checkpoints / name for each in (run, again)]
            if paths[0].is_file() and paths[1].is_file():
                states = [read_checkpoint(path)["state_dict"] for path in paths]
                weights.append({"checkpoint": name, **_compare_weights(*states)})
            elif paths[0].is_file():
                nothing = {"num_tensors": 0, "num_different": 1, "tensor": None, "largest": None}
                weights.append({"checkpoint": name, **nothing})
    manifests = [runs.read_json(each.manifest_path) or {} for each in (run, again)]
    data = [(manifest.get("data") or {}).get("fingerprint") for manifest in manifests]
    return RunComparison(
        run,
        again,
        len(old),
        metrics,
        weights,
        data=None if data[0] in (None, data[1]) else f"the fingerprint was {data[0]}, is {data[1]}",
        is_on_cpu=(manifests[1].get("hardware") or {}).get("accelerator") in (None, "cpu"),
    )


def _compare_weights(before: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    gaps: dict[str, float | None] = {}
    for key in dict.fromkeys([*before, *again]):
        one, other = before.get(key), again.get(key)
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
            if type(one) is not type(other) or one != other:
                gaps[key] = None
        elif not _are_equal(one, other):
            wide = torch.complex128 if one.is_complex() else torch.float64
            can_subtract = one.shape == other.shape and one.numel()
            gaps[key] = float((one.to(wide) - other.to(wide)).abs().max()) if can_subtract else None
    worst = {key: math.inf if gap is None or math.isnan(gap) else gap for key, gap in gaps.items()}
    tensor = max(worst, key=lambda key: worst[key], default=None)
    largest = None if tensor is None else gaps[tensor]
    return {"num_tensors": len(before), "num_different": len(gaps), "tensor": tensor, "largest": largest}


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.layout is not torch.strided or one.is_quantized:
        return torch.equal(one, other)
    return torch.equal(*(each.flatten().contiguous().view(torch.uint8) for each in (one, other)))  # NaN equals itself


def _cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    before, again = each["before"], each["again"]
    marks = [mark for mark in ("best", "last") if each[f"is_{mark}"]]
    epoch = f"{each['epoch']}{' (' + ', '.join(marks) + ')' if marks else ''}"
    numbers = ("-" if value is None else f"{value:.8g}" for value in (before, again))
    return each["metric"], epoch, *numbers, "" if None in (before, again) else f"{again - before:+.3g}"
