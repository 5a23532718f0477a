"""Measuring how a model trains fastest on this machine, within a budget, and choosing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pytorch_lightning import LightningDataModule, LightningModule

from lightkit.config.hardware.settings import AcceleratorSettings
from lightkit.machine.cores import Share, share_of_cores, threads_to_try
from lightkit.machine.processor import num_cores
from lightkit.tuning.candidates import candidates
from lightkit.tuning.search import Search
from lightkit.tuning.short_fits import without_trace
from lightkit.tuning.sitting import Subject
from lightkit.tuning.tf32 import set_tf32, tf32_of_process
from lightkit.tuning.variant import Findings, Measurement, Variant

__all__ = ["measure"]

_PRECISIONS = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}
"""Lightning's older words."""


def measure(
    build: Callable[[], LightningModule],
    batches: Sequence[Any],
    *,
    settings: AcceleratorSettings,
    base: Variant,
    trainer_values: Mapping[str, Any],
    datamodule: LightningDataModule | None = None,
    seed: int = 0,
    budget_s: float | None = None,
    num_steps: int | None = None,
    ranks: int = 1,
    cores: int | None = None,
    load_s: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Measure what `auto` leaves open, and choose; the process is afterwards as it was.

    Each variant is a short fit of a fresh model from the same weights on the same batches. The losses of the first
    steps are compared with those of the baseline, which is float32 unless the config fixes another precision. At last
    the best two and the baseline have a second sitting, in turns, because other programs disturb.

    Args:
        build: Gives a fresh module.
        batches: Of the real shape, as the data's loader gives them.
        settings: What is `auto` is tried.
        base: The baseline: what is fixed, else defaults.
        trainer_values: The config's `trainer` section; what changes a step is kept.
        datamodule: That the model asks for what it must know; its loaders are not used.
        seed: Of the weights, and of all that the model draws.
        budget_s: Seconds that may be taken; None for as many as it takes.
        num_steps: Batches of the whole training: with a budget, no more than 5 % of their expected time is taken.
        ranks: Processes that train on this machine.
        cores: That this process may use; asked of the machine if None.
        load_s: Seconds in which one process loads a batch, where the number of such processes is to be chosen.
        tell: Is told what is measured, in words.

    Raises:
        Exception: What ends a fit of the baseline, as it is.
    """
    cores = cores or num_cores() or 1
    threads = threads_to_try(cores, ranks=ranks) if settings.threads == "auto" else []
    base = base.but(precision=_PRECISIONS.get(base.precision, base.precision))
    if threads:
        base = base.but(threads=threads[0])
    with without_trace() as folder, _prepared_once(datamodule), _tf32_as_before():
        subject = Subject(build, batches, trainer_values, datamodule, seed, num_steps, folder)
        search = Search(subject, base, budget_s=budget_s, num_batches=num_steps, tell=tell)
        search.begin()
        device = search.baseline.device
        tried = candidates(
            settings,
            base,
            lambda: search.chosen().variant,
            device=device,
            has_convolutions=search.baseline.has_convolutions,
            threads=threads[1:],
        )
        for variant in tried:
            search.go_on(variant, compile_s=search.compile_s() if variant.compile else 0.0)
        search.compare_again()
        if trainer_values.get("deterministic") is True:
            search.refuse_what_does_not_repeat()
    chosen = search.chosen()
    share = _share(search, chosen, settings, cores=cores, ranks=ranks, load_s=load_s)
    variant = chosen.variant.but(threads=share.threads) if threads else chosen.variant
    return Findings(
        tuple(search.measurements()),
        variant,
        num_workers=share.num_workers if settings.num_workers == "auto" else None,
        load_s=load_s,
        seconds=time.perf_counter() - search.began,
        left_out=tuple(search.left_out),
    )


def _share(
    search: Search,
    chosen: Measurement,
    settings: AcceleratorSettings,
    *,
    cores: int,
    ranks: int,
    load_s: float | None,
) -> Share:
    """Choose threads and loading processes together, as far as they are open; without measurements by rule."""
    device, threads = search.baseline.device, chosen.variant.threads
    times = search.step_s_by_threads(chosen.variant) if settings.threads == "auto" else {}
    if threads is not None and not times:
        times = {threads: chosen.step_s or 0.0}
    if settings.num_workers == "auto":
        return share_of_cores(cores, ranks=ranks, device=device, load_s=load_s, step_s_by_threads=times)
    return Share(threads or 1, 0)


@contextmanager
def _prepared_once(datamodule: LightningDataModule | None) -> Iterator[None]:
    """Have the data prepared and set up for the first fit alone, and torn down after the last."""
    if datamodule is None:
        yield
        return
    set_up, tear_down = datamodule.setup, datamodule.teardown
    done: list[str] = []

    def setup(stage: str) -> None:
        if not done:
            set_up(stage)
            done.append(stage)

    with (
        patch.object(datamodule, "prepare_data", lambda: None),
        patch.object(datamodule, "setup", setup),
        patch.object(datamodule, "teardown", lambda **_: None),
    ):
        yield
    if done:
        tear_down(done[0])


@contextmanager
def _tf32_as_before() -> Iterator[None]:
    before = tf32_of_process()
    try:
        yield
    finally:
        if tf32_of_process() != before:
            set_tf32(*before)
