"""The parser of the command line: words to an `Invocation`, by a `Command` of the table.

It imports Python's library alone, so that help and completion scripts come at once.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lightkit.errors import ConfigError, cut, near

if TYPE_CHECKING:
    from lightkit.config import Flag

FILES = ":files"
FOLDERS = ":folders"
"""Values of an option that the shell completes: files on the disk."""
_KEY_ALIASES = {"--root": "run.root"}
_HELP = ("-h", "--help")
_KEY = re.compile(r"[A-Za-z_][^\s=+]*")
_NESTED_FILES = (".yaml", ".yml", ".json")

OptionValue = bool | str | float | int | tuple[str, ...]


# -- the types of the table ------------------------------------------------------------------------


class Option(NamedTuple):
    """An option of a command.

    Args:
        name: Its name with the dashes.
        help: Its text in the help, before the default.
        value: Name of its value in the help; empty for a switch.
        default: Its value where it is not given.
        kind: Type of the value: text, a finite number, or a whole number.
        least: The least whole number.
        choices: The words that it takes; all if empty.
        is_list: Whether it takes several values, with commas between them or where it is given
            again.
        is_optional: Whether its value may be left out; it then comes after ``=`` only.
        aliases: Other spellings.
        value_of: Names of another option of which this switch is a value, too: with ``--output``
            the switch ``--json`` is also ``--output json``, and the help shows it so.
        suffixes: Ends of the files that it takes; with another value its name is that of a key.
        completes: Values that a shell offers in addition to the choices, `FILES` and `FOLDERS`
            among them.
        is_hidden: Whether the help leaves it out.
        is_internal: Whether lightkit alone sets it, in processes that it starts: no hint offers it.
    """

    name: str
    help: str = ""
    value: str = ""
    default: OptionValue | None = None
    kind: Literal["text", "number", "count"] = "text"
    least: int = 0
    choices: tuple[str, ...] = ()
    is_list: bool = False
    is_optional: bool = False
    aliases: tuple[str, ...] = ()
    value_of: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    completes: tuple[str, ...] = ()
    is_hidden: bool = False
    is_internal: bool = False

    @property
    def key(self) -> str:
        """Name in `Invocation.options`."""
        return self.name.lstrip("-")

    @property
    def is_switch(self) -> bool:
        """Return whether it takes no value."""
        return not self.value

    def describe(self) -> str:
        """Return the option as the help shows it."""
        if self.value_of:
            return f"{self.value_of[0]} {self.key}"
        dots = "..." if self.is_list else ""
        return f"{self.name} {self.value}{dots}".rstrip() if not self.is_optional else self.name

    def explain(self) -> str:
        """Return its text in the help."""
        if self.default is None:
            return self.help
        words = self.default if isinstance(self.default, tuple) else (self.default,)
        return f"{self.help}; default: {','.join(map(str, words))}".removeprefix("; ")

    def read(self, text: str) -> OptionValue:
        """Read a value.

        Raises:
            ConfigError: If the option does not take it.
        """
        if self.kind == "number":
            return _read_number(self.name, text)
        if self.kind == "count":
            return _read_count(self.name, text, least=self.least)
        if not self.is_list:
            self._check_choice(text)
            return text
        words = tuple(part.strip() for part in text.split(",") if part.strip())
        for word in words:
            self._check_choice(word)
        return words

    def _check_choice(self, word: str) -> None:
        if self.choices and word not in self.choices:
            expected = (" or " if len(self.choices) == 2 else ", ").join(self.choices)
            raise ConfigError(
                f"{self.name}: expected {expected}, got {word!r}{near(word, self.choices)}"
            )


class Input(NamedTuple):
    """A word without an option, in the help of a command.

    Args:
        name: Its name in the help.
        help: Its text there.
    """

    name: str
    help: str


class Command(NamedTuple):
    """A command of lightkit.

    Args:
        name: Its name.
        summary: Its line in the list of commands.
        usage: Its usage after ``usage:``.
        about: First part of its help.
        inputs: Words without an option, as the help shows them.
        options: Its options, in the order of the help.
        keys: Keys of the config that the help shows like options.
        ending: Last part of its help.
        max_inputs: The most words without an option; None for any number.
        input_choices: Words that a shell offers for them.
        has_other_inputs: Whether it takes other words, too.
        takes_config: Whether it takes layers of a config: ``-c FILE`` and keys.
        module: Module of its function; that of its name in `lightkit.commands` if empty.
        function: Function in it, which takes the `Invocation`.
    """

    name: str
    summary: str = ""
    usage: str = ""
    about: str = ""
    inputs: tuple[Input, ...] = ()
    options: tuple[Option, ...] = ()
    keys: tuple[Input, ...] = ()
    ending: str = ""
    max_inputs: int | None = 0
    input_choices: tuple[str, ...] = ()
    has_other_inputs: bool = True
    takes_config: bool = False
    module: str = ""
    function: str = ""

    @property
    def key_aliases(self) -> Mapping[str, str]:
        """Options that stand for a key of the config, with the key."""
        return _KEY_ALIASES if self.takes_config else {}

    @property
    def defaults(self) -> dict[str, OptionValue]:
        """Values of options that are not given."""
        return {option.key: option.default for option in self.options if option.default is not None}

    @property
    def option_names(self) -> list[str]:
        """Names that a hint offers."""
        names = []
        for option in self.options:
            if not option.is_internal:
                names += [option.name, *option.value_of[:1]]
        return list(dict.fromkeys(names))

    def find_option(self, name: str) -> Option | None:
        """Return the option of a name or an alias.

        One of which switches are the only values has these as its choices.
        """
        for option in self.options:
            if name == option.name or name in option.aliases:
                return option
        choices = tuple(self.find_switches(name))
        return Option(name, value="|".join(choices), choices=choices) if choices else None

    def find_switches(self, name: str) -> dict[str, Option]:
        """Return the switches that values of an option stand for, by these values."""
        return {option.key: option for option in self.options if name in option.value_of}

    def error(self, text: str) -> ConfigError:
        """Return an error of the command line, with the usage below it."""
        return ConfigError(f"{self.name}: {text}\nusage: {self.usage}")


class Invocation(NamedTuple):
    """A command line, parsed.

    Args:
        command: The command.
        words: Its words after the command, as typed.
        options: Values of the command's own options that are given, by their names without dashes;
            True for a switch, and for an option whose value was left out.
        inputs: Words without an option.
        files: Files of ``-c``, in order.
        overrides: Keys of the config that flags set, in order.
        passthrough: Words that jsonargparse itself reads, such as ``--model.help Net``.
        topics: Words after ``--help``; None without it.
        errors: Words that are wrong.
        usage: Usage of the command, for errors.
        defaults: Values of options that are not given.
    """

    command: str
    words: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}
    inputs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    overrides: tuple[Flag, ...] = ()
    passthrough: tuple[str, ...] = ()
    topics: tuple[str, ...] | None = None
    errors: tuple[ConfigError, ...] = ()
    usage: str = ""
    defaults: Mapping[str, Any] = {}

    @property
    def all_options(self) -> dict[str, Any]:
        """Values of the command's own options, also of those that have a default."""
        return {**self.defaults, **self.options}

    def get(self, option: str) -> Any:
        """Return the value of an option: as given, its default, or None."""
        return self.options.get(option, self.defaults.get(option))

    def has(self, option: str) -> bool:
        """Return whether an option is given."""
        return option in self.options

    def error(self, text: str) -> ConfigError:
        """Return an error of the command line, with the usage below it."""
        return ConfigError(f"{self.command}: {text}\nusage: {self.usage}")

    def raise_errors(self) -> None:
        """Raise the first error of the words.

        Raises:
            ConfigError: If anything is.
        """
        for error in self.errors:  # those after the first often come from it
            raise error

    def get_run(self) -> str:
        """Return the one run, which an input or ``--run`` names.

        Raises:
            ConfigError: If there is none, or more than one.
        """
        given = list(self.inputs)
        if "run" in self.options:
            given.append(self.options["run"])
        if len(given) != 1:
            found = (
                f"got {' and '.join(map(repr, given))}"
                if given
                else "use --run latest, or the folder of one"
            )
            raise self.error(f"expected one run, {found}")
        return str(given[0])

    def get_input(self, expected: str) -> str:
        """Return the only input.

        Raises:
            ConfigError: If there is none, or more than one.
        """
        if len(self.inputs) != 1:
            found = ", ".join(map(repr, self.inputs)) or "none"
            raise self.error(f"expected {expected}, got {found}")
        return self.inputs[0]

    def with_options(self, **options: Any) -> Invocation:
        """Return the invocation with some options set."""
        return self._replace(options={**self.options, **options})

    def for_stage(self, stage: str, *, keep: Collection[str]) -> Invocation:
        """Return the same layers of a config for a stage.

        Args:
            stage: The stage.
            keep: Options that mean the same for it.
        """
        kept = {name: value for name, value in self.options.items() if name in keep}
        invocation = self._replace(command=stage, options=kept, inputs=(), defaults={})
        return invocation._replace(words=tuple(invocation.spell()))

    def spell(self) -> list[str]:
        """Return words with the same meaning."""
        words = [word for file in self.files for word in ("-c", file)]
        words += [
            f"--{flag.key}{'+' if flag.append else ''}={flag.value}" for flag in self.overrides
        ]
        for name, value in self.options.items():
            if value is True:
                words.append(f"--{name}")
            else:
                words.append(f"--{name}={','.join(value) if isinstance(value, tuple) else value}")
        return [*words, *self.inputs]

    def dump(self) -> str:
        """Write the invocation as JSON, for the ranks of a launch."""
        fields = self._asdict()
        fields["overrides"] = [vars(flag) for flag in self.overrides]
        del fields["errors"]
        return json.dumps(fields)

    @classmethod
    def load(cls, text: str) -> Invocation:
        """Read what `dump` has written."""
        from lightkit.config import Flag  # here: it loads PyYAML, which the help does without

        fields = json.loads(text)
        for name in ("words", "inputs", "files", "passthrough"):
            fields[name] = tuple(fields[name])
        for name in ("options", "defaults"):
            fields[name] = {
                option: tuple(value) if isinstance(value, list) else value
                for option, value in fields[name].items()
            }
        fields["overrides"] = tuple(Flag(**flag) for flag in fields["overrides"])
        return cls(**fields)


