"""The task's metrics, once with the eager model and once with what the exported file gave."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.export.bare_trainer import bare_trainer
from lightkit.export.parity import Arrays, Batch
from lightkit.export.reference import Reference

__all__ = ["METRIC_TOLERANCES", "Score", "Scorer"]

METRIC_TOLERANCES = {"float32": (1e-3, 0), "float16": (1e-2, 1), "int8": (2e-2, 2)}
"""By precision: how far a metric may be off, and by how many samples more.

A sample on the border between two classes may fall to the other side once weights are rounded, which moves an accuracy
over N samples by 1/N. Values above one, as a loss may be, count in relation to themselves. The user's tolerance, in
units of the outputs, has no say here.
"""
_MOST_OFF = 0.2
"""Whatever the number of samples: with one or two, the samples on a border would allow for any accuracy."""
_FORWARD = "validation_step gives forward something else than the samples"


@dataclass(frozen=True)
class Score:
    """The module's own validation of the samples.

    Args:
        eager: Metrics of the eager model, by the name that the module logs.
        exported: The same of the file.
        tolerance: How far they may be off.
        reason: Why there are none, else None.
    """

    eager: Mapping[str, float]
    exported: Mapping[str, float]
    tolerance: float = 0.0
    reason: str | None = None

    @property
    def outside(self) -> list[str]:
        """Metrics that are off by more than the tolerance; one that is NaN with the file alone is."""
        return [name for name, value in self.eager.items() if not self._is_close(value, self.exported[name])]

    def _is_close(self, eager: float, exported: float) -> bool:
        if not math.isfinite(eager):
            return eager == exported or (math.isnan(eager) and math.isnan(exported))
        return abs(eager - exported) <= self.tolerance * max(1.0, abs(eager))  # not `>`, which NaN would pass

    def as_dict(self) -> dict[str, Any]:
        """Give it for export.json."""
        if self.reason is not None:
            return {"scored": False, "reason": self.reason}
        return {"scored": True, "eager": dict(self.eager), "exported": dict(self.exported), "tolerance": self.tolerance}


class Scorer:
    """Validates a module on the samples with Lightning's own loop, on one CPU, without logger or checkpoints.

    The eager model is validated once. Then its outputs are put in the place of ``forward``: metrics that this changes
    do not come from ``forward`` alone, or are random, and are left out. What is compared is what a file can change.

    Args:
        reference: The model, the samples, and what it gives for them. Where those are probabilities of a model of
            logits, the module gets their logarithm, of which the softmax is the probabilities.
    """

    def __init__(self, reference: Reference) -> None:
        self._plain = reference.subject.plain
        self._reference = reference
        self._size = 1 if reference.in_graph else max(reference.batches)  # larger batches bring images to one size
        self._eager: dict[str, float] = {}
        self._reason = self._why_not() or self._take_eager()

    def score(self, outputs: Mapping[int, Sequence[Arrays]], *, precision: str) -> Score:
        """Validate with the outputs of a file.

        Args:
            outputs: What the file gave for the reference's batches, by batch size.
            precision: Of its weights.
        """
        allowed = _allowed(precision, self._reference.num)
        if self._reason is not None:
            return Score({}, {}, allowed, self._reason)
        found, reason = self._validate(_Replay(self._reference, outputs[self._size]))
        if reason is not None:
            return Score({}, {}, allowed, reason)
        return Score(self._eager, {name: found.get(name, math.nan) for name in self._eager}, allowed)

    def _why_not(self) -> str | None:
        name = type(self._plain).__name__
        if not isinstance(self._plain, LightningModule):
            return f"{name} is no LightningModule"
        if not self._reference.samples.batches:
            return "the data gives no batches of a validation split"
        if type(self._plain).validation_step is LightningModule.validation_step:
            return f"{name} has no validation_step"
        return None

    def _take_eager(self) -> str | None:
        """Validate the eager model, and keep the metrics that its outputs alone bring about too."""
        eager, reason = self._validate(None)
        if reason is not None:
            return reason
        if not eager:
            return "validation_step logs no metric"
        batches = [batch.expected for batch in self._reference.batches[self._size]]
        again, reason = self._validate(_Replay(self._reference, batches))
        if reason is not None:
            return reason
        control = Score(eager, {name: again.get(name, math.nan) for name in eager}, METRIC_TOLERANCES["float32"][0])
        unlike = control.outside
        self._eager = {name: value for name, value in eager.items() if name not in unlike}
        return None if self._eager else f"{', '.join(unlike)} do not come from what forward gives for each sample alone"

    def _validate(self, replay: _Replay | None) -> tuple[dict[str, float], str | None]:
        """The metrics, or why there are none; ``forward`` is the module's own if there is nothing to replay."""
        module = self._plain
        assert isinstance(module, LightningModule)
        loader = DataLoader(_Batches(self._reference.samples.batches), batch_size=None, collate_fn=_as_it_is)
        with _silence(), _in_place_of_forward(module, replay):
            trainer = bare_trainer()
            try:
                trainer.validate(module, dataloaders=loader, verbose=False)
            except _UnlikeSamplesError as error:
                return {}, str(error)
            except Exception as error:  # noqa: BLE001 - whatever the user's validation raises without their trainer
                return {}, f"its validation fails on a Trainer of its own ({type(error).__name__}: {error})"
        if replay is not None and not replay.is_used:
            return {}, "validation_step does not call forward"
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
        return values, None


