"""The command line after the subcommand, split into what each part of lightkit reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lightkit.config.layers import Flag
from lightkit.config.origins import NESTED_FILES, near
from lightkit.errors import ConfigError

__all__ = ["Arguments", "split_arguments"]

_OVERRIDE = re.compile(r"([A-Za-z_][^\s=+]*)(\+?)=(.*)", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-\.?\d|-\.?(inf|Inf|INF)")
_HELP = ("help", "print_config", "print_shtab")


@dataclass
class Arguments:
    """A split command line.

    Args:
        files: Config files of ``-c``, in order.
        flags: Keys that flags set, in order.
        options: Values of the options that the caller knows, by name; ``True`` for a switch, and for an option
            with an optional value that has none. The last of two wins.
        passthrough: Arguments that jsonargparse itself reads: ``--help``, ``--model.help Net``, ``--print_config``.
    """

    files: list[str] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    options: dict[str, str | bool] = field(default_factory=dict)
    passthrough: list[str] = field(default_factory=list)


def split_arguments(
    arguments: Sequence[str],
    *,
    options: Mapping[str, Literal["value", "switch", "optional"]] | None = None,
    keys: Collection[str] = ("trainer", "model", "data", "callbacks", "logger", "optimizer", "lr_scheduler"),
) -> Arguments:
    """Split the arguments that follow the subcommand.

    Args:
        arguments: Words of the command line.
        options: Names of the options that the caller knows, without dashes, and whether each takes a value. An
            ``optional`` value comes after ``=`` only. Names are taken whole: ``--ckpt`` is not ``--ckpt_path``.
        keys: Top-level keys, for hints.

    Raises:
        ConfigError: If a word is no option and sets no key, or an option lacks its value.
    """
    return _Splitter(arguments, options or {}, keys).split()


class _Splitter:
    """Reads words from left to right."""

    def __init__(self, arguments: Sequence[str], options: Mapping[str, str], keys: Collection[str]) -> None:
        self._words = list(arguments)
        self._options = options
        self._keys = keys
        self._result = Arguments()

    def split(self) -> Arguments:
        while self._words:
            word = self._words.pop(0)
            if word in ("-h", "--help"):
                self._result.passthrough.append(word)
            elif word.startswith("-c") and not word.startswith("-config"):
                self._file("-c", word[2:].removeprefix("=") if len(word) > 2 else None)
            elif word.startswith("--") and len(word) > 2:
                self._option(word)
            elif match := _OVERRIDE.fullmatch(word):
                key, plus, value = match.groups()
                self._result.flags.append(Flag(key, value, word, append=bool(plus)))
            else:
                raise self._unknown(word)
        return self._result

    def _option(self, word: str) -> None:
        name, equals, given = word[2:].partition("=")
        value = given if equals else None
        if name == "config":
            self._file("--config", value)
        elif name in self._options:
            self._known(word, name, value)
        elif name in _HELP or name.startswith("print_shtab") or name.endswith(".help"):
            self._result.passthrough.append(word)
            takes_word = name.endswith(".help") or name.startswith("print_shtab")
            if takes_word and value is None and self._words and self._words[0][:1] != "-" and "=" not in self._words[0]:
                self._result.passthrough.append(self._words.pop(0))
        else:
            self._flag(word, name, value)

    def _known(self, word: str, name: str, value: str | None) -> None:
        takes = self._options[name]
        if takes == "switch" and value is not None:
            raise ConfigError(f"{word}: --{name} takes no value")
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
            hints = [*self._options, "config", *self._keys] if "." not in key else []
            value = self._next_value(word, near(key, hints))
            word = f"{word} {value}"
        self._result.flags.append(Flag(key, value, word, append=append))

    def _next_value(self, word: str, hint: str = "") -> str:
        if not self._words:
            raise ConfigError(f"{word}: expected a value after it, got the end of the command line{hint}")
        following = self._words[0]
        if len(following) > 1 and following.startswith("-") and not _NEGATIVE_NUMBER.match(following):
            says = f"{word}: expected a value after it, got {following!r}{hint}"
            raise ConfigError(f"{says}; a value that starts with a dash is written {word}=VALUE")
        return self._words.pop(0)

    def _unknown(self, word: str) -> ConfigError:
        says = f"unexpected argument {word!r}: expected --OPTION, --KEY=VALUE or KEY=VALUE"
        if word.endswith(NESTED_FILES):
            return ConfigError(f"{says}; a config file comes after -c: -c {word}")
        name = word.lstrip("-").partition("=")[0]
        return ConfigError(f"{says}{near(name, ['config', 'help', *self._options, *self._keys])}")
