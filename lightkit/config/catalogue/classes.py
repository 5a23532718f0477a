"""The judgement of single values and of classes with their arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.config.catalogue.catalogue import Catalogue, MayMean
from lightkit.config.catalogue.findings import PASSED_OVER, Findings, is_hollow
from lightkit.config.catalogue.types import alternatives, any_of, branches_of, takes
from lightkit.config.merging import is_append
from lightkit.config.origins import NESTED_FILES, KeyPath, cut, near, near_class, no_class, shortened
from lightkit.config.scalars import read_scalar
from lightkit.config.tree import Items, Node, Table, plain

__all__ = ["ClassJudge"]

_SPEC_KEYS = ("class_path", "init_args", "dict_kwargs")
_BUILT = {"model": 1, "data": 1, "callbacks": 2, "logger": 2, "trainer": 3}
"""Sections whose classes are called with their ``dict_kwargs``, each with the longest path of such a class.

Lightning makes optimizers and schedulers without them.
"""
_LONGEST_WORD = 80  # a longer text is no misspelt word, and takes long to compare
Argument = Mapping[str, Any]
Schema = dict[str, Any]


class ClassJudge:
    """Judges values by their types, and classes by their signatures.

    Args:
        catalogue: What is known.
        findings: Takes what is found.
        may_mean: Whether a short name may mean a class that the catalogue does not know.
        is_complete: Whether all layers could be read, so that what is missing is missing.
    """

    def __init__(self, catalogue: Catalogue, findings: Findings, may_mean: MayMean, *, is_complete: bool) -> None:
        self._catalogue, self._findings = catalogue, findings
        self._may_mean, self._is_complete = may_mean, is_complete

    def value(self, path: KeyPath, node: Node, argument: Argument) -> None:
        """Judge the value of an argument."""
        value = plain(node)
        if value is None or self._findings.is_unresolved(path):
            return
        if type(value) is type(argument.get("default")) and value == argument.get("default"):
            return  # jsonargparse takes a default's text, whatever the type says
        branches = branches_of(argument["schema"])
        if is_append(path[-1]) and not isinstance(node, Items):  # one element, or a class that becomes one
            branches = [item for branch in branches for item in branches_of(branch.get("items", branch))]
        if any(_takes_whole(branch, value) for branch in branches):
            return
        classes = [branch for branch in branches if "class" in branch]
        lists = [branch.get("items", {}) for branch in branches if branch.get("type") == "array"]
        if isinstance(node, Table) and classes:
            if "class_path" in node.entries:
                self.class_entry(path, node, classes)
            elif not argument.get("default"):
                self._classless(path, node, classes)
        elif isinstance(node, Items) and any(map(_has_classes, branches)):
            for index, item in enumerate(node.items):
                element = {"schema": any_of(lists), "shown": argument["shown"]}
                if plain(item) is None:
                    self._wrong(path, node, argument)
                    return
                self.value((*path, index), item, element)
        elif isinstance(value, str) and classes:
            self._named_class(path, node, classes, argument)
        else:
            self._wrong(path, node, argument)

    def class_entry(
        self, path: KeyPath, entry: Table, bases: Sequence[Schema], *, place: KeyPath | None = None
    ) -> None:
        """Judge a class with its arguments.

        Args:
            path: Its place.
            entry: The mapping with its ``class_path``.
            bases: What may stand there: ``{"class": base}``.
            place: Place of the class's name, where that is not ``class_path``.
        """
        place = (*path, "class_path") if place is None else place
        if self._findings.is_unresolved(place):
            return
        named = entry.entries["class_path"]
        name = plain(named)
        if not isinstance(name, str):
            self._findings.report(place, f"expected the name of a class, got {_found(name)}", named)
            return
        if read_scalar(name) is None:
            return
        self._spec(path, entry, name)
        found = self._class(path, place, named, name, bases)
        if found is not None:
            self._arguments(path, entry, found, named)

    def _classless(self, path: KeyPath, node: Table, bases: Sequence[Schema]) -> None:
        """Judge a mapping that names no class, which jsonargparse takes for the arguments of the base class."""
        given = [key for key, child in node.entries.items() if not is_hollow(child)]
        for base in bases:
            described = self._catalogue.classes.get(base["class"])
            if described is None or not self._catalogue.counts(base["class"]) or {*given} & {*_SPEC_KEYS, *PASSED_OVER}:
                return
            fits = all(not isinstance(key, str) or "." in key or key in described["arguments"] for key in given)
            if fits and not described.get("abstract"):
                return
        if given:
            says = "expected a class: {class_path: NAME, init_args: {...}}, got a mapping without class_path"
            self._findings.report(path, says, node)

    def _spec(self, path: KeyPath, entry: Table, name: str) -> None:
        """Judge what holds for any class."""
        short = name.rpartition(".")[2]
        given = entry.entries.get("init_args")
        if given is not None and not isinstance(given, Table):
            says = f"expected a mapping of {short}'s arguments, got {_found(plain(given))}"
            self._findings.report((*path, "init_args"), says, given)
        free = entry.entries.get("dict_kwargs")
        if free is not None and not isinstance(free, Table) and plain(free):
            says = f"expected a mapping of arguments that {short} passes on, got {_found(plain(free))}"
            self._findings.report((*path, "dict_kwargs"), says, free)
        for table, place in ((entry, path), (given, (*path, "init_args")), (free, (*path, "dict_kwargs"))):
            for key, node in _entries(table).items():
                if not isinstance(key, str):
                    self._findings.report_unnamed((*place, key), node)
        for key, node in entry.entries.items():
            if isinstance(key, str) and key not in _SPEC_KEYS and key not in PASSED_OVER:
                self._findings.report_key((*path, key), "stands beside class_path; put it under init_args", node)

    def _class(self, path: KeyPath, place: KeyPath, named: Node, name: str, bases: Sequence[Schema]) -> str | None:
        """Find a class that the catalogue knows, and whose installed version is the known one."""
        wanted = [base["class"] for base in bases]
        found = self._catalogue.path_of(name, wanted)
        if found is None and "." not in name and not self._may_mean(name, wanted):
            elsewhere = [self._catalogue.path_of(name, [base]) for base in self._catalogue.data["names"]]
            found = next(filter(None, elsewhere), None)
            if found is not None and self._catalogue.counts(found):
                self._of_wrong_base(place, named, found, bases)
                return None
        if found is None or not self._catalogue.counts(found):
            self._unknown(path, place, named, name, wanted)
            return None
        known = {*self._catalogue.data["names"]}
        own = set(self._catalogue.classes[found]["bases"])
        if not any(base.get("callable") for base in bases) and {*wanted} <= known and not own & {*wanted}:
            self._of_wrong_base(place, named, found, bases)
            return None
        if self._catalogue.classes[found].get("abstract"):
            says = f"{_short(found)} is a base class, which cannot be used by itself; name a class that derives from it"
            self._findings.report(place, says, named)
            return None
        return found

    def _of_wrong_base(self, place: KeyPath, named: Node, found: str, bases: Sequence[Schema]) -> None:
        if any(base.get("callable") for base in bases):
            return
        section = self._catalogue.section_of(found)
        goes = f"; it goes under {section}" if section and section != place[0] else ""
        wanted = alternatives(_short(base["class"]) for base in bases)
        self._findings.report(place, f"{_short(found)} is no {wanted}{goes}", named)

    def _unknown(self, path: KeyPath, place: KeyPath, named: Node, name: str, bases: Collection[str]) -> None:
        """Leave a class that is not known to whoever can import it, unless its module is known to lack it."""
        module, _, short = name.rpartition(".")
        several = [path for path in self._catalogue.namesakes(name, bases) if self._catalogue.counts(path)]
        if len(several) > 1:
            says = f"{len(several)} classes are called {name}: {', '.join(several)}; give the whole name of one"
            self._findings.report(place, says, named)
            return
        if not module and not self._catalogue.is_name(name, bases) and not self._may_mean(name, bases):
            hint = near_class(name, self._catalogue.names_below(bases))
            self._findings.report(place, no_class(name, hint), named)
            return
        rooms: Mapping[str, Sequence[str]] = self._catalogue.data["rooms"]
        if module in rooms and short not in rooms[module] and self._catalogue.counts(module):
            here = [known for known in rooms[module] if f"{module}.{known}" in self._catalogue.classes]
            hint = near(short, here) or near(short, self._catalogue.names_below(bases))
            self._findings.report(place, f"{module} has no class {short!r}{hint}", named)
            return
        self._findings.unjudged.append(path)

    def _arguments(self, path: KeyPath, entry: Table, found: str, named: Node) -> None:
        described = self._catalogue.classes[found]
        known: Mapping[str, Argument] = described["arguments"]
        given = entry.entries.get("init_args")
        free = entry.entries.get("dict_kwargs")
        said = {**_entries(free), **_entries(given)}
        for name, node in _entries(free).items():
            place = (*path, "dict_kwargs", name)
            if name in known:
                self.value(place, node, known[name])
            elif "." in str(name) or described.get("open") or len(path) > _BUILT.get(path[0], 0):
                continue
            elif isinstance(name, str):
                self._no_such_argument(place, node, found, named)  # it would be called with it
        for name, node in _entries(given).items():
            place = (*path, "init_args", name)
            argument = name[:-1] if is_append(name) else name
            if argument in known:
                self.value(place, node, known[argument])
            elif isinstance(name, str) and "." not in name and name not in PASSED_OVER:
                self._no_such_argument(place, node, found, named)
        missing = [name for name, argument in known.items() if argument["required"] and not _is_said(name, said)]
        if given is not None and not isinstance(given, Table):
            return
        whole = (*path, "init_args")
        for name in missing:
            is_told = self._findings.is_unresolved((*whole, name)) or self._findings.is_removed((*whole, name))
            if not is_told and whole not in self._findings.unresolved:
                self._missing(path, found, name, known[name], named, entry)

    def _no_such_argument(self, place: KeyPath, node: Node, found: str, named: Node) -> None:
        described, name = self._catalogue.classes[found], str(place[-1])
        says = f"{_short(found)} has no such argument"
        hint = near(name.removesuffix("+"), described["arguments"])
        for before in reversed(named.replaced):
            earlier = self._catalogue.path_of(str(plain(before)), described["bases"])
            if earlier is not None and name in self._catalogue.classes[earlier]["arguments"]:
                says = f"{says}; it is one of {_short(earlier)}, which {_short(found)} has replaced"
                self._findings.report_key(place, says, node, named.origin)
                return
        if not hint and described.get("open"):
            hint = "; what it passes on to others goes under dict_kwargs"
        self._findings.report_unknown(place, f"{says}{hint}", node)

    def _missing(self, path: KeyPath, found: str, name: str, argument: Argument, named: Node, entry: Table) -> None:
        if not self._is_complete:
            return
        wants = argument["shown"]
        what = argument["says"].partition(". ")[0].rstrip(".")
        says = f"{_short(found)} needs {name}{'' if wants == 'anything' else f', {wants}'}{f': {what}' if what else ''}"
        if named.origin.kind == "default":  # the entry's name says the class
            self._findings.report_key(path, says, entry)
        else:
            self._findings.report(path, says, named)

    def _named_class(self, path: KeyPath, node: Node, classes: Sequence[Schema], argument: Argument) -> None:
        """Judge a class that text names, as in ``callbacks: [RichProgressBar]``; a function may stand there too."""
        name = str(plain(node))
        if _may_be_file(name) or any(branch.get("callable") for branch in classes):
            return
        entry = Table({"class_path": node}, node.origin)
        wanted = [branch["class"] for branch in classes]
        is_other = "." not in name and not all(map(_is_of_classes, branches_of(argument["schema"])))
        if is_other and not self._catalogue.is_name(name, wanted) and not self._may_mean(name, wanted):
            self._wrong(path, node, argument)
        else:
            self.class_entry(path, entry, classes, place=path)

    def _wrong(self, path: KeyPath, node: Node, argument: Argument) -> None:
        value = plain(node)
        choices = [choice for branch in branches_of(argument["schema"]) for choice in branch.get("enum", ())]
        words = [choice for choice in choices if isinstance(choice, str)]
        hint = near(value, words) if isinstance(value, str) and len(value) < _LONGEST_WORD else ""
        self._findings.report(path, f"expected {argument['shown']}, got {_found(value)}{hint}", node)


def _takes_whole(schema: Schema, value: Any) -> bool:
    """Tell whether a type takes a value, and holds no class that is judged apart."""
    if "class" in schema or (_has_classes(schema) and isinstance(value, list)):
        return False
    return takes(schema, value)


def _is_of_classes(schema: Schema) -> bool:
    return "class" in schema or schema.get("type") == "null" or _has_classes(schema)


def _has_classes(schema: Schema) -> bool:
    items = schema.get("items")
    return items is not None and any("class" in branch or _has_classes(branch) for branch in branches_of(items))


def _entries(node: Node | None) -> Mapping[Any, Node]:
    return node.entries if isinstance(node, Table) else {}


def _is_said(name: str, said: Mapping[Any, Node]) -> bool:
    inside = f"{name}."
    if f"{name}+" in said or any(isinstance(key, str) and key.startswith(inside) for key in said):
        return True
    return name in said and plain(said[name]) is not None


def _may_be_file(text: str) -> bool:
    return text.endswith(NESTED_FILES) or "/" in text or Path(text).exists()


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _found(value: Any) -> str:
    if isinstance(value, str):
        return shortened(value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else cut(repr(value))
