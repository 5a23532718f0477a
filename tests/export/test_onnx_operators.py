"""Functions whose usual form in ONNX overflows, or loses what is small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightkit.export.formats import open_model
from tests.export import specimens
from tests.export.specimens import write_file

_EDGES = [0, 1e-30, 1e-10, 1e-8, 1e-4, 0.5, 0.999, 3, 50, 87, 100, 1e4, 1e20, 3e38, float("inf")]
_SIZES = torch.tensor([sign * edge for edge in _EDGES for sign in (1, -1)])
_NOISE = torch.randn(500, generator=torch.Generator().manual_seed(0))
_VALUES = torch.cat([_SIZES, _NOISE * torch.logspace(-8, 2, 500)])


class _Function(nn.Module):
    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, rows: Tensor) -> Tensor:
        return self.compute(rows[:, 0])


def _logaddexp(x: Tensor) -> Tensor:
    return torch.logaddexp(x, x.abs() / 2)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize(
    "compute",
    [
        functional.logsigmoid,
        _logaddexp,
        torch.expm1,
        torch.log1p,
        torch.sigmoid,
        torch.special.expm1,
        torch.special.log1p,
    ],
)
def test_values_far_from_and_near_to_zero_are_those_of_double_precision(
    compute: Callable[[Tensor], Tensor], opset: int, tmp_path: Path
) -> None:
    rows = _VALUES[:, None].clone()
    target = specimens.subject_of(_Function(compute), rows)
    write_file("onnx", target, tmp_path / "model.onnx", opset=opset)
    (found,) = open_model(tmp_path / "model.onnx")([rows.numpy()])
    right = compute(_VALUES.double()).float()
    finite = right.isfinite()
    np.testing.assert_allclose(found[finite], right[finite], rtol=1e-6, atol=1e-37)
    np.testing.assert_array_equal(found[~finite], right[~finite])


@pytest.mark.parametrize(
    ("compute", "kind", "rtol"),
    [
        (functional.logsigmoid, torch.float64, 1e-12),
        (_logaddexp, torch.float64, 1e-12),
        (torch.sigmoid, torch.float64, 1e-12),
        (torch.sigmoid, torch.float16, 5e-3),
        (functional.logsigmoid, torch.float16, 5e-3),
        (torch.log1p, torch.float16, 5e-3),
        (torch.log1p, torch.int64, 1e-6),
        (torch.special.log1p, torch.int64, 1e-6),
        (torch.special.expm1, torch.int64, 1e-6),
        (torch.sigmoid, torch.bool, 1e-6),
    ],
)
def test_other_types_are_computed_as_in_torch(
    compute: Callable[[Tensor], Tensor], kind: torch.dtype, rtol: float, tmp_path: Path
) -> None:
    rows = torch.linspace(0, 11.9, 120)[:, None]
    if kind.is_floating_point and compute is not torch.log1p:
        rows = torch.cat([rows, -rows])
    target = specimens.subject_of(_Function(lambda x: compute(x.to(kind)).float()), rows)
    write_file("onnx", target, tmp_path / "model.onnx")
    (found,) = open_model(tmp_path / "model.onnx")([rows.numpy()])
    given = rows[:, 0].to(kind)
    right = compute(given.double() if kind.is_floating_point else given.float())
    np.testing.assert_allclose(found, right.float(), rtol=rtol, atol=1e-7)


class _Scored(nn.Module):
    """A layer, and the probabilities of its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        scores = self.layer(rows) * 5
        return {"scores": scores, "probabilities": torch.sigmoid(scores)}


def test_a_sigmoid_of_an_int8_file_is_computed_in_float32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = torch.randn(200, 4)
    target = specimens.subject_of(_Scored().eval(), rows)
    target = replace(target, calibration=partial(specimens.calibration, target))
    write_file("onnx", target, tmp_path / "model.int8.onnx", precision="int8")
    scores, probabilities = open_model(tmp_path / "model.int8.onnx")([rows.numpy()])
    assert np.abs(scores - target.model(rows)["scores"].detach().numpy()).max() > 0.01
    right = torch.from_numpy(scores).double().sigmoid().float()
    np.testing.assert_allclose(probabilities, right, rtol=1e-5)
