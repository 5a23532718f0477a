"""`lightkit upgrade`: list the keys of a Lightning 1.x config in today's words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from lightkit.cli.command_line import Invocation
from lightkit.config import shown_path
from lightkit.config.upgrade import Upgrade, list_changes
from lightkit.errors import ConfigError

_NOTHING_TO_DO = 6


def upgrade(invocation: Invocation) -> int:
    """List the changes of one file, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, the config cannot be read, or it holds keys without an
            equivalent.
    """
    file = Path(invocation.get_input("one config"))
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
