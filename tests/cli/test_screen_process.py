"""What real processes print: to a pipe, to a terminal, to nobody, to a program."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.commands import PICTURES, Ended, ended, events, fit, only_run, run, started, workplace

pytestmark = pytest.mark.slow

JOB = {**PICTURES, "trainer": {**PICTURES["trainer"], "max_epochs": 2}}


def on_terminal(folder: Path) -> Ended:
    """Fit with a pseudo-terminal as standard output and error."""
    ours, theirs = pty.openpty()
    said = b""
    with started(folder, "fit", "-c", "job.yaml", stdout=theirs, stderr=theirs, environ={"TERM": "xterm"}) as process:
        os.close(theirs)
        with suppress(OSError):  # the other side is closed
            while part := os.read(ours, 1 << 16):
                said += part
        os.close(ours)
        return Ended(process.wait(), said.decode(), "")


def to_closed_pipe(folder: Path) -> Ended:
    """Fit with a reader that leaves after one line."""
    with started(folder, "fit", "-c", "job.yaml") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        return Ended(process.wait(), line, ended(process).err)


HOW = {
    "pipe": fit,
    "terminal": on_terminal,
    "quiet": lambda folder: fit(folder, "--quiet"),
    "json": lambda folder: fit(folder, "--output", "json"),
    "head": to_closed_pipe,
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[tuple[Path, Ended]]]]:
    """The same fit with every kind of screen, two at a time."""

    def one(name: str) -> tuple[Path, Ended]:
        folder = workplace(tmp_path_factory.mktemp(name), JOB, pictures=60)
        return folder, HOW[name](folder)

    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(one, name) for name in HOW}


Said = Mapping[str, "Future[tuple[Path, Ended]]"]


def test_a_pipe_gets_plain_lines_one_an_epoch(said: Said) -> None:
    folder, done = said["pipe"].result()
    tested, predicted = (run(folder, command, "--run", "latest") for command in ("test", "predict"))
    for end in (done, tested, predicted):
        assert end.code == 0, end.err
        assert not {"\r", "\x1b"} & set(end.out + end.err)
    lines = done.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("epoch")] == ["1/2", "2/2"]
    assert [line.split()[0] for line in lines[:4]] == ["run", "data", "model", "on"]
    assert any(line.startswith(f"next  lightkit test --run runs/job/{only_run(folder).name}") for line in lines)
    assert "test/accuracy" in tested.out
    assert "predictions.csv" in predicted.out
    assert len((only_run(folder) / "predictions.csv").read_text().splitlines()) == 1 + 5


def test_a_terminal_gets_bars_and_the_last_block(said: Said) -> None:
    folder, done = said["terminal"].result()
    assert done.code == 0, done.out
    assert "\x1b[" in done.out
    assert "━" in done.out
    assert f"lightkit test --run runs/job/{only_run(folder).name}" in done.out


def test_quiet_prints_nothing(said: Said) -> None:
    folder, done = said["quiet"].result()
    assert (done.code, done.out, done.err) == (0, "", "")
    assert len(events(folder, "epoch")) == 2


def test_json_prints_the_events_and_nothing_else(said: Said) -> None:
    folder, done = said["json"].result()
    assert done.code == 0, done.err
    assert [json.loads(line) for line in done.out.splitlines()] == events(folder)
    assert events(folder)[-1]["event"] == "end"


def test_a_reader_that_leaves_gets_no_traceback(said: Said) -> None:
    _, end = said["head"].result()
    assert end.code == 128 + 13
    assert end.out.startswith("run ")
    # what the data module tells before the next line is written to nobody may still be there
    assert [line for line in end.err.splitlines() if not line.startswith("data: ")] == []
