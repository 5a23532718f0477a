"""Compare two runs of one training: metrics epoch by epoch, weights bit by bit. Loads torch."""

from __future__ import annotations

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
    metrics = [
        {"metric": name, "epoch": epoch, "before": old.get(epoch, {}).get(name), "again": new.get(epoch, {}).get(name)}
        for epoch in sorted({*old, *new})
        for name in sorted({*old.get(epoch, {}), *new.get(epoch, {})} - _NOT_COMPARED)
    ]
    metrics = [each for each in metrics if str(each["before"]) != str(each["again"])]  # as text: NaN equals NaN
    weights = []
    with runs.trusting() if is_trusting else nullcontext():
        for name in ("last.ckpt", "best.ckpt"):
            if (run.checkpoints / name).is_file():
                states = [read_checkpoint(each.checkpoints / name)["state_dict"] for each in (run, again)]
                weights.append({"checkpoint": name, **_compare_weights(*states)})
    manifests = [runs.read_json(each.manifest_path) or {} for each in (run, again)]
    was, now = ((manifest.get("data") or {}).get("fingerprint") for manifest in manifests)
    data = None if was in (None, now) else f"the fingerprint was {was}, is {now}"
    is_equal = not (metrics or data or any(each["num_different"] for each in weights))
    found = {"schema": 2, "run": str(run.folder), "again": str(again.folder), "equal": is_equal, "epochs": len(old)}
    return {**found, "data": data, "metrics": metrics, "weights": weights}


def format_comparison(found: Mapping[str, Any]) -> str:
    """Write one line where all is equal, else the differences."""
    before, again = (shown_path(Path(found[name])) for name in ("run", "again"))
    if found["equal"]:
        weights = ", ".join(f"{each['num_tensors']} tensors of {each['checkpoint']}" for each in found["weights"])
        equal = f"{weights}, bit for bit" if weights else "there are no weights to compare"
        return f"reproduced: {again} equals {before} ({found['epochs']} epochs; {equal})"
    lines = [f"not reproduced: {again} differs from {before}"]
    lines += [f"data     {found['data']}"] if found["data"] else []
    columns = ("metric", "epoch", "before", "again")
    rows = [[str(each[column]) for column in columns] for each in found["metrics"][:_MAX_ROWS]]
    lines.append(format_table(columns, rows) if rows else "metrics  equal")
    lines += [f"and {len(found['metrics']) - _MAX_ROWS} more"] if len(found["metrics"]) > _MAX_ROWS else []
    for each in found["weights"]:
        text = f"weights  {each['checkpoint']}: {each['num_different']} of {each['num_tensors']} tensors differ"
        lines.append(f"{text}, {each['tensor']} by up to {each['largest']}" if each["num_different"] else text)
    return "\n".join([*lines, "On a GPU only trainer.deterministic: true promises equal numbers."])


def _compare_weights(before: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    gaps: dict[str, float | None] = {}
    for key in dict.fromkeys([*before, *again]):
        one, other = before.get(key), again.get(key)
        if not (isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape):
            if isinstance(one, Tensor) or isinstance(other, Tensor) or one != other:
                gaps[key] = None
        elif one.dtype != other.dtype or not torch.equal(_get_bytes(one), _get_bytes(other)):
            gaps[key] = float((one.to(torch.complex128) - other.to(torch.complex128)).abs().max())
    tensor = max(gaps, key=lambda key: gaps[key] or 0.0, default=None)
    largest = None if tensor is None else gaps[tensor]
    return {"num_tensors": len(before), "num_different": len(gaps), "tensor": tensor, "largest": largest}


def _get_bytes(tensor: Tensor) -> Tensor:
    return tensor.flatten().contiguous().view(torch.uint8)
