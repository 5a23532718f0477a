"""Split the words of a command into its positionals, its own options, and the words for the config. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lightkit.config import SECTIONS, near
from lightkit.errors import ConfigError

__all__ = ["RUN_OPTIONS", "CommandLine", "Takes", "get_run_argument", "parse_command_line"]

Takes = Literal["value", "values", "switch"]
"""Whether an option takes a value; with `values` it may be given again, and its values are joined with commas."""
RUN_OPTIONS: Mapping[str, Takes] = {
    "-c": "value",
    "--config": "value",
    "--ckpt_path": "value",
    "--trust": "switch",
    "--quiet": "switch",
}
"""Options that override a run's config, as in `lightkit test --run`."""
_TOP_LEVEL_KEYS = (*SECTIONS, "seed_everything", "accelerator", "launch")


@dataclass(frozen=True)
class CommandLine:
    """The parts of a command line.

    Args:
        positionals: Words without an option.
        options: The command's own options and their values; an empty text for a switch.
        config_words: Words for the config.
    """

    positionals: Sequence[str]
    options: Mapping[str, str]
    config_words: Sequence[str]

    def get_positional(self, command: str, what: str, usage: str) -> str:
        """Return the only positional.

        Raises:
            ConfigError: If there is none, or more than one.
        """
        if len(self.positionals) != 1:
            found = f"got {', '.join(map(repr, self.positionals))}" if self.positionals else "got none"
            raise ConfigError(f"{command}: expected {what}, {found}\n{usage}")
        return self.positionals[0]


def get_run_argument(command: str, line: CommandLine, usage: str) -> str:
    """Return the run given as a positional or with ``--run``.

    Raises:
        ConfigError: If there is none, or more than one.
    """
    given = [*line.positionals, *([line.options["--run"]] if "--run" in line.options else [])]
    if len(given) != 1:
        found = f"got {' and '.join(map(repr, given))}" if given else "say latest, or the folder of one"
        raise ConfigError(f"{command}: expected one run, {found}\n{usage}")
    return given[0]


def parse_command_line(
    command: str,
    words: Sequence[str],
    *,
    usage: str,
    own: Mapping[str, Takes],
    config: Mapping[str, Takes] | None = None,
) -> CommandLine:
    """Split the words after a command.

    Args:
        command: Its name, for errors.
        words: The words.
        usage: Its usage, for errors.
        own: Its own options.
        config: Options that belong to the config, for a command that takes the config's keys too; None if it does not.

    Raises:
        ConfigError: If an option is unknown, given twice, or lacks its value.
    """
    positionals: list[str] = []
    options: dict[str, str] = {}
    config_words: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            (config_words if equals and config is not None else positionals).append(word)
        elif option in own:
            if option in options and own[option] != "values":
                raise ConfigError(f"{command}: {option} is said twice\n{usage}")
            if own[option] == "switch" and equals:
                raise ConfigError(f"{command}: {option} takes no value\n{usage}")
            if own[option] != "switch" and not equals:
                if not left or left[0].startswith("--"):
                    raise ConfigError(f"{command}: {option}: expected a word after it\n{usage}")
                value = left.pop(0)
            options[option] = f"{options[option]},{value}" if option in options else value
        elif config is not None and (
            option in config or option.lstrip("-").partition(".")[0].rstrip("+") in _TOP_LEVEL_KEYS
        ):
            config_words.append(word)
            if not equals and config.get(option) != "switch" and left:
                config_words.append(left.pop(0))
        else:
            hint = near(option, [*own, *(config or {})])
            raise ConfigError(f"{command}: unexpected argument {word!r}{hint}\n{usage}")
    return CommandLine(positionals, options, config_words)
