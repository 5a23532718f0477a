"""`lightkit gc`: delete runs that no rule keeps, after asking the registry which it needs."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lightkit import runs
from lightkit.cli.command_line import Invocation
from lightkit.cli.console import configure_console
from lightkit.cli.run_table import check_names, format_run, get_root_and_job, list_known_metrics
from lightkit.config.secrets import mask
from lightkit.errors import ConfigError, format_count
from lightkit.loggers.mlflow_address import Address
from lightkit.registry.promotion import needed_runs
from lightkit.registry.store import address_of_root, open_registry, tracked_run
from lightkit.runs.deadline import parse_duration
from lightkit.runs.files import in_bytes
from lightkit.runs.index import PROMOTED, IndexedRun, index_runs
from lightkit.runs.retention import DeletionPlan, RetentionRules, delete_runs, plan_deletions
from lightkit.runs.trial import find_trial
from lightkit.sweep.record import FILE, SweepRecord, find_sweeps

_RULES = ("keep-last", "keep-best", "max-size", "older-than")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_T = TypeVar("_T")
_log = logging.getLogger("lightkit")


def collect(invocation: Invocation) -> int:
    """Delete runs, and return the exit code.

    Raises:
        ConfigError: If a word is wrong, a run cannot be deleted, or it is unknown which runs the
            registry needs.
        ServerAway: If MLflow does not answer.
    """
    rules = _parse_rules(invocation)
    root, name = get_root_and_job(invocation)
    is_json = invocation.has("json")
    is_quiet = invocation.has("quiet")
    configure_console("quiet" if is_quiet or is_json else "plain")
    now = time.time()
    plan = _plan(invocation, rules, root, name, now=now)
    for each in plan.unknown:
        _log.warning(
            "%s cannot be read, so that it is not known from which run %s began: all that are older"
            " are kept. Repair the file, or delete the folder.",
            each.run.manifest_path,
            each.key,
        )

    # What other processes have locked meanwhile stays, so that fewer may be deleted than planned.
    is_dry = invocation.has("dry-run")
    deleted = plan.deleted if is_dry else delete_runs(root, _list_jobs(root, name), plan.deleted)
    freed_bytes = sum(each.size_bytes for each in deleted)
    left_bytes = plan.left_bytes + sum(each.size_bytes for each in plan.deleted) - freed_bytes
    _warn_of_size(rules, left_bytes)
    num_left = len(plan.kept) + len(plan.deleted) - len(deleted)
    if is_json:
        report: dict[str, Any] = {
            "deleted": [each.fields(now=now) for each in deleted],
            "kept": plan.kept,
        }
        report |= {"freed_bytes": freed_bytes, "left_bytes": left_bytes, "dry_run": is_dry}
        print(json.dumps(report, indent=2))
    elif not is_quiet:
        _print_runs(deleted, is_dry=is_dry, now=now)
        print(_format_sum(len(deleted), freed_bytes, num_left, left_bytes, is_dry=is_dry))
    return 0


def _warn_of_size(rules: RetentionRules, left_bytes: int) -> None:
    if rules.max_size_bytes is not None and left_bytes > rules.max_size_bytes:
        _log.warning(
            "the runs that are left are larger than --max-size, and other rules keep all of them"
        )


def _list_jobs(root: Path, name: str | None) -> list[str]:
    if name:
        return [name]
    return [path.name for path in root.iterdir() if path.is_dir() and not path.is_symlink()]


def _print_runs(deleted: Sequence[IndexedRun], *, is_dry: bool, now: float) -> None:
    verb = "would delete" if is_dry else "deleted"
    for each in deleted:
        print(f"{verb}  {format_run(each, now=now)}")


def _plan(
    invocation: Invocation, rules: RetentionRules, root: Path, name: str | None, *, now: float
) -> DeletionPlan:
    """Plan what is deleted, after asking the registries, if anything is.

    Raises:
        ConfigError: If no run has the metric, or the address of a registry is unknown.
    """
    entries = index_runs(root, metric=rules.metric)
    if rules.metric is not None:
        check_names(invocation, "--metric", [rules.metric], list_known_metrics(entries))
    of_sweeps = _list_trials_in_need(root, entries)
    plan = plan_deletions(entries, rules, name=name, of_sweeps=of_sweeps, now=now)
    if not plan.deleted:
        return plan
    # Each run that the registry keeps may let another go, for --max-size.
    of_jobs = [each for each in entries if name in (None, each.run.name)]
    promoted = _ask_registries(root, invocation.options.get("tracking-uri"), of_jobs)
    return plan_deletions(
        entries, rules, name=name, promoted=promoted, of_sweeps=of_sweeps, now=now
    )


def _list_trials_in_need(root: Path, entries: Sequence[IndexedRun]) -> set[str]:
    """List the runs that unfinished sweeps need, as ``NAME/ID``.

    One whose record cannot be read may need each.
    """
    records: dict[str, SweepRecord | None] = {}
    needed = set()
    for each in entries:
        sweep, _, number = (find_trial(each.run) or "").rpartition("/")
        if not number.isdecimal():
            continue
        if sweep not in records:
            records[sweep] = _read_sweep(find_sweeps(root) / sweep / FILE)
        record = records[sweep]
        if record is None or record.needs_run(int(number)):
            needed.add(each.key)
    return needed


def _read_sweep(path: Path) -> SweepRecord | None:
    """Read the record of a sweep; None, with a warning, where it cannot be read."""
    try:
        return SweepRecord(path).read()
    except ConfigError as error:
        _log.warning("%s Until then its runs are kept.", error)
        return None


def _format_sum(
    num_deleted: int, freed_bytes: int, num_left: int, left_bytes: int, *, is_dry: bool
) -> str:
    if not num_deleted:
        return f"nothing to delete: {format_count(num_left, 'run')}, {in_bytes(left_bytes)}"
    freed = f"{format_count(num_deleted, 'run')}, {in_bytes(freed_bytes)}"
    verb = "would free" if is_dry else "freed"
    return f"{verb}  {freed}; {format_count(num_left, 'run')} left, {in_bytes(left_bytes)}"


def _parse_rules(invocation: Invocation) -> RetentionRules:
    options = invocation.options
    if not any(rule in options for rule in _RULES):
        raise invocation.error(
            f"give at least one rule: {', '.join(f'--{rule}' for rule in _RULES)}"
        )
    return RetentionRules(
        keep_last=options.get("keep-last"),
        keep_best=options.get("keep-best"),
        max_size_bytes=_parse(invocation, "max-size", "a size such as 50G or 500M", _read_size),
        older_than_s=_parse(invocation, "older-than", "a time such as 30d or 12h", parse_duration),
        metric=options.get("metric"),
        mode=options.get("mode"),
    )


def _parse(
    invocation: Invocation, option: str, expected: str, read: Callable[[str], _T | None]
) -> _T | None:
    """Read the value of an option; None where it is not given.

    Raises:
        ConfigError: If it cannot be read.
    """
    given = invocation.options.get(option)
    if given is None:
        return None
    value = read(given)
    if value is None:
        raise invocation.error(f"--{option}: expected {expected}, got {given!r}")
    return value


def _read_size(text: str) -> int | None:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * 1000**power)


def _list_addresses(
    root: Path, tracking_uri: str | None, entries: Sequence[IndexedRun]
) -> Iterable[Address]:
    """List each MLflow that may know one of the runs, once."""
    uris = set() if tracking_uri else {uri for each in entries for uri in _list_uris(each.run)}
    addresses = [address_of_root(tracking_uri or None, root)]
    addresses += [address_of_root(uri, root) for uri in uris if not uri.startswith("file:")]
    return {each.uri: each for each in addresses}.values()


def _ask_registries(
    root: Path, tracking_uri: str | None, entries: Sequence[IndexedRun]
) -> set[str]:
    """Ask every MLflow that may know one of the runs which it needs.

    A promoted run is kept if its one is not asked.

    Raises:
        ConfigError: If the address is unknown.
    """
    needed: set[str] = set()
    answered: set[str] = set()
    for address in _list_addresses(root, tracking_uri, entries):
        if address.database is not None and not address.database.is_file():
            continue  # nothing was ever registered there
        with open_registry(address, creates=False, writes=False) as registry:
            needed |= needed_runs(registry)
            answered.add(mask(registry.uri, hides_users=True))
    return needed | {
        each.key for each in entries if each.is_promoted and not _is_asked(each.run, answered)
    }


def _is_asked(run: runs.Run, answered: set[str]) -> bool:
    """Return whether all registries in which a run was promoted have answered."""
    registries = _list_registries(run)
    return bool(registries) and answered.issuperset(registries)


def _list_registries(run: runs.Run) -> list[str]:
    """List the registries in which a run was promoted, without passwords."""
    uris = runs.find_value(runs.read_json(run.folder / PROMOTED), "registries")
    return [str(uri) for uri in uris] if isinstance(uris, list) else []


def _list_uris(run: runs.Run) -> list[str]:
    """List where a run was tracked and promoted.

    Raises:
        ConfigError: If a password is missing, without which the server does not answer.
    """
    known = [*_list_registries(run), tracked_run(run).get("tracking_uri", "")]
    uris = {uri for uri in known if uri and "***" not in uri}
    noted = str(runs.find_value(runs.read_json(run.folder / "mlflow.json"), "tracking_uri") or "")
    if "***@" in noted and not (uris or os.environ.get("MLFLOW_TRACKING_URI")):
        raise ConfigError(
            f"gc: {run.folder} was tracked by {noted}, whose password no run keeps, so that it is"
            " not known which runs are promoted. Say --tracking-uri or set MLFLOW_TRACKING_URI."
        )
    return sorted(uris)
