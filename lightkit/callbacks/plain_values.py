"""Hyper-parameters as plain values, so that their checkpoint loads without code: as a config writes them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import os
import uuid
from argparse import Namespace
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["plain", "without_numpy_scalars"]

_AS_TEXT = (os.PathLike, dt.timedelta, decimal.Decimal, uuid.UUID)
_AS_THEY_ARE = (torch.Tensor, torch.dtype, torch.device, str, bytes, bool, int, float, complex, type(None))


def plain(value: Any) -> Any:
    """Give what stands for a value in a config: text for a path, the name of an enumeration's member, and so on.

    Containers and values are those that ``torch.load(weights_only=True)`` takes; what has no plain form is left.
    """
    if isinstance(value, enum.Enum):
        return value.name
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Namespace):
        return plain(vars(value))
    if isinstance(value, Mapping):  # also an OmegaConf DictConfig, which resolves what it interpolates
        return {plain(key): plain(child) for key, child in value.items()}
    return _plain_sequence(value)


def _plain_sequence(value: Any) -> Any:
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, tuple):
        return tuple(plain(child) for child in value)
    if isinstance(value, (set, frozenset)):
        children = [plain(child) for child in value]
        return set(children) if all(isinstance(child, Hashable) for child in children) else children
    if isinstance(value, (list, range)) or type(value).__module__ == "omegaconf.listconfig":
        return [plain(child) for child in value]
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, _AS_TEXT):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    kinds: tuple[type[Any], ...] = (str, bytes, bool, int, float, complex)
    for kind in kinds:  # of a class of somebody's own
        if isinstance(value, kind):
            return kind(value)
    if callable(value) and hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        return f"{value.__module__}.{value.__qualname__}"
    return value


def without_numpy_scalars(value: Any) -> Any:
    """Put Python's numbers in the place of numpy's within plain containers; the very object where there are none.

    A learning rate that was found, or a metric that a callback keeps, may be one.
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        changed = {key: without_numpy_scalars(child) for key, child in value.items()}
        return changed if any(changed[key] is not child for key, child in value.items()) else value
    if type(value) in (list, tuple):
        children = [without_numpy_scalars(child) for child in value]
        same = all(new is old for new, old in zip(children, value, strict=True))
        return value if same else type(value)(children)
    return value
