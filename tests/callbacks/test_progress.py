from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightkit.callbacks.progress import PlainProgress, RichProgress, SilentProgress, progress_for

HERE = Path(__file__).parents[2]

# Lightning 2.6.6 asks torch 2.15 for a name that is going; seen 2026-11-20.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:.*isinstance\(treespec, LeafSpec\).*", "ignore:.*does not have many workers.*"
)

FIT = """
import sys, warnings, logging, torch, pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
from lightkit.callbacks.progress import progress_for
warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("train/loss", loss, on_epoch=True, on_step=False)
        return loss
    def validation_step(self, batch, batch_idx):
        self.log("val/accuracy", 0.843, prog_bar=True)
        self.log("val/secondary", 0.1)
    def test_step(self, batch, batch_idx):
        self.log("test/accuracy", 0.75)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

loader = DataLoader(TensorDataset(torch.ones(12, 1)), batch_size=4)
trainer = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_model_summary=False, callbacks=[progress_for(sys.argv[1])])
model = Line()
trainer.fit(model, loader, loader)
trainer.test(model, loader, verbose=False)
"""


def _environment() -> dict[str, str]:
    settings = {
        "TERM": "xterm-256color",
        "COLUMNS": "120",
        "LINES": "30",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return {**os.environ, **settings}


def _in_a_pipe(mode: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", FIT, mode]
    return subprocess.run(command, cwd=HERE, capture_output=True, check=True, env=_environment())


def _in_a_terminal(mode: str) -> bytes:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", FIT, mode]
    with subprocess.Popen(command, cwd=HERE, stdin=theirs, stdout=theirs, stderr=theirs, env=_environment()) as process:
        os.close(theirs)
        output = b""
        try:
            while block := os.read(ours, 65536):
                output += block
        except OSError:  # Linux says EIO where the other side has closed
            pass
        os.close(ours)
    assert process.returncode == 0, output.decode(errors="replace")
    return output


@pytest.mark.slow
def test_a_pipe_gets_one_plain_line_an_epoch() -> None:
    done = _in_a_pipe("plain")
    assert b"\r" not in done.stdout + done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    *epochs, test = done.stdout.decode("ascii").splitlines()
    line = r"epoch {}/3  train/loss [\d.e-]+  val/accuracy 0\.843  \d+\.\d s  \d+ samples/s"
    assert len(epochs) == 3
    assert all(re.fullmatch(line.format(number), epoch) for number, epoch in enumerate(epochs, 1)), epochs
    assert test == "test  test/accuracy 0.75"


@pytest.mark.slow
def test_a_terminal_gets_bars_and_a_table() -> None:
    raw = _in_a_terminal("terminal")
    assert b"\x1b[" in raw
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.decode())
    assert "━" in text
    assert re.search(r"epoch 3/3 +━+", text)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    head = lines.index("    epoch  train/loss  val/accuracy      time  samples/s")
    rows = [line for line in lines[head:] if re.fullmatch(r" +\d/3 +[\d.e-]+ +0\.843 +\d+\.\d s +\d+", line)]
    assert [row.split()[0] for row in rows] == ["1/3", "2/3", "3/3"]
    assert {len(row) for row in rows} == {len(lines[head])}
    assert "  test/accuracy  0.75" in lines


@pytest.mark.slow
def test_quiet_is_quiet() -> None:
    done = _in_a_pipe("quiet")
    assert done.stdout == b""
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("terminal", RichProgress), ("plain", PlainProgress), ("quiet", SilentProgress), ("json", SilentProgress)],
)
def test_each_screen_has_its_progress(mode: Any, kind: type) -> None:
    assert type(progress_for(mode)) is kind


class Late(pl.LightningModule):
    """Logs what it is given, where torchmetrics users log: at the end of the epoch."""

    def __init__(self, logs: Mapping[str, float]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.logs = logs

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).mean()
        return loss

    def on_train_epoch_end(self) -> None:
        self.log_dict(dict(self.logs))

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        output: torch.Tensor = self.layer(batch[0])
        return output

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _shown(logs: Mapping[str, float], capsys: pytest.CaptureFixture[str], *, max_epochs: int = 1) -> list[str]:
    loader = DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=4)
    trainer = pl.Trainer(
        max_epochs=max_epochs,
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[PlainProgress()],
    )
    trainer.fit(Late(logs), loader)
    trainer.predict(Late(logs), loader, return_predictions=False)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("logs", "shown"),
    [
        ({"mae": 0.5}, "mae 0.5"),
        ({"train/loss": 0.25, "train/f1": 0.5}, "train/loss 0.25"),
        ({f"m{number}": 1.0 for number in range(9)}, "m0 1  m1 1  m2 1  m3 1  m4 1  m5 1"),
        ({"loss": float("nan")}, "loss nan"),
    ],
    ids=["late", "telling", "many", "nan"],
)
def test_the_line_has_what_tells_most(
    logs: Mapping[str, float], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    epoch, predict = _shown(logs, capsys)
    assert re.fullmatch(rf"epoch 1/1  {shown}  \d+\.\d s  \d+ samples/s", epoch)
    assert predict == "predict"


def test_without_a_last_epoch_the_line_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _shown({"mae": 0.5}, capsys, max_epochs=-1)
    assert [line.split("  ")[0] for line in lines] == ["epoch 1", "epoch 2", "predict"]
