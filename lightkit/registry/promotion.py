"""Moves of an alias of the registry, and the log of these moves. No torch.

The log is in the registry, as tags of the registered model, so that all users of the registry share it. A move has one
tag, ``lightkit.promotion.NUMBER.TOKEN``, which is written after the alias has moved and never again. A move without a
record, of a process that was killed or of another program, shows in that the alias, or the version before the next
move, is not where the log has left it: `read_moves` reports it as a move from outside.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError, RunLocked
from lightkit.loggers.mlflow_address import mask_password
from lightkit.loggers.mlflow_database import exclusive
from lightkit.registry.store import Registry, list_versions, read_aliases
from lightkit.runs.files import finite, read_json, write_json
from lightkit.runs.index import PROMOTED

OUTSIDE = "outside"
"""Kind of a move without a record."""
_KEY = re.compile(r"lightkit\.promotion\.(\d+)\.[0-9a-f]+")
_MAX_TAG_CHARS = 5000  # the smallest limit of a tag among MLflow's stores
_NUM_ROLLBACK = 2  # versions to keep: the one that an alias points to, and the one before


@dataclass(frozen=True)
class Move:
    """One move of an alias.

    Args:
        kind: ``promote``, ``rollback`` or ``outside``.
        alias: The alias.
        before: Version that it pointed to; None for none.
        to: Version that it points to since then.
        by: User and host, or the actor of a CI job.
        reason: The user's reason.
        run: Run of the new version, as ``name/id``.
        metric: Metric that was judged.
        scores: Its value for ``challenger`` and ``baseline``.
        data: Fingerprint of the samples of the scores.
        num_samples: Number of these.
        forced: Whether the gate was bypassed.
        time: ISO 8601, UTC.
        number: Its place in the log, from 1; 0 without a record.
    """

    kind: str
    alias: str
    before: str | None
    to: str
    by: str = ""
    reason: str = ""
    run: str | None = None
    metric: str | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    data: str | None = None
    num_samples: int | None = None
    forced: bool = False
    time: str = ""
    number: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return its fields for programs; the version before is called ``from``."""
        return {"from" if name == "before" else name: value for name, value in asdict(self).items()}


def alias_version(registry: Registry, name: str, alias: str) -> str | None:
    """Return the version that an alias points to; None for none, or where there is no such model."""
    return (read_aliases(registry, name) or {}).get(alias)


def find_rejection(moves: Sequence[Move], alias: str, version: str) -> Move | None:
    """Return the move by which a version was rolled back, if the alias has not pointed to it since then."""
    about = [move for move in moves if move.alias == alias and version in (move.before, move.to)]
    return about[-1] if about and about[-1].kind == "rollback" and about[-1].before == version else None


def note_in_run_folders(registry: Registry, name: str, move: Move) -> None:
    """Write a move to ``promoted.json`` of the run that an alias points to now, and of those that it has left.

    `lightkit runs` marks the champion by it, and `lightkit gc` asks the registries in it. Run folders on other machines
    are left alone.

    Args:
        registry: The registry.
        name: The registered model.
        move: The move.
    """
    uri = mask_password(registry.uri)
    for version in list_versions(registry, name):
        file, is_champion = Path(version.tags.get("run_folder", "")) / PROMOTED, str(version.version) == move.to
        noted = read_json(file) or {}
        if not file.parent.is_absolute() or not (file.parent.is_dir() if is_champion else noted):
            continue
        others = {*noted.get("aliases", [])} - {move.alias}
        noted["aliases"] = sorted(others | {move.alias} if is_champion else others)
        if is_champion:
            registries = sorted({*(noted.get("registries") or []), uri})
            noted |= {"schema": 1, "name": name, "registries": registries, **move.as_dict()}
        write_json(file, noted)


def read_moves(registry: Registry, name: str) -> list[Move]:
    """Read all moves of a registered model's aliases, oldest first, with those of the kind `OUTSIDE`.

    Aliases that were never promoted are left out: `lightkit register` sets such aliases without a record.
    """
    with registry.attempt(f"read the promotions of {name!r}"):
        model = registry.client.get_registered_model(name)
    found: list[Move] = []
    last: dict[str, Move] = {}

    def add_unrecorded(alias: str, version: str | None) -> None:
        if alias in last and version is not None and last[alias].to != version:
            reason = "moved outside lightkit, or by a process that was killed"
            found.append(Move(OUTSIDE, alias, last[alias].to, version, reason=reason))

    for key in sorted(model.tags):
        if (matched := _KEY.fullmatch(key)) is None:
            continue
        try:
            record = json.loads(model.tags[key])
            known = {field: record[field] for field in Move.__dataclass_fields__ if field in record}
            move = Move(**{**known, "number": int(matched[1])})
        except (ValueError, TypeError):  # written by another program
            continue
        add_unrecorded(move.alias, move.before)
        found.append(move)
        last[move.alias] = move
    for alias, version in model.aliases.items():
        add_unrecorded(alias, str(version))
    return found


