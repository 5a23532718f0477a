"""Validate a config by its schema, without torch.

Unknown keys, wrong types, missing arguments, wrong classes.

What is reported here jsonargparse refuses too. What only it can judge, such as a class of the
user's own, is left to it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from lightkit.config.accelerator.vocabulary import (
    GONE_STRATEGIES,
    OLD_STRATEGIES,
    STRATEGIES_AS_ACCELERATORS,
    STRATEGY_CLASSES,
    TRAINER_KEYS,
)
from lightkit.config.bounds import BOUNDS, is_any_number
from lightkit.config.merge import SPEC_KEYS, STEPPING_KEYS, appends_to_signature, is_append
from lightkit.config.origins import (
    NESTED_FILES,
    KeyPath,
    Origin,
    Problems,
    dotted,
    error_at,
    shortened,
)
from lightkit.config.resolved import Resolved, drop_paths, original_path
from lightkit.config.schedule import AUTO, COUNTS, PLATEAU, SECTION, STEPPING_SCHEMAS
from lightkit.config.schema import (
    NO_DEFAULT,
    Argument,
    ClassDescription,
    ConfigSchema,
    Schema,
    accepts,
    any_of,
    describe_refused,
    describe_refused_bounds,
    describe_type,
    format_value,
    join_alternatives,
    list_branches,
    load_schema,
)
from lightkit.config.sections import CLASS_SECTIONS, NAMED_CLASSES
from lightkit.config.tree import Items, Leaf, MappingNode, Node, entries_of, text_of, to_plain, walk
from lightkit.config.upgrade import describe_today
from lightkit.config.upgrade_rules import OLD_ARGUMENTS, find_class
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError, cut, near, suggest
from lightkit.lightning_namespace import real_name

_OF_ANY_JOB = ("trainer", "run")
"""Sections that each job has, also where the config sets nothing in them."""
_MOST_HINTS = 3  # keys that an unknown one may mean
READ_FIRST = ("launch", "watchdog", "gate", "sweep")
"""Sections that are checked and read before all others, of a script too."""
_ELSEWHERE = (
    *("accelerator", "ckpt_path", "extends", "fit", "predict", "test", "validate"),
    *READ_FIRST,
)
"""Top-level keys that are checked elsewhere."""
_DROPPED = ("$schema", "__path__")
"""Keys that jsonargparse drops wherever they stand."""
_CALLED = {"model": 1, "data": 1, "callbacks": 2, "logger": 2, "trainer": 3}
"""Sections whose classes are called with their ``dict_kwargs``, each with the longest path of such
a class.

Lightning makes optimizers and schedulers without them.
"""
_FIXED_BY_A_SCRIPT = (("model",), ("data",))
_STRATEGY = "pytorch_lightning.strategies.Strategy"
_OWN_STRATEGIES = {
    "auto",
    "horovod",
    *OLD_STRATEGIES,
    *STRATEGIES_AS_ACCELERATORS,
    *STRATEGY_CLASSES,
}
_CHECKPOINT = "lightkit.callbacks.Checkpoint"
_MODEL_CHECKPOINT = "pytorch_lightning.callbacks.ModelCheckpoint"
_NEEDED = {"torch.optim.lr_scheduler.OneCycleLR": (("total_steps",), ("epochs", "steps_per_epoch"))}
"""Schedules that need one of several groups of arguments, none of which their signature
requires."""
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_MAX_SEED = 2**32 - 1  # NumPy's
_MOST_CHOICES = 10  # that an error lists


@dataclass
class ValidationResult:
    """Errors, warnings and notices of a config.

    Args:
        problems: All errors, each with its place in the config.
        undescribed: Names of the classes that the schema does not describe: the user's own, those
            of other packages, and those of another version; empty where Python fixes the class.
        is_final: Whether jsonargparse would find no more: everything in the config is known.
        outdated: Files with keys or classes of Lightning 1.x, by their names.
    """

    problems: list[tuple[KeyPath, ConfigError]] = field(default_factory=list)
    undescribed: set[str] = field(default_factory=set)
    is_final: bool = True
    outdated: dict[str, Origin] = field(default_factory=dict)


def validate_values(resolved: Resolved, schema: ConfigSchema) -> ValidationResult:
    """Validate a config by the schema.

    Args:
        resolved: The config, before or after its hardware keys are resolved; those are not checked
            here.
        schema: What can be named.
    """
    # The module of a class that the schema lacks may bring others along, to which short names then
    # lead.
    names_foreign, has_dotted_keys = _look_through(resolved, schema)
    is_described = not resolved.unresolved and not names_foreign
    is_known = is_described and schema.is_current
    validator = _Validator(resolved, schema, is_known=is_known)
    for key, node in resolved.tree.entries.items():
        validator.check_top_level(key, node)
    if is_described and "pytorch_lightning" in schema.trusted:
        validator.check_strategy("trainer")
        validator.check_strategy("accelerator")
    result = validator.result
    if not is_known or result.undescribed or has_dotted_keys:
        result.is_final = False
    return result


def check_sections(resolved: Resolved, problems: Problems) -> Resolved:
    """Check the sections that are read first; return the config without their errors.

    Args:
        resolved: The config.
        problems: Takes the errors.
    """
    validator = _Validator(resolved, load_schema(), is_known=True)
    for name in READ_FIRST:
        node = resolved.tree.entries.get(name)
        if node is not None:
            validator.check_section(name, node)
    found = validator.result.problems
    for _, problem in found:
        problems.add(problem)
    # the whole value of a key, of which a part may be nothing
    return drop_paths(resolved, {path[:2] for path, _ in found}) if found else resolved


def find_section_class(
    section: str, resolved: Resolved, schema: ConfigSchema
) -> ClassDescription | None:
    """Return the description of a section's class where the schema has one."""
    return schema.find(resolved.class_named(section), schema.bases[section])


