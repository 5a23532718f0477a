"""What ``forward`` is called with: from a batch, from ``example_input_array``, or from shapes that somebody says."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from lightkit.errors import ConfigError

__all__ = [
    "Arguments",
    "Shape",
    "arguments_of",
    "at_least_two",
    "described",
    "example_of_module",
    "example_of_shapes",
    "inputs_of",
]

_LEAST_BATCH = 2
"""torch.export takes a dimension of length 1 for one that is always 1."""
_MOST_KEYS = 8
_SAY_IT = "a method forward_inputs(batch) of the module can give forward's inputs instead"


@dataclass(frozen=True)
class Shape:
    """Of one input, as `--input-shape` says it.

    Args:
        sizes: Its dimensions; the batch comes first.
        name: Argument of ``forward``; that at the same place if None.
        dtype: As torch names it.
    """

    sizes: tuple[int, ...]
    name: str | None = None
    dtype: str = "float32"


@dataclass(frozen=True)
class Arguments:
    """What ``forward`` takes by position.

    Args:
        names: Of its arguments; of ``*args`` none.
        num_required: How many of them have no default.
        takes_any: Whether it has ``*args``.
    """

    names: tuple[str, ...]
    num_required: int
    takes_any: bool

    @property
    def num_taken(self) -> int:
        """How many items of a batch are taken."""
        return max(1, self.num_required)

    def named(self, count: int) -> tuple[str, ...]:
        """Name the first ``count`` inputs."""
        return tuple(self.names[at] if at < len(self.names) else f"input_{at}" for at in range(count))

    def __str__(self) -> str:
        names = list(self.names[: self.num_required])
        names += [f"[{name}]" for name in self.names[self.num_required :]]
        return f"forward({', '.join([*names, *(['*'] if self.takes_any else [])])})"


def arguments_of(module: nn.Module) -> Arguments:
    """Read the signature of ``forward``.

    Raises:
        ConfigError: If there is none, or it needs an argument by name, which no exported file has.
    """
    if type(module).forward in (nn.Module.forward, LightningModule.forward):
        raise ConfigError(f"{type(module).__name__} has no forward, which is what an export writes. Give it one.")
    parameters = inspect.signature(module.forward).parameters.values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if needed:
        raise ConfigError(
            f"{type(module).__name__}.forward needs {needed[0]} by name, and exported files take inputs by position. "
            f"Write it before the * of the signature, or give it a default."
        )
    return Arguments(
        tuple(p.name for p in by_position),
        sum(p.default is p.empty for p in by_position),
        any(p.kind is p.VAR_POSITIONAL for p in parameters),
    )


def inputs_of(module: nn.Module, batch: Any) -> tuple[Tensor, ...]:
    """Find ``forward``'s inputs in a batch.

    A module's own ``forward_inputs(batch)`` decides where there is one: it gives a tensor, several by position, or a
    mapping from names of arguments. Otherwise a tensor is the input itself; of a mapping, the keys that are names of
    ``forward``'s arguments are; of a tuple or list, as many leading items as ``forward`` has arguments without a
    default, or those of the first item where that is a tuple, list or mapping itself.

    Args:
        module: Has ``forward``.
        batch: As the data's loader gives it.

    Returns:
        Tensors whose first dimension is the batch.

    Raises:
        ConfigError: If they are not there.
    """
    arguments = arguments_of(module)
    own: Any = getattr(module, "forward_inputs", None)
    has_own = callable(own)
    said = own(batch) if has_own else batch
    found = _taken(said, arguments, is_exact=has_own)
    if found is None:
        by_whom = "forward_inputs(batch) gives" if has_own else "a batch of the data is"
        raise ConfigError(_unfit(module, arguments, f"{by_whom} {described(said)}"))
    return _checked(module, found)


def example_of_module(module: nn.Module) -> tuple[Tensor, ...] | None:
    """Give ``example_input_array`` as ``forward`` takes it; None where the module has none.

    Raises:
        ConfigError: If ``forward`` does not take what it is.
    """
    said = getattr(module, "example_input_array", None)
    if said is None:
        return None
    arguments = arguments_of(module)
    found = _taken(said, arguments, is_exact=True)
    if found is None:
        raise ConfigError(_unfit(module, arguments, f"example_input_array is {described(said)}"))
    return _checked(module, found)


def example_of_shapes(module: nn.Module, shapes: Sequence[Shape]) -> tuple[Tensor, ...]:
    """Make inputs of these shapes and dtypes, with a fixed seed.

    Floats are from a normal distribution, bytes are uniform, and other whole numbers are 0 or 1, which tables of
    embeddings of any length have.

    Raises:
        ConfigError: If ``forward`` takes another number of inputs, or has no argument of a name.
    """
    arguments = arguments_of(module)
    by_name = {shape.name: shape for shape in shapes if shape.name is not None}
    if unknown := [name for name in by_name if name not in arguments.names]:
        raise ConfigError(f"--input-shape: {arguments} of {type(module).__name__} has no argument {unknown[0]!r}.")
    in_order = tuple(shapes) if _is_enough(len(shapes), arguments) else None
    found = _by_name(by_name, arguments) if by_name else in_order
    if found is None or len(found) != len(shapes):
        counted = f"{len(shapes)} shape{'s' if len(shapes) > 1 else ''}"
        raise ConfigError(
            f"--input-shape: {arguments} of {type(module).__name__} does not take {counted} "
            f"({'; '.join('x'.join(map(str, shape.sizes)) for shape in shapes)}). One for each input, parted by `;`."
        )
    generator = torch.Generator().manual_seed(0)
    return tuple(_filled(shape, generator) for shape in found)


def _filled(shape: Shape, generator: torch.Generator) -> Tensor:
    size = (max(_LEAST_BATCH, shape.sizes[0]), *shape.sizes[1:])
    dtype: torch.dtype = getattr(torch, shape.dtype)
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(256 if dtype == torch.uint8 else 2, size, generator=generator).to(dtype)


def at_least_two(inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Repeat a batch of one, so that its length is not taken for a constant."""
    return tuple(
        torch.cat([tensor] * _LEAST_BATCH).contiguous() if tensor.shape[0] < _LEAST_BATCH else tensor
        for tensor in inputs
    )


