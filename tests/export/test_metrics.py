"""Scoring: the module's own validation, with the exported outputs in the place of its forward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule
from torch import Tensor

from lightkit.export.metadata import TensorSpec
from lightkit.export.metrics import MetricComparison
from lightkit.export.proof import Reference
from tests.export.planted import NUM, LineOfThree, samples_of, subject_of


def reference_of(model: torch.nn.Module, *, num: int = NUM, **changes: Any) -> Reference:
    samples = samples_of(model if isinstance(model, LineOfThree) and type(model) is LineOfThree else LineOfThree(), num)
    return Reference(subject_of(model), replace(samples, **changes), in_graph=False, folder=Path("unused"))


def score_of(
    reference: Reference, change: Callable[[Any], Any] = lambda x: x, *, precision: str = "float32"
) -> MetricComparison:
    """Score a file that returns what a function makes of the model's outputs."""
    outputs = [[change(output) for output in batch.expected] for batch in reference.batches[32]]
    return reference.scorer.score(outputs, precision=precision)


def swapped(output: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return output[:, [1, 0, 2]]


def test_equal_outputs_score_the_same() -> None:
    reference = reference_of(LineOfThree())

    score = score_of(reference)

    assert (score.outside, score.reason) == ([], None)
    assert score.eager["val/accuracy"] == score.exported["val/accuracy"] == 1.0
    assert all(weight.requires_grad for weight in reference.target.plain.parameters())  # nothing has changed
    assert "forward" not in reference.target.plain.__dict__


def test_classes_in_another_order_are_a_drop() -> None:
    reference = reference_of(LineOfThree())

    score = score_of(reference, swapped)

    assert score.outside == ["val/loss", "val/accuracy"]
    assert score.exported["val/accuracy"] < 0.8


def test_a_metric_that_turns_nan_is_a_drop() -> None:
    reference = reference_of(LineOfThree())

    score = score_of(reference, lambda x: x * np.float32(math.nan), precision="int8")

    assert "val/loss" in score.outside


@pytest.mark.parametrize(
    ("precision", "num", "allowed"),
    [
        ("float32", 20, 1e-3),
        ("float16", 20, 1e-2 + 1 / 20),
        ("int8", 20, 2e-2 + 2 / 20),
        ("float32", 1, 1e-3),
        ("float16", 1, 0.2),
        ("int8", 1, 0.2),
        ("int8", 8, 0.2),
    ],
    ids=["float32", "one_sample_in_float16", "two_in_int8", "one_exact", "one_half", "one_int8", "few_int8"],
)
def test_how_far_a_metric_may_be_off(precision: str, num: int, allowed: float) -> None:
    model = LineOfThree()
    reference = reference_of(model, num=num)

    score = score_of(reference, precision=precision)

    assert score.tolerance == pytest.approx(allowed)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_one_sample_that_falls_to_another_class_is_a_drop_where_there_is_no_other(precision: str) -> None:
    model = LineOfThree()
    reference = reference_of(model, num=1)

    score = score_of(reference, lambda x: x[:, [1, 2, 0]], precision=precision)

    assert "val/accuracy" in score.outside


class AsideOfForward(LineOfThree):
    """Its validation does not call forward."""

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val/mean", self.layer(batch[0]).mean())


class OtherInput(LineOfThree):
    """Its validation changes the input."""

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val/mean", self(batch[0] * 2).mean())


class NeedsItsTrainer(LineOfThree):
    """Its validation needs what a bare trainer has not."""

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val/mean", self.trainer.datamodule.factor * self(batch[0]).mean())  # type: ignore[attr-defined]


class Silent(LineOfThree):
    """Its validation logs nothing."""

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self(batch[0])


class Unvalidated(LineOfThree):
    """It has no validation_step."""

    validation_step = LightningModule.validation_step  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (AsideOfForward(), "validation_step does not call forward"),
        (OtherInput(), "validation_step gives forward something else than the samples"),
        (NeedsItsTrainer(), "its validation fails on a Trainer of its own (AttributeError: 'NoneType' object"),
        (Silent(), "validation_step logs no metric"),
        (Unvalidated(), "Unvalidated has no validation_step"),
    ],
    ids=["no forward", "other input", "fails", "no metric", "no step"],
)
def test_what_cannot_be_scored_is_told(model: LineOfThree, says: str) -> None:
    reference = reference_of(model)

    score = score_of(reference)

    assert score.reason is not None
    assert score.reason.startswith(says)
    assert score.outside == []
    assert score.as_dict() == {"scored": False, "reason": score.reason}


