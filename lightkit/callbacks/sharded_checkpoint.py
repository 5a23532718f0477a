"""Keep the promises on checkpoints that a strategy writes itself.

As a folder with shards of each process.

`FSDPStrategy`, `ModelParallelStrategy` and `DeepSpeedStrategy` pass over the trainer's
`CheckpointIO` then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytorch_lightning.strategies import (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    Strategy,
)
from pytorch_lightning.strategies.xla import XLAStrategy

from lightkit import runs
from lightkit.callbacks.checkpoint_io import mask_hyperparameters
from lightkit.launch.watchdog import heartbeat
from lightkit.runs.fence import check_fences

_log = logging.getLogger("lightkit")
_THROUGH_CHECKPOINT_IO = (Strategy.save_checkpoint, XLAStrategy.save_checkpoint)
_FILES = {
    FSDPStrategy: "its state_dict_type: full writes a file",
    ModelParallelStrategy: "its save_distributed_checkpoint: false writes a file",
    DeepSpeedStrategy: "the strategy fsdp writes a file",
}


def watch_strategy(
    strategy: Strategy, *, mask: Callable[[Any], Any], on_saved: Callable[[Path, int, int], None]
) -> None:
    """Mask and digest the checkpoints of a strategy that has a writer of its own.

    Leave any other as it is.

    Args:
        strategy: The trainer's.
        mask: Applied to the hyper-parameters before they are written, as by `VerifiedCheckpointIO`.
        on_saved: Called on the first process with the path and the checkpoint's epoch and step once
            a folder is whole.
    """
    if type(strategy).save_checkpoint not in _THROUGH_CHECKPOINT_IO:
        writer = _StrategyWriter(strategy, mask=mask, on_saved=on_saved)
        strategy.save_checkpoint = writer.save_checkpoint  # type: ignore[method-assign]


class _StrategyWriter:
    """Hand a strategy checkpoints without secrets, and digest the folders that it writes.

    The arguments are those of `watch_strategy`.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        mask: Callable[[Any], Any],
        on_saved: Callable[[Path, int, int], None],
    ) -> None:
        self._strategy = strategy
        self._write = strategy.save_checkpoint
        self._mask = mask
        self._on_saved = on_saved
        self._has_warned = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint; called on all processes.

        Raises:
            OSError: If a file cannot be written.
            RunLocked: If this process has lost its job.
        """
        mask_hyperparameters(checkpoint, self._mask)
        epoch = checkpoint["epoch"]
        step = checkpoint["global_step"]
        path = Path(self._strategy.broadcast(filepath))

        if self._strategy.is_global_zero:
            check_fences()
            runs.make_way_for_folder(path)
        self._strategy.barrier("before the shards")
        self._write(checkpoint, path, storage_options=storage_options)
        self._strategy.barrier("after the shards")

        # Else the trainer's `CheckpointIO` has written a file, digest and event included.
        if not path.is_dir():
            return
        if self._strategy.is_global_zero:
            self._warn()
            runs.write_folder_digests(path, on_progress=heartbeat().beat)
            self._on_saved(path, epoch, step)
        heartbeat().leave()  # the phase of a checkpoint, which `StallWatch` has entered

    def _warn(self) -> None:
        """Warn once of what a folder of shards takes away."""
        if self._has_warned:
            return
        self._has_warned = True
        advice = next(
            (text for kind, text in _FILES.items() if isinstance(self._strategy, kind)), ""
        )
        _log.warning(
            "trainer.strategy: %s writes each checkpoint as a folder of shards, of which none is"
            " read back, and which only fit, validate, test and predict with this strategy take;"
            " gate, promote, register and export do not%s. Secrets are masked, and each shard has"
            " its digest.",
            type(self._strategy).__name__,
            f" ({advice})" if advice else "",
        )
