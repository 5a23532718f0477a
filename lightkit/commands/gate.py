"""`lightkit gate`: whether a run is good enough to be promoted."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.cli.command_line import Invocation
from lightkit.cli.console import OutputMode, print_line
from lightkit.cli.heap import freezing_imports
from lightkit.cli.stage_runner import open_run_config
from lightkit.config import Flag
from lightkit.errors import GateFailed, format_count
from lightkit.registry.gate import explain_refusal, read_gate, require_rule
from lightkit.reports.text_table import format_table
from lightkit.runs.ci_report import Case, CiReport, markdown_table
from lightkit.runs.files import finite

_COLUMNS = ("metric", "challenger", "baseline", "expected", "verdict")


def gate(invocation: Invocation) -> int:
    """Judge a run, and return the exit code.

    Raises:
        ConfigError: If the arguments or the settings are wrong, or the baseline cannot be scored.
        GateFailed: If the run is not good enough.
        ServerAway: If MLflow does not answer.
    """
    invocation.raise_errors()
    options = invocation.options
    of_run = invocation.with_options(run=invocation.get_run())
    if "baseline" in options:
        baseline = Flag(
            "gate.baseline", options["baseline"], f"--gate.baseline={options['baseline']}"
        )
        of_run = of_run._replace(overrides=(*of_run.overrides, baseline))
    junit = Path(options["junit"]) if options.get("junit") else None
    with CiReport("lightkit gate", junit, case="gate") as report:
        stage_config = open_run_config(of_run, is_quiet=invocation.has("json"))
        if not invocation.has("allow-empty"):
            require_rule(
                read_gate(stage_config.resolved), " --allow-empty passes a run all the same."
            )
        with freezing_imports():
            from lightkit.cli.gate_evaluation import evaluate_gate  # it loads torch

        began = time.monotonic()
        record = evaluate_gate(stage_config, tracking_uri=options.get("tracking-uri"))
        is_json = invocation.has("json")
        _report(
            record, stage_config.mode, report, seconds=time.monotonic() - began, is_json=is_json
        )
        if not record["passed"]:
            assert stage_config.base is not None  # the run that is judged
            raise GateFailed(explain_refusal(record, stage_config.base))
    return 0


def _report(
    record: Mapping[str, Any], mode: OutputMode, report: CiReport, *, seconds: float, is_json: bool
) -> None:
    """Print the decision, and write it to the page of the CI step and to JUnit."""
    rows = [_format_check(check) for check in record["checks"]]
    verdict = "nothing is judged"
    if record["metric"] is not None:
        verdict = "passed" if record["passed"] else "not good enough"
    samples = _describe_samples(record)
    if is_json:
        print(json.dumps(finite(record), ensure_ascii=False, default=str))
    elif mode in ("terminal", "plain"):
        _print_decision(record, rows, mode, verdict=verdict, samples=samples)
    page = [f"### Gate: {verdict}", f"{record['run']}, {samples}"]
    if rows:
        page.append(markdown_table(_COLUMNS, rows))
    page += [f"- {notice}" for notice in record["notices"]]
    report.add_page("\n\n".join(page))
    report.write(_list_cases(rows, seconds))


def _format_check(check: Mapping[str, Any]) -> list[str]:
    """Write a check as a row of the table."""
    baseline = "" if check["baseline"] is None else _format(check["baseline"])
    verdict = "passed" if check["passed"] else "FAILED"
    return [check["name"], _format(check["challenger"]), baseline, check["asks"], verdict]


def _list_cases(rows: Sequence[Sequence[str]], seconds: float) -> list[Case]:
    """List the checks for JUnit."""
    cases = []
    for name, value, _, asks, verdict in rows:
        failure = None if verdict == "passed" else f"{name} is {value}, expected {asks}"
        cases.append(Case(f"{name}: {asks}", seconds / len(rows), failure=failure))
    return cases or [Case("gate", seconds, skipped="nothing is judged: gate.metric is not set")]


def _print_decision(
    record: Mapping[str, Any],
    rows: Sequence[Sequence[str]],
    mode: OutputMode,
    *,
    verdict: str,
    samples: str,
) -> None:
    """Print the notices, the table of the checks, and the verdict."""
    for notice in record["notices"]:
        print_line(f"note  {notice}", mode)
    if rows:
        print_line(format_table(_COLUMNS, rows), mode)
        print_line(f"on    {samples}", mode)
    print_line(f"gate  {verdict}", mode)


def _describe_samples(record: Mapping[str, Any]) -> str:
    """Describe the samples of a decision, and the smallest difference that so many can show."""
    data = record.get("data")
    if not data:
        return "no data"
    number = format_count(record["num_samples"], "sample")
    samples = f"{number} ({data['split']}, fingerprint {data['fingerprint'][:12]})"
    drop = record.get("smallest_drop")
    if drop is not None:
        samples += f"; the smallest drop that they can show is {drop:.2g}"
    return samples


def _format(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}" if abs(value) < 1000 else f"{value:.6g}"
