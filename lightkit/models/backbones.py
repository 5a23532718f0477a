"""The networks that ImageClassifier can be built on.

Each by its name in a config, and the weights for them.
"""

from __future__ import annotations

import difflib
import logging
import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeGuard
from urllib.error import HTTPError

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.utilities.model_helpers import is_overridden
from safetensors import SafetensorError
from safetensors.torch import load_file as load_safetensors
from torch import Tensor, nn
from torchvision import models

from lightkit import runs
from lightkit.config.origins import near_files
from lightkit.errors import ConfigError, DataError, join_names
from lightkit.export.formats import FORMATS, format_of
from lightkit.export.metadata import Metadata, check_digest, find_digest_fault, read_metadata
from lightkit.torch_files import load_file

_log = logging.getLogger("lightkit")

SMALL_CNN = "small_cnn"
TIMM_PREFIX = "timm/"
BACKBONES = (SMALL_CNN, *models.list_models(module=models), f"{TIMM_PREFIX}*")
"""Names of all backbones; ``*`` stands for any."""
_NAME_KEY = "model.init_args.backbone"
_WEIGHTS_KEY = "model.init_args.weights"
_PREFIX = "network."  # of an ImageClassifier's parameters
_MOST_SHOWN = 10
# Both build auxiliary classifiers that only serve training from scratch; without them they answer
# with one tensor.
_WITH_AUXILIARY_HEADS = frozenset({"googlenet", "inception_v3"})
_AUXILIARY = re.compile(r"^(aux1|aux2|AuxLogits)\.")
# torchvision's DenseNet files keep names with dots that modules may no longer have:
# densenet._load_state_dict
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")


def small_cnn(num_classes: int) -> nn.Sequential:
    """Build a network of about 100,000 parameters for quick runs on a CPU.

    The stem halves the image twice at once, so that most of the work is done on 56 x 56 of 224 x
    224 pixels.

    Args:
        num_classes: Number of logits.

    Returns:
        A network from ``(batch, 3, height, width)`` to logits ``(batch, num_classes)``, for any
        size from 32 pixels.
    """
    return nn.Sequential(
        _block(3, 24, kernel_size=5, stride=4),
        _block(24, 32),
        _block(32, 64),
        _block(64, 120),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(120, num_classes),
    )


def _block(
    in_channels: int, out_channels: int, *, kernel_size: int = 3, stride: int = 2
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            bias=False,
        ),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def check_name(name: str | None) -> None:
    """Refuse a backbone that does not exist, before anything is built.

    Args:
        name: Value of the config; None is jsonargparse's for a null, whatever the type.

    Raises:
        ConfigError: With the near names, or with the extra to install for timm's.
    """
    word = str(name)
    known = [SMALL_CNN, *models.list_models(module=models)]
    if word.startswith(TIMM_PREFIX):
        known = [TIMM_PREFIX + known for known in _timm(word).list_models()]
    if word in known:
        return
    near = difflib.get_close_matches(word, known, n=5, cutoff=0.5)
    hint = (
        f"did you mean {', '.join(near)}?" if near else f"some that exist: {', '.join(known[:8])}."
    )
    raise ConfigError(
        f"{_NAME_KEY}: there is no backbone {'null' if name is None else repr(name)}; {hint} "
        f"Expected {SMALL_CNN}, a classification model of torchvision, or timm/NAME."
    )


def build(name: str, num_classes: int, *, weights: str | None = None) -> nn.Module:
    """Build a backbone with a fresh head. Nothing is downloaded or read.

    Args:
        name: A name that ``check_name`` accepts.
        num_classes: Number of logits.
        weights: What will be loaded afterwards, because it decides two details of the architecture,
            as in torchvision's own builders: GoogLeNet and Inception re-scale their input for
            pretrained weights, and vision transformers take the image size that their default
            weights were trained with.

    Returns:
        A network from ``(batch, 3, height, width)`` to logits ``(batch, num_classes)``.
    """
    network: nn.Module
    if name == SMALL_CNN:
        network = small_cnn(num_classes)
    elif name.startswith(TIMM_PREFIX):
        network = _timm(name).create_model(name.removeprefix(TIMM_PREFIX), num_classes=num_classes)
    else:
        network = models.get_model(
            name, weights=None, num_classes=num_classes, **_options(name, weights)
        )
    # On two cores a frozen MobileNetV2 trains 1.7 times as fast so, and nothing was seen to be
    # slower.
    return network.to(memory_format=torch.channels_last)


def _options(name: str, weights: str | None) -> dict[str, Any]:
    if name in _WITH_AUXILIARY_HEADS:
        # without init_weights, torchvision warns that its default will change
        return {
            "aux_logits": False,
            "transform_input": weights is not None,
            "init_weights": weights is None,
        }
    if name.startswith("vit_") and weights == "default":
        return {"image_size": models.get_model_weights(name).DEFAULT.meta["min_size"][0]}
    return {}


