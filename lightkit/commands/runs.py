"""`lightkit runs`: a table of the runs."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lightkit.cli.command_line import Invocation
from lightkit.cli.run_table import check_names, format_runs, get_root_and_job, list_known_metrics
from lightkit.config import near
from lightkit.runs.files import finite
from lightkit.runs.index import (
    KILLED,
    UNREADABLE,
    IndexedRun,
    find_metric,
    index_runs,
    infer_mode_of_runs,
    read_config_values,
)
from lightkit.runs.metric_mode import rank_value
from lightkit.runs.trial import PRUNED, find_trial

_VALUES = {
    "status": ("running", "done", "failed", "interrupted", "preempted", PRUNED, KILLED, UNREADABLE),
    "locked": ("true", "false"),
    "promoted": ("true", "false"),
}
"""Values of filters; those of ``name`` are the jobs."""
_SORT_KEYS: dict[str, Callable[[IndexedRun], Any]] = {
    "age": lambda each: -each.created,
    "name": lambda each: each.run.name,
    "status": lambda each: each.status,
    "metric": lambda each: each.value,  # see `_rank_by_metric`
    "size": lambda each: -each.size_bytes,
}


def show_runs(invocation: Invocation) -> int:
    """Print the runs, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, or there is no such job, metric or key.
    """
    now = time.time()
    options = invocation.options
    metrics = list(options.get("metric", ()))
    root, name = get_root_and_job(invocation)
    entries = index_runs(root, name, metric=metrics[0] if metrics else None)
    sort = invocation.get("sort")
    key = sort.removeprefix("-")

    values = _collect_values(invocation, entries, key)
    order = _choose_order(invocation, entries, key, values)
    chosen = _filter_runs(invocation, entries, options.get("filter", ()), now=now)
    if "sweep" in options:
        chosen = _select_trials(invocation, chosen, options["sweep"])
    shown = _sort_runs(chosen, order, is_reversed=sort != key)

    if options.get("json"):
        records = [_describe_json(entry, values, now=now) for entry in shown]
        print(json.dumps(finite(records), indent=2))
    elif invocation.has("csv"):
        _print_csv(shown, values, now=now)
    elif not invocation.has("quiet"):
        has_metrics = bool(values.metrics)
        columns = {**values.metrics, **values.columns}
        print(
            format_runs(shown, columns, has_metrics=has_metrics, now=now)
            if shown
            else f"no runs in {root}"
        )
    return 0


class _Values(NamedTuple):
    """Values of the runs by `IndexedRun.key`.

    Of the metrics and of the keys of the config that are shown.
    """

    metrics: dict[str, dict[str, Any]]
    columns: dict[str, dict[str, Any]]


def _collect_values(invocation: Invocation, entries: Sequence[IndexedRun], key: str) -> _Values:
    """Collect the values that are shown, and those by which the runs are sorted.

    Raises:
        ConfigError: If no run has one of them.
    """
    metrics = list(invocation.options.get("metric", ()))
    columns = list(invocation.options.get("columns", ()))
    known = list_known_metrics(entries)
    configs = _read_configs(entries) if columns or key not in {*_SORT_KEYS, *known} else {}
    keys = {name for config in configs.values() for name in config}

    _check_sort_key(invocation, key, {*_SORT_KEYS, *known, *keys})
    check_names(invocation, "--metric", metrics, known)
    check_names(invocation, "--columns", columns, keys)
    if key not in _SORT_KEYS:
        shown = metrics if key in known else columns
        shown.append(key)
    return _Values(
        {name: _read_metric(name, entries) for name in metrics},
        {name: {each: config.get(name) for each, config in configs.items()} for name in columns},
    )


def _read_metric(name: str, entries: Sequence[IndexedRun]) -> dict[str, Any]:
    return {entry.key: find_metric(name, entry.summary) for entry in entries}


def _check_sort_key(invocation: Invocation, key: str, known: Collection[str]) -> None:
    if key not in known:
        expected = f"{', '.join(_SORT_KEYS)}, a metric or a key of the config"
        raise invocation.error(f"--sort: expected {expected}, got {key!r}{near(key, known)}")


def _read_configs(entries: Sequence[IndexedRun]) -> dict[str, Mapping[str, Any]]:
    """Read the config and the records of each run, by `IndexedRun.key`."""
    return {entry.key: read_config_values(entry.run) for entry in entries}


def _choose_order(
    invocation: Invocation, entries: Sequence[IndexedRun], key: str, values: _Values
) -> Callable[[IndexedRun], Any]:
    """Return the sorting key; None for runs without a value."""
    if key == "metric" or key in values.metrics:
        return _rank_by_metric(invocation, entries, key, invocation.options.get("mode"))
    if key in _SORT_KEYS:
        return _SORT_KEYS[key]
    return lambda entry: _rank_value(values.columns[key][entry.key])


def _sort_runs(
    entries: Iterable[IndexedRun], order: Callable[[IndexedRun], Any], *, is_reversed: bool
) -> list[IndexedRun]:
    """Sort runs, those of one rank by age; those without a rank come last."""
    by_age = sorted(entries, key=_SORT_KEYS["age"])
    ranked = [each for each in by_age if order(each) is not None]
    rest = [each for each in by_age if order(each) is None]
    return [*sorted(ranked, key=order, reverse=is_reversed), *rest]


def _describe_json(entry: IndexedRun, values: _Values, *, now: float) -> dict[str, Any]:
    record = entry.fields(now=now)
    for kind, found in values._asdict().items():
        if found:
            record[kind] = {name: of_runs[entry.key] for name, of_runs in found.items()}
    return record


def _print_csv(entries: Sequence[IndexedRun], values: _Values, *, now: float) -> None:
    """Print a header and a line a run; nothing without runs."""
    if not entries:
        return
    columns = {**values.metrics, **values.columns}
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow([*entries[0].fields(now=now), *columns])
    for entry in entries:
        fields = entry.fields(now=now)
        fields["aliases"] = " ".join(fields["aliases"])
        cells = [*fields.values(), *(of_runs[entry.key] for of_runs in columns.values())]
        table.writerow(
            [json.dumps(each) if isinstance(each, (bool, list, dict)) else each for each in cells]
        )


def _filter_runs(
    invocation: Invocation, entries: Sequence[IndexedRun], filters: Iterable[str], *, now: float
) -> Sequence[IndexedRun]:
    """Return the runs that have each ``KEY=VALUE``.

    Raises:
        ConfigError: If there is no such key or value.
    """
    known = {"name": {each.run.name for each in entries}, **_VALUES}
    for given in filters:
        key, is_pair, value = given.partition("=")
        if not is_pair or key not in known:
            expected = f"expected KEY=VALUE, such as status=done, KEY being {', '.join(known)}"
            raise invocation.error(f"--filter: {expected}, got {given!r}{near(key, known)}")
        if value not in known[key]:
            hint = near(value, known[key])
            raise invocation.error(
                f"--filter {key}: expected {' or '.join(sorted(known[key]))}, got {value!r}{hint}"
            )
        entries = [
            each
            for each in entries
            if str(each.fields(now=now)[key]) in (value, value.capitalize())
        ]
    return entries


def _select_trials(
    invocation: Invocation, entries: Sequence[IndexedRun], sweep: str
) -> list[IndexedRun]:
    """Return the runs that are trials of a sweep.

    Raises:
        ConfigError: If there are none.
    """
    trials = [(each, find_trial(each.run) or "") for each in entries]
    found = [each for each, trial in trials if trial.rpartition("/")[0] == sweep]
    if not found:
        names = sorted({trial.rpartition("/")[0] for _, trial in trials if trial})
        there = f"; there are: {', '.join(names)}" if names else ""
        raise invocation.error(
            f"--sweep: no run is a trial of {sweep!r}{near(sweep, names) or there}"
        )
    return found


def _rank_value(value: Any) -> tuple[bool, Any] | None:
    """Return a sorting key with which numbers come before texts."""
    is_number = isinstance(value, (int, float))
    return None if value is None else (not is_number, value if is_number else str(value))


def _rank_by_metric(
    invocation: Invocation, entries: Sequence[IndexedRun], metric: str, mode: str | None
) -> Callable[[IndexedRun], Any]:
    """Return the sorting key with which the best is first; None for runs without the metric.

    Args:
        invocation: The command line.
        entries: The runs.
        metric: The metric; ``metric`` for that of each run.
        mode: Whether the smallest or the largest is best; None: as each job's runs or the name say.

    Raises:
        ConfigError: If it is unknown whether a small or a large value is good.
    """
    ranks: dict[str, tuple[int, float]] = {}
    for each in entries:
        name = each.metric if metric == "metric" else metric
        value = None if name is None else find_metric(name, each.summary)
        if name is None or value is None:
            continue
        of_job = [other for other in entries if other.run.name == each.run.name]
        known = infer_mode_of_runs(name, of_job, explicit=mode)
        if known is None:
            raise invocation.error(
                f"--sort {metric}: neither the runs of {each.run.name} nor its name tell whether a"
                f" small or a large {name} is good. Say --mode min or --mode max."
            )
        ranks[each.key] = rank_value(value, known)
    return lambda each: ranks.get(each.key)
