"""Trials: short fits of the real model on real batches, of which the fastest is kept."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, cycle, islice
from typing import Any, Literal

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import (
    Callback,
    LightningDataModule,
    LightningModule,
    Trainer,
    seed_everything,
)
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.tuner.tuning import Tuner
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from pytorch_lightning.utilities.data import extract_batch_size
from torch import Tensor

_NUM_BATCHES = 4
_WARM_UP_STEPS = 3
_WARM_UP_STEPS_ON_CPU = 1
_LOADER_WARM_UP_STEPS = 8  # in which workers get ahead
_NUM_STEPS = 10_000  # of an epoch, as schedules of the model see it
_NUM_TUNER_EPOCHS = 1000  # Lightning's Tuner counts steps
# of a trial
_MIN_TIMED_STEPS = 3
_MAX_TIMED_STEPS = 50
_ENOUGH_S = 1.0
_FIRST_TOLERANCE = 0.01
"""Greatest difference of the first step's loss from float32's, as a share of that: the weights are
still the same.

Seen of bf16-mixed on photos, with ResNet-18, MobileNetV3-small and `small_cnn`: up to 0.0002.
"""
_TOLERANCE = 0.15
"""The same for the steps after it, whose weights differ by what training has made of the rounding.

Seen of bf16-mixed in four steps of AdamW from random weights on photos: 0.002 to 0.004 for
`small_cnn` and MobileNetV3-small, 0.006 to 0.051 for ResNet-18.
"""
_NOISE = 0.03  # gain that does not count, as a share
Parts = tuple[Trainer, LightningModule, LightningDataModule | None]
"""Trainer, model and data of a short fit."""


@dataclass(frozen=True)
class Variant:
    """A way to compute training steps.

    Args:
        precision: Lightning's word.
        memory_format: Of the weights of convolutions.
        compile: Whether the model's layers go through torch.compile.
        tf32: Whether matrix products on CUDA round float32 to TensorFloat-32; None: as torch has
            it.
        fused: Whether the optimizer updates all parameters in one kernel; None: as the optimizer
            has it.
        threads: Intra-op threads of the process; None: as torch has it.
        num_workers: Argument of the data, in a trial with the loader itself; None: batches that are
            held in memory.
        batch_size: Argument of the data; None: as the config has it.
    """

    precision: str = "32-true"
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compile: bool = False
    tf32: bool | None = None
    fused: bool | None = None
    threads: int | None = None
    num_workers: int | str | None = None
    batch_size: int | None = None

    def __str__(self) -> str:
        switches = [key for key in ("compile", "tf32", "fused") if getattr(self, key)]
        numbers = [
            f"{key} {vars(self)[key]}"
            for key in ("threads", "num_workers")
            if vars(self)[key] is not None
        ]
        return ", ".join([self.precision, self.memory_format, *switches, *numbers])


@dataclass
class Trial:
    """A short fit with one variant.

    Args:
        variant: The variant.
        times: Seconds of each timed step.
        losses: Losses of the first steps.
        batch_size: Samples of a batch; None if Lightning cannot count them.
        refused: Why it cannot be chosen; None if it can.
    """

    variant: Variant
    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    batch_size: int | None = None
    refused: str | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a step: the median.

        With a loader the mean, since its batches come in bursts.
        """
        average = statistics.median if self.variant.num_workers is None else statistics.fmean
        return average(self.times) if self.times else math.inf

    def is_faster_than(self, other: Trial) -> bool:
        """Check whether a step gains more than noise."""
        return self.refused is None and self.step_s < (1 - _NOISE) * other.step_s


def check_losses(losses: Sequence[float], reference: Sequence[float]) -> str | None:
    """Explain why losses are outside the tolerance; None if they are within it.

    Args:
        losses: Of the first steps of a variant.
        reference: Of the same steps in float32.
    """
    for step, (loss, other) in enumerate(zip(losses, reference, strict=False)):
        accepted = _TOLERANCE if step else _FIRST_TOLERANCE
        gap = abs(loss - other) / max(abs(other), 1e-6)
        if not gap <= accepted:  # not `>`, which NaN would pass
            found = f"its loss of step {step + 1} is {loss:.4g}, float32's is {other:.4g}"
            return f"{found}: {accepted:.0%} off is accepted"
    return None


