"""Deleting runs that nobody needs: asking the registry first, then one job after the other."""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.listing import line_of
from lightkit.config import read_scalar
from lightkit.config.tree import plain
from lightkit.config.yaml_reader import read_file
from lightkit.errors import ConfigError
from lightkit.loggers.mlflow_address import Address, mask_password
from lightkit.registry.promotion import needed_runs
from lightkit.registry.store import address_of_root, open_store, tracked_run
from lightkit.runs.fingerprints import shown_size
from lightkit.runs.listing import PROMOTED, Listed, list_all
from lightkit.runs.retention import Plan, Rules, finish_deletions, plan_deletions, set_aside

__all__ = ["Collected", "Collection", "collect_runs", "told", "warn_of_size"]


@dataclass(frozen=True)
class Collected:
    """What was deleted, or would be.

    Args:
        plan: What was planned.
        deleted: What is gone; all that was planned where nothing is done.
        now: When that was, in seconds since 1970.
    """

    plan: Plan
    deleted: Sequence[Listed]
    now: float

    @property
    def freed_bytes(self) -> int:
        """Size of what is gone."""
        return sum(each.size_bytes for each in self.deleted)

    @property
    def num_left(self) -> int:
        """Number of runs that are left."""
        return len(self.plan.kept) + len(self.plan.deleted) - len(self.deleted)

    @property
    def left_bytes(self) -> int:
        """Size of what is left."""
        return self.plan.left_bytes + sum(each.size_bytes for each in self.plan.deleted) - self.freed_bytes

    def as_dict(self) -> dict[str, Any]:
        """Give it for programs."""
        return {
            "deleted": [each.as_dict(now=self.now) for each in self.deleted],
            "kept": self.plan.kept,
            "freed_bytes": self.freed_bytes,
            "left_bytes": self.left_bytes,
        }


@dataclass(frozen=True)
class Collection:
    """Where runs are deleted, and how.

    Args:
        root: Folder of all runs.
        name: Job; all if None.
        rules: What is kept.
        tracking_uri: Where MLflow is, if said.
        is_dry: Whether nothing is deleted.
    """

    root: Path
    name: str | None
    rules: Rules
    tracking_uri: str | None = None
    is_dry: bool = False


def collect_runs(asked: Collection) -> Collected:
    """Delete the runs that no rule keeps.

    Raises:
        ConfigError: If a run cannot be deleted, or it is not known what the registry needs.
        ServerAway: If the registry does not answer.
    """
    now = time.time()
    listed = list_all(asked.root, metric=asked.rules.metric)
    plan = plan_deletions(listed, asked.rules, name=asked.name, now=now)
    seen: set[str] = set()
    promoted: set[str] = set()
    # The registry takes seconds. Where it keeps one, another may have to go for --max-size, whose registry is asked.
    while unseen := [each for each in plan.deleted if each.key not in seen]:
        seen |= {each.key for each in unseen}
        promoted |= _needed(asked, unseen)
        if promoted & {each.key for each in plan.deleted}:
            plan = plan_deletions(listed, asked.rules, name=asked.name, promoted=promoted, now=now)
    if asked.is_dry:
        return Collected(plan, plan.deleted, now)
    gone = set(_set_aside(asked.root, plan.deleted))
    _finish(asked)
    return Collected(plan, [each for each in plan.deleted if each.key in gone], now)


def _set_aside(root: Path, deleted: Iterable[Listed]) -> Iterable[str]:
    jobs: dict[str, list[Listed]] = defaultdict(list)
    for each in deleted:
        jobs[each.run.name].append(each)
    for name, of_job in jobs.items():
        yield from (f"{run.name}/{run.id}" for run in set_aside(root, name, of_job))


def _finish(asked: Collection) -> None:
    jobs = [asked.name] if asked.name else [path.name for path in asked.root.iterdir() if path.is_dir()]
    for path in finish_deletions(asked.root, jobs):
        logging.getLogger("lightkit").warning("%s cannot be deleted as a whole; lightkit gc tries again", path)


