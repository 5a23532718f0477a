"""The command line after the subcommand, split into what each part of lightkit reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lightkit.config.credentials import shown_line
from lightkit.config.layers import Flag
from lightkit.config.origins import NESTED_FILES, cut, near
from lightkit.config.problems import Problems
from lightkit.errors import ConfigError

__all__ = ["Arguments", "split_arguments"]

_OVERRIDE = re.compile(r"([A-Za-z_][^\s=+]*)(\+?)=(.*)", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-\.?\d|-\.?(inf|Inf|INF)")
_HELP = ("help", "print_config")


@dataclass
class Arguments:
    """A split command line.

    Args:
        files: Config files of ``-c``, in order.
        flags: Keys that flags set, in order.
        options: Values of the options that the caller knows, by name; ``True`` for a switch, and for an option
            with an optional value that has none. The last of two wins.
        passthrough: Arguments that jsonargparse itself reads: ``--help``, ``--model.help Net``, ``--print_config``.
        inputs: Words that stand alone, such as the images of ``predict``.
    """

    files: list[str] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    options: dict[str, str | bool] = field(default_factory=dict)
    passthrough: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)


def split_arguments(
    arguments: Sequence[str],
    *,
    options: Mapping[str, Literal["value", "switch", "optional"]] | None = None,
    keys: Collection[str] = ("trainer", "model", "data", "callbacks", "logger", "optimizer", "lr_scheduler"),
    takes_inputs: bool = False,
    problems: Problems | None = None,
) -> Arguments:
    """Split the arguments that follow the subcommand.

    Args:
        arguments: Words of the command line.
        options: Names of the options that the caller knows, without dashes, and whether each takes a value. An
            ``optional`` value comes after ``=`` only. Names are taken whole: ``--ckpt`` is not ``--ckpt_path``.
        keys: Top-level keys, for hints.
        takes_inputs: Whether words may stand alone, all of them after a ``--``.
        problems: Takes the mistakes; they are raised where it is None.

    Raises:
        ConfigError: If a word is no option and sets no key, or an option lacks its value.
    """
    found = Problems() if problems is None else problems
    split = _Splitter(arguments, options or {}, keys, takes_inputs=takes_inputs).split(found)
    if problems is None:
        found.raise_any()
    return split


class _Splitter:
    """Reads words from left to right."""

    def __init__(
        self, arguments: Sequence[str], options: Mapping[str, str], keys: Collection[str], *, takes_inputs: bool
    ) -> None:
        self._takes_inputs = takes_inputs
        self._words = list(arguments)
        self._options = options
        self._keys = keys
        self._result = Arguments()

    def split(self, problems: Problems) -> Arguments:
        while self._words:
            with problems.noted(leaves_gap=True):  # the word may have been meant for a file
                self._read(self._words.pop(0))
        return self._result

    def _read(self, word: str) -> None:
        if word in ("-h", "--help"):
            self._result.passthrough.append(word)
        elif word.startswith("-c") and not word.startswith("-config"):
            self._file("-c", word[2:].removeprefix("=") if len(word) > 2 else None)
        elif word == "--" and self._takes_inputs:
            self._result.inputs += self._words
            self._words.clear()
        elif word.startswith("--") and len(word) > 2:
            self._option(word)
        elif match := _OVERRIDE.fullmatch(word):
            key, plus, value = match.groups()
            self._result.flags.append(Flag(key, value, word, append=bool(plus)))
        elif self._takes_inputs and (word == "-" or not word.startswith("-")):
            self._result.inputs.append(word)
        else:
            following = self._words[:1] if word.startswith("-") else []
            if following and not following[0].startswith("-") and "=" not in following[0]:
                self._words.pop(0)  # most likely its value, which is no mistake of its own
            raise self._unknown(word)

    def _option(self, word: str) -> None:
        name, equals, given = word[2:].partition("=")
        value = given if equals else None
        if name == "config":
            self._file("--config", value)
        elif name in self._options:
            self._known(word, name, value)
        elif name in _HELP or name.endswith(".help"):
            self._result.passthrough.append(word)
            takes_word = name.endswith(".help")
            if takes_word and value is None and self._words and self._words[0][:1] != "-" and "=" not in self._words[0]:
                self._result.passthrough.append(self._words.pop(0))
        else:
            self._flag(word, name, value)

    def _known(self, word: str, name: str, value: str | None) -> None:
        takes = self._options[name]
        if takes == "switch" and value is not None:
            raise ConfigError(f"{cut(word)}: --{name} takes no value")
        if takes == "value" and value is None:
            value = self._next_value(word)
        self._result.options[name] = True if value is None else value

    def _file(self, option: str, value: str | None) -> None:
        file = self._next_value(option) if value is None else value
        if not file:
            raise ConfigError(f"{option}: expected a config file, got nothing")
        self._result.files.append(file)

    def _flag(self, word: str, name: str, value: str | None) -> None:
        append = name.endswith("+")
        key = name[:-1] if append else name
        if not key or not _OVERRIDE.fullmatch(f"{key}="):
            raise self._unknown(word)
        if value is None:
            hints = [*self._options, "config", "help", *self._keys] if "." not in key else []
            value = self._next_value(word, near(key, hints))
            word = f"{word} {value}"
        self._result.flags.append(Flag(key, value, word, append=append))

    def _next_value(self, word: str, hint: str = "") -> str:
        if not self._words:
            raise ConfigError(f"{cut(word)}: expected a value after it, got the end of the command line{hint}")
        following = self._words[0]
        if len(following) > 1 and following.startswith("-") and not _NEGATIVE_NUMBER.match(following):
            says = f"{cut(word)}: expected a value after it, got {cut(following)!r}{hint}"
            raise ConfigError(f"{says}; a value that starts with a dash is written {cut(word)}=VALUE")
        return self._words.pop(0)

    def _unknown(self, word: str) -> ConfigError:
        says = f"unexpected argument {cut(shown_line(word))!r}: expected --OPTION, --KEY=VALUE or KEY=VALUE"
        if word.endswith(NESTED_FILES):
            return ConfigError(f"{says}; a config file comes after -c: -c {cut(word)}")
        name = word.lstrip("-").partition("=")[0]
        return ConfigError(f"{says}{near(cut(name), ['config', 'help', *self._options, *self._keys])}")
