"""`lightkit upgrade`: rewrite a config of Lightning 1.x."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from lightkit.cli.command_line import Invocation
from lightkit.config import shown_path
from lightkit.config.upgrade import Upgraded, upgrade_file
from lightkit.errors import ConfigError
from lightkit.runs.files import write_text


def upgrade(invocation: Invocation) -> int:
    """Upgrade one file, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, the config cannot be read or upgraded, or the new one cannot be written.
    """
    old = Path(invocation.get_input("one config"))
    output = invocation.options.get("output")
    new = None if output is None else Path(output)
    if new is not None and new.is_dir():
        raise ConfigError(f"upgrade: --output takes the name of a file, and {shown_path(new)} is a folder")
    is_in_place = new is not None and new.exists() and old.exists() and new.samefile(old)
    if new is not None and not invocation.has("force") and new.is_file() and not is_in_place:
        raise ConfigError(f"upgrade: {shown_path(new)} exists; use --force to replace it, or -o with another name")
    upgraded = upgrade_file(old)
    if new is None:
        print(upgraded.text, end="")
        sys.stdout.flush()
    elif upgraded.changes or not is_in_place:
        try:
            write_text(new.resolve(), upgraded.text)  # a link stays one
        except OSError as error:
            raise ConfigError(f"upgrade: {shown_path(new)} cannot be written: {error.strerror or error}") from None
    for line in _format_changes(old, new, upgraded):
        print(line, file=sys.stderr if new is None else sys.stdout)
    return 0


def _format_changes(old: Path, new: Path | None, upgraded: Upgraded) -> Iterator[str]:
    name = shown_path(old)
    for line, change in upgraded.changes:
        yield f"{name}:{line}: {change}"
    if not upgraded.changes:
        yield f"{name}: nothing to change"
    elif new is not None:
        count = len(upgraded.changes)
        yield f"{count} change{'s' if count > 1 else ''}, written to {shown_path(new)}"
    for other in upgraded.extended:
        try:
            is_outdated = bool(upgrade_file(other).changes)
        except ConfigError:  # it cannot be upgraded as it is
            is_outdated = True
        if is_outdated:
            yield f"{shown_path(other)} needs it too: lightkit upgrade {shown_path(other)}"
