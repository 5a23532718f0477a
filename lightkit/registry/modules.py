"""The module of a model that MLflow keeps: what can be loaded without running its code is, the rest asks for trust."""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightkit.artefacts.digests import is_recorded
from lightkit.errors import CheckpointError, ConfigError
from lightkit.registry.graphs import plain_graph

__all__ = ["load_module"]

_ALLOW = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"


def load_module(uri: str, folder: Path, flavors: Mapping[str, Any], *, trust: bool) -> nn.Module:
    """Load the module of a model in MLflow's PyTorch flavour, in eval mode, on the CPU.

    Args:
        uri: Where it is from, for errors.
        folder: Its files.
        flavors: Of its ``MLmodel``.
        trust: Whether code that comes with it may run. TorchScript, and a graph (``pt2``) with the digest that
            `lightkit register` wrote beside it, need none; other graphs, pickled modules and models with code do.

    Raises:
        ConfigError: If it has no PyTorch flavour, two files of which either could be meant, or needs trust.
        CheckpointError: If its file is damaged, or of a class that is not to be found here.
    """
    flavor = flavors.get("pytorch")
    if flavor is None:
        raise ConfigError(f"{uri} is no PyTorch model: it has the flavours {', '.join(sorted(flavors))}.")
    file = _file(uri, folder / str(flavor.get("model_data", "data")))
    if not trust and (code := _code_in(file, flavor)):
        raise ConfigError(
            f"{uri} holds {code}, and to load it is to run "
            f"what it says. Say --trust if you know who logged it; lightkit register writes models that need no trust."
        )
    try:
        return _read(file, folder, trust=trust)
    except (ImportError, AttributeError) as error:
        raise CheckpointError(
            f"{uri} cannot be loaded: {error}. Its class must be where it was when the model was logged: run in that "
            f"folder, or install its package."
        ) from error
    except Exception as error:  # whatever torch and a damaged file raise
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(f"{uri} cannot be loaded: {reason[:300]}. Log it again.") from error


def _file(uri: str, data: Path) -> Path:
    graph, module = data / "model.pt2", data / "model.pth"
    if graph.exists() and module.exists():  # of which MLflow loads the one, and others the other
        raise ConfigError(
            f"{uri} holds both model.pt2 and model.pth, so that which one is meant is not known. Log it anew."
        )
    return graph if graph.exists() else module


def _code_in(file: Path, flavor: Mapping[str, Any]) -> str | None:
    """Name what could run code as the model is loaded; None where nothing could."""
    if flavor.get("code"):
        return "code of its own"
    if file.suffix == ".pt2":
        return None if is_recorded(file, file.parent) else "a graph that lightkit has not recorded"
    return None if _is_torchscript(file) else "a pickled module"


def _is_torchscript(file: Path) -> bool:
    """Tell whether a file is an archive of TorchScript, whose reader makes no objects but its own."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _read(file: Path, folder: Path, *, trust: bool) -> nn.Module:
    """Load a file; MLflow, which runs what it is told to, has a hand in it only with trust."""
    if _is_torchscript(file):
        scripted: nn.Module = torch.jit.load(file, map_location="cpu")  # type: ignore[no-untyped-call]
        return scripted.eval()
    loaded = _read_by_mlflow(file, folder) if trust else torch.export.load(file).module()
    return plain_graph(loaded) if isinstance(loaded, torch.fx.GraphModule) else loaded.eval()


def _read_by_mlflow(file: Path, folder: Path) -> nn.Module:
    import mlflow.pytorch  # mlflow takes 2 s to import

    before = os.environ.get(_ALLOW)
    os.environ[_ALLOW] = "true"
    log = logging.getLogger("mlflow.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        loaded: nn.Module = mlflow.pytorch.load_model(str(folder), **({} if file.suffix == ".pt2" else _ON_CPU))
    finally:
        log.setLevel(level)
        if before is None:
            del os.environ[_ALLOW]
        else:
            os.environ[_ALLOW] = before
    return loaded


_ON_CPU = {"map_location": "cpu"}
