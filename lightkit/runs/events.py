"""The event stream of a run: what happened, in order, one JSON object a line.

Every line has ``time`` (ISO 8601, UTC, milliseconds) and ``event``, and the fields below; a line of
a process that has the lock of the job has ``token``, that of the lock. A writer may add fields, a
reader skips those it does not know. A number that is not finite is written as null, because JSON
has no other way to say it.

==========  ========================================================================================
start       training or another stage begins in a new run folder
            fields: run (string), stage (string)
resume      training goes on in a run folder that an earlier process left behind
            fields: run (string), stage (string), checkpoint (string or null), epoch (integer), step
            (integer)
epoch       an epoch, with its validation, is complete; ``metrics`` are those of its row in
            metrics.csv
            fields: epoch (integer), step (integer), metrics (object), seconds (number)
checkpoint  a checkpoint is on disk, with its digest; ``path`` is relative to the run folder
            fields: path (string), epoch (integer), step (integer), kind (string)
result      a validate, test or predict stage is complete
            fields: stage (string), metrics (object)
bad_images  ``count`` images or rows are left out: ``reasons`` says how many for which reason,
            ``found`` when it was found (scan, epoch 3, test), and ``path``, relative to the run
            folder, where each is listed
            fields: count (integer), reasons (object), found (string), path (string)
stall       nothing was finished for ``seconds`` in ``phase`` (train, validate, ...); ``path`` has
            the stacks of all threads and loading processes, and ``at`` the line at which the
            blocked one stands
            fields: phase (string), seconds (number), path (string), at (string or null)
nonfinite   the loss of a batch was NaN or infinite; ``indices`` of its samples in the split, null
            where they are unknown; ``action`` is stop or skip
            fields: epoch (integer), step (integer), batch (integer), indices (list or null), action
            (string)
fallback    a checkpoint was passed over for an older one: ``path`` is not what was written,
            ``used`` is
            fields: path (string), used (string or null), reason (string)
gate        the gate decided: ``passed``, the ``scores`` of the model and the baseline, ``reasons``
            where it failed
            fields: passed (boolean), scores (object), reasons (list)
promotion   an alias of the registry moved: ``name``, ``alias``, ``from`` and ``to`` (versions;
            null: none)
            fields: name (string), alias (string), from (string or null), to (string or null)
stage       a stage of ``lightkit retrain``: ``stage``, and its ``status`` (begun, done, failed,
            skipped)
            fields: stage (string), status (string)
unchanged   ``fit --if-changed`` found nothing to do: ``run`` is made from the same; on standard
            output only
            fields: run (string), data (object)
warning     a warning, which was printed too
            fields: message (string), source (string)
end         the last line of this process
            fields: status (string), exit_code (integer), seconds (number)
==========  ========================================================================================

A process that is killed leaves no ``end``; the next one in the same folder begins with ``resume``.
It trains again what came after its checkpoint, so an epoch can have two events; the later one
counts, and metrics.csv has only that. A process that was suspended and lost the job's lock may have
written one line before it noticed: a line with a token that another token has followed does not
count.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from lightkit.runs.fence import find_fence
from lightkit.runs.files import finite, keep_damaged, parse_json
from lightkit.runs.records import Event, find_mismatch


class EventStream:
    """Appends events to a file, and to a text stream where one is given.

    A line that a killed process left unfinished is closed first, so that it spoils no other.

    Args:
        path: The file; it and its folder are made with the first event.
        mirror: Gets each line too: standard output under ``--output json``.
        redact: Puts references in the place of secrets, in plain containers too.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        mirror: TextIO | None = None,
        redact: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.path = Path(path)
        self.redact = redact
        self.mirror = mirror
        self._repaired = False

    def write(self, event: str, /, **fields: Any) -> None:
        """Append one event, with the present time.

        Also append the token of the job's lock where this process holds it.

        Raises:
            RunLocked: If it has lost the lock.
        """
        fields = self.redact(fields)
        fence = find_fence(self.path)
        if fence is not None:
            fence.check()
            fields["token"] = fence.token
        line = _format(event, fields)
        self._append(line.encode("utf-8", errors="replace"))
        if self.mirror is not None:
            self.mirror.write(line)
            self.mirror.flush()

    def _append(self, line: bytes) -> None:
        """Append a line by one write.

        Threads, and processes that were forked meanwhile, cannot tear it apart.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._repaired and not self.path.is_file():
            keep_damaged(self.path)
        with self.path.open("a+b") as file:
            if not self._repaired and file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            self._repaired = True
            file.write(line)


def print_event(event: str, /, **fields: Any) -> None:
    """Print an event that belongs to no run's file, for a program that reads standard output."""
    print(_format(event, fields), end="", flush=True)  # noqa: T201


