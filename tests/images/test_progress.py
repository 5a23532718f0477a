from __future__ import annotations

import io
import re
from functools import partial

import pytest

from lightkit.images import progress
from lightkit.images.progress import show_progress


@pytest.mark.parametrize(
    ("total", "line"), [(3, "predict  2 of 3 images"), (None, "predict  2 images")], ids=str
)
def test_a_pipe_gets_lines_without_carriage_return(
    total: int | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0)
    stream = io.StringIO()
    print_line = partial(print, "predict ", file=stream)
    assert list(show_progress("abc", total, "images", stream=stream, print_line=print_line)) == [
        "a",
        "b",
        "c",
    ]
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert re.fullmatch(rf"{line}  \d+/s", lines[1])
    assert "\r" not in stream.getvalue()


def test_a_short_prediction_reports_nothing_in_a_pipe() -> None:
    stream = io.StringIO()
    assert list(show_progress("abc", 3, "images", stream=stream, print_line=stream.write)) == [
        "a",
        "b",
        "c",
    ]
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    assert list(show_progress("abc", 3, "images", stream=stream)) == ["a", "b", "c"]
    assert "3/3" in stream.getvalue()
