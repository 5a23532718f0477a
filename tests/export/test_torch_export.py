"""Capture: the graph leaves open what the metadata do, whatever the names of the arguments."""

from __future__ import annotations

from dataclasses import replace

import torch

from lightkit.export.forward import clone_inputs
from lightkit.export.metadata import TensorSpec
from lightkit.export.target import ExportTarget
from lightkit.export.torch_export import capture_graph
from tests.export import specimens


def open_for(subject: ExportTarget, *inputs: torch.Tensor) -> bool:
    """Whether the graph takes inputs of these sizes, and gives what the model gives."""
    found, expected = (
        capture_graph(subject, "model.pt2").module()(*clone_inputs(inputs)),
        subject.model(*clone_inputs(inputs)),
    )
    return torch.equal(found, expected)


def test_inputs_of_any_number_stay_open() -> None:
    assert open_for(specimens.any_number(), torch.ones(5, 3), torch.ones(5, 3))


def test_another_dimension_that_is_open_stays_so() -> None:
    subject = specimens.odd_subject(specimens.DoublesInPlace())
    spec = (TensorSpec("values", "float32", (None, None)),)
    subject = replace(subject, metadata=replace(subject.metadata, inputs=spec, outputs=spec))

    assert open_for(subject, torch.ones(1, 9))


def test_what_is_captured_in_its_place_is_not_held_against_the_model() -> None:
    subject = specimens.odd_subject(specimens.LambdaThatDecides())

    program = capture_graph(subject, "model.pt2", model=specimens.AloneIsDifferent())

    assert torch.equal(program.module()(torch.ones(4, 6)), torch.full((4, 6), 3.0))
