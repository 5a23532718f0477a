#!/usr/bin/env bash
# Reading `trainer.estimated_stepping_batches` in `configure_optimizers` starts the loading processes of pytorch-lightning
# 2.6.6 before any hook of the fit: the first epoch does not see what `on_fit_start` changes in the dataset.
#
# Seen, in a fit of 2 epochs whose module sets `dataset.value` from 0 to 7 in `on_fit_start`, with one loading process:
# without the property both epochs have 7. With it, which schedules such as OneCycleLR need, the iterator of the first epoch
# exists, and its process has a copy of the dataset, when `on_fit_start` runs: the first epoch has 0 and the second 7. With
# `num_workers=0` all have 7 in both cases. The seed that such an iterator draws from torch's generator is drawn earlier,
# too, which whoever restores random states in `on_fit_start` for an exact resume has to undo; lightkit makes the iterator
# anew then.
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
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Values(Dataset):
    value = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([float(self.value)])


class Net(LightningModule):
    def __init__(self, dataset, reads_steps):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.dataset = dataset
        self.reads_steps = reads_steps
        self.seen = []

    def configure_optimizers(self):
        if self.reads_steps:
            assert self.trainer.estimated_stepping_batches == 4
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_fit_start(self):
        self.dataset.value = 7

    def on_train_epoch_start(self):
        self.seen.append(set())

    def training_step(self, batch, index):
        self.seen[-1] |= set(batch.flatten().int().tolist())
        return self.layer(batch).square().mean()


def fit(reads_steps, num_workers):
    dataset = Values()
    net = Net(dataset, reads_steps)
    loader = DataLoader(dataset, batch_size=2, num_workers=num_workers)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(max_epochs=2, accelerator="cpu", **quiet).fit(net, loader)
    return [sorted(epoch) for epoch in net.seen]


for num_workers in (1, 0):
    for reads_steps in (False, True):
        found = fit(reads_steps, num_workers)
        print(f"{num_workers} loading processes, steps read: {reads_steps}: values of the epochs {found}")
        assert found == ([[0], [7]] if reads_steps and num_workers else [[7], [7]]), found
PYTHON

CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/steps.py"
