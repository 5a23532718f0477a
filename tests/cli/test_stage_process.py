"""Commands as processes of their own: their codes, their output, and their deadline."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from lightkit.commands.retrain import StageProcesses


@pytest.fixture(scope="module")
def processes() -> Iterator[StageProcesses]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightkit.commands.retrain._PRELOAD", ())
        with StageProcesses() as entered:
            yield entered


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["nonsense"], 2)], ids=["well", "error"])
def test_a_command_gives_its_code_and_writes_where_this_process_does(
    processes: StageProcesses, words: list[str], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    polls: list[int] = []
    assert processes.run(words, environment={}, on_poll=lambda: polls.append(1)) == code
    assert not processes.was_late
    assert polls
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_command_is_asked_to_end_at_its_deadline(processes: StageProcesses) -> None:
    code = processes.run(["check", "--deep"], environment={}, deadline=datetime.now(timezone.utc))
    assert processes.was_late
    assert code in (143, -signal.SIGTERM)  # the latter before it has a handler
