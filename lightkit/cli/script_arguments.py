"""The context of a script of the user's own, from its words and from the defaults of its parsers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from lightkit import config
from lightkit.cli.context import RunContext, load_context
from lightkit.errors import ConfigError
from lightkit.runs.signals import SignalWatch

__all__ = ["load_script_context"]

_CONFIG_OPTIONS = ("-c", "--config")
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
    with TemporaryDirectory(prefix="lightkit-") as folder:
        words = _write_config_texts(words, Path(folder))
        if parsers is None:
            return load_context(
                "", [*files, *words], SignalWatch(), class_sections=sections, default_entries=(), has_own_parser=True
            )
        command = next((word for word in words if word in parsers), None)
        if command is not None:
            words.remove(command)
        elif (command := _find_command(words, parsers)) is None:
            raise ConfigError(f"No command among {' '.join(words)!r}. Commands: {', '.join(parsers)}.")
        return load_context(
            command,
            [*files, *_default_files(parser_kwargs.get(command, {})), *words],
            SignalWatch(),
            class_sections=sections,
            subcommands=[*LightningCLI.subcommands(), *parsers],
            default_entries=_list_default_entries(parsers[command], os.environ),
            has_own_parser=True,
        )


def _write_config_texts(words: Sequence[str], folder: Path) -> list[str]:
    """Write each YAML mapping that stands in the place of a config file to a file, as jsonargparse reads both."""
    read = list(words)
    for at, word in enumerate(words):
        option = next((each for each in _CONFIG_OPTIONS if word.startswith(f"{each}=")), None)
        if option is None and not (at and words[at - 1] in _CONFIG_OPTIONS):
            continue
        text = word if option is None else word.removeprefix(f"{option}=")
        if text.lstrip().startswith("{") or "\n" in text:
            file = folder / f"config-{at}.yaml"
            file.write_text(text, encoding="utf-8")
            read[at] = str(file) if option is None else f"{option}={file}"
    return read


def _find_command(words: Sequence[str], commands: Collection[str]) -> str | None:
    """Find the command whose block a config file has; of several, the first one, as jsonargparse does."""
    for file in config.split_arguments(words, problems=config.Problems()).files:
        try:
            values = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):  # the loader reports it
            continue
        found = [key for key in values if key in commands] if isinstance(values, dict) else []
        if len(found) > 1:
            warnings.warn(
                f'Multiple subcommand settings provided ({", ".join(found)}) without an explicit "subcommand" key. '
                f'Subcommand "{found[0]}" will be used.',
                stacklevel=2,
            )
        if found:
            return str(found[0])
    return None


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
