"""Compare two runs of one training: metrics epoch by epoch, weights bit by bit. Loads torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightkit import runs
from lightkit.callbacks.checkpoint_io import read_checkpoint
from lightkit.cli.console import format_table
from lightkit.config import shown_path

__all__ = ["compare_runs", "format_comparison"]

_NOT_COMPARED = {"epoch", "epoch_seconds", "samples_per_s"}
_MAX_ROWS = 20


def compare_runs(run: runs.Run, again: runs.Run, *, is_trusting: bool = False) -> dict[str, Any]:
    """Compare metrics.csv, and the weights of last.ckpt and best.ckpt.

    Args:
        run: The first run.
        again: The second.
        is_trusting: Load checkpoints that hold more than tensors and plain values.

    Returns:
        Plain values, NaN among them. `equal`; `data`: the difference of the data, if any; `metrics`: each
        value that differs; `weights`: of each checkpoint the number of tensors, of those that differ, and the tensor
        that differs most and by how much: None where its two versions cannot be subtracted.

    Raises:
        ConfigError: If a checkpoint cannot be read.
    """
    old, new = ({int(row["epoch"]): row for row in runs.MetricsTable(each.metrics_path).rows} for each in (run, again))
    best = ((runs.read_json(run.summary_path) or {}).get("best") or {}).get("epoch")
    metrics = []
    for epoch in sorted({*old, *new}):
        before, after = old.get(epoch, {}), new.get(epoch, {})
        for name in sorted({*before, *after} - _NOT_COMPARED):
            if str(before.get(name)) != str(after.get(name)):  # as text, in which NaN equals NaN
                values = {"metric": name, "epoch": epoch, "before": before.get(name), "again": after.get(name)}
                metrics.append({**values, "is_best": epoch == best, "is_last": epoch == max(old, default=None)})
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
    was, now = ((manifest.get("data") or {}).get("fingerprint") for manifest in manifests)
    data = None if was in (None, now) else f"the fingerprint was {was}, is {now}"
    return {
        "schema": 1,
        "run": str(run.folder),
        "again": str(again.folder),
        "equal": not (metrics or data or any(each["num_different"] for each in weights)),
        "epochs": len(old),
        "data": data,
        "metrics": metrics,
        "weights": weights,
        "accelerator": (manifests[1].get("hardware") or {}).get("accelerator"),
    }


def format_comparison(found: Mapping[str, Any]) -> str:
    """Write one line where all is equal, else a table of the differences."""
    before, again = (shown_path(Path(found[name])) for name in ("run", "again"))
    if found["equal"]:
        weights = ", ".join(f"{each['num_tensors']} tensors of {each['checkpoint']}" for each in found["weights"])
        equal = f"{weights}, bit for bit" if weights else "there are no weights to compare"
        return f"reproduced: {again} equals {before} ({found['epochs']} epochs; {equal})"
    lines = [f"not reproduced: {again} differs from {before}"]
    lines += [f"data     {found['data']}"] if found["data"] else []
    metrics = sorted(found["metrics"], key=lambda each: not (each["is_best"] or each["is_last"]))[:_MAX_ROWS]
    rows = []
    for each in sorted(metrics, key=lambda each: (each["epoch"], each["metric"])):
        values = [each["before"], each["again"]]
        marks = ", ".join(mark for mark in ("best", "last") if each[f"is_{mark}"])
        epoch = f"{each['epoch']} ({marks})" if marks else str(each["epoch"])
        difference = "" if None in values else f"{values[1] - values[0]:+.3g}"
        rows.append((each["metric"], epoch, *("-" if x is None else f"{x:.8g}" for x in values), difference))
    lines.append(format_table(("metric", "epoch", "before", "again", "difference"), rows) if rows else "metrics  equal")
    if len(found["metrics"]) > _MAX_ROWS:
        lines.append(f"and {len(found['metrics']) - _MAX_ROWS} more")
    for each in found["weights"]:
        gap = "has another shape, or NaN"
        gap = gap if each["largest"] is None else f"by up to {each['largest']:.3g}"
        if not each["num_tensors"]:
            text = " is in one of the two only"
        elif not each["num_different"]:
            text = f": {each['num_tensors']} tensors are equal, bit for bit"
        else:
            text = f": {each['num_different']} of {each['num_tensors']} tensors differ, {each['tensor']} {gap}"
        lines.append(f"weights  {each['checkpoint']}{text}")
    if found["accelerator"] not in (None, "cpu"):
        lines.append("On a GPU only trainer.deterministic: true promises equal numbers.")
    return "\n".join(lines)


def _compare_weights(before: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    gaps: dict[str, float] = {}
    for key in dict.fromkeys([*before, *again]):
        one, other = before.get(key), again.get(key)
        if not (isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape):
            if type(one) is not type(other) or isinstance(one, Tensor) or one != other:
                gaps[key] = math.inf
        elif one.dtype != other.dtype or not _are_equal(one, other):
            wide = one.to(torch.complex128) - other.to(torch.complex128)  # which holds every type of number
            gaps[key] = float(wide.abs().nan_to_num(math.inf).max()) if wide.numel() else 0.0
    tensor = max(gaps, key=gaps.__getitem__, default=None)
    largest = None if tensor is None or math.isinf(gaps[tensor]) else gaps[tensor]
    return {"num_tensors": len(before), "num_different": len(gaps), "tensor": tensor, "largest": largest}


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.layout is not torch.strided or one.is_quantized:
        return torch.equal(one, other)
    return torch.equal(*(each.flatten().contiguous().view(torch.uint8) for each in (one, other)))  # NaN equals itself
