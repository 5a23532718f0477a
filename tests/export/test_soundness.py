"""A model that gives nothing to compare with is told as such, before any file is written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightkit.errors import ExportError
from lightkit.export.soundness import check_itself
from tests.export.planted import MARKED, LineOfThree, samples_of, subject_of


class NanForOne(LineOfThree):
    """Gives NaN for the marked sample."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).masked_fill(x[:, :1] > 50, float("nan"))


class AlwaysDropping(LineOfThree):
    """Its dropout stays on."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.nn.functional.dropout(x, 0.5))


class Counting(LineOfThree):
    """Keeps a number from call to call."""

    count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x) + self.count


class ChangingInput(LineOfThree):
    """Doubles what it is given, in place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


class NotAtAll(LineOfThree):
    """Fails."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (NanForOne(), "NanForOne itself gives NaN: 'logits' has 3 of them in a batch of"),
        (AlwaysDropping(), "AlwaysDropping itself gives something else each time: 'logits' differs when the same"),
        (Counting(), "Counting itself gives something else each time"),
        (NotAtAll(), "NotAtAll.forward fails on"),
    ],
    ids=["nan", "random", "state", "fails"],
)
def test_it_is_the_model_that_is_to_blame(model: LineOfThree, says: str) -> None:
    assert MARKED == 5
    with pytest.raises(ExportError) as caught:
        check_itself(subject_of(model), samples_of(LineOfThree()))
    assert says in str(caught.value)


def test_the_sample_that_gives_nan_is_named() -> None:
    with pytest.raises(ExportError, match=r"first for photos/05\.jpg"):
        check_itself(subject_of(NanForOne()), samples_of(LineOfThree()))


def test_nan_beyond_the_first_batch_is_found() -> None:
    samples = samples_of(LineOfThree(), 40)
    samples.inputs[0][35, 0], samples.inputs[0][MARKED, 0] = 100.0, 0.0
    with pytest.raises(ExportError, match=r"first for photos/35\.jpg"):
        check_itself(subject_of(NanForOne()), samples)


@pytest.mark.parametrize("model", [LineOfThree(), ChangingInput()], ids=["sound", "in_place"])
def test_others_are_left_to_the_proof(model: LineOfThree) -> None:
    samples = samples_of(LineOfThree())
    before = samples.inputs[0].clone()
    check_itself(subject_of(model), samples)
    assert torch.equal(samples.inputs[0], before)
