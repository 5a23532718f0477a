"""Which strategy a config asks for, in today's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lightkit.config.accelerator.said import Said, contradiction
from lightkit.config.accelerator.words import (
    GONE_STRATEGIES,
    HOROVOD,
    OLD_STRATEGIES,
    STRATEGIES_AS_ACCELERATORS,
    STRATEGY_CLASSES,
)
from lightkit.config.merge import class_of
from lightkit.config.origins import mistake
from lightkit.config.tree import Leaf, Node, Table, plain

__all__ = ["Strategy", "decide_strategy", "is_strategy_word"]


@dataclass(frozen=True)
class Strategy:
    """A strategy.

    Args:
        name: Its name where that is known: ``ddp``, ``horovod``.
        node: Today's value for ``trainer.strategy``.
        said: What asks for it.
        kind: Kind of device that an old name implied.
    """

    name: str | None
    node: Node
    said: Said
    kind: str | None = None


def decide_strategy(said: Mapping[str, Sequence[Said]]) -> Strategy | None:
    """Give the strategy that is said; None where Lightning is to decide.

    Raises:
        ConfigError: If there is none of that name any more, or two places say different things.
    """
    places = [*said.get("strategy", ()), *(one for one in said.get("accelerator", ()) if is_strategy_word(one))]
    engine = said.get("launch.engine", [None])[0]
    told = [_strategy(one) for one in places if one.value not in (None, "auto")]
    if not told:
        return _horovod(engine) if engine is not None and engine.value == "horovod" else None
    chosen = told[0]
    for other in told[1:]:
        chosen = _agreed(chosen, other)
    if engine is not None:
        _check_engine(chosen, engine)
    return chosen


def is_strategy_word(said: Said) -> bool:
    """Tell whether ``trainer.accelerator`` names a strategy, as it did up to Lightning 1.5."""
    words = (*STRATEGIES_AS_ACCELERATORS, *GONE_STRATEGIES)
    return said.path == ("trainer", "accelerator") and isinstance(said.value, str) and said.value.lower() in words


def _strategy(said: Said) -> Strategy:
    named = class_of(said.node)
    if named is not None:
        return _of_class(said, named)
    if not isinstance(said.value, str):  # Lightning refuses it
        return Strategy(None, said.node, said)
    word = said.value.lower()
    if word in GONE_STRATEGIES:
        raise mistake(f"{said} is no strategy any more: {GONE_STRATEGIES[word]}", said.origin)
    if word in ("horovod", "horovodstrategy") or said.value == HOROVOD:
        return _horovod(said)
    name, kind = OLD_STRATEGIES.get(word, (word, None))
    old_place = said.path[-1] == "accelerator"
    node = replace(said.node, value=name) if isinstance(said.node, Leaf) and (name != word or old_place) else said.node
    return Strategy(name, node, said, kind)


def _of_class(said: Said, named: str) -> Strategy:
    """Read a class; ``horovod`` is one where a dotted key reaches below it."""
    last = named.rpartition(".")[2]
    if named != "horovod" and last != "HorovodStrategy":
        return Strategy(STRATEGY_CLASSES.get(last), said.node, said)
    return _horovod(said)


def _horovod(said: Said) -> Strategy:
    node = said.node
    if isinstance(node, Table):
        named = node.entries["class_path"]
        own = str(plain(named)).startswith("lightkit.") or "." not in str(plain(named))
        if own:
            node = replace(node, entries={**node.entries, "class_path": Leaf(HOROVOD, named.origin)})
    else:
        node = Table({"class_path": Leaf(HOROVOD, node.origin)}, node.origin, node.replaced)
    return Strategy("horovod", node, said)


def _agreed(one: Strategy, other: Strategy) -> Strategy:
    """Give the one of two that says more; ``ddp`` and ``{class_path: DDPStrategy}`` agree."""
    same_name = one.name is not None and one.name == other.name
    has_arguments = [isinstance(each.node, Table) and "init_args" in each.node.entries for each in (one, other)]
    if plain(one.node) != plain(other.node) and not (same_name and not all(has_arguments)):
        raise contradiction(one.said, other.said, "say one of them")
    first, second = (one, other) if has_arguments[0] or not has_arguments[1] else (other, one)
    return replace(first, kind=first.kind or second.kind)


def _check_engine(strategy: Strategy, engine: Said) -> None:
    if engine.value == "horovod" and strategy.name not in (None, "horovod"):
        raise contradiction(strategy.said, engine, "Horovod's launcher starts processes for strategy: horovod only")
    if strategy.name == "horovod" and engine.value in ("torchrun", "ray", "local"):
        raise contradiction(strategy.said, engine, "Horovod's processes are started by the engine horovod or spark")
