"""Images a second of whole epochs of ResNet-18 on photos: lightkit, a plain LightningCLI and a hand-written loop.

All train from random weights on random crops, flipped at random, by the same optimizer in the same batch size, validate
after each epoch on the same photos, and write a checkpoint. LightningCLI and the loop load by torchvision's
ImageFolder, with the defaults of torch and Lightning: float32, contiguous, no workers. lightkit takes `auto`, a table
by hardware, for precision, memory format, compiling, threads and workers.

The reach is that of the epochs after the first, at an accuracy that is not lower than LightningCLI's by more than
chance. An epoch lasts from its start to the start of the next one, with its validation and its checkpoint; its photos
are those of training. The first one lasts from the start of the process and has a row of its own, as has the whole
training.
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
MAX_IMAGES = 400
TITLE = "ResNet-18, epochs after the first"
Found = Mapping[str, Sequence[Moments]]


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = command_line("end_to_end", __doc__, repeat=3)
    add_options(parser, weights=False, max_images=MAX_IMAGES)
    parser.add_argument("--epochs", type=int, default=3, help="of each training, 2 at least (default: 3)")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels (default: 224)")
    parser.add_argument("--fixed", action="store_true", help=f"lightkit takes {FIXED} on any hardware")
    options = parsed(parser, words)
    options.max_images = options.max_images or (50 if options.quick else MAX_IMAGES)
    if options.quick:
        options.repeat, options.epochs, options.size = 1, 2, 64
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
        "comparisons": compared(found, laid.num_train, laid.num_val),
        "rounds": {"images_per_s": rounds, "accuracy": {name: _accuracies(each) for name, each in found.items()}},
        "settings": {**settings, "num_train": laid.num_train, "num_val": laid.num_val},
        "notes": [accuracy_in_words(found, laid.num_val, options.epochs)],
    }


def contestants(
    laid: Laid, options: argparse.Namespace, *, seed: int, accelerator: Mapping[str, Any] | None = None
) -> dict[str, Training]:
    """Give the three trainings by name.

    Args:
        laid: The photos.
        options: The command line.
        seed: Of weights, order and crops.
        accelerator: lightkit's section; unless given, what `--fixed` says.
    """
    data = {"root": str(laid.root), "image_size": options.size, "batch_size": 32}
    net = {"backbone": "resnet18", "num_classes": laid.num_classes, "learning_rate": LEARNING_RATE}
    trainer = {"max_epochs": options.epochs}
    own = {
        "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "resnet18"}},
        "data": {"class_path": "ImageFolder", "init_args": data},
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": LEARNING_RATE}},
        "accelerator": accelerator or (FIXED if options.fixed else CHOSEN),
        "trainer": trainer,
        "run": {"root": str(laid.root.parent / "runs")},
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


def compared(found: Found, num_train: int, num_val: int) -> list[dict[str, Any]]:
    """Compare what was measured: without the first epoch, that one, and all with start-up.

    Args:
        found: By contestant, the moments of each round.
        num_train: Photos of an epoch.
        num_val: Photos of validation.

    Returns:
        Rows that tell both accuracies where the speed of a training is compared; lightkit's must not be lower by more
        than `noise` for the reach.
    """
    epochs = len(next(iter(found.values()))[0].epochs_s) - 1
    later = {name: [images_per_s(moments, num_train) for moments in each] for name, each in found.items()}
    first = {name: [num_train / moments.epochs_s[1] for moments in each] for name, each in found.items()}
    whole = {name: [epochs * num_train / moments.epochs_s[-1] for moments in each] for name, each in found.items()}
    means = {name: statistics.mean(_accuracies(each)) for name, each in found.items()}
    lines = []
    for other in (LIGHTNING_CLI, BY_HAND):
        chance = noise(found, num_val, other)
        told = f"{TITLE}; accuracy {means[LIGHTKIT]:.2f} against {means[other]:.2f} (chance {chance:.2f})"
        reach = AT_LEAST if other == LIGHTNING_CLI else None
        is_as_good = means[LIGHTKIT] >= means[other] - chance
        lines.append(
            comparison(told, later, of=LIGHTKIT, to=other, unit="images/s", at_least=reach, provided=is_as_good)
        )
    rows = (("ResNet-18, first epoch with start-up", first), (f"ResNet-18, {epochs} epochs with start-up", whole))
    return lines + [
        comparison(title, rounds, of=LIGHTKIT, to=other, unit="images/s")
        for title, rounds in rows
        for other in (LIGHTNING_CLI, BY_HAND)
    ]


def noise(found: Found, num_val: int, other: str) -> float:
    """Give twice the standard error of the difference between lightkit's accuracy and another's.

    Args:
        found: By contestant, the moments of each round.
        num_val: Photos of validation.
        other: Contestant.
    """
    means = [statistics.mean(_accuracies(found[name])) for name in (LIGHTKIT, other)]
    return 2 * math.sqrt(sum(mean * (1 - mean) for mean in means) / num_val / len(found[LIGHTKIT]))


def accuracy_in_words(found: Found, num_val: int, epochs: int) -> str:
    """Tell the accuracies, and whether they differ by more than chance.

    Args:
        found: By contestant, the moments of each round.
        num_val: Photos of validation.
        epochs: Of each training.
    """
    means = {name: statistics.mean(_accuracies(each)) for name, each in found.items()}
    rounds = len(next(iter(found.values())))
    chance = noise(found, num_val, LIGHTNING_CLI)
    gap = abs(means[LIGHTKIT] - means[LIGHTNING_CLI])
    listed = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
    return (
        f"Accuracy on {num_val} photos after {epochs} epochs, mean of {rounds} seed{'s' * (rounds > 1)}: {listed}. "
        f"lightkit's and LightningCLI's differ by {gap:.3f}, {'within' if gap <= chance else 'beyond'} {chance:.3f}, "
        "twice the standard error of the difference."
    )


def _accuracies(moments: Sequence[Moments]) -> list[float]:
    return [each.accuracies[-1] for each in moments]
