"""The summary of a step of a CI job: Markdown that GitHub and its likes show on the page of the job."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["STEP_SUMMARY", "add_step_summary", "markdown_table"]

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Variable that names the file which the CI system reads."""


def add_step_summary(markdown: str, environ: Mapping[str, str] = os.environ) -> None:
    """Append to the file that ``GITHUB_STEP_SUMMARY`` names, where it is set; a file that refuses is warned of.

    Args:
        markdown: Text without secrets; it begins a paragraph of its own.
        environ: Environment variables.
    """
    if not (name := environ.get(STEP_SUMMARY)):
        return
    try:
        with Path(name).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{markdown.strip()}\n\n")
    except OSError as error:
        says = f"{STEP_SUMMARY}: {name} cannot be written ({error.strerror or error}); the step has no summary"
        logging.getLogger("lightkit").warning(says)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Give a table in Markdown; what would end a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
