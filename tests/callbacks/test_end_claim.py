from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.callbacks.end_claim import EndClaim
from lightkit.callbacks.outcome import end_of
from lightkit.callbacks.recorder import RunRecorder
from lightkit.errors import Interrupted


@pytest.fixture
def run(tmp_path: Path) -> runs.Run:
    return runs.create(tmp_path, "line")


def ends(run: runs.Run) -> list[str]:
    return [event["status"] for event in runs.read_events(run.events_path) if event["event"] == "end"]


def test_of_two_that_wait_for_the_same_slow_write_who_ends_by_force_records_the_end(
    run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, slow, forced_waits, gently_came_first, is_forced = runs.Writer(), *(threading.Event() for _ in range(4))
    recorder = RunRecorder(run, events=runs.EventStream(run.events_path, writer=writer))
    wait = runs.Writer._wait

    def waits(self: runs.Writer, within_s: float | None) -> bool:
        if within_s is None:
            return wait(self, within_s)
        forced_waits.set()
        is_done = wait(self, within_s)
        gently_came_first.wait()
        return is_done

    def words(error: BaseException | None) -> tuple[str, int, str | None]:
        if threading.current_thread() is gently:
            gently_came_first.set()
            is_forced.wait()
        return end_of(error)

    def end_gently() -> None:
        recorder.close()
        gently_came_first.set()

    def end_by_force() -> None:
        recorder.end_writing(within_s=240)
        is_forced.set()
        recorder.close(Interrupted(15))

    monkeypatch.setattr(runs.Writer, "_wait", waits)
    monkeypatch.setattr("lightkit.callbacks.recorder.end_of", words)
    writer.begin()
    writer.put(slow.wait)
    gently, forced = threading.Thread(target=end_gently), threading.Thread(target=end_by_force)
    gently.start()
    forced.start()
    forced_waits.wait()
    slow.set()
    for each in (gently, forced):
        each.join()
    assert ends(run) == ["interrupted"]
    summary = runs.Summary.read(run.summary_path)
    assert summary is not None
    assert (summary.status, summary.exit_code) == ("interrupted", 143)


def test_of_two_that_end_by_force_the_first_records_the_end(run: runs.Run) -> None:
    recorder = RunRecorder(run, events=runs.EventStream(run.events_path))
    recorder.end_writing(within_s=0.01)
    other = threading.Thread(target=recorder.end_writing, args=(0.01,))
    other.start()
    other.join()
    recorder.close(Interrupted(15))
    assert ends(run) == ["interrupted"]
    summary = runs.Summary.read(run.summary_path)
    assert summary is not None
    assert (summary.status, summary.exit_code) == ("interrupted", 143)


def test_who_ends_by_force_lets_another_finish_the_record_of_the_end(
    run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = RunRecorder(run, events=runs.EventStream(run.events_path))
    writes, disk, seen = threading.Event(), threading.Event(), list[str]()
    append, wait = runs.EventStream._append, EndClaim.wait

    def slowly(self: runs.EventStream, line: bytes) -> None:
        writes.set()
        disk.wait()
        append(self, line)

    def waits(self: EndClaim, within_s: float) -> None:
        disk.set()
        wait(self, within_s)

    def end_by_force() -> None:
        recorder.end_writing(within_s=240)
        recorder.close(Interrupted(15))
        seen.extend(ends(run))

    monkeypatch.setattr(runs.EventStream, "_append", slowly)
    monkeypatch.setattr(EndClaim, "wait", waits)
    gently, forced = threading.Thread(target=recorder.close), threading.Thread(target=end_by_force)
    gently.start()
    writes.wait()
    forced.start()
    for each in (forced, gently):
        each.join()
    assert seen == ["done"]
