"""What a script of the user's own expects of the class that stands for LightningCLI in it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import glob
from typing import Any

from pytorch_lightning.cli import LightningArgumentParser, SaveConfigCallback

from lightkit.errors import ConfigError, LightkitError

__all__ = [
    "Checked",
    "ConfigPrinted",
    "DataChanged",
    "default_files",
    "exit_on_error",
    "keeps_own_file",
    "left_to_script",
    "with_file_name",
]


class ConfigPrinted(Exception):
    """The resolved config was asked for and has been printed."""


class Checked(Exception):
    """The config was to be checked and has no mistake that shows before anything is built."""


class DataChanged(LightkitError):
    """The interrupted run that was about to go on had other data."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the process as LightningCLI does: without a traceback where the config is wrong, or has been printed."""
    try:
        yield
    except ConfigPrinted:
        raise SystemExit(0) from None
    except DataChanged as change:
        says = str(change).removeprefix("begins a new run: ")
        print(f"error: run.resume: {says}, and --run.resume=never begins a new run", file=sys.stderr)
        raise SystemExit(ConfigError.exit_code) from change
    except LightkitError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error


def default_files(*parser_kwargs: Mapping[str, Any]) -> list[str]:
    """List the files that lie below all others: `default_config_files`, as far as they exist."""
    patterns = [str(pattern) for kwargs in parser_kwargs for pattern in kwargs.get("default_config_files") or ()]
    return [file for pattern in patterns for file in sorted(glob(pattern))]  # noqa: PTH207 (as jsonargparse has them)


def left_to_script(parser: LightningArgumentParser, environ: Mapping[str, str]) -> set[str]:
    """Name the sections that a script's defaults or variables set, so that no entry of lightkit's own lies over them.

    Args:
        parser: Parser of the command: it holds the defaults, and knows the beginning of the variables' names.
        environ: Variables such as ``PL_FIT__TRAINER__LOGGER``, or ``PL_FIT__CONFIG``, which may set anything.
    """
    sections = ("callbacks", "logger")
    given = {section for section in sections if parser.get_default(f"trainer.{section}") not in (None, True)}
    if not parser.default_env:
        return given
    prefix = f"{parser.env_prefix}_".upper()
    if {prefix + "TRAINER", prefix + "CONFIG"} & set(environ):
        return set(sections)
    return given | {section for section in sections if f"{prefix}TRAINER__{section.upper()}" in environ}


def keeps_own_file(callback: type[SaveConfigCallback], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether LightningCLI's saved config is wanted beside the run folder's."""
    return callback is not SaveConfigCallback or bool(set(kwargs) - {"overwrite"})


def with_file_name(callback: type[SaveConfigCallback], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Give the callback another file than `config.yaml`, which the run folder has."""
    accepted = inspect.signature(callback).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    named = {"config_filename": "lightning_config.yaml"} if takes_any or "config_filename" in accepted else {}
    return {**named, **kwargs}
