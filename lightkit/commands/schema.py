"""`lightkit schema`: the JSON Schema of a config file, for editors."""

from __future__ import annotations

import json
from pathlib import Path

from lightkit.cli.command_line import parse_options
from lightkit.cli.config_loader import NAMED_CLASSES, STAGES
from lightkit.config import shown_path
from lightkit.config.json_schema import file_schema
from lightkit.config.schema import load_schema
from lightkit.errors import ConfigError
from lightkit.runs.summary import SUMMARY_SCHEMA

HELP = """\
usage: lightkit schema [-o FILE] [--summary]

Print the JSON Schema of a config file, by which an editor completes keys and class names, shows what they mean, and
marks what is wrong. Classes of your own are taken as they are.

  --output FILE  write it there
  --summary      print that of summary.json instead, the file with the end of a run

With an editor that has the YAML language server, such as VS Code with Red Hat's YAML extension:

  lightkit schema -o lightkit.schema.json

and as first line of a config:

  # yaml-language-server: $schema=lightkit.schema.json
"""


def schema(args: list[str]) -> int:
    """Print the schema or write it to a file, and return the exit code.

    Args:
        args: The command line after the command.

    Raises:
        ConfigError: If a word is no option of this command, or the file cannot be written.
    """
    line = parse_options(HELP, args)
    is_of_summary = "--summary" in line.options
    if is_of_summary:
        text = SUMMARY_SCHEMA.read_text(encoding="utf-8")
    else:
        config_schema = file_schema(load_schema(), default_classes=NAMED_CLASSES, subcommands=STAGES)
        text = json.dumps(config_schema, ensure_ascii=False) + "\n"
    name = line.options.get("--output")
    if name is None:
        print(text, end="")
        return 0
    file = Path(name)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"schema: {shown_path(file)} cannot be written: {error.strerror or error}") from None
    if is_of_summary:
        print(f"{shown_path(file)} is written")
    else:
        print(f"{shown_path(file)} is written; as first line of a config:")
        print(f"# yaml-language-server: $schema={shown_path(file)}")
    return 0
