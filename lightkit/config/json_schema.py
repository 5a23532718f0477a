"""The JSON Schema of a lightkit file, for editors: completion, hover, and a mark under a wrong key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lightkit.config.accelerator.vocabulary import (
    KEY_HELP,
    KINDS,
    OLD_STRATEGIES,
    OLD_TRAINER_KEYS,
    PRECISIONS,
    TRAINER_DEFAULTS,
    XLA_STRATEGIES,
)
from lightkit.config.loader import SECTIONS
from lightkit.config.schema import ConfigSchema, list_branches

Schema = dict[str, Any]

_REFERENCE = {"$ref": "#/$defs/reference"}
_FILE = {"type": "string", "pattern": r"\.(yaml|yml|json)$", "description": "A file that holds the section"}
_DIGITS: dict[str, Schema] = {
    "integer": {"type": "string", "pattern": r"^[-+]?[0-9][0-9_]*$"},
    "number": {"type": "string", "pattern": r"^[-+]?(\.inf|[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)([eE][-+]?[0-9]+)?$"},
}
"""Text that is read as a number where one belongs."""


_STRATEGIES = ("auto", "ddp", "ddp_spawn", "fsdp", "deepspeed", "horovod", *XLA_STRATEGIES, *OLD_STRATEGIES)
_SUGGESTED = {
    "kind": [*KINDS],
    "accelerator": [*KINDS],
    "strategy": [*_STRATEGIES],
    "precision": ["auto", *PRECISIONS],
    "memory_format": ["auto", "contiguous", "channels_last"],
}
"""Words that an editor offers for hardware keys; other values are taken too, since a variable may stand there."""
_CLASS_SECTIONS = {
    "model": "The model: a LightningModule",
    "data": "The data: a LightningDataModule",
    "optimizer": "The optimizer, where the model leaves it to the config",
    "lr_scheduler": "The learning rate's schedule, where the model leaves it to the config",
}
_ENTRIES = {
    "callbacks": "Callbacks by name; a later layer changes, adds, or with null removes one",
    "logger": "Loggers by name; a later layer changes, adds, or with null removes one",
}


def file_schema(
    catalogue: ConfigSchema, *, default_classes: Mapping[str, Mapping[str, str]], subcommands: Collection[str]
) -> Schema:
    """Give the JSON Schema of a lightkit file, draft 2020-12.

    Args:
        catalogue: All that can be named.
        default_classes: Tables from an entry's name to its class, by the section that holds named entries.
        subcommands: Commands that may have a block of their own.
    """
    writer = _Writer(catalogue, default_classes)
    layer = writer.layer()
    blocks = {
        name: {"anyOf": [{"$ref": "#/$defs/layer"}, _FILE], "description": f"What only {name} sets"}
        for name in subcommands
    }
    extends = {
        "type": ["string", "array", "null"],
        "items": {"type": "string"},
        "description": "Files below this one, relative to it, such as [base, logger/mlflow]",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "lightkit config",
        **_table({"extends": extends, **layer, **blocks}, dotted=[*layer, *blocks]),
        "$defs": {
            "reference": {"type": "string", "pattern": r"\$\{.*\}", "description": "Another key, or ${oc.env:NAME}"},
            "layer": _table(layer, dotted=[*layer]),
            **writer.definitions,
        },
    }


def _table(properties: Mapping[str, Schema], *, dotted: Collection[str] = (), others: Any = False) -> Schema:
    """Take a mapping of these keys, and ``trainer.max_epochs: 3`` below some, of which only the first key is judged."""
    pattern = rf"^({'|'.join(dotted)})\.[^.]+(\.[^.]+)*$"
    below = {pattern: {"description": "A key below that, as on the command line"}} if dotted else {}
    return {
        "type": ["object", "null"],
        "properties": {**properties},
        "patternProperties": below,
        "additionalProperties": others,
    }


def _documented(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text} if text else schema


def _hardware(key: str, text: str) -> Schema:
    """Describe a hardware key, which takes the values of several Lightning versions."""
    words = _SUGGESTED.get(key)
    return _documented({} if words is None else {"anyOf": [{"enum": words}, {}]}, text)


class _Writer:
    """Writes schemas, and collects the definitions that they refer to."""

    def __init__(self, catalogue: ConfigSchema, default_classes: Mapping[str, Mapping[str, str]]) -> None:
        self._catalogue = catalogue
        self._default_classes = default_classes
        self.definitions: dict[str, Schema] = {}

    def layer(self) -> dict[str, Schema]:
        data = self._catalogue.data
        block = _table({key: _hardware(key, text) for key, text in KEY_HELP.items()})
        layer: dict[str, Schema] = {
            "accelerator": {
                "anyOf": [{"enum": list(KINDS)}, block, _REFERENCE],
                "description": "The hardware: cpu, gpu, or a mapping such as {gpus: 2}",
            }
        }
        places = {name: (self._class_place(data["bases"][name]), message) for name, message in _CLASS_SECTIONS.items()}
        places |= {name: (self._named_entries(name), message) for name, message in _ENTRIES.items()}
        for name, section in data["sections"].items():
            if name != "accelerator":
                places[name] = self._section(name, section["arguments"]), section["help"]
        for name, (schema, message) in places.items():
            files = [_FILE] if name in SECTIONS else []
            layer[name] = _documented({"anyOf": [schema, *files, _REFERENCE]}, message)
        return layer | {name: self._argument(argument) for name, argument in data["top"].items()}

    def _section(self, name: str, arguments: Mapping[str, Any]) -> Schema:
        properties = self._arguments(arguments)
        if name == "trainer":
            properties |= {key: {**_hardware(key, KEY_HELP[key]), "deprecated": True} for key in OLD_TRAINER_KEYS}
            properties |= {key: _hardware(key, arguments[key]["help"]) for key in TRAINER_DEFAULTS}
        return _table(properties)

    def _arguments(self, arguments: Mapping[str, Any]) -> dict[str, Schema]:
        properties: dict[str, Schema] = {}
        for name, argument in arguments.items():
            properties[name] = self._argument(argument)
            lists = [branch for branch in list_branches(argument["schema"]) if branch.get("type") == "array"]
            if lists:
                item = self._type(lists[0].get("items", {}))
                added = {"anyOf": [item, {"type": "array", "items": item}, {"type": "null"}]}
                properties[f"{name}+"] = _documented(added, f"Appended to {name}")
        return properties

    def _argument(self, argument: Mapping[str, Any]) -> Schema:
        default = {"default": argument["default"]} if argument.get("default") is not None else {}
        return {**_documented(self._type(argument["schema"]), argument["help"]), **default}

    def _type(self, schema: Schema) -> Schema:
        """Write a type of the catalogue: null stands for "not set", and a reference for anything."""
        if not schema:
            return {}
        plain: list[str] = ["null"]
        others: list[Schema] = []
        for branch in list_branches(schema):
            if set(branch) == {"type"} and branch["type"] not in ("array", "object"):
                plain += [branch["type"]] if branch["type"] not in plain else []
            elif branch.get("callable"):
                others.append({"type": ["string", "object"]})
            elif "class" in branch:
                others.append(self._class_place([branch["class"]]))
            else:
                inner: Schema = {key: self._type(branch[key]) for key in _INNER if key in branch}
                if "prefixItems" in branch:
                    inner["prefixItems"] = [self._type(item) for item in branch["prefixItems"]]
                others.append({**branch, **inner})
        if "string" in plain:
            return {"anyOf": [{"type": plain}, *others]}
        digits = [_DIGITS[kind] for kind in ("number", "integer") if kind in plain][:1]
        return {"anyOf": [{"type": plain}, *others, *digits, _REFERENCE]}

    # -- classes -----------------------------------------------------------------------------------------------

    def _class_place(self, bases: Collection[str]) -> Schema:
        """Refer to what may stand where a class that derives from any of several does."""
        named = self._catalogue.names_of(bases)
        if not named:
            return {"type": ["string", "object", "null"]}
        key = f"any {' or '.join(bases)}"
        if key not in self.definitions:
            self.definitions[key] = {}  # an argument of such a class may ask for such a class
            own = r"\.|\$\{"  # a short name of one's own class is good only where something else has loaded it
            names = {
                "anyOf": [
                    {"enum": [name for names in named.values() for name in names]},
                    {"type": "string", "pattern": own, "description": "A class of your own: package.module.Class"},
                ]
            }
            properties = {
                "class_path": _documented(names, "The class, by its short name or its whole path"),
                "init_args": {"type": ["object", "string"], "description": "Its arguments"},
                "dict_kwargs": {"type": ["object", "string"], "description": "Arguments that it passes on to others"},
            }
            cases = [
                {
                    "if": {"properties": {"class_path": {"enum": given}}, "required": ["class_path"]},
                    "then": self._described(path),
                }
                for path, given in named.items()
            ]
            spec = {"type": "object", "properties": properties, "allOf": cases}
            self.definitions[key] = {"anyOf": [{"type": "null"}, names, spec]}
        return {"$ref": f"#/$defs/{key.replace(' ', '%20')}"}

    def _described(self, path: str) -> Schema:
        """Refer to the mapping of one class: ``class_path``, ``init_args``, and its arguments next to them."""
        if path not in self.definitions:
            self.definitions[path] = {}
            properties = self._arguments(self._catalogue.classes[path]["arguments"])
            spec: Schema = {
                "class_path": True,
                "init_args": {"anyOf": [_table(properties), _REFERENCE]},
                "dict_kwargs": True,
            }
            self.definitions[path] = _table({**properties, **spec})
        return {"$ref": f"#/$defs/{path}"}

    def _named_entries(self, section: str) -> Schema:
        """Take entries by name; the class of a known name is judged unless the entry names another one."""
        place = self._class_place(self._catalogue.data["bases"][section])
        known = {}
        for name, path in self._default_classes.get(section, {}).items():
            if path in self._catalogue.classes:
                known[name] = {
                    "if": {"type": "object", "not": {"required": ["class_path"]}},
                    "then": self._described(path),
                    "else": place,
                    "description": f"{self._catalogue.classes[path]['help']} ({path})",
                }
        return _table(known, others=place)


_INNER = ("items", "additionalProperties")
