"""The task's metrics, computed by the module's own validation with given outputs in place of ``forward``'s."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightkit.export.bare_trainer import build_bare_trainer
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


class NotScored(Exception):
    """There are no metrics, with the reason."""


def metric_tolerance(precision: str, num_samples: int) -> float:
    """Return how far a metric over so many samples may be off."""
    off, num_flips = METRIC_TOLERANCES[precision]
    return min(off + num_flips / num_samples, _MAX_TOLERANCE)


def is_same_metric(one: float, other: float, tolerance: float) -> bool:
    """Compare two values of a metric; NaN equals NaN alone."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def validate_outputs(
    module: nn.Module, samples: EvaluationSamples, outputs: Sequence[tuple[Tensor, bool]], template: Any
) -> dict[str, float]:
    """Validate a module on the samples with Lightning's own loop, on one CPU, without logger or checkpoints.

    Metrics that do not come from ``forward``'s outputs are the same for all outputs.

    Args:
        module: The plain model, in eval mode. ``forward`` is replaced meanwhile.
        samples: Their batches are validated, their inputs recognised.
        outputs: For each output of ``forward`` its values, and whether these have a row for each sample.
        template: What ``forward`` returns: tensors in a tuple, list or mapping, or one alone.

    Returns:
        What the module logs in its validation.

    Raises:
        NotScored: If there is nothing to validate, or the validation does not go by ``forward`` alone.
    """
    name = type(module).__name__
    if not isinstance(module, LightningModule):
        raise NotScored(f"{name} is no LightningModule")
    if not samples.batches:
        raise NotScored("the data gives no batches of a validation split")
    if type(module).validation_step is LightningModule.validation_step:
        raise NotScored(f"{name} has no validation_step")
    replay = _Replay(samples.inputs, outputs, template)
    # copies: the module may change a batch in place
    loader: DataLoader[Any] = DataLoader(list(samples.batches), batch_size=None, collate_fn=copy.deepcopy)  # type: ignore[arg-type]
    with silence_exporters():  # Lightning's advice on a trainer that the user did not choose
        trainer = build_bare_trainer()
        try:
            module.__dict__["forward"] = replay
            trainer.validate(module, dataloaders=loader, verbose=False)
        except NotScored:
            raise
        except Exception as error:  # the user's validation raises anything without their trainer
            reason = f"its validation fails on a Trainer of its own ({type(error).__name__}: {error})"
            raise NotScored(reason) from error
        finally:
            del module.__dict__["forward"]
            module.trainer = None
            module.eval()
    if not replay.is_used:
        raise NotScored("validation_step does not call forward")
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items() if value.numel() == 1}
    if not metrics:
        raise NotScored("validation_step logs no metric")
    return metrics


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
        raise NotScored("validation_step gives forward something else than the samples")
