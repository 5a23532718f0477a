"""Write what a config can name, from the signatures that LightningCLI's parsers see.

It is lightkit/config/schema.json.

    python scripts/catalogue.py           write it
    python scripts/catalogue.py --check   exit with 1 where it is no longer what would be written

Needed after an argument has changed, and with new versions of torch, Lightning or jsonargparse.

jsonargparse 4.53 writes a JSON Schema of a parser itself
(`jsonargparse._completions_jsonschema.config_jsonschema`), but fails on Lightning's trainer, where
it asks the metaclass ``type`` for its subclasses; and it knows no class that is not imported yet.
Hence this one.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from jsonargparse._typehints import get_all_subclass_paths, resolve_class_path_by_name
from jsonargparse._util import import_object
from pytorch_lightning import Trainer
from pytorch_lightning.cli import LightningArgumentParser, ReduceLROnPlateau
from pytorch_lightning.strategies import StrategyRegistry
from torch.optim import Optimizer

from lightkit.cli.class_descriptions import (
    BASES,
    SECTION_BASES,
    describe_arguments,
    describe_class,
    import_path,
    paths_to,
    with_bounds,
)
from lightkit.cli.command_table import STAGES
from lightkit.cli.lightning_cli import SECTION_SETTINGS, LightkitCLI
from lightkit.config.accelerator.block import AcceleratorBlock, AcceleratorSettings
from lightkit.config.bounds import find_hints
from lightkit.config.schema import NO_DEFAULT, PACKAGES, Argument, ClassDescription, Schema, any_of
from lightkit.sweep.settings import SweepSettings

FILE = Path(__file__).parents[1] / "lightkit" / "config" / "schema.json"

_READ_BY_LIGHTKIT = {"sweep": SweepSettings}
"""Sections that no parser of LightningCLI sees."""

_PROFILERS = ("simple", "advanced", "pytorch", "xla")
"""Words of `pytorch_lightning.trainer.setup._init_profiler`, which keeps them to itself."""

_TRAINER_BOUNDS = {
    "max_epochs": {"minimum": -1},
    "max_steps": {"minimum": -1},
    "num_nodes": {"minimum": 1},
    "limit_train_batches": {"minimum": 0},
    "limit_val_batches": {"minimum": 0},
    "limit_test_batches": {"minimum": 0},
    "limit_predict_batches": {"minimum": 0},
    "overfit_batches": {"minimum": 0},
    "val_check_interval": {"minimum": 0},
    "reload_dataloaders_every_n_epochs": {"minimum": 0},
}
"""Numbers below which `Trainer` raises an error as it is built; its signature has no bounds."""

_MODULES = (
    "pytorch_lightning.callbacks",
    "pytorch_lightning.loggers",
    "pytorch_lightning.profilers",
    "pytorch_lightning.strategies",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "lightkit.models",
    "lightkit.data",
    "lightkit.loggers",
    "lightkit.callbacks",
    "lightkit.distributed",
)
"""Modules whose public classes are described, whether or not anything has imported them."""


class _Built(Exception):
    """The parsers are built."""


class _Parsers(LightkitCLI):
    """Builds the parsers of all subcommands, and stops."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        _Parsers.found = dict(self._subcommand_parsers)
        raise _Built

    found: dict[str, LightningArgumentParser]


