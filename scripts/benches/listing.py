"""The benches that there are: what each measures, against what, and what it is to reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import cast

__all__ = ["BENCHES", "Bench", "listed", "runner"]


@dataclass(frozen=True)
class Bench:
    """A bench, whose module of the same name has ``run(words)``.

    Args:
        says: What it measures.
        against: What lightkit is compared with.
        reach: What the ratio is to reach, in words.
        stored: Whether its results stand in the README's table.
    """

    says: str
    against: str
    reach: str
    stored: bool = True


BENCHES = {
    "step": Bench(
        "a training step of ResNet-18, MobileNetV3-small and a 2-layer net",
        "a hand-written loop, a plain LightningCLI",
        "<= 1.02 times the loop (ResNet-18); <= half of LightningCLI's overhead (2-layer net)",
    ),
    "end_to_end": Bench(
        "images/s of a whole epoch on the flower photos",
        "a plain LightningCLI and a hand-written loop with ImageFolder",
        ">= 2.5 times LightningCLI for ResNet-18, at equal accuracy",
    ),
    "first_step": Bench("process start to the end of the first optimizer step", "a hand-written script", "<= 1.25"),
    "time_to_loss": Bench(
        "to a val/loss of 0.55 on the flower photos, frozen MobileNetV2", "a hand-written loop", "<= a third"
    ),
    "scaling": Bench("2 processes with a thread each, Horovod and DDP", "twice one process", ">= 0.95"),
    "memory": Bench("peak resident memory of a training of ResNet-18", "a hand-written loop", "<= 1.1"),
    "export": Bench("latency of each exported format, batches of 1 and 32", "eager", "reported"),
    "startup": Bench(
        "help, mistakes and --print_config", "a plain LightningCLI", "0.1 to 0.3 s; 1.1 times imports", stored=False
    ),
    "loader": Bench(
        "images/s that one core loads", "torchvision's ImageFolder, litdata", "1.7 and 6 times; 1.0", stored=False
    ),
}


def listed() -> str:
    """List them, one line each."""
    lines = [f"  {name:13}{bench.says}; against {bench.against}: {bench.reach}" for name, bench in BENCHES.items()]
    return "\n".join(lines)


def runner(name: str) -> Callable[[Sequence[str]], int]:
    """Import a bench and give what runs it."""
    return cast("Callable[[Sequence[str]], int]", import_module(f"benches.{name}").run)
