"""What can complete the last word of a command line. No torch: classes are those of the packaged schema."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightkit.cli.argument_lookup import list_arguments, list_class_names, list_keys
from lightkit.cli.command_line import OPTION_LINE
from lightkit.cli.config_loader import NAMED_CLASSES, OPTIONS, STAGES, load_config, options_of
from lightkit.config import Origin, Problems
from lightkit.config.accelerator.vocabulary import KINDS
from lightkit.config.packaged import PREFIX, packaged_configs
from lightkit.config.schema import list_branches, load_schema
from lightkit.config.tree import MappingNode, find
from lightkit.errors import LightkitError
from lightkit.export.metadata import FILES as FORMATS
from lightkit.launch import ENGINES

_BREAKS = ("=", ":")
_FILES, _FOLDERS = ":files", ":folders"
"""Answers that leave it to the shell."""
_STRATEGIES = [
    *("auto", "ddp", "ddp_fork", "ddp_spawn", "ddp_find_unused_parameters_true"),
    *("deepspeed", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"),
    *("fsdp", "fsdp_cpu_offload", "horovod", "single_device", "xla"),
]
_KEY_VALUES = {
    **{key: [*KINDS] for key in ("accelerator", "accelerator.kind", "trainer.accelerator")},
    **dict.fromkeys(("accelerator.strategy", "trainer.strategy"), _STRATEGIES),
    "accelerator.scale_lr": ["true", "false"],
    "trainer.devices": ["auto"],
    "launch.engine": [*ENGINES, "null"],
    "launch.controller": ["gloo", "mpi"],
    "run.resume": ["auto", "never", "latest", _FOLDERS],
    "run.root": [_FOLDERS],
    "ckpt_path": ["last", "best", _FILES],
}
"""Values of keys whose type says less than is known of them."""
_AUTO_KEYS = [f"accelerator.{key}" for key in ("precision", "memory_format", "compile", "threads", "num_workers")]
_OPTION_VALUES = {
    "-o": [_FILES],
    **{option: [_FILES, *(f"{PREFIX}{name}" for name in packaged_configs())] for option in ("-c", "--config")},
    "--run": ["latest", _FOLDERS],
    "--root": [_FOLDERS],
    "--ckpt_path": ["last", "best", _FILES],
    "--output": ["json", _FOLDERS],
    "--export-format": [*FORMATS, "all"],
    "--sort": ["age", "metric", "name", "size", "status"],
    "--filter": ["locked=true", "promoted=true", "status=done"],
    "--mode": ["max", "min"],
    "--kind": ["start", "epoch", "end", "failure", "gate"],
    "--skip": ["export", "promote", "test"],
    "--on-bad-image": ["error", "skip"],
    "runs --output": ["csv", "json"],
    "convert --format": ["delta", "parquet"],
    "export --format": [*FORMATS, "all"],
    "register --format": ["torch_export", "torchscript"],
}
"""What stands after an option, of any command or of one."""
_POSITIONAL = {
    "convert": [_FOLDERS],
    "diff": ["latest", _FILES],
    "upgrade": [_FILES],
    "completion": ["bash", "zsh"],
    "configs": ["copy", "show"],
}
"""What stands by itself after a command that takes no keys."""


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


def _list_choices(before: Sequence[str], current: str, commands: Mapping[str, str | None]) -> list[str]:
    command, previous = next((word for word in before if word in commands), None), before[-1] if before else ""
    if command is None:
        after_all = [] if before and before != ["help"] else ["help", "--help", "--version"]
        return _OPTION_VALUES.get(previous) or [*commands, *after_all]
    module = commands[command]
    if module is None and "--help" in before:
        return _list_topics(before[[*before].index("--help") + 1 :])
    takes = options_of(command)
    named = ["-c", "--help", *(f"--{name}" for name in takes if name != "artefact")]  # which is written --model
    options = named if module is None else _read_options(module)
    for option, prefix in ((previous, ""), (current.partition("=")[0], f"{current.partition('=')[0]}=")):
        choices = _OPTION_VALUES.get(f"{command} {option}") or _OPTION_VALUES.get(option)
        if choices and option in (*options, "--config") and (not prefix or "=" in current):
            return [choice if choice in (_FILES, _FOLDERS) else f"{prefix}{choice}" for choice in choices]
    if module is None and previous.startswith("--") and takes.get(previous[2:]) == "value":
        return [_FILES]  # what it takes cannot be listed
    if "-c" not in options:
        return options if current.startswith("-") else _POSITIONAL.get(command, options)
    images = [_FILES] if command == "predict" else []
    tree = _load_tree([arg for arg in before if arg not in (command, *STAGES)])
    is_key = previous.startswith("--") and "=" not in previous and previous not in options
    if is_key and previous[2:] not in OPTIONS and current[:1] != "-":
        return [*_list_values(previous[2:], tree), *(images if previous == "--model" else ())]
    dashes = "--" if current.startswith("-") else ""
    key, equals, _ = current.removeprefix("--").partition("=")
    if equals:
        return [each if each in (_FILES, _FOLDERS) else f"{dashes}{key}={each}" for each in _list_values(key, tree)]
    keys = _list_keys(key.rpartition(".")[0], tree)
    if command == "explain" and not dashes:  # its keys have no values
        keys = [word.removesuffix("=") for word in keys]
    stages = STAGES if command in ("check", "explain") and previous == command else ()
    return [*stages, *options, *(f"{dashes}{word}" for word in keys), *([] if dashes else images)]


def _read_options(module: str) -> list[str]:
    """List the options that the help of a command names, from its text: importing the command may take long."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    usage = re.findall(r"usage: lightkit .*?\n\n", text, re.DOTALL)
    names = [option for part in usage for option in re.findall(r"(?<=\[)--?[a-z][\w-]*(?=[ \]])|-c(?= FILE)", part)]
    return sorted({*names, *(option for option, _ in OPTION_LINE.findall(text)), "--help"})


