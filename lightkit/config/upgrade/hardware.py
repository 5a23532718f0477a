"""The trainer's hardware keys in today's words, as `resolve_hardware` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightkit.config.accelerator import Hardware, resolve_hardware
from lightkit.config.accelerator.computing import COMPUTING_KEYS
from lightkit.config.accelerator.said import OLD_TRAINER_KEYS
from lightkit.config.accelerator.words import GONE_STRATEGIES, OLD_STRATEGIES, STRATEGIES_AS_ACCELERATORS
from lightkit.config.loader import CLASS_SECTIONS, WORDS, Resolved
from lightkit.config.merge import MergeRules
from lightkit.config.origins import Origin
from lightkit.config.tree import Leaf, Node, Table, plain
from lightkit.config.upgrade.changes import Report, is_interpolated, shown
from lightkit.config.upgrade.edits import SAME
from lightkit.errors import ConfigError

__all__ = ["BACKEND", "HARDWARE_KEYS", "OLD_HARDWARE_KEYS", "WHY", "hardware_today", "is_strategy"]

BACKEND = "distributed_backend"
"""What Lightning up to 1.4 called ``accelerator``."""
OLD_HARDWARE_KEYS = (*OLD_TRAINER_KEYS, BACKEND)
_TODAY = ("accelerator", "devices", "strategy", "precision", "num_nodes")
HARDWARE_KEYS = (*OLD_HARDWARE_KEYS, *_TODAY)
WHY = {
    **dict.fromkeys(OLD_TRAINER_KEYS, "Lightning 2.0 takes a kind of device and a number"),
    BACKEND: "Lightning 1.5 renamed it",
    "accelerator": "Lightning 1.6 parts the kind of device from the strategy",
    "devices": "today's word for it",
    "num_nodes": "today's word for it",
    "plugins": "Lightning 1.6 made it a strategy",
    "precision": "Lightning 2.0 says what computes in it",
    "strategy": "today's word for it",
}
_NULLS = {"accelerator": "auto", "devices": "auto", "strategy": "auto", "num_nodes": 1}

Keys = tuple[tuple[str, Any], ...]


def is_strategy(word: Any) -> bool:
    """Tell whether a word names a strategy, under whatever key it stands."""
    return isinstance(word, str) and word.lower() in (*STRATEGIES_AS_ACCELERATORS, *GONE_STRATEGIES, *OLD_STRATEGIES)


def hardware_today(
    said: Mapping[str, Node], block: Node | None, report: Report, *, below: Mapping[str, Node]
) -> dict[str, Keys]:
    """Give the keys that take the place of each hardware key that is not today's; a key whose keys are () goes away.

    Args:
        said: Values of the trainer, by the key that holds them; ``plugins`` for the name of a strategy there.
        block: Value of ``accelerator`` beside the trainer.
        report: Where what has no equivalent is told.
        below: Values of the trainer that these are laid over, where that is known: ``num_processes: 1``, the default of
            1.x, asks for a CPU only where nothing names another device.
    """
    fixed: dict[str, Node] = {}
    for key, node in said.items():
        if not is_interpolated(plain(node)):
            fixed[key] = node
        elif key in OLD_HARDWARE_KEYS:
            says = f"trainer.{key}: {plain(node)}: what it is today depends on its value"
            own = f", or keep it in lightkit's own block, as accelerator: {{{key}: ...}}" if key != BACKEND else ""
            report.refuse(node.origin, f"{says}; write the value out{own}")
    before = len(report.refusals)
    names = _as_trainer_keys(fixed, report)
    table = {name: fixed[key] for key, name in names.items()}
    alone = {name: node for name, node in table.items() if _resolved({name: node}, None, report, node.origin)}
    if len(report.refusals) > before:
        _resolved(alone, None, report, Origin("default"))  # what contradicts another is told too
    if len(report.refusals) > before or not table:
        return {}
    laid = {**{key: node for key, node in below.items() if not is_interpolated(plain(node))}, **table}
    quiet = Report("")
    hardware = _resolved(laid, block, quiet, Origin("default"))
    if hardware is None:  # what is below contradicts it, or itself
        laid = table
        hardware = _resolved(table, block, report, next(iter(table.values())).origin)
    return {} if hardware is None else _placed(hardware, fixed, laid, report)


def _as_trainer_keys(said: Mapping[str, Node], report: Report) -> dict[str, str]:
    """Say under which of Lightning 1.6's keys each value is read; one that is null makes room for another."""
    names = {key: key for key in said if key not in (BACKEND, "plugins")}
    for key, targets in ((BACKEND, ("accelerator", "strategy")), ("plugins", ("strategy",))):
        if key not in said or plain(said[key]) is None:
            continue
        holders = {target: next((held for held, name in names.items() if name == target), None) for target in targets}
        free = [target for target, held in holders.items() if held is None or plain(said[held]) is None]
        if not free:
            says = f"{shown(('trainer', key), plain(said[key]))}: contradicts trainer.{targets[-1]}; say one of them"
            report.refuse(said[key].origin, says)
            continue
        names.pop(str(holders[free[0]]), None)
        names[key] = free[0]
    return names


