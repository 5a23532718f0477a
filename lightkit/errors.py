"""The errors that lightkit reports without a traceback, each with its exit code.

::

    LightkitError                1
      ConfigError                2   the config or the command line is wrong
        ConfigErrors             2   so it is in several places
        DataChanged              2   the run that was to be resumed had other data: `fit` begins a
                                     new run
      DataError                  3   the data is wrong or missing
      GateFailed                 4   nothing was promoted: not good enough, rolled back before, or
                                     the alias is held
      ExportError                5   an export does not match its model, or cannot be made of it
      CheckpointError            1   a checkpoint that was promised is missing or unreadable
      Stalled                   70   nothing was finished for too long: the watchdog has ended it
      NonfiniteLoss              1   the loss was NaN or infinite; a checkpoint from before is there
      OutputLost                74   standard output cannot be written, as on a full disk
      RunLocked                 75   another process holds the run; try again later
      OutOfTime                 75   the deadline leaves no time for what is left; the same command
                                     goes on
        TooLittleTime            2   so it does, and the same command has no more time: it is a
                                     duration
      ServerAway                75   MLflow does not answer, or its database is locked; try again
                                     later
    Interrupted (BaseException)      SIGINT, SIGTERM, SIGUSR1 or SIGHUP arrived
                                75   where the same command goes on, else 130, 143, 138 or 129

Everything else that escapes is a defect in lightkit or in the user's code: a traceback and code 1.
"""

from __future__ import annotations

import copy
import difflib
import errno
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing import Self  # typing has it from Python 3.11 on

PIPE_CLOSED = 128 + 13
"""Exit code where whoever read the output has left, as shells tell the end by SIGPIPE."""

MAKE_ROOM = "Make room, or let the disk be written again"
"""Advice of each error of `explain_full_disk`, by which another process recognises one."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""Numbers of the system's errors of a disk that is full or cannot be written."""
# Control characters but tab and line break, those that turn the direction of text, and what is no
# text: a terminal obeys them or cannot print them, and XML cannot hold them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def visible(text: str, *, in_line: bool = False) -> str:
    """Write characters that a terminal would obey, and bytes that are no text, as Python's escapes.

    Args:
        text: What is to be read by people, such as the name of a file.
        in_line: Whether tabs and line breaks are escaped as well, so that a name cannot look like a
            line of its own.
    """
    text = text.replace("\t", r"\t").replace("\n", r"\n") if in_line else text
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def cut(text: str, length: int = 160) -> str:
    """Leave out the middle of a text that is too long to be read."""
    return text if len(text) <= length else f"{text[: length * 3 // 4]} ... {text[-length // 4 :]}"


def near(word: str, choices: Iterable[str], *, most: int = 3) -> str:
    """Return ``; did you mean 'x'?`` with the choices that look most like a word.

    The text is empty where none does.
    """
    return suggest(find_near(word, choices, most=most))


