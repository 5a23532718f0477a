"""What a fit is about to be made from: its config, its data, its code. No torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from lightkit import __version__
from lightkit.cli.input_places import Place, Places, places_of
from lightkit.cli.own_code import own_code, sources_of
from lightkit.cli.session import Session
from lightkit.config import KeyPath, Resolved, dotted
from lightkit.config.comparing import innermost
from lightkit.config.presented import Presented
from lightkit.config.tree import plain
from lightkit.images.file_digests import file_digests
from lightkit.machine import PACKAGES, describe_packages
from lightkit.runs import Inputs, Run

__all__ = ["hidden_values", "inputs_of", "record_inputs", "versions_of"]

# They say where and when a job runs and how patiently it is watched, not what it trains.
_NOT_COMPARED = ("run", "watchdog.factor", "watchdog.floor_s", "launch.timeout_s", "launch.stall_timeout_s")
_CHEAP_BYTES = 1_000_000_000
_CHEAP_FILES = 20_000
_COMMIT = re.compile(r"(\d{20})(\.json|\.checkpoint.*\.parquet)")
_LEFT_OUT = ("__pycache__",)


class _TooMuch(Exception):
    """There is more data than is read for a record that nobody has asked for."""


def inputs_of(session: Session, *, salt: str, asked: bool) -> Inputs:
    """Take stock of what this fit would be made from.

    Files that have not changed since they were last read are not read again. Where nobody asks for it with
    ``--if-changed``, data of more than a gigabyte or 20,000 files is left out.

    Args:
        session: The invocation.
        salt: Goes into the digests of values that must not be seen.
        asked: Whether the data counts however much it is.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    resolved = session.resolved
    places = places_of(resolved, session.ckpt_path)
    root = Path(str((resolved.values.get("run") or {}).get("root") or "runs"))
    unseen, unsure = tuple(places.unseen), tuple(places.unsure)
    inputs = Inputs(config=_config_of(session), unseen=unseen, unsure=unsure, salt=salt, **_code_of(resolved))
    return replace(inputs, hidden=hidden_values(resolved, salt), **_data_of(places, root, asked=asked))


def hidden_values(resolved: Resolved, salt: str) -> dict[str, str]:
    """Give salted digests of the values that came from the environment, or hold a secret in another way."""
    found = {}
    for path, node in innermost(resolved.tree, ()):
        value = json.dumps(plain(node), default=str, ensure_ascii=False)
        is_hidden = resolved.masked(value) != value or _is_from_environment(resolved, path)
        if is_hidden and not _is_left_out(path):
            found[dotted(path)] = hashlib.sha256(json.dumps([salt, value]).encode()).hexdigest()[:32]
    return found


def record_inputs(session: Session, run: Run, previous: Mapping[str, Any] | None) -> dict[str, Any]:
    """Write down what a fit begins with, and give what its manifest says of that.

    A run that goes on after an interruption keeps what it had begun with; where that has changed, it is made from a
    mixture, which equals nothing.

    Args:
        session: The invocation.
        run: Its run.
        previous: The run's manifest so far, where this process resumes it.
    """
    asked = "if-changed" in session.options
    inputs = session.began_with or inputs_of(session, salt=run.id, asked=asked)
    inputs = replace(inputs, salt=run.id, hidden=hidden_values(session.resolved, run.id))
    before = (previous or {}).get("inputs")
    if previous is not None and (before is None or before != inputs.digests):
        inputs = replace(inputs, mixed=True)
    inputs.write(run.folder)
    return inputs.digests


def _config_of(session: Session) -> dict[str, Any]:
    """Give the values as they were said, by dotted key, fit to be shown."""
    resolved = session.resolved
    presented = Presented(resolved)
    said = {
        dotted(path): _plain(presented.value(node, path))
        for path, node in innermost(resolved.tree, ())
        if not _is_left_out(path)
    }
    return said if session.ckpt_path is None else {**said, "ckpt_path": resolved.masked(session.ckpt_path)}


def _is_left_out(path: KeyPath) -> bool:
    key = dotted(path)
    return any(key == name or key.startswith(f"{name}.") for name in (*_NOT_COMPARED, "ckpt_path"))


def _is_from_environment(resolved: Resolved, path: KeyPath) -> bool:
    """Tell whether a value, what it is part of, or a part of it came from there."""
    return any(path[: len(other)] == other[: len(path)] for other in resolved.references)


