"""Peak resident memory of a training of ResNet-18: lightkit beside a hand-written loop.

All train in a process of their own, with the same batches, weights and optimizer, to its end. The peak is what the
kernel has counted for the process, and what its children hold by themselves is added.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from benches.command import command_line, concluded, parsed
from benches.contest import comparison, contest
from benches.turns import BY_HAND, LIGHTKIT, LIGHTNING_CLI, Job, side_by_side

__all__ = ["run"]

REACH = 1.1


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = command_line("memory", __doc__, repeat=3)
    parser.add_argument("--steps", type=int, default=6, help="steps of each training (default: 6)")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads (default: 1)")
    options = parsed(parser, words)
    return concluded("memory", options, lambda: measured(options), threads=options.threads)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Train a few steps and look at the peaks.

    Args:
        options: The command line.

    Returns:
        Comparisons, and all rounds in MB.
    """
    size = {"batch_size": 2, "image_size": 64} if options.quick else {}
    num_steps = 1 if options.quick else options.steps

    def peak(who: str) -> Callable[[int], float]:
        def trained(seed: int) -> float:
            job = Job("resnet18", seed=seed, threads=options.threads, **size)
            with side_by_side(job, {who: {}}) as trainings:
                trainings[who].seconds(num_steps)
                return trainings[who].end() / 1e6

        return trained

    peaks = {who: peak(who) for who in (BY_HAND, LIGHTNING_CLI, LIGHTKIT)}
    rounds = contest(peaks, repeat=options.repeat, seed=options.seed)
    title = f"peak memory, ResNet-18, batch {size.get('batch_size', 32)}"
    return {
        "comparisons": [
            comparison(title, rounds, of=LIGHTKIT, to=BY_HAND, unit="MB", at_most=REACH),
            comparison(title, rounds, of=LIGHTKIT, to=LIGHTNING_CLI, unit="MB"),
        ],
        "rounds": rounds,
        "settings": {"steps": num_steps},
    }
