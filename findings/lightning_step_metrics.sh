#!/usr/bin/env bash
# In pytorch-lightning 2.6.6 a metric that a training step logs as `self.log(name, value)` reaches a ModelCheckpoint and an
# EarlyStopping as the value of the last batch of the epoch.
#
# Seen, in a fit of 2 epochs with 2 batches each, whose losses are 1 and 9 in the first epoch (mean 5) and 9 and 2 in the
# second (mean 5.5): `self.log("loss", loss)` is by step alone in a training step, and `trainer.callback_metrics["loss"]`
# is 9 and then 2 at the ends of the epochs, so that `ModelCheckpoint(monitor="loss")` keeps the second epoch, of the
# larger mean. The same call in a validation step is by epoch, and is the mean. With `on_step=False, on_epoch=True` the
# values are 5 and 5.5, and the first epoch is kept. Nothing on the screen or in the logs distinguishes the two; lightkit
# records the first kind as `loss_step`.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 pytorch-lightning==2.6.6 numpy

cat > "$folder/last_batch.py" <<'PYTHON'
import logging
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
LOSSES = ((1.0, 9.0), (9.0, 2.0))


class Net(LightningModule):
    def __init__(self, **how):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.how = how

    def training_step(self, batch, index):
        self.log("loss", LOSSES[self.current_epoch][index], **self.how)
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Note(Callback):
    def __init__(self):
        self.values = []

    def on_train_epoch_end(self, trainer, module):
        self.values.append(float(trainer.callback_metrics["loss"]))


for how, values, kept in (({}, [9.0, 2.0], 1), ({"on_step": False, "on_epoch": True}, [5.0, 5.5], 0)):
    note = Note()
    checkpoint = ModelCheckpoint(dirpath=None, monitor="loss", filename="{epoch}")
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, callbacks=[note, checkpoint], enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(**how), DataLoader(TensorDataset(torch.ones(2, 1))))
    print(how or "as by default", "values", note.values, "kept", checkpoint.best_model_path.rpartition("/")[2])
    assert note.values == values, note.values
    assert checkpoint.best_model_path.endswith(f"epoch={kept}.ckpt"), checkpoint.best_model_path
PYTHON

cd "$folder"
"$folder/venv/bin/python" last_batch.py
