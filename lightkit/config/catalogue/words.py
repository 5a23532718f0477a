"""The words that Lightning's trainer takes for a strategy and a profiler, which its signature calls just text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lightkit.config.accelerator.words import (
    GONE_STRATEGIES,
    OLD_STRATEGIES,
    STRATEGIES_AS_ACCELERATORS,
    STRATEGY_CLASSES,
)
from lightkit.config.catalogue.catalogue import Catalogue, MayMean
from lightkit.config.catalogue.findings import Findings
from lightkit.config.origins import KeyPath, near, shortened
from lightkit.config.tree import Leaf, Table

__all__ = ["judge_trainer_words"]

_BASES = {"strategy": "pytorch_lightning.strategies.Strategy", "profiler": "pytorch_lightning.profilers.Profiler"}
_OWN = {
    "strategy": {"auto", "horovod", *OLD_STRATEGIES, *STRATEGIES_AS_ACCELERATORS, *GONE_STRATEGIES, *STRATEGY_CLASSES},
    "profiler": set[str](),
}
"""What lightkit takes besides, or refuses elsewhere with a reason."""
_PLACES: Mapping[KeyPath, str] = {
    ("trainer", "strategy"): "strategy",
    ("accelerator", "strategy"): "strategy",
    ("trainer", "profiler"): "profiler",
}


def judge_trainer_words(tree: Table, catalogue: Catalogue, findings: Findings, is_loaded: MayMean) -> None:
    """Note the words that no strategy or profiler has.

    Only for a config that names no module of the user's own, since that may register strategies.

    Args:
        tree: The config.
        catalogue: What can be named.
        findings: Takes what is found.
        is_loaded: Whether a word means a strategy or a class that is loaded in this process.
    """
    words: Mapping[str, Any] = catalogue.data["words"]
    for (section, key), kind in _PLACES.items():
        block = tree.entries.get(section)
        node = block.entries.get(key) if isinstance(block, Table) else None
        if not isinstance(node, Leaf) or not isinstance(node.value, str) or findings.is_unresolved((section, key)):
            continue
        word, bases = node.value, [_BASES[kind]]
        if "." not in word and not catalogue.is_name(word, bases) and not is_loaded(word, bases):
            _judge((section, key), node, word, words[kind], kind, findings)


def _judge(path: KeyPath, node: Leaf, word: str, words: Collection[str], kind: str, findings: Findings) -> None:
    known = {name.lower() for name in (*words, *_OWN[kind])}
    if word.lower() in known or not word.strip() or word == "null":
        return
    some = sorted({*words} - {name for name in words if "find_unused" in name})
    hint = near(word, [*words, *_OWN[kind] - GONE_STRATEGIES.keys()]) or f"; there are {', '.join(some)}"
    findings.report(path, f"there is no {kind} {shortened(word)}{hint}", node)
