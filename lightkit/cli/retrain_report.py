"""What `lightkit retrain` tells at its end: people on the screen, and CI systems in files. No torch."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from pathlib import Path

from lightkit.cli.console import OutputMode, print_line
from lightkit.config import shown_path
from lightkit.runs.ci_report import Case, add_step_summary, markdown_table, write_junit
from lightkit.runs.deadlines import shown_duration
from lightkit.runs.events import read_events
from lightkit.runs.files import read_json
from lightkit.runs.pipeline import Pipeline, StageState
from lightkit.runs.run import Run

__all__ = ["print_events", "report"]

_TITLE = "lightkit retrain"
_NOT_RUN = "not run"


def report(pipeline: Pipeline, mode: OutputMode, *, code: int, junit: Path | None, says: str | None = None) -> None:
    """Tell how far the stages have come.

    Args:
        pipeline: The stages.
        mode: What the screen shows.
        code: Exit code of the whole.
        junit: File for CI systems, if one is asked for.
        says: What has ended it, where that is no stage's doing.

    Raises:
        ConfigError: If the file cannot be written.
    """
    if pipeline.run is not None:
        for line in _block(pipeline, pipeline.run, says):
            print_line(line, mode)
        add_step_summary(_markdown(pipeline, pipeline.run, says))
    if junit is not None:
        write_junit(junit, _TITLE, [_case(state, pipeline.run, code) for state in pipeline.stages])


def print_events(path: Path, *, after_bytes: int) -> None:
    """Print the events that a command has added to a file, which itself prints tables for people."""
    if path.exists():
        with path.open("rb") as file:
            file.seek(after_bytes)
            print(file.read().decode("utf-8", errors="replace"), end="", flush=True)


def _block(pipeline: Pipeline, run: Run, says: str | None) -> list[str]:
    """Give a line for each stage, the outcome, the run, and what to type next."""
    lines = ["".join(f"{cell:<{width}}" for cell, width in zip(row, (9, 13, 11, 0), strict=True)).rstrip()
             for row in _rows(pipeline, run)]  # fmt: skip
    after = pipeline.next_stage
    if pipeline.outcome is not None:
        lines.append(f"end   {pipeline.outcome}")
    elif after is not None:
        reason = f"{says} " if says else ""
        lines.append(f"end   {reason}not finished: the same command goes on with {after.stage}")
    lines.append(f"run   {shown_path(run.folder)}")
    if pipeline.outcome == "promoted":
        lines.append(f"next  lightkit history {_registered_name(run)}{_its_root(run)}")
    return lines


def _rows(pipeline: Pipeline, run: Run) -> list[tuple[str, str, str, str]]:
    return [
        (
            state.stage,
            _NOT_RUN if state.status == "pending" else state.status,
            shown_duration(state.seconds) if state.seconds is not None and state.status != "skipped" else "",
            _about(state, run),
        )
        for state in pipeline.stages
    ]


def _about(state: StageState, run: Run) -> str:
    """Say what came of a stage in a few words."""
    if state.stage == "gate" and state.status in ("done", "failed"):
        decision = read_json(run.folder / "gate.json") or {}
        reasons = decision.get("reasons")
        if isinstance(reasons, list) and reasons:
            return "; ".join(map(str, reasons))
    if state.stage == "fit" and state.status == "done":
        summary = read_json(run.summary_path) or {}
        return "stopped by the deadline" if summary.get("stopped_by") == "deadline" else ""
    if state.status == "failed" and (cause := _cause(state, run)):
        return cause
    attempt = f"attempt {state.attempts}" if state.attempts > 1 and not state.is_over else ""
    return ", ".join(text for text in (state.says or "", attempt) if text)


def _cause(state: StageState, run: Run) -> str:
    """Give the error that a stage has left in the events, in one line; empty where it left none."""
    began = datetime.fromisoformat(state.began) if state.began else datetime.max.replace(tzinfo=timezone.utc)
    ends = (
        [event for event in read_events(run.events_path) if event["event"] == "end"] if run.events_path.exists() else []
    )
    if not ends or ends[-1].get("exit_code") != state.exit_code or datetime.fromisoformat(ends[-1]["time"]) < began:
        return ""
    return " ".join(str(ends[-1].get("error") or "").split())


def _case(state: StageState, run: Run | None, code: int) -> Case:
    seconds = state.seconds or 0.0
    about = state.says or _NOT_RUN
    if run is not None:
        about = _about(state, run) or about
    if state.status in ("failed", "interrupted", "running"):
        told = f"{state.stage} has ended with exit code {code if state.exit_code is None else state.exit_code}: {about}"
        return Case(state.stage, seconds, failure=told)
    return Case(state.stage, seconds, skipped=about if state.status in ("skipped", "pending") else None)


def _markdown(pipeline: Pipeline, run: Run, says: str | None) -> str:
    outcome = pipeline.outcome or " ".join(text for text in (says, "not finished") if text)
    table = markdown_table(("stage", "status", "time", ""), _rows(pipeline, run))
    return f"### {_TITLE}: {run.name}/{run.id}: {outcome}\n\n{table}"


def _its_root(run: Run) -> str:
    """Say where the runs are, unless it is where `lightkit history` looks by itself."""
    root = run.folder.parent.parent
    return "" if root.resolve() == Path("runs").resolve() else f" --root {shlex.quote(shown_path(root))}"


def _registered_name(run: Run) -> str:
    """Give the name under which the gate has judged the run, else that of the job."""
    return str((read_json(run.folder / "gate.json") or {}).get("name") or run.name)
