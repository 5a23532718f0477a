"""Arguments and classes as text of at most 100 columns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["arguments_text", "choices_text", "paragraph"]

_WIDTH = 100  # columns
_INDENT = 6
_WIDEST_NAME = 30


def arguments_text(arguments: Mapping[str, Mapping[str, Any]]) -> str:
    """Write each argument with its type, its default and what it is for.

    Args:
        arguments: Descriptions as in the catalogue, by the arguments' names.
    """
    if not arguments:
        return "  (no arguments)\n"
    width = min(_WIDEST_NAME, max(map(len, arguments)))
    return "".join(_argument(name, argument, width) for name, argument in arguments.items())


def _argument(name: str, argument: Mapping[str, Any], width: int) -> str:
    default = "required" if argument.get("required") else f"default: {_valued(argument.get('default'))}"
    head = f"  {name:{width}}  "
    typed = textwrap.fill(
        f"{argument['shown']}; {default}",
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * (width + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{typed}\n{paragraph(argument.get('says') or '', _INDENT)}"


def choices_text(choices: Iterable[tuple[str, str]]) -> str:
    """Write each name with what it stands for, one line each, cut at its end where that is long."""
    each = list(choices)
    width = min(_WIDEST_NAME, max((len(name) for name, _ in each), default=0))
    return "".join(f"{_cut(f'  {name:{width}}  {_sentence(says)}'.rstrip())}\n" for name, says in each)


def paragraph(text: str, indent: int = 0) -> str:
    """Wrap a text; nothing where it is empty."""
    margin = " " * indent
    filled = textwrap.fill(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{filled}\n" if filled else ""


def _sentence(text: str) -> str:
    """Take the first sentence."""
    first, stop, _ = " ".join(text.split()).partition(". ")
    return (first if stop else first.removesuffix(".")).strip()


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3].rstrip()}..."


def _valued(value: Any) -> str:
    """Write a default as it stands in a file."""
    return value if isinstance(value, str) and value else json.dumps(value)
