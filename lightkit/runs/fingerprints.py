"""What a run was made from, kept so that a later one can tell whether anything has changed, and what.

``inputs.json`` in the run's folder holds the values of the config, the digest of each file of the data and of the code,
and versions; ``manifest.json`` holds under ``inputs`` their digests. Values that came from the environment, and others
that must not be seen, are digests with the run's id in them, so that equal values do not look equal in two runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

from lightkit.errors import join_names
from lightkit.runs.files import in_bytes, read_json, write_json

INPUTS = "inputs.json"
_SCHEMA = 1
_MOST_FILES = 100_000  # of a place; above that a folder has one digest for all files in it
_NUM_SHOWN = 3
_LONGEST = 60  # characters of a value
_ABSENT = object()


@dataclass(frozen=True)
class Inputs:
    """What decides how a training goes.

    Args:
        config: Values by dotted key, as they may be shown.
        hidden: Salted digests of the values that may not, by the same keys.
        data: Digests of the files by their paths, of each place of data by its dotted key; None where they were not
            taken.
        num_files: Files of the data.
        size_bytes: All their sizes.
        unseen: Dotted keys of data that nobody can see, such as the address of a database.
        code: Digests of the Python files of the working directory.
        versions: Versions of lightkit, Python and packages.
        salt: Of ``hidden``.
        mixed: Whether the run went on after an interruption with other inputs than it had begun with.
    """

    config: Mapping[str, Any]
    hidden: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, str]] | None = None
    num_files: int = 0
    size_bytes: int = 0
    unseen: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    salt: str = ""
    mixed: bool = False

    @property
    def digests(self) -> dict[str, Any]:
        """What a manifest says of them."""
        data = None
        if self.data is not None:
            data = {"digest": _digest(self.data), "num_files": self.num_files, "size_bytes": self.size_bytes}
            data |= {"unseen": list(self.unseen)} if self.unseen else {}
        code = {"digest": _digest([self.code, self.versions]), "num_files": len(self.code)}
        mixed = {"mixed": True} if self.mixed else {}
        return {"config": _digest([self.config, self.hidden]), "data": data, "code": code, **mixed}

    @property
    def description(self) -> str:
        """Number and size of what was compared."""
        size = f", {in_bytes(self.size_bytes)}" if self.num_files else ""
        return f"data: {_count_files(self.num_files)}{size}; config; code: {_count_files(len(self.code))}"

    def write(self, folder: Path) -> None:
        """Write them into a run's folder."""
        kept = asdict(self)
        if self.data is not None:
            places = self.data.items()
            kept["data"] = {key: _by_folder(files) if len(files) > _MOST_FILES else files for key, files in places}
        write_json(folder / INPUTS, {"schema": _SCHEMA, **kept})


def read_inputs(folder: Path) -> Inputs | None:
    """Give what a run was made from; None where its folder does not say so, or not in a way that is known."""
    kept = read_json(folder / INPUTS)
    if kept is None or kept.get("schema") != _SCHEMA:
        return None
    known = {each.name for each in fields(Inputs)}
    found = {name: value for name, value in kept.items() if name in known}
    try:
        return Inputs(**{**found, "unseen": tuple(kept.get("unseen", ()))})
    except TypeError:
        return None


def changes_between(old: Inputs, new: Inputs) -> list[str]:
    """List what differs, each in a few words: the data first, then the code, versions and values of the config.

    Args:
        old: Of the earlier run.
        new: Now; ``hidden`` with the salt of the earlier one.
    """
    data = _data_changes(old.data or {}, new.data or {})
    code = [] if old.code == new.code else [f"code: {_file_changes(old.code, new.code)}"]
    config = [dict(each.config) for each in (old, new)]
    hidden = []
    for key in dict.fromkeys([*old.hidden, *new.hidden]):
        values = [each.pop(key, None) for each in config]
        if old.hidden.get(key) != new.hidden.get(key) or values[0] != values[1]:
            hidden.append(f"{key} has another value, which is not shown")
    return [*data, *code, *_value_changes(old.versions, new.versions), *hidden, *_value_changes(*config)]


def join_changes(changes: list[str], *, most: int = 8) -> str:
    """Join changes on one line, and count the others."""
    more = [f"and {len(changes) - most} more"] if len(changes) > most else []
    return "; ".join([*changes[:most], *more])


def _data_changes(old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for place in dict.fromkeys([*old, *new]):
        before, now = old.get(place), new.get(place)
        if before is None or now is None:
            yield f"{place}: {'is read now' if before is None else 'is not read any more'}"
            continue
        if any(name.endswith("/") for name in before):
            now = _by_folder(now)
        if before != now:  # the only root of a data module is called `data`
            name = "data" if place in ("data", "data.init_args.root") else place
            yield f"{name}: {_file_changes(before, now)}"


def _file_changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """List the files that differ, are new, gone, or have another name."""
    differing = [name for name in old if name in new and old[name] != new[name]]
    gone, added = [name for name in old if name not in new], [name for name in new if name not in old]
    by_content = {old[name]: name for name in gone}
    renamed = {by_content.pop(new[name]): name for name in added if new[name] in by_content}
    gone, added = [n for n in gone if n not in renamed], [n for n in added if n not in {*renamed.values()}]
    of_all = f" of {_count_files(len(old))}"
    pairs = [f"{before} -> {now}" for before, now in renamed.items()]
    parts = [
        (differing, f"{of_all} differ{'s' if len(differing) == 1 else ''}"),
        (added, " new"),
        (gone, f"{of_all} gone"),
        (pairs, f"{of_all} renamed"),
    ]
    return ", ".join(
        f"{len(names):,}{words} ({join_names(sorted(names), most=_NUM_SHOWN)})" for names, words in parts if names
    )


def _count_files(number: int) -> str:
    return f"{number:,} file{'s' if number != 1 else ''}" if number else "no files"


def _value_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if before != now or type(before) is not type(now):
            yield f"{name} {_format(before)} -> {_format(now)}"


def _format(value: Any) -> str:
    if value is _ABSENT:
        return "(not set)"
    text = value if isinstance(value, str) and value else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _by_folder(files: Mapping[str, str]) -> dict[str, str]:
    """Replace the digests of a folder's files by one."""
    folders: dict[str, list[str]] = {}
    for name, digest in sorted(files.items()):
        folders.setdefault(f"{PurePosixPath(name).parent}/", []).append(f"{PurePosixPath(name).name}\0{digest}")
    return {folder: _digest(lines) for folder, lines in folders.items()}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
