"""The context of a script of the user's own, from its words and from the defaults of its parsers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from glob import glob
from typing import Any

from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from lightkit import config
from lightkit.cli.context import RunContext, load_context
from lightkit.errors import ConfigError
from lightkit.runs.signals import SignalWatch

__all__ = ["load_script_context"]

_DEFAULT_ENTRIES = ("callbacks", "logger")


def load_script_context(
    words: list[str],
    parsers: Mapping[str, LightningArgumentParser] | None,
    *,
    parser_kwargs: Mapping[str, Any],
    fixed: Sequence[str],
) -> RunContext:
    """Load the context where `LightkitCLI` takes the place of LightningCLI.

    Args:
        words: The command line after the script's name; the command is taken out of it.
        parsers: The parser of each command; None where the script runs none.
        parser_kwargs: The script's arguments of its parsers, with their default config files.
        fixed: Sections whose class the script has chosen.

    Raises:
        ConfigError: If anything in them is wrong.
    """
    sections = [section for section in config.CLASS_SECTIONS if section not in fixed]
    files = _default_files(parser_kwargs)
    if parsers is None:
        return load_context(
            "", [*files, *words], SignalWatch(), class_sections=sections, default_entries=(), has_own_parser=True
        )
    command = next((word for word in words if word in parsers), None)
    if command is None:
        raise ConfigError(f"No command among {' '.join(words)!r}. Commands: {', '.join(parsers)}.")
    words.remove(command)
    return load_context(
        command,
        [*files, *_default_files(parser_kwargs.get(command, {})), *words],
        SignalWatch(),
        class_sections=sections,
        subcommands=[*LightningCLI.subcommands(), *parsers],
        default_entries=_list_default_entries(parsers[command], os.environ),
        has_own_parser=True,
    )


def _default_files(parser_kwargs: Mapping[str, Any]) -> list[str]:
    """List the options for `default_config_files`, which are the lowest layers, as far as they exist."""
    patterns = map(str, parser_kwargs.get("default_config_files") or ())
    return [f"--config={file}" for pattern in patterns for file in sorted(glob(pattern))]  # noqa: PTH207 (as in jsonargparse)


def _list_default_entries(parser: LightningArgumentParser, environ: Mapping[str, str]) -> list[str]:
    """List the sections that get lightkit's default entry: neither the script's defaults nor its variables set them.

    Args:
        parser: Parser of the command: it holds the defaults, and the prefix of the variables' names.
        environ: Variables such as ``PL_FIT__TRAINER__LOGGER``, or ``PL_FIT__CONFIG``, which may set anything.
    """
    known = {str(action.dest) for action in parser._actions}
    unset = [
        section
        for section in _DEFAULT_ENTRIES
        if f"trainer.{section}" in known and parser.get_default(f"trainer.{section}") in (None, True)
    ]
    if not parser.default_env:
        return unset
    prefix = f"{parser.env_prefix}_".upper()
    if {prefix + "TRAINER", prefix + "CONFIG"} & set(environ):
        return []
    return [section for section in unset if f"{prefix}TRAINER__{section.upper()}" not in environ]
