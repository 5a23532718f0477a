"""Images a second of whole epochs of ResNet-18 on photos.

lightkit, a plain LightningCLI and a hand-written loop.

All train from random weights on random crops, flipped at random, by the same optimizer in the same
batch size, validate after each epoch on the same photos, and write a checkpoint. LightningCLI and
the loop load by torchvision's ImageFolder, with the defaults of torch and Lightning: float32,
contiguous, no workers. lightkit takes `auto`, a table by hardware, for precision, memory format,
compiling, threads and workers.

The target is that of the epochs after the first, at an accuracy that is not lower than
LightningCLI's by more than chance. An epoch lasts from its start to the start of the next one, with
its validation and its checkpoint; its photos are those of training. The first one lasts from the
start of the process and has a row of its own, as has the whole training.
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

from benches.command_line import create_parser, parse_options, run_bench
from benches.photo_data import PhotoSplit, add_options, copy_split, find_photos
from benches.rounds import compare, run_rounds
from benches.timeline import Moments
from benches.training_process import (
    BY_HAND,
    CLOCK,
    LIGHTKIT,
    LIGHTNING_CLI,
    Training,
    create_cli_training,
    create_lightkit_training,
    create_loop_training,
    run_training,
)  # fmt: skip

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
    parser = create_parser("end_to_end", __doc__, repeat=3)
    add_options(parser, weights=False, max_images=MAX_IMAGES)
    parser.add_argument(
        "--epochs", type=int, default=3, help="of each training, 2 at least (default: 3)"
    )
    parser.add_argument(
        "--size", type=int, default=224, help="side of the crops in pixels (default: 224)"
    )
    parser.add_argument(
        "--fixed", action="store_true", help=f"lightkit takes {FIXED} on any hardware"
    )
    options = parse_options(parser, words)
    options.max_images = options.max_images or (50 if options.quick else MAX_IMAGES)
    if options.quick:
        options.repeat, options.epochs, options.size = 1, 2, 64
    if options.epochs < 2:
        parser.error(f"--epochs: expected 2 or more, got {options.epochs}")
    photos = find_photos(parser, options.photos)
    return run_bench(
        "end_to_end", options, lambda: measure(options, photos), threads=options.threads
    )


def measure(options: argparse.Namespace, photos: Path) -> dict[str, Any]:
    """Train with each contestant in turn.

    Args:
        options: The command line.
        photos: One folder a class.
    """
    with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as work:
        split = copy_split(photos, Path(work, "photos"), max_images=options.max_images)
        result: dict[str, list[Moments]] = {}

        def of_seed(name: str, seed: int) -> float:
            training = create_contestants(split, options, seed=seed)[name]
            moments = run_training(
                training, Path(work, f"{name} {seed}".replace(" ", "-")), threads=options.threads
            )
            result.setdefault(name, []).append(moments)
            return compute_images_per_s(moments, split.num_train)

        names = create_contestants(split, options, seed=options.seed)
        rounds = run_rounds(
            {name: partial(of_seed, name) for name in names},
            repeat=options.repeat, seed=options.seed, title="end_to_end",
        )  # fmt: skip
    settings = {name: getattr(options, name) for name in ("epochs", "size", "fixed", "threads")}
    return {
        "comparisons": list_comparisons(result, split.num_train, split.num_val),
        "rounds": {
            "images_per_s": rounds,
            "accuracy": {name: _list_accuracies(each) for name, each in result.items()},
        },
        "settings": {**settings, "num_train": split.num_train, "num_val": split.num_val},
        "notes": [format_accuracy(result, split.num_val, options.epochs)],
    }


def create_contestants(
    split: PhotoSplit,
    options: argparse.Namespace,
    *,
    seed: int,
    accelerator: Mapping[str, Any] | None = None,
) -> dict[str, Training]:
    """Return the three trainings by name.

    Args:
        split: The photos.
        options: The command line.
        seed: Of weights, order and crops.
        accelerator: lightkit's section; by default that of `--fixed`.
    """
    data = {"root": str(split.root), "image_size": options.size, "batch_size": 32}
    net = {"backbone": "resnet18", "num_classes": split.num_classes, "learning_rate": LEARNING_RATE}
    trainer = {"max_epochs": options.epochs}
    own = {
        "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "resnet18"}},
        "data": {"class_path": "ImageFolder", "init_args": data},
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": LEARNING_RATE}},
        "accelerator": accelerator or (FIXED if options.fixed else CHOSEN),
        "trainer": trainer,
        "run": {"root": str(split.root.parent / "runs")},
        "callbacks": {"checkpoint": {}, "clock": {"class_path": CLOCK}},
        "seed_everything": seed,
    }
    plain = {"callbacks": [{"class_path": CLOCK}], **trainer}
    by_hand = {**data, **net, **trainer, "seed": seed, "checkpoint": "last.pt"}
    trainings = [
        create_lightkit_training(own),
        create_cli_training(
            {"model": net, "data": data, "trainer": plain, "seed_everything": seed}
        ),
        create_loop_training("end_to_end_loop", by_hand),
    ]
    return {training.name: training for training in trainings}


def compute_images_per_s(moments: Moments, num_train: int) -> float:
    """Return the photos a second of the epochs after the first."""
    begin, *_, end = moments.epochs_s[1:]
    return num_train * (len(moments.epochs_s) - 2) / (end - begin)


def list_comparisons(result: Found, num_train: int, num_val: int) -> list[dict[str, Any]]:
    """Compare what was measured: without the first epoch, that one, and all with start-up.

    Args:
        result: By contestant, the moments of each round.
        num_train: Photos of an epoch.
        num_val: Photos of validation.

    Returns:
        Rows that tell both accuracies where the speed of a training is compared; lightkit's must
        not be lower by more than `compute_noise` for the target.
    """
    epochs = len(next(iter(result.values()))[0].epochs_s) - 1
    later = {
        name: [compute_images_per_s(moments, num_train) for moments in each]
        for name, each in result.items()
    }
    first = {
        name: [num_train / moments.epochs_s[1] for moments in each] for name, each in result.items()
    }
    whole = {
        name: [epochs * num_train / moments.epochs_s[-1] for moments in each]
        for name, each in result.items()
    }
    means = {name: statistics.mean(_list_accuracies(each)) for name, each in result.items()}
    lines = []
    for other in (LIGHTNING_CLI, BY_HAND):
        chance = compute_noise(result, num_val, other)
        title = (
            f"{TITLE}; accuracy {means[LIGHTKIT]:.2f} against {means[other]:.2f} (chance"
            f" {chance:.2f})"
        )
        target = AT_LEAST if other == LIGHTNING_CLI else None
        is_as_good = means[LIGHTKIT] >= means[other] - chance
        lines.append(
            compare(
                title,
                later,
                of=LIGHTKIT,
                to=other,
                unit="images/s",
                at_least=target,
                provided=is_as_good,
            )
        )
    rows = (
        ("ResNet-18, first epoch with start-up", first),
        (f"ResNet-18, {epochs} epochs with start-up", whole),
    )
    return lines + [
        compare(title, rounds, of=LIGHTKIT, to=other, unit="images/s")
        for title, rounds in rows
        for other in (LIGHTNING_CLI, BY_HAND)
    ]


def compute_noise(result: Found, num_val: int, other: str) -> float:
    """Return twice the standard error of the difference between lightkit's accuracy and another's.

    Args:
        result: By contestant, the moments of each round.
        num_val: Photos of validation.
        other: Contestant.
    """
    means = [statistics.mean(_list_accuracies(result[name])) for name in (LIGHTKIT, other)]
    return 2 * math.sqrt(sum(mean * (1 - mean) for mean in means) / num_val / len(result[LIGHTKIT]))


def format_accuracy(result: Found, num_val: int, epochs: int) -> str:
    """Return the accuracies, and whether they differ by more than chance.

    Args:
        result: By contestant, the moments of each round.
        num_val: Photos of validation.
        epochs: Of each training.
    """
    means = {name: statistics.mean(_list_accuracies(each)) for name, each in result.items()}
    rounds = len(next(iter(result.values())))
    chance = compute_noise(result, num_val, LIGHTNING_CLI)
    gap = abs(means[LIGHTKIT] - means[LIGHTNING_CLI])
    accuracies = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
    return (
        f"Accuracy on {num_val} photos after {epochs} epochs, mean of {rounds}"
        f" seed{'s' * (rounds > 1)}: {accuracies}. lightkit's and LightningCLI's differ by"
        f" {gap:.3f}, {'within' if gap <= chance else 'beyond'} {chance:.3f}, twice the standard"
        " error of the difference."
    )


def _list_accuracies(moments: Sequence[Moments]) -> list[float]:
    return [each.accuracies[-1] for each in moments]
