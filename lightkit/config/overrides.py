"""The layers above the files: environment variables and command-line flags, and the split of a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lightkit.config.origins import NESTED_FILES, Origin, Problems, cut, error_at, near
from lightkit.config.packaged import find_config
from lightkit.config.secrets import mask
from lightkit.config.tree import Leaf, MappingNode, Node, graft, to_plain
from lightkit.config.yaml_reader import MAX_DEPTH, TOO_LARGE, YamlSyntaxError, read_text
from lightkit.errors import ConfigError

PREFIX = "LIGHTKIT_"
RESERVED_VARIABLES = ("LIGHTKIT_DATA",)
"""Variables with the prefix that are no layer. ``LIGHTKIT_DATA`` is the folder of `Flowers`' photos."""

_KEY = re.compile(r"[A-Za-z_][^\s=+]*")
_NEGATIVE_NUMBER = re.compile(r"-\.?\d|-\.?(inf|Inf|INF)")
_HELP = ("help", "print_config")
_NEAR = ("config", "help", "trainer", "model", "data", "callbacks", "logger", "optimizer", "lr_scheduler")
"""What a misspelt word may mean, in addition to the options of its command."""
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
    takes_inputs: bool = False,
    problems: Problems | None = None,
) -> Arguments:
    """Split the arguments that follow the subcommand.

    Args:
        arguments: Words of the command line.
        options: Names of the options that the caller knows, without dashes, and whether each takes a value. An
            ``optional`` value comes after ``=`` only. Names are taken whole: ``--ckpt`` is not ``--ckpt_path``.
        takes_inputs: Whether words may stand alone, all of them after a ``--``.
        problems: Collects the errors; they are raised where it is None.

    Raises:
        ConfigError: If a word is no option and sets no key, or an option lacks its value.
    """
    found = Problems() if problems is None else problems
    options, words, result = options or {}, list(arguments), Arguments()

    def take_value(word: str, hint: str = "") -> str:
        if not words:
            raise ConfigError(f"{cut(word)}: expected a value after it, got the end of the command line{hint}")
        if len(words[0]) > 1 and words[0].startswith("-") and not _NEGATIVE_NUMBER.match(words[0]):
            text = f"{cut(word)}: expected a value after it, got {cut(words[0])!r}{hint}"
            raise ConfigError(f"{text}; a value that starts with a dash is written {cut(word)}=VALUE")
        return words.pop(0)

    def read(word: str) -> None:
        name, equals, given = word.removeprefix("--").partition("=")
        key, value = name.removesuffix("+"), given if equals else None
        is_option, is_short = word.startswith("--") and len(word) > 2, re.match("-c(?!onfig)", word) is not None
        if is_option and name in options:
            if options[name] == "switch" and value is not None:
                raise ConfigError(f"{cut(word)}: --{name} takes no value")
            value = take_value(word) if options[name] == "value" and value is None else value
            result.options[name] = True if value is None else value
        elif word == "-h" or (is_option and (name in _HELP or name.endswith(".help"))):
            result.passthrough.append(word)
            if name.endswith(".help") and value is None and words and words[0][:1] != "-" and "=" not in words[0]:
                result.passthrough.append(words.pop(0))
        elif is_short or (is_option and name == "config"):
            value = word[2:].removeprefix("=") if is_short and len(word) > 2 else value
            file = take_value("-c" if is_short else "--config") if value is None else value
            if not file:  # an unset variable of the shell
                raise ConfigError(f"{'-c' if is_short else '--config'}: expected a config file, got nothing")
            result.files.append(str(find_config(file)))
        elif word == "--" and takes_inputs:
            result.inputs += words
            words.clear()
        elif (is_option or equals) and _KEY.fullmatch(key):
            if value is None:
                value = take_value(word, near(key, [*options, *_NEAR]) if "." not in key else "")
                word = f"{word} {value}"
            result.flags.append(Flag(key, value, word, append=name.endswith("+")))
        elif takes_inputs and (word == "-" or not word.startswith("-")):
            result.inputs.append(word)
        else:
            text = f"unexpected argument {cut(mask(word, is_line=True))!r}: expected --OPTION, --KEY=VALUE or KEY=VALUE"
            hint = near(cut(word.lstrip("-").partition("=")[0]), [*options, *_NEAR])
            is_file = word.endswith(NESTED_FILES)
            raise ConfigError(text + (f"; a config file comes after -c: -c {cut(word)}" if is_file else hint))

    while words:
        with found.noted(leaves_gap=True):  # the word may have been meant for a file
            read(words.pop(0))
    if problems is None:
        found.raise_any()
    return result


def flag_layers(flags: Iterable[Flag], problems: Problems) -> list[MappingNode]:
    """Make a layer of each flag; ``problems`` collects keys with an empty part and values that cannot be read."""
    layers = []
    for flag in flags:
        with problems.noted():
            shown = mask(f"{flag.key}={flag.value}", is_line=True).removeprefix(f"{flag.key}=")
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
                text = f"{cut(name)}: expected keys joined by two underscores, such as {PREFIX}TRAINER__MAX_EPOCHS"
                raise ConfigError(text)
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
        value = to_plain(read_text(text, name=str(origin)))
    except YamlSyntaxError:
        return Leaf(text, origin)
    except ConfigError as error:
        raise error_at(str(error).splitlines()[0], origin) from None
    is_braced_word = isinstance(value, dict) and value and all(child is None for child in value.values())
    return graft(value, origin) if isinstance(value, (dict, list)) and not is_braced_word else Leaf(text, origin)
