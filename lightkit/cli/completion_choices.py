"""What can complete the last word of a command line. No torch: classes are those of the packaged schema."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from lightkit.cli.argument_lookup import list_class_names
from lightkit.cli.config_loader import NAMED_CLASSES, OPTIONS, STAGES, load_config, options_of
from lightkit.config import Problems
from lightkit.config.accelerator.vocabulary import BLOCK_KEYS, KINDS
from lightkit.config.packaged import PREFIX, packaged_configs
from lightkit.config.schema import ConfigSchema, load_schema
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


def completion_choices(words: Sequence[str], *, commands: Mapping[str, str | None], is_split: bool) -> list[str]:
    """List what the last word can become, whole words; those that go on end in a dot or ``=``.

    A word that starts with a colon is none: the shell adds what is on the disk.

    Args:
        words: Words after the program's name, up to the one under the cursor, which may be empty.
        commands: The module of each command, which has its help; None for the stages.
        is_split: Whether the shell has split words at each `=` and `:`, as bash does, and wants the last part alone.
    """
    joined: list[str] = []
    for at, word in enumerate(words):
        follows = at > 0 and words[at - 1] in _BREAKS and joined[-1][-1:] in _BREAKS
        if is_split and joined and (word in _BREAKS or follows):
            joined[-1] += word
        else:
            joined.append(word)
    *before, current = joined or [""]
    found = {*_list_choices(before, current, commands)}
    matching = sorted(word for word in found - {_FILES, _FOLDERS} if word.startswith(current))
    if is_split and words and current != words[-1]:
        kept = 0 if words[-1] in _BREAKS else len(words[-1])
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
    is_key = previous.startswith("--") and "=" not in previous and previous not in options
    if is_key and previous[2:] not in OPTIONS and current[:1] != "-":
        return [*_list_values(previous[2:], before), *(images if previous == "--model" else ())]
    dashes = "--" if current.startswith("-") else ""
    key, equals, _ = current.removeprefix("--").partition("=")
    if equals:
        return [each if each in (_FILES, _FOLDERS) else f"{dashes}{key}={each}" for each in _list_values(key, before)]
    keys = _list_keys(key.rpartition(".")[0], before)
    if command == "explain" and not dashes:  # its keys have no values
        keys = [word.removesuffix("=") for word in keys]
    stages = STAGES if command in ("check", "explain") and previous == command else ()
    return [*stages, *options, *(f"{dashes}{word}" for word in keys), *([] if dashes else images)]


def _read_options(module: str) -> list[str]:
    """List the options that the help of a command names, from its text: importing the command may take long."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return []
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    assigned = [statement for statement in tree.body if isinstance(statement, ast.Assign)]
    helps = [statement for statement in assigned if ast.unparse(statement.targets[0]).endswith(("HELP", "USAGE"))]
    texts = [node.value for statement in helps for node in ast.walk(statement) if isinstance(node, ast.Constant)]
    found = {option for text in texts for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*(?![\w.-])", str(text))}
    return sorted({*found, "--help"} - {"--key"})


def _list_topics(given: Sequence[str]) -> list[str]:
    """List what can stand after ``--help`` and the words behind it."""
    schema = load_schema()
    sections = schema.data["sections"]
    if not given:
        return [*sections, *schema.data["bases"], "all"]
    if list(given) == ["accelerator"]:
        return [*BLOCK_KEYS]
    if len(given) > 1:
        return []
    return [*sections[given[0]]["arguments"]] if given[0] in sections else _list_classes(given[0], schema)


def _list_keys(above: str, before: Sequence[str]) -> list[str]:
    """List the keys in a section: those with more below them with a dot at their end, the others with ``=``.

    Args:
        above: The section, or an entry in it; empty for the top of a config.
        before: Words of the command line, which may give the section its class.
    """
    schema = load_schema()
    section, _, entry = above.partition(".")
    if not above:
        nested = [*schema.data["sections"], *schema.data["bases"]]
        single = ["accelerator", "model", "data", "optimizer", "lr_scheduler", *schema.data["top"]]
        return [*(f"{name}." for name in nested), *(f"{name}=" for name in single if name not in OPTIONS)]
    if section in NAMED_CLASSES and not entry:
        entries = _load_values(before).get(section)
        return [
            f"{above}.{name}." for name in {*NAMED_CLASSES[section], *(entries if isinstance(entries, dict) else ())}
        ]
    return [f"{above}.{name}=" for name in _find_arguments(above, before, schema)]


def _list_values(key: str, before: Sequence[str]) -> list[str]:
    """List the values that a key takes, where they can be listed; with `_FILES` where a file's name is one."""
    schema = load_schema()
    above, _, name = key.removesuffix(".class_path").rpartition(".")
    section = (above or name).partition(".")[0]
    if section in schema.data["bases"] and (name == section or above in NAMED_CLASSES):
        return _list_classes(section, schema)
    if key in _KEY_VALUES:
        return _KEY_VALUES[key]
    described = schema.data["top"].get(key) or _find_arguments(above, before, schema).get(name)
    if described is None:
        return [_FILES]
    choices = ["auto"] if key in _AUTO_KEYS else []
    branches = described["schema"].get("anyOf", [described["schema"]])
    for branch in branches:
        choices += [str(value) for value in branch.get("enum", ()) if not isinstance(value, int)]
        choices += {"boolean": ["true", "false"], "null": ["null"]}.get(str(branch.get("type")), [])
    takes_text = any(not branch or branch.get("type") == "string" for branch in branches)
    return [*(choices if choices != ["null"] else []), *([_FILES] if takes_text else [])]


def _list_classes(section: str, schema: ConfigSchema) -> list[str]:
    if section not in schema.data["bases"]:
        return []
    return [*NAMED_CLASSES.get(section, {}), *(name for name, _ in list_class_names(section))]


def _find_arguments(above: str, before: Sequence[str], schema: ConfigSchema) -> Mapping[str, Any]:
    """Give the schema of each key below a section or an entry."""
    holder = above.removesuffix(".init_args")
    section, _, entry = holder.partition(".")
    sections = schema.data["sections"]
    if section == "accelerator":  # each key is as in the section, as in the trainer, or a number
        known = {**sections["trainer"]["arguments"], **sections["accelerator"]["arguments"]}
        return {key: known.get(key, {"schema": {"type": "integer"}}) for key in BLOCK_KEYS}
    if section in sections and not entry:
        return dict(sections[section]["arguments"])
    if section not in schema.data["bases"]:
        return {}
    name = _find_class(holder, before) or NAMED_CLASSES.get(section, {}).get(entry, "")
    path = schema.path_of(name, schema.data["bases"][section])
    own = {} if path is None else schema.classes[path]["arguments"]
    return dict(own) if holder != above else {**own, "class_path": {"schema": {"class": ""}}}


def _find_class(holder: str, before: Sequence[str]) -> str:
    """Find the class of a section or an entry: ``--model Net``, ``--model=Net`` or ``model=Net``; else in the files."""
    pattern = rf"(?:^|\s)(?:--)?{re.escape(holder)}(?:\.class_path)?[=\s]([A-Za-z_][\w.]*)(?=\s|$)"
    if found := re.findall(pattern, " ".join(before)):
        return str(found[-1])
    value: Any = _load_values(before)
    for name in holder.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    path = value.get("class_path") if isinstance(value, dict) else value
    return path if isinstance(path, str) else ""


def _load_values(before: Sequence[str]) -> dict[str, Any]:
    """Load the config files that the words name; nothing where one cannot be read, which the command reports."""
    files = [following for word, following in pairwise(before) if word in ("-c", "--config")]
    files += [word.partition("=")[2] for word in before if word.startswith(("-c=", "--config="))]
    if files:
        with suppress(LightkitError, OSError):
            return dict(load_config("fit", [f"-c={file}" for file in files], Problems()).resolved.values)
    return {}
