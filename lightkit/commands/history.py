"""`lightkit history`: the promotions of a registered model."""

from __future__ import annotations

import json
from pathlib import Path

from lightkit.cli.command_line import Invocation
from lightkit.cli.console import format_table, quiet_libraries
from lightkit.registry.promotion import Move, read_hold, read_moves
from lightkit.registry.store import address_of_root, check_model, open_registry

_HEAD = ("time", "what", "version", "by", "score", "baseline", "reason")


def history(invocation: Invocation) -> int:
    """Print the promotion log, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or there is no such model.
        ServerAway: If MLflow does not answer.
    """
    options = invocation.options
    name = invocation.get_input("the name of a registered model")
    address = address_of_root(options.get("tracking-uri"), Path(options.get("root", "runs")))
    quiet_libraries()
    with open_registry(address, creates=False) as registry:
        check_model(registry, name)
        moves = read_moves(registry, name)
        aliases = dict.fromkeys(["champion", *(move.alias for move in moves)])
        holds = {alias: hold for alias in aliases if (hold := read_hold(registry, name, alias)) is not None}
    if invocation.has("json"):
        for move in moves:
            print(json.dumps(move.as_dict(), ensure_ascii=False))
    elif not moves:
        print(f"No promotion of {name} is recorded; `lightkit promote RUN --name {name}` promotes.")
    else:
        print(format_table(_HEAD, [_cells(move) for move in moves]))
    if not invocation.has("json"):
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
