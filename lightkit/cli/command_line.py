"""Split the arguments of a command into positionals, its own options, and those of the config. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lightkit.config import SECTIONS, Arguments, near
from lightkit.errors import ConfigError

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
        positionals: Arguments without an option.
        options: The command's own options and their values; an empty text for a switch.
        config_args: Arguments of the config.
        command: Name of the command.
        usage: Its usage.
    """

    positionals: Sequence[str]
    options: Mapping[str, str]
    config_args: Sequence[str]
    command: str = ""
    usage: str = ""

    def error(self, text: str) -> ConfigError:
        """Return an error of the command line, with the usage below it."""
        return ConfigError(f"{self.command}: {text}\n{self.usage}")

    def get_choice(self, option: str, choices: Collection[str], default: str | None = None) -> str | None:
        """Return the value of an option that is one of several words.

        Raises:
            ConfigError: If it is another word.
        """
        given = self.options.get(option, default)
        if given is not None and given not in choices:
            expected = (" or " if len(choices) == 2 else ", ").join(choices)
            raise self.error(f"{option}: expected {expected}, got {given!r}{near(given, choices)}")
        return given

    def get_number(self, option: str, default: float) -> float:
        """Return the value of an option that is a number.

        Raises:
            ConfigError: If it is none.
        """
        if option not in self.options:
            return default
        try:
            value = float(self.options[option])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(f"{option}: expected a number, got {self.options[option]!r}")
        return value

    def get_positional(self, what: str) -> str:
        """Return the only positional.

        Raises:
            ConfigError: If there is none, or more than one.
        """
        if len(self.positionals) != 1:
            found = f"got {', '.join(map(repr, self.positionals))}" if self.positionals else "got none"
            raise self.error(f"expected {what}, {found}")
        return self.positionals[0]


def get_run_argument(line: CommandLine) -> str:
    """Return the run given as a positional or with ``--run``.

    Raises:
        ConfigError: If there is none, or more than one.
    """
    given = [*line.positionals, *([line.options["--run"]] if "--run" in line.options else [])]
    if len(given) != 1:
        found = f"got {' and '.join(map(repr, given))}" if given else "say --run latest, or the folder of one"
        raise line.error(f"expected one run, {found}")
    return given[0]


OPTION_LINE = re.compile(r"^  (--?[a-z][\w-]*)(?: ([A-Z]\S*))?", re.MULTILINE)
"""Line of a help text that describes an option: its name, and the name of its value."""


def parse_options(
    help_text: str, args: Sequence[str], *, config: Mapping[str, Takes] | None = None, most: int = 0
) -> CommandLine:
    """Split the arguments of a command by its help, in which the line of an option begins with two spaces.

    Args:
        help_text: ``usage: lightkit COMMAND ...``, an empty line, then a line ``  --sort KEY  ...`` for an option with
            a value, ``  --alias NAME...`` for one that may be given again, and ``  --json  ...`` for a switch.
        args: The arguments.
        config: Options that belong to the config, for a command that takes the config's keys too; None if it does not.
        most: Number of positionals that the command takes.

    Raises:
        ConfigError: If an option is unknown, given twice, or lacks its value; or there are too many positionals.
    """
    usage = help_text.partition("\n\n")[0]
    own: dict[str, Takes] = {
        option: "switch" if not value else "values" if value.endswith("...") else "value"
        for option, value in OPTION_LINE.findall(help_text)
        if option not in (config or {})
    }
    positionals: list[str] = []
    options: dict[str, str] = {}
    config_args: list[str] = []
    line = CommandLine(positionals, options, config_args, usage.split()[2], usage)
    left = list(args)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            (config_args if equals and config is not None else positionals).append(word)
        elif option in own:
            if option in options and own[option] != "values":
                raise line.error(f"{option} is given twice")
            if own[option] == "switch" and equals:
                raise line.error(f"{option} takes no value")
            if own[option] != "switch" and not equals:
                if not left or left[0].startswith("--"):
                    raise line.error(f"{option}: expected a value after it")
                value = left.pop(0)
            options[option] = f"{options[option]},{value}" if option in options else value
        elif config is not None and (
            option in config or option.lstrip("-").partition(".")[0].rstrip("+") in _TOP_LEVEL_KEYS
        ):
            config_args.append(word)
            if not equals and config.get(option) != "switch" and left:
                config_args.append(left.pop(0))
        else:
            raise line.error(f"unexpected argument {word!r}{near(option, [*own, *(config or {})])}")
    if len(positionals) > most:
        raise line.error(f"unexpected argument {positionals[most]!r}")
    return line


def refuse_without_effect(
    arguments: Arguments, subject: str, *, options: Sequence[str], keys: Collection[str] = ()
) -> None:
    """Refuse what has no effect on a model that needs no config: layers, keys and some options.

    Args:
        arguments: The command line.
        subject: The model, for the error.
        options: Options without an effect.
        keys: Keys with an effect.

    Raises:
        ConfigError: If one of them is given.
    """
    found = [f"-c {file}" for file in arguments.files]
    found += [flag.text for flag in arguments.flags if flag.key not in keys or flag.append]
    found += [f"--{name}" for name in options if arguments.options.get(name) not in (None, False)]
    found += arguments.passthrough
    if found:
        raise ConfigError(f"{found[0]}: this has no effect on {subject}. Leave it out.")
