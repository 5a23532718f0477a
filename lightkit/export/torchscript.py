"""``model.ts``: TorchScript, by script or else by trace.

Deprecated by torch, so it stays in this one file.
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

# Lets the compiler read the trainer of a LightningModule that has none; goes with `to_torchscript`
# in Lightning 2.8.
from pytorch_lightning.core.module import _jit_is_scripting
from torch.overrides import TorchFunctionMode

from lightkit.export.export_errors import (
    export_error,
    find_caller_line,
    find_code_line,
    format_reason,
    silence_exporters,
)
from lightkit.export.formats import METADATA_FILE
from lightkit.export.forward import clone_inputs
from lightkit.export.image_transform import ImageToProbabilities
from lightkit.export.metadata import Metadata
from lightkit.export.target import ExportTarget

_log = logging.getLogger(__name__)
_VALUE_READERS = frozenset(
    {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy"}
)
"""Functions by which a tensor's values leave the graph."""


def write(target: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
    """Write the file, and return its metadata.

    Its ``how`` is whether the model was scripted or traced, and why.

    Args:
        target: Model to export.
        metadata: To be embedded in the file.
        path: The file.

    Raises:
        ExportError: If the model can be neither scripted nor traced, or depends on the batch size,
            or decides by the values of its inputs and can only be traced, which freezes decisions.
    """
    program = None
    how = "script"
    with silence_exporters(), torch.no_grad(), _jit_is_scripting():
        try:
            program = torch.jit.script(target.model)
            # TorchScript finds some type errors only when it runs
            program(*clone_inputs(target.example))
        except Exception as error:  # noqa: BLE001 - the compiler raises what the model's own properties raise
            program = None
            reason = format_reason(error)
    if program is None:
        how = f"trace, because it cannot be scripted: {reason}"
        program = _trace(target, metadata.file_name, reason)
    _log.info("%s: %s", metadata.file_name, how)
    metadata = replace(metadata, how=how)
    with silence_exporters():
        # Into memory first: if torch 2.15 cannot write to a file, its writer ends the process by
        # abort().
        torch.jit.save(
            program, content := io.BytesIO(), _extra_files={METADATA_FILE: metadata.dumps()}
        )
    path.write_bytes(content.getbuffer())
    return metadata


def _trace(target: ExportTarget, file: str, script_reason: str) -> Any:
    decisions = _DecisionLog()
    model = target.model
    with silence_exporters(), torch.no_grad(), _jit_is_scripting():
        with decisions:
            model(*clone_inputs(target.example))
        # scripted, since a trace would fix the size of the images
        if isinstance(model, ImageToProbabilities):
            model = copy.copy(model)
            model._modules = {**model._modules, "prepare": torch.jit.script(model.prepare)}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", torch.jit.TracerWarning)  # type: ignore[attr-defined]
            try:
                program = torch.jit.trace(  # type: ignore[no-untyped-call]
                    model, clone_inputs(target.example), strict=False, check_trace=False
                )
            except Exception as error:  # the tracer and the model's own code raise anything
                raise export_error(
                    file, target.module, format_reason(error), line=find_code_line(error)
                ) from error
    if decisions.line and caught:
        frozen = str(caught[0].message).split(". ")[0]
        reason = (
            f"it cannot be scripted ({script_reason}), and a trace freezes what it decides by"
            f" values: {frozen}"
        )
        raise export_error(file, target.module, reason, line=decisions.line)
    return program


class _DecisionLog(TorchFunctionMode):
    """Note the line of the model's code that read the values of a tensor.

    Sizes are plain numbers outside of a trace, so that only values count, which `TracerWarning`
    does not separate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _VALUE_READERS:
            self.line = find_caller_line() or self.line
        return func(*args, **(kwargs or {}))
