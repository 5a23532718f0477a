"""``inputs.json`` of a run: the config, the data and the code that it was trained from.

It holds the values of the config and the digest of each file of the data and of the code;
``manifest.json`` holds one digest for each of the three under ``inputs``. Values that came from the
environment, and others that must not be seen, are digests salted with the run's id, so that equal
values do not look equal in two runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lightkit.errors import format_count, join_names, visible
from lightkit.runs.files import in_bytes, read_json, write_json

INPUTS = "inputs.json"
_SCHEMA = 2
_NUM_SHOWN = 3
_MAX_CHANGES = 8
_MAX_CHARS = 60  # of a value


@dataclass(frozen=True)
class Inputs:
    """Inputs of a training.

    Args:
        config: Values by dotted key, as they may be shown.
        hidden: Salted digests of the values that may not, by the same keys.
        data: Digests of the files by their paths, for each file or folder of the data by its dotted
            key; None if they were not computed.
        size_bytes: Size of all files of the data.
        unseen: Dotted keys of data that cannot be read here, such as the address of a database.
        code: Digests of the Python files of the working directory.
        salt: Salt of ``hidden``.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    hidden: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, str]] | None = None
    size_bytes: int = 0
    unseen: Sequence[str] = ()
    code: Mapping[str, str] = field(default_factory=dict)
    salt: str = ""

    @property
    def num_files(self) -> int:
        """Number of files of the data."""
        return sum(map(len, (self.data or {}).values()))

    @property
    def digests(self) -> dict[str, Any]:
        """The entry ``inputs`` of a manifest."""
        data = None
        if self.data is not None:
            data = {
                "digest": _digest(self.data),
                "num_files": self.num_files,
                "size_bytes": self.size_bytes,
            }
            data |= {"unseen": list(self.unseen)} if self.unseen else {}
        code = {"digest": _digest(self.code), "num_files": len(self.code)}
        return {"config": _digest([self.config, self.hidden]), "data": data, "code": code}

    @property
    def summary(self) -> str:
        """One line that says what was compared."""
        size = f", {in_bytes(self.size_bytes)}" if self.num_files else ""
        return (
            f"data: {_count_files(self.num_files)}{size}; config; code:"
            f" {_count_files(len(self.code))}"
        )

    def write(self, folder: Path) -> None:
        """Write them into a run's folder."""
        write_json(folder / INPUTS, {"schema": _SCHEMA, **asdict(self)})


def read_inputs(folder: Path) -> Inputs | None:
    """Read the inputs of a run.

    None if its folder has none, or those of another version of lightkit.
    """
    kept = read_json(folder / INPUTS) or {}
    known = {each.name for each in fields(Inputs)}
    return Inputs(**kept) if kept.pop("schema", 0) == _SCHEMA and kept.keys() <= known else None


def list_changes(old: Inputs, new: Inputs) -> list[str]:
    """List the differences: of the data first, then of the code and the values of the config.

    Args:
        old: Inputs of the earlier run.
        new: Inputs now, with the salt of the earlier run.
    """
    before = old.data or {}
    now = new.data or {}
    files = [
        _compare_files(place, before.get(place, {}), now.get(place, {}))
        for place in {**before, **now}
    ]
    files.append(_compare_files("code", old.code, new.code))
    return [*filter(None, files), *_compare_values(old, new)]


def join_changes(changes: list[str]) -> str:
    """Write changes on one line, with the number of those that are left out."""
    more = [f"and {len(changes) - _MAX_CHANGES} more"] if len(changes) > _MAX_CHANGES else []
    return "; ".join([*changes[:_MAX_CHANGES], *more])


def _compare_files(place: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """List the files of a place that differ, are new or gone; empty if none."""
    differing = sorted(name for name in old if name in new and old[name] != new[name])
    groups = (
        (differing, f" of {_count_files(len(old))} differ{'s' if len(differing) == 1 else ''}"),
        (sorted(new.keys() - old.keys()), " new"),
        (sorted(old.keys() - new.keys()), f" of {_count_files(len(old))} gone"),
    )
    texts = []
    for names, text in groups:
        if names:
            shown = join_names([visible(name, in_line=True) for name in names], most=_NUM_SHOWN)
            texts.append(f"{len(names):,}{text} ({shown})")
    name = "data" if place == "data.init_args.root" else place
    return f"{name}: {', '.join(texts)}" if texts else ""


def _count_files(number: int) -> str:
    return format_count(number, "file") if number else "no files"


def _compare_values(old: Inputs, new: Inputs) -> Iterator[str]:
    hidden = {*old.hidden, *new.hidden}
    for key in dict.fromkeys([*old.hidden, *new.hidden, *old.config, *new.config]):
        before, now = (
            json.dumps(inputs.config[key]) if key in inputs.config else "(not set)"
            for inputs in (old, new)
        )
        if key in hidden and (old.hidden.get(key), before) != (new.hidden.get(key), now):
            yield f"{key} has another value, which is not shown"
        elif before != now:
            shown = (t if len(t) <= _MAX_CHARS else f"{t[:_MAX_CHARS]}..." for t in (before, now))
            yield f"{key} {' -> '.join(shown)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
