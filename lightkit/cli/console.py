"""Print to standard output and standard error.

Output modes, plain warnings, tracebacks without secrets.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

from lightkit import runs
from lightkit.errors import DISK_ERRORS, OutputLost, visible

OutputMode = Literal["terminal", "plain", "quiet", "json"]

# Advice that Lightning 2.6.6 and its parts give to everybody, and that is settled here or of no use
# to the reader.
_IGNORED_WARNINGS = (
    r".*isinstance\(treespec, LeafSpec\)",
    r"The '.*dataloader' does not have many workers",
    r"The number of training batches",
    r"No seed found, seed set to 0",
    r"Checkpoint directory .* exists and is not empty",
    r".*configure_optimizers` will be overridden by",
    # a frozen backbone is meant to be
    r"Found \d+ module\(s\) in eval mode at the start of training",
    # `ResumeState` says so where it is true
    r"You're resuming from a checkpoint that ended before the epoch ended",
)


def choose_output_mode(options: Mapping[str, Any]) -> OutputMode:
    """Choose from the options and from what standard output is connected to.

    Args:
        options: Of the command line.
    """
    if options.get("json"):
        return "json"
    if options.get("quiet"):
        return "quiet"
    return "terminal" if sys.stdout.isatty() else "plain"


def print_line(text: str, mode: OutputMode) -> None:
    """Print a line for people to standard output, where people are reading.

    Names in it cannot steer the terminal.
    """
    if mode in ("terminal", "plain"):
        print(visible(text), flush=True)


def print_step(mode: OutputMode, text: str) -> None:
    """Print a step: an event for programs, else a line."""
    if mode == "json":
        runs.print_event("step", message=text)
    else:
        print_line(f"      {text}", mode)


printed_errors: list[str] = []
"""The errors that this process has printed, for the process that has started it."""


def print_error(text: str) -> None:
    """Print a line to standard error, where that can be written; else the exit code is all."""
    printed_errors.append(text)
    try:
        print(visible(text), file=sys.stderr)
    except OSError:
        discard_output(sys.stderr)


# -- warnings and log records ----------------------------------------------------------------------

BROADCAST_LOSS = (
    r"Using a target size \(torch\.Size\(\[(?P<targets>(?P<rows>(?!1\b)\d+)(?P<column>, 1)?)\]\)\) "
    r"that is different to the input size"
    r" \(torch\.Size\(\[(?P<outputs>(?P=rows)(?(column)|, 1))\]\)\)"
)
"""Warning of torch's losses (2.15) where one of outputs and targets is ``(batch,)`` and the other
``(batch, 1)``.

