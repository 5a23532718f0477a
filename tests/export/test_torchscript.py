"""TorchScript by script or trace, which it says.

A trace that would freeze a decision is refused.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pytorch_lightning import LightningModule
from torch import Tensor

from lightkit.errors import ExportError
from lightkit.export.metadata import Metadata
from lightkit.export.target import ExportTarget
from tests.export import specimens
from tests.export.specimens import largest_gap, odd_subject, subject_of, write_file


def written(subject: ExportTarget, folder: Path) -> Metadata:
    return write_file("torchscript", subject, folder / "model.ts")


def test_what_can_be_scripted_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lightkit"):
        assert written(odd_subject(specimens.OnlyIfPositive()), tmp_path).how == "script"
    assert "model.ts: script" in caplog.messages


def test_a_script_keeps_decisions_by_values(tmp_path: Path) -> None:
    subject = odd_subject(specimens.OnlyIfPositive())
    written(subject, tmp_path)
    other = replace(subject, example=(-subject.example[0],))
    assert (
        largest_gap(subject, tmp_path / "model.ts")
        == largest_gap(other, tmp_path / "model.ts")
        == 0
    )


def test_the_rest_is_traced_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    subject = subject_of(specimens.WithALambda(), torch.ones(2, 3))
    with caplog.at_level(logging.INFO, logger="lightkit"):
        how = written(subject, tmp_path).how
    assert how == "trace, because it cannot be scripted: Lambda aren't supported"
    assert f"model.ts: {how}" in caplog.messages
    assert largest_gap(subject, tmp_path / "model.ts") == 0


class WithATrainer(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, values: Tensor) -> Tensor:
        double = lambda tensor: tensor * 2  # noqa: E731
        return double(self.layer(values))  # type: ignore[no-any-return, no-untyped-call]


def test_a_lightning_module_needs_no_trainer(tmp_path: Path) -> None:
    subject = subject_of(WithATrainer(), torch.ones(2, 3))
    assert "trace" in str(written(subject, tmp_path).how)
    assert largest_gap(subject, tmp_path / "model.ts") == 0


def test_a_trace_that_would_freeze_a_decision_is_refused(tmp_path: Path) -> None:
    says = (
        r"^model\.ts: LambdaThatDecides cannot be exported: it cannot be scripted \(Lambda aren't"
        r" supported\), and a "
        r"trace freezes what it decides by values: Converting a tensor to a Python boolean might"
        r" cause the trace to be "
        r"incorrect \(.*specimens\.py:\d+\)\.$"
    )
    with pytest.raises(ExportError, match=says):
        written(odd_subject(specimens.LambdaThatDecides()), tmp_path)


def test_traced_preprocessing_takes_images_of_any_size(tmp_path: Path) -> None:
    subject = specimens.traced_classifier_of_images()
    assert str(written(subject, tmp_path).how).startswith("trace")
    sizes = replace(subject, example=(torch.from_numpy(specimens.noise(30, 90)),))
    assert largest_gap(sizes, tmp_path / "model.ts") == 0