def build_catalogue() -> dict[str, Any]:
    """Describe all sections, top-level keys and classes, as `lightkit.config.schema` reads it."""
    built = build_parsers()
    classes = {import_path(cls): cls for cls in _classes() if _is_readable(cls)}
    sections = {
        section: replace(
            describe_class(cls),
            arguments=describe_arguments(built["fit"], f"{section}.", find_hints(cls)),
        )
        for section, cls in {"trainer": Trainer, **SECTION_SETTINGS}.items()
    }
    sections["trainer"] = _bound(sections["trainer"], _TRAINER_BOUNDS)
    sections["accelerator"] = _describe_block(sections["trainer"])
    sections |= {section: describe_class(cls) for section, cls in _READ_BY_LIGHTKIT.items()}

    # Its signature says text.
    profiler = sections["trainer"].arguments["profiler"].schema
    others = [branch for branch in profiler["anyOf"] if branch != {"type": "string"}]
    named = {"anyOf": [{"enum": [*_PROFILERS]}, *others]}
    sections["trainer"] = _with_schema(sections["trainer"], "profiler", named)
    return {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "versions": {
            name: _public(metadata.version(name))
            for name in sorted({*PACKAGES.values(), "jsonargparse"})
        },
        "sections": {name: _write_section(each) for name, each in sections.items()},
        "top": {name: each.to_json() for name, each in _top_level(built, {*sections}).items()},
        "strategies": StrategyRegistry.available_strategies(),
        "bases": {
            section: [import_path(base) for base in bases]
            for section, bases in SECTION_BASES.items()
        },
        "classes": {path: _describe(cls).to_json() for path, cls in sorted(classes.items())},
        "names": short_names(classes, _asked_for(sections, classes)),
        "aliases": aliases(classes),
        "exports": {
            path: sorted(name for name in dir(import_module(path)) if name[0] != "_")
            for path in _MODULES
        },
    }


def _bound(
    described: ClassDescription, bounds: Mapping[str, Mapping[str, float]]
) -> ClassDescription:
    """Return a description whose numbers have bounds, by the names of the arguments."""
    for name, limits in bounds.items():
        described = _with_schema(
            described, name, with_bounds(described.arguments[name].schema, limits)
        )
    return described


def _with_schema(described: ClassDescription, name: str, schema: Schema) -> ClassDescription:
    """Return a description in which an argument has another type."""
    argument = described.arguments[name]._replace(schema=schema)
    return replace(described, arguments={**described.arguments, name: argument})


def _describe_block(trainer: ClassDescription) -> ClassDescription:
    """Describe the block ``accelerator`` as a layer writes it.

    The trainer has the types of some keys. Null stands for "not set" where no setting of a model
    takes it.
    """
    block = describe_class(AcceleratorBlock)
    for key in ("strategy", "num_nodes", "precision"):
        schema = any_of([{"enum": ["auto"]}, trainer.arguments[key].schema])
        block = _with_schema(block, key, schema)
    settings = {field.name for field in fields(AcceleratorSettings)}
    arguments = {
        name: each._replace(default=NO_DEFAULT)
        if each.default is None and name not in settings
        else each
        for name, each in block.arguments.items()
    }
    return replace(block, arguments=arguments)


def _write_section(described: ClassDescription) -> dict[str, Any]:
    """Return the entry of a section of plain keys."""
    entry = described.to_json()
    return {key: entry[key] for key in ("help", "arguments")}


def _describe(cls: type) -> ClassDescription:
    """Describe a class with those of its bases that arguments ask for.

    Of an optimizer also the numbers below which its constructor raises an error.
    """
    bases = sorted(import_path(base) for base in BASES if issubclass(cls, base))
    described = replace(describe_class(cls), bases=bases)
    bounds: dict[str, dict[str, float]] = {}
    for name, argument in described.arguments.items():
        is_number = isinstance(argument.default, (int, float))
        if not is_number or isinstance(argument.default, bool) or not issubclass(cls, Optimizer):
            continue
        if cls is not Optimizer and not _takes(cls, name, -1.0):
            keyword = "minimum" if _takes(cls, name, 0.0) else "exclusiveMinimum"
            bounds[name] = {keyword: 0}
    return _bound(described, bounds)


def _takes(cls: type, name: str, value: float) -> bool:
    """Try a number as an argument of an optimizer."""
    parameter = torch.nn.Parameter(torch.zeros(2, 2))  # Muon takes matrices alone
    try:
        cls([parameter], **{name: value})
    except ValueError:
        return False
    return True


@cache
def build_parsers() -> dict[str, LightningArgumentParser]:
    """Give LightningCLI's parser for each subcommand, as lightkit builds it."""
    with suppress(_Built):
        _Parsers(args={})
    return {stage: _Parsers.found[stage] for stage in STAGES}


