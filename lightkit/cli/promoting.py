"""From a run that has passed its gate to the champion: judged where need be, registered, kept, and then the alias."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit import runs
from lightkit.cli.console import configure_console, print_line, quiet_libraries
from lightkit.cli.full_validation import open_context
from lightkit.cli.registry_address import address_of_run
from lightkit.commands.promote import PromoteOptions
from lightkit.commands.register import RegisterOptions
from lightkit.config import shown_path
from lightkit.errors import ConfigError, GateFailed, LightkitError
from lightkit.loggers.mlflow_address import mask_password
from lightkit.registry.champion import KEPT, find_version, versions_of
from lightkit.registry.gate import RECORD
from lightkit.registry.gate_settings import GateSettings, read_gate
from lightkit.registry.names import check_name
from lightkit.registry.promotion import Move, PromotionLog
from lightkit.registry.store import Store, open_store
from lightkit.runs.junit import Case, write_junit
from lightkit.runs.listing import PROMOTED
from lightkit.runs.signals import SignalWatch
from lightkit.runs.step_summary import add_step_summary

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from lightkit.cli.context import RunContext

__all__ = ["promote_run"]

_SCORES = ("challenger", "baseline")
_LONGEST_AGE_S = 24 * 3600.0  # of a decision: it is on the data of its time


def promote_run(session: RunContext, options: PromoteOptions) -> int:
    """Promote the session's run, and return the exit code.

    Raises:
        ConfigError: If the config is wrong, or MLflow refuses.
        GateFailed: If the run is not good enough.
        RunLocked: If another process promotes.
        ServerAway: If MLflow does not answer.
    """
    began = time.monotonic()
    try:
        says = _promoted(session, options)
    except LightkitError as error:
        _write_junit(options, time.monotonic() - began, failure=session.resolved.masked(str(error)))
        raise
    _write_junit(options, time.monotonic() - began, output=says)
    add_step_summary(f"### Promotion\n\n{session.resolved.masked(says)}")
    return 0


def _promoted(session: RunContext, options: PromoteOptions) -> str:
    """Judge, register, keep and move; say what was done."""
    run, checkpoint = session.base, session.ckpt_path
    if run is None or checkpoint is None:  # the command asks for a run, which names both
        raise ConfigError("promote: expected a run with a checkpoint. Say latest.")
    configure_console(session.mode, session.resolved.masked)
    quiet_libraries()
    settings = read_gate(session.resolved)
    name = check_name(options.name or settings.name or run.name)
    sha256 = runs.digest(Path(checkpoint))
    record = _decision(session, options, run, settings=settings, name=name, sha256=sha256)
    with open_store(address_of_run(options.tracking_uri, run, session.resolved)) as store:
        version = _version(store, name, sha256)
    if version is None:
        _register(session, options, run, name)
    with open_store(address_of_run(options.tracking_uri, run, session.resolved)) as store:
        version = version or _version(store, name, sha256)
        if version is None:
            raise ConfigError(f"promote: {name} has no version of {shown_path(Path(checkpoint))}. Try again.")
        print_line(f"model {name} version {version.version}", session.mode)
        _keep(store, version, run, Path(checkpoint))
        return _moved(store, version, run, session=session, options=options, record=record)


def _decision(
    session: RunContext, options: PromoteOptions, run: runs.Run, *, settings: GateSettings, name: str, sha256: str
) -> Mapping[str, Any]:
    """Give the decision on this checkpoint that holds today, judging where there is none.

    Raises:
        GateFailed: If it is no, and that is not passed over.
    """
    record = runs.read_json(run.folder / RECORD) or {}
    stale = _stale(record, settings, name=name, sha256=sha256) or _beaten(session, options, run, record, name)
    if options.is_forced:
        return {} if stale else record
    if stale:
        print_line(f"gate  is asked: {stale}", session.mode)
        from lightkit.cli.gating import judge_run  # here: it loads torch

        judge_run(_again(session, run), tracking_uri=options.tracking_uri, name=name)
        record = runs.read_json(run.folder / RECORD) or {}
    if not record.get("passed"):
        reasons = "; ".join(map(str, record.get("reasons") or ["there is no decision"]))
        raise GateFailed(f"the gate says no: {reasons}. Nothing was promoted; --force passes it over.")
    return record


def _stale(record: Mapping[str, Any], settings: GateSettings, *, name: str, sha256: str) -> str | None:
    """Say why a decision is not on this checkpoint with these settings; None where it is."""
    if not record:
        return f"there is no {RECORD} yet"
    if (record.get("checkpoint") or {}).get("sha256") != sha256:
        return f"{RECORD} is of another checkpoint"
    if _age_s(record.get("time")) > _LONGEST_AGE_S:
        return f"{RECORD} is older than a day, and the data may have changed"
    now = json.loads(json.dumps({**settings.__dict__, "name": name}))
    return None if record.get("settings") == now else f"{RECORD} is of other settings"


def _age_s(moment: object) -> float:
    """Give the seconds since a moment in ISO 8601; endless where it is none."""
    try:
        return (datetime.now(timezone.utc) - datetime.fromisoformat(str(moment))).total_seconds()
    except (ValueError, TypeError):  # TypeError: without a time zone
        return math.inf


def _beaten(
    session: RunContext, options: PromoteOptions, run: runs.Run, record: Mapping[str, Any], name: str
) -> str | None:
    """Say that the baseline of a decision is not today's any more; None where it is."""
    reference = (record.get("settings") or {}).get("baseline")
    if reference is None or "/" in reference or reference == "latest":
        return None
    address = address_of_run(options.tracking_uri, run, session.resolved)
    if address.database is not None and not address.database.is_file():
        version = None
    else:
        with open_store(address, makes=False) as store:
            version = find_version(store, name, reference)
    now = None if version is None else str(version.version)
    before = (record.get("against") or {}).get("version")
    if now == before:
        return None
    return f"the {reference} was version {before or 'none'} then, and is version {now or 'none'} now"


