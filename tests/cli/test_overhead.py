"""What a training step costs beside the training, counted and not timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import House

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")

NUM_STEPS, NUM_EPOCHS = 120, 2

COUNTED = '''\
"""A net whose steps are counted."""

import json
import os
import sys
import threading

import torch
from my_models import Net
from pytorch_lightning.callbacks import Callback
from torch.utils._python_dispatch import TorchDispatchMode

HOOKS = [
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "on_train_batch_end",
]
COUNTS = {"reads": 0, "opened": [], "hooks": 0}
IN_STEPS = [False]


def audit(event, args):
    if event == "open" and IN_STEPS[0] and threading.current_thread() is threading.main_thread():
        COUNTS["opened"].append(str(args[0]))


sys.addaudithook(audit)


class Reads(TorchDispatchMode):
    """Counts what `item()`, `float()`, `bool()` and `int()` of a tensor come to."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        COUNTS["reads"] += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


class Counted(Net):
    """Counts from the second step of an epoch to its last but one, and writes at the end what it has counted."""

    def training_step(self, batch, index):
        loss = self._loss(batch)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def on_train_batch_start(self, batch, index):
        if index == 1:
            callbacks = self.trainer.callbacks
            COUNTS["hooks"] = sum(callable(getattr(each, hook)) for each in callbacks for hook in HOOKS)
            self.mode = Reads()
            self.mode.__enter__()
            IN_STEPS[0] = True
        if index == self.trainer.num_training_batches - 1:
            IN_STEPS[0] = False
            self.mode.__exit__(None, None, None)

    def on_train_end(self):
        with open("counts.json", "w") as file:
            json.dump(COUNTS, file)
'''


@pytest.fixture
def counts(house: House) -> dict[str, Any]:
    """Train on some steps as a config without any wishes does."""
    house.write("counted.py", COUNTED)
    house.write(
        "job.yaml",
        f"""
        model: {{class_path: counted.Counted}}
        data: {{class_path: my_models.Points, init_args: {{count: {4 * NUM_STEPS}}}}}
        callbacks: {{checkpoint: {{class_path: lightkit.callbacks.Checkpoint}}}}
        trainer: {{max_epochs: {NUM_EPOCHS}, accelerator: cpu}}
        """,
    )
    folder = house.fit("-c", "job.yaml")
    told: dict[str, Any] = json.loads((house.folder / "counts.json").read_text())
    lines = (Path(folder) / "events.jsonl").read_text().splitlines()
    return {**told, "events": [json.loads(line)["event"] for line in lines]}


def test_steps_read_no_value_call_few_hooks_and_open_no_file(counts: dict[str, Any]) -> None:
    log_points = NUM_EPOCHS * NUM_STEPS // 50  # trainer.log_every_n_steps: what was logged is read there
    assert counts["reads"] <= 2 * log_points
    assert counts["hooks"] <= 14
    assert counts["opened"] == []
    in_epochs = [event for event in counts["events"] if event not in ("start", "end")]
    assert len(in_epochs) <= 3 * NUM_EPOCHS, in_epochs  # the epoch, its best and its last checkpoint
