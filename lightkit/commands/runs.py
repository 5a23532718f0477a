"""`lightkit runs`: a table of the runs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from lightkit.cli.command_line import CommandLine, parse_options
from lightkit.cli.run_table import check_metric, format_runs, get_root_and_job
from lightkit.config import near
from lightkit.runs.index import KILLED, IndexedRun, index_runs, infer_mode

__all__ = ["show_runs"]

HELP = """\
usage: lightkit runs [NAME] [--sort KEY] [--filter KEY=VALUE]... [--metric METRIC] [--root FOLDER] [--json]

Print a table of the runs, the newest first: name, id, status, metric, size and age. A run is marked `locked` while a
process works on it, with the alias that points to its model, such as `champion`, and `promoted` where one did before. A
run whose process was killed has the status `killed`.

  NAME             runs of this job only
  --sort KEY       age (default), name, status, metric (the best first) or size (the largest first)
  --mode MODE      min or max is best; default: as the best checkpoint was chosen, else by the metric's name
  --filter KEY=VALUE...  only runs with it: status=done, name=flowers, locked=true, promoted=true
  --metric METRIC  what is shown, such as test/accuracy; default: what the best checkpoint was chosen by
  --root FOLDER    folder of all runs; default: runs
  --json           print one JSON array
  --quiet          print warnings and errors only

lightkit runs flowers --sort metric --filter status=done
"""
_VALUES = {
    "status": ("running", "done", "failed", "interrupted", "preempted", KILLED),
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
        ConfigError: If a word is wrong, or there is no such job or metric.
    """
    line = parse_options(HELP, words, most=1)
    options, now = line.options, time.time()
    sort, mode = line.get_choice("--sort", _SORT_KEYS, "age"), line.get_choice("--mode", ("min", "max"))
    root, name = get_root_and_job(line)
    indexed = index_runs(root, name, metric=options.get("--metric"))
    check_metric(line, indexed)
    known = {"name": {each.run.name for each in indexed}, **_VALUES}
    entries = sorted(indexed, key=lambda each: -each.created)
    for given in options["--filter"].split(",") if "--filter" in options else ():
        key, is_pair, value = given.partition("=")
        if not is_pair or key not in known:
            expected = f"expected KEY=VALUE, such as status=done, KEY being {', '.join(known)}"
            raise line.error(f"--filter: {expected}, got {given!r}{near(key, known)}")
        if value not in known[key]:
            hint = near(value, known[key])
            raise line.error(f"--filter {key}: expected {' or '.join(sorted(known[key]))}, got {value!r}{hint}")
        entries = [each for each in entries if str(each.fields(now=now)[key]) in (value, value.capitalize())]
    entries.sort(key=_rank_by_metric(line, entries, mode) if sort == "metric" else _SORT_KEYS[str(sort)])
    if "--json" in options:
        print(json.dumps([each.fields(now=now) for each in entries], indent=2))
    elif "--quiet" not in options:
        print(format_runs(entries, now=now) if entries else f"no runs in {root}")
    return 0


def _rank_by_metric(
    line: CommandLine, entries: Sequence[IndexedRun], mode: str | None
) -> Callable[[IndexedRun], float]:
    """Return the sorting key with which the best is first, and runs without the metric are last.

    Raises:
        ConfigError: If it is unknown whether a small or a large value is good.
    """
    signs: dict[tuple[str, str], int] = {}
    for each in entries:
        if each.metric is None or each.value is None:
            continue
        known = mode or infer_mode(each.metric, [other for other in entries if other.run.name == each.run.name])
        if known is None:
            raise line.error(
                f"--sort metric: neither the runs of {each.run.name} nor its name tell whether a small or a "
                f"large {each.metric} is good. Say --mode min or --mode max."
            )
        signs[each.run.name, each.metric] = 1 if known == "min" else -1
    return lambda each: math.inf if each.value is None else signs[each.run.name, str(each.metric)] * each.value
