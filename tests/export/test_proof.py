"""The proof: what is no match, in which words, and what it is judged by."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.export.proof import Mismatch, Proof
from lightkit.export.samples import EvaluationSamples
from tests.export.planted import LineOfThree, subject_of

Outputs = list[np.ndarray[Any, Any]]


class Outlying(torch.nn.Module):
    """Gives its input back."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class AlsoWhole(LineOfThree):
    """Gives the class, too."""

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return logits, logits.argmax(1)


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Prove a file that gives what a function makes of the model's outputs, without a process."""

    def run(
        change: Callable[[Outputs], Outputs],
        *,
        model: torch.nn.Module | None = None,
        samples: EvaluationSamples | None = None,
        precision: str = "float32",
        **tolerance: float,
    ) -> Any:
        subject = subject_of(model, samples)
        metadata = replace(subject.metadata, format="onnx", precision=precision)
        proof = Proof(subject, tmp_path / secrets.token_hex(4))
        outputs = {
            size: change([output.copy() for output in expected])
            for size, expected in proof.expected.items()
        }
        answer = {"loaded": ["onnxruntime"], "latency": {}}
        monkeypatch.setattr(proof, "_run_file", lambda *_: (outputs, answer))
        return proof.check(tmp_path / "model.onnx", metadata, **tolerance)

    return run


def mismatch(
    proved: Callable[..., Any], change: Callable[[Outputs], Outputs], **given: Any
) -> Mismatch:
    with pytest.raises(Mismatch) as caught:
        proved(change, **given)
    return caught.value


def noise(classes: int = 5) -> EvaluationSamples:
    """160 numbers of one outlier, in rows; nothing scores them."""
    x = torch.randn(160 // classes, classes, generator=torch.Generator().manual_seed(2))
    x[3, 2] = 10.0
    return EvaluationSamples((x,), [f"row {at}" for at in range(len(x))])


def test_a_match_is_reported_with_what_it_was_judged_by(proved: Callable[..., Any]) -> None:
    found = proved(lambda outputs: outputs)
    assert found["samples"] == 20
    assert found["tolerance"] == {"rtol": 1e-4, "atol": 0.0, "of_largest": 1e-5, "of_spread": 0.01}
    assert found["in_float16"] is None
    assert found["metrics"]["exported"]["val/accuracy"] == 1.0
    assert {of_size["max_abs"] for of_size in found["parity"].values()} == {0.0}
    assert found["loaded"] == ["onnxruntime"]


def test_a_gap_that_a_tolerance_can_allow_is_reported_with_that_advice(
    proved: Callable[..., Any],
) -> None:
    error = mismatch(proved, lambda outputs: [outputs[0] + np.float32(0.5)])
    assert (
        "60 of 60 outputs differ at batch size 1 (at batch 7 and 32 too), by up to 5.00e-01"
        in str(error)
    )
    assert "first for photos/00.jpg: class 'daisy' of 'logits' is" in str(error)
    assert "allow for it with --rtol and --atol" in str(error)
    assert proved(lambda outputs: [outputs[0] + np.float32(0.5)], atol=0.6)["samples"] == 20


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda outputs: [outputs[0], outputs[1] + 1], "'output_1' is"),
        (
            lambda outputs: [outputs[0], outputs[1].astype(np.int32)],
            "'output_1' is int32 (20,), expected int64 (20,)",
        ),
        (lambda outputs: [outputs[0] * np.float32(np.nan), outputs[1]], "is nan, expected"),
        (lambda outputs: [outputs[0] + np.float32(np.inf), outputs[1]], "is inf, expected"),
    ],
    ids=["whole_numbers", "dtype", "nan", "infinity"],
)
def test_a_gap_that_no_tolerance_allows_is_a_mismatch(
    proved: Callable[..., Any], change: Callable[[Outputs], Outputs], says: str
) -> None:
    assert says in str(mismatch(proved, change, model=AlsoWhole(), atol=100.0))


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_no_tolerance_of_outputs_hides_a_metric(proved: Callable[..., Any], precision: str) -> None:
    error = mismatch(
        proved, lambda outputs: [outputs[0][:, [1, 2, 0]]], precision=precision, rtol=1e9, atol=1e9
    )
    assert "onnx does not score as its model does: val/loss is" in str(error)
    assert "val/accuracy is" in str(error)
    assert "--rtol and --atol are for outputs, not for metrics" in str(error)


class InMetres(LineOfThree):
    """Targets of some thousandths of a metre, with their absolute error as the metric."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.004 * x[:, 1:]

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val/mae", (self(batch[0])[:, 0] - batch[1]).abs().mean())


def in_metres() -> EvaluationSamples:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100, 4, generator=generator)
    y = 0.004 * x[:, 1] + 0.0002 * torch.randn(100, generator=generator)
    return EvaluationSamples(
        (x,),
        [f"row {at}" for at in range(100)],
        list(zip(torch.split(x, 20), torch.split(y, 20), strict=True)),
    )


@pytest.mark.parametrize(
    ("precision", "num_levels"),
    [("int8", 3), ("int8", 15), ("float16", 31), ("float32", 63)],
    ids=str,
)
def test_an_error_in_small_units_is_judged_in_them(
    proved: Callable[..., Any], precision: str, num_levels: int
) -> None:
    """Outputs in so few steps are within every absolute tolerance.

    They are several times as wrong as the model's.
    """

    def in_steps(outputs: Outputs) -> Outputs:
        step = np.abs(outputs[0]).max() * 2 / num_levels
        return [(np.round(outputs[0] / step) * step).astype(np.float32)]

    given: dict[str, Any] = {"model": InMetres(), "samples": in_metres(), "precision": precision}
    assert "val/mae is" in str(mismatch(proved, in_steps, atol=1.0, **given))
    mismatch(proved, in_steps, **given)


def test_an_int8_file_whose_error_is_a_little_larger_than_the_models_passes(
    proved: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shake(outputs: Outputs) -> Outputs:
        noise = np.random.default_rng(0).normal(size=outputs[0].shape) * 0.00008
        return [(outputs[0] + noise).astype(np.float32)]

    found = proved(shake, model=InMetres(), samples=in_metres(), precision="int8")
    assert found["metrics"]["exported"]["val/mae"] > 1.02 * found["metrics"]["eager"]["val/mae"]


def test_int8_without_a_metric_needs_the_users_tolerance(proved: Callable[..., Any]) -> None:
    given: dict[str, Any] = {"model": Outlying(), "samples": noise(), "precision": "int8"}
    error = mismatch(proved, lambda outputs: outputs, **given)
    assert "no metric to judge by: Outlying is not a LightningModule." in str(error)
    assert "--atol" in str(error)
    found = proved(lambda outputs: outputs, atol=0.1, **given)
    assert found["metrics"]["reason"] == "Outlying is not a LightningModule"


def test_int8_with_a_metric_is_judged_by_the_metric(proved: Callable[..., Any]) -> None:
    found = proved(lambda outputs: outputs, precision="int8")
    assert found["metrics"]["scored"]
