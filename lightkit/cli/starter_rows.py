"""The config that `lightkit init` writes for a table of numbers, categories and dates."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lightkit.cli.starter import Classes, Starter, count_splits, format_json
from lightkit.cli.starter_texts import summarize_text_column
from lightkit.errors import DataError, format_count, join_names, visible
from lightkit.images.label_table import find_usual
from lightkit.rows.plan import RowSettings, RowSource, choose_target_type
from lightkit.rows.reader import RowTable
from lightkit.rows.table_rules import TableRules, explain_left_out
from lightkit.rows.values import TypeGuess, missing_column

_TARGETS = ("target", "label", "class", "y", "outcome")
"""Usual names of the column of what is predicted; without one it is the last column."""
_NOUNS = {
    "number": ("number", "numbers"),
    "category": ("category", "categories"),
    "date": ("date", "dates"),
}
_NUM_CLASSES = 10  # that are named
_NUM_COLUMNS = 20  # that are named
_LEAST_WORDS = 3.0  # of a cell on average, in a column of texts


@dataclass(frozen=True)
class RowSummary:
    """Columns of a table and what is predicted of them.

    Args:
        path: The table.
        target: Column of what is predicted.
        target_type: ``class`` or ``value``.
        guesses: Of all columns.
    """

    path: Path
    target: str
    target_type: str
    guesses: Mapping[str, TypeGuess]

    @cached_property
    def _others(self) -> list[str]:
        """Columns besides those of the target and of the splits."""
        return [name for name in self.guesses if name not in (self.target, "split")]

    @cached_property
    def _texts(self) -> list[str]:
        """Columns of texts of several words, which are no inputs."""
        return [name for name in self._others if _has_texts(self.guesses[name])]

    @cached_property
    def _unused(self) -> dict[str, str]:
        """Reasons by column for those that are no inputs."""
        reasons = dict.fromkeys(self._texts, "it has texts, whose words this model does not read")
        for name in self._others:
            reason = explain_left_out(name, self.guesses[name])
            if reason is not None:
                reasons.setdefault(name, reason)
        return reasons

    @cached_property
    def _used(self) -> list[str]:
        """Columns that may have information on the target."""
        return [name for name in self._others if name not in self._unused]

    def compose(self, name: str) -> Starter:
        """Write a config for the rows, or for texts where nothing else can be used.

        Args:
            name: File name of the config.

        Raises:
            DataError: If no column has information on the target.
        """
        if self._used:
            notes = [f"used  {_join(self._used)}, to predict {_show(self.target)}"]
            notes += [f"not   {_show(column)}: {why}" for column, why in self._unused.items()]
            notes += [f"texts {command}" for command in self._list_text_commands()]
            return Starter(self._format_config(name), notes)
        if self._texts and self.target_type == "class":
            return self.compose_texts(name, self._texts[0])
        of_texts = ""
        if self._texts:
            of_texts = f" {self._texts[0]!r} has texts, from which classes alone are predicted."
        raise DataError(
            f"--data {self.path}: expected columns with information on the target {self.target!r};"
            f" it has {join_names(list(self.guesses))}.{of_texts}"
        )

    def compose_texts(self, name: str, text: str) -> Starter:
        """Write a config for one column of texts.

        Args:
            name: File name of the config.
            text: The column.

        Raises:
            DataError: If there is no such column, it is the target itself, or that has no classes.
        """
        if text not in self.guesses:
            raise DataError(f"--text: {missing_column(text, list(self.guesses))}")
        if text == self.target:
            raise DataError(
                f"--text: {text!r} is the column of what is predicted, as the last one or by its"
                " name. Name another, or write the config by hand (data.init_args.text and label)."
            )
        if self.target_type != "class":
            raise DataError(
                f"--text: the target {self.target!r} has numbers, and TextClassifier predicts"
                " classes."
            )
        texts = summarize_text_column(self.path, text=text, label=self.target)
        notes = [f"used  {_show(text)}, to predict {_show(self.target)}"]
        others = [each for each in self._others if each != text]
        if others:
            notes.append(f"not   {_join(others)}")
        return texts.compose(name)._replace(notes=notes)

    def _format_config(self, name: str) -> str:
        """Write the config, of at most 12 lines but for comments."""
        predicted = "values, in their own units"
        gate = ""
        if self.target_type == "class":
            classes = self._count_classes()
            predicted = f"classes: {classes.list_counts(_NUM_CLASSES)}"
            gate = classes.format_gate().lstrip()
        notes = [f"Not used: {_show(column)}; {why}." for column, why in self._unused.items()]
        for command in self._list_text_commands():
            notes += ["To learn from these texts alone:", f"  {command}"]
        comments = "".join(f"# {note}\n" for note in notes)
        unused = [each for each in self._unused if each]
        ignored = f"    ignore: {format_json(unused)}\n" if unused else ""
        return f"""\
