from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.callbacks.nonfinite import find_nonfinite_at_start, find_nonfinite_weights

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
    ids=["large", "large half", "empty", "whole", "bool", "sparse", "meta", "float8", "text", "none"],
)
def test_what_is_finite_or_no_number_is_not_named(value: Any) -> None:
    assert find_nonfinite_weights({"it": value}) == []


def test_what_a_model_holds_on_purpose_is_known_by_the_names_of_its_state() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    module[1].register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
    assert find_nonfinite_at_start(module) == set(find_nonfinite_weights(module.state_dict())) == {"1.mask"}
