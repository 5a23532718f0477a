"""What follows `--help`, found among sections, keys, classes and entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightkit.cli.help.classes import entries_of, imported, names_of, path_and_description, section_of
from lightkit.cli.help.hardware import ACCELERATOR, AUTO, TITLE
from lightkit.cli.help.table import arguments_text, choices_text, paragraph
from lightkit.config import near
from lightkit.config.schema import ConfigSchema, load_schema
from lightkit.errors import ConfigError

__all__ = ["topic_text"]


def topic_text(command: str, topics: Sequence[str]) -> str:
    """Give the help of a section, of a key or class in it, or of a key that stands by itself.

    Args:
        command: The stage that is asked about.
        topics: What stands after `--help`: a section, and what in it; one word with a dot is both.

    Raises:
        ConfigError: If there is no such topic.
    """
    catalogue = load_schema()
    section, *inside = _parted(topics, catalogue)
    if section == "all":
        raise ConfigError(f"--help all: expected nothing after it, got {inside[0]!r}")
    if len(inside) > 1:
        raise ConfigError(f"--help {section} {inside[0]}: expected nothing after it, got {inside[1]!r}")
    if section in catalogue.data["bases"]:
        if inside:
            return _class_text(command, section, inside[0], catalogue)
        return _choices_text(command, section, catalogue)
    if section == "accelerator":
        return _hardware_text(inside, catalogue)
    if section in catalogue.data["top"] and not inside:
        return arguments_text({section: catalogue.data["top"][section]})
    if section in catalogue.data["sections"]:
        return _section_text(section, _described(section, catalogue), inside)
    raise _unknown(section, catalogue)


def _parted(topics: Sequence[str], catalogue: ConfigSchema) -> list[str]:
    """Part ``trainer.max_epochs`` into a section and a key; find the section of a class that stands alone."""
    first, *others = topics
    section, dot, key = first.partition(".")
    if dot and section in _sections(catalogue):
        return [section, key, *others]
    if others or first in _sections(catalogue) or first in catalogue.data["top"]:
        return [*topics]
    return [*(section for section in _holding(first, catalogue)[:1]), first]


def _holding(word: str, catalogue: ConfigSchema) -> list[str]:
    """List the sections that have a word for a key, for the name of an entry, or for a class."""
    described = catalogue.data["sections"]
    found = [section for section in described if word in described[section]["arguments"]]
    for section, bases in catalogue.data["bases"].items():
        is_class = "." not in word and catalogue.path_of(word, bases) is not None
        found += [section] if is_class or word in entries_of(section) else []
    if "." in word and (own := section_of(word, catalogue)) is not None:
        found.append(own)
    return found


def _sections(catalogue: ConfigSchema) -> list[str]:
    return [*catalogue.data["sections"], *catalogue.data["bases"]]


def _unknown(word: str, catalogue: ConfigSchema) -> ConfigError:
    sections = _sections(catalogue)
    words = [*sections, *catalogue.data["top"], "all"]
    keys = [key for section in catalogue.data["sections"].values() for key in section["arguments"]]
    hint = near(word, words) or near(word, keys)
    return ConfigError(f"--help: there is no section {word!r}{hint}\nSections: {', '.join(sections)}; or all.")


def _described(section: str, catalogue: ConfigSchema) -> Mapping[str, Any]:
    """Give what is known of a section; of a trainer that is another than the one that was described, from itself."""
    if section == "trainer" and not catalogue.counts("pytorch_lightning"):
        return imported("pytorch_lightning.Trainer")
    described: Mapping[str, Any] = catalogue.data["sections"][section]
    return described


def _section_text(section: str, described: Mapping[str, Any], inside: Sequence[str]) -> str:
    arguments = described["arguments"]
    if inside:
        if inside[0] not in arguments:
            raise ConfigError(f"--help {section}: there is no key {inside[0]!r}{near(inside[0], arguments)}")
        return arguments_text({f"{section}.{inside[0]}": arguments[inside[0]]})
    key = next(iter(arguments))
    usage = f"--{section}.{key}=VALUE, or {section}: {{{key}: VALUE}} in a file"
    says = "Lightning's Trainer" if section == "trainer" else described["says"]
    return f"{section}: {says}\n\n{usage}\n\n{arguments_text(arguments)}"


def _hardware_text(inside: Sequence[str], catalogue: ConfigSchema) -> str:
    if inside and inside[0] not in ACCELERATOR:
        raise ConfigError(f"--help accelerator: there is no key {inside[0]!r}{near(inside[0], ACCELERATOR)}")
    if inside:
        says = catalogue.data["sections"]["accelerator"]["arguments"].get(inside[0], {}).get("says", "")
        return f"  accelerator.{inside[0]}  {ACCELERATOR[inside[0]]}\n{paragraph(says, 6)}"
    usage = "--accelerator.gpus=2, or accelerator: {gpus: 2} in a file; the trainer's own keys do the same"
    width = max(map(len, ACCELERATOR))
    keys = "".join(f"  {key:{width}}  {says}\n" for key, says in ACCELERATOR.items())
    return f"accelerator: {TITLE}\n\n{usage}\n\n{keys}\n{AUTO}"


def _choices_text(command: str, section: str, catalogue: ConfigSchema) -> str:
    classes = choices_text(names_of(section, catalogue))
    entries = entries_of(section)
    if entries:
        says = {name: f"{path.rpartition('.')[2]}: {_says(path, catalogue)}" for name, path in entries.items()}
        how = f"{section}: a mapping of entries, each a name with a class; null takes one out\n\n"
        how += f"--{section}.NAME.KEY=VALUE, or {section}: {{NAME: {{init_args: {{KEY: VALUE}}}}}} in a file\n\n"
        how += f"names that stand for a class:\n{choices_text(says.items())}\nclasses for entries of any name:\n"
    else:
        how = f"{section}: a class with its arguments\n\n--{section}=CLASS --{section}.KEY=VALUE\nin a file: "
        how += f"{section}: {{class_path: CLASS, init_args: {{KEY: VALUE}}}}\n\n"
    own = "  my_module.Mine: a class of your own, in the working directory or an installed package\n"
    example = next(iter(entries), "CLASS")
    return f"{how}{classes}{own}\nlightkit {command} --help {section} {example}: the arguments of one\n"


def _says(path: str, catalogue: ConfigSchema) -> str:
    known = catalogue.path_of(path)
    return "" if known is None else str(catalogue.classes[known]["says"])


def _class_text(command: str, section: str, name: str, catalogue: ConfigSchema) -> str:
    path, described = path_and_description(section, name, catalogue)
    is_entry = name in entries_of(section)
    entry = f"{section}.{name if is_entry else 'NAME'}" if entries_of(section) else section
    key = next(iter(described["arguments"]), None)
    usage = "" if is_entry else f"--{entry}={name}"
    usage += f" --{entry}.{key}=VALUE" if key else ""
    more = "\nIt also takes keys that are not listed here, and hands them on.\n" if described.get("open") else ""
    head = f"{path}\n{paragraph(described['says'])}"
    return f"{head}\nlightkit {command} {usage.strip()}\n\n{arguments_text(described['arguments'])}{more}"
