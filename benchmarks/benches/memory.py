"""Peak resident memory of a training of ResNet-18: lightkit and a hand-written loop.

All train in a process of their own, with the same weights and optimizer, to its end: on the same
batches, which are held in memory, and for an epoch on photos, which the training process loads
itself. The peak is what the kernel has counted for the process (VmHWM), libraries and start-up with
it, and what its children hold by themselves is added.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benches import end_to_end
from benches.command_line import create_parser, parse_options, run_bench
from benches.gated_training import (
    BY_HAND,
    LIGHTKIT,
    LIGHTNING_CLI,
    Job,
    measure_peak_bytes,
    start_trainings,
)
from benches.photo_data import PhotoSplit, copy_split, find_photos
from benches.rounds import compare, run_rounds
from benches.training_process import run_training

TARGET = 1.1
NUM_PHOTOS = 80
"""Of which four fifths are trained on: two batches."""
WHO = (BY_HAND, LIGHTNING_CLI, LIGHTKIT)


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("memory", __doc__, repeat=3)
    parser.add_argument(
        "--steps", type=int, default=6, help="steps of each training on held batches (default: 6)"
    )
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads (default: 1)")
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="one folder a class")
    options = parse_options(parser, words)
    photos = find_photos(parser, options.photos)
    return run_bench("memory", options, lambda: measure(options, photos), threads=options.threads)


def measure(options: argparse.Namespace, photos: Path) -> dict[str, Any]:
    """Train a few steps and look at the peaks.

    Args:
        options: The command line.
        photos: One folder a class.

    Returns:
        Comparisons, and all rounds in MB.
    """
    size = {"batch_size": 2, "image_size": 64} if options.quick else {}
    num_steps = 1 if options.quick else options.steps

    def peak(contestant: str) -> Callable[[int], float]:
        def train_once(seed: int) -> float:
            job = Job("resnet18", seed=seed, threads=options.threads, **size)
            with start_trainings(job, {contestant: {}}) as trainings:
                trainings[contestant].time_steps(num_steps)
                return trainings[contestant].end() / 1e6

        return train_once

    held = run_rounds(
        {contestant: peak(contestant) for contestant in WHO},
        repeat=options.repeat,
        seed=options.seed,
        title="held batches",
    )
    with tempfile.TemporaryDirectory(prefix="lightkit-bench-") as work:
        split = copy_split(photos, Path(work, "photos"), max_images=NUM_PHOTOS)
        from_photos = run_rounds(
            _create_photo_trainings(split, Path(work), options),
            repeat=options.repeat,
            seed=options.seed,
            title="photos",
        )
    return {
        "comparisons": list_comparisons(held, from_photos, batch_size=size.get("batch_size", 32)),
        "rounds": {"held": held, "photos": from_photos},
        "settings": {"steps": num_steps, "num_train": split.num_train},
    }


def _create_photo_trainings(
    split: PhotoSplit, work: Path, options: argparse.Namespace
) -> dict[str, Callable[[int], float]]:
    """Return trainings of an epoch on photos.

    Those of `end_to_end`, all in float32 and without loading processes.
    """
    request = argparse.Namespace(size=64 if options.quick else 224, epochs=1, fixed=False)

    def peak(contestant: str) -> Callable[[int], float]:
        def train_once(seed: int) -> float:
            training = end_to_end.create_contestants(
                split, request, seed=seed, accelerator={"num_workers": 0}
            )[contestant]
            peaks = [0]
            folder = work / f"{contestant} {seed}".replace(" ", "-")
            run_training(
                training,
                folder,
                threads=options.threads,
                watch=lambda pid: peaks.append(measure_peak_bytes(pid)),
            )
            return max(peaks) / 1e6

        return train_once

    return {contestant: peak(contestant) for contestant in WHO}


def list_comparisons(
    held: Mapping[str, Sequence[float]], photos: Mapping[str, Sequence[float]], *, batch_size: int
) -> list[dict[str, Any]]:
    """Compare what was measured.

    Args:
        held: MB by contestant, round by round, with batches that are held in memory.
        photos: The same with photos.
        batch_size: Of the held batches.
    """
    title = "peak resident memory of the training process, ResNet-18"
    rows = (
        (f"{title}, batches of {batch_size} held in memory", held),
        (f"{title}, photos of an epoch", photos),
    )
    return [
        compare(
            what,
            rounds,
            of=LIGHTKIT,
            to=other,
            unit="MB",
            at_most=TARGET if other == BY_HAND else None,
        )
        for what, rounds in rows
        for other in (BY_HAND, LIGHTNING_CLI)
    ]
