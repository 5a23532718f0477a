"""A model that somebody logged to MLflow, as something to export."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lightkit import runs
from lightkit.artefacts.metadata import Metadata, TensorSpec
from lightkit.errors import ConfigError
from lightkit.export.describing import given_by
from lightkit.export.inputs import arguments_of
from lightkit.export.subject import Samples
from lightkit.loggers.mlflow_address import find_address
from lightkit.registry.drawing import drawn
from lightkit.registry.modules import load_module
from lightkit.registry.store import Store, open_store

if TYPE_CHECKING:
    from mlflow.models import Model

__all__ = ["Logged", "load_logged"]

_ADDRESS = re.compile(r"models:/[^/@]+([@/][^/@]+)?|runs:/[^/]+/.*[^/]")
_EXPECTED = "models:/NAME@ALIAS, models:/NAME/VERSION, models:/m-ID or runs:/ID/model"
_NAMING = "--run.root or the environment variable MLFLOW_TRACKING_URI"


@dataclass(frozen=True)
class Logged:
    """A model from MLflow.

    Args:
        model: On the CPU, as it answers when it is served.
        example: Inputs of a batch of at least two.
        metadata: What is known of it.
        samples: Its input example, and drawn ones like it.
    """

    model: nn.Module
    example: tuple[Tensor, ...]
    metadata: Metadata
    samples: Samples


def load_logged(uri: str, *, trust: bool, root: Path | str = "runs", num_samples: int = 32) -> Logged:
    """Fetch a model that was logged with MLflow's PyTorch flavour, by lightkit, autolog or anybody.

    Args:
        uri: ``models:/flowers@champion``, ``models:/flowers/3``, ``models:/m-…`` or ``runs:/ID/model``.
        trust: Whether code that comes with it may run: a pickled module is loaded by running what it says.
        root: The run root. MLflow is where ``MLFLOW_TRACKING_URI`` says, else its database is there, in ``mlflow.db``.
        num_samples: Number of samples.

    Raises:
        ConfigError: If there is none, it is no model of PyTorch, needs trust, or says nothing of its inputs.
        ExportError: If it fails on its own inputs.
        ServerAway: If MLflow does not answer.
    """
    if not _ADDRESS.fullmatch(uri):
        raise ConfigError(f"--run: expected {_EXPECTED}, got {uri!r}.")
    root = Path(root).absolute()
    with runs.activate(runs.Run(root, "", "", root)):  # whose root says where the default database is
        address = find_address(None)
    with (
        open_store(address, naming=_NAMING, makes=False) as store,
        tempfile.TemporaryDirectory(prefix="lightkit-logged-") as place,
    ):
        folder = _download(store, uri, Path(place))
        return _loaded(uri, folder, trust=trust, num_samples=num_samples)


def _download(store: Store, uri: str, place: Path) -> Path:
    from mlflow.artifacts import download_artifacts  # mlflow takes 2 s to import

    with store.busy(f"give {uri}"):
        return Path(
            download_artifacts(
                uri, dst_path=str(place), tracking_uri=store.client.tracking_uri, registry_uri=store.registry_uri
            )
        )


def _loaded(uri: str, folder: Path, *, trust: bool, num_samples: int) -> Logged:
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import
    from mlflow.models import Model

    try:
        described = Model.load(str(folder))
    except (MlflowException, OSError, KeyError) as error:
        raise ConfigError(
            f"{uri} holds no model of MLflow: there is no file MLmodel in it. Expected {_EXPECTED}."
        ) from error
    module = load_module(uri, folder, described.flavors, trust=trust)
    example = _example(uri, module, described, folder)
    metadata = _metadata(uri, module, example, described)
    inputs = tuple(drawn(tensor, num_samples) for tensor in example)
    names = [f"{'example' if at < len(example[0]) else 'drawn'} {at}" for at in range(num_samples)]
    images = [image.numpy() for image in inputs[0]] if metadata.in_graph else None
    at_least_two = tuple(drawn(tensor, max(2, len(tensor))) for tensor in example)
    return Logged(module, at_least_two, metadata, Samples(inputs, names, images=images))


def _example(uri: str, module: nn.Module, described: Model, folder: Path) -> tuple[Tensor, ...]:
    """Give the model's own input example, else ``example_input_array``, else one drawn by the signature.

    Raises:
        ConfigError: If there is none of them.
    """
    if described.saved_input_example_info is not None:
        kept: Any = described.load_input_example(str(folder))
        parts = kept.values() if isinstance(kept, dict) else kept if isinstance(kept, (list, tuple)) else [kept]
        arrays = [part.to_numpy() if hasattr(part, "to_numpy") else np.asarray(part) for part in parts]
        return tuple(_fitting(torch.from_numpy(np.ascontiguousarray(array)), module) for array in arrays)
    own = getattr(module, "example_input_array", None)
    if own is not None:
        return tuple(tensor.detach().cpu() for tensor in (own if isinstance(own, (tuple, list)) else [own]))
    signature = described.signature
    if signature is None or signature.inputs is None or not signature.inputs.is_tensor_spec():
        raise ConfigError(
            f"{uri} was logged without input example and signature, so that its inputs are not known; log it with "
            f"input_example=."
        )
    return tuple(_by_signature(spec) for spec in signature.inputs.inputs)


def _fitting(tensor: Tensor, module: nn.Module) -> Tensor:
    """Give numbers of a table, which are float64, in the precision of the weights."""
    weights = next((parameter.dtype for parameter in module.parameters()), torch.float32)
    return tensor.to(weights) if tensor.dtype == torch.float64 else tensor


def _by_signature(spec: Any) -> Tensor:
    shape = [2, *(1 if size == -1 else size for size in spec.shape[1:])]
    blank = torch.zeros(shape, dtype=torch.from_numpy(np.zeros(1, spec.type)).dtype)
    return drawn(blank[:0], 2)


def _metadata(uri: str, module: nn.Module, example: Sequence[Tensor], described: Model) -> Metadata:
    source = {"model": uri, **({"mlflow_run": described.run_id} if described.run_id else {})}
    outputs = given_by(module, example)
    own = (described.metadata or {}).get("lightkit")
    if isinstance(own, Mapping):
        noted = Metadata.of(json.loads(json.dumps(own)))
        return replace(noted, source={**noted.source, **source})
    given = described.signature.inputs.inputs if described.signature and described.signature.inputs else []
    open_axes = [tuple(spec.shape) if hasattr(spec, "shape") else () for spec in given]
    names = _names(module, len(example))
    inputs = [
        _spec(name, tensor, open_axes[at] if at < len(open_axes) else ())
        for at, (name, tensor) in enumerate(zip(names, example, strict=True))
    ]
    given_out = [_spec(name, tensor) for name, tensor in outputs.items()]
    return Metadata("torch_export", type(module).__name__, tuple(inputs), tuple(given_out), source=source)


def _spec(name: str, tensor: Tensor, signed: Sequence[int] = ()) -> TensorSpec:
    """Describe a tensor whose batch has any length, as have the axes that a signature leaves open."""
    shape = [
        None if axis == 0 or (axis < len(signed) and signed[axis] == -1) else size
        for axis, size in enumerate(tensor.shape)
    ]
    return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(shape))


def _names(module: nn.Module, number: int) -> tuple[str, ...]:
    try:
        return arguments_of(module).named(number)
    except (TypeError, ValueError, AttributeError):  # TorchScript's methods have no signature
        return tuple(f"input_{at}" for at in range(number))
