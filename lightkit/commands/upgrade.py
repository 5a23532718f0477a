"""`lightkit upgrade`: list the keys of a Lightning 1.x config in today's words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from lightkit.cli.command_line import parse_options
from lightkit.config import shown_path
from lightkit.config.upgrade import Upgrade, list_changes
from lightkit.errors import ConfigError

HELP = """\
usage: lightkit upgrade FILE

List the keys of a Lightning 1.x config with their spelling of today: gpus and tpu_cores, strategies, precision,
arguments that the trainer no longer has or that stand outside of it, paths and arguments of Lightning's classes. Each
change has its line and its reason, as in a diff. The file is not written. A key without an equivalent is an error that
says what to do instead. The exit code is 6 where nothing is to be changed.

lightkit upgrade configs/old.yaml
"""
_NOTHING_TO_DO = 6


def upgrade(args: list[str]) -> int:
    """List the changes of one file, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, the config cannot be read, or it holds keys without an equivalent.
    """
    command = parse_options(HELP, args, most=1)
    file = Path(command.get_positional("one config"))
    name = shown_path(file)
    found = list_changes(file)
    for line in _format_changes(name, found):
        print(line)
    outdated = [other for other in found.extended if _is_outdated(other)]
    if not found.is_needed:
        print(f"{name}: nothing to change")
    for other in outdated:
        print(f"{shown_path(other)} needs it too: lightkit upgrade {shown_path(other)}")
    sys.stdout.flush()
    found.problems.raise_any()
    return 0 if found.is_needed or outdated else _NOTHING_TO_DO


def _format_changes(name: str, found: Upgrade) -> Iterator[str]:
    """Write each change as the place and the reason, the old line, and the new ones."""
    for change in found.changes:
        yield f"{name}:{change.origin.line or 0}: {change.reason}"
        yield f"  - {change.was}"
        for key in change.today:
            yield f"  + {key}"


def _is_outdated(file: Path) -> bool:
    """Return whether a file that the config extends is of Lightning 1.x, too."""
    try:
        return list_changes(file).is_needed
    except ConfigError:  # reported when it is upgraded itself
        return True
