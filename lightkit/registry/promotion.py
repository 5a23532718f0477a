"""Moves of an alias of the registry, and the log of these moves. No torch.

The log is in the registry, as tags of the registered model, so that all users of the registry share
it. A move has one tag, ``lightkit.promotion.NUMBER.TOKEN``, which is written after the alias has
moved and never again. A move without a record, of a process that was killed or of another program,
shows in that the alias, or the version before the next move, is not where the log has left it:
`read_moves` reports it as a move from outside.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightkit.config.secrets import mask
from lightkit.errors import ConfigError, GateFailed, RunLocked
from lightkit.loggers.mlflow_database import exclusive
from lightkit.registry.store import (
    WEIGHTS,
    Registry,
    find_run_folder,
    list_versions,
    read_aliases,
)
from lightkit.runs.files import find_value, finite, read_json, write_json
from lightkit.runs.index import PROMOTED

OUTSIDE = "outside"
"""Kind of a move without a record."""
HOLD = "lightkit.hold."
"""Beginning of the tag of a registered model that keeps an alias where it is; the name of the alias
follows."""
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
        precision: In which the scores were computed; None in records from before November 2026,
            which are of float32.
        forced: Whether the gate was bypassed.
        weights: Digest of the new version's weights, as `digest_weights` computes it.
        inputs: Digests of the ``config``, the ``data`` and the ``code`` that it was trained from;
            empty if unknown.
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
    precision: str | None = None
    forced: bool = False
    weights: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    time: str = ""
    number: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return its fields for programs; the version before is called ``from``."""
        return {"from" if name == "before" else name: value for name, value in asdict(self).items()}


def alias_version(registry: Registry, name: str, alias: str) -> str | None:
    """Return the version that an alias points to.

    None for none, or where there is no such model.
    """
    return (read_aliases(registry, name) or {}).get(alias)


@dataclass(frozen=True)
class Rejection:
    """A version that was rolled back, and how its model is known when a training makes it again.

    Args:
        version: The version.
        move: The rollback.
        weights: Digest of its weights; None if unknown.
        inputs: Digests of the config, the data and the code that it was trained from; empty if
            unknown.
        folder: Folder of its run; None where this machine does not have it.
        tags: Its tags in the registry; empty where it was deleted.
    """

    version: str
    move: Move
    weights: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def describe(self, name: str) -> str:
        """Write which version was rolled back, when, by whom and why."""
        reason = f" ({self.move.reason})" if self.move.reason else ""
        return (
            f"{name} version {self.version} was rolled back by {self.move.by} at"
            f" {self.move.time}{reason}"
        )


def read_rejections(registry: Registry, name: str, alias: str) -> list[Rejection]:
    """Read the versions of a registered model that were rolled back, see `list_rejections`."""
    versions = list_versions(registry, name)
    folders = {str(each.version): find_run_folder(registry, each) for each in versions}
    return list_rejections(read_moves(registry, name), alias, versions, folders)


def list_rejections(
    moves: Sequence[Move],
    alias: str,
    versions: Sequence[Any] = (),
    folders: Mapping[str, Path | None] | None = None,
) -> list[Rejection]:
    """List the versions that were rolled back, newest last.

    Unless the alias has pointed to such a model since then.

    Args:
        moves: As from `read_moves`.
        alias: The alias.
        versions: The versions of the model, for those that were promoted before the log kept
            weights and inputs.
        folders: Folders of their runs by version, as `find_run_folder` finds them.
    """
    tags = {str(version.version): version.tags for version in versions}
    folders = folders or {}
    rejected: dict[str, Rejection] = {}
    promoted: dict[str, Move] = {}
    for move in moves:
        if move.alias != alias:
            continue
        if move.kind == "rollback" and move.before is not None:
            logged = promoted.get(move.before)
            known = tags.get(move.before, {})
            folder = folders.get(move.before)
            rejected[move.before] = Rejection(
                move.before,
                move,
                weights=(logged and logged.weights) or known.get(WEIGHTS),
                inputs=(logged and logged.inputs) or _read_inputs(folder),
                folder=folder,
                tags=known,
            )
        # what the alias points to is wanted again, and so is the same model as another version
        rejected.pop(move.to, None)
        if move.kind == "promote":
            promoted[move.to] = move
            for version, each in list(rejected.items()):
                if match_rejection([each], weights=move.weights, inputs=move.inputs):
                    del rejected[version]
    return list(rejected.values())


