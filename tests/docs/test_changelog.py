"""The changelog is that of the version, and dated."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from lightkit.version import __version__

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
_HEADING = re.compile(r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$")


def _headings() -> list[str]:
    lines = CHANGELOG.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("## ")]


def test_the_newest_entry_is_that_of_the_version() -> None:
    newest = _HEADING.match(_headings()[0])
    assert newest is not None, "## VERSION (YYYY-MM-DD)"
    assert newest[1] == __version__


def test_entries_are_dated_and_the_newest_comes_first() -> None:
    dates = []
    for heading in _headings():
        found = _HEADING.match(heading)
        assert found is not None, heading
        dates.append(date.fromisoformat(found[2]))
    assert dates == sorted(dates, reverse=True)
