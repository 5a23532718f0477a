"""All mistakes that the catalogue shows in a config: unknown keys, wrong types, missing arguments, wrong classes.

What is reported here jsonargparse refuses too. What only it can judge, such as a class of the user's own, is left to
it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lightkit.config.accelerator.said import OLD_TRAINER_KEYS
from lightkit.config.catalogue.catalogue import PACKAGES, Catalogue, MayMean
from lightkit.config.catalogue.classes import ClassJudge
from lightkit.config.catalogue.findings import PASSED_OVER, Findings
from lightkit.config.catalogue.types import shown
from lightkit.config.catalogue.words import judge_trainer_words
from lightkit.config.merging import Layering, is_append
from lightkit.config.origins import KeyPath, cut, near
from lightkit.config.tree import Leaf, Node, Table, plain, walk

__all__ = ["Findings", "check_values"]

_HARDWARE = {*OLD_TRAINER_KEYS, "accelerator", "devices", "strategy", "precision", "num_nodes"}
_CLASSES = ("model", "data", "optimizer", "lr_scheduler")
_ENTRIES = ("callbacks", "logger")
_FREE = ("ckpt_path", "config", "extends", "accelerator", "fit", "validate", "test", "predict")
"""Top-level keys of which nothing is said here."""
_JUDGED_ELSEWHERE = ("launch",)
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def check_values(
    tree: Table,
    catalogue: Catalogue,
    *,
    layering: Layering,
    unresolved: Collection[KeyPath] = (),
    removed: Collection[KeyPath] = (),
    subcommand: str | None = None,
    judged_elsewhere: Collection[str] = _JUDGED_ELSEWHERE,
    is_complete: bool = True,
    is_loaded: MayMean = lambda _name, _bases: False,
) -> Findings:
    """Judge a config by the catalogue.

    Args:
        tree: A resolved config, before or after its hardware keys are; of those keys nothing is said.
        catalogue: What can be named.
        layering: The rules that the config was merged by.
        unresolved: Places whose interpolation failed, of which nothing is said.
        removed: Places that were left out because they were wrong, so that they are not missing.
        subcommand: Subcommand that it is for; None: keys of any are known.
        is_complete: Whether all layers could be read, so that what is missing is missing.
        is_loaded: Whether a short name means a class that is loaded in this process, such as a test's own.
        judged_elsewhere: Sections of which nothing is said, because `lightkit.launch.read_settings` knows more.
    """
    findings = Findings(unresolved=set(unresolved), removed=frozenset(removed))
    all_known = not findings.unresolved and not any(_is_foreign(node, catalogue) for _, node in walk(tree))
    are_all_known = all_known and {*PACKAGES} == {*catalogue.trusted}
    may_mean = is_loaded if are_all_known else lambda _name, _bases: True
    judge = ClassJudge(catalogue, findings, may_mean, is_complete=is_complete)
    check = _Check(catalogue, layering, subcommand, frozenset(judged_elsewhere), findings, judge)
    for key, node in tree.entries.items():
        check.top_level(key, node)
    if all_known and "pytorch_lightning" in catalogue.trusted:
        judge_trainer_words(tree, catalogue, findings, is_loaded)
    check.findings.put_in_order(tree)
    return check.findings


@dataclass
class _Check:
    catalogue: Catalogue
    layering: Layering
    subcommand: str | None
    silent: frozenset[str]
    findings: Findings
    judge: ClassJudge

    def top_level(self, key: Any, node: Node) -> None:
        known = self._known_keys()
        if not isinstance(key, str):
            self.findings.report_unnamed((key,), node)
            return
        if key in _FREE or key in self.silent or key in PASSED_OVER or "." in key:
            return
        if key in _CLASSES:
            self._class_section(key, node)
        elif key.removesuffix("+") in _ENTRIES:
            self._entries(key, node)
        elif key in self.catalogue.data["sections"]:
            self._section(key, node)
        elif "pytorch_lightning" not in self.catalogue.trusted:
            return
        elif key not in known:
            base = key.removesuffix("+")
            hint = f"; {base} takes no list" if base in known else near(base, known) or self._elsewhere(base)
            self.findings.report_unknown((key,), f"no such key{hint}", node)
        else:
            self.judge.value((key,), node, self.catalogue.data["top"][key])

    def _elsewhere(self, key: str) -> str:
        """Say in which section a key stands."""
        if key == "trust":
            return "; --trust is said on the command line, and by no config"
        sections: Mapping[str, Any] = self.catalogue.data["sections"]
        found = [f"{section}.{key}" for section, said in sections.items() if key in said["arguments"]]
        return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""

    def _known_keys(self) -> set[str]:
        top: Mapping[str, Any] = self.catalogue.data["top"]
        own = {key for key, said in top.items() if self.subcommand in (None, *said.get("commands", (self.subcommand,)))}
        return {*own, *_CLASSES, *_ENTRIES, *self.catalogue.data["sections"], "ckpt_path", "extends"}

    def _class_section(self, key: str, node: Node) -> None:
        if key not in self.layering.class_sections:  # its class is fixed in Python
            self.findings.unjudged.append((key,))
            return
        bases = self.catalogue.data["bases"][key]
        schema = {"anyOf": [{"class": base} for base in bases]}
        self.judge.value((key,), node, {"schema": schema, "shown": shown(schema)})

    def _entries(self, key: str, node: Node) -> None:
        """Judge named entries; one that has no class is a mistake that `resolve` has told."""
        for name, entry in node.entries.items() if isinstance(node, Table) and key in _ENTRIES else ():
            if isinstance(entry, Table) and "class_path" in entry.entries:
                self.judge.class_entry((key, name), entry, [{"class": base} for base in self._bases(key)])

    def _bases(self, key: str) -> list[str]:
        bases: list[str] = self.catalogue.data["bases"][key]
        return bases

    def _section(self, key: str, node: Node) -> None:
        section = self.catalogue.data["sections"][key]
        if not isinstance(node, Table):
            if plain(node) is not None and not self.findings.is_unresolved((key,)):
                says = f"expected a mapping of {_possessive(key)} arguments, got {cut(repr(plain(node)))}"
                is_squeezed = isinstance(node, Leaf) and re.match(r"\w+:\S", str(node.value)) is not None
                says += "; a space is missing after the colon" if is_squeezed else ""
                self.findings.report((key,), says, node)
            return
        if key == "trainer" and "pytorch_lightning" not in self.catalogue.trusted:
            return
        known = {**section["arguments"], **(dict.fromkeys(OLD_TRAINER_KEYS) if key == "trainer" else {})}
        for name, child in node.entries.items():
            if key == "trainer" and name in _HARDWARE:
                continue
            base = name.removesuffix("+") if is_append(name) else name
            if base in known and not (is_append(name) and not _takes_lists(known[base])):
                self.judge.value((key, name), child, known[base])
            elif not isinstance(name, str):
                self.findings.report_unnamed((key, name), child)
            elif "." not in name and name not in PASSED_OVER:
                hint = f"; {base} takes no list" if base in known else near(base, known)
                self.findings.report_unknown((key, name), f"{_owner(key)} no such argument{hint}", child)


def _is_foreign(node: Node, catalogue: Catalogue) -> bool:
    """Tell whether a text may name a class that is not in the catalogue, whose module may bring others along."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str) or not _DOTTED.fullmatch(node.value):
        return False
    if node.value in catalogue.data["apart"]:  # it brings its module's other classes along
        return True
    return catalogue.path_of(node.value) is None or not catalogue.counts(node.value)


def _takes_lists(argument: Mapping[str, Any] | None) -> bool:
    schema = (argument or {}).get("schema", {})
    branches = schema.get("anyOf", [schema])
    return any(not branch or branch.get("type") == "array" for branch in branches)


def _owner(section: str) -> str:
    return "the trainer has" if section == "trainer" else "there is"


def _possessive(section: str) -> str:
    return "the trainer's" if section == "trainer" else f"{section}'s"
