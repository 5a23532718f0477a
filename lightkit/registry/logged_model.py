"""A model that was logged to MLflow, by lightkit, autolog or anybody, as something to export."""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lightkit.errors import CheckpointError, ConfigError
from lightkit.export.export_errors import format_reason
from lightkit.export.forward import run_model
from lightkit.export.metadata import Metadata, TensorSpec, is_recorded
from lightkit.export.samples import extend_example, make_random_samples
from lightkit.export.target import ExportTarget
from lightkit.registry.package import hide_advice
from lightkit.registry.row_model import GRAPH, PROGRAM
from lightkit.registry.store import address_of_root, open_registry, set_environment
from lightkit.rows.frame import read_frame

if TYPE_CHECKING:
    from mlflow.models import Model

_ADDRESS = re.compile(r"models:/[^/@]+([@/][^/@]+)?|runs:/[^/]+/.*[^/]")
_EXPECTED = "models:/NAME@ALIAS, models:/NAME/VERSION, models:/m-ID or runs:/ID/model"


def load_logged_model(uri: str, *, trust: bool, root: Path, num_samples: int) -> ExportTarget:
    """Download a model that was logged with MLflow's PyTorch flavour.

    Args:
        uri: ``models:/flowers@champion``, ``models:/flowers/3``, ``models:/m-…`` or
            ``runs:/ID/model``.
        trust: Whether code that comes with it may run: loading a pickled module runs code from its
            file.
        root: The run root. MLflow is at ``MLFLOW_TRACKING_URI``, else its database is there, in
            ``mlflow.db``.
        num_samples: Number of samples.

    Returns:
        The model, with a batch of at least two as its example, and its input example with generated
        samples like it.

    Raises:
        ConfigError: If there is none, it is no model of PyTorch, needs trust, or its inputs are
            unknown.
        ExportError: If it fails on its own inputs.
        ServerAway: If MLflow does not answer.
    """
    if not _ADDRESS.fullmatch(uri):
        raise ConfigError(f"--run: expected {_EXPECTED}, got {uri!r}.")
    option = "--run.root or the environment variable MLFLOW_TRACKING_URI"
    with (
        open_registry(
            address_of_root(None, root), option=option, creates=False, writes=False
        ) as registry,
        tempfile.TemporaryDirectory(prefix="lightkit-logged-") as temporary,
    ):
        from mlflow.artifacts import download_artifacts  # 2 s
        from mlflow.exceptions import MlflowException
        from mlflow.models import Model

        uris = {"tracking_uri": registry.client.tracking_uri, "registry_uri": registry.uri}
        with registry.attempt(f"download {uri}"):
            folder = Path(download_artifacts(uri, dst_path=temporary, **uris))
        try:
            description = Model.load(str(folder))
        except (MlflowException, OSError, KeyError) as error:
            raise ConfigError(
                f"{uri} holds no model of MLflow: there is no file MLmodel in it. Expected"
                f" {_EXPECTED}."
            ) from error
        module = load_module(uri, folder, description.flavors, trust=trust)
        example = _read_example(uri, module, description, folder)
    metadata = _describe(uri, module, example, description)
    samples = make_random_samples(example, num_samples, source=uri)
    samples = replace(samples, source="input example that is logged with it, and inputs like it")
    at_least_two = tuple(extend_example(tensor, max(2, len(tensor))) for tensor in example)
    return ExportTarget(module, at_least_two, metadata, samples)


