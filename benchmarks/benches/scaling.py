"""Images/s of two processes with a thread each.

Horovod and DDP compared with twice one process with one thread.

All train ResNet-18 by `lightkit fit`, on batches that are held in memory. Two processes that know
nothing of each other show what the machine itself gives two of them: the cores share caches, memory
and clock.

`--horovod 1:64 10:64 10:0` adds Horovod with a cycle time of 1 or 10 ms and a fusion buffer of 64
or 0 MB (HOROVOD_CYCLE_TIME, HOROVOD_FUSION_THRESHOLD).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from importlib import util
from typing import Any

from benches.command_line import create_parser, parse_options, run_bench
from benches.gated_training import LIGHTKIT, Job, Training, start_trainings
from benches.rounds import compare, mark_unmeasured, run_rounds

ALONE, TWICE, APART = f"{LIGHTKIT} alone", "twice one process", f"{LIGHTKIT} twice, apart"
HOROVOD, DDP = f"{LIGHTKIT}, Horovod", f"{LIGHTKIT}, DDP"
TARGET = 0.95
CONTESTANTS: dict[str, dict[str, Any]] = {
    ALONE: {},
    APART: {},
    HOROVOD: {
        "config": {"accelerator": {"strategy": "horovod"}, "launch": {"processes": 2}},
        "num_ranks": 2,
    },
    DDP: {"config": {"accelerator": {"num_processes": 2, "strategy": "ddp"}}, "num_ranks": 2},
}
NUM_PROCESSES = {ALONE: 1, APART: 2, HOROVOD: 2, DDP: 2}


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("scaling", __doc__, repeat=3)
    parser.add_argument("--steps", type=int, default=8, help="steps of a turn (default: 8)")
    parser.add_argument(
        "--batch", type=int, default=32, help="images of each process's batch (default: 32)"
    )
    parser.add_argument(
        "--horovod",
        nargs="*",
        default=[],
        metavar="MS:MB",
        help="cycle times and fusion buffers to try in addition",
    )
    options = parse_options(parser, words)
    return run_bench("scaling", options, lambda: measure(options), threads=1)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure each way.

    Args:
        options: The command line.

    Returns:
        Comparisons, and all rounds in images/s.
    """
    size = {"batch_size": 2, "image_size": 64} if options.quick else {"batch_size": options.batch}
    num_steps = 1 if options.quick else options.steps
    job = Job("resnet18", seed=options.seed, threads=1, **size)
    ways = {
        name: options_of
        for name, options_of in CONTESTANTS.items()
        if name != HOROVOD or util.find_spec("horovod")
    }
    if HOROVOD in ways:
        ways |= dict(map(create_horovod, options.horovod))
    num_images = num_steps * job.batch_size

    def turn(name: str) -> Callable[[int], float]:
        def train_once(_: int) -> float:
            names = (
                [f"{name}, {which}" for which in ("first", "second")] if name == APART else [name]
            )
            with start_trainings(job, dict.fromkeys(names, ways[name])) as trainings:
                return (
                    num_images
                    * NUM_PROCESSES.get(name, 2)
                    / _time_slowest(list(trainings.values()), num_steps)
                )

        return train_once

    rounds = run_rounds(
        {name: turn(name) for name in ways}, repeat=options.repeat, seed=options.seed
    )
    return {
        "comparisons": list_comparisons(rounds, batch_size=job.batch_size),
        "rounds": rounds,
        "settings": {"steps": num_steps, "batch_size": job.batch_size},
    }


def create_horovod(word: str) -> tuple[str, dict[str, Any]]:
    """Return a contestant with settings of Horovod.

    Args:
        word: Cycle time in ms and fusion buffer in MB, as ``10:64``.
    """
    cycle_ms, _, fusion_mb = word.partition(":")
    environ = {
        "HOROVOD_CYCLE_TIME": cycle_ms,
        "HOROVOD_FUSION_THRESHOLD": str(round(float(fusion_mb) * 2**20)),
    }
    return f"{HOROVOD}, cycle {cycle_ms} ms, fusion {fusion_mb} MB", {
        **CONTESTANTS[HOROVOD],
        "environ": environ,
    }


def _time_slowest(trainings: Sequence[Training], num_steps: int) -> float:
    """Return the seconds of some steps after one that does not count.

    Of processes that compute at the same time.
    """
    for training in trainings:
        training.begin(1)
    for training in trainings:
        training.wait()
    for training in trainings:
        training.begin(num_steps)
    return max(training.wait() for training in trainings)


def list_comparisons(
    rounds: Mapping[str, Sequence[float]], *, batch_size: int
) -> list[dict[str, Any]]:
    """Compare what was measured.

    Args:
        rounds: Images/s by contestant, round by round.
        batch_size: Images of each process's batch.
    """
    title = f"ResNet-18, 2 processes, batch {batch_size} each"
    twice = {**rounds, TWICE: [2 * value for value in rounds[ALONE]]}
    shared = [name for name in rounds if name.startswith((HOROVOD, DDP))]
    targets = {HOROVOD: TARGET, DDP: TARGET}
    lines = [
        compare(title, twice, of=name, to=TWICE, unit="images/s", at_least=targets.get(name))
        for name in shared
    ]
    if HOROVOD not in rounds:
        lines.insert(
            0,
            mark_unmeasured(
                title, of=HOROVOD, to=TWICE, reason="Horovod is not installed", at_least=TARGET
            ),
        )
    lines += [compare(title, twice, of=name, to=APART, unit="images/s") for name in shared]
    return [*lines, compare(title, twice, of=APART, to=TWICE, unit="images/s")]
