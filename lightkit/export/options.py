"""The options of an export, parsed and checked before anything is loaded. No torch."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightkit import config
from lightkit.errors import ConfigError
from lightkit.export.formats import FORMATS

# torch's exporter writes 18 and converts that to others (2.15 downwards as well, if an operator
# allows it); those from 24 on are too new for some of the onnxruntime releases that the extra
# allows, 1.31 reads up to 26.
OPSETS = range(18, 24)
"""Tested: written by torch's exporter and read by onnxruntime."""
MODULE_FORMAT = "module:"
"""Beginning of a format that the module exports by itself, see `lightkit.export.module_export`."""
MODULE_HOOKS = ("export_model", "check_export")
"""Methods of such a module: `(folder, format)` each."""
_MODULE_NAME = re.compile(r"[A-Za-z0-9][\w-]*")  # of a folder, which no file of lightkit's has
_SHAPE = re.compile(r"(\d+(?:\s*[,x]\s*\d+)*)\s*(?::\s*(\w+))?")
_DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    Args:
        formats: Keys of `FORMATS`, each once, and `MODULE_FORMAT` with a name that the module
            knows.
        output: Folder of the files; the run's `export` if None.
        with_preprocessing: Put resize, crop and normalisation into the graph.
        input_shapes: Of ``forward``'s inputs: sizes with the batch first, and dtype.
        opset: Of ONNX, one of `OPSETS`; that of `lightkit.export.onnx` if None.
        half: Write ``model.half.onnx`` too, with weights in float16.
        int8: Write ``model.int8.onnx`` too, quantised.
        num_samples: Number of samples that verify an export.
        rtol: Relative tolerance of an output; that of each file's precision if None.
        atol: Absolute tolerance, likewise.
    """

    formats: tuple[str, ...] = ("torch_export",)
    output: Path | None = None
    with_preprocessing: bool = False
    input_shapes: tuple[tuple[tuple[int, ...], str], ...] = ()
    opset: int | None = None
    half: bool = False
    int8: bool = False
    num_samples: int = 64
    rtol: float | None = None
    atol: float | None = None

    @property
    def own_formats(self) -> tuple[str, ...]:
        """Formats that lightkit writes and proves."""
        return tuple(name for name in self.formats if name in FORMATS)

    @property
    def module_formats(self) -> tuple[str, ...]:
        """Names of the formats that the module writes and proves."""
        own = (name for name in self.formats if name.startswith(MODULE_FORMAT))
        return tuple(name.removeprefix(MODULE_FORMAT) for name in own)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> ExportOptions:
        """Parse the options of the command line, and refuse what cannot be written.

        Raises:
            ConfigError: Naming every option with an invalid value; else an option that no format
                has, or the packages of a format that are missing.
        """
        problems = config.Problems()
        fields: dict[str, Any] = {
            name: bool(given.get(name.replace("_", "-")))
            for name in ("with_preprocessing", "half", "int8")
        }
        for name, (field, parse) in _PARSERS.items():
            if name in given:
                with problems.noted():
                    fields[field] = parse(name, str(given[name]))
        problems.raise_any()
        options = cls(**fields)
        flags = [f"--{name}" for name in ("half", "int8", "opset") if given.get(name)]
        if flags and "onnx" not in options.formats:
            raise ConfigError(
                f"{', '.join(flags)}: only for ONNX files, and --format is"
                f" {','.join(options.formats)}. Add onnx to the formats, or leave the option out."
            )
        for name in options.own_formats:
            _require_packages(name)
        return options


def parse_formats(name: str, text: str) -> tuple[str, ...]:
    """Parse names of formats with commas between them.

    Args:
        name: The option, without its dashes.
        text: Its value.

    Raises:
        ConfigError: If there is no such format.
    """
    choices = (*FORMATS, "all", f"{MODULE_FORMAT}NAME")
    names = [name.strip() for name in text.split(",")]
    for given in names:
        is_of_module = given.startswith(MODULE_FORMAT) and _MODULE_NAME.fullmatch(
            given.removeprefix(MODULE_FORMAT)
        )
        if given not in choices[:-1] and not is_of_module:
            raise ConfigError(
                f"--{name}: expected {', '.join(choices)}, or several with commas between them, got"
                f" {given!r}{config.near(given, choices)}"
            )
    if "all" in names:
        names = [*FORMATS, *(each for each in names if each.startswith(MODULE_FORMAT))]
    return tuple(dict.fromkeys(names))


def describe_missing_hooks(cls: type, formats: Sequence[str]) -> str | None:
    """Describe the methods that a class of modules lacks for formats of its own.

    None where it lacks none.

    Args:
        cls: The class.
        formats: Names without `MODULE_FORMAT`, such as `ExportOptions.module_formats`.
    """
    missing = [name for name in MODULE_HOOKS if not callable(getattr(cls, name, None))]
    if not formats or not missing:
        return None
    return (
        f"{MODULE_FORMAT}{formats[0]}: {cls.__name__} has no method {' and no '.join(missing)}. A"
        " module exports itself by export_model(folder, format), which writes the files, and"
        " check_export(folder, format), which raises where they differ from the model"
        " (docs/export-and-serve.md)."
    )


def _require_packages(name: str) -> None:
    """Refuse a format whose packages are missing."""
    missing = [each for each in FORMATS[name].requires if importlib.util.find_spec(each) is None]
    if missing:
        raise ConfigError(
            f"--format {name} needs {', '.join(missing)}: pip install 'lightkit-train[{name}]'."
        )


def _parse_shapes(name: str, text: str) -> tuple[tuple[tuple[int, ...], str], ...]:
    matches = [_SHAPE.fullmatch(part.strip()) for part in text.split(";")]
    shapes = [
        (tuple(map(int, re.split(r"\s*[,x]\s*", match[1]))), match[2] or _DTYPES[0])
        for match in matches
        if match
    ]
    if len(shapes) < len(matches) or any(0 in sizes for sizes, _ in shapes):
        raise ConfigError(
            f"--{name}: expected sizes with the batch first, such as 1,3,224,224, 1x3x224x224 or"
            f" 1,128:int64, several inputs parted by `;`, got {text!r}"
        )
    if unknown := [dtype for _, dtype in shapes if dtype not in _DTYPES]:
        raise ConfigError(
            f"--{name}: expected one of {', '.join(_DTYPES)} after the sizes, got {unknown[0]!r}"
            f"{config.near(unknown[0], _DTYPES)}"
        )
    return tuple(shapes)


def _parse_number(name: str, text: str, *, kind: type, least: int) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not (value >= least and math.isfinite(value)):
        expected = "a whole number" if kind is int else "a number"
        raise ConfigError(f"--{name}: expected {expected} of at least {least}, got {text!r}")
    return value


def _parse_opset(name: str, text: str) -> int:
    if text not in map(str, OPSETS):
        raise ConfigError(
            f"--{name}: expected {OPSETS.start} to {OPSETS.stop - 1}, which torch writes and"
            f" onnxruntime reads, got {text!r}"
        )
    return int(text)


_parse_count = partial(_parse_number, kind=int, least=1)
_parse_tolerance = partial(_parse_number, kind=float, least=0)
_PARSERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "format": ("formats", parse_formats),
    "output": ("output", lambda _, text: Path(text).expanduser()),
    "input-shape": ("input_shapes", _parse_shapes),
    "opset": ("opset", _parse_opset),
    "num-samples": ("num_samples", _parse_count),
    "rtol": ("rtol", _parse_tolerance),
    "atol": ("atol", _parse_tolerance),
}
"""Field and parser by option."""
