"""`lightkit promote`: a run that passes its gate becomes the champion."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from lightkit import runs
from lightkit.cli.command_line import RUN_OPTIONS, CommandLine, get_run_argument, parse_options
from lightkit.cli.console import configure_console, print_line, quiet_libraries
from lightkit.cli.context import RunContext, read_run_settings
from lightkit.cli.stage_runner import open_run_context
from lightkit.config import shown_path, split_arguments
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError, GateFailed, LightkitError, RunLocked
from lightkit.registry.gate import RECORD, GateSettings, read_gate
from lightkit.registry.promotion import (
    Move,
    alias_version,
    digests_of_inputs,
    hold_alias,
    list_rejections,
    match_rejection,
    move_alias,
    note_in_run_folders,
    read_moves,
    release_alias,
    require_no_hold,
)
from lightkit.registry.store import (
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
from lightkit.runs.index import PROMOTED

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

HELP = """\
usage: lightkit promote RUN [--name NAME] [--alias champion] [--reason TEXT] [--force]
       lightkit promote --hold NAME [--alias champion] [--reason TEXT]
       lightkit promote --release NAME [--alias champion]

Let an alias of MLflow's registry, the champion, point to a run's model. The run must have passed its gate with this
checkpoint, these settings and today's champion; where gate.json is of others, older than a day, or missing, it is
judged now. What was rolled back is promoted by --force alone, also where another training has made it again: the same
weights, or the same config, data and code. A run that is not registered is registered first, as `lightkit register`
does, with the alias challenger. The move is written to the promotion log in the registry once it is done. If the
command is killed in between, the same command writes what is missing.

An alias that is held stays where it is: until it is released, promote and retrain end with 4, also with --force.
`lightkit rollback` moves it all the same.

  RUN                 a run or latest
  --run RUN           the same
  --name NAME         of the registered model; default: gate.name, else the run's name
  --alias ALIAS       the alias that moves; default: champion
  --reason TEXT       for the log
  --force             promote a run that has not passed or was rolled back; the log records it
  --hold NAME         keep the alias of this registered model where it is
  --release NAME      let it move again
  --tracking-uri URI  where MLflow is; default: where the training was tracked, else mlflow.db in the run root
  --ckpt_path CKPT    best, last or a file; default: best
  --json              print what was done as one JSON object
  --junit FILE        write it as a test case of JUnit
  --trust             load checkpoints that hold more than tensors and plain values, and so may run code
  -c FILE             a layer on top of the run's config
  --quiet             print warnings and errors only

`lightkit history NAME` prints the log, and `lightkit rollback NAME` goes back.
Exit code 0: it is the champion; 2: wrong arguments, or MLflow refuses; 4: not good enough, rolled back before, or the
alias is held; 5: the model cannot be written so that it answers as before; 75: MLflow does not answer, or another
process promotes; try again later.

