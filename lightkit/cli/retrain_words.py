"""The command line of each stage after a retrain's training, and what tells one training's config from another's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lightkit import runs
from lightkit.cli.config_loader import load_config
from lightkit.cli.context import RunContext
from lightkit.commands.retrain import RetrainOptions
from lightkit.config import Problems
from lightkit.errors import ConfigError
from lightkit.registry.gate import GateSettings, read_gate

__all__ = ["config_digest", "words_of"]

_TELLING = ("lightkit.callbacks.SlackNotifier", "lightkit.callbacks.WebhookNotifier")


def config_digest(session: RunContext) -> str:
    """Tell a job's config from another that its name may have had, whatever has no part in the training.

    How it is run, by what it is judged, and who is told may change: the same training goes on with it.
    """
    resolved = session.resolved
    told = {
        key: value for key, value in resolved.with_references(resolved.values).items() if key not in ("run", "gate")
    }
    if isinstance(callbacks := told.get("callbacks"), Mapping):
        told["callbacks"] = {name: entry for name, entry in callbacks.items() if not _is_telling(entry)}
    text = json.dumps([session.ckpt_path, told], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def words_of(stage: str, run: runs.Run, session: RunContext, options: RetrainOptions) -> list[str]:
    """Give the command line of a stage after the training.

    Args:
        stage: The stage.
        run: The run that was trained.
        session: The invocation.
        options: What is said beside.
    """
    trust = ["--trust"] if session.options.get("trust") else []
    if stage in ("test", "export"):
        shown = {"json": ["--output=json"], "quiet": ["--quiet"]}.get(session.mode, [])
        form = [f"--format={options.export_format}"] if stage == "export" else []
        return [stage, f"--run={run.folder}", *form, *trust, *shown]
    reason = ["--reason", options.reason] if stage == "promote" and options.reason else []
    quiet = ["--quiet"] if session.mode in ("json", "quiet") else []
    return [stage, str(run.folder), *_gate_words(run, session), *reason, *trust, *quiet]


def _gate_words(run: runs.Run, session: RunContext) -> list[str]:
    """Say today's conditions where the run was trained with others; both commands must have the same."""
    today = read_gate(session.resolved)
    if today == _gate_of(run):
        return []
    return ["--gate=null", f"--gate={json.dumps(today.__dict__)}"]  # the first, or slices of before would stay


def _gate_of(run: runs.Run) -> GateSettings | None:
    """Give the conditions in a run's config; None where they cannot be read."""
    problems = Problems()
    try:
        return read_gate(load_config("test", ["--run", str(run.folder)], problems).resolved)
    except ConfigError:
        return None


def _is_telling(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("class_path") in _TELLING