Their difference is ``(batch, batch)``: each output is compared with each target, which is the loss
of no model. It is an error, which `lightkit.cli.parser_errors` explains.
"""


def configure_console(mode: OutputMode, mask: Callable[[str], str] = str) -> None:
    """Print warnings and lightkit's log records on standard error.

    One plain line each, with secrets hidden.

    Args:
        mode: Output mode: `quiet` and `json` print warnings only.
        mask: Puts references in the place of secrets, also in the tracebacks of uncaught
            exceptions.
    """
    for message in _IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    warnings.filterwarnings("error", message=BROADCAST_LOSS, category=UserWarning)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    _masks[:] = [mask]
    if sys.excepthook is sys.__excepthook__:  # a hook of another package stays
        sys.excepthook = _print_uncaught
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _print_uncaught_in_thread
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainFormatter(mask))
    own = logging.getLogger("lightkit")
    own.handlers[:] = [handler]
    own.propagate = False
    own.setLevel(logging.INFO if mode in ("terminal", "plain") else logging.WARNING)


def quiet_libraries() -> None:
    """Hide the libraries' records below warnings.

    Called after their import, which sets levels of its own.
    """
    for name in (
        "pytorch_lightning",
        "lightning_fabric",
        "lightning",
        "mlflow",
        "alembic",
        "comet_ml",
    ):
        logging.getLogger(name).setLevel(logging.WARNING)


class _PlainFormatter(logging.Formatter):
    def __init__(self, mask: Callable[[str], str]) -> None:
        super().__init__()
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        text = visible(self._mask(super().format(record)))
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


def _show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    if not issubclass(category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
        print(f"warning: {visible(_masks[-1](' '.join(str(message).split())))}", file=sys.stderr)


# -- tracebacks ------------------------------------------------------------------------------------


_masks: list[Callable[[str], str]] = [str]  # that of the config in use


def _print_uncaught(
    _kind: type[BaseException], error: BaseException, _trace: TracebackType | None
) -> None:
    print(format_traceback(error), end="", file=sys.stderr)


def _print_uncaught_in_thread(raised: Any) -> None:
    name = raised.thread.name if raised.thread else "a thread"
    error = raised.exc_value
    # such as TensorBoard's, which raises the same error in the main thread at its next event
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        file = error.filename or "a file"
        text = f"{error.strerror}: {file} cannot be written by the thread {name}"
        print(f"warning: {visible(_masks[-1](text))}", file=sys.stderr)
        return
    print(
        f"Exception in thread {name}:\n{format_traceback(raised.exc_value)}",
        end="",
        file=sys.stderr,
    )


def format_traceback(error: BaseException) -> str:
    """Format the traceback of an error, without the secrets of the config that has been read.

    Where the user's own code is in it, only that is shown, unless the command has ``--traceback``.
    Notes come first, so that the last line is the error, which messages and launchers read there.
    """
    found = traceback.TracebackException.from_exception(error)
    is_own = os.environ.get(FULL_TRACEBACK) is None and _keep_own_frames(found)
    notes = [*getattr(error, "__notes__", ())]
    if is_own:
        notes.append(
            "The frames are those of your code; --traceback shows those of the libraries too."
        )
    vars(found)["__notes__"] = None  # they are above it
    return _masks[-1]("".join([*(f"{note}\n" for note in notes), *found.format()]))


def _keep_own_frames(error: traceback.TracebackException) -> bool:
    """Drop the frames of libraries, of lightkit and of its caller, if there are others."""
    chain = _list_chain(error)
    own = [_select_own_frames(each.stack) for each in chain]
    if not own[0]:
        return False
    for each, frames in zip(chain, own, strict=True):
        each.stack[:] = frames
    return True


def _list_chain(error: traceback.TracebackException) -> list[traceback.TracebackException]:
    """List an error and those that have led to it, each once."""
    chain: list[traceback.TracebackException] = []
    pending: list[traceback.TracebackException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and not any(each is known for known in chain):
            chain.append(each)
            pending += [each.__cause__, each.__context__]
    return chain


def _select_own_frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Select the frames of the user's code, from the first one of lightkit on."""
    entry = next(
        (at for at, frame in enumerate(stack) if frame.filename.startswith(_LIBRARIES[0])), 0
    )
    return [frame for frame in stack[entry:] if not is_library_file(frame.filename)]


def is_library_file(name: str) -> bool:
    """Check whether a file of source code is not the user's.

    It belongs to Python, lightkit or an installed package then.
    """
    return name.startswith(_LIBRARIES) or f"-packages{os.sep}" in name


FULL_TRACEBACK = "_LIGHTKIT_TRACEBACK"
"""Environment variable by which ``--traceback`` reaches the processes of all ranks."""
_LIBRARIES = (
    os.path.dirname(os.path.dirname(__file__)) + os.sep,  # noqa: PTH120
    os.path.dirname(os.__file__) + os.sep,  # noqa: PTH120
    "<",
)


# -- standard output that cannot be written
# ----------------------------------------------------------------------------


def guard_standard_output() -> None:
    """Make `print` raise `OutputLost` where standard output cannot be written, as on a full disk.

    Only at the stream itself an error of the system is known to be about standard output, and about
    no other file. A stream that was closed from the start, as by `>&-`, is None in Python; what is
    written to it goes nowhere.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
            # for the processes of ranks, in place of the closed one
            os.set_inheritable(nowhere.fileno(), True)
            setattr(sys, name, nowhere)
            # which holds it where another stream takes its place
            setattr(sys, f"__{name}__", nowhere)
    # no stand-in
    if isinstance(sys.stdout, io.TextIOWrapper) and not isinstance(sys.stdout, _GuardedOutput):
        sys.stdout = _GuardedOutput(sys.stdout)


def discard_output(stream: TextIO) -> None:
    """Discard what a stream still holds, and all that is written to it later."""
    with suppress(OSError, ValueError):  # it is no file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def flush_or_discard(stream: TextIO | None) -> None:
    """Flush a stream, or discard its buffer where that fails, which Python would report."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError, OutputLost):
        discard_output(stream)


class _GuardedOutput(io.TextIOWrapper):
    """Standard output with `OutputLost` in the place of the system's errors.

    Args:
        stream: Standard output as it was. It stays `sys.__stdout__`, so that its file is not closed
            under this one.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        stream.flush()
        super().__init__(
            stream.buffer,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, text: str, /) -> int:
        with _output_errors():
            return super().write(text)

    def flush(self) -> None:
        with _output_errors():
            super().flush()


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader has left, which is no error
        raise
    except OSError as error:
        raise OutputLost(f"standard output cannot be written: {error.strerror}") from error