def move_alias(registry: Registry, name: str, move: Move) -> Move:
    """Move an alias, and record it. Where the alias is there already, write the record if it is missing.

    Of several processes that move it at once, one does. Processes that share a local database take turns. A server of
    MLflow has no lock, so there the alias is also read again before the move is recorded.

    Args:
        registry: The registry.
        name: The registered model.
        move: The move; its version before is the one that the alias must point to now.

    Returns:
        The move as the log has it.

    Raises:
        ConfigError: If it is too long for a tag.
        RunLocked: If another process has moved the alias.
    """

    def expect(version: str | None) -> None:
        if (now := alias_version(registry, name, move.alias)) != version:
            raise RunLocked(
                f"another process has moved {name}@{move.alias} meanwhile: it is version {now or 'none'}. Try again."
            )

    with exclusive(registry.address):
        expect(move.before)
        moves = read_moves(registry, name)
        if move.before == move.to:  # moved before, perhaps by a process that was killed, or outside lightkit
            last = next((other for other in reversed(moves) if other.alias == move.alias), None)
            if last is not None and last.kind != OUTSIDE:
                return last
            move = replace(move, before=None if last is None else last.before)
        number = max((other.number for other in moves), default=0) + 1
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        move = replace(move, by=move.by or describe_actor(), time=now, number=number)
        text = json.dumps(finite(asdict(move)), ensure_ascii=False)
        if len(text) > _MAX_TAG_CHARS:
            raise ConfigError(f"--reason: the entry of the log has {len(text)} characters; shorten the reason.")
        registry.client.set_registered_model_alias(name, move.alias, move.to)
        expect(move.to)
        key = f"lightkit.promotion.{number:06d}.{secrets.token_hex(4)}"
        registry.client.set_registered_model_tag(name, key, text)
    return move


def champions(moves: Sequence[Move], alias: str) -> list[str]:
    """List the versions that an alias has pointed to and was not rolled back from, the newest last."""
    stack: list[str] = []
    for move in moves:
        if move.alias != alias:
            continue
        if not stack and move.before is not None:
            stack.append(move.before)
        if move.kind != "promote" and move.to in stack:
            while stack[-1] != move.to:
                stack.pop()
        else:
            stack.append(move.to)
    return stack


def recent_champions(moves: Sequence[Move], alias: str, window: int) -> list[Move]:
    """Return a move to each of the last ``window`` champions of an alias, newest last, with its scores if known."""
    newest_first = list(dict.fromkeys(reversed(champions(moves, alias))))
    recent = newest_first[:window][::-1]
    return [last_scored(moves, version) or Move("promote", alias, None, version) for version in recent]


def last_scored(moves: Sequence[Move], version: str) -> Move | None:
    """Return the last move to a version that has scores; None without one."""
    return next((move for move in reversed(moves) if move.to == version and move.scores), None)


def needed_runs(registry: Registry) -> set[str]:
    """List the runs, as ``NAME/ID``, of versions that an alias points to or can be rolled back to.

    Raises:
        ConfigError: If the registry refuses.
        ServerAway: If it does not answer.
    """
    found: set[str] = set()
    token = None
    while True:
        with registry.attempt("list its registered models"):
            page = registry.client.search_registered_models(max_results=1000, page_token=token)
        for model in page:
            moves = read_moves(registry, model.name)
            aliases = read_aliases(registry, model.name) or {}
            needed = {*aliases.values()}
            for alias in {*aliases, *(move.alias for move in moves)}:
                needed |= {*champions(moves, alias)[-_NUM_ROLLBACK:]}
            versions = [each for each in list_versions(registry, model.name) if str(each.version) in needed]
            found |= {each.tags["run"] for each in versions if each.tags.get("run")}
        if not (token := page.token):
            return found


def describe_actor() -> str:
    """Name the actor of a CI job, else the user and the host."""
    if actor := os.environ.get("GITHUB_ACTOR"):
        job = "/".join(os.environ[name] for name in ("GITHUB_REPOSITORY", "GITHUB_RUN_ID") if os.environ.get(name))
        return f"{actor} (CI{f' {job}' if job else ''})"
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
