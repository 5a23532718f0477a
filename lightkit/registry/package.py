"""A model as a folder in MLflow's format.

Written, loaded again, and compared with the trained module.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from lightkit.errors import ExportError
from lightkit.export import torchscript
from lightkit.export.export_errors import format_reason, silence_exporters
from lightkit.export.formats import FORMATS, flatten
from lightkit.export.metadata import RECORD, TensorSpec, installed_versions
from lightkit.export.target import ExportTarget, include_preprocessing
from lightkit.registry.row_model import write_row_model
from lightkit.runs.checkpoints import digest
from lightkit.runs.files import write_json

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

PackageFormat = Literal["torch_export", "torchscript"]
_TOLERANCE = 1e-5  # relative and absolute, for float32 on the same machine
_BATCH_SIZES = (1, 7)  # of the comparison
# pixels of the example: MLflow keeps it as JSON, twice; the model resizes
_HEIGHT = 48
_WIDTH = 64


def add_preprocessing(subject: ExportTarget) -> ExportTarget:
    """Put the preprocessing of an image classifier into its graph.

    So clients send images as they are.

    Returns:
        The same where the graph has it already, the model is no classifier, or its data module
        names no preprocessing. Else a model from uint8 ``(batch, height, width, 3)`` in RGB, of any
        size, to float32 ``(batch, classes)``.
    """
    metadata = subject.metadata
    if metadata.in_graph or metadata.preprocessing is None or not metadata.task.has_probabilities:
        return subject
    pixels = torch.Generator().manual_seed(0)
    example = torch.randint(256, (2, _HEIGHT, _WIDTH, 3), dtype=torch.uint8, generator=pixels)
    return replace(include_preprocessing(subject), example=(example,))


def is_servable(subject: ExportTarget) -> bool:
    """Return whether MLflow's server can answer with the model.

    It supports rows, or one tensor in and one out.
    """
    if subject.metadata.rows is not None:
        return True
    return len(subject.metadata.inputs) == 1 and len(subject.metadata.outputs) == 1


def model_signature(subject: ExportTarget) -> ModelSignature:
    """Make MLflow's signature.

    With names only where there are several tensors, as its PyTorch flavour expects.
    """
    from mlflow.models import ModelSignature  # 2 s
    from mlflow.types.schema import Schema
    from mlflow.types.schema import TensorSpec as Spec

    def schema(specs: Sequence[TensorSpec]) -> Any:
        names = [spec.name if len(specs) > 1 else None for spec in specs]
        shapes = [tuple(-1 if size is None else size for size in spec.shape) for spec in specs]
        return Schema(
            [
                Spec(np.dtype(spec.dtype), shape, name)
                for spec, shape, name in zip(specs, shapes, names, strict=True)
            ]
        )

    return ModelSignature(schema(subject.metadata.inputs), schema(subject.metadata.outputs))


def write_package(subject: ExportTarget, folder: Path, *, form: PackageFormat) -> None:
    """Write a model to a new folder, as ``mlflow.pytorch.load_model`` and MLflow's server read it.

    The first needs torch and numpy, not lightkit, where it is loaded; so does the server, but for a
    model of rows, see `lightkit.registry.row_model`.

    Args:
        subject: The model. Every dimension that its metadata leave open stays open.
        folder: The folder; folders ``script`` and ``tensors`` next to it may be made.
        form: As for `write_tensor_model`.

    Raises:
        ExportError: If the model cannot be written so, or gives other answers when it is loaded
            again.
    """
    if subject.metadata.rows is None:
        write_tensor_model(subject, folder, form=form)
        return
    tensors = folder.with_name("tensors")
    write_tensor_model(subject, tensors, form=form)
    with hide_advice():
        write_row_model(subject.metadata, tensors, folder)
    shutil.rmtree(tensors)


def write_tensor_model(subject: ExportTarget, folder: Path, *, form: PackageFormat) -> None:
    """Write a model that takes tensors into a new folder, in MLflow's PyTorch flavour.

    Args:
        subject: The model.
        folder: The folder.
        form: ``torch_export`` writes a graph, ``pt2``; ``torchscript`` a program that MLflow calls
            pickled, which holds no pickled code.

    Raises:
        ExportError: If the model cannot be written so, or gives other answers when it is loaded
            again.
    """
    import mlflow.pytorch  # 2 s

    examples = [tensor.numpy() for tensor in subject.example]
    given: dict[str, Any] = {
        "signature": model_signature(subject),
        # Named rather than inferred: MLflow's inference loads the model in a second Python, which
        # takes about 8 s.
        "pip_requirements": [
            f"torch=={torch.__version__.partition('+')[0]}",
            f"numpy=={np.__version__}",
        ],
        "metadata": {"lightkit": subject.metadata.as_dict()},
    }
    with hide_advice(), torch.no_grad():
        if form == "torch_export":
            example = examples[0] if len(examples) == 1 else tuple(subject.example)
            with _translate_failure(subject, form), silence_exporters():
                mlflow.pytorch.save_model(
                    subject.model,
                    str(folder),
                    input_example=example,
                    serialization_format="pt2",
                    **given,
                )
            graph = folder / "data" / FORMATS["torch_export"].file
            # so that it is loaded from the registry without --trust, as an exported file is
            write_json(
                graph.with_name(RECORD),
                {"schema": 1, "artefacts": {graph.name: {"sha256": digest(graph)}}},
            )
        else:
            script = folder.with_name("script") / FORMATS["torchscript"].file
            script.parent.mkdir()
            described = replace(
                subject.metadata, format="torchscript", versions=installed_versions()
            )
            torchscript.write(subject, described, script)
            scripted: nn.Module = torch.jit.load(script)  # type: ignore[no-untyped-call]
            if len(examples) == 1:
                given["input_example"] = examples[0]
            mlflow.pytorch.save_model(scripted, str(folder), serialization_format="pickle", **given)
        with silence_exporters():  # torch warns MLflow of TorchScript
            loaded = mlflow.pytorch.load_model(str(folder))
        _check_answers(subject, loaded, form)


def _check_answers(subject: ExportTarget, loaded: nn.Module, form: PackageFormat) -> None:
    """Compare the loaded model with the one that was written, for batches of other lengths too.

    Raises:
        ExportError: If one fails, or differs.
    """
    for size in _BATCH_SIZES:
        inputs = [
            tensor.repeat(-(-size // len(tensor)), *[1] * (tensor.ndim - 1))[:size]
            for tensor in subject.example
        ]
        with _translate_failure(subject, form, f"its {form} form fails for a batch of {size}"):
            answers = flatten(loaded(*inputs))
        for got, want in zip(answers, flatten(subject.model(*inputs)), strict=True):
            if got.shape != want.shape or not torch.allclose(
                got, want, rtol=_TOLERANCE, atol=_TOLERANCE
            ):
                gap = (got - want).abs().max().item() if got.shape == want.shape else float("nan")
                raise ExportError(
                    f"register: {subject.metadata.model} gives other answers once MLflow's form of"
                    f" it is loaded: the largest gap in a batch of {size} is {gap:.2e}."
                    f" {_other_format(form)}"
                )


def _other_format(form: PackageFormat) -> str:
    return (
        "Try the other form with --format"
        f" {'torchscript' if form == 'torch_export' else 'torch_export'}."
    )


@contextmanager
def _translate_failure(
    subject: ExportTarget, form: PackageFormat, failure: str = ""
) -> Iterator[None]:
    """Report in one line an error of torch or MLflow for a model that they cannot write or run.

    Raises:
        ExportError: Then.
    """
    try:
        yield
    except Exception as error:  # anything that the user's forward raises when it is traced
        raise ExportError(
            f"register: {subject.metadata.model}:"
            f" {failure or f'it cannot be written with --format {form}'}:"
            f" {format_reason(error).rstrip('.')}. {_other_format(form)}"
        ) from error


@contextmanager
def hide_advice() -> Iterator[None]:
    """Keep MLflow's advice on pickle, and on examples that it cannot show, from the screen."""
    names = ("mlflow.pytorch", "mlflow.pyfunc", "mlflow.models.model", "mlflow.models.utils")
    logs = [logging.getLogger(name) for name in names]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
