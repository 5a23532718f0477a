"""What old spellings are called today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightkit.config.hardware.rules import is_old_precision
from lightkit.config.hardware.said import OLD_TRAINER_KEYS, Said
from lightkit.config.hardware.strategy import is_strategy_word
from lightkit.config.hardware.words import HOROVOD, OLD_STRATEGIES
from lightkit.config.merging import class_of
from lightkit.config.origins import KeyPath, dotted
from lightkit.config.tree import Node, plain

__all__ = ["notices_of"]

_ONCE_NULL = ("accelerator", "devices", "strategy", "num_nodes")


def notices_of(said: Mapping[str, Sequence[Said]], settings: Mapping[KeyPath, tuple[Node, Said]]) -> tuple[str, ...]:
    """Give one sentence for each old spelling, with its place and what to write today.

    Args:
        said: What the config says, by subject.
        settings: What it became.
    """
    return tuple(_notice(one, settings) for places in said.values() for one in places if _is_old(one))


def _is_old(said: Said) -> bool:
    key = said.path[-1]
    if isinstance(said.value, str) and said.value.lower() in OLD_STRATEGIES:
        return True
    if said.path[0] != "trainer":
        return False
    return (
        key in OLD_TRAINER_KEYS
        or is_strategy_word(said)
        or is_old_precision(said)
        or (said.value is None and key in _ONCE_NULL)
    )


def _notice(said: Said, settings: Mapping[KeyPath, tuple[Node, Said]]) -> str:
    today = [f"{dotted(path)}: {_shown(node)}" for path, (node, by) in settings.items() if by.node is said.node]
    return f"{said} is a spelling of Lightning 1.x; today: {', '.join(today) or 'leave it out'} ({said.origin})"


def _shown(node: Node) -> str:
    named = class_of(node)
    return "horovod" if named == HOROVOD else str(named or plain(node))
