"""The runs below a root with what tables, sorting and retention need.

Status, metric, size, age, promotion.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from lightkit.config.yaml_reader import YamlLoader
from lightkit.runs.files import find_value, finite, inspect_json, read_json
from lightkit.runs.folder import Run, list_runs
from lightkit.runs.lock import lock_holder
from lightkit.runs.metric_mode import Mode, infer_mode, merge_modes
from lightkit.runs.scores import keep_own_stages

KILLED = "killed"
"""Status of a run that says ``running`` and whose process is gone; summary.json has no such
word."""
UNREADABLE = "unreadable"
"""Status of a run with a record that is damaged, so that nothing is known of it for sure."""
PROMOTED = "promoted.json"
"""File in a run that was promoted: the registered models, each with its version."""
_LONGEST_PATH = 4096
_RECORDS = ("manifest.json", "summary.json", "retrain.json", PROMOTED, "mlflow.json")
"""Files that say what a run is, and who needs it."""


@dataclass(frozen=True)
class IndexedRun:
    """A run with its records.

    Args:
        run: The run.
        status: As in summary.json, or ``killed``, or ``unreadable``.
        is_training: Whether it is a ``fit``, and no ``fast_dev_run``.
        metric: Name of the metric that is shown; None where the run has none.
        value: Its value, NaN where that is not finite; None where it was not logged.
        size_bytes: Size of all its files.
        created: Start, in seconds since 1970.
        is_locked: Whether a living process works on it.
        is_promoted: Whether its model was promoted.
        aliases: Aliases of the registry that point to its model since the last move by lightkit on
            this machine.
        needs: Paths of the checkpoint that it started from, and of its parent.
        began_in: Working directory of its first process, to which paths in its config are relative.
        in_retrain: Whether a `lightkit retrain` in it is unfinished.
        summary: What its summary.json holds; of its stages, those of its best checkpoint and own
            data alone.
        damage: File that cannot be read, and why; None if each can.
    """

    run: Run
    status: str
    is_training: bool
    metric: str | None
    value: float | None
    size_bytes: int
    created: float
    is_locked: bool
    is_promoted: bool = False
    aliases: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    began_in: Path = Path()
    in_retrain: bool = False
    summary: Mapping[str, Any] = field(default_factory=dict)
    damage: str | None = None

    @property
    def key(self) -> str:
        """``NAME/ID``."""
        return f"{self.run.name}/{self.run.id}"

    def fields(self, *, now: float) -> dict[str, Any]:
        """Return plain values for JSON.

        Args:
            now: Seconds since 1970.
        """
        return {
            "name": self.run.name,
            "id": self.run.id,
            "folder": str(self.run.folder),
            "status": self.status,
            "metric": self.metric,
            "value": finite(self.value),
            "size_bytes": self.size_bytes,
            "created": datetime.fromtimestamp(self.created, UTC).isoformat(),
            "age_s": round(max(0.0, now - self.created)),
            "locked": self.is_locked,
            "promoted": self.is_promoted,
            "aliases": list(self.aliases),
        }


def index_runs(
    root: Path | str, name: str | None = None, *, metric: str | None = None
) -> list[IndexedRun]:
    """List the runs below a root, or those of one job, the newest first.

    Args:
        root: Folder that holds the runs of all jobs.
        name: The job; all if None.
        metric: Metric that is shown; if None, the one that chose each run's best checkpoint.
    """
    found = list_runs(root, name)
    holders = {job: lock_holder(root, job) for job in {run.name for run in found}}
    return [_index_run(run, holders[run.name], metric) for run in found]


def index_run(run: Run) -> IndexedRun:
    """Read the records of one run."""
    return _index_run(run, lock_holder(run.root, run.name), None)


def promoted_aliases(run: Run) -> tuple[str, ...]:
    """List the aliases of the registry that point to a run's model .

    Since the last move by lightkit on this machine.
    """
    return _list_aliases(read_json(run.folder / PROMOTED))


def has_unknown_needs(each: IndexedRun) -> bool:
    """Check whether it is unknown from which run a run began: its manifest is damaged, or lost."""
    if each.run.manifest_path.exists():
        return inspect_json(each.run.manifest_path)[1] is not None
    # else it was killed before it had anything
    return next(each.run.checkpoints.glob("*.ckpt"), None) is not None


def list_needs(each: IndexedRun) -> Iterator[Path]:
    """List the paths of what a run began from.

    Also list all that its config names, such as weights or a teacher.
    """
    yield from map(Path, each.needs)
    for _, value in flatten(read_config(each.run)):
        if (
            isinstance(value, str)
            and "/" in value
            and len(value) < _LONGEST_PATH
            and "\0" not in value
        ):
            yield each.began_in / value


def _list_aliases(promoted: Mapping[str, Any] | None) -> tuple[str, ...]:
    return tuple(find_value(promoted, "aliases") or ())


def infer_mode_of_runs(
    metric: str, entries: Sequence[IndexedRun], *, explicit: str | None = None
) -> Mode | None:
    """Infer whether the smallest (``min``) or the largest (``max``) value of a metric is best.

    None if unknown.

    Args:
        metric: Its name.
        entries: Runs of one job, the newest first, which have recorded modes.
        explicit: The mode that the user names.
    """
    chosen = (each.summary.get("best") or {} for each in entries)
    mode = next(
        (best["mode"] for best in chosen if best.get("monitor") == metric and best.get("mode")),
        None,
    )
    recorded = merge_modes(each.summary for each in entries)
    return infer_mode(metric, explicit=explicit, recorded=recorded, chosen=mode)


def _size_bytes(folder: Path) -> int:
    """Add up the sizes of all files below a folder, without following links.

    Files that vanish count as nothing.

    A file with two names, as `best.ckpt` and `last.ckpt` may be of one, takes its space once.
    """
    sizes_bytes = dict[tuple[int, int], int]()
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                found = os.lstat(os.path.join(parent, file))  # noqa: PTH118 - a path object is slow
                sizes_bytes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes_bytes.values())


def _index_run(run: Run, holder: Mapping[str, Any] | None, metric: str | None) -> IndexedRun:
    records = {name: read_json(run.folder / name) for name in _RECORDS}
    manifest = records["manifest.json"] or {}
    summary = keep_own_stages(run, records["summary.json"] or {}, manifest)
    damage = next(_list_damages(run, records), None)
    folder = find_value(holder, "folder")
    is_locked = folder is not None and Path(folder).name == run.id
    # A holder without a folder has not chosen its run yet, and a stage of a run takes no lock:
    # either may work on any.
    may_be_worked_on = is_locked or (holder is not None and folder is None)
    status = UNREADABLE if damage else _read_status(summary, may_be_worked_on=may_be_worked_on)
    metric = metric or find_value(summary, "best", "monitor")
    retrain = records["retrain.json"]
    # which is rarely that of `lightkit gc`
    began_in = Path(manifest.get("working_directory") or "")
    return IndexedRun(
        run,
        status=status,
        is_training=run.is_fit,
        metric=metric,
        value=None if metric is None else find_metric(metric, summary),
        size_bytes=_size_bytes(run.folder),
        created=_read_start(run.id),
        is_locked=is_locked,
        is_promoted=(run.folder / PROMOTED).is_file(),
        aliases=_list_aliases(records[PROMOTED]),
        needs=_list_own_needs(manifest, began_in),
        began_in=began_in,
        in_retrain=retrain is not None and retrain.get("ended") is None,
        summary=summary,
        damage=damage,
    )


def _read_status(summary: Mapping[str, Any], *, may_be_worked_on: bool) -> str:
    """Return the status of a run: killed, where it seems to run and no process works on it."""
    status = str(summary.get("status") or "running")
    return KILLED if status == "running" and not may_be_worked_on else status


def _list_own_needs(manifest: Mapping[str, Any], began_in: Path) -> tuple[str, ...]:
    """List the paths of the checkpoint that a run started from, and of its parent."""
    named = (manifest.get(key) for key in ("ckpt_path", "parent"))
    return tuple(str(began_in / str(path)) for path in named if path)


def _read_start(run_id: str) -> float:
    """Read the start of a run from its name, in seconds since 1970."""
    try:
        return datetime.strptime(run_id[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:  # digits that are no date
        return 0.0


def _list_damages(run: Run, records: Mapping[str, Any]) -> Iterator[str]:
    """List the files of a run that are there and cannot be read, each with the reason."""
    for name, record in records.items():
        damage = inspect_json(run.folder / name)[1] if record is None else None
        if damage is not None:
            yield f"{name}: {damage}"


def list_metrics(summary: Mapping[str, Any]) -> set[str]:
    """List the names of a run's metrics.

    In its best and last epochs and in later stages of its best checkpoint.
    """
    monitor = find_value(summary, "best", "monitor")
    last = find_value(summary, "metrics", "last") or {}
    names = {
        name
        for table in [*_list_tables(summary), last, {monitor: None} if monitor else {}]
        for name in table
    }
    return names - {"epoch", "step", "epoch_seconds", "samples_per_s"}


def _list_tables(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the tables of a run's best checkpoint; of a run without one, that of its last epoch."""
    metrics = summary.get("metrics") or {}
    tables = [metrics.get("best") or metrics.get("last"), *(summary.get("stages") or {}).values()]
    return [table for table in tables if isinstance(table, Mapping)]