def subnetworks_of_head(network: nn.Module, num_classes: int) -> tuple[str, ...]:
    """Name the layers that make the logits.

    timm names them. torchvision does not, but in each of its classification models it is the last
    linear or convolutional layer with one output a class.

    Args:
        network: What ``build`` returned.
        num_classes: Its number of logits.

    Returns:
        Dotted names, such as ``("classifier.1",)``.
    """
    get_classifier: Callable[[], Any] | None = getattr(network, "get_classifier", None)  # timm's
    of_timm = get_classifier() if get_classifier else ()
    sized = [layer for layer in network.modules() if _num_outputs(layer) == num_classes][-1:]
    # several in distilled transformers
    heads = {id(head) for head in (of_timm if isinstance(of_timm, tuple) else (of_timm,)) or sized}
    names = tuple(name for name, layer in network.named_modules() if id(layer) in heads)
    if not names:
        raise ConfigError(
            f"{_NAME_KEY}: no layer of {type(network).__name__} has {num_classes} outputs, so its"
            " head cannot be told from the rest. Choose another backbone."
        )
    return names


def _num_outputs(layer: nn.Module) -> int | None:
    if isinstance(layer, nn.Linear):
        return layer.out_features
    return layer.out_channels if isinstance(layer, nn.Conv2d) else None


def _timm(name: str) -> Any:
    try:
        import timm  # an extra: thousands of models that most runs do not need
    except ImportError as error:
        raise ConfigError(
            f"{_NAME_KEY}: {name!r} needs timm, which is not installed: pip install"
            " 'lightkit-train[timm]'"
        ) from error
    return timm


def image_size_of(network: nn.Module) -> int | None:
    """Return the only image size in pixels that a network takes, or None where it takes any."""
    size = getattr(network, "image_size", None)
    return size if isinstance(size, int) else None


