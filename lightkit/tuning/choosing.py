"""Which of the measured variants is taken: the fastest whose losses stay near those of the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lightkit.tuning.variant import Measurement

__all__ = ["FIRST_TOLERANCE", "NOISE", "TOLERANCE", "choose", "deviation_of", "judged"]

FIRST_TOLERANCE = 0.01
"""Greatest difference of the first step's loss from float32's, as a share of that: the weights are still the same.

Seen of bf16-mixed on photos, with ResNet-18, MobileNetV3-small and `small_cnn`: up to 0.0002.
"""
TOLERANCE = 0.15
"""The same for the steps after it, whose weights differ by what training has made of the rounding.

Seen of bf16-mixed in four steps of AdamW from random weights on photos: 0.002 to 0.004 for `small_cnn` and
MobileNetV3-small, 0.006 to 0.051 for ResNet-18, in which weights that differ by one part in a million already part the
losses by 0.003. Gradients that overflow, or are computed wrongly, are further off.
"""
NOISE = 0.03
"""Gain that is taken for noise, as a share."""


def deviation_of(losses: Sequence[float], reference: Sequence[float]) -> float | None:
    """Give the greatest difference of losses from those of the same steps, as a share; None where there are none."""
    shares = [
        abs(loss - other) / max(abs(other), 1e-6) if math.isfinite(loss) and math.isfinite(other) else math.inf
        for loss, other in zip(losses, reference, strict=False)
    ]
    return max(shares, default=None)


def judged(measured: Measurement, reference: Sequence[float]) -> Measurement:
    """Give the measurement with its deviation, refused where a step's is beyond `FIRST_TOLERANCE` or `TOLERANCE`.

    Args:
        measured: Of a variant other than the baseline.
        reference: The baseline's losses.
    """
    if measured.refused is not None:
        return measured
    deviation = deviation_of(measured.losses, reference)
    if deviation is None:
        lossy = measured.variant.precision != "32-true"
        return replace(measured, refused="no loss to compare with float32's" if lossy else None)
    if math.isinf(deviation):
        return replace(measured, deviation=None, refused="its loss, or the baseline's, is not finite")
    return replace(measured, deviation=deviation, refused=_too_far(measured.losses, reference))


def _too_far(losses: Sequence[float], reference: Sequence[float]) -> str | None:
    """Say which step's loss is the first that differs by more than is accepted."""
    for step, (loss, other) in enumerate(zip(losses, reference, strict=False)):
        accepted = TOLERANCE if step else FIRST_TOLERANCE
        off = deviation_of([loss], [other]) or 0.0
        if off > accepted:
            return (
                f"its loss of step {step + 1} is {loss:.4g} where the baseline's is {other:.4g}: {off:.1%} off, "
                f"{accepted:.0%} is accepted"
            )
    return None


def choose(measurements: Sequence[Measurement], *, noise: float = NOISE) -> Measurement:
    """Give the fastest that is not refused; the first, which is the baseline, unless another is clearly faster.

    Clearly: by more than the noise in the median step, and in the fastest step as well, which other programs on the
    machine can only have slowed down.

    Args:
        measurements: As they were taken.
        noise: Gain that does not count, as a share.
    """
    baseline = measurements[0]
    best = baseline
    for one in measurements[1:]:
        if one.refused is None and _is_faster(one, baseline, noise) and _is_faster(one, best, 0.0):
            best = one
    return best


def _is_faster(one: Measurement, other: Measurement, noise: float) -> bool:
    if one.step_s is None or one.least_s is None or other.step_s is None or other.least_s is None:
        return False
    if noise == 0:
        return one.step_s < other.step_s
    return one.step_s < (1 - noise) * other.step_s and one.least_s < (1 - noise) * other.least_s
