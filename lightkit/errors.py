"""The mistakes and mishaps that lightkit reports without a traceback, each with its exit code.

::

    LightkitError                1
      ConfigError                2   the config or the command line is wrong
      DataError                  3   the data is wrong or missing
      CheckpointError            1   a checkpoint that was promised is missing or unreadable
      RunLocked                 75   another process holds the run; try again later
    Interrupted (BaseException)      SIGINT or SIGTERM arrived
                                75   with a checkpoint to resume from, else 130 or 143

Everything else that escapes is a defect in lightkit or in the user's code: a traceback and code 1.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CheckpointError", "ConfigError", "DataError", "Interrupted", "LightkitError", "RunLocked"]


class LightkitError(Exception):
    """A mistake or mishap that is told in words, without a traceback."""

    exit_code = 1


class ConfigError(LightkitError):
    """The config or the command line is wrong."""

    exit_code = 2


class DataError(LightkitError):
    """The data is wrong or missing."""

    exit_code = 3


class CheckpointError(LightkitError):
    """A checkpoint that was promised is missing, or cannot be read back."""


class RunLocked(LightkitError):
    """Another process holds the lock of this job; the same command works once that one has ended."""

    exit_code = 75


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived. Not an `Exception`, so that nobody's handler for failures takes it for one.

    Args:
        signum: The signal's number.
        checkpoint: Checkpoint from which the same command resumes, if there is one.
    """

    def __init__(self, signum: int, *, checkpoint: Path | None = None) -> None:
        super().__init__(signum, checkpoint)
        self.signum = signum
        self.checkpoint = checkpoint

    @property
    def exit_code(self) -> int:
        """75 where the run can be resumed, else 128 plus the signal's number, as shells count."""
        return 75 if self.checkpoint is not None else 128 + self.signum
