"""Measuring how a model trains fastest on this machine, within a budget, and choosing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pytorch_lightning import LightningDataModule, LightningModule

from lightkit.hardware.cores import threads_to_try
from lightkit.hardware.processor import num_cores
from lightkit.tuning.allowance import Allowance, Part
from lightkit.tuning.candidates import candidates
from lightkit.tuning.concluding import concluded, precision_of
from lightkit.tuning.search import Search
from lightkit.tuning.settings import TuneSettings
from lightkit.tuning.short_fits import precision_plugin, short_trainer, without_trace
from lightkit.tuning.sitting import Subject
from lightkit.tuning.tf32 import set_tf32, tf32_of_process
from lightkit.tuning.variant import Findings, Variant

__all__ = ["measure"]


def measure(
    build: Callable[[], LightningModule],
    batches: Sequence[Any],
    *,
    settings: TuneSettings,
    base: Variant,
    trainer_values: Mapping[str, Any],
    datamodule: LightningDataModule | None = None,
    seed: int = 0,
    part: Part | None = None,
    per_epoch: int | None = None,
    ranks: int = 1,
    cores: int | None = None,
    load_s: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Measure what `auto` leaves open, and choose; the process is afterwards as it was.

    Each variant is a short fit of a fresh model from the same weights on the same batches. The losses of the first
    steps are compared with those of the baseline, which is float32 unless the config fixes another precision: where
    the precision is open, the one that the trainer's section says is tried like any other, and kept where there is no
    time to try it. A plugin of the trainer's that decides the precision fixes it. The data is set up once, before
    anything is timed. At last the best two and the baseline have a second sitting, in turns, because other programs
    disturb.

    On a GPU no threads are tried, and the rule for a machine whose cores load gives them.

    Args:
        build: Gives a fresh module.
        batches: Of the real shape, as the data's loader gives them.
        settings: What is `auto` is tried.
        base: The baseline: what is fixed, else defaults.
        trainer_values: The config's `trainer` section; what changes a step is kept.
        datamodule: That the model asks for what it must know; its loaders are not used.
        seed: Of the weights, and of all that the model draws.
        part: Of the time that there is; None for as much as it takes. It is told how long the baseline's batches take.
        per_epoch: Batches of the data in an epoch, whatever limits the training; None where nobody knows.
        ranks: Processes that train on this machine.
        cores: That this process may use; asked of the machine if None.
        load_s: Seconds in which one process loads a batch, where the number of such processes is to be chosen.
        tell: Is told what is measured, in words.

    Raises:
        Exception: What ends a fit of the baseline, as it is.
    """
    cores = cores or num_cores() or 1
    part = part or Allowance().next()
    configured = precision_of(base)
    base = base.but(precision=configured)
    if precision_plugin(trainer_values) is not None:
        settings = replace(settings, precision=None)
    if settings.precision == "auto":
        base = base.but(precision="32-true")
    with without_trace() as folder, _prepared_once(datamodule), _tf32_as_before():
        device = _device_type(trainer_values, folder)
        threads = threads_to_try(cores, ranks=ranks) if settings.threads == "auto" and device == "cpu" else []
        if threads:
            base = base.but(threads=threads[0])
        subject = Subject(build, batches, trainer_values, datamodule, seed, part.num_steps(per_epoch), folder)
        subject.set_up()
        search = Search(subject, base, part, per_epoch=per_epoch, tell=tell)
        search.begin()
        tried = candidates(
            settings,
            base,
            lambda: search.chosen().variant,
            device=device,
            has_convolutions=search.baseline.has_convolutions,
            configured=configured,
            threads=threads[1:],
        )
        for variant in tried:
            search.go_on(variant, compile_s=search.compile_s() if variant.compile else 0.0)
        if trainer_values.get("deterministic") is True:
            search.refuse_what_does_not_repeat()
        search.compare_again()
        if trainer_values.get("deterministic") is True:  # another one may have become the best
            search.refuse_what_does_not_repeat()
    return concluded(
        Findings(
            tuple(search.measurements()),
            search.chosen().variant,
            load_s=load_s,
            seconds=time.perf_counter() - search.began,
            left_out=tuple(search.left_out),
            autos=settings.autos(),
            device=device,
            has_convolutions=search.baseline.has_convolutions,
        ),
        settings,
        configured=configured,
        cores=cores,
        ranks=ranks,
    )


def _device_type(trainer_values: Mapping[str, Any], folder: Path) -> str:
    values = {key: value for key, value in trainer_values.items() if key not in ("precision", "plugins")}
    return short_trainer(values, [], folder=folder).strategy.root_device.type


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
        try:
            yield
        finally:
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