def find_near(word: str, choices: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the choices that look most like a word, the nearest first."""
    return difflib.get_close_matches(word, sorted(set(choices)), n=most, cutoff=0.6)


def suggest(words: Sequence[str]) -> str:
    """Return ``; did you mean 'x' or 'y'?``; empty without words."""
    return f"; did you mean {' or '.join(map(repr, words))}?" if words else ""


class LightkitError(Exception):
    """An error that is reported without a traceback.

    Args:
        says: The words, with the places that they are about.
        places: Those places, for whoever goes on after the error.
    """

    exit_code = 1

    def __init__(self, text: object = "", *, places: Iterable[object] = ()) -> None:
        super().__init__(visible(text) if isinstance(text, str) else text)
        self.places = tuple(places)

    def reworded(self, rewrite: Callable[[str], str]) -> Self:
        """Return the same error in other words, as for logs without secrets."""
        error = copy.copy(self)
        error.args = (rewrite(str(self)),)
        return error


class ConfigError(LightkitError):
    """The config or the command line is wrong."""

    exit_code = 2

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        """Each error by itself."""
        return (self,)


class ConfigErrors(ConfigError):
    """The config or the command line is wrong in several places.

    Args:
        problems: The errors, in the order in which they are reported.
    """

    def __init__(self, problems: Iterable[ConfigError]) -> None:
        self._problems = tuple(problems)
        text = "\nerror: ".join(str(problem) for problem in self._problems)
        super().__init__(
            text, places=[place for problem in self._problems for place in problem.places]
        )

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        """Each error by itself."""
        return self._problems

    def reworded(self, rewrite: Callable[[str], str]) -> Self:
        """Return the same errors in other words."""
        return type(self)([problem.reworded(rewrite) for problem in self._problems])


class DataError(LightkitError):
    """The data is wrong or missing."""

    exit_code = 3


class GateFailed(LightkitError):
    """Nothing was promoted: not good enough, rolled back before, or the alias is held."""

    exit_code = 4


class ExportError(LightkitError):
    """An export does not match its model, or the model cannot be exported."""

    exit_code = 5


class CheckpointError(LightkitError):
    """A checkpoint that should have been written is missing, or cannot be read back."""


class NonfiniteLoss(LightkitError):
    """The loss of a training batch was NaN or infinite; no checkpoint contains that step."""


class Stalled(LightkitError):
    """No step was finished within the time of the watchdog; the same command may resume."""

    exit_code = 70


class OutputLost(LightkitError):
    """Standard output cannot be written; files that were written before are whole."""

    exit_code = 74  # EX_IOERR of sysexits.h, as 70 and 75 are of it


class RunLocked(LightkitError):
    """Another process holds the lock of this job; the same command works once it has ended."""

    exit_code = 75


class DataChanged(ConfigError):
    """The interrupted run that was about to be resumed had other data: `fit` begins a new run."""


class OutOfTime(LightkitError):
    """The deadline leaves no time for what is left; the same command goes on where it stopped."""

    exit_code = 75


class TooLittleTime(OutOfTime):
    """The deadline is a duration too short for the next step: the same command finds it again."""

    exit_code = 2


class ServerAway(LightkitError):
    """MLflow does not answer, or its database is locked; the same command works after that."""

    exit_code = 75


class Interrupted(BaseException):
    """SIGINT, SIGTERM or the like arrived.

    Not an `Exception`, so that nobody's handler for failures takes it for one.

    Args:
        signum: The signal's number.
        checkpoint: Checkpoint from which the same command resumes, if there is one.
    """

    stage: ClassVar[str] = ""
    """The stage of a retrain that this process runs, other than the training: the same command goes
    on with it."""

    def __init__(self, signum: int, *, checkpoint: Path | None = None) -> None:
        super().__init__(signum, checkpoint)
        self.signum = signum
        self.checkpoint = checkpoint

    @property
    def exit_code(self) -> int:
        """75 where the same command goes on, else 128 plus the signal's number, as shells count."""
        return 75 if self.checkpoint is not None or self.stage else 128 + self.signum


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an exception and what it was raised from, each once.

    Causes and contexts can form a cycle.
    """
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def is_interruption(error: BaseException) -> bool:
    """Return whether an error may be what became of an interruption.

    Native code that was loading a library makes an `ImportError` or a `SystemError` of it, whose
    context is lost; what stumbles over a library of which one half is loaded has the interruption
    in its context.
    """
    return any(
        isinstance(each, (Interrupted, ImportError, SystemError)) for each in exception_chain(error)
    )


def find_worker_death(error: BaseException) -> RuntimeError | None:
    """Return torch's error of a data loader's process that has died, if that is behind an error.

    torch raises it from a signal handler, so at whatever the main thread is doing: it is no error
    of what it interrupts.
    """
    for each in exception_chain(error):
        if isinstance(each, RuntimeError) and "DataLoader worker" in str(each):
            return each
    return None


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that an exception ends."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, (LightkitError, Interrupted)):
        return error.exit_code
    return {BrokenPipeError: PIPE_CLOSED, KeyboardInterrupt: 130}.get(type(error), 1)


def format_interruption(interruption: Interrupted, *, stage: str = "") -> str:
    """Describe how an interruption has ended a stage.

    Args:
        interruption: The interruption.
        stage: The stage of a retrain that it has ended; that of this process if empty.
    """
    stage = stage or interruption.stage
    name = {1: "SIGHUP", 2: "SIGINT", 10: "SIGUSR1", 12: "SIGUSR2", 15: "SIGTERM"}.get(
        interruption.signum, f"signal {interruption.signum}"
    )
    if stage:
        return f"interrupted by {name}; the same lightkit retrain goes on with {stage}"
    if interruption.checkpoint is None:
        return f"interrupted by {name}; there is nothing to resume"
    where = interruption.checkpoint
    return (
        f"interrupted by {name}; the same command resumes from {where},"
        " unless run.resume says otherwise"
    )


def pass_on_full_disk(error: OSError, path: object) -> None:
    """Raise the error of a disk that is full again, for `explain_full_disk` around the command.

    So it has one text and one exit code, whichever file it meets.

    Args:
        error: The error of a file.
        path: The file that the user knows; a write names none.

    Raises:
        OSError: If it is one of `DISK_ERRORS`.
    """
    if error.errno in DISK_ERRORS:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def explain_full_disk(purpose: str = "go on") -> Iterator[None]:
    """Replace the system's error of a disk that is full or cannot be written.

    Args:
        purpose: Of running the same command again.

    Raises:
        LightkitError: In its place, with how to go on.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        file = error.filename or "a file"
        raise LightkitError(
            f"{error.strerror}: {file} cannot be written. {MAKE_ROOM}; then run the same command"
            f" to {purpose}."
        ) from error


def join_names(names: Collection[str], *, most: int = 5) -> str:
    """Join names for a message, and count those beyond the first ``most``: ``a, b and 3 more``."""
    listed = list(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def join_lines(entries: Sequence[str], *, most: int = 5) -> str:
    """Write entries as lines below a message, and count those beyond the first ``most``."""
    lines = [f"\n  {visible(each, in_line=True)}" for each in entries[:most]]
    if len(entries) > most:
        lines.append(f"\n  and {len(entries) - most} more")
    return "".join(lines)


def format_count(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun: ``1 class``, ``2 classes``.

    Args:
        number: The number.
        one: The noun for one.
        many: The noun for any other number; ``one`` with an ``s`` if empty.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
