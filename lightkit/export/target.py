"""The model to export: its ``forward``'s inputs, found in a batch or made of shapes, and its description."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from lightkit.errors import ConfigError, ExportError
from lightkit.export.export_errors import find_code_line
from lightkit.export.image_transform import ImageToProbabilities
from lightkit.export.metadata import Metadata, OutputKind, TensorSpec
from lightkit.images.preprocessing import Preprocessing

_MIN_BATCH = 2
"""torch.export takes a dimension of length 1 for one that is always 1."""
_MAX_KEYS = 8
_MAX_CHARACTERS = 300
_HINT = "a method forward_inputs(batch) of the module can give forward's inputs instead"


@dataclass(frozen=True)
class ExportTarget:
    """A model that is to be exported.

    Args:
        model: In eval mode, on the CPU, in float32 (or float64, if its class chose that). Its ``forward`` takes the
            inputs by position and returns a tensor, a tuple or list of tensors, or a mapping of tensors. If the
            preprocessing is in the graph, this is the model with it.
        example: Inputs of a batch of at least two, as ``forward`` takes them.
        metadata: Without format, precision and versions.
        plain: The model without preprocessing; `model` itself if there is none in the graph.
        calibration: Returns inputs of training samples, each a tuple of arrays with a batch, for int8.
    """

    model: nn.Module
    example: tuple[Tensor, ...]
    metadata: Metadata
    plain: nn.Module
    calibration: Callable[[], Iterable[tuple[np.ndarray[Any, Any], ...]]] = tuple


def read_parameters(module: nn.Module) -> list[inspect.Parameter]:
    """Read the parameters of a module's ``forward`` that are given by position.

    Raises:
        ConfigError: If there is no ``forward``, or it needs a keyword argument, which no exported file has.
    """
    name = type(module).__name__
    if type(module).forward in (nn.Module.forward, LightningModule.forward):
        raise ConfigError(f"{name} has no forward, which is what an export writes. Give it one.")
    parameters = inspect.signature(module.forward).parameters.values()
    if required := [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]:
        raise ConfigError(
            f"{name}.forward needs {required[0]} by name, and exported files take inputs by position. Write it before "
            "the * of the signature, or give it a default."
        )
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _describe_forward(module: nn.Module) -> str:
    return f"forward({', '.join(inspect.signature(module.forward).parameters)})"


def _is_accepted(module: nn.Module, inputs: Sequence[Any]) -> bool:
    try:
        inspect.signature(module.forward).bind(*inputs)
    except TypeError:
        return False
    return bool(inputs)


def _name_inputs(module: nn.Module, num: int) -> list[str]:
    names = [each.name for each in read_parameters(module)[:num]]
    return [*names, *(f"input_{at}" for at in range(len(names), num))]  # of *args


def find_inputs(module: nn.Module, batch: Any) -> tuple[Tensor, ...]:
    """Find ``forward``'s inputs in a batch.

    If the module has a method ``forward_inputs(batch)``, it decides: it returns a tensor, several by position, or a
    mapping from names of arguments. Otherwise a tensor is the input itself; of a mapping, the keys that are names of
    ``forward``'s arguments are; of a tuple or list, as many leading items as ``forward`` has arguments without a
    default, or those of the first item if that is a tuple, list or mapping itself.

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
        return _select_inputs(module, method(batch), "forward_inputs(batch) gives", is_exact=True)
    return _select_inputs(module, batch, "a batch of the data is", is_exact=False)


def example_from_module(module: nn.Module) -> tuple[Tensor, ...] | None:
    """Read ``example_input_array`` as ``forward``'s inputs; None if the module has none.

    Raises:
        ConfigError: If ``forward`` does not take it.
    """
    example = getattr(module, "example_input_array", None)
    return None if example is None else _select_inputs(module, example, "example_input_array is", is_exact=True)