def load_module(uri: str, folder: Path, flavors: Mapping[str, Any], *, trust: bool) -> nn.Module:
    """Load the module of a model in MLflow's PyTorch flavour, in eval mode, on the CPU.

    Args:
        uri: Its address, for errors.
        folder: Its files.
        flavors: Flavours in its ``MLmodel``.
        trust: Whether code that comes with it may run. TorchScript, and a graph (``pt2``) with the
            digest that `lightkit register` wrote beside it, need none; other graphs, pickled
            modules and models with code do.

    Raises:
        ConfigError: If it has no PyTorch flavour, or needs trust.
        CheckpointError: If its file is damaged, or of a class that cannot be found here.
    """
    flavor = flavors.get("pytorch")
    if flavor is None:
        raise ConfigError(
            f"{uri} is not a PyTorch model: it has the flavours {', '.join(sorted(flavors))}."
        )
    data = folder / str(flavor.get("model_data", "data"))
    graph = data / GRAPH
    program = data / PROGRAM
    is_torchscript = not graph.exists() and _is_torchscript(program)
    code = None
    if flavor.get("code"):
        code = "code of its own"
    elif graph.exists() and not is_recorded(graph, data):
        code = "a graph that lightkit has not recorded"
    elif not graph.exists() and not is_torchscript:
        code = "a pickled module"
    if code and not trust:
        raise ConfigError(
            f"{uri} holds {code}, and loading it runs code from its files. Give --trust if you know"
            " who logged it; lightkit register writes models that need no trust."
        )
    try:
        if is_torchscript:
            scripted: nn.Module = torch.jit.load(program, map_location="cpu")  # type: ignore[no-untyped-call]
            return scripted.eval()
        if graph.exists():
            # an export of it makes its own
            return torch.export.load(graph).module(check_guards=False)
        import mlflow.pytorch  # 2 s

        with hide_advice(), set_environment({"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "true"}):
            loaded: nn.Module = mlflow.pytorch.load_model(str(folder), map_location="cpu")
        return loaded.eval()
    except Exception as error:  # torch raises many classes for a damaged file
        raise CheckpointError(
            f"{uri} cannot be loaded: {format_reason(error).rstrip('.')}. A class must be where it"
            " was when the model was logged: run in that folder, or install its package. Log a"
            " damaged file again."
        ) from error


def _is_torchscript(file: Path) -> bool:
    """Return whether a file is an archive of TorchScript.

    Its reader makes no objects but its own.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _read_example(
    uri: str, module: nn.Module, description: Model, folder: Path
) -> tuple[Tensor, ...]:
    """Return the model's own input example.

    Raises:
        ConfigError: If it was logged without.
    """
    if description.saved_input_example_info is None:
        raise ConfigError(
            f"{uri} was logged without an input example, so that its inputs are not known; log it"
            " with input_example=."
        )
    kept: Any = description.load_input_example(str(folder))
    own = _read_own_metadata(description)
    preprocessing = None if own is None else own.row_preprocessing
    if preprocessing is not None:  # the example is of raw rows
        rows, _ = preprocessing.read(read_frame(kept, list(preprocessing.columns)))
        return tuple(torch.from_numpy(array) for array in preprocessing.encode(rows))
    parts = (
        kept.values()
        if isinstance(kept, dict)
        else kept
        if isinstance(kept, (list, tuple))
        else [kept]
    )
    arrays = [part.to_numpy() if hasattr(part, "to_numpy") else np.asarray(part) for part in parts]
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    weights = next((parameter.dtype for parameter in module.parameters()), torch.float32)
    # numbers of a table are float64, whatever the precision of the weights
    return tuple(
        tensor.to(weights) if tensor.dtype == torch.float64 else tensor for tensor in tensors
    )


def _read_own_metadata(description: Model) -> Metadata | None:
    """Return the metadata of a model that lightkit has logged; None of any other."""
    own = (description.metadata or {}).get("lightkit")
    return Metadata.from_dict(json.loads(json.dumps(own))) if isinstance(own, Mapping) else None


def _describe(
    uri: str, module: nn.Module, example: Sequence[Tensor], description: Model
) -> Metadata:
    source = {"model": uri, **({"mlflow_run": description.run_id} if description.run_id else {})}
    outputs = run_model(module, example)
    noted = _read_own_metadata(description)
    if noted is not None:
        return replace(noted, source={**noted.source, **source})

    def spec(name: str, tensor: Tensor, signed: Sequence[int] = ()) -> TensorSpec:
        """Leave the batch open, and the axes that the signature leaves open."""
        open_axes = {0} | {axis for axis, size in enumerate(signed) if size == -1}
        shape = tuple(None if axis in open_axes else size for axis, size in enumerate(tensor.shape))
        return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), shape)

    names = [f"input_{index}" for index in range(len(example))]
    given = (
        description.signature.inputs.inputs
        if description.signature and description.signature.inputs
        else []
    )
    signed = [getattr(each, "shape", ()) for each in given] + [()] * len(example)
    inputs = tuple(map(spec, names, example, signed))
    outputs_given = tuple(spec(name, tensor) for name, tensor in outputs.items())
    return Metadata("torch_export", type(module).__name__, inputs, outputs_given, source=source)
