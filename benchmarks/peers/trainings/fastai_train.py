"""fastai: the documented learner, or one that trains as the others do."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from fastai.callback.core import Callback
from fastai.metrics import accuracy
from fastai.optimizer import OptimWrapper
from fastai.torch_core import set_seed
from fastai.vision.all import (
    FlipItem,
    ImageDataLoaders,
    Learner,
    Normalize,
    RandomResizedCrop,
    aug_transforms,
    create_vision_model,
    default_split,
    imagenet_stats,
    vision_learner,
)
from torchvision import models


class Report(Callback):
    """Print the accuracy after each epoch."""

    def after_epoch(self) -> None:
        """Print it."""
        values = self.learn.recorder.log
        print(f"epoch {self.epoch} accuracy {values[3]:.4f}", flush=True)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--equal", action="store_true")
    parser.add_argument(
        "--frozen", action="store_true", help="MobileNetV2 with torchvision's weights"
    )
    options = parser.parse_args()
    set_seed(options.seed)
    crop = RandomResizedCrop(options.size, min_scale=0.35)
    loading = {"train": "train", "valid": "val", "bs": 32, "seed": options.seed}
    if options.equal:
        loaders = ImageDataLoaders.from_folder(
            options.root,
            item_tfms=[crop, FlipItem(0.5)],
            batch_tfms=[Normalize.from_stats(*imagenet_stats)],
            num_workers=1,
            **loading,
        )
        network = models.resnet18(weights=None, num_classes=len(loaders.vocab))
        adam = partial(OptimWrapper, opt=torch.optim.AdamW)
        learner = Learner(
            loaders, network, loss_func=torch.nn.CrossEntropyLoss(), opt_func=adam, metrics=accuracy
        )
        learner.fit(options.epochs, 1e-3, cbs=[Report()])
        return
    changes = aug_transforms()
    if options.frozen:
        changes.append(Normalize.from_stats(*imagenet_stats))
    loaders = ImageDataLoaders.from_folder(
        options.root, item_tfms=crop, batch_tfms=changes, **loading
    )
    if options.frozen:
        # vision_learner ignores its argument `cut`, and without one it looks for a pooling layer,
        # which torchvision's MobileNetV2 does not have
        network = create_vision_model(models.mobilenet_v2, len(loaders.vocab), cut=-1)
        learner = Learner(loaders, network, splitter=default_split, metrics=accuracy)
        learner.freeze()
    else:
        learner = vision_learner(loaders, models.resnet18, pretrained=False, metrics=accuracy)
    learner.fit_one_cycle(options.epochs, cbs=[Report()])


if __name__ == "__main__":
    main()
