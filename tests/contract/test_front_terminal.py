"""What a person sees on a terminal of a given width.

In a pseudo-terminal whose escape codes are acted upon.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.workspace import ForkServer, Workspace

ESCAPE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
MY_METRICS = '''\
from my_project import Net


class LogsMuch(Net):
    """A network that shows many metrics beside its bar."""

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        for number in range(5):
            self.log(f"train/a_metric_with_a_long_name_{number}", loss, prog_bar=True)
        return loss
'''


@dataclass
class Screen:
    """A terminal that knows the escape codes of rich; others fail the test.

    Args:
        width: Number of columns.
    """

    width: int
    lines: list[str] = field(default_factory=lambda: [""])
    wrapped: list[str] = field(default_factory=list)
    row: int = 0
    column: int = 0

    def feed(self, text: str) -> None:
        """Act upon what a program has written."""
        for part in re.split(r"(\x1b\[[?\d;]*[A-Za-z]|\r|\n)", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self._next_line()
            elif escape := ESCAPE.fullmatch(part):
                self._escape(int(escape[1] or 1) if escape[1].isdigit() else 1, escape[2])
            else:
                self._write(part)

    def _escape(self, number: int, kind: str) -> None:
        if kind == "A":
            self.row = max(0, self.row - number)
        elif kind == "K":
            self.lines[self.row] = ""
        else:
            assert kind in "mhl", kind

    def _write(self, text: str) -> None:
        while len(text) > self.width - self.column:
            head, text = text[: self.width - self.column], text[self.width - self.column :]
            self._put(head)
            self.wrapped.append(self.lines[self.row])
            self._next_line()
            self.column = 0
        self._put(text)

    def _put(self, text: str) -> None:
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + text + line[self.column + len(text) :]
        self.column += len(text)

    def _next_line(self) -> None:
        self.row += 1
        self.lines += [""] if self.row == len(self.lines) else []


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Workspace]:
    """A working directory with a job that logs much."""
    workspace = Workspace(tmp_path_factory.mktemp("terminal") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("my_metrics.py", MY_METRICS)
    workspace.write("small.yaml", {**SMALL, "model": {"class_path": "my_metrics.LogsMuch"}})
    yield workspace
    workspace.close()


def look(workspace: Workspace, width: int, *words: str) -> tuple[str, Screen]:
    """Run a command on a terminal; return what it has written and what is to be seen in the end."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the other side is closed
            while part := os.read(ours, 1 << 16):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    environ = {"TERM": "xterm-256color", "COLUMNS": None, "LINES": None, "NO_COLOR": None}
    with os.fdopen(theirs, "wb", buffering=0) as terminal:
        process = workspace.start(*words, stdout=terminal, stderr=terminal, environ=environ)
        code = process.wait()
    reader.join()
    os.close(ours)
    written, screen = b"".join(parts).decode(), Screen(width)
    screen.feed(written)
    assert code == 0, written
    return written, screen


@pytest.mark.parametrize("width", [80, 110, 200])
def test_a_bar_never_wraps_and_leaves_the_screen_to_the_closing_block(
    room: Workspace, width: int
) -> None:
    written, screen = look(room, width, "fit", "-c", "small.yaml", f"--run.name=w{width}")
    assert "━" in written
    assert not [line for line in screen.wrapped if "━" in line or "metric_with" in line]
    seen = "\n".join(screen.lines).rstrip()
    assert "━" not in seen
    assert "it/s" not in seen
    assert re.search(rf"\nnext  lightkit test --run runs/w{width}/\S+\Z", seen)
    assert re.findall(r"^ +(\d \(\d of 2\)) ", seen, re.MULTILINE) == ["0 (1 of 2)", "1 (2 of 2)"]


def test_the_bar_shows_the_time_left_for_all_epochs(room: Workspace) -> None:
    written, _ = look(
        room, 110, "fit", "-c", "small.yaml", "--run.name=left", "--trainer.max_epochs=3"
    )
    left = re.findall(r"epoch (\d) \(\d of 3\) .* (\d+):(\d\d):(\d\d) left", written)
    assert left
    assert left[-1] == ("2", "0", "00", "00")


@pytest.mark.parametrize("stage", ["test", "validate"])
def test_metrics_are_shown_without_a_progress_bar(finished: Workspace, stage: str) -> None:
    metric = {"test": "test/loss", "validate": "val/loss"}[stage]
    words = (stage, "--run", "latest", "--trainer.enable_progress_bar=false")
    assert re.search(rf"^{stage}  .*{metric} [\d.]+", finished.run(*words).ok().out, re.MULTILINE)
    _, screen = look(finished, 100, *words)
    assert re.search(rf"^{stage}\n  {metric} +[\d.]+", "\n".join(screen.lines), re.MULTILINE)
