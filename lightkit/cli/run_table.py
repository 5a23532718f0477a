"""Runs in columns, for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightkit.cli.command_line import CommandLine
from lightkit.cli.console import format_table
from lightkit.config import near
from lightkit.errors import visible
from lightkit.runs.fingerprints import shown_size
from lightkit.runs.index import IndexedRun, list_metrics

__all__ = ["check_metric", "format_run", "format_runs", "get_root_and_job"]

_COLUMNS = ("name", "id", "status", "metric", "size", "age", "")
_AGES = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def get_root_and_job(line: CommandLine) -> tuple[Path, str | None]:
    """Return the folder of all runs, and the job that the command line names, if any.

    Raises:
        ConfigError: If the folder or the job does not exist.
    """
    root, name = Path(line.options.get("--root", "runs")), next(iter(line.positionals), None)
    if not root.is_dir():
        raise line.error(f"{root} is no folder; name that of all runs with --root")
    jobs = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if name is not None and name not in jobs:
        raise line.error(f"there is no job {name!r} in {root}{near(name, jobs)}")
    return root, name


def check_metric(line: CommandLine, entries: Sequence[IndexedRun]) -> None:
    """Check that one of the runs has the metric that the command line names.

    Raises:
        ConfigError: If none has it; it names the near ones, or all that there are.
    """
    metric = line.options.get("--metric")
    if metric is None or any(each.value is not None for each in entries):
        return
    known = {name for each in entries for name in list_metrics(each.run)}
    if known:
        listing = near(metric, known) or f"; there are: {', '.join(sorted(known))}"
        raise line.error(f"--metric: no run has {metric!r}{listing}")


def format_runs(entries: Sequence[IndexedRun], *, now: float) -> str:
    """Write one line a run below the names of the columns.

    Args:
        entries: The runs.
        now: Seconds since 1970.
    """
    return format_table(_COLUMNS, [_cells(each, now) for each in entries], right=("size", "age"))


def format_run(entry: IndexedRun, *, now: float) -> str:
    """Write a run on one line."""
    name, run_id, *rest, _ = _cells(entry, now)
    return "  ".join(cell for cell in (f"{name}/{run_id}", *rest) if cell)


def _cells(entry: IndexedRun, now: float) -> list[str]:
    age_s = max(0.0, now - entry.created)
    unit, length = next(((unit, length) for unit, length in _AGES if age_s >= length), _AGES[-1])
    promoted = ["promoted"] if entry.is_promoted else []
    marks = [*(["locked"] if entry.is_locked else []), *(entry.aliases or promoted)]
    return [
        visible(entry.run.name, in_line=True),
        entry.run.id,
        entry.status,
        "" if entry.metric is None or entry.value is None else f"{entry.metric} {entry.value:.4g}",
        shown_size(entry.size_bytes),
        f"{int(age_s / length)} {unit}",
        ", ".join(marks),
    ]
