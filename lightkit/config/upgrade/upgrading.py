"""From an old config to one in today's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightkit.config.loader import layers_of
from lightkit.config.origins import shown_path
from lightkit.config.tree import Items, Leaf, Node, Table, plain
from lightkit.config.upgrade.changes import Change, Places, Report
from lightkit.config.upgrade.classes import upgrade_classes
from lightkit.config.upgrade.edits import Document
from lightkit.config.upgrade.hardware import BACKEND, HARDWARE_KEYS
from lightkit.config.upgrade.placing import STAGES, placed
from lightkit.config.upgrade.syntax import Mapping as MappingSyntax
from lightkit.config.upgrade.syntax import has_aliases, is_json, long_keys
from lightkit.config.upgrade.trainers import TrainerUpgrade
from lightkit.config.yaml_reader import read_file, read_text
from lightkit.errors import ConfigError, ConfigErrors

__all__ = ["Upgraded", "upgrade_file"]

_BOM = "\ufeff"
_TUNE = "tune: Lightning 2.0 dropped the command; say what it searched as callbacks of fit, such as lr_finder: {}"


@dataclass(frozen=True)
class Upgraded:
    """An upgraded config.

    Args:
        text: Its text.
        changes: What was changed, in the order of the old file's lines; none where nothing had to be.
        extended: Files that it extends, of those that are there; they are not rewritten.
    """

    text: str
    changes: tuple[Change, ...]
    extended: tuple[Path, ...] = ()


def upgrade_file(file: Path) -> Upgraded:
    """Rewrite a config of Lightning 1.x in today's words.

    Raises:
        ConfigError: If the file cannot be read as a config, or holds what has no equivalent; all of it at once.
    """
    if file.exists() and not (file.is_file() or file.is_dir()):  # it is read more than once
        raise ConfigError(
            f"{shown_path(file)}: expected a file, got a pipe or a device; save the config as a file first"
        )
    tree = read_file(file)
    content = file.read_bytes().decode("utf-8")
    bom, text = (_BOM, content[1:]) if content.startswith(_BOM) else ("", content)
    name = shown_path(file)
    report = Report(text)
    document = Document(text, name)
    places = placed(document, tree, report)
    new_text = _rewritten(places, name, report, below=_hardware_below(file))
    if report.changes or report.refusals:
        _refuse_long_keys(document, report)
    if report.refusals:
        raise ConfigErrors(error for _, error in sorted(report.refusals, key=lambda pair: pair[0]))
    _check(new_text, name, document)
    changes = tuple(sorted(report.changes, key=lambda change: change.line))
    return Upgraded(bom + new_text if changes else content, changes, _extended(tree, file))


def _rewritten(places: Places, name: str, report: Report, *, below: Mapping[str, Node]) -> str:
    document = Document(places.text, name)
    tree = places.relocated(read_text(places.text, name=name))
    root = document.root
    if not isinstance(tree, Table) or not isinstance(root, MappingSyntax):
        return places.text
    if "tune" in tree.entries and plain(tree.entries["tune"]) is not None:
        report.refuse(tree.entries["tune"].origin.at_key(), _TUNE)
    TrainerUpgrade(document, root, tree, below=below, places=places, report=report).run()
    below = {**below, **_hardware_in(tree)}
    for stage in STAGES:
        entry, node = root.get(stage), tree.entries.get(stage)
        if entry is not None and isinstance(entry.value, MappingSyntax) and isinstance(node, Table):
            TrainerUpgrade(document, entry.value, node, stage=stage, below=below, places=places, report=report).run()
    upgrade_classes(document, places, report)
    return document.edited()


def _hardware_in(tree: Table) -> dict[str, Node]:
    trainer = tree.entries.get("trainer")
    entries = trainer.entries if isinstance(trainer, Table) else {}
    return {key: node for key, node in entries.items() if key in HARDWARE_KEYS and key != BACKEND}


def _hardware_below(file: Path) -> dict[str, Node]:
    """Give the hardware keys of what a file extends; none where that cannot be read, which is told elsewhere."""
    try:
        lower = layers_of(file, seen=set())[:-1]
    except ConfigError:
        return {}
    return {key: node for layer in lower for key, node in _hardware_in(layer).items()}


def _refuse_long_keys(document: Document, report: Report) -> None:
    """Refuse keys that stand on lines of their own: new lines beside them would not line up."""
    for entry in long_keys(document.text, document.root):
        says = f"{entry.key}: it is written as `? {entry.key}`, YAML's long form of a key, beside which no line can be"
        report.refuse(document.origin(entry), f"{says} rewritten; write it as `{entry.key}: ...`, and upgrade again")


def _check(text: str, name: str, document: Document) -> None:
    """Make sure that what is written can be read: an anchor may have gone with the value that it stood at."""
    says = f"{name}: the upgraded file would not be valid"
    try:
        read_text(text, name=name)
    except ConfigError as error:
        if has_aliases(document.root):
            raise ConfigError(f"{says}; write out the values of anchors such as &name, and upgrade again") from None
        reason = str(error).splitlines()[0].removeprefix(f"{name}: ")
        raise ConfigError(f"{says}: {reason}; write its mappings as `key: value` lines, and upgrade again") from None
    if document.is_json and not is_json(text):
        raise ConfigError(f"{says} JSON; save it as .yaml, and upgrade that")


def _extended(tree: Table, file: Path) -> tuple[Path, ...]:
    extends = tree.entries.get("extends")
    items = extends.items if isinstance(extends, Items) else [extends] if extends is not None else []
    names = [item.value for item in items if isinstance(item, Leaf) and isinstance(item.value, str)]
    choices = [[file.parent / name, file.parent / f"{name}.yaml"] for name in names]
    return tuple(next(path for path in paths if path.is_file()) for paths in choices if any(map(Path.is_file, paths)))