def read_events(path: Path | str, *, start: int = 0) -> Iterator[dict[str, Any]]:
    """Read the events of a file in order, without lines that are torn or are no events.

    None if there is no file.

    A line whose fields have another type than they are documented with is no event.

    An event of a process that had lost the job's lock by then is passed over: its token is one that
    another has followed.

    Args:
        path: The file.
        start: Number of bytes to pass over.
    """
    file = Path(path)
    if not file.is_file():
        return
    token = None
    former = set[Any]()
    with file.open("rb") as lines:
        lines.seek(start)
        for line in lines:
            try:
                record = parse_json(line)
            except ValueError:
                continue
            if find_mismatch(record, Event) is not None or "event" not in record:
                continue
            if isinstance(own := record.get("token"), str):
                if own in former:
                    continue
                if token not in (None, own):
                    former.add(token)
                token = own
            yield record


def _format(event: str, fields: Mapping[str, Any]) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    record = {"time": now, "event": event, **finite(fields)}
    return json.dumps(record, ensure_ascii=False, allow_nan=False, default=str) + "\n"


# of a package, not for who runs it
_FOR_AUTHORS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)


class WarningWatch(logging.Handler):
    """Passes on each different warning once; they are shown as before.

    Args:
        report: Gets the message, and the warning's category or the logger's name.
    """

    def __init__(self, report: Callable[[str, str], object]) -> None:
        super().__init__(logging.WARNING)
        self._report = report
        self._seen: set[tuple[str, str]] = set()
        self._watched: list[logging.Logger] = []
        self._show: Any = None

    def start(self) -> None:
        """Listen to `warnings` and to the loggers."""
        self._show, warnings.showwarning = warnings.showwarning, self._show_and_report
        self.watch_loggers()

    def watch_loggers(self) -> None:
        """Listen to the root logger and to those that tell it nothing.

        Again after packages have set up theirs.
        """
        known = [
            log
            for log in logging.root.manager.loggerDict.values()
            if isinstance(log, logging.Logger)
        ]
        for log in [logging.root, *(log for log in known if not log.propagate)]:
            if self not in log.handlers:
                log.addHandler(self)
                self._watched.append(log)

    def stop(self) -> None:
        """Report nothing from here on; a second call does nothing."""
        if warnings.showwarning == self._show_and_report:
            warnings.showwarning = self._show
        for log in self._watched:
            log.removeHandler(self)
        self._watched.clear()

    def emit(self, record: logging.LogRecord) -> None:
        """Report a record of a logger."""
        is_captured = record.name == "py.warnings" and warnings.showwarning == self._show_and_report
        # else logging.captureWarnings makes it of a warning that is reported itself
        if not is_captured:
            self._report_once(record.getMessage(), record.name)

    def _show_and_report(
        self, message: Warning | str, category: type[Warning], *where: Any, **more: Any
    ) -> None:
        self._show(message, category, *where, **more)
        if not issubclass(category, _FOR_AUTHORS):
            self._report_once(str(message), category.__name__)

    def _report_once(self, message: str, source: str) -> None:
        if (source, message) not in self._seen:
            self._seen.add((source, message))
            self._report(message, source)
