"""Validate a config by its schema, without torch: unknown keys, wrong types, missing arguments, wrong classes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightkit.config.accelerator.said import OLD_TRAINER_KEYS
from lightkit.config.accelerator.words import (
    GONE_STRATEGIES,
    OLD_STRATEGIES,
    STRATEGIES_AS_ACCELERATORS,
    STRATEGY_CLASSES,
)
from lightkit.config.loader import original_path
from lightkit.config.merge import MergeRules, is_append
from lightkit.config.origins import (
    NESTED_FILES,
    KeyPath,
    Origin,
    cut,
    dotted,
    mistake,
    near,
    near_class,
    no_class,
    shortened,
)
from lightkit.config.schema import (
    PACKAGES,
    ConfigSchema,
    MayMean,
    accepts,
    any_of,
    describe_type,
    join_alternatives,
    list_branches,
)
from lightkit.config.tree import Items, Leaf, Node, Table, plain, walk
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError

PASSED_OVER = ("$schema", "__path__")
"""Keys that jsonargparse drops wherever they stand."""


@dataclass
class ValidationResult:
    """What was found in a config.

    Args:
        problems: All mistakes, each with its place in the config, in the order of the files.
        unjudged: Places of classes that the catalogue does not know: the user's own, those of other packages, and those
            of another version.
        unverified: Places of values that only jsonargparse can judge, such as functions.
        unresolved: Places whose interpolation failed, of which nothing is said.
        removed: Places that were left out because they were wrong, as they were written.
    """

    problems: list[tuple[KeyPath, ConfigError]] = field(default_factory=list)
    unjudged: list[KeyPath] = field(default_factory=list)
    unverified: list[KeyPath] = field(default_factory=list)
    unresolved: set[KeyPath] = field(default_factory=set, repr=False)
    removed: Collection[KeyPath] = field(default=(), repr=False)
    _places: list[Origin] = field(default_factory=list, repr=False)

    @property
    def is_final(self) -> bool:
        """Whether jsonargparse would find no more: everything in the config is known."""
        return not self.unjudged and not self.unverified

    def report(self, path: KeyPath, says: str, node: Node, *others: Origin) -> None:
        """Note a mistake in a value."""
        self._note(path, says, node.origin, *others)

    def report_key(self, path: KeyPath, says: str, node: Node, *others: Origin) -> None:
        """Note a mistake in a key."""
        self._note(path, says, node.origin.at_key(), *others)

    def report_unknown(self, path: KeyPath, says: str, node: Node) -> None:
        """Note a key that nobody knows, unless nothing stands below it, which jsonargparse passes over."""
        if not is_hollow(node):
            self.report_key(path, says, node)

    def report_unnamed(self, path: KeyPath, node: Node) -> None:
        """Note a key that is no text, such as ``5`` or ``true``."""
        key = path[-1]
        found = "null" if key is None else str(key).lower() if isinstance(key, bool) else key
        self.report_key(path, f"expected a name for a key, got {found}", node)

    def is_removed(self, path: KeyPath) -> bool:
        """Tell whether a value, or what it stood in, was left out because it was wrong."""
        written = original_path(path, self.removed)
        return any(written[: len(gone)] == gone for gone in self.removed)

    def is_unresolved(self, path: KeyPath) -> bool:
        """Tell whether a value, or part of it, is an interpolation that failed."""
        return any(failed[: len(path)] == path for failed in self.unresolved)

    def put_in_order(self, tree: Table) -> None:
        """Sort by files, the lowest layer first, and by lines within them."""
        files: dict[Path | None, int] = {}
        for _, node in walk(tree):
            files.setdefault(node.origin.file, len(files))
        order = sorted(range(len(self.problems)), key=lambda number: _rank(self._places[number], files))
        self.problems = [self.problems[number] for number in order]
        self._places = [self._places[number] for number in order]

    def _note(self, path: KeyPath, says: str, origin: Origin, *others: Origin) -> None:
        if self.is_unresolved(path):
            return
        self.problems.append((path, mistake(f"{dotted(path)}: {says}", *_shown_once(origin, others))))
        self._places.append(origin)


def is_hollow(node: Node) -> bool:
    """Tell whether a mapping holds nothing, or nothing but such mappings."""
    return isinstance(node, Table) and all(is_hollow(child) for child in node.entries.values())


def _shown_once(origin: Origin, others: tuple[Origin, ...]) -> Iterator[Origin]:
    """Leave out places that nobody has written, and the second of two that are one."""
    seen: list[Origin] = []
    for place in (origin, *others):
        if place.kind != "default" and place not in seen:
            seen.append(place)
            yield place


def _rank(origin: Origin, files: dict[Path | None, int]) -> tuple[bool, int, int, int]:
    return origin.file is None, files.get(origin.file, len(files)), origin.line or 0, origin.column or 0


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

    def __init__(
        self, catalogue: ConfigSchema, findings: ValidationResult, may_mean: MayMean, *, is_complete: bool
    ) -> None:
        self._catalogue, self._findings = catalogue, findings
        self._may_mean, self._is_complete = may_mean, is_complete

    def value(self, path: KeyPath, node: Node, argument: Argument) -> None:
        """Judge the value of an argument."""
        value = plain(node)
        if value is None or self._findings.is_unresolved(path):
            return
        if type(value) is type(argument.get("default")) and value == argument.get("default"):
            return  # jsonargparse takes a default's text, whatever the type says
        branches = list_branches(argument["schema"])
        if any(not branch or branch.get("callable") for branch in branches):
            self._findings.unverified.append(path)
        if is_append(path[-1]) and not isinstance(node, Items):  # one element, or a class that becomes one
            branches = [item for branch in branches for item in list_branches(branch.get("items", branch))]
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
            self._findings.unverified.append(place)
            return
        self._spec(path, entry, name)
        found = self._class(path, place, named, name, bases)
        if found is not None:
            if self._catalogue.classes[found].get("check_installed"):
                self._findings.unverified.append(path)
            self._arguments(path, entry, found, named)

    def _classless(self, path: KeyPath, node: Table, bases: Sequence[Schema]) -> None:
        """Judge a mapping that names no class, which jsonargparse takes for the arguments of the base class."""
        self._findings.unverified.append(path)
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
        wanted = join_alternatives(_short(base["class"]) for base in bases)
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
            self._findings.unverified.append(path)
            return
        entry = Table({"class_path": node}, node.origin)
        wanted = [branch["class"] for branch in classes]
        is_other = "." not in name and not all(map(_is_of_classes, list_branches(argument["schema"])))
        if is_other and not self._catalogue.is_name(name, wanted) and not self._may_mean(name, wanted):
            self._wrong(path, node, argument)
        else:
            self.class_entry(path, entry, classes, place=path)

    def _wrong(self, path: KeyPath, node: Node, argument: Argument) -> None:
        value = plain(node)
        choices = [choice for branch in list_branches(argument["schema"]) for choice in branch.get("enum", ())]
        words = [choice for choice in choices if isinstance(choice, str)]
        hint = near(value, words) if isinstance(value, str) and len(value) < _LONGEST_WORD else ""
        self._findings.report(path, f"expected {argument['shown']}, got {_found(value)}{hint}", node)


def _takes_whole(schema: Schema, value: Any) -> bool:
    """Tell whether a type takes a value, and holds no class that is judged apart."""
    if "class" in schema or (_has_classes(schema) and isinstance(value, list)):
        return False
    return accepts(schema, value)


def _is_of_classes(schema: Schema) -> bool:
    return "class" in schema or schema.get("type") == "null" or _has_classes(schema)


def _has_classes(schema: Schema) -> bool:
    items = schema.get("items")
    return items is not None and any("class" in branch or _has_classes(branch) for branch in list_branches(items))


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


def judge_trainer_words(tree: Table, catalogue: ConfigSchema, findings: ValidationResult, is_loaded: MayMean) -> None:
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


def _judge(path: KeyPath, node: Leaf, word: str, words: Collection[str], kind: str, findings: ValidationResult) -> None:
    known = {name.lower() for name in (*words, *_OWN[kind])}
    if word.lower() in known or not word.strip() or word == "null":
        return
    some = sorted({*words} - {name for name in words if "find_unused" in name})
    hint = near(word, [*words, *_OWN[kind] - GONE_STRATEGIES.keys()]) or f"; there are {', '.join(some)}"
    findings.report(path, f"there is no {kind} {shortened(word)}{hint}", node)


_HARDWARE = {*OLD_TRAINER_KEYS, "accelerator", "devices", "strategy", "precision", "num_nodes"}
_CLASSES = ("model", "data", "optimizer", "lr_scheduler")
_ENTRIES = ("callbacks", "logger")
_FREE = ("ckpt_path", "config", "extends", "accelerator", "fit", "validate", "test", "predict")
"""Top-level keys of which nothing is said here."""
_JUDGED_ELSEWHERE = ("launch",)
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def validate_values(
    tree: Table,
    catalogue: ConfigSchema,
    *,
    layering: MergeRules,
    unresolved: Collection[KeyPath] = (),
    removed: Collection[KeyPath] = (),
    subcommand: str | None = None,
    judged_elsewhere: Collection[str] = _JUDGED_ELSEWHERE,
    is_complete: bool = True,
    is_loaded: MayMean = lambda _name, _bases: False,
) -> ValidationResult:
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
    findings = ValidationResult(unresolved=set(unresolved), removed=frozenset(removed))
    all_known = not findings.unresolved and not any(_is_foreign(node, catalogue) for _, node in walk(tree))
    are_all_known = all_known and {*PACKAGES} == {*catalogue.trusted}
    may_mean = is_loaded if are_all_known else lambda _name, _bases: True
    judge = ClassJudge(catalogue, findings, may_mean, is_complete=is_complete)
    check = _Check(catalogue, layering, subcommand, frozenset(judged_elsewhere), findings, judge)
    for key, node in tree.entries.items():
        check.top_level(key, node)
    if all_known and "pytorch_lightning" in catalogue.trusted:
        judge_trainer_words(tree, catalogue, findings, is_loaded)
    if not are_all_known or any("." in str(key) for path, _ in walk(tree) for key in path):
        findings.unverified.append(())
    check.findings.put_in_order(tree)
    return check.findings


@dataclass
class _Check:
    catalogue: ConfigSchema
    layering: MergeRules
    subcommand: str | None
    silent: frozenset[str]
    findings: ValidationResult
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
        self.judge.value((key,), node, {"schema": schema, "shown": describe_type(schema)})

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
                if not isinstance(child, Leaf) or "." in str(child.value):  # a class, or settings of one
                    self.findings.unverified.append((key, name))
                continue
            base = name.removesuffix("+") if is_append(name) else name
            if base in known and not (is_append(name) and not _takes_lists(known[base])):
                self.judge.value((key, name), child, known[base])
            elif not isinstance(name, str):
                self.findings.report_unnamed((key, name), child)
            elif "." not in name and name not in PASSED_OVER:
                hint = f"; {base} takes no list" if base in known else near(base, known)
                self.findings.report_unknown((key, name), f"{_owner(key)} no such argument{hint}", child)


def _is_foreign(node: Node, catalogue: ConfigSchema) -> bool:
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
