"""Tracebacks that nobody catches hold no secret."""

from __future__ import annotations

import sys
import threading

import pytest

from lightkit.cli.tracebacks import mask_tracebacks, written_traceback


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    mask_tracebacks(lambda text: text.replace("hunter2", "***"))


def crash() -> Exception:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("hunter" + "2")
    return caught.value


@pytest.mark.usefixtures("hooks")
def test_the_process_s_last_words_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    error = crash()
    sys.excepthook(ValueError, error, error.__traceback__)
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith("ValueError: invalid literal for int() with base 10: '***'\n")
    assert written_traceback(error) == said


@pytest.mark.usefixtures("hooks")
def test_those_of_a_thread_are_masked_too(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise crash()

    thread = threading.Thread(target=fail, name="sender")
    thread.start()
    thread.join()
    said = capsys.readouterr().err
    assert said.startswith("Exception in thread sender:\nTraceback")
    assert "'***'" in said
    assert "hunter2" not in said


def test_a_hook_that_somebody_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", print)
    mask_tracebacks(str)
    assert sys.excepthook is print
