"""Moving an alias of the registry, and the log of all such moves; an interrupted one is settled later. No torch.

The log is in the registry, as tags of the registered model, so that all who share the registry share it. A move has
two tags, neither of which is written again: the intent ``lightkit.promotion.NUMBER.TOKEN``, before the alias moves, and
``lightkit.promotion.NUMBER.TOKEN.end`` after it. A move without an end is one of a process that works or was killed;
once that is dead, the alias itself tells whether it was done.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from lightkit.errors import ConfigError, RunLocked
from lightkit.runs.files import finite
from lightkit.runs.process import describe_process, is_gone

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["Move", "PromotionLog", "champions", "who"]

_KEY = re.compile(r"lightkit\.promotion\.(\d+)\.([0-9a-f]+)(\.end)?")
_LONGEST_VALUE = 5000  # characters: the smallest limit of a tag among MLflow's stores
_LONGEST_REASON = 1000
_STALE_S = 300.0  # a move takes well under a second
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Move:
    """One move of an alias.

    Args:
        kind: ``promote`` or ``rollback``.
        alias: The alias.
        before: Version that it pointed to; None for none.
        to: Version that it is to point to.
        by: Who moved it.
        reason: Why, as whoever moved it said.
        run: Run of the new version, as ``name/id``.
        metric: Metric that was judged.
        scores: Its value for ``challenger`` and ``baseline``.
        data: Fingerprint of the samples of the scores.
        num_samples: Number of these.
        forced: Whether the gate was passed over.
        time: When it began; ISO 8601, UTC.
        status: ``pending``, ``done`` or ``aborted``.
        ended: What there is to say of its end.
        number: Its place in the log, from 1.
        token: Tells two moves of the same number apart.
        process: The process that moved it, as `describe_process` gives it.
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
    status: str = "pending"
    ended: str = ""
    number: int = 0
    token: str = ""
    process: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name of the tag of its intent."""
        return f"lightkit.promotion.{self.number:06d}.{self.token}"

    def as_dict(self) -> dict[str, Any]:
        """Give it for programs; the version before is called ``from``."""
        record = {name: value for name, value in asdict(self).items() if name not in ("process", "token")}
        return {"from" if name == "before" else name: value for name, value in record.items()}

    @property
    def is_dead(self) -> bool:
        """Whether nobody works on it any more."""
        gone = is_gone(dict(self.process))
        return gone if gone is not None else _age_s(self.time) > _STALE_S


class PromotionLog:
    """The moves of the aliases of a registered model.

    Args:
        client: Of the registry.
        name: The registered model.
    """

    def __init__(self, client: MlflowClient, name: str) -> None:
        self._client = client
        self.name = name

    def moves(self) -> list[Move]:
        """Give all moves, oldest first."""
        tags = self._client.get_registered_model(self.name).tags
        found = []
        for key, text in tags.items():
            matched = _KEY.fullmatch(key)
            if matched is not None and not matched[3] and (move := _read(text, matched)) is not None:
                found.append(_ended(move, tags.get(f"{key}.end")))
        return sorted(found, key=_order)

    def current(self, alias: str) -> str | None:
        """Give the version that an alias points to; None for none."""
        aliases: Mapping[str, Any] = self._client.get_registered_model(self.name).aliases
        return str(aliases[alias]) if alias in aliases else None

    def settle(self) -> list[Move]:
        """End the moves that dead processes have left: done where the alias points there, else aborted.

        Returns:
            These moves.
        """
        moves = self.moves()
        settled = []
        for move in moves:
            if move.status != "pending" or not move.is_dead:
                continue
            newer = any(other.status == "done" and _order(other) > _order(move) for other in moves)
            done = not newer and self.current(move.alias) == move.to
            says = "settled later: its process was gone, and the alias had " + ("moved" if done else "not moved")
            settled.append(self._end(move, "done" if done else "aborted", says))
        return settled

    def move(self, move: Move) -> Move:
        """Move an alias, with an entry before and one after it.

        Of several processes that move at once, one does; the others change nothing.

        Args:
            move: What to do. Its version before is what the alias must point to now.

        Returns:
            The move as the log has it.

        Raises:
            ConfigError: If it says more than a tag can hold.
            RunLocked: If another process moves the alias, or has just moved it.
        """
        self.settle()
        claim = self._claim(move)
        try:
            self._check_sole(claim)
        except RunLocked as error:
            self._end(claim, "aborted", str(error))
            raise
        self._client.set_registered_model_alias(self.name, move.alias, move.to)
        return self._end(claim, "done", "")

    def _claim(self, move: Move) -> Move:
        if len(move.reason) > _LONGEST_REASON:
            raise ConfigError(f"--reason: {len(move.reason)} characters are too many; {_LONGEST_REASON} are the most.")
        number = max((other.number for other in self.moves()), default=0) + 1
        claim = replace(
            move,
            by=move.by or who(),
            time=_now(),
            status="pending",
            number=number,
            token=secrets.token_hex(4),
            process=describe_process(),
        )
        record = {name: value for name, value in asdict(claim).items() if name not in ("status", "ended")}
        text = json.dumps(finite(record), ensure_ascii=False)
        if len(text) > _LONGEST_VALUE:
            raise ConfigError(f"--reason: the entry of the log has {len(text)} characters; say less.")
        self._client.set_registered_model_tag(self.name, claim.key, text)
        return claim

    def _check_sole(self, claim: Move) -> None:
        """Let the earlier of two claims win: a later one goes, and an earlier one waits until it has gone.

        Each writes before it reads, so that at least one of two sees the other. A claim that nobody has seen is done
        before this one looks again.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            others = [move for move in self.moves() if move.key != claim.key and move.alias == claim.alias]
            working = [move for move in others if move.status == "pending" and not move.is_dead]
            if earlier := [move for move in working if _order(move) < _order(claim)]:
                raise self._beaten(earlier[0], "is moving")
            if not working:
                break
            if time.monotonic() > deadline:
                raise self._beaten(working[0], "is moving")
            time.sleep(0.05)
        since = [move for move in others if move.status == "done" and move.number >= claim.number]
        if since:
            raise self._beaten(since[-1], "has moved")
        if (now := self.current(claim.alias)) != claim.before:
            raise RunLocked(
                f"{self.name}@{claim.alias} has moved meanwhile, from version {claim.before or 'none'} to "
                f"{now or 'none'}. Nothing was changed; try again."
            )

    def _beaten(self, other: Move, does: str) -> RunLocked:
        return RunLocked(
            f"{other.by} {does} {self.name}@{other.alias} to version {other.to}, since {other.time}. "
            f"Nothing was changed here; try again."
        )

    def _end(self, move: Move, status: str, says: str) -> Move:
        record = {"status": status, "says": says[:_LONGEST_REASON], "time": _now()}
        self._client.set_registered_model_tag(self.name, f"{move.key}.end", json.dumps(record, ensure_ascii=False))
        return replace(move, status=status, ended=says)


