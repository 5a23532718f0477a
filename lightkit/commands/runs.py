"""`lightkit runs`: a table of the runs."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.cli.command_line import Takes, parse_command_line
from lightkit.cli.listing import table_of
from lightkit.config import near
from lightkit.errors import ConfigError
from lightkit.runs.listing import Listed, list_all, mode_of

__all__ = ["show_runs"]

_USAGE = "usage: lightkit runs [NAME] [--sort KEY] [--filter KEY=VALUE]... [--metric METRIC] [--root FOLDER] [--json]"
_HELP = f"""\
{_USAGE}

Print a table of the runs, the newest first: name, id, status, metric, size and age. A run is marked `locked` while a
process works on it, and `promoted` once `lightkit promote` has taken its model. A run whose process was killed has the
status `killed`.

  NAME             runs of this job only
  --sort KEY       age (default), name, status, metric (the best first) or size (the largest first)
  --mode MODE      min or max is best; default: as the best checkpoint was chosen, else by the metric's name
  --filter TEXT    KEY=VALUE, the runs that are so: status=done, name=flowers, locked=true, promoted=true
  --metric METRIC  what is shown, such as test/accuracy; default: what the best checkpoint was chosen by
  --root FOLDER    folder of all runs; default: runs
  --json           print one JSON array
  --quiet          print warnings and errors only

lightkit runs flowers --sort metric --filter status=done
"""
_OWN: dict[str, Takes] = {
    "--sort": "value",
    "--mode": "value",
    "--filter": "value",
    "--metric": "value",
    "--root": "value",
    "--json": "switch",
    "--quiet": "switch",
}
_FILTERS = ("name", "status", "locked", "promoted")
_SORT_KEYS = dict.fromkeys(("age", "name", "status", "metric", "size"))
_MODES = dict.fromkeys(("min", "max"))
_WORST = float("inf")


def show_runs(words: list[str]) -> int:
    """Print the runs, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, or there is no such job.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    filters, words = _filters_in(words)
    line = parse_command_line("runs", words, usage=_USAGE, own=_OWN)
    if len(line.positionals) > 1:
        raise ConfigError(f"runs: expected the name of one job, got {', '.join(map(repr, line.positionals))}\n{_USAGE}")
    root = Path(line.options.get("--root", "runs"))
    name = line.positionals[0] if line.positionals else None
    sort = _choice("--sort", line.options.get("--sort", "age"), _SORT_KEYS)
    mode = _choice("--mode", line.options["--mode"], _MODES) if "--mode" in line.options else None
    if not root.is_dir():
        raise ConfigError(f"runs: {root} is no folder; name that of all runs with --root")
    if name is not None and not (root / name).is_dir():
        jobs = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        raise ConfigError(f"runs: there is no job {name!r} in {root}{near(name, jobs)}")
    found = [each for each in list_all(root, name, metric=line.options.get("--metric")) if _passes(each, filters)]
    found = _best_first(found, mode) if sort == "metric" else sorted(found, key=_SORTS[sort])
    if "--json" in line.options:
        now = time.time()
        print(json.dumps([each.as_dict(now=now) for each in found], indent=2))
    elif "--quiet" not in line.options:
        print(table_of(found, now=time.time()) if found else f"no runs in {root}")
    return 0


def _filters_in(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Take out the filters, which may be said again and again."""
    filters: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        option, equals, said = word.partition("=")
        if option != "--filter":
            rest.append(word)
            continue
        said = said if equals else left.pop(0) if left else ""
        key, is_pair, value = said.partition("=")
        if not is_pair:
            raise ConfigError(f"runs: --filter: expected KEY=VALUE, such as status=done, got {said!r}\n{_USAGE}")
        filters[_choice("--filter", key, dict.fromkeys(_FILTERS))] = value
    return filters, rest


def _choice(option: str, said: str, choices: Mapping[str, Any]) -> str:
    if said not in choices:
        raise ConfigError(f"runs: {option}: expected {', '.join(choices)}, got {said!r}{near(said, choices)}\n{_USAGE}")
    return said


def _passes(each: Listed, filters: Mapping[str, str]) -> bool:
    has = {
        "name": each.run.name,
        "status": each.status,
        "locked": str(each.is_locked).lower(),
        "promoted": str(each.is_promoted).lower(),
    }
    return all(has[key] == value for key, value in filters.items())


def _best_first(found: Sequence[Listed], mode: str | None) -> list[Listed]:
    """Sort by the metric.

    Raises:
        ConfigError: If it is not known whether a small or a large value is good.
    """
    measured: dict[tuple[str, str], list[Listed]] = defaultdict(list)
    for each in found:
        if each.metric is not None and each.value is not None:
            measured[each.run.name, each.metric].append(each)
    signs: dict[tuple[str, str], float] = {}
    for (name, metric), listed in measured.items():
        if (known := mode or mode_of(metric, listed)) is None:
            raise ConfigError(
                f"runs: --sort metric: neither the runs of {name} nor its name tell whether a small or a large "
                f"{metric} is good. Say --mode min or --mode max.\n{_USAGE}"
            )
        signs[name, metric] = 1.0 if known == "min" else -1.0

    def rank(each: Listed) -> float:
        if each.value is None or each.metric is None:
            return _WORST
        return signs[each.run.name, each.metric] * each.value

    return sorted(found, key=rank)


_SORTS: dict[str, Callable[[Listed], Any]] = {
    "age": lambda each: -each.created,
    "name": lambda each: (each.run.name, -each.created),
    "status": lambda each: (each.status, -each.created),
    "size": lambda each: -each.size_bytes,
}
