"""A learning rate from Lightning's range test: the rate rises from step to step, and the loss tells how far it may."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningDataModule, LightningModule, seed_everything

from lightkit.tuning.allowance import Allowance, Part
from lightkit.tuning.range_test import FEWEST_POINTS, LEAST_RATE, RangeTest
from lightkit.tuning.short_fits import by_itself, short_trainer, without_trace

__all__ = ["FoundRate", "find_learning_rate", "judged"]

LEAST, MOST = 1e-6, 1.0
"""A rate outside these is refused: the test has failed, whatever its curve looks like."""
_NUM_FLAT = 10  # steps at the beginning, whose rates are too low to change anything
_NUM_LAST = 5  # steps at the end, whose median tells whether the loss rises: one batch may be a hard one
_RISE = 0.1  # of the fall: less may be a halt on the way down


@dataclass(frozen=True)
class FoundRate:
    """What a range test has shown.

    Args:
        learning_rate: The suggestion; None where there is none to be trusted.
        refused: Why there is none.
        rates: Learning rate of each step.
        losses: Loss of each step, as the model gave it.
        left_out: What there was no time for, in words.
    """

    learning_rate: float | None
    refused: str | None
    rates: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Say it in one line."""
        if self.learning_rate is None:
            return f"no learning rate was found: {self.refused}"
        hurried = f" ({'; '.join(self.left_out)})" if self.left_out else ""
        return (
            f"learning_rate {self.learning_rate:.2g}: a tenth of the rate at which the loss was least, in "
            f"{len(self.rates)} steps from {self.rates[0]:.0e} to {self.rates[-1]:.2g}{hurried}"
        )

    def as_json(self) -> dict[str, Any]:
        """Give what a JSON file can hold."""
        return asdict(self)

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> FoundRate:
        """Read what `as_json` gave.

        Raises:
            TypeError: If it is of another version of lightkit.
            KeyError: Likewise.
            ValueError: If there is neither a rate with its curve nor a reason why there is none.
        """
        read = cls(**{**found, **{key: tuple(found[key]) for key in ("rates", "losses", "left_out")}})
        is_shown = read.refused if read.learning_rate is None else read.rates and read.learning_rate > 0
        if not is_shown or len(read.rates) != len(read.losses):
            raise ValueError(f"a learning rate of {read.learning_rate} that nothing has shown")
        return read

    def write(self, folder: Path) -> None:
        """Write the curve as ``lr_find.csv``, and as a picture, ``lr_find.png``.

        Args:
            folder: Where to.
        """
        smooth = _smoothed(self.losses)
        table = io.StringIO()
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(["step", "learning_rate", "loss", "smoothed_loss"])
        rows.writerows(zip(range(1, len(smooth) + 1), self.rates, self.losses, smooth, strict=True))
        (folder / "lr_find.csv").write_text(table.getvalue(), encoding="utf-8")
        self._draw(smooth, folder / "lr_find.png")

    def _draw(self, smooth: Sequence[float], file: Path) -> None:
        from matplotlib.figure import Figure  # here: it takes longer than everything else in this module

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.rates, self.losses, color="lightgrey", label="loss")
        axes.plot(self.rates, smooth, label="smoothed")
        if self.learning_rate is not None:
            axes.axvline(self.learning_rate, color="tab:red", linestyle="--", label=f"{self.learning_rate:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.legend()
        figure.savefig(file)


def find_learning_rate(
    build: Callable[[], LightningModule],
    datamodule: LightningDataModule | None,
    *,
    trainer_values: Mapping[str, Any],
    seed: int,
    callbacks: Callable[[], Sequence[Callback]] = tuple,
    num_steps: int = 100,
    part: Part | None = None,
) -> FoundRate:
    """Raise the rate from 1e-7 to 1 in a short training, and suggest a tenth of the one at which the loss was least.

    The test is Lightning's `LearningRateFinder`; its suggestion is not. It takes the steepest descent per unit of the
    rate, not of its logarithm, so that noise among the lowest rates wins, whose distance is least: 9e-6 where 0.02
    trains best (pytorch-lightning 2.6.6). Its smoothing halves the loss of the first step, too. A tenth of the rate of
    the least loss is the rule of Smith 2017, arXiv:1506.01186, as fastai gives it.

    The rate goes into the optimizer's groups, all of them, so that the model needs no attribute for it. Random numbers
    are what they were afterwards; the trained weights are thrown away.

    Args:
        build: Gives the model, with the config's optimizer where it has one.
        datamodule: The data; None where the model has its own loaders.
        trainer_values: The config's `trainer` section.
        seed: Of weights and order, so that the same rate is found again.
        callbacks: Gives what else takes part, such as `Computation`.
        num_steps: Most steps to take: no more than the training has, but for 40.
        part: Of the time that there is; None for as much as it takes. Where it has an end, a few batches are timed
            first, which it is told, and as many steps are planned as there is time for. 40 are the fewest, whatever the
            training takes; where the seconds alone are too few for these, or end before the loss has risen again,
            there is no rate.

    Raises:
        ConfigError: If the model optimizes by hand, or has not exactly one optimizer.
    """
    with without_trace() as folder:
        seed_everything(seed, workers=True, verbose=False)
        test = RangeTest(num_steps, part or Allowance().next())
        trainer = short_trainer(trainer_values, [*callbacks(), test], folder=folder)
        trainer.fit(by_itself(build()), datamodule=datamodule)
    if test.refused is not None:
        return FoundRate(None, test.refused, left_out=test.left_out)
    return replace(judged(test.rates, test.losses, is_cut=test.is_cut), left_out=test.left_out)


def judged(rates: Sequence[float], losses: Sequence[float], *, is_cut: bool = False) -> FoundRate:
    """Suggest a rate, or say why there is none.

    Args:
        rates: Learning rate of each step.
        losses: Loss of each step.
        is_cut: Whether time has ended the test. The least loss of a curve that was still falling is its last one, and
            tells how long the test took; so the loss has to have risen again.
    """
    given = tuple(rates), tuple(losses)
    num_points = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
    if num_points < FEWEST_POINTS:
        ended = "it became NaN or infinite" if num_points < len(losses) else "the loss grew to four times its least"
        return FoundRate(None, f"after {num_points} steps {ended}", *given)
    smooth = _smoothed(losses[:num_points])
    flat = losses[:_NUM_FLAT]
    start = sum(flat) / len(flat)
    noise = math.sqrt(sum((loss - start) ** 2 for loss in flat) / (len(flat) - 1))
    least = min(range(num_points), key=smooth.__getitem__)
    fall = start - smooth[least]
    rise = statistics.median(losses[num_points - _NUM_LAST : num_points]) - smooth[least]
    if is_cut and num_points == len(losses) and rise <= max(1.5 * noise, 1e-3 * abs(start), _RISE * fall):
        return FoundRate(
            None,
            f"time ended after {num_points} steps, at a rate of {rates[-1]:.2g}, and the loss had not clearly risen by "
            "then; let lightkit tune find it without a budget, or give the rate",
            *given,
        )
    if fall <= max(1.5 * noise, 1e-3 * abs(start)):
        return FoundRate(
            None,
            f"the loss fell at no rate from {LEAST_RATE:g} to {rates[num_points - 1]:.2g} by more than its noise "
            f"({fall:.2g} of {start:.3g}, which varies by {noise:.2g})",
            *given,
        )
    rate = rates[least] / 10
    if not LEAST <= rate < MOST:
        return FoundRate(None, f"{rate:.1e} would be the rate, which is not within {LEAST:g} and {MOST:g}", *given)
    return FoundRate(float(f"{rate:.2g}"), None, *given)


def _smoothed(losses: Sequence[float]) -> list[float]:
    """Give the mean of each loss and those around it: an average over the past would come too late."""
    half = max(2, len(losses) // 20)
    windows = [losses[max(0, index - half) : index + half + 1] for index in range(len(losses))]
    return [sum(window) / len(window) for window in windows]
