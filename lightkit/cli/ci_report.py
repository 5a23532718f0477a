"""What CI systems show of a command: the page of a fit, the page and the test cases of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightkit import runs
from lightkit.config import shown_path
from lightkit.errors import ConfigError, LightkitError
from lightkit.runs.ci_report import Case, add_step_summary, markdown_table
from lightkit.runs.deadline import format_duration

__all__ = ["add_fit_page", "check_cases", "check_page"]

_NOT_METRICS = ("epoch", "step")
_LONGEST_NAME = 120


def add_fit_page(run: runs.Run) -> None:
    """Add how a fit has ended to the summary of the CI step, if there is one: metrics, best checkpoint, run."""
    record = runs.read_json(run.summary_path)
    if record is not None:  # a mistake that showed before training has left no folder
        add_step_summary(_fit_page(record, run))


def check_cases(files: Sequence[str], error: LightkitError | None, seconds: float) -> list[Case]:
    """Give one test case a mistake, or one that passes.

    Args:
        files: The config files.
        error: What is wrong; None for nothing.
        seconds: Time that the check took.
    """
    subject = ", ".join(files) or "command line"
    if error is None:
        return [Case(subject, seconds)]
    mistakes = _mistakes(error)
    cases: list[Case] = []
    for says in mistakes:
        name = f"{subject}: {_key_of(says)}"
        same = sum(case.name.partition(" (")[0] == name for case in cases)
        cases.append(Case(f"{name} ({same + 1})" if same else name, seconds / len(mistakes), failure=says))
    return cases


def check_page(files: Sequence[str], error: LightkitError | None) -> str:
    """Write the result of a check in Markdown."""
    head = f"### lightkit check: {', '.join(files) or 'command line'}\n\n"
    if error is None:
        return f"{head}no mistakes found"
    mistakes = _mistakes(error)
    blocks = [f"```\n{says.replace('```', '` ` `')}\n```" for says in mistakes]
    return f"{head}{len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''}\n\n" + "\n".join(blocks)


def _mistakes(error: LightkitError) -> list[str]:
    return [str(each) for each in error.problems] if isinstance(error, ConfigError) else str(error).split("\nerror: ")


def _key_of(says: str) -> str:
    """Give the key that a mistake is about, or its first words."""
    return says.split("\n", 1)[0].partition(": ")[0][:_LONGEST_NAME]


def _fit_page(record: Mapping[str, Any], run: runs.Run) -> str:
    facts: list[tuple[str, Any]] = [("run", f"`{shown_path(run.folder)}`")]
    best, paths = record.get("best") or {}, record.get("paths") or {}
    if checkpoint := paths.get("best_checkpoint") or paths.get("last_checkpoint"):
        of_best = f": {best['monitor']} {best['value']:.4g} in epoch {best['epoch'] + 1}" if best.get("value") else ""
        facts.append(("checkpoint", f"`{checkpoint}`{of_best}"))
    facts += [("epochs", record.get("epochs")), ("steps", record.get("steps"))]
    seconds = (record.get("durations") or {}).get("total")
    facts += [("time", format_duration(seconds))] if isinstance(seconds, (int, float)) else []
    facts += [("error", record["error"])] if record.get("error") else []
    code = record.get("exit_code")
    parts = [
        f"### lightkit fit: {record.get('run')} {record.get('status')}" + (f" (exit code {code})" if code else ""),
        markdown_table(["", ""], facts),
    ]
    if rows := _metric_rows(record.get("metrics") or {}):
        parts.append(markdown_table(["metric", "best epoch", "last epoch"], rows))
    return "\n\n".join(parts)


def _metric_rows(metrics: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Any, Any]]:
    best, last = metrics.get("best") or {}, metrics.get("last") or {}
    names = [name for name in dict.fromkeys([*best, *last]) if name not in _NOT_METRICS]
    return [(name, best.get(name, ""), last.get(name, "")) for name in names]
