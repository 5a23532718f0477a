"""Weights from elsewhere: pretrained ones for a backbone, and those that `lightkit export` wrote for a module."""

from __future__ import annotations

import logging
import pickle
import re
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.model_helpers import is_overridden
from safetensors import SafetensorError
from safetensors.torch import load_file as load_safetensors
from torch import Tensor, nn
from torchvision import models

from lightkit import runs
from lightkit.config.origins import near_files
from lightkit.errors import ConfigError, DataError, join_names
from lightkit.export.formats import FORMATS, format_of
from lightkit.export.metadata import check_digest, find_digest_fault, read_metadata
from lightkit.models.backbones import SMALL_CNN, TIMM_PREFIX, timm_pretrained
from lightkit.torch_files import explain_unreadable, load_file

_log = logging.getLogger("lightkit")
_KEY = "model.init_args.weights"
_AUXILIARY = re.compile(r"^(aux1|aux2|AuxLogits)\.")
# torchvision's DenseNet files keep names with dots that modules may no longer have: densenet._load_state_dict
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")
_MOST_SHOWN = 10
_PREFIX = "network."


def read(weights: str, *, backbone: str) -> Mapping[str, Tensor]:
    """Read the tensors of pretrained weights.

    Args:
        weights: ``default``, or the path of a state dict, as `.safetensors` or by torch.save, or of a Lightning
            checkpoint of an ImageClassifier.
        backbone: Name of the network that they are for.

    Raises:
        ConfigError: If the file, or what is kept of an earlier download, is missing or is not a state dict, or the
            backbone has no default weights.
        DataError: If the default weights cannot be downloaded.
    """
    return _download(backbone) if weights == "default" else _read_file(Path(weights).expanduser())


def _download(backbone: str) -> Mapping[str, Tensor]:
    if backbone == SMALL_CNN:
        raise ConfigError(f"{_KEY}: {SMALL_CNN} has no default weights. Leave weights out, or choose another backbone.")
    try:
        if backbone.startswith(TIMM_PREFIX):
            return timm_pretrained(backbone)
        return _of_torchvision(models.get_model_weights(backbone).DEFAULT)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{_KEY}: the default weights of {backbone} cannot be downloaded: {error}. "
            f"Try again with a network, or download them elsewhere and set weights to the file's path."
        ) from error


def _of_torchvision(weights: models.WeightsEnum) -> Mapping[str, Tensor]:
    """Read torchvision's weights from torch's cache, where they are downloaded to: by its digest, and without code."""
    cached = Path(torch.hub.get_dir(), "checkpoints", weights.url.rpartition("/")[2])
    if cached.is_file():  # torch compares the digest of what it downloads alone
        promised = cached.stem.rpartition("-")[2]
        if not (found := runs.digest(cached)).startswith(promised):
            raise ConfigError(
                f"{_KEY}: {cached} is damaged, or not what torchvision offers: its digest begins with {found[:8]}, "
                f"its name promises {promised}. Remove it, and it is downloaded again."
            )
    try:
        content = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigError(f"{_KEY}: {explain_unreadable(cached, error, kind='state dict')}") from error
    return _checked(content, cached)


