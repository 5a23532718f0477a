"""``lightkit fit --if-changed``: whether a training would only repeat the last one. No torch."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.console import print_line
from lightkit.cli.context import RunContext
from lightkit.cli.input_digests import compute_input_digests, describe_unseen_data
from lightkit.config import read_scalar, shown_path
from lightkit.errors import ConfigError
from lightkit.runs.index import promoted_aliases

__all__ = ["NOTHING_TO_DO", "check_options", "check_up_to_date", "warn_unchecked_rank"]

NOTHING_TO_DO = 6
_log = logging.getLogger("lightkit")


def check_options(session: RunContext) -> None:
    """Refuse ``--unchanged-ok`` where nobody asks whether anything has changed.

    Raises:
        ConfigError: Then.
    """
    if "unchanged-ok" in session.options and "if-changed" not in session.options:
        raise ConfigError("--unchanged-ok: says something only together with --if-changed; add that, or leave it out")


def check_up_to_date(session: RunContext) -> int | None:
    """Compare config, data and code with those of the last successful fit of the job, if the user wants that.

    The config counts as it was said: all but the `run` section, the patience of the watchdog and of the launch. Of the
    data the content of files counts, of the code the Python files of the working directory, and versions. Nothing is
    locked: what was equal when it was looked at is told; what is not meets the job's lock when it trains.

    Args:
        session: The invocation. Where it is to train, what was found is left with it, for the run's records.

    Returns:
        The exit code where nothing has changed; None where it is to train, which is told with the reason.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    if session.command != "fit" or session.passthrough or session.print_config is not None:
        return None
    check_options(session)
    if "if-changed" not in session.options:
        return None
    run, reason = _last_fit(session)
    if run is None:
        session.tell(f"trains: {reason}")
        return None
    promoted = [each for each in runs.list_runs(run.root, run.name) if each != run and promoted_aliases(each)]
    reasons = []
    for each in (run, *promoted):  # after an experiment that was rejected, the champion's inputs are no news
        now = compute_input_digests(session, salt=each.id, asked=True)
        if (found := _reason(session, each, runs.read_inputs(each.folder), now)) is None:
            _tell_unchanged(session, each, now)
            return 0 if session.options.get("unchanged-ok") else NOTHING_TO_DO
        session.began_with = session.began_with or now
        reasons.append(found)
    session.tell(f"trains: {reasons[0]}")
    return None


def warn_unchecked_rank(session: RunContext) -> None:
    """Say that a rank which another launcher has started trains whatever ``--if-changed`` asks: it cannot decide alone.

    Raises:
        ConfigError: If ``--unchanged-ok`` stands alone.
    """
    check_options(session)
    if "if-changed" in session.options and session.rank_context is not None and session.rank_context.rank.rank == 0:
        _log.warning(
            "--if-changed has no effect in a rank that %s has started; ask before that, or let lightkit start the "
            "ranks (launch.processes)",
            session.rank_context.rank.engine,
        )


def _last_fit(session: RunContext) -> tuple[runs.Run | None, str]:
    """Find the newest fit of the job, if it has ended well; else say why there is nothing to compare with."""
    section: dict[str, Any] = session.resolved.values.get("run") or {}
    trainer = session.resolved.values.get("trainer") or {}
    if _scalar(trainer.get("fast_dev_run")):
        return None, "a fast_dev_run always does"
    if (resume := _scalar(section.get("resume"))) not in (None, "auto", "never"):
        return None, f"run.resume names {resume}"
    root, name = str(section.get("root") or "runs"), str(section.get("name") or session.default_name)
    for run in runs.list_runs(root, name):
        manifest, summary = runs.read_json(run.manifest_path), runs.read_json(run.summary_path) or {}
        if manifest is None and not any(run.checkpoints.glob("*.ckpt")):
            continue  # killed before it had begun
        if manifest is not None and (manifest.get("subcommand") != "fit" or manifest.get("fast_dev_run")):
            continue
        if summary.get("status") != "done" or summary.get("exit_code") != 0:
            return None, f"{shown_path(run.folder)}, the last run of {name!r}, has not ended well"
        if stopped_by := summary.get("stopped_by"):
            return None, f"{shown_path(run.folder)}, the last run of {name!r}, was cut short by its {stopped_by}"
        if gone := _gone(run, summary):
            return None, f"{shown_path(run.folder)} has lost its {gone}"
        return run, ""
    return None, f"there is no earlier run of {name!r} in {root}"


def _gone(run: runs.Run, summary: dict[str, Any]) -> str | None:
    """Name a checkpoint that a run has written and that is not there any more."""
    paths: dict[str, str] = summary.get("paths") or {}
    promised = [paths[name] for name in ("best_checkpoint", "last_checkpoint") if paths.get(name)]
    return next((path for path in promised if not Path(run.folder, path).exists()), None)


def _reason(session: RunContext, run: runs.Run, before: runs.Inputs | None, now: runs.Inputs) -> str | None:
    """Say why a training would not only repeat that run; None where it would."""
    where = shown_path(run.folder)
    if before is None:
        return f"{where} has not recorded what it was made from; from this run on it is"
    if before.mixed:
        return f"{where} was interrupted and went on with other inputs, so that nothing equals what it was made from"
    if before.data is None:
        return f"{where} has not recorded its data, for there is much of it and nobody had asked; this run does"
    if changes := runs.changes_between(before, now):
        return f"changed since {where}: {runs.joined(changes)}"
    hidden = describe_unseen_data(session, now)
    return None if hidden is None else f"--if-changed {hidden}"


def _tell_unchanged(session: RunContext, run: runs.Run, now: runs.Inputs) -> None:
    where = shown_path(run.folder)
    if session.mode == "json":
        described = {"files": now.num_files, "size_bytes": now.size_bytes}
        line = runs.event_line("unchanged", run=f"{run.name}/{run.id}", folder=str(run.folder), data=described)
        sys.stdout.write(line)
        sys.stdout.flush()
    print_line(f"nothing has changed since {where} ({now.described})", session.mode)


def _scalar(value: Any) -> Any:
    return read_scalar(value) if isinstance(value, str) else value
