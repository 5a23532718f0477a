"""A model as a folder in MLflow's format: written, loaded again, and compared with what it was made of."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lightkit.artefacts.digests import RECORD
from lightkit.artefacts.metadata import FILES, TensorSpec
from lightkit.errors import ExportError
from lightkit.export.fresh.runtimes import flatten
from lightkit.export.reasons import quiet, reasoned
from lightkit.export.subject import Subject, WriteOptions
from lightkit.export.writing import write
from lightkit.runs.files import write_json
from lightkit.runs.integrity import digest

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

__all__ = ["WAYS", "Way", "package", "servable", "signature_of"]

Way = Literal["torch_export", "torchscript"]
WAYS: tuple[Way, ...] = ("torch_export", "torchscript")
_TOLERANCE = 1e-5  # relative and absolute, for float32 on the same machine
_BATCHES = (1, 7)


def package(subject: Subject, folder: Path, *, way: Way) -> None:
    """Write a model into a new folder, as ``mlflow.pytorch.load_model`` and MLflow's server read it.

    It needs torch and numpy, not lightkit, where it is loaded.

    Args:
        subject: The model. Every dimension that its metadata leave open stays open.
        folder: The folder; a folder ``script`` beside it may be made.
        way: ``torch_export`` writes a graph, ``pt2``; ``torchscript`` a program that MLflow calls pickled, which
            holds no pickled code.

    Raises:
        ExportError: If the model cannot be written so, or gives other answers when it is loaded again.
    """
    import mlflow.pytorch  # mlflow takes 2 s to import

    example = [tensor.numpy() for tensor in subject.example]
    given: dict[str, Any] = {
        "signature": signature_of(subject),
        "pip_requirements": _requirements(),
        "metadata": {"lightkit": subject.metadata.as_dict()},
    }
    with _without_advice(), torch.no_grad():
        if way == "torch_export":
            with _told(subject, way), quiet():
                mlflow.pytorch.save_model(
                    subject.model,
                    str(folder),
                    input_example=example[0] if len(example) == 1 else tuple(subject.example),
                    serialization_format="pt2",
                    **given,
                )
            graph = folder / "data" / FILES["torch_export"]
            # so that it is loaded from the registry without --trust, as an exported file is
            write_json(graph.with_name(RECORD), {"schema": 1, "artefacts": {graph.name: {"sha256": digest(graph)}}})
        else:
            scripted = _scripted(subject, folder)
            first = {"input_example": example[0]} if len(example) == 1 else {}
            mlflow.pytorch.save_model(scripted, str(folder), serialization_format="pickle", **first, **given)
        with quiet():  # torch tells MLflow that it reads TorchScript
            loaded = mlflow.pytorch.load_model(str(folder))
        _prove(subject, loaded, way)


def servable(subject: Subject) -> bool:
    """Tell whether MLflow's server can answer with the model: it knows one tensor in and one out."""
    return len(subject.metadata.inputs) == 1 and len(subject.metadata.outputs) == 1


def signature_of(subject: Subject) -> ModelSignature:
    """Give MLflow's signature: names only where there are several, as MLflow's PyTorch flavour wants it."""
    from mlflow.models import ModelSignature  # mlflow takes 2 s to import

    return ModelSignature(_schema(subject.metadata.inputs), _schema(subject.metadata.outputs))


def _schema(specs: Sequence[TensorSpec]) -> Any:
    from mlflow.types.schema import Schema  # mlflow takes 2 s to import
    from mlflow.types.schema import TensorSpec as Spec

    return Schema(
        [
            Spec(
                np.dtype(spec.dtype),
                tuple(-1 if size is None else size for size in spec.shape),
                name=spec.name if len(specs) > 1 else None,
            )
            for spec in specs
        ]
    )


def _requirements() -> list[str]:
    # Named rather than inferred: MLflow's inference loads the model in a second Python, which takes about 8 s.
    return [f"torch=={torch.__version__.partition('+')[0]}", f"numpy=={np.__version__}"]


def _scripted(subject: Subject, folder: Path) -> nn.Module:
    """Give the model as TorchScript, as an export writes it: scripted, or traced where it cannot be."""
    path = folder.with_name("script") / FILES["torchscript"]
    path.parent.mkdir()
    write("torchscript", subject, path, WriteOptions())
    scripted: nn.Module = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return scripted


def _prove(subject: Subject, loaded: nn.Module, way: Way) -> None:
    """Compare the loaded model with the one that was written, for batches of other lengths too.

    Raises:
        ExportError: If one fails, or differs.
    """
    for size in _BATCHES:
        inputs = [_of_length(tensor, size) for tensor in subject.example]
        with _told(subject, way, f"its {way} form fails for a batch of {size}"):
            given = flatten(loaded(*inputs))
        wanted = flatten(subject.model(*inputs))
        for got, want in zip(given, wanted, strict=True):
            if got.shape != want.shape or not torch.allclose(got, want, rtol=_TOLERANCE, atol=_TOLERANCE):
                gap = (got - want).abs().max().item() if got.shape == want.shape else float("nan")
                raise ExportError(
                    f"register: {subject.metadata.model} gives other answers once MLflow's form of it is loaded: "
                    f"the largest gap in a batch of {size} is {gap:.2e}. Try the other form with --format "
                    f"{'torchscript' if way == 'torch_export' else 'torch_export'}."
                )


def _of_length(tensor: Tensor, size: int) -> Tensor:
    return tensor.repeat(-(-size // len(tensor)), *[1] * (tensor.ndim - 1))[:size]


@contextmanager
def _told(subject: Subject, way: Way, what: str = "") -> Iterator[None]:
    """Tell in one line what torch and MLflow raise for a model that they cannot write or run.

    Raises:
        ExportError: Then.
    """
    try:
        yield
    except Exception as error:  # whatever the user's forward raises when it is traced
        raise ExportError(
            f"register: {subject.metadata.model}: {what or f'it cannot be written with --format {way}'}: "
            f"{reasoned(error).rstrip('.')}. Try --format {'torchscript' if way == 'torch_export' else 'torch_export'}."
        ) from error


@contextmanager
def _without_advice() -> Iterator[None]:
    """Keep MLflow's advice on pickle, and on examples that it cannot show, from the screen."""
    logs = [logging.getLogger(name) for name in ("mlflow.pytorch", "mlflow.models.model", "mlflow.models.utils")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