class Benchmark:
    """Tries variants in short fits from the same weights on the same batches; keeps the fastest.

    Args:
        build: Builds a trainer that computes with a variant, a fresh model and its data.
        base: The variant that `fit` computes with, which is tried at once.
        reference: Variant whose losses all are compared with.
        seed: Of the weights, and of all random numbers of the model.
        budget_s: Seconds after which no other trial begins.
        report: Receives the name of each variant that is tried.

    Raises:
        Exception: What the model raises.
    """

    def __init__(
        self,
        build: Callable[[Variant], Parts],
        base: Variant,
        *,
        reference: Variant,
        seed: int,
        budget_s: float = math.inf,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._build = build
        self._seed = seed
        self._report = report
        self._ends_s = time.perf_counter() + budget_s
        self._batches: list[Any] = []
        self.trials: dict[Variant, Trial] = {}
        self.gained: dict[str, tuple[Any, str]] = {}
        """What has made the best faster than the base: by field of `Variant` its value, and its
        number as text."""
        self.best = self._reference = self._try(base)
        if reference != base:
            self._reference = self._try(reference)
            self.best.refused = self._compare_losses(self.best)
            self.best = self._reference if self.best.refused else self.best

    def start_loading(self, num_workers: int | str) -> None:
        """Try the best with the loader itself, as the config has it.

        Further variants have loaders, too.
        """
        trial = self._try(replace(self.best.variant, num_workers=num_workers))
        self.best = self.best if trial.refused else trial

    def consider(self, **changes: Any) -> None:
        """Try a change of the best, and once more in turns with the best if it seems faster.

        Other programs disturb.
        """
        variant = replace(self.best.variant, **changes)
        if variant in self.trials:
            return
        trial = self._try(variant)
        trial.refused = trial.refused or self._compare_losses(trial)
        if not trial.is_faster_than(self.best):
            return
        for each in (self.best, trial):
            again = self._run(each.variant)
            each.times += again.times
            each.refused = each.refused or again.refused
        if trial.is_faster_than(self.best):
            text = f"{trial.step_s * 1e3:.1f} ms a step, before {self.best.step_s * 1e3:.1f}"
            before = self.best
            self.best = trial
            for key, value in vars(variant).items():
                if value != getattr(before.variant, key):
                    self.gained[key] = value, text

    def gain_of(self, trial: Trial) -> float:
        """Return how many times as fast as what `fit` does a trial was; 0 if it has no steps."""
        has_loader = trial.variant.num_workers is not None
        first = next(
            each
            for each in self.trials.values()
            if (each.variant.num_workers is not None) == has_loader
        )
        return first.step_s / trial.step_s if trial.times else 0.0

    def _try(self, variant: Variant) -> Trial:
        if time.perf_counter() > self._ends_s:
            self.trials[variant] = Trial(variant, refused="the time was over")
        else:
            self._report(str(variant))
            self.trials[variant] = self._run(variant)
        return self.trials[variant]

    def _compare_losses(self, trial: Trial) -> str | None:
        if not trial.losses and trial.variant.precision != self._reference.variant.precision:
            return "no loss to compare with float32's"
        return check_losses(trial.losses, self._reference.losses)

    def _run(self, variant: Variant) -> Trial:
        if variant.threads is not None:
            torch.set_num_threads(variant.threads)
        seed_everything(self._seed, verbose=False)
        trainer, model, data = self._build(variant)
        source: Any = data or model
        held = self._batches if variant.num_workers is None else None
        source.train_dataloader = partial(_EndlessLoader, source.train_dataloader, held)
        model.configure_callbacks = list  # type: ignore[method-assign]  # they may write into folders of the user's
        trial = Trial(variant)
        trainer.callbacks.append(_StepTimer(trial, seed=self._seed))  # type: ignore[attr-defined]
        try:
            trainer.fit(model, datamodule=data)
        except _TrialEnd:
            pass
        except Exception as error:
            if not self.trials:  # it is no fault of a variant
                raise
            trial.refused = (
                f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')[:200]}"
            )
        if variant.compile:
            torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return trial


def make_trainer(arguments: Mapping[str, Any], callbacks: list[Callback]) -> Trainer:
    """Make a trainer of one device that validates, logs and shows nothing.

    Args:
        arguments: Those of the config's trainer that change a step.
        callbacks: Its callbacks.
    """
    return Trainer(
        **{
            **arguments,
            "max_epochs": 1,
            "devices": 1,
            "callbacks": callbacks,
            "logger": DummyLogger(),  # takes anything that a model's own code gives to its logger
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 0,
            "check_val_every_n_epoch": _NUM_STEPS,  # Lightning's Tuner sets other limits
            # alone, whatever launcher has started this process
            "plugins": [LightningEnvironment(), *arguments.get("plugins", ())],
        }
    )


def find_batch_size(parts: Parts, first: int) -> int:
    """Run Lightning's `Tuner.scale_batch_size`: double the batch until the memory is full.

    Args:
        parts: Trainer, model and data, whose class has an argument `batch_size`.
        first: The batch size to begin with.
    """
    trainer, model, data = parts
    trainer.fit_loop.max_epochs = _NUM_TUNER_EPOCHS
    return int(Tuner(trainer).scale_batch_size(model, datamodule=data, init_val=first) or first)


def find_learning_rate(parts: Parts) -> tuple[float | None, str]:
    """Run Lightning's range test, `Tuner.lr_find`.

    Take a tenth of the rate at which the loss was least.

    That is the rule of Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), as
    fastai has it. Lightning's own suggestion, the steepest point, gave 9e-6 for a two-layer network
    which 0.02 trained best.

    Args:
        parts: Trainer, model, and data unless the model has loaders.

    Returns:
        The rate, None where the loss does not fall; and what was seen, in words.
    """
    trainer, model, data = parts
    trainer.fit_loop.max_epochs = _NUM_TUNER_EPOCHS
    finder = Tuner(trainer).lr_find(model, datamodule=data, update_attr=False)
    results = {"lr": [], "loss": []} if finder is None else finder.results
    seen = []
    for step, (rate, loss) in enumerate(zip(results["lr"], results["loss"], strict=True), start=1):
        # Lightning 2.6 smooths with beta 0.98 and corrects the bias as if there had been one step
        # more: of the first loss it gives the half
        true_loss = loss * (1 - 0.98 ** (step + 1)) / (1 - 0.98**step)
        seen += [(rate, true_loss)] if math.isfinite(true_loss) else []
    if len(seen) < 2:
        return None, "the range test has no losses"
    rate, least = min(seen, key=lambda one: one[1])
    words = f"loss {seen[0][1]:.4g} fell to {least:.4g} at {rate:.2g} in {len(seen)} steps"
    return (float(f"{rate / 10:.2g}") if least < 0.995 * seen[0][1] else None), words


class _TrialEnd(Exception):
    """Ends a fit without what Lightning does at the end of an epoch.

    Such as asking for a metric of validation.
    """


class _EndlessLoader:
    """Batches of a loader, and from the beginning again.

    Args:
        load: Makes the loader.
        held: List that keeps its first batches, and only these are repeated: a step then takes what
            computing takes.
    """

    def __init__(self, load: Callable[[], Any], held: list[Any] | None) -> None:
        self._held = held
        self._loader = () if held else CombinedLoader(load(), "max_size_cycle")

    def __len__(self) -> int:
        return _NUM_STEPS

    def __iter__(self) -> Iterator[Any]:
        loaded = (batch for _ in count() for batch, _, _ in self._loader)
        if self._held is None:
            return loaded
        self._held += islice(loaded, _NUM_BATCHES - len(self._held))
        # a step may change it
        return (apply_to_collection(batch, Tensor, Tensor.clone) for batch in cycle(self._held))


class _StepTimer(Callback):
    """Reads the time at the end of each step, and ends the fit."""

    def __init__(self, trial: Trial, *, seed: int) -> None:
        self._trial = trial
        self._seed = seed
        self._num_steps = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # building and setting up may have drawn less or more
        seed_everything(self._seed, verbose=False)
        self._last_s = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if len(self._trial.losses) < _NUM_BATCHES and isinstance(loss, Tensor):
            self._trial.losses.append(float(loss.detach()))
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        device = trainer.strategy.root_device
        if device.type in ("cuda", "mps"):
            getattr(torch, device.type).synchronize()
        now_s = time.perf_counter()
        seconds = now_s - self._last_s
        self._last_s = now_s
        self._num_steps += 1
        if self._num_steps == 1:
            with suppress(Exception):  # Lightning counts samples of tensors only
                self._trial.batch_size = extract_batch_size(batch) * trainer.accumulate_grad_batches
        times = self._trial.times
        has_loader = self._trial.variant.num_workers is not None
        warm_up = _WARM_UP_STEPS_ON_CPU if device.type == "cpu" else _WARM_UP_STEPS
        if self._num_steps <= (_LOADER_WARM_UP_STEPS if has_loader else warm_up):
            return
        times.append(seconds)
        is_enough = sum(times) >= _ENOUGH_S or len(times) >= _MAX_TIMED_STEPS
        if is_enough and len(times) >= _MIN_TIMED_STEPS:
            raise _TrialEnd
