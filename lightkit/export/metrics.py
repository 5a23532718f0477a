"""The task's metrics, computed by the module's own validation: with the eager model, and with a file's outputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.export.compare import Array, ReferenceBatch
from lightkit.export.export_errors import silence_exporters
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
class MetricComparison:
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
        outside = []
        for name, eager in self.eager.items():
            exported = self.exported[name]
            if math.isfinite(eager):  # not `>`, which NaN would pass
                is_close = abs(eager - exported) <= self.tolerance * max(1.0, abs(eager))
            else:
                is_close = eager == exported or (math.isnan(eager) and math.isnan(exported))
            outside += [] if is_close else [name]
        return outside

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
        batches: By batch size, with the eager model's flattened outputs.
        batch_size: Number of samples in each batch that is scored.
        template: Output of ``forward``.
        num_samples: Number of samples; outputs beyond them fill up the last batch.
        is_softened: Whether the outputs are probabilities of a model of logits. The module gets their logarithm, of
            which the softmax is the probabilities.
    """

    def __init__(
        self,
        module: nn.Module,
        samples: EvaluationSamples,
        batches: Mapping[int, Sequence[ReferenceBatch]],
        *,
        batch_size: int,
        template: Any,
        num_samples: int,
        is_softened: bool,
    ) -> None:
        self.batch_size = batch_size
        self._module, self._samples, self._template = module, samples, template
        self._num_samples, self._is_softened = num_samples, is_softened
        # a parameter that is returned with the outputs has no row for each sample
        self._has_rows = [
            all(batch.expected[at].shape[:1] == (len(batch.rows),) for of in batches.values() for batch in of)
            for at in range(len(batches[batch_size][0].expected))
        ]
        self._eager: dict[str, float] = {}
        self._reason: str | None = None
        name, exact = type(module).__name__, METRIC_TOLERANCES["float32"][0]
        if not isinstance(module, LightningModule):
            self._reason = f"{name} is no LightningModule"
        elif not samples.batches:
            self._reason = "the data gives no batches of a validation split"
        elif type(module).validation_step is LightningModule.validation_step:
            self._reason = f"{name} has no validation_step"
        else:
            try:
                eager = self._validate(None)
                again = self._validate([batch.expected for batch in batches[batch_size]]) if eager else {}
            except _NotScored as error:
                self._reason = str(error)
                return
            outside = MetricComparison(eager, {metric: again.get(metric, math.nan) for metric in eager}, exact).outside
            self._eager = {metric: value for metric, value in eager.items() if metric not in outside}
            if not self._eager:
                not_own = f"{', '.join(outside)} do not come from what forward gives for each sample alone"
                self._reason = not_own if eager else "validation_step logs no metric"

    def score(self, outputs: Sequence[Sequence[Array]], *, precision: str) -> MetricComparison:
        """Validate with the outputs of a file.

        Args:
            outputs: Of the file for each batch, flattened.
            precision: Of its weights.
        """
        off, num_flips = METRIC_TOLERANCES.get(precision, METRIC_TOLERANCES["float32"])
        tolerance = min(off + num_flips / self._num_samples, _MAX_TOLERANCE)
        if self._reason is not None:
            return MetricComparison({}, {}, tolerance, self._reason)
        try:
            found = self._validate(outputs)
        except _NotScored as error:
            return MetricComparison({}, {}, tolerance, str(error))
        return MetricComparison(self._eager, {name: found.get(name, math.nan) for name in self._eager}, tolerance)

    def _validate(self, outputs: Sequence[Sequence[Array]] | None) -> dict[str, float]:
        """Return the metrics with a file's outputs; None runs the module's own ``forward``.

        Raises:
            _NotScored: If there are none.
        """
        module: Any = self._module
        replay = None if outputs is None else _Replay(self._samples.inputs, self._join(outputs), self._template)
        # copies: the module may change a batch in place
        loader: DataLoader[Any] = DataLoader(list(self._samples.batches), batch_size=None, collate_fn=copy.deepcopy)  # type: ignore[arg-type]
        trainer_before, training = module._trainer, module.training
        with silence_exporters():  # Lightning's advice on a trainer that the user did not choose
            trainer = build_bare_trainer()
            try:
                if replay is not None:
                    module.__dict__["forward"] = replay
                trainer.validate(module, dataloaders=loader, verbose=False)
            except _NotScored:
                raise
            except Exception as error:  # the user's validation raises anything without their trainer
                reason = f"its validation fails on a Trainer of its own ({type(error).__name__}: {error})"
                raise _NotScored(reason) from error
            finally:
                module.__dict__.pop("forward", None)
                module._trainer = trainer_before
                module.train(training)
        if replay is not None and not replay.is_used:
            raise _NotScored("validation_step does not call forward")
        return {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}

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


class _NotScored(Exception):
    """There are no metrics, with the reason."""


class _Replay:
    """Replaces ``forward``: returns the rows of the samples that it is called with."""

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[tuple[Tensor, bool]], template: Any) -> None:
        self._inputs, self._outputs, self._template = inputs, outputs, template
        self._start = self._end = 0
        self.is_used = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if len(given) == len(self._inputs) and given[0].ndim:
            for start in (self._end, self._start):  # the next rows, or the last ones once more
                end = start + len(given[0])
                if all(torch.equal(mine[start:end], theirs) for mine, theirs in zip(self._inputs, given, strict=True)):
                    self._start, self._end, self.is_used = start, end, True
                    rows = iter([output[start:end] if has_rows else output for output, has_rows in self._outputs])
                    return apply_to_collection(self._template, Tensor, lambda _: next(rows))  # noqa: B023 (called at once)
        raise _NotScored("validation_step gives forward something else than the samples")
