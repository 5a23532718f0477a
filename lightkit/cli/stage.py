"""A stage that has begun."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Any

from lightkit.callbacks import RunRecorder
from lightkit.cli.resume import RunStart

__all__ = ["Stage"]


@dataclass(frozen=True)
class Stage:
    """A stage that has begun.

    Args:
        start: Its run and checkpoint.
        recorder: Keeps the run folder up to date.
        worth_keeping: Set once training has begun. A mistake in the config or the data that shows before leaves
            no folder behind.
        data_before: What the run was trained on when it was interrupted.
        resumes_by_itself: Whether nobody named the run that goes on, so that it should be the same in all respects.
    """

    start: RunStart
    recorder: RunRecorder
    worth_keeping: Event = field(default_factory=Event)
    data_before: dict[str, Any] | None = None
    resumes_by_itself: bool = False
