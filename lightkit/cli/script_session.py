"""The invocation of a script of the user's own, read from its words and from what its parsers know."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI

from lightkit import config
from lightkit.cli.context import RunContext, load_context
from lightkit.cli.scripted import default_files, left_to_script
from lightkit.errors import ConfigError
from lightkit.runs.signals import SignalWatch

__all__ = ["EXPORT", "asks_for_export", "open_script_context"]

EXPORT = "export"


def asks_for_export(args: ArgsType, stages: Sequence[str]) -> bool:
    """Tell whether a script's words ask for lightkit's own `export`: one of that name of its own class wins.

    Args:
        args: What the script gives the class: words, a dict or a namespace; the process's own words if None.
        stages: The commands of its class.
    """
    if EXPORT in stages or isinstance(args, (dict, Namespace)):
        return False
    words = sys.argv[1:] if args is None else list(args)
    return next((word for word in words if word in (*stages, EXPORT)), None) == EXPORT


def open_script_context(
    words: list[str],
    parsers: Mapping[str, LightningArgumentParser] | None,
    *,
    parser_kwargs: Mapping[str, Any],
    fixed: Sequence[str],
) -> RunContext:
    """Read the words where `LightkitCLI` stands for LightningCLI.

    Args:
        words: The command line after the script's name; the command is taken out of it.
        parsers: The parser of each command; None where the script runs none.
        parser_kwargs: What the script gives its parsers, with their default config files.
        fixed: Sections whose class the script has chosen.

    Raises:
        ConfigError: If anything in them is wrong.
    """
    sections = [section for section in config.CLASS_SECTIONS if section not in fixed]
    below = [f"--config={file}" for file in default_files(parser_kwargs)]
    if parsers is None:
        return load_context(
            "", [*below, *words], SignalWatch(), class_sections=sections, default_entries=(), has_own_parser=True
        )
    command = next((word for word in words if word in parsers), None)
    if command is None:
        raise ConfigError(f"No command among {' '.join(words)!r}. Commands: {', '.join(parsers)}.")
    words.remove(command)
    below += [f"--config={file}" for file in default_files(parser_kwargs.get(command, {}))]
    given = left_to_script(parsers[command], os.environ)
    return load_context(
        command,
        [*below, *words],
        SignalWatch(),
        class_sections=sections,
        subcommands=[*LightningCLI.subcommands(), *parsers],
        default_entries=[section for section in ("callbacks", "logger") if section not in given],
        has_own_parser=True,
    )
