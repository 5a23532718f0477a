"""The record of a sweep, ``sweeps/NAME/trials.jsonl``.

One JSON object a line, in the order in which it happened.

========  ==========================================================================================
sweep     the first line. fields: schema (1), search (object: the sweep as far as it decides
          proposals and values), digest (of search and config)
begin     a trial, before it is started. fields: trial (number), params (object), kind (``search``,
          ``seed`` or ``confirm``), seed (of the trial; null: that of the config), of (number of the
          trial that is confirmed)
metric    what is searched, once it is known. fields: metric, mode (``min`` or ``max``)
end       a trial is finished. fields: trial, state (``complete``, ``pruned``, ``failed``), value,
          epoch (of ``best.ckpt``), values (by epoch), constraints (by name), params (number of
          parameters), run (``NAME/ID``), seconds, reason (why it failed), data
          (its fingerprint; null where nothing tells it)
done      nothing is left of the sweep. A later ``begin`` takes that back, such as one of more
          trials
========  ==========================================================================================

A trial without an ``end`` was interrupted: the next start goes on with it. `lightkit gc` keeps the
runs of a sweep that is not done. One process writes, which holds the job's lock; each line is on
the disk before what it says is done. A last line that a killed process has cut is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from lightkit.errors import ConfigError, join_names
from lightkit.runs.files import find_value, finite, flush, parse_json
from lightkit.runs.records import find_mismatch

FILE = "trials.jsonl"
SCHEMA = 1
_AFTER_DAMAGE = "Move the folder away; the same command then begins a new sweep."
_FOLDER = "sweeps"
Kind = Literal["search", "seed", "confirm"]
State = Literal["running", "complete", "pruned", "failed"]


class _Head(TypedDict, total=False):
    """Line ``sweep``."""

    search: dict[str, Any]
    digest: str


class _Metric(TypedDict, total=False):
    """Line ``metric``."""

    metric: str
    mode: str


class _Begin(TypedDict, total=False):
    """Line ``begin``."""

    trial: int
    params: dict[str, Any]
    kind: str
    seed: int | None
    of: int | None


class _End(TypedDict, total=False):
    """Line ``end``."""

    trial: int
    state: str
    value: float | None
    epoch: int | None
    values: dict[str, float]
    constraints: dict[str, float]
    params: int | None
    run: str | None
    seconds: float
    reason: str | None
    data: str | None


_LINES: dict[str, type] = {"sweep": _Head, "metric": _Metric, "begin": _Begin, "end": _End}


@dataclass
class Trial:
    """One trial of a sweep.

    Args:
        number: Its number; 0 is the config itself.
        params: Values of the searched keys that are in effect.
        kind: ``search``, ``seed``, or ``confirm``.
        seed: Its ``seed_everything``; None for that of the config.
        of: Number of the trial that it confirms.
        state: How it stands.
        value: Of the metric, of its best checkpoint; None where it has none.
        epoch: Epoch of the best checkpoint.
        values: Values of the metric by epoch.
        constraints: Values of what is bounded.
        num_params: Number of the model's parameters.
        run: ``NAME/ID`` of its run.
        seconds: How long its newest start took.
        reason: Why it failed.
        data: Fingerprint of its data; None where it is not known.
    """

    number: int
    params: Mapping[str, Any]
    kind: str = "search"
    seed: int | None = None
    of: int | None = None
    state: State = "running"
    value: float | None = None
    epoch: int | None = None
    values: dict[int, float] = field(default_factory=dict)
    constraints: dict[str, float] = field(default_factory=dict)
    num_params: int | None = None
    run: str | None = None
    seconds: float = 0.0
    reason: str | None = None
    data: str | None = None

    @property
    def is_finished(self) -> bool:
        """Return whether nothing is left of it."""
        return self.state != "running"

    def is_feasible(self, bounds: Mapping[str, Mapping[str, float]]) -> bool:
        """Return whether it is complete and within all bounds."""
        return self.state == "complete" and not self.list_violations(bounds)

    def list_violations(self, bounds: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return by how much it breaks each bound that it breaks."""
        found = {}
        for name, limits in bounds.items():
            value = self.constraints[name]
            excess = max(value - limits.get("max", value), limits.get("min", value) - value)
            if excess > 0:
                found[name] = excess
        return found


def find_sweeps(root: Path) -> Path:
    """Return the folder of all sweeps, which is next to that of all runs."""
    return root.absolute().parent / _FOLDER


