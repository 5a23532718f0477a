"""What can complete the last word of a command line. No torch: classes are those of the packaged schema."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

from lightkit.cli.argument_lookup import list_arguments, list_class_names
from lightkit.cli.command_line import OPTION_LINE
from lightkit.cli.config_loader import OPTIONS, STAGES, load_config, options_of
from lightkit.config import NAMED_CLASSES, Origin, Problems
from lightkit.config.packaged import PREFIX, packaged_configs
from lightkit.config.schema import list_branches, load_schema
from lightkit.config.tree import MappingNode, find
from lightkit.errors import LightkitError
from lightkit.export.formats import FORMATS

_BREAKS = ("=", ":")
_FILES, _FOLDERS = ":files", ":folders"
"""Answers that leave it to the shell."""
_OPTION_VALUES = {
    **dict.fromkeys(("-c", "--config"), (_FILES, *(f"{PREFIX}{name}" for name in packaged_configs()))),
    **dict.fromkeys(("--run", "--run.resume"), ("latest", _FOLDERS)),
    **dict.fromkeys(("--root", "--run.root"), (_FOLDERS,)),
    "--ckpt_path": ("last", "best", _FILES),
    "--output": ("json", _FILES),
    "--format": (*FORMATS, "all"),
}
"""Values of an option whose type does not list them."""


def completion_choices(args: Sequence[str], *, commands: Mapping[str, str | None], is_split: bool) -> list[str]:
    """List what the last word can become, whole words; those that go on end in a dot or ``=``.

    A word that starts with a colon is none: the shell adds what is on the disk.

    Args:
        args: Words after the program's name, up to the one under the cursor, which may be empty.
        commands: The module of each command, which has its help; None for the stages.
        is_split: Whether the shell has split words at each `=` and `:`, as bash does, and wants the last part alone.
    """
    joined: list[str] = []
    for at, word in enumerate(args):
        follows = at > 0 and args[at - 1] in _BREAKS and joined[-1][-1:] in _BREAKS
        if is_split and joined and (word in _BREAKS or follows):
            joined[-1] += word
        else:
            joined.append(word)
    *before, current = joined or [""]
    found = {*_list_choices(before, current, commands)}
    matching = sorted(word for word in found - {_FILES, _FOLDERS} if word.startswith(current))
    if is_split and args and current != args[-1]:
        kept = 0 if args[-1] in _BREAKS else len(args[-1])
        matching = [word[len(current) - kept :] for word in matching]
    return [*matching, *sorted(found & {_FILES, _FOLDERS})]


def _list_choices(before: Sequence[str], current: str, commands: Mapping[str, str | None]) -> Sequence[str]:
    command, previous = next((word for word in before if word in commands), None), before[-1] if before else ""
    if command is None:
        return _OPTION_VALUES.get(previous) or [*commands, "help", "--help", "--version"]
    module, data = commands[command], load_schema().data
    if module is None and previous == "--help":
        return [*data["sections"], *data["bases"], "all"]
    if module is None:
        named = {f"--{name}": takes != "switch" for name, takes in options_of(command).items() if name != "artefact"}
        takes_value = {"-c": True, "--help": False, **named}
    else:
        text = getattr(importlib.import_module(module), "HELP", "")
        takes_value = {option: value != "" for option, value in OPTION_LINE.findall(text)} | {"--help": False}
        takes_value |= {"-c": True} if " -c FILE" in text else {}
    tree = MappingNode({}, Origin("default"))
    if "-c" in takes_value:
        with suppress(LightkitError, OSError):  # the command itself reports errors
            config_args = [arg for arg in before if arg not in (command, *STAGES)]
            tree = load_config("fit", config_args, Problems()).resolved.tree
    option = current.partition("=")[0] if "=" in current else previous
    equals = f"{option}=" if "=" in current else ""
    is_key = "-c" in takes_value and option.lstrip("-") not in OPTIONS and (equals or current[:1] != "-")
    if option.startswith("-") or equals:
        values: Sequence[str] | None = _OPTION_VALUES.get(option) if takes_value.get(option, is_key) else None
        if values is None and is_key and option not in takes_value:
            values = _list_values(option.lstrip("-"), tree)
        if values is not None:
            return [value if value in (_FILES, _FOLDERS) else f"{equals}{value}" for value in values]
    dashes, keys = "--" if current.startswith("-") else "", []
    if "-c" in takes_value:
        keys = [f"{dashes}{key}" for key in _list_keys(current.removeprefix("--").rpartition(".")[0], tree)]
    if command == "explain" and not dashes:  # its keys have no values
        keys = [*STAGES, *(key.removesuffix("=") for key in keys)]
    files = [] if keys and command != "predict" else [_FILES]
    words = {"completion": ["bash", "zsh"], "check": STAGES}.get(command, files)
    return [*keys, *takes_value, *(() if dashes else words)]


def _list_keys(above: str, tree: MappingNode) -> list[str]:
    """List the keys in a section: those with more below them with a dot at their end, the others with ``=``.

    Args:
        above: The section, or an entry in it; empty for the top of a config.
        tree: The config so far.
    """
    data = load_schema().data
    section, _, entry = above.partition(".")
    if not above:
        nested = [*data["sections"], *data["bases"]]
        single = ["accelerator", "model", "data", "optimizer", "lr_scheduler", *data["top"]]
        return [*(f"{name}." for name in nested), *(f"{name}=" for name in single if name not in OPTIONS)]
    if section in NAMED_CLASSES and not entry:
        entries = getattr(find(tree, (section,)), "entries", {})
        return [f"{above}.{name}." for name in {*NAMED_CLASSES[section], *entries}]
    keys = list_arguments(tree, tuple(above.split(".")), imports=False)[1]
    is_entry = section in data["bases"] and not above.endswith(".init_args")
    return [f"{above}.{name}=" for name in [*keys, *(["class_path"] if is_entry else [])]]


def _list_values(key: str, tree: MappingNode) -> Sequence[str]:
    """List the values that a key takes, where they can be listed; with `_FILES` where a file's name is one."""
    above, _, name = key.removesuffix(".class_path").rpartition(".")
    section = (above or name).partition(".")[0]
    if section in load_schema().data["bases"] and (name == section or above in NAMED_CLASSES):
        names = [*NAMED_CLASSES.get(section, {}), *(name for name, _ in list_class_names(section))]
        return [*names, *[_FILES] * (key == "model")]  # an exported one
    described = list_arguments(tree, tuple(above.split(".")) if above else (), imports=False)[1].get(name, {})
    branches = list_branches(described.get("schema", {}))
    choices = [str(value) for branch in branches for value in branch.get("enum", ()) if not isinstance(value, int)]
    for branch in branches:
        choices += {"boolean": ["true", "false"], "null": ["null"]}.get(str(branch.get("type")), [])
    takes_text = any(not branch or branch.get("type") == "string" for branch in branches)
    return [*(choices if choices != ["null"] else []), *([_FILES] if takes_text else [])]
