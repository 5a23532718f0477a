"""Lines of the report that `lightkit check --deep` prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkit.config import shown_path
from lightkit.errors import format_count
from lightkit.runs.files import in_bytes

LOOPS = {"train": "training", "val": "validation", "test": "test", "predict": "prediction"}
"""Names of the loops in messages."""


def format_smoke_report(report: dict[str, Any]) -> list[str]:
    """Write a report as lines for people."""
    model = report["model"]
    memory = report["memory"]
    sizes = [report["data"]["class"]]
    took = []
    for name, loop in report["batches"].items():
        took.append(f"{LOOPS[name]} {loop['seconds']:.2f} s")
        if loop["batches"] is not None:
            samples = (
                "" if loop["samples"] is None else f"{format_count(loop['samples'], 'sample')} in "
            )
            sizes.append(
                f"{LOOPS[name]} {samples}{format_count(loop['batches'], 'batch', 'batches')}"
            )
    parts = {
        "model": (
            f"{model['class']}, {model['parameters']:,} parameters,"
            f" {model['trained']:,} of them trained"
        ),
        "data": ", ".join(sizes),
        "batch": (
            f"the first of the data, on one CPU: {', '.join(took)}"
            if took
            else "none: nothing is to be run"
        ),
        "metrics": ", ".join(report["metrics"]) or "none",
        "checkpoints": "; ".join(map(_format_disk, report["checkpoints"])),
        "memory": (
            f"{in_bytes(memory['needed_bytes'])} on the CPU, processes: {memory['num_processes']}"
            f" (an estimate); {in_bytes(memory['available_bytes'])} available"
        ),
        "gate": "" if report["gate"] is None else _format_gate(report["gate"]),
    }
    lines = [f"{name:12} {text}" for name, text in parts.items() if text]
    return lines + [
        f"{'not tried':12} {key}: {reason}" for key, reason in report["not_tried"].items()
    ]


def _format_disk(disk: Mapping[str, Any]) -> str:
    """Write what the checkpoints of a callback take of a disk, and what is free on it."""
    more = "" if disk["is_bounded"] else ", and more without end"
    return (
        f"{disk['count']} x {in_bytes(disk['size_bytes'])}{more} in"
        f" {shown_path(Path(disk['folder']))}; {in_bytes(disk['free_bytes'])} free"
    )


def _format_gate(gate: Mapping[str, Any]) -> str:
    """Write the smallest drop that the samples of a gate can show."""
    shown = "none" if gate["smallest_drop"] is None else f"{gate['smallest_drop']:.2g}"
    samples = format_count(gate["samples"], "sample")
    return f"the smallest drop of {gate['metric']} that {samples} can show: {shown}"
