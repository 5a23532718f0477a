#!/usr/bin/env bash
# pytorch-lightning 2.6.6: a training that goes on from a checkpoint has the patience that EarlyStopping had there, not
# the one that it is given.
#
# Guess: a checkpoint holds what training has changed, such as the count of epochs without progress; settings are those
# of the code.
# Seen for a loss that falls again after eight epochs without progress: with a patience of 3 the training ends after four
# epochs. Continued from its checkpoint with EarlyStopping(patience=20), it ends after one more, at the first validation;
# the object itself says 3 by then. A patience of 2 in place of a saved 20 does not stop it within the eight. `monitor` and
# `mode` are part of the name under which the state is saved, so that with the other `mode` the new patience counts, and the
# count of epochs begins anew. min_delta and the thresholds are not saved, and are those of the code. No line on the
# screen says which patience holds. lightkit took the saved one, too, and now takes that of its config.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 pytorch-lightning==2.6.6 numpy==2.4.6

cat > "$folder/patience.py" <<'PYTHON'
import logging
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def validation_step(self, batch, batch_idx):
        self.log("loss", 1.0 if self.current_epoch <= 8 else 1 / self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(name, stopping, *, checkpoint=None, epochs=40):
    """Return the number of epochs at the end, and the patience then."""
    keeper = ModelCheckpoint(".", filename=name, enable_version_counter=False)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[stopping, keeper],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    data = DataLoader(torch.ones(2, 1))
    trainer.fit(Model(), data, data, ckpt_path=checkpoint)
    return trainer.current_epoch, stopping.patience


found = {
    "3": train("short", EarlyStopping("loss", patience=3)),
    "20": train("long", EarlyStopping("loss", patience=20)),
    "20, epoch 1": train("begun", EarlyStopping("loss", patience=20), epochs=2),
}
found["3, then 20"] = train("again", EarlyStopping("loss", patience=20), checkpoint="short.ckpt")
found["20, then 2"] = train("again", EarlyStopping("loss", patience=2), checkpoint="begun.ckpt")
other_way = EarlyStopping("loss", patience=30, mode="max")
found["3, then 30 and another mode"] = train("again", other_way, checkpoint="short.ckpt")
for patience, (epochs, at_end) in found.items():
    print(f"patience {patience}: {epochs} epochs, patience {at_end} at the end")
assert found == {
    "3": (4, 3),
    "20": (40, 20),
    "20, epoch 1": (2, 20),
    "3, then 20": (5, 3),
    "20, then 2": (40, 20),
    "3, then 30 and another mode": (35, 30),
}
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/patience.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
