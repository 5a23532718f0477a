"""Ways to compute a training step, which of them are tried, and what a trial of one has shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

__all__ = ["Trial", "Variant", "check_losses", "list_formats_and_precisions", "list_single_changes"]

_FIRST_TOLERANCE = 0.01
"""Greatest difference of the first step's loss from float32's, as a share of that: the weights are still the same.

Seen of bf16-mixed on photos, with ResNet-18, MobileNetV3-small and `small_cnn`: up to 0.0002.
"""
_TOLERANCE = 0.15
"""The same for the steps after it, whose weights differ by what training has made of the rounding.

Seen of bf16-mixed in four steps of AdamW from random weights on photos: 0.002 to 0.004 for `small_cnn` and
MobileNetV3-small, 0.006 to 0.051 for ResNet-18.
"""
_NOISE = 0.03  # gain that does not count, as a share


@dataclass(frozen=True)
class Variant:
    """A way to compute training steps.

    Args:
        precision: Lightning's word.
        memory_format: Of the weights of convolutions.
        compile: Whether the model's layers go through torch.compile.
        tf32: Whether matrix products on CUDA round float32 to TensorFloat-32; None: as torch has it.
        fused: Whether the optimizer updates all parameters in one kernel; None: as the optimizer has it.
        threads: Intra-op threads of the process; None: as torch has it.
        num_workers: Argument of the data, in a trial with the loader itself; None: batches that are held in memory.
    """

    precision: str = "32-true"
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compile: bool = False
    tf32: bool | None = None
    fused: bool | None = None
    threads: int | None = None
    num_workers: int | str | None = None

    def __str__(self) -> str:
        words = [self.precision, self.memory_format]
        words += ["compiled"] * self.compile + ["TF32"] * bool(self.tf32) + ["fused"] * bool(self.fused)
        words += [] if self.threads is None else [f"{self.threads} thread{'s' * (self.threads != 1)}"]
        return ", ".join([*words, *([] if self.num_workers is None else [f"num_workers {self.num_workers}"])])

    def changes_from(self, other: Variant) -> dict[str, Any]:
        """Return the fields in which it differs from another variant."""
        return {one.name: vars(self)[one.name] for one in fields(self) if vars(self)[one.name] != vars(other)[one.name]}


@dataclass
class Trial:
    """A short fit with one variant.

    Args:
        variant: What was tried.
        times: Seconds of each timed step.
        losses: Of the first steps.
        batch_size: Samples of a batch; None where nothing tells.
        refused: Why it cannot be chosen; None where it can.
    """

    variant: Variant
    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    batch_size: int | None = None
    refused: str | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a step: the median; with a loader the mean, since its batches come in bursts."""
        if not self.times:
            return math.inf
        return statistics.median(self.times) if self.variant.num_workers is None else statistics.fmean(self.times)

    def is_faster_than(self, other: Trial) -> bool:
        """Tell whether the usual step and the fastest, which other programs disturb least, are faster than noise is."""
        if self.refused is not None or not self.times:
            return False
        share = 1 - _NOISE
        if self.variant.num_workers is not None:
            return self.step_s < share * other.step_s
        return self.step_s < share * other.step_s and min(self.times) < share * min(other.times, default=math.inf)


def check_losses(losses: Sequence[float], reference: Sequence[float]) -> str | None:
    """Say why losses are not those of the reference within the tolerance; None where they are.

    Args:
        losses: Of the first steps of a variant.
        reference: Of the same steps in float32.
    """
    for step, (loss, other) in enumerate(zip(losses, reference, strict=False)):
        accepted = _TOLERANCE if step else _FIRST_TOLERANCE
        gap = abs(loss - other) / max(abs(other), 1e-6)
        if not gap <= accepted:  # not `>`, which NaN would pass
            return (
                f"its loss of step {step + 1} is {loss:.4g}, float32's is {other:.4g}: {accepted:.0%} off is accepted"
            )
    return None


def list_formats_and_precisions(
    base: Variant, keys: Collection[str], *, lower_precision: str | None, has_convolutions: bool
) -> Iterator[Variant]:
    """List memory formats and precisions: together first, for with many models one gains only beside the other.

    Args:
        base: What `fit` does.
        keys: Fields that may change.
        lower_precision: Mixed precision of the device; None where it has none.
        has_convolutions: Whether the model has weights that a memory format is for.
    """
    formats = [base.memory_format]
    if "memory_format" in keys and has_convolutions:
        formats.insert(0, "contiguous" if base.memory_format == "channels_last" else "channels_last")
    precisions: list[str] = [base.precision]
    if "precision" in keys:
        others = [one for one in (lower_precision, "32-true") if one not in (None, base.precision)]
        precisions = [*others, base.precision]
    for precision in precisions:
        for memory_format in formats:
            yield replace(base, precision=precision, memory_format=memory_format)


def list_single_changes(keys: Collection[str], *, device: str, threads: Sequence[int]) -> Iterator[dict[str, Any]]:
    """List changes to the best so far, one after the other.

    Args:
        keys: Fields that may change.
        device: Type of the device.
        threads: Numbers of threads to try.
    """
    if "fused" in keys:
        yield {"fused": True}
    if "tf32" in keys and device == "cuda":
        yield {"tf32": True}
    if "compile" in keys:
        yield {"compile": True}
    if "threads" in keys and device == "cpu":
        yield from ({"threads": number} for number in threads)
