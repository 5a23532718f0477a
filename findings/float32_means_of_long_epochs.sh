#!/usr/bin/env bash
# Means of long epochs: torchmetrics 1.9.0 and pytorch-lightning 2.6.6 add one float32 after another, so that the mean of a
# constant is not that constant.
#
# Seen with 0.1 in each step, one sample a step: torchmetrics' MeanMetric is 0.10096 after 1,000,000 updates and 0.0969 after
# 3,000,000, MeanAbsoluteError of errors of 0.1 is 0.10096, too, and the value that Lightning's `self.log(on_epoch=True)`
# reports for an epoch of 200,000 steps is 0.0998. Nothing warns; a difference of 1 % decides between two models. Counts are
# float32 in MeanMetric as well: above 16,777,216 samples, batches of an odd number of samples are no longer counted in full.
# Metrics that count right answers in integers, such as accuracy, are exact. `set_dtype(torch.float64)` makes MeanMetric
# exact on a device that has it; lightkit adds sums of 1,024 batches.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 pytorch-lightning==2.6.6 torchmetrics==1.9.0 numpy

cat > "$folder/means.py" <<'PYTHON'
import logging
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanAbsoluteError, MeanMetric

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
torch.set_num_threads(1)
TENTH = torch.tensor([0.1])
ZERO = torch.tensor([0.0])


class Samples(Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, index):
        return TENTH


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        return None

    def training_step(self, batch, index):
        self.log("tenth", batch.mean(), on_step=False, on_epoch=True, batch_size=1)


mean, exact, error = MeanMetric(), MeanMetric().set_dtype(torch.float64), MeanAbsoluteError()
found = {}
for step in range(1, 3_000_001):
    mean.update(TENTH)
    if step <= 1_000_000:
        exact.update(TENTH)
        error.update(TENTH, ZERO)
    if step in (1_000_000, 3_000_000):
        found[step] = round(float(mean.compute()), 4)
found["float64"] = round(float(exact.compute()), 6)
found["absolute error"] = round(float(error.compute()), 4)
print("torchmetrics:", found)
assert found == {1_000_000: 0.101, 3_000_000: 0.0969, "float64": 0.1, "absolute error": 0.101}, found

counted = MeanMetric()
for size in (2**24, 1, 1, 1):
    counted.update(torch.ones(size))
print("weight of 16,777,219 samples:", int(counted.weight))
assert int(counted.weight) == 2**24

quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = Trainer(max_epochs=1, accelerator="cpu", **quiet)
trainer.fit(Net(), DataLoader(Samples(), batch_size=1))
logged = round(float(trainer.callback_metrics["tenth"]), 4)
print("Lightning's mean of an epoch of 200,000 steps:", logged)
assert logged == 0.0998, logged
PYTHON

CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/means.py"
