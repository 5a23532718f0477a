"""`lightkit rollback`: the champion is the one before again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from lightkit.cli.command_line import Takes, parse_command_line
from lightkit.cli.console import quiet_libraries
from lightkit.cli.registry_address import address_of_root
from lightkit.errors import ConfigError
from lightkit.registry.champion import check_registered, versions_of
from lightkit.registry.names import check_alias
from lightkit.registry.promoted import last_scored
from lightkit.registry.promotion import Move, PromotionLog, champions
from lightkit.registry.store import Store, open_store

__all__ = ["rollback"]

_USAGE = "usage: lightkit rollback NAME [--to VERSION] [--reason TEXT] [--alias champion]"
_HELP = f"""\
{_USAGE}

Let the champion be the version before, by the promotion log. Twice goes back two: a version that was rolled back from
is not come back to. One that was deleted is passed over.

  NAME                the registered model
  --to VERSION        go to this version instead
  --reason TEXT       for the log
  --alias ALIAS       the alias that moves; default: champion
  --root FOLDER       the run root, in whose mlflow.db the registry is by default; default: runs
  --tracking-uri URI  where MLflow is; default: MLFLOW_TRACKING_URI, else mlflow.db in the run root
  --json              print what was done as one JSON object
  --quiet             print warnings and errors only

Exit code 0: done; 2: wrong arguments, or there is no version to go back to; 75: MLflow does not answer, or somebody
else promotes, try again later.

lightkit rollback flowers --reason "roses are taken for tulips"
"""
_OWN: dict[str, Takes] = {
    "--to": "value",
    "--reason": "value",
    "--alias": "value",
    "--root": "value",
    "--tracking-uri": "value",
    "--json": "switch",
    "--quiet": "switch",
}


def rollback(words: list[str]) -> int:
    """Move an alias back, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or there is nothing to go back to.
        RunLocked: If another process promotes.
        ServerAway: If MLflow does not answer.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    line = parse_command_line("rollback", words, usage=_USAGE, own=_OWN)
    name = line.get_positional("rollback", "the name of a registered model", _USAGE)
    said = line.options
    alias = check_alias(said.get("--alias", "champion"))
    address = address_of_root(said.get("--tracking-uri"), Path(said.get("--root", "runs")))
    quiet_libraries()
    with open_store(address, makes=False) as store:
        check_registered(store, name)
        moved, passed_over = _moved(store, name, alias, said.get("--to"), said.get("--reason", ""))
    if "--json" in said:
        print(json.dumps({"name": name, "passed_over": passed_over, **moved.as_dict()}, ensure_ascii=False))
    elif "--quiet" not in said:
        for version in passed_over:
            print(f"note  version {version} was deleted, and is passed over")
        print(f"moved {name}@{alias} from version {moved.before} back to version {moved.to}")
    return 0


def _moved(store: Store, name: str, alias: str, to: str | None, reason: str) -> tuple[Move, list[str]]:
    there = {str(version.version): version for version in versions_of(store, name)}
    with store.busy(f"move {name}@{alias}"):
        log = PromotionLog(store, name)
        current = log.current(alias)
        if current is None:
            raise ConfigError(f"rollback: {name} has no {alias}. `lightkit promote RUN --name {name}` makes one.")
        target, passed_over = (to, []) if to is not None else _before(log, alias, current, there.keys())
        if target is None:
            raise ConfigError(
                f"rollback: the promotion log of {name} has no version before {current}. Name one with --to; there "
                f"are {', '.join(there)}."
            )
        if target not in there:
            raise ConfigError(f"rollback: --to: {name} has no version {target}. Its versions: {', '.join(there)}.")
        if target == current:
            raise ConfigError(f"rollback: --to: {name}@{alias} is version {current} already.")
        run = there[target].tags.get("run")
        return log.move(_back(log, Move("rollback", alias, current, target, reason=reason, run=run))), passed_over


def _back(log: PromotionLog, move: Move) -> Move:
    """Add the score that its version had when it was promoted."""
    if (promoted := last_scored(log.moves(), move.to)) is None:
        return move
    scores = {which: score for which, score in promoted.scores.items() if which == "challenger"}
    return replace(move, metric=promoted.metric, scores=scores, data=promoted.data, num_samples=promoted.num_samples)


def _before(log: PromotionLog, alias: str, current: str, there: object) -> tuple[str | None, list[str]]:
    """Find the newest version before the current one that is there, and those that are not."""
    stack = champions(log.moves(), alias)
    if current in stack:  # else somebody has moved the alias by other means
        stack = stack[: len(stack) - 1 - stack[::-1].index(current)]
    passed_over: list[str] = []
    for version in reversed(stack):
        if version in there:  # type: ignore[operator]
            return version, passed_over
        passed_over.append(version)
    return None, passed_over