# {self._describe_inputs()}; the target has {predicted}.
#   lightkit fit -c {shlex.quote(name)}
# Used: {_join(self._used)}.
{comments}extends: [lightkit:tabular]
data:
  init_args:
    path: {format_json(self.path.as_posix())}
    target: {format_json(self.target)}{self._explain_target()}
{ignored}{gate}"""

    def _describe_inputs(self) -> str:
        """Write the number of rows, and that of the used columns of each type."""
        num_rows = format_count(self.guesses[self.target].num_rows, "row")
        of_types = Counter(str(self.guesses[column].kind) for column in self._used)
        counted = [format_count(of_types[kind], *_NOUNS[kind]) for kind in _NOUNS if of_types[kind]]
        return f"{num_rows} with {join_names(counted)}"

    def _explain_target(self) -> str:
        """Write a comment where the target was chosen by its place alone."""
        names = list(self.guesses)
        if find_usual(names, _TARGETS) is not None:
            return ""
        if self.target == names[-1]:
            return "   # the last column; name another if it is not what you predict"
        return "   # the last but texts and splits; name another if this is not it"

    def _count_classes(self) -> Classes:
        """Count the classes, the most frequent first, and the rows of the test."""
        target = self.guesses[self.target]
        counts = dict(sorted(target.values.items(), key=lambda item: -item[1]))
        splits = self.guesses["split"].values if "split" in self.guesses else {}
        _, num_test = count_splits(splits, target.num_rows)
        return Classes("row", counts, target.num_values, num_test)

    def _list_text_commands(self) -> list[str]:
        """List the commands that write a config for each column of texts, for classes."""
        if self.target_type != "class":
            return []
        return [
            shlex.join(["lightkit", "init", "--data", str(self.path), "--text", name])
            for name in self._texts
            if name.isprintable()
        ]


def summarize_rows(path: Path, table: RowTable) -> RowSummary:
    """Look at all cells of a table.

    Raises:
        DataError: If it cannot be read, or its target has one value alone.
    """
    names = table.names
    source = RowSource(RowSettings({None: str(path)}, target=names[-1]), TableRules())
    guesses = source.guess_types()
    target = find_usual(names, _TARGETS)
    if target is None:
        others = [name for name in names if name != "split" and not _has_texts(guesses[name])]
        target = others[-1] if others else names[-1]
    return RowSummary(path, target, choose_target_type(target, guesses[target]), guesses)


def _show(name: str) -> str:
    """Write the name of a column on one line."""
    return visible(name, in_line=True) or repr(name)


def _join(names: Iterable[str]) -> str:
    return join_names([_show(name) for name in names], most=_NUM_COLUMNS)


def _has_texts(guess: TypeGuess) -> bool:
    """Return whether a column has texts of several words, most of them different."""
    num_words = sum(len(value.split()) for value in guess.values)
    are_different = guess.is_many or 2 * len(guess.values) > guess.num_values
    return (
        guess.kind == "category" and are_different and num_words >= _LEAST_WORDS * len(guess.values)
    )
