"""A training by the command: the second one finds what the first has decoded, and learns the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FIT = [
    *("fit", "--data=ImageFolder", "--data.root=photos", "--data.image_size=8", "--data.batch_size=4"),
    *("--data.cache=disk", "--data.num_workers=1", "--model=ImageClassifier", "--model.backbone=small_cnn"),
    *("--trainer.max_epochs=2", "--trainer.accelerator=cpu", "--seed_everything=1"),
]


def fit(folder: Path) -> tuple[str, dict[str, float]]:
    ended = subprocess.run(
        [sys.executable, "-m", "lightkit", *FIT],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr
    (newest,) = (path for path in folder.glob("runs/*/latest"))
    last = json.loads((newest / "summary.json").read_text())["metrics"]["last"]
    return ended.stdout + ended.stderr, {name: value for name, value in last.items() if name.startswith("val/")}


@pytest.mark.slow
def test_the_second_fit_finds_the_photos_decoded(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "photos" / f"kind{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).save(path)
    first, learned = fit(tmp_path)
    (file,) = (tmp_path / "home").rglob("*.pixels")
    made = file.stat().st_ino
    second, again = fit(tmp_path)
    assert "photos decoded once, shorter side 9 px, " in first
    assert "photos found decoded, shorter side 9 px, " in second
    assert file.stat().st_ino == made
    assert again == learned
    assert "val/loss" in learned
