"""Runs in columns, for people."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.cli.command_line import Invocation
from lightkit.config import near
from lightkit.config.run_root import find_run_root
from lightkit.errors import visible
from lightkit.reports.text_table import format_table
from lightkit.runs.files import in_bytes
from lightkit.runs.index import IndexedRun, list_metrics

_MAX_LISTED = 40
_MAX_WIDTH = 40
_AGES = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def get_root_and_job(invocation: Invocation) -> tuple[Path, str | None]:
    """Return the folder of all runs, and the job that the command line names, if any.

    Raises:
        ConfigError: If the folder or the job does not exist.
    """
    root = find_run_root(invocation.options.get("root"))
    name = invocation.inputs[0] if invocation.inputs else None
    if not root.exists():
        raise invocation.error(
            f"there are no runs in {root}: lightkit fit makes the first,"
            " or name their folder by --root"
        )
    if not root.is_dir():
        raise invocation.error(f"{root} is not a folder; name the folder of all runs with --root")
    jobs = sorted(
        path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if name is not None and name not in jobs:
        raise invocation.error(f"there is no job {name!r} in {root}{near(name, jobs)}")
    return root, name


def check_names(
    invocation: Invocation, option: str, names: Iterable[str], known: Collection[str]
) -> None:
    """Check that the runs have each metric or key that an option names.

    If ``known`` is empty, nothing is checked.

    Raises:
        ConfigError: If none has it; it names the near ones, or all where there are few.
    """
    for name in names:
        if known and name not in known:
            listing = (
                f"; there are: {', '.join(sorted(known))}" if len(known) <= _MAX_LISTED else ""
            )
            hints = (each for each in known if ".init_args." not in each)  # which may be left out
            raise invocation.error(f"{option}: no run has {name!r}{near(name, hints) or listing}")


def list_known_metrics(entries: Iterable[IndexedRun]) -> set[str]:
    """List the metrics of which at least one run has a value."""
    return {name for each in entries for name in list_metrics(each.summary)}


def format_runs(
    entries: Sequence[IndexedRun],
    extra: Mapping[str, Mapping[str, Any]],
    *,
    has_metrics: bool,
    now: float,
) -> str:
    """Write one line a run below the names of the columns.

    Args:
        entries: The runs.
        extra: Values of more columns, by column and `IndexedRun.key`.
        has_metrics: Whether the metrics are among these columns.
        now: Seconds since 1970.
    """
    head = ["name", "id", "status", *([] if has_metrics else ["metric"]), *extra, "size", "age", ""]
    rows = []
    for each in entries:
        name, run_id, status, metric, *rest = _cells(each, now)
        values = [_format_value(column.get(each.key)) for column in extra.values()]
        rows.append([name, run_id, status, *([] if has_metrics else [metric]), *values, *rest])
    return format_table(head, rows, right={"size", "age", *extra})


def _format_value(value: Any) -> str:
    text = (
        f"{value:.4g}"
        if isinstance(value, float)
        else value
        if isinstance(value, str)
        else json.dumps(value)
    )
    text = "" if value is None else visible(text, in_line=True)
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 3]}..."


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
        in_bytes(entry.size_bytes),
        f"{int(age_s / length)} {unit}",
        ", ".join(marks),
    ]
