"""`lightkit promote`: a run that passes its gate becomes the champion."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from lightkit import runs
from lightkit.cli.command_line import RUN_OPTIONS, get_run_argument, parse_options
from lightkit.cli.console import configure_console, print_line, quiet_libraries
from lightkit.cli.context import RunContext, read_run_settings
from lightkit.cli.redaction import redact
from lightkit.cli.stage_runner import open_run_context
from lightkit.errors import GateFailed, LightkitError, RunLocked
from lightkit.registry.gate import RECORD, GateSettings, read_gate
from lightkit.registry.promotion import (
    Move,
    alias_version,
    find_rejection,
    move_alias,
    note_in_run_folders,
    read_moves,
)
from lightkit.registry.store import (
    KEPT,
    address_of_run,
    check_alias,
    check_name,
    find_version,
    list_versions,
    open_registry,
)
from lightkit.reports.gate_page import write_gate_page
from lightkit.runs.ci_report import Case, add_step_summary, junit_on_failure, write_junit
from lightkit.runs.index import PROMOTED

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

HELP = """\
usage: lightkit promote RUN [--name NAME] [--alias champion] [--reason TEXT] [--force]

Let an alias of MLflow's registry, the champion, point to a run's model. The run must have passed its gate with this
checkpoint, these settings and today's champion; where gate.json is of others, older than a day, or missing, it is
judged now. A version that was rolled back is promoted by --force alone. A run that is not registered is registered
first, as `lightkit register` does, with the alias challenger. The move is written to the promotion log in the registry
once it is done. If the command is killed in between, the same command writes what is missing.

  RUN                 a run or latest
  --run RUN           the same
  --name NAME         of the registered model; default: gate.name, else the run's name
  --alias ALIAS       the alias that moves; default: champion
  --reason TEXT       for the log
  --force             promote a run that has not passed or was rolled back; the log records it
  --tracking-uri URI  where MLflow is; default: where the training was tracked, else mlflow.db in the run root
  --ckpt_path CKPT    best, last or a file; default: best
  --json              print what was done as one JSON object
  --junit FILE        write it as a test case of JUnit
  --trust             load checkpoints that hold more than tensors and plain values, and so may run code
  -c FILE             a layer on top of the run's config
  --quiet             print warnings and errors only

`lightkit history NAME` prints the log, and `lightkit rollback NAME` goes back.
Exit code 0: it is the champion; 2: wrong arguments, or MLflow refuses; 4: not good enough; 5: the model cannot be
written so that it answers as before; 75: MLflow does not answer, or another process promotes; try again later.

lightkit promote latest --name flowers --reason "retrained on the photos of November"
"""


def promote(args: list[str]) -> int:
    """Promote a run, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, there is no such run, or MLflow refuses.
        GateFailed: If the run is not good enough, or was rolled back.
        ExportError: If the model cannot be written so that it gives the same answers.
        RunLocked: If another process promotes.
        ServerAway: If MLflow does not answer.
    """
    line = parse_options(HELP, args, config=RUN_OPTIONS, most=1)
    junit = Path(line.options["--junit"]) if line.options.get("--junit") else None
    began = time.monotonic()
    with junit_on_failure(junit, "lightkit promote", "promote"):
        if "--name" in line.options:
            check_name(line.options["--name"])
        check_alias(line.options.get("--alias", "champion"))
        run = get_run_argument(line)
        context = open_run_context(["--run", run, *line.config_args], is_quiet="--json" in line.options)
        assert context.base is not None
        try:
            with FileLock(context.base.folder / ".promote.lock", timeout=0):
                text = _promote(context, line.options)
        except Timeout as error:
            raise RunLocked(f"Another process promotes {context.base.folder}. Try again when it has ended.") from error
        except LightkitError as error:
            raise error.reworded(context.resolved.masked) from error
        if junit is not None:
            write_junit(junit, "lightkit promote", [Case("promote", time.monotonic() - began, output=text)])
    add_step_summary(f"### Promotion\n\n{context.resolved.masked(text)}")
    return 0


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
        if version is not None and not is_forced:
            rejection = find_rejection(read_moves(registry, name), alias, str(version.version))
            if rejection is not None:
                reason = f" ({rejection.reason})" if rejection.reason else ""
                raise GateFailed(
                    f"{name} version {version.version} was rolled back by {rejection.by} at {rejection.time}{reason}. "
                    f"Nothing was promoted; --force promotes it all the same."
                )
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
        if version.run_id and not version.tags.get(KEPT):  # so that it can be scored where its run folder is not
            folder = f"promoted/{name}-{version.version}"
            with registry.attempt("take the checkpoint"):
                for file in (run.config_path, context.ckpt_path):
                    registry.client.log_artifact(version.run_id, str(file), folder)
                registry.client.set_model_version_tag(name, version.version, KEPT, f"runs:/{version.run_id}/{folder}")
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
        runs.EventStream(run.events_path).write("promotion", name=name, **redact(resolved, fields))
    if "--json" in options:
        done = move.as_dict() if is_new else {}
        print(json.dumps({"name": name, "message": text, **done}, ensure_ascii=False, default=str))
    else:
        print_line(f"moved {text}" if is_new else f"note  {text}", mode)
    return text


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
    yesterday = (datetime.now(timezone.utc) - timedelta(days=1)).isoformat(timespec="seconds")
    return (
        str(decision.get("time", "")) > yesterday  # the data may have changed
        and (decision.get("checkpoint") or {}).get("sha256") == sha256
        and (decision.get("against") or {}).get("version") == baseline
        and decision.get("settings") == json.loads(json.dumps({**settings.__dict__, "name": name}))
    )
