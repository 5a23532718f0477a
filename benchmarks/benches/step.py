"""Seconds of a training step: lightkit and a hand-written loop and a plain LightningCLI.

Synthetic batches are held in memory and are the same for all, as are weights, optimizer and
threads. All contestants of a net are loaded at once and take turns of some steps, so that start-up
counts nowhere. The Lightning module of all logs its loss for the bar too (`prog_bar=True`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benches.command_line import create_parser, parse_options, run_bench
from benches.gated_training import BY_HAND, LIGHTKIT, LIGHTNING_CLI, Job, Training, start_trainings
from benches.rounds import compare, run_rounds

WITHOUT_BAR = f"{LIGHTNING_CLI} without its bar"
BAREBONES = f"{LIGHTNING_CLI}, barebones"
ON_A_TERMINAL, CLI_ON_A_TERMINAL = f"{LIGHTKIT} on a terminal", f"{LIGHTNING_CLI} on a terminal"
CONTESTANTS: dict[str, dict[str, Any]] = {BY_HAND: {}, LIGHTNING_CLI: {}, LIGHTKIT: {}}
MORE: dict[str, dict[str, Any]] = {
    WITHOUT_BAR: {"config": {"trainer": {"enable_progress_bar": False}}},
    BAREBONES: {"config": {"trainer": {"barebones": True}}},
    CLI_ON_A_TERMINAL: {"terminal": True},
    ON_A_TERMINAL: {"terminal": True},
}


@dataclass(frozen=True)
class Net:
    """How a net is measured.

    Args:
        title: For readers.
        num_steps: Of a turn.
        warm_up: Steps before the first turn.
        overhead: Whether the step is so short that the ways around it are what is compared.
        at_most: Times of the loop's step to reach.
    """

    title: str
    num_steps: int
    warm_up: int
    overhead: bool = False
    at_most: float | None = None


NETS = {
    "resnet18": Net("ResNet-18, batch 32", num_steps=3, warm_up=2, at_most=1.02),
    "mobilenet_v3_small": Net("MobileNetV3-small, batch 32", num_steps=6, warm_up=3),
    "two_layer": Net("2-layer net, batch 32", num_steps=500, warm_up=300, overhead=True),
}


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("step", __doc__, repeat=5)
    parser.add_argument(
        "--net", choices=NETS, action="append", help="measure this one only; can be said again"
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="intra-op threads of image nets (default: 2)"
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: what threads have computed, on a busy machine",
    )
    options = parse_options(parser, words)
    return run_bench("step", options, lambda: measure(options), threads=None)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure each net.

    Args:
        options: The command line.

    Returns:
        Comparisons, and all rounds in seconds of a step.
    """
    comparisons: list[dict[str, Any]] = []
    rounds: dict[str, Any] = {}
    threads = {name: 1 if net.overhead else options.threads for name, net in NETS.items()}
    for name in options.net or NETS:
        size = {"batch_size": 2, "image_size": 64} if options.quick else {}
        job = Job(name, seed=options.seed, threads=threads[name], **size)
        rounds[name] = _measure_net(job, NETS[name], options)
        comparisons += list_comparisons(NETS[name], rounds[name], clock=options.clock)
    return {
        "comparisons": comparisons,
        "rounds": rounds,
        "settings": {"threads": threads, "clock": options.clock},
        "notes": [_NOTE],
    }


_NOTE = "Overhead is a step's time less that of the hand-written loop's step in the same round."


def _measure_net(job: Job, net: Net, options: argparse.Namespace) -> dict[str, list[float]]:
    num_steps = min(net.num_steps, 50) if options.quick else net.num_steps
    contestants = {**CONTESTANTS, **(MORE if net.overhead and not options.quick else {})}
    with start_trainings(job, contestants) as trainings:
        for training in trainings.values():
            training.time_steps(1 if options.quick else net.warm_up)

        def turn(training: Training) -> Callable[[int], float]:
            return lambda _: training.time_steps(num_steps, clock=options.clock) / num_steps

        turns = {name: turn(training) for name, training in trainings.items()}
        return run_rounds(turns, repeat=options.repeat, seed=job.seed, title=net.title)


def list_comparisons(
    net: Net, rounds: Mapping[str, Sequence[float]], *, clock: Literal["wall", "cpu"] = "wall"
) -> list[dict[str, Any]]:
    """Compare what was measured of a net.

    Args:
        net: How it was measured.
        rounds: Seconds of a step by contestant, round by round.
        clock: Clock of the seconds.
    """
    step = f"{net.title}, {clock} clock"
    scale, unit = (1e6, "us") if net.overhead else (1e3, "ms")
    scaled = {name: [scale * value for value in values] for name, values in rounds.items()}
    lines = [
        compare(step, scaled, of=LIGHTKIT, to=BY_HAND, unit=unit, at_most=net.at_most),
        compare(step, scaled, of=LIGHTKIT, to=LIGHTNING_CLI, unit=unit),
    ]
    if not net.overhead:
        return lines
    over = {
        name: [value - loop for value, loop in zip(values, scaled[BY_HAND], strict=True)]
        for name, values in scaled.items()
        if name != BY_HAND
    }
    title = f"overhead a step, {step}"
    lines.append(compare(title, over, of=LIGHTKIT, to=LIGHTNING_CLI, unit=unit, at_most=0.5))
    lines += [
        compare(title, over, of=LIGHTKIT, to=name, unit=unit)
        for name in (WITHOUT_BAR, BAREBONES)
        if name in over
    ]
    if ON_A_TERMINAL in over:
        lines.append(
            compare(title, over, of=ON_A_TERMINAL, to=CLI_ON_A_TERMINAL, unit=unit, at_most=0.5)
        )
    return lines