def _list_topics(given: Sequence[str]) -> list[str]:
    """List the words after ``--help``: sections, and the keys or classes in one."""
    data = load_schema().data
    if not given:
        return [*data["sections"], *data["bases"], "all"]
    if len(given) > 1:
        return []
    is_section = given[0] in data["sections"]
    return list_keys(_load_tree(()), (given[0],)) if is_section else _list_classes(given[0])


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


def _list_values(key: str, tree: MappingNode) -> list[str]:
    """List the values that a key takes, where they can be listed; with `_FILES` where a file's name is one."""
    data = load_schema().data
    above, _, name = key.removesuffix(".class_path").rpartition(".")
    section = (above or name).partition(".")[0]
    if section in data["bases"] and (name == section or above in NAMED_CLASSES):
        return _list_classes(section)
    if key in _KEY_VALUES:
        return _KEY_VALUES[key]
    described = list_arguments(tree, tuple(above.split(".")) if above else (), imports=False)[1].get(name, {})
    if "schema" not in described:
        return [_FILES]
    choices = ["auto"] if key in _AUTO_KEYS else []
    branches = list_branches(described["schema"])
    for branch in branches:
        choices += [str(value) for value in branch.get("enum", ()) if not isinstance(value, int)]
        choices += {"boolean": ["true", "false"], "null": ["null"]}.get(str(branch.get("type")), [])
    takes_text = any(not branch or branch.get("type") == "string" for branch in branches)
    return [*(choices if choices != ["null"] else []), *([_FILES] if takes_text else [])]


def _list_classes(section: str) -> list[str]:
    if section not in load_schema().data["bases"]:
        return []
    return [*NAMED_CLASSES.get(section, {}), *(name for name, _ in list_class_names(section))]


def _load_tree(args: Sequence[str]) -> MappingNode:
    """Load the config that arguments name, as far as it can be read: the command itself reports errors."""
    try:
        return load_config("fit", args, Problems()).resolved.tree
    except (LightkitError, OSError):
        return MappingNode({}, Origin("default"))
