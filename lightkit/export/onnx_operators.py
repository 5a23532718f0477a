"""Operators of torch in forms of ONNX that keep their precision.

torch (2.15) writes `log_sigmoid` as the logarithm of a sigmoid, `log1p(x)` as `log(1 + x)`,
`expm1(x)` as `exp(x) - 1` and `logaddexp(a, b)` as `log(exp(a) + exp(b))`: infinite below -88, 0
near 0, and infinite above 88. The Sigmoid of onnxruntime (1.31) is exact to 1e-7 of 1 alone: 7 %
off at -14, and 0 from -18 on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18
from onnxscript.function_libs.torch_lib.ops.nn import aten_group_norm

op: Any = opset18  # its type annotations refuse the values of a trace


def sigmoid(x: Any) -> Any:
    """Compute ``exp(min(x, 0)) / (1 + exp(-|x|))``, of which nothing overflows in float16."""
    one = _constant(1.0, x)
    small = op.Exp(op.Neg(op.Abs(x)))
    is_negative = op.Less(x, _constant(0.0, x))
    return op.Div(op.Where(is_negative, small, one), _add(one, small))


def log_sigmoid(x: Any) -> Any:
    """Compute ``min(x, 0) - log1p(exp(-|x|))``."""
    return op.Sub(op.Min(x, _constant(0.0, x)), _log1p(op.Exp(op.Neg(op.Abs(x)))))


def log1p(x: Any) -> Any:
    """Compute ``log(1 + x)``, also of whole numbers."""
    return _log1p(_as_floats(x))


def expm1(x: Any) -> Any:
    """Compute ``tanh(x / 2) * (exp(x) + 1)``, also of whole numbers."""
    x = _as_floats(x)
    return op.Mul(op.Tanh(op.Div(x, _constant(2.0, x))), _add(op.Exp(x), _constant(1.0, x)))


def logaddexp(x: Any, y: Any) -> Any:
    """Compute ``max(x, y) + log1p(exp(-|x - y|))``."""
    is_equal = op.Equal(x, y)  # of infinities, too
    gap = op.Where(is_equal, _constant(0.0, x), op.Abs(op.Sub(x, y)))
    return _add(op.Max(x, y), _log1p(op.Exp(op.Neg(gap))))


def _log1p(x: Any) -> Any:
    """Compute ``x * log(u) / (u - 1)`` with ``u = 1 + x``, where the rounding of u cancels.

    W. Kahan; see D. Goldberg, What Every Computer Scientist Should Know About Floating-Point
    Arithmetic, theorem 4.
    """
    one = _constant(1.0, x)
    total = _add(x, one)
    logarithm = op.Log(total)
    corrected = op.Mul(op.Div(x, op.Sub(total, one)), logarithm)
    is_small = op.Equal(total, one)
    is_large = op.Equal(total, x)  # infinite, or as large that 1 is lost
    return op.Where(is_small, x, op.Where(is_large, logarithm, corrected))


def _constant(value: float, like: Any) -> Any:
    """Return a number in the type of a tensor."""
    return op.CastLike(op.Constant(value_float=value), like)


def _add(x: Any, y: Any) -> Any:
    """Add by a subtraction: the sums of an int8 file are rounded to 8 bits, and these must not be.

    See `lightkit.export.onnx`, whose list of quantized operators has Add.
    """
    return op.Sub(x, op.Neg(y))


def _as_floats(x: Any) -> Any:
    """Return whole numbers and booleans in float32, as torch computes with them."""
    return x if x.dtype.is_floating_point() else op.Cast(x, to=ir.DataType.FLOAT)


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
