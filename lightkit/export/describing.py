"""What an exported file will say of its model: inputs, outputs, classes, preprocessing, and whose weights it has."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from lightkit.artefacts.metadata import Metadata, OutputKind, TensorSpec
from lightkit.errors import ConfigError, ExportError
from lightkit.export.in_graph import with_preprocessing
from lightkit.export.inputs import arguments_of, at_least_two, described
from lightkit.export.subject import Subject, own
from lightkit.images.preprocessing import Preprocessing

__all__ = ["given_by", "graph_subject", "plain_subject"]

_IMAGE_DIMS = 4  # batch, channels, height, width
_MOST_LETTERS = 300


def plain_subject(
    module: nn.Module,
    example: Sequence[Tensor],
    *,
    class_names: Sequence[str] | None,
    preprocessing: Any,
    source: Mapping[str, str],
) -> Subject:
    """Describe a model as it is.

    Args:
        module: In eval mode, on the CPU.
        example: Inputs of a batch.
        class_names: In the order of the labels, where somebody knows them.
        preprocessing: What the data module says is done to an image; left out where this model takes no such image.
        source: Where the weights are from.

    Raises:
        ExportError: If ``forward`` fails on the example, or gives something else than tensors.
    """
    example = at_least_two(example)
    names = arguments_of(module).named(len(example))
    outputs = _outputs(module, example)
    kind: Any = getattr(module, "output_kind", "other")
    has_classes = class_names is not None and outputs[0].shape[-1:] == (len(class_names),)
    metadata = Metadata(
        format="",
        model=f"{type(module).__module__}.{type(module).__qualname__}",
        inputs=tuple(
            TensorSpec(name, dtype_of(tensor), (None, *tensor.shape[1:]))
            for name, tensor in zip(names, example, strict=True)
        ),
        outputs=outputs,
        output_kind=cast("OutputKind", kind if kind in get_args(OutputKind) else "other"),
        class_names=tuple(map(str, class_names)) if has_classes and class_names is not None else None,
        preprocessing=preprocessing if _is_prepared_so(example, preprocessing) else None,
        source=dict(source),
    )
    return Subject(module, example, metadata, plain=module)


def graph_subject(plain: Subject) -> Subject:
    """Put a model's preprocessing in front of it, and probabilities behind it.

    Raises:
        ConfigError: If the preprocessing is unknown, or the model is no classifier of images.
    """
    metadata = plain.metadata
    preprocessing = metadata.preprocessing
    if preprocessing is None:
        raise ConfigError(f"--with-preprocessing: {_why_none(plain)}")
    if metadata.output_kind == "other":
        raise ConfigError(
            f"--with-preprocessing: {type(plain.model).__name__} does not say what its output is, and probabilities "
            'are to come out. Give the class an attribute output_kind = "logits" (or "probabilities").'
        )
    model = with_preprocessing(plain.model, preprocessing, metadata.output_kind).eval()
    height, width = preprocessing.crop
    example = torch.randint(
        0, 256, (2, height + 21, width + 34, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    outputs = _outputs(model, (example,))
    described_so = replace(
        metadata,
        inputs=(TensorSpec("images", "uint8", (None, None, None, 3)),),
        outputs=outputs,
        output_kind="probabilities",
        in_graph=True,
    )
    return Subject(model, (example,), described_so, plain=plain.model)


def given_by(module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Run a model, and name its outputs: by their keys, ``output``, or ``output_0`` and so on.

    Raises:
        ExportError: If it fails, or gives something else than tensors.
    """
    name = type(module).__name__
    try:
        with torch.no_grad():
            given = module(*own(inputs))
    except Exception as error:  # whatever the user's forward raises is told
        shapes = " and ".join(map(described, inputs))
        says = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_LETTERS]
        raise ExportError(f"{name}.forward fails on {shapes}: {says}{_place(error)}") from error
    if isinstance(given, Tensor):
        return {"output": given}
    if isinstance(given, Mapping):
        named = {str(key): value for key, value in given.items()}
    elif isinstance(given, (tuple, list)):
        named = {f"output_{at}": value for at, value in enumerate(given)}
    else:
        named = {}
    if not named or not all(isinstance(value, Tensor) for value in named.values()):
        raise ExportError(
            f"{name}.forward gives {described(given)}; an export has a tensor, a tuple or list of tensors, or a "
            f"mapping of tensors."
        )
    return named


def dtype_of(tensor: Tensor) -> str:
    """Give the name that numpy has for a tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")


def _outputs(module: nn.Module, example: Sequence[Tensor]) -> tuple[TensorSpec, ...]:
    """Describe the outputs; a first dimension that is as long as the batch is one of any length."""
    length = len(example[0])
    return tuple(
        TensorSpec(
            name, dtype_of(value), (None, *value.shape[1:]) if value.shape[:1] == (length,) else tuple(value.shape)
        )
        for name, value in given_by(module, example).items()
    )


def _is_prepared_so(example: Sequence[Tensor], preprocessing: Any) -> bool:
    if not isinstance(preprocessing, Preprocessing) or len(example) != 1 or example[0].ndim != _IMAGE_DIMS:
        return False
    return tuple(example[0].shape[1:]) == (len(preprocessing.mean), *preprocessing.crop)


def _why_none(plain: Subject) -> str:
    inputs = plain.metadata.inputs
    if len(inputs) != 1 or len(inputs[0].shape) != _IMAGE_DIMS:
        shown = " and ".join(f"{spec.name} {_sizes(spec)}" for spec in inputs)
        return f"the model takes {shown}, and not images alone, each (batch, channels, height, width)."
    return (
        f"the data module says no preprocessing for images of {_sizes(inputs[0])}. Give it an attribute "
        "`preprocessing`, a lightkit.images.preprocessing.Preprocessing with that crop."
    )


def _sizes(spec: TensorSpec) -> str:
    return f"({', '.join('batch' if size is None else str(size) for size in spec.shape)})"


def _place(error: Exception) -> str:
    """Name the line of the user's code that raised, where it is not a library's."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not {"site-packages", "dist-packages"} & {*Path(frame.filename).parts} and frame.filename != __file__
    ]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
