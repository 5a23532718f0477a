"""`lightkit history`: the promotions of a registered model, or the models."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lightkit.cli.command_line import Invocation
from lightkit.cli.console import quiet_libraries
from lightkit.config.run_root import find_run_root
from lightkit.registry.promotion import Move, read_hold, read_moves
from lightkit.registry.store import (
    NO_MODELS,
    address_of_root,
    check_model,
    list_models,
    open_registry,
)
from lightkit.reports.text_table import format_table

_HEAD = ("time", "what", "version", "by", "score", "baseline", "reason")


def history(invocation: Invocation) -> int:
    """Print the promotion log of a model, or the registered models where none is named.

    Return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or there is no such model.
        ServerAway: If MLflow does not answer.
    """
    options = invocation.options
    address = address_of_root(options.get("tracking-uri"), find_run_root(options.get("root")))
    quiet_libraries()
    with open_registry(address, creates=False, writes=False) as registry:
        if not invocation.inputs:
            _print_models(
                list_models(registry), is_json=invocation.has("json"), where=address.shown
            )
            return 0
        name = invocation.inputs[0]
        check_model(registry, name)
        moves = read_moves(registry, name)
        aliases = dict.fromkeys(["champion", *(move.alias for move in moves)])
        holds = {alias: read_hold(registry, name, alias) for alias in aliases}
    if invocation.has("json"):
        for move in moves:
            print(json.dumps(move.as_dict(), ensure_ascii=False))
        return 0
    if moves:
        print(format_table(_HEAD, [_cells(move) for move in moves]))
    else:
        print(f"No promotion of {name} is recorded; `lightkit promote RUN --name {name}` promotes.")
    for alias, hold in holds.items():
        if hold is not None:
            print(hold.describe(name, alias))
    return 0


def _print_models(models: Mapping[str, Mapping[str, str]], *, is_json: bool, where: str) -> None:
    """Print the registered models, each with the versions of its aliases, the champion's first."""
    if is_json:
        for name, aliases in models.items():
            print(json.dumps({"name": name, "aliases": aliases}, ensure_ascii=False))
    elif models:
        rows = []
        for name, aliases in models.items():
            others = [
                f"{alias} {version}" for alias, version in aliases.items() if alias != "champion"
            ]
            rows.append([name, aliases.get("champion", "-"), ", ".join(others)])
        print(format_table(("model", "champion", "other aliases"), rows))
    else:
        print(f"no registered models at {where}: {NO_MODELS}")


def _cells(move: Move) -> list[str]:
    what = f"{move.kind}{' by force' if move.forced else ''}"
    moment = move.time.replace("+00:00", "Z")
    versions = (
        f"{move.before or '-'} -> {move.to}{'' if move.alias == 'champion' else f' ({move.alias})'}"
    )
    scores = (move.scores.get(which) for which in ("challenger", "baseline"))
    score, baseline = ("" if score is None else f"{score:.4f}" for score in scores)
    return [
        moment,
        what,
        versions,
        move.by,
        f"{score} {move.metric or ''}".strip(),
        baseline,
        move.reason,
    ]
