"""Functions whose usual form in ONNX overflows, or loses what is small."""

from __future__ import annotations

from collections.abc import Callable
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
