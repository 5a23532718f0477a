"""Commands as processes of their own: their codes, their output, and their deadline."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from lightkit.commands.retrain import StageProcesses


@pytest.fixture(scope="module")
def processes() -> Iterator[StageProcesses]:
    with StageProcesses(preloads=False) as entered:
        yield entered


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["nonsense"], 2)], ids=["well", "error"])
def test_a_command_gives_its_code_and_writes_where_this_process_does(
    processes: StageProcesses, words: list[str], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    polls: list[int] = []
    assert processes.run(words, {}, lambda: polls.append(1)) == code
    assert polls
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
