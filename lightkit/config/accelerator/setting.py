"""One hardware key as a layer writes it, and the errors that name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightkit.config.accelerator.vocabulary import ALL, GONE_STRATEGIES, STRATEGIES_AS_ACCELERATORS
from lightkit.config.bounds import is_int
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin, dotted, error_at
from lightkit.config.tree import Node, graft, to_plain
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError

AUTO = "auto"


@dataclass(frozen=True)
class Setting:
    """A hardware key with its value.

    Args:
        path: Keys that lead to it.
        node: The value with its origin.
    """

    path: KeyPath
    node: Node

    @property
    def value(self) -> Any:
        """The value as parsed: text that is a number, from a flag or a variable, is one here."""
        value = to_plain(self.node)
        return read_scalar(value.strip()) if isinstance(value, str) else value

    @property
    def subject(self) -> str:
        """Key of the block or the trainer that it counts as, or ``launch.KEY``."""
        if self.path == ("accelerator", "kind"):
            return "accelerator"
        if self.is_strategy_word:
            return "strategy"
        return dotted(self.path) if self.path[0] == "launch" else str(self.path[-1])

    @property
    def origin(self) -> Origin:
        """Place that set it."""
        return self.node.origin

    @property
    def is_strategy_word(self) -> bool:
        """Check whether ``trainer.accelerator`` names a strategy, as it did up to Lightning 1.5."""
        words = (*STRATEGIES_AS_ACCELERATORS, *GONE_STRATEGIES)
        return self.path == ("trainer", "accelerator") and str(self.value).lower() in words

    @property
    def is_old_precision(self) -> bool:
        """Return whether it is a precision in the words of Lightning 1.x.

        32 and 64 are today's too.
        """
        return self.path[-1] == "precision" and str(self.value) in ("16", "bf16")

    def __str__(self) -> str:
        is_short = self.path == ("accelerator", "kind") and not self.origin.name.startswith(
            "--accelerator."
        )
        return f"{dotted(self.path[:1] if is_short else self.path)}: {_format_value(self.node)}"

    def refuse(self, reason: str) -> ConfigError:
        """Build the error that shows the setting with a reason."""
        return error_at(f"{self}: {reason}", self.origin)

    def expect(self, expected: str, hint: str = "") -> ConfigError:
        """Build the error that names the expected form, with a hint at the likely value."""
        return error_at(
            f"{dotted(self.path)}: expected {expected}, got {to_plain(self.node)!r}{hint}",
            self.origin,
        )


def _format_value(node: Node) -> str:
    value = class_of(node) or to_plain(node)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"


def count_devices(count: Any) -> Any:
    """Return the number of devices; `ALL`, ``auto`` and null as they are."""
    if isinstance(count, tuple):
        return len(count)
    return abs(count) if is_int(count) and count != ALL else count


def contradiction(one: Setting, other: Setting, advice: str = "say one of them") -> ConfigError:
    """Build the error that shows two places that exclude each other."""
    return error_at(f"{one} contradicts {other}; {advice}", one.origin, other.origin)


def make_node(value: Any, setting: Setting) -> Node:
    """Build a value with the place that asked for it; the node itself where it is just that."""
    wanted = list(value) if isinstance(value, tuple) else value
    return setting.node if to_plain(setting.node) == wanted else graft(wanted, setting.origin)
