"""What `lightkit export` says: what it exports from where, each step, the proof's table, and what to type next."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from lightkit.cli.console import OutputMode, print_line
from lightkit.cli.export_subject import Exportable
from lightkit.config import shown_path
from lightkit.export.record import Artefact, Report
from lightkit.export.table import show

__all__ = ["begun", "steps", "told"]

_FORMS = ("onnx", "torch_export", "torchscript", "safetensors")
"""In the order in which `predict` is best served."""


def begun(ready: Exportable, folder: Path, mode: OutputMode) -> None:
    """Say what is about to be exported."""
    num = len(ready.drawn.samples.names)
    if mode == "json":
        _event("start", origin=ready.origin, folder=str(folder), samples=num, source=ready.drawn.source)
    print_line(f"model {_described(ready.subject.plain)}", mode)
    print_line(f"from  {ready.origin}", mode)
    print_line(f"proof {num} samples: {ready.drawn.source}", mode)
    print_line(f"to    {shown_path(folder)}", mode)


@contextmanager
def steps(mode: OutputMode) -> Iterator[Callable[[str], None]]:
    """Give what shows a step: one line that changes on a terminal, a line each elsewhere."""
    if mode == "terminal":
        with Console(highlight=False, markup=False, emoji=False).status("") as status:
            yield status.update
    elif mode == "json":
        yield lambda text: _event("step", says=text)
    else:
        yield lambda text: print_line(f"      {text}", mode)


def told(report: Report, mode: OutputMode) -> None:
    """Show the proof's table, and what to type next."""
    if mode == "json":
        _event("export", folder=str(report.folder), artefacts=[artefact.as_dict() for artefact in report.artefacts])
    if mode not in ("terminal", "plain"):
        return
    show(report, sys.stdout)
    print_line(f"files {shown_path(report.folder)}", mode)
    if command := _next(report.artefacts):
        print_line(f"next  {command}", mode)


def _next(artefacts: list[Artefact]) -> str | None:
    """Give the command that labels images with the file that needs least, where the files are for images."""
    usable = [artefact for artefact in artefacts if artefact.metadata.preprocessing is not None]
    if not usable:
        return None
    first = min(usable, key=lambda artefact: _FORMS.index(artefact.metadata.format))
    return f"{shlex.join(['lightkit', 'predict', '--model', shown_path(first.path)])} IMAGES"


def _described(module: nn.Module) -> str:
    backbone = getattr(module, "backbone", None)
    total = sum(parameter.numel() for parameter in module.parameters())
    return f"{type(module).__name__}{f' on {backbone}' if isinstance(backbone, str) else ''}: {total:,} parameters"


def _event(event: str, **fields: Any) -> None:
    time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    print(json.dumps({"time": time, "event": event, **fields}), flush=True)
