"""A module's ``forward``: the inputs that it takes of a batch, and what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from lightkit.errors import ConfigError, ExportError, format_count
from lightkit.export.export_errors import find_code_line

_MAX_KEYS = 8
_MAX_CHARACTERS = 300


def find_inputs(module: nn.Module, batch: Any) -> tuple[Tensor, ...]:
    """Find ``forward``'s inputs in a batch.

    If the module has a method ``forward_inputs(batch)``, it decides: it returns a tensor, several
    by position, or a mapping from names of arguments. Otherwise a tensor is the input itself; of a
    mapping, the keys that are names of ``forward``'s arguments are; of a tuple or list, as many
    leading items as ``forward`` has arguments without a default, or those of the first item if that
    is a tuple, list or mapping itself.

    Args:
        module: Has ``forward``.
        batch: Of the data's loader.

    Returns:
        Tensors whose first dimension is the batch.

    Raises:
        ConfigError: If they are not there.
    """
    method = getattr(module, "forward_inputs", None)
    if callable(method):
        return _select_inputs(module, method(batch), "forward_inputs(batch) gives", takes_all=True)
    return _select_inputs(module, batch, "a batch of the data is", takes_all=False)


def example_from_module(module: nn.Module) -> tuple[Tensor, ...] | None:
    """Read ``example_input_array`` as ``forward``'s inputs; None if the module has none.

    Raises:
        ConfigError: If ``forward`` does not take it.
    """
    example = getattr(module, "example_input_array", None)
    return (
        None
        if example is None
        else _select_inputs(module, example, "example_input_array is", takes_all=True)
    )


def example_from_shapes(
    module: nn.Module, shapes: Sequence[tuple[tuple[int, ...], str]]
) -> tuple[Tensor, ...]:
    """Make inputs of these shapes and dtypes, with a fixed seed.

    Floats are from a normal distribution, bytes are uniform, and other whole numbers are 0 or 1,
    which embedding tables of any length have.

    Args:
        module: Has ``forward``.
        shapes: Of each input, sizes with the batch first, and dtype as torch names it.

    Raises:
        ConfigError: If ``forward`` takes another number of inputs.
    """
    if not _takes(module, shapes):
        counted = format_count(len(shapes), "shape")
        raise ConfigError(
            f"--input-shape: {_describe_forward(module)} of {type(module).__name__} does not take"
            f" {counted} ({'; '.join('x'.join(map(str, sizes)) for sizes, _ in shapes)}). One for"
            " each input, parted by `;`."
        )
    generator = torch.Generator().manual_seed(0)
    example = []
    for sizes, name in shapes:
        dtype = getattr(torch, name)
        if dtype.is_floating_point:
            values = torch.randn(sizes, generator=generator)
        else:
            values = torch.randint(256 if dtype == torch.uint8 else 2, sizes, generator=generator)
        example.append(values.to(dtype))
    return tuple(example)


def _select_inputs(
    module: nn.Module, value: Any, origin: str, *, takes_all: bool
) -> tuple[Tensor, ...]:
    """Select the inputs in a batch or an example.

    Nothing may be left over if ``takes_all``.
    """
    if (
        not takes_all
        and isinstance(value, (tuple, list))
        and value
        and isinstance(value[0], (tuple, list, Mapping))
    ):
        # ((a, b), target) or ({...}, target)
        return _select_inputs(module, value[0], origin, takes_all=False)
    found = _select_leading(module, value, takes_all=takes_all)
    is_batch = all(
        isinstance(each, Tensor) and each.ndim and len(each) == len(found[0]) > 0 for each in found
    )
    if not (found and is_batch and _takes(module, found)):
        raise ConfigError(
            f"{type(module).__name__}: {origin} {describe_value(value)}, which"
            f" {_describe_forward(module)} does not take: expected {_describe_expected(module)}"
        )
    return tuple(tensor.detach().cpu() for tensor in found)


def _select_leading(module: nn.Module, value: Any, *, takes_all: bool) -> Sequence[Any]:
    """Select the parts of a batch that ``forward`` needs.

    By the names of its arguments, or as many as have no default.

    None of other values than tensors, mappings, tuples and lists.
    """
    if isinstance(value, Tensor):
        return (value,)
    parameters = _positional_parameters(module)
    if isinstance(value, Mapping):
        return [
            value[name]
            for name in takewhile(value.__contains__, (each.name for each in parameters))
        ]
    if not isinstance(value, (tuple, list)):
        return ()
    return (
        value
        if takes_all
        else value[: max(1, sum(each.default is each.empty for each in parameters))]
    )


def _positional_parameters(module: nn.Module) -> list[inspect.Parameter]:
    parameters = inspect.signature(module.forward).parameters.values()
    return [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]


def _takes(module: nn.Module, inputs: Sequence[Any]) -> bool:
    """Return whether ``forward`` takes so many inputs by position, as exported files do."""
    try:
        inspect.signature(module.forward).bind(*inputs)
    except TypeError:
        return False
    return True


def _describe_forward(module: nn.Module) -> str:
    parameters = inspect.signature(module.forward).parameters.values()
    # as they are written, with the stars of *args and **kwargs, without types and defaults
    names = [each.replace(annotation=each.empty, default=each.empty) for each in parameters]
    return f"forward({', '.join(map(str, names))})"


def _describe_expected(module: nn.Module) -> str:
    """Describe the inputs that can be found in a batch, and what else to do."""
    if not _takes(module, [None]) and not _positional_parameters(module):
        return (
            "arguments with names of their own, as an exported file takes its inputs by position;"
            " write forward(self, input_ids, attention_mask) in the place of"
            " forward(self, **inputs), with the keys of your batch."
        )
    return (
        "a tensor, leading tensors of a tuple, or a mapping with the names of its arguments, each"
        " with the batch as its first dimension, of the same length; a method"
        " forward_inputs(batch) of the module can give forward's inputs instead."
    )


def name_inputs(module: nn.Module, num: int) -> list[str]:
    """Name the first inputs after ``forward``'s arguments; those of ``*args`` by their numbers."""
    names = [each.name for each in _positional_parameters(module)[:num]]
    return [*names, *(f"input_{at}" for at in range(len(names), num))]


