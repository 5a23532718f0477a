"""Warnings that are shown while a run lasts, from Python's warnings and from logging, told to somebody else too."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["WarningWatch"]


class WarningWatch:
    """A context manager that passes on each different warning once; they are shown as before.

    Args:
        tell: Gets the message, and the warning's category or the logger's name.
        skip: Categories that are for the authors of a package and not for who runs it.
    """

    def __init__(
        self,
        tell: Callable[[str, str], object],
        *,
        skip: tuple[type[Warning], ...] = (DeprecationWarning, PendingDeprecationWarning, FutureWarning),
    ) -> None:
        self._tell = tell
        self._skip = skip
        self._told: set[tuple[str, str]] = set()
        self._busy = threading.local()
        self._handler = _Handler(self._note)
        self._watched: list[logging.Logger] = []
        self._show: Any = None

    def __enter__(self) -> WarningWatch:
        self._show = warnings.showwarning
        warnings.showwarning = self._shown
        self.watch_loggers()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def watch_loggers(self) -> None:
        """Listen to the root logger and to those that tell it nothing; again after packages have set up theirs."""
        known = [log for log in logging.root.manager.loggerDict.values() if isinstance(log, logging.Logger)]
        for log in [logging.root, *(log for log in known if not log.propagate)]:
            if self._handler not in log.handlers:
                log.addHandler(self._handler)
                self._watched.append(log)

    def stop(self) -> None:
        """Tell nothing from here on; a second call does nothing."""
        if self._show is not None and warnings.showwarning == self._shown:
            warnings.showwarning = self._show
        self._show = None
        for log in self._watched:
            log.removeHandler(self._handler)
        self._watched.clear()

    def _shown(self, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        show = self._show or warnings.showwarning
        self._busy.showing = True  # logging.captureWarnings makes a log record of it, which is not another warning
        try:
            show(message, category, *where, **more)
        finally:
            self._busy.showing = False
        if not issubclass(category, self._skip):
            self._note(str(message), category.__name__)

    def _note(self, message: str, source: str) -> None:
        if getattr(self._busy, "showing", False) or (source, message) in self._told:
            return
        self._told.add((source, message))
        self._busy.showing = True  # a warning while one is being told would have no end
        try:
            self._tell(message, source)
        finally:
            self._busy.showing = False


class _Handler(logging.Handler):
    def __init__(self, note: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        self._note(record.getMessage(), record.name)