def find_refused_inputs(
    described: ClassDescription, given: Mapping[str, Any], path: KeyPath, resolved: Resolved
) -> Iterator[tuple[KeyPath, ConfigError]]:
    """Find values that a class itself refuses: none of their choices, or excluding each other.

    Args:
        described: The class.
        given: Its arguments, as the config has them or as jsonargparse parsed them.
        path: Their place.
        resolved: The config.

    Yields:
        The place of each with the error.
    """
    for name, choices in described.choices.items():
        value = given.get(name)
        if isinstance(value, str) and name not in described.paths and not is_choice(value, choices):
            place = (*path, name)
            text = f"{dotted(place)}: there is no {name} {shortened(value)}"
            text += _hint_at_choice(value, choices)
            yield place, error_at(text, resolved.origin_of(place))

    for first, second, switch in described.excludes:
        if given.get(first) and given.get(second) and given.get(switch) is not False:
            places = [(*path, name) for name in (first, second)]
            one, other = (f"{dotted(place)} ({_quote(given[place[-1]])})" for place in places)
            text = f"{one} and {other} exclude each other. Leave one of them out."
            yield places[1], error_at(text, *map(resolved.origin_of, places))


def _hint_at_choice(value: str, choices: Sequence[str]) -> str:
    """Return the choices that are near a value, else the first ones."""
    few = choices if len(choices) <= _MOST_CHOICES else [*choices[:_MOST_CHOICES], "another"]
    return near(value, choices) or f"; expected {join_alternatives(few)}"


def find_refused_numbers(
    described: ClassDescription, given: Mapping[str, Any], path: KeyPath, resolved: Resolved
) -> Iterator[tuple[KeyPath, ConfigError]]:
    """Find numbers out of their bounds among arguments that jsonargparse has parsed.

    It takes them: it leaves the bounds of a type to lightkit.
    """
    for name, argument in described.arguments.items():
        value: Any = given.get(name)
        expected = describe_refused_bounds(argument.schema, value) if is_any_number(value) else None
        if expected is not None:
            place = (*path, name)
            text = f"{dotted(place)}: expected {expected}, got {value}"
            yield place, error_at(text, resolved.origin_of(place))


def is_choice(value: str, choices: Iterable[str]) -> bool:
    """Return whether a text is one of several choices, which may be patterns."""
    return any(fnmatchcase(value, choice) for choice in choices)


def _look_through(resolved: Resolved, schema: ConfigSchema) -> tuple[bool, bool]:
    """Return whether a text may name a class not described, and whether a key has dots."""
    names_foreign = False
    has_dotted_keys = False
    for path, node in walk(resolved.tree):
        if path[:1] == ("sweep",):  # which only describes other configs
            continue
        names_foreign = names_foreign or (
            isinstance(node, Leaf) and _is_foreign(node.value, schema)
        )
        has_dotted_keys = has_dotted_keys or "." in str(path[-1:])
    return names_foreign, has_dotted_keys


