"""Trainings that are killed, hang, or meet a disk that takes no more.

Also a job that resumes at every second step.
"""

from __future__ import annotations

import signal
from typing import Any

from tests.contract.examples import PICTURES, write_pictures
from tests.contract.workspace import Process, Workspace, read_events

MY_FAULTS = '''\
"""Faults of a user's own making."""

import os
import random
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from my_project import Net, Points
from pytorch_lightning import Callback
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric

from lightkit.data import train_loader


class LimitFileSize(Callback):
    """Lets no file become larger, from a step on, once in a folder (the file `limited` remembers
    it).

    Args:
        size: Bytes.
        step: Number of optimizer steps by then.
        is_killed: Whether the kernel kills the process in the middle of such a write, which fails
            otherwise.
    """

    def __init__(self, size: int, step: int, is_killed: bool = False):
        self.size, self.step, self.is_killed = size, step, is_killed

    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.global_step >= self.step and not Path("limited").exists():
            Path("limited").touch()
            if self.is_killed:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.size))


class SendSignals(Callback):
    """Sends signals to its own process in a step, and leaves the file `survived` behind them.

    The file `moments` has the seconds of the clock before each.

    Args:
        signums: The signals.
        pause_s: Seconds after each.
        step: Number of optimizer steps by then.
        then_s: Seconds before `survived`.
    """

    def __init__(self, signums: list[int], pause_s: float, step: int, then_s: float = 0.0):
        self.signums, self.pause_s, self.step, self.then_s = signums, pause_s, step, then_s

    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.global_step == self.step:
            for signum in self.signums:
                with open("moments", "a") as file:
                    print(time.monotonic(), file=file)
                os.kill(os.getpid(), signum)
                self._wait(self.pause_s)
            self._wait(self.then_s)
            Path("survived").touch()

    def _wait(self, seconds):
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(0.01)


class Rest(Callback):
    """Sleeps for half a second in each epoch, so that a training lasts and takes no processor."""

    def on_train_epoch_start(self, trainer, module):
        time.sleep(0.5)


class KillBetweenNames(Callback):
    """Kills the process between the two names of one checkpoint, once in a folder (the file
    `killed` remembers it).

    The window is from the moment at which `last.ckpt` is in place, after some step, to the digest
    of `best.ckpt`.

    Args:
        number: Number of the file operation of the window before which it is killed, from 1.
        step: Number of optimizer steps by then.
    """

    def __init__(self, number: int, step: int):
        self.number, self.step = number, step
        self.num_left = None

    def on_train_epoch_end(self, trainer, module):
        if trainer.global_step == self.step and not Path("killed").exists():
            sys.addaudithook(self.look)

    def look(self, event, arguments):
        if event not in ("open", "os.rename", "os.link", "os.remove") or Path("killed").exists():
            return
        names = [str(each) for each in arguments[:2]]
        if self.num_left is None:
            if event == "os.rename" and names[1].endswith("/last.ckpt"):
                self.num_left = self.number
            return
        if not any("/checkpoints" in name or "ckpt" in name for name in names):
            return
        self.num_left -= 1
        if self.num_left == 0:
            os.close(os.open("killed", os.O_CREAT))
            os.kill(os.getpid(), signal.SIGKILL)


class BlockCheckpoints(Callback):
    """Puts a file in the place of the run's folder of checkpoints when the second epoch begins."""

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            folder = Path(trainer.checkpoint_callback.dirpath)
            folder.rename(folder.with_name("moved"))
            folder.touch()


class LoseCheckpoints(Callback):
    """Deletes the checkpoints of a folder as soon as the training has ended.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: str):
        self.folder = folder

    def on_train_end(self, trainer, module):
        for path in Path(self.folder).glob("*.ckpt"):
            path.unlink()


class DeleteRun(Callback):
    """Deletes the run's folder when the second epoch begins."""

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            shutil.rmtree(Path(trainer.checkpoint_callback.dirpath).parent)


class ListRun(Callback):
    """Writes down what the run's folder holds when the second epoch begins."""

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            run = Path(trainer.checkpoint_callback.dirpath).parent
            rows = (run / "metrics.csv").read_text().splitlines()
            events = [
                line
                for line in (run / "events.jsonl").read_text().splitlines()
                if '"epoch"' in line
            ]
            names = sorted(path.name for path in (run / "checkpoints").iterdir())
            Path("found.txt").write_text(
                f"{len(rows) - 1} rows, {len(events) > 0}, {' '.join(names)}"
            )


class Large(Net):
    """A network of half a megabyte, and as much twice again in its optimizer."""

    def __init__(self):
        super().__init__()
        self.more = torch.nn.Parameter(torch.zeros(120_000))

    def training_step(self, batch, index):
        return super().training_step(batch, index) + self.more.sum() ** 2


class FillDisk(Callback):
    """Leaves no more than some bytes free on the disk of `runs` when the second epoch begins, once
    in a folder.

    Args:
        free: The bytes.
    """

    def __init__(self, free: int):
        self.free = free

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch != 1 or Path("filled").exists():
            return
        Path("filled").touch()
        disk = os.statvfs("runs")
        with open("runs/junk", "wb", buffering=0) as junk:
            junk.write(bytes(max(0, disk.f_bavail * disk.f_frsize - self.free)))
            try:
                while self.free == 0:
                    junk.write(bytes(4096))
            except OSError:
                pass


class Noise(Dataset):
    """Points, one of which hangs as long as the file `hang` is there.

    Args:
        is_stubborn: Whether it goes on hanging whatever is raised, and hears no SIGTERM.
        at: Which one.
    """

    def __init__(self, is_stubborn, at=37):
        self.x = torch.randn(48, 3, generator=torch.Generator().manual_seed(3))
        self.is_stubborn, self.at = is_stubborn, at

    def __len__(self):
        return 48

    def __getitem__(self, key):
        index = getattr(key, "index", key)
        while index == self.at and Path("hang").exists():
            if self.is_stubborn:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Path("hangs").touch()
            try:
                time.sleep(3600)  # hangs here
            except BaseException:
                if not self.is_stubborn:
                    raise
        return self.x[index], self.x[index].sum(0, keepdim=True)


class Hanging(Points):
    """Points, one of which hangs as long as the file `hang` is there.

    Args:
        num_workers: Processes that load.
        is_stubborn: Whether nothing wakes it.
        is_exact: Whether they can be resumed within an epoch; else they are not shuffled, and the
            first one hangs.
    """

    def __init__(self, num_workers: int = 0, is_stubborn: bool = False, is_exact: bool = True):
        super().__init__()
        self.num_workers, self.is_stubborn, self.is_exact = num_workers, is_stubborn, is_exact

    def train_dataloader(self):
        if not self.is_exact:
            return DataLoader(
                Noise(self.is_stubborn, at=0), batch_size=4, num_workers=self.num_workers
            )
        points = Noise(self.is_stubborn)
        return train_loader(
            points, batch_size=4, seed=1, trainer=self.trainer, num_workers=self.num_workers
        )

    def test_dataloader(self):
        return DataLoader(Noise(False), batch_size=4)


class Described(Points):
    """Points whose fingerprint is what the file `data.txt` says."""

    def describe(self):
        text = Path("data.txt").read_text()
        return {"fingerprint": text, "version": len(text)}


class Measured(Net):
    """A network with a learning rate that falls with each step, and with a metric beside what it
    logs."""

    def __init__(self):
        super().__init__()
        self.mean = MeanMetric()

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.mean.update(loss.detach())
        self.log("train/mean", self.mean, on_step=False, on_epoch=True)
        self.log("train/largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Holder(Net):
    """A network that holds a secret.

    Args:
        token: The secret.
        hidden: Width of the hidden layer.
    """

    def __init__(self, token: str, hidden: int = 8):
        super().__init__(hidden=hidden)
        self.token = token


class NaNOnRank(Net):
    """A network whose loss is NaN in step 4 on the second of two ranks."""

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        return (
            loss * float("nan") if self.global_step == 4 and self.trainer.global_rank == 1 else loss
        )


class Random(Net):
    """A network whose loss has a part of Python's and of NumPy's random numbers."""

    def training_step(self, batch, index):
        return super().training_step(batch, index) * (random.random() + np.random.rand())
'''

