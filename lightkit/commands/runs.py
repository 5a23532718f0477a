"""`lightkit runs`: a table of the runs."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lightkit.cli.command_line import CommandLine, parse_options
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

HELP = """\
usage: lightkit runs [NAME] [--sort KEY] [--filter KEY=VALUE]... [--metric METRIC,...] [--columns KEY,...]
                     [--output csv|json] [--root FOLDER]

Print a table of the runs, the newest first: name, id, status, metric, size and age. A run is marked `locked` while a
process works on it, with the alias that points to its model, such as `champion`, and `promoted` where one did before. A
run whose process was killed has the status `killed`, and one with a record that is damaged `unreadable`.

  NAME             runs of this job only
  --metric METRIC...  metrics that are shown, such as val/accuracy,test/loss; default: what the best checkpoint was
                   chosen by
  --columns KEY...  keys of the config that are shown, too, such as optimizer.lr,model.backbone; `init_args` may be left
                   out; or of the run's records: manifest.git.commit, summary.durations.fit
  --sort KEY       age (default: the newest first), name, status, size (the largest first), metric; or a metric (the
                   best first: the largest of an accuracy, the smallest of a loss; what is not finite is worst) or a key
                   of the config (the smallest first), which is then shown, too; -KEY turns the order round; runs
                   without a value are last
  --mode MODE      min or max is best; default: as the config or the metric's object said, else by its name
  --filter KEY=VALUE...  only runs with it: status=done, name=flowers, locked=true, promoted=true
  --root FOLDER    folder of all runs; default: LIGHTKIT_RUN__ROOT, else runs
  --output FORMAT  csv: a header and a line a run; json: one array of objects
  --json           the same as --output json
  --quiet          print warnings and errors only

lightkit runs flowers --sort metric --filter status=done
lightkit runs --metric val/accuracy,val/loss --columns optimizer.lr,model.backbone --sort val/accuracy
"""
_VALUES = {
    "status": ("running", "done", "failed", "interrupted", "preempted", KILLED, UNREADABLE),
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


def show_runs(words: list[str]) -> int:
    """Print the runs, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, or there is no such job, metric or key.
    """
    line = parse_options(HELP, words, most=1)
    options, now = line.options, time.time()
    mode = line.get_choice("--mode", ("min", "max"))
    form = line.get_choice("--output", ("csv", "json"), "json" if "--json" in options else None)
    metrics, columns, filters = (
        [each for each in options.get(option, "").split(",") if each]
        for option in ("--metric", "--columns", "--filter")
    )
    root, name = get_root_and_job(line)
    entries = index_runs(root, name, metric=metrics[0] if metrics else None)
    sort = options.get("--sort", "age")
    key, known = sort.removeprefix("-"), list_known_metrics(entries)
    needs_configs = columns or key not in (*_SORT_KEYS, *known)
    configs = {each.key: read_config_values(each.run) if needs_configs else {} for each in entries}
    keys = {name for config in configs.values() for name in config}
    if key not in (*_SORT_KEYS, *known, *keys):
        expected = f"{', '.join(_SORT_KEYS)}, a metric or a key of the config"
        raise line.error(f"--sort: expected {expected}, got {key!r}{near(key, {*_SORT_KEYS, *known, *keys})}")
    check_names(line, "--metric", metrics, known)
    check_names(line, "--columns", columns, keys)
    if key not in _SORT_KEYS:
        (metrics if key in known else columns).append(key)
    values = {each: {entry.key: find_metric(each, entry.summary) for entry in entries} for each in metrics}
    values |= {each: {entry.key: configs[entry.key].get(each) for entry in entries} for each in columns}

    if key == "metric" or key in metrics:
        order = _rank_by_metric(line, entries, key, mode)
    else:
        order = _SORT_KEYS.get(key, lambda each: _rank_value(values[key][each.key]))
    entries = sorted(_filter_runs(line, entries, filters, now=now), key=_SORT_KEYS["age"])
    ranked = sorted((each for each in entries if order(each) is not None), key=order, reverse=sort != key)
    entries = [*ranked, *(each for each in entries if order(each) is None)]
    if form is None:
        if "--quiet" not in options:
            print(format_runs(entries, values, has_metrics=bool(metrics), now=now) if entries else f"no runs in {root}")
        return 0
    records = [each.fields(now=now) for each in entries]
    for record, entry in zip(records, entries, strict=True):
        for kind, names in (("metrics", metrics), ("columns", columns)):
            found = {each: values[each][entry.key] for each in names}
            record.update({kind: found} if form == "json" and names else found)
    if form == "json":
        print(json.dumps(finite(records), indent=2))
    elif records:
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(records[0])
        for record in records:
            cells = {**record, "aliases": " ".join(record["aliases"])}.values()
            table.writerow([json.dumps(each) if isinstance(each, (bool, list, dict)) else each for each in cells])
    return 0


def _filter_runs(
    line: CommandLine, entries: Sequence[IndexedRun], filters: Iterable[str], *, now: float
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
            raise line.error(f"--filter: {expected}, got {given!r}{near(key, known)}")
        if value not in known[key]:
            hint = near(value, known[key])
            raise line.error(f"--filter {key}: expected {' or '.join(sorted(known[key]))}, got {value!r}{hint}")
        entries = [each for each in entries if str(each.fields(now=now)[key]) in (value, value.capitalize())]
    return entries


def _rank_value(value: Any) -> tuple[bool, Any] | None:
    """Return a sorting key with which numbers come before texts."""
    is_number = isinstance(value, (int, float))
    return None if value is None else (not is_number, value if is_number else str(value))


def _rank_by_metric(
    line: CommandLine, entries: Sequence[IndexedRun], metric: str, mode: str | None
) -> Callable[[IndexedRun], Any]:
    """Return the sorting key with which the best is first; None for runs without the metric.

    Args:
        line: The command line.
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
            raise line.error(
                f"--sort {metric}: neither the runs of {each.run.name} nor its name tell whether a small or a "
                f"large {name} is good. Say --mode min or --mode max."
            )
        ranks[each.key] = rank_value(value, known)
    return lambda each: ranks.get(each.key)