def champions(moves: Sequence[Move], alias: str) -> list[str]:
    """Give the versions that an alias has pointed to and was not rolled back from, the newest last."""
    stack: list[str] = []
    for move in moves:
        if move.status != "done" or move.alias != alias:
            continue
        if not stack and move.before is not None:
            stack.append(move.before)
        if move.kind == "rollback" and move.to in stack:
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


def _order(move: Move) -> tuple[int, str]:
    return move.number, move.token


def _read(text: str, matched: re.Match[str]) -> Move | None:
    """Give what a tag says; None where somebody else has written it."""
    try:
        record = json.loads(text)
        known = {name: record[name] for name in Move.__dataclass_fields__ if name in record}
        return Move(**{**known, "number": int(matched[1]), "token": matched[2]})
    except (ValueError, TypeError):
        return None


def _ended(move: Move, text: str | None) -> Move:
    try:
        record = json.loads(text) if text else {}
    except ValueError:
        record = {}
    status = record.get("status")
    return replace(move, status=status, ended=record.get("says", "")) if status in ("done", "aborted") else move


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _age_s(moment: str) -> float:
    try:
        return (datetime.now(timezone.utc) - datetime.fromisoformat(moment)).total_seconds()
    except (ValueError, TypeError):
        return _STALE_S + 1
