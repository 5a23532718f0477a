"""The benches that there are: what each measures, against what, and its target."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast


@dataclass(frozen=True)
class Bench:
    """A bench, whose module of the same name has ``run(words)``.

    Args:
        purpose: What it measures.
        against: What lightkit is compared with.
        target: What the ratio is to target, in words.
        minutes: That it takes on two idle cores, about.
        words: That `benchmarks/bench all` adds.
    """

    purpose: str
    against: str
    target: str
    minutes: float
    words: tuple[str, ...] = ()


BENCHES = {
    "step": Bench(
        "a training step of ResNet-18, MobileNetV3-small and a 2-layer net",
        "a hand-written loop, a plain LightningCLI",
        "<= 1.02 times the loop (ResNet-18); <= half of LightningCLI's overhead (2-layer net)",
        minutes=4,
    ),
    "end_to_end": Bench(
        "images/s of ResNet-18 on photos: the epochs after the first; that one and the whole"
        " training too",
        "a plain LightningCLI and a hand-written loop with ImageFolder",
        ">= 2.5 times LightningCLI in the epochs after the first, at no lower accuracy",
        minutes=10,
    ),
    "first_step": Bench(
        "process start to the end of the first optimizer step, from the"
        " second run on; the first run too",
        "a hand-written script",
        "<= 1.25",
        minutes=3,
    ),
    "time_to_loss": Bench(
        "to a val/loss of 0.55 on the flower photos, frozen MobileNetV2",
        "a hand-written loop",
        "<= a third",
        minutes=6,
    ),
    "scaling": Bench(
        "2 processes with a thread each, Horovod and DDP", "twice one process", ">= 0.95", minutes=6
    ),
    "memory": Bench(
        "peak resident memory of a training of ResNet-18, with batches in memory and with photos",
        "a hand-written loop",
        "<= 1.1",
        minutes=6,
    ),
    "export": Bench(
        "latency of each exported format, batches of 1 and 32", "eager", "reported", minutes=3
    ),
    "serving": Bench(
        "requests/s of lightkit serve, and their 95th percentile, with 8 clients",
        "MLflow's server",
        ">= 5 times",
        minutes=5,
    ),
    "startup": Bench(
        "help, mistakes and --print_config",
        "a plain LightningCLI",
        "0.1 to 0.3 s; 1.1 times imports",
        minutes=3,
        words=("--repeat", "3"),
    ),
    "sweep": Bench(
        "a trial of a sweep beyond its training, trials a minute, and"
        " trials on features that are kept",
        "a fit of its own, Hydra's sweeper, study.optimize in one process",
        "<= 0.3 of a fit; >= 3 times Hydra and 0.8 of the process; <="
        " 0.15 and 0.5 of fits on photos",
        minutes=40,
    ),
    "loader": Bench(
        "images/s that one core loads",
        "torchvision's ImageFolder, litdata",
        "1.7 and 6 times; 1.0",
        minutes=4,
        words=("--repeat", "3"),
    ),
}


def format_list() -> str:
    """List them, one line each."""
    lines = [
        f"  {name:13}{bench.purpose}; against {bench.against}: {bench.target}"
        for name, bench in BENCHES.items()
    ]
    return "\n".join(lines)


def format_durations(results: Path) -> str:
    """Return how long all take: as long as the last time, where results say how long that was.

    Args:
        results: Folder with NAME.json of each bench that has been run.
    """
    minutes = {
        name: _read_minutes(results / f"{name}.json") or bench.minutes
        for name, bench in BENCHES.items()
    }
    each = ", ".join(f"{name} {value:.0f}" for name, value in minutes.items())
    return f"about {sum(minutes.values()):.0f} minutes where nothing else runs: {each}"


def _read_minutes(file: Path) -> float | None:
    result = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return (
        None
        if result.get("settings", {}).get("quick", True) or "seconds" not in result
        else result["seconds"] / 60
    )


def load_bench(name: str) -> Callable[[Sequence[str]], int]:
    """Import a bench and give what runs it."""
    return cast("Callable[[Sequence[str]], int]", import_module(f"benches.{name}").run)