class _UnlikeSamplesError(Exception):
    """The module gives its forward something else than the samples."""


class _Replay:
    """Stands in for ``forward``: gives the rows that belong to the samples it is asked for.

    Args:
        reference: The samples, and the form of what forward gives.
        outputs: For each of the reference's batches, side by side.
    """

    def __init__(self, reference: Reference, outputs: Sequence[Arrays]) -> None:
        self._inputs = reference.samples.inputs
        self._template = reference.template
        self._has_rows = [all(have_rows) for have_rows in zip(*map(_have_rows, _flat(reference)), strict=False)]
        self._outputs = [_joined(outputs, at, reference.num, has_rows) for at, has_rows in enumerate(self._has_rows)]
        if reference.is_softened:
            self._outputs[0] = self._outputs[0].clamp_min(torch.finfo(torch.float32).tiny).log()
        self._start = self._end = 0
        self.is_used = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if len(given) != len(self._inputs) or not given[0].ndim:
            raise _UnlikeSamplesError(_FORWARD)
        for start in (self._end, self._start):  # the next rows, or once more the last ones
            end = start + len(given[0])
            if all(torch.equal(mine[start:end], theirs) for mine, theirs in zip(self._inputs, given, strict=True)):
                self._start, self._end, self.is_used = start, end, True
                return _formed(self._template, iter(self._cut(start, end)))
        raise _UnlikeSamplesError(_FORWARD)

    def _cut(self, start: int, end: int) -> list[Tensor]:
        pairs = zip(self._outputs, self._has_rows, strict=True)
        return [output[start:end] if has_rows else output for output, has_rows in pairs]


def _have_rows(batch: Batch) -> list[bool]:
    """Which of the outputs have a row for each sample; a parameter that is given beside them has none."""
    return [output.shape[:1] == (len(batch.rows),) for output in batch.expected]


def _flat(reference: Reference) -> list[Batch]:
    return [batch for of_size in reference.batches.values() for batch in of_size]


def _joined(outputs: Sequence[Arrays], at: int, num: int, has_rows: bool) -> Tensor:
    """One output of all batches, without what filled the last one up; where it has no rows, that of the first one."""
    if not has_rows:
        return torch.from_numpy(np.asarray(outputs[0][at]))
    return torch.from_numpy(np.concatenate([batch[at] for batch in outputs])[:num])


def _formed(template: Any, leaves: Iterator[Tensor]) -> Any:
    """Tensors in the form in which the module gives them; the reverse of `flatten`."""
    if isinstance(template, Mapping):
        return {key: _formed(value, leaves) for key, value in template.items()}
    if isinstance(template, tuple) and hasattr(template, "_fields"):
        return type(template)(*(_formed(value, leaves) for value in template))
    if isinstance(template, list | tuple):
        return type(template)(_formed(value, leaves) for value in template)
    return next(leaves)


def _allowed(precision: str, num: int) -> float:
    off, num_flips = METRIC_TOLERANCES.get(precision, METRIC_TOLERANCES["float32"])
    return min(off + num_flips / num, _MOST_OFF)


class _Batches(Dataset[Any]):
    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return copy.deepcopy(self._batches[index])  # the module may change it in place


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _in_place_of_forward(module: LightningModule, replay: Callable[..., Any] | None) -> Iterator[None]:
    trainer, training = module._trainer, module.training
    if replay is not None:
        module.__dict__["forward"] = replay
    try:
        yield
    finally:
        module.__dict__.pop("forward", None)
        module._trainer = trainer
        module.train(training)


@contextmanager
def _silence() -> Iterator[None]:
    """No advice from Lightning on a trainer that nobody chose."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
