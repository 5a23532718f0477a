"""Which runs may be deleted, and their deletion: a kill at any moment leaves no half of a run under its name."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from lightkit.errors import ConfigError, RunLocked
from lightkit.runs.folder import list_runs, point_latest
from lightkit.runs.integrity import choose_good
from lightkit.runs.listing import Listed, mode_of, stamp_of
from lightkit.runs.lock import Lock, lock_holder
from lightkit.runs.run import Run

__all__ = ["Plan", "Rules", "finish_deletions", "plan_deletions", "set_aside"]

_log = logging.getLogger("lightkit")
_ASIDE = ".deleting-"
_FILES_OF_RUN = ("manifest.json", "config.yaml", "events.jsonl", "summary.json", "checkpoints")
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Rules:
    """Which runs are kept. At least one rule should be said.

    Args:
        keep_last: Number of the newest runs of each job.
        keep_best: Number of the best trainings of each job, by each metric that one was chosen by.
        max_size_bytes: Size of all runs together above which runs are deleted, the oldest first, and only so many.
        older_than_s: Age below which every run is kept; seconds.
        metric: What is compared; None: what the best checkpoint was chosen by.
        mode: Whether the smallest (``min``) or the largest (``max``) value is best; None: as runs or names say.
    """

    keep_last: int | None = None
    keep_best: int | None = None
    max_size_bytes: int | None = None
    older_than_s: float | None = None
    metric: str | None = None
    mode: str | None = None


@dataclass
class Plan:
    """What is deleted, oldest first, and what is kept, with the reason.

    Args:
        deleted: Runs to be deleted.
        kept: Reason by run, as ``NAME/ID``; of several, the first that holds.
        left_bytes: Size of all that are kept.
    """

    deleted: list[Listed] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    left_bytes: int = 0


def plan_deletions(
    listed: Sequence[Listed],
    rules: Rules,
    *,
    name: str | None = None,
    promoted: Collection[str] = (),
    now: float,
) -> Plan:
    """Decide which runs are deleted.

    Never one that a process works on or that was promoted, the newest good training of a job, an interrupted one that
    the next start would resume, nor one from whose checkpoint a kept run began.

    Args:
        listed: All runs of all jobs, the newest first: one of any job may have begun from one in question.
        rules: What else is kept.
        name: Job in question; all if None. The plan has its runs alone.
        promoted: Runs of which a registry needs something, or may, as ``NAME/ID``.
        now: Seconds since 1970.

    Raises:
        ConfigError: If it is not known what is best.
    """
    in_question = [each for each in listed if name in (None, each.run.name)]
    kept = {each.key: "of another job" for each in listed if each not in in_question}
    jobs: dict[str, list[Listed]] = defaultdict(list)
    for each in in_question:
        jobs[each.run.name].append(each)
    for of_job in jobs.values():
        for each, reason in [*_protected(of_job, promoted), *_wanted(of_job, rules, now)]:
            kept.setdefault(each.key, reason)
    _keep_needed(listed, kept)
    candidates = [each for each in sorted(in_question, key=lambda each: each.run.id) if each.key not in kept]
    told = {each.key: kept[each.key] for each in in_question if each.key in kept}
    return _within_size(in_question, candidates, told, rules.max_size_bytes)


def _protected(of_job: Sequence[Listed], promoted: Collection[str]) -> Iterable[tuple[Listed, str]]:
    for each in of_job:
        if each.is_locked or each.status == "running":
            yield each, "a process works on it"
        elif each.key in promoted:
            yield each, "promoted"
        elif not _looks_like_run(each.run):
            yield each, "no run of lightkit"
    trainings = [each for each in of_job if each.is_training]
    if trainings and trainings[0].status != "done":
        yield trainings[0], "the next start resumes it"
    if trainings and trainings[0].in_retrain:
        yield trainings[0], "its retrain is not finished"
    done = [each for each in trainings if each.status == "done"]
    rest = [each for each in trainings if each.status != "done"]  # better than none
    if (good := next(filter(_has_good, [*done, *rest]), None)) is not None:
        yield good, "the newest good one" if good.status == "done" else "the newest with a good checkpoint"


def _has_good(each: Listed) -> bool:
    return choose_good(each.run.checkpoints)[0] is not None


def _wanted(of_job: Sequence[Listed], rules: Rules, now: float) -> Iterable[tuple[Listed, str]]:
    yield from ((each, "one of the newest") for each in of_job[: rules.keep_last or 0])
    yield from ((each, "one of the best") for each in _best(of_job, rules))
    if rules.older_than_s is not None:
        yield from ((each, "not old enough") for each in of_job if now - each.created < rules.older_than_s)


def _best(of_job: Sequence[Listed], rules: Rules) -> list[Listed]:
    """List the best trainings that have a good checkpoint, by each metric that one of the job was chosen by."""
    if not rules.keep_best:
        return []
    by_metric: dict[str, list[Listed]] = defaultdict(list)
    for each in of_job:
        if each.is_training and each.metric is not None and each.value is not None:
            by_metric[each.metric].append(each)
    best: list[Listed] = []
    for number, (metric, judged) in enumerate(by_metric.items()):
        # What is said is said of the metric of today: that of the newest run, which is the first.
        known = mode_of(metric, judged)
        mode = (known or rules.mode) if number else (rules.mode or known)
        best += _best_by(judged, mode, rules.keep_best)
    return best


def _best_by(judged: Sequence[Listed], mode: str | None, count: int) -> list[Listed]:
    if len(judged) <= count:
        return list(filter(_has_good, judged))
    if mode is None:
        first = judged[0]
        raise ConfigError(
            f"gc: --keep-best: neither the runs of {first.run.name} nor its name tell whether a small or a large "
            f"{first.metric} is good. Say --mode min or --mode max."
        )
    sign = 1 if mode == "min" else -1
    good = filter(_has_good, sorted(judged, key=lambda each: sign * (each.value or 0.0)))
    return list(islice(good, count))


def _keep_needed(listed: Sequence[Listed], kept: dict[str, str]) -> None:
    """Keep the runs from which kept ones began, and those from which these began."""
    by_folder = {each.run.folder: each for each in listed}
    left = [each for each in listed if each.key in kept]
    while left:
        each = left.pop()
        for path in each.needs:
            folder = next((parent for parent in _folders_of(path) if parent in by_folder), None)
            if folder is not None and (needed := by_folder[folder]).key not in kept:
                kept[needed.key] = f"{each.key} began from it"
                left.append(needed)


def _folders_of(path: str) -> list[Path]:
    resolved = Path(path).resolve()
    return [resolved, *resolved.parents]


def _within_size(
    listed: Sequence[Listed], candidates: Sequence[Listed], kept: dict[str, str], most_bytes: int | None
) -> Plan:
    plan = Plan(kept=kept, left_bytes=sum(each.size_bytes for each in listed))
    for each in candidates:
        if most_bytes is not None and plan.left_bytes <= most_bytes:
            plan.kept[each.key] = "all fit into --max-size"
            continue
        plan.deleted.append(each)
        plan.left_bytes -= each.size_bytes
    return plan


def _looks_like_run(run: Run) -> bool:
    return any((run.folder / name).exists() for name in _FILES_OF_RUN) or not any(run.folder.iterdir())


def set_aside(root: Path, name: str, planned: Sequence[Listed]) -> list[Run]:
    """Take runs of one job out of sight, each by one rename, so that no start can find half of one.

    It holds the job's lock, so that none begins to resume one meanwhile; a process that holds it already has chosen
    its own run. One in whose folder anything was begun, ended or promoted since it was listed stays.

    Args:
        root: Folder that holds the runs of all jobs.
        name: The job.
        planned: Runs of it.

    Returns:
        Those that were taken away; none where another process is choosing its run.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    holder = lock_holder(root, name)
    if holder is not None and holder.get("folder") is not None:
        return _renamed(root, name, [each for each in planned if each.run.id != Path(holder["folder"]).name])
    try:
        with Lock(root, name, wait_s=_PATIENCE_S, tell=_log.debug):
            return _renamed(root, name, planned)
    except RunLocked:
        _log.warning("the runs of %s are left as they are: a process is beginning one", name)
        return []


