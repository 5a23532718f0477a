"""What old spellings are called today, and threads that are more than the cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightkit.config.accelerator.rules import is_old_precision
from lightkit.config.accelerator.said import OLD_TRAINER_KEYS, Said
from lightkit.config.accelerator.strategy import is_strategy_word
from lightkit.config.accelerator.words import HOROVOD, OLD_STRATEGIES
from lightkit.config.loader import Resolved
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, dotted
from lightkit.config.tree import Node, Table, plain
from lightkit.config.yaml_reader import read_scalar

__all__ = ["notices_of", "oversubscription"]

_ONCE_NULL = ("accelerator", "devices", "strategy", "num_nodes")


def notices_of(said: Mapping[str, Sequence[Said]], settings: Mapping[KeyPath, tuple[Node, Said]]) -> tuple[str, ...]:
    """Give one sentence for each old spelling, with its place and what to write today.

    Args:
        said: What the config says, by subject.
        settings: What it became.
    """
    return tuple(_notice(one, settings) for places in said.values() for one in places if _is_old(one))


def oversubscription(resolved: Resolved, *, processes: int, cores: int | None) -> tuple[str, ...]:
    """Give a sentence where the threads that the config says are more than this machine's cores.

    Args:
        resolved: The config, in which they stand under ``launch.threads``.
        processes: That train on this machine.
        cores: That they may use; None where nobody knows.
    """
    launch = resolved.tree.entries.get("launch")
    node = launch.entries.get("threads") if isinstance(launch, Table) else None
    value = None if node is None else plain(node)
    threads = read_scalar(value.strip()) if isinstance(value, str) else value
    if node is None or cores is None or not isinstance(threads, int) or threads * processes <= cores:
        return ()
    share = max(1, cores // processes)
    if threads == share:  # there are more processes than cores
        return ()
    each = f" for each of {processes} processes" if processes > 1 else ""
    return (
        f"launch.threads: {threads}{each} is more than the {cores} core{'s' if cores > 1 else ''} that this process "
        f"may use, by its affinity and its control group: they wait for each other, which can take several times as "
        f"long; {share} {'fits' if share == 1 else 'fit'} ({node.origin})",
    )


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
