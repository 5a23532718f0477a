"""Writing a model in any of the formats: a table of them, and what each needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from lightkit.artefacts.metadata import FILES, Metadata
from lightkit.errors import ConfigError
from lightkit.export.naming import file_name
from lightkit.export.opsets import check_opset
from lightkit.export.reasons import code_line, quiet, reasoned, refused
from lightkit.export.subject import Subject, WriteOptions, own
from lightkit.hardware.packages import describe_packages
from lightkit.version import __version__

__all__ = ["check_calibration", "check_options", "write"]

_PACKAGES = {
    "torch_export": ("torch", "torchvision"),
    "onnx": ("torch", "torchvision", "onnx", "onnxscript", "onnxruntime"),
    "torchscript": ("torch", "torchvision"),
    "safetensors": ("torch", "torchvision", "safetensors"),
}
"""Whose versions a file tells."""
_MODULES = {
    "torch_export": "lightkit.export.torch_export",
    "onnx": "lightkit.export.onnx_file",
    "torchscript": "lightkit.export.torchscript",
    "safetensors": "lightkit.export.safetensors_file",
}
_OF_ONNX = ("onnx", "onnxscript", "onnxruntime")


class _Format(Protocol):
    def write(self, subject: Subject, metadata: Metadata, path: Path, options: WriteOptions) -> Metadata: ...


def check_options(kinds: Sequence[str], options: WriteOptions) -> None:
    """Refuse what cannot be written, before anything is built.

    Args:
        kinds: Names of formats.
        options: How they are to be written.

    Raises:
        ConfigError: If a format is unknown or named twice, if there is no ONNX among them for an option of ONNX, if its
            packages are missing, or if the opset is none that torch writes and onnxruntime reads.
    """
    _check_names(kinds)
    given = {"--half": options.half, "--int8": options.int8, "--opset": options.opset is not None}
    said = [flag for flag, is_given in given.items() if is_given]
    if said and "onnx" not in kinds:
        raise ConfigError(
            f"{', '.join(said)}: it is for ONNX files, and --format is {','.join(kinds)}. "
            f"Add onnx to the formats, or leave {'them' if len(said) > 1 else 'it'} out."
        )
    if "onnx" in kinds:
        _check_onnx()
        check_opset(options.opset)


def check_calibration(options: WriteOptions) -> None:
    """Refuse int8 where there is no sample to calibrate it on.

    Raises:
        ConfigError: Then.
        DataError: If the first sample cannot be read.
    """
    if options.calibration is None:
        raise ConfigError("--int8: there are no training samples to calibrate on. Give the data module in the config.")
    if next(iter(options.calibration()), None) is None:
        raise ConfigError("--int8: the training split has no samples to calibrate on.")


def _check_names(kinds: Sequence[str]) -> None:
    unknown = [kind for kind in kinds if kind not in FILES]
    if unknown or not kinds:
        raise ConfigError(f"--format: expected some of {', '.join(FILES)}, got {', '.join(unknown) or 'none'}.")
    twice = sorted({kind for kind in kinds if list(kinds).count(kind) > 1})
    if twice:
        raise ConfigError(f"--format: {', '.join(twice)} is named twice; name each format once.")


def _check_onnx() -> None:
    missing = [name for name in _OF_ONNX if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"--format onnx needs {', '.join(missing)}: pip install 'lightkit[onnx]'.")


def write(kind: str, subject: Subject, path: Path, options: WriteOptions) -> Metadata:
    """Write a model to one file.

    ONNX weights above 2 GB go to a second file beside it, ``model.onnx.data`` (``model.half.onnx.data``,
    ``model.int8.onnx.data``), whatever the name of ``path``: the model refers to it by that name, so that both can be
    moved to another folder, and the first one renamed. Write into a folder that holds nothing else.

    Args:
        kind: Name of a format.
        subject: What is exported.
        path: The file; its folder exists.
        options: How it is written. Of ``half`` and ``int8`` one at most.

    Returns:
        What the file says of itself: its metadata are in it.

    Raises:
        ConfigError: As of `check_options`.
        ExportError: If the model cannot be exported; with the exporter's reason in one line.
    """
    check_options([kind], options)
    if options.half and options.int8:
        raise ConfigError("--half, --int8: a file is either; write one after the other.")
    if options.int8:
        check_calibration(options)
    precision = "float16" if options.half else "int8" if options.int8 else "float32"
    versions = {"lightkit": __version__, **describe_packages(_PACKAGES[kind])}
    metadata = replace(subject.metadata, format=kind, precision=precision, versions=versions)
    _check_forward(subject, file_name(metadata))
    room = cast("_Format", import_module(_MODULES[kind]))  # late: torch.onnx is heavy, and onnx an extra
    return room.write(subject, metadata, path, options)


def _check_forward(subject: Subject, file: str) -> Any:
    """Run the model on its example, so that its own mistakes are not told as an exporter's."""
    with quiet(), torch.no_grad():
        try:
            return subject.model(*own(subject.example))
        except Exception as error:  # whatever the model's own code raises
            reason = f"its forward fails on the example inputs: {reasoned(error)}"
            raise refused(file, subject.plain, reason, line=code_line(error)) from error
