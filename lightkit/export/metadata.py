"""Metadata inside every exported file, the table of formats, and the digests that show a file was altered. No torch."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightkit.errors import ConfigError, DataError
from lightkit.images.preprocessing import Preprocessing
from lightkit.runs.checkpoints import digest
from lightkit.runs.files import read_json

FILES = {
    "torch_export": "model.pt2",
    "onnx": "model.onnx",
    "torchscript": "model.ts",
    "safetensors": "model.safetensors",
}
"""File name by format. `lightkit.export.FORMAT` writes the format, `lightkit.export.worker` runs it."""
RECORD = "export.json"
METADATA_KEY = "lightkit"
"""Key of the metadata in ONNX and safetensors files; torch's archives have the extra file ``lightkit.json``."""
DIGEST_KEY = "lightkit_sha256"
"""Key, in the metadata of a safetensors file, of the file's digest, computed with `NO_DIGEST` in its place."""
NO_DIGEST = "0" * 64
OutputKind = Literal["logits", "probabilities", "other"]

_DIGEST_FIELD = re.compile(rb'("' + DIGEST_KEY.encode() + rb'"\s*:\s*")([0-9a-f]{64})"')
_MAX_HEADER_BYTES = 100_000_000  # safetensors refuses longer headers itself
_BLOCK_BYTES = 1 << 20
_READ_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error, struct.error),
    RuntimeError,  # of zipfile for encrypted entries and unknown compression, of json for deep nesting
)


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output.

    Args:
        name: Argument of ``forward``, or key of the output.
        dtype: As numpy names it.
        shape: None for a dimension of any length, such as the batch, which comes first.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Metadata:
    """Description of an exported model.

    Args:
        format: Key of `FILES`.
        model: Class of the module.
        inputs: In the order of ``forward``'s arguments. With the preprocessing in the graph, one: ``images``, uint8
            ``(batch, height, width, 3)`` in RGB, of any height and width.
        outputs: In their order.
        output_kind: Kind of the first output.
        class_names: In the order of the first output's columns, for a classifier.
        preprocessing: Of an image, if the data module names it.
        in_graph: Whether the exported model does the preprocessing itself.
        precision: ``float32``, ``float16`` or ``int8``: of the weights.
        source: Origin of the weights: ``checkpoint``, ``sha256``, ``run``, as far as they are known.
        versions: Of lightkit and of the packages that wrote the file.
        how: Exporter that was used; for TorchScript ``script`` or ``trace``, and why.
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

    @property
    def file_name(self) -> str:
        """Final name of the file, such as ``model.pt2`` or ``model.half.onnx``."""
        name, suffix = Path(FILES[self.format]), {"float16": ".half", "int8": ".int8"}.get(self.precision, "")
        return f"{name.stem}{suffix}{name.suffix}"

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return {"schema": 1, **asdict(self)}

    def dumps(self) -> str:
        """Convert to the JSON text inside a file."""
        return json.dumps(self.as_dict())

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Metadata:
        """Convert from plain values; fields of later versions are ignored.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field has another type.
        """
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        for name in ("inputs", "outputs"):
            specs = record[name]
            known[name] = tuple(TensorSpec(each["name"], each["dtype"], tuple(each["shape"])) for each in specs)
        names, preprocessing = record.get("class_names"), record.get("preprocessing")
        known["class_names"] = None if names is None else tuple(names)
        known["preprocessing"] = None if preprocessing is None else Preprocessing.from_dict(preprocessing)
        return cls(**known)


def format_of(path: Path | str) -> str | None:
    """Look up the format of a file's suffix; None for a suffix of no format."""
    suffixes = {Path(name).suffix: format_ for format_, name in FILES.items()}
    return suffixes.get(Path(path).suffix.lower())


def read_metadata(path: Path) -> Metadata:
    """Read the metadata of an exported file, without torch and without running anything in it.

    Raises:
        ConfigError: If it is an ONNX file, and onnxruntime is not installed.
        DataError: If the file is missing, damaged or cut short, or no export of lightkit.
    """
    kind = format_of(path)
    try:
        if kind == "safetensors":
            text = str(json.loads(_read_header(path)[8:])["__metadata__"][METADATA_KEY])
        elif kind == "onnx":
            text = _read_onnx_metadata(path)
        elif kind is not None:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.endswith("extra/lightkit.json")]
                if not names:
                    raise ValueError("it has no extra file lightkit.json")
                text = archive.read(names[0]).decode()
        else:
            raise ValueError(f"expected a file that ends in {', '.join(Path(name).suffix for name in FILES.values())}")
        return Metadata.from_dict(json.loads(text))
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file. `lightkit export` writes it.") from error
    except _READ_ERRORS as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        reason = (error.strerror if isinstance(error, OSError) else None) or reason
        raise DataError(
            f"{path}: this is no export of lightkit, or it is damaged or cut short ({reason}). Export it again."
        ) from error


