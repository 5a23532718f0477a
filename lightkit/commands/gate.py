"""`lightkit gate`: whether a run is good enough to be promoted."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkit.cli.command_line import RUN_OPTIONS, get_run_argument, parse_options
from lightkit.cli.console import OutputMode, print_line
from lightkit.cli.stage_runner import open_run_context
from lightkit.errors import GateFailed
from lightkit.registry.gate import read_gate, require_rule
from lightkit.reports.text_table import format_table
from lightkit.runs.ci_report import Case, CiReport, markdown_table
from lightkit.runs.files import finite

HELP = """\
usage: lightkit gate RUN [--baseline MODEL] [-c FILE]... [--gate.KEY=value]...

Judge a run's best checkpoint by the config's `gate` block: its thresholds, those of single classes, the model that it
is compared with (the champion), and the best of the models promoted of late. Both models are scored in this process
by their own test or validation steps, on the same samples in the same order: those of the run's data as it is now,
prepared for each model as its own config says, with the classes of its own checkpoint.
The decision is written to gate.json in the run folder.

  RUN                 a run or latest
  --run RUN           the same
  --baseline MODEL    what it is compared with: an alias or a version of the registered model, a run, or null
  --ckpt_path CKPT    best, last or a file; default: best
  --tracking-uri URI  where MLflow is; default: where the training was tracked, else mlflow.db in the run root
  --json              print the decision as one JSON object
  --junit FILE        write each condition as a test case of JUnit
  --allow-empty       pass a run that there is no rule for: gate.metric alone, or nothing, in the config
  --trust             load checkpoints that hold more than tensors and plain values, and so may run code
  -c FILE             a layer on top of the run's config
  --quiet             print warnings and errors only

gate:
  metric: test/accuracy              # its first part names the split: test or val
  min: 0.8
  margin: 0.02                       # shown to be less than this worse than the baseline
  confidence: 0.95                   # of the margin, one-sided
  baseline: champion
  slices: {roses: 0.7}               # the value that a class has of the metric
  drift: {window: 5, max_drop: 0.03} # below the best of the last 5 promoted models

`lightkit fit --help gate` describes each key. Where nothing is promoted yet, the
thresholds decide alone.
Exit code 0: good enough; 2: wrong arguments, or the baseline cannot be had; 3: unknown classes in the data; 4: not good
enough; 75: MLflow does not answer, try again later.

lightkit gate latest --gate.metric=test/accuracy --gate.min=0.8
"""
_COLUMNS = ("metric", "challenger", "baseline", "expected", "verdict")


def gate(args: list[str]) -> int:
    """Judge a run, and return the exit code.

    Raises:
        ConfigError: If the arguments or the settings are wrong, or the baseline cannot be scored.
        GateFailed: If the run is not good enough.
        ServerAway: If MLflow does not answer.
    """
    line = parse_options(HELP, args, config=RUN_OPTIONS, most=1)
    run, options = get_run_argument(line), line.options
    baseline = [f"--gate.baseline={options['--baseline']}"] if "--baseline" in options else []
    junit = Path(options["--junit"]) if options.get("--junit") else None
    with CiReport("lightkit gate", junit, case="gate") as report:
        context = open_run_context(["--run", run, *line.config_args, *baseline], is_quiet="--json" in options)
        if "--allow-empty" not in options:
            require_rule(read_gate(context.resolved), " --allow-empty passes a run all the same.")
        from lightkit.cli.gate_evaluation import evaluate_gate  # it loads torch

        began = time.monotonic()
        record = evaluate_gate(context, tracking_uri=options.get("--tracking-uri"))
        is_json = "--json" in options
        _report(record, context.mode, report, seconds=time.monotonic() - began, is_json=is_json)
        if not record["passed"]:
            raise GateFailed("the gate says no: " + "; ".join(record["reasons"]))
    return 0


def _report(record: Mapping[str, Any], mode: OutputMode, report: CiReport, *, seconds: float, is_json: bool) -> None:
    """Print the decision, and write it to the page of the CI step and to JUnit."""
    rows, cases = [], []
    for check in record["checks"]:
        name, value, asks = check["name"], _format(check["challenger"]), check["asks"]
        baseline = "" if check["baseline"] is None else _format(check["baseline"])
        rows.append([name, value, baseline, asks, "passed" if check["passed"] else "FAILED"])
        failure = None if check["passed"] else f"{name} is {value}, expected {asks}"
        cases.append(Case(f"{name}: {asks}", seconds / len(record["checks"]), failure=failure))
    verdict = "passed" if record["passed"] else "not good enough"
    verdict = "nothing is judged" if record["metric"] is None else verdict
    samples = "no data"
    if data := record.get("data"):
        samples = f"{record['num_samples']} samples ({data['split']}, fingerprint {data['fingerprint'][:12]})"
        if (drop := record.get("smallest_drop")) is not None:
            samples += f"; the smallest drop that they can show is {drop:.2g}"
    if is_json:
        print(json.dumps(finite(record), ensure_ascii=False, default=str))
    elif mode in ("terminal", "plain"):
        for notice in record["notices"]:
            print_line(f"note  {notice}", mode)
        if rows:
            print_line(format_table(_COLUMNS, rows), mode)
            print_line(f"on    {samples}", mode)
        print_line(f"gate  {verdict}", mode)
    table = [markdown_table(_COLUMNS, rows)] if rows else []
    notices = [f"- {notice}" for notice in record["notices"]]
    report.add_page("\n\n".join([f"### Gate: {verdict}", f"{record['run']}, {samples}", *table, *notices]))
    report.write(cases or [Case("gate", seconds, skipped="nothing is judged: gate.metric is not set")])


def _format(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}" if abs(value) < 1000 else f"{value:.6g}"
