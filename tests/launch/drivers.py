"""A job of two ranks, as a driver program is given it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightkit.launch.driver import Job


def job(folder: Path, *words: str, **settings: Any) -> Job:
    """Make a job of two ranks."""
    defaults = {"processes": 2, "strategy": "ddp", "folder": str(folder), "timeout_s": 180.0, "program": "standin"}
    environment = {"_LIGHTKIT_LAUNCH": str(folder / "launch"), "PYTHONPATH": str(folder)}
    return Job(words=list(words), environment=environment, **{**defaults, "storage": str(folder / "ray"), **settings})
