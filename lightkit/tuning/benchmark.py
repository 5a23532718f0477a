"""Trials: short fits of the real model on real batches, the search among variants, and Lightning's own Tuner."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle, islice
from typing import Any

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.tuner.tuning import Tuner
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from pytorch_lightning.utilities.data import extract_batch_size
from torch import Tensor

from lightkit.tuning.variants import Trial, Variant, check_losses, list_formats_and_precisions, list_single_changes

__all__ = ["Benchmark", "TrialBudget", "find_batch_size", "find_learning_rate", "make_trainer"]

_NUM_BATCHES = 4
_WARM_UP_STEPS = {"cpu": 1}
_WARM_UP_STEPS_ELSEWHERE = 3
_LOADER_WARM_UP_STEPS = 8  # in which workers get ahead
_NUM_STEPS = 10_000  # that the model's schedules reckon with

Build = Callable[..., tuple[LightningModule, LightningDataModule | None]]


@dataclass(frozen=True)
class TrialBudget:
    """When a trial, or the whole search, ends.

    Args:
        total_s: Seconds after which no other trial begins.
        least_steps: Timed steps of a trial at least.
        enough_s: Seconds of timed steps that suffice.
        most_steps: Timed steps that suffice however quick they are.
    """

    total_s: float = math.inf
    least_steps: int = 3
    enough_s: float = 1.0
    most_steps: int = 50

    def is_enough(self, times: list[float], *, best_s: float) -> bool:
        """Tell whether a trial may end: it has steps enough, or is clearly slower than the best."""
        if len(times) > 1 and min(times) > 1.3 * best_s:
            return True
        return len(times) >= self.least_steps and (sum(times) >= self.enough_s or len(times) >= self.most_steps)


class Benchmark:
    """Tries variants, each in a short fit from the same weights on the same batches, and keeps the fastest.

    Args:
        build: Builds a fresh model and its data; keyword arguments are for the data's class.
        trainer_arguments: Those of the config's trainer that change a step.
        compute: Gives the callback that computes with a variant.
        has_convolutions: Tells whether a model has weights that a memory format is for.
        seed: Of the weights, and of all that the model draws.
        budget: When to stop.
        is_deterministic: Whether losses must repeat to the last bit.
        report: Is called with the words of each variant that is tried.
    """

    def __init__(
        self,
        build: Build,
        *,
        trainer_arguments: Mapping[str, Any],
        compute: Callable[[Variant], Callback],
        has_convolutions: Callable[[LightningModule], bool],
        seed: int,
        budget: TrialBudget,
        is_deterministic: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._build, self._arguments, self._compute, self._seed = build, trainer_arguments, compute, seed
        self._has_convolutions = has_convolutions
        self._budget, self._is_deterministic, self._report = budget, is_deterministic, report
        self._began_s = time.perf_counter()
        self._held = _HeldBatches()
        self._data: LightningDataModule | None = None
        self.trials: dict[Variant, Trial] = {}
        self.best: Trial
        self._bases: list[Trial] = []
        self.gains: list[tuple[Trial, Trial]] = []
        """Each trial that was faster than the best before it, after that one."""
        self.left_out: list[Variant] = []

    def start(self, base: Variant, *, reference: Variant | None = None) -> None:
        """Try the variant that `fit` computes with.

        Args:
            base: The variant.
            reference: Whose losses are compared with; the base itself if None.

        Raises:
            Exception: What the model raises.
        """
        first = self.best = self.trials[reference or base] = self._run(reference or base)
        self._losses, self._precision = first.losses, first.variant.precision
        second = first if base == first.variant else self._run(base)
        second.refused = self._judge(second)
        self.trials[base] = second
        self.best = first if second.refused else second
        self._bases = [second]

    def search(
        self,
        keys: Collection[str],
        *,
        device: str,
        lower_precision: str | None,
        threads: Collection[int],
    ) -> None:
        """Try other values for keys; see `list_formats_and_precisions` and `list_single_changes`."""
        base = self.best.variant
        for variant in list_formats_and_precisions(
            base, keys, lower_precision=lower_precision, has_convolutions=self._are_there_convolutions
        ):
            self.consider(variant)
        for changes in list_single_changes(keys, device=device, threads=[*threads]):
            self.consider(replace(self.best.variant, **changes))

    def search_workers(self, base: int | str, numbers: Collection[int]) -> None:
        """Try numbers of loading processes with the loader itself, from the one that the config has."""
        variant = replace(self.best.variant, num_workers=base)
        if self._is_over():
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
        if self._is_over():
            self.left_out.append(variant)
            return
        self._report(str(variant))
        trial = self.trials[variant] = self._attempt(variant)
        trial.refused = trial.refused or self._judge(trial)
        if not trial.is_faster_than(self.best):
            return
        for one in (self.best, trial):
            again = self._attempt(one.variant)
            one.times += again.times
            one.refused = one.refused or again.refused
            if self._is_deterministic and again.losses != one.losses[: len(again.losses)]:
                one.refused = "its losses do not repeat bit for bit, which trainer.deterministic asks for"
        if trial.is_faster_than(self.best):
            self.gains.append((self.best, trial))
            self.best = trial

    def gain_of(self, trial: Trial) -> float:
        """Return how many times as fast as what `fit` does a trial was; 0 where it has no steps."""
        return self._bases[0 if trial.variant.num_workers is None else -1].step_s / trial.step_s

    def is_chosen(self, trial: Trial) -> bool:
        """Tell whether a trial is the best, of computing or of loading."""
        return trial is self.best or trial.variant == replace(self.best.variant, num_workers=None)

    def _is_over(self) -> bool:
        return time.perf_counter() - self._began_s > self._budget.total_s

    def _judge(self, trial: Trial) -> str | None:
        if not trial.losses and trial.variant.precision != self._precision:
            return "no loss to compare with float32's"
        return check_losses(trial.losses, self._losses)

    def _attempt(self, variant: Variant) -> Trial:
        try:
            return self._run(variant)
        except Exception as error:  # noqa: BLE001 (whatever a kernel cannot do is told, and the others go on)
            words = next(iter(str(error).strip().splitlines()), "")
            return Trial(variant, refused=f"{type(error).__name__}: {words[:200]}")

    def _run(self, variant: Variant) -> Trial:
        if variant.threads is not None:
            torch.set_num_threads(variant.threads)
        seed_everything(self._seed, verbose=False)
        if variant.num_workers is None:
            model, data = self._build_with_held_batches()
        else:
            model, data = self._build(num_workers=variant.num_workers)
            assert data is not None
            data.train_dataloader = partial(_EndlessLoader, data.train_dataloader)  # type: ignore[method-assign]
        model.configure_callbacks = list  # type: ignore[method-assign]  # they may write into folders of the user's
        trial = Trial(variant)
        timer = _StepTimer(trial, self._budget, seed=self._seed, best_s=self.best.step_s if self.trials else math.inf)
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

    def _build_with_held_batches(self) -> tuple[LightningModule, LightningDataModule | None]:
        """Build a model; its data is set up once, and gives the same few batches in each trial."""
        model, data = self._build()
        if data is None:
            model.train_dataloader = partial(self._held.load, model.train_dataloader)  # type: ignore[method-assign]
        elif self._data is None:
            data.train_dataloader = partial(self._held.load, data.train_dataloader)  # type: ignore[method-assign]
            data.prepare_data, data.setup = cache(data.prepare_data), cache(data.setup)  # type: ignore[method-assign]
            data.teardown = data.on_exception = _do_nothing  # type: ignore[method-assign]
            self._data = data
        return model, self._data


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

    def __init__(self, trial: Trial, budget: TrialBudget, *, seed: int, best_s: float) -> None:
        self._trial, self._budget, self._seed, self._best_s = trial, budget, seed, best_s
        self._num_steps = 0

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
        warm_up = _WARM_UP_STEPS.get(device.type, _WARM_UP_STEPS_ELSEWHERE)
        if self._trial.variant.num_workers is not None:
            warm_up = _LOADER_WARM_UP_STEPS
        if self._num_steps <= warm_up:
            return
        self._trial.times.append(seconds)
        if self._budget.is_enough(self._trial.times, best_s=self._best_s):
            raise _TrialEnd
