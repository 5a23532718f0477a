"""A user's own module for GPUs.

Callbacks that look at what training computes on, and a network to time.
"""

from __future__ import annotations

MY_GPU = '''\
"""Callbacks and a network of a user who looks at a GPU."""

import json
import statistics
import time
from pathlib import Path

import torch
import torchvision
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from torch.utils.data import DataLoader, Dataset


class WriteComputation(Callback):
    """Writes to computation.json, after the first step, how the training computes."""

    def on_fit_start(self, trainer, module):
        self.dtypes = []
        first = next(part for part in module.modules() if isinstance(part, torch.nn.Conv2d))
        self.hook = first.register_forward_hook(
            lambda part, given, out: self.dtypes.append(str(out.dtype))
        )

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if self.hook is None:
            return
        self.hook.remove()
        self.hook = None
        weights = [part.weight for part in module.modules() if isinstance(part, torch.nn.Conv2d)]
        is_started = torch.distributed.is_available() and torch.distributed.is_initialized()
        content = {
            "device": str(module.device),
            "weights": str(weights[0].dtype),
            "activations": self.dtypes[-1:],
            "channels_last": all(
                weight.is_contiguous(memory_format=torch.channels_last) for weight in weights
            ),
            "matmul": torch.get_float32_matmul_precision(),
            "fused": [bool(group.get("fused")) for group in trainer.optimizers[0].param_groups],
            "compiled": any(part._compiled_call_impl is not None for part in module.modules()),
            "backend": torch.distributed.get_backend() if is_started else None,
        }
        Path("computation.json").write_text(json.dumps(content))


class WriteTimes(Callback):
    """Writes to times.json the median seconds of a step and of the wait for its batch, but of the
    first in an epoch.

    Args:
        skip: Steps that are not timed.
    """

    def __init__(self, skip: int = 10):
        self.skip, self.steps, self.waits, self.ended = skip, [], [], 0.0

    def on_train_batch_start(self, trainer, module, batch, index):
        if index > 0:
            self.waits.append(time.perf_counter() - self.ended)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        torch.cuda.synchronize()
        ended = time.perf_counter()
        if index > 0:
            self.steps.append(ended - self.ended)
        self.ended = ended

    def on_train_end(self, trainer, module):
        step, wait = (
            statistics.median(self.steps[self.skip :]),
            statistics.median(self.waits[self.skip :]),
        )
        Path("times.json").write_text(
            json.dumps({"steps": len(self.steps), "step_s": step, "wait_s": wait})
        )


class Noise(Dataset):
    """Images of noise, made once."""

    def __init__(self, count):
        self.images = torch.randn(count, 3, 224, 224, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index % 10


class NoiseImages(LightningDataModule):
    """Batches of noise.

    Args:
        count: Number of images.
        batch_size: Images in a batch.
    """

    def __init__(self, count: int = 512, batch_size: int = 64):
        super().__init__()
        self.count, self.batch_size = count, batch_size

    def train_dataloader(self):
        return DataLoader(
            Noise(self.count), batch_size=self.batch_size, pin_memory=True, drop_last=True
        )


class ResNet(LightningModule):
    """ResNet-18 with ten classes."""

    def __init__(self):
        super().__init__()
        self.network = torchvision.models.resnet18(num_classes=10)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
'''

PLAIN_LOOP = """\
import json, statistics, sys, time
import torch
from my_gpu import NoiseImages, ResNet

torch.manual_seed(7)
module, data = ResNet().cuda(), NoiseImages()
optimizer = module.configure_optimizers()
loader = data.train_dataloader()
steps = []
for epoch in range(int(sys.argv[1])):
    for index, (images, labels) in enumerate(loader):
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = module.training_step((images, labels), 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        if index > 0:
            steps.append(time.perf_counter() - ended)
        ended = time.perf_counter()
print(json.dumps(statistics.median(steps[10:])))
"""
"""A training loop by hand in bfloat16: prints the median seconds of a step, as WriteTimes counts
them."""

OCCUPY = """\
import sys, time
import torch

free, total = torch.cuda.mem_get_info()
kept = torch.empty(max(0, free - int(sys.argv[1])), dtype=torch.uint8, device="cuda")
print("occupied", flush=True)
time.sleep(3600)
"""
"""Takes all of a GPU's memory but so many bytes."""
