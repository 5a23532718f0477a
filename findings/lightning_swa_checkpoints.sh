#!/usr/bin/env bash
# pytorch-lightning 2.6.6: the average that StochasticWeightAveraging makes is in none of the checkpoints of its training,
# unless the network has a BatchNorm, and what the last epoch has learned is not in the average.
#
# Guess: the last checkpoint of a training with SWA holds the averaged weights, as those with EMAWeightAveraging do, and
# the average goes up to the end of the training.
# Seen for 6 epochs with swa_epoch_start=2, ModelCheckpoint(save_top_k=-1, save_last=True) and networks without a norm or
# with LayerNorm: each of the seven files has the weights as they were trained, last.ckpt those of the last step. The
# average is put into the model at the end of training, after the last file is written, and is gone with the process.
# `test(ckpt_path="last")` or "best", the usual ends of a script, score weights that no average has touched, as the
# validations of the training do, so that SWA changes nothing but the learning rate. With a BatchNorm the training is one
# epoch longer, without a step, and the file of that epoch and last.ckpt hold the average: whether LayerNorm or BatchNorm is
# in the network decides which model is exported. Weights are added at the start of an epoch: the average is the mean of
# those at the ends of the first five epochs, and the sixth is trained for nothing. Nothing on the screen says so. lightkit
# writes the average as final.ckpt.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 pytorch-lightning==2.6.6 numpy==2.4.6

cat > "$folder/averages.py" <<'PYTHON'
import logging
import warnings
from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Model(LightningModule):
    def __init__(self, norm):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 4), norm(4), nn.Linear(4, 1))

    @property
    def first(self):
        return self.layers[0].weight.detach().clone()

    def training_step(self, batch, batch_idx):
        return (self.layers(batch) - 3).square().mean()

    def test_step(self, batch, batch_idx):
        self.log("loss", (self.layers(batch) - 3).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Trained(Callback):
    """Collect the weights of each epoch as they were trained."""

    def __init__(self):
        self.weights = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.weights.append(pl_module.first)


def train(name, norm, averaging):
    """Return how many checkpoints there are, and which of them hold the weights that the model has at the end."""
    seed_everything(1, verbose=False)
    trained = Trained()
    keeper = ModelCheckpoint(name, filename="{epoch}", save_top_k=-1, save_last=True)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=6,
        callbacks=[averaging, trained, keeper],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model(norm)
    data = DataLoader(torch.randn(64, 2), batch_size=8)
    trainer.fit(model, data)
    if isinstance(averaging, StochasticWeightAveraging) and norm is not nn.BatchNorm1d:
        assert torch.allclose(model.first, torch.stack(trained.weights[:5]).mean(0), atol=1e-6)
        assert not torch.allclose(model.first, trained.weights[5], atol=1e-4)
    final = model.first
    files = {path.stem: torch.load(path, weights_only=True) for path in sorted(Path(name).glob("*.ckpt"))}
    holds = [
        stem
        for stem, each in files.items()
        if torch.allclose(each["state_dict"]["layers.0.weight"], final, atol=1e-6)
    ]
    scores = [
        trainer.test(model, data, ckpt_path=path, verbose=False)[0]["loss"]
        for path in (None, "last")
    ]
    print(f"{name}: {len(files)} checkpoints, the average is in {holds}; test of the model, of last.ckpt: {scores}")
    return len(files), holds, scores


plain, with_layer_norm, with_batch_norm = [
    train(norm.__name__, norm, StochasticWeightAveraging(0.01, swa_epoch_start=2, annealing_epochs=1))
    for norm in (nn.Identity, nn.LayerNorm, nn.BatchNorm1d)
]
for count, holds, (in_memory, last) in (plain, with_layer_norm):
    assert (count, holds) == (7, [])
    assert abs(in_memory - last) > 1e-3 * last
assert with_batch_norm[:2] == (8, ["epoch=6", "last"])
assert with_batch_norm[2][0] == with_batch_norm[2][1]
average = train("EMA", nn.LayerNorm, EMAWeightAveraging(decay=0.9))
assert "last" in average[1]
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/averages.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
