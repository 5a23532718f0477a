#!/usr/bin/env bash
# pytorch-lightning 2.6.6 with two ranks and a shuffled sampler of one's own: in an epoch a quarter of the samples is
# seen by nobody, and as many are seen twice, as soon as the ranks have drawn unequal numbers of random numbers.
#
# Guess: a sampler that Lightning makes distributed gives each sample to one rank, as its own DistributedSampler does.
# Seen for SubsetRandomSampler over 80 samples, the usual way to train on a part of a data set, with a seed from
# seed_everything: each rank draws a whole order anew from its own random state and takes every second place of it. That
# is one order as long as the states are equal. With an augmentation of every third sample, and no loading processes, one
# rank has drawn more than the other after the first epoch; of the 80 then 55 to 65 are seen in an epoch. Without
# seed_everything that is so from the first epoch on. The number of samples and of steps is right in each case, and
# nothing warns. `shuffle=True` is right: there the order comes of a seed and the epoch. So is a sampler with a generator
# of its own, seeded alike on all ranks. WeightedRandomSampler is drawn the same way, where repeated samples hide it.
# The docstring of the wrapper leaves randomness to the sampler. lightkit draws such orders from the seed and the epoch.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 pytorch-lightning==2.6.6 numpy==2.4.6

cat > "$folder/ranks.py" <<'PYTHON'
import logging
import sys
import warnings

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, SubsetRandomSampler

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
kind = sys.argv[1]


class Samples:
    def __len__(self):
        return 80

    def __getitem__(self, index):
        is_augmented = kind != "plain" and index % 3 == 0
        return torch.randn(1) if is_augmented else torch.zeros(1), index


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []
        self.counts = []

    def training_step(self, batch, batch_idx):
        self.seen += batch[1].tolist()
        return self.layer(batch[0]).mean()

    def on_train_epoch_end(self):
        seen = [None, None]
        dist.all_gather_object(seen, self.seen)
        self.counts.append((len(sum(seen, [])), len(set(sum(seen, [])))))
        self.seen = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


seed_everything(1, verbose=False)
samples = Samples()
if kind == "shuffle":
    loader = DataLoader(samples, batch_size=5, shuffle=True)
else:
    generator = torch.Generator().manual_seed(5) if kind == "generator" else None
    loader = DataLoader(samples, batch_size=5, sampler=SubsetRandomSampler(range(80), generator))
model = Model()
Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(model, loader)
if model.global_rank == 0:
    print(f"{kind}: samples and different samples of each epoch {model.counts}")
    assert [number for number, _ in model.counts] == [80] * 5
    different = [number for _, number in model.counts]
    if kind == "augmented":
        assert max(different[2:]) < 75
    else:
        assert different == [80] * 5
PYTHON

cd "$folder"
for kind in plain augmented shuffle generator; do
  "$folder/venv/bin/python" "$folder/ranks.py" $kind 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
done
