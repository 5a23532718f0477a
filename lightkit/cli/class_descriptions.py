"""The catalogue of all that a config can name, taken from the signatures that LightningCLI's parsers see.

jsonargparse 4.53 writes a JSON Schema of a parser itself (`jsonargparse._completions_jsonschema.config_jsonschema`),
but fails on Lightning's trainer, where it asks the metaclass ``type`` for its subclasses; and it knows no class that
is not imported yet. Hence this one. ``scripts/catalogue.py`` writes it for `lightkit.config.schema`.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from typing import Any

from jsonargparse._required import iter_required_keys
from jsonargparse._typehints import get_all_subclass_paths
from jsonargparse._util import import_object
from lightning_fabric.plugins import CheckpointIO, ClusterEnvironment
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from pytorch_lightning.accelerators import Accelerator
from pytorch_lightning.cli import LightningArgumentParser, ReduceLROnPlateau
from pytorch_lightning.loggers import Logger
from pytorch_lightning.plugins import LayerSync, Precision
from pytorch_lightning.profilers import Profiler
from pytorch_lightning.strategies import Strategy, StrategyRegistry
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightkit.cli.config_loader import STAGES
from lightkit.cli.lightning_cli import LightkitCLI
from lightkit.cli.resume import RunSettings
from lightkit.cli.schemas import import_path, paths_to, plain_help, plain_value, schema_of
from lightkit.cli.short_names import aliases, short_names
from lightkit.config.accelerator.settings import AcceleratorSettings
from lightkit.config.schema import PACKAGES, describe_type
from lightkit.launch import LaunchSettings
from lightkit.launch.settings import ENGINES
from lightkit.launch.watchdog_settings import WatchdogSettings
from lightkit.registry.gate_settings import GateSettings

__all__ = ["build_catalogue", "build_parsers", "describe_class", "describe_classes"]

_SECTION_BASES: dict[str, tuple[type, ...]] = {
    "model": (LightningModule,),
    "data": (LightningDataModule,),
    "optimizer": (Optimizer,),
    "lr_scheduler": (LRScheduler, ReduceLROnPlateau),
    "callbacks": (Callback,),
    "logger": (Logger,),
}
_BASES = (
    *(base for bases in _SECTION_BASES.values() for base in bases),
    Accelerator,
    CheckpointIO,
    ClusterEnvironment,
    LayerSync,
    Precision,
    Profiler,
    Strategy,
)
"""Classes that arguments ask for."""
_SECTIONS = {
    "trainer": Trainer,
    "run": RunSettings,
    "launch": LaunchSettings,
    "watchdog": WatchdogSettings,
    "gate": GateSettings,
    "accelerator": AcceleratorSettings,
}
_FILLED_IN = {Optimizer: "params", LRScheduler: "optimizer", ReduceLROnPlateau: "optimizer"}
"""Arguments that LightningCLI gives itself."""
_PROFILERS = ("simple", "advanced", "pytorch", "xla")
"""Words of `pytorch_lightning.trainer.setup._init_profiler`, which keeps them to itself."""
_ROOMS = (
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
_APART = ("pytorch_lightning.demos.boring_classes",)
"""Modules whose classes are described too, and which only a config that names them loads: no short name means them."""


_SIGNATURE = re.compile(r"\w+\(.*\)")
"""What Python writes as the docstring of a dataclass that has none."""


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
        section: {"says": describe_class(cls)["says"], "arguments": _arguments(built["fit"], f"{section}.")}
        for section, cls in _SECTIONS.items()
    }
    engine = {"enum": [*ENGINES, None]}  # the signature says text; `launch` judges it itself
    sections["launch"]["arguments"]["engine"] |= {"schema": engine, "shown": describe_type(engine)}
    names = short_names(classes, _asked_for(sections, classes))  # before the next line loads more classes
    found = {cls for module in _APART for cls in _public_classes(module) if cls.__module__ == module}
    apart: dict[str, type] = {path: cls for cls in found if issubclass(cls, _BASES) for path in paths_to(cls)}
    return {
        "apart": {path: describe_class(cls) for path, cls in sorted(apart.items())},
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "versions": {name: _public(metadata.version(name)) for name in sorted({*PACKAGES.values(), "jsonargparse"})},
        "sections": sections,
        "top": _top_level(built),
        "words": {"strategy": StrategyRegistry.available_strategies(), "profiler": list(_PROFILERS)},
        "bases": {section: [import_path(base) for base in bases] for section, bases in _SECTION_BASES.items()},
        "classes": {path: describe_class(cls) for path, cls in sorted(classes.items())},
        "names": names,
        "aliases": aliases(classes),
        "rooms": {room: sorted(name for name in dir(import_module(room)) if name[0] != "_") for room in _ROOMS},
    }


@cache
def describe_class(cls: type) -> dict[str, Any]:
    """Describe a class: what it is, its bases among those that arguments ask for, and its arguments.

    Raises:
        Exception: Whatever jsonargparse raises on a signature that it cannot read.
    """
    parser = LightningArgumentParser(exit_on_error=False)
    skip = {name for base, name in _FILLED_IN.items() if issubclass(cls, base)}
    parser.add_class_arguments(cls, fail_untyped=False, skip=skip, sub_configs=True)
    return {
        "says": plain_help((inspect.getdoc(cls) or "").partition("\n\n")[0]),
        "bases": sorted(import_path(base) for base in _BASES if issubclass(cls, base)),
        "arguments": _arguments(parser, ""),
        **({"abstract": True} if inspect.isabstract(cls) else {}),
        **({"open": True} if _takes_anything(cls) else {}),
    }


def describe_classes(names: Iterable[str]) -> dict[str, Any]:
    """Import classes by their paths and describe them; what cannot be imported or read is left to jsonargparse.

    Args:
        names: Dotted paths; short names are passed over, since nothing says which module to import.
    """
    found = {}
    for name in names:
        with suppress(Exception, SystemExit):  # a module of the user's own may raise anything; jsonargparse tells it
            cls = import_object(name)
            if isinstance(cls, type):
                found[name] = describe_class(cls)
    return found


@cache
def build_parsers() -> dict[str, LightningArgumentParser]:
    """Give LightningCLI's parser for each subcommand, as lightkit builds it."""
    with suppress(_Built):
        _Parsers(args={})
    return {stage: _Parsers.found[stage] for stage in STAGES}


