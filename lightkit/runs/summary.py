"""summary.json: how a run stands or ended, for people and for programs that read one file.

=================  =================================================================================
schema             1
run                ``NAME/ID``
status             running, done, failed, interrupted (nothing to resume from) or preempted
                   (resumes), or pruned (a sweep has stopped it early)
exit_code          of the process; null while it runs
error              one line, where it failed
stopped_by         ``deadline`` where training ended well, but earlier than its config says; else
                   null
stopped_early      one line where early stopping, `max_time`, a callback or the model ended
                   training; else null
started, ended     ISO 8601, UTC; of the newest process in this folder
durations          seconds: ``total`` of this process, ``fit``, and each other stage by its name
epochs             number of epochs that are complete
steps              number of optimizer steps
throughput         ``samples_per_s`` in training, over this process's complete epochs; null if none;
                   as ``features_per_s`` too where the samples are features of a frozen backbone,
                   which were computed once
phases             seconds of this process's fit: ``setup`` (model and data are made), ``fit_start``
                   (devices, features of a frozen backbone), ``sanity_check`` (first validation
                   batches, a checkpoint is restored), ``load`` (waiting for batches), ``step``,
                   ``validation``, ``checkpoint``, ``other``
metrics            ``best`` and ``last``: column -> value, the rows of metrics.csv for these epochs;
                   for a best checkpoint that was written within an epoch the metrics that had been
                   logged by then
best               ``monitor``, its ``mode`` (min, max), ``value``, ``epoch``, ``step`` of the best
                   checkpoint; null if none
notes              list of lines on what a reader of the numbers must know
paths              relative to the run's folder: ``best_checkpoint``, ``last_checkpoint``,
                   ``config``, ...
stages             ``validate``, ``test``, ``predict`` -> metric -> value: the newest result, of
                   whatever weights; a fit leaves those of its best checkpoint alone
scores             each result of ``validate`` and ``test`` with its weights, data and settings:
                   `lightkit.runs.scores`
samples            ``val``: number of samples of each validation of the fit; null where it varies,
                   or is unknown
modes              metric -> ``min`` or ``max``, as the config sets it, or the metric object that
                   was logged knows it
=================  =================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightkit.runs.files import read_json, write_json

SUMMARY_SCHEMA = Path(__file__).with_name("summary.schema.json")
"""JSON Schema of the file; `lightkit schema --summary` prints it."""
Summary = dict[str, Any]


def new_summary(run: str) -> Summary:
    """Return the summary of a run that has only begun.

    Args:
        run: ``NAME/ID``.
    """
    unknown = dict.fromkeys(
        ("exit_code", "error", "stopped_by", "stopped_early", "started", "ended")
    )
    numbers = {
        "durations": {},
        "epochs": 0,
        "steps": 0,
        "throughput": {"samples_per_s": None},
        "phases": {},
    }
    results: Summary = {"metrics": {"best": {}, "last": {}}, "best": None, "notes": [], "paths": {}}
    results |= {"stages": {}, "scores": [], "samples": {}, "modes": {}}
    return {"schema": 1, "run": run, "status": "running", **unknown, **numbers, **results}


def read_summary(path: Path) -> Summary | None:
    """Read a summary; None if there is nothing readable."""
    found = read_json(path)
    return (
        {**new_summary(f"{path.parent.parent.name}/{path.parent.name}"), **found} if found else None
    )


def write_summary(path: Path, summary: Summary) -> None:
    """Replace the file as a whole; paths inside its folder are written relative to it."""
    paths = {name: relative(value, path.parent) for name, value in summary["paths"].items()}
    write_json(path, {**summary, "paths": paths})


def relative(path: Path | str, folder: Path | str) -> str:
    """Return a path relative to ``folder`` where it is inside, else as it is."""
    inside = Path(path).absolute()
    folder = Path(folder).absolute()
    return inside.relative_to(folder).as_posix() if inside.is_relative_to(folder) else str(path)
