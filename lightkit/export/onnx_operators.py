"""Operators of torch in forms of ONNX that keep their precision.

torch (2.15) writes `log_sigmoid` as the logarithm of a sigmoid, `log1p(x)` as `log(1 + x)`,
`expm1(x)` as `exp(x) - 1` and `logaddexp(a, b)` as `log(exp(a) + exp(b))`: infinite below -88, 0
near 0, and infinite above 88. The Sigmoid of onnxruntime (1.31) is exact to 1e-7 of 1 alone: 7 %
off at -14, and 0 from -18 on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset18
from onnxscript.function_libs.torch_lib.ops.nn import aten_group_norm

op: Any = opset18  # its type annotations refuse the values of a trace


def sigmoid(x: Any) -> Any:
    """Compute ``1 / (1 + exp(-x))``."""
    one = op.CastLike(op.Constant(value_float=1.0), x)
    return op.Div(one, op.Add(one, op.Exp(op.Neg(x))))


def log_sigmoid(x: Any) -> Any:
    """Compute ``-softplus(-x)``."""
    return op.Neg(op.Softplus(op.Neg(x)))


def log1p(x: Any) -> Any:
    """Compute ``x * log(u) / (u - 1)`` with ``u = 1 + x``, where the rounding of u cancels.

    W. Kahan; see D. Goldberg, What Every Computer Scientist Should Know About Floating-Point
    Arithmetic, theorem 4.
    """
    one = op.CastLike(op.Constant(value_float=1.0), x)
    sum_ = op.Add(x, one)
    difference = op.Sub(sum_, one)
    logarithm = op.Log(sum_)
    corrected = op.Mul(op.Div(x, difference), logarithm)
    is_small = op.Equal(sum_, one)
    is_infinite = op.Equal(sum_, x)  # or as large that 1 is lost
    return op.Where(is_small, x, op.Where(is_infinite, logarithm, corrected))


def expm1(x: Any) -> Any:
    """Compute ``tanh(x / 2) * (exp(x) + 1)``."""
    two = op.CastLike(op.Constant(value_float=2.0), x)
    one = op.CastLike(op.Constant(value_float=1.0), x)
    return op.Mul(op.Tanh(op.Div(x, two)), op.Add(op.Exp(x), one))


def logaddexp(x: Any, y: Any) -> Any:
    """Compute ``max(x, y) + softplus(-|x - y|)``."""
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    gap = op.Where(op.Equal(x, y), zero, op.Abs(op.Sub(x, y)))  # of infinities, too
    return op.Add(op.Max(x, y), op.Softplus(op.Neg(gap)))


# GroupNormalization, which torch writes from opset 21 on, is NaN for equal values by its definition
# in the standard: for a blank image
TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.expm1.default: expm1,
    torch.ops.aten.group_norm.default: aten_group_norm,
    torch.ops.aten.log1p.default: log1p,
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.logaddexp.default: logaddexp,
    torch.ops.aten.sigmoid.default: sigmoid,
    torch.ops.aten.special_expm1.default: expm1,
    torch.ops.aten.special_log1p.default: log1p,
}
