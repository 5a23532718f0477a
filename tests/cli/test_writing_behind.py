"""What a fit writes while it trains: by whom, and what happens where that fails."""

from __future__ import annotations

import csv
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from lightkit import runs
from lightkit.runs.files import flush
from lightkit.runs.writer import WRITER
from tests.cli.conftest import House

NUM_EPOCHS = 3
WATCHED = '''\
"""A network that notes who waits for the disk while it is trained."""

import hashlib
import json
import os
import pathlib
import threading

from my_models import Net

CALLS = [(os, "fsync"), (hashlib, "sha256"), (pathlib.Path, "replace")]


class Watched(Net):
    def on_train_start(self):
        self.calls, self.originals = [], [(owner, name, getattr(owner, name)) for owner, name in CALLS]
        for owner, name, original in self.originals:
            setattr(owner, name, self.watched(name, original))

    def on_train_end(self):
        for owner, name, original in self.originals:
            setattr(owner, name, original)
        pathlib.Path("calls.json").write_text(json.dumps(self.calls))

    def watched(self, name, original):
        def function(*args, **kwargs):
            self.calls.append((threading.current_thread().name, name))
            return original(*args, **kwargs)

        return function
'''
JOB = f"""\
seed_everything: 7
model: my_watched.Watched
data: {{class_path: my_models.Points, init_args: {{count: 40}}}}
trainer: {{max_epochs: {NUM_EPOCHS}, accelerator: cpu, log_every_n_steps: 1}}
"""
LOOKS = '''\
"""A callback that looks at checkpoints as soon as they are there, and a plugin that reads the records as it saves."""

import csv
from pathlib import Path

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from pytorch_lightning import Callback


class Reads(VerifiedCheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        super().save_checkpoint(checkpoint, path, storage_options)
        with Path(path).parents[1].joinpath("metrics.csv").open(newline="") as file:
            epochs = [row["epoch"] for row in csv.DictReader(file)]
        with open("seen.txt", "a") as file:
            file.write(f"{checkpoint['epoch']} {Path(path).name} {epochs[-1]}\\n")


class Looks(Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch:
            keeper = trainer.checkpoint_callback
            with open("seen.txt", "a") as file:
                for path in (keeper.best_model_path, keeper.last_model_path):
                    file.write(f"{trainer.current_epoch} {Path(path).name} {runs.verify(path)}\\n")
'''


@pytest.fixture
def job(house: House) -> House:
    house.write("my_watched.py", WATCHED)
    house.write("my_looks.py", LOOKS)
    house.write("job.yaml", JOB)
    return house


def calls(house: House) -> set[tuple[str, str]]:
    return {(thread, name) for thread, name in json.loads((house.folder / "calls.json").read_text())}


def test_while_it_trains_one_thread_waits_for_the_disk_and_it_is_another(job: House) -> None:
    run = runs.open_run(job.fit("-c", "job.yaml"))
    assert calls(job) == {(WRITER, name) for name in ("fsync", "sha256", "replace")}
    assert WRITER not in {thread.name for thread in threading.enumerate()}
    told = [event for event in runs.read_events(run.events_path) if event["event"] in ("epoch", "checkpoint")]
    of_an_epoch = [("epoch", None), ("checkpoint", "best"), ("checkpoint", "last")]
    assert [(event["event"], event.get("kind")) for event in told] == of_an_epoch * NUM_EPOCHS
    assert all(runs.verify(run.checkpoints / f"{name}.ckpt") for name in ("best", "last", "last-1"))
    with run.metrics_path.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == NUM_EPOCHS


def test_a_callback_of_the_users_own_finds_what_was_saved(job: House) -> None:
    job.fit("-c", "job.yaml", "--callbacks.looks.class_path=my_looks.Looks")
    seen = (job.folder / "seen.txt").read_text().splitlines()
    assert seen == [f"{epoch} {name}.ckpt True" for epoch in range(1, NUM_EPOCHS) for name in ("best", "last")]
    assert {thread for thread, _ in calls(job)} == {"MainThread"}


def test_a_checkpoint_plugin_of_the_users_own_finds_the_row_of_the_epoch(job: House) -> None:
    job.fit("-c", "job.yaml", "--trainer.plugins=my_looks.Reads")
    seen = (job.folder / "seen.txt").read_text().splitlines()
    assert seen == [f"{epoch} {name}.ckpt {epoch}" for epoch in range(NUM_EPOCHS) for name in ("best", "last")]
    assert {thread for thread, _ in calls(job)} == {"MainThread"}


@pytest.mark.parametrize("waits", [False, True], ids=["behind", "waiting"])
def test_a_checkpoint_that_cannot_be_put_in_place_ends_the_run_in_the_same_words(
    waits: bool, job: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def full(path: Path) -> None:
        if path.name.startswith(".last.ckpt.") and path.stat().st_size > 1000:
            threads.append(threading.current_thread().name)
            raise OSError(28, "No space left on device")
        flush(path)

    monkeypatch.setattr("lightkit.runs.integrity.flush", full)
    more = ["--callbacks.looks.class_path=my_looks.Looks"] * waits
    ended = job("fit", "-c", "job.yaml", *more)
    assert threads == ["MainThread" if waits else WRITER]
    run = runs.open_run(job.runs[-1])
    last = run.checkpoints / "last.ckpt"
    assert ended.code == 1
    said = (
        f"The checkpoint {last} cannot be written: [Errno 28] No space left on device. The one before it, if any, is "
        "untouched. Free space or change the folder's permissions, then run the same command to resume."
    )
    assert f"error: {said}" in ended.err
    assert "Traceback" not in ended.err
    assert ended.err.count("cannot be written") == 1
    told: list[dict[str, Any]] = list(runs.read_events(run.events_path))
    kinds = [(event["event"], event.get("kind")) for event in told]
    assert kinds[:3] == [("start", None), ("epoch", None), ("checkpoint", "best")]
    # Training may have gone on for an epoch, which is told, but has left no checkpoint.
    assert kinds[3:] in ([("end", None)], *([[("epoch", None), ("end", None)]] if not waits else []))
    assert (told[-1]["status"], told[-1]["exit_code"], told[-1]["error"]) == ("failed", 1, said)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["best.ckpt", "best.ckpt.sha256"]
    assert runs.verify(run.checkpoints / "best.ckpt")


def test_records_that_cannot_be_written_end_the_run_before_its_checkpoint(
    job: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = runs.EventStream._append

    def full(self: runs.EventStream, line: bytes) -> None:
        if b'"epoch"' in line and threading.current_thread().name == WRITER:
            raise OSError(28, "No space left on device", str(self.path))
        append(self, line)

    monkeypatch.setattr(runs.EventStream, "_append", full)
    ended = job("fit", "-c", "job.yaml")
    run = runs.open_run(job.runs[-1])
    assert ended.code == 1, ended.err
    assert "events.jsonl" in ended.err
    assert "Traceback" not in ended.err
    assert not list(run.checkpoints.glob("*"))  # nor a folder, where the thread was quick