def read_weights(weights: str, *, backbone: str) -> Mapping[str, Tensor]:
    """Read the tensors of pretrained weights.

    Args:
        weights: ``default``, or the path of a state dict, as `.safetensors` or by torch.save, or of
            a Lightning checkpoint of an ImageClassifier.
        backbone: Name of the network that they are for.

    Raises:
        ConfigError: If the file, or what is kept of an earlier download, is missing or is not a
            state dict, or the backbone has no default weights.
        DataError: If the default weights cannot be downloaded.
    """
    if weights != "default":
        return _read_file(Path(weights).expanduser())
    if backbone == SMALL_CNN:
        raise ConfigError(
            f"{_WEIGHTS_KEY}: {SMALL_CNN} has no default weights. Leave weights out, or choose"
            " another backbone."
        )
    try:
        if backbone.startswith(TIMM_PREFIX):
            network: nn.Module = _timm(backbone).create_model(
                backbone.removeprefix(TIMM_PREFIX), pretrained=True
            )
            return network.state_dict()
        # not by `WeightsEnum.get_state_dict`, which compares the digest of what it downloads alone,
        # and may run code
        url = models.get_model_weights(backbone).DEFAULT.url
        cached = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
        promised = cached.stem.rpartition("-")[2]
        if not cached.is_file():
            cached.parent.mkdir(parents=True, exist_ok=True)
            _log.info("downloads the default weights of %s from %s", backbone, url)
            torch.hub.download_url_to_file(url, str(cached), promised, progress=False)
    except (OSError, RuntimeError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the server's answer
        raise DataError(
            f"{_WEIGHTS_KEY}: the default weights of {backbone} cannot be downloaded: {error}. Try"
            " again with a network, or download them elsewhere and set weights to the file's path."
        ) from error
    if not (found := runs.digest(cached)).startswith(promised):
        raise ConfigError(
            f"{_WEIGHTS_KEY}: {cached} is damaged, or not what torchvision offers: its digest"
            f" begins with {found[:8]}, its name promises {promised}. Remove it, and it is"
            " downloaded again."
        )
    return _read_file(cached)


def read_pretrained(
    weights: str, *, backbone: str, trainer: Trainer | None
) -> tuple[Mapping[str, Tensor], str]:
    """Read pretrained weights, which one process of a machine downloads.

    Return them with their source for errors.

    Raises:
        ConfigError: As `read_weights`.
        DataError: Likewise.
    """
    if weights != "default":
        return read_weights(weights, backbone=backbone), weights
    if trainer is not None:
        if trainer.local_rank == 0:
            read_weights(weights, backbone=backbone)
        trainer.strategy.barrier("weights")
    return read_weights(weights, backbone=backbone), f"the default weights of {backbone}"


def _read_file(path: Path) -> Mapping[str, Tensor]:
    """Read a state dict, or that of a network.

    From a Lightning checkpoint or an export of an ImageClassifier.
    """
    if not path.is_file():
        hint = near_files(path) or "."
        raise ConfigError(
            f"{_WEIGHTS_KEY}: there is no file {path}{hint} Expected null, default, or a path to a"
            " state dict."
        )
    content: Any
    if path.suffix.lower() == ".safetensors":
        content = _read_safetensors(path)
    else:
        content = load_file(path, kind="state dict", key=f"{_WEIGHTS_KEY}: ", map_location="cpu")
    is_checkpoint = isinstance(content, dict) and "pytorch-lightning_version" in content
    state = content.get("state_dict", {}) if is_checkpoint else content
    if not _is_state_dict(state):
        keys = (
            join_names(sorted(map(str, content)), most=_MOST_SHOWN)
            if isinstance(content, Mapping)
            else ""
        )
        raise ConfigError(
            f"{_WEIGHTS_KEY}: {path} holds a"
            f" {type(content).__name__}{f' of {keys}' if keys else ''}, not a state dict. Expected"
            " a mapping from names to tensors, as"
            " torch.save(network.state_dict(), path) writes it."
        )
    own = {
        name.removeprefix(_PREFIX): tensor
        for name, tensor in state.items()
        if str(name).startswith(_PREFIX)
    }
    return own if is_checkpoint or len(own) == len(state) else state


def _is_state_dict(value: Any) -> TypeGuard[Mapping[str, Tensor]]:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(each, Tensor) for each in value.values())
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        state = load_safetensors(path)
        fault = find_digest_fault(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(
            f"{_WEIGHTS_KEY}: {path} cannot be read as safetensors (cut short, damaged, or"
            " something else):"
            f" {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    if fault is not None:
        raise ConfigError(f"{_WEIGHTS_KEY}: {path}: {fault}. Export it again.")
    return state


def load_into(
    network: nn.Module, state: Mapping[str, Tensor], *, heads: Collection[str], source: str
) -> bool:
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
    given = {
        name: tensor for name, tensor in given.items() if name in own or not _AUXILIARY.match(name)
    }
    of_head = {name for name in own if name.rpartition(".")[0] in heads}
    same_head = all(name in given and given[name].shape == own[name].shape for name in of_head)
    left_out = set() if same_head else of_head
    given = {name: tensor for name, tensor in given.items() if name not in left_out}
    if found := differences(
        {name: tensor for name, tensor in own.items() if name not in left_out}, given
    ):
        raise ConfigError(f"{_WEIGHTS_KEY}: {source} does not fit the backbone. {found}")
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
    missing = [
        name for name in expected if name not in given and not name.endswith(".num_batches_tracked")
    ]
    unexpected = [name for name in given if name not in expected]
    shapes = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in given and given[name].shape != tensor.shape
    ]
    parts = {"Missing": missing, "Unexpected": unexpected, "Of another shape": shapes}
    return " ".join(
        f"{title}: {join_names(names, most=_MOST_SHOWN)}."
        for title, names in parts.items()
        if names
    )


def load_exported(module: LightningModule, path: Path) -> Metadata:
    """Load exported weights into a module.

    It is built for the file's classes where it has to be built first.

    The metadata of the file is returned.

    The module's class is the caller's choice: that in the file is not used.

    Args:
        module: Changed in place. One that is built for classes has a ``build_for``, as
            `ImageClassifier` has, and one that is built for rows of a table a
            ``build_for_rows(row_preprocessing, class_names)``.
        path: A file of weights of ``lightkit export``.

    Raises:
        ConfigError: If the weights are not exactly those of this module.
        DataError: If the file is missing or damaged, is no export of lightkit, or is not what was
            exported.
    """
    metadata = read_metadata(path)
    check_digest(path)
    build = getattr(module, "build_for", None)
    build_for_rows = getattr(module, "build_for_rows", None)
    if callable(build_for_rows) and metadata.rows is not None:
        build_for_rows(metadata.row_preprocessing, metadata.class_names)
    elif callable(build) and metadata.class_names:
        build(metadata.class_names)
    elif is_overridden("configure_model", module):
        module.configure_model()
    load_weights = FORMATS[str(format_of(path))].load_weights
    assert load_weights is not None  # the command line has asked for weights
    try:
        # with tensors that the file has once and the module under several names
        load_weights(module, path)
    except (RuntimeError, SafetensorError) as error:
        found = textwrap.shorten(str(error), 500)
        raise ConfigError(
            f"--model {path}: these weights are not of this {type(module).__name__}. {found}"
        ) from error
    set_thresholds = getattr(module, "set_thresholds", None)
    if callable(set_thresholds) and metadata.thresholds is not None:
        set_thresholds(metadata.thresholds)
    return metadata
