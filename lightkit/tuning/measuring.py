"""Measuring how a model trains fastest on this machine, within a budget, and choosing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor
from torch.utils._pytree import tree_flatten

from lightkit.config.hardware.settings import AcceleratorSettings
from lightkit.machine.cores import Share, share_of_cores, threads_to_try
from lightkit.machine.processor import num_cores
from lightkit.tuning.candidates import candidates
from lightkit.tuning.choosing import choose, judged
from lightkit.tuning.memory_limits import is_out_of_memory
from lightkit.tuning.short_fits import without_trace
from lightkit.tuning.sitting import Patience, Sitting, Subject
from lightkit.tuning.tf32 import set_tf32, tf32_of_process
from lightkit.tuning.variant import Findings, Measurement, Variant

__all__ = ["SHARE_OF_TRAINING", "measure"]

SHARE_OF_TRAINING = 0.05
"""Of the time that training is expected to take; measuring takes no more."""
_PRECISIONS = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}
"""Lightning's older words."""
_COMPILE_S = 8.0
_COMPILE_S_PER_LAYER = {"cpu": 0.6, "cuda": 0.3}
"""Seen: 17 s for a convolution and a layer, 30 s for ResNet-18 on two cores. An estimate that decides what fits."""


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
        search = _Search(subject, base, budget_s=budget_s, num_batches=num_steps, tell=tell)
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


class _Search:
    """Sittings so far, and the time that is left.

    Args:
        subject: What is measured.
        base: The baseline.
        budget_s: Seconds that may be taken.
        num_batches: Of the whole training.
        tell: Is told what is measured.
    """

    def __init__(
        self,
        subject: Subject,
        base: Variant,
        *,
        budget_s: float | None,
        num_batches: int | None,
        tell: Callable[[str], None],
    ) -> None:
        self.began = time.perf_counter()
        self.left_out: list[str] = []
        self._subject, self._base, self._tell = subject, base, tell
        self._budget_s, self._num_batches = budget_s, num_batches
        self._until = float("inf") if budget_s is None else self.began + budget_s
        self._sittings: dict[Variant, Sitting] = {}
        self._refused: dict[Variant, str] = {}
        self._batch_size = _size_of(subject.batches[0])

    def begin(self) -> None:
        """Measure the baseline, and learn how long anything takes."""
        self._tell(self._base.words)
        first = self._sit(self._base, Patience(until=self._until))
        self._sittings[self._base] = first
        if self._budget_s is not None and self._num_batches is not None:
            expected_s = statistics.median(first.times) * self._num_batches
            self._until = min(self._until, self.began + SHARE_OF_TRAINING * expected_s)

    def go_on(self, variant: Variant, *, compile_s: float = 0.0) -> None:
        """Measure one more, if there is time for it."""
        if variant in self._sittings or variant in self._refused:
            return
        needed_s, left_s = self._needed_s(variant) + compile_s, self._until - time.perf_counter()
        if needed_s > left_s:
            self.left_out.append(f"{variant.words}: takes about {needed_s:.3g} s, {max(0.0, left_s):.2g} s were left")
            return
        self._tell(variant.words)
        best_s = self.chosen().step_s or float("inf")
        try:
            self._sittings[variant] = self._sit(variant, Patience(until=self._until, best_s=best_s))
        except Exception as error:  # noqa: BLE001 (whatever a kernel cannot do is told, and the others go on)
            self._refused[variant] = _in_a_line(error)

    def compare_again(self) -> None:
        """Let the best two and the baseline sit once more, in turns."""
        best = self.chosen().variant
        if best == self._base:
            return
        rivals = sorted(
            (one for one in self.measurements()[1:] if one.refused is None and one.variant != best),
            key=lambda one: one.step_s or float("inf"),
        )
        for variant in [best, self._base, *(one.variant for one in rivals[:1])]:
            if not variant.compile and self._needed_s(variant) <= self._until - time.perf_counter():
                self._sit_again(variant)

    def refuse_what_does_not_repeat(self) -> None:
        """Let the best sit until one is found whose losses are the same to the last bit."""
        while (best := self.chosen().variant) != self._base:
            before = self._sittings[best].losses
            again = self._sit(best, Patience(least_steps=1, enough_s=0.0))
            if again.losses[: len(before)] == before[: len(again.losses)]:
                return
            self._refused[best] = "its losses do not repeat bit for bit, which trainer.deterministic asks for"

    def chosen(self) -> Measurement:
        """Give the best so far."""
        return choose(self.measurements())

    def measurements(self) -> list[Measurement]:
        """Give all so far, judged."""
        reference = self._sittings[self._base].losses
        measured = [self._measurement(variant, sitting) for variant, sitting in self._sittings.items()]
        judgements = [measured[0], *(judged(one, reference) for one in measured[1:])]
        told = [replace(one, refused=self._refused.get(one.variant, one.refused)) for one in judgements]
        return told + [
            Measurement(variant, refused=why) for variant, why in self._refused.items() if variant not in self._sittings
        ]

    def step_s_by_threads(self, like: Variant) -> dict[int, float]:
        """Give the steps of what differs from a variant in threads alone."""
        return {
            variant.threads: statistics.median(sitting.times)
            for variant, sitting in self._sittings.items()
            if variant.threads is not None and variant.but(threads=like.threads) == like
        }

    @property
    def baseline(self) -> Sitting:
        """The baseline's sitting."""
        return self._sittings[self._base]

    def compile_s(self) -> float:
        """Guess how long compiling takes."""
        return _COMPILE_S + _COMPILE_S_PER_LAYER.get(self.baseline.device, 0.3) * self.baseline.num_layers

    def _sit(self, variant: Variant, patience: Patience) -> Sitting:
        return self._subject.sit(variant, patience)

    def _sit_again(self, variant: Variant) -> None:
        again = self._sit(variant, Patience(until=self._until))
        self._sittings[variant].times += again.times

    def _needed_s(self, variant: Variant) -> float:
        known = self._sittings.get(variant, self._sittings[self._base])
        return known.warm_s + 3 * statistics.median(known.times)

    def _measurement(self, variant: Variant, sitting: Sitting) -> Measurement:
        step_s, least_s = statistics.median(sitting.times), min(sitting.times)
        return Measurement(
            variant,
            step_s=step_s,
            least_s=least_s,
            spread=(max(sitting.times) - least_s) / step_s,
            samples_per_s=None if self._batch_size is None else self._batch_size / step_s,
            losses=tuple(sitting.losses),
        )


def _share(
    search: _Search,
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


def _size_of(batch: Any) -> int | None:
    """Give the samples of a batch, as Lightning counts them: by the first tensor."""
    leaves, _ = tree_flatten(batch)
    return next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), None)


def _in_a_line(error: Exception) -> str:
    if is_out_of_memory(error):
        return "it does not fit into memory"
    said = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {said[:200]}" if said else type(error).__name__


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
