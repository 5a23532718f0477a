"""`lightkit gc`: delete runs that no rule keeps, after asking the registry which it needs."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.command_line import CommandLine, parse_options
from lightkit.cli.console import configure_console
from lightkit.cli.run_table import check_names, format_run, get_root_and_job, list_known_metrics
from lightkit.config.secrets import mask
from lightkit.errors import ConfigError
from lightkit.loggers.mlflow_address import Address
from lightkit.registry.promotion import needed_runs
from lightkit.registry.store import address_of_root, open_registry, tracked_run
from lightkit.runs.deadline import parse_duration
from lightkit.runs.files import in_bytes
from lightkit.runs.index import PROMOTED, IndexedRun, index_runs
from lightkit.runs.retention import RetentionRules, delete_runs, plan_deletions

HELP = """\
usage: lightkit gc [NAME] [--keep-last N] [--keep-best N] [--max-size SIZE] [--older-than TIME] [--dry-run]

Delete the runs that no rule keeps, and print what they were. Never deleted are: a run that a process works on; one
with a record that cannot be read; one whose model an alias in MLflow's registry points to, or which a rollback would
bring back; one that was promoted in a registry that is not asked; the newest good training of each job; one that the
next start would resume; one from whose checkpoint a kept run began; and a folder without manifest.json.

  NAME                runs of this job only
  --keep-last N       keep the newest N of each job
  --keep-best N       keep the best N trainings of each job that have a good checkpoint, by each metric that was used
  --max-size SIZE     delete only until all runs fit into SIZE, the oldest first; 50G, 500M (powers of 1000)
  --older-than TIME   keep what is younger; 30d, 12h
  --metric METRIC     what is best, such as test/accuracy; default: what the best checkpoint was chosen by
  --mode MODE         min or max of --metric is best; default: as the config or the metric's object said, else its name
  --dry-run           delete nothing, and print what would be deleted
  --tracking-uri URI  where MLflow is; default: where the runs were tracked, MLFLOW_TRACKING_URI, mlflow.db in the root
  --root FOLDER       folder of all runs; default: LIGHTKIT_RUN__ROOT, else runs
  --json              print one JSON object, with the reason why each other run is kept
  --quiet             print warnings and errors only

At least one of the first four rules must be given. A registry that cannot be read ends it before anything is deleted.
Exit code 0: done, or nothing to do; 2: wrong arguments; 75: MLflow does not answer, try again later.