class _Validator:
    """Checks keys by section, values by type, and classes by signature."""

    def __init__(self, resolved: Resolved, schema: ConfigSchema, *, is_known: bool) -> None:
        self.result = ValidationResult()
        self._resolved = resolved
        self._schema = schema
        self._is_known = is_known

    # -- sections ----------------------------------------------------------------------------------

    def check_top_level(self, key: Any, node: Node) -> None:
        """Check a top-level key and all below it."""
        if not isinstance(key, str):
            self._report_key_type((key,), node)
        elif key in (*_ELSEWHERE, *_DROPPED) or "." in key:
            return
        elif key in CLASS_SECTIONS:
            self._check_class_section(key, node)
        elif key in NAMED_CLASSES:
            self._check_entries(key, node)
        elif key in self._schema.sections:
            self.check_section(key, node)
        elif (
            "pytorch_lightning" in self._schema.trusted
            and key.removesuffix("+") not in NAMED_CLASSES
        ):
            self._check_top_value(key, node)

    def _check_class_section(self, key: str, node: Node) -> None:
        if key not in self._resolved.class_sections:  # its class is fixed in Python
            self.result.undescribed.add("")
            return
        self._check_value((key,), node, Argument({"anyOf": self._list_bases(key)}))

    def _list_bases(self, section: str) -> list[Schema]:
        """List the classes that may stand in a section."""
        return [{"class": base} for base in self._schema.bases[section]]

    def _check_entries(self, key: str, node: Node) -> None:
        bases = self._list_bases(key)
        for name, entry in entries_of(node).items():
            # else `resolve` has reported it
            if isinstance(entry, MappingNode) and "class_path" in entry.entries:
                self._check_class((key, name), entry, bases)

    def _check_top_value(self, key: str, node: Node) -> None:
        command = self._resolved.subcommand or None
        top = {
            name: argument
            for name, argument in self._schema.top.items()
            if command is None or not argument.commands or command in argument.commands
        }
        if key not in top:
            known = {*top, *self._schema.section_names, "ckpt_path", "extends"}
            self._report(
                (key,), f"no such key{self._hint_at_key(key, known, node)}", node, at_key=True
            )
            return
        self._check_value((key,), node, top[key])
        if key == "seed_everything":
            seed = read_scalar(str(to_plain(node)))
            if isinstance(seed, int) and not 0 <= seed <= _MAX_SEED:
                text = (
                    f"expected true, false or an integer from 0 to {_MAX_SEED}, got"
                    f" {cut(str(seed))}"
                )
                self._report((key,), text, node)

    def _hint_at_key(self, key: str, known: Collection[str], node: Node) -> str:
        """Return the hint at the key to write in place of an unknown one at the top.

        It is empty where nothing is near.
        """
        if key == "trust":
            return "; --trust is given on the command line, and by no config"
        if key in OLD_ARGUMENTS:
            return self._note_outdated(OLD_ARGUMENTS[key], node) + describe_today(key, {key: node})
        if key == "config":
            return "; files below this one stand under extends"
        by_name, by_part = self._keys_by_word
        word = key.replace("-", "_")
        meant = by_name.get(word) or [name for name in sorted(known) if name.startswith(f"{word}_")]
        hint = near(word, known)
        if not meant and not hint:
            meant = by_part.get(word, [])
        offered = meant[:_MOST_HINTS]
        return (suggest(offered) or hint) + self._note_optimizer(offered)

    def _note_optimizer(self, offered: Collection[str]) -> str:
        """Return what else an offered key of the optimizer needs, where the config names none."""
        if not any(key in offered for key in self._list_optimizer_keys()):
            return ""
        return (
            " The optimizer needs a class, such as --optimizer=AdamW, and replaces the model's own"
        )

    @cached_property
    def _keys_by_word(self) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
        """The keys in sections, classes and entries that a word alone may mean.

        ``lr``, ``epochs``, ``early_stopping``.

        By their names and initials; and those that are less likely: by parts of their names, and in
        sections that the config does not have.
        """
        by_name = defaultdict[str, list[str]](list)
        by_part = defaultdict[str, list[str]](list)
        for key in self._list_keys(is_present=False):
            by_part[_short(key)].append(key)
        for key in dict.fromkeys(self._list_optimizer_keys()):
            by_name[_short(key)].append(key)
        for key in self._list_present_keys():
            last = _short(key)
            by_name[last].append(key)
            parts = last.split("_")
            if len(parts) > 1:
                by_name["".join(part[:1] for part in parts)].append(key)
                for part in parts:
                    by_part[part].append(key)
        return by_name, by_part

    def _list_present_keys(self) -> list[str]:
        """List the keys of the config's sections and classes, and the names of entries."""
        keys = self._list_keys(is_present=True)
        for section in CLASS_SECTIONS:
            keys += [f"{section}.init_args.{key}" for key in self._list_arguments(section)]
        for section, names in NAMED_CLASSES.items():
            keys += [f"{section}.{name}" for name in names]
        return keys

    def _list_keys(self, *, is_present: bool) -> list[str]:
        """List the keys of the sections of plain keys that the config has, or of the others."""
        present = {*_OF_ANY_JOB, *self._resolved.tree.entries}
        return [
            f"{name}.{key}"
            for name, section in self._schema.sections.items()
            if (name in present) == is_present
            for key in section.arguments
        ]

    def _list_arguments(self, section: str) -> Collection[str]:
        """List the arguments of the class that a section names.

        The list of a class that is not described is empty.
        """
        described = find_section_class(section, self._resolved, self._schema)
        return () if described is None else described.arguments

    def _list_optimizer_keys(self) -> list[str]:
        """List the arguments of all optimizers where none is named.

        Each of them is meant by its whole name alone.
        """
        if self._resolved.value_of("optimizer") is not None:
            return []
        return [
            f"optimizer.init_args.{key}"
            for described in self._schema.classes.values()
            if self._schema.section_of(described) == "optimizer"
            for key in described.arguments
        ]

    def check_section(self, key: str, node: Node) -> None:
        """Check a section of plain keys."""
        known = self._schema.sections[key].arguments
        if not isinstance(node, MappingNode):
            self._report_no_section(key, node)
        elif key == "trainer":
            self._check_trainer(node, known)
        else:
            self._check_keys((key,), node, known)

    def _check_keys(self, path: KeyPath, node: MappingNode, known: Mapping[str, Argument]) -> None:
        """Check a mapping of known keys."""
        unknown = [*self._check_known(path, node.entries, known)]
        unknown += [(name, node.entries[name]) for name in node.entries if "." in str(name)]
        for name, child in unknown:
            hint = _hint_at_argument(str(name), known) or f"; there are {', '.join(known)}"
            text = f"there is no such argument{hint}"
            self._report((*path, name), text, child, at_key=True)

    def _check_trainer(self, node: MappingNode, known: Mapping[str, Argument]) -> None:
        """Check the trainer's section, but for the keys that other modules translate and check."""
        if "pytorch_lightning" not in self._schema.trusted:
            return
        entries = dict(node.entries)
        for name in TRAINER_KEYS:
            child = entries.pop(name, None)
            # and not translated from a word
            is_written = child is not None and child.origin.word is None
            if child is not None and is_written and not _is_word(child):  # settings of a class
                self.result.is_final = False
        for name, child in self._check_known(("trainer",), entries, known):
            hint = _hint_at_argument(name, known)
            if name in OLD_ARGUMENTS:
                hint = self._note_outdated(OLD_ARGUMENTS[name], child)
                hint += describe_today(name, node.entries)
            self._report(
                ("trainer", name), f"the trainer has no such argument{hint}", child, at_key=True
            )

    def _report_no_section(self, key: str, node: Node) -> None:
        """Report a section that is no mapping; an empty one is right."""
        value = to_plain(node)
        if value is None or self._is_unresolved((key,)):
            return
        owner = "the trainer's" if key == "trainer" else f"{key}'s"
        text = f"expected a mapping of {owner} arguments, got {cut(repr(value))}"
        if re.match(r"\w+:\S", text_of(node) or ""):
            text += "; a space is missing after the colon"
        self._report((key,), text, node)

    def _check_known(
        self, path: KeyPath, entries: Mapping[Any, Node], known: Mapping[str, Argument]
    ) -> Iterator[tuple[str, Node]]:
        """Check the values of known keys by their types, and give the keys that are not known."""
        for name, node in entries.items():
            argument = known.get(name[:-1] if is_append(name) else name)
            if argument is not None and not (is_append(name) and not _takes_lists(argument)):
                self._check_argument((*path, name), node, argument)
            elif not isinstance(name, str):
                self._report_key_type((*path, name), node)
            elif "." not in name and name not in _DROPPED:
                yield name, node

    def _check_argument(self, path: KeyPath, node: Node, argument: Argument) -> None:
        """Check the value of a known key; refuse to append to the default of a class.

        jsonargparse would put what is appended in the place of the default. It appends to that of a
        section of plain keys.
        """
        default = argument.default
        if not appends_to_signature(path) or not isinstance(default, list) or not default:
            self._check_value(path, node, argument)
            return
        key = dotted((*path[:-1], path[-1].removesuffix("+")))
        text = f"appends, but no layer sets {key}, whose default is"
        self._report(path, f"{text} {format_value(default)}; set {key} as a whole", node)

    def check_strategy(self, section: str) -> None:
        """Check the name of a strategy, which Lightning's signature calls text.

        Only for a config that names no module of the user's own, since that may register
        strategies.
        """
        node = entries_of(self._resolved.tree.entries.get(section)).get("strategy")
        word = text_of(node)
        if node is None or word is None or not _is_short_name(word):
            return
        # translated; it is checked there
        if node.origin.word is not None and node.origin.word.path[0] != section:
            return
        words = [*self._schema.data["strategies"], *_OWN_STRATEGIES]
        is_known = word.lower() in map(str.lower, (*words, *GONE_STRATEGIES)) or self._is_name(
            word, [_STRATEGY]
        )
        if not is_known and not _is_loaded(word, [_STRATEGY]):
            self._report(
                (section, "strategy"),
                f"there is no strategy {shortened(word)}{near(word, words)}",
                node,
            )

    # -- values ------------------------------------------------------------------------------------

    def _check_value(self, path: KeyPath, node: Node, argument: Argument) -> None:
        """Check a value by the alternatives of its argument's type.

        A value, a class, or a list of classes.
        """
        value = to_plain(node)
        if _is_unset(value, argument) or self._has_failed(path, node):
            return
        branches = self._list_alternatives(path, node, argument)
        if any(_accepts_without_classes(branch, value) for branch in branches):
            return
        classes = list(filter(_names_class, branches))
        if classes and isinstance(node, MappingNode):
            self._check_class_mapping(
                path, node, classes, has_default=argument.default not in (None, NO_DEFAULT)
            )
        elif isinstance(node, Items) and _may_hold_classes(value, branches):
            self._check_listed_classes(path, node, branches)
        elif isinstance(node, MappingNode) and any(map(_is_checked_inside, branches)):
            self._check_inside(path, node, next(filter(_is_checked_inside, branches)))
        elif classes and _is_text(value):
            self._check_class_name(path, node, value, classes, argument)
        else:
            self._report_value(path, node, argument)

    def _list_alternatives(self, path: KeyPath, node: Node, argument: Argument) -> list[Schema]:
        """List the alternatives of an argument's type.

        A key that appends one element has the alternatives of the list's elements.
        """
        branches = list_branches(argument.schema)
        if any(not branch or branch.get("callable") for branch in branches):
            self.result.is_final = False
        # one element, or a class that becomes one
        if is_append(path[-1]) and not isinstance(node, Items):
            return [
                item for branch in branches for item in list_branches(branch.get("items", branch))
            ]
        return list(branches)

    def _check_inside(self, path: KeyPath, node: MappingNode, schema: Schema) -> None:
        """Check a mapping with known keys, or the values of one whose values have bounds."""
        if "properties" not in schema:
            entry = Argument(schema["additionalProperties"])
            for name, child in node.entries.items():
                self._check_value((*path, name), child, entry)
            return
        known = {name: Argument(each) for name, each in schema["properties"].items()}
        self._check_keys(path, node, known)
        for name in schema["required"]:
            if not _is_set(name, node.entries):
                self._report(path, f"needs {name}, {describe_type(known[name].schema)}", node)

    def _has_failed(self, path: KeyPath, node: Node) -> bool:
        """Check whether a single value, or an element of a list, is a failed interpolation."""
        return not isinstance(node, MappingNode) and self._is_unresolved(path)

    def _check_listed_classes(self, path: KeyPath, node: Items, branches: Sequence[Schema]) -> None:
        """Check the elements of a list, of which each may be a class."""
        lists = [branch.get("items", {}) for branch in branches if branch.get("type") == "array"]
        for index, item in enumerate(node.items):
            self._check_value((*path, index), item, Argument(any_of(lists)))

    def _check_class_mapping(
        self, path: KeyPath, node: MappingNode, classes: Sequence[Schema], *, has_default: bool
    ) -> None:
        """Check a mapping where a class may stand: it names it, or has arguments of a known one."""
        if "class_path" in node.entries:
            self._check_class(path, node, classes)
            return
        is_of_section = any(classes[0]["class"] in bases for bases in self._schema.bases.values())
        needs_class = is_of_section and not has_default and not self._resolved.is_incomplete
        if needs_class and entries_of(node.entries.get("init_args")):
            self._report(path, "expected a class_path next to init_args", node)
        elif needs_class and path in _FIXED_BY_A_SCRIPT and node.entries.keys() - {*SPEC_KEYS}:
            self._report_arguments_alone(path, node)
        else:
            # jsonargparse takes it for arguments of the base or the default
            self.result.is_final = False

    def _report_arguments_alone(self, path: KeyPath, node: MappingNode) -> None:
        """Report arguments without their class.

        A config of a script with `LightningCLI(Model, Data)` has them.
        """
        names = [str(name) for name in node.entries]
        text = (
            "names no class, only arguments"
            f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}), as a config of"
            f" LightningCLI(Model, Data) does. Name it, {path[0]}: {{class_path: my_module.MyClass,"
            f" init_args: {{{names[0]}: ...}}}}, or put LightkitCLI(Model, Data) into the script"
            " and run that"
        )
        self._report(path, text, node)

    def _check_class_name(
        self, path: KeyPath, node: Node, name: str, classes: Sequence[Schema], argument: Argument
    ) -> None:
        """Check a class that text names, as in ``callbacks: [RichProgressBar]``.

        A file or function may stand there.
        """
        is_file = name.endswith(NESTED_FILES) or "/" in name or Path(name).exists()
        if is_file or any(branch.get("callable") for branch in classes):
            self.result.is_final = False
            return
        takes_others = not all(map(_takes_only_classes, list_branches(argument.schema)))
        if (
            takes_others
            and "." not in name
            and not self._may_mean(name, [branch["class"] for branch in classes])
        ):
            self._report_value(path, node, argument)
        else:
            self._check_class(
                path, MappingNode({"class_path": node}, node.origin), classes, place=path
            )

    # -- classes -----------------------------------------------------------------------------------

    def _may_mean(self, name: str, bases: Collection[str]) -> bool:
        """Check whether a short name may mean a class that derives from any of several bases."""
        return self._is_name(name, bases) or not self._is_known or _is_loaded(name, bases)

    def _is_name(self, name: str, bases: Collection[str]) -> bool:
        """Check whether a short name may be of a class that derives from any of several bases."""
        return any(name in self._schema.data["names"].get(base, (name,)) for base in bases)

    def _check_class(
        self,
        path: KeyPath,
        entry: MappingNode,
        bases: Sequence[Schema],
        *,
        place: KeyPath | None = None,
    ) -> None:
        """Check a class with its arguments.

        Args:
            path: Its place.
            entry: The mapping with its ``class_path``.
            bases: What may stand there: ``{"class": base}``.
            place: Place of the class's name, where that is not ``class_path``.
        """
        place = (*path, "class_path") if place is None else place
        if self._is_unresolved(place):
            return
        named = entry.entries["class_path"]
        name = to_plain(named)
        if not isinstance(name, str):
            self._report(place, f"expected the name of a class, got {format_value(name)}", named)
            return
        if read_scalar(name) is None:  # null in quotes
            self.result.is_final = False
            return
        self._check_spec_keys(path, entry, name)
        found = self._find_class(place, named, name, bases)
        if found is not None:
            if found.check_installed:
                self.result.is_final = False
            self._check_arguments(
                path, entry, found, named, num_given=max(base.get("given", 0) for base in bases)
            )

    def _check_spec_keys(self, path: KeyPath, entry: MappingNode, name: str) -> None:
        """Check the keys next to `class_path`, and that its arguments are mappings with names."""
        short = _short(name)
        self._check_spec_mapping(
            (*path, "init_args"), entry, f"{short}'s arguments", takes_empty=False
        )
        self._check_spec_mapping(
            (*path, "dict_kwargs"), entry, f"arguments that {short} passes on", takes_empty=True
        )
        known = [*SPEC_KEYS, *_DROPPED]
        if path == (SECTION,):
            known.extend(STEPPING_KEYS)
        for key, node in entry.entries.items():
            if not isinstance(key, str):
                self._report_key_type((*path, key), node)
            elif key not in known:
                self._report(
                    (*path, key),
                    "stands next to class_path; put it under init_args",
                    node,
                    at_key=True,
                )

    def _check_spec_mapping(
        self, path: KeyPath, entry: MappingNode, expected: str, *, takes_empty: bool
    ) -> None:
        """Check that the arguments of a class, or those it passes on, are a mapping with names.

        Args:
            path: Their place.
            entry: The mapping of the class.
            expected: What they are, in words.
            takes_empty: Whether an empty value of another type is as good as none.
        """
        given = entry.entries.get(path[-1])
        if given is None:
            return
        if not isinstance(given, MappingNode):
            value = to_plain(given)
            if value or not takes_empty:
                self._report(
                    path, f"expected a mapping of {expected}, got {format_value(value)}", given
                )
            return
        for argument, node in given.entries.items():
            if not isinstance(argument, str):
                self._report_key_type((*path, argument), node)

    def _find_class(
        self, place: KeyPath, named: Node, name: str, bases: Sequence[Schema]
    ) -> ClassDescription | None:
        """Find a class that the schema describes, and whose installed version is that one."""
        schema = self._schema
        wanted = [base["class"] for base in bases]
        found = schema.find(name, wanted)
        if found is None and "." not in name and not self._may_mean(name, wanted):
            found = schema.find(name, schema.data["names"])  # it has no meaning where it stands
        if found is None or not schema.is_valid_for(found.path):
            self._report_unknown_class(place, named, name, wanted)
            return None
        makes_function = any(base.get("callable") for base in bases)
        fault = self._describe_wrong_class(found, wanted, place, makes_function=makes_function)
        if fault is not None:
            self._report(place, fault, named)
            return None
        return found

    def _describe_wrong_class(
        self,
        found: ClassDescription,
        wanted: Sequence[str],
        place: KeyPath,
        *,
        makes_function: bool,
    ) -> str | None:
        """Describe why a class cannot stand at a place; None if it can."""
        schema = self._schema
        if found.error is not None:
            return found.error
        has_all_bases = found.path in schema.imported or {*wanted} <= {*schema.data["names"]}
        if not makes_function and has_all_bases and not {*found.bases} & {*wanted}:
            section = schema.section_of(found)
            goes = f"; it goes under {section}" if section and section != place[0] else ""
            names = join_alternatives(map(_short, wanted))
            article = "an" if names[:1] in "AEIOU" else "a"
            return f"{_short(found.path)} is not {article} {names}{goes}"
        if found.abstract:
            return (
                f"{_short(found.path)} is a base class, which cannot be used by itself; name a"
                " class that derives from it"
            )
        return None

    def _report_unknown_class(
        self, place: KeyPath, named: Node, name: str, bases: Collection[str]
    ) -> None:
        """Report a name that leads to no class.

        One that only an import can find is noted as undescribed.
        """
        text = self._describe_unknown_class(named, name, bases)
        if text is None:
            found = self._schema.find(name, bases)
            self.result.undescribed.add(name if found is None else found.path)
        else:
            self._report(place, text, named)

    def _describe_unknown_class(self, named: Node, name: str, bases: Collection[str]) -> str | None:
        """Describe why a name leads to no class; None where an import may find one."""
        module, _, short = real_name(name).rpartition(".")
        old = find_class(real_name(name)) if module.startswith("pytorch_lightning") else None
        if old is not None:
            today, reason = old
            use = f": {today}" if today else ""
            return f"there is no {name} here{self._note_outdated(reason, named)}{use}"

        if not module:
            is_wrong = not self._may_mean(name, bases)
            return _describe_no_class(name, self._short_names(bases)) if is_wrong else None
        exported: Sequence[str] | None = self._schema.data["exports"].get(module)
        if exported is None or short in exported or not self._schema.is_valid_for(module):
            return None
        here = [known for known in exported if f"{module}.{known}" in self._schema.classes]
        hint = near(short, here) or near(short, self._short_names(bases))
        return f"{module} has no class {short!r}{hint}"

    def _short_names(self, bases: Collection[str]) -> list[str]:
        """List the short names of the classes that derive from any of several bases."""
        described = self._schema.names_of(bases).values()
        return [name for names in described for name in names if "." not in name]

    def _check_arguments(
        self,
        path: KeyPath,
        entry: MappingNode,
        found: ClassDescription,
        named: Node,
        *,
        num_given: int,
    ) -> None:
        """Check the arguments of a class.

        Args:
            path: Place of the class.
            entry: Its mapping.
            found: The class.
            named: Its name.
            num_given: Number of its first arguments that its caller gives.
        """
        free = self._check_passed_on(path, entry, found, named)
        given = entry.entries.get("init_args")
        named_here = _named_entries(given)
        if path == (SECTION,):
            named_here = self._check_schedule(entry, found, named, named_here)
        for name, node in self._check_known((*path, "init_args"), named_here, found.arguments):
            self._report_argument((*path, "init_args", name), node, found, named)
        if given is None or isinstance(given, MappingNode):
            named_or_free = {**free, **entries_of(given)}
            missing = [
                name
                for name, argument in [*found.arguments.items()][num_given:]
                if argument.required and not _is_set(name, named_or_free)
            ]
            self._report_missing(path, entry, found, named, missing)
        self._check_inputs((*path, "init_args"), given, found)

    def _check_inputs(self, path: KeyPath, given: Node | None, found: ClassDescription) -> None:
        """Check values that a class itself refuses, of which some depend on installed versions."""
        if isinstance(given, MappingNode) and (
            self._schema.is_current or found.path in self._schema.imported
        ):
            for place, error in find_refused_inputs(found, to_plain(given), path, self._resolved):
                if not self._is_unresolved(place):
                    self.result.problems.append((place, error))

    def _check_passed_on(
        self, path: KeyPath, entry: MappingNode, found: ClassDescription, named: Node
    ) -> dict[str, Node]:
        """Check the arguments that a class passes on to others, and return them.

        Others may know more than the class.
        """
        free = _named_entries(entry.entries.get("dict_kwargs"))
        if free:
            self.result.is_final = False
        if not found.open and len(path) <= _CALLED.get(path[0], 0):
            for name in free.keys() - found.arguments.keys():
                self._report_argument((*path, "dict_kwargs", name), free[name], found, named)
        return free

    def _report_missing(
        self,
        path: KeyPath,
        entry: MappingNode,
        found: ClassDescription,
        named: Node,
        missing: Sequence[str],
    ) -> None:
        """Report required arguments that are not set, unless one was left out as wrong."""
        whole = (*path, "init_args")
        if self._resolved.is_incomplete or whole in self._resolved.unresolved:
            return
        for name in missing:
            if self._is_unresolved((*whole, name)) or self._is_removed((*whole, name)):
                continue
            argument = found.arguments[name]
            text = f"{_short(found.path)} needs {name}"
            if argument.schema:
                text += f", {describe_type(argument.schema)}"
            help_text = argument.help.partition(". ")[0].rstrip(".")
            if help_text:
                text += f": {help_text}"
            by_name = named.origin.kind == "default"  # the class is that of the entry's name
            self._report(path, text, entry if by_name else named, at_key=by_name)

    def _check_schedule(
        self, entry: MappingNode, found: ClassDescription, named: Node, given: Mapping[str, Node]
    ) -> dict[str, Node]:
        """Check what only a schedule may have, and return the other arguments."""
        known = found.arguments
        others = {name: node for name, node in given.items() if not _is_counted(name, node, known)}

        self._check_stepping(entry, known)
        is_built = self._uses_schedule() and not self._resolved.is_incomplete
        if PLATEAU in (found.path, *found.bases) and "monitor" not in known:
            monitor = others.pop("monitor", None)  # the class gets its value from Lightning
            if monitor is None and is_built:
                text = f"{_short(found.path)} needs monitor, text: the metric that it goes by"
                self._report((SECTION,), text, named)
        if is_built:
            self._check_needed(entry, found.path, named, given)
        return others

    def _check_stepping(self, entry: MappingNode, known: Mapping[str, Argument]) -> None:
        """Check when a schedule is stepped; an argument of such a name belongs to the class."""
        for key in STEPPING_KEYS:
            stepping = entry.entries.get(key)
            if stepping is not None:
                argument = known.get(key) or Argument(STEPPING_SCHEMAS[key])
                self._check_value((SECTION, key), stepping, argument)

    def _check_needed(
        self, entry: MappingNode, path: str, named: Node, given: Mapping[str, Node]
    ) -> None:
        """Check arguments of which torch asks for some, without a sign of it in the signature."""
        choices = _NEEDED.get(path, ())
        if not choices or not isinstance(entry.entries.get("init_args", entry), MappingNode):
            return
        has_one = any(all(_is_set(name, given) for name in each) for each in choices)
        if not has_one:
            words = ", or ".join(" and ".join(each) for each in choices)
            self._report(
                (SECTION,), f"{_short(path)} needs {words}; total_steps: {AUTO} counts them", named
            )

    def _uses_schedule(self) -> bool:
        """Check whether a fit builds the schedule.

        It does for an optimizer of the config, and for that of lightkit's own models.
        """
        if self._resolved.subcommand not in (None, "", "fit"):
            return False
        model = find_section_class("model", self._resolved, self._schema)
        is_own = model is not None and model.path.startswith("lightkit.")
        return is_own or self._resolved.value_of("optimizer") is not None

    def _report_argument(
        self, place: KeyPath, node: Node, found: ClassDescription, named: Node
    ) -> None:
        """Report an argument that a class does not have."""
        name = str(place[-1])
        short = _short(found.path)
        text = f"{short} has no such argument"
        for before in reversed(named.replaced):
            earlier = self._schema.find(str(to_plain(before)), found.bases)
            if earlier is not None and name in earlier.arguments:
                text += f"; it is one of {_short(earlier.path)}, which {short} has replaced"
                self._report(place, text, node, named.origin, at_key=True)
                return
        text += self._hint_at_class_argument(place, found)
        self._report(place, text, node, at_key=True)

    def _hint_at_class_argument(self, place: KeyPath, found: ClassDescription) -> str:
        """Return the hint at the place of an argument that a class does not have, or a near name.

        It is empty without either.
        """
        name = str(place[-1])
        base = name.removesuffix("+")
        if place[:-1] == (SECTION, "init_args") and name in STEPPING_KEYS:
            return f"; {name} stands next to class_path"
        if found.path == _CHECKPOINT and base in self._schema.classes[_MODEL_CHECKPOINT].arguments:
            return (
                "; ModelCheckpoint has it: add an entry of your own under callbacks, such as"
                f" five_best: {{class_path: ModelCheckpoint, init_args: {{{base}: ...}}}}"
            )
        hint = _hint_at_argument(name, found.arguments)
        if not hint and found.open and place[0] in _CALLED:
            return "; what it passes on to others goes under dict_kwargs"
        return hint

    # -- reports -----------------------------------------------------------------------------------

    def _report(
        self, path: KeyPath, text: str, node: Node, *others: Origin, at_key: bool = False
    ) -> None:
        """Keep an error, with the places that layers have set, each once."""
        if not self._is_unresolved(path):
            first = node.origin.at_key() if at_key else node.origin
            places = dict.fromkeys(place for place in (first, *others) if place.kind != "default")
            shown = dotted(original_path(path, self._resolved.removed))
            self.result.problems.append((path, error_at(f"{shown}: {text}", *places)))

    def _note_outdated(self, reason: str, node: Node) -> str:
        """Note the file of an old word, and return what has changed.

        `lightkit upgrade` lists today's words.
        """
        if node.origin.file is not None:
            self.result.outdated.setdefault(
                node.origin.name, replace(node.origin, line=None, column=None)
            )
        return f"; {reason}"

    def _report_key_type(self, path: KeyPath, node: Node) -> None:
        """Report a key that is no text, such as ``5`` or ``true``."""
        self._report(
            path, f"expected a name for a key, got {format_value(path[-1])}", node, at_key=True
        )

    def _report_value(self, path: KeyPath, node: Node, argument: Argument) -> None:
        self._report(path, describe_refused(argument.schema, to_plain(node)), node)

    def _is_unresolved(self, path: KeyPath) -> bool:
        """Check whether a value, or part of it, is an interpolation that failed."""
        return any(failed[: len(path)] == path for failed in self._resolved.unresolved)

    def _is_removed(self, path: KeyPath) -> bool:
        """Check whether a value, or what it stood in, was left out because it was wrong."""
        written = original_path(path, self._resolved.removed)
        return any(written[: len(gone)] == gone for gone in self._resolved.removed)


