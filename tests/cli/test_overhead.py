"""What a training step costs beside the training, counted and not timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.cli.conftest import House

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")

NUM_EPOCHS = 2

COUNTING = '''\
"""Counts what steps do, from the second of an epoch to its last but one."""

import builtins
import io
import json
import os
import sys
import threading
from collections import Counter

import torch
from pytorch_lightning.callbacks import Callback

HOOKS = {
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "on_train_batch_end",
}
READS = [(torch.Tensor, name) for name in ("item", "tolist", "__float__", "__bool__", "__int__", "numpy", "cpu")]
OPENS = [(builtins, "open"), (io, "open"), (os, "open")]


class Counting(Callback):
    """Writes at the end what it has counted."""

    def __init__(self):
        self.reads, self.opened, self.hooks, self.steps, self.originals = Counter(), [], [], 0, []

    def on_train_batch_start(self, trainer, module, batch, index):
        sys.setprofile(self.note if index == 1 else None)
        if index == 1:
            self.begin()
        if self.originals:
            self.steps += 1
        if index == trainer.num_training_batches - 1:
            self.end()

    def on_train_end(self, trainer, module):
        self.end()
        counts = {"reads": self.reads, "opened": self.opened, "hooks": self.hooks, "steps": self.steps}
        with open("counts.json", "w") as file:
            json.dump(counts, file)

    def note(self, frame, event, _):
        if event == "call" and frame.f_code.co_name in HOOKS:
            self.hooks.append(frame.f_code.co_qualname)

    def begin(self):
        for places, told in ((READS, self.read), (OPENS, self.open)):
            for owner, name in places:
                self.originals.append((owner, name, vars(owner).get(name), getattr(owner, name)))
                setattr(owner, name, self.counted(getattr(owner, name), told))

    def end(self):
        for owner, name, own, _ in self.originals:
            delattr(owner, name) if own is None else setattr(owner, name, own)
        self.originals.clear()

    def counted(self, original, told):
        def function(*args, **kwargs):
            if threading.current_thread() is threading.main_thread():
                told(sys._getframe(1), *args)
            return original(*args, **kwargs)

        return function

    def read(self, frame, *_):
        if os.path.join("torch", "optim") not in frame.f_code.co_filename:  # its count of steps, which is on the CPU
            self.reads[frame.f_code.co_name] += 1

    def open(self, frame, path, *_):
        self.opened.append(str(path))
'''

NET = "model: my_models.Net\ndata: {class_path: my_models.Points, init_args: {count: 480}}\n"
IMAGES = """\
model: {class_path: ImageClassifier, init_args: {freeze: none}}
data:
  class_path: ImageFolder
  init_args: {root: pictures, image_size: 32, batch_size: 2, num_workers: 0, val_fraction: 0.25, cache: memory}
"""
OTHERS = f"""\
seed_everything: 7
callbacks:
  checkpoint: {{class_path: lightkit.callbacks.Checkpoint}}
  counting: {{class_path: my_counting.Counting}}
trainer: {{max_epochs: {NUM_EPOCHS}, accelerator: cpu}}
"""


@pytest.fixture
def pictures(house: House) -> None:
    """Some tiny images of two classes."""
    for index in range(48):
        path = house.folder / "pictures" / ("red", "blue")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (255 - index, index, 0) if index % 2 == 0 else (0, index, 255 - index)).save(path)


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("job", [NET, IMAGES], ids=["net", "images"])
def test_steps_read_no_value_call_few_hooks_and_open_no_file(house: House, job: str) -> None:
    house.write("my_counting.py", COUNTING)
    house.write("job.yaml", job + OTHERS)
    folder = house.fit("-c", "job.yaml")
    counts: dict[str, Any] = json.loads((house.folder / "counts.json").read_text())
    assert counts["steps"] > 20
    # The loss of each step is looked at on the CPU; on a GPU, 16 at once and late.
    assert counts["reads"].pop("fault_of_loss") <= counts["steps"]
    log_points = NUM_EPOCHS + counts["steps"] // 50  # trainer.log_every_n_steps: what was logged is read there
    assert sum(counts["reads"].values()) <= 2 * log_points, counts["reads"]
    assert len(counts["hooks"]) <= 14 * NUM_EPOCHS, counts["hooks"]  # of one step each epoch
    assert [path for path in counts["opened"] if not path.endswith(".png")] == []
    events = [json.loads(line)["event"] for line in (Path(folder) / "events.jsonl").read_text().splitlines()]
    in_epochs = [event for event in events if event not in ("start", "end")]
    assert len(in_epochs) <= 3 * NUM_EPOCHS + 1, in_epochs  # the epoch, its best and its last checkpoint; the images
