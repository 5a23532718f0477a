"""The help of a section, a key, a class or a named entry, as text of at most 100 columns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from lightkit.cli.argument_lookup import find_description, list_class_names
from lightkit.cli.validation import validate_signatures
from lightkit.config import NAMED_CLASSES, Origin, Problems, Resolved, near
from lightkit.config.schedule import COUNTS
from lightkit.config.schema import (
    NO_DEFAULT,
    Argument,
    ClassDescription,
    ConfigSchema,
    describe_type,
    load_schema,
)
from lightkit.config.tree import MappingNode, graft
from lightkit.errors import ConfigError

_WIDTH = 100  # columns
_MAX_NAME = 30
_AUTO = """\
auto takes the value of a table by hardware (documentation, page Hardware): nothing is measured. The
run's header and lightkit explain show the values. lightkit tune measures what is fastest on
this machine, and finds a batch_size and a learning_rate.
"""


def format_topic(command: str, topics: Sequence[str]) -> str:
    """Write the help of a section, of a key or class in it, or of a key at the top of a config.

    Args:
        command: The stage that is asked about.
        topics: Words after `--help`: a section, and a key or class in it; one word with a dot is
            both.

    Raises:
        ConfigError: If there is no such topic.
    """
    schema = load_schema()
    section, *inside = _split_topics(topics, schema)
    if section == "all" or len(inside) > 1:
        words = " ".join([section, *inside[:-1]])
        raise ConfigError(f"--help {words}: expected nothing after it, got {inside[-1]!r}")
    key = next(iter(inside), None)
    if section in schema.bases and key is not None:
        return _format_class(command, section, key)
    if section in schema.bases:
        return _format_classes(command, section)
    if section in schema.sections:
        return _format_section(section, key, schema.sections[section])
    if section in schema.top:
        return _format_arguments({section: schema.top[section]})
    names = schema.section_names
    keys = chain(*(each.arguments for each in schema.sections.values()))
    hint = near(section, [*names, *schema.top, "all"]) or near(section, keys)
    raise ConfigError(
        f"--help: there is no section {section!r}{hint}\nSections: {', '.join(names)}; or all."
    )


def _format_section(section: str, key: str | None, described: ClassDescription) -> str:
    """Write the help of a section of plain keys, or of one key in it.

    Raises:
        ConfigError: If there is no such key.
    """
    arguments = described.arguments
    shows_types = section != "accelerator"  # whose values may be words and numbers
    if key is not None:
        if key not in arguments:
            raise ConfigError(f"--help {section}: there is no key {key!r}{near(key, arguments)}")
        return _format_arguments({f"{section}.{key}": arguments[key]}, shows_types=shows_types)
    first = next(iter(arguments))
    text = "Lightning's Trainer" if section == "trainer" else described.help
    usage = f"--{section}.{first}=VALUE, or {section}: {{{first}: VALUE}} in a file"
    more = f"\n{_AUTO}" if section == "accelerator" else ""
    keys = _format_arguments(arguments, shows_types=shows_types)
    return f"{_wrap(f'{section}: {text}')}\n{usage}\n\n{keys}{more}"


def _split_topics(topics: Sequence[str], schema: ConfigSchema) -> list[str]:
    """Split ``trainer.max_epochs`` into a section and a key.

    Find the section of a key or class that stands alone.
    """
    first, *others = topics
    section, dot, key = first.partition(".")
    if dot and section in schema.section_names:
        return [section, key, *others]
    if others or first in schema.section_names or first in schema.top:
        return [*topics]
    found = _find_section(first, schema)
    return [first] if found is None else [found, first]


def _find_section(word: str, schema: ConfigSchema) -> str | None:
    """Find the section of a key, a class or an entry; None where there is none of this name."""
    for name, section in schema.sections.items():
        if word in section.arguments:
            return name
    for name, bases in schema.bases.items():
        found = schema.find(word, bases)
        is_class = found is not None and {*bases} & {*found.bases}
        if is_class or word in NAMED_CLASSES.get(name, {}):
            return name
    return None


def _format_classes(command: str, section: str) -> str:
    schema = load_schema()
    entries = NAMED_CLASSES.get(section, {})
    classes = _format_choices(list_class_names(section))
    if entries:
        how = f"{section}: a mapping of entries, each a name with a class; null takes one out\n\n"
        how += (
            f"--{section}.NAME.KEY=VALUE, or {section}: {{NAME: {{init_args:"
            f" {{KEY: VALUE}}}}}} in a file\n\n"
        )
        text = {}
        for name, path in entries.items():
            known = schema.find(path)
            text[name] = f"{path.rpartition('.')[2]}: {'' if known is None else known.help}"
        how += (
            f"names that stand for a class:\n{_format_choices(text.items())}\nclasses for entries"
            " of any name:\n"
        )
    else:
        how = (
            f"{section}: a class with its arguments\n\n--{section}=CLASS"
            f" --{section}.KEY=VALUE\nin a file: "
        )
        how += f"{section}: {{class_path: CLASS, init_args: {{KEY: VALUE}}}}\n\n"
        if section == "lr_scheduler":
            how += "next to class_path:\n"
            how += "  interval   step or epoch (the default): when the schedule is stepped\n"
            how += "  frequency  steps or epochs between two of its steps\n"
            how += f"{', '.join(COUNTS)}: auto counts the steps of the training\n\n"
    own = (
        "  my_module.Mine: a class of your own, in the working directory or an installed package\n"
    )
    example = next(iter(entries), "CLASS")
    return (
        f"{how}{classes}{own}\nlightkit {command} --help {section}"
        f" {example}: the arguments of one\n"
    )


def _format_class(command: str, section: str, name: str) -> str:
    """Write the help of a class, by its entry's name, its short name or its path.

    Only an unknown one is imported.

    Raises:
        ConfigError: If there is no such class, or it does not belong to the section, as in a
            config.
    """
    entries = NAMED_CLASSES.get(section, {})
    given = {"class_path": entries.get(name, name)}
    tree = graft({section: {name: given} if entries else given}, Origin("default"))
    assert isinstance(tree, MappingNode)
    problems = Problems()
    # arguments are not missing here
    validate_signatures(Resolved(tree, is_incomplete=True), problems)
    if (error := problems.error()) is not None:
        raise error.reworded(lambda text: f"--help: {text}")
    described = find_description(given["class_path"], load_schema().bases[section])
    if described is None:
        raise ConfigError(f"--help: {name} is not a class whose arguments can be listed")
    arguments = described.arguments
    entry = f"{section}.{name if name in entries else 'NAME'}" if entries else section
    usage = "" if name in entries else f" --{entry}={name}"
    usage += f" --{entry}.{next(iter(arguments))}=VALUE" if arguments else ""
    more = (
        "\nIt also takes keys that are not listed here, and hands them on.\n"
        if described.open
        else ""
    )
    head = f"{described.path}\n{_wrap(described.help)}"
    return f"{head}\nlightkit {command}{usage}\n\n{_format_arguments(arguments)}{more}"


def _format_arguments(arguments: Mapping[str, Argument], *, shows_types: bool = True) -> str:
    """Write each argument with its type, its default and its help."""
    width = min(_MAX_NAME, max(map(len, arguments), default=0))
    lines = []
    for name, argument in arguments.items():
        texts = [argument.help]
        if shows_types:
            value = None if argument.default is NO_DEFAULT else argument.default
            value = value if isinstance(value, str) and value else json.dumps(value)  # as in a file
            default = "required" if argument.required else f"default: {value}"
            texts.insert(0, f"{describe_type(argument.schema)}; {default}")
        lines += [
            _wrap(texts[0], width + 4, f"  {name:{width}}  "),
            *(_wrap(text, 6) for text in texts[1:]),
        ]
    return "".join(lines) or "  (no arguments)\n"


def _format_choices(choices: Iterable[tuple[str, str]]) -> str:
    """Write each name with the first sentence of its help, a line each, cut where that is long."""
    each = list(choices)
    width = min(_MAX_NAME, max((len(name) for name, _ in each), default=0))
    lines = []
    for name, text in each:
        sentence = " ".join(text.split()).partition(". ")[0].removesuffix(".")
        line = f"  {name:{width}}  {sentence}".rstrip()
        lines.append(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3].rstrip()}...")
    return "".join(f"{line}\n" for line in lines)


def _wrap(text: str, indent: int = 0, head: str | None = None) -> str:
    """Wrap a text, its first line after ``head``; nothing where it is empty."""
    margin = " " * indent
    filled = textwrap.fill(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=margin if head is None else head,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{filled}\n" if filled else ""
