"""What a notifier has to tell: one message, its fields, and how it is written as JSON.

The fields of the JSON, all of them always there, null where nothing is known. A later version adds fields; where one
changes its meaning, ``schema`` gets another number.

==============  ========================================================================================
schema          ``lightkit.message/1``
kind            ``start``, ``epoch``, ``end``, ``failure`` or ``gate``
time            ISO 8601, UTC, seconds
job             the run's name; outside the command the model's class
run             the run's id
folder          the run's folder
host            name of the machine
stage           ``fit``, ``validate``, ``test``, ``predict``, ...
status          ``running``, ``done``, ``failed``, ``preempted`` (it can be resumed) or ``interrupted``; of a gate
                ``passed`` or ``failed``
exit_code       of the process, once it is known
epoch           number of the epoch, from 0, as in metrics.csv
max_epochs      number of epochs that are to be trained
step            number of optimizer steps
metrics         numbers by their names; one that is not finite is null
best            ``{monitor, value}`` of the best checkpoint
seconds         since the stage began
error           the last lines of what went wrong, without secrets
mlflow_url      page of the run on MLflow's server, without credentials
mlflow_command  what opens MLflow's local database
gate            the decision of a gate, as in ``gate.json``
==============  ========================================================================================
"""

from __future__ import annotations

import json
import socket
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from lightkit.errors import LightkitError
from lightkit.runs.files import finite

__all__ = ["KINDS", "Kind", "Message", "as_json", "last_lines"]

Kind = Literal["start", "epoch", "end", "failure", "gate"]
KINDS: tuple[Kind, ...] = ("start", "epoch", "end", "failure", "gate")
SCHEMA = "lightkit.message/1"
_MOST_LINES = 15
_MOST_CHARACTERS = 2500


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Message:
    """Something that has happened to a run; the module's text describes each field.

    Args:
        kind: What has happened.
        job: The run's name.
        status: How the run stands.
        run: The run's id.
        folder: The run's folder.
        stage: What the process does.
        exit_code: Of the process.
        epoch: Number of the epoch, from 0.
        max_epochs: Number of epochs that are to be trained.
        step: Number of optimizer steps.
        metrics: Numbers by their names.
        best: Monitor and value of the best checkpoint.
        seconds: Since the stage began.
        error: The last lines of what went wrong.
        mlflow_url: Page of the run on MLflow's server.
        mlflow_command: What opens MLflow's local database.
        gate: The decision of a gate.
        host: Name of the machine.
        time: When.
    """

    kind: Kind
    job: str
    status: str
    run: str | None = None
    folder: str | None = None
    stage: str | None = None
    exit_code: int | None = None
    epoch: int | None = None
    max_epochs: int | None = None
    step: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    best: Mapping[str, Any] | None = None
    seconds: float | None = None
    error: str | None = None
    mlflow_url: str | None = None
    mlflow_command: str | None = None
    gate: Mapping[str, Any] | None = None
    host: str = field(default_factory=socket.gethostname)
    time: str = field(default_factory=_now)


def as_json(message: Message) -> bytes:
    """Write a message as one JSON object."""
    fields = {"schema": SCHEMA, **finite(asdict(message))}
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, default=str).encode("utf-8", errors="replace")


def last_lines(error: BaseException, mask: Callable[[str], str] = str) -> str:
    """Give what is told of an error: its words where it was foreseen, else the end of its traceback.

    Args:
        error: The error.
        mask: Puts references in the place of secrets; before anything is cut off, which would hide them from it.
    """
    told = str(error) if isinstance(error, LightkitError) else "".join(traceback.format_exception(error))
    lines = mask(told).rstrip().splitlines()
    kept = lines[:_MOST_LINES] if isinstance(error, LightkitError) else lines[-_MOST_LINES:]
    text = "\n".join(kept)
    return text[:_MOST_CHARACTERS] if isinstance(error, LightkitError) else text[-_MOST_CHARACTERS:]
