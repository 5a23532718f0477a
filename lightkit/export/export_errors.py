"""Why a model cannot be exported: the exporter's reason in one line.

With the line of code that caused it.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from lightkit.errors import ExportError

_LOGGERS = (
    *(
        "",
        "torch",
        "torch.onnx",
        "torch.fx.experimental.symbolic_shapes",
        "onnxscript",
        "onnx_ir",
        "onnxruntime",
    ),
    *("pytorch_lightning", "lightning_fabric", "pytorch_lightning.utilities.rank_zero"),
    *("lightning_fabric.utilities.rank_zero", "lightning_fabric.utilities.seed"),
)
_SHAPES_LOGGER = logging.getLogger("torch.fx.experimental.symbolic_shapes")
_INSTALLED_FOLDERS = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_IGNORED_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
_MAX_CHARACTERS = 300
# torch's advice to developers of torch
_ADVICE = re.compile(
    r"^(consider using data-dependent friendly|Caused by:|For |If you suspect|The error above|"
    r"The following call raised|Suggested fixes|If you're using|File \"|Constraints violated)"
)


@contextmanager
def silence_exporters() -> Iterator[list[str]]:
    """Suppress what exporters print, log and warn of; exceptions propagate.

    Yields:
        Files and lines of the model's code at which torch fixed a size, which torch logs from
        within that call.
    """
    lines = list[str]()
    level = _SHAPES_LOGGER.level

    def note_line(record: logging.LogRecord) -> bool:
        if "[guard added]" in record.getMessage() and (line := find_caller_line()):
            lines.append(line)
        return False

    handlers = {name: list(logging.getLogger(name).handlers) for name in _LOGGERS}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            for name in _LOGGERS:
                logging.getLogger(name).handlers[:] = [logging.NullHandler()]
            _SHAPES_LOGGER.addFilter(note_line)
            _SHAPES_LOGGER.setLevel(logging.INFO)
            yield lines
        finally:
            _SHAPES_LOGGER.removeFilter(note_line)
            _SHAPES_LOGGER.setLevel(level)
            for name, saved in handlers.items():
                logging.getLogger(name).handlers[:] = saved


def export_error(
    file: str, model: nn.Module, reason: str, *, line: str | None = None
) -> ExportError:
    """Build the error for a model that a format cannot hold.

    Args:
        file: Name of the file that was to be written.
        model: The model.
        reason: The exporter's reason.
        line: File and line of the code that caused it.
    """
    where = f" ({line})" if line else ""
    return ExportError(
        f"{file}: {type(model).__name__} cannot be exported: {reason.rstrip('.')}{where}."
    )


def format_reason(error: BaseException) -> str:
    """Format an exporter's complaint as one line, without its advice to developers of torch."""
    first = _root_cause(error)
    lines = [line.strip().removeprefix("- ") for line in str(first).splitlines()]
    line = next((line for line in lines if line and not _ADVICE.match(line)), type(first).__name__)
    text = (
        re.split(r" If you're using mark_dynamic| \(unhinted: ", line)[0]
        .strip()
        .rstrip(":")
        .removesuffix(" at")
    )
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def find_code_line(error: BaseException) -> str | None:
    """Find the file and line of the model's own code of an error, such as ``net.py:12``."""
    return _innermost_line(
        frame for frame, _ in traceback.walk_tb(_root_cause(error).__traceback__)
    )


def find_caller_line() -> str | None:
    """Find the line of the model's own code that is running."""
    return _innermost_line(reversed([frame for frame, _ in traceback.walk_stack(sys._getframe())]))


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _innermost_line(frames: Iterable[FrameType]) -> str | None:
    """Find the line at which the model's code called torch.

    In frames from the outermost to the innermost.

    Frames before the outermost call of a module called the exporter. Code of an installed package,
    such as torchvision, counts if there is no other.
    """
    places = [(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames]
    names = ("_call_impl", "_wrapped_call_impl")
    begin = next((index for index, place in enumerate(places) if place[2] in names), len(places))
    code = [place for place in places[begin:] if not place[0].startswith(_IGNORED_FOLDERS)]
    user_code = [place for place in code if not place[0].startswith(_INSTALLED_FOLDERS)] or code
    return f"{user_code[-1][0]}:{user_code[-1][1]}" if user_code else None
