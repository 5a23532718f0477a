"""``model.ts``: TorchScript, by script or else by trace. Deprecated by torch, so it stays in this one file."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.overrides import TorchFunctionMode

from lightkit.artefacts.metadata import Metadata
from lightkit.export.batches import check_batches
from lightkit.export.in_graph import Prepared
from lightkit.export.naming import file_name
from lightkit.export.reasons import caller_line, code_line, quiet, reasoned, refused
from lightkit.export.subject import Subject, WriteOptions, own

__all__ = ["write"]

_log = logging.getLogger(__name__)
_DECISIONS = frozenset({"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy"})
"""Ways in which a tensor's values leave the graph."""


def write(subject: Subject, metadata: Metadata, path: Path, _: WriteOptions) -> Metadata:
    """Write the file; the log and the metadata's ``how`` say whether the model was scripted or traced, and why.

    Args:
        subject: What is exported.
        metadata: What the file is to say of itself.
        path: The file.

    Returns:
        What it says of itself.

    Raises:
        ExportError: If the model can be neither scripted nor traced, or depends on the batch size, or decides by the
            values of its inputs where only a trace, which freezes decisions, can be had.
    """
    program, why_not = _scripted(subject)
    how = f"trace, because it cannot be scripted: {why_not}" if why_not else "script"
    if why_not:
        program = _traced(subject, metadata, why_not)
    check_batches(program, subject, file_name(metadata))
    _log.info("%s: %s", file_name(metadata), how)
    metadata = replace(metadata, how=how)
    with quiet():
        # Into memory first: where torch 2.15 cannot write to a file, its writer ends the process by abort().
        torch.jit.save(program, content := io.BytesIO(), _extra_files={"lightkit.json": metadata.dumps()})
    path.write_bytes(content.getbuffer())
    return metadata


def _scripted(subject: Subject) -> tuple[Any, str]:
    """Give the scripted model and no words, or None and why it cannot be scripted."""
    with quiet(), torch.no_grad(), _without_trainer():
        try:
            program = torch.jit.script(subject.model)
            program(*own(subject.example))  # TorchScript finds some faults of types only when it runs
        except Exception as error:  # noqa: BLE001 - the compiler raises what the model's own properties raise
            return None, reasoned(error)
    return program, ""


@contextmanager
def _without_trainer() -> Iterator[None]:
    """Let LightningModules say that they have no trainer, which the compiler asks for; else that is an error.

    It is what Lightning's own ``to_torchscript`` does, which goes with Lightning 2.8.
    """
    before = LightningModule._jit_is_scripting
    LightningModule._jit_is_scripting = True
    try:
        yield
    finally:
        LightningModule._jit_is_scripting = before


def _traced(subject: Subject, metadata: Metadata, why_not: str) -> Any:
    decisions, file = _Decisions(), file_name(metadata)
    with quiet(), torch.no_grad(), _without_trainer():
        with decisions:
            subject.model(*own(subject.example))
        model = _with_scripted_preprocessing(subject.model)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", torch.jit.TracerWarning)  # type: ignore[attr-defined]
            try:
                program = torch.jit.trace(model, own(subject.example), strict=False, check_trace=False)  # type: ignore[no-untyped-call]
            except Exception as error:  # whatever the tracer or the model's own code raises
                raise refused(file, subject.plain, reasoned(error), line=code_line(error)) from error
    if decisions.line and told:
        frozen = str(told[0].message).split(". ")[0]
        reason = f"it cannot be scripted ({why_not}), and a trace freezes what it decides by values: {frozen}"
        raise refused(file, subject.plain, reason, line=decisions.line)
    return program


def _with_scripted_preprocessing(model: nn.Module) -> nn.Module:
    """Give the model with its preprocessing scripted, since a trace would fix the size of the images."""
    if not isinstance(model, Prepared):
        return model
    mixed = copy.copy(model)
    mixed._modules = {**model._modules, "prepare": torch.jit.script(model.prepare)}
    return mixed


class _Decisions(TorchFunctionMode):
    """Notes the line of the model's code where the values of a tensor were looked at.

    Sizes are plain numbers outside of a trace, so that only values count, which `TracerWarning` cannot tell apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _DECISIONS:
            self.line = caller_line() or self.line
        return func(*args, **(kwargs or {}))
