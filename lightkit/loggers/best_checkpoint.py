"""The best checkpoint of each `ModelCheckpoint`, noted while training and set aside for sending at the end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer

__all__ = ["BestCheckpoints"]


@dataclass
class _Best:
    path: str
    score: float | None
    metrics: dict[str, float]


class BestCheckpoints:
    """What is best so far, by callback: two may watch different metrics."""

    def __init__(self) -> None:
        self._best: dict[str, _Best] = {}

    def note(self, callback: Any, *, trainer: Trainer | None, metrics: Mapping[str, float]) -> None:
        """Look at ``callback``, a `ModelCheckpoint`, which has just saved; it may not have been the best.

        Args:
            callback: Its state names the best checkpoint so far.
            trainer: Tells epoch and step, where it is known.
            metrics: The newest values that were logged. Not asked of the trainer here: reading its metrics may
                need all ranks, and this happens on one.
        """
        if not (path := callback.best_model_path):
            return
        score = None if callback.best_model_score is None else float(callback.best_model_score)
        key = str(callback.state_key)
        known = self._best.get(key)
        if known is not None and known.path == path and known.score == score is not None:
            return
        self._best[key] = _Best(path, score, dict(metrics))
        if score is not None:
            self._best[key].metrics[str(callback.monitor)] = score
        if trainer is not None:
            self._best[key].metrics.update(epoch=trainer.current_epoch, global_step=trainer.global_step)

    def set_aside(self, folder: Path) -> list[tuple[Path, Path]]:
        """Put the best checkpoints and their metrics into ``folder``, and forget them.

        A link where the disk allows: a later run of the same job replaces the original, and may be quicker than
        the server.
        """
        best, self._best = self._best, {}
        folder.mkdir(parents=True, exist_ok=True)
        aside = []
        for one in best.values():
            path = Path(one.path)
            if not path.is_file():
                continue
            checkpoint, facts = folder / path.name, folder / "latest_checkpoint_metrics.json"
            checkpoint.unlink(missing_ok=True)
            try:
                os.link(path, checkpoint)
            except OSError:
                shutil.copyfile(path, checkpoint)
            facts.write_text(json.dumps(one.metrics, indent=2))
            aside.append((checkpoint.absolute(), facts.absolute()))
        return aside
