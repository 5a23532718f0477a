"""Trials: short fits of the real model on real batches, the search among variants, and Lightning's own Tuner."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import cycle, islice
from typing import Any, Literal

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.tuner.tuning import Tuner
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from pytorch_lightning.utilities.data import extract_batch_size
from torch import Tensor

__all__ = ["Benchmark", "Trial", "Variant", "check_losses", "find_batch_size", "find_learning_rate", "make_trainer"]

_NUM_BATCHES = 4
_WARM_UP_STEPS, _WARM_UP_STEPS_ON_CPU = 3, 1
_LOADER_WARM_UP_STEPS = 8  # in which workers get ahead
_NUM_STEPS = 10_000  # of an epoch, as schedules of the model see it
_MIN_TIMED_STEPS, _MAX_TIMED_STEPS, _ENOUGH_S = 3, 50, 1.0  # of a trial
_CLEARLY_SLOWER = 1.3  # times the best: ends a trial after two steps
_FIRST_TOLERANCE = 0.01
"""Greatest difference of the first step's loss from float32's, as a share of that: the weights are still the same.

Seen of bf16-mixed on photos, with ResNet-18, MobileNetV3-small and `small_cnn`: up to 0.0002.
"""
_TOLERANCE = 0.15
"""The same for the steps after it, whose weights differ by what training has made of the rounding.

