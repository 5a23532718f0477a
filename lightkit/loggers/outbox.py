"""An ordered queue in front of a tracking server, so that training never waits for it and nothing is lost.

What is put in is written to a journal on disk at once and sent by a thread. The journal is deleted when all of it has
arrived, so a journal that is there holds what the server has not seen, whether the server went away or this process
was killed. Records arrive in order and at least once: whoever sends them must bear one twice.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Outbox", "Record", "Refused", "Unreachable"]

Record = dict[str, Any]
"""``{"kind": ..., ...}`` of JSON values. Of one kind, ``metrics``, several in a row are sent together; where there
are ``items`` (a list or a mapping), a record that is refused as a whole is tried item by item."""

_MAX_ITEMS = 1000  # mlflow.utils.validation.MAX_METRICS_PER_BATCH
_log = logging.getLogger("lightkit.loggers")


class Unreachable(Exception):
    """The server did not take the records now, and may take them later."""


class Refused(Exception):
    """The server will never take the records as they are."""


class Outbox:
    """Send records from a thread, in order, again and again until they arrive.

    Args:
        deliver: Sends records of one kind; raises `Unreachable` or `Refused`.
        journal: File that holds what has not arrived. Its lines from an earlier process are sent first.
        server: What messages call the server; without secrets.
        first_pause_s: Pause after the first failure; it doubles with each further one.
        longest_pause_s: Upper limit of that pause.
    """

    def __init__(
        self,
        deliver: Callable[[list[Record]], None],
        journal: Path,
        *,
        server: str,
        first_pause_s: float = 0.5,
        longest_pause_s: float = 15.0,
    ) -> None:
        self._deliver = deliver
        self._journal = journal
        self._server = server
        self._pauses_s = (first_pause_s, longest_pause_s)
        self._queue: deque[Record] = deque(_read(journal))
        self._changed = threading.Condition()
        self._worker: _Worker | None = None
        self._closing = False
        self.dropped = 0
        if self._queue:
            self._rewrite_journal()  # without half a last line
            with self._changed:
                self._wake()

    @property
    def unsent(self) -> int:
        """How many records have not arrived yet."""
        return len(self._queue)

    def put(self, record: Record) -> None:
        """Queue ``record`` and return at once."""
        with self._changed:
            self._queue.append(record)
            try:
                self._journal.parent.mkdir(parents=True, exist_ok=True)
                with self._journal.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            except OSError as error:
                _log.warning("%s cannot be written (%s); records wait in memory alone", self._journal, error)
            self._wake()

    def drain(self, timeout_s: float) -> int:
        """Wait until all has arrived, for at most ``timeout_s``; returns how many records have not."""
        with self._changed:
            worker, self._closing = self._worker, True
            self._changed.notify_all()
        if worker is not None:
            worker.join(timeout_s)
            worker.stop.set()  # a sending that is under way ends by itself and no longer counts
        with self._changed:
            self._closing, self._worker = False, None
            if self._queue:
                with suppress(OSError):  # said when its first line was written
                    self._rewrite_journal()
            return len(self._queue)

    def _wake(self) -> None:
        if self._worker is None or not self._worker.is_alive():
            self._worker = _Worker(target=self._work, name=f"outbox of {self._journal.parent.name}", daemon=True)
            self._worker.start()
        self._changed.notify_all()

    def _work(self) -> None:
        worker = threading.current_thread()
        assert isinstance(worker, _Worker)
        failures = 0
        while (batch := self._next_batch(worker)) is not None:
            try:
                self._deliver(batch)
            except Unreachable as error:
                failures += 1
                if failures == 1:
                    _log.warning("%s is out of reach (%s); what is logged waits for it", self._server, error)
                self._pause(worker, failures)
                continue
            except Refused as error:
                self._replace(worker, batch, self._smaller(batch, error))
            except Exception:  # noqa: BLE001 - a defect must not end the thread, and with it all further records
                _log.exception("Sending to %s failed", self._server)
                self._replace(worker, batch, self._smaller(batch, Refused("see the traceback above")))
            else:
                if failures:
                    _log.info("%s is back; %d records follow", self._server, self.unsent - len(batch))
                self._replace(worker, batch, [])
            failures = 0

    def _next_batch(self, worker: _Worker) -> list[Record] | None:
        """The records to send next, or None where this worker's work is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing or worker.stop.is_set())
            if worker.stop.is_set() or not self._queue:
                if self._worker is worker:
                    self._worker = None
                return None
            return _mergeable(self._queue)

    def _pause(self, worker: _Worker, failures: int) -> None:
        first_s, longest_s = self._pauses_s
        pause_s = min(first_s * 2 ** min(failures - 1, 16), longest_s)
        with self._changed:
            if not self._closing:
                self._changed.wait_for(lambda: self._closing, pause_s)
                return
        worker.stop.wait(min(pause_s, 1.0))  # at the end somebody waits for us, so try often

    def _smaller(self, batch: list[Record], error: Refused) -> list[Record]:
        """What to try instead of ``batch``; nothing where it cannot be taken apart."""
        if len(batch) > 1:
            return [{**record, "alone": True} for record in batch]
        record = batch[0]
        items = record.get("items", [])
        if len(items) > 1:
            parts = [dict([item]) for item in items.items()] if isinstance(items, dict) else [[item] for item in items]
            return [{**record, "items": part, "alone": True} for part in parts]
        self.dropped += 1
        if self.dropped == 1:
            _log.warning("%s refused %s, which is dropped: %s", self._server, _summary(record), error)
        return []

    def _replace(self, worker: _Worker, batch: list[Record], by: list[Record]) -> None:
        with self._changed:
            if worker.stop.is_set():
                return
            for _ in batch:
                self._queue.popleft()
            self._queue.extendleft(reversed(by))
            if not self._queue:
                with suppress(OSError):  # where it could not be written, it cannot be deleted
                    self._journal.unlink()

    def _rewrite_journal(self) -> None:
        aside = self._journal.with_name(self._journal.name + ".part")
        aside.write_text("".join(json.dumps(record) + "\n" for record in self._queue))
        aside.replace(self._journal)


class _Worker(threading.Thread):
    """A thread that can be told that it no longer counts."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stop = threading.Event()


def _mergeable(queue: deque[Record]) -> list[Record]:
    """The longest start of the queue that can be sent as one: a row of metrics, or a single record."""
    batch: list[Record] = []
    num_items = 0
    for record in queue:
        num_items += len(record.get("items", []))
        alone = record["kind"] != "metrics" or record.get("alone", False)
        if batch and (alone or num_items > _MAX_ITEMS):
            break
        batch.append(record)
        if alone:
            break
    return batch


def _read(journal: Path) -> list[Record]:
    """The whole lines of the journal; a killed process may have left half of one at the end."""
    lines = journal.read_text().splitlines() if journal.is_file() else []
    return [record for line in lines if (record := _parse(line, journal)) is not None]


def _parse(line: str, journal: Path) -> Record | None:
    try:
        record: Record = json.loads(line)
    except ValueError:
        _log.warning("%s holds half a line, which is left out: %.60s", journal, line)
        return None
    return record


def _summary(record: Record) -> str:
    text = ", ".join(f"{key}={value}" for key, value in record.items() if key not in ("kind", "alone"))
    return f"{record['kind']} ({text:.200})"
