"""What measurements come to: the choice with its threads and loading processes, and what they say of other settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from lightkit.hardware.cores import Share, share_of_cores, threads_to_try
from lightkit.tuning.candidates import candidates
from lightkit.tuning.choosing import choose
from lightkit.tuning.settings import TuneSettings
from lightkit.tuning.variant import Findings, Measurement, Variant

__all__ = ["concluded", "narrowed", "precision_of"]

_PRECISIONS = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}
"""Lightning's older words."""


def precision_of(base: Variant) -> str:
    """Give the precision of what a config says, in Lightning's word of today."""
    return _PRECISIONS.get(base.precision, base.precision)


def concluded(found: Findings, settings: TuneSettings, *, configured: str, cores: int, ranks: int) -> Findings:
    """Give findings with what is not measured but follows: threads, processes that load, a precision nobody has tried.

    Args:
        found: What was measured, and the fastest of it.
        settings: What is `auto` is chosen.
        configured: Precision that the config says, which is kept where there was no time to try it.
        cores: That this process may use.
        ranks: Processes that train on this machine.
    """
    share = _share(found, settings, cores=cores, ranks=ranks)
    chosen = found.chosen
    if all(one.variant.precision != configured for one in found.measurements):
        chosen = chosen.but(precision=configured)
    if settings.threads == "auto":
        chosen = chosen.but(threads=share.threads)
    return replace(found, chosen=chosen, num_workers=share.num_workers if settings.num_workers == "auto" else None)


def _share(found: Findings, settings: TuneSettings, *, cores: int, ranks: int) -> Share:
    """Choose threads and loading processes together, as far as they are open; without measurements by rule."""
    threads, load_s = found.chosen.threads, found.load_s
    if found.device != "cpu":
        return share_of_cores(cores, ranks=ranks, device=found.device)
    if settings.num_workers != "auto":
        return Share(threads or 1, 0)
    share = share_of_cores(
        cores,
        ranks=ranks,
        load_s=load_s,
        step_s_by_threads=_step_s_by_threads(found),
        threads=None if settings.threads == "auto" else threads,
    )
    return share if load_s is not None or threads is None else replace(share, threads=threads)


def _step_s_by_threads(found: Findings) -> dict[int, float]:
    """Give the steps of what differs from the choice in threads alone."""
    alike = [one for one in found.measurements if one.variant.but(threads=found.chosen.threads) == found.chosen]
    return {one.variant.threads: one.step_s for one in alike if one.step_s and one.variant.threads is not None}


def narrowed(
    found: Findings,
    settings: TuneSettings,
    base: Variant,
    *,
    cores: int,
    ranks: int,
    is_deterministic: bool = False,
    has_time: Callable[[], bool] = lambda: True,
) -> Findings | None:
    """Give what findings say of settings of which fewer are open.

    What would be measured for these is to be among them, but for what there is no time for now either. A fused
    optimizer changes the update alone: what was no faster beside one, where the choice had it, is none without it.

    Args:
        found: Of the same model and data on the same machine, with whatever settings.
        settings: What is `auto` is chosen.
        base: What is fixed, else defaults.
        cores: That this process may use.
        ranks: Processes that train on this machine.
        is_deterministic: Whether only what repeats bit for bit may be chosen.
        has_time: Tells whether there is time to measure what is missing.

    Returns:
        None where something would have to be measured.
    """
    configured = precision_of(base)
    base = base.but(precision="32-true" if settings.precision == "auto" else configured)
    open_threads = settings.threads == "auto" and found.device == "cpu"
    threads = threads_to_try(cores, ranks=ranks) if open_threads else []
    if threads:
        base = base.but(threads=threads[0])
    first = _at(base, found)
    if not {*settings.autos()} <= {*found.autos} or first is None or not _is_same(base, found.measurements[0].variant):
        return None
    taken, left_out = [first], list[str]()
    tried = candidates(
        settings,
        base,
        lambda: choose(taken).variant,
        device=found.device,
        has_convolutions=found.has_convolutions,
        configured=configured,
        threads=threads[1:],
    )
    for variant in tried:
        if any(one.variant == variant for one in taken):
            continue
        if (one := _at(variant, found)) is not None:
            taken.append(one)
        elif settings.fused == "auto" or not _is_no_faster_fused(variant, choose(taken).variant, found):
            if has_time():
                return None
            left_out.append(f"{variant.words}: was not measured, and there is no time for it")
    chosen = choose(taken).variant
    if is_deterministic and chosen != base and not _is_same(chosen, found.chosen):
        return None  # nobody has seen it repeat
    less = replace(found, measurements=tuple(taken), chosen=chosen, left_out=tuple(left_out), autos=settings.autos())
    return concluded(less, settings, configured=configured, cores=cores, ranks=ranks)


def _is_no_faster_fused(variant: Variant, best: Variant, found: Findings) -> bool:
    """Tell whether a variant was seen to be no faster than the best when both had a fused optimizer."""
    one, other = _at(variant.but(fused=True), found), _at(best.but(fused=True), found)
    return one is not None and other is not None and choose([other, one]) is other


def _at(variant: Variant, found: Findings) -> Measurement | None:
    """Give the measurement of a variant, or of one that computes the same."""
    one = next((one for one in found.measurements if _is_same(one.variant, variant)), None)
    return None if one is None else replace(one, variant=variant)


def _is_same(one: Variant, other: Variant) -> bool:
    """Tell whether two variants compute the same: without a number of threads it is that of this process."""
    number = torch.get_num_threads()
    return one.but(threads=one.threads or number) == other.but(threads=other.threads or number)
