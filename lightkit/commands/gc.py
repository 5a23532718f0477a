"""`lightkit gc`: delete runs that nobody needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from lightkit.cli.command_line import Takes, parse_command_line
from lightkit.cli.console import configure_console
from lightkit.config import near
from lightkit.errors import ConfigError
from lightkit.runs.deadlines import duration_s
from lightkit.runs.retention import Rules

__all__ = ["collect"]

_USAGE = "usage: lightkit gc [NAME] [--keep-last N] [--keep-best N] [--max-size SIZE] [--older-than TIME] [--dry-run]"
_HELP = f"""\
{_USAGE}

Delete the runs that no rule keeps, and print what they were. Never deleted are: a run that a process works on; one
whose model an alias in MLflow's registry points to, or which a rollback would bring back; one that was promoted in a
registry that is not asked; the newest good training of each job; one that the next start would resume; and one from
whose checkpoint a kept run began.

  NAME                runs of this job only
  --keep-last N       keep the newest N of each job
  --keep-best N       keep the best N trainings of each job that have a good checkpoint, by each metric that was used
  --max-size SIZE     delete only until all runs fit into SIZE, the oldest first; 50G, 500M (powers of 1000)
  --older-than TIME   keep what is younger; 30d, 12h
  --metric METRIC     what is best, such as test/accuracy; default: what the best checkpoint was chosen by
  --mode MODE         min or max; default: as the best checkpoint was chosen, else by the metric's name
  --dry-run           delete nothing, and print what would be deleted
  --tracking-uri URI  where MLflow is; default: where the runs were tracked, MLFLOW_TRACKING_URI, mlflow.db in the root
  --root FOLDER       folder of all runs; default: runs
  --json              print one JSON object, with the reason why each other run is kept
  --quiet             print warnings and errors only

At least one of the first four rules must be said. A registry that cannot be read ends it before anything is deleted.
Exit code 0: done, or nothing to do; 2: wrong arguments; 75: MLflow does not answer, try again later.

lightkit gc --keep-last 5 --keep-best 2 --max-size 50G --dry-run
"""
_RULES = ("--keep-last", "--keep-best", "--max-size", "--older-than")
_OWN: dict[str, Takes] = {
    **dict.fromkeys(_RULES, "value"),
    "--metric": "value",
    "--mode": "value",
    "--dry-run": "switch",
    "--tracking-uri": "value",
    "--root": "value",
    "--json": "switch",
    "--quiet": "switch",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def collect(words: list[str]) -> int:
    """Delete runs, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, or something cannot be deleted.
        ServerAway: If MLflow does not answer.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    line = parse_command_line("gc", words, usage=_USAGE, own=_OWN)
    if len(line.positionals) > 1:
        raise ConfigError(f"gc: expected the name of one job, got {', '.join(map(repr, line.positionals))}\n{_USAGE}")
    rules = _rules(line.options)
    root = Path(line.options.get("--root", "runs"))
    name = line.positionals[0] if line.positionals else None
    if not root.is_dir():
        raise ConfigError(f"gc: {root} is no folder; name that of all runs with --root")
    if name is not None and (not (root / name).is_dir() or "/" in name or name.startswith(".")):
        jobs = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        raise ConfigError(f"gc: there is no job {name!r} in {root}{near(name, jobs)}")
    is_dry, is_json = "--dry-run" in line.options, "--json" in line.options
    is_quiet = "--quiet" in line.options
    configure_console("quiet" if is_quiet or is_json else "plain")
    from lightkit.cli.collecting import Collection, collect_runs, told, warn_of_size  # here, for it knows MLflow

    done = collect_runs(Collection(root, name, rules, line.options.get("--tracking-uri"), is_dry=is_dry))
    warn_of_size(done, rules)
    if is_json:
        print(json.dumps({**done.as_dict(), "dry_run": is_dry}, indent=2))
    elif not is_quiet:
        print(told(done, is_dry=is_dry))
    return 0


def _rules(said: Mapping[str, str]) -> Rules:
    if not any(rule in said for rule in _RULES):
        raise ConfigError(f"gc: say what is kept: {', '.join(_RULES)}\n{_USAGE}")
    if (mode := said.get("--mode")) not in (None, "min", "max"):
        raise ConfigError(f"gc: --mode: expected min or max, got {mode!r}\n{_USAGE}")
    return Rules(
        keep_last=_count(said, "--keep-last"),
        keep_best=_count(said, "--keep-best"),
        max_size_bytes=_size(said, "--max-size"),
        older_than_s=_age(said, "--older-than"),
        metric=said.get("--metric"),
        mode=mode,
    )


def _count(said: Mapping[str, str], option: str) -> int | None:
    if option not in said:
        return None
    if not said[option].isdecimal():
        raise ConfigError(f"gc: {option}: expected a whole number, got {said[option]!r}\n{_USAGE}")
    return int(said[option])


def _size(said: Mapping[str, str], option: str) -> int | None:
    if option not in said:
        return None
    if (match := _SIZE.fullmatch(said[option].strip())) is None:
        raise ConfigError(f"gc: {option}: expected a size such as 50G or 500M, got {said[option]!r}\n{_USAGE}")
    return int(float(match[1]) * _FACTORS[match[2].lower()])


def _age(said: Mapping[str, str], option: str) -> float | None:
    if option not in said:
        return None
    if (seconds := duration_s(said[option])) is None:
        raise ConfigError(f"gc: {option}: expected a time such as 30d or 12h, got {said[option]!r}\n{_USAGE}")
    return seconds
