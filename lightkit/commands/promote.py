"""`lightkit promote`: a run that passes its gate becomes the champion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightkit.cli.command_line import RUN_OPTIONS, Takes, get_run_argument, parse_command_line
from lightkit.commands.gate import session_of
from lightkit.registry.names import check_alias, check_name
from lightkit.runs.junit import failure_told

__all__ = ["PromoteOptions", "promote"]

_USAGE = "usage: lightkit promote RUN [--name NAME] [--alias champion] [--reason TEXT] [--force]"
_HELP = f"""\
{_USAGE}

Let an alias of MLflow's registry, the champion, point to a run's model. The run must have passed its gate with this
checkpoint, these settings and today's champion; where gate.json is of others, older than a day, or missing, it is
judged now. A run that is not registered is registered first, as `lightkit register` does, with the alias challenger.
The move is written to the promotion log in the registry once it is done. If the command is killed in between, the same
command writes what is missing.

  RUN                 a run or latest; also --run RUN
  --name NAME         of the registered model; default: gate.name, else the run's name
  --alias ALIAS       the alias that moves; default: champion
  --reason TEXT       for the log
  --force             promote what has not passed, which the log tells
  --tracking-uri URI  where MLflow is; default: where the training was tracked, else mlflow.db in the run root
  --ckpt_path CKPT    best, last or a file; default: best
  --json              print what was done as one JSON object
  --junit FILE        write it as a test case of JUnit
  --trust             load checkpoints that hold more than tensors and plain values, and so may run code
  -c FILE             a layer on top of the run's config
  --quiet             print warnings and errors only

`lightkit history NAME` prints the log, and `lightkit rollback NAME` goes back.
Exit code 0: it is the champion; 2: wrong arguments, or MLflow refuses; 4: not good enough; 5: the model cannot be
written so that it answers as before; 75: MLflow does not answer, or somebody else promotes, try again later.

lightkit promote latest --name flowers --reason "retrained on the photos of November"
"""
_OWN: dict[str, Takes] = {
    "--run": "value",
    "--name": "value",
    "--alias": "value",
    "--reason": "value",
    "--force": "switch",
    "--tracking-uri": "value",
    "--json": "switch",
    "--junit": "value",
}


@dataclass(frozen=True)
class PromoteOptions:
    """What is promoted, and how.

    Args:
        name: Registered model, if said.
        alias: The alias that moves.
        reason: For the log.
        is_forced: Whether the gate is passed over.
        tracking_uri: Where MLflow is, if said.
        is_json: Whether what was done is printed for programs.
        junit: File for JUnit, if any.
    """

    name: str | None = None
    alias: str = "champion"
    reason: str = ""
    is_forced: bool = False
    tracking_uri: str | None = None
    is_json: bool = False
    junit: Path | None = None


def promote(words: list[str]) -> int:
    """Promote a run, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, there is no such run, or MLflow refuses.
        GateFailed: If the run is not good enough.
        ExportError: If the model cannot be written so that it gives the same answers.
        RunLocked: If another process promotes.
        ServerAway: If MLflow does not answer.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    line = parse_command_line("promote", words, usage=_USAGE, own=_OWN, config=RUN_OPTIONS)
    said, run = line.options, get_run_argument("promote", line, _USAGE)
    options = PromoteOptions(
        name=check_name(said["--name"]) if "--name" in said else None,
        alias=check_alias(said.get("--alias", "champion")),
        reason=said.get("--reason", ""),
        is_forced="--force" in said,
        tracking_uri=said.get("--tracking-uri"),
        is_json="--json" in said,
        junit=Path(said["--junit"]) if said.get("--junit") else None,
    )
    with failure_told(options.junit, "lightkit promote", "promote"):
        session = session_of(run, list(line.config_words), is_json=options.is_json)
        from lightkit.cli.promoting import promote_run  # here: it may load torch

        return promote_run(session, options)
