"""`lightkit configs`: list, show and copy the configs that come with lightkit."""

from __future__ import annotations

import os
from pathlib import Path

from lightkit.cli.command_line import Invocation
from lightkit.config.packaged import PREFIX, find_config, packaged_configs
from lightkit.errors import ConfigError, explain_full_disk
from lightkit.reports.text_table import format_table
from lightkit.runs import write_text


def configs(invocation: Invocation) -> int:
    """List, print or copy packaged configs, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or the copy's file exists.
    """
    for name in ("output", "force"):
        if invocation.has(name) and invocation.inputs[:1] != ("copy",):
            raise invocation.error(f"--{name} goes with `copy NAME`, which alone writes a file")
    if not invocation.inputs:
        rows = [
            (f"{PREFIX}{name}", _first_comment(file)) for name, file in packaged_configs().items()
        ]
        print(format_table(("config", "content"), rows))
        return 0
    action, *names = invocation.inputs
    if action not in ("show", "copy") or len(names) != 1:
        raise invocation.error(
            f"expected `show NAME` or `copy NAME`, got {' '.join(invocation.inputs)!r}"
        )
    source = find_config(f"{PREFIX}{names[0].removeprefix(PREFIX)}")
    text = source.read_text(encoding="utf-8")
    if action == "show":
        print(text, end="")
        return 0
    _copy(
        text, Path(invocation.options.get("output", source.name)), replaces=invocation.has("force")
    )
    return 0


def _copy(text: str, target: Path, *, replaces: bool) -> None:
    """Write a config into a file.

    Raises:
        ConfigError: If the file exists and is not to be replaced, or cannot be written.
    """
    is_file = os.path.isfile(target)  # noqa: PTH113 (False for a name that is too long)
    if os.path.lexists(target) and not (replaces and is_file):
        force = ", --force replaces it" if is_file else ""
        raise ConfigError(f"{target} exists; --output FILE names another file{force}")
    try:
        # whole or not at all, as half of it may be a right config; a link stays one
        with explain_full_disk():
            write_text(target.resolve(), text)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
    print(f"wrote {target}")


def _first_comment(file: Path) -> str:
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") else ""
