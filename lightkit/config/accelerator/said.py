"""What a config says about hardware: the values of its keys as read, each with its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightkit.config.accelerator.words import KINDS
from lightkit.config.origins import KeyPath, Origin, dotted, mistake, near
from lightkit.config.tree import Node, Table, plain
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError

__all__ = ["BLOCK_KEYS", "OLD_TRAINER_KEYS", "Said", "agreed", "contradiction", "read_said"]

BLOCK_KEYS = (
    "kind",
    "gpus",
    "tpu_cores",
    "ipus",
    "hpus",
    "num_processes",
    "strategy",
    "num_nodes",
    "precision",
    "memory_format",
    "compile",
    "tf32",
    "fused",
    "threads",
    "num_workers",
    "batch_size",
    "learning_rate",
    "scale_lr",
    "warmup_epochs",
)
OLD_TRAINER_KEYS = ("gpus", "tpu_cores", "ipus", "hpus", "num_processes")
"""Arguments of Lightning 1.x's trainer that today's has not."""
_TRAINER_KEYS = (*OLD_TRAINER_KEYS, "accelerator", "devices", "strategy", "precision", "num_nodes")
_KIND = ("accelerator", "kind")
_LAUNCH_KEYS = ("engine", "processes", "hosts", "nodes")


@dataclass(frozen=True)
class Said:
    """A value that was said.

    Args:
        path: Keys that lead to it.
        node: The value with its origin.
        value: The value as read: text that is a number, from a flag or a variable, is one here.
    """

    path: KeyPath
    node: Node
    value: Any

    @property
    def origin(self) -> Origin:
        """Place that set it."""
        return self.node.origin

    def __str__(self) -> str:
        path = self.path[:1] if self.path == _KIND and not self.origin.name.startswith("--accelerator.") else self.path
        return f"{dotted(path)}: {_shown(plain(self.node))}"

    def wrong(self, expected: str, hint: str = "") -> ConfigError:
        """Make the error that says what was expected here instead, with a hint at what may be meant."""
        return mistake(f"{dotted(self.path)}: expected {expected}, got {plain(self.node)!r}{hint}", self.origin)


def read_said(tree: Table) -> dict[str, list[Said]]:
    """Collect what is said about each subject, the block ``accelerator`` before ``trainer``.

    Subjects are the keys of the two; those of ``launch`` stand under ``launch.processes`` and so on. The kind of
    ``accelerator: cpu`` counts as a value for the subject ``accelerator``.

    Raises:
        ConfigError: If the block is neither a mapping of known keys nor a known word.
    """
    said: dict[str, list[Said]] = {}
    for path, node in [*_block(tree), *_within(tree, "trainer", _TRAINER_KEYS)]:
        subject = "accelerator" if path == _KIND else str(path[-1])
        said.setdefault(subject, []).append(Said(path, node, _read(node)))
    for path, node in _within(tree, "launch", _LAUNCH_KEYS):
        said[dotted(path)] = [Said(path, node, _read(node))]
    return said


def agreed(said: Sequence[Said], *, empty: Sequence[Any] = (None,)) -> Said | None:
    """Give the one value that is said, however often; what is empty does not count beside one that is not.

    Raises:
        ConfigError: If two places say different things.
    """
    telling = [one for one in said if one.value not in empty] or list(said)
    for one in telling[1:]:
        if one.value != telling[0].value:
            raise contradiction(telling[0], one, "say one of them")
    return telling[0] if telling else None


def contradiction(one: Said, other: Said, what_to_do: str) -> ConfigError:
    """Make the error that shows two places that exclude each other."""
    return mistake(f"{one} contradicts {other}; {what_to_do}", one.origin, other.origin)


def _block(tree: Table) -> list[tuple[KeyPath, Node]]:
    node = tree.entries.get("accelerator")
    if node is None or plain(node) is None:
        return []
    if not isinstance(node, Table):
        raise mistake(f"accelerator: expected {_expected()}, got {plain(node)!r}", node.origin)
    for key, child in node.entries.items():
        if key not in BLOCK_KEYS:
            says = f"accelerator.{key}: there is no such key{near(str(key), BLOCK_KEYS)}"
            raise mistake(f"{says}\nkeys: {', '.join(BLOCK_KEYS)}", child.origin.at_key())
        if key == "kind":
            _check_word(child)
    return [(("accelerator", key), child) for key, child in node.entries.items()]


def _check_word(node: Node) -> None:
    word = plain(node)
    if word is None or (isinstance(word, str) and word in KINDS):
        return
    hint = near(str(word), KINDS) or "; a strategy stands below it, as in accelerator: {strategy: ddp}"
    raise mistake(f"accelerator: expected {_expected()}, got {word!r}{hint}", node.origin)


def _expected() -> str:
    return f"one of {', '.join(KINDS)}, or a mapping such as {{gpus: 2}}"


def _within(tree: Table, section: str, keys: Sequence[str]) -> list[tuple[KeyPath, Node]]:
    table = tree.entries.get(section)
    entries = table.entries if isinstance(table, Table) else {}
    return [((section, key), entries[key]) for key in keys if key in entries]


def _read(node: Node) -> Any:
    value = plain(node)
    return read_scalar(value.strip()) if isinstance(value, str) else value


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("class_path", value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value) or "''"
