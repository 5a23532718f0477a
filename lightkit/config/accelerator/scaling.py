"""The callback that ``scale_lr`` stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightkit.config.accelerator.counts import read_flag
from lightkit.config.accelerator.said import Said, agreed
from lightkit.config.accelerator.writing import valued
from lightkit.config.loader import Resolved
from lightkit.config.origins import KeyPath, mistake
from lightkit.config.tree import Leaf, Node, Table, plain

__all__ = ["scaling_entry"]

_CLASS = "lightkit.distributed.ScaledLearningRate"
_ENTRY = ("callbacks", "scale_lr")


def scaling_entry(said: Mapping[str, Sequence[Said]], resolved: Resolved) -> dict[KeyPath, tuple[Node, Said]]:
    """Give the settings that add the named callback, where ``scale_lr`` is true.

    Raises:
        ConfigError: If the values are wrong, there is a warm-up of nothing, or the entry was removed by its name.
    """
    scale = agreed([read_flag(one) for one in said.get("scale_lr", ())])
    warmup = agreed([_read_epochs(one) for one in said.get("warmup_epochs", ())])
    if warmup is not None and warmup.value is not None and (scale is None or scale.value is None):
        says = f"{warmup} has no effect without accelerator.scale_lr"
        raise mistake(f"{says}: it is the warm-up to the scaled learning rate; say scale_lr: true too", warmup.origin)
    if scale is None or not scale.value:
        return {}
    settings: dict[KeyPath, tuple[Node, Said]] = {}
    if _given(resolved, scale) is None:
        settings[(*_ENTRY, "class_path")] = Leaf(_CLASS, scale.origin), scale
    if warmup is not None and warmup.value is not None:
        settings[(*_ENTRY, "init_args", "warmup_epochs")] = valued(warmup.value, warmup), warmup
    return settings


def _given(resolved: Resolved, scale: Said) -> Node | None:
    """Give the entry that the config has under that name already."""
    callbacks = resolved.tree.entries.get(_ENTRY[0])
    entry = callbacks.entries.get(_ENTRY[1]) if isinstance(callbacks, Table) else None
    if entry is not None and plain(entry) is None:
        says = f"{scale} contradicts callbacks.scale_lr: null, which removes it"
        raise mistake(f"{says}; say scale_lr: false", scale.origin, entry.origin)
    return entry


def _read_epochs(said: Said) -> Said:
    value: Any = said.value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and value >= 0):
        raise said.wrong("a number of epochs from 0")
    return said
