"""`lightkit rollback`: the previous champion is the champion again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightkit.cli.command_line import Invocation
from lightkit.cli.console import quiet_libraries
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError
from lightkit.registry.promotion import (
    Move,
    alias_version,
    champions,
    last_scored,
    move_alias,
    note_in_run_folders,
    read_moves,
)
from lightkit.registry.store import (
    address_of_root,
    check_alias,
    check_model,
    list_versions,
    open_registry,
)


def rollback(invocation: Invocation) -> int:
    """Move an alias back, and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or there is nothing to go back to.
        RunLocked: If another process promotes.
        ServerAway: If MLflow does not answer.
    """
    options = invocation.options
    name = invocation.get_input("the name of a registered model")
    alias = check_alias(invocation.get("alias"))
    address = address_of_root(options.get("tracking-uri"), find_run_root(options.get("root")))
    quiet_libraries()
    with open_registry(address, creates=False) as registry:
        check_model(registry, name)
        versions = {str(version.version): version for version in list_versions(registry, name)}
        with registry.attempt(f"move {name}@{alias}"):
            current = alias_version(registry, name, alias)
            moves = read_moves(registry, name)
            if current is None:
                raise ConfigError(
                    f"rollback: {name} has no {alias}. `lightkit promote"
                    f" RUN --name {name}` makes one."
                )
            to = options.get("to") or _find_version_before(
                current, champions(moves, alias), versions, name=name
            )
            if to not in versions:
                raise ConfigError(
                    f"rollback: --to: {name} has no version {to}. Its versions:"
                    f" {', '.join(versions)}."
                )
            if to == current:
                raise ConfigError(f"rollback: --to: {name}@{alias} is version {current} already.")
            run = versions[to].tags.get("run")
            reason = options.get("reason", "")
            move = Move("rollback", alias, current, to, reason=reason, run=run)
            # with the score that it was promoted with
            if (scored := last_scored(moves, to)) is not None:
                scores = {
                    which: score for which, score in scored.scores.items() if which == "challenger"
                }
                move = replace(
                    move,
                    scores=scores,
                    metric=scored.metric,
                    data=scored.data,
                    num_samples=scored.num_samples,
                )
            move = move_alias(registry, name, move)
        note_in_run_folders(registry, name, move)
    _print_move(move, name, options)
    return 0


def _print_move(move: Move, name: str, options: Mapping[str, Any]) -> None:
    if "json" in options:
        print(json.dumps({"name": name, **move.as_dict()}, ensure_ascii=False))
    elif "quiet" not in options:
        print(f"moved {name}@{move.alias} from version {move.before} back to version {move.to}")


def _find_version_before(
    current: str, moved_to: Sequence[str], versions: Collection[str], *, name: str
) -> str:
    """Find the version that was the champion before the current one.

    Args:
        current: The version that the alias points to.
        moved_to: Versions that it has pointed to, oldest first.
        versions: Versions that there are.
        name: Name of the model.

    Raises:
        ConfigError: If there is none.
    """
    earlier = list(moved_to)
    if current in earlier:  # else the alias was moved by another program
        earlier = earlier[: len(earlier) - 1 - earlier[::-1].index(current)]
    earlier = [version for version in earlier if version in versions]  # the others were deleted
    if not earlier:
        others = [version for version in versions if version != current]
        raise ConfigError(
            f"rollback: the promotion log of {name} has no version before {current}. "
            + (
                f"Name one with --to; there are {', '.join(others)}."
                if others
                else "There is no other version."
            )
        )
    return earlier[-1]