def _needed(asked: Collection, deleted: Sequence[Listed]) -> set[str]:
    """Ask every MLflow that may know one of the runs what it needs; a promoted run is needed by one not asked.

    Raises:
        ConfigError: If it is not known where that is.
    """
    needed: set[str] = set()
    answered: set[str] = set()
    for address in _addresses(asked, deleted):
        if address.database is not None and not address.database.is_file():
            continue  # nothing was ever registered there
        with open_store(address, creates=False) as store:
            needed |= needed_runs(store)
            answered.add(mask_password(store.registry_uri))
    for each in deleted:
        marked = _marked(each.run) if each.is_promoted else []
        if each.is_promoted and not (marked and answered.issuperset(marked)):
            needed.add(each.key)
    return needed


def _marked(run: runs.Run) -> list[str]:
    """List the registries in which a run was promoted, as its mark has them: without passwords."""
    said = (runs.read_json(run.folder / PROMOTED) or {}).get("registries")
    return [str(uri) for uri in said] if isinstance(said, list) else []


def _addresses(asked: Collection, deleted: Sequence[Listed]) -> list[Address]:
    if asked.tracking_uri:
        return [address_of_root(asked.tracking_uri, asked.root)]
    found = {(address := address_of_root(None, asked.root)).uri: address}
    for each in deleted:
        for uri in _uris_of(each.run):
            if uri not in found and not uri.startswith("file:"):
                found[uri] = address_of_root(uri, asked.root)
    return list(found.values())


def _uris_of(run: runs.Run) -> list[str]:
    """List where a run was tracked, and where its config says that it is to be.

    Raises:
        ConfigError: If a password is missing, without which nobody answers.
    """
    noted = str((runs.read_json(run.folder / "mlflow.json") or {}).get("tracking_uri") or "")
    marked = [uri for uri in _marked(run) if "***" not in uri]
    uris = {uri for uri in (tracked_run(run).get("tracking_uri"), _configured(run), *marked) if uri}
    if "***@" in noted and not (uris or os.environ.get("MLFLOW_TRACKING_URI")):
        raise ConfigError(
            f"gc: {run.folder} was tracked by {noted}, whose password no run keeps, so that it is not known which runs "
            f"are promoted. Say --tracking-uri or set MLFLOW_TRACKING_URI."
        )
    return sorted(uris)


def _configured(run: runs.Run) -> str | None:
    try:
        loggers = plain(read_file(run.config_path)).get("logger")
    except ConfigError:
        return None
    for entry in loggers.values() if isinstance(loggers, dict) else []:
        said = (entry.get("init_args") or {}).get("tracking_uri") if isinstance(entry, dict) else None
        if isinstance(said, str) and "${" not in said and "***" not in said:
            return str(read_scalar(said))
    return None


def warn_of_size(done: Collected, rules: Rules) -> None:
    """Say where what is kept does not fit into the size that was asked for."""
    if rules.max_size_bytes is not None and done.left_bytes > rules.max_size_bytes:
        says = "what is left is larger than --max-size, and all of it is kept by other rules"
        logging.getLogger("lightkit").warning(says)


def told(done: Collected, *, is_dry: bool) -> str:
    """Say for people what is gone and what is left."""
    lines = [f"{'would delete' if is_dry else 'deleted'}  {line_of(each, now=done.now)}" for each in done.deleted]
    count, left, left_bytes = len(done.deleted), done.num_left, done.left_bytes
    if not count:
        lines.append(f"nothing to delete: {_runs(left)}, {shown_size(left_bytes)}")
    else:
        gone = f"{_runs(count)}, {shown_size(done.freed_bytes)}"
        lines.append(f"{'would free' if is_dry else 'freed'}  {gone}; {_runs(left)} left, {shown_size(left_bytes)}")
    return "\n".join(lines)


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
