"""A user's own module for GPUs: callbacks that look at what training computes on, and a network to time."""

from __future__ import annotations

MY_GPU = '''\
"""Callbacks and a network of a user who looks at a GPU."""

import json
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
        self.hook = first.register_forward_hook(lambda part, given, out: self.dtypes.append(str(out.dtype)))

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
            "channels_last": all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights),
            "matmul": torch.get_float32_matmul_precision(),
            "fused": [bool(group.get("fused")) for group in trainer.optimizers[0].param_groups],
            "compiled": any(part._compiled_call_impl is not None for part in module.modules()),
            "backend": torch.distributed.get_backend() if is_started else None,
        }
        Path("computation.json").write_text(json.dumps(content))


class WriteTimes(Callback):
    """Writes to times.json the seconds of steps and of the waits for data between them, without the first steps.

    Args:
        skip: Steps that are not timed.
    """

    def __init__(self, skip: int = 10):
        self.skip, self.count, self.began, self.waited, self.ended = skip, 0, None, 0.0, None

    def on_train_batch_start(self, trainer, module, batch, index):
        if self.began is not None:
            self.waited += time.perf_counter() - self.ended

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        torch.cuda.synchronize()
        self.ended = time.perf_counter()
        self.count += 1
        if self.count == self.skip:
            self.began = self.ended

    def on_train_end(self, trainer, module):
        content = {"steps": self.count - self.skip, "seconds": self.ended - self.began, "waited": self.waited}
        Path("times.json").write_text(json.dumps(content))


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
        return DataLoader(Noise(self.count), batch_size=self.batch_size, pin_memory=True, drop_last=True)


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
import json, sys, time
import torch
from my_gpu import NoiseImages, ResNet

skip, epochs = 10, int(sys.argv[1])
torch.manual_seed(7)
module, data = ResNet().cuda(), NoiseImages()
optimizer = module.configure_optimizers()
loader = data.train_dataloader()
count, began = 0, None
for epoch in range(epochs):
    for images, labels in loader:
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = module.training_step((images, labels), 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        count += 1
        if count == skip:
            began = time.perf_counter()
print(json.dumps((time.perf_counter() - began) / (count - skip)))
"""
"""A training loop by hand in bfloat16: prints the seconds of a step."""

OCCUPY = """\
import sys, time
import torch

free, total = torch.cuda.mem_get_info()
kept = torch.empty(max(0, free - int(sys.argv[1])), dtype=torch.uint8, device="cuda")
print("occupied", flush=True)
time.sleep(3600)
"""
"""Takes all of a GPU's memory but so many bytes."""
