"""The task's metrics, computed by the module's own validation: with the eager model, and with a file's outputs."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.export.compare import Array
from lightkit.export.samples import EvaluationSamples

METRIC_TOLERANCES = {"float32": (1e-3, 0), "float16": (1e-2, 1), "int8": (2e-2, 2)}
"""By precision: how far a metric may be off, and by how many samples more.

A sample on the border between two classes may fall to the other side once weights are rounded, which moves an accuracy
over N samples by 1/N. Values above one, as a loss may be, count in relation to themselves. The user's tolerance, in
units of the outputs, does not apply.
"""
_MAX_TOLERANCE = 0.2
"""With one or two samples, those on a border would allow for any accuracy."""


@dataclass(frozen=True)
class Score:
    """The module's own validation of the samples.

    Args:
        eager: Metrics of the eager model, by the name that the module logs.
        exported: The same of the file.
        tolerance: Allowed difference.
        reason: Why there are none, else None.
    """

    eager: Mapping[str, float]
    exported: Mapping[str, float]
    tolerance: float = 0.0
    reason: str | None = None

    @property
    def outside(self) -> list[str]:
        """Metrics outside the tolerance; one that is NaN with the file alone is."""
        return [name for name, value in self.eager.items() if not self._is_close(value, self.exported[name])]

    def _is_close(self, eager: float, exported: float) -> bool:
        if not math.isfinite(eager):
            return eager == exported or (math.isnan(eager) and math.isnan(exported))
        return abs(eager - exported) <= self.tolerance * max(1.0, abs(eager))  # not `>`, which NaN would pass

    def as_dict(self) -> dict[str, Any]:
        """Convert to the entry of export.json."""
        if self.reason is not None:
            return {"scored": False, "reason": self.reason}
        return {"scored": True, "eager": dict(self.eager), "exported": dict(self.exported), "tolerance": self.tolerance}


class MetricScorer:
    """Validates a module on the samples with Lightning's own loop, on one CPU, without logger or checkpoints.

    The eager model is validated once. Then its outputs replace ``forward``: metrics that this changes do not come from
    ``forward`` alone, or are random, and are left out. What remains is what a file can change.

    Args:
        module: The plain model.
        samples: Their batches are validated, their inputs recognised.
        expected: The eager model's flattened outputs, for each batch.
        batch_size: Number of samples in each batch.
        template: Output of ``forward``.
        num_samples: Number of samples; outputs beyond them fill up the last batch.
        is_softened: Whether the outputs are probabilities of a model of logits. The module gets their logarithm, of
            which the softmax is the probabilities.
        has_rows: For each output, whether it has a row for each sample; a parameter that is returned beside has none.
    """

    def __init__(
        self,
        module: nn.Module,
        samples: EvaluationSamples,
        expected: Sequence[Sequence[Array]],
        *,
        batch_size: int,
        template: Any,
        num_samples: int,
        is_softened: bool,
        has_rows: Sequence[bool],
    ) -> None:
        self.batch_size = batch_size
        self._module, self._samples, self._template = module, samples, template
        self._num_samples, self._is_softened, self._has_rows = num_samples, is_softened, has_rows
        self._eager: dict[str, float] = {}
        self._reason = self._validate_eager(expected)

    def score(self, outputs: Sequence[Sequence[Array]], *, precision: str) -> Score:
        """Validate with the outputs of a file.

        Args:
            outputs: Of the file for each batch, flattened.
            precision: Of its weights.
        """
        off, num_flips = METRIC_TOLERANCES.get(precision, METRIC_TOLERANCES["float32"])
        tolerance = min(off + num_flips / self._num_samples, _MAX_TOLERANCE)
        found, reason = ({}, self._reason) if self._reason is not None else self._validate(outputs)
        if reason is not None:
            return Score({}, {}, tolerance, reason)
        return Score(self._eager, {name: found.get(name, math.nan) for name in self._eager}, tolerance)

    def _validate_eager(self, expected: Sequence[Sequence[Array]]) -> str | None:
        """Validate the eager model, and keep the metrics that its outputs determine; return why there are none."""
        name = type(self._module).__name__
        if not isinstance(self._module, LightningModule):
            return f"{name} is no LightningModule"
        if not self._samples.batches:
            return "the data gives no batches of a validation split"
        if type(self._module).validation_step is LightningModule.validation_step:
            return f"{name} has no validation_step"
        eager, reason = self._validate(None)
        if reason is not None or not eager:
            return reason or "validation_step logs no metric"
        again, reason = self._validate(expected)
        if reason is not None:
            return reason
        again = {name: again.get(name, math.nan) for name in eager}
        outside = Score(eager, again, METRIC_TOLERANCES["float32"][0]).outside
        self._eager = {name: value for name, value in eager.items() if name not in outside}
        return (
            None if self._eager else f"{', '.join(outside)} do not come from what forward gives for each sample alone"
        )

    def _validate(self, outputs: Sequence[Sequence[Array]] | None) -> tuple[dict[str, float], str | None]:
        """Return the metrics, or why there are none; None runs the module's own ``forward``."""
        module: Any = self._module
        replay = None if outputs is None else _Replay(self._samples.inputs, self._join(outputs), self._template)
        loader = DataLoader(_Batches(self._samples.batches), batch_size=None, collate_fn=_identity)
        trainer_before, training = module._trainer, module.training
        with _silence_lightning():
            trainer = build_bare_trainer()
            try:
                if replay is not None:
                    module.__dict__["forward"] = replay
                trainer.validate(module, dataloaders=loader, verbose=False)
            except _OtherInputsError:
                return {}, "validation_step gives forward something else than the samples"
            except Exception as error:  # noqa: BLE001 - the user's validation raises anything without their trainer
                return {}, f"its validation fails on a Trainer of its own ({type(error).__name__}: {error})"
            finally:
                module.__dict__.pop("forward", None)
                module._trainer = trainer_before
                module.train(training)
        if replay is not None and not replay.is_used:
            return {}, "validation_step does not call forward"
        return {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}, None

    def _join(self, outputs: Sequence[Sequence[Array]]) -> list[tuple[Tensor, bool]]:
        """Join each output over all batches, without what filled the last one up; without rows that of the first."""
        joined = []
        for at, has_rows in enumerate(self._has_rows):
            arrays = [batch[at] for batch in outputs]
            array = np.concatenate(arrays)[: self._num_samples] if has_rows else np.asarray(arrays[0])
            joined.append((torch.from_numpy(array), has_rows))
        if self._is_softened:
            joined[0] = (joined[0][0].clamp_min(torch.finfo(torch.float32).tiny).log(), joined[0][1])
        return joined


