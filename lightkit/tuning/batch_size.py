"""A batch size from short trainings with more and more samples, which end where the memory or the gain does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule

from lightkit.errors import ConfigError
from lightkit.tuning.allowance import Allowance, Part
from lightkit.tuning.memory_limits import room_bytes
from lightkit.tuning.short_fits import without_trace
from lightkit.tuning.size_trials import MOST, Trial, TriedSize, batch_size_of, set_batch_size
from lightkit.tuning.variant import rate_words

__all__ = ["FoundSize", "TriedSize", "find_batch_size"]

LEAST_GAIN = 1.05
"""A larger batch is worth its memory where it gives more than this times as many samples a second."""
_PROBES = (2, 4)  # sizes from which the memory of the first one is foreseen; with one sample BatchNorm raises
_FORESIGHT = 1.2  # times the growth of memory that the sizes before have shown
_PATIENCE = 2


@dataclass(frozen=True)
class FoundSize:
    """What the search has shown.

    Args:
        batch_size: The least size, from the first on, that gives the most samples a second but for 5 %.
        tried: All sizes, in order.
        ended: Why none larger was tried.
        first: What the config had, or the largest below that fits.
        device: Where it was tried.
        left_out: What there was no time for, in words.
    """

    batch_size: int
    tried: tuple[TriedSize, ...]
    ended: str
    first: int
    device: str = "cpu"
    left_out: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Say it in one line."""
        rates = {one.batch_size: one.samples_per_s for one in self.tried if one.samples_per_s}
        chosen, first = rates.get(self.batch_size), rates[self.first]
        gain = ""
        if chosen is not None:
            gain = f": {rate_words(chosen)} samples/s"
            gain += f", {chosen / first:.2g} times those of {self.first}" if self.batch_size != self.first else ""
        return f"batch_size {self.batch_size}{gain} ({self.ended}); the learning rate stays what it is"

    def as_json(self) -> dict[str, Any]:
        """Give what a JSON file can hold."""
        return asdict(self)

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> FoundSize:
        """Read what `as_json` gave.

        Raises:
            TypeError: If it is of another version of lightkit.
            KeyError: Likewise.
            ValueError: If its first size is not among those that were tried, or the size is none.
        """
        lists = {"tried": tuple(TriedSize(**one) for one in found["tried"]), "left_out": tuple(found["left_out"])}
        read = cls(**{**found, **lists})
        if read.first not in (one.batch_size for one in read.tried if one.samples_per_s) or read.batch_size < 1:
            raise ValueError(f"a batch size of {read.batch_size} from {read.first} that nothing has shown")
        return read

    def fits(self, *, ranks: int, num_samples: int | None = None) -> bool:
        """Tell whether there are samples for the size now, and room in the memory, as far as it was seen what it takes.

        Args:
            ranks: Processes that will train on this machine.
            num_samples: Of the training data; None where they were not counted.
        """
        if num_samples is not None and self.batch_size > max(1, num_samples // ranks):
            return False
        peaks = [one.peak_bytes for one in self.tried if one.batch_size == self.batch_size]
        return not peaks or (peaks[0] or 0) <= room_bytes(torch.device(self.device), ranks=ranks)


def find_batch_size(
    build: Callable[[], LightningModule],
    datamodule: LightningDataModule | None,
    *,
    trainer_values: Mapping[str, Any],
    seed: int,
    callbacks: Callable[[], Sequence[Callback]] = tuple,
    start: int | None = None,
    ranks: int = 1,
    part: Part | None = None,
) -> FoundSize:
    """Double the batch while that gives more samples a second and the memory holds it.

    Each size is a short training by Lightning, as in its `BatchSizeFinder`, whose search is not enough (2.6.6): it
    computes the first size with the loader of the config's, gives back sizes that it has not tried and that have more
    samples than there are, knows nothing of the gain, and on a CPU goes on until the kernel ends the process. Here:

    - On CUDA torch's allocator is limited to what others leave, less a headroom of 10 % of the memory.
    - On a CPU the memory of a size is foreseen from smaller ones, and it is not tried if 90 % of what is free would be
      passed.
    - No size has more samples than the training data.
    - Two sizes in a row that are not 5 % faster than the best end the search.
    - No size is below the first, unless that does not fit: a smaller batch is another training, not a faster one.

    Random numbers, and the data module's batch size, are what they were afterwards.

    Args:
        build: Gives the model, with the config's optimizer where it has one.
        datamodule: The data, whose loaders go by its attribute, or hyper-parameter, `batch_size`.
        trainer_values: The config's `trainer` section.
        seed: Of weights and order.
        callbacks: Gives what else takes part, such as `Computation`.
        start: The first size; default is what the data module has.
        ranks: Processes that will train on this machine: they share its memory, and the samples.
        part: Of the time that there is, after which no other size is begun; None for as much as it takes. It is told
            how long the batches of the first size take.

    Raises:
        ConfigError: If the data has no such attribute or does not go by it, or not even one sample fits.
    """
    if datamodule is None:
        raise ConfigError(
            "accelerator.batch_size: auto needs a data module, and the config has no section data. Give a number."
        )
    before = batch_size_of(datamodule)
    with without_trace() as folder:
        trial = Trial(build, datamodule, trainer_values, seed, callbacks, folder)
        try:
            search = _Search(trial, ranks=max(1, ranks), part=part or Allowance().next())
            return search.found(max(1, start or int(before or 1)))
        finally:
            set_batch_size(datamodule, before)


class _Search:
    """Which size is tried next, and why none is."""

    def __init__(self, trial: Trial, *, ranks: int, part: Part) -> None:
        self._trial, self._ranks, self._part = trial, ranks, part
        self._last_s = 0.0
        self._room_bytes = room_bytes(torch.device("cpu"), ranks=ranks)
        self._left_out: list[str] = []
        self._tried: list[TriedSize] = []

    def found(self, start: int) -> FoundSize:
        """Go down to a first size that fits, and up from there."""
        if self._trial.on_cpu:
            for size in _PROBES:
                if size < start:
                    self._try(size)
        size, too_much = start, None
        while (why := self._too_large(size)) is not None or not self._try(size):
            if size == 1:
                raise ConfigError("accelerator.batch_size: not even a batch of one sample fits into the memory.")
            too_much = why or f"{size} does not fit into memory"
            size //= 2
        first, ended = size, too_much
        if (batch_s := self._tried[-1].step_s) is not None:
            most = self._trial.most_samples
            self._part.expect(batch_s, None if most is None else -(-most // first))
        while ended is None:
            size *= 2
            ended = self._why_not(size, first)
            if ended is None and not self._try(size):
                ended = f"{size} does not fit into memory"
        device = str(self._trial.device)
        return FoundSize(self._chosen(first), tuple(self._tried), ended, first, device, tuple(self._left_out))

    def _try(self, size: int) -> bool:
        """Tell whether a size fits."""
        before_s = time.perf_counter()
        self._tried.append(self._trial.run(size))
        self._last_s = time.perf_counter() - before_s
        return self._tried[-1].step_s is not None

    def _why_not(self, size: int, first: int) -> str | None:
        if (most := self._trial.most_samples) is not None and size > most // self._ranks:
            shared = f" for {self._ranks} processes" if self._ranks > 1 else ""
            return f"the training data has {most} samples{shared}"
        if size > MOST:
            return f"{MOST} is the most"
        if self._gains_nothing(first):
            return f"larger ones gain less than {LEAST_GAIN - 1:.0%}"
        if time.perf_counter() + 2 * self._last_s > self._part.until:
            self._left_out.append(f"{size} would have taken too long to try")
            return self._left_out[-1]
        return self._too_large(size)

    def _gains_nothing(self, first: int) -> bool:
        rates = [rate for _, rate in self._rates(first)]
        return len(rates) > _PATIENCE and max(rates[-_PATIENCE:]) < LEAST_GAIN * max(rates[:-_PATIENCE])

    def _too_large(self, size: int) -> str | None:
        """Foresee the memory of a size on the CPU, where an allocation fails when it is too late."""
        known = [(one.batch_size, one.peak_bytes) for one in self._tried if one.peak_bytes is not None]
        if not self._trial.on_cpu or len(known) < len(_PROBES):
            return None
        (smaller, before_bytes), (larger, peak_bytes) = sorted(known)[-2:]
        growth_bytes = max(0, peak_bytes - before_bytes) / (larger - smaller)
        foreseen_bytes = peak_bytes + _FORESIGHT * growth_bytes * (size - larger)
        if foreseen_bytes <= self._room_bytes:
            return None
        return f"{size} would take {foreseen_bytes / 1e9:.2g} GB of {self._room_bytes / 1e9:.2g}"

    def _rates(self, first: int) -> list[tuple[int, float]]:
        return [(one.batch_size, one.samples_per_s) for one in self._tried
                if one.samples_per_s is not None and one.batch_size >= first]  # fmt: skip

    def _chosen(self, first: int) -> int:
        rates = self._rates(first)
        best = max(rate for _, rate in rates)
        size = min(size for size, rate in rates if rate * LEAST_GAIN >= best)
        most = self._trial.most_samples
        return size if most is None else max(1, min(size, most // self._ranks))
