"""What is recorded on its way to MLflow: put into the outbox, with its files set aside until they are sent."""

from __future__ import annotations

import logging
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightkit.loggers.address import Address
from lightkit.loggers.entries import MAX_TAG, as_key, sort_params
from lightkit.loggers.outbox import Outbox
from lightkit.loggers.tracker import Tracker
from lightkit.runs import Run

__all__ = ["Delivery"]

_log = logging.getLogger("lightkit.loggers")
_STAGING = "mlflow-staging"
_KILLED_TIMEOUT_S = 5.0  # who stops a run from outside does not wait long either


class Delivery:
    """One MLflow run, opened by the first record of it.

    Args:
        address: Where the server is.
        run: The run whose folder keeps what waits; None outside the lightkit command.
        experiment: Name of the experiment.
        run_name: None for a name of MLflow's making.
        tags: Of the run.
    """

    def __init__(
        self, address: Address, run: Run | None, *, experiment: str, run_name: str | None, tags: Mapping[str, str]
    ) -> None:
        self._address, self._run = address, run
        self._experiment, self._run_name = experiment, run_name
        self._tags = {**tags, "host": socket.gethostname()}
        self._tracker: Tracker | None = None
        self._outbox: Outbox | None = None

    @property
    def run_id(self) -> str | None:
        """The MLflow run's id; None where it is not open."""
        return self._tracker.run_id if self._tracker else None

    @property
    def is_open(self) -> bool:
        """Whether there has been a record of it."""
        return self._outbox is not None

    @property
    def unsent(self) -> int:
        """Number of records that have not reached the server."""
        return self._outbox.unsent if self._outbox else 0

    @property
    def tracker(self) -> Tracker:
        """The run on the server, which is opened where it is not.

        Raises:
            LightkitError: If the server does not answer.
        """
        return self._open()[0]

    @property
    def folder(self) -> Path:
        """Where what waits is kept, once the MLflow run is open: the run's folder, or one of its own outside a run."""
        assert self._tracker is not None
        return self._run.folder if self._run else Path("mlflow-files") / self._tracker.run_id

    def aside(self, name: str) -> Path:
        """Give a path to keep a file at until it is sent."""
        self._open()
        path = self.folder.absolute() / _STAGING / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def put(self, kind: str, **fields: Any) -> None:
        """Queue a record, as `Tracker` knows it."""
        self._open()[1].put({"kind": kind, **fields})

    def put_metrics(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Queue a row of metrics, unless it is empty."""
        time_ms = int(time.time() * 1000)
        if items := [[as_key(name), value, time_ms, step or 0] for name, value in metrics.items()]:
            self.put("metrics", items=items)

    def put_params(self, params: Mapping[str, Any]) -> None:
        """Queue what the run does not have; MLflow takes no second value, so that one becomes a tag."""
        new, changed = sort_params(params, known=self.tracker.params)
        if new:
            self.put("params", items=new)
        if changed:
            _log.warning("MLflow keeps the first value of a parameter; the new ones are tags: %s", ", ".join(changed))
            self.put_tags(changed)

    def put_tags(self, tags: Mapping[str, str]) -> None:
        """Queue tags, cut to the length that MLflow takes."""
        self.put("tags", items={as_key(name): value[:MAX_TAG] for name, value in tags.items()})

    def put_text(self, name: str, text: str) -> None:
        """Queue a file with this text."""
        path = self.aside(name)
        path.write_text(text)
        self.put_file(path)

    def put_file(self, path: Path, *, to: str | None = None, is_aside: bool = True) -> None:
        """Queue a file.

        Args:
            path: The file.
            to: Folder among the MLflow run's artifacts.
            is_aside: Whether it was set aside, and goes once it is sent.
        """
        self.put("artifact", path=str(path), to=to, staged=is_aside)

    def end(self, status: str, *, timeout_s: float) -> None:
        """Send what is left, end the MLflow run, and say what could not be sent.

        Args:
            status: MLflow's word for how it ended.
            timeout_s: Longest wait, in seconds; 5 at most where the run was stopped from outside.
        """
        outbox = self._open()[1]
        self.put("status", status=status, time_ms=int(time.time() * 1000))
        started = time.monotonic()
        if left := outbox.drain(timeout_s if status != "KILLED" else min(timeout_s, _KILLED_TIMEOUT_S)):
            _log.warning(
                "MLflow at %s did not take %d records within %.0f s; they are kept in %s%s",
                self._address.shown,
                left,
                time.monotonic() - started,
                self._journal,
                ", and the next resume of this run sends them first" if self._run else "",
            )
        else:
            self._clean()
        if outbox.dropped > 1:
            _log.warning("MLflow at %s refused %d records in all", self._address.shown, outbox.dropped)

    def _open(self) -> tuple[Tracker, Outbox]:
        if self._tracker is None or self._outbox is None:
            tracker = Tracker(self._address, state=self._run.folder / "mlflow.json" if self._run else None)
            tracker.open(experiment=self._experiment, run_name=self._run_name, tags=self._tags)
            self._tracker = tracker
            self._outbox = Outbox(tracker.deliver, self._journal, server=f"MLflow at {self._address.shown}")
            if tracker.continued:
                self.put("status", status="RUNNING")
                self.put_tags(self._tags)
        return self._tracker, self._outbox

    @property
    def _journal(self) -> Path:
        return self.folder / "mlflow-unsent.jsonl"

    def _clean(self) -> None:
        """Remove what was set aside, and all of a folder of its own."""
        shutil.rmtree(self.folder / _STAGING, ignore_errors=True)
        if self._run is None:
            with suppress(OSError):  # not empty: checkpoints may lie there
                self.folder.rmdir()
                self.folder.parent.rmdir()
