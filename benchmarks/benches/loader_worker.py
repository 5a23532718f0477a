"""Load images in a process of its own: `loader.py` starts it and asks for a pass at a time.

Its argument is JSON, see `Request`. It answers each line on standard input with a line of JSON on
standard output.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader

CROP_SCALE = (0.35, 1.0)
SEED = 7
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Request:
    """What to load, and how.

    Args:
        loader: One of `LOADERS`.
        folder: With one folder a class.
        work: Where what is decoded once is kept.
        num_workers: Processes that load.
        batch_size: Images of a batch.
        image_size: Side of the crops, in pixels.
        cache_size: Shorter side of what is decoded once, in pixels.
    """

    loader: str
    folder: str
    work: str
    num_workers: int
    batch_size: int
    image_size: int
    cache_size: int


def load_torchvision(request: Request) -> Iterable[Any]:
    """Return what most trainings use: decoded by Pillow, cropped, flipped, to float, normalised."""
    from torchvision import datasets, transforms

    steps = transforms.Compose(
        [
            transforms.RandomResizedCrop(request.image_size, scale=CROP_SCALE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    return DataLoader(
        datasets.ImageFolder(request.folder, steps),
        batch_size=request.batch_size,
        shuffle=True,
        num_workers=request.num_workers,
        persistent_workers=request.num_workers > 0,
    )


def load_uncached(request: Request) -> Iterable[Any]:
    """Return lightkit's batches, decoded anew each time."""
    return _create_data(request, cache="none").train_dataloader()


def load_cached(request: Request) -> Iterable[Any]:
    """Return lightkit's batches from the cache on disk."""
    return _create_data(request, cache="disk").train_dataloader()


def load_litdata(request: Request) -> Iterable[Any]:
    """Return litdata's batches of the pixels that `cached` reads.

    Cropped and flipped by the same code.
    """
    import litdata

    read_results = Path(request.work, f"litdata-{request.cache_size}")
    if not read_results.is_dir():
        _store(request, read_results)
    stream = litdata.StreamingDataset(
        str(read_results),
        shuffle=True,
        seed=SEED,
        transform=CropRecord(request.image_size),
        batch_decode=0,  # 0.2.76 reads 256 records for one by default, which is 8 times slower here
    )
    return litdata.StreamingDataLoader(
        stream,
        batch_size=request.batch_size,
        num_workers=request.num_workers,
        persistent_workers=request.num_workers > 0,
    )


def convert(request: Request) -> Iterable[Any]:
    """Return a batch of uint8 again and again.

    Converted as it would be on the training's device, here this CPU.
    """
    from lightkit.data.image_dataset import normalised
    from lightkit.images.preprocessing import preprocessing_of

    shape = (
        request.batch_size,
        request.image_size,
        request.image_size,
        3,
    )  # channels last in memory, as the loaders give it
    images = torch.randint(
        0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(SEED)
    )
    images = images.permute(0, 3, 1, 2)
    batch = (images, torch.zeros(request.batch_size, dtype=torch.int64))
    preprocessing, trainer = preprocessing_of(request.image_size), _create_trainer()
    return Repeat(lambda: normalised(batch, preprocessing, trainer), num=20)


LOADERS: dict[str, Callable[[Request], Iterable[Any]]] = {
    "torchvision": load_torchvision,
    "uncached": load_uncached,
    "cached": load_cached,
    "litdata": load_litdata,
    "conversion": convert,
}


class Repeat:
    """Gives the same thing several times."""

    def __init__(self, make: Callable[[], Any], *, num: int) -> None:
        self.make, self.num = make, num

    def __iter__(self) -> Any:
        return (self.make() for _ in range(self.num))


class CropRecord:
    """From litdata's record to lightkit's random crop of it, and its label."""

    def __init__(self, image_size: int) -> None:
        from lightkit.data.image_dataset import TrainView

        self.view = TrainView(
            image_size, crop_scale=CROP_SCALE, color_jitter=0.0, rand_augment=False
        )

    def __call__(self, record: dict[str, Any]) -> tuple[Any, int]:
        """Crop."""
        from lightkit.data.image_dataset import Decoded
        from lightkit.data.sampler import SampleKey

        key = SampleKey(record["number"], epoch=random.getrandbits(30))
        return self.view(Decoded(record["pixels"].numpy()), SEED, key), record["label"]


class ReadRecord:
    """From a number to a record for litdata."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __call__(self, number: int) -> dict[str, Any]:
        """Read."""
        import numpy as np

        # a tensor is read without a copy
        pixels = torch.from_numpy(np.array(self.source.pixels(number).whole()))
        return {"pixels": pixels, "label": self.source.label(number), "number": number}


def _store(request: Request, read_results: Path) -> None:
    import litdata

    source = _create_data(request, cache="disk").train_dataloader().dataset.source  # type: ignore[attr-defined]
    aside = read_results.with_name(f"{read_results.name}.part")
    litdata.optimize(
        ReadRecord(source),
        inputs=list(range(len(source))),
        output_dir=str(aside),
        chunk_bytes="64MB",  # litdata's documentation has it in every example
        num_workers=1,
        start_method="fork",
        verbose=False,
    )
    aside.rename(read_results)


def _create_data(request: Request, *, cache: Any) -> Any:
    """Return the data module as a fit on the CPU has it, with all images in training."""
    from pytorch_lightning.trainer.states import TrainerFn

    from lightkit.data import ImageFolder

    data = ImageFolder(
        request.folder,
        image_size=request.image_size,
        batch_size=request.batch_size,
        num_workers=request.num_workers,
        val_fraction=0.0,
        test_fraction=0.0,
        crop_scale=CROP_SCALE,
        seed=SEED,
        cache=cache,
        cache_size=request.cache_size,
    )
    data.trainer = _create_trainer()
    data.trainer.state.fn = TrainerFn.FITTING
    data.prepare_data()
    data.setup("fit")
    return data


def _create_trainer() -> Any:
    from pytorch_lightning import Trainer

    return Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=100,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def measure(loader: Iterable[Any], at_least_s: float) -> dict[str, float]:
    """Go through the data until the time is over, at least once.

    Returns:
        Images, seconds on the clock, and seconds of cores that this process and its workers have
        used.
    """
    num_images, start, used = 0, time.perf_counter(), _read_cpu_s()
    while not num_images or time.perf_counter() - start < at_least_s:
        for batch in loader:
            num_images += len(batch[0])
    return {
        "images": num_images,
        "seconds": time.perf_counter() - start,
        "cpu_s": _read_cpu_s() - used,
    }


def _read_cpu_s() -> float:
    """Add up what this process, its workers and those that have ended have used."""
    own = psutil.Process()
    times = own.cpu_times()
    total = time.process_time() + times.children_user + times.children_system
    for worker in own.children(recursive=True):
        used = worker.cpu_times()
        total += used.user + used.system
    return total


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print what they like, where it is not taken for an answer
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    request = Request(**json.loads(sys.argv[1]))
    loader = LOADERS[request.loader](request)
    answers.write("{}\n")
    for line in sys.stdin:
        answers.write(json.dumps(measure(loader, float(line))) + "\n")


if __name__ == "__main__":
    main()
