"""The event stream of a run: what happened, in order, one JSON object a line.

Every line has ``time`` (ISO 8601, UTC, milliseconds) and ``event``, and the fields of `FIELDS`. A writer may add
fields, a reader skips those that it does not know. A number that is not finite is written as
null, because JSON has no other way to say it.

==========  ==========================================================================================
start       training or another stage begins in a new run folder
resume      training goes on in a run folder that an earlier process left behind
epoch       an epoch, with its validation, is complete; ``metrics`` are those of its row in metrics.csv
checkpoint  a checkpoint is on disk, with its digest; ``path`` is relative to the run folder
result      a validate, test or predict stage is complete
bad_images  ``count`` images or rows are left out: ``reasons`` says how many for which reason, ``found`` when it was
            found (scan, epoch 3, test), and ``path``, relative to the run folder, where each is listed
stall       nothing was finished for ``seconds`` in ``phase`` (train, validate, ...); ``path`` has the stacks of all
            threads and loading processes, and ``at`` the line at which the blocked one stands
nonfinite   the loss of a batch was NaN or infinite; ``indices`` of its samples in the split, null where they are
            unknown; ``action`` is stop or skip
fallback    a checkpoint was passed over for an older one: ``path`` is not what was written, ``used`` is
gate        the gate decided: ``passed``, the ``scores`` of the model and the baseline, ``reasons`` where it failed
promotion   an alias of the registry moved: ``name``, ``alias``, ``from`` and ``to`` (versions; null: none)
stage       a stage of ``lightkit retrain``: ``stage``, and its ``status`` (begun, done, failed, skipped)
unchanged   ``fit --if-changed`` found nothing to do: ``run`` is made from the same; on standard output only
warning     a warning, which was printed too
end         the last line of this process
==========  ==========================================================================================

A process that is killed leaves no ``end``; the next one in the same folder begins with ``resume``. It trains again
what came after its checkpoint, so an epoch can have two events; the later one counts, and metrics.csv has only that.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from lightkit.runs.files import finite

_NUMBER = (int, float)

FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "start": {"run": (str,), "stage": (str,)},
    "resume": {"run": (str,), "stage": (str,), "checkpoint": (str, type(None)), "epoch": (int,), "step": (int,)},
    "epoch": {"epoch": (int,), "step": (int,), "metrics": (dict,), "seconds": _NUMBER},
    "checkpoint": {"path": (str,), "epoch": (int,), "step": (int,), "kind": (str,)},
    "result": {"stage": (str,), "metrics": (dict,)},
    "bad_images": {"count": (int,), "reasons": (dict,), "found": (str,), "path": (str,)},
    "stall": {"phase": (str,), "seconds": _NUMBER, "path": (str,), "at": (str, type(None))},
    "nonfinite": {"epoch": (int,), "step": (int,), "batch": (int,), "indices": (list, type(None)), "action": (str,)},
    "fallback": {"path": (str,), "used": (str, type(None)), "reason": (str,)},
    "gate": {"passed": (bool,), "scores": (dict,), "reasons": (list,)},
    "promotion": {"name": (str,), "alias": (str,), "from": (str, type(None)), "to": (str, type(None))},
    "stage": {"stage": (str,), "status": (str,)},
    "unchanged": {"run": (str,), "data": (dict,)},
    "warning": {"message": (str,), "source": (str,)},
    "end": {"status": (str,), "exit_code": (int,), "seconds": _NUMBER},
}
"""Name of an event -> its required fields -> the types each may have. ``time`` and ``event`` are in every one."""


class EventStream:
    """Appends events to a file, and to a text stream where one is given.

    A line that a killed process left unfinished is closed first, so that it spoils no other.

    Args:
        path: The file; it and its folder are made with the first event.
        mirror: Gets each line too: standard output under ``--output json``.
        redact: Puts references in the place of secrets, in plain containers too.
    """

    def __init__(
        self, path: Path | str, *, mirror: TextIO | None = None, redact: Callable[[Any], Any] = lambda value: value
    ) -> None:
        self.path = Path(path)
        self.redact = redact
        self.mirror = mirror
        self._locks: dict[int, threading.Lock] = {}  # of each process: a fork may come while a thread holds its own
        self._repaired = False

    def write(self, event: str, /, **fields: Any) -> dict[str, Any]:
        """Append one event of `FIELDS`, with the present time, and return it as it is written."""
        record, line = _format(event, self.redact(fields))
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            self._append(line.encode("utf-8", errors="replace"))
            if self.mirror is not None:
                self.mirror.write(line)
                self.mirror.flush()
        return record

    def _append(self, line: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b", buffering=0) as file:
            if not self._repaired and file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            self._repaired = True
            rest = memoryview(line)
            while rest:  # on a full disk a part may fit, and the next call raises
                rest = rest[file.write(rest) :]


def print_event(event: str, /, **fields: Any) -> None:
    """Print an event that belongs to no run's file, for a program that reads standard output."""
    print(_format(event, fields)[1], end="", flush=True)  # noqa: T201


