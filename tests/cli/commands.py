"""The command as a process of its own, a small training for it, and what that leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

MINE = '''\
"""What somebody wrote beside their configs."""

import atexit
import math
import os
import signal
import time
from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Knock(Callback):
    """Sends signals to its own process, once in a folder.

    Args:
        at: Hook in which they are sent.
        step: Number of optimizer steps by then.
        signals: What is sent.
        to_group: Send it to all processes of the group, as a terminal does.
    """

    def __init__(
        self, at: str, step: int = 0, signals: list[int] | None = None, to_group: bool = False
    ):
        self.at, self.step, self.signals, self.to_group = (
            at,
            step,
            signals or [signal.SIGTERM],
            to_group,
        )

    def _knock(self, trainer, at):
        knocked = Path("knocked")
        if at != self.at or trainer.global_step < self.step or knocked.exists():
            return
        knocked.touch()
        for number in self.signals:
            (os.killpg if self.to_group else os.kill)(
                os.getpgid(0) if self.to_group else os.getpid(), number
            )
            time.sleep(0.05)
        Path("survived").touch()

    def setup(self, trainer, module, stage):
        self._knock(trainer, "setup")

    def on_train_batch_start(self, trainer, module, batch, index):
        self._knock(trainer, "train")

    def on_validation_batch_start(self, trainer, module, batch, index, dataloader_idx=0):
        self._knock(trainer, "validation")

    def on_fit_end(self, trainer, module):
        self._knock(trainer, "end")


class Pause(Callback):
    """Makes every step last, so that others can come in between."""

    def __init__(self, seconds: float = 0.1, until: str | None = None):
        self.seconds, self.until = seconds, until

    def on_train_batch_start(self, trainer, module, batch, index):
        time.sleep(self.seconds)
        while self.until and not Path(self.until).exists():
            time.sleep(0.02)


class Leash(Callback):
    """Does no more optimizer steps than the file `leash` says, as long as it is there and no signal
    has come."""

    def on_train_batch_start(self, trainer, module, batch, index):
        while trainer.global_step >= self._longest():
            Path("held").touch()
            if any(
                getattr(getattr(each, "_watch", None), "received", None)
                for each in trainer.callbacks
            ):
                Path("leash").unlink(missing_ok=True)
            time.sleep(0.02)

    def _longest(self):
        try:
            return int(Path("leash").read_text())
        except FileNotFoundError:
            return math.inf


class Leaving(Callback):
    """Writes down, when the interpreter ends, whether this rank still belongs to a process
    group."""

    def on_fit_start(self, trainer, module):
        left = Path(f"left-{trainer.global_rank}")
        left.unlink(missing_ok=True)
        atexit.register(lambda: left.write_text(str(not torch.distributed.is_initialized())))


class Trouble(Callback):
    """What can befall one rank of several, once in a folder.

    Args:
        kind: raise, kill, hang or stop.
        rank: The rank.
        step: Number of optimizer steps by then.
    """

    def __init__(self, kind: str, rank: int = 1, step: int = 2):
        self.kind, self.rank, self.step = kind, rank, step

    def on_train_batch_start(self, trainer, module, batch, index):
        befallen = Path("befallen")
        if trainer.global_rank != self.rank or trainer.global_step < self.step or befallen.exists():
            return
        befallen.touch()
        if self.kind == "raise":
            raise ValueError("this rank is out of stock")
        if self.kind == "hang":
            time.sleep(3600)
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[self.kind])


class Undo(Callback):
    """Replaces a folder by a file after an epoch."""

    def __init__(self, epoch: int = 0):
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == self.epoch + 1:
            folder = Path(trainer.checkpoint_callback.dirpath)
            folder.rename(folder.with_name("moved"))
            folder.touch()


class Net(LightningModule):
    """A small network that drops units.

    Args:
        fails_at: Step in which it fails.
    """

    def __init__(self, fails_at: int | None = None):
        super().__init__()
        self.fails_at = fails_at
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch, index):
        if self.global_step == self.fails_at:
            raise ValueError("batches are out of stock")
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val/loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Points(LightningDataModule):
    """Points near a plane, shuffled by torch's own loader."""

    def _loader(self, shuffle):
        x = torch.randn(48, 3, generator=torch.Generator().manual_seed(3))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=shuffle)

    def train_dataloader(self):
        return self._loader(True)

    def val_dataloader(self):
        return self._loader(False)