Seen of bf16-mixed in four steps of AdamW from random weights on photos: 0.002 to 0.004 for `small_cnn` and
MobileNetV3-small, 0.006 to 0.051 for ResNet-18.
"""
_NOISE = 0.03  # gain that does not count, as a share


@dataclass(frozen=True)
class Variant:
    """A way to compute training steps.

    Args:
        precision: Lightning's word.
        memory_format: Of the weights of convolutions.
        compile: Whether the model's layers go through torch.compile.
        tf32: Whether matrix products on CUDA round float32 to TensorFloat-32; None: as torch has it.
        fused: Whether the optimizer updates all parameters in one kernel; None: as the optimizer has it.
        threads: Intra-op threads of the process; None: as torch has it.
        num_workers: Argument of the data, in a trial with the loader itself; None: batches that are held in memory.
    """

    precision: str = "32-true"
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compile: bool = False
    tf32: bool | None = None
    fused: bool | None = None
    threads: int | None = None
    num_workers: int | str | None = None

    def __str__(self) -> str:
        parts = [self.precision, self.memory_format]
        parts += ["compiled"] * self.compile + ["TF32"] * bool(self.tf32) + ["fused"] * bool(self.fused)
        parts += [] if self.threads is None else [f"{self.threads} thread{'s' * (self.threads != 1)}"]
        return ", ".join([*parts, *([] if self.num_workers is None else [f"num_workers {self.num_workers}"])])

    def changes_from(self, other: Variant) -> dict[str, Any]:
        """Return the fields in which it differs from another variant."""
        return {one.name: vars(self)[one.name] for one in fields(self) if vars(self)[one.name] != vars(other)[one.name]}


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
        """Seconds of a step: the median; with a loader the mean, since its batches come in bursts."""
        average = statistics.median if self.variant.num_workers is None else statistics.fmean
        return average(self.times) if self.times else math.inf

    def is_faster_than(self, other: Trial) -> bool:
        """Check whether the median and the fastest step, which other programs disturb least, gain more than noise."""
        share = 1 - _NOISE
        if self.refused is not None or not self.step_s < share * other.step_s:
            return False
        return self.variant.num_workers is not None or min(self.times) < share * min(other.times, default=math.inf)


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


Build = Callable[..., tuple[LightningModule, LightningDataModule | None]]


class Benchmark:
    """Tries variants, each in a short fit from the same weights on the same batches, and keeps the fastest.

    Args:
        build: Builds a fresh model and its data; keyword arguments are for the data's class.
        trainer_arguments: Those of the config's trainer that change a step.
        compute: Returns the callback that computes with a variant.
        has_convolutions: Whether a model has weights that a memory format is for.
        seed: Of the weights, and of all random numbers of the model.
        budget_s: Seconds after which no other trial begins.
        is_deterministic: Whether losses must repeat to the last bit.
        report: Receives the name of each variant that is tried.
    """

    def __init__(
        self,
        build: Build,
        *,
        trainer_arguments: Mapping[str, Any],
        compute: Callable[[Variant], Callback],
        has_convolutions: Callable[[LightningModule], bool],
        seed: int,
        budget_s: float = math.inf,
        is_deterministic: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._build, self._arguments, self._compute, self._seed = build, trainer_arguments, compute, seed
        self._has_convolutions, self._is_deterministic, self._report = has_convolutions, is_deterministic, report
        self._ends_s = time.perf_counter() + budget_s
        self._held = _HeldBatches()
        self._data: LightningDataModule | None = None
        self._bases: list[Trial] = []
        self.trials: dict[Variant, Trial] = {}
        self.best: Trial
        self.gains: list[tuple[Trial, Trial]] = []
        """Each trial that was faster than the best before it, after that one."""
        self.left_out: list[Variant] = []

    def start(self, base: Variant, *, reference: Variant | None = None) -> None:
        """Try the variant that `fit` computes with.

        Args:
            base: The variant.
            reference: Variant whose losses all are compared with; the base itself if None.

        Raises:
            Exception: What the model raises.
        """
        self._reference = self.best = self._run(reference or base)
        second = self._reference if reference in (None, base) else self._run(base)
        second.refused = self._check(second)
        self.trials |= {self._reference.variant: self._reference, base: second}
        self.best = self._reference if second.refused else second
        self._bases = [second]

    def search(
        self, keys: Collection[str], *, device: str, lower_precision: str | None, threads: Collection[int]
    ) -> None:
        """Try memory formats and precisions together, since some gain only together; then the others one by one.

        Args:
            keys: Fields of a variant that may change.
            device: Type of the device.
            lower_precision: Mixed precision of the device; None if it has none.
            threads: Numbers of threads to try on a CPU.
        """
        base = self.best.variant
        formats, precisions = [base.memory_format], [base.precision]
        if "memory_format" in keys and self._are_there_convolutions:
            formats.insert(0, "contiguous" if base.memory_format == "channels_last" else "channels_last")
        if "precision" in keys:
            others = [each for each in (lower_precision, "32-true") if each not in (None, base.precision)]
            precisions = [str(each) for each in (*others, base.precision)]
        for precision in precisions:
            for memory_format in formats:
                self.consider(replace(base, precision=precision, memory_format=memory_format))
        changes: list[tuple[str, Any, bool]] = [("fused", True, True), ("tf32", True, device == "cuda")]
        changes += [("compile", True, True), *(("threads", number, device == "cpu") for number in threads)]
        for key, value, is_possible in changes:
            if key in keys and is_possible:
                self.consider(replace(self.best.variant, **{key: value}))

    def search_workers(self, base: int | str, numbers: Collection[int]) -> None:
        """Try numbers of loading processes with the loader itself, from the one that the config has."""
        variant = replace(self.best.variant, num_workers=base)
        if time.perf_counter() > self._ends_s:
            self.left_out.append(variant)
            return
        self._report(str(variant))
        self.best = self.trials[variant] = self._run(variant)
        self._bases.append(self.best)
        for number in numbers:
            self.consider(replace(variant, num_workers=number))

    def consider(self, variant: Variant) -> None:
        """Try a variant, and once more in turns with the best if it seems faster: other programs disturb."""
        if variant in self.trials:
            return
        if time.perf_counter() > self._ends_s:
            self.left_out.append(variant)
            return
        self._report(str(variant))
        trial = self.trials[variant] = self._attempt(variant)
        trial.refused = trial.refused or self._check(trial)
        if not trial.is_faster_than(self.best):
            return
        for each in (self.best, trial):
            again = self._attempt(each.variant)
            each.times += again.times
            each.refused = each.refused or again.refused
            if self._is_deterministic and again.losses != each.losses[: len(again.losses)]:
                each.refused = "its losses do not repeat bit for bit, which trainer.deterministic asks for"
        if trial.is_faster_than(self.best):
            self.gains.append((self.best, trial))
            self.best = trial

    def gain_of(self, trial: Trial) -> float:
        """Return how many times as fast as what `fit` does a trial was; 0 if it has no steps."""
        return self._bases[0 if trial.variant.num_workers is None else -1].step_s / trial.step_s

    def is_chosen(self, trial: Trial) -> bool:
        """Check whether a trial is the best, of computing or of loading."""
        return trial is self.best or trial.variant == replace(self.best.variant, num_workers=None)

    def _check(self, trial: Trial) -> str | None:
        if not trial.losses and trial.variant.precision != self._reference.variant.precision:
            return "no loss to compare with float32's"
        return check_losses(trial.losses, self._reference.losses)

    def _attempt(self, variant: Variant) -> Trial:
        try:
            return self._run(variant)
        except Exception as error:  # noqa: BLE001 (a kernel that fails is reported, and the others go on)
            first_line = next(iter(str(error).strip().splitlines()), "")
            return Trial(variant, refused=f"{type(error).__name__}: {first_line[:200]}")

    def _run(self, variant: Variant) -> Trial:
        if variant.threads is not None:
            torch.set_num_threads(variant.threads)
        seed_everything(self._seed, verbose=False)
        if variant.num_workers is None:
            model, data = self._build()
            source: Any = data or model
            if data is None or self._data is None:
                source.train_dataloader = partial(self._held.load, source.train_dataloader)
            if data is not None and self._data is None:  # set up once, and not torn down between two trials
                data.prepare_data, data.setup = cache(data.prepare_data), cache(data.setup)  # type: ignore[method-assign]
                data.teardown = data.on_exception = _do_nothing  # type: ignore[method-assign]
                self._data = data
            data = self._data
        else:
            model, data = self._build(num_workers=variant.num_workers)
            assert data is not None
            data.train_dataloader = partial(_EndlessLoader, data.train_dataloader)  # type: ignore[method-assign]
        model.configure_callbacks = list  # type: ignore[method-assign]  # they may write into folders of the user's
        trial = Trial(variant)
        timer = _StepTimer(trial, seed=self._seed, best_s=self.best.step_s if self.trials else math.inf)
        precision = {} if "plugins" in self._arguments else {"precision": variant.precision}
        trainer = make_trainer({**self._arguments, **precision}, [self._compute(variant), timer])
        with suppress(_TrialEnd):
            trainer.fit(model, datamodule=data)
        self._are_there_convolutions = self._has_convolutions(model)  # some models are whole only in a fit
        del trainer, model
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
    plugins = arguments.get("plugins", [])
    return Trainer(
        **{
            "max_epochs": 1,
            **arguments,
            "devices": 1,
            "callbacks": callbacks,
            "logger": DummyLogger(),  # takes whatever a model's own code gives to its logger
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 0,
            "check_val_every_n_epoch": _NUM_STEPS,  # Lightning's Tuner sets other limits
            "plugins": [LightningEnvironment(), *plugins],  # alone, whatever has launched this process
        }
    )


def find_batch_size(build: Build, trainer: Trainer, *, first: int) -> int | None:
    """Double the batch until the memory is full, with Lightning's `Tuner.scale_batch_size`.

    On a CPU an allocation does not fail before the kernel ends the process, so that the caller limits the memory.

    Args:
        build: Builds the model and its data, which has an attribute `batch_size`.
        trainer: What to fit with.
        first: Size to begin with.

    Raises:
        MisconfigurationException: If nothing has an attribute `batch_size`.
    """
    model, data = build()
    return Tuner(trainer).scale_batch_size(model, datamodule=data, init_val=first)


def find_learning_rate(build: Build, trainer: Trainer) -> tuple[float | None, str]:
    """Run Lightning's range test, `Tuner.lr_find`, and take a tenth of the rate at which the loss was least.

    That is the rule of Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), as fastai has it.
    Lightning's own suggestion, the steepest point, gave 9e-6 for a two-layer network which 0.02 trained best.

    Args:
        build: Builds the model and its data.
        trainer: What to fit with.

    Returns:
        The rate, None where the loss does not fall; and what was seen, in words.
    """
    model, data = build()
    finder = Tuner(trainer).lr_find(model, datamodule=data, update_attr=False)
    results = {"lr": [], "loss": []} if finder is None else finder.results
    seen = []
    for step, (rate, loss) in enumerate(zip(results["lr"], results["loss"], strict=True), start=1):
        # Lightning 2.6 smooths with beta 0.98 and corrects the bias as if there had been one step more: of the first
        # loss it gives the half
        true_loss = loss * (1 - 0.98 ** (step + 1)) / (1 - 0.98**step)
        seen += [(rate, true_loss)] if math.isfinite(true_loss) else []
    if len(seen) < 2:
        return None, "the range test has no losses"
    rate, least = min(seen, key=lambda one: one[1])
    words = f"loss {seen[0][1]:.4g} fell to {least:.4g} at {rate:.2g} in {len(seen)} steps"
    return (float(f"{rate / 10:.2g}") if least < 0.995 * seen[0][1] else None), words


class _TrialEnd(Exception):
    """Ends a fit without what Lightning does at the end of an epoch, such as asking for a metric of validation."""


def _do_nothing(*_: Any, **__: Any) -> None:
    """Stand for a hook of the data, which is used in the next trial too."""


class _EndlessLoader:
    """Batches of a loader, and from the beginning again."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._loader = CombinedLoader(load(), "max_size_cycle")

    def __len__(self) -> int:
        return _NUM_STEPS

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from (batch for batch, _, _ in self._loader)


