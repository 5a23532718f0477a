"""`lightkit schema`: the JSON Schema of a config file, for editors."""

from __future__ import annotations

import json
from pathlib import Path

from lightkit.cli.config_loader import NAMED_CLASSES, STAGES
from lightkit.config import near, shown_path
from lightkit.config.json_schema import file_schema
from lightkit.config.schema import load_schema
from lightkit.errors import ConfigError
from lightkit.runs.summary import SUMMARY_SCHEMA

__all__ = ["schema"]

_HELP = """\
usage: lightkit schema [-o FILE] [--summary]

Print the JSON Schema of a config file, by which an editor completes keys and class names, shows what they mean, and
marks what is wrong. Classes of your own are taken as they are.

  -o FILE    write it there
  --summary  print that of summary.json instead, the file in which a run says how it ended

With an editor that has the YAML language server, such as VS Code with Red Hat's YAML extension:

  lightkit schema -o lightkit.schema.json

and as first line of a config:

  # yaml-language-server: $schema=lightkit.schema.json
"""


def schema(words: list[str]) -> int:
    """Print the schema or write it to a file, and return the exit code.

    Args:
        words: The command line after the command.

    Raises:
        ConfigError: If a word is no option of this command, or the file cannot be written.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    is_of_summary = "--summary" in words
    file = _file_of([word for word in words if word != "--summary"])
    text = SUMMARY_SCHEMA.read_text(encoding="utf-8") if is_of_summary else _schema_of_config()
    if file is None:
        print(text, end="")
        return 0
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"schema: {shown_path(file)} cannot be written: {error.strerror or error}") from None
    if is_of_summary:
        print(f"{shown_path(file)} is written")
        return 0
    print(f"{shown_path(file)} is written; as first line of a config:")
    print(f"# yaml-language-server: $schema={shown_path(file)}")
    return 0


def _schema_of_config() -> str:
    described = file_schema(load_schema(), default_classes=NAMED_CLASSES, subcommands=STAGES)
    return json.dumps(described, ensure_ascii=False) + "\n"


def _file_of(words: list[str]) -> Path | None:
    """Give the file that is named, the last of several."""
    file = None
    waiting = iter(words)
    for word in waiting:
        if word in ("-o", "--output"):
            file = next(waiting, "")
        elif word.startswith(("-o=", "--output=")):
            file = word.partition("=")[2]
        else:
            says = f"schema: unexpected argument {word!r}{near(word, ('-o', '--output', '--summary', '--help'))}"
            raise ConfigError(f"{says}\nusage: lightkit schema [-o FILE] [--summary]")
        if not file:
            raise ConfigError(f"schema: expected a file after {word}, got the end of the command line")
    return None if file is None else Path(file)
