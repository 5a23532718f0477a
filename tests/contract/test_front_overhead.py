"""What a training step costs beside the training, counted and not timed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.examples import PICTURES, SMALL, write_pictures
from tests.contract.workspace import Workspace, read_events, read_json

NUM_EPOCHS = 2
MY_COUNTING = '''\
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
READS = [
    (torch.Tensor, name)
    for name in ("item", "tolist", "__float__", "__bool__", "__int__", "numpy", "cpu")
]
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
        counts = {
            "reads": self.reads,
            "opened": self.opened,
            "hooks": self.hooks,
            "steps": self.steps,
        }
        with open("counts.json", "w") as file:
            json.dump(counts, file)

    def note(self, frame, event, _):
        if event == "call" and frame.f_code.co_name in HOOKS:
            self.hooks.append(frame.f_code.co_filename)

    def begin(self):
        for places, note_call in ((READS, self.read), (OPENS, self.open)):
            for owner, name in places:
                self.originals.append((owner, name, vars(owner).get(name), getattr(owner, name)))
                setattr(owner, name, self.counted(getattr(owner, name), note_call))

    def end(self):
        for owner, name, own, _ in self.originals:
            delattr(owner, name) if own is None else setattr(owner, name, own)
        self.originals.clear()

    def counted(self, original, note_call):
        def function(*args, **kwargs):
            if threading.current_thread() is threading.main_thread():
                note_call(sys._getframe(1), *args)
            return original(*args, **kwargs)

        return function

    def read(self, frame, *_):
        # its count of steps, which is on the CPU
        if os.path.join("torch", "optim") not in frame.f_code.co_filename:
            self.reads[frame.f_code.co_name] += 1

    def open(self, frame, path, *_):
        self.opened.append(str(path))
'''
NET = {**SMALL, "data": {"class_path": "my_project.Points", "init_args": {"count": 240}}}
IMAGES = {
    **PICTURES,
    "data": {
        "class_path": "ImageFolder",
        "init_args": {
            "root": "pictures",
            "image_size": 32,
            "batch_size": 2,
            "num_workers": 0,
            "cache": "memory",
        },
    },
}


@pytest.mark.parametrize("job", [NET, IMAGES], ids=["net", "images"])
def test_a_training_step_reads_no_value_calls_few_hooks_and_opens_no_file(
    job: dict[str, Any], workspace: Workspace
) -> None:
    workspace.write("my_counting.py", MY_COUNTING)
    write_pictures(workspace.folder / "pictures", 48)
    trainer = {"max_epochs": NUM_EPOCHS, "accelerator": "cpu"}
    workspace.write(
        "job.yaml",
        {
            **job,
            "trainer": trainer,
            "callbacks": {"counting": {"class_path": "my_counting.Counting"}},
        },
    )
    run = workspace.fit("-c", "job.yaml")
    counts = read_json(workspace.folder / "counts.json")
    assert counts["steps"] > 20
    # trainer.log_every_n_steps: what was logged is read there
    log_points = NUM_EPOCHS + counts["steps"] // 50
    # Each step's loss is compared with NaN on the CPU; on a GPU, 16 at once and late.
    assert sum(counts["reads"].values()) <= counts["steps"] + 2 * log_points, counts["reads"]
    own = [file for file in counts["hooks"] if "/lightkit/" in file]
    assert len(own) <= 14 * NUM_EPOCHS, own  # of one step each epoch
    assert [path for path in counts["opened"] if not path.endswith(".png")] == []
    in_epochs = [
        event["event"] for event in read_events(run) if event["event"] not in ("start", "end")
    ]
    # the epoch, its best and its last checkpoint; the images
    assert len(in_epochs) <= 3 * NUM_EPOCHS + 1, in_epochs
