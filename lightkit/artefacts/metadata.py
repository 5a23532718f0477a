"""What every exported file carries within itself, as JSON, and how it is read without torch."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from lightkit.errors import ConfigError, DataError
from lightkit.images.preprocessing import Preprocessing

__all__ = ["FILES", "KEY", "Metadata", "OutputKind", "TensorSpec", "format_of", "read_metadata"]

FILES = {
    "torch_export": "model.pt2",
    "onnx": "model.onnx",
    "torchscript": "model.ts",
    "safetensors": "model.safetensors",
}
"""The formats of an export, each with its file's name."""
KEY = "lightkit"
"""Name of the metadata in ONNX and safetensors files; in those of torch they are the extra file ``lightkit.json``."""
OutputKind = Literal["logits", "probabilities", "other"]
_NOT_READ = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error, struct.error),
    RuntimeError,  # of zipfile for what is encrypted or packed in another way, and of json for what is too deep
)
_LONGEST_HEADER = 100_000_000  # bytes; safetensors refuses longer ones itself


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output.

    Args:
        name: Its name: of the argument of ``forward``, or the key of the output.
        dtype: As numpy names it.
        shape: Its dimensions; None for one of any length, such as the batch, which comes first.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Metadata:
    """What an exported model says of itself.

    Args:
        format: One of `FILES`.
        model: Class of the module that was exported.
        inputs: In the order of ``forward``'s arguments. With the preprocessing in the graph, one: ``images``, uint8
            ``(batch, height, width, 3)`` in RGB, of any height and width.
        outputs: In the order in which they come.
        output_kind: What the first output is.
        class_names: In the order of the outputs' columns, for a classifier.
        preprocessing: What is done to an image, where the data module tells.
        in_graph: Whether the exported model does that itself.
        precision: ``float32``, ``float16`` or ``int8``: of the weights.
        source: Where the weights come from: ``checkpoint``, ``sha256``, ``run``, as far as they are known.
        versions: Of lightkit and the packages that wrote the file.
        how: How the format was made of the module, where there are several ways: ``script`` or ``trace``, and why.
    """

    format: str
    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    output_kind: OutputKind = "other"
    class_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    in_graph: bool = False
    precision: str = "float32"
    source: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    how: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON holds it."""
        record = asdict(self)
        record["preprocessing"] = None if self.preprocessing is None else self.preprocessing.as_dict()
        return {"schema": 1, **record}

    def dumps(self) -> str:
        """Give it as the JSON text that a file carries."""
        return json.dumps(self.as_dict())

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Metadata:
        """Give what `as_dict` wrote; fields that this version does not know are left out.

        Raises:
            KeyError: If a field that each file has is missing.
            TypeError: If one is of another type; in words.
        """
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        for name in ("inputs", "outputs"):
            _expect(isinstance(record[name], list | tuple), name, "a list", record[name])
            known[name] = tuple(_spec_of(name, spec) for spec in record[name])
        names, preprocessing = record.get("class_names"), record.get("preprocessing")
        is_named = isinstance(names, list | tuple) and all(isinstance(each, str) for each in names)
        _expect(names is None or is_named, "class_names", "a list of texts or null", names)
        _expect(isinstance(preprocessing, dict | None), "preprocessing", "a mapping or null", preprocessing)
        kinds, kind = get_args(OutputKind), known.get("output_kind", "other")
        _expect(kind in kinds, "output_kind", f"one of {', '.join(kinds)}", kind)
        in_graph = known.get("in_graph", False)
        _expect(isinstance(in_graph, bool), "in_graph", "true or false", in_graph)
        known["class_names"] = None if names is None else tuple(map(str, names))
        known["preprocessing"] = None if preprocessing is None else Preprocessing.of(preprocessing)
        return cls(**known)


def _spec_of(name: str, spec: Mapping[str, Any]) -> TensorSpec:
    _expect(isinstance(spec, dict), name, "a mapping for each", spec)
    shape = spec["shape"]
    is_right = isinstance(shape, list | tuple) and all(
        size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 0) for size in shape
    )
    _expect(is_right, f"{name}, shape", "a list of whole numbers, null for any", shape)
    return TensorSpec(str(spec["name"]), str(spec["dtype"]), tuple(shape))


def _expect(is_right: bool, field_name: str, expected: str, found: object) -> None:
    if not is_right:
        raise TypeError(f"{field_name}: expected {expected}, got {found!r}")


def format_of(path: Path | str) -> str | None:
    """Tell a file's format by the end of its name; None where it is that of no export."""
    endings = {Path(name).suffix: format_ for format_, name in FILES.items()}
    return endings.get(Path(path).suffix.lower())


def read_metadata(path: Path) -> Metadata:
    """Read what an exported file says of itself, without torch and without running anything in it.

    Raises:
        ConfigError: If it is an ONNX file, and onnxruntime is not installed.
        DataError: If it is no file, is damaged or cut short, or is no export of lightkit.
    """
    try:
        text = _text(path)
        return Metadata.of(json.loads(text))
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file. `lightkit export` writes it.") from error
    except _NOT_READ as error:
        says = f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        says = (error.strerror if isinstance(error, OSError) else None) or says
        raise DataError(
            f"{path}: this is no export of lightkit, or it is damaged or cut short ({says}). Export it again."
        ) from error


def _text(path: Path) -> str:
    kind = format_of(path)
    if kind == "safetensors":
        return str(_safetensors_header(path)["__metadata__"][KEY])
    if kind in ("torch_export", "torchscript"):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("extra/lightkit.json")]
            if not names:
                raise ValueError("it has no extra file lightkit.json")
            return archive.read(names[0]).decode()
    if kind == "onnx":
        return _onnx_text(path)
    raise ValueError(f"expected a file that ends in {', '.join(Path(name).suffix for name in FILES.values())}")


def _onnx_text(path: Path) -> str:
    try:
        from onnxruntime import InferenceSession, SessionOptions  # an extra, and 0.2 s
        from onnxruntime.capi import onnxruntime_pybind11_state as refusals
    except ImportError as error:
        raise ConfigError(f"{path}: ONNX files need onnxruntime: pip install 'lightkit[onnx]'.") from error
    if not path.is_file():
        raise FileNotFoundError(path)
    options = SessionOptions()
    options.log_severity_level = 4  # what is wrong is raised
    try:
        session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except (refusals.Fail, refusals.InvalidArgument, refusals.InvalidGraph, refusals.InvalidProtobuf) as error:
        raise ValueError(str(error).rpartition(" failed:")[2] or str(error)) from error
    return str(session.get_modelmeta().custom_metadata_map[KEY])


def _safetensors_header(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _LONGEST_HEADER:
            raise ValueError("its header is too long")
        header: Mapping[str, Any] = json.loads(file.read(length))
    return header
