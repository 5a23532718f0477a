"""Tracebacks without secrets: the message of an exception that nobody catches may hold what the config says."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = ["format_traceback", "mask_tracebacks"]


class _Masked:
    """What writes tracebacks in this process."""

    def __init__(self) -> None:
        self.mask: Callable[[str], str] = str

    def of_process(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            print(self.mask("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)

    def of_thread(self, raised: Any) -> None:
        if issubclass(raised.exc_type, SystemExit):
            return
        words = "".join(traceback.format_exception(raised.exc_type, raised.exc_value, raised.exc_traceback))
        name = raised.thread.name if raised.thread else "a thread"
        print(self.mask(f"Exception in thread {name}:\n{words}"), end="", file=sys.stderr)


_MASKED = _Masked()


def mask_tracebacks(mask: Callable[[str], str]) -> None:
    """Have Python write tracebacks without secrets; hooks that somebody has put in place stay.

    Args:
        mask: Puts references in the place of secrets.
    """
    _MASKED.mask = mask
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _MASKED.of_process
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _MASKED.of_thread


def format_traceback(error: BaseException) -> str:
    """Write the traceback of an error without secrets, as far as a config has been read by now."""
    return _MASKED.mask("".join(traceback.format_exception(error)))
