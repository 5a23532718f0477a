"""What a deep check has found out, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightkit.cli.deep.disk import Place
from lightkit.cli.deep.memory import Memory
from lightkit.config import shown_path
from lightkit.runs.disk import in_bytes

__all__ = ["Loop", "Report"]

_WORDS = {"train": "training", "val": "validation", "test": "test", "predict": "prediction"}


@dataclass(frozen=True)
class Loop:
    """One loop's batch.

    Args:
        seconds: Time that the batch took, loading included.
        batches: Number of batches of the whole loop; None where nobody knows.
        samples: Number of samples of the whole loop; None where nobody knows.
    """

    seconds: float
    batches: int | None = None
    samples: int | None = None


@dataclass
class Report:
    """What was built and seen.

    Args:
        stage: What was checked: `fit`, `validate`, `test` or `predict`.
        model: Name of the model's class.
        num_parameters: Number of its parameters.
        num_trained: Number of those that are trained.
        data: Name of the data's class.
        loops: The batches, by `train`, `val`, `test` or `predict`.
        metrics: Names of all metrics that were logged.
        places: Disks with checkpoints.
        memory: What one batch took.
        not_tried: What was left out, by its key.
        warnings: What may go wrong, and is no mistake.
    """

    stage: str
    model: str = ""
    num_parameters: int = 0
    num_trained: int = 0
    data: str = ""
    loops: dict[str, Loop] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    memory: Memory | None = None
    not_tried: Mapping[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def epoch_seconds(self) -> float | None:
        """What an epoch would take here if every batch took as long as the first, which is the slowest."""
        loops = [loop for name, loop in self.loops.items() if name in ("train", "val")]
        if "train" not in self.loops or any(loop.batches is None for loop in loops):
            return None
        return sum(loop.seconds * (loop.batches or 0) for loop in loops)

    def lines(self) -> list[str]:
        """Give a few plain lines."""
        parts = {
            "model": f"{self.model}, {self.num_parameters:,} parameters, {self.num_trained:,} of them trained",
            "data": ", ".join([self.data, *self._sizes()]),
            "batch": self._batch(),
            "metrics": ", ".join(self.metrics) or "none",
            "checkpoints": "; ".join(map(_disk_words, self.places)),
            "memory": self._memory(),
        }
        lines = [f"{name:12} {says}" for name, says in parts.items() if says]
        return lines + [f"{'not tried':12} {key}: {says}" for key, says in self.not_tried.items()]

    def fields(self) -> dict[str, Any]:
        """Give everything as plain values for JSON."""
        return {
            "stage": self.stage,
            "mistakes": [],
            "model": {"class": self.model, "parameters": self.num_parameters, "trained": self.num_trained},
            "data": {"class": self.data},
            "batches": {name: vars(loop) for name, loop in self.loops.items()},
            "epoch_seconds": self.epoch_seconds,
            "metrics": list(self.metrics),
            "checkpoints": [_disk_fields(place) for place in self.places],
            "memory": None if self.memory is None else _memory_fields(self.memory),
            "not_tried": dict(self.not_tried),
            "warnings": self.warnings,
        }

    def _sizes(self) -> list[str]:
        return [f"{_WORDS[name]} {_size(loop)}" for name, loop in self.loops.items() if loop.batches is not None]

    def _batch(self) -> str:
        took = [f"{_WORDS[name]} {loop.seconds:.2f} s" for name, loop in self.loops.items()]
        epoch = (
            f"; the first is the slowest, so an epoch takes less than {_duration(self.epoch_seconds)}"
            if self.epoch_seconds
            else ""
        )
        return f"the first of the data, on one CPU: {', '.join(took)}{epoch}" if took else "none: nothing is to be run"

    def _memory(self) -> str:
        if (memory := self.memory) is None:
            return ""
        many = f", {in_bytes(memory.needed_bytes)} in {memory.num_processes} processes"
        return (
            f"{in_bytes(memory.peak_bytes)} at most in this process on the CPU"
            f"{many if memory.num_processes > 1 else ''}; {in_bytes(memory.available_bytes)} to be had "
            f"(an estimate; {in_bytes(memory.state_bytes)} of it are the model and its optimizer's state)"
        )


def _size(loop: Loop) -> str:
    batches = "1 batch" if loop.batches == 1 else f"{loop.batches:,} batches"
    return batches if loop.samples is None else f"{loop.samples:,} samples in {batches}"


def _disk_words(place: Place) -> str:
    sizes = {kept.size_bytes for kept in place.kept}
    each = f" x {in_bytes(sizes.pop())}" if len(sizes) == 1 else f", {in_bytes(place.needed_bytes)} together"
    bound = "" if place.is_bounded else ", and more without end"
    return f"{place.count}{each}{bound} in {shown_path(place.folder)}; {in_bytes(place.free_bytes)} free"


def _disk_fields(place: Place) -> dict[str, Any]:
    return {
        "folder": str(place.folder),
        "count": place.count,
        "is_bounded": place.is_bounded,
        "size_bytes": max(kept.size_bytes for kept in place.kept),
        "needed_bytes": place.needed_bytes,
        "free_bytes": place.free_bytes,
    }


def _memory_fields(memory: Memory) -> dict[str, Any]:
    return {**vars(memory), "needed_bytes": memory.needed_bytes}


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