def _is_loaded(name: str, bases: Collection[str]) -> bool:
    """Check whether jsonargparse or Lightning knows a short name of something loaded here."""
    pending = [
        getattr(sys.modules.get(path.rpartition(".")[0]), path.rpartition(".")[2], None)
        for path in bases
    ]
    while pending:
        if isinstance(base := pending.pop(), type):
            children: list[type] = base.__subclasses__()
            pending += children
            if name[:1] != "_" and name in (child.__name__ for child in children):
                return True
    registered = getattr(sys.modules.get("pytorch_lightning.strategies"), "StrategyRegistry", ())
    return _STRATEGY in bases and name.lower() in registered


def _is_foreign(text: Any, schema: ConfigSchema) -> bool:
    """Check whether a value may be the name of a class that the schema does not describe."""
    if not isinstance(text, str) or not _DOTTED.fullmatch(text):
        return False
    if os.path.isfile(text):  # noqa: PTH113 - such as rows.csv; Path.is_file raises OSError of a name that is too long
        return False
    return schema.find(text) is None or not schema.is_valid_for(text)


def _describe_no_class(name: str, choices: Collection[str]) -> str:
    """Describe that a name without a module is no class's.

    The hint at a module's name asks for a class in it.
    """
    if Path(name).is_dir() and not (Path(name) / "__init__.py").is_file():
        return (
            f"{name} is a folder; `lightkit init --data {name}` writes"
            " a config for the images in it"
        )
    if name in sys.modules or (name.isidentifier() and importlib.util.find_spec(name) is not None):
        return f"{name} is a module; name a class in it, as in {name}.MyClass"
    # the name of an entry may be meant, such as `slack`, which stands for SlackNotifier
    begun = [each for each in {*choices} if each.lower().startswith(name.replace("_", "").lower())]
    hint = suggest(begun) if len(begun) == 1 else near(name, choices)
    return (
        f"no class {name!r}{hint}; a class of your own is named with its module: my_models.{name}"
    )


