"""A small training for XLA devices, in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.workspace import Result

marks = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("torch_xla") is None, reason="torch-xla is not installed; make test-tpu has it"
    ),
]

MINE = '''\
"""What somebody wrote beside their configs."""

import os
import signal
from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningModule


class Net(LightningModule):
    """A small network that drops units.

    Args:
        drop: Share of units that are dropped.
        seed: Seed of what is drawn in training, where it is not the run's.
    """

    def __init__(self, drop: float = 0.5, seed: int | None = None):
        super().__init__()
        self.seed = seed
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(1, 16), torch.nn.Dropout(drop), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )

    def forward(self, x):
        return self.layers(x / 100)

    def _loss(self, batch):
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1] / 100)

    def on_fit_start(self):
        if self.seed is not None:
            torch.manual_seed(self.seed)

    def training_step(self, batch, index):
        loss = self._loss(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val/loss", self._loss(batch))

    def test_step(self, batch, index):
        self.log("test/loss", self._loss(batch))

    def predict_step(self, batch, index):
        return self(batch[0])


class Knock(Callback):
    """Sends a signal to its own process, once in a folder.

    Args:
        step: Number of optimizer steps by then.
        number: What is sent.
    """

    def __init__(self, step: int, number: int):
        self.step, self.number = step, number

    @property
    def state_key(self):
        return f"knock-{self.number}"

    def on_train_batch_start(self, trainer, module, batch, index):
        knocked = Path(f"knocked-{self.number}")
        if trainer.global_step >= self.step and not knocked.exists():
            knocked.touch()
            os.kill(os.getpid(), self.number)


class Hlo(Callback):
    """Writes what the device multiplies into hlo.txt."""

    def on_train_start(self, trainer, module):
        import torch_xla

        x = torch.ones(4, 4, device=module.device)
        Path("hlo.txt").write_text(torch_xla._XLAC._get_xla_tensors_hlo([x @ x]))
'''

JOB: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "mine.Net"},
    "data": {"class_path": "Temperatures", "init_args": {"num_samples": 64, "batch_size": 8}},
    "optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.02}},
    "accelerator": {"tpu_cores": 1},
    "trainer": {"max_epochs": 4, "log_every_n_steps": 4, "logger": False},
}


def place(folder: Path, **changes: Any) -> Path:
    """Make a working directory with ``mine.py`` and ``job.yaml``.

    Args:
        folder: Where.
        changes: Sections of the config to replace; mappings are merged into those of `JOB`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    sections = {
        key: {**JOB.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, **sections}), encoding="utf-8")
    return folder


def run(folder: Path, *words: str, program: str = "lightkit", **environ: str) -> Result:
    """Run a module with these words to its end, in a folder.

    Without an accelerator unless variables say so.
    """
    own = ("LIGHTKIT_", "PL_", "MLFLOW_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    variables = {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environ}
    command = [sys.executable, "-m", program, *words]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=200, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


def on_xla(folder: Path, *words: str, program: str = "one_device", **environ: str) -> Result:
    """Run ``lightkit`` with these words to its end, with XLA on the CPU."""
    variables = {"PJRT_DEVICE": "CPU", "PYTHONPATH": str(Path(__file__).parents[2]), **environ}
    return run(folder, *words, program=f"tests.tpu.{program}", **variables)


def fitted(folder: Path, *words: str, **environ: str) -> Path:
    """Run ``lightkit fit -c job.yaml`` with these words, which ends well."""
    result = on_xla(folder, "fit", "-c", "job.yaml", *words, **environ).ok()
    assert "Traceback" not in result.err
    return folder


def runs_in(folder: Path) -> list[Path]:
    """List the run folders of a working directory, oldest first."""
    return sorted(path for path in folder.glob("runs/[!.]*/2*-*") if not path.is_symlink())


def only_run(folder: Path) -> Path:
    """Give the folder of the one run."""
    (found,) = runs_in(folder)
    return found
