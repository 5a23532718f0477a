#!/usr/bin/env bash
# pytorch-lightning 2.6.6: pytorch_lightning.utilities.consolidate_checkpoint ends with KeyError: 'model' on every
# distributed checkpoint that ModelParallelStrategy writes, so that the command Lightning's documentation gives for
# distributed checkpoints makes no single file of one.
#
# FSDPStrategy writes the weights of a distributed checkpoint under the key "model", ModelParallelStrategy (with
# save_distributed_checkpoint, which is its default) under "state_dict". The command renames "model" to "state_dict"
# whatever it has read. The checkpoint itself is whole: the strategy reads it again.
#
# Seen with Python 3.11.7 and torch 2.15.0 on Linux, one process on the CPU: "KeyError: 'model'", while the folder holds
# 'state_dict' and 'optimizer_0'. The script ends with 1 as soon as a version makes a file.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pytorch-lightning==2.6.6 torch==2.15.0 numpy

cat > "$folder/train.py" <<'PYTHON'
import sys

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def configure_model(self):
        fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


trainer = pl.Trainer(
    accelerator="cpu", devices=1, strategy=ModelParallelStrategy(), max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=4))
trainer.save_checkpoint(sys.argv[1])
print("written")
PYTHON

"$folder/venv/bin/python" "$folder/train.py" "$folder/shards"
test -f "$folder/shards/meta.pt"
if "$folder/venv/bin/python" -m pytorch_lightning.utilities.consolidate_checkpoint "$folder/shards" 2> "$folder/errors"; then
    echo "consolidate_checkpoint has made a file" >&2
    exit 1
fi
tail -n 1 "$folder/errors"
grep -q "KeyError: 'model'" "$folder/errors"
