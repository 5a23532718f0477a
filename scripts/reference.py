"""Write docs/reference/commands.md and keys.md from the help of the commands; with --check, compare only."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

from lightkit.main import COMMANDS, main

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
SECTIONS = ("run", "accelerator", "launch", "watchdog", "gate", "trainer", "callbacks", "logger")


def help_of(*arguments: str) -> str:
    """Return what a command prints for its help, 100 columns wide."""
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(list(arguments))
    return out.getvalue().strip()


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    commands = [(name, help_of(name, "--help")) for name in COMMANDS]
    keys = [(name, help_of("fit", "--help", name)) for name in SECTIONS]
    note = "`python scripts/reference.py` writes this page from the help of the commands."
    return {
        f"{title.lower()}.md": "\n\n".join(
            [f"# {title}", note, *(f"## {name}\n\n```\n{text}\n```" for name, text in entries)]
        )
        + "\n"
        for title, entries in (("Commands", commands), ("Keys", keys))
    }


if __name__ == "__main__":
    old = {name: (FOLDER / name).read_text(encoding="utf-8") for name in pages() if (FOLDER / name).is_file()}
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if old == pages() else "docs/reference is not up to date: run python scripts/reference.py")
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
