"""Which runs may be deleted, and their deletion: a kill at any moment leaves no half of a run under its name."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from lightkit.errors import ConfigError, RunLocked
from lightkit.runs.checkpoints import choose_good
from lightkit.runs.folder import Run, list_runs, point_latest
from lightkit.runs.index import IndexedRun, infer_mode, stamp_activity
from lightkit.runs.lock import Lock, lock_holder

_log = logging.getLogger("lightkit")
_HIDDEN = ".deleting-"
_RUN_FILES = ("manifest.json", "config.yaml", "events.jsonl", "summary.json", "checkpoints")
_LOCK_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RetentionRules:
    """Rules that keep runs. At least one should be set.

    Args:
        keep_last: Number of the newest runs of each job.
        keep_best: Number of the best trainings of each job, by each metric that chose a checkpoint.
        max_size_bytes: Size of all runs together above which runs are deleted, the oldest first, and only so many.
        older_than_s: Age below which every run is kept; seconds.
        metric: Metric that is compared; if None, the one that chose the best checkpoint.
        mode: Whether the smallest (``min``) or the largest (``max``) value is best; None: as runs or names say.
    """

    keep_last: int | None = None
    keep_best: int | None = None
    max_size_bytes: int | None = None
    older_than_s: float | None = None
    metric: str | None = None
    mode: str | None = None


@dataclass
class DeletionPlan:
    """Runs to delete, oldest first, and those to keep.

    Args:
        deleted: Runs to be deleted.
        kept: Reason by run, as ``NAME/ID``; of several, the first that holds.
        left_bytes: Size of all that are kept.
    """

    deleted: list[IndexedRun] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    left_bytes: int = 0


def plan_deletions(
    entries: Sequence[IndexedRun],
    rules: RetentionRules,
    *,
    name: str | None = None,
    promoted: Collection[str] = (),
    now: float,
) -> DeletionPlan:
    """Decide which runs are deleted.

    Never one that a process works on or that was promoted, the newest good training of a job, an interrupted one that
    the next start would resume, nor one from whose checkpoint a kept run started.

    Args:
        entries: All runs of all jobs, the newest first: any may have started from a run of the job.
        rules: Rules that keep more.
        name: Job whose runs may be deleted; all if None. Only they are in the plan.
        promoted: Runs that a registry needs, or may need, as ``NAME/ID``.
        now: Seconds since 1970.

    Raises:
        ConfigError: If it is unknown which value of a metric is best.
    """
    jobs: dict[str, list[IndexedRun]] = defaultdict(list)
    kept = {}
    for each in entries:
        if name in (None, each.run.name):
            jobs[each.run.name].append(each)
        else:
            kept[each.key] = "of another job"
    for job in jobs.values():
        for each, reason in [*_list_protected(job, promoted), *_apply_rules(job, rules, now)]:
            kept.setdefault(each.key, reason)
    by_folder = {each.run.folder: each for each in entries}
    to_follow = [each for each in entries if each.key in kept]
    while to_follow:
        each = to_follow.pop()
        for path in map(Path.resolve, map(Path, each.needs)):
            needed = next((by_folder[folder] for folder in (path, *path.parents) if folder in by_folder), None)
            if needed is not None and needed.key not in kept:
                kept[needed.key] = f"{each.key} began from it"
                to_follow.append(needed)
    of_jobs = [each for each in entries if each.run.name in jobs]
    plan = DeletionPlan(
        kept={each.key: kept[each.key] for each in of_jobs if each.key in kept},
        left_bytes=sum(each.size_bytes for each in of_jobs),
    )
    for each in sorted(of_jobs, key=lambda each: each.run.id):
        if each.key not in kept and rules.max_size_bytes is not None and plan.left_bytes <= rules.max_size_bytes:
            plan.kept[each.key] = "all fit into --max-size"
        elif each.key not in kept:
            plan.deleted.append(each)
            plan.left_bytes -= each.size_bytes
    return plan


def _list_protected(job: Sequence[IndexedRun], promoted: Collection[str]) -> Iterator[tuple[IndexedRun, str]]:
    for each in job:
        is_run = any((each.run.folder / file).exists() for file in _RUN_FILES) or not any(each.run.folder.iterdir())
        if each.is_locked or each.status == "running":
            yield each, "a process works on it"
        elif each.key in promoted:
            yield each, "promoted"
        elif not is_run:
            yield each, "no run of lightkit"
    trainings = [each for each in job if each.is_training]
    if trainings and trainings[0].status != "done":
        yield trainings[0], "the next start resumes it"
    if trainings and trainings[0].in_retrain:
        yield trainings[0], "its retrain is not finished"
    trainings.sort(key=lambda each: each.status != "done")  # an unfinished one is better than none
    if (good := next(filter(_has_good_checkpoint, trainings), None)) is not None:
        yield good, "the newest good one" if good.status == "done" else "the newest with a good checkpoint"


def _apply_rules(job: Sequence[IndexedRun], rules: RetentionRules, now: float) -> Iterator[tuple[IndexedRun, str]]:
    yield from ((each, "one of the newest") for each in job[: rules.keep_last or 0])
    by_metric: dict[str, list[IndexedRun]] = defaultdict(list)
    for each in job:
        if each.is_training and each.metric is not None and each.value is not None:
            by_metric[each.metric].append(each)
    for number, (metric, trainings) in enumerate(by_metric.items() if rules.keep_best else ()):
        known = infer_mode(metric, trainings)
        # --mode is about today's metric, that of the newest run, which comes first
        mode = (known or rules.mode) if number else (rules.mode or known)
        if mode is None and len(trainings) > (rules.keep_best or 0):
            raise ConfigError(
                f"gc: --keep-best: neither the runs of {job[0].run.name} nor its name tell whether a small or a large "
                f"{metric} is good. Say --mode min or --mode max."
            )
        sign = 1 if mode == "min" else -1
        trainings.sort(key=lambda each: sign * (each.value or 0.0))
        yield from (
            (each, "one of the best") for each in islice(filter(_has_good_checkpoint, trainings), rules.keep_best)
        )
    if rules.older_than_s is not None:
        yield from ((each, "not old enough") for each in job if now - each.created < rules.older_than_s)


def _has_good_checkpoint(each: IndexedRun) -> bool:
    return choose_good(each.run.checkpoints)[0] is not None


def hide_runs(root: Path, name: str, planned: Sequence[IndexedRun]) -> list[Run]:
    """Rename runs of one job, so that no start can find half of one.

    It holds the job's lock, so that none resumes one meanwhile; a process that holds it already has chosen its own
    run. One in whose folder a process has worked since it was indexed stays.

    Args:
        root: Folder that holds the runs of all jobs.
        name: The job.
        planned: Runs of it.

    Returns:
        Those that were renamed; none where another process is choosing its run.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    holder = lock_holder(root, name)
    if holder is not None and holder.get("folder") is not None:
        return _rename_runs(root, name, [each for each in planned if each.run.id != Path(holder["folder"]).name])
    try:
        with Lock(root, name, wait_s=_LOCK_TIMEOUT_S, tell=_log.debug):
            return _rename_runs(root, name, planned)
    except RunLocked:
        _log.warning("the runs of %s are left as they are: a process is beginning one", name)
        return []


