"""Moving an alias of the registry, and the log of these moves. No torch.

The log is in the registry, as tags of the registered model, so that all who share the registry share it. A move has one
tag, ``lightkit.promotion.NUMBER.TOKEN``, which is written after the alias has moved and never again: what the log says
was done. A move that the log lacks, of a process that was killed or of another program, shows in that the alias, or the
version before the next move, is not where the log has left it.
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
from typing import Any

from lightkit.errors import ConfigError, RunLocked
from lightkit.registry.store import Store
from lightkit.runs.files import finite

__all__ = ["OUTSIDE", "Move", "PromotionLog", "champions", "who"]

OUTSIDE = "outside"
"""Kind of a move that the log has no record of."""
_KEY = re.compile(r"lightkit\.promotion\.(\d+)\.[0-9a-f]+")
_LONGEST_VALUE = 5000  # characters: the smallest limit of a tag among MLflow's stores
_LONGEST_REASON = 1000


@dataclass(frozen=True)
class Move:
    """One move of an alias.

    Args:
        kind: ``promote``, ``rollback`` or ``outside``.
        alias: The alias.
        before: Version that it pointed to; None for none.
        to: Version that it points to since then.
        by: Who moved it.
        reason: Why, as whoever moved it said.
        run: Run of the new version, as ``name/id``.
        metric: Metric that was judged.
        scores: Its value for ``challenger`` and ``baseline``.
        data: Fingerprint of the samples of the scores.
        num_samples: Number of these.
        forced: Whether the gate was passed over.
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
        """Give it for programs; the version before is called ``from``."""
        return {"from" if name == "before" else name: value for name, value in asdict(self).items()}


class PromotionLog:
    """The moves of the aliases of a registered model.

    Args:
        store: The registry.
        name: The registered model.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.name = name

    def moves(self) -> list[Move]:
        """Give all moves, oldest first; those without a record are of the kind `OUTSIDE`.

        Aliases that were never promoted are left out: `lightkit register` sets such ones without a record.
        """
        model = self._store.client.get_registered_model(self.name)
        found: list[Move] = []
        last: dict[str, Move] = {}
        for move in _records(model.tags):
            found += [*_unrecorded(last.get(move.alias), move.before), move]
            last[move.alias] = move
        for alias, version in model.aliases.items():
            found += _unrecorded(last.get(alias), str(version))
        return found

    def current(self, alias: str) -> str | None:
        """Give the version that an alias points to; None for none."""
        aliases: Mapping[str, Any] = self._store.client.get_registered_model(self.name).aliases
        return str(aliases[alias]) if alias in aliases else None

    def move(self, move: Move) -> Move:
        """Move an alias, and record it. Where the alias is there already, write the record if it is missing.

        Of several processes that move it at once, one does. Those that share a local database take turns. A server of
        MLflow has no lock, so there the alias is also looked at again before the move is recorded.

        Args:
            move: What to do. Its version before is what the alias must point to now.

        Returns:
            The move as the log has it.

        Raises:
            ConfigError: If it says more than a tag can hold.
            RunLocked: If another process has moved the alias.
        """
        if len(move.reason) > _LONGEST_REASON:
            raise ConfigError(f"--reason: {len(move.reason)} characters are too many; {_LONGEST_REASON} are the most.")
        with self._store.alone():
            self._expect(move.alias, move.before)
            moves = self.moves()
            if move.before == move.to:  # moved before, perhaps by a process that was killed, or outside lightkit
                last = next((other for other in reversed(moves) if other.alias == move.alias), None)
                if last is not None and last.kind != OUTSIDE:
                    return last
                move = replace(move, before=None if last is None else last.before)
            number = max((other.number for other in moves), default=0) + 1
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            move = replace(move, by=move.by or who(), time=now, number=number)
            text = json.dumps(finite(asdict(move)), ensure_ascii=False)
            if len(text) > _LONGEST_VALUE:
                raise ConfigError(f"--reason: the entry of the log has {len(text)} characters; say less.")
            self._store.client.set_registered_model_alias(self.name, move.alias, move.to)
            self._expect(move.alias, move.to)
            key = f"lightkit.promotion.{number:06d}.{secrets.token_hex(4)}"
            self._store.client.set_registered_model_tag(self.name, key, text)
        return move

    def _expect(self, alias: str, version: str | None) -> None:
        if (now := self.current(alias)) != version:
            raise RunLocked(
                f"another process has moved {self.name}@{alias} meanwhile: it is version {now or 'none'}. Try again."
            )


def champions(moves: Sequence[Move], alias: str) -> list[str]:
    """Give the versions that an alias has pointed to and was not rolled back from, the newest last."""
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


def who(environ: Mapping[str, str] = os.environ) -> str:
    """Say who runs this process: the actor of a CI job, else the user and the host."""
    if actor := environ.get("GITHUB_ACTOR"):
        job = "/".join(environ[name] for name in ("GITHUB_REPOSITORY", "GITHUB_RUN_ID") if environ.get(name))
        return f"{actor} (CI{f' {job}' if job else ''})"
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _records(tags: Mapping[str, str]) -> list[Move]:
    """Read the tags of the log, in the order of their numbers; those that somebody else has written are left out."""
    found = []
    for key in sorted(tags):
        if (matched := _KEY.fullmatch(key)) is None:
            continue
        try:
            record = json.loads(tags[key])
            known = {name: record[name] for name in Move.__dataclass_fields__ if name in record}
            found.append(Move(**{**known, "number": int(matched[1])}))
        except (ValueError, TypeError):
            continue
    return found


def _unrecorded(last: Move | None, version: str | None) -> list[Move]:
    """Give the move that led from the last one to a version, where there must have been one."""
    if last is None or version is None or last.to == version:
        return []
    reason = "moved outside lightkit, or by a process that was killed"
    return [Move(OUTSIDE, last.alias, last.to, version, reason=reason)]
