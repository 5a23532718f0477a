"""``lightkit fit --if-changed``.

Compare config, data and code with those of the last successful fit. No torch.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from lightkit import runs
from lightkit.cli.console import print_line
from lightkit.cli.input_digests import compute_inputs, sees_data, select_identity_of
from lightkit.cli.stage_config import StageConfig
from lightkit.config import Resolved, shown_path
from lightkit.errors import ConfigError
from lightkit.registry.gate import RECORD
from lightkit.runs import Inputs, Run
from lightkit.runs.index import promoted_aliases

_NOTHING_TO_DO = 6


class Comparison(NamedTuple):
    """The inputs of a fit compared with those of earlier ones.

    Args:
        run: The run since which nothing has changed that could give another model; None where a
            training could.
        inputs: Inputs of this fit, as far as they were computed.
        reason: Why it trains.
    """

    run: Run | None
    inputs: Inputs | None
    reason: str


def check_up_to_date(stage_config: StageConfig) -> tuple[int | None, Inputs | None]:
    """Return the exit code if ``--if-changed`` is given and nothing has changed since the last fit.

    Else None.

    Three things are compared: the identity of the config as written; the content of the files that
    the data section names; and the Python files of the working directory and of the classes that
    the config names. No lock is taken: a fit that is needed waits for the job's lock itself.

    Returns:
        The exit code, and the inputs that were computed, for the run's records.

    Raises:
        ConfigError: If ``--unchanged-ok`` is given without ``--if-changed``.
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    options = stage_config.options
    if "unchanged-ok" in options and "if-changed" not in options:
        raise ConfigError(
            "--unchanged-ok: has no effect without --if-changed; add that, or leave it out"
        )
    if "if-changed" not in options or stage_config.only_prints:
        return None, None
    run, now, reason = compare_inputs(stage_config)
    if run is None or now is None:
        _log_reason(stage_config.resolved, now, reason)
        return None, now
    if stage_config.mode == "json":
        described = {"files": now.num_files, "size_bytes": now.size_bytes}
        runs.print_event(
            "unchanged", run=f"{run.name}/{run.id}", folder=str(run.folder), data=described
        )
    is_refused = runs.find_value(runs.read_json(run.folder / RECORD), "passed") is False
    refused = ", which the gate refused" if is_refused else ""
    print_line(
        f"nothing has changed since {shown_path(run.folder)}{refused} ({now.summary})",
        stage_config.mode,
    )
    return (0 if options.get("unchanged-ok") else _NOTHING_TO_DO), now


def _log_reason(resolved: Resolved, now: Inputs | None, reason: str) -> None:
    """Log why a fit trains; also with ``--quiet`` where it will tomorrow, too."""
    log = logging.getLogger("lightkit")
    if now is not None and _explain_unseen(resolved, now) == reason:
        log.warning(f"trains each time: {reason}")
    else:
        log.info(f"trains: {reason}")


def compare_inputs(stage_config: StageConfig) -> Comparison:
    """Compare the inputs of a fit with those of the job's last one, and of the promoted runs.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    run, reason = _find_last_fit(stage_config.run_root, stage_config.job_name)
    if run is None:
        return Comparison(None, None, reason)
    promoted = [
        each
        for each in runs.list_runs(run.root, run.name)
        if each != run and promoted_aliases(each)
    ]
    first: Inputs | None = None
    reasons = []
    # after an experiment that was rejected, the champion's inputs are no news
    for each in (run, *promoted):
        now = compute_inputs(stage_config, salt=each.id, asked=True)
        before = runs.read_inputs(each.folder)
        found = _find_change(stage_config.resolved, shown_path(each.folder), before, now)
        if found is None:
            return Comparison(each, now, "")
        first = first or now
        reasons.append(found)
    return Comparison(None, first, reasons[0])


def _find_last_fit(root: Path, name: str) -> tuple[Run | None, str]:
    """Return the newest fit of the job if it has ended well.

    Else None and why there is nothing to compare with.
    """
    for run in runs.list_runs(root, name):
        manifest = runs.read_json(run.manifest_path) or {}
        if manifest.get("subcommand", "fit") == "fit" and not manifest.get("fast_dev_run"):
            reason = _describe_bad_end(run, name)
            return (run, "") if reason is None else (None, reason)
    return None, f"there is no earlier run of {name!r} in {root}"


def _describe_bad_end(run: Run, name: str) -> str | None:
    """Describe why a fit is not one to compare with.

    None where it has ended well and all of it is there.
    """
    summary = runs.read_json(run.summary_path) or {}
    where = shown_path(run.folder)
    if summary.get("status") != "done" or summary.get("exit_code") != 0:
        return f"{where}, the last run of {name!r}, has not ended well"
    if stopped_by := summary.get("stopped_by"):
        return f"{where}, the last run of {name!r}, was cut short by its {stopped_by}"
    paths = summary.get("paths") or {}
    for key in ("best_checkpoint", "last_checkpoint"):
        if paths.get(key) and not Path(run.folder, paths[key]).exists():
            return f"{where} has lost its {paths[key]}"
    return None


def _find_change(resolved: Resolved, where: str, before: Inputs | None, now: Inputs) -> str | None:
    """Return why a training could give another model than that run's.

    None if it would repeat it.
    """
    if before is None or before.data is None:
        return (
            f"{where} has no record of"
            f" {'its inputs' if before is None else 'its data, which are large'}; now it has"
        )
    if changes := runs.list_changes(select_identity_of(before), now):
        return f"changed since {where}: {runs.join_changes(changes)}"
    return _explain_unseen(resolved, now)


def _explain_unseen(resolved: Resolved, now: Inputs) -> str | None:
    """Return which data of a config cannot be compared, so that it trains each time.

    None where all can be.
    """
    if now.unseen:
        return (
            f"--if-changed cannot see what is behind {', '.join(now.unseen)}; name local files or"
            " folders there"
        )
    if sees_data(resolved, now):
        return None
    name = resolved.class_named("data") or "the data module"
    return (
        f"--if-changed cannot see what {name} reads, as no argument of it, nor the default of one,"
        " names a file or a folder; name the file or folder as an argument of the data module"
    )
