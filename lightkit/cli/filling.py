"""The hyper-parameters of a checkpoint that the user names, below all that the user says.

LightningCLI 2.6 lays them over the user's words. Without them a checkpoint fits no model of other than default size.
A class that they name is imported only where the user names it too: see `unnamed`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.cli import LightningArgumentParser

from lightkit.callbacks.checkpoint_reading import read_checkpoint
from lightkit.cli.unnamed import class_of, is_one_class, refuse_unnamed
from lightkit.config.credentials import HIDDEN
from lightkit.errors import ConfigError

__all__ = ["hyper_parameters", "model_filled"]


def hyper_parameters(checkpoint: str | None) -> dict[str, Any]:
    """Read what a checkpoint says of its model; nothing where it cannot be read.

    `Equipment.attach` tells what is wrong with such a checkpoint.
    """
    if checkpoint is None or not Path(checkpoint).is_file():
        return {}
    try:
        said = read_checkpoint(checkpoint, mmap=True).get("hyper_parameters")
    except ConfigError:
        return {}
    if not isinstance(said, Mapping):
        return {}
    return {str(key): value for key, value in said.items() if key != "_instantiator" and value != HIDDEN}


def model_filled(
    model: Any, below: Mapping[str, Any], parser: LightningArgumentParser, *, is_chosen: bool, checkpoint: str
) -> Any:
    """Give the config's `model` section with the arguments that only a checkpoint gives.

    Args:
        model: The section.
        below: Hyper-parameters of the checkpoint.
        parser: The command's parser: it knows the arguments of a fixed class, and which are linked to others.
        is_chosen: Whether the config chooses the class.
        checkpoint: The checkpoint's file, for the error.

    Raises:
        UnnamedClass: If the checkpoint names a class or a function that the config does not.
    """
    linked = {link.target[0] for link in getattr(getattr(parser, "_links_group", None), "_group_actions", ())}
    below = {key: value for key, value in below.items() if not {f"model.{key}", f"model.init_args.{key}"} & linked}
    if not is_chosen:
        types = {str(action.dest): getattr(action, "_typehint", None) for action in parser._actions}
        taken = {key: value for key, value in below.items() if f"model.{key}" in types}
        filled = _over(taken, model) if taken else model
        annotations = {key: types[f"model.{key}"] for key in taken}
        refuse_unnamed({key: filled[key] for key in taken}, model, annotations, checkpoint=checkpoint)
        return filled
    return _chosen_filled(model, below, checkpoint)


def _chosen_filled(model: Any, below: dict[str, Any], checkpoint: str) -> Any:
    class_path = below.pop("_class_path", None)
    if not isinstance(model, Mapping):
        model = {} if model is None else {"class_path": model}
    said = model.get("class_path")
    if class_path is not None and said is not None and not is_one_class(said, class_path):
        return model
    given = model.get("init_args") or {}
    types = {} if said is None else _types_of(said)
    if class_path is None or (said is not None and not _takes_others(said)):  # what else it keeps are no arguments
        below = {key: value for key, value in below.items() if key in types}
    if said is None and class_path is None:
        return model or None
    shared = {key: _over(value, given[key]) for key, value in below.items() if _is_same_entry(value, given.get(key))}
    missing = {key: value for key, value in below.items() if key not in given}
    unnamed = class_path if said is None else None
    refuse_unnamed({**missing, **shared}, given, types, checkpoint=checkpoint, of=unnamed)
    if not missing and not shared:
        return model
    filled = {**model, "init_args": {**given, **shared}} if shared else model
    # jsonargparse moves from here into init_args what the signature names.
    return {**filled, "dict_kwargs": {**missing, **(model.get("dict_kwargs") or {})}} if missing else filled


def _is_same_entry(lower: Any, upper: Any) -> bool:
    """Tell whether the user names the very class that the checkpoint names there, whose arguments then count."""
    named = upper.get("class_path") if isinstance(upper, Mapping) else upper
    return isinstance(lower, Mapping) and isinstance(named, str) and is_one_class(named, lower.get("class_path"))


def _over(lower: Mapping[str, Any], upper: Any) -> Any:
    """Lay a section over another one; the arguments of one class are not laid over another's."""
    if upper is None:
        return lower
    if not isinstance(upper, Mapping):  # a short name of the user's may be that of many classes
        return {**lower, "class_path": upper} if _is_same_entry(lower, upper) else upper
    said, before = upper.get("class_path"), lower.get("class_path")
    if said and before and not is_one_class(said, before):
        return upper
    merged = dict(lower)
    for key, value in upper.items():
        below = lower.get(key)
        merged[key] = _over(below, value) if isinstance(below, Mapping) else value
    return merged


def _types_of(class_path: str) -> dict[str, Any]:
    """Map the arguments of a class that the user names to their types."""
    return {name: _type_of(parameter) for name, parameter in (_parameters_of(class_path) or {}).items()}


def _type_of(parameter: inspect.Parameter) -> Any:
    """Give the type that jsonargparse takes a parameter for: without annotation, that of its default or anything."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    is_given = parameter.default is not None and parameter.default is not parameter.empty
    return type(parameter.default) | Any if is_given else Any


def _takes_others(class_path: str) -> bool:
    """Tell whether a class may take arguments that its own signature does not name."""
    parameters = _parameters_of(class_path)
    return parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _parameters_of(class_path: str) -> Mapping[str, inspect.Parameter] | None:
    found = class_of(class_path)
    try:
        return None if found is None else inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
