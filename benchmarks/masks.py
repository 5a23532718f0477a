"""Masks of drawn flowers.

`lightkit.models.Segmenter` compared with the U-Net of segmentation-models-pytorch.

    pip install --no-deps segmentation-models-pytorch==0.6.0   # in an environment of its own
    python benchmarks/masks.py --epochs 4

segmentation-models-pytorch needs timm as well.
Both have the same encoder (a ResNet-18 with random weights), data, order of the samples, optimizer
and epochs. The peer has its own decoder and its own loss, Dice plus cross-entropy. The scores are
those of the test split, pooled over its pixels.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import segmentation_models_pytorch as smp
import torch
from pytorch_lightning import Trainer, seed_everything
from torch import Tensor
from torch.nn.functional import cross_entropy

from lightkit.data import DrawnMasks
from lightkit.models import Segmenter
from lightkit.models.module import Stage


class Peer(Segmenter):
    """The U-Net of segmentation-models-pytorch, with its Dice loss, in the place of lightkit's."""

    def _build(self, class_names: Sequence[str]) -> None:
        super()._build(class_names)
        network: Any = smp.Unet(self.backbone, encoder_weights=None, classes=len(class_names))
        self.network = network
        self.peer_dice = smp.losses.DiceLoss("multiclass")

    def _step(self, stage: Stage, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        images, masks = batch
        logits = self(images)
        loss = cross_entropy(logits, masks) + self.peer_dice(logits, masks)
        self.scores.update(stage, preds=logits, target=masks, loss=loss)
        return {"loss": loss, "logits": logits.detach(), "target": masks}


def score(
    kind: type[Segmenter], *, seed: int, epochs: int, num_images: int, image_size: int
) -> dict[str, Any]:
    """Train a model; return its scores of the test split, its parameters and the seconds."""
    seed_everything(seed, verbose=False)
    data = DrawnMasks(num_images=num_images, image_size=image_size, batch_size=16, num_workers=0)
    model = kind(backbone="resnet18")
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False, num_sanity_val_steps=0,
    )  # fmt: skip
    began_s = time.monotonic()
    trainer.fit(model, data)
    spent_s = time.monotonic() - began_s
    [found] = trainer.test(model, data, verbose=False)
    num = sum(each.numel() for each in model.parameters())
    return {
        "model": kind.__name__,
        "seed": seed,
        "parameters": num,
        "fit_s": round(spent_s, 1),
        **found,
    }


def main() -> None:
    """Print a line of JSON for each training, and the difference of the means."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--num-images", type=int, default=400)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(2)
    means = {}
    for kind in (Segmenter, Peer):
        ious = []
        for seed in range(options.seeds):
            found = score(
                kind,
                seed=seed,
                epochs=options.epochs,
                num_images=options.num_images,
                image_size=options.image_size,
            )
            print(json.dumps(found), flush=True)
            ious.append(found["test/iou"])
        means[kind.__name__] = sum(ious) / len(ious)
    print(json.dumps({**means, "difference": means["Segmenter"] - means["Peer"]}))


if __name__ == "__main__":
    main()