def read_config(run: Run) -> dict[str, Any]:
    """Read a run's config; empty where there is none, or it cannot be read."""
    if not run.config_path.is_file():  # a pipe would be waited for
        return {}
    try:
        config = yaml.load(run.config_path.read_text(encoding="utf-8"), Loader=YamlLoader)  # noqa: S506 - a safe loader
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def read_config_values(run: Run) -> dict[str, Any]:
    """Read a run's config as values by dotted key, in which ``init_args`` may be left out.

    The key of a class, such as ``optimizer``, has its name. ``manifest.KEY`` and ``summary.KEY``
    are the run's records.
    """
    records = {"manifest": read_json(run.manifest_path), "summary": read_json(run.summary_path)}
    values: dict[str, Any] = {}
    for path, value in flatten({**read_config(run), **records}):
        *above, last = path
        values[".".join(map(str, path))] = value
        short = ".".join(str(part) for part in above if part != "init_args")
        is_class = last == "class_path" and isinstance(value, str)
        values |= (
            {short: value.rpartition(".")[2]}
            if is_class
            else {f"{short}.{last}" if short else str(last): value}
        )
    return values


def flatten(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """List the values below a mapping with their paths.

    A list of mappings is descended into, another is a value.
    """
    if isinstance(value, Mapping) and value:
        for key, child in value.items():
            yield from flatten(child, (*path, key))
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for index, child in enumerate(value):
            yield from flatten(child, (*path, index))
    else:
        yield path, value


def list_differences(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the keys that have not the same value in all records.

    1, 1.0 and true differ, and so does a missing key.
    """
    keys = dict.fromkeys(key for each in records for key in each)
    return [
        key
        for key in keys
        if len({repr(each[key]) if key in each else None for each in records}) > 1
    ]


def find_metric(metric: str, summary: Mapping[str, Any]) -> float | None:
    """Find a metric of a run's best checkpoint: in its epoch, else in a later stage.

    Returns:
        NaN where the metric was logged and is not finite; None where it was not logged.
    """
    best = summary.get("best") or {}
    has_value = best.get("monitor") == metric and best.get("value") is not None
    tables = [{metric: best["value"]}] if has_value else []
    for table in (*tables, *_list_tables(summary)):
        if metric in table:
            value = table[metric]
            is_finite = isinstance(value, (int, float)) and math.isfinite(value)
            return float(value) if is_finite else math.nan
    return None
