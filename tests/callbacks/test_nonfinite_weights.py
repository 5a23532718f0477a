from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lightkit.callbacks.nonfinite import find_nonfinite_weights

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_one_bad_value_among_many_names_its_tensor(dtype: torch.dtype, bad: float) -> None:
    state = {name: torch.ones(3, 5).to(dtype) for name in "abc"} | {"half": torch.ones(2).half()}
    assert find_nonfinite_weights(state) == []
    state["b"][2, 1] = bad
    assert find_nonfinite_weights(state) == ["b"]
    assert find_nonfinite_weights(state, apart_from={"b"}) == []


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
        "extra state",
        None,
    ],
    ids=[
        *("large", "large half", "empty", "whole", "bool", "sparse", "meta", "float8"),
        *("text", "none"),
    ],
)
def test_what_is_finite_or_no_number_is_not_named(value: Any) -> None:
    assert find_nonfinite_weights({"it": value}) == []
