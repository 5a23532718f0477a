"""The JSON Schema of a lightkit file, for editors: completion, hover, and a mark under a wrong key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lightkit.config.accelerator.vocabulary import (
    BLOCK_KEYS,
    GONE_DEVICES,
    KINDS,
    OLD_STRATEGIES,
    OLD_TRAINER_KEYS,
    PRECISIONS,
    XLA_STRATEGIES,
)
from lightkit.config.loader import SECTIONS
from lightkit.config.schema import ConfigSchema, list_branches

Schema = dict[str, Any]

_COUNT = {"type": ["integer", "string", "array", "null"], "items": {"type": ["integer", "string"]}}
_NUMBER = {"type": ["integer", "string", "null"]}
_SWITCH = {"type": ["boolean", "string", "null"]}
_STRATEGIES = ("auto", "ddp", "ddp_spawn", "fsdp", "deepspeed", "horovod", *XLA_STRATEGIES, *OLD_STRATEGIES)
_STRATEGY = {"anyOf": [{"enum": list(_STRATEGIES)}, {"type": ["string", "object", "null"]}]}
_PRECISION = {"anyOf": [{"enum": list(PRECISIONS)}, {"type": ["integer", "string", "null"]}]}
_PRECISION_OR_AUTO = {"anyOf": [{"enum": ["auto", *PRECISIONS]}, {"type": ["integer", "string", "null"]}]}
_REFERENCE = {"$ref": "#/$defs/reference"}
_NUMBER_TEXT = {"type": "string", "pattern": r"^[-+]?\.?[0-9][0-9_.eE+-]*$"}
_SWITCH_OR_AUTO = {"anyOf": [{"type": ["boolean", "null"]}, {"enum": ["auto", "true", "false"]}, _REFERENCE]}
_COUNT_OR_AUTO = {"anyOf": [{"type": ["integer", "null"]}, {"enum": ["auto"]}, _NUMBER_TEXT, _REFERENCE]}
_SIZE = {"anyOf": [{"type": ["integer", "null"]}, _NUMBER_TEXT, _REFERENCE]}
_RATE = {"anyOf": [{"type": ["number", "null"]}, _NUMBER_TEXT, _REFERENCE]}
_FORMAT = {"anyOf": [{"enum": ["auto", "contiguous", "channels_last", None]}, _REFERENCE]}
_KIND = {"anyOf": [{"enum": list(KINDS)}, {"type": ["string", "null"]}]}
_KEYS: dict[str, tuple[Schema, str]] = {
    "kind": (_KIND, "Kind of device; accelerator: cpu is short for it"),
    "gpus": (_COUNT, "Number of GPUs, their numbers as in [0, 3], or -1 for all; 0 is the CPU"),
    "tpu_cores": (_COUNT, "Number of TPU cores, [5] for that one, or all"),
    "ipus": ({**_COUNT, "deprecated": True}, f"Refused unless 0: {GONE_DEVICES.get('ipu')}"),
    "hpus": ({**_COUNT, "deprecated": True}, f"Refused unless 0: {GONE_DEVICES.get('hpu')}"),
    "num_processes": (_NUMBER, "Number of processes on CPUs, with ddp unless a strategy is given"),
    "strategy": (_STRATEGY, "How processes train together: ddp, fsdp, horovod, ..., or a class"),
    "num_nodes": (_NUMBER, "Number of machines"),
    "precision": (_PRECISION_OR_AUTO, "Numbers to compute in, such as bf16-mixed; auto: by the hardware"),
    "memory_format": (_FORMAT, "Of weights and images; auto: by the hardware"),
    "compile": (_SWITCH_OR_AUTO, "Whether the model's layers go through torch.compile; auto: false"),
    "tf32": (_SWITCH_OR_AUTO, "Whether CUDA rounds float32 to TensorFloat-32 in matrix products"),
    "fused": (_SWITCH_OR_AUTO, "Whether the optimizer updates all parameters in one kernel"),
    "threads": (_COUNT_OR_AUTO, "Threads of each process; auto: the cores, shared by the processes"),
    "num_workers": (_COUNT_OR_AUTO, "Processes that load the data; auto: by cores and device"),
    "batch_size": (_SIZE, "Samples of a batch"),
    "learning_rate": (_RATE, "Of the optimizer or the model"),
    "scale_lr": (_SWITCH, "Multiply the learning rate by the number of ranks"),
    "warmup_epochs": (
        {"type": ["integer", "number", "string", "null"]},
        "Epochs in which the scaled learning rate is reached",
    ),
}


def accelerator_schema() -> Schema:
    """Give the schema of the block ``accelerator``, which may be one word."""
    properties = {key: _described(key) for key in BLOCK_KEYS}
    block = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
    words = {"enum": list(KINDS)}
    reference = {"$ref": "#/$defs/reference"}
    return {"anyOf": [words, block, reference], "description": "The hardware: cpu, gpu, or a mapping such as {gpus: 2}"}


def trainer_hardware(arguments: Mapping[str, Any]) -> dict[str, Schema]:
    """Give the schemas of the trainer's keys for hardware, with those of Lightning 1.x."""
    old = {key: {**_described(key), "deprecated": True} for key in OLD_TRAINER_KEYS}
    types: dict[str, Schema] = {
        "accelerator": {"anyOf": [{"enum": list(KINDS)}, {"type": ["string", "object", "null"]}]},
        "devices": _COUNT,
        "num_nodes": _NUMBER,
        "strategy": _STRATEGY,
        "precision": _PRECISION,
    }
    return {**old, **{key: {**schema, "description": arguments[key]["says"]} for key, schema in types.items()}}