def _top_level(
    build_parsers: Mapping[str, LightningArgumentParser], sections: set[str]
) -> dict[str, Argument]:
    """Describe the keys that stand in no section, with their commands where not all take them."""
    top: dict[str, Argument] = {}
    taken = defaultdict(list)
    for stage, parser in build_parsers.items():
        for name, argument in describe_arguments(parser, "", {}).items():
            if "." not in name and name not in {*sections, *SECTION_BASES, "config"}:
                top.setdefault(name, argument)
                taken[name].append(stage)
    return {
        name: argument
        if len(taken[name]) == len(build_parsers)
        else argument._replace(commands=taken[name])
        for name, argument in sorted(top.items())
    }


def _classes() -> set[type]:
    """List the classes that a config may name by a path that people know, or in short."""
    found = {cls for room in _MODULES for cls in _public_classes(room)} | {ReduceLROnPlateau}
    by_short_name = {import_object(path) for base in BASES for path in get_all_subclass_paths(base)}
    return {
        cls
        for cls in found | by_short_name
        if cls.__module__.partition(".")[0] in PACKAGES and _is_wanted(cls)
    }


def _is_readable(cls: type) -> bool:
    try:
        describe_class(cls)
    except ValueError:  # SaveConfigCallback takes a parser and its result, which no config can give
        return False
    return True


def _is_wanted(cls: type) -> bool:
    return (
        issubclass(cls, BASES)
        and not cls.__name__.startswith("_")
        and not cls.__module__.startswith("lightkit.cli")
    )


def _public_classes(room: str) -> Iterator[type]:
    module = import_module(room)
    for name in getattr(module, "__all__", None) or vars(module):
        value = getattr(module, name)
        if isinstance(value, type) and not name.startswith("_"):
            yield value


def _asked_for(sections: dict[str, ClassDescription], classes: dict[str, type]) -> list[type]:
    """List all classes that any argument asks for."""
    described = [*sections.values(), *(describe_class(cls) for cls in classes.values())]
    texts = json.dumps([_write_section(each) for each in described])
    paths = {*re.findall(r'"class": "([^"]+)"', texts), *map(import_path, BASES)}
    # as good as any name is one
    return [import_object(path) for path in sorted(paths - {"torch.nn.Module"})]


def _public(version: str) -> str:
    return version.partition("+")[0]


def aliases(classes: dict[str, type]) -> dict[str, str]:
    """Give the other paths that lead to classes, each with the one that they are known by."""
    return {
        other: path
        for path, cls in sorted(classes.items())
        for other in sorted(paths_to(cls))
        if other != path
    }


def short_names(classes: dict[str, type], bases: list[type]) -> dict[str, dict[str, Any]]:
    """Give the names that mean one class alone below each that is asked for.

    Where several have one, all paths.

    Named are the base itself and classes of `PACKAGES`, not those of other packages that happen to
    be imported.
    """
    known = {cls: path for path, cls in classes.items()}
    names: dict[str, dict[str, Any]] = {}
    for base in bases:
        found = defaultdict(list)
        for path in get_all_subclass_paths(base, include_abstract=True):
            cls = import_object(path)
            if cls is base or cls.__module__.partition(".")[0] in PACKAGES:
                found[cls.__name__].append(known.get(cls, path))
        names[import_path(base)] = {
            name: _meant(base, name, paths, known) for name, paths in sorted(found.items())
        }
    return names


def _meant(base: type, name: str, paths: list[str], known: dict[type, str]) -> str | list[str]:
    try:
        path = resolve_class_path_by_name(base, name)
    except ValueError:  # several classes have the name
        return sorted(paths)
    return known.get(import_object(path), path)


def main() -> int:
    """Write the file, or compare it."""
    text = json.dumps(build_catalogue(), indent=1, ensure_ascii=False) + "\n"
    if sys.argv[1:] == ["--check"]:
        if text == FILE.read_text(encoding="utf-8"):
            return 0
        print(f"{FILE} is not what the signatures say now; run python scripts/catalogue.py")
        return 1
    FILE.write_text(text, encoding="utf-8")
    print(f"{FILE}: {FILE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