lightkit gc --keep-last 5 --keep-best 2 --max-size 50G --dry-run
"""
_RULES = ("--keep-last", "--keep-best", "--max-size", "--older-than")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_log = logging.getLogger("lightkit")


def collect(args: list[str]) -> int:
    """Delete runs, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, a run cannot be deleted, or it is unknown which runs the registry needs.
        ServerAway: If MLflow does not answer.
    """
    line = parse_options(HELP, args, most=1)
    options = line.options
    rules = _parse_rules(line)
    root, name = get_root_and_job(line)
    is_dry, is_json, is_quiet = (option in options for option in ("--dry-run", "--json", "--quiet"))
    configure_console("quiet" if is_quiet or is_json else "plain")
    now = time.time()
    entries = index_runs(root, metric=rules.metric)
    if rules.metric is not None:
        check_names(line, "--metric", [rules.metric], list_known_metrics(entries))
    plan = plan_deletions(entries, rules, name=name, now=now)
    if plan.deleted:  # each that the registry keeps may let another go, for --max-size
        of_jobs = [each for each in entries if name in (None, each.run.name)]
        promoted = _ask_registries(root, options.get("--tracking-uri"), of_jobs)
        plan = plan_deletions(entries, rules, name=name, promoted=promoted, now=now)
    jobs = [name] if name else [path.name for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    deleted = plan.deleted if is_dry else delete_runs(root, jobs, plan.deleted)
    freed_bytes = sum(each.size_bytes for each in deleted)
    left_bytes = plan.left_bytes + sum(each.size_bytes for each in plan.deleted) - freed_bytes
    if rules.max_size_bytes is not None and left_bytes > rules.max_size_bytes:
        _log.warning("the runs that are left are larger than --max-size, and other rules keep all of them")
    if is_json:
        report = {"deleted": [each.fields(now=now) for each in deleted], "kept": plan.kept}
        print(json.dumps({**report, "freed_bytes": freed_bytes, "left_bytes": left_bytes, "dry_run": is_dry}, indent=2))
    elif not is_quiet:
        for each in deleted:
            print(f"{'would delete' if is_dry else 'deleted'}  {format_run(each, now=now)}")
        left = _count_runs(len(plan.kept) + len(plan.deleted) - len(deleted))
        if deleted:
            freed = f"{_count_runs(len(deleted))}, {in_bytes(freed_bytes)}"
            print(f"{'would free' if is_dry else 'freed'}  {freed}; {left} left, {in_bytes(left_bytes)}")
        else:
            print(f"nothing to delete: {left}, {in_bytes(left_bytes)}")
    return 0


def _parse_rules(line: CommandLine) -> RetentionRules:
    if not any(rule in line.options for rule in _RULES):
        raise line.error(f"give at least one rule: {', '.join(_RULES)}")

    def parse(option: str, expected: str, read: Callable[[str], Any]) -> Any:
        given = line.options.get(option)
        if given is not None and (value := read(given)) is None:
            raise line.error(f"{option}: expected {expected}, got {given!r}")
        return None if given is None else value

    def read_count(text: str) -> int | None:
        return int(text) if text.isdecimal() else None

    def read_size(text: str) -> int | None:
        match = _SIZE.fullmatch(text.strip())
        return None if match is None else int(float(match[1]) * 1000 ** " kmgt".index(match[2].lower() or " "))

    return RetentionRules(
        keep_last=parse("--keep-last", "a whole number", read_count),
        keep_best=parse("--keep-best", "a whole number", read_count),
        max_size_bytes=parse("--max-size", "a size such as 50G or 500M", read_size),
        older_than_s=parse("--older-than", "a time such as 30d or 12h", parse_duration),
        metric=line.options.get("--metric"),
        mode=line.get_choice("--mode", ("min", "max")),
    )


def _count_runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _list_addresses(root: Path, tracking_uri: str | None, entries: Sequence[IndexedRun]) -> Iterable[Address]:
    """List each MLflow that may know one of the runs, once."""
    uris = set() if tracking_uri else {uri for each in entries for uri in _list_uris(each.run)}
    addresses = [address_of_root(tracking_uri or None, root)]
    addresses += [address_of_root(uri, root) for uri in uris if not uri.startswith("file:")]
    return {each.uri: each for each in addresses}.values()


def _ask_registries(root: Path, tracking_uri: str | None, entries: Sequence[IndexedRun]) -> set[str]:
    """Ask every MLflow that may know one of the runs which it needs; a promoted run is kept if its one is not asked.

    Raises:
        ConfigError: If the address is unknown.
    """
    needed: set[str] = set()
    answered: set[str] = set()
    for address in _list_addresses(root, tracking_uri, entries):
        if address.database is not None and not address.database.is_file():
            continue  # nothing was ever registered there
        with open_registry(address, creates=False) as registry:
            needed |= needed_runs(registry)
            answered.add(mask(registry.uri, hides_users=True))
    return needed | {each.key for each in entries if each.is_promoted and not _is_asked(each.run, answered)}


def _is_asked(run: runs.Run, answered: set[str]) -> bool:
    """Return whether all registries in which a run was promoted have answered."""
    registries = _list_registries(run)
    return bool(registries) and answered.issuperset(registries)


def _list_registries(run: runs.Run) -> list[str]:
    """List the registries in which a run was promoted, without passwords."""
    uris = (runs.read_json(run.folder / PROMOTED) or {}).get("registries")
    return [str(uri) for uri in uris] if isinstance(uris, list) else []


def _list_uris(run: runs.Run) -> list[str]:
    """List where a run was tracked and promoted.

    Raises:
        ConfigError: If a password is missing, without which the server does not answer.
    """
    known = [*_list_registries(run), tracked_run(run).get("tracking_uri", "")]
    uris = {uri for uri in known if uri and "***" not in uri}
    noted = str((runs.read_json(run.folder / "mlflow.json") or {}).get("tracking_uri") or "")
    if "***@" in noted and not (uris or os.environ.get("MLFLOW_TRACKING_URI")):
        raise ConfigError(
            f"gc: {run.folder} was tracked by {noted}, whose password no run keeps, so that it is not known which runs "
            f"are promoted. Say --tracking-uri or set MLFLOW_TRACKING_URI."
        )
    return sorted(uris)