class _HeldBatches(_EndlessLoader):
    """The first batches of a loader, over and over: a step then takes what computing takes."""

    def __init__(self) -> None:
        self._batches: list[Any] = []

    def load(self, load: Callable[[], Any]) -> _HeldBatches:
        """Take the batches, the first time."""
        if not self._batches:
            self._batches = [*islice(_EndlessLoader(load), _NUM_BATCHES)]
        return self

    def __iter__(self) -> Iterator[Any]:
        for batch in cycle(self._batches):  # cloned, for a step may change its batch
            yield apply_to_collection(batch, Tensor, Tensor.clone)


class _StepTimer(Callback):
    """Reads the time at the end of each step, and ends the fit."""

    def __init__(self, trial: Trial, *, seed: int, best_s: float) -> None:
        self._trial, self._seed, self._best_s, self._num_steps = trial, seed, best_s, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seed_everything(self._seed, verbose=False)  # building and setting up may have drawn less or more
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
        seconds, self._last_s = now_s - self._last_s, now_s
        self._num_steps += 1
        if self._num_steps == 1:
            with suppress(Exception):  # Lightning counts samples of tensors only
                self._trial.batch_size = extract_batch_size(batch) * trainer.accumulate_grad_batches
        times, has_loader = self._trial.times, self._trial.variant.num_workers is not None
        warm_up = _WARM_UP_STEPS_ON_CPU if device.type == "cpu" else _WARM_UP_STEPS
        if self._num_steps <= (_LOADER_WARM_UP_STEPS if has_loader else warm_up):
            return
        times.append(seconds)
        is_enough = sum(times) >= _ENOUGH_S or len(times) >= _MAX_TIMED_STEPS
        is_slower = len(times) > 1 and min(times) > _CLEARLY_SLOWER * self._best_s
        if is_slower or (is_enough and len(times) >= _MIN_TIMED_STEPS):
            raise _TrialEnd