def _read_file(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        hint = near_files(path) or "."
        raise ConfigError(f"{_KEY}: there is no file {path}{hint} Expected null, default, or a path to a state dict.")
    if path.suffix.lower() == ".safetensors":
        state = read_safetensors(path, key=_KEY)
        is_exported = all(name.startswith(_PREFIX) for name in state)  # of an ImageClassifier
        return {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()} if is_exported else state
    return _checked(load_file(path, kind="state dict", key=f"{_KEY}: ", map_location="cpu"), path)


def _checked(content: object, path: Path) -> Mapping[str, Tensor]:
    """Return a file's state dict: that of the network, if it is a Lightning checkpoint of an ImageClassifier."""
    state = content
    if isinstance(content, dict) and "pytorch-lightning_version" in content:
        tensors = content.get("state_dict", {})
        state = {name.removeprefix(_PREFIX): each for name, each in tensors.items() if name.startswith(_PREFIX)}
    if not isinstance(state, Mapping) or not state or not all(isinstance(v, Tensor) for v in state.values()):
        keys = (
            f" of {join_names(sorted(map(str, content)), most=_MOST_SHOWN)}"
            if isinstance(content, Mapping) and content
            else ""
        )
        raise ConfigError(
            f"{_KEY}: {path} holds a {type(content).__name__}{keys}, not a state dict. "
            f"Expected a mapping from names to tensors, as torch.save(network.state_dict(), path) writes it."
        )
    return state


def read_safetensors(path: Path, *, key: str = "--model") -> dict[str, Tensor]:
    """Read the tensors of a safetensors file.

    Args:
        path: The file.
        key: Where the user has named it, for the error.

    Raises:
        ConfigError: If it cannot be read, is cut short, is something else, or is no longer what was exported.
    """
    try:
        state = load_safetensors(path)
        fault = find_digest_fault(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(
            f"{key}: {path} cannot be read as safetensors (cut short, damaged, or something else): "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    if fault is not None:
        raise ConfigError(f"{key}: {path}: {fault}. Export it again.")
    if not state:
        raise ConfigError(f"{key}: {path} holds no tensors.")
    return state


def load_into(network: nn.Module, state: Mapping[str, Tensor], *, heads: Collection[str], source: str) -> bool:
    """Copy pretrained weights into a network; a head of another shape is left as it was built.

    Args:
        network: Changed in place.
        state: Tensors by name. Auxiliary heads of GoogLeNet and Inception are passed over.
        heads: Names of the layers that make the logits.
        source: Where ``state`` comes from, for the error.

    Returns:
        Whether the head was taken over as well.

    Raises:
        ConfigError: If anything but the head is missing, unexpected, or of another shape.
    """
    own = network.state_dict()
    given = {_OLD_DENSENET.sub(r"\1\2", name): tensor for name, tensor in state.items()}
    given = {name: tensor for name, tensor in given.items() if name in own or not _AUXILIARY.match(name)}
    of_head = {name for name in own if name.rpartition(".")[0] in heads}
    same_head = all(name in given and given[name].shape == own[name].shape for name in of_head)
    left_out = set() if same_head else of_head
    given = {name: tensor for name, tensor in given.items() if name not in left_out}
    if found := differences({name: tensor for name, tensor in own.items() if name not in left_out}, given):
        raise ConfigError(f"{_KEY}: {source} does not fit the backbone. {found}")
    merged = network.state_dict()
    merged.update(given)
    # versions of layers, which MNASNet and BatchNorm ask for when they load
    merged._metadata = getattr(state, "_metadata", own._metadata)  # type: ignore[attr-defined]
    network.load_state_dict(merged)
    return same_head


def differences(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Describe how two sets of tensors differ in names and shapes; empty where they do not.

    BatchNorm's batch counters may be missing, as they are in files older than they.
    """
    missing = [name for name in expected if name not in given and not name.endswith(".num_batches_tracked")]
    unexpected = [name for name in given if name not in expected]
    shapes = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in given and given[name].shape != tensor.shape
    ]
    parts = {"Missing": missing, "Unexpected": unexpected, "Of another shape": shapes}
    return " ".join(f"{title}: {join_names(names, most=_MOST_SHOWN)}." for title, names in parts.items() if names)


def load_exported(module: LightningModule, path: Path) -> None:
    """Load exported weights into a module, which is built for the file's classes where it has to be built first.

    The module's class is the caller's choice: that in the file is not used.

    Args:
        module: Changed in place. One that is built for classes has a ``build_for``, as `ImageClassifier` has.
        path: A file of weights of ``lightkit export``.

    Raises:
        ConfigError: If the weights are not exactly those of this module.
        DataError: If the file is missing or damaged, is no export of lightkit, or is not what was exported.
    """
    metadata = read_metadata(path)
    check_digest(path)
    build = getattr(module, "build_for", None)
    if callable(build) and metadata.class_names:
        build(metadata.class_names)
    elif is_overridden("configure_model", module):
        module.configure_model()
    load_weights = FORMATS[str(format_of(path))].load_weights
    assert load_weights is not None  # the command line has asked for weights
    try:
        load_weights(module, path)  # with tensors that the file has once and the module under several names
    except (RuntimeError, SafetensorError) as error:
        found = textwrap.shorten(str(error), 500)
        raise ConfigError(f"--model {path}: these weights are not of this {type(module).__name__}. {found}") from error