# -- the parser ------------------------------------------------------------------------------------


def parse_command(command: Command, words: Sequence[str], *, is_script: bool = False) -> Invocation:
    """Parse the words after a command; what is wrong with them is in `Invocation.errors`.

    Args:
        command: The command.
        words: The words after it.
        is_script: Whether they are those of a script, whose own parser may have more arguments and
            has the help.
    """
    topics = None if is_script else find_help_topics(words)
    if topics is not None:
        return Invocation(command.name, tuple(words), topics=topics, usage=command.usage)
    parser = _Parser(command, words, is_script=is_script)
    return parser.parse()


def find_help_topics(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the topics after ``--help``, none for the command as a whole.

    None without ``--help``.
    """
    for at, word in enumerate(words):
        option, _, topic = word.partition("=")
        if word == "--":
            return None
        if (section := _find_help_section(option)) is not None:
            return (section,)
        if option in _HELP:
            topics = [topic] if topic else []
            for following in words[at + 1 :]:
                if following.startswith("-") or "=" in following:
                    break
                topics.append(following)
            return tuple(topics)
    return None


def _find_help_section(option: str) -> str | None:
    """Return the section that an option asks the help of, as ``--trainer.help``.

    None for the section of a class, whose help jsonargparse has.
    """
    if not option.startswith("--") or not option.endswith(".help"):
        return None
    # here: it loads PyYAML, which `--help` does without
    from lightkit.config.sections import SECTIONS

    name = option.removeprefix("--").removesuffix(".help")
    has_help = name in SECTIONS and SECTIONS[name].kind != "class"
    return name if has_help else None


class _Parser:
    """Sort the words of one command line.

    Args:
        command: The command.
        words: The words after it.
        is_script: Whether its own parser may have more arguments.
    """

    def __init__(self, command: Command, words: Sequence[str], *, is_script: bool) -> None:
        self._command = command
        self._words = tuple(words)
        self._is_script = is_script
        self._left = deque(words)
        self._options: dict[str, OptionValue] = {}
        self._inputs: list[str] = []
        self._files: list[str] = []
        self._overrides: list[Flag] = []
        self._passthrough: list[str] = []
        self._errors: list[ConfigError] = []

    def parse(self) -> Invocation:
        """Read all words."""
        while self._left:
            try:
                self._read(self._left.popleft())
            except ConfigError as error:
                self._errors.append(error)
        return Invocation(
            self._command.name,
            self._words,
            self._options,
            tuple(self._inputs),
            tuple(self._files),
            tuple(self._overrides),
            tuple(self._passthrough),
            errors=tuple(self._errors),
            usage=self._command.usage,
            defaults=self._command.defaults,
        )

    def _read(self, word: str) -> None:
        """Read a word, and the value after it where it takes one.

        Raises:
            ConfigError: If it is unknown, or its value is missing or wrong.
        """
        name, equals, text = word.partition("=")
        value = text if equals else None
        if _joins_file(word):
            name = "-c"
            value = word[2:].removeprefix("=")
        option = self._command.find_option(name)
        if option is not None:
            self._read_option(option, word, name, value)
            return
        aliases = {} if self._is_script else self._command.key_aliases
        key = aliases.get(name, name.removeprefix("--"))
        if _asks_for_help(name):
            self._read_help(word, has_value=value is not None)
        elif word == "--" and self._command.max_inputs != 0:
            self._inputs += self._left
            self._left.clear()
        elif self._is_key(word, key):
            self._read_override(word, key, value)
        elif self._is_input(word):
            self._inputs.append(word)
        else:
            raise self._unexpected(word)

    def _read_file(self, name: str, value: str | None) -> None:
        file = self._take_value(name) if value is None else value
        if not file:  # an unset variable of the shell
            raise ConfigError(f"{name}: expected a config file, got nothing")
        self._files.append(file)

    def _read_file_or_key(self, option: Option, word: str, value: str | None) -> None:
        """Read an option that is a key of the config where its value is no file."""
        if value is None:
            value = self._take_value(word)
            word = f"{word} {value}"
        if value.lower().endswith(option.suffixes):
            self._options[option.key] = value
        else:
            self._add_override(option.key, value, word)

    def _read_option(self, option: Option, word: str, name: str, value: str | None) -> None:
        if option.name == "-c":
            self._read_file(name, value)
        elif option.suffixes:
            self._read_file_or_key(option, word, value)
        elif option.is_switch and value is not None:
            raise ConfigError(f"{cut(word)}: {name} takes no value")
        elif option.is_switch or (option.is_optional and value is None):
            self._options[option.key] = True
        else:
            text = self._take_value(name) if value is None else value
            switch = self._command.find_switches(name).get(text)
            if switch is not None:  # also where other values are names of files
                self._options[switch.key] = True
            else:
                self._set_option(option, text)

    def _set_option(self, option: Option, text: str) -> None:
        found = option.read(text)
        before = self._options.get(option.key, ())
        if isinstance(found, tuple) and isinstance(before, tuple):
            found = (*before, *found)
        self._options[option.key] = found

    def _read_help(self, word: str, *, has_value: bool) -> None:
        """Leave a word of jsonargparse's to it, with the class that may follow."""
        if not (self._is_script or self._command.takes_config):
            raise self._unexpected(word)
        self._passthrough.append(word)
        if word in _HELP or has_value or not self._left:
            return
        following = self._left[0]
        if not following.startswith("-") and "=" not in following:
            self._passthrough.append(self._left.popleft())

    def _is_key(self, word: str, key: str) -> bool:
        """Return whether a word sets a key of the config."""
        is_option = word.startswith("--") and len(word) > 2
        if not self._command.takes_config or not (is_option or "=" in word):
            return False
        return _KEY.fullmatch(key.removesuffix("+")) is not None

    def _read_override(self, word: str, key: str, value: str | None) -> None:
        name = key.removesuffix("+")
        shown = word
        if value is None:
            value = self._take_value(word, "" if "." in key else self._near_option(name))
            shown = f"{word} {value}"
        if self._is_misspelt(word, name):
            raise ConfigError(f"unexpected argument {_mask(word)!r}{self._near_option(name)}")
        self._add_override(name, value, shown, append=key.endswith("+"))

    def _add_override(self, key: str, value: str, shown: str, *, append: bool = False) -> None:
        from lightkit.config import Flag  # here: it loads PyYAML, which the help does without

        self._overrides.append(Flag(key, value, shown, append=append))

    def _is_misspelt(self, word: str, name: str) -> bool:
        """Return whether a word is rather a mistyped option of the command than a key."""
        if self._is_script or "." in name or not word.startswith("--"):
            return False
        if not near(name, [option.lstrip("-") for option in self._command.option_names]):
            return False
        from lightkit.config.schema import load_schema  # here: few words are near an option

        schema = load_schema()
        return name not in {*schema.section_names, *schema.top}

    def _take_value(self, shown: str, hint: str = "") -> str:
        """Return the word after an option.

        Raises:
            ConfigError: If there is none, or it is an option.
        """
        if not self._left:
            raise ConfigError(
                f"{cut(shown)}: expected a value after it, got the end of the command line{hint}"
            )
        following = self._left[0]
        if self._is_option(following):
            raise ConfigError(
                f"{cut(shown)}: expected a value after it, got {cut(following)!r}{hint}; "
                f"a value that starts with a dash is written {cut(shown)}=VALUE"
            )
        return self._left.popleft()

    def _is_option(self, word: str) -> bool:
        name = "-c" if _joins_file(word) else word.partition("=")[0]
        return word.startswith("--") or word in _HELP or self._command.find_option(name) is not None

    def _is_input(self, word: str) -> bool:
        command = self._command
        if word.startswith("-") and word != "-":
            return False
        if command.max_inputs is not None and len(self._inputs) >= command.max_inputs:
            return False
        return command.has_other_inputs or word in command.input_choices

    def _near_option(self, word: str) -> str:
        """Return the hint at the options and sections that look like a word."""
        names = self._command.option_names
        if not self._command.takes_config:
            return near(f"--{word}", names)
        options = [name.removeprefix("--") for name in names if name.startswith("--")]
        # here: it loads PyYAML, which the help does without
        from lightkit.config.sections import SECTIONS

        return near(cut(word), [*options, "config", "help", *SECTIONS])

    def _unexpected(self, word: str) -> ConfigError:
        """Return the error of a word that the command does not take."""
        hint = self._hint_at_path(word)
        if not hint:
            hint = self._near_option(word.lstrip("-").partition("=")[0])
        text = f"unexpected argument {_mask(word)!r}"
        if not self._command.takes_config:
            return self._command.error(f"{text}{hint}")
        return ConfigError(f"{text}: expected --OPTION, --KEY=VALUE or KEY=VALUE{hint}")

    def _hint_at_path(self, word: str) -> str:
        """Return the hint at how the config file, run or folder that a word names is given.

        It is empty for any other word. `os.path` is asked, as pathlib raises for a long word.
        """
        is_run = word == "latest" or os.path.isfile(os.path.join(word, "manifest.json"))  # noqa: PTH113, PTH118
        hint_at_run = f"; a run comes after --run: --run {cut(word)}" if is_run else ""
        if not self._command.takes_config:
            if self._command.find_option("--data") is not None and os.path.exists(word):  # noqa: PTH110
                return f"; did you mean --data {cut(word)}?"
            return hint_at_run if self._command.find_option("--run") is not None else ""
        if word.endswith(_NESTED_FILES) or word.startswith("lightkit:"):
            return f"; a config file comes after -c: -c {cut(word)}"
        if not is_run and os.path.isdir(word):  # noqa: PTH112
            return f"; `lightkit init --data {cut(word)}` writes a config for the images in it"
        return hint_at_run


def _asks_for_help(name: str) -> bool:
    """Return whether an option is help: LightningCLI's own, or that of a key.

    Such as ``--model.help``.
    """
    return name in _HELP or (name.startswith("--") and name.endswith(".help"))


def _joins_file(word: str) -> bool:
    """Return whether a word is ``-c`` with its file, as ``-cFILE`` or ``-c=FILE``."""
    return word.startswith("-c") and len(word) > 2 and not word.startswith("-config")


def _mask(word: str) -> str:
    # here: it loads PyYAML, which the help does without
    from lightkit.config.secrets import mask_line

    return cut(mask_line(word))


def _read_number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{name}: expected a number, got {cut(repr(text))}")
    return value


def _read_count(name: str, text: str, *, least: int) -> int:
    is_count = text.isdecimal() and len(text) <= sys.float_info.max_10_exp
    if not is_count or int(text) < least:
        at_least = f" of at least {least}" if least else ""
        raise ConfigError(f"{name}: expected a whole number{at_least}, got {cut(repr(text))}")
    return int(text)


# -- models that need no config --------------------------------------------------------------------


def refuse_without_effect(
    invocation: Invocation, subject: str, *, options: Sequence[str], keys: Collection[str] = ()
) -> None:
    """Refuse what has no effect on a model that needs no config: layers, keys and some options.

    Args:
        invocation: The command line.
        subject: The model, for the error.
        options: Options without an effect.
        keys: Keys with an effect.

    Raises:
        ConfigError: If one of them is given.
    """
    found = [f"-c {file}" for file in invocation.files]
    found += [flag.text for flag in invocation.overrides if flag.key not in keys or flag.append]
    found += [f"--{name}" for name in options if name in invocation.options]
    found += invocation.passthrough
    if found:
        raise ConfigError(f"{found[0]}: this has no effect on {subject}. Leave it out.")
