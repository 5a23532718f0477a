"""ResNet-50 on one CUDA GPU: `lightkit fit` beside a loop by hand with the same loader.

Both train in bf16-mixed and channels_last, with AdamW, on batches of uint8 photos that lightkit's
data module loads. Measured are a step on a batch that stays on the GPU, an epoch of photos decoded
on the CPU, and the part of an epoch in which the GPU has no batch.

    python benchmarks/gpu.py --photos FOLDER --out results.json

FOLDER has a folder a class. Each photo is linked under several names until there are
``--images`` of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml

OWN_MODULE = '''\
"""Data and callbacks of the bench."""

import json
import time
from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningDataModule


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Repeated:
    """The same batch, as often as asked."""

    def __init__(self, batch, times):
        self.batch, self.times = batch, times

    def __len__(self):
        return self.times

    def __iter__(self):
        return (self.batch for _ in range(self.times))


class HeldBatch(LightningDataModule):
    """One batch of noise that stays where the model is."""

    def __init__(self, batch_size: int = 256, image_size: int = 224, steps: int = 100):
        super().__init__()
        self.batch_size, self.image_size, self.steps = batch_size, image_size, steps
        self.num_classes = 5
        self.class_names = [*"abcde"]

    def train_dataloader(self):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        generator = torch.Generator().manual_seed(3)
        shape = (self.batch_size, 3, self.image_size, self.image_size)
        images = torch.randn(shape, generator=generator)
        labels = torch.randint(5, (self.batch_size,), generator=generator)
        images = images.to(device).to(memory_format=torch.channels_last)
        return Repeated((images, labels.to(device)), self.steps)


class EpochTimes(Callback):
    """Seconds of each epoch between two synchronizations, and of the waits for its batches."""

    def __init__(self):
        self.epochs = []

    def on_train_epoch_start(self, trainer, module):
        synchronize()
        self.begun = self.ended = time.perf_counter()
        self.waited = 0.0
        self.steps = 0
        self.images = 0

    def on_train_batch_start(self, trainer, module, batch, index):
        self.waited += time.perf_counter() - self.ended

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.steps += 1
        self.images += len(batch[1])
        self.ended = time.perf_counter()

    def on_train_epoch_end(self, trainer, module):
        synchronize()
        seconds = time.perf_counter() - self.begun
        counts = {"steps": self.steps, "images": self.images}
        self.epochs.append({"seconds": seconds, "waited": self.waited, **counts})
        Path("epochs.json").write_text(json.dumps(self.epochs))
'''


def main() -> None:
    """Measure, print a table and write all numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=Path, required=True, help="a folder a class")
    parser.add_argument("--out", type=Path, required=True, help="JSON file with all numbers")
    parser.add_argument("--images", type=int, default=10240, help="photos of an epoch")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--steps", type=int, default=120, help="of an epoch of the held batch")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cache", nargs="+", default=["auto", "none"])
    parser.add_argument("--by-hand", metavar="JOB", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.by_hand:
        train_by_hand(json.loads(options.by_hand))
        return
    options.photos = options.photos.resolve()
    options.out = options.out.resolve()
    results: dict[str, Any] = {"machine": describe_machine(), "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("gpu_bench.py").write_text(OWN_MODULE)
        link_photos(options.photos, Path("photos"), options.images)
        for round_number in range(options.rounds):
            for job in list_jobs(options):
                for tool in order(round_number):
                    row = measure(tool, job)
                    results["rows"].append(row)
                    options.out.write_text(json.dumps(results, indent=1))
                    print(json.dumps(row), flush=True)


def order(round_number: int) -> list[str]:
    """Return the tools in the order of a round."""
    tools = ["lightkit", "by hand"]
    return tools if round_number % 2 == 0 else tools[::-1]


def describe_machine() -> dict[str, Any]:
    """Return card, driver's CUDA, cores and versions."""
    is_there = torch.cuda.is_available()
    return {
        "card": torch.cuda.get_device_name() if is_there else None,
        "cuda": torch.version.cuda,
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
    }


def link_photos(source: Path, target: Path, count: int) -> None:
    """Link the photos of `source` into `target` under new names until there are `count`."""
    photos = sorted(path for path in source.rglob("*") if path.suffix == ".jpg")
    for number in range(count):
        photo = photos[number % len(photos)]
        folder = target / photo.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        content = photo.read_bytes() + number.to_bytes(4, "big")  # another file for its digest
        (folder / f"{number}.jpg").write_bytes(content)


def list_jobs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what is trained: on a held batch, then on photos with each cache."""
    shape = {"batch_size": options.batch_size, "image_size": options.image_size}
    common = {"backbone": options.backbone, "epochs": options.epochs}
    held = {
        "title": "held batch",
        "data": {
            "class_path": "gpu_bench.HeldBatch",
            "init_args": {**shape, "steps": options.steps},
        },
    }
    photos = [
        {
            "title": f"photos, cache {cache}",
            "data": {
                "class_path": "lightkit.data.ImageFolder",
                "init_args": {
                    **shape,
                    "root": str(Path("photos").resolve()),
                    "num_workers": choose_workers(),
                    "pin_memory": torch.cuda.is_available(),
                    "val_fraction": 0.05,
                    "test_fraction": 0.0,
                    "cache": cache,
                },
            },
        }
        for cache in options.cache
    ]
    return [{**common, **job} for job in [held, *photos]]


def choose_workers() -> int:
    """Return the number of loading processes: what lightkit's `auto` takes for a GPU."""
    return max(1, min(16, len(os.sched_getaffinity(0)) - 1))


def measure(tool: str, job: dict[str, Any]) -> dict[str, Any]:
    """Train in a process of its own; return the median of the epochs after the first.

    Of two, the slower one.
    """
    Path("epochs.json").unlink(missing_ok=True)
    environ = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{os.environ.get('PYTHONPATH', '')}"}
    begun = time.perf_counter()
    if tool == "lightkit":
        Path("job.yaml").write_text(yaml.safe_dump(config_of(job)))
        command = [sys.executable, "-m", "lightkit", "fit", "-c", "job.yaml"]
    else:
        command = [
            *(sys.executable, str(Path(__file__).resolve()), "--photos", ".", "--out", "."),
            *("--by-hand", json.dumps(job)),
        ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"tool": tool, "job": job["title"], "error": (done.stdout + done.stderr)[-1500:]}
    epochs = json.loads(Path("epochs.json").read_text())
    later = sorted(epochs[1:], key=lambda epoch: epoch["seconds"])
    median = later[len(later) // 2]
    return {
        "tool": tool,
        "job": job["title"],
        "images_per_s": median["images"] / median["seconds"],
        "step_ms": 1000 * median["seconds"] / median["steps"],
        "waited": median["waited"] / median["seconds"],
        "epochs": epochs,
        "whole_process_s": time.perf_counter() - begun,
    }


def config_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the config that lightkit trains a job by."""
    device: dict[str, Any] = {"gpus": 1} if torch.cuda.is_available() else {"kind": "cpu"}
    device["num_workers"] = None  # each job sets those of its data
    return {
        "extends": ["lightkit:base", "lightkit:accelerator/auto"],
        "seed_everything": 7,
        "model": {"class_path": "ImageClassifier", "init_args": {"backbone": job["backbone"]}},
        "data": job["data"],
        "accelerator": device,
        "callbacks": {"times": {"class_path": "gpu_bench.EpochTimes"}},
        "trainer": {
            "max_epochs": job["epochs"],
            "limit_val_batches": 0,
        },
    }


def train_by_hand(job: dict[str, Any]) -> None:
    """Train as a script does, and write the seconds of each epoch."""
    import gpu_bench
    from torch.nn import functional
    from torchvision import models

    import lightkit.data

    torch.manual_seed(7)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kinds = {"gpu_bench.HeldBatch": gpu_bench.HeldBatch}
    kind = kinds.get(job["data"]["class_path"], lightkit.data.ImageFolder)
    data = kind(**job["data"]["init_args"])
    data.setup("fit")
    loader = data.train_dataloader()
    network = getattr(models, job["backbone"])(weights=None, num_classes=data.num_classes)
    network = network.to(device).to(memory_format=torch.channels_last)
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
    scale = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1)

    def put(images: torch.Tensor) -> torch.Tensor:
        images = images.to(device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = (images.float() / 255 - mean) / scale
        return images.to(memory_format=torch.channels_last)

    epochs = []
    for _ in range(job["epochs"]):
        gpu_bench.synchronize()
        begun = ended = time.perf_counter()
        waited = 0.0
        steps = 0
        num_images = 0
        for images, labels in loader:
            waited += time.perf_counter() - ended
            inputs = put(images)
            targets = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = functional.cross_entropy(network(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            num_images += len(labels)
            ended = time.perf_counter()
        gpu_bench.synchronize()
        seconds = time.perf_counter() - begun
        counts = {"steps": steps, "images": num_images}
        epochs.append({"seconds": seconds, "waited": waited, **counts})
    Path("epochs.json").write_text(json.dumps(epochs))


if __name__ == "__main__":
    main()
