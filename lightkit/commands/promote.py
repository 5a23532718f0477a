"""`lightkit promote`: a run that passes its gate becomes the champion."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from lightkit import runs
from lightkit.cli.command_line import Invocation
from lightkit.cli.console import configure_console, print_line, quiet_libraries
from lightkit.cli.heap import freezing_imports
from lightkit.cli.input_digests import digest_inputs_of_scores
from lightkit.cli.notifications import IN_RETRAIN
from lightkit.cli.stage_config import StageConfig, read_run_settings
from lightkit.cli.stage_runner import open_run_config
from lightkit.config import shown_path
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError, GateFailed, LightkitError, RunLocked
from lightkit.registry.gate import RECORD, GateSettings, explain_refusal, read_gate
from lightkit.registry.promotion import (
    Move,
    Rejection,
    alias_version,
    digests_of_inputs,
    hold_alias,
    match_rejection,
    move_alias,
    note_in_run_folders,
    read_moves,
    read_rejections,
    release_alias,
    require_no_hold,
)
from lightkit.registry.store import (
    CHECKPOINT,
    KEPT,
    WEIGHTS,
    Registry,
    address_of_root,
    address_of_run,
    check_alias,
    check_model,
    check_name,
    find_version,
    list_versions,
    open_registry,
    read_aliases,
)
from lightkit.reports.gate_page import write_gate_page
from lightkit.runs.ci_report import Case, CiReport
from lightkit.runs.files import finite
from lightkit.runs.index import PROMOTED

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


def promote(invocation: Invocation) -> int:
    """Promote a run, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, there is no such run, or MLflow refuses.
        GateFailed: If the run is not good enough, or was rolled back, or the alias is held.
        ExportError: If the model cannot be written so that it gives the same answers.
        RunLocked: If another process promotes.
        ServerAway: If MLflow does not answer.
    """
    invocation.raise_errors()
    options = invocation.all_options
    junit = Path(options["junit"]) if options.get("junit") else None
    began = time.monotonic()
    with CiReport("lightkit promote", junit, case="promote") as report:
        if "name" in options:
            check_name(options["name"])
        check_alias(options["alias"])
        if "hold" in options or "release" in options:
            text = _hold_or_release(invocation)
        else:
            of_run = invocation.with_options(run=invocation.get_run())
            stage_config = open_run_config(of_run, is_quiet=invocation.has("json"))
            try:
                assert stage_config.base is not None
                with _lock_promotion(stage_config.base.folder):
                    text = stage_config.resolved.masked(_promote(stage_config, options))
            except LightkitError as error:
                raise error.reworded(stage_config.resolved.masked) from error
        report.write([Case("promote", time.monotonic() - began, output=text)])
        report.add_page(f"### Promotion\n\n{text}")
    return 0


@contextmanager
def _lock_promotion(folder: Path) -> Iterator[None]:
    """Keep other promotions of the run out.

    Raises:
        ConfigError: If the file of the lock cannot be opened: it is a link, a folder, or must not
            be written.
        RunLocked: If another process promotes the run.
    """
    lock = FileLock(folder / ".promote.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunLocked(
            f"Another process promotes {folder}. Try again when it has ended."
        ) from error
    except OSError as error:
        reason = (
            "it is a link" if Path(lock.lock_file).is_symlink() else error.strerror or str(error)
        )
        raise ConfigError(
            f"promote: the lock {shown_path(Path(lock.lock_file))} cannot be taken: {reason}."
            " Delete it, or make the folder one that can be written."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _hold_or_release(invocation: Invocation) -> str:
    """Hold an alias at its version, or release it, and return the message.

    Raises:
        ConfigError: If the arguments are wrong, or there is no such model.
        ServerAway: If MLflow does not answer.
    """
    options = invocation.options
    option = _choose_hold_option(invocation)
    name = options[option]
    alias = invocation.get("alias")
    address = address_of_root(options.get("tracking-uri"), find_run_root(invocation.overrides))

    quiet_libraries()
    with open_registry(address, creates=False) as registry:
        check_model(registry, name)
        if option == "hold":
            hold = hold_alias(registry, name, alias, reason=options.get("reason", ""))
            text = hold.describe(name, alias)
        else:
            ended = release_alias(registry, name, alias)
            text = f"{name}@{alias} was not held"
            if ended is not None:
                text = (
                    f"{name}@{alias} may move again; it was held by {ended.by} since {ended.time}"
                )
    if invocation.has("json"):
        print(json.dumps({"name": name, "alias": alias, "message": text}, ensure_ascii=False))
    elif not invocation.has("quiet"):
        print(text)
    return text


def _choose_hold_option(invocation: Invocation) -> str:
    """Return `hold` or `release`.

    Raises:
        ConfigError: If both are given, or words that do not go with it.
    """
    if invocation.has("hold") and invocation.has("release"):
        raise invocation.error("expected --hold or --release, got both")
    option = "hold" if invocation.has("hold") else "release"
    given = [
        *invocation.inputs,
        *(f"--{name}" for name in ("force", "name", "run") if invocation.has(name)),
    ]
    if given:
        raise invocation.error(f"--{option} takes the name of a model, and no run: {given[0]!r}")
    if option == "release" and invocation.has("reason"):
        raise invocation.error("--reason has no effect with --release")
    return option


@dataclass(frozen=True)
class _Request:
    """One promotion: the run, the model and alias that it is for, and the gate.

    Args:
        stage_config: Config of the run.
        run: The run.
        checkpoint: File of its weights.
        sha256: Digest of that file.
        settings: The gate.
        name: The registered model.
        alias: The alias that moves.
        tracking_uri: Address of MLflow where it was given.
        reason: Text for the log, without secrets.
        is_forced: Whether `--force` was given.
    """

    stage_config: StageConfig
    run: runs.Run
    checkpoint: str
    sha256: str
    settings: GateSettings
    name: str
    alias: str
    tracking_uri: str | None
    reason: str
    is_forced: bool

    def find_version(self, registry: Registry) -> ModelVersion | None:
        """Return the newest version that was registered with this checkpoint.

        None where there is none.
        """
        found = None
        for version in list_versions(registry, self.name):
            if version.tags.get(CHECKPOINT) == self.sha256:
                found = version
        return found


def _promote(stage_config: StageConfig, options: Mapping[str, Any]) -> str:
    """Evaluate the gate, register, keep the checkpoint, and move the alias, as far as needed.

    Return what was done.
    """
    configure_console(stage_config.mode, stage_config.resolved.masked)
    quiet_libraries()
    request = _read_request(stage_config, options)
    run = request.run
    with open_registry(
        address_of_run(request.tracking_uri, run, stage_config.resolved)
    ) as registry:
        # Read first: if another process moves the alias from here on, the gate's decision is not
        # about its champion.
        before = alias_version(registry, request.name, request.alias)
        version = request.find_version(registry)
        weights = None if version is None else version.tags.get(WEIGHTS)
        weights = weights or _digest_weights(request.checkpoint)
        manifest = runs.read_json(run.manifest_path)
        inputs = digests_of_inputs(manifest)
        all_inputs = (inputs, digests_of_inputs(manifest, by_earlier_list=True))
        _require_allowed(registry, request, version=version, weights=weights, inputs=all_inputs)
        decision = _decide(registry, request)

        if version is None:
            version = _register(registry, request)
        print_line(f"model {request.name} version {version.version}", stage_config.mode)
        _keep_model(registry, version, [run.config_path, Path(request.checkpoint)], weights=weights)

        move = _build_move(request, decision, before=before, to=str(version.version))
        move = replace(move, weights=weights, inputs=inputs)
        move, is_new = _move(registry, request, move)
    return _report_move(
        request, move, before=before, is_new=is_new, mode=decision.get("mode"), options=options
    )


def _read_request(stage_config: StageConfig, options: Mapping[str, Any]) -> _Request:
    run = stage_config.base
    assert run is not None  # the command asks for a run, which names both
    assert stage_config.ckpt_path is not None
    settings = read_gate(stage_config.resolved)
    return _Request(
        stage_config=stage_config,
        run=run,
        checkpoint=stage_config.ckpt_path,
        sha256=runs.digest_checkpoint(stage_config.ckpt_path),
        settings=settings,
        name=check_name(options.get("name") or settings.name or run.name),
        alias=options["alias"],
        tracking_uri=options.get("tracking-uri"),
        reason=stage_config.resolved.masked(options.get("reason", "")),
        is_forced="force" in options,
    )


def _require_allowed(
    registry: Registry,
    request: _Request,
    *,
    version: ModelVersion | None,
    weights: str,
    inputs: Sequence[Mapping[str, str]],
) -> None:
    """Refuse to move an alias that is held, or to a model that was rolled back.

    Raises:
        GateFailed: If one of them is so.
    """
    if read_aliases(registry, request.name) is None:
        return  # no such model yet
    require_no_hold(registry, request.name, request.alias)
    if not request.is_forced:
        number = None if version is None else str(version.version)
        _require_not_rejected(
            registry, request.name, request.alias, version=number, weights=weights, inputs=inputs
        )


def _decide(registry: Registry, request: _Request) -> Mapping[str, Any]:
    """Return the decision of the gate: that of gate.json where it still holds, else a new one.

    With `--force` nothing is judged: the decision is empty where the old one does not hold.

    Raises:
        GateFailed: If it says no.
    """
    settings = request.settings
    baseline = None
    if settings.baseline is not None and not settings.is_against_run:
        found = find_version(registry, request.name, str(settings.baseline))
        baseline = None if found is None else str(found.version)
    decision: Mapping[str, Any] = runs.read_json(request.run.folder / RECORD) or {}
    holds = decision_holds(
        decision,
        settings,
        name=request.name,
        sha256=request.sha256,
        baseline=baseline,
        newest_move=_read_newest_move(registry, request),
        inputs=digest_inputs_of_scores(request.stage_config, request.run),
        in_retrain=IN_RETRAIN in os.environ,
    )
    if request.is_forced:
        return decision if holds else {}

    if not holds:
        decision = _judge_again(request)
    if decision.get("metric") is None:
        logging.getLogger("lightkit").warning(
            "promote: nothing judges the model, as gate.metric is not set; set a gate, such as"
            " --gate.metric=test/accuracy --gate.min=0.7"
        )
    if not decision.get("passed"):
        refusal = explain_refusal(decision, request.run)
        raise GateFailed(f"{refusal}. Nothing was promoted; --force promotes all the same.")
    return decision


def _read_newest_move(registry: Registry, request: _Request) -> Any:
    """Return the newest move of the models that `gate.drift` compares with, as gate.json has it.

    None where there is none, or no such comparison.
    """
    settings = request.settings
    if settings.drift is None or read_aliases(registry, request.name) is None:
        return None
    moves = read_moves(registry, request.name)
    of_alias = [move for move in moves if move.alias == settings.history_alias]
    newest = of_alias[-1].as_dict() if of_alias else None
    return json.loads(json.dumps(finite(newest)))


def _judge_again(request: _Request) -> Mapping[str, Any]:
    """Evaluate the gate, and return its decision."""
    what = (
        f"{RECORD} is missing, older than a day, or of another checkpoint, champion, gate or data"
    )
    print_line(f"gate  is asked: {what}", request.stage_config.mode)
    with freezing_imports():
        from lightkit.cli.gate_evaluation import evaluate_gate  # it loads torch

    return evaluate_gate(request.stage_config, tracking_uri=request.tracking_uri, name=request.name)


def _register(registry: Registry, request: _Request) -> ModelVersion:
    """Register the run as a version with the alias challenger."""
    print_line(f"makes a version of {request.name} (challenger)", request.stage_config.mode)
    with freezing_imports():
        from lightkit.cli.registration import register_run  # it loads torch

    stage_config = replace(request.stage_config, mode="quiet")
    register_run(
        stage_config,
        request.name,
        ["challenger"],
        form="torch_export",
        tracking_uri=request.tracking_uri,
    )
    version = request.find_version(registry)
    assert version is not None
    return version


def _build_move(
    request: _Request, decision: Mapping[str, Any], *, before: str | None, to: str
) -> Move:
    """Build the entry of the log, with the scores by which the gate decided."""
    metric = decision.get("metric")
    scores = {}
    if metric:
        for which in ("challenger", "baseline"):
            scores[which] = runs.find_value(decision, "scores", which, metric)
    return Move(
        "promote",
        request.alias,
        before,
        to,
        reason=request.reason,
        run=f"{request.run.name}/{request.run.id}",
        metric=metric,
        scores=scores,
        data=runs.find_value(decision, "data", "fingerprint"),
        num_samples=decision.get("num_samples"),
        precision=decision.get("precision"),
        forced=request.is_forced,
    )


def _move(registry: Registry, request: _Request, move: Move) -> tuple[Move, bool]:
    """Move the alias, and note it in the run folders and the gate's page.

    Returns:
        The move as the log has it, and whether it was not noted in the run's folder yet, as also
        after a kill.
    """
    run = request.run
    noted = runs.read_json(run.folder / PROMOTED) or {}
    with registry.attempt(f"move {request.name}@{request.alias}"):
        move = move_alias(registry, request.name, move)
    is_new = (noted.get("name"), noted.get("number")) != (request.name, move.number)
    if is_new:
        note_in_run_folders(registry, request.name, move)
        stage_config = request.stage_config
        settings = read_run_settings(stage_config.resolved, stage_config.job_name)
        if (run.folder / RECORD).exists() and settings.report:
            write_gate_page(run)
    return move, is_new


def _report_move(
    request: _Request,
    move: Move,
    *,
    before: str | None,
    is_new: bool,
    mode: str | None,
    options: Mapping[str, Any],
) -> str:
    """Print what was done, record it as an event of the run, and warn about a worse model.

    Args:
        request: The promotion.
        move: Its entry in the log.
        before: Version that the alias pointed to before.
        is_new: Whether it is noted in the run for the first time.
        mode: Whether large or small values of the metric are good, where the gate has decided.
        options: Of the command line.
    """
    name = request.name
    text = (
        f"{name}@{request.alias} is version {move.to} {'already' if before == move.to else 'now'}"
    )
    if before not in (None, move.to):
        text += f"; it was version {before}"
    if is_new:
        fields = {
            "alias": request.alias,
            "from": move.before,
            "to": move.to,
            "by": move.by,
            "reason": move.reason,
        }
        events = runs.EventStream(request.run.events_path)
        events.write("promotion", name=name, **request.stage_config.resolved.masked(fields))
    if "json" in options:
        done = move.as_dict() if is_new else {}
        print(json.dumps({"name": name, "message": text, **done}, ensure_ascii=False, default=str))
    else:
        print_line(f"moved {text}" if is_new else f"note  {text}", request.stage_config.mode)
    if is_new:
        worse = describe_worse(move, request.settings, mode=mode or request.settings.mode)
        if worse:
            logging.getLogger("lightkit").warning("%s", worse)
            text += f"; {worse}"
    return text


def describe_worse(move: Move, settings: GateSettings, *, mode: str | None) -> str:
    """Write by how much a promoted model is worse than the champion before it; empty if it is not.

    Args:
        move: The promotion.
        settings: The gate.
        mode: Whether large (`max`) or small (`min`) values of the metric are good, as the gate has
            decided; None where nothing tells.
    """
    new = move.scores.get("challenger")
    old = move.scores.get("baseline")
    if new is None or old is None or move.metric is None or mode is None:
        return ""
    drop = old - new if mode == "max" else new - old
    if drop <= 0:
        return ""
    by = ""
    if move.forced:
        by = " by --force"
    elif settings.margin:
        by = f", within gate.margin {settings.margin:g}"
    elif settings.max_drop:
        by = f", within gate.max_drop {settings.max_drop:g}"
    against = "the model that it was compared with"
    if move.before is not None:
        against = f"version {move.before}"
    return (
        f"a worse model was promoted{by}: {move.metric} of version {move.to} is {new:.6g},"
        f" {drop:.3g} worse than {old:.6g} of {against}"
    )


def _keep_model(
    registry: Registry, version: ModelVersion, files: Sequence[Path], *, weights: str
) -> None:
    """Keep config and checkpoint in MLflow, and note the weights.

    The run folder may be elsewhere or gone later.
    """
    if not version.tags.get(WEIGHTS):
        with registry.attempt("tag the version"):
            registry.client.set_model_version_tag(version.name, version.version, WEIGHTS, weights)
    if not version.run_id or version.tags.get(KEPT):
        return
    folder = f"promoted/{version.name}-{version.version}"
    with registry.attempt("take the checkpoint"):
        for file in files:
            registry.client.log_artifact(version.run_id, str(file), folder)
        registry.client.set_model_version_tag(
            version.name, version.version, KEPT, f"runs:/{version.run_id}/{folder}"
        )


def _digest_weights(checkpoint: str) -> str:
    from lightkit.callbacks.checkpoint_io import digest_weights  # here: it loads torch

    return digest_weights(checkpoint)


def _require_not_rejected(
    registry: Registry,
    name: str,
    alias: str,
    *,
    version: str | None,
    weights: str,
    inputs: Sequence[Mapping[str, str]],
) -> None:
    """Refuse a model that was rolled back, also where another training has made it again.

    Args:
        registry: The registry.
        name: The registered model.
        alias: The alias.
        version: Version of the model, if it has one.
        weights: Digest of its weights.
        inputs: Digests of its inputs, as this version and as earlier ones compute them.

    Raises:
        GateFailed: If it was, with which version that was, and when.
    """
    rejections = [
        replace(each, weights=each.weights or _read_weights(each))
        for each in read_rejections(registry, name, alias)
    ]
    for each in inputs:
        found = match_rejection(rejections, version=version, weights=weights, inputs=each)
        if found is not None:
            rejection, likeness = found
            raise GateFailed(
                f"{rejection.describe(name)}{f', and {likeness}' if likeness else ''}. Nothing was"
                " promoted; --force promotes it all the same."
            )


def _read_weights(rejection: Rejection) -> str | None:
    """Compute the digest of the weights of a version from before versions had one.

    None without its checkpoint.
    """
    if rejection.folder is None:
        return None
    checkpoint = rejection.folder / rejection.tags.get("checkpoint", "")
    sha256 = rejection.tags.get(CHECKPOINT)
    if not checkpoint.is_file() or runs.digest(checkpoint) != sha256:
        return None
    return _digest_weights(str(checkpoint))


def decision_holds(
    decision: Mapping[str, Any],
    settings: GateSettings,
    *,
    name: str,
    sha256: str,
    baseline: str | None,
    newest_move: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str],
    in_retrain: bool,
) -> bool:
    """Return whether a decision is of today, on this checkpoint, baseline, settings, data and code.

    With `gate.drift` it is also on these promoted models.

    Args:
        decision: Content of gate.json.
        settings: Those of now.
        name: The registered model.
        sha256: Digest of the checkpoint.
        baseline: Version that it is compared with now; None for none.
        newest_move: Newest move of the alias whose promoted models `gate.drift` looks at; None
            for none.
        inputs: Digests of the config, the data and the code of now; empty where one of them is
            unknown.
        in_retrain: Whether the gate was the stage before: then what cannot be compared has not
            changed.
    """
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="seconds")
    is_of_baseline = runs.find_value(decision, "against", "version") == baseline
    if settings.is_against_run:
        is_of_baseline = in_retrain  # else `latest` may be another run
    history = decision.get("history") or [None]
    is_of_history = settings.drift is None or history[-1] == newest_move
    is_of_inputs = decision.get("inputs") == inputs and (bool(inputs) or in_retrain)
    return (
        str(decision.get("time", "")) > yesterday
        and runs.find_value(decision, "checkpoint", "sha256") == sha256
        and is_of_baseline
        and is_of_history
        and is_of_inputs
        and decision.get("settings") == json.loads(json.dumps({**settings.__dict__, "name": name}))
    )
