"""Completions of the last word of a command line.

No torch: classes are those of the packaged schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lightkit.cli.argument_lookup import describe_owner, list_class_names
from lightkit.cli.command_line import FILES, FOLDERS, Command, Option, parse_command
from lightkit.cli.command_table import COMMANDS, GENERAL, WITH_MODEL
from lightkit.cli.config_loader import load_config
from lightkit.config import CLASS_SECTIONS, NAMED_CLASSES, Origin, Problems
from lightkit.config.packaged import PREFIX, packaged_configs
from lightkit.config.schema import Argument, list_branches, load_schema
from lightkit.config.tree import MappingNode, find
from lightkit.errors import LightkitError

_BREAKS = ("=", ":")
_ON_DISK = {FILES, FOLDERS}
"""Answers that leave it to the shell."""
_KEY_VALUES = {"run.resume": ("latest", FOLDERS), "run.root": (FOLDERS,)}
"""Values of keys whose type does not list them."""
_WORDS_OF_TYPES = {"boolean": ["true", "false"], "null": ["null"]}


def completion_choices(args: Sequence[str], *, is_split: bool) -> list[str]:
    """List the words that the last word can become; those that go on end in a dot or ``=``.

    A word that starts with a colon is none: the shell adds what is on the disk.

    Args:
        args: Words after the program's name, up to the one under the cursor, which may be empty.
        is_split: Whether the shell has split words at each `=` and `:`, as bash does, and wants the
            last part alone.
    """
    words = _join_words(args) if is_split else list(args)
    *before, current = words or [""]
    found = set(_list_choices(before, current))
    matching = sorted(word for word in found - _ON_DISK if word.startswith(current))
    if is_split and args and current != args[-1]:
        kept = 0 if args[-1] in _BREAKS else len(args[-1])
        matching = [word[len(current) - kept :] for word in matching]
    return [*matching, *sorted(found & _ON_DISK)]


def _join_words(args: Sequence[str]) -> list[str]:
    """Join the words that a shell has split at each `=` and `:`."""
    joined: list[str] = []
    for at, word in enumerate(args):
        follows = at > 0 and args[at - 1] in _BREAKS and joined[-1].endswith(_BREAKS)
        if joined and (word in _BREAKS or follows):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _list_choices(before: Sequence[str], current: str) -> Sequence[str]:
    named = [word for word in before if word in COMMANDS]
    previous = before[-1] if before else ""
    if not named:
        return _list_commands(previous)
    return _list_choices_of(COMMANDS[named[0]], before, previous, current)


def _list_choices_of(
    command: Command, before: Sequence[str], previous: str, current: str
) -> Sequence[str]:
    """List what a word after a command can become."""
    if previous == "--help" and command.name in WITH_MODEL:
        return [*load_schema().section_names, "all"]
    tree = _load_tree(command, before)
    if "=" in current:
        name = current.partition("=")[0]
        return _put_after(f"{name}=", _list_values_of(command, name, tree))
    if previous.startswith("-") and not current.startswith("-") and _takes_value(command, previous):
        return _list_values_of(command, previous, tree)
    return _list_words(command, current, tree)


def _list_commands(previous: str) -> Sequence[str]:
    """List the commands, or the values of an option before them."""
    option = GENERAL.find_option(previous)
    choices = [] if option is None else _complete_option(GENERAL, option)
    if choices:
        return choices
    return [*COMMANDS, "help", "--help", "--version"]


def _put_after(head: str, values: Sequence[str]) -> list[str]:
    return [value if value in _ON_DISK else f"{head}{value}" for value in values]


def _load_tree(command: Command, before: Sequence[str]) -> MappingNode:
    """Merge the layers that stand before the word; errors are left to the command itself."""
    if command.takes_config:
        words = [word for word in before if word != command.name]
        invocation = parse_command(command, words).for_stage("fit", keep=())
        with suppress(LightkitError, OSError):
            return load_config(invocation._replace(errors=()), Problems()).resolved.tree
    return MappingNode({}, Origin("default"))


def _takes_value(command: Command, name: str) -> bool:
    """Return whether an option, or a key with dashes, takes the next word."""
    option = command.find_option(name)
    if option is None:
        return command.takes_config
    return not option.is_switch and not option.is_optional


def _list_values_of(command: Command, name: str, tree: MappingNode) -> Sequence[str]:
    """List the values of an option or of a key."""
    option = command.find_option(name)
    if option is not None and not option.suffixes:
        return _complete_option(command, option)
    if not command.takes_config:
        return ()
    key = command.key_aliases.get(name, name.lstrip("-"))
    return _KEY_VALUES.get(key) or _list_values(key, tree)


def _complete_option(command: Command, option: Option) -> Sequence[str]:
    if option.name == "-c":
        return [FILES, *(f"{PREFIX}{name}" for name in packaged_configs())]
    return [*option.choices, *command.find_switches(option.name), *option.completes]


def _list_words(command: Command, current: str, tree: MappingNode) -> Sequence[str]:
    """List keys, options, and words without an option."""
    keys: list[str] = []
    if command.takes_config:
        dashes = "--" if current.startswith("-") else ""
        above = current.removeprefix("--").rpartition(".")[0]
        keys = [f"{dashes}{key}" for key in _list_keys(above, tree)]
        if command.name == "explain" and not dashes:  # its keys have no values
            keys = [key.removesuffix("=") for key in keys]
    inputs = () if current.startswith("-") or command.max_inputs == 0 else command.input_choices
    return [*keys, *_list_options(command), *inputs]


def _list_options(command: Command) -> list[str]:
    names = ["--help"]
    for option in command.options:
        if not option.is_hidden or option.key == "ckpt_path":
            names += [option.name, *option.value_of[:1]]
    return names


def _list_keys(above: str, tree: MappingNode) -> list[str]:
    """List the keys in a section.

    Those with more below them with a dot at their end, the others with ``=``.

    Args:
        above: The section, or an entry in it; empty for the top of a config.
        tree: The config so far.
    """
    if not above:
        return _list_top_keys()
    section, _, entry = above.partition(".")
    if section in NAMED_CLASSES and not entry:
        entries = getattr(find(tree, (section,)), "entries", {})
        return [f"{above}.{name}." for name in {*NAMED_CLASSES[section], *entries}]
    keys = [*describe_owner(tree, tuple(above.split(".")), imports=False).arguments]
    if section in load_schema().bases and not above.endswith(".init_args"):
        keys.append("class_path")
    return [f"{above}.{name}=" for name in keys]


def _list_top_keys() -> list[str]:
    schema = load_schema()
    sections = [f"{name}." for name in schema.section_names]
    single = ["accelerator", *CLASS_SECTIONS, *schema.top]
    return [*sections, *(f"{name}=" for name in single if name != "ckpt_path")]


def _list_values(key: str, tree: MappingNode) -> Sequence[str]:
    """List the values that a key takes, where they can be listed.

    With `FILES` where a file's name is one.
    """
    above, _, name = key.removesuffix(".class_path").rpartition(".")
    section = (above or name).partition(".")[0]
    if section in load_schema().bases and (name == section or above in NAMED_CLASSES):
        names = [*NAMED_CLASSES.get(section, {}), *(name for name, _ in list_class_names(section))]
        return [*names, FILES] if key == "model" else names  # an exported one
    owner = describe_owner(tree, tuple(above.split(".")) if above else (), imports=False)
    return _list_type_values(list_branches(owner.arguments.get(name, Argument()).schema))


def _list_type_values(branches: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the values of the alternatives of a type; nothing where null is the only one."""
    choices = [
        str(value)
        for branch in branches
        for value in branch.get("enum", ())
        if not isinstance(value, int)
    ]
    takes_text = False
    for branch in branches:
        choices += _WORDS_OF_TYPES.get(str(branch.get("type")), [])
        if not branch or branch.get("type") == "string":
            takes_text = True
    if choices == ["null"]:
        choices = []
    return [*choices, FILES] if takes_text else choices
