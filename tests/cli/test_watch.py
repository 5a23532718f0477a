"""Trainings that go wrong by themselves: by their losses, by the disk, by damaged checkpoints."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit import runs
from tests.cli.commands import SMALL, Ended, events, fit, only_run, summary, workplace

WATCHED = '''\
"""What somebody wrote whose losses and disks go wrong."""

import os
import subprocess
from pathlib import Path

import torch
from mine import Net
from pytorch_lightning import Callback


class Spiky(Net):
    """Its loss is infinite in one step, on the last rank."""

    def __init__(self, at: int = 14):
        super().__init__()
        self.at = at

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        is_bad = self.global_step == self.at and self.trainer.global_rank == self.trainer.world_size - 1
        return loss / 0 if is_bad else loss


class Large(Net):
    """Half a megabyte, twice that with its optimizer."""

    def __init__(self):
        super().__init__()
        self.more = torch.nn.Parameter(torch.zeros(60_000))

    def training_step(self, batch, index):
        return super().training_step(batch, index) + self.more.sum() ** 2


class Mishap(Callback):
    """Fills the disk, or lets nobody write to it, when the second epoch begins, once.

    Args:
        free: Bytes that are left; None: the disk becomes read-only.
    """

    def __init__(self, free: int | None = None):
        self.free = free

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch != 1 or Path("befallen").exists():
            return
        Path("befallen").touch()
        if self.free is None:
            subprocess.run(["mount", "--bind", "runs", "runs"], check=True)  # over what has files open
            subprocess.run(["mount", "-o", "remount,bind,ro", "runs"], check=True)
            return
        disk = os.statvfs("runs")
        with open("runs/junk", "wb") as junk:
            junk.write(bytes(max(0, disk.f_bavail * disk.f_frsize - self.free)))
            while True:
                try:
                    os.write(junk.fileno(), bytes(4096)) if self.free == 0 else None
                except OSError:
                    break
                if self.free:
                    break
'''


def _place(folder: Path, **config: Any) -> Path:
    place = workplace(folder, {**SMALL, **config})
    (place / "watched.py").write_text(WATCHED, encoding="utf-8")
    return place


def _failed(ended: Ended) -> None:
    assert ended.code == 1, ended.err
    assert "Traceback" not in ended.err
    assert "error: " in ended.err


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_and_the_run_goes_on_from_before_even_if_that_is_damaged(
    tmp_path: Path,
) -> None:
    place = _place(tmp_path, model={"class_path": "watched.Spiky"})
    stopped = fit(place)
    _failed(stopped)
    run = only_run(place)
    last = run / "checkpoints" / "last.ckpt"
    assert "The loss of epoch 2, step 14, batch 2 is inf (samples" in stopped.err
    assert f"the last good checkpoint is {last}" in stopped.err
    assert (summary(place)["status"], summary(place)["exit_code"]) == ("failed", 1)
    (event,) = events(place, "nonfinite")
    assert (event["step"], event["action"], len(event["indices"])) == (14, "stop", 8)
    assert torch.load(last, weights_only=True)["global_step"] == 12
    for name in ("last.ckpt", "best.ckpt"):
        path = run / "checkpoints" / name
        path.write_bytes(path.read_bytes()[:-100])
    resumed = fit(place, f"--run.resume={run}", "--watchdog.on_nonfinite=skip")
    assert resumed.code == 0, resumed.err
    assert f"{last} is not used: its content is not what last.ckpt.sha256 promises." in resumed.err
    assert {event["path"]: event["used"] for event in events(place, "fallback")} == {
        f"checkpoints/{name}.ckpt": "checkpoints/last-1.ckpt" for name in ("last", "best")
    }
    (resume,) = events(place, "resume")
    assert (resume["step"], resume["checkpoint"]) == (6, "checkpoints/last-1.ckpt")
    assert [event["action"] for event in events(place, "nonfinite")] == ["stop", "skip"]
    for name in ("last", "last-1", "best"):
        path = run / "checkpoints" / f"{name}.ckpt"
        assert runs.verify(path)
        weights = torch.load(path, weights_only=True)["state_dict"]
        assert all(bool(value.isfinite().all()) for value in weights.values())


@pytest.mark.slow
@pytest.mark.parametrize("action", ["stop", "skip", "rollback"])
def test_all_ranks_do_the_same_about_a_loss_of_one_of_them(action: str, tmp_path: Path) -> None:
    trainer = {**SMALL["trainer"], "devices": 2, "strategy": "ddp", "max_epochs": 2}
    place = _place(tmp_path, model={"class_path": "watched.Spiky", "init_args": {"at": 4}}, trainer=trainer)
    ended = fit(place, f"--watchdog.on_nonfinite={action}")
    (event,) = events(place, "nonfinite")
    assert (event["epoch"], event["step"], event["batch"], event["rank"]) == (1, 4, 1, 1)
    assert (event["action"], len(event["indices"])) == (action, 8)
    last = torch.load(only_run(place) / "checkpoints" / "last.ckpt", weights_only=True)
    assert all(bool(value.isfinite().all()) for value in last["state_dict"].values())
    if action == "stop":
        _failed(ended)
        assert "The loss of epoch 1, step 4, batch 1 on rank 1 is inf" in ended.err
        assert last["global_step"] == 3
    else:
        assert ended.code == 0, ended.err
        assert last["global_step"] == 6
        assert event.get("used") == ("checkpoints/last.ckpt" if action == "rollback" else None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A working directory whose runs are on a disk of five megabytes."""
    place = _place(tmp_path / "place", model={"class_path": "watched.Large"})
    (place / "runs").mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "lightkit-test", str(place / "runs")],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounting.returncode:
        pytest.skip(f"no disk can be mounted here: {mounting.stderr.strip()}")
    try:
        yield place
    finally:
        while (place / "runs").is_mount():
            subprocess.run(["umount", "-l", str(place / "runs")], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("free", [300_000, 0, None], ids=["nearly full", "full", "read-only"])
def test_a_disk_that_takes_no_more_costs_no_checkpoint_and_the_run_goes_on_later(
    free: int | None, small_disk: Path
) -> None:
    left = "null" if free is None else free
    mishap = f"--callbacks.mishap={{class_path: watched.Mishap, init_args: {{free: {left}}}}}"
    ended = fit(small_disk, mishap)
    _failed(ended)
    assert {300_000: "needs ", 0: "No space left", None: "Read-only file system"}[free] in ended.err, ended.err
    assert "then run the same command to resume" in ended.err
    last = only_run(small_disk) / "checkpoints" / "last.ckpt"
    assert runs.verify(last)
    assert torch.load(last, weights_only=True)["global_step"] == 6
    if free is None:
        subprocess.run(["umount", "-l", str(small_disk / "runs")], check=True)
    else:
        (small_disk / "runs" / "junk").unlink()
    assert (resumed := fit(small_disk, mishap)).code == 0, resumed.err
    assert events(small_disk, "resume")[0]["step"] == 6
    assert torch.load(last, weights_only=True)["global_step"] == 18


@pytest.mark.slow
def test_a_training_that_has_no_room_for_one_checkpoint_does_not_begin(small_disk: Path) -> None:
    (small_disk / "runs" / "junk").write_bytes(bytes(4_600_000))
    ended = fit(small_disk)
    _failed(ended)
    assert "last.ckpt needs 7" in ended.err
    assert not events(small_disk, "epoch")
