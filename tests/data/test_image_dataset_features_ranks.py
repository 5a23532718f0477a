"""Two processes that train a head on features that each keeps learn what they learn of images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
import json, sys, warnings
from pathlib import Path
from pytorch_lightning import Callback, Trainer, seed_everything
from lightkit.data import ImageFolder
from lightkit.models import ImageClassifier

warnings.filterwarnings("ignore", ".*does not have many workers")

class Seen(Callback):
    def __init__(self):
        self.losses, self.inputs = [], set()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.losses.append(float(outputs["loss"]))
        self.inputs.add(batch[0].ndim)

if __name__ == "__main__":
    for features in ("auto", "each_step"):
        seed_everything(7)
        seen = Seen()
        model = ImageClassifier(
            "small_cnn", freeze="backbone", features=features, learning_rate=0.05
        )
        data = ImageFolder(
            sys.argv[1],
            image_size=32,
            batch_size=4,
            test_fraction=0.0,
            augment=False,
            seed=3,
            num_workers=0,
        )
        trainer = Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=2,
            logger=False,
            callbacks=[seen],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(model, data)
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        head = next(weights for weights in model.parameters() if weights.requires_grad)
        found = [sorted(seen.inputs), seen.losses, values, head.flatten().tolist()]
        Path(f"{features}-{trainer.global_rank}.json").write_text(json.dumps(found))
"""


@pytest.mark.long
def test_two_processes_learn_of_features_what_they_learn_of_images(
    make_images: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_images(
        *(f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(14))
    )
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(root)], check=False, capture_output=True, text=True,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]),
                           "OMP_NUM_THREADS": "1"},
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = []
    for rank in (0, 1):
        kept, each = (
            json.loads((tmp_path / f"{way}-{rank}.json").read_text())
            for way in ("auto", "each_step")
        )
        assert (kept[0], each[0]) == ([2], [4])
        assert kept[1] == pytest.approx(each[1], abs=1e-5)
        assert kept[2] == pytest.approx(each[2], abs=1e-5)
        assert kept[3] == pytest.approx(each[3], abs=1e-4)
        losses.append(kept[1])
    assert losses[0] != losses[1]