def _read_onnx_metadata(path: Path) -> str:
    try:
        from onnxruntime import InferenceSession, SessionOptions  # an extra, and 0.2 s
    except ImportError as error:
        raise ConfigError(f"{path}: ONNX files need onnxruntime: pip install 'lightkit[onnx]'.") from error
    if not path.is_file():
        raise FileNotFoundError(path)
    options = SessionOptions()
    options.log_severity_level = 4  # errors are raised
    try:
        session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise ValueError(str(error).rpartition(" failed:")[2] or str(error)) from error
    return str(session.get_modelmeta().custom_metadata_map[METADATA_KEY])


def check_digest(path: Path) -> None:
    """Compare an exported file, and ONNX's external data, with the digests of its export, as far as there are any.

    The digests are in ``export.json`` beside the file, and within a safetensors file.

    Raises:
        DataError: If a digest differs, a part is missing, or ``export.json`` cannot be read.
    """
    record, found = path.with_name(RECORD), {}
    if record.is_file():
        try:
            entry = (read_json(record) or {"artefacts": None}).get("artefacts", {}).get(path.name, {})
            data = entry.get("data") or {}
            found = {path.name: entry.get("sha256"), data.get("file"): data.get("sha256")}
        except AttributeError as error:
            raise DataError(
                f"{record}: this record of an export is damaged; expected `artefacts`, by file name, each with its "
                f"`sha256`. Export {path.name} again, or take the record away."
            ) from error
    for name, expected in found.items():
        if not (isinstance(name, str) and isinstance(expected, str)):
            continue
        part = path.with_name(name)
        if not part.is_file():
            raise DataError(f"{path}: {part} is missing, which {RECORD} says is a part of it. Export it again.")
        if digest(part) != expected:
            raise DataError(
                f"{part}: this is not what was exported: its digest is not that in {RECORD}. Export it again."
            )
    if path.suffix.lower() == ".safetensors" and (fault := find_digest_fault(path)):
        raise DataError(f"{path}: {fault}. Export it again.")


def is_recorded(path: Path, folder: Path) -> bool:
    """Check whether ``export.json`` in a folder has the digest of a file, under any name."""
    entries = (read_json(folder / RECORD) or {}).get("artefacts")
    known = entries.values() if isinstance(entries, Mapping) else ()
    return digest(path) in [entry.get("sha256") for entry in known if isinstance(entry, Mapping)]


def embed_digest(path: Path) -> None:
    """Write into a safetensors file, whose metadata have `NO_DIGEST` under `DIGEST_KEY`, its own digest.

    Raises:
        ValueError: If its metadata have no such key.
    """
    found = _DIGEST_FIELD.search(_read_header(path))
    if found is None:
        raise ValueError(f"{path}: its metadata have no {DIGEST_KEY}")
    content_digest = _digest_without(path, found.start(2))
    with path.open("r+b") as file:
        file.seek(found.start(2))
        file.write(content_digest.encode())


def find_digest_fault(path: Path) -> str | None:
    """Describe how a safetensors file differs from its embedded digest; None if it does not, or has none.

    Raises:
        OSError: If it cannot be read.
    """
    found = _DIGEST_FIELD.search(_read_header(path))
    if found is None or _digest_without(path, found.start(2)) == found[2].decode():
        return None
    return "this is not what was exported: its content has not the digest that its metadata name"


def _read_header(path: Path) -> bytes:
    """Read the header of a safetensors file after its length of 8 bytes; empty if there can be none."""
    with path.open("rb") as file:
        length = file.read(8)
        if len(length) < 8 or (num_bytes := struct.unpack("<Q", length)[0]) > _MAX_HEADER_BYTES:
            return b""
        return length + file.read(num_bytes)


def _digest_without(path: Path, position: int) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        hasher.update(file.read(position) + NO_DIGEST.encode())
        file.seek(len(NO_DIGEST), 1)
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest()
