"""The sittings of a search for the fastest variant, the time that is left for more, and what they have come to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten

from lightkit.tuning.allowance import Part
from lightkit.tuning.choosing import choose, judged
from lightkit.tuning.memory_limits import is_out_of_memory
from lightkit.tuning.sitting import Patience, Sitting, Subject, free
from lightkit.tuning.variant import Measurement, Variant

__all__ = ["Search"]

_COMPILE_S = 8.0
_COMPILE_S_PER_LAYER = {"cpu": 0.6, "cuda": 0.3}
"""An estimate, which decides what fits: two parts with three layers took 17 s on two busy cores."""


class Search:
    """Sittings so far, and the time that is left.

    Args:
        subject: What is measured.
        base: The baseline.
        part: Of the time that there is.
        per_epoch: Batches that the trainer takes in an epoch; None where nobody knows.
        tell: Is told what is measured.
    """

    def __init__(
        self, subject: Subject, base: Variant, part: Part, *, per_epoch: int | None, tell: Callable[[str], None]
    ) -> None:
        self.began = time.perf_counter()
        self.left_out: list[str] = []
        self._subject, self._base, self._tell = subject, base, tell
        self._part, self._per_epoch = part, per_epoch
        self._sittings: dict[Variant, Sitting] = {}
        self._refused: dict[Variant, str] = {}
        self._repeating: set[Variant] = set()
        self._batch_size = _size_of(subject.batches[0])

    def begin(self) -> None:
        """Measure the baseline, and learn how long anything takes."""
        self._tell(self._base.words)
        first = self._sit(self._base, Patience(until=self._part.until))
        self._sittings[self._base] = first
        if first.times:
            self._part.expect(statistics.median(first.times), self._per_epoch)

    def go_on(self, variant: Variant, *, compile_s: float = 0.0) -> None:
        """Measure one more, if there is time for it."""
        if variant in self._sittings or variant in self._refused:
            return
        if not self.baseline.times:
            self.left_out.append(f"{variant.words}: the model ended its training before a step could be timed")
            return
        needed_s, left_s = self._needed_s(variant) + compile_s, self._part.until - time.perf_counter()
        if needed_s > left_s:
            self.left_out.append(f"{variant.words}: takes about {needed_s:.3g} s, {max(0.0, left_s):.2g} s were left")
            return
        self._tell(variant.words)
        best_s = self.chosen().step_s or float("inf")
        try:
            self._sittings[variant] = self._sit(variant, Patience(until=self._part.until, best_s=best_s))
        except Exception as error:  # noqa: BLE001 (whatever a kernel cannot do is told, and the others go on)
            self._refused[variant] = _in_a_line(error)
        free()  # what an error still held

    def compare_again(self) -> None:
        """Let the baseline and the two whose fastest steps beat its fastest sit once more, in turns."""
        baseline, *others = self.measurements()
        rivals = [one for one in others if one.refused is None and _least_s(one) < _least_s(baseline)]
        best = [one.variant for one in sorted(rivals, key=_least_s) if not one.variant.compile][:2]
        for variant in [*best[:1], self._base, *best[1:]] if best else []:
            if self._needed_s(variant) <= self._part.until - time.perf_counter():
                self._sit_again(variant)

    def refuse_what_does_not_repeat(self) -> None:
        """Let the best sit until one is found whose losses are the same to the last bit, as far as there is time."""
        while (best := self.chosen().variant) != self._base and best not in self._repeating:
            if self._needed_s(best) > self._part.until - time.perf_counter():
                self._refused[best] = "no time was left to see whether its losses repeat, as trainer.deterministic asks"
                self.left_out.append(f"{best.words}: {self._refused[best]}")
                continue
            before = self._sittings[best].losses
            try:
                again = self._sit(best, Patience(least_steps=1, enough_s=0.0))
            except Exception as error:  # noqa: BLE001 (as in the first sitting)
                self._refused[best] = _in_a_line(error)
                continue
            if again.losses[: len(before)] == before[: len(again.losses)]:
                self._repeating.add(best)
            else:
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
        try:
            self._sittings[variant].times += self._sit(variant, Patience(until=self._part.until)).times
        except Exception as error:
            if variant == self._base:
                raise
            self._refused[variant] = _in_a_line(error)

    def _needed_s(self, variant: Variant) -> float:
        known = self._sittings.get(variant, self._sittings[self._base])
        return known.warm_s + 3 * statistics.median(known.times)

    def _measurement(self, variant: Variant, sitting: Sitting) -> Measurement:
        if not sitting.times:
            return Measurement(variant, refused="it ended before a step could be timed")
        step_s, least_s = statistics.median(sitting.times), min(sitting.times)
        return Measurement(
            variant,
            step_s=step_s,
            least_s=least_s,
            spread=(max(sitting.times) - least_s) / step_s,
            samples_per_s=None if self._batch_size is None else self._batch_size / step_s,
            losses=tuple(sitting.losses),
        )


def _least_s(one: Measurement) -> float:
    return float("inf") if one.least_s is None else one.least_s


def _size_of(batch: Any) -> int | None:
    """Give the samples of a batch, as Lightning counts them: by the first tensor."""
    leaves, _ = tree_flatten(batch)
    return next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), None)


def _in_a_line(error: Exception) -> str:
    if is_out_of_memory(error):
        return "it does not fit into memory"
    said = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {said[:200]}" if said else type(error).__name__