def _top_level(build_parsers: dict[str, LightningArgumentParser]) -> dict[str, Any]:
    """Describe the keys that stand in no section, each with the subcommands that take it where not all do."""
    top: dict[str, Any] = {}
    taken = defaultdict(list)
    for stage, parser in build_parsers.items():
        for name, argument in _arguments(parser, "").items():
            if "." not in name and name not in (*_SECTIONS, *_SECTION_BASES, "config"):
                top.setdefault(name, argument)
                taken[name].append(stage)
    return {
        name: {**argument, **({} if len(taken[name]) == len(build_parsers) else {"commands": taken[name]})}
        for name, argument in sorted(top.items())
    }


def _arguments(parser: LightningArgumentParser, prefix: str) -> dict[str, Any]:
    required = set(iter_required_keys(parser))
    found: dict[str, Any] = {}
    for action in parser._actions:
        name, is_typed = action.dest.removeprefix(prefix), getattr(action, "_typehint", None) or action.type
        if not action.dest.startswith(prefix) or name == prefix.rstrip(".") or not is_typed or name.endswith(".help"):
            continue
        whole, _, inside = name.partition(".")
        is_required = action.dest in required
        if inside:
            folded = found.setdefault(whole, _folded(parser, f"{prefix}{whole}"))
            folded["required"] = folded["required"] or is_required
        else:
            found[name] = _argument(action, required=is_required)
    return found


def _folded(parser: LightningArgumentParser, dest: str) -> dict[str, Any]:
    """Describe an argument that is a dataclass, of which jsonargparse makes one option for each field.

    It may be a mapping of the fields, a class with its arguments or a file, so that only jsonargparse judges it.
    """
    group = (parser.groups or {}).get(dest)
    says = plain_help((group.title if group is not None else None) or "")
    says = "" if _SIGNATURE.fullmatch(says) else says
    return {"schema": {}, "required": False, "says": says, "shown": "a mapping"}


def _argument(action: Any, *, required: bool) -> dict[str, Any]:
    typehint = getattr(action, "_typehint", None) or action.type
    schema = schema_of(typehint)
    return {
        "schema": schema,
        "required": required,
        **({} if required else {"default": plain_value(action.default)}),
        "says": plain_help(action.help if isinstance(action.help, str) else ""),
        "shown": describe_type(schema),
    }


def _classes() -> set[type]:
    """List the classes that a config may name by a path that people know, or in short."""
    found = {cls for room in _ROOMS for cls in _public_classes(room)} | {ReduceLROnPlateau}
    by_short_name = {import_object(path) for base in _BASES for path in get_all_subclass_paths(base)}
    return {cls for cls in found | by_short_name if cls.__module__.partition(".")[0] in PACKAGES and _is_wanted(cls)}


def _is_readable(cls: type) -> bool:
    try:
        describe_class(cls)
    except ValueError:  # SaveConfigCallback takes a parser and its result, which no config can give
        return False
    return True


def _is_wanted(cls: type) -> bool:
    return (
        issubclass(cls, _BASES) and not cls.__name__.startswith("_") and not cls.__module__.startswith("lightkit.cli")
    )


def _public_classes(room: str) -> Iterator[type]:
    module = import_module(room)
    for name in getattr(module, "__all__", None) or vars(module):
        value = getattr(module, name)
        if isinstance(value, type) and not name.startswith("_"):
            yield value


def _asked_for(sections: dict[str, Any], classes: dict[str, type]) -> list[type]:
    """List all classes that any argument asks for."""
    texts = json.dumps([sections, *(describe_class(cls) for cls in classes.values())])
    paths = {*re.findall(r'"class": "([^"]+)"', texts), *map(import_path, _BASES)}
    return [import_object(path) for path in sorted(paths - {"torch.nn.Module"})]  # as good as any name is one


def _takes_anything(cls: type) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(cls).parameters.values())


def _public(version: str) -> str:
    return version.partition("+")[0]