class _OtherInputsError(Exception):
    """The module gives its forward something else than the samples."""


class _Replay:
    """Replaces ``forward``: returns the rows of the samples that it is called with."""

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[tuple[Tensor, bool]], template: Any) -> None:
        self._inputs, self._outputs, self._template = inputs, outputs, template
        self._start = self._end = 0
        self.is_used = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if len(given) != len(self._inputs) or not given[0].ndim:
            raise _OtherInputsError
        for start in (self._end, self._start):  # the next rows, or the last ones once more
            end = start + len(given[0])
            if all(torch.equal(mine[start:end], theirs) for mine, theirs in zip(self._inputs, given, strict=True)):
                self._start, self._end, self.is_used = start, end, True
                rows = iter([output[start:end] if has_rows else output for output, has_rows in self._outputs])
                return _unflatten(self._template, rows)
        raise _OtherInputsError


def _unflatten(template: Any, leaves: Iterator[Tensor]) -> Any:
    """Arrange tensors as the module returns them; the reverse of `lightkit.export.worker.flatten`."""
    if isinstance(template, Mapping):
        return {key: _unflatten(value, leaves) for key, value in template.items()}
    if isinstance(template, tuple) and hasattr(template, "_fields"):
        return type(template)(*(_unflatten(value, leaves) for value in template))
    if isinstance(template, list | tuple):
        return type(template)(_unflatten(value, leaves) for value in template)
    return next(leaves)


class _Batches(Dataset[Any]):
    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return copy.deepcopy(self._batches[index])  # the module may change it in place


def _identity(batch: Any) -> Any:
    return batch


@contextmanager
def _silence_lightning() -> Iterator[None]:
    """Suppress Lightning's advice on a trainer that the user did not choose."""
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