def _accepts_without_classes(branch: Schema, value: Any) -> bool:
    """Check whether a value is right by a branch of a schema that names no class."""
    if "class" in branch or (_has_classes(branch) and isinstance(value, list)):
        return False
    return accepts(branch, value)


def _is_unset(value: Any, argument: Argument) -> bool:
    """Check if a value is null, or the default's, which jsonargparse takes whatever the type."""
    default = argument.default
    return value is None or (type(value) is type(default) and bool(value == default))


def _names_class(branch: Schema) -> bool:
    return "class" in branch


def _may_hold_classes(value: Sequence[Any], branches: Sequence[Schema]) -> bool:
    """Check whether the elements of a list may be classes."""
    return None not in value and any(map(_has_classes, branches))


def _is_counted(name: str, node: Node, known: Mapping[str, Argument]) -> bool:
    """Check whether an argument of a schedule is counted from the steps of the training."""
    return name in COUNTS and name in known and to_plain(node) == AUTO


def _is_text(value: Any) -> bool:
    """Check whether a value is text, also as YAML reads it."""
    return isinstance(value, str) and isinstance(read_scalar(value), (str, type(None)))


def _is_short_name(word: str) -> bool:
    """Check whether a text may name something without its module."""
    return bool(word.strip()) and "." not in word and word != "null"


