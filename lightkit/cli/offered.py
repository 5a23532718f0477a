"""What there is to choose from where a key or its value is typed. No torch: classes are those of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lightkit.cli.config_loader import NAMED_CLASSES, OPTIONS, load_config
from lightkit.config import Problems
from lightkit.config.accelerator.said import BLOCK_KEYS
from lightkit.config.accelerator.words import KINDS
from lightkit.config.schema import ConfigSchema, load_schema
from lightkit.errors import LightkitError

__all__ = ["FILES", "FOLDERS", "keys", "topics", "values"]

FILES, FOLDERS = ":files", ":folders"
"""Answers that leave it to the shell."""
_STRATEGIES = [
    *("auto", "ddp", "ddp_fork", "ddp_spawn", "ddp_find_unused_parameters_true"),
    *("deepspeed", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"),
    *("fsdp", "fsdp_cpu_offload", "horovod", "single_device", "xla"),
]
_WORDS = {
    "accelerator": [*KINDS],
    "accelerator.kind": [*KINDS],
    "accelerator.strategy": _STRATEGIES,
    "accelerator.scale_lr": ["true", "false"],
    "trainer.accelerator": [*KINDS],
    "trainer.devices": ["auto"],
    "trainer.strategy": _STRATEGIES,
    "launch.controller": ["gloo", "mpi"],
    "run.resume": ["auto", "never", FOLDERS],
    "run.root": [FOLDERS],
    "ckpt_path": ["last", "best", FILES],
}
"""Values of keys whose type says less than is known of them."""


def topics(said: Sequence[str]) -> list[str]:
    """List what can stand after ``--help``.

    Args:
        said: What stands there already.
    """
    catalogue = load_schema()
    sections = catalogue.data["sections"]
    if not said:
        return [*sections, *catalogue.data["bases"], "all"]
    if list(said) == ["accelerator"]:
        return [*BLOCK_KEYS]
    if len(said) == 1 and said[0] in sections:
        return [*sections[said[0]]["arguments"]]
    return _classes(said[0], catalogue) if len(said) == 1 else []


def keys(above: str, before: Sequence[str]) -> list[str]:
    """List the keys in a section, whole, those with more below them with a dot at their end, the others with ``=``.

    Args:
        above: The section, or an entry in it; empty for the top of a config.
        before: Words of the command line, which may give the section its class.
    """
    catalogue = load_schema()
    section, _, entry = above.partition(".")
    if not above:
        deep = [*catalogue.data["sections"], *catalogue.data["bases"]]
        single = ["accelerator", "model", "data", "optimizer", "lr_scheduler", *catalogue.data["top"]]
        return [*(f"{name}." for name in deep), *(f"{name}=" for name in single if name not in OPTIONS)]
    if section in NAMED_CLASSES and not entry:
        laid = _laid(before).get(section)
        return [f"{above}.{name}." for name in {*NAMED_CLASSES[section], *(laid if isinstance(laid, dict) else ())}]
    return [f"{above}.{name}=" for name in _arguments(above, before, catalogue)]


def values(key: str, before: Sequence[str]) -> list[str]:
    """List the values that a key takes, where they can be listed; with `FILES` where a file's name is one.

    Args:
        key: The key, dotted.
        before: Words of the command line, which may give the key's section its class.
    """
    catalogue = load_schema()
    above, _, name = key.removesuffix(".class_path").rpartition(".")
    section = (above or name).partition(".")[0]
    if section in catalogue.data["bases"] and (name == section or above in NAMED_CLASSES):
        return _classes(section, catalogue)
    if key in _WORDS:
        return _WORDS[key]
    if key == "launch.engine":
        from lightkit.launch import ENGINES  # here, because no other key needs what starts processes

        return [*ENGINES, "null"]
    described = catalogue.data["top"].get(key) or _arguments(above, before, catalogue).get(name)
    if described is None:
        return [FILES]
    choices = _choices(described["schema"])
    return [*choices, FILES] if _takes_text(described["schema"]) else choices


def _arguments(above: str, before: Sequence[str], catalogue: ConfigSchema) -> Mapping[str, Any]:
    """Give what is known of the keys below a section or an entry."""
    holder = above.removesuffix(".init_args")
    section, _, entry = holder.partition(".")
    if section == "accelerator":
        return _of_block(catalogue.data["sections"])
    if section in catalogue.data["sections"] and not entry:
        arguments: Mapping[str, Any] = catalogue.data["sections"][section]["arguments"]
        return arguments
    if section not in catalogue.data["bases"]:
        return {}
    name = _said_class(holder, before) or NAMED_CLASSES.get(section, {}).get(entry, "")
    path = catalogue.path_of(name, catalogue.data["bases"][section])
    own = {} if path is None else catalogue.classes[path]["arguments"]
    return own if holder != above else {**own, "class_path": {"schema": {"class": ""}}}


def _of_block(sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give what is known of the keys for hardware: each is as in the section, as in the trainer, or a number."""
    own, trainer = sections["accelerator"]["arguments"], sections["trainer"]["arguments"]
    known = {**trainer, **own, "precision": {"schema": {"anyOf": _branches(own) + _branches(trainer)}}}
    return {key: known.get(key, {"schema": {"type": "integer"}}) for key in BLOCK_KEYS}


def _branches(arguments: Mapping[str, Any]) -> list[Any]:
    schema = arguments["precision"]["schema"]
    return list(schema.get("anyOf", [schema]))


def _said_class(holder: str, before: Sequence[str]) -> str:
    """Find the class of a section or an entry: ``--model Net``, ``--model=Net`` or ``model=Net``; else in the files."""
    joined = " ".join(before)
    found = re.findall(rf"(?:^|\s)(?:--)?{re.escape(holder)}(?:\.class_path)?[=\s]([A-Za-z_][\w.]*)(?=\s|$)", joined)
    if found:
        return str(found[-1])
    value: Any = _laid(before)
    for name in holder.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    path = value.get("class_path") if isinstance(value, dict) else value
    return path if isinstance(path, str) else ""


def _laid(before: Sequence[str]) -> dict[str, Any]:
    """Lay the config files that the words name; nothing where one cannot be read, which is told once it is run."""
    files = _files(before)
    if files:
        with suppress(LightkitError, OSError):
            return dict(load_config("fit", [f"-c={file}" for file in files], Problems()).resolved.values)
    return {}


def _files(before: Sequence[str]) -> Iterable[str]:
    pairs = zip(before, [*before[1:], ""], strict=True)
    after = [following for word, following in pairs if word in ("-c", "--config") and following]
    return [*after, *(word.partition("=")[2] for word in before if word.startswith(("-c=", "--config=")))]


def _choices(schema: Mapping[str, Any]) -> list[str]:
    choices: list[str] = []
    for branch in schema.get("anyOf", [schema]):
        choices += [str(value) for value in branch.get("enum", ()) if not isinstance(value, int)]
        choices += {"boolean": ["true", "false"], "null": ["null"]}.get(str(branch.get("type")), [])
    return choices if choices != ["null"] else []


def _takes_text(schema: Mapping[str, Any]) -> bool:
    """Tell whether any text is a value, or nothing is known of the values."""
    return any(not branch or branch.get("type") == "string" for branch in schema.get("anyOf", [schema]))


def _classes(section: str, catalogue: ConfigSchema) -> list[str]:
    if section not in catalogue.data["bases"]:
        return []
    from lightkit.cli.help.classes import names_of  # here, because the words of the help come with it

    return [*NAMED_CLASSES.get(section, {}), *(name for name, _ in names_of(section, catalogue))]
