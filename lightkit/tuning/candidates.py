"""What is tried, in which order: one change at a time to the best so far, not all products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch

from lightkit.hardware.processor import instruction_sets
from lightkit.tuning.compiling import missing_for_compiling
from lightkit.tuning.settings import TuneSettings
from lightkit.tuning.variant import Variant

__all__ = ["candidates", "lower_precision"]

_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
_AMPERE = (8, 0)


def lower_precision(device: str) -> Literal["bf16-mixed", "16-mixed"] | None:
    """Give the mixed precision that the device computes quicker than float32; None where it has none.

    Args:
        device: Type of the device that trains.
    """
    if device == "cpu":
        return "bf16-mixed" if _BF16 & set(instruction_sets()) else None
    if device == "cuda":  # is_bf16_supported() counts emulation too
        return "bf16-mixed" if torch.cuda.get_device_capability() >= _AMPERE else "16-mixed"
    return "16-mixed" if device == "mps" else None


def candidates(
    settings: TuneSettings,
    base: Variant,
    best: Callable[[], Variant],
    *,
    device: str,
    has_convolutions: bool,
    configured: str | None = None,
    threads: Sequence[int] = (),
) -> Iterator[Variant]:
    """Give what is to be measured after the baseline; each may depend on what was measured before it.

    channels_last and the lower precision together, which for most are the fastest, since there may be time for one
    only; each of them alone, for with some models the other costs more than it gains; then on the best of these a fused
    optimizer, TF32, compiled layers and other numbers of threads.

    Args:
        settings: What is `auto` is tried.
        base: The baseline, which holds what is fixed.
        best: Gives the best of what was measured so far.
        device: Type of the device that trains.
        has_convolutions: Whether the model has weights that a memory format is for.
        configured: Precision that the config says besides; it is tried before the device's own.
        threads: Numbers of threads to try.
    """
    lower: list[str] = []
    if settings.precision == "auto":
        known = [configured, lower_precision(device)]
        lower = [each for each in dict.fromkeys(known) if each not in (None, base.precision)]
    formats: list[dict[str, Any]] = [{}]
    if settings.memory_format == "auto" and has_convolutions:
        formats.insert(0, {"memory_format": "channels_last"})
    for precision in lower:
        for changes in formats:
            yield base.but(precision=precision, **changes)
    if formats[0]:
        yield base.but(**formats[0])
    if settings.fused == "auto":
        yield best().but(fused=True)
    if settings.tf32 == "auto" and device == "cuda" and best().precision == "32-true":
        yield best().but(tf32=True)
    if settings.compile == "auto" and missing_for_compiling(device) is None:
        yield best().but(compile=True)
    if settings.threads == "auto":
        fastest = best()
        for number in threads:
            if number != fastest.threads:
                yield fastest.but(threads=number)