def example_from_shapes(module: nn.Module, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[Tensor, ...]:
    """Make inputs of these shapes and dtypes, with a fixed seed.

    Floats are from a normal distribution, bytes are uniform, and other whole numbers are 0 or 1, which embedding tables
    of any length have.

    Args:
        module: Has ``forward``.
        shapes: Of each input, sizes with the batch first, and dtype as torch names it; a batch of one becomes two.

    Raises:
        ConfigError: If ``forward`` takes another number of inputs.
    """
    if not _is_accepted(module, shapes):
        counted = f"{len(shapes)} shape{'s' if len(shapes) > 1 else ''}"
        raise ConfigError(
            f"--input-shape: {_describe_forward(module)} of {type(module).__name__} does not take {counted} "
            f"({'; '.join('x'.join(map(str, sizes)) for sizes, _ in shapes)}). One for each input, parted by `;`."
        )
    generator = torch.Generator().manual_seed(0)
    example = []
    for sizes, name in shapes:
        size, dtype = (max(_MIN_BATCH, sizes[0]), *sizes[1:]), getattr(torch, name)
        if dtype.is_floating_point:
            values = torch.randn(size, generator=generator)
        else:
            values = torch.randint(256 if dtype == torch.uint8 else 2, size, generator=generator)
        example.append(values.to(dtype))
    return tuple(example)


def _select_inputs(module: nn.Module, value: Any, origin: str, *, is_exact: bool) -> tuple[Tensor, ...]:
    """Select the inputs in a batch or an example, of which nothing may be left over if ``is_exact``."""
    if not is_exact and isinstance(value, (tuple, list)) and value and isinstance(value[0], (tuple, list, Mapping)):
        return _select_inputs(module, value[0], origin, is_exact=False)  # ((a, b), target) or ({...}, target)
    parameters = read_parameters(module)
    found: Sequence[Any] = ()
    if isinstance(value, Tensor):
        found = (value,)
    elif isinstance(value, Mapping):
        found = _pick_by_name(module, value)
    elif isinstance(value, (tuple, list)):
        num_required = sum(each.default is each.empty for each in parameters)
        found = value if is_exact else value[: max(1, num_required)]
    if not _is_accepted(module, found) or not all(isinstance(tensor, Tensor) for tensor in found):
        raise ConfigError(
            f"{type(module).__name__}: {origin} {describe_value(value)}, which {_describe_forward(module)} does not "
            "take: expected a tensor, leading tensors of a tuple, or a mapping with the names of its arguments; "
            f"{_HINT}."
        )
    lengths = {tensor.shape[0] if tensor.ndim else None for tensor in found}
    if len(lengths) > 1 or None in lengths or 0 in lengths:
        named = zip(_name_inputs(module, len(found)), found, strict=True)
        shapes = ", ".join(f"{name} {describe_value(tensor)}" for name, tensor in named)
        raise ConfigError(
            f"{type(module).__name__}.forward would get {shapes}: the first dimension of each input must be the batch, "
            f"of the same length; {_HINT}."
        )
    return tuple(tensor.detach().cpu() for tensor in found)


def _pick_by_name(module: nn.Module, values: Mapping[Any, Any]) -> list[Any]:
    """Pick the values of the arguments, up to the first that is missing."""
    names = takewhile(values.__contains__, (each.name for each in read_parameters(module)))
    return [values[name] for name in names]


def describe_value(value: Any) -> str:
    """Describe a batch in a few words: ``a tuple of float32 (4, 3) and int64 (4,)``."""
    if isinstance(value, Tensor):
        return f"{_dtype_name(value)} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        items = [f"{key}: {describe_value(item)}" for key, item in list(value.items())[:_MAX_KEYS]]
        return f"a {type(value).__name__} with {', '.join(items) or 'no keys'}"
    if isinstance(value, (tuple, list)):
        items = [describe_value(item) for item in value[:_MAX_KEYS]]
        return f"a {type(value).__name__} of {' and '.join(items) or 'nothing'}"
    return f"a {type(value).__name__}"


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def clone_inputs(inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Clone a batch's inputs, which a forward may change in place."""
    return tuple(value.clone() for value in inputs)


def call_forward(module: nn.Module, inputs: Sequence[Tensor]) -> Any:
    """Run a model.

    Raises:
        ExportError: If it fails.
    """
    try:
        with torch.no_grad():
            return module(*clone_inputs(inputs))
    except Exception as error:  # the user's forward raises anything
        shapes = " and ".join(map(describe_value, inputs))
        message = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_CHARACTERS]
        where = f" ({Path(line).name})" if (line := find_code_line(error)) else ""
        raise ExportError(f"{type(module).__name__}.forward fails on {shapes}: {message}{where}") from error


def name_outputs(module: nn.Module, outputs: Any) -> dict[str, Tensor]:
    """Name what a model returns: by their keys, ``output``, or ``output_0`` and so on.

    Raises:
        ExportError: If it is something else than tensors.
    """
    named: dict[str, Any] = {}
    if isinstance(outputs, Tensor):
        named = {"output": outputs}
    elif isinstance(outputs, Mapping):
        named = {str(key): value for key, value in outputs.items()}
    elif isinstance(outputs, (tuple, list)):
        named = {f"output_{at}": value for at, value in enumerate(outputs)}
    if not named or not all(isinstance(value, Tensor) for value in named.values()):
        raise ExportError(
            f"{type(module).__name__}.forward gives {describe_value(outputs)}; an export has a tensor, a tuple or list "
            "of tensors, or a mapping of tensors."
        )
    return named


def run_model(module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Run a model, and name its outputs.

    Raises:
        ExportError: If it fails, or returns something else than tensors.
    """
    return name_outputs(module, call_forward(module, inputs))


def make_target(
    module: nn.Module,
    example: Sequence[Tensor],
    *,
    class_names: Sequence[str] | None = None,
    preprocessing: Any = None,
    source: Mapping[str, str] | None = None,
) -> ExportTarget:
    """Describe a model as it is.

    Args:
        module: In eval mode, on the CPU.
        example: Inputs of a batch; a batch of one is repeated, so that its length is not taken for a constant.
        class_names: In the order of the labels, if they are known.
        preprocessing: The data module's `preprocessing`; ignored if the model takes other inputs than it makes.
        source: Origin of the weights.

    Raises:
        ExportError: If ``forward`` fails on the example, or returns something else than tensors.
    """
    example = tuple(torch.cat([value] * 2).contiguous() if len(value) < _MIN_BATCH else value for value in example)
    names = _name_inputs(module, len(example))
    outputs = _describe_outputs(module, example)
    kind: Any = getattr(module, "output_kind", "other")
    has_classes = class_names is not None and outputs[0].shape[-1:] == (len(class_names),)
    is_prepared = isinstance(preprocessing, Preprocessing) and [tuple(value.shape[1:]) for value in example] == [
        (len(preprocessing.mean), *preprocessing.crop)
    ]
    metadata = Metadata(
        format="",
        model=f"{type(module).__module__}.{type(module).__qualname__}",
        inputs=tuple(
            TensorSpec(name, _dtype_name(tensor), (None, *tensor.shape[1:]))
            for name, tensor in zip(names, example, strict=True)
        ),
        outputs=outputs,
        output_kind=cast("OutputKind", kind if kind in get_args(OutputKind) else "other"),
        class_names=tuple(map(str, class_names)) if has_classes and class_names is not None else None,
        preprocessing=preprocessing if is_prepared else None,
        source=dict(source or {}),
    )
    return ExportTarget(module, example, metadata, plain=module)


def include_preprocessing(plain: ExportTarget) -> ExportTarget:
    """Put a classifier's preprocessing into its graph, and a softmax behind it if it returns logits.

    Raises:
        ConfigError: If the preprocessing is unknown, or the model is no classifier of images.
    """
    metadata, preprocessing = plain.metadata, plain.metadata.preprocessing
    if preprocessing is None:
        shapes = [
            f"{spec.name} ({', '.join('batch' if size is None else str(size) for size in spec.shape)})"
            for spec in metadata.inputs
        ]
        raise ConfigError(
            f"--with-preprocessing: the model takes {' and '.join(shapes)}, for which the data module names no "
            "preprocessing. Expected images alone, (batch, channels, height, width), and an attribute `preprocessing` "
            "of the data module, a lightkit.images.preprocessing.Preprocessing with that crop."
        )
    if metadata.output_kind == "other":
        raise ConfigError(
            f"--with-preprocessing: {type(plain.model).__name__} does not say what its output is, and probabilities "
            'are to come out. Give the class an attribute output_kind = "logits" (or "probabilities").'
        )
    model = ImageToProbabilities(plain.model, preprocessing, metadata.output_kind)
    size = (2, preprocessing.crop[0] + 21, preprocessing.crop[1] + 34, 3)
    example = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    metadata = replace(
        metadata,
        inputs=(TensorSpec("images", "uint8", (None, None, None, 3)),),
        outputs=_describe_outputs(model, (example,)),
        output_kind="probabilities",
        in_graph=True,
    )
    return replace(plain, model=model, example=(example,), metadata=metadata)


def _describe_outputs(module: nn.Module, example: Sequence[Tensor]) -> tuple[TensorSpec, ...]:
    """Describe the outputs; a first dimension that is as long as the batch has any length."""
    batch = len(example[0])
    return tuple(
        TensorSpec(
            name, _dtype_name(value), (None, *value.shape[1:]) if value.shape[:1] == (batch,) else tuple(value.shape)
        )
        for name, value in run_model(module, example).items()
    )
