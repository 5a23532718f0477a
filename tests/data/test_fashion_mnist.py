"""FashionMNIST from real, small idx files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.data import FashionMNIST
from lightkit.data import loader as loader_module
from lightkit.errors import ConfigError, DataError

SIZES = {"train": 200, "t10k": 20}


@pytest.fixture
def idx_files() -> dict[str, bytes]:
    """The four files; every training picture is there twice."""
    random = np.random.default_rng(0)
    files = {}
    for name, num in SIZES.items():
        half = random.integers(0, 256, (num // 2, 28, 28), dtype=np.uint8)
        pixels, labels = np.concatenate([half, half]), np.arange(num, dtype=np.uint8) % 10
        files[f"{name}-images-idx3-ubyte"] = (
            struct.pack(">IIII", 0x803, num, 28, 28) + pixels.tobytes()
        )
        files[f"{name}-labels-idx1-ubyte"] = struct.pack(">II", 0x801, num) + labels.tobytes()
    return files


def written(root: Path, files: Mapping[str, bytes]) -> Path:
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in files.items():
        (raw / name).write_bytes(content)
    return root


def test_batches_have_three_equal_channels(tmp_path: Path, idx_files: dict[str, bytes]) -> None:
    data = FashionMNIST(str(written(tmp_path, idx_files)), image_size=32, batch_size=8, seed=0)
    data.setup("fit")
    assert data.num_classes == len(data.class_names) == 10
    for loader in (
        data.train_dataloader(),
        data.val_dataloader(),
        data.test_dataloader(),
        data.predict_dataloader(),
    ):
        images, labels = data.on_after_batch_transfer(next(iter(loader)), 0)
        assert (images.shape[1:], images.dtype, labels.dtype) == (
            (3, 32, 32),
            torch.float32,
            torch.int64,
        )
    mean, std = (
        torch.tensor(values)[:, None, None]
        for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    grey = images[0] * std + mean
    torch.testing.assert_close(grey[0], grey[1])


def test_a_loader_has_no_more_workers_than_batches_and_prepares_what_is_asked(
    tmp_path: Path, idx_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "num_cores", lambda: 16)
    data = FashionMNIST(
        str(written(tmp_path, idx_files)),
        batch_size=100,
        seed=0,
        num_workers="auto",
        val_fraction=0.2,
        prefetch_factor=5,
    )
    strategy = SimpleNamespace(root_device=torch.device("cuda"), cluster_environment=None)
    asked: Any = SimpleNamespace(
        strategy=strategy, num_devices=1, world_size=1, is_global_zero=False
    )
    data.trainer = asked
    data.setup("fit")
    assert data._loading["prefetch_factor"] == 5
    assert data._loading["num_workers"] == 2
    data.batch_size = 200
    assert data._loading["num_workers"] == 0


def test_equal_pictures_stand_on_one_side(tmp_path: Path, idx_files: dict[str, bytes]) -> None:
    data = FashionMNIST(str(written(tmp_path, idx_files)), val_fraction=0.3)
    data.setup("fit")
    counts = data.describe()["counts"]
    assert counts["train"] + counts["val"] == 200
    assert 30 < counts["val"] < 90
    assert counts["test"] == 20
    sides = [
        {pixels.tobytes() for pixels in data._splits[split].arrays} for split in ("train", "val")
    ]
    assert not sides[0] & sides[1]


def test_missing_files_are_reported_with_what_to_run(
    tmp_path: Path, idx_files: dict[str, bytes]
) -> None:
    del idx_files["t10k-labels-idx1-ubyte"]
    with pytest.raises(
        DataError,
        match=r"t10k-labels-idx1-ubyte missing\. Run `lightkit fetch` with the same -c FILE",
    ):
        FashionMNIST(str(written(tmp_path, idx_files))).setup("fit")


def test_broken_files_are_reported(tmp_path: Path, idx_files: dict[str, bytes]) -> None:
    idx_files["train-images-idx3-ubyte"] = b"no idx file"
    with pytest.raises(DataError, match="the files are not what torchvision expects"):
        FashionMNIST(str(written(tmp_path, idx_files))).setup("fit")


def test_bad_shares_are_refused() -> None:
    with pytest.raises(ConfigError, match="val_fraction"):
        FashionMNIST(val_fraction=1.0)
