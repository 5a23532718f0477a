"""When a training began its first step, its epochs and its end.

Noted by a contestant, read by a bench. No torch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = "BENCH_MOMENTS"  # no LIGHTKIT_, which would be a setting
"""The variable that names the file."""


def note(what: str, figures: Mapping[str, float] | None = None) -> None:
    """Add a line to the file: what happens just now.

    Args:
        what: ``epoch`` and ``step`` (the first of a training) begin, ``validated`` and ``end`` are
            over.
        figures: Of the validation: ``loss``, ``accuracy``.
    """
    line = {"what": what, "at_s": time.time(), **(figures or {})}
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class Moments:
    """The moments of a training, in seconds since its process was started.

    Args:
        first_step_s: When the first batch was there.
        epochs_s: When each epoch began, and the last one ended.
        validated_s: When each validation was over.
        losses: Of the validations.
        accuracies: Of the validations.
    """

    first_step_s: float
    epochs_s: tuple[float, ...]
    validated_s: tuple[float, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]

    def find_loss_s(self, loss: float) -> float | None:
        """Return when a validation first gave a loss at or below one; None if none did."""
        return next(
            (
                at
                for at, result in zip(self.validated_s, self.losses, strict=True)
                if result <= loss
            ),
            None,
        )


def read(file: Path, *, started_s: float) -> Moments:
    """Read what a contestant has noted.

    Args:
        file: Where it did.
        started_s: When its process was started, as `time.time` tells it.
    """
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    at = {
        what: tuple(line["at_s"] - started_s for line in lines if line["what"] == what)
        for what in ("step", "epoch", "validated", "end")
    }
    validations = [line for line in lines if line["what"] == "validated"]
    return Moments(
        first_step_s=at["step"][0],
        epochs_s=(*at["epoch"], *at["end"]),
        validated_s=at["validated"],
        losses=tuple(line["loss"] for line in validations),
        accuracies=tuple(line["accuracy"] for line in validations),
    )
