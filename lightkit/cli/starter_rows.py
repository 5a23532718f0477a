"""The config that `lightkit init` writes for a table of numbers, categories and dates."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lightkit.cli.starter_texts import Starter, format_text_config, summarize_text_column
from lightkit.errors import DataError, format_count, join_names, visible
from lightkit.images.splits import split_named
from lightkit.rows.plan import RowSettings, RowSource, choose_target_type
from lightkit.rows.table_rules import TableRules, explain_left_out
from lightkit.rows.values import TypeGuess, missing_column

_TARGETS = ("target", "label", "class", "y", "outcome")
"""Usual names of the column of what is predicted; without one it is the last column."""
_NUM_CLASSES = 10  # that are named
_NUM_COLUMNS = 20  # that are named
_TEST_FRACTION = 0.1  # default of TableData
_LEAST_WORDS = 3.0  # of a cell on average, in a column of texts


class RowSummary(NamedTuple):
    """Columns of a table and what is predicted of them.

    Args:
        target: Column of what is predicted.
        is_usual: Whether it has a usual name.
        guesses: Of all columns.
        types: Types of the columns that may have information on the target.
        texts: Columns of texts of several words, which are no inputs.
        target_type: ``class`` or ``value``.
    """

    target: str
    is_usual: bool
    guesses: Mapping[str, TypeGuess]
    types: Mapping[str, str]
    texts: Sequence[str]
    target_type: str

    @property
    def unused(self) -> dict[str, str]:
        """Reasons by column for those that are no inputs."""
        reasons = dict.fromkeys(self.texts, "it has texts, whose words this model does not read")
        for name, guess in self.guesses.items():
            reason = explain_left_out(name, guess)
            if reason is not None and name not in (self.target, "split", *self.texts):
                reasons[name] = reason
        return reasons


def summarize_rows(path: Path) -> RowSummary:
    """Look at all cells of a table.

    Raises:
        DataError: If it cannot be read, or its target has one value alone.
    """
    names = RowSource(RowSettings({None: str(path)}, target=""), TableRules()).names
    by_name = {name.lower(): name for name in reversed(names)}
    usual = next((by_name[name] for name in _TARGETS if name in by_name), None)
    guesses = _guess_types(path, usual or names[-1])
    texts = [name for name, guess in guesses.items() if _has_texts(guess)]
    target = usual or _choose_target(names, texts)
    if target != (usual or names[-1]):
        guesses = _guess_types(path, target)
    inputs = {name: guess for name, guess in guesses.items() if name not in (target, "split")}
    types = {
        name: str(guess.kind)
        for name, guess in inputs.items()
        if name not in texts and explain_left_out(name, guess) is None
    }
    texts = [name for name in texts if name in inputs]
    target_type = choose_target_type(target, guesses[target])
    return RowSummary(target, usual is not None, guesses, types, texts, target_type)


def _choose_target(names: Sequence[str], texts: Sequence[str]) -> str:
    """Return the last column that has neither texts nor splits, else the last one."""
    others = [name for name in names if name not in ("split", *texts)]
    return others[-1] if others else names[-1]


def _guess_types(path: Path, target: str) -> Mapping[str, TypeGuess]:
    return RowSource(RowSettings({None: str(path)}, target=target), TableRules()).guess_types()


def compose_table_config(
    path: Path, name: str, text: str | None, *, format_comparison: Callable[[int, str], str]
) -> Starter:
    """Write a config for the rows of a table, or for one column of texts.

    Args:
        path: The table.
        name: File name of the config.
        text: Column of the texts; None for the rows, and where these have no inputs but texts.
        format_comparison: Writes the conditions of the gate on a comparison with the champion, for
            a number of samples of the test and their name.

    Raises:
        DataError: If no column has information on the target, or the texts have no classes.
    """
    summary = summarize_rows(path)
    if text is not None and text not in summary.guesses:
        raise DataError(f"--text: {missing_column(text, list(summary.guesses))}")
    if text is None and not summary.types and summary.texts and summary.target_type == "class":
        text = summary.texts[0]
    if text is not None:
        return _compose_text_config(path, name, text, summary, format_comparison)
    if not summary.types:
        of_texts = ""
        if summary.texts:
            of_texts = f" {summary.texts[0]!r} has texts, from which classes alone are predicted."
        raise DataError(
            f"--data {path}: expected columns with information on the target {summary.target!r}; it"
            f" has {join_names(list(summary.guesses))}.{of_texts}"
        )
    return Starter(
        _format_row_config(path, name, summary, format_comparison),
        [
            f"used  {_join(summary.types)}, to predict {_show(summary.target)}",
            *(f"not   {_show(column)}: {why}" for column, why in summary.unused.items()),
            *(f"texts {words}" for words in _list_text_commands(path, summary)),
        ],
    )


def _compose_text_config(
    path: Path,
    name: str,
    text: str,
    summary: RowSummary,
    format_comparison: Callable[[int, str], str],
) -> Starter:
    """Write a config for one column of texts.

    Raises:
        DataError: If the target is the text itself, or has no classes.
    """
    target = summary.target
    if text == target:
        raise DataError(
            f"--text: {text!r} is the column of what is predicted, as the last one or by its name."
            " Name another, or write the config by hand (data.init_args.text and label)."
        )
    if summary.target_type != "class":
        raise DataError(
            f"--text: the target {target!r} has numbers, and TextClassifier predicts classes."
        )
    texts = summarize_text_column(path, text=text, label=target)
    comparison = format_comparison(texts.splits.get("test", 0), "text")
    others = [each for each in summary.guesses if each not in (text, target, "split")]
    notes = [f"used  {_show(text)}, to predict {_show(target)}"]
    if others:
        notes.append(f"not   {_join(others)}")
    return Starter(format_text_config(texts, name, comparison=comparison), notes)


def _format_row_config(
    path: Path,
    name: str,
    summary: RowSummary,
    format_comparison: Callable[[int, str], str],
) -> str:
    """Write a config for rows, of at most 12 lines but for comments."""
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
    reason = ""
    if not summary.is_usual:
        reason = "   # the last column; name another if it is not what you predict"
        if summary.target != [*summary.guesses][-1]:
            reason = "   # the last but texts and splits; name another if this is not it"
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
    notes = "".join(
        f"# Not used: {_show(column)}; {why}.\n" for column, why in summary.unused.items()
    )
    for command in _list_text_commands(path, summary):
        notes += f"# To learn from these texts alone:\n#   {command}\n"
    unused = [each for each in summary.unused if each]
    ignored = f"    ignore: {json.dumps(unused, ensure_ascii=False)}\n" if unused else ""
    return f"""\
# {found}; the target has {kind}.
#   lightkit fit -c {shlex.quote(name)}
# Used: {_join(summary.types)}.
{notes}extends: [lightkit:tabular]
data:
  init_args:
    path: {json.dumps(path.as_posix(), ensure_ascii=False)}
    target: {json.dumps(summary.target, ensure_ascii=False)}{reason}
{ignored}{gate}"""


def _show(name: str) -> str:
    """Write the name of a column on one line."""
    return visible(name, in_line=True) or repr(name)


def _join(names: Iterable[str]) -> str:
    return join_names([_show(name) for name in names], most=_NUM_COLUMNS)


def _list_text_commands(path: Path, summary: RowSummary) -> list[str]:
    """List the commands that write a config for each column of texts, where there are classes."""
    if summary.target_type != "class":
        return []
    return [
        shlex.join(["lightkit", "init", "--data", str(path), "--text", name])
        for name in summary.texts
        if name.isprintable()
    ]


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
