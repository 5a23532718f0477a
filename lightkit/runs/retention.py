"""Which runs may be deleted, and their deletion.

A kill at any moment leaves no half of a run under its name.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from lightkit.errors import ConfigError
from lightkit.runs.checkpoints import choose_good
from lightkit.runs.folder import list_runs, point_latest
from lightkit.runs.index import IndexedRun, has_unknown_needs, infer_mode_of_runs, list_needs
from lightkit.runs.metric_mode import rank_value
from lightkit.runs.trial import PRUNED

_log = logging.getLogger("lightkit")
_HIDDEN = ".deleting-"


@dataclass(frozen=True)
class RetentionRules:
    """Rules that keep runs. At least one should be set.

    Args:
        keep_last: Number of the newest runs of each job.
        keep_best: Number of the best trainings of each job, by each metric that chose a checkpoint.
        max_size_bytes: Size of all runs together above which runs are deleted, the oldest first,
            and only so many.
        older_than_s: Age below which every run is kept; seconds.
        metric: Metric that is compared; if None, the one that chose the best checkpoint.
        mode: Whether the smallest (``min``) or the largest (``max``) value of ``metric`` is best;
            without ``metric``, of those of which neither runs nor names tell. None: as runs and
            names tell.
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
        unknown: Runs of which it cannot be read from which they began, so that all older ones are
            kept.
    """

    deleted: list[IndexedRun] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    left_bytes: int = 0
    unknown: list[IndexedRun] = field(default_factory=list)


def plan_deletions(
    entries: Sequence[IndexedRun],
    rules: RetentionRules,
    *,
    name: str | None = None,
    promoted: Collection[str] = (),
    of_sweeps: Collection[str] = (),
    now: float,
) -> DeletionPlan:
    """Decide which runs are deleted.

    Never one that a process works on, that cannot be read, was promoted or has no manifest, the
    newest good training of a job, an interrupted one that the next start would resume, one that an
    unfinished sweep needs, one from whose checkpoint a kept run started or which its config names,
    nor one that is older than a run whose manifest cannot be read.

    Args:
        entries: All runs of all jobs, the newest first: any may have started from a run of the job.
        rules: Rules that keep more.
        name: Job whose runs may be deleted; all if None. Only they are in the plan.
        promoted: Runs that a registry needs, or may need, as ``NAME/ID``.
        of_sweeps: Runs that unfinished sweeps need, as ``NAME/ID``.
        now: Seconds since 1970.

    Raises:
        ConfigError: If it is unknown which value of a metric is best, or the mode of no named
            metric contradicts one.
    """
    jobs: dict[str, list[IndexedRun]] = defaultdict(list)
    kept = {}
    for each in entries:
        if name in (None, each.run.name):
            jobs[each.run.name].append(each)
        else:
            kept[each.key] = "of another job"
    for job in jobs.values():
        for each, reason in [
            *_list_protected(job, promoted, of_sweeps),
            *_apply_rules(job, rules, now),
        ]:
            kept.setdefault(each.key, reason)
    unknown = [each for each in entries if has_unknown_needs(each)]
    _keep_needed(entries, kept, unknown)
    of_jobs = [each for each in entries if each.run.name in jobs]
    plan = DeletionPlan(
        kept={each.key: kept[each.key] for each in of_jobs if each.key in kept},
        left_bytes=sum(each.size_bytes for each in of_jobs),
        unknown=unknown,
    )
    _delete_until_small(
        plan, [each for each in of_jobs if each.key not in kept], rules.max_size_bytes
    )
    return plan


def _delete_until_small(
    plan: DeletionPlan, candidates: Sequence[IndexedRun], max_size_bytes: int | None
) -> None:
    """Plan to delete runs, pruned ones and old ones first, until the others are small enough.

    All without a limit.
    """
    for each in sorted(candidates, key=lambda each: (each.status != PRUNED, each.run.id)):
        if max_size_bytes is not None and plan.left_bytes <= max_size_bytes:
            plan.kept[each.key] = "all fit into --max-size"
        else:
            plan.deleted.append(each)
            plan.left_bytes -= each.size_bytes


def _keep_needed(
    entries: Sequence[IndexedRun], kept: dict[str, str], unknown: Sequence[IndexedRun]
) -> None:
    """Keep what kept runs need, and what that needs in its turn.

    One of unknown needs may need each older run.

    Args:
        entries: All runs.
        kept: Reason by run; the needed ones are added.
        unknown: Runs of unknown needs, the newest first.
    """
    for each in entries:
        if unknown and each.run.id < unknown[0].run.id:
            kept.setdefault(
                each.key,
                f"{unknown[0].key}, whose manifest.json cannot be read, may have begun from it",
            )
    by_folder = {each.run.folder: each for each in entries}
    to_follow = [each for each in entries if each.key in kept]
    while to_follow:
        each = to_follow.pop()
        for path in map(Path.resolve, list_needs(each)):
            needed = next(
                (by_folder[folder] for folder in (path, *path.parents) if folder in by_folder), None
            )
            if needed is not None and needed.key not in kept:
                kept[needed.key] = f"{each.key} began from it"
                to_follow.append(needed)


def _explain_protection(
    run: IndexedRun, promoted: Collection[str], of_sweeps: Collection[str]
) -> str | None:
    """Return why no rule deletes a run, by its own state; None where one may."""
    if run.is_locked or run.status == "running":
        return "a process works on it"
    if run.damage is not None:
        return f"it cannot be read ({run.damage})"
    if run.key in promoted:
        return "promoted"
    if run.key in of_sweeps:
        return "its sweep is not finished"
    return None if run.run.manifest_path.exists() else "no run of lightkit"


def _list_protected(
    job: Sequence[IndexedRun], promoted: Collection[str], of_sweeps: Collection[str]
) -> Iterator[tuple[IndexedRun, str]]:
    for each in job:
        reason = _explain_protection(each, promoted, of_sweeps)
        if reason is not None:
            yield each, reason
    trainings = [each for each in job if each.is_training]
    if trainings and trainings[0].status not in ("done", PRUNED):
        yield trainings[0], "the next start resumes it"
    if trainings and trainings[0].in_retrain:
        yield trainings[0], "its retrain is not finished"
    trainings.sort(key=lambda each: each.status != "done")  # an unfinished one is better than none
    if (good := next(filter(_has_good_checkpoint, trainings), None)) is not None:
        yield (
            good,
            (
                "the newest good one"
                if good.status == "done"
                else "the newest with a good checkpoint"
            ),
        )


def _apply_rules(
    job: Sequence[IndexedRun], rules: RetentionRules, now: float
) -> Iterator[tuple[IndexedRun, str]]:
    # of what a sweep has stopped nothing is kept for its age
    whole = [each for each in job if each.status != PRUNED]
    yield from ((each, "one of the newest") for each in whole[: rules.keep_last or 0])
    yield from ((each, "one of the best") for each in _list_best(job, rules))
    if rules.older_than_s is not None:
        yield from (
            (each, "not old enough") for each in job if now - each.created < rules.older_than_s
        )


def _list_best(job: Sequence[IndexedRun], rules: RetentionRules) -> Iterator[IndexedRun]:
    """List the best trainings of a job with a good checkpoint.

    As many as the rules keep, by each metric.
    """
    by_metric: dict[str, list[IndexedRun]] = defaultdict(list)
    for each in job:
        if each.is_training and each.metric is not None and each.value is not None:
            by_metric[each.metric].append(each)
    for metric, trainings in by_metric.items() if rules.keep_best else ():
        best_first = _sort_trainings(metric, trainings, rules)
        yield from islice(filter(_has_good_checkpoint, best_first), rules.keep_best)


def _sort_trainings(
    metric: str, trainings: Sequence[IndexedRun], rules: RetentionRules
) -> list[IndexedRun]:
    """Sort the trainings of a job that have a metric.

    The best first and those whose value is not finite last.

    Raises:
        ConfigError: If it is unknown and more trainings than are kept have the metric, or
            contradicts that of a metric which is not named.
    """
    known = infer_mode_of_runs(metric, trainings)
    if rules.metric is None and None not in (rules.mode, known) and known != rules.mode:
        raise ConfigError(
            f"gc: --mode {rules.mode}: of {metric}, by which runs of {trainings[0].run.name} were"
            f" chosen, {'small' if known == 'min' else 'large'} values are good. Name the metric"
            " that is meant with --metric."
        )
    mode = rules.mode or known
    if mode is None and len(trainings) > (rules.keep_best or 0):
        raise ConfigError(
            f"gc: --keep-best: neither the runs of {trainings[0].run.name} nor its name tell"
            f" whether a small or a large {metric} is good. Set --mode min or --mode max."
        )
    # unknown where all are kept
    return sorted(trainings, key=lambda each: rank_value(each.value, mode or "min"))


def _has_good_checkpoint(each: IndexedRun) -> bool:
    return choose_good(each.run.checkpoints)[0] is not None


def delete_runs(
    root: Path, jobs: Collection[str], planned: Sequence[IndexedRun]
) -> list[IndexedRun]:
    """Delete runs. Each is renamed first, so that no start can find half of one.

    Links are removed, never followed.

    No lock is needed: a start goes on with the newest training of its job, or with trials of its
    sweep, which no plan deletes.

    Args:
        root: Folder that holds the runs of all jobs.
        jobs: Jobs in which what a killed `lightkit gc` has left is deleted, too.
        planned: The runs.

    Returns:
        Those that are gone.

    Raises:
        ConfigError: If a folder cannot be written.
    """
    gone = []
    for each in planned:
        folder = each.run.folder
        try:
            folder.rename(folder.with_name(f"{_HIDDEN}{folder.name}-{secrets.token_hex(4)}"))
        except FileNotFoundError:  # another gc was faster
            continue
        except OSError as error:
            raise ConfigError(
                f"run.root: {folder} cannot be deleted: {error.strerror or error}."
            ) from error
        gone.append(each)
    for name in jobs:
        _remove_hidden(root, name)
    return gone


def _remove_hidden(root: Path, name: str) -> None:
    """Remove the deleted runs of a job, and point its link to the newest that is left."""
    job = root / name
    for path in job.glob(f"{_HIDDEN}*"):
        shutil.rmtree(path, ignore_errors=True)  # another gc may delete it at the same time
        if path.exists():
            _log.warning("%s cannot be deleted as a whole; lightkit gc tries again", path)
    latest = job / "latest"
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)
        for newest in list_runs(root, name)[:1]:
            point_latest(newest)
