"""A way to compute training steps, what measuring it has shown, and what was chosen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

__all__ = ["Findings", "Measurement", "MemoryFormat", "Variant", "rate_words"]

MemoryFormat = Literal["contiguous", "channels_last"]


@dataclass(frozen=True)
class Variant:
    """A way to compute training steps.

    Args:
        precision: Lightning's word.
        memory_format: Of the model's weights and images.
        compile: Whether the model's layers go through torch.compile.
        tf32: Whether matrix products on CUDA round float32 to TensorFloat-32; None: as torch has it.
        fused: Whether the optimizer updates all parameters in one kernel; None: as the optimizer has it.
        threads: Intra-op threads of the process; None: as torch has it.
    """

    precision: str = "32-true"
    memory_format: MemoryFormat = "contiguous"
    compile: bool = False
    tf32: bool | None = None
    fused: bool | None = None
    threads: int | None = None

    @property
    def words(self) -> str:
        """Say in short what it is: ``bf16-mixed, channels_last``."""
        parts = [self.precision, self.memory_format]
        parts += ["compiled"] * self.compile + ["TF32"] * bool(self.tf32) + ["fused"] * bool(self.fused)
        return ", ".join([*parts, *self._threads_words()])

    def words_against(self, other: Variant) -> str:
        """Say in short in what it differs from another one: ``32-true, 2 threads``."""
        differs = self.differs_from(other)
        parts = [self.precision] * ("precision" in differs) + [self.memory_format] * ("memory_format" in differs)
        for key, word in (("compile", "compiled"), ("tf32", "TF32"), ("fused", "fused")):
            parts += [word if getattr(self, key) else f"not {word}"] * (key in differs)
        return ", ".join([*parts, *(self._threads_words() if "threads" in differs else [])])

    def differs_from(self, other: Variant) -> tuple[str, ...]:
        """Name the fields in which it differs from another one."""
        names = (field.name for field in fields(self))
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))

    def _threads_words(self) -> list[str]:
        return [] if self.threads is None else [f"{self.threads} thread{'s' if self.threads > 1 else ''}"]

    def but(self, **changes: Any) -> Variant:
        """Give a variant that differs in these fields."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Measurement:
    """What measuring a variant has shown.

    Args:
        variant: What was measured.
        step_s: Median seconds of a training step; None where it cannot be run.
        least_s: Seconds of the fastest step, which other programs on the machine have disturbed least.
        spread: Greatest less least of the steps, as a share of the median.
        samples_per_s: Samples of a batch by the median step.
        losses: Of the first steps, in order.
        deviation: Greatest difference of a loss from float32's of the same step, as a share of that; None for the
            baseline and where there are no losses.
        refused: Why it cannot be chosen; None where it can.
    """

    variant: Variant
    step_s: float | None = None
    least_s: float | None = None
    spread: float | None = None
    samples_per_s: float | None = None
    losses: tuple[float, ...] = ()
    deviation: float | None = None
    refused: str | None = None


@dataclass(frozen=True)
class Findings:
    """All measurements of a model on a machine, and the choice.

    Args:
        measurements: In the order in which they were taken; the first is the baseline.
        chosen: The fastest that may be chosen. Its threads may be others than those that were measured, as they are
            on a GPU, or where there was no time to measure as few as the loading leaves.
        num_workers: Processes that load, chosen together with the threads; None where that is not asked for.
        load_s: Seconds in which one process loads a batch; None where it was not measured.
        seconds: That measuring took.
        left_out: What there was no time for, in words.
        autos: Keys of the section `accelerator` that were open.
        device: Type of the device.
        has_convolutions: Whether the model has weights that a memory format is for.
    """

    measurements: tuple[Measurement, ...]
    chosen: Variant
    num_workers: int | None = None
    load_s: float | None = None
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()
    autos: tuple[str, ...] = ()
    device: str = "cpu"
    has_convolutions: bool = False

    @property
    def gain(self) -> float | None:
        """How many times as fast as the baseline the chosen one was when it was measured."""
        base_s, of_chosen = self.measurements[0].step_s, self.of_chosen
        return None if not base_s or of_chosen is None or not of_chosen.step_s else base_s / of_chosen.step_s

    @property
    def of_chosen(self) -> Measurement | None:
        """The measurement of the chosen one: with its threads, else with the number that was the fastest."""
        alike = [one for one in self.measurements if one.variant.but(threads=self.chosen.threads) == self.chosen]
        alike.sort(key=lambda one: (one.variant != self.chosen, one.step_s or float("inf")))
        return alike[0] if alike else None

    @property
    def are_threads_measured(self) -> bool:
        """Whether the chosen one was measured with its threads, or on a device that computes without them."""
        measured = self.of_chosen
        return measured is None or measured.variant.threads in (None, self.chosen.threads)

    def as_json(self) -> dict[str, Any]:
        """Give what a JSON file can hold."""
        return asdict(self)

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> Findings:
        """Read what `as_json` gave.

        Raises:
            TypeError: If it is of another version of lightkit.
            KeyError: Likewise.
            ValueError: If nothing was measured.
        """
        if not found["measurements"]:
            raise ValueError("findings without a measurement")
        measured = [
            Measurement(**{**one, "variant": Variant(**one["variant"]), "losses": tuple(one["losses"])})
            for one in found["measurements"]
        ]
        lists = {key: tuple(found[key]) for key in ("left_out", "autos")}
        return cls(**{**found, "measurements": tuple(measured), "chosen": Variant(**found["chosen"]), **lists})


def rate_words(samples_per_s: float) -> str:
    """Give a number of samples a second as people write it: in whole ones, small ones with three digits."""
    return f"{samples_per_s:.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"
