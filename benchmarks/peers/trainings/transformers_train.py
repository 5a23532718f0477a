"""Hugging Face's Trainer.

A ResNet-18 from its config, as in the guide to image classification, or as the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benches.end_to_end_loop import center_crop, random_crop
from torchvision import datasets
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Report(TrainerCallback):
    """Print the accuracy after each validation."""

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
    ) -> None:
        """Print it."""
        print(
            f"\nepoch {round(state.epoch) - 1} accuracy {metrics['eval_accuracy']:.4f}", flush=True
        )


def collate(samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    """Make a batch as the model takes it."""
    images = torch.stack([image for image, _ in samples])
    return {"pixel_values": images, "labels": torch.tensor([label for _, label in samples])}


def score(prediction: Any) -> dict[str, float]:
    """Return the accuracy."""
    return {
        "accuracy": float(
            (np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean()
        )
    }


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--equal", action="store_true")
    options = parser.parse_args()
    set_seed(options.seed)
    train = datasets.ImageFolder(str(options.root / "train"), random_crop(options.size))
    val = datasets.ImageFolder(str(options.root / "val"), center_crop(options.size))
    config = ResNetConfig(
        depths=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 256, 512],
        layer_type="basic",
        num_labels=len(train.classes),
    )
    settings: dict[str, Any] = {"learning_rate": 5e-5, "warmup_steps": 0.1}
    if options.equal:
        settings = {
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "weight_decay": 0.01,
        }
        settings["dataloader_num_workers"] = 1
    arguments = TrainingArguments(
        output_dir="out",
        remove_unused_columns=False,
        eval_strategy="epoch",
        save_strategy="epoch",
        per_device_train_batch_size=32,
        per_device_eval_batch_size=32,
        num_train_epochs=options.epochs,
        seed=options.seed,
        use_cpu=True,
        report_to="none",
        **settings,
    )
    trainer = Trainer(
        model=ResNetForImageClassification(config),
        args=arguments,
        data_collator=collate,
        train_dataset=train,
        eval_dataset=val,
        compute_metrics=score,
        callbacks=[Report()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