lightkit promote latest --name flowers --reason "retrained on the photos of November"
"""


def promote(args: list[str]) -> int:
    """Promote a run, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, there is no such run, or MLflow refuses.
        GateFailed: If the run is not good enough, or was rolled back, or the alias is held.
        ExportError: If the model cannot be written so that it gives the same answers.
        RunLocked: If another process promotes.
        ServerAway: If MLflow does not answer.
    """
    line = parse_options(HELP, args, config=RUN_OPTIONS, most=1)
    junit = Path(line.options["--junit"]) if line.options.get("--junit") else None
    began = time.monotonic()
    with CiReport("lightkit promote", junit, case="promote") as report:
        if "--name" in line.options:
            check_name(line.options["--name"])
        check_alias(line.options.get("--alias", "champion"))
        if {"--hold", "--release"} & {*line.options}:
            text = _hold_or_release(line)
        else:
            run = get_run_argument(line)
            context = open_run_context(["--run", run, *line.config_args], is_quiet="--json" in line.options)
            try:
                with _lock_promotion(context):
                    text = context.resolved.masked(_promote(context, line.options))
            except LightkitError as error:
                raise error.reworded(context.resolved.masked) from error
        report.write([Case("promote", time.monotonic() - began, output=text)])
        report.add_page(f"### Promotion\n\n{text}")
    return 0


@contextmanager
def _lock_promotion(context: RunContext) -> Iterator[None]:
    """Keep other promotions of the run out.

    Raises:
        ConfigError: If the file of the lock cannot be opened: it is a link, a folder, or must not be written.
        RunLocked: If another process promotes the run.
    """
    assert context.base is not None
    folder = context.base.folder
    lock = FileLock(folder / ".promote.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunLocked(f"Another process promotes {folder}. Try again when it has ended.") from error
    except OSError as error:
        reason = "it is a link" if Path(lock.lock_file).is_symlink() else error.strerror or str(error)
        raise ConfigError(
            f"promote: the lock {shown_path(Path(lock.lock_file))} cannot be taken: {reason}. Delete it, or make the "
            f"folder one that can be written."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _hold_or_release(line: CommandLine) -> str:
    """Keep an alias where it is, or let it move again, and return what was done.

    Raises:
        ConfigError: If the arguments are wrong, or there is no such model.
        ServerAway: If MLflow does not answer.
    """
    options = line.options
    if {"--hold", "--release"} <= {*options}:
        raise line.error("expected --hold or --release, got both")
    option = "--hold" if "--hold" in options else "--release"
    given = {"--run", "--name", "--force"} & {*options}
    if line.positionals or given:
        raise line.error(f"{option} takes the name of a model, and no run: {[*line.positionals, *sorted(given)][0]!r}")
    if option == "--release" and "--reason" in options:
        raise line.error("--reason has no effect with --release")
    flags = split_arguments(line.config_args, options={"quiet": "switch"}).flags
    name = options[option]
    alias = options.get("--alias", "champion")
    address = address_of_root(options.get("--tracking-uri"), find_run_root(flags))

    quiet_libraries()
    with open_registry(address, creates=False) as registry:
        check_model(registry, name)
        if option == "--hold":
            hold = hold_alias(registry, name, alias, reason=options.get("--reason", ""))
            text = hold.describe(name, alias)
        else:
            ended = release_alias(registry, name, alias)
            text = f"{name}@{alias} was not held"
            if ended is not None:
                text = f"{name}@{alias} may move again; it was held by {ended.by} since {ended.time}"
    _print_move(line, name, alias, text)
    return text


def _print_move(line: CommandLine, name: str, alias: str, text: str) -> None:
    if "--json" in line.options:
        print(json.dumps({"name": name, "alias": alias, "message": text}, ensure_ascii=False))
    elif "--quiet" not in line.config_args:
        print(text)


def _promote(context: RunContext, options: Mapping[str, str]) -> str:
    """Evaluate the gate, register, keep the checkpoint, and move the alias, as far as needed; return what was done."""
    run, resolved, mode = context.base, context.resolved, context.mode
    assert run is not None  # the command asks for a run, which names both
    assert context.ckpt_path is not None
    configure_console(mode, resolved.masked)
    quiet_libraries()
    settings = read_gate(resolved)
    name = check_name(options.get("--name") or settings.name or run.name)
    alias, tracking_uri = options.get("--alias", "champion"), options.get("--tracking-uri")
    is_forced, sha256 = "--force" in options, runs.digest(context.ckpt_path)

    def reopen(*, is_quiet: bool) -> RunContext:
        """Open the same context once more: one builds its model once."""
        return open_run_context(["--run", str(run.folder), *context.args[2:]], is_quiet=is_quiet)

    def find_own_version() -> ModelVersion | None:
        versions = [each for each in list_versions(registry, name) if each.tags.get("checkpoint_sha256") == sha256]
        return versions[-1] if versions else None

    with open_registry(address_of_run(tracking_uri, run, resolved)) as registry:
        # read first: if another process moves the alias from here on, the gate's decision is not about its champion
        before, version = alias_version(registry, name, alias), find_own_version()
        is_known = read_aliases(registry, name) is not None
        if is_known:
            require_no_hold(registry, name, alias)
        weights = None if version is None else version.tags.get(WEIGHTS)
        weights = weights or _digest_weights(context.ckpt_path)
        manifest = runs.read_json(run.manifest_path)
        inputs = digests_of_inputs(manifest)
        if is_known and not is_forced:
            number = None if version is None else str(version.version)
            all_inputs = (inputs, digests_of_inputs(manifest, by_earlier_list=True))
            _require_not_rejected(registry, name, alias, version=number, weights=weights, inputs=all_inputs)
        decision = runs.read_json(run.folder / RECORD) or {}
        is_compared = settings.baseline is not None and not settings.is_against_run
        against = find_version(registry, name, str(settings.baseline)) if is_compared else None
        number = None if against is None else str(against.version)
        holds = decision_holds(decision, settings, name=name, sha256=sha256, baseline=number)
        if is_forced:
            decision = decision if holds else {}
        elif not holds:
            what = f"{RECORD} is missing, older than a day, or of another checkpoint, champion or gate"
            print_line(f"gate  is asked: {what}", mode)
            from lightkit.cli.gate_evaluation import evaluate_gate  # it loads torch

            decision = evaluate_gate(reopen(is_quiet=mode == "quiet"), tracking_uri=tracking_uri, name=name)
        if not is_forced and not decision.get("passed"):
            reasons = "; ".join(map(str, decision.get("reasons") or ["there is no decision"]))
            raise GateFailed(f"the gate says no: {reasons}. Nothing was promoted; --force promotes all the same.")
        if version is None:
            print_line(f"makes a version of {name} (challenger)", mode)
            from lightkit.cli.registration import register_run  # it loads torch

            register_run(reopen(is_quiet=True), name, ["challenger"], form="torch_export", tracking_uri=tracking_uri)
            version = find_own_version()
        assert version is not None
        print_line(f"model {name} version {version.version}", mode)
        _keep_model(registry, version, [run.config_path, Path(context.ckpt_path)], weights=weights)
        metric, scores = decision.get("metric"), decision.get("scores") or {}
        move = Move(
            "promote",
            alias,
            before,
            str(version.version),
            reason=resolved.masked(options.get("--reason", "")),
            run=f"{run.name}/{run.id}",
            metric=metric,
            scores={key: (scores.get(key) or {}).get(metric) for key in ("challenger", "baseline")} if metric else {},
            data=(decision.get("data") or {}).get("fingerprint"),
            num_samples=decision.get("num_samples"),
            forced=is_forced,
            weights=weights,
            inputs=inputs,
        )
        noted = runs.read_json(run.folder / PROMOTED) or {}
        with registry.attempt(f"move {name}@{alias}"):
            move = move_alias(registry, name, move)
        is_new = (noted.get("name"), noted.get("number")) != (name, move.number)  # also after a kill
        if is_new:
            note_in_run_folders(registry, name, move)
            if (run.folder / RECORD).exists() and read_run_settings(context).report:
                write_gate_page(run)
    text = f"{name}@{alias} is version {move.to} {'already' if before == move.to else 'now'}"
    text += f"; it was version {before}" if before not in (None, move.to) else ""
    if is_new:
        fields = {"alias": alias, "from": move.before, "to": move.to, "by": move.by, "reason": move.reason}
        runs.EventStream(run.events_path).write("promotion", name=name, **resolved.masked(fields))
    if "--json" in options:
        done = move.as_dict() if is_new else {}
        print(json.dumps({"name": name, "message": text, **done}, ensure_ascii=False, default=str))
    else:
        print_line(f"moved {text}" if is_new else f"note  {text}", mode)
    best_is = decision.get("mode") or settings.mode
    if is_new and (worse := describe_worse(move, settings, mode=best_is)):
        logging.getLogger("lightkit").warning("%s", worse)
        text += f"; {worse}"
    return text


def describe_worse(move: Move, settings: GateSettings, *, mode: str | None) -> str:
    """Write by how much a promoted model is worse than the champion before it; empty if it is not.

    Args:
        move: The promotion.
        settings: The gate.
        mode: Whether large (`max`) or small (`min`) values of the metric are good, as the gate has decided; None where
            nothing tells.
    """
    new, old = (move.scores.get(which) for which in ("challenger", "baseline"))
    if new is None or old is None or move.metric is None or mode is None:
        return ""
    drop = old - new if mode == "max" else new - old
    if drop <= 0:
        return ""
    within = next(
        (f", within gate.{key} {getattr(settings, key):g}" for key in ("margin", "max_drop") if getattr(settings, key)),
        "",
    )
    by = " by --force" if move.forced else within
    against = f"version {move.before}" if move.before is not None else "the model that it was compared with"
    return (
        f"a worse model was promoted{by}: {move.metric} of version {move.to} is {new:.6g}, {drop:.3g} worse than "
        f"{old:.6g} of {against}"
    )


def _keep_model(registry: Registry, version: ModelVersion, files: Sequence[Path], *, weights: str) -> None:
    """Keep config and checkpoint in MLflow, and note the weights: the run folder may be elsewhere or gone later."""
    if not version.tags.get(WEIGHTS):
        with registry.attempt("tag the version"):
            registry.client.set_model_version_tag(version.name, version.version, WEIGHTS, weights)
    if not version.run_id or version.tags.get(KEPT):
        return
    folder = f"promoted/{version.name}-{version.version}"
    with registry.attempt("take the checkpoint"):
        for file in files:
            registry.client.log_artifact(version.run_id, str(file), folder)
        registry.client.set_model_version_tag(version.name, version.version, KEPT, f"runs:/{version.run_id}/{folder}")


def _digest_weights(checkpoint: str) -> str:
    from lightkit.callbacks.checkpoint_io import digest_weights  # here: it loads torch

    return digest_weights(checkpoint)


def _require_not_rejected(
    registry: Registry, name: str, alias: str, *, version: str | None, weights: str, inputs: Sequence[Mapping[str, str]]
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
    versions = list_versions(registry, name)
    rejections = list_rejections(read_moves(registry, name), alias, versions)
    tags = {str(each.version): each.tags for each in versions}
    rejections = [replace(each, weights=each.weights or _read_weights(tags.get(each.version))) for each in rejections]
    for each in inputs:
        found = match_rejection(rejections, version=version, weights=weights, inputs=each)
        if found is not None:
            rejection, likeness = found
            raise GateFailed(
                f"{rejection.describe(name)}{f', and {likeness}' if likeness else ''}. Nothing was promoted; --force "
                f"promotes it all the same."
            )


def _read_weights(tags: Mapping[str, str] | None) -> str | None:
    """Compute the digest of the weights of a version from before versions had one; None without its checkpoint."""
    checkpoint = Path((tags or {}).get("run_folder", ""), (tags or {}).get("checkpoint", ""))
    if not tags or not checkpoint.is_file() or runs.digest(checkpoint) != tags.get("checkpoint_sha256"):
        return None
    return _digest_weights(str(checkpoint))


def decision_holds(
    decision: Mapping[str, Any], settings: GateSettings, *, name: str, sha256: str, baseline: str | None
) -> bool:
    """Return whether a decision is of today, and on this checkpoint, baseline and settings.

    Args:
        decision: Content of gate.json.
        settings: Those of now.
        name: The registered model.
        sha256: Digest of the checkpoint.
        baseline: Version that it is compared with now; None for none.
    """
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="seconds")
    return (
        str(decision.get("time", "")) > yesterday  # the data may have changed
        and (decision.get("checkpoint") or {}).get("sha256") == sha256
        and (decision.get("against") or {}).get("version") == baseline
        and decision.get("settings") == json.loads(json.dumps({**settings.__dict__, "name": name}))
    )