def _rename_runs(root: Path, name: str, planned: Sequence[IndexedRun]) -> list[Run]:
    hidden = []
    for each in planned:
        run = each.run
        if run.folder.is_symlink() or run.folder.parent != (Path(root) / name).resolve():
            continue
        if stamp_activity(run.folder) != each.stamp and run.folder.exists():
            _log.warning("%s is left as it is: a process has worked in it just now", each.key)
            continue
        try:
            run.folder.rename(run.folder.with_name(f"{_HIDDEN}{run.id}-{secrets.token_hex(4)}"))
        except FileNotFoundError:  # another gc was faster
            continue
        except OSError as error:
            raise ConfigError(f"run.root: {run.folder} cannot be deleted: {error.strerror or error}.") from error
        hidden.append(run)
    latest = Path(root) / name / "latest"
    if latest.is_symlink() and not latest.exists():
        newest = next(iter(list_runs(root, name)), None)
        if newest is None:
            latest.unlink(missing_ok=True)
        else:
            point_latest(newest)
    return hidden


def delete_hidden_runs(root: Path | str, names: Collection[str]) -> list[Path]:
    """Delete renamed runs, also those of a process that was killed. Links are removed, never followed.

    Args:
        root: Folder that holds the runs of all jobs.
        names: The jobs.

    Returns:
        Folders that cannot be deleted.
    """
    left = []
    for name in sorted(names):
        job = Path(root) / name
        if job.is_symlink() or not job.is_dir():
            continue
        for path in sorted(job.glob(f"{_HIDDEN}*")):
            if path.is_symlink():
                continue
            for parent, folders, _ in os.walk(path):
                for folder in (Path(parent) / each for each in folders):
                    if not folder.is_symlink() and not os.access(folder, os.W_OK | os.X_OK):
                        folder.chmod(0o700)  # else its content cannot be removed
            shutil.rmtree(path, ignore_errors=True)  # another gc may delete it at the same time
            if path.exists():
                left.append(path)
    return left