def _plain(value: Any) -> Any:
    """Give a value as JSON gives it back."""
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _code_of(resolved: Resolved) -> dict[str, Any]:
    """Give the digests of the user's own modules and lightkit's, and all versions."""
    own, sources = own_code(resolved.values), sources_of()
    digests = [found.digest for found in file_digests(map(str, [*own.files.values(), *sources]))]
    lightkit_ = hashlib.sha256("".join(digests[len(own.files) :]).encode()).hexdigest()[:12]
    versions = {"lightkit": f"{__version__} ({lightkit_})", "python": platform.python_version()}
    versions |= {**describe_packages(), **versions_of(own.installed, but_for=(*PACKAGES, "pil", "yaml"))}
    return {"code": dict(zip(own.files, digests, strict=False)), "versions": versions}


def versions_of(names: Iterable[str], *, but_for: Iterable[str] = ()) -> dict[str, str]:
    """Give the versions of installed packages that code imports.

    Args:
        names: As they are imported.
        but_for: Those that are told anyhow, in lower case with hyphens.
    """
    told = {*but_for}
    unknown = sorted({name for name in names if name.lower().replace("_", "-") not in told})
    if not unknown:
        return {}
    try:
        return {name: metadata.version(name) for name in unknown}
    except metadata.PackageNotFoundError:  # it comes with a distribution of another name; asking for all takes longer
        known = metadata.packages_distributions()
        return {name: metadata.version(name) for name in sorted({n for each in unknown for n in known.get(each, [])})}


def _data_of(places: Places, run_root: Path, *, asked: bool) -> dict[str, Any]:
    """Give digests of all files of the data, their number and size."""
    try:
        limit = Limit(asked)
        listed = {place.key: dict(_files_of(place, run_root, limit)) for place in places.found}
    except _TooMuch:
        return {"data": None}
    found = file_digests(path for files in listed.values() for path in files.values())
    digests = {key: {name: next(found) for name in files} for key, files in listed.items()}
    return {
        "data": {key: {name: one.digest[:32] for name, one in files.items()} for key, files in digests.items()},
        "num_files": sum(map(len, digests.values())),
        "size_bytes": sum(one.size_bytes for files in digests.values() for one in files.values()),
    }


class Limit:
    """Counts files and bytes, and stops where it is too much for a record that nobody has asked for.

    Args:
        is_off: Whether anything goes.
    """

    def __init__(self, is_off: bool) -> None:
        self._is_off, self._files, self._bytes = is_off, 0, 0

    def count(self, path: str) -> None:
        """Count one file."""
        if self._is_off:
            return
        self._files += 1
        self._bytes += _size_of(path)
        if self._files > _CHEAP_FILES or self._bytes > _CHEAP_BYTES:
            raise _TooMuch


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 (pathlib would make an object of each of very many)
    except OSError:
        return 0


def _files_of(place: Place, run_root: Path, limit: Limit) -> Iterator[tuple[str, str]]:
    """List the files of a place: the name within it, and the path."""
    if place.names is not None:
        files: Iterable[tuple[str, str]] = ((name, str(place.path / name)) for name in place.names)
    elif (place.path / "_delta_log").is_dir():
        files = _state_of_delta(place)
    elif place.path.is_dir():
        files = _walked(str(place.path), run_root.absolute())
    else:
        files = [(place.path.name, str(place.path))]
    for name, path in files:
        limit.count(path)
        yield name.encode("utf-8", "backslashreplace").decode(), path


def _state_of_delta(place: Place) -> list[tuple[str, str]]:
    """Give the newest commit that counts: it is another for each state of the table, whose files never change."""
    names = [entry.name for entry in (place.path / "_delta_log").iterdir() if _COMMIT.fullmatch(entry.name)]
    if place.version is not None:
        names = [name for name in names if int(name[:20]) <= place.version]
    newest = max(names, key=lambda name: (name[:20], name.endswith(".json")), default=None)
    return [] if newest is None else [(f"_delta_log/{newest}", str(place.path / "_delta_log" / newest))]


def _walked(top: str, run_root: Path) -> Iterator[tuple[str, str]]:
    """List the files below a folder in the order of their names, also where links lead, but not in a circle."""
    waiting: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [(top, "", ())]
    while waiting:
        folder, prefix, above = waiting.pop()
        status = os.stat(folder)  # noqa: PTH116
        this = (status.st_dev, status.st_ino)
        if this in above or Path(folder).absolute() == run_root:  # what is written there is no data
            continue
        try:
            with os.scandir(folder) as entries:
                visible = sorted((e.name, e.is_dir()) for e in entries if e.name[0] != "." and e.name not in _LEFT_OUT)
        except OSError:  # whoever reads it tells
            continue
        for name, is_folder in visible:
            path = os.path.join(folder, name)  # noqa: PTH118
            if is_folder:
                waiting.append((path, f"{prefix}{name}/", (*above, this)))
            else:
                yield f"{prefix}{name}", path
