"""What is done with a gate's decision: it is kept, told to notifiers, to people, to programs and to CI."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightkit import runs
from lightkit.cli.console import print_line
from lightkit.cli.notifications import build_notifiers
from lightkit.cli.redaction import RedactedEventStream, redact
from lightkit.cli.tables import print_table
from lightkit.commands.gate import GateOptions
from lightkit.errors import LightkitError
from lightkit.registry.gate import RECORD, Check, Decision
from lightkit.runs.files import finite
from lightkit.runs.junit import Case, write_junit
from lightkit.runs.step_summary import add_step_summary, markdown_table

if TYPE_CHECKING:
    from lightkit.cli.context import RunContext

__all__ = ["decided", "tell_decision"]

_HEAD = ("metric", "challenger", "baseline", "expected", "verdict")


def decided(decision: Decision, session: RunContext, run: runs.Run) -> None:
    """Write gate.json and the event, and tell the config's notifiers."""
    record = redact(session.resolved, decision.as_dict())
    runs.write_json(run.folder / RECORD, record)
    RedactedEventStream(run.events_path, session.resolved).write(
        "gate",
        passed=decision.passed,
        scores=record["scores"],
        reasons=record["reasons"],
        metric=decision.metric,
        baseline=decision.baseline,
        num_samples=decision.num_samples,
        slices=record["slices"],
    )
    with runs.activate(run):
        _tell_notifiers(record, session)


def tell_decision(decision: Decision, session: RunContext, options: GateOptions, *, seconds: float) -> None:
    """Print the decision, and write what CI reads."""
    mask = session.resolved.masked
    rows = [[mask(cell) for cell in _row(check)] for check in decision.checks]
    notices = [mask(str(notice)) for notice in decision.about.get("notices", ())]
    if options.is_json:
        print(mask(json.dumps(finite(decision.as_dict()), ensure_ascii=False, default=str)))
    elif session.mode in ("terminal", "plain"):
        for notice in notices:
            print_line(f"note  {notice}", session.mode)
        if rows:
            print_table(_HEAD, rows, is_terminal=session.mode == "terminal", style=_style)
            print_line(f"on    {mask(_samples(decision))}", session.mode)
        print_line(f"gate  {_verdict(decision)}", session.mode)
    if options.junit is not None:
        write_junit(options.junit, "lightkit gate", _cases(decision, seconds))
    verdict = f"### Gate: {_verdict(decision)}\n\n{decision.run}, {_samples(decision)}"
    table = markdown_table(_HEAD, rows) if rows else ""
    add_step_summary(mask("\n\n".join([verdict, table, *(f"- {notice}" for notice in notices)])))


def _row(check: Check) -> list[str]:
    return [
        check.name, _number(check.challenger), "" if check.baseline is None else _number(check.baseline),
        check.asks, "passed" if check.passed else "FAILED",
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}" if abs(value) < 1000 else f"{value:.6g}"


def _style(row: Sequence[str]) -> str | None:
    return None if row[-1] == "passed" else "red"


def _verdict(decision: Decision) -> str:
    if decision.metric is None:
        return "nothing is judged"
    return "passed" if decision.passed else "not good enough"


def _samples(decision: Decision) -> str:
    data: Mapping[str, Any] = decision.about.get("data") or {}
    fingerprint = str(data.get("fingerprint", ""))[:12]
    return f"{decision.num_samples} samples ({data.get('split', '')}, fingerprint {fingerprint})" if data else "no data"


def _cases(decision: Decision, seconds: float) -> list[Case]:
    if not decision.checks:
        return [Case("gate", seconds, skipped="nothing is judged: gate.metric is not set")]
    each = seconds / len(decision.checks)
    return [
        Case(
            f"{check.name}: {check.asks}",
            each,
            failure=None if check.passed else f"{check.name} is {_number(check.challenger)}, expected {check.asks}",
        )
        for check in decision.checks
    ]


def _tell_notifiers(record: Mapping[str, Any], session: RunContext) -> None:
    """Tell the config's notifiers; one that cannot be built is warned of, for the decision stands."""
    try:
        notifiers = [notifier for _, notifier in build_notifiers(session.resolved)]
    except LightkitError as error:
        logging.getLogger("lightkit").warning("nobody is told of the gate: %s", error)
        return
    for notifier in notifiers:
        notifier.gate_decided(record)
    for notifier in notifiers:
        notifier.begin_close()
    for notifier in notifiers:
        notifier.close()