def _takes_only_classes(branch: Schema) -> bool:
    return "class" in branch or branch.get("type") == "null" or _has_classes(branch)


def _hint_at_argument(name: str, known: Mapping[str, Argument]) -> str:
    """Return the hint at a near argument.

    The hint at an argument that is no list says that nothing can be appended to it.
    """
    base = name.removesuffix("+")
    return f"; {base} takes no list" if base in known else near(base, known)


def _is_word(node: Node) -> bool:
    """Check whether a value is a word or number without dots, and no path of a class or mapping."""
    return isinstance(node, Leaf) and "." not in str(node.value)


def _takes_lists(argument: Argument) -> bool:
    return any(
        not branch or branch.get("type") == "array" for branch in list_branches(argument.schema)
    )


def _has_classes(schema: Schema) -> bool:
    items = schema.get("items")
    return items is not None and any(
        "class" in branch or _has_classes(branch) for branch in list_branches(items)
    )


def _is_checked_inside(schema: Schema) -> bool:
    """Check whether a type is a mapping with known keys, or to such mappings or bounded numbers."""
    entry: Schema | None = schema.get("additionalProperties")
    if not entry:
        return "properties" in schema
    return any(map(_is_bounded, list_branches(entry)))


def _is_bounded(schema: Schema) -> bool:
    return not BOUNDS.isdisjoint(schema) or _is_checked_inside(schema)


def _is_set(name: str, given: Mapping[Any, Node]) -> bool:
    inside = f"{name}."
    if f"{name}+" in given or any(isinstance(key, str) and key.startswith(inside) for key in given):
        return True
    return to_plain(given.get(name)) is not None


def _named_entries(node: Node | None) -> dict[str, Node]:
    return {name: child for name, child in entries_of(node).items() if isinstance(name, str)}


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _quote(value: Any) -> Any:
    """Return a value as errors show it, text in quotes."""
    return shortened(value) if isinstance(value, str) else value
