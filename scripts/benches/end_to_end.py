"""Images a second of whole epochs of ResNet-18 on photos: lightkit, a plain LightningCLI and a hand-written loop.

All train from random weights on random crops, flipped at random, by the same optimizer in the same batch size, validate
after each epoch on the same photos, and write a checkpoint. LightningCLI and the loop load by torchvision's
ImageFolder, with the defaults of torch and Lightning: float32, contiguous, no workers. lightkit chooses for itself.

An epoch lasts from its start to the start of the next one, with its validation and its checkpoint; its photos are those
of training. The first one lasts from the start of the process.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benches.command import command_line, concluded, parsed
from benches.contest import comparison, contest
from benches.end_to_end_moments import Moments
from benches.end_to_end_photos import Laid, add_options, lay, photos_of
from benches.end_to_end_training import (
    BY_HAND,
    CLOCK,
    LIGHTKIT,
    LIGHTNING_CLI,
    Training,
    lightkit,
    lightning_cli,
    loop,
    train,
)  # fmt: skip

__all__ = ["Found", "compared", "contestants", "run"]

AT_LEAST = 2.5
LEARNING_RATE = 1e-3
CHOSEN = dict.fromkeys(("precision", "memory_format", "compile", "threads", "num_workers"), "auto")
FIXED = {"precision": "bf16-mixed", "memory_format": "channels_last"}
TITLE = "ResNet-18, photos of an epoch"
Found = Mapping[str, Sequence[Moments]]


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = command_line("end_to_end", __doc__, repeat=1)
    add_options(parser, weights=False)
    parser.add_argument("--epochs", type=int, default=3, help="of each training, 2 at least (default: 3)")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels (default: 224)")
    parser.add_argument("--fixed", action="store_true", help=f"lightkit does not choose, but takes {FIXED}")
    options = parsed(parser, words)
    if options.quick:
        options.repeat, options.epochs, options.size, options.max_images = 1, 2, 64, options.max_images or 50
    if options.epochs < 2:
        parser.error(f"--epochs: expected 2 or more, got {options.epochs}")
    photos = photos_of(parser, options.photos)
    return concluded("end_to_end", options, lambda: measured(options, photos), threads=options.threads)


def measured(options: argparse.Namespace, photos: Path) -> dict[str, Any]:
    """Train with each contestant in turn.

    Args:
        options: The command line.
        photos: One folder a class.
    """
    with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as work:
        laid = lay(photos, Path(work, "photos"), max_images=options.max_images)
        found: dict[str, list[Moments]] = {}

        def of_seed(name: str, seed: int) -> float:
            training = contestants(laid, options, seed=seed)[name]
            moments = train(training, Path(work, f"{name} {seed}".replace(" ", "-")), threads=options.threads)
            found.setdefault(name, []).append(moments)
            return images_per_s(moments, laid.num_train)

        names = contestants(laid, options, seed=options.seed)
        rounds = contest(
            {name: partial(of_seed, name) for name in names},
            repeat=options.repeat, seed=options.seed, told="end_to_end",
        )  # fmt: skip
    settings = {name: getattr(options, name) for name in ("epochs", "size", "fixed", "threads")}
    return {
        "comparisons": compared(found, laid.num_train),
        "rounds": {"images_per_s": rounds, "accuracy": {name: _accuracies(each) for name, each in found.items()}},
        "settings": {**settings, "num_train": laid.num_train, "num_val": laid.num_val},
        "notes": [accuracy_in_words(found, laid.num_val, options.epochs)],
    }


def contestants(laid: Laid, options: argparse.Namespace, *, seed: int) -> dict[str, Training]:
    """Give the three trainings by name.

    Args:
        laid: The photos.
        options: The command line.
        seed: Of weights, order and crops.
    """
    data = {"root": str(laid.root), "image_size": options.size, "batch_size": 32}
    net = {"backbone": "resnet18", "num_classes": laid.num_classes, "learning_rate": LEARNING_RATE}
    trainer = {"max_epochs": options.epochs}
    own = {
        "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "resnet18"}},
        "data": {"class_path": "ImageFolder", "init_args": data},
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": LEARNING_RATE}},
        "accelerator": FIXED if options.fixed else CHOSEN,
        "trainer": trainer,
        "callbacks": {"checkpoint": {}, "clock": {"class_path": CLOCK}},
        "seed_everything": seed,
    }
    plain = {"callbacks": [{"class_path": CLOCK}], **trainer}
    by_hand = {**data, **net, **trainer, "seed": seed, "checkpoint": "last.pt"}
    trainings = [
        lightkit(own),
        lightning_cli({"model": net, "data": data, "trainer": plain, "seed_everything": seed}),
        loop("end_to_end_plain", by_hand),
    ]
    return {training.name: training for training in trainings}


def images_per_s(moments: Moments, num_train: int) -> float:
    """Give the photos a second of the epochs after the first."""
    begin, *_, end = moments.epochs_s[1:]
    return num_train * (len(moments.epochs_s) - 2) / (end - begin)


def compared(found: Found, num_train: int) -> list[dict[str, Any]]:
    """Compare what was measured.

    Args:
        found: By contestant, the moments of each round.
        num_train: Photos of an epoch.
    """
    later = {name: [images_per_s(moments, num_train) for moments in each] for name, each in found.items()}
    first = {name: [num_train / moments.epochs_s[1] for moments in each] for name, each in found.items()}
    rows = ((TITLE, later, AT_LEAST), (f"{TITLE}, the first one with start-up", first, None))
    return [
        comparison(
            title, rounds, of=LIGHTKIT, to=other, unit="images/s", at_least=reach if other == LIGHTNING_CLI else None
        )
        for title, rounds, reach in rows
        for other in (LIGHTNING_CLI, BY_HAND)
    ]


def accuracy_in_words(found: Found, num_val: int, epochs: int) -> str:
    """Tell the accuracies, and whether they differ by more than chance.

    Args:
        found: By contestant, the moments of each round.
        num_val: Photos of validation.
        epochs: Of each training.
    """
    means = {name: statistics.mean(_accuracies(each)) for name, each in found.items()}
    rounds = len(next(iter(found.values())))
    noise = 2 * math.sqrt(sum(means[name] * (1 - means[name]) for name in (LIGHTKIT, LIGHTNING_CLI)) / num_val / rounds)
    gap = abs(means[LIGHTKIT] - means[LIGHTNING_CLI])
    listed = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
    return (
        f"Accuracy on {num_val} photos after {epochs} epochs, mean of {rounds} seed{'s' * (rounds > 1)}: {listed}. "
        f"lightkit's and LightningCLI's differ by {gap:.3f}, {'within' if gap <= noise else 'beyond'} {noise:.3f}, "
        "twice the standard error of the difference."
    )


def _accuracies(moments: Sequence[Moments]) -> list[float]:
    return [each.accuracies[-1] for each in moments]
