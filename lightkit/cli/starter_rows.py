"""The config that `lightkit init` writes for a table of numbers, categories and dates."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from lightkit.errors import DataError, format_count, join_names
from lightkit.images.splits import split_named
from lightkit.rows.plan import RowSettings, RowSource, choose_target_type
from lightkit.rows.table_rules import TableRules, explain_left_out
from lightkit.rows.values import TypeGuess

_TARGETS = ("target", "label", "class", "y", "outcome")
"""Usual names of the column of what is predicted; without one it is the last column."""
_NUM_CLASSES = 10  # that are named
_TEST_FRACTION = 0.1  # default of TableData
_LEAST_WORDS = 3.0  # of a cell on average, in a column of texts


class RowSummary(NamedTuple):
    """Columns of a table and what is predicted of them.

    Args:
        target: Column of what is predicted.
        is_usual: Whether it has a usual name.
        guesses: Of all columns.
        types: Types of the columns that may have information on the target.
        target_type: ``class`` or ``value``.
    """

    target: str
    is_usual: bool
    guesses: Mapping[str, TypeGuess]
    types: Mapping[str, str]
    target_type: str


def summarize_rows(path: Path) -> RowSummary:
    """Look at all cells of a table.

    Raises:
        DataError: If it cannot be read, or its target has one value alone.
    """
    source = RowSource(RowSettings({None: str(path)}, target=""), TableRules())
    names = source.names
    by_name = {name.lower(): name for name in reversed(names)}
    usual = next((by_name[name] for name in _TARGETS if name in by_name), None)
    target = usual or names[-1]
    guesses = RowSource(RowSettings({None: str(path)}, target=target), TableRules()).guess_types()
    others = {name: guess for name, guess in guesses.items() if name not in (target, "split")}
    types = {
        name: str(guess.kind)
        for name, guess in others.items()
        if explain_left_out(name, guess) is None
    }
    if not types:
        raise DataError(
            f"--data {path}: expected columns with information on the target {target!r}; it has"
            f" {join_names(names)}."
        )
    return RowSummary(
        target, usual is not None, guesses, types, choose_target_type(target, guesses[target])
    )


def compose_row_config(
    path: Path, name: str, *, format_comparison: Callable[[int, str], str]
) -> str:
    """Write a config for a table, of at most 12 lines but for comments.

    Args:
        path: The table.
        name: File name of the config.
        format_comparison: Writes the conditions of the gate on a comparison with the champion, for
            a number of samples of the test and their name.
    """
    summary = summarize_rows(path)
    guess = summary.guesses[summary.target]
    of_types = Counter(summary.types.values())
    words = {
        "number": ("number", "numbers"),
        "category": ("category", "categories"),
        "date": ("date", "dates"),
    }
    counted = [
        format_count(of_types[kind], *both) for kind, both in words.items() if of_types[kind]
    ]
    found = f"{format_count(guess.num_rows, 'row')} with {join_names(counted)}"
    largest, num_largest = max(guess.values.items(), key=lambda item: item[1])
    is_class = summary.target_type == "class"
    reason = (
        ""
        if summary.is_usual
        else "   # the last column; name another if it is not what you predict"
    )
    kind = "values, in their own units"
    gate = ""
    num_test = _count_test_rows(summary)
    if is_class:
        classes = sorted(guess.values.items(), key=lambda item: -item[1])[:_NUM_CLASSES]
        kind = f"classes: {', '.join(f'{each} {number}' for each, number in classes)}"
    if is_class and num_test:
        share = num_largest / guess.num_values
        bound = round((1 + share) / 2, 2)
        chance = (
            f"always answering {largest!r} gives {share:.2f} on all rows; halfway from there to 1"
        )
        gate = f"""\
gate:   # for lightkit gate, promote and retrain
  metric: test/accuracy
  min: {bound}   # {chance}
{format_comparison(num_test, "row")}"""
    return f"""\
# {found}; the target has {kind}.
#   lightkit fit -c {shlex.quote(name)}
{_format_notes(path, summary)}extends: [lightkit:tabular]
data:
  init_args:
    path: {json.dumps(path.as_posix(), ensure_ascii=False)}
    target: {json.dumps(summary.target, ensure_ascii=False)}{reason}
{gate}"""


def _format_notes(path: Path, summary: RowSummary) -> str:
    """Write comments on the columns that the model does not have, and on those of texts.

    Each a line.
    """
    lines = []
    for name, guess in summary.guesses.items():
        reason = explain_left_out(name, guess)
        if name in (summary.target, "split") or (reason is None and not _has_texts(guess)):
            continue
        if _has_texts(guess):
            arguments = {"path": path.as_posix(), "text": name, "label": summary.target}
            given = ", ".join(
                f"{key}: {json.dumps(value, ensure_ascii=False)}"
                for key, value in arguments.items()
            )
            lines.append(
                f"# Column {name!r} has texts, whose words this model does not read. To learn from"
                " them alone:"
            )
            lines.append("#   model: TextClassifier")
            lines.append(f"#   data: {{class_path: TextData, init_args: {{{given}}}}}")
        else:
            lines.append(f"# Column {name!r} is left out: {reason}.")
    return "".join(f"{line}\n" for line in lines)


def _has_texts(guess: TypeGuess) -> bool:
    """Return whether a column has texts of several words, most of them different."""
    num_words = sum(len(value.split()) for value in guess.values)
    are_different = guess.is_many or 2 * len(guess.values) > guess.num_values
    return (
        guess.kind == "category" and are_different and num_words >= _LEAST_WORDS * len(guess.values)
    )


def _count_test_rows(summary: RowSummary) -> int:
    """Count the rows of the test.

    Those that a column ``split`` names, else about the share that is kept for it.
    """
    splits = summary.guesses.get("split")
    if splits is None:
        return round(summary.guesses[summary.target].num_rows * _TEST_FRACTION)
    return sum(number for name, number in splits.values.items() if split_named(str(name)) == "test")