def described(value: Any) -> str:
    """Say what a batch is, in a few words: ``a tuple of float32 (4, 3) and int64 (4,)``."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        shown = [f"{key}: {described(item)}" for key, item in list(value.items())[:_MOST_KEYS]]
        return f"a {type(value).__name__} with {', '.join(shown) or 'no keys'}"
    if isinstance(value, (tuple, list)):
        shown = [described(item) for item in value[:_MOST_KEYS]]
        return f"a {type(value).__name__} of {' and '.join(shown) or 'nothing'}"
    return f"a {type(value).__name__}"


def _taken(value: Any, arguments: Arguments, *, is_exact: bool) -> tuple[Tensor, ...] | None:
    """Take the inputs out of a value; None where they are not there.

    Args:
        value: A batch, or what somebody says the inputs are.
        arguments: Those of ``forward``.
        is_exact: Whether all of it is meant as inputs, so that nothing is left over.
    """
    if isinstance(value, Tensor):
        return (value,) if arguments.num_taken == 1 and (arguments.names or arguments.takes_any) else None
    fields: Any = getattr(value, "_fields", None)  # of a named tuple
    if isinstance(value, tuple) and fields is not None:
        is_named = {*arguments.names[: arguments.num_taken]} <= {*fields}
        value = dict(zip(fields, value, strict=True)) if is_named else tuple(value)
    if isinstance(value, Mapping):
        return _tensors(_by_name(value, arguments))
    if not isinstance(value, (tuple, list)) or not value:
        return None
    if is_exact:
        return _tensors(value) if _is_enough(len(value), arguments) else None
    if not isinstance(value[0], Tensor):  # ((a, b), target) or ({...}, target)
        return _taken(value[0], arguments, is_exact=False)
    return _tensors(value[: arguments.num_taken]) if len(value) >= arguments.num_taken else None


def _by_name(values: Mapping[Any, Any], arguments: Arguments) -> tuple[Any, ...] | None:
    """Give what stands under the names of the arguments, up to the first that is missing."""
    found = []
    for name in arguments.names:
        if name not in values:
            break
        found.append(values[name])
    return tuple(found) if found and len(found) >= arguments.num_required else None


def _tensors(values: Iterable[Any] | None) -> tuple[Tensor, ...] | None:
    found = () if values is None else tuple(values)
    return found if found and all(isinstance(value, Tensor) for value in found) else None


def _is_enough(count: int, arguments: Arguments) -> bool:
    return arguments.num_required <= count and (arguments.takes_any or count <= len(arguments.names))


def _checked(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    lengths = {tensor.shape[0] if tensor.ndim else None for tensor in inputs}
    if len(lengths) > 1 or None in lengths or 0 in lengths:
        named = zip(arguments_of(module).named(len(inputs)), inputs, strict=True)
        shapes = ", ".join(f"{name} {described(tensor)}" for name, tensor in named)
        raise ConfigError(
            f"{type(module).__name__}.forward would get {shapes}: the first dimension of each input must be the batch, "
            f"of the same length; {_SAY_IT}."
        )
    return tuple(tensor.detach().cpu() for tensor in inputs)


def _unfit(module: nn.Module, arguments: Arguments, found: str) -> str:
    return (
        f"{type(module).__name__}: {found}, which {arguments} does not take: expected a tensor, leading tensors "
        f"of a tuple, or a mapping with the names of its arguments; {_SAY_IT}."
    )
