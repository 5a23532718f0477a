"""Two runs that should be one training: their metrics epoch by epoch, and their weights bit by bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lightkit import runs
from lightkit.callbacks.checkpoint_reading import read_checkpoint
from lightkit.cli.tables import table_lines
from lightkit.config import shown_path
from lightkit.runs.files import finite

__all__ = ["MetricDifference", "RunComparison", "WeightDifference", "compared"]

_CHANGES_WITH_TIME = ("epoch_seconds", "samples_per_s")
_MOST_ROWS = 20


@dataclass(frozen=True)
class MetricDifference:
    """A metric of an epoch that is not what it was.

    Args:
        metric: Its column.
        epoch: Number of the epoch.
        before: Of the first run; None where it has none.
        again: Of the second, likewise.
        is_best: Whether the first run's best checkpoint is of this epoch.
        is_last: Whether the epoch is the first run's last.
    """

    metric: str
    epoch: int
    before: float | None
    again: float | None
    is_best: bool = False
    is_last: bool = False


@dataclass(frozen=True)
class WeightDifference:
    """What of a checkpoint's weights is not what it was.

    Args:
        checkpoint: Name of the file.
        num_tensors: Tensors of the first run's.
        num_different: Tensors that differ in a bit, in shape, or are in one of the two only.
        tensor: Name of the one that differs most.
        largest: The largest difference of two of its elements; None where they cannot be subtracted.
    """

    checkpoint: str
    num_tensors: int
    num_different: int
    tensor: str | None = None
    largest: float | None = None


@dataclass(frozen=True)
class RunComparison:
    """What was found.

    Args:
        run: The first run.
        again: The second.
        num_epochs: Epochs of the first.
        metrics: All that differ.
        weights: For each checkpoint that both have.
        data: What is wrong with the data, where only the training could tell.
        is_on_cpu: Whether the second was trained on CPU.
    """

    run: runs.Run
    again: runs.Run
    num_epochs: int
    metrics: tuple[MetricDifference, ...]
    weights: tuple[WeightDifference, ...]
    data: str | None = None
    is_on_cpu: bool = True

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.metrics or self.data or any(each.num_different for each in self.weights))

    def described(self) -> dict[str, Any]:
        """Give it for programs."""
        return {
            "schema": 1,
            "run": str(self.run.folder),
            "again": str(self.again.folder),
            "equal": self.is_equal,
            "epochs": self.num_epochs,
            "data": self.data,
            "metrics": [finite(asdict(each)) for each in self.metrics],
            "weights": [finite(asdict(each)) for each in self.weights],
        }

    def text(self) -> str:
        """Give it for people: one line where all is equal, else a table of what is not."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        before, again = shown_path(self.run.folder), shown_path(self.again.folder)
        if self.is_equal:
            weights = ", ".join(f"{each.num_tensors} tensors of {each.checkpoint}" for each in self.weights)
            equal = f"{weights}, bit for bit" if weights else "there are no weights to compare"
            yield f"reproduced: {again} equals {before} ({self.num_epochs} epochs; {equal})"
            return
        yield f"not reproduced: {again} differs from {before}"
        if self.data:
            yield f"data     {self.data}"
        yield from self._table()
        yield from (_line_of(each) for each in self.weights)
        if not self.is_on_cpu:
            yield "On a GPU only trainer.deterministic: true promises equal numbers."

    def _table(self) -> Iterator[str]:
        if not self.metrics:
            yield "metrics  equal"
            return
        shown = sorted(self.metrics, key=lambda each: not (each.is_best or each.is_last))[:_MOST_ROWS]
        rows = [_row_of(each) for each in sorted(shown, key=lambda each: (each.epoch, each.metric))]
        yield from table_lines(("metric", "epoch", "before", "again", "difference"), rows)
        if len(self.metrics) > _MOST_ROWS:
            yield f"and {len(self.metrics) - _MOST_ROWS} more"