class SweepRecord:
    """The file and the trials in it.

    Args:
        path: The file.
        check: Called before each line is written; it raises where this process has lost the job's
            lock.
    """

    def __init__(self, path: Path, *, check: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self.trials: list[Trial] = []
        self.is_done = False
        """Whether nothing is left of the sweep."""
        self._check = check

    def read(self) -> SweepRecord:
        """Read the file, if it is there.

        Raises:
            ConfigError: If it cannot be read, or a line of it is damaged.
        """
        content = self._read_content()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._apply(_parse_line(line))
            except (ValueError, KeyError) as error:
                reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                raise ConfigError(
                    f"{self.path}, line {number}: this is no line of a sweep ({reason})."
                    f" {_AFTER_DAMAGE}"
                ) from None
        return self

    def check_with(self, lock: Any) -> None:
        """Check from now on, before each line, that this process holds the job's lock."""
        self._check = lock.check

    def note_metric(self, metric: str, mode: str) -> None:
        """Record the metric and its mode, which the first trial has told."""
        self._append({"event": "metric", "metric": metric, "mode": mode})

    def trim(self) -> None:
        """Cut off a last line that a killed process has left unfinished.

        Raises:
            ConfigError: If the file cannot be read.
        """
        content = self._read_content()
        size = content.rfind(b"\n") + 1
        if size < len(content):
            with self.path.open("r+b") as file:
                file.truncate(size)
                file.flush()
                os.fsync(file.fileno())

    def write_head(self, search: Mapping[str, Any], digest: str) -> None:
        """Begin the file.

        Raises:
            ConfigError: If it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"event": "sweep", "schema": SCHEMA, "search": search, "digest": digest})
            flush(self.path.parent)
        except OSError as error:
            raise ConfigError(
                f"sweep: cannot write {self.path}: {error.strerror or error}. It stands next to the"
                " run root; set run.root to a folder in one that can be written, such as"
                " --run.root /tmp/sweep/runs."
            ) from error

    def begin(self, trial: Trial) -> None:
        """Record a trial that is about to be started."""
        fields = {
            "trial": trial.number,
            "params": dict(trial.params),
            "kind": trial.kind,
            "seed": trial.seed,
        }
        self._append({"event": "begin", **fields, "of": trial.of})

    def end(self, trial: Trial) -> None:
        """Record how a trial has ended."""
        self._append(
            {
                "event": "end",
                "trial": trial.number,
                "state": trial.state,
                "value": trial.value,
                "epoch": trial.epoch,
                "values": {str(epoch): value for epoch, value in sorted(trial.values.items())},
                "constraints": trial.constraints,
                "params": trial.num_params,
                "run": trial.run,
                "seconds": round(trial.seconds, 3),
                "reason": trial.reason,
                "data": trial.data,
            }
        )

    def note_done(self) -> None:
        """Record that nothing is left of the sweep."""
        if not self.is_done:
            self._append({"event": "done"})

    def needs_run(self, number: int) -> bool:
        """Return whether the sweep needs the run of a trial.

        Until it is done, each that it has not stopped early. A file without its first line, such
        as an empty one, tells nothing of it.
        """
        if not self.head:
            return self.path.exists()
        if self.is_done:
            return False
        return number >= len(self.trials) or self.trials[number].state != "pruned"

    def _read_content(self) -> bytes:
        """Return the bytes of the file; none without a file.

        Raises:
            ConfigError: If it is no file, or cannot be read.
        """
        try:
            self.path.lstat()
            if self.path.is_file():
                return self.path.read_bytes()
            reason = "it is no file"
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except OSError as error:
            reason = error.strerror or str(error)
        raise ConfigError(f"{self.path} cannot be read: {reason}. {_AFTER_DAMAGE}")

    def _append(self, line: Mapping[str, Any]) -> None:
        """Append a line, which is on the disk when this returns."""
        self._check()
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"time": now, **line}
        text = json.dumps(finite(record), ensure_ascii=False, allow_nan=False, default=str)
        with self.path.open("ab") as file:
            file.write(f"{text}\n".encode("utf-8", errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        self._apply(json.loads(text))

    def _apply(self, line: Mapping[str, Any]) -> None:
        event = line["event"]
        if (event == "sweep") != (not self.head):
            raise ValueError(f"a sweep begins with one line 'sweep', and here is {event!r}")
        if event == "sweep":
            self.head = dict(line)
        elif event == "metric":
            if line["mode"] not in ("min", "max"):
                raise ValueError(f"mode is {line['mode']!r}, expected 'min' or 'max'")
            self.head |= {"found_metric": line["metric"], "found_mode": line["mode"]}
        elif event == "begin":
            number = len(self.trials)
            if line["trial"] != number:
                raise ValueError(f"trial {line['trial']} follows trial {number - 1}")
            if line["kind"] not in get_args(Kind):
                raise ValueError(f"trial {number} is of the kind {line['kind']!r}")
            self.trials.append(
                Trial(number, line["params"], line["kind"], line["seed"], line["of"])
            )
            self.is_done = False
        elif event == "end":
            self._end_trial(line)
        elif event == "done":
            self.is_done = True

    def _end_trial(self, line: Mapping[str, Any]) -> None:
        """Take the end of a trial from its line.

        Raises:
            ValueError: If it is none.
        """
        number = line["trial"]
        if not 0 <= number < len(self.trials):
            raise ValueError(f"trial {number} has not begun")
        state = line["state"]
        if state not in get_args(State) or (state == "complete" and line["value"] is None):
            raise ValueError(f"trial {number} is {state!r}, with the value {line['value']}")
        bounded = find_value(self.head, "search", "constraints") or {}
        unknown = sorted(bounded.keys() - line["constraints"].keys())
        if state == "complete" and unknown:
            raise ValueError(
                f"trial {number} has no value of {join_names(unknown)}, which is bounded"
            )
        trial = self.trials[number]
        trial.state = state
        trial.value = line["value"]
        trial.epoch = line["epoch"]
        trial.values = {int(epoch): float(value) for epoch, value in line["values"].items()}
        trial.constraints = dict(line["constraints"])
        trial.num_params = line["params"]
        trial.run = line["run"]
        trial.seconds = line["seconds"]
        trial.reason = line["reason"]
        trial.data = line.get("data")  # earlier versions have not recorded it


def _parse_line(line: bytes) -> dict[str, Any]:
    """Return the object of a line.

    Raises:
        ValueError: If it is none, or a key in it has a value of another type.
    """
    record: Any = parse_json(line)
    event = record.get("event") if isinstance(record, dict) else None
    damage = find_mismatch(record, _LINES.get(str(event), dict[str, Any]))
    if damage is not None:
        raise ValueError(damage)
    found: dict[str, Any] = record
    return found
