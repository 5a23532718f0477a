"""`lightkit gate`: whether a run is good enough to be promoted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightkit.cli.command_line import RUN_OPTIONS, Takes, get_run_argument, parse_command_line
from lightkit.cli.context import RunContext
from lightkit.cli.full_validation import open_context
from lightkit.runs.junit import failure_told
from lightkit.runs.signals import SignalWatch

__all__ = ["GateOptions", "gate", "session_of"]

_USAGE = "usage: lightkit gate RUN [--baseline MODEL] [-c FILE]... [--gate.KEY=value]..."
_HELP = f"""\
{_USAGE}

Judge a run's best checkpoint by the config's `gate` block: its thresholds, those of single classes, the model that it
is compared with (the champion), and the best of the models promoted of late. Both models are scored in this process
by their own test or validation steps, on the same samples in the same order: those of the run's data as it is now.
The decision is written to gate.json in the run folder.

  RUN                 a run or latest; also --run RUN
  --baseline MODEL    what it is compared with: an alias or a version of the registered model, a run, or null
  --ckpt_path CKPT    best, last or a file; default: best
  --tracking-uri URI  where MLflow is; default: where the training was tracked, else mlflow.db in the run root
  --json              print the decision as one JSON object
  --junit FILE        write each condition as a test case of JUnit
  --trust             load checkpoints that hold more than tensors and plain values, and so may run code
  -c FILE             a layer on top of the run's config
  --quiet             print warnings and errors only

gate:
  metric: test/accuracy              # its first part names the split: test or val
  min: 0.8
  max_drop: 0.01                     # below the baseline
  baseline: champion
  slices: {{roses: 0.7}}               # the metric on the samples of a class
  drift: {{window: 5, max_drop: 0.03}} # below the best of the last 5 promoted models

`lightkit fit --help gate` describes each key. Where nothing is promoted yet, the
thresholds decide alone.
Exit code 0: good enough; 2: wrong arguments, or the baseline cannot be had; 4: not good enough; 75: MLflow does not
answer, try again later.

lightkit gate latest --gate.metric=test/accuracy --gate.min=0.8
"""
_OWN: dict[str, Takes] = {
    "--run": "value",
    "--baseline": "value",
    "--tracking-uri": "value",
    "--junit": "value",
    "--json": "switch",
}


@dataclass(frozen=True)
class GateOptions:
    """How a run is judged.

    Args:
        tracking_uri: Where MLflow is, if said.
        junit: File for JUnit, if any.
        is_json: Whether the decision is printed for programs.
    """

    tracking_uri: str | None = None
    junit: Path | None = None
    is_json: bool = False


def gate(words: list[str]) -> int:
    """Judge a run, and return the exit code.

    Raises:
        ConfigError: If the arguments or the settings are wrong, or the baseline cannot be scored.
        GateFailed: If the run is not good enough.
        ServerAway: If MLflow does not answer.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    line = parse_command_line("gate", words, usage=_USAGE, own=_OWN, config=RUN_OPTIONS)
    said, run = line.options, get_run_argument("gate", line, _USAGE)
    baseline = [f"--gate.baseline={said['--baseline']}"] if "--baseline" in said else []
    junit = said.get("--junit")
    options = GateOptions(said.get("--tracking-uri"), Path(junit) if junit else None, "--json" in said)
    with failure_told(options.junit, "lightkit gate", "gate"):
        session = session_of(run, [*line.config_words, *baseline], is_json=options.is_json)
        from lightkit.cli.gating import gate_run  # here: it loads torch

        return gate_run(session, options)


def session_of(run: str, words: list[str], *, is_json: bool) -> RunContext:
    """Open a session on a run, as `lightkit export` does: on one process, wherever it was trained."""
    session = open_context("export", ["--run", run, *words], SignalWatch())
    session.seat = None
    if is_json:
        session.mode = "quiet"
    return session