def compared(run: runs.Run, again: runs.Run, *, is_trusting: bool = False) -> RunComparison:
    """Compare metrics.csv, and the weights of last.ckpt and best.ckpt.

    Args:
        run: The first run.
        again: The second.
        is_trusting: Load checkpoints that hold more than tensors and plain values.

    Raises:
        ConfigError: If a checkpoint cannot be read.
    """
    tables = [{int(row["epoch"]): row for row in runs.MetricsTable(each.metrics_path).rows} for each in (run, again)]
    best = ((runs.read_json(run.summary_path) or {}).get("best") or {}).get("epoch")
    with runs.trusting() if is_trusting else nullcontext():
        weights = tuple(_weights(run, again))
    manifests = [runs.read_json(each.manifest_path) or {} for each in (run, again)]
    return RunComparison(
        run,
        again,
        num_epochs=len(tables[0]),
        metrics=tuple(_metric_differences(tables[0], tables[1], best=best)),
        weights=weights,
        data=_data_difference(*manifests),
        is_on_cpu=(manifests[1].get("hardware") or {}).get("accelerator") in (None, "cpu"),
    )


def _metric_differences(
    before: Mapping[int, Mapping[str, float]], again: Mapping[int, Mapping[str, float]], *, best: int | None
) -> Iterator[MetricDifference]:
    last = max(before, default=None)
    for epoch in sorted({*before, *again}):
        rows = before.get(epoch, {}), again.get(epoch, {})
        for name in sorted({*rows[0], *rows[1]} - {"epoch", *_CHANGES_WITH_TIME}):
            values = rows[0].get(name), rows[1].get(name)
            if not _is_same(*values):
                yield MetricDifference(name, epoch, *values, is_best=epoch == best, is_last=epoch == last)


def _is_same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other))


def _weights(run: runs.Run, again: runs.Run) -> Iterator[WeightDifference]:
    for name in ("last.ckpt", "best.ckpt"):
        paths = [each.checkpoints / name for each in (run, again)]
        if not paths[0].is_file():
            continue
        if not paths[1].is_file():
            yield WeightDifference(name, 0, 1)
            continue
        yield _weight_difference(name, *(read_checkpoint(path)["state_dict"] for path in paths))


def _weight_difference(name: str, before: Mapping[str, Any], again: Mapping[str, Any]) -> WeightDifference:
    gaps = {
        key: _gap(before.get(key), again.get(key))
        for key in dict.fromkeys([*before, *again])
        if not _are_equal(before.get(key), again.get(key))
    }
    most = max(gaps, key=lambda key: _or_infinite(gaps[key]), default=None)
    largest = None if most is None else gaps[most]
    return WeightDifference(name, len(before), len(gaps), most, largest)


def _or_infinite(gap: float | None) -> float:
    return math.inf if gap is None or math.isnan(gap) else gap


def _are_equal(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return type(one) is type(other) and bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.layout is not torch.strided or one.is_quantized:
        return torch.equal(one, other)
    return torch.equal(*(each.flatten().contiguous().view(torch.uint8) for each in (one, other)))  # NaN is itself here


def _gap(one: Any, other: Any) -> float | None:
    """Give the largest difference of two elements; None where the two cannot be subtracted."""
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.shape != other.shape or not one.numel():
        return None
    return (
        float((one.double() - other.double()).abs().max()) if not one.is_complex() else float((one - other).abs().max())
    )


def _data_difference(before: Mapping[str, Any], again: Mapping[str, Any]) -> str | None:
    found = [(manifest.get("data") or {}).get("fingerprint") for manifest in (before, again)]
    return None if found[0] is None or found[0] == found[1] else f"the fingerprint was {found[0]}, is {found[1]}"


def _row_of(each: MetricDifference) -> tuple[str, str, str, str, str]:
    gap = "" if each.before is None or each.again is None else f"{each.again - each.before:+.3g}"
    marks = [word for word, holds in (("best", each.is_best), ("last", each.is_last)) if holds]
    epoch = f"{each.epoch + 1}{' (' + ', '.join(marks) + ')' if marks else ''}"
    numbers = ["-" if value is None else f"{value:.8g}" for value in (each.before, each.again)]
    return each.metric, epoch, *numbers, gap  # type: ignore[return-value]


def _line_of(each: WeightDifference) -> str:
    if not each.num_tensors:
        return f"weights  {each.checkpoint} is in one of the two only"
    if not each.num_different:
        return f"weights  {each.checkpoint}: {each.num_tensors} tensors are equal, bit for bit"
    gap = "has another form" if each.largest is None else f"by up to {each.largest:.3g}"
    return f"weights  {each.checkpoint}: {each.num_different} of {each.num_tensors} tensors differ, {each.tensor} {gap}"
