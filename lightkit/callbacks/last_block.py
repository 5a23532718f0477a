"""The lines that a run ends with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from lightkit.config import shown_path


def last_block(
    *,
    folder: Path | str,
    best_checkpoint: Path | str | None = None,
    monitor: str | None = None,
    value: float | None = None,
    epoch: int | None = None,
    commands: Sequence[Sequence[str]] = (),
    notices: Sequence[str] = (),
) -> str:
    """Give the lines that a run ends with: the best checkpoint, the folder, and what to type next.

    Args:
        folder: The run's folder.
        best_checkpoint: The checkpoint, where there is one.
        monitor: Metric by which it is best.
        value: Its value.
        epoch: Epoch that it is from, counted from 0 as in its file and in metrics.csv.
        commands: The commands to type next, each as its words; they are quoted for the shell.
        notices: What else must be known, such as what a tracker has missed.
    """
    lines = []
    if best_checkpoint is not None:
        when = f" after epoch {epoch}" if epoch is not None else ""
        why = f"  ({monitor} {value:.4g}{when})" if monitor is not None and value is not None else ""
        lines.append(f"best  {shown_path(Path(best_checkpoint))}{why}")
    lines.append(f"run   {shown_path(Path(folder))}")
    lines += [f"note  {notice}" for notice in notices]
    lines += [f"{'next' if first else '':4}  {shlex.join(words)}" for first, words in _first(commands)]
    return "\n".join(lines)


def _first(commands: Sequence[Sequence[str]]) -> list[tuple[bool, Sequence[str]]]:
    return [(index == 0, words) for index, words in enumerate(commands)]