def _resolved(table: Mapping[str, Node], block: Node | None, report: Report, origin: Origin) -> Hardware | None:
    top = {"trainer": Table(dict(table), Origin("default"))}
    if block is not None:
        top["accelerator"] = _of_devices(block)  # type: ignore[assignment]
    layering = MergeRules(CLASS_SECTIONS, {"callbacks": {}, "logger": {}}, WORDS)
    try:
        tree = layering.lay(Table({}, Origin("default")), Table(top, Origin("default")))
        assert isinstance(tree, Table)
        return resolve_hardware(Resolved(tree, layering), None, environ={})
    except ConfigError as error:
        report.refuse_as(origin, error)
        return None


def _of_devices(block: Node) -> Node:
    """Leave out of lightkit's own block what goes to other sections, which are not looked at here."""
    if not isinstance(block, Table):
        return block
    kept = {key: node for key, node in block.entries.items() if key not in COMPUTING_KEYS or key == "precision"}
    return replace(block, entries=kept)


def _placed(hardware: Hardware, said: Mapping[str, Node], table: Mapping[str, Node], report: Report) -> dict[str, Keys]:
    found = _trainer(hardware)
    if hardware.strategy == "horovod":
        by = found["strategy"].origin if "strategy" in found else None
        rest = {name: node for name, node in table.items() if node.origin != by}
        other = _resolved(rest, None, report, by or Origin("default")) if rest else None
        devices = {} if other is None else {k: v for k, v in _trainer(other).items() if k != "strategy"}
        found = {**devices, **{key: node for key, node in found.items() if key in ("strategy", "precision")}}
        if "strategy" in found:
            found["strategy"] = _word(found["strategy"], said)
    return {
        key: keys
        for key, node in said.items()
        if (keys := _of(key, node, found)) is not None and not (len(keys) == 1 and keys[0] == (key, SAME))
    }


def _trainer(hardware: Hardware) -> dict[str, Node]:
    trainer = hardware.resolved.tree.entries["trainer"]
    return {key: trainer.entries[key] for key in _TODAY if key in trainer.entries} if isinstance(trainer, Table) else {}


def _word(strategy: Node, said: Mapping[str, Node]) -> Node:
    """Say Horovod's strategy in one word where the config did."""
    own = next((node for node in said.values() if node.origin == strategy.origin), None)
    return strategy if isinstance(own, Table) or own is None else Leaf("horovod", strategy.origin)


def _of(key: str, node: Node, found: Mapping[str, Node]) -> Keys | None:
    """List what one value became; None where it stays."""
    own = [(name, new) for name, new in found.items() if new.origin == node.origin]
    if key in _TODAY and [name for name, _ in own] == [key] and (own[0][1] is node or _same(own[0][1], node)):
        return None
    told = [(name, new) for name, new in own if name == key or plain(new) != _NULLS.get(name)]
    if len(told) > 1:
        told = [(name, new) for name, new in told if plain(new) != _NULLS.get(name)]
    told.sort(key=lambda pair: pair[0] != key)
    keys: Keys = tuple((name, SAME if _same(new, node) and key != "plugins" else plain(new)) for name, new in told)
    if key == "gpus" and keys == (("accelerator", "cpu"),) and "devices" not in found:
        keys = (*keys, ("devices", "auto"))  # else the number of a layer below would count processes
    return keys


def _same(new: Node, old: Node) -> bool:
    if isinstance(new, Table) and not isinstance(old, Table):
        return bool(plain(new) == {"class_path": plain(old)})
    return type(plain(new)) is type(plain(old)) and bool(plain(new) == plain(old))
