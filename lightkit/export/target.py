"""The model to export, with all that its files are made of.

Example, description, and samples of the proof.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor, nn

from lightkit.errors import ConfigError, ExportError
from lightkit.export.forward import (
    describe_value,
    dtype_name,
    example_from_module,
    example_from_shapes,
    name_inputs,
    run_model,
)
from lightkit.export.image_transform import ImageToProbabilities, activation_of, is_pair
from lightkit.export.metadata import Metadata, TensorSpec
from lightkit.export.options import ExportOptions
from lightkit.export.samples import (
    Array,
    EvaluationSamples,
    check_preprocessing,
    check_row_preprocessing,
    draw_samples,
    make_random_samples,
    read_calibration,
)
from lightkit.images.preprocessing import Preprocessing
from lightkit.rows.preprocessing import dump_preprocessing, find_preprocessing
from lightkit.task import find_class_names, task_of

_log = logging.getLogger("lightkit")
_MIN_BATCH = 2
"""torch.export takes a dimension of length 1 for one that is always 1."""
# between two runs of the model: the tolerances of a float32 file
_RTOL = 1e-4
_ATOL = 1e-5


@dataclass(frozen=True, eq=False)
class ExportTarget:
    """A model that is to be exported.

    Args:
        model: In eval mode, on the CPU, in float32 (or float64, if its class chose that). Its
            ``forward`` takes the inputs by position and returns a tensor, a tuple or list of
            tensors, or a mapping of tensors.
        example: Inputs of a batch of at least two, as ``forward`` takes them.
        metadata: Without format, precision and versions.
        samples: Samples of the proof.
        calibration: Returns inputs of training samples, each a tuple of arrays with a batch, for
            int8.
        plain: The same without preprocessing, if this has it in its graph.
    """

    model: nn.Module
    example: tuple[Tensor, ...]
    metadata: Metadata
    samples: EvaluationSamples
    calibration: Callable[[], Iterable[tuple[Array, ...]]] = tuple
    plain: ExportTarget | None = None

    @property
    def module(self) -> nn.Module:
        """The model without preprocessing."""
        return self.model if self.plain is None else self.plain.model


def make_target(
    module: LightningModule,
    data: LightningDataModule | None,
    options: ExportOptions,
    *,
    source: Mapping[str, str],
    class_names: Sequence[str] | None = None,
    not_scored: str = "",
) -> ExportTarget:
    """Find ``forward``'s inputs, draw the samples of the proof.

    Check that the model can be proved on them.

    Args:
        module: In eval mode, with its weights.
        data: The data, if there is any. Set up.
        options: Shapes of the inputs, number of samples, and whether the graph does the
            preprocessing.
        source: Origin of the weights.
        class_names: Those that the weights were trained for; without any those of the module, else
            of the data.
        not_scored: Why the labels of the samples mean nothing to the model, if that is so.

    Raises:
        ConfigError: If the inputs cannot be found, the preprocessing is not the loader's, or cannot
            go into the graph.
        ExportError: If ``forward`` fails, returns NaN, or something else each time.
    """
    example, samples = _choose_samples(module, data, options)
    module.trainer = None  # it is no part of the model, and would be pickled with it
    if not_scored:
        samples = replace(samples, batches=(), not_scored=not_scored)
    example = tuple(
        torch.cat([each] * 2).contiguous() if len(each) < _MIN_BATCH else each for each in example
    )
    class_names = class_names or find_class_names(module, data)
    preprocessing = getattr(data, "preprocessing", None)
    rows = dump_preprocessing(find_preprocessing(module))
    metadata = describe_model(
        module,
        example,
        class_names=class_names,
        preprocessing=preprocessing,
        rows=rows,
        source=source,
    )
    if metadata.preprocessing is not None:
        check_preprocessing(samples, metadata.preprocessing)
    if metadata.rows is not None:
        check_row_preprocessing(samples, metadata.row_preprocessing)
    calibration = partial(read_calibration, module, data, in_graph=options.with_preprocessing)
    target = ExportTarget(module, example, metadata, samples, calibration)
    check_self_consistency(target)
    if not options.with_preprocessing:
        return target
    target = include_preprocessing(target)
    if samples.load_image is None:
        raise ConfigError(
            f"--with-preprocessing: the export is verified on images, and {type(data).__name__}"
            " gives none. Expected a method `untransformed(split)` that returns the `(PIL image,"
            " label)` of each sample by its index."
        )
    return target


def _choose_samples(
    module: LightningModule, data: LightningDataModule | None, options: ExportOptions
) -> tuple[tuple[Tensor, ...], EvaluationSamples]:
    """Choose the example of ``forward``'s inputs and the samples of the proof.

    Where the data do not fit the example, the samples are random, with a warning.

    Raises:
        ConfigError: If there is neither an example nor data.
    """
    example = example_from_module(module)
    origin = "example_input_array"
    if options.input_shapes:
        example = example_from_shapes(module, options.input_shapes)
        origin = "--input-shape"
    samples = draw_samples(module, data, options.num_samples)
    if example is None:
        if samples is None:
            raise ConfigError(
                f"{type(module).__name__}: what forward takes is unknown: there are no data, and no"
                " example_input_array. Say --input-shape, such as --input-shape 1,3,224,224."
            )
        return tuple(tensor[:_MIN_BATCH] for tensor in samples.inputs), samples

    weakness = _explain_weakness(samples, example)
    if samples is None or weakness:
        samples = make_random_samples(example, options.num_samples, source=origin)
        _log.warning("the proof is weaker: %s, so that it is made on %s", weakness, samples.source)
    return example, samples


def _explain_weakness(samples: EvaluationSamples | None, example: Sequence[Tensor]) -> str:
    """Explain why an export for an example cannot be proved on samples; empty where it can."""
    if samples is None:
        return "there are no data"
    one, wanted = (
        " and ".join(describe_value(tensor[0]) for tensor in inputs)
        for inputs in (samples.inputs, example)
    )
    return (
        ""
        if one == wanted
        else f"a sample of the {samples.source} is {one}, and the export is for {wanted}"
    )


def describe_model(
    module: nn.Module,
    example: Sequence[Tensor],
    *,
    class_names: Any = None,
    preprocessing: Any = None,
    rows: Mapping[str, Any] | None = None,
    source: Mapping[str, str] | None = None,
) -> Metadata:
    """Describe a model as it is.

    Args:
        module: In eval mode, on the CPU.
        example: Inputs of a batch of at least two.
        class_names: In the order of the labels; ignored if they are no list of as many as the first
            output's columns, or of two for a single logit.
        preprocessing: The data module's `preprocessing`; ignored if the model takes other inputs
            than it makes.
        rows: Preparation of rows of a table, see `Metadata`.
        source: Origin of the weights.

    Raises:
        ExportError: If ``forward`` fails on the example, or returns something else than tensors.
    """
    inputs = dict(zip(name_inputs(module, len(example)), example, strict=True))
    outputs = _describe_tensors(run_model(module, example), len(example[0]))
    task = task_of(module)
    own = find_preprocessing(module)
    shape = outputs[0].shape
    has_classes = isinstance(class_names, (list, tuple)) and task.has_axis(shape, len(class_names))
    is_prepared = isinstance(preprocessing, Preprocessing) and [
        tuple(value.shape[1:]) for value in example
    ] == [(len(preprocessing.mean), *preprocessing.crop)]
    return Metadata(
        format="",
        model=f"{type(module).__module__}.{type(module).__qualname__}",
        inputs=_describe_tensors(
            inputs, len(example[0]), open_axes=[] if own is None else own.open_axes
        ),
        outputs=outputs,
        output_kind=task.output_kind,
        class_names=tuple(map(str, class_names)) if has_classes else None,
        thresholds=task.form.thresholds,
        preprocessing=preprocessing if is_prepared else None,
        rows=rows,
        source=dict(source or {}),
    )


def check_self_consistency(target: ExportTarget) -> None:
    """Run a model on its samples, before any file is written, in batches of the example's size.

    Raises:
        ExportError: If it fails, returns NaN, or something else when it is run again on the same
            samples.
    """
    name = type(target.module).__name__
    samples = target.samples
    size = len(target.example[0])
    for start in range(0, len(samples.names), size):
        rows = [row % len(samples.names) for row in range(start, start + size)]
        inputs = [values[rows] for values in samples.inputs]
        outputs = run_model(target.model, inputs)
        again = run_model(target.model, inputs) if start == 0 else outputs
        for key, output in outputs.items():
            if output.isnan().any():
                raise ExportError(
                    f"{name} itself gives NaN: {key!r}, for a sample from {samples.names[rows[0]]}"
                    f" to {samples.names[rows[-1]]}. No file of it can be proved. Look for weights"
                    " that are NaN, which a training with a loss of NaN"
                    " leaves, or for a division by zero."
                )
            if output.shape != again[key].shape or not torch.allclose(
                output, again[key], _RTOL, _ATOL
            ):
                raise ExportError(
                    f"{name} itself gives something else each time: {key!r} differs when the same"
                    " samples are given again. No file of it can be proved. Look in its forward"
                    " for dropout that stays on in eval mode (dropout(x) without"
                    " training=self.training), other random numbers, or"
                    " what it keeps from call to call."
                )


def include_preprocessing(plain: ExportTarget) -> ExportTarget:
    """Put a classifier's preprocessing into its graph.

    Put behind it what makes probabilities, or a mask, of logits.

    Raises:
        ConfigError: If the preprocessing is unknown, or the model is no classifier of images.
    """
    metadata = plain.metadata
    preprocessing = plain.metadata.preprocessing
    task = metadata.task
    if preprocessing is None or not (task.has_probabilities or task.form.has_masks):
        shapes = [
            f"{spec.name}"
            f" ({', '.join('batch' if size is None else str(size) for size in spec.shape)})"
            for spec in metadata.inputs
        ]
        raise ConfigError(
            f"--with-preprocessing: {type(plain.model).__name__} takes {' and '.join(shapes)}."
            " Expected a classifier of images alone, (batch, channels, height, width), for which"
            " the data module has an attribute `preprocessing`, a"
            " lightkit.images.preprocessing.Preprocessing with that crop. Its class has the"
            ' attribute output_kind = "logits" (or "probabilities"), for probabilities are to'
            " come out."
        )
    model = ImageToProbabilities(
        plain.model, preprocessing, activation_of(metadata), is_pair=is_pair(metadata)
    )
    size = (2, preprocessing.crop[0] + 21, preprocessing.crop[1] + 34, 3)
    example = torch.randint(
        0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    metadata = replace(
        metadata,
        inputs=(TensorSpec("images", "uint8", (None, None, None, 3)),),
        outputs=_describe_tensors(run_model(model, (example,)), len(example)),
        output_kind=metadata.task.form.in_graph_kind,
        in_graph=True,
    )
    return replace(plain, model=model, example=(example,), metadata=metadata, plain=plain)


def _describe_tensors(
    tensors: Mapping[str, Tensor], batch: int, *, open_axes: Iterable[int] = ()
) -> tuple[TensorSpec, ...]:
    """Describe inputs or outputs; a first dimension that is as long as the batch has any length.

    Args:
        tensors: By name.
        batch: Length of the batch.
        open_axes: Other dimensions of any length.
    """
    specs = []
    for name, tensor in tensors.items():
        shape: list[int | None] = list(tensor.shape)
        if shape[:1] == [batch]:
            shape[0] = None
        for axis in open_axes:
            shape[axis] = None
        specs.append(TensorSpec(name, dtype_name(tensor), tuple(shape)))
    return tuple(specs)