def match_rejection(
    rejections: Sequence[Rejection],
    *,
    version: str | None = None,
    weights: str | None = None,
    inputs: Mapping[str, str] | None = None,
) -> tuple[Rejection, str] | None:
    """Find the newest rejection of a model by its version, its weights or its inputs.

    Say by which in words.
    """
    for each in reversed(rejections):
        if version is not None and each.version == version:
            return each, ""
        if weights is not None and each.weights == weights:
            return each, "this model has the same weights"
        if inputs and dict(each.inputs) == dict(inputs):
            return each, "this model was trained from the same config, data and code"
    return None


def digests_of_inputs(
    manifest: Mapping[str, Any] | None, *, by_earlier_list: bool = False
) -> dict[str, str]:
    """Return the digests of the config, the data and the code of a training.

    Empty where one of them is unknown.

    Args:
        manifest: Content of the run's ``manifest.json``.
        by_earlier_list: Whether the config's is the one that earlier versions have computed.
    """
    inputs = find_value(manifest, "inputs")
    if not isinstance(inputs, Mapping):
        return {}
    data = inputs.get("data")
    code = inputs.get("code")
    if not isinstance(data, Mapping) or not isinstance(code, Mapping):
        return {}
    # what is behind an address, or in files that the config does not name, may have changed unseen
    if data.get("unseen") or not data.get("num_files"):
        return {}
    config = inputs.get("config")
    if by_earlier_list:
        config = inputs.get("earlier_config", config)
    parts = {"config": config, "data": data.get("digest"), "code": code.get("digest")}
    return {name: str(part) for name, part in parts.items()} if all(parts.values()) else {}


def _read_inputs(folder: Path | None) -> dict[str, str]:
    return {} if folder is None else digests_of_inputs(read_json(folder / "manifest.json"))


@dataclass(frozen=True)
class Hold:
    """An alias that stays where it is until somebody releases it.

    Args:
        by: User and host, or the actor of a CI job.
        time: ISO 8601, UTC.
        reason: The user's reason; empty for none.
    """

    by: str
    time: str
    reason: str = ""

    def describe(self, name: str, alias: str) -> str:
        """Write who holds it, since when and why."""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{name}@{alias} is held by {self.by} since {self.time}{reason}"


def read_hold(registry: Registry, name: str, alias: str) -> Hold | None:
    """Read who holds an alias of a registered model; None if nobody does."""
    with registry.attempt(f"read the tags of {name!r}"):
        text = registry.client.get_registered_model(name).tags.get(f"{HOLD}{alias}")
    if not text:
        return None
    try:
        record = json.loads(text)
        return Hold(*(str(record.get(key) or "") for key in ("by", "time", "reason")))
    except (ValueError, AttributeError):  # set by hand: held all the same
        return Hold("somebody", "an unknown time", text)


def hold_alias(registry: Registry, name: str, alias: str, *, reason: str) -> Hold:
    """Keep an alias where it is. Where it is held already, the first hold stays."""
    with exclusive(registry.address):
        if (held := read_hold(registry, name, alias)) is not None:
            return held
        hold = Hold(describe_actor(), datetime.now(UTC).isoformat(timespec="seconds"), reason)
        text = json.dumps(asdict(hold), ensure_ascii=False)
        if len(text) > _MAX_TAG_CHARS:
            raise ConfigError(f"--reason: the hold has {len(text)} characters; shorten the reason.")
        with registry.attempt(f"hold {name!r}"):
            registry.client.set_registered_model_tag(name, f"{HOLD}{alias}", text)
    return hold


def release_alias(registry: Registry, name: str, alias: str) -> Hold | None:
    """Release an alias that is held; return the hold that ended, or None if there was none."""
    with exclusive(registry.address):
        if (held := read_hold(registry, name, alias)) is not None:
            with registry.attempt(f"release {name!r}"):
                registry.client.delete_registered_model_tag(name, f"{HOLD}{alias}")
    return held


def require_no_hold(registry: Registry, name: str, alias: str) -> None:
    """Refuse to promote where an alias is held.

    Raises:
        GateFailed: If it is, with who holds it.
    """
    if (held := read_hold(registry, name, alias)) is not None:
        option = "" if alias == "champion" else f" --alias {alias}"
        raise GateFailed(
            f"{held.describe(name, alias)}. Nothing was promoted; `lightkit promote --release"
            f" {name}{option}` lets it move again."
        )


