"""A run as a value: where its files are, and which run this process writes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Run", "activate", "current"]


@dataclass(frozen=True)
class Run:
    """The folder of one run, and the names of the files in it.

    Args:
        folder: Absolute path, ``<root>/<name>/<id>``.
        name: Name of the job.
        id: UTC time of its creation and a few random digits, ``20261120-113859-3fa1``: ids sort by time.
        root: Folder that holds the runs of all jobs.
        resumed: Whether this process continues what an earlier one began in the same folder.
    """

    folder: Path
    name: str
    id: str
    root: Path
    resumed: bool = False

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints and of the digest beside each."""
        return self.folder / "checkpoints"

    @property
    def config_path(self) -> Path:
        """The resolved config, replayable by itself."""
        return self.folder / "config.yaml"

    @property
    def manifest_path(self) -> Path:
        """What the run was made from: code, packages, data, seed, hardware."""
        return self.folder / "manifest.json"

    @property
    def events_path(self) -> Path:
        """One event a line."""
        return self.folder / "events.jsonl"

    @property
    def metrics_path(self) -> Path:
        """One row an epoch."""
        return self.folder / "metrics.csv"

    @property
    def summary_path(self) -> Path:
        """How the run ended."""
        return self.folder / "summary.json"


_active: list[Run] = []


def current() -> Run | None:
    """The run that this process writes to, or None outside the command line."""
    return _active[-1] if _active else None


@contextmanager
def activate(run: Run) -> Iterator[Run]:
    """Make ``run`` the current one for as long as the block lasts."""
    _active.append(run)
    try:
        yield run
    finally:
        _active.pop()
