"""summary.json: how a run stands or ended, for people and for programs that read one file.

=================  ===================================================================================================
schema             1
run                ``NAME/ID``
status             running, done, failed, interrupted (nothing to resume from) or preempted (resumes)
exit_code          of the process; null while it runs
error              one line, where it failed
stopped_by         ``deadline`` where training ended well, but earlier than its config says; else null
started, ended     ISO 8601, UTC; of the newest process in this folder
durations          seconds: ``total`` of this process, ``fit``, and each other stage by its name
epochs             number of epochs that are complete
steps              number of optimizer steps
throughput         ``samples_per_s`` in training, over this process's complete epochs; null if none
phases             seconds of this process's fit: ``start``, ``load`` (waiting for batches), ``step``, ``validation``,
                   ``checkpoint``, ``other``
metrics            ``best`` and ``last``: column -> value, the rows of metrics.csv for these epochs
best               ``monitor``, its ``mode`` (min, max), ``value``, ``epoch`` of the best checkpoint; null if none
paths              relative to the run's folder: ``best_checkpoint``, ``last_checkpoint``, ``config``, ...
stages             ``validate``, ``test``, ``predict`` -> metric -> value
=================  ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lightkit.runs.files import read_json, write_json

SUMMARY_SCHEMA = Path(__file__).with_name("summary.schema.json")
"""JSON Schema of the file; `lightkit schema --summary` prints it."""
STATUSES = ("running", "done", "failed", "interrupted", "preempted")


@dataclass
class Summary:
    """What summary.json holds; each field is described at the top of the module."""

    run: str
    status: str = "running"
    exit_code: int | None = None
    error: str | None = None
    stopped_by: str | None = None
    started: str | None = None
    ended: str | None = None
    durations: dict[str, float] = field(default_factory=dict)
    epochs: int = 0
    steps: int = 0
    throughput: dict[str, float | None] = field(default_factory=lambda: {"samples_per_s": None})
    phases: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=lambda: {"best": {}, "last": {}})
    best: dict[str, Any] | None = None
    paths: dict[str, str] = field(default_factory=dict)
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    schema: int = 1

    def write(self, path: Path | str) -> None:
        """Replace the file as a whole; paths inside its folder are written relative to it.

        Raises:
            ValueError: If the status is none of `STATUSES`.
        """
        write_json(path, self.record(Path(path).parent))

    def record(self, folder: Path) -> dict[str, Any]:
        """Give what the file holds, which does not change with the summary.

        Args:
            folder: Folder of the file; paths inside are given relative to it.

        Raises:
            ValueError: If the status is none of `STATUSES`.
        """
        if self.status not in STATUSES:
            raise ValueError(f"unknown status {self.status!r}; a run is {', '.join(STATUSES)}")
        record = asdict(self)
        record["paths"] = {name: relative(value, folder) for name, value in self.paths.items()}
        return {"schema": record.pop("schema"), **record}

    @classmethod
    def read(cls, path: Path | str) -> Summary | None:
        """Give what a file holds, without fields this version does not know; None if there is nothing readable."""
        record: Mapping[str, Any] | None = read_json(path)
        if record is None or not isinstance(record.get("run"), str):
            return None
        return cls(**{name: value for name, value in record.items() if name in cls.__dataclass_fields__})


def relative(path: Path | str, folder: Path | str) -> str:
    """Give a path relative to ``folder`` where it is inside, else as it is."""
    inside, folder = Path(path).absolute(), Path(folder).absolute()
    return inside.relative_to(folder).as_posix() if inside.is_relative_to(folder) else str(path)
