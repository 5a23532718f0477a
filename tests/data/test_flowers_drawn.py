"""The drawn flowers: equal bytes each time, complete or absent, distinct by shape alone."""

from __future__ import annotations

import hashlib
import logging
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lightkit.data.flowers import DrawnFlowers, _drawn_folder
from lightkit.errors import ConfigError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lightkit"


def contents(folder: Path) -> dict[str, str]:
    files = sorted(folder.rglob("*.png"))
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def test_the_set_has_five_even_classes_of_different_pictures(cache: Path) -> None:
    folder = _drawn_folder(10, size=32)
    classes = [entry for entry in folder.iterdir() if entry.is_dir()]
    assert sorted(entry.name for entry in classes) == [
        "daisy",
        "dandelion",
        "roses",
        "sunflowers",
        "tulips",
    ]
    assert {len(list(entry.iterdir())) for entry in classes} == {2}
    assert len(set(contents(folder).values())) == 10


def test_the_same_seed_draws_the_same_bytes_whatever_the_global_state(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = contents(_drawn_folder(10, size=32))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "other"))
    np.random.seed(7)
    torch.manual_seed(7)
    assert contents(_drawn_folder(10, size=32)) == first
    assert contents(_drawn_folder(10, size=32, seed=1)) != first


def test_it_is_drawn_once(cache: Path) -> None:
    folder = _drawn_folder(10, size=32)
    drawn_at = [path.stat().st_ino for path in sorted(folder.glob("*/*.png"))]
    assert [
        path.stat().st_ino for path in sorted(_drawn_folder(10, size=32).glob("*/*.png"))
    ] == drawn_at
    assert [path for path in cache.iterdir() if path.is_dir()] == [folder]


def test_the_data_module_says_that_its_flowers_are_drawn(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="lightkit.data"):
        data = DrawnFlowers(num_images=60, drawn_size=32, image_size=24, batch_size=8)
        data.setup("fit")
    assert "drawing 60 pictures of flowers" in caplog.text
    assert data.describe()["source"] == "drawn"
    assert sum(data.describe()["counts"].values()) == 60
    images, labels = next(iter(data.train_dataloader()))
    assert (images.shape, images.dtype, labels.dtype) == ((8, 3, 24, 24), torch.uint8, torch.int64)


def test_too_few_images_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_images of 5 or more"):
        DrawnFlowers(num_images=4)


def _arrays(data: DrawnFlowers, split: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    photos = data.index.splits[split]  # type: ignore[index]
    images = [
        np.asarray(Image.open(photo.path).resize((size, size)), dtype=np.float32) / 255
        for photo in photos
    ]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.tensor(
        [photo.label for photo in photos]
    )


def _accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


@pytest.mark.long
def test_shape_reports_the_flowers_apart_and_mean_colour_does_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Draws the default set into the user's cache, as `lightkit fit` would."""
    started = time.monotonic()
    data = DrawnFlowers(val_fraction=0.25, test_fraction=0)
    data.setup("fit")
    drawing_s = time.monotonic() - started
    (images, labels), (val_images, val_labels) = (
        _arrays(data, "train", 48),
        _arrays(data, "val", 48),
    )
    torch.manual_seed(0)

    def colours(pixels: torch.Tensor) -> torch.Tensor:
        return torch.cat([pixels.mean((2, 3)), pixels.std((2, 3))], dim=1)

    mean, std = colours(images).mean(0), colours(images).std(0)
    train_colours, val_colours = (colours(images) - mean) / std, (colours(val_images) - mean) / std
    linear = torch.nn.Linear(6, 5)
    optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=200)

    def loss_of_colours() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(linear(train_colours), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(loss_of_colours)  # type: ignore[no-untyped-call]
    by_colour = _accuracy(linear, val_colours, val_labels)

    widths = [3, 16, 32, 48, 64]
    layers: list[torch.nn.Module] = []
    for before, after in pairwise(widths):
        layers += [
            torch.nn.Conv2d(before, after, 3, padding=1),
            torch.nn.BatchNorm2d(after),
            torch.nn.ReLU(),
        ]
        layers += [torch.nn.MaxPool2d(2)]
    cnn = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 5)
    )
    adam = torch.optim.AdamW(cnn.parameters(), lr=3e-3, weight_decay=0.05)
    num_epochs, batch_size = 10, 32
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        adam, 6e-3, total_steps=num_epochs * -(-len(images) // batch_size)
    )
    for _ in range(num_epochs):
        for chosen in torch.split(torch.randperm(len(images)), batch_size):
            flipped = images[chosen].flip(3) if torch.rand(()) < 0.5 else images[chosen]
            loss = torch.nn.functional.cross_entropy(cnn(flipped - 0.5), labels[chosen])
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            schedule.step()
    cnn.eval()
    by_shape = _accuracy(cnn, val_images - 0.5, val_labels)
    print(
        f"drawn in {drawing_s:.1f} s; hold-out accuracy: mean colour {by_colour:.3f}, small CNN"
        f" {by_shape:.3f}"
    )
    assert by_colour < 0.45
    assert by_shape > 0.8
