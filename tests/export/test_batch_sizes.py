"""Batches: a program is refused where it goes apart from its model at a size, and for no other reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.errors import ExportError
from lightkit.export.capture import check_batch_sizes
from tests.export import specimens
from tests.export.specimens import odd_subject


class GivesNothingKnown(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values / 0.0 * 0.0


def refusal_of(model: nn.Module, program: Callable[..., Any]) -> str:
    with pytest.raises(ExportError) as caught:
        check_batch_sizes(program, odd_subject(model), "model.pt2")
    return str(caught.value)


@pytest.mark.parametrize("model", [specimens.DoublesInPlace(), GivesNothingKnown()], ids=["in place", "nan"])
def test_a_program_that_does_what_its_model_does_passes(model: nn.Module) -> None:
    subject = odd_subject(model)
    before = subject.example[0].clone()

    check_batch_sizes(subject.model, subject, "model.pt2")

    assert torch.equal(subject.example[0], before)


def test_values_that_differ_at_every_size_are_left_to_the_proof() -> None:
    check_batch_sizes(lambda values: values * 3, odd_subject(specimens.LambdaThatDecides()), "model.pt2")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (lambda values: values * 2 if len(values) == 2 else values * 3, "the exporter took it to do with 1 what it"),
        (lambda values: (values * 2)[:2], r"for 3 samples the file gives (2, 6), not (3, 6)"),
        (lambda values: values.reshape(2, 6) * 2, "and fails at 1: shape '[2, 6]' is invalid for input of size 6"),
    ],
    ids=["values", "shapes", "fails"],
)
def test_a_program_that_goes_apart_at_one_size_is_refused(program: Callable[..., Any], says: str) -> None:
    words = refusal_of(specimens.LambdaThatDecides(), program)

    assert words.startswith("model.pt2: LambdaThatDecides cannot be exported: it depends on the batch size")
    assert says in words
