"""What each of two ranks finds that train towards a deadline.

Python -m tests.callbacks.late_ranks FOLDER.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from pytorch_lightning.strategies import DDPStrategy

from lightkit.callbacks import checkpoint
from lightkit.errors import OutOfTime
from tests.callbacks.late_training import Hands, trained

Found = dict[str, Any]
FAR_S = 1e6
BATCHES = 64


class Counted(DDPStrategy):
    """Counts the messages for which both ranks wait, but those of the gradients."""

    num_messages = 0

    def all_gather(self, *args: Any, **kwargs: Any) -> Any:
        self.num_messages += 1
        return super().all_gather(*args, **kwargs)

    def reduce_boolean_decision(self, *args: Any, **kwargs: Any) -> bool:
        self.num_messages += 1
        return super().reduce_boolean_decision(*args, **kwargs)


def _of_a_rank(folder: Path, deadline_s: float, hands: Hands, **settings: Any) -> Found:
    """Train on this rank, whose clock goes as the first one's does but on another day."""
    strategy = Counted()
    hands.now_s += int(os.environ.get("LOCAL_RANK", "0")) * 100 * FAR_S
    began_s, stopped, error = hands.now_s, list[str](), ""
    with mock.patch.object(checkpoint, "time", SimpleNamespace(monotonic=hands)):
        try:
            _, stopped = trained(
                folder, deadline_s, hands, batches=BATCHES, devices=2, strategy=strategy,
                use_distributed_sampler=False, **settings,
            )  # fmt: skip
        except OutOfTime as late:
            error = str(late)
    steps = strategy.lightning_module.trainer.global_step  # type: ignore[union-attr]
    return {
        "steps": steps,
        "messages": strategy.num_messages,
        "took_s": hands.now_s - began_s,
        "stopped": stopped,
        "error": error,
    }


CASES: dict[str, Callable[[Path], Found]] = {
    "far": lambda folder: _of_a_rank(folder, FAR_S, Hands(batch_s=0.001), max_epochs=2),
    "slower": lambda folder: _of_a_rank(folder, 105, Hands(BATCHES + 20, 5.0, batch_s=0.001)),
    "accumulating": lambda folder: _of_a_rank(
        folder, 120, Hands(5, 5.0, batch_s=0.001), resumable=True, accumulate_grad_batches=4
    ),
}


def main(folder: Path) -> None:
    found = {name: case(folder / name) for name, case in CASES.items()}
    torch.save(found, folder / f"rank-{os.environ['LOCAL_RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