def _described(key: str) -> Schema:
    schema, says = _KEYS[key]
    return {**schema, "description": says}


_DIGITS: dict[str, Schema] = {
    "integer": {"type": "string", "pattern": r"^[-+]?[0-9][0-9_]*$"},
    "number": {"type": "string", "pattern": r"^[-+]?(\.inf|[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)([eE][-+]?[0-9]+)?$"},
}
"""Text that is read as a number where one belongs."""
_SPEC = ("class_path", "init_args", "dict_kwargs")
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
        name: _documented({"anyOf": [{"$ref": "#/$defs/layer"}, _file()]}, f"What only {name} sets")
        for name in subcommands
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "lightkit config",
        "type": ["object", "null"],
        "properties": {"extends": _extends(), **layer, **blocks},
        "patternProperties": _dotted([*layer, *blocks]),
        "additionalProperties": False,
        "$defs": {
            "reference": {"type": "string", "pattern": r"\$\{.*\}", "description": "Another key, or ${oc.env:NAME}"},
            "layer": {
                "type": ["object", "null"],
                "properties": layer,
                "patternProperties": _dotted(layer),
                "additionalProperties": False,
            },
            **writer.definitions,
        },
    }


class _Writer:
    """Writes schemas, and collects the definitions that they refer to."""

    def __init__(self, catalogue: ConfigSchema, default_classes: Mapping[str, Mapping[str, str]]) -> None:
        self._catalogue = catalogue
        self._default_classes = default_classes
        self.definitions: dict[str, Schema] = {}

    def layer(self) -> dict[str, Schema]:
        data = self._catalogue.data
        sections = {name: self._section(name, section) for name, section in data["sections"].items()}
        classes = {
            name: _documented(_or_file(self._class_place(data["bases"][name])), says)
            for name, says in _CLASS_SECTIONS.items()
        }
        entries = {name: _documented(_or_file(self._named_entries(name)), says) for name, says in _ENTRIES.items()}
        top = {name: self._argument(argument) for name, argument in data["top"].items()}
        return {**classes, **entries, **sections, "accelerator": accelerator_schema(), **top}

    def _section(self, name: str, section: Mapping[str, Any]) -> Schema:
        properties = self._arguments(section["arguments"])
        if name == "trainer":
            properties |= trainer_hardware(section["arguments"])
        table = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
        return _documented(_or_file(table) if name in SECTIONS else {"anyOf": [table, _REFERENCE]}, section["says"])

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
        return {**_documented(self._type(argument["schema"]), argument["says"]), **default}

    def _type(self, schema: Schema) -> Schema:
        """Write a type of the catalogue: null stands for nothing said, and a reference for anything."""
        if not schema:
            return {}
        plain: list[str] = ["null"]
        others: list[Schema] = []
        for branch in list_branches(schema):
            if set(branch) == {"type"} and branch["type"] not in ("array", "object"):
                plain += [branch["type"]] if branch["type"] not in plain else []
            else:
                others.append(self._complex(branch))
        if "string" not in plain:
            others += [_DIGITS[kind] for kind in ("number", "integer") if kind in plain][:1]
        each = [{"type": plain}, *others]
        return {"anyOf": [*each, _REFERENCE]} if "string" not in plain else each[0] if not others else {"anyOf": each}

    def _complex(self, branch: Schema) -> Schema:
        if "class" in branch:
            return (
                {"type": ["string", "object"]}
                if branch.get("callable")
                else self._class_place([branch["class"]], folds=False)
            )
        if "enum" in branch:
            return {"enum": branch["enum"]}
        inner: Schema = {key: self._type(branch[key]) for key in ("items", "additionalProperties") if key in branch}
        if "prefixItems" in branch:
            inner["prefixItems"] = [self._type(item) for item in branch["prefixItems"]]
        return {**branch, **inner}

    # -- classes -----------------------------------------------------------------------------------------------

    def _class_place(self, bases: Collection[str], *, folds: bool = True) -> Schema:
        """Refer to what may stand where a class does.

        Args:
            bases: Classes that it may derive from.
            folds: Whether its arguments may stand beside ``class_path``.
        """
        if not self._names(bases):
            return {"type": ["string", "object", "null"]}
        key = f"any {' or '.join(bases)}" + ("" if folds else " in a list")
        if key not in self.definitions:
            self.definitions[key] = {}  # an argument of such a class may ask for such a class
            self.definitions[key] = self._new_class_place(bases, folds=folds)
        return {"$ref": f"#/$defs/{key.replace(' ', '%20')}"}

    def _new_class_place(self, bases: Collection[str], *, folds: bool) -> Schema:
        named = self._names(bases)
        own = r"\.|\$\{"  # a short name of one's own class is good only where something else has loaded it
        names = {
            "anyOf": [
                {"enum": [name for names in named.values() for name in names]},
                {"type": "string", "pattern": own, "description": "A class of your own: package.module.Class"},
            ]
        }
        return {
            "anyOf": [{"type": "null"}, names, self._spec(named, names, folds=folds)],
        }

    def _spec(self, named: Mapping[str, list[str]], names: Schema, *, folds: bool) -> Schema:
        return {
            "type": "object",
            "properties": {
                "class_path": _documented(names, "The class, by its short name or its whole path"),
                "init_args": _documented({"type": ["object", "string"]}, "Its arguments"),
                "dict_kwargs": _documented({"type": ["object", "string"]}, "Arguments that it passes on to others"),
            },
            "allOf": [
                {
                    "if": {"properties": {"class_path": {"enum": given}}, "required": ["class_path"]},
                    "then": self._described(path, folds=folds),
                }
                for path, given in named.items()
            ],
        }

    def _described(self, path: str, *, folds: bool) -> Schema:
        """Refer to the mapping of one class: ``class_path``, ``init_args``, and its arguments beside them."""
        key = path if folds else f"{path} in a list"
        if key not in self.definitions:
            self.definitions[key] = {}
            properties = self._arguments(self._catalogue.classes[path]["arguments"])
            inside = {"type": "object", "properties": properties, "additionalProperties": False}
            spec = {"class_path": True, "init_args": {"anyOf": [inside, _REFERENCE]}, "dict_kwargs": True}
            self.definitions[key] = {
                "properties": {**(properties if folds else {}), **spec},
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{key.replace(' ', '%20')}"}

    def _names(self, bases: Iterable[str]) -> dict[str, list[str]]:
        """List the classes that derive from any of several bases, each with all its names, the shortest first."""
        short: dict[str, list[str]] = {}
        for base in bases:
            for name, path in self._catalogue.data["names"].get(base, {}).items():
                if isinstance(path, str):
                    short.setdefault(path, []).append(name)
        wanted = {
            path: [*dict.fromkeys(short.get(path, [])), path]
            for path, described in self._catalogue.classes.items()
            if set(described["bases"]) & {*bases} and not described.get("abstract")
        }
        for other, path in self._catalogue.data["aliases"].items():
            if path in wanted:
                wanted[path].append(other)
        return wanted

    def _named_entries(self, section: str) -> Schema:
        place = self._class_place(self._catalogue.data["bases"][section])
        known = {
            name: self._entry(path, place)
            for name, path in self._default_classes.get(section, {}).items()
            if path in self._catalogue.classes
        }
        return {"type": ["object", "null"], "properties": known, "additionalProperties": place}

    def _entry(self, path: str, place: Schema) -> Schema:
        """Write an entry whose name says its class, unless it says another one."""
        schema = {
            "if": {"type": "object", "not": {"required": ["class_path"]}},
            "then": self._described(path, folds=True),
            "else": place,
        }
        return _documented(schema, f"{self._catalogue.classes[path]['says']} ({path})")


def _dotted(keys: Iterable[str]) -> dict[str, Schema]:
    """Take ``trainer.max_epochs: 3`` in a file, of which only the first key is judged."""
    return {rf"^({'|'.join(keys)})\.[^.]+(\.[^.]+)*$": {"description": "A key below that, as on the command line"}}


def _documented(schema: Schema, says: str) -> Schema:
    return {**schema, "description": says} if says else schema


def _or_file(schema: Schema) -> Schema:
    return {"anyOf": [schema, _file(), _REFERENCE]}


def _file() -> Schema:
    return {"type": "string", "pattern": r"\.(yaml|yml|json)$", "description": "A file that holds the section"}


def _extends() -> Schema:
    says = "Files below this one, relative to it, such as [base, logger/mlflow]"
    return {"type": ["string", "array", "null"], "items": {"type": "string"}, "description": says}