def note_in_run_folders(registry: Registry, name: str, move: Move) -> None:
    """Write a move to ``promoted.json`` of the run that an alias points to now.

    Also write it to those of the runs that it has left.

    `lightkit runs` marks the champion by it, and `lightkit gc` asks the registries in it. Run
    folders on other machines are left alone.

    Args:
        registry: The registry.
        name: The registered model.
        move: The move.
    """
    uri = mask(registry.uri, hides_users=True)
    for version in list_versions(registry, name):
        folder = find_run_folder(registry, version)
        if folder is None:
            continue
        file = folder / PROMOTED
        is_champion = str(version.version) == move.to
        noted = read_json(file) or {}
        if not is_champion and not noted:
            continue
        others = {*noted.get("aliases", [])} - {move.alias}
        noted["aliases"] = sorted(others | {move.alias} if is_champion else others)
        if is_champion:
            registries = sorted({*(noted.get("registries") or []), uri})
            noted |= {"schema": 1, "name": name, "registries": registries, **move.as_dict()}
        write_json(file, noted)


def read_moves(registry: Registry, name: str) -> list[Move]:
    """Read all moves of a registered model's aliases, oldest first, with the `OUTSIDE` ones.

    Aliases that were never promoted are left out: `lightkit register` sets such aliases without a
    record.
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
    """Move an alias, and record it.

    Where the alias is there already, write the record if it is missing.

    Of several processes that move it at once, one does. Processes that share a local database take
    turns. A server of MLflow has no lock, so there the alias is also read again before the move is
    recorded.

    Args:
        registry: The registry.
        name: The registered model.
        move: The move; its version before is the one that the alias must point to now.

    Returns:
        The move as the log has it.

    Raises:
        ConfigError: If it is too long for a tag.
        GateFailed: If it is a promotion, and the alias is held.
        RunLocked: If another process has moved the alias.
    """

    def expect(version: str | None) -> None:
        if (now := alias_version(registry, name, move.alias)) != version:
            raise RunLocked(
                f"another process has moved {name}@{move.alias} meanwhile: it is version"
                f" {now or 'none'}. Try again."
            )

    with exclusive(registry.address):
        expect(move.before)
        if move.kind == "promote" and move.before != move.to:
            require_no_hold(registry, name, move.alias)
        moves = read_moves(registry, name)
        # moved before, perhaps by a process that was killed, or outside lightkit
        if move.before == move.to:
            last = next((other for other in reversed(moves) if other.alias == move.alias), None)
            if last is not None and last.kind != OUTSIDE:
                return last
            move = replace(move, before=None if last is None else last.before)
        number = max((other.number for other in moves), default=0) + 1
        now = datetime.now(UTC).isoformat(timespec="seconds")
        move = replace(move, by=move.by or describe_actor(), time=now, number=number)
        text = json.dumps(finite(asdict(move)), ensure_ascii=False)
        if len(text) > _MAX_TAG_CHARS:
            raise ConfigError(
                f"--reason: the entry of the log has {len(text)} characters; shorten the reason."
            )
        registry.client.set_registered_model_alias(name, move.alias, move.to)
        expect(move.to)
        key = f"lightkit.promotion.{number:06d}.{secrets.token_hex(4)}"
        registry.client.set_registered_model_tag(name, key, text)
    return move


def champions(moves: Sequence[Move], alias: str) -> list[str]:
    """List versions that an alias has pointed to and was not rolled back, newest last."""
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


def recent_champions(moves: Sequence[Move], alias: str, window: int) -> list[str]:
    """List the last ``window`` champions of an alias, each version once, newest last."""
    newest_first = list(dict.fromkeys(reversed(champions(moves, alias))))
    return newest_first[:window][::-1]


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
            versions = [
                each for each in list_versions(registry, model.name) if str(each.version) in needed
            ]
            found |= {each.tags.get("run", "") for each in versions}
        if not (token := page.token):
            return found - {""}


def describe_actor() -> str:
    """Name the actor of a CI job, else the user and the host."""
    if actor := os.environ.get("GITHUB_ACTOR"):
        job = "/".join(
            os.environ[name]
            for name in ("GITHUB_REPOSITORY", "GITHUB_RUN_ID")
            if os.environ.get(name)
        )
        return f"{actor} (CI{f' {job}' if job else ''})"
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
