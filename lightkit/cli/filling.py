"""The hyper-parameters of a checkpoint that the user names, below all that the user says.

LightningCLI 2.6 lays them over the user's words. Without them a checkpoint fits no model of other than default size.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.cli import LightningArgumentParser

__all__ = ["hyper_parameters", "model_filled"]


def hyper_parameters(checkpoint: str | None) -> dict[str, Any]:
    """Read what a checkpoint says of its model; nothing where it is no file that can be read without running code.

    `begin` tells what is wrong with such a checkpoint.
    """
    if checkpoint is None or not Path(checkpoint).is_file():
        return {}
    try:
        content = torch.load(checkpoint, weights_only=True, map_location="cpu", mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError):
        return {}
    said = content.get("hyper_parameters") if isinstance(content, dict) else None
    return {str(key): value for key, value in said.items() if key != "_instantiator"} if said else {}


def model_filled(model: Any, below: Mapping[str, Any], parser: LightningArgumentParser, *, is_chosen: bool) -> Any:
    """Give the config's `model` section with the arguments that only a checkpoint gives.

    Args:
        model: The section.
        below: Hyper-parameters of the checkpoint.
        parser: The command's parser: it knows the arguments of a fixed class, and which are linked to others.
        is_chosen: Whether the config chooses the class.
    """
    linked = {link.target[0] for link in getattr(getattr(parser, "_links_group", None), "_group_actions", ())}
    below = {key: value for key, value in below.items() if not {f"model.{key}", f"model.init_args.{key}"} & linked}
    if not is_chosen:
        known = {str(action.dest) for action in parser._actions}
        taken = {key: value for key, value in below.items() if f"model.{key}" in known}
        return _over(taken, model) if taken else model
    class_path = below.pop("_class_path", None)
    if not isinstance(model, Mapping):
        model = {} if model is None else {"class_path": model}
    said = model.get("class_path", class_path)
    if said is None or (class_path is not None and not _is_one_class(said, class_path)):
        return model or None
    if class_path is None:
        below = {key: value for key, value in below.items() if key in _arguments_of(said)}
    given = model.get("init_args") or {}
    missing = {key: value for key, value in below.items() if key not in given}
    if not missing:
        return model
    # jsonargparse moves from here into init_args what the signature names.
    return {"class_path": said, **model, "dict_kwargs": {**missing, **(model.get("dict_kwargs") or {})}}


def _over(lower: Mapping[str, Any], upper: Any) -> Any:
    """Lay a section over another one; the arguments of one class are not laid over another's."""
    if not isinstance(upper, Mapping):
        return lower if upper is None else upper
    said, before = upper.get("class_path"), lower.get("class_path")
    if said and before and not _is_one_class(said, before):
        return upper
    merged = dict(lower)
    for key, value in upper.items():
        below = lower.get(key)
        merged[key] = _over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _is_one_class(said: str, full: str) -> bool:
    return said in (full, full.rpartition(".")[2])


def _arguments_of(class_path: str) -> Collection[str]:
    module, _, name = str(class_path).rpartition(".")
    try:
        return inspect.signature(getattr(importlib.import_module(module), name)).parameters
    except (ImportError, AttributeError, TypeError, ValueError):
        return ()