def test_without_batches_there_is_no_score() -> None:
    reference = reference_of(LineOfThree(), batches=())

    assert score_of(reference).reason == "the data gives no batches of a validation split"


class PartlyRandom(LineOfThree):
    """One of its metrics is another each time."""

    count = 0

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        super().validation_step(batch, index)
        PartlyRandom.count += 1
        self.log("val/calls", float(PartlyRandom.count))


def test_a_metric_that_forward_does_not_decide_is_left_out() -> None:
    reference = reference_of(PartlyRandom())

    score = score_of(reference)

    assert set(score.eager) == {"val/loss", "val/accuracy"}


class InMapping(LineOfThree):
    """Its forward gives a mapping, and is called twice for a batch."""

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.layer(x), "norm": x.norm(dim=1)}

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        assert self(batch[0])["norm"].shape == batch[1].shape
        logits = self(batch[0])["logits"]
        self.log("val/accuracy", (logits.argmax(1) == batch[1]).float().mean())


def test_outputs_in_a_mapping_are_given_back_in_it() -> None:
    model = InMapping()
    subject = subject_of(model)
    outputs = (TensorSpec("norm", "float32", (None,)), *subject.metadata.outputs)  # in another order
    subject = replace(subject, metadata=replace(subject.metadata, outputs=outputs))
    reference = Reference(subject, samples_of(LineOfThree()), in_graph=False, folder=Path("unused"))

    score = score_of(reference)

    assert score.exported == {"val/accuracy": 1.0}


class WithItsTemperature(LineOfThree):
    """Gives what has no row for each sample beside its logits: a parameter, and one with as many rows as classes."""

    def forward(self, x: Tensor) -> Any:
        return {"temperature": self.layer.bias[0] * 1, "weight": self.layer.weight * 1, "logits": self.layer(x)}

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        outputs = self(batch[0])
        assert (outputs["temperature"].shape, outputs["weight"].shape) == ((), (3, 4))
        self.log("val/accuracy", (outputs["logits"].argmax(1) == batch[1]).float().mean())


def test_outputs_that_are_the_same_for_any_batch_are_given_back_whole() -> None:
    reference = reference_of(WithItsTemperature())

    score = score_of(reference)

    assert (score.reason, score.exported) == (None, {"val/accuracy": 1.0})


class OverTheBatch(LineOfThree):
    """Gives one number for the batch, which no other batch tells."""

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.layer(x), "mean": self.layer(x).mean()}

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val/mean", self(batch[0])["mean"])


def test_an_output_that_sums_a_batch_up_is_not_scored() -> None:
    reference = reference_of(OverTheBatch())

    score = score_of(reference)

    assert score.reason == "val/mean do not come from what forward gives for each sample alone"


class HalvesInPlace(LineOfThree):
    """Its forward changes what it is given, in a way that shows when it is given the same again."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x.mul_(0.5))


def test_a_forward_that_changes_its_input_is_scored_on_the_samples_as_they_are() -> None:
    samples = samples_of(LineOfThree())
    before = samples.inputs[0].clone()
    reference = Reference(subject_of(HalvesInPlace()), samples, in_graph=False, folder=Path("unused"))

    score = score_of(reference)

    assert (score.reason, score.outside, score.eager) == (None, [], score.exported)
    assert torch.equal(samples.inputs[0], before)
