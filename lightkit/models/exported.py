"""Weights that `lightkit export` wrote as safetensors, back in their module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from lightkit.errors import ConfigError
from lightkit.export.metadata import check_digest, read_metadata
from lightkit.models.pretrained import differences, read_safetensors

__all__ = ["load_exported"]


def load_exported(module: LightningModule, path: Path) -> None:
    """Load exported weights into a module, which is built for the file's classes where it has to be built first.

    The module's class is the caller's choice: what the file says of it is not used.

    Args:
        module: Changed in place. One that is built for classes has a ``build_for``, as `ImageClassifier` has.
        path: A safetensors file of ``lightkit export``.

    Raises:
        ConfigError: If the weights are not exactly those of this module.
        DataError: If the file is missing or damaged, is no export of lightkit, or is not what was exported.
    """
    metadata = read_metadata(path)
    check_digest(path)
    state = read_safetensors(path)
    build = getattr(module, "build_for", None)
    if callable(build) and metadata.class_names:
        build(metadata.class_names)
    elif is_overridden("configure_model", module):
        module.configure_model()
    own = module.state_dict()
    whole = {**_shared(own, state), **state}
    if found := differences(own, whole):
        raise ConfigError(f"--model {path}: these weights are not of this {type(module).__name__}. {found}")
    module.load_state_dict({**own, **whole})


def _shared(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give tensors that a file keeps once, because the module uses them under several names."""
    names_by_place: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, tensor in own.items():
        if tensor.numel():
            place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
            names_by_place[place].append(name)
    groups = [[name for name in names if name in given] + names for names in names_by_place.values()]
    return {name: given[first] for first, *others in groups if first in given for name in others}
