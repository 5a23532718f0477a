"""Describe a model, its data and its optimizers for people and records.

A description never ends a fit: people's modules may have attributes of the same names, or none yet.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from lightkit.errors import LightkitError

_log = logging.getLogger(__name__)


@contextmanager
def describing(subject: str) -> Iterator[None]:
    """Warn of an error in what only describes, and go on; errors of lightkit's own data pass.

    Args:
        subject: What is described, for the warning.
    """
    try:
        yield
    except LightkitError:
        raise
    except Exception as error:  # noqa: BLE001 (any error of people's code)
        _log.warning("%s cannot be described: %s: %s", subject, type(error).__name__, error)


def describe_data(data: Any) -> dict[str, Any]:
    """Return what a data module says of itself in `describe()`: source, counts, fingerprint.

    Args:
        data: The data module; None where the module has its loaders itself.

    Returns:
        Nothing where there is no such method, or it is one of another meaning.
    """
    method = getattr(data, "describe", None)
    if not callable(method) or not _takes_nothing(method):
        return {}
    described: Any = None
    with describing(type(data).__name__):
        described = method()
    return dict(described) if isinstance(described, Mapping) else {}


def _takes_nothing(method: Any) -> bool:
    """Check whether a method can be called without arguments."""
    try:
        inspect.signature(method).bind()
    except (TypeError, ValueError):
        return False
    return True


def find_defects(data: Any) -> Any:
    """Return the list of bad samples that lightkit's data modules keep.

    None where there is none.
    """
    defects = getattr(data, "defects", None)
    return defects if hasattr(defects, "found") and hasattr(defects, "take_noted") else None


def count_parameters(module: nn.Module) -> tuple[int, int, bool]:
    """Count the parameters of a module, and those that are trained.

    Returns:
        Both numbers, and whether there are parameters whose size the first batch decides, as in
        `LazyLinear`; they are not counted.
    """
    parameters = list(module.parameters())
    known = [parameter for parameter in parameters if not is_lazy(parameter)]
    total = sum(parameter.numel() for parameter in known)
    trained = sum(parameter.numel() for parameter in known if parameter.requires_grad)
    return total, trained, len(known) < len(parameters)


def count_batches(loader: Any) -> int | None:
    """Count the batches of a loader; None where it has no length."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def count_samples(loader: Any) -> int | None:
    """Count the samples that a loader gives in an epoch; None where that is not known.

    Where a sample of its dataset is a whole batch, as with ``DataLoader(..., batch_size=None)``,
    the dataset's ``num_samples`` counts, if it has one.
    """
    dataset = getattr(loader, "dataset", None)
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:
        number = getattr(dataset, "num_samples", None)
        return number if isinstance(number, int) else None
    number = count_batches(getattr(batches, "sampler", dataset))
    is_short = getattr(batches, "drop_last", False) is True and isinstance(batches.batch_size, int)
    return number - number % batches.batch_size if is_short and number is not None else number