def _again(session: RunContext, run: runs.Run) -> RunContext:
    """Open the same session once more: one builds its model once."""
    again = open_context("export", ["--run", str(run.folder), *session.words[2:]], SignalWatch())
    again.seat, again.mode = None, session.mode
    return again


def _version(store: Store, name: str, sha256: str) -> ModelVersion | None:
    """Find the newest version that was made of a checkpoint."""
    of_it = [version for version in versions_of(store, name) if version.tags.get("checkpoint_sha256") == sha256]
    return of_it[-1] if of_it else None


def _register(session: RunContext, options: PromoteOptions, run: runs.Run, name: str) -> None:
    from lightkit.cli.registering import register_run  # here: it loads torch

    print_line(f"makes a version of {name} (challenger)", session.mode)
    again = _again(session, run)
    again.mode = "quiet"
    register_run(again, RegisterOptions(name, ("challenger",), "torch_export", options.tracking_uri))


def _keep(store: Store, version: ModelVersion, run: runs.Run, checkpoint: Path) -> None:
    """Send checkpoint and config to MLflow, so that the model can be scored where its run folder is not."""
    if version.tags.get(KEPT) or not version.run_id:
        return
    place = f"promoted/{version.name}-{version.version}"
    with store.busy("take the checkpoint"):
        for file in (run.config_path, checkpoint):
            store.client.log_artifact(version.run_id, str(file), place)
        store.client.set_model_version_tag(version.name, version.version, KEPT, f"runs:/{version.run_id}/{place}")


def _moved(
    store: Store,
    version: ModelVersion,
    run: runs.Run,
    *,
    session: RunContext,
    options: PromoteOptions,
    record: Mapping[str, Any],
) -> str:
    name, to = version.name, str(version.version)
    with store.busy(f"move {name}@{options.alias}"):
        log = PromotionLog(store, name)
        before = log.current(options.alias)
        moved = log.move(_move(options, record, before=before, to=to, run=run, mask=session.resolved.masked))
    noted = runs.read_json(run.folder / PROMOTED) or {}
    is_noted = (noted.get("name"), noted.get("number")) == (name, moved.number)
    if before != to:
        says = f"{name}@{options.alias} is version {to} now" + (f"; it was version {before}" if before else "")
    else:
        says = f"{name}@{options.alias} is version {to} already"
    is_new = before != to or (moved.kind == "promote" and not is_noted)  # such as after a kill
    if is_new:
        _note(run, moved, session, store, name)
    _tell(says, session, options, moved if is_new else None, name)
    return says


def _move(
    options: PromoteOptions, record: Mapping[str, Any], *, before: str | None, to: str, run: runs.Run, mask: Any
) -> Move:
    metric, data = record.get("metric"), record.get("data") or {}
    scores = record.get("scores") or {}
    judged = {which: (scores.get(which) or {}).get(metric) for which in _SCORES} if metric else {}
    return Move(
        "promote",
        options.alias,
        before,
        to,
        reason=mask(options.reason),
        run=f"{run.name}/{run.id}",
        metric=metric,
        scores=judged,
        data=data.get("fingerprint"),
        num_samples=record.get("num_samples"),
        forced=options.is_forced,
    )


def _note(run: runs.Run, move: Move, session: RunContext, store: Store, name: str) -> None:
    """Leave a mark in the run folder, and the event. `lightkit gc` keeps it until each of its registries says no."""
    from lightkit.cli.redaction import RedactedEventStream  # here: it loads torch

    known = (runs.read_json(run.folder / PROMOTED) or {}).get("registries") or []
    registry = session.resolved.masked(mask_password(store.registry_uri))
    record = {"schema": 1, "name": name, "registries": sorted({*known, registry}), **move.as_dict()}
    runs.write_json(run.folder / PROMOTED, record)
    RedactedEventStream(run.events_path, session.resolved).write(
        "promotion", name=name, alias=move.alias, **{"from": move.before}, to=move.to, by=move.by, reason=move.reason
    )


def _tell(says: str, session: RunContext, options: PromoteOptions, move: Move | None, name: str) -> None:
    if options.is_json:
        done = {} if move is None else move.as_dict()
        print(json.dumps({"name": name, "says": says, **done}, ensure_ascii=False, default=str))
    else:
        print_line(f"moved {says}" if move is not None else f"note  {says}", session.mode)


def _write_junit(options: PromoteOptions, seconds: float, *, failure: str | None = None, output: str = "") -> None:
    if options.junit is not None:
        write_junit(options.junit, "lightkit promote", [Case("promote", seconds, failure=failure, output=output)])