def read_events(path: Path | str) -> Iterator[dict[str, Any]]:
    """Read the events of a file in order, without lines that are torn or are no events; none if there is no file."""
    file = Path(path)
    if not file.is_file():
        return
    with file.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and "event" in record:
                yield record


def _format(event: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    record = {"time": now, "event": event, **finite(fields)}
    return record, json.dumps(record, ensure_ascii=False, allow_nan=False, default=str) + "\n"


class WarningWatch(logging.Handler):
    """A context manager that passes on each different warning once; they are shown as before.

    Args:
        report: Gets the message, and the warning's category or the logger's name.
        skip: Categories that are for the authors of a package and not for who runs it.
    """

    def __init__(
        self,
        report: Callable[[str, str], object],
        *,
        skip: tuple[type[Warning], ...] = (DeprecationWarning, PendingDeprecationWarning, FutureWarning),
    ) -> None:
        super().__init__(logging.WARNING)
        self._report = report
        self._skip = skip
        self._seen: set[tuple[str, str]] = set()
        self._busy = threading.local()
        self._watched: list[logging.Logger] = []
        self._show: Any = None

    def __enter__(self) -> WarningWatch:
        self._show = warnings.showwarning
        warnings.showwarning = self._show_and_note
        self.watch_loggers()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def watch_loggers(self) -> None:
        """Listen to the root logger and to those that tell it nothing; again after packages have set up theirs."""
        known = [log for log in logging.root.manager.loggerDict.values() if isinstance(log, logging.Logger)]
        for log in [logging.root, *(log for log in known if not log.propagate)]:
            if self not in log.handlers:
                log.addHandler(self)
                self._watched.append(log)

    def stop(self) -> None:
        """Report nothing from here on; a second call does nothing."""
        if self._show is not None and warnings.showwarning == self._show_and_note:
            warnings.showwarning = self._show
        self._show = None
        for log in self._watched:
            log.removeHandler(self)
        self._watched.clear()

    def emit(self, record: logging.LogRecord) -> None:
        """Report a record of a logger."""
        self._note(record.getMessage(), record.name)

    def _show_and_note(self, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        show = self._show or warnings.showwarning
        self._busy.showing = True  # logging.captureWarnings makes a log record of it, which is not another warning
        try:
            show(message, category, *where, **more)
        finally:
            self._busy.showing = False
        if not issubclass(category, self._skip):
            self._note(str(message), category.__name__)

    def _note(self, message: str, source: str) -> None:
        if getattr(self._busy, "showing", False) or (source, message) in self._seen:
            return
        self._seen.add((source, message))
        self._busy.showing = True  # a warning while one is reported would have no end
        try:
            self._report(message, source)
        finally:
            self._busy.showing = False
