from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lightkit.callbacks.nonfinite import find_nonfinite_weights

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)


def module_of(**values: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, value in values.items():
        is_trained = value.is_floating_point() or value.is_complex()
        module.register_parameter(name, nn.Parameter(value, requires_grad=is_trained))
    return module


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_one_bad_value_among_many_names_its_parameter(dtype: torch.dtype, bad: float) -> None:
    values = {name: torch.ones(3, 5).to(dtype) for name in "abc"}
    assert find_nonfinite_weights(module_of(**values)) == []
    values["b"][2, 1] = bad
    module = module_of(**values)
    assert find_nonfinite_weights(module) == ["b"]
    module.get_parameter("b").requires_grad_(False)  # as a mask is
    assert find_nonfinite_weights(module) == []


@pytest.mark.parametrize(
    "value",
    [
        torch.full((9,), 1e38),
        torch.full((9,), 65504.0).half(),
        torch.zeros(0),
        torch.arange(3),
        torch.tensor(True),
        torch.eye(3).to_sparse(),
        torch.ones(4, device="meta"),
        torch.ones(3).to(torch.float8_e4m3fn),
    ],
    ids=["large", "large half", "empty", "whole", "bool", "sparse", "meta", "float8"],
)
def test_what_is_finite_or_no_number_is_not_named(value: torch.Tensor) -> None:
    assert find_nonfinite_weights(module_of(it=value)) == []