def _renamed(root: Path, name: str, planned: Sequence[Listed]) -> list[Run]:
    gone = []
    for each in planned:
        run = each.run
        if run.folder.is_symlink() or run.folder.parent != (Path(root) / name).resolve():
            continue
        if stamp_of(run.folder) != each.stamp and run.folder.exists():
            _log.warning("%s is left as it is: a process has worked in it just now", each.key)
            continue
        try:
            run.folder.rename(run.folder.with_name(f"{_ASIDE}{run.id}-{secrets.token_hex(4)}"))
        except FileNotFoundError:  # another gc was faster
            continue
        except OSError as error:
            raise ConfigError(f"run.root: {run.folder} cannot be deleted: {error.strerror or error}.") from error
        gone.append(run)
    _mend_latest(root, name)
    return gone


def _mend_latest(root: Path, name: str) -> None:
    """Let ``latest`` point to the newest run that is left where its own is gone."""
    link = Path(root) / name / "latest"
    if not link.is_symlink() or link.exists():
        return
    newest = next(iter(list_runs(root, name)), None)
    if newest is None:
        link.unlink(missing_ok=True)
    else:
        point_latest(newest)


def finish_deletions(root: Path | str, names: Collection[str]) -> list[Path]:
    """Delete what was set aside, by this process or by one that was killed. Links are removed, never followed.

    Args:
        root: Folder that holds the runs of all jobs.
        names: The jobs.

    Returns:
        What cannot be deleted.
    """
    left = []
    for name in sorted(names):
        job = Path(root) / name
        if job.is_symlink() or not job.is_dir():
            continue
        for path in sorted(job.glob(f"{_ASIDE}*")):
            if path.is_symlink():
                continue
            _make_deletable(path)
            shutil.rmtree(path, ignore_errors=True)  # another gc may delete it at the same time
            if path.exists():
                left.append(path)
    return left


def _make_deletable(folder: Path) -> None:
    """Let what is in folders that were made read-only be removed."""
    for path, folders, _ in os.walk(folder):
        for child in folders:
            below = Path(path) / child
            if not below.is_symlink() and not os.access(below, os.W_OK | os.X_OK):
                below.chmod(0o700)
