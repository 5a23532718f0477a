#!/usr/bin/env bash
# `trainer.estimated_stepping_batches` of pytorch-lightning 2.6.6 counts all epochs with the accumulation of the present one.
# Its documentation says that it raises where the accumulation differs between epochs; it does not.
#
# Seen, with `GradientAccumulationScheduler({0: 1, 2: 4})`, 8 batches and 4 epochs, which take 8 + 8 + 2 + 2 = 20 optimizer
# steps: the property is 32 in the first two epochs and 8 from the third on, when 16 steps are done. A schedule that asks
# for it at each step, such as a cosine to zero, has a rate of 0 for the rest of the training; OneCycleLR, which asks once,
# is cut off before it anneals. For an `IterableDataset` without a length the property is -1, unless `max_steps` is set.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 pytorch-lightning==2.6.6 numpy

cat > "$folder/steps.py" <<'PYTHON'
import logging
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import GradientAccumulationScheduler
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.zeros(8, 1)


class Module(LightningModule):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.layer = nn.Linear(1, 1)
        self.seen = []

    def train_dataloader(self):
        return DataLoader(self.rows)

    def training_step(self, batch, index):
        return self.layer(batch).sum()

    def on_train_epoch_start(self):
        self.seen.append((self.trainer.global_step, self.trainer.estimated_stepping_batches))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(rows, callbacks=()):
    module = Module(rows)
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=list(callbacks),
    )
    trainer.fit(module)
    return module.seen, trainer.global_step


changing, num_steps = fit(torch.zeros(8, 1), [GradientAccumulationScheduler({0: 1, 2: 4})])
stream, _ = fit(Stream())
print("steps done and the property at the start of each epoch:", changing)
print("steps of the training:", num_steps)
print("of a stream:", stream)
assert num_steps == 20
assert changing == [(0, 32), (8, 32), (16, 8), (18, 8)], "the behaviour has changed"
assert [estimate for _, estimate in stream] == [-1] * 4, "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/steps.py"
