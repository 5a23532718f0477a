"""What is wrong with text that is no YAML, in plain words: libyaml's speak of tokens, nodes and contexts."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

__all__ = ["plain_words"]

_LONGEST_KEY = 1024  # by the specification of YAML 1.2, unless a question mark stands before it
_WORDS = {
    "did not find expected ',' or '}'": "the { is not closed here, and no comma follows",
    "did not find expected ',' or ']'": "the [ is not closed here, and no comma follows",
    "did not find expected key": "keys of one mapping begin in one column",
    "did not find expected '-' indicator": "elements of one list begin in one column, each with a dash",
    "could not find expected ':'": "a key needs a colon and a space after it",
    "found unexpected end of stream": "the quote that begins here is never closed",
    "found undefined alias": "no anchor of this name stands above; put quotes around text that begins with *",
    "but found another document": "a config is one document, and --- begins another",
    "found duplicate anchor": "an anchor of this name stands above",
    "found unknown escape character": "in double quotes a backslash is written \\\\; single quotes take it as it is",
}
"""Plain words for libyaml's ``problem``."""


def plain_words(error: yaml.YAMLError, lines: Sequence[str], opened: str | None) -> str:
    """Say what an error of PyYAML means.

    Args:
        error: The error, which has a place.
        lines: The text's lines.
        opened: The bracket that is open where the text ends.
    """
    assert isinstance(error, yaml.MarkedYAMLError)
    assert error.problem_mark is not None
    problem, mark = error.problem or "", error.problem_mark
    line, column = (lines[mark.line] if mark.line < len(lines) else ""), mark.column
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "lines are indented with spaces, and a tab stands here"
    if opened is not None and not "".join(lines[mark.line :])[column:].strip():
        return f"the {opened} that opens here is never closed"
    if problem == "found character that cannot start any token":
        return f"text cannot begin with {line[column : column + 1]}; put quotes around it"
    if column > _LONGEST_KEY and not line[:column].count(": "):
        return f"a key is longer than {_LONGEST_KEY} characters"
    if problem == "mapping values are not allowed in this context":
        if ": " in line[:column]:
            return "a second colon in one line; put quotes around text that holds one"
        above = next((above for above in reversed(lines[: mark.line]) if above.strip()), "")
        return _WORDS["did not find expected key"] if ":" in above else "the line above has no colon after its key"
    if problem == "did not find expected node content":
        return f"a value is missing before {line[column : column + 1]}"
    if problem == "did not find expected key" and line[:column].strip():
        return "the value has ended before this; put quotes around all of it"
    said = ", ".join(part for part in (error.context, problem) if part)
    return _WORDS.get(problem, said)
