"""Why a model cannot be exported: the exporter's own reason in one line, with the line of code that it is about."""

from __future__ import annotations

import io
import logging
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from lightkit.errors import ExportError

__all__ = ["Guards", "caller_line", "code_line", "quiet", "reasoned", "refused"]

_LOGGERS = ("", "torch", "torch.onnx", "torch.fx.experimental.symbolic_shapes", "onnxscript", "onnx_ir", "onnxruntime")
_SHAPES = logging.getLogger("torch.fx.experimental.symbolic_shapes")
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).parent)  # captures and wraps; never the cause
_LONGEST = 300  # characters of a reason
# What torch adds to a reason for those who work on torch.
_ADVICE = re.compile(
    r"^(consider using data-dependent friendly|Caused by:|For |If you suspect|The error above|"
    r"The following call raised|Suggested fixes|If you're using|File \"|Constraints violated)"
)


class Guards(logging.Handler):
    """Notes which line of the model's code made torch fix a size.

    torch tells of each such decision in a log record only, from within the call that needs it.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.line: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the place of the last decision about a size."""
        if "[guard added]" in record.getMessage():
            self.line = _line_of_stack(sys._getframe()) or self.line


@contextmanager
def quiet() -> Iterator[Guards]:
    """Keep what exporters print, log and warn of off the screen within it; errors come through.

    Yields:
        What knows where torch fixed a size.
    """
    guards, level = Guards(), _SHAPES.level
    kept = {name: list(logging.getLogger(name).handlers) for name in _LOGGERS}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            for name in _LOGGERS:
                logging.getLogger(name).handlers[:] = [logging.NullHandler()]
            _SHAPES.addHandler(guards)
            _SHAPES.setLevel(logging.INFO)
            yield guards
        finally:
            _SHAPES.setLevel(level)
            for name, handlers in kept.items():
                logging.getLogger(name).handlers[:] = handlers


def refused(file: str, model: nn.Module, reason: str, *, line: str | None = None) -> ExportError:
    """Give the error for a model that a format cannot hold, in one line.

    Args:
        file: Name of the file that was to be written.
        model: The model, of which the class is told.
        reason: Of the exporter.
        line: File and line of the code that it is about.
    """
    where = f" ({line})" if line else ""
    return ExportError(f"{file}: {type(model).__name__} cannot be exported: {reason.rstrip('.')}{where}.")


def reasoned(error: BaseException) -> str:
    """Give what an exporter complains of in one line, without its advice to those who work on torch.

    Args:
        error: As it was raised; of a chain of errors, the first one has the reason.
    """
    first = _origin(error)
    lines = [line.strip().removeprefix("- ") for line in str(first).splitlines()]
    told = [line for line in lines if line and not _ADVICE.match(line)] or [type(first).__name__]
    text = re.split(r" If you're using mark_dynamic| \(unhinted: ", told[0])[0].strip().rstrip(":").removesuffix(" at")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def code_line(error: BaseException) -> str | None:
    """Tell the file and line of the model's own code that an error came from, such as ``net.py:12``."""
    frames = [frame for frame, _ in traceback.walk_tb(_origin(error).__traceback__)]
    return _innermost(frames)


def caller_line() -> str | None:
    """Tell the line of the model's own code that is being run."""
    return _line_of_stack(sys._getframe())


def _origin(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _line_of_stack(frame: FrameType) -> str | None:
    frames = [found for found, _ in traceback.walk_stack(frame)]
    return _innermost(list(reversed(frames)))


def _innermost(frames: list[FrameType]) -> str | None:
    """Choose the frame in which the model's code called torch, of those from the outermost to the innermost.

    That of a package that was installed, such as torchvision, counts where there is none outside such folders.
    """
    torch_folder = str(Path(torch.__file__).parent)
    places = [(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames]
    after = _last_call_of_a_module(places)
    own = [place for place in places[after:] if not place[0].startswith((torch_folder, _OURS, "<"))]
    theirs = [place for place in own if not place[0].startswith(_INSTALLED)] or own
    return f"{theirs[-1][0]}:{theirs[-1][1]}" if theirs else None


def _last_call_of_a_module(places: list[tuple[str, int, str]]) -> int:
    """Tell where the outermost call of a module starts; what is before it called the exporter."""
    calls = [index for index, place in enumerate(places) if place[2] in ("_call_impl", "_wrapped_call_impl")]
    return calls[0] if calls else len(places)