EXACT: dict[str, Any] = {
    **PICTURES,
    "data": {
        **PICTURES["data"],
        "init_args": {**PICTURES["data"]["init_args"], "color_jitter": 0.3},
    },
    "optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.01}},
    "lr_scheduler": {
        "class_path": "ReduceLROnPlateau",
        "init_args": {"monitor": "val/loss", "mode": "max", "patience": 0},
    },
    "callbacks": {"checkpoint": {"init_args": {"save_last_every_n_steps": 2}}},
    "trainer": {**PICTURES["trainer"], "max_epochs": 3},
}
"""Three epochs of five steps on pictures with random colours, with a learning rate that falls,
saved every 2 steps."""


def write_exact(workspace: Workspace) -> None:
    """Write `exact.yaml`, which resumes within an epoch, and the pictures that it trains on."""
    write_pictures(workspace.folder / "pictures")
    workspace.write("my_faults.py", MY_FAULTS)
    workspace.write("exact.yaml", EXACT)


def train_undisturbed(workspace: Workspace) -> None:
    """Run `exact.yaml` to its end."""
    write_exact(workspace)
    workspace.run("fit", "-c", "exact.yaml").ok()


def callback(class_path: str, **init_args: Any) -> dict[str, Any]:
    """Return a layer that adds one callback, named `fault`."""
    return {"callbacks": {"fault": {"class_path": class_path, "init_args": init_args}}}


HOLD = "callbacks.hold.class_path=my_project.Hold"
"""Word that lets a fit wait where the file `hold` says."""


def start_held(workspace: Workspace, *words: str, step: int) -> Process:
    """Start a fit that waits before a step, and return once it does."""
    (workspace.folder / "held").unlink(missing_ok=True)
    (workspace.folder / "hold").write_text(str(step), encoding="utf-8")
    process = workspace.start("fit", *words, HOLD)
    process.wait_for((workspace.folder / "held").exists)
    return process


def release(workspace: Workspace) -> None:
    """Let a fit go on that waits, and those that start later."""
    (workspace.folder / "hold").unlink()


def wait_until_saved(workspace: Workspace, process: Process, step: int) -> None:
    """Wait until a checkpoint of a step is recorded as `last.ckpt`."""
    process.wait_for(
        lambda: any(
            event["step"] == step and event["kind"] == "last"
            for run in workspace.runs
            for event in read_events(run, "checkpoint")
        )
    )


def kill_once_saved(workspace: Workspace, *words: str, step: int, saved: int) -> None:
    """Kill a fit before a step, once an earlier one is saved.

    The same command with `HOLD` resumes it.
    """
    process = start_held(workspace, *words, step=step)
    wait_until_saved(workspace, process, saved)
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    release(workspace)
