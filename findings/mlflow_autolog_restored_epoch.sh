#!/usr/bin/env bash
# MLflow 3.17.2 and pytorch-lightning 2.6.6: after an early stop mlflow.pytorch.autolog() logs `restored_epoch` and a
# `restored_model_checkpoint`, but restores nothing: the logged model has the last weights, and so has that file by
# default.
#
# Guess: the weights under that name are those of the epoch that `restored_epoch` and `best_score` name, and the
# logged model is that one.
# Seen with EarlyStopping(patience=2), whose metric is best in epoch 2 of 5: restored_epoch 2, best_score 1.0,
# stopped_epoch 4. The file is the best_model_path of the Trainer's first ModelCheckpoint. The one that Lightning adds
# by itself monitors nothing, and its best is the last: the weights of epoch 4, and those of epoch 2 are in no
# artifact. With a ModelCheckpoint for the same metric the file is of epoch 2, and the logged model, which
# mlflow.pytorch.load_model gives and a registry serves, still of epoch 4; both carry the same metrics.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 pytorch-lightning==2.6.6 mlflow==3.17.2 numpy==2.4.6

cat > "$folder/autolog.py" <<'PYTHON'
import logging
import warnings
from pathlib import Path

import mlflow
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)
mlflow.set_tracking_uri("sqlite:///mlflow.db")
rows = torch.linspace(-1, 1, 40)[:, None]
loader = DataLoader(TensorDataset(rows, 2 * rows), 4)


class Line(pl.LightningModule):
    """A line whose validation loss is best in epoch 2, by construction."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.ends = []

    def training_step(self, batch, index):
        return ((self.layer(batch[0]) - batch[1]) ** 2).mean()

    def validation_step(self, batch, index):
        self.log("val_loss", abs(self.current_epoch - 2) + 1.0)

    def on_train_epoch_end(self):
        self.ends.append(self.layer.weight.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


mlflow.pytorch.autolog()
for name, callbacks in [
    ("stopping", [EarlyStopping("val_loss", patience=2)]),
    ("checkpoint too", [EarlyStopping("val_loss", patience=2), ModelCheckpoint("best", monitor="val_loss")]),
]:
    torch.manual_seed(0)
    line = Line()
    with mlflow.start_run() as run:
        trainer = pl.Trainer(
            max_epochs=6, accelerator="cpu", logger=False, callbacks=callbacks, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir="lightning",
        )
        trainer.fit(line, loader, loader)
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    folder = mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="restored_model_checkpoint")
    (file,) = (path for path in Path(folder).rglob("*") if path.is_file())
    restored = torch.load(file, weights_only=False)
    (logged,) = mlflow.search_logged_models(
        filter_string=f"source_run_id = '{run.info.run_id}'", output_format="list"
    )
    weights = {
        "restored_model_checkpoint": restored["state_dict"]["layer.weight"].item(),
        "logged model": mlflow.pytorch.load_model(logged.model_uri).layer.weight.item(),
    }
    print(name, {key: metrics[key] for key in ("stopped_epoch", "restored_epoch", "best_score")})
    print("  end of each epoch:", [round(weight, 4) for weight in line.ends], weights)
    assert metrics["restored_epoch"] == 2 and metrics["stopped_epoch"] == 4 and metrics["best_score"] == 1
    assert len(line.ends) == 5 and line.ends[2] < line.ends[4]
    assert weights["logged model"] == line.ends[4], weights
    assert weights["restored_model_checkpoint"] == line.ends[4 if name == "stopping" else 2], weights
best = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)["state_dict"]["layer.weight"].item()
assert abs(best - line.ends[2]) < 1e-6, best
PYTHON

cd "$folder"
CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/autolog.py"
