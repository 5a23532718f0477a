#!/usr/bin/env bash
# `EMAWeightAveraging(update_every_n_steps=2)` of pytorch-lightning 2.6.6 never updates the average of a module that makes the
# steps of two optimizers in a batch, and says nothing.
#
# Seen, in 12 batches of a module with manual optimization and two optimizers: `Trainer.global_step` counts the steps of both,
# so that the callback, which looks once a batch, sees the steps 1, 3, 5, ... from 0, none of which an even number divides.
# With update_every_n_steps=2 or 10 there is no update, and the average, which takes the place of the weights at the end of
# the training, is the weights that it began with: all that was learned is lost. With 1 there are 12 updates, with 3 four.
# With one optimizer there are 12, 6, 4 and 2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 pytorch-lightning==2.6.6 numpy

cat > "$folder/average.py" <<'PYTHON'
import logging
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import EMAWeightAveraging
from torch import nn
from torch.utils.data import DataLoader

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Module(LightningModule):
    def __init__(self, num_optimizers):
        super().__init__()
        self.automatic_optimization = False
        self.layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(num_optimizers))

    def train_dataloader(self):
        return DataLoader(torch.ones(12, 1))

    def training_step(self, batch, index):
        optimizers = self.optimizers()
        for layer, optimizer in zip(self.layers, optimizers if isinstance(optimizers, list) else [optimizers]):
            optimizer.zero_grad()
            self.manual_backward((layer(batch) - 3).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in self.layers]


class Average(EMAWeightAveraging):
    def on_train_end(self, trainer, module):
        self.num_updates = int(self._average_model.n_averaged)
        super().on_train_end(trainer, module)


def fit(num_optimizers, every):
    torch.manual_seed(0)
    module = Module(num_optimizers)
    before = [each.detach().clone() for each in module.parameters()]
    average = Average(update_every_n_steps=every)
    Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[average],
    ).fit(module)
    is_untrained = all(torch.equal(*each) for each in zip(before, module.parameters()))
    return average.num_updates, is_untrained


found = {}
for num_optimizers in (1, 2):
    for every in (1, 2, 3, 10):
        found[num_optimizers, every] = fit(num_optimizers, every)
        print(
            f"{num_optimizers} optimizers, update_every_n_steps={every}: updates, and whether the"
            f" weights at the end are those of the beginning: {found[num_optimizers, every]}"
        )
numbers = {key: num for key, (num, _) in found.items()}
assert [numbers[1, each] for each in (1, 2, 3, 10)] == [12, 6, 4, 2], "the behaviour has changed"
assert [numbers[2, each] for each in (1, 2, 3, 10)] == [12, 0, 4, 0], "the behaviour has changed"
assert {key for key, (_, is_untrained) in found.items() if is_untrained} == {(2, 2), (2, 10)}
PYTHON
"$folder/venv/bin/python" "$folder/average.py"
