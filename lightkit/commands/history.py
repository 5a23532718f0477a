"""`lightkit history`: the promotions of a registered model."""

from __future__ import annotations

import json

from lightkit.cli.command_line import parse_options
from lightkit.cli.console import quiet_libraries
from lightkit.config.run_root import find_run_root
from lightkit.registry.promotion import Move, read_hold, read_moves
from lightkit.registry.store import address_of_root, check_model, open_registry
from lightkit.reports.text_table import format_table

HELP = """\
usage: lightkit history NAME [--json]

Print the promotion log of a registered model, oldest first: when, what, from which version to which, by whom, with
which score, and why. The log is in MLflow's registry, and nothing in it is written again. A move that it lacks, because
the alias was moved outside lightkit or by a process that was killed, is shown as one from outside. Below it stands who
holds an alias where it is (lightkit promote --hold).

  NAME                the registered model
  --root FOLDER       the run root, with the registry in its mlflow.db; default: LIGHTKIT_RUN__ROOT, else runs
  --tracking-uri URI  where MLflow is; default: MLFLOW_TRACKING_URI, else mlflow.db in the run root
  --json              print one JSON object a line

Exit code 0: printed, also where nothing was promoted yet; 2: wrong arguments, or there is no such model; 75: MLflow
does not answer, try again later.

lightkit history flowers
"""
_HEAD = ("time", "what", "version", "by", "score", "baseline", "reason")


def history(args: list[str]) -> int:
    """Print the promotion log, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or there is no such model.
        ServerAway: If MLflow does not answer.
    """
    line = parse_options(HELP, args, most=1)
    name = line.get_positional("the name of a registered model")
    address = address_of_root(line.options.get("--tracking-uri"), find_run_root(line.options.get("--root")))
    quiet_libraries()
    with open_registry(address, creates=False) as registry:
        check_model(registry, name)
        moves = read_moves(registry, name)
        aliases = dict.fromkeys(["champion", *(move.alias for move in moves)])
        holds = {alias: hold for alias in aliases if (hold := read_hold(registry, name, alias)) is not None}
    if "--json" in line.options:
        for move in moves:
            print(json.dumps(move.as_dict(), ensure_ascii=False))
    elif not moves:
        print(f"No promotion of {name} is recorded; `lightkit promote RUN --name {name}` promotes.")
    else:
        print(format_table(_HEAD, [_cells(move) for move in moves]))
    if "--json" not in line.options:
        for alias, hold in holds.items():
            print(hold.describe(name, alias))
    return 0


def _cells(move: Move) -> list[str]:
    what = f"{move.kind}{' by force' if move.forced else ''}"
    moment = move.time.replace("+00:00", "Z")
    versions = f"{move.before or '-'} -> {move.to}{'' if move.alias == 'champion' else f' ({move.alias})'}"
    scores = (move.scores.get(which) for which in ("challenger", "baseline"))
    score, baseline = ("" if score is None else f"{score:.4f}" for score in scores)
    return [moment, what, versions, move.by, f"{score} {move.metric or ''}".strip(), baseline, move.reason]
