"""Folders of runs as trainings leave them, made in a moment."""

from __future__ import annotations

import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lightkit import runs

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def run_id(day: float) -> str:
    """The id of a run that began so many days after the first of January 2026."""
    return f"{EPOCH + timedelta(days=day):%Y%m%d-%H%M%S}-{int(day * 100) % 65536:04x}"


def plant(
    root: Path,
    name: str = "job",
    day: float = 0,
    *,
    status: str | None = "done",
    value: float | None = 0.5,
    monitor: str = "val/accuracy",
    mode: str | None = None,
    size: int = 100,
    checkpoint: str | None = "good",
    subcommand: str | None = "fit",
    parent: Path | None = None,
    **manifest: Any,
) -> Path:
    """Make a run; None for a status or a subcommand: a process killed before it wrote the file."""
    folder = root / name / run_id(day)
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(b"x" * size)
    if subcommand is not None:
        said = {
            "subcommand": subcommand,
            "parent": None if parent is None else str(parent),
            **manifest,
        }
        runs.write_json(folder / "manifest.json", said)
    if status is not None:
        best = {
            "monitor": monitor,
            "value": value,
            "epoch": 1,
            **({} if mode is None else {"mode": mode}),
        }
        summary = {"schema": 1, "run": f"{name}/{folder.name}", "status": status, "best": best}
        runs.write_json(folder / "summary.json", summary)
    if checkpoint is not None:
        path = folder / "checkpoints" / "last.ckpt"
        path.parent.mkdir()
        runs.write_aside(path, _archive)
        if checkpoint == "bad":
            path.write_bytes(path.read_bytes()[:-30])
    return folder


def _archive(path: Path) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")
    return runs.digest(path)
