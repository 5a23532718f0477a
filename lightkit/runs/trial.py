"""Files between a trial and its sweep, in the trial's run folder. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightkit.runs.files import parse_json, read_json, write_text
from lightkit.runs.folder import Run, list_runs
from lightkit.runs.records import Event, find_mismatch

FACTS = "trial.json"
"""What the trial writes once it is built: ``params``, the number of the model's parameters."""
VERDICT = "verdict.json"
"""What the sweep writes after each epoch: ``epoch``, and whether to ``stop`` after it."""
PRUNED = "pruned"
"""Status of a trial that its sweep has stopped early."""


def write_verdict(run: Run, epoch: int, *, stops: bool) -> None:
    """Write whether a trial goes on after an epoch."""
    with suppress(OSError):  # the folder was deleted: the trial says so itself
        write_text(run.folder / VERDICT, json.dumps({"epoch": epoch, "stop": stops}), durable=False)


def find_trial(run: Run) -> str | None:
    """Return the trial that a run is, as ``NAME/NUMBER``; None for another run."""
    manifest = read_json(run.manifest_path) or {}
    trial = manifest.get("trial")
    return trial if isinstance(trial, str) else None


def find_run_of_trial(root: Path, job: str, trial: str, *, but: set[str]) -> Run | None:
    """Return the newest run of a trial; None before it has one.

    Args:
        root: Folder of all runs.
        job: Name of the job.
        trial: The trial, as ``NAME/NUMBER``.
        but: Ids of runs of other trials; those that are found to be of others are added.
    """
    for run in list_runs(root, job):
        if run.id in but or not run.manifest_path.is_file():
            continue
        if find_trial(run) == trial:
            return run
        but.add(run.id)
    return None


class EventFollower:
    """Reads the events of a run as they are written.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Return the events since the last call.

        Of a line that is being written the next call has the whole. One whose fields have another
        type than they are documented with is no event.
        """
        if not self._path.is_file():  # a pipe would be waited for
            return
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            with suppress(ValueError):
                record = parse_json(line)
                if find_mismatch(record, Event) is None and "event" in record:
                    yield record
