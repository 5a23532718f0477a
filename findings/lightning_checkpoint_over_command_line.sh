#!/usr/bin/env bash
# LightningCLI of pytorch-lightning 2.6.6: with --ckpt_path the model's arguments on the command line and in the config
# are replaced by those in the checkpoint, and the saved config says so too.
#
# Guess: a flag that is given wins over what a checkpoint remembers.
# Seen for a model that calls save_hyperparameters(), trained with its defaults: `test --model.threshold=0.3` tests with
# 0.3; `test --model.threshold=0.3 --ckpt_path=a.ckpt` with 0.5, the value of the training, and so does the same value in
# a config file. `fit --model.dropout=0.1 --ckpt_path=a.ckpt` goes on with 0.5, and config.yaml, the record of what was
# run, has 0.5. There is no warning, and a misspelt flag still is an error, so that the flag looks as if it had been read.
# Three thresholds tried on one checkpoint give one result three times; a fine-tuning with a smaller dropout is not one.
# It came with the parsing of hyperparameters from checkpoints; arguments of data and trainer are not touched, and a model
# without save_hyperparameters() is not either: there the flag counts. lightkit gives the command's values.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 pytorch-lightning==2.6.6 \
  "jsonargparse[signatures]==4.53.0" numpy==2.4.6

cat > "$folder/flags.py" <<'PYTHON'
import logging
import warnings
from pathlib import Path

import torch
import yaml
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import LightningCLI
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Forgetful(LightningModule):
    """It saves no hyperparameters."""

    def __init__(self, threshold: float = 0.5, dropout: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold
        self.dropout = dropout
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def test_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(torch.rand(4, 1))

    test_dataloader = train_dataloader


class Model(Forgetful):
    def __init__(self, threshold: float = 0.5, dropout: float = 0.5) -> None:
        super().__init__(threshold, dropout)
        self.save_hyperparameters()


SWITCHED_OFF = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")


def run(*words, model=Model):
    """Return the model and the config that was saved."""
    words = [*words, "--trainer.accelerator=cpu", *(f"--trainer.{key}=false" for key in SWITCHED_OFF)]
    cli = LightningCLI(model, args=words, save_config_kwargs={"overwrite": True})
    return cli, yaml.safe_load(Path("config.yaml").read_text())


cli, _ = run("fit", "--trainer.max_epochs=1")
cli.trainer.save_checkpoint("a.ckpt")

cli, _ = run("test", "--model.threshold=0.3")
print("test --model.threshold=0.3:", cli.model.threshold)
assert cli.model.threshold == 0.3

cli, _ = run("test", "--model.threshold=0.3", "--ckpt_path=a.ckpt")
print("the same with --ckpt_path:", cli.model.threshold)
assert cli.model.threshold == 0.5

Path("own.yaml").write_text("model: {threshold: 0.3}\n")
cli, _ = run("test", "--config=own.yaml", "--ckpt_path=a.ckpt")
assert cli.model.threshold == 0.5

cli, saved = run("fit", "--model.dropout=0.1", "--trainer.max_epochs=2", "--ckpt_path=a.ckpt")
print("fit --model.dropout=0.1 with --ckpt_path:", cli.model.dropout, "saved as", saved["model"]["dropout"])
assert cli.model.dropout == saved["model"]["dropout"] == 0.5
assert cli.trainer.current_epoch == 2

cli, _ = run("fit", "--trainer.max_epochs=1", model=Forgetful)
cli.trainer.save_checkpoint("b.ckpt")
cli, _ = run("test", "--model.threshold=0.3", "--ckpt_path=b.ckpt", model=Forgetful)
print("without save_hyperparameters():", cli.model.threshold)
assert cli.model.threshold == 0.3
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/flags.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
