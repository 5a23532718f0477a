"""The options of `lightkit export`, read before anything is loaded. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkit import config
from lightkit.artefacts.metadata import FILES
from lightkit.cli.config_loader import options_of
from lightkit.cli.path_checks import explain_unwritable
from lightkit.errors import ConfigError

__all__ = ["FORMATS", "ExportOptions", "options_in"]

FORMATS = (*FILES, "all")
"""What `--format` takes."""
_DEFAULT_FORMAT = "torch_export"
_SHAPE = re.compile(r"(?:([A-Za-z_]\w*)[:=])?\s*(\d+(?:\s*[,x]\s*\d+)*)\s*(?::\s*(\w+))?\s*")
_DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")
_NUM_SAMPLES = 64


@dataclass(frozen=True)
class ExportOptions:
    """What is to be exported, and how.

    Args:
        formats: Names of the formats, each once.
        output: Folder; the run's `export` if None.
        with_preprocessing: Put resize, crop and normalisation into the graph.
        input_shapes: Of ``forward``'s inputs, each with the name of its argument or None, its sizes, of which the batch
            comes first, and its dtype.
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
    def of(cls, said: Mapping[str, str | bool]) -> ExportOptions:
        """Read the options as the command line gives them.

        Raises:
            ConfigError: If one has a value that it does not take, naming every such option.
        """
        problems = config.Problems()
        read: dict[str, Any] = {}
        for name, take in _READ.items():
            if name in said:
                with problems.noted():
                    read[_FIELDS.get(name, name.replace("-", "_"))] = take(name, said[name])
        problems.raise_any()
        if read.get("output") == Path("json"):
            del read["output"]
        if not str(read.get("logged", "")).startswith(("models:/", "runs:/")):
            read.pop("logged", None)
        return cls(**read)


def options_in(words: Sequence[str]) -> tuple[ExportOptions | None, config.Arguments]:
    """Read the options among the words of a command line, and give all that was said, too.

    Returns:
        The options; None where the words ask for help.

    Raises:
        ConfigError: If one has a value that it does not take, or the folder cannot be written.
    """
    arguments = config.split_arguments(words, options=options_of("export"), problems=config.Problems())
    if arguments.passthrough:
        return None, arguments
    options = ExportOptions.of(arguments.options)
    if options.output is not None and (error := explain_unwritable(options.output, setting="--output")) is not None:
        raise error
    return options, arguments


def _formats(name: str, said: str | bool) -> tuple[str, ...]:
    words = [word.strip() for word in str(said).split(",")]
    for word in words:
        if word not in FORMATS:
            raise ConfigError(
                f"--{name}: expected {', '.join(FORMATS)}, or several with commas between them, got {word!r}"
                f"{config.near(word, FORMATS)}"
            )
    return tuple(FILES) if "all" in words else tuple(dict.fromkeys(words))


def _shapes(name: str, said: str | bool) -> tuple[tuple[str | None, tuple[int, ...], str], ...]:
    read = [_SHAPE.fullmatch(part.strip()) for part in str(said).split(";")]
    shapes = [] if None in read else [found.groups() for found in read if found]
    found = tuple(
        (argument, tuple(map(int, re.split(r"\s*[,x]\s*", sizes))), dtype or _DTYPES[0])
        for argument, sizes, dtype in shapes
    )
    if not found or any(0 in sizes for _, sizes, _ in found):
        raise ConfigError(
            f"--{name}: expected sizes with the batch first, such as 1,3,224,224, 1x3x224x224 or 1,128:int64, several "
            f"inputs parted by `;`, got {said!r}"
        )
    if unknown := [dtype for _, _, dtype in found if dtype not in _DTYPES]:
        raise ConfigError(
            f"--{name}: expected one of {', '.join(_DTYPES)} after the sizes, got {unknown[0]!r}"
            f"{config.near(unknown[0], _DTYPES)}"
        )
    if len({argument is None for argument, _, _ in found}) > 1:
        raise ConfigError(f"--{name}: expected a name before each shape or before none, got {said!r}")
    return found


def _whole(name: str, said: str | bool) -> int:
    if not re.fullmatch(r"[0-9]+", str(said)) or int(str(said)) < 1:
        raise ConfigError(f"--{name}: expected a whole number of at least 1, got {said!r}")
    return int(str(said))


def _distance(name: str, said: str | bool) -> float:
    try:
        value = float(str(said))
    except ValueError:
        value = math.nan
    if not (value >= 0 and math.isfinite(value)):
        raise ConfigError(f"--{name}: expected a number of at least 0, got {said!r}")
    return value


def _folder(name: str, said: str | bool) -> Path:
    if not str(said):
        raise ConfigError(f"--{name}: expected a folder, got nothing")
    return Path(str(said)).expanduser()


def _switch(_: str, said: str | bool) -> bool:
    return bool(said)


def _reference(_: str, said: str | bool) -> str:
    return str(said)


_READ: Mapping[str, Callable[[str, str | bool], Any]] = {
    "format": _formats,
    "output": _folder,
    "with-preprocessing": _switch,
    "input-shape": _shapes,
    "opset": _whole,
    "half": _switch,
    "int8": _switch,
    "num-samples": _whole,
    "rtol": _distance,
    "atol": _distance,
    "run": _reference,
}
_FIELDS = {"format": "formats", "input-shape": "input_shapes", "run": "logged"}
