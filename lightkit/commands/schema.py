"""`lightkit schema`: the JSON Schema of a config file, for editors."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import STAGES
from lightkit.config import NAMED_CLASSES, SECTIONS, shown_path
from lightkit.config.accelerator.block import KINDS
from lightkit.config.accelerator.vocabulary import (
    OLD_STRATEGIES,
    OLD_TRAINER_KEYS,
    PRECISIONS,
    TRAINER_DEFAULTS,
    XLA_STRATEGIES,
)
from lightkit.config.schedule import AUTO, COUNTS, STEPPING_SCHEMAS
from lightkit.config.schema import NO_DEFAULT, Argument, Schema, list_branches, load_schema
from lightkit.config.sections import FILE_SECTIONS
from lightkit.errors import ConfigError
from lightkit.runs.summary import SUMMARY_SCHEMA

_REFERENCE = {"$ref": "#/$defs/reference"}
_FILE = {
    "type": "string",
    "pattern": r"\.(yaml|yml|json)$",
    "description": "A file that holds the section",
}
_DIGITS: dict[str, Schema] = {
    "integer": {"type": "string", "pattern": r"^[-+]?[0-9][0-9_]*$"},
    "number": {
        "type": "string",
        "pattern": r"^[-+]?(\.inf|[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)([eE][-+]?[0-9]+)?$",
    },
}
"""Text that is read as a number where one belongs."""
_SUGGESTED = {
    "accelerator": [*KINDS],
    "strategy": [
        "auto",
        "ddp",
        "ddp_spawn",
        "fsdp",
        "deepspeed",
        "horovod",
        *XLA_STRATEGIES,
        *OLD_STRATEGIES,
    ],
    "precision": ["auto", *PRECISIONS],
}
"""Words that an editor offers for hardware keys; other values are taken too, since a variable may
stand there."""


def schema(invocation: Invocation) -> int:
    """Print the schema or write it to a file, and return the exit code.

    Args:
        invocation: The command line.

    Raises:
        ConfigError: If the file cannot be written.
    """
    if invocation.has("summary"):
        text = SUMMARY_SCHEMA.read_text(encoding="utf-8")
    else:
        text = json.dumps(_Writer().write_config(), ensure_ascii=False) + "\n"
    name = invocation.options.get("output")
    if name is None:
        print(text, end="")
        return 0
    file = Path(name)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"schema: {shown_path(file)} cannot be written: {error.strerror or error}"
        ) from None
    print(f"{shown_path(file)} is written")
    if not invocation.has("summary"):
        print(f"as first line of a config:\n# yaml-language-server: $schema={shown_path(file)}")
    return 0


def _describe_table(
    properties: Mapping[str, Schema], *, dotted: Collection[str] = (), others: Any = False
) -> Schema:
    """Take a mapping of these keys, and ``trainer.max_epochs: 3`` below some.

    Only the first key of these is judged.
    """
    pattern = rf"^({'|'.join(dotted)})\.[^.]+(\.[^.]+)*$"
    below = {pattern: {"description": "A key below that, as on the command line"}} if dotted else {}
    return {
        "type": ["object", "null"],
        "properties": {**properties},
        "patternProperties": below,
        "additionalProperties": others,
    }


def _describe_hardware(key: str, text: str) -> Schema:
    """Take any value, as hardware keys have those of several Lightning versions."""
    words = _SUGGESTED.get(key)
    return {**({} if words is None else {"anyOf": [{"enum": words}, {}]}), "description": text}


def _describe_stepping() -> dict[str, Schema]:
    """Describe the keys that say when a schedule is stepped."""
    texts = {
        "interval": (
            "Step the schedule after each epoch (the default), or after each step of the optimizer"
        ),
        "frequency": "Number of epochs or steps between two steps of the schedule",
    }
    return {
        key: {"anyOf": [schema, _REFERENCE], "description": texts[key]}
        for key, schema in STEPPING_SCHEMAS.items()
    }


class _Writer:
    """Writes the schema of a file, draft 2020-12, and collects the definitions it refers to."""

    def __init__(self) -> None:
        self._schema = load_schema()
        self._definitions: dict[str, Schema] = {}

    def write_config(self) -> Schema:
        """Describe a file: a layer, files below it, and a block for each stage."""
        layer = self._describe_layer()
        extends = {
            "type": ["string", "array", "null"],
            "items": {"type": "string"},
            "description": "Files below this one, relative to it, such as [base, logger/mlflow]",
        }
        blocks = {
            stage: {
                "anyOf": [{"$ref": "#/$defs/layer"}, _FILE],
                "description": f"What only {stage} sets",
            }
            for stage in STAGES
        }
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "lightkit config",
            **_describe_table({"extends": extends, **layer, **blocks}, dotted=[*layer, *blocks]),
            "$defs": {
                "reference": {
                    "type": "string",
                    "pattern": r"\$\{.*\}",
                    "description": "Another key, or ${oc.env:NAME}",
                },
                "layer": _describe_table(layer, dotted=[*layer]),
                **self._definitions,
            },
        }

    def _describe_layer(self) -> dict[str, Schema]:
        hardware = self._schema.sections["accelerator"].arguments
        strategy = _describe_hardware("strategy", hardware["strategy"].help)
        block = _describe_table({**self._describe_arguments(hardware), "strategy": strategy})
        places: dict[str, tuple[Schema, str]] = {
            "accelerator": (
                {"anyOf": [{"enum": list(KINDS)}, block]},
                "The hardware: cpu, gpu, or a mapping such as {gpus: 2}",
            )
        }
        for name, of_classes in SECTIONS.items():
            if of_classes.kind == "class":
                places[name] = (self._class_place(self._schema.bases[name]), of_classes.help)
            elif of_classes.kind == "entries":
                places[name] = (self._named_entries(name), of_classes.help)
        for name, section in self._schema.sections.items():
            if name != "accelerator":
                places[name] = (
                    self._describe_section(name, section.arguments),
                    section.help or "Lightning's Trainer",
                )
        layer = {
            name: {
                "anyOf": [schema, *([_FILE] if name in FILE_SECTIONS else []), _REFERENCE],
                "description": text,
            }
            for name, (schema, text) in places.items()
        }
        return layer | self._describe_arguments(self._schema.top)

    def _describe_section(self, name: str, arguments: Mapping[str, Argument]) -> Schema:
        properties = self._describe_arguments(arguments)
        if name == "trainer":
            block = self._schema.sections["accelerator"].arguments
            old = {
                key: {**_describe_hardware(key, block[key].help), "deprecated": True}
                for key in OLD_TRAINER_KEYS
            }
            properties |= old | {
                key: _describe_hardware(key, arguments[key].help) for key in TRAINER_DEFAULTS
            }
        return _describe_table(properties)

    def _describe_arguments(self, arguments: Mapping[str, Argument]) -> dict[str, Schema]:
        properties: dict[str, Schema] = {}
        for name, argument in arguments.items():
            described = self._describe_type(argument.schema)
            if argument.help:
                described["description"] = argument.help
            if argument.default not in (None, NO_DEFAULT):
                described["default"] = argument.default
            properties[name] = described
            lists = [
                branch
                for branch in list_branches(argument.schema)
                if branch.get("type") == "array" and "prefixItems" not in branch  # no pair
            ]
            if lists:
                item = self._describe_type(lists[0].get("items", {}))
                added = [item, {"type": "array", "items": item}, {"type": "null"}]
                properties[f"{name}+"] = {"anyOf": added, "description": f"Appended to {name}"}
        return properties

    def _describe_type(self, schema: Schema) -> Schema:
        """Write a type of the schema: null stands for "not set", and a reference for anything."""
        if not schema:
            return {}
        branches = list_branches(schema)
        kinds: list[str] = ["null"]
        others: list[Schema] = []
        for branch in branches:
            if set(branch) == {"type"} and branch["type"] not in ("array", "object"):
                kinds.append(branch["type"])
            else:
                others.append(self._describe_branch(branch))
        kinds = list(dict.fromkeys(kinds))
        if "string" in kinds:
            return {"anyOf": [{"type": kinds}, *others]}
        numbers = {branch.get("type") for branch in branches}  # with bounds or without
        digits = [_DIGITS[kind] for kind in ("number", "integer") if kind in numbers][:1]
        return {"anyOf": [{"type": kinds}, *others, *digits, _REFERENCE]}

    def _describe_branch(self, branch: Schema) -> Schema:
        """Write one alternative of a type.

        A function, a class, or a collection with the types of its elements.
        """
        if branch.get("callable"):
            return {"type": ["string", "object"]}
        if "class" in branch:
            return self._class_place([branch["class"]])
        described = dict(branch)
        for key in ("items", "additionalProperties"):
            if key in branch:
                described[key] = self._describe_type(branch[key])
        if "prefixItems" in branch:
            described["prefixItems"] = [self._describe_type(item) for item in branch["prefixItems"]]
        return described

    # -- classes -----------------------------------------------------------------------------------

    def _class_place(self, bases: Collection[str]) -> Schema:
        """Refer to what may stand where a class that derives from any of several does."""
        named = self._schema.names_of(bases)
        if not named:
            return {"type": ["string", "object", "null"]}
        key = f"any {' or '.join(bases)}"
        if key not in self._definitions:
            self._definitions[key] = {}  # an argument of such a class may ask for such a class
            # a short name of one's own class is good only where something else has loaded it
            own = r"\.|\$\{"
            names = {
                "anyOf": [
                    {"enum": [name for names in named.values() for name in names]},
                    {
                        "type": "string",
                        "pattern": own,
                        "description": "A class of your own: package.module.Class",
                    },
                ]
            }
            properties = {
                "class_path": {
                    **names,
                    "description": "The class, by its short name or its whole path",
                },
                "init_args": {"type": ["object", "string"], "description": "Its arguments"},
                "dict_kwargs": {
                    "type": ["object", "string"],
                    "description": "Arguments that it passes on to others",
                },
            }
            cases = [
                {
                    "if": {
                        "properties": {"class_path": {"enum": given}},
                        "required": ["class_path"],
                    },
                    "then": self._describe_class(path),
                }
                for path, given in named.items()
            ]
            if bases == self._schema.bases["lr_scheduler"]:
                properties |= _describe_stepping()
            spec = {"type": "object", "properties": properties, "allOf": cases}
            self._definitions[key] = {"anyOf": [{"type": "null"}, names, spec]}
        return {"$ref": f"#/$defs/{key.replace(' ', '%20')}"}

    def _describe_class(self, path: str) -> Schema:
        """Refer to the mapping of one class.

        ``class_path``, ``init_args``, and its arguments next to them.
        """
        if path not in self._definitions:
            self._definitions[path] = {}
            described = self._schema.classes[path]
            properties = self._describe_arguments(described.arguments)
            is_schedule = {*self._schema.bases["lr_scheduler"]} & {*described.bases}
            for name in COUNTS if is_schedule else ():
                if name in properties:
                    text = properties[name].pop("description", "")
                    properties[name] = {
                        "anyOf": [{"const": AUTO}, properties[name]],
                        "description": text,
                    }
            init_args = {"anyOf": [_describe_table(properties), _REFERENCE]}
            spec: dict[str, Any] = {
                **properties,
                "class_path": True,
                "init_args": init_args,
                "dict_kwargs": True,
            }
            if is_schedule:
                spec = {**_describe_stepping(), **spec}
            self._definitions[path] = _describe_table(spec)
        return {"$ref": f"#/$defs/{path}"}

    def _named_entries(self, section: str) -> Schema:
        """Take entries by name.

        The class of a known name is judged unless the entry names another one.
        """
        place = self._class_place(self._schema.bases[section])
        known = {}
        for name, path in NAMED_CLASSES[section].items():
            if path in self._schema.classes:
                known[name] = {
                    "if": {"type": "object", "not": {"required": ["class_path"]}},
                    "then": self._describe_class(path),
                    "else": place,
                    "description": f"{self._schema.classes[path].help} ({path})",
                }
        return _describe_table(known, others=place)
