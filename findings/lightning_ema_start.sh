#!/usr/bin/env bash
# EMAWeightAveraging of pytorch-lightning 2.6.6: a start by epoch holds nothing back, and a start that is never reached
# gives the model its first weights back.
#
# Seen, in a fit of 3 epochs with 4 steps each: with `update_starting_at_epoch=2` the average is updated after every step
# from the first one on, 12 times, and once more at the end of epoch 2: the argument adds an update an epoch and delays
# none. With `update_starting_at_step=8` it is updated after steps 9 to 12. With `update_starting_at_step=1000` it is never
# updated, and at the end of training the copy that was made before the first step replaces the trained weights, without a
# warning: the model that `fit` returns has the weights that it began with. lightkit's `callbacks.ema` follows the weights
# until its start, and refuses a start that the training never reaches.
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
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Copy(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def training_step(self, batch, index):
        return (self.layer(batch[0]) - batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Counting(EMAWeightAveraging):
    updates = None

    def should_update(self, step_idx=None, epoch_idx=None):
        due = super().should_update(step_idx, epoch_idx)
        if due:
            self.updates.append(f"step{step_idx + 1}" if epoch_idx is None else f"epoch{epoch_idx}")
        return due


def fit(**start):
    average = Counting(**start)
    average.updates = []
    model = Copy()
    first = model.layer.weight.detach().clone()
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(max_epochs=3, accelerator="cpu", callbacks=[average], **quiet).fit(model, loader)
    is_first = torch.equal(model.layer.weight, first)
    return average.updates, is_first


by_epoch, epoch_is_first = fit(update_starting_at_epoch=2)
by_step, step_is_first = fit(update_starting_at_step=8)
never, never_is_first = fit(update_starting_at_step=1000)
print(f"by epoch 2: {' '.join(by_epoch)}; by step 8: {' '.join(by_step)}")
print(f"by step 1000: {len(never)} updates, the first weights again: {never_is_first}")
assert by_epoch == [f"step{step}" for step in range(1, 13)] + ["epoch2"], by_epoch
assert by_step == ["step9", "step10", "step11", "step12"], by_step
assert never == [], never
assert (epoch_is_first, step_is_first, never_is_first) == (False, False, True)
PYTHON

CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/average.py"
