"""The layers above the files: environment variables and command-line flags, and the split of a command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lightkit.config.origins import NESTED_FILES, Origin, Problems, cut, error_at, near
from lightkit.config.packaged import find_config
from lightkit.config.secrets import mask_line
from lightkit.config.tree import Leaf, MappingNode, Node, graft, plain
from lightkit.config.yaml_reader import MAX_DEPTH, TOO_LARGE, YamlSyntaxError, read_text
from lightkit.errors import ConfigError

PREFIX = "LIGHTKIT_"
RESERVED_VARIABLES = ("LIGHTKIT_DATA",)
"""Variables with the prefix that are no layer. ``LIGHTKIT_DATA`` is the folder of `Flowers`' photos."""

_OVERRIDE = re.compile(r"([A-Za-z_][^\s=+]*)(\+?)=(.*)", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-\.?\d|-\.?(inf|Inf|INF)")
_HELP = ("help", "print_config")
_NULLS = ("~", "null", "Null", "NULL")


@dataclass(frozen=True)
class Flag:
    """A key that the command line sets.

    Args:
        key: Dotted key.
        value: Its value as typed.
        text: The flag as typed, for its origin.
        append: Whether it was ``key+=value``.
    """

    key: str
    value: str
    text: str
    append: bool = False


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
        problems: Collects the errors; they are raised where it is None.

    Raises:
        ConfigError: If a word is no option and sets no key, or an option lacks its value.
    """
    found = Problems() if problems is None else problems
    splitter = _Splitter(arguments, options or {}, keys, takes_inputs=takes_inputs)
    while splitter.words:
        with found.noted(leaves_gap=True):  # the word may have been meant for a file
            splitter.read(splitter.words.pop(0))
    if problems is None:
        found.raise_any()
    return splitter.result


class _Splitter:
    """Reads words from left to right."""

    def __init__(
        self, arguments: Sequence[str], options: Mapping[str, str], keys: Collection[str], *, takes_inputs: bool
    ) -> None:
        self.words = list(arguments)
        self.result = Arguments()
        self._options, self._keys, self._takes_inputs = options, keys, takes_inputs

    def read(self, word: str) -> None:
        if word in ("-h", "--help"):
            self.result.passthrough.append(word)
        elif word.startswith("-c") and not word.startswith("-config"):
            self._file("-c", word[2:].removeprefix("=") if len(word) > 2 else None)
        elif word == "--" and self._takes_inputs:
            self.result.inputs += self.words
            self.words.clear()
        elif word.startswith("--") and len(word) > 2:
            self._option(word)
        elif match := _OVERRIDE.fullmatch(word):
            key, plus, value = match.groups()
            self.result.flags.append(Flag(key, value, word, append=bool(plus)))
        elif self._takes_inputs and (word == "-" or not word.startswith("-")):
            self.result.inputs.append(word)
        else:
            following = self.words[:1] if word.startswith("-") else []
            if following and not following[0].startswith("-") and "=" not in following[0]:
                self.words.pop(0)  # most likely its value, which is no error of its own
            raise self._unknown(word)

    def _option(self, word: str) -> None:
        name, equals, given = word[2:].partition("=")
        value = given if equals else None
        takes = self._options.get(name)
        if name == "config":
            self._file("--config", value)
        elif takes is not None:
            if takes == "switch" and value is not None:
                raise ConfigError(f"{cut(word)}: --{name} takes no value")
            if takes == "value" and value is None:
                value = self._next_value(word)
            self.result.options[name] = True if value is None else value
        elif name in _HELP or name.endswith(".help"):
            self.result.passthrough.append(word)
            takes_word = name.endswith(".help") and value is None
            if takes_word and self.words and self.words[0][:1] != "-" and "=" not in self.words[0]:
                self.result.passthrough.append(self.words.pop(0))
        else:
            self._flag(word, name, value)

    def _file(self, option: str, value: str | None) -> None:
        file = self._next_value(option) if value is None else value
        if not file:
            raise ConfigError(f"{option}: expected a config file, got nothing")
        self.result.files.append(str(find_config(file)))

    def _flag(self, word: str, name: str, value: str | None) -> None:
        key = name.removesuffix("+")
        if not key or not _OVERRIDE.fullmatch(f"{key}="):
            raise self._unknown(word)
        if value is None:
            hints = [*self._options, "config", "help", *self._keys] if "." not in key else []
            value = self._next_value(word, near(key, hints))
            word = f"{word} {value}"
        self.result.flags.append(Flag(key, value, word, append=name.endswith("+")))

    def _next_value(self, word: str, hint: str = "") -> str:
        if not self.words:
            raise ConfigError(f"{cut(word)}: expected a value after it, got the end of the command line{hint}")
        following = self.words[0]
        if len(following) > 1 and following.startswith("-") and not _NEGATIVE_NUMBER.match(following):
            says = f"{cut(word)}: expected a value after it, got {cut(following)!r}{hint}"
            raise ConfigError(f"{says}; a value that starts with a dash is written {cut(word)}=VALUE")
        return self.words.pop(0)

    def _unknown(self, word: str) -> ConfigError:
        says = f"unexpected argument {cut(mask_line(word))!r}: expected --OPTION, --KEY=VALUE or KEY=VALUE"
        if word.endswith(NESTED_FILES):
            return ConfigError(f"{says}; a config file comes after -c: -c {cut(word)}")
        name = word.lstrip("-").partition("=")[0]
        return ConfigError(f"{says}{near(cut(name), ['config', 'help', *self._options, *self._keys])}")


def flag_layers(flags: Iterable[Flag], problems: Problems) -> list[MappingNode]:
    """Make a layer of each flag; ``problems`` collects keys with an empty part and values that cannot be read."""
    layers = []
    for flag in flags:
        with problems.noted():
            shown = mask_line(f"{flag.key}={flag.value}").removeprefix(f"{flag.key}=")
            origin = Origin("flag", flag.text.removesuffix(flag.value) + shown)
            keys = flag.key.split(".")
            if not all(keys):
                raise ConfigError(f"{cut(flag.text)}: expected keys joined by single dots, such as trainer.max_epochs")
            keys[-1] += "+" if flag.append else ""
            layers.append(nest(keys, _read_value(flag.value, origin), origin))
    return layers


def variable_layers(environ: Mapping[str, str], lower: MappingNode, problems: Problems) -> list[MappingNode]:
    """Read the variables ``LIGHTKIT_TRAINER__MAX_EPOCHS=3`` as layers, those of sections before those inside them.

    Args:
        environ: Variables by name. `RESERVED_VARIABLES` are passed over.
        lower: Merged layers below: a key there that differs in case only, such as ``T_max``, is the one meant.
        problems: Collects the errors: a name with an empty part, a value that cannot be read.
    """
    layers = []
    names = [name for name in environ if name.startswith(PREFIX) and name not in RESERVED_VARIABLES]
    for name in sorted(names, key=lambda name: (name.count("__"), name)):
        parts = name[len(PREFIX) :].lower().split("__")
        origin = Origin("variable", name)
        with problems.noted():
            if not all(parts):
                says = f"{cut(name)}: expected keys joined by two underscores, such as {PREFIX}TRAINER__MAX_EPOCHS"
                raise ConfigError(says)
            keys: list[str] = []
            node: Node | None = lower
            for part in parts:
                entries = node.entries if isinstance(node, MappingNode) else {}
                keys.append(next((key for key in entries if isinstance(key, str) and key.lower() == part), part))
                node = entries.get(keys[-1])
            layers.append(nest(keys, _read_value(environ[name], origin), origin))
    return layers


def nest(keys: Sequence[str], value: Node, origin: Origin) -> MappingNode:
    """Put a value below the keys of a dotted key.

    Raises:
        ConfigError: If it nests too deeply.
    """
    if len(keys) > MAX_DEPTH:
        raise ConfigError(f"{str(origin)[:80]}...: {TOO_LARGE}")
    node = value
    for key in reversed(keys):
        node = MappingNode({key: node}, origin, partial=True)
    assert isinstance(node, MappingNode)
    return node


def _read_value(text: str, origin: Origin) -> Node:
    """Read the value of a flag or variable: mappings, lists and null as YAML, other scalars as text.

    Only the type of the argument can tell whether ``123`` is a number or a name. ``title: subtitle``, which YAML takes
    for a mapping, and ``{epoch}``, a part of file names, stay text too.

    Raises:
        ConfigError: If a mapping repeats a key, or the value nests too deeply or grows too large by its aliases.
    """
    stripped = text.strip()
    if stripped in _NULLS:
        return Leaf(None, origin)
    if not (stripped.startswith(("{", "[", "class_path:")) or "\n" in stripped):
        return Leaf(text, origin)
    try:
        value = plain(read_text(text, name=str(origin)))
    except YamlSyntaxError:
        return Leaf(text, origin)
    except ConfigError as error:
        raise error_at(str(error).splitlines()[0], origin) from None
    is_braced_word = isinstance(value, dict) and value and all(child is None for child in value.values())
    return graft(value, origin) if isinstance(value, (dict, list)) and not is_braced_word else Leaf(text, origin)
