"""What a process says and records that is ended by force: of a checkpoint that comes into place at the last moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.callbacks import RunRecorder
from lightkit.cli import ending, stalling
from lightkit.cli.resuming import Start
from lightkit.cli.session import Session, open_session
from lightkit.cli.stage import Stage
from lightkit.launch import STALLED, Stall
from lightkit.launch.stacks import Samples
from lightkit.runs.signals import SignalWatch
from tests.cli.conftest import House

STALL = Stall("train", 3.0, 2.0, "the main thread", None, Samples(), None, "the stacks")


class Watch(SignalWatch):
    """Notes how the process would be ended."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[tuple[int, str | None]] = []

    def cut(self, code: int, words: str | None = None) -> None:
        self.cuts.append((code, words))


@dataclass(frozen=True)
class Fit:
    """A fit whose thread has something to write, and does so once somebody ends the writing.

    Args:
        session: Its invocation.
        stage: Its stage.
        watch: The session's.
    """

    session: Session
    stage: Stage
    watch: Watch

    @property
    def last(self) -> Path:
        return self.stage.start.run.checkpoints / "last.ckpt"

    def saves(self) -> None:
        save = partial(runs.write_aside, self.last, lambda path: path.write_bytes(b"weights"))
        self.stage.recorder.events.writer.put(save, otherwise=lambda: None)

    def end(self) -> tuple[str, int]:
        (event,) = (each for each in runs.read_events(self.stage.start.run.events_path) if each["event"] == "end")
        return event["status"], event["exit_code"]


@pytest.fixture
def fit(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fit]:
    for module in (ending, stalling):
        monkeypatch.setattr(module, "_WRITER_S", 120.0)  # which the thread will not need, however slow the machine
    monkeypatch.setattr(stalling, "_RECORDS_S", 0.0)  # nothing hangs here
    ended, end = threading.Event(), runs.Writer.end

    def ends(writer: runs.Writer, within_s: float | None = None) -> BaseException | None:
        ended.set()
        return end(writer, within_s)

    monkeypatch.setattr(runs.Writer, "end", ends)
    run, writer = runs.create(house.folder / "runs", "job"), runs.Writer()
    recorder, watch = RunRecorder(run, events=runs.EventStream(run.events_path, writer=writer)), Watch()
    with watch:
        session = open_session("fit", ["-c", "small.yaml"], watch)
        writer.begin()
        writer.put(ended.wait)
        yield Fit(session, Stage(Start(run), recorder), watch)
    writer.end()


def test_last_words_know_a_checkpoint_that_came_into_place_as_the_writing_ended(
    fit: Fit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lightkit")
    fit.saves()
    with ending.ended_by_force(fit.session, fit.stage):
        assert fit.watch.last_words is not None
        assert fit.watch.last_words(signal.SIGTERM) == 75
    assert fit.end() == ("preempted", 75)
    assert f"interrupted by SIGTERM; the same command resumes from {fit.last}" in caplog.text


def test_a_checkpoint_that_is_moved_as_it_is_looked_for_does_not_keep_the_end_off_the_record(fit: Fit) -> None:
    fit.last.parent.mkdir()
    fit.last.symlink_to("gone")  # as a file that is there when the folder is read, and no longer afterwards
    runs.sidecar(fit.last).write_text("")
    with ending.ended_by_force(fit.session, fit.stage):
        assert fit.watch.last_words is not None
        assert fit.watch.last_words(signal.SIGTERM) == 128 + signal.SIGTERM
    assert fit.end() == ("interrupted", 143)


@pytest.mark.parametrize("saves", [True, False], ids=["saves", "has_none"])
def test_a_stall_that_is_ended_by_force_tells_from_where_it_goes_on(saves: bool, fit: Fit) -> None:
    if saves:
        fit.saves()
    stalling._Teller(fit.session, fit.stage).end(STALL)
    goes_on = f"The same command resumes from {fit.last}." if saves else "There is no checkpoint yet: the same comm"
    assert any(code == STALLED and words is not None and goes_on in words for code, words in fit.watch.cuts)
    assert fit.end() == ("failed", STALLED)
