"""Two processes that train together, as a script starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, warnings
from pathlib import Path
import torch
from pytorch_lightning import LightningDataModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset
from lightkit.models import ImageClassifier

warnings.simplefilter("error", UserWarning)  # as Lightning's own are
warnings.filterwarnings("ignore", ".*does not have many workers")
warnings.filterwarnings("ignore", ".*use `Trainer.devices=1, num_nodes=1.`")
warnings.filterwarnings(
    "ignore", ".*trainer.test..` will|.*Using `DistributedSampler` with the dataloaders"
)
generator = torch.Generator().manual_seed(7)
images, labels = (
    torch.randn(22, 3, 32, 32, generator=generator),
    torch.randint(3, (22,), generator=generator),
)

class Data(LightningDataModule):
    class_names = ["a", "b", "c"]
    image_size = 32

    def train_dataloader(self):
        return DataLoader(TensorDataset(images, labels), batch_size=4, shuffle=False)

    val_dataloader = test_dataloader = train_dataloader

if __name__ == "__main__":
    seed_everything(7)
    model = ImageClassifier("squeezenet1_1", freeze="backbone")
    model.configure_optimizers = lambda: torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.0
    )
    model.on_train_start = model.eval
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, datamodule=Data())
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    model.eval()
    with torch.no_grad():
        logits = model(images)
    expected = {"loss": float(torch.nn.functional.cross_entropy(logits, labels)),
                "accuracy": float((logits.argmax(1) == labels).float().mean())}
    Path(f"rank{trainer.global_rank}.json").write_text(json.dumps([found, expected]))
"""


@pytest.mark.long
def test_two_processes_log_the_values_of_all_images(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(script)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        found, expected = json.loads((tmp_path / f"rank{rank}.json").read_text())
        # 22 images are 11 for each process: the last batch of each is smaller
        for name, value in expected.items():
            assert found[f"train/{name}"] == pytest.approx(value, abs=1e-6)
            assert found[f"val/{name}"] == pytest.approx(value, abs=1e-6)