'''

SMALL: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "mine.Net"},
    "data": {"class_path": "mine.Points"},
    "trainer": {"accelerator": "cpu", "max_epochs": 3, "log_every_n_steps": 1, "logger": False},
}
_PF_EXITING = 0x4  # of Linux


@dataclass(frozen=True)
class Ended:
    """What a process said.

    Args:
        code: Its exit code, negative where a signal killed it.
        out: Standard output.
        err: Standard error.
    """

    code: int
    out: str
    err: str


def workplace(folder: Path, config: dict[str, Any] | None = None, *, pictures: int = 0) -> Path:
    """Make a working directory with ``mine.py``, ``job.yaml`` and, if asked for, ``pictures/``.

    They are of two classes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    (folder / "job.yaml").write_text(
        yaml.safe_dump(SMALL if config is None else config), encoding="utf-8"
    )
    random = np.random.default_rng(5)
    for index in range(pictures):
        path = folder / "pictures" / ("reds", "blues")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 160, (40, 40, 3), dtype=np.uint8)
        pixels[8:32, 8:32, (0, 2)[index % 2]] += 40
        Image.fromarray(pixels).save(path)
    return folder


@contextmanager
def started(
    folder: Path,
    *words: str,
    group: bool = True,
    program: Sequence[str] = ("-m", "lightkit"),
    **settings: Any,
) -> Iterator[subprocess.Popen[str]]:
    """Start ``lightkit`` with these words in ``folder``.

    What is left of it at the end is killed.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LIGHTKIT_", "PL_", "MLFLOW_"))
    }
    environ = {
        **kept,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **settings.pop("environ", {}),
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **settings}
    command = [sys.executable, *program, *words]
    with subprocess.Popen(
        command, cwd=folder, env=environ, start_new_session=group, **pipes
    ) as process:
        try:
            yield process
        finally:
            if group:
                for pid in processes_of(process.pid):
                    os.kill(pid, signal.SIGKILL)
            if process.poll() is None:
                process.kill()


def run(folder: Path, *words: str, timeout_s: float = 120, **settings: Any) -> Ended:
    """Run ``lightkit`` with these words to its end."""
    with started(folder, *words, **settings) as process:
        return ended(process, timeout_s)


def fit(folder: Path, *words: str, **settings: Any) -> Ended:
    """Run ``lightkit fit -c job.yaml`` with these words to its end."""
    return run(folder, "fit", "-c", "job.yaml", *words, **settings)


def ended(process: subprocess.Popen[str], timeout_s: float = 120) -> Ended:
    """Wait for a process."""
    out, err = process.communicate(timeout=timeout_s)
    return Ended(process.returncode, out or "", err or "")


def processes_of(session: int) -> list[int]:
    """Living processes of a session that are not about to end.

    A command, its workers and its other ranks.
    """
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        # it has let go of its files, so that others may know already
        is_ending = int(fields[6]) & _PF_EXITING
        if int(fields[3]) == session and fields[0] not in "ZX" and not is_ending:
            found.append(int(stat.parent.name))
    return found


def runs_in(folder: Path) -> list[Path]:
    """Folders of all runs below a working directory, oldest first."""
    return sorted(
        path for path in folder.glob("runs/[!.]*/2*-*") if path.is_dir() and not path.is_symlink()
    )


def only_run(folder: Path) -> Path:
    """The folder of the one run that there is."""
    (found,) = runs_in(folder)
    return found


def events(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Whole events of the one run below a working directory, if there is one yet."""
    files = [run / "events.jsonl" for run in runs_in(folder)]
    lines = (
        files[0].read_text(encoding="utf-8").splitlines() if files and files[0].is_file() else []
    )
    # others are cut off by a kill
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [event for event in found if kind is None or event["event"] == kind]


def summary(folder: Path) -> dict[str, Any]:
    """The summary of the one run below a working directory."""
    content: dict[str, Any] = json.loads(
        (only_run(folder) / "summary.json").read_text(encoding="utf-8")
    )
    return content
