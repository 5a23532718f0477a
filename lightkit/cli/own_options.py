"""The words of a command about a run or a registered model: its own options and those for the config. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lightkit.config import SECTIONS, near
from lightkit.errors import ConfigError

__all__ = ["ON_A_RUN", "Parted", "Takes", "one_run", "part"]

Takes = Literal["value", "switch"]
ON_A_RUN: Mapping[str, Takes] = {
    "-c": "value",
    "--config": "value",
    "--ckpt_path": "value",
    "--trust": "switch",
    "--quiet": "switch",
}
"""Options that lie over a run's config, as `lightkit test --run` has them."""
_TOP = (*SECTIONS, "seed_everything", "accelerator", "launch")


@dataclass(frozen=True)
class Parted:
    """A command line in parts.

    Args:
        places: Words that stand alone.
        said: The command's own options; an empty text for a switch.
        rest: What is for the config.
    """

    places: Sequence[str]
    said: Mapping[str, str]
    rest: Sequence[str]

    def one_place(self, command: str, what: str, usage: str) -> str:
        """Give the only word that stands alone.

        Raises:
            ConfigError: If there is none, or more than one.
        """
        if len(self.places) != 1:
            found = f"got {', '.join(map(repr, self.places))}" if self.places else "got none"
            raise ConfigError(f"{command}: expected {what}, {found}\n{usage}")
        return self.places[0]


def one_run(command: str, parted: Parted, usage: str) -> str:
    """Give the run that is said, as a word that stands alone or by ``--run``.

    Raises:
        ConfigError: If there is none, or more than one.
    """
    places = [*parted.places, *([parted.said["--run"]] if "--run" in parted.said else [])]
    if len(places) != 1:
        found = f"got {' and '.join(map(repr, places))}" if places else "say latest, or the folder of one"
        raise ConfigError(f"{command}: expected one run, {found}\n{usage}")
    return places[0]


def part(
    command: str,
    words: Sequence[str],
    *,
    usage: str,
    own: Mapping[str, Takes],
    config: Mapping[str, Takes] | None = None,
) -> Parted:
    """Part the words after a command.

    Args:
        command: Its name, for errors.
        words: The words.
        usage: Its usage, for errors.
        own: Its own options.
        config: Options that are left for the config, whose keys may then be words as well; None: there is none.

    Raises:
        ConfigError: If an option is unknown, said twice, or lacks its value.
    """
    places: list[str] = []
    said: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            (rest if equals and config is not None else places).append(word)
        elif option in own:
            if option in said:
                raise ConfigError(f"{command}: {option} is said twice\n{usage}")
            if own[option] == "switch":
                _refuse_value(command, option, equals, usage)
                said[option] = ""
            else:
                said[option] = value if equals else _following(command, option, left, usage)
        elif config is None or not _is_of_config(option, config):
            raise ConfigError(
                f"{command}: unexpected argument {word!r}{near(option, [*own, *(config or {})])}\n{usage}"
            )
        else:
            rest.append(word)
            if not equals and config.get(option) != "switch" and left:
                rest.append(left.pop(0))
    return Parted(places, said, rest)


def _is_of_config(option: str, config: Mapping[str, Takes]) -> bool:
    return option in config or option.lstrip("-").partition(".")[0].rstrip("+") in _TOP


def _refuse_value(command: str, option: str, equals: str, usage: str) -> None:
    if equals:
        raise ConfigError(f"{command}: {option} takes no value\n{usage}")


def _following(command: str, option: str, left: list[str], usage: str) -> str:
    if not left or left[0].startswith("--"):
        raise ConfigError(f"{command}: {option}: expected a word after it\n{usage}")
    return left.pop(0)
