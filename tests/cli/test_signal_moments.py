"""A signal while libraries load, in the writing of a checkpoint, in a loader that hangs, in an export."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lightkit import runs
from lightkit.runs.signals import PATIENCE_S
from tests.cli.commands import (
    PICTURES,
    SMALL,
    Ended,
    ended,
    events,
    only_run,
    processes_of,
    runs_in,
    started,
    summary,
    wait_for,
    workplace,
)

pytestmark = pytest.mark.slow

STUBBORN = '''\
"""A data set whose loading process hangs in the second epoch, and does not obey SIGTERM."""

import signal
import time
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader


class Set(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if Path("hang").exists():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Path("hangs").touch()
            time.sleep(3600)
        return torch.ones(3), torch.ones(1)


class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Set(), batch_size=8, num_workers=1)

    def val_dataloader(self):
        return DataLoader([Set()[0]], batch_size=1)
'''
FOR_EVER = {"max_epochs": 100_000}  # but for the signal
EVERY_STEP = {"checkpoint": {"init_args": {"save_last_every_n_steps": 1}}}
JOBS: dict[str, dict[str, Any]] = {
    "loading": SMALL,
    "saving": {**PICTURES, "callbacks": EVERY_STEP, "trainer": {**PICTURES["trainer"], **FOR_EVER}},
    "hanging": {
        **SMALL,
        "data": {"class_path": "stubborn.Data"},
        "trainer": {**SMALL["trainer"], **FOR_EVER},
    },
}


@dataclass(frozen=True)
class Cut:
    """A command that a signal has ended.

    Args:
        folder: Its working directory.
        end: What it said.
        left: Processes that outlived it.
    """

    folder: Path
    end: Ended
    left: list[int]


def cut(folder: Path, *words: str, when: Callable[[subprocess.Popen[str]], object], signum: int) -> Cut:
    """Send a signal to a command at a moment."""
    with started(folder, *words) as process:
        assert wait_for(lambda: when(process), process), ended(process)
        process.send_signal(signum)
        end = ended(process)
        return Cut(folder, end, processes_of(process.pid))


def is_loading(process: subprocess.Popen[str]) -> bool:
    """Whether torch's native part has begun to load."""
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")


def play(name: str, folder: Path) -> Cut:
    workplace(folder, JOBS[name], pictures=60 if name == "saving" else 0)
    (folder / "stubborn.py").write_text(STUBBORN, encoding="utf-8")
    fit = ("fit", "-c", "job.yaml")
    if name == "loading":
        return cut(folder, *fit, when=is_loading, signum=signal.SIGUSR1)
    if name == "saving":
        return cut(
            folder,
            *fit,
            when=lambda _: events(folder, "checkpoint") and any(folder.glob("runs/job/2*/checkpoints/.*.aside")),
            signum=signal.SIGTERM,
        )

    def hangs(_: subprocess.Popen[str]) -> bool:
        if events(folder, "checkpoint"):
            (folder / "hang").touch()
        return (folder / "hangs").exists()

    return cut(folder, *fit, when=hangs, signum=signal.SIGINT)


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Cut]]]:
    root = tmp_path_factory.mktemp("cuts")
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(play, name, root / name) for name in JOBS}


def test_a_signal_while_libraries_load_ends_without_a_traceback_and_leaves_no_run(cuts: dict[str, Future[Cut]]) -> None:
    told = cuts["loading"].result()
    assert told.end.code == 128 + signal.SIGUSR1, told.end.err
    assert told.end.err == "interrupted by SIGUSR1; there is nothing to resume\n"
    assert not runs_in(told.folder)


def test_a_checkpoint_that_is_being_written_is_finished_first(cuts: dict[str, Future[Cut]]) -> None:
    told = cuts["saving"].result()
    assert told.end.code == 75, told.end.err
    checkpoints = only_run(told.folder) / "checkpoints"
    assert runs.verify(checkpoints / "last.ckpt")
    assert not list(checkpoints.glob(".*.aside"))
    assert events(told.folder)[-1]["event"] == "end"
    assert summary(told.folder)["status"] == "preempted"
    assert told.left == []


def test_a_loader_that_hangs_is_ended_by_force_with_the_end_on_record(cuts: dict[str, Future[Cut]]) -> None:
    told = cuts["hanging"].result()
    assert told.end.code == 75, told.end.err
    assert f"ended by force: not all had ended {PATIENCE_S:g} s after the signal" in told.end.err
    assert "interrupted by SIGINT; the same command resumes from" in told.end.err
    end = events(told.folder)[-1]
    assert (end["event"], end["status"], end["exit_code"]) == ("end", "preempted", 75)
    assert (summary(told.folder)["status"], summary(told.folder)["exit_code"]) == ("preempted", 75)
    assert told.left == []


def test_a_signal_in_an_export_leaves_no_half_of_a_file(cuts: dict[str, Future[Cut]]) -> None:
    folder = cuts["saving"].result().folder
    output = folder / "out"
    told = cut(
        folder,
        *("export", "--run", "job", "--ckpt_path", "last", "--output", str(output)),
        when=lambda _: (output / ".export.lock").exists(),
        signum=signal.SIGTERM,
    )
    assert told.end.code == 143, told.end.err
    assert "Traceback" not in told.end.err
    assert [path.name for path in output.iterdir() if path.name != ".export.lock"] == []
    assert told.left == []
