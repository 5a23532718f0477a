"""Seconds until a new head on a frozen MobileNetV2 reaches a validation loss on photos.

Of lightkit and of a loop.

Both see the middle of each photo, in new order each epoch, train the same linear head by the same
optimizer with the batch size, image size and label smoothing of configs/flowers.yaml, validate and
write a checkpoint after each epoch, and stop at the loss. The loop loads by torchvision's
ImageFolder and computes the backbone without gradients in each epoch, with torch's defaults:
float32, contiguous, no workers. lightkit computes each photo's features once.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benches.command_line import create_parser, parse_options, run_bench
from benches.photo_data import PhotoSplit, add_options, copy_split, find_photos, find_weights
from benches.rounds import BenchError, compare, run_rounds
from benches.timeline import Moments
from benches.training_process import (
    BY_HAND,
    CLOCK,
    LIGHTKIT,
    Training,
    create_lightkit_training,
    create_loop_training,
    run_training,
)

AT_MOST = round(1 / 3, 4)
LEARNING_RATE = 1e-3
BATCH_SIZE, IMAGE_SIZE, LABEL_SMOOTHING = 16, 257, 0.15  # of configs/flowers.yaml
MAX_EPOCHS = 40
TITLE = "frozen MobileNetV2 to val/loss {:g}"
Found = Mapping[str, Sequence[Moments]]


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("time_to_loss", __doc__, repeat=3)
    add_options(parser, weights=True)
    parser.add_argument(
        "--loss", type=float, default=0.55, help="validation loss to reach (default: 0.55)"
    )
    parser.add_argument(
        "--size", type=int, default=IMAGE_SIZE, help=f"side of the photos (default: {IMAGE_SIZE})"
    )
    parser.add_argument("--precision", default="32-true", help="lightkit's (default: 32-true)")
    options = parse_options(parser, words)
    if options.quick:
        options.repeat, options.size, options.max_images, options.loss = (
            1,
            64,
            options.max_images or 50,
            10.0,
        )
    photos, weights = find_photos(parser, options.photos), find_weights(parser, options.weights)
    return run_bench(
        "time_to_loss", options, lambda: measure(options, photos, weights), threads=options.threads
    )


def measure(options: argparse.Namespace, photos: Path, weights: Path) -> dict[str, Any]:
    """Train with each contestant in turn.

    Args:
        options: The command line.
        photos: One folder a class.
        weights: Of MobileNetV2.

    Raises:
        BenchError: If a contestant does not reach the loss.
    """
    with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as work:
        split = copy_split(photos, Path(work, "photos"), max_images=options.max_images)
        result: dict[str, list[Moments]] = {}

        def of_seed(name: str, seed: int) -> float:
            training = create_contestants(split, weights, options, seed=seed)[name]
            moments = run_training(
                training, Path(work, f"{name} {seed}".replace(" ", "-")), threads=options.threads
            )
            result.setdefault(name, []).append(moments)
            return find_loss_s(name, moments, options.loss)

        names = create_contestants(split, weights, options, seed=options.seed)
        rounds = run_rounds(
            {name: partial(of_seed, name) for name in names},
            repeat=options.repeat, seed=options.seed, title="time_to_loss",
        )  # fmt: skip
    settings = {name: getattr(options, name) for name in ("loss", "size", "precision", "threads")}
    return {
        "comparisons": list_comparisons(result, options.loss),
        "rounds": {
            "seconds": rounds,
            "epochs": {name: [len(m.losses) for m in each] for name, each in result.items()},
        },
        "settings": {**settings, "num_train": split.num_train, "num_val": split.num_val},
        "notes": [format_epochs(result)],
    }


def create_contestants(
    split: PhotoSplit, weights: Path, options: argparse.Namespace, *, seed: int
) -> dict[str, Training]:
    """Return both trainings by name.

    Args:
        split: The photos.
        weights: Of MobileNetV2.
        options: The command line.
        seed: Of the head's weights and the order.
    """
    data = {"root": str(split.root), "image_size": options.size, "batch_size": BATCH_SIZE}
    smoothing = {"label_smoothing": LABEL_SMOOTHING}
    head = {"backbone": "mobilenet_v2", "weights": str(weights), "freeze": "backbone", **smoothing}
    stopping = {"monitor": "val/loss", "stopping_threshold": options.loss, "patience": MAX_EPOCHS}
    own = {
        "model": {"class_path": "ImageClassifier", "init_args": head},
        "data": {"class_path": "ImageFolder", "init_args": {**data, "augment": False}},
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": LEARNING_RATE}},
        "trainer": {"max_epochs": MAX_EPOCHS, "precision": options.precision},
        "callbacks": {
            "checkpoint": {},
            "early_stopping": {"init_args": stopping},
            "clock": {"class_path": CLOCK},
        },
        "seed_everything": seed,
    }
    by_hand = {
        **data, "weights": str(weights), "num_classes": split.num_classes,
        "learning_rate": LEARNING_RATE, "max_epochs": MAX_EPOCHS, "seed": seed,
        "loss": options.loss, "checkpoint": "last.pt",
        **smoothing,
    }  # fmt: skip
    return {
        training.name: training
        for training in (
            create_lightkit_training(own),
            create_loop_training("time_to_loss_loop", by_hand),
        )
    }


def find_loss_s(name: str, moments: Moments, loss: float) -> float:
    """Return after how many seconds the loss was reached.

    Args:
        name: Of the contestant.
        moments: Of its training.
        loss: To reach.

    Raises:
        BenchError: If it was not.
    """
    at = moments.find_loss_s(loss)
    if at is None:
        raise BenchError(
            f"{name} has come to a loss of {min(moments.losses):.3f} in"
            f" {MAX_EPOCHS} epochs, not {loss:g}"
        )
    return at


def list_comparisons(result: Found, loss: float) -> list[dict[str, Any]]:
    """Compare what was measured: from the start of the process, and from the first step.

    Args:
        result: By contestant, the moments of each round.
        loss: That was reached.
    """
    title = TITLE.format(loss)
    whole = {
        name: [find_loss_s(name, moments, loss) for moments in each]
        for name, each in result.items()
    }
    after = {
        name: [find_loss_s(name, moments, loss) - moments.first_step_s for moments in each]
        for name, each in result.items()
    }
    return [
        compare(
            f"{title}, from the process's start",
            whole,
            of=LIGHTKIT,
            to=BY_HAND,
            unit="s",
            at_most=AT_MOST,
        ),
        compare(f"{title}, from the first step", after, of=LIGHTKIT, to=BY_HAND, unit="s"),
    ]


def format_epochs(result: Found) -> str:
    """Return how many epochs each took.

    Args:
        result: By contestant, the moments of each round.
    """
    counts = (
        f"{name} {' and '.join(str(len(moments.losses)) for moments in each)}"
        for name, each in result.items()
    )
    return f"Epochs: {', '.join(counts)}."
