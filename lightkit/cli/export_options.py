"""The options of `lightkit export`, read before anything is loaded. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightkit import config
from lightkit.cli.config_loader import options_of
from lightkit.cli.validation import explain_unwritable
from lightkit.errors import ConfigError
from lightkit.export.formats import FORMATS

_CHOICES = (*FORMATS, "all")
_DEFAULT_FORMAT = "torch_export"
_SHAPE = re.compile(r"(?:([A-Za-z_]\w*)[:=])?\s*(\d+(?:\s*[,x]\s*\d+)*)\s*(?::\s*(\w+))?\s*")
_DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")
_NUM_SAMPLES = 64


@dataclass(frozen=True)
class ExportOptions:
    """Options of the command line.

    Args:
        formats: Names of the formats, each once.
        output: Folder; the run's `export` if None.
        with_preprocessing: Put resize, crop and normalisation into the graph.
        input_shapes: Of ``forward``'s inputs: name of the argument or None, sizes with the batch first, dtype.
        opset: Of ONNX.
        half: Write ONNX with weights in float16.
        int8: Write ONNX quantised.
        num_samples: Number of samples that prove an export.
        rtol: Relative tolerance; that of the precision if None.
        atol: Absolute tolerance; likewise.
        logged: Model in MLflow that `--run` names in place of a run.
    """

    formats: tuple[str, ...] = (_DEFAULT_FORMAT,)
    output: Path | None = None
    with_preprocessing: bool = False
    input_shapes: tuple[tuple[str | None, tuple[int, ...], str], ...] = ()
    opset: int | None = None
    half: bool = False
    int8: bool = False
    num_samples: int = _NUM_SAMPLES
    rtol: float | None = None
    atol: float | None = None
    logged: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str | bool]) -> ExportOptions:
        """Parse the options of the command line.

        Raises:
            ConfigError: Naming every option with an invalid value.
        """
        problems = config.Problems()
        fields: dict[str, Any] = {}
        for name, (field, parse) in _PARSERS.items():
            if name in given:
                with problems.noted():
                    fields[field] = parse(name, str(given[name]))
        problems.raise_any()
        fields |= {name: bool(given.get(name.replace("_", "-"))) for name in ("with_preprocessing", "half", "int8")}
        if fields.get("output") == Path("json"):
            del fields["output"]
        if str(given.get("run", "")).startswith(("models:/", "runs:/")):
            fields["logged"] = given["run"]
        return cls(**fields)


def parse_export_options(args: Sequence[str]) -> tuple[ExportOptions | None, config.Arguments]:
    """Parse the command line of `lightkit export`.

    Returns:
        The options, None if the arguments ask for help; and all arguments.

    Raises:
        ConfigError: If an option has an invalid value, or the folder cannot be written.
    """
    arguments = config.split_arguments(args, options=options_of("export"), problems=config.Problems())
    if arguments.passthrough:
        return None, arguments
    options = ExportOptions.parse(arguments.options)
    if options.output is not None and (error := explain_unwritable(options.output, setting="--output")) is not None:
        raise error
    return options, arguments


def parse_formats(name: str, text: str) -> tuple[str, ...]:
    """Parse names of formats with commas between them.

    Args:
        name: The option, without its dashes.
        text: Its value.

    Raises:
        ConfigError: If there is no such format.
    """
    names = [name.strip() for name in text.split(",")]
    for word in names:
        if word not in _CHOICES:
            raise ConfigError(
                f"--{name}: expected {', '.join(_CHOICES)}, or several with commas between them, got {word!r}"
                f"{config.near(word, _CHOICES)}"
            )
    return tuple(FORMATS) if "all" in names else tuple(dict.fromkeys(names))


def _parse_shapes(name: str, text: str) -> tuple[tuple[str | None, tuple[int, ...], str], ...]:
    matches = [_SHAPE.fullmatch(part.strip()) for part in text.split(";")]
    shapes = [
        (match[1], tuple(map(int, re.split(r"\s*[,x]\s*", match[2]))), match[3] or _DTYPES[0])
        for match in matches
        if match is not None
    ]
    if len(shapes) < len(matches) or any(0 in sizes for _, sizes, _ in shapes):
        raise ConfigError(
            f"--{name}: expected sizes with the batch first, such as 1,3,224,224, 1x3x224x224 or 1,128:int64, several "
            f"inputs parted by `;`, got {text!r}"
        )
    if unknown := [dtype for _, _, dtype in shapes if dtype not in _DTYPES]:
        raise ConfigError(
            f"--{name}: expected one of {', '.join(_DTYPES)} after the sizes, got {unknown[0]!r}"
            f"{config.near(unknown[0], _DTYPES)}"
        )
    if len({argument is None for argument, _, _ in shapes}) > 1:
        raise ConfigError(f"--{name}: expected a name before each shape or before none, got {text!r}")
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


_parse_count = partial(_parse_number, kind=int, least=1)
_parse_tolerance = partial(_parse_number, kind=float, least=0)
_PARSERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "format": ("formats", parse_formats),
    "output": ("output", lambda _, text: Path(text).expanduser()),
    "input-shape": ("input_shapes", _parse_shapes),
    "opset": ("opset", _parse_count),
    "num-samples": ("num_samples", _parse_count),
    "rtol": ("rtol", _parse_tolerance),
    "atol": ("atol", _parse_tolerance),
}
"""Field and parser by option."""