def describe_value(value: Any) -> str:
    """Describe a batch in a few words: ``a tuple of float32 (4, 3) and int64 (4,)``."""
    if isinstance(value, Tensor):
        return f"{dtype_name(value)} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        items = [f"{key}: {describe_value(item)}" for key, item in list(value.items())[:_MAX_KEYS]]
        return f"a {type(value).__name__} with {', '.join(items) or 'no keys'}"
    if isinstance(value, (tuple, list)):
        items = [describe_value(item) for item in value[:_MAX_KEYS]]
        return f"a {type(value).__name__} of {' and '.join(items) or 'nothing'}"
    return f"a {type(value).__name__}"


def dtype_name(tensor: Tensor) -> str:
    """Name a tensor's dtype as numpy does."""
    return str(tensor.dtype).removeprefix("torch.")


def clone_inputs(inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Clone a batch's inputs, which a forward may change in place."""
    return tuple(value.clone() for value in inputs)


def call_forward(module: nn.Module, inputs: Sequence[Tensor]) -> Any:
    """Run a model.

    Raises:
        ConfigError: If the module has none.
        ExportError: If it fails.
    """
    if (
        getattr(getattr(type(module), "forward", None), "__module__", None)
        == LightningModule.__module__
    ):
        name = type(module).__name__
        raise ConfigError(
            f"model: {name} has no forward, by which an exported or registered model is called. Add"
            f" forward(self, inputs) to {name}."
        )
    try:
        with torch.no_grad():
            return module(*clone_inputs(inputs))
    except Exception as error:  # the user's forward raises anything
        shapes = " and ".join(map(describe_value, inputs))
        message = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_CHARACTERS]
        where = f" ({Path(line).name})" if (line := find_code_line(error)) else ""
        raise ExportError(
            f"{type(module).__name__}.forward fails on {shapes}: {message}{where}\nIf forward takes"
            " other inputs than these, set them by example_input_array, or by a method"
            " forward_inputs(batch), of the module."
        ) from error


def run_model(module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Run a model, and name its outputs: by their keys, ``output``, or ``output_0`` and so on.

    Raises:
        ExportError: If it fails, or returns something else than tensors.
    """
    outputs = call_forward(module, inputs)
    named = dict[str, Any]()
    if isinstance(outputs, Tensor):
        named = {"output": outputs}
    elif isinstance(outputs, Mapping):
        named = {str(key): value for key, value in outputs.items()}
    elif isinstance(outputs, (tuple, list)):
        named = {f"output_{at}": value for at, value in enumerate(outputs)}
    if not named or not all(isinstance(value, Tensor) for value in named.values()):
        raise ExportError(
            f"{type(module).__name__}.forward gives {describe_value(outputs)}; an export has a"
            " tensor, a tuple or list of tensors, or a mapping of tensors."
        )
    return named
