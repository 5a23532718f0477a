"""Scoring: the module's own validation, with the exported outputs in the place of its forward."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule
from torch import Tensor

from lightkit.export.metadata import TensorSpec
from lightkit.export.proof import Proof
from tests.export.planted import LineOfThree, samples_of, subject_of


@pytest.fixture
def proof_of(tmp_path: Path) -> Any:
    """The eager model's outputs and metrics."""

    def build(model: torch.nn.Module, **changes: Any) -> Proof:
        return Proof(
            subject_of(model, replace(samples_of(LineOfThree()), **changes)), tmp_path / "inputs"
        )

    return build


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
        (
            NeedsItsTrainer(),
            "its validation fails on a Trainer of its own (AttributeError: 'NoneType' object",
        ),
        (Silent(), "validation_step logs no metric"),
        (
            Unvalidated(),
            (
                "its validation fails on a Trainer of its own (MisconfigurationException: No"
                " `validation_step"
            ),
        ),
    ],
    ids=["no forward", "other input", "fails", "no metric", "no step"],
)
def test_what_cannot_be_scored_is_reported(proof_of: Any, model: LineOfThree, says: str) -> None:
    proof = proof_of(model)
    assert proof.metrics == {}
    assert proof.not_scored.startswith(says)


def test_without_batches_there_is_no_score(proof_of: Any) -> None:
    assert (
        proof_of(LineOfThree(), batches=()).not_scored
        == "no batch of a validation split is among its samples ()"
    )


class Counting(LineOfThree):
    """One of its metrics is another each time."""

    count = 0

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        super().validation_step(batch, index)
        Counting.count += 1
        self.log("val/calls", float(Counting.count))


def test_a_metric_that_the_outputs_do_not_decide_is_left_out(proof_of: Any) -> None:
    assert set(proof_of(Counting()).metrics) == {"val/loss", "val/accuracy"}


class InMapping(LineOfThree):
    """Its forward gives a mapping, and is called twice for a batch."""

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.layer(x), "norm": x.norm(dim=1)}

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        assert self(batch[0])["norm"].shape == batch[1].shape
        logits = self(batch[0])["logits"]
        self.log("val/accuracy", (logits.argmax(1) == batch[1]).float().mean())


def test_outputs_in_a_mapping_are_given_back_in_it(tmp_path: Path) -> None:
    model = InMapping()
    subject = subject_of(model)
    outputs = (*subject.metadata.outputs, TensorSpec("norm", "float32", (None,)))
    subject = replace(subject, metadata=replace(subject.metadata, outputs=outputs))

    assert Proof(subject, tmp_path / "inputs").metrics == {"val/accuracy": 1.0}


class WithItsTemperature(LineOfThree):
    """Gives what has no row for each sample beside its logits.

    A parameter, and one with as many rows as classes.
    """

    def forward(self, x: Tensor) -> Any:
        return {
            "temperature": self.layer.bias[0] * 1,
            "weight": self.layer.weight * 1,
            "logits": self.layer(x),
        }

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        outputs = self(batch[0])
        assert (outputs["temperature"].shape, outputs["weight"].shape) == ((), (3, 4))
        self.log("val/accuracy", (outputs["logits"].argmax(1) == batch[1]).float().mean())


def test_outputs_that_are_the_same_for_any_batch_are_given_back_whole(proof_of: Any) -> None:
    assert proof_of(WithItsTemperature()).metrics == {"val/accuracy": 1.0}
