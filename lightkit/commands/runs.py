"""`lightkit runs`: a table of the runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from lightkit.cli.command_line import Takes, parse_command_line
from lightkit.cli.run_table import format_runs, get_root_and_job
from lightkit.config import near
from lightkit.errors import ConfigError
from lightkit.runs.index import IndexedRun, index_runs, infer_mode

__all__ = ["show_runs"]

_USAGE = "usage: lightkit runs [NAME] [--sort KEY] [--filter KEY=VALUE]... [--metric METRIC] [--root FOLDER] [--json]"
_HELP = f"""\
{_USAGE}

Print a table of the runs, the newest first: name, id, status, metric, size and age. A run is marked `locked` while a
process works on it, with the alias that points to its model, such as `champion`, and `promoted` where one did before. A
run whose process was killed has the status `killed`.

  NAME             runs of this job only
  --sort KEY       age (default), name, status, metric (the best first) or size (the largest first)
  --mode MODE      min or max is best; default: as the best checkpoint was chosen, else by the metric's name
  --filter TEXT    KEY=VALUE, only runs with it: status=done, name=flowers, locked=true, promoted=true
  --metric METRIC  what is shown, such as test/accuracy; default: what the best checkpoint was chosen by
  --root FOLDER    folder of all runs; default: runs
  --json           print one JSON array
  --quiet          print warnings and errors only

lightkit runs flowers --sort metric --filter status=done
"""
_OPTIONS: dict[str, Takes] = {
    **dict.fromkeys(("--sort", "--mode", "--metric", "--root"), "value"),
    **dict.fromkeys(("--json", "--quiet"), "switch"),
}
_FILTERS = ("name", "status", "locked", "promoted")
_SORT_KEYS: dict[str, Callable[[IndexedRun], Any]] = {
    "age": lambda each: -each.created,
    "name": lambda each: each.run.name,
    "status": lambda each: each.status,
    "metric": lambda each: each.metric,  # see `_sort_by_metric`
    "size": lambda each: -each.size_bytes,
}


def show_runs(words: list[str]) -> int:
    """Print the runs, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, or there is no such job.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    filters, rest = _take_filters(words)
    line = parse_command_line("runs", rest, usage=_USAGE, own=_OPTIONS)
    options = line.options
    sort = _check_choice("--sort", options.get("--sort", "age"), _SORT_KEYS)
    mode = _check_choice("--mode", options["--mode"], ("min", "max")) if "--mode" in options else None
    root, name = get_root_and_job("runs", line, _USAGE)
    entries = [each for each in index_runs(root, name, metric=options.get("--metric")) if _matches(each, filters)]
    entries.sort(key=lambda each: -each.created)
    if sort == "metric":
        entries = _sort_by_metric(entries, mode)
    else:
        entries.sort(key=_SORT_KEYS[sort])
    now = time.time()
    if "--json" in options:
        print(json.dumps([each.fields(now=now) for each in entries], indent=2))
    elif "--quiet" not in options:
        print(format_runs(entries, now=now) if entries else f"no runs in {root}")
    return 0


def _take_filters(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Take out the filters, the only option that may be repeated."""
    filters: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        option, equals, given = word.partition("=")
        if option != "--filter":
            rest.append(word)
            continue
        given = given if equals else left.pop(0) if left else ""
        key, is_pair, value = given.partition("=")
        if not is_pair:
            raise ConfigError(f"runs: --filter: expected KEY=VALUE, such as status=done, got {given!r}\n{_USAGE}")
        filters[_check_choice("--filter", key, _FILTERS)] = value
    return filters, rest


def _check_choice(option: str, given: str, choices: Collection[str]) -> str:
    if given not in choices:
        hint = near(given, choices)
        raise ConfigError(f"runs: {option}: expected {', '.join(choices)}, got {given!r}{hint}\n{_USAGE}")
    return given


def _matches(entry: IndexedRun, filters: Mapping[str, str]) -> bool:
    values: dict[str, Any] = {**entry.fields(now=0.0)}
    return all(str(values[key]) == value or str(values[key]).lower() == value for key, value in filters.items())


def _sort_by_metric(entries: Iterable[IndexedRun], mode: str | None) -> list[IndexedRun]:
    """Sort with the best first; runs without the metric are last.

    Raises:
        ConfigError: If it is unknown whether a small or a large value is good.
    """
    entries = list(entries)
    signs: dict[tuple[str, str], int] = {}
    for each in entries:
        job = [other for other in entries if other.run.name == each.run.name]
        if each.metric is not None and each.value is not None and (each.run.name, each.metric) not in signs:
            if (known := mode or infer_mode(each.metric, job)) is None:
                raise ConfigError(
                    f"runs: --sort metric: neither the runs of {each.run.name} nor its name tell whether a small or a "
                    f"large {each.metric} is good. Say --mode min or --mode max.\n{_USAGE}"
                )
            signs[each.run.name, each.metric] = 1 if known == "min" else -1

    def rank(each: IndexedRun) -> float:
        if each.value is None or each.metric is None:
            return float("inf")
        return signs[each.run.name, each.metric] * each.value

    return sorted(entries, key=rank)
