from __future__ import annotations

import io
import re

import pytest

from lightkit.prediction.inference import show_progress


@pytest.mark.parametrize(("total", "line"), [(3, "predict  2 of 3 images"), (None, "predict  2 images")], ids=str)
def test_a_pipe_gets_lines_without_carriage_return(total: int | None, line: str) -> None:
    stream = io.StringIO()
    assert list(show_progress("abc", total, stream=stream, is_terminal=False, interval_s=0)) == ["a", "b", "c"]
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert re.fullmatch(rf"{line}  \d+ images/s", lines[1])
    assert "\r" not in stream.getvalue()


def test_a_short_prediction_reports_nothing_in_a_pipe() -> None:
    stream = io.StringIO()
    assert list(show_progress("abc", 3, stream=stream, is_terminal=False)) == ["a", "b", "c"]
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes rich take any stream for a terminal
    stream = io.StringIO()
    assert list(show_progress("abc", 3, stream=stream, is_terminal=True)) == ["a", "b", "c"]
    assert "100%" in stream.getvalue()
