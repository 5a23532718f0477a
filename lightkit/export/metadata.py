"""Metadata inside every exported file, and the digests that show a file was altered. No torch."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.errors import ConfigError, DataError
from lightkit.export.formats import (
    FORMATS,
    first_line,
    format_of,
    holds_weights_alone,
    read_safetensors_header,
)
from lightkit.hardware.packages import describe_packages
from lightkit.images.preprocessing import Preprocessing
from lightkit.runs.checkpoints import digest
from lightkit.runs.files import find_value, read_json
from lightkit.task import OutputKind, Task, task_of_kind
from lightkit.version import __version__

if TYPE_CHECKING:
    from lightkit.rows.preprocessing import RowPreprocessing

RECORD = "export.json"
DIGEST_KEY = "lightkit_sha256"
"""Key, in the metadata of a safetensors file, of the file's digest, computed with `NO_DIGEST` in
its place."""
NO_DIGEST = "0" * 64

_PACKAGES = (
    "torch",
    "torchvision",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "safetensors",
    "numpy",
    "pytorch-lightning",
)
_DIGEST_FIELD = re.compile(rb'("' + DIGEST_KEY.encode() + rb'"\s*:\s*")([0-9a-f]{64})"')
_BLOCK_BYTES = 1 << 20
_READ_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error),
    # of zipfile for encrypted entries and unknown compression, of json for deep nesting
    RuntimeError,
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
        format: Key of `FORMATS`.
        model: Class of the module.
        inputs: In the order of ``forward``'s arguments. With the preprocessing in the graph, one:
            ``images``, uint8 ``(batch, height, width, 3)`` in RGB, of any height and width.
        outputs: In their order.
        output_kind: Kind of the first output.
        class_names: Of the classes or labels that the first output is of, in their order.
        thresholds: Probability from which on each label is predicted; None where each is 0.5, or
            classes are.
        preprocessing: Of an image, if the data module names it.
        rows: Preparation of rows of a table for the inputs, as
            `lightkit.rows.preprocessing.dump_preprocessing` writes it; None of a model that takes
            no rows.
        in_graph: Whether the exported model does the preprocessing itself.
        precision: ``float32``, ``float16`` or ``int8``: of the weights.
        source: Origin of the weights: ``checkpoint``, ``epoch``, ``sha256``, ``run``, as far as
            they are known.
        versions: Of lightkit and of the packages that wrote the file.
        how: Exporter that was used; for TorchScript ``script`` or ``trace``, and why.
        opset: Of ONNX; until it is written, None for that of `lightkit.export.onnx`.
    """

    format: str
    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    output_kind: OutputKind = "other"
    class_names: tuple[str, ...] | None = None
    thresholds: tuple[float, ...] | None = None
    preprocessing: Preprocessing | None = None
    rows: Mapping[str, Any] | None = None
    in_graph: bool = False
    precision: str = "float32"
    source: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    how: str | None = None
    opset: int | None = None

    @property
    def task(self) -> Task:
        """Task of the model, as far as the kind of the first output and the thresholds say it."""
        return task_of_kind(self.output_kind).decide_by(self.thresholds)

    @property
    def row_preprocessing(self) -> RowPreprocessing | None:
        """Preparation of rows of a table; None of a model that takes no rows.

        Raises:
            DataError: If its record is damaged.
        """
        if self.rows is None:
            return None
        # here: pyarrow, which few models need
        from lightkit.rows.preprocessing import load_preprocessing

        return load_preprocessing(self.rows)

    @property
    def file_name(self) -> str:
        """Final name of the file, such as ``model.pt2`` or ``model.half.onnx``."""
        name = Path(FORMATS[self.format].file)
        suffix = {"float16": ".half", "int8": ".int8"}.get(self.precision, "")
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
            known[name] = tuple(
                TensorSpec(each["name"], each["dtype"], tuple(each["shape"])) for each in specs
            )
        names = record.get("class_names")
        preprocessing = record.get("preprocessing")
        known["class_names"] = None if names is None else tuple(names)
        if record.get("thresholds") is not None:
            known["thresholds"] = tuple(map(float, record["thresholds"]))
        known["preprocessing"] = (
            None if preprocessing is None else Preprocessing.from_dict(preprocessing)
        )
        return cls(**known)


def installed_versions() -> dict[str, str]:
    """List the versions of lightkit and of the packages that write files."""
    return {"lightkit": __version__, **describe_packages(_PACKAGES)}


def read_metadata(path: Path) -> Metadata:
    """Read the metadata of an exported file, without torch and without running anything in it.

    Raises:
        ConfigError: If it is an ONNX file, and onnxruntime is not installed.
        DataError: If the file is missing, damaged or cut short, or no export of lightkit.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file. `lightkit export` writes it.")
    try:
        if (kind := format_of(path)) is None:
            suffixes = ", ".join(Path(each.file).suffix for each in FORMATS.values())
            raise ValueError(f"expected a file that ends in {suffixes}")
        return Metadata.from_dict(json.loads(FORMATS[kind].read_metadata(path)))
    except ImportError as error:
        raise ConfigError(
            f"{path}: what runs it is not installed ({error}): pip install 'lightkit-train[onnx]'."
        ) from error
    except _READ_ERRORS as error:
        raise DataError(
            f"{path}: this is not an export of lightkit, or it is damaged or cut short"
            f" ({first_line(error)}). Export it again."
        ) from error


def read_record(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the entries of ``export.json`` in a folder, by file name.

    None if there is no such record.

    Raises:
        DataError: If it is damaged.
    """
    if not (folder / RECORD).is_file():
        return {}
    entries = find_value(read_json(folder / RECORD), "artefacts")
    if not isinstance(entries, dict) or not all(
        isinstance(entry, dict) for entry in entries.values()
    ):
        raise DataError(
            f"{folder / RECORD}: this record of an export is damaged; expected `artefacts`, by file"
            " name, each with its `sha256`. Export again, or take the record away."
        )
    return entries


def check_digest(path: Path) -> None:
    """Compare an exported file, and ONNX's external data, with the digests of its export.

    As far as there are any.

    The digests are in ``export.json`` next to the file, and within a file of weights.

    Raises:
        DataError: If a digest differs, a part is missing, or ``export.json`` is damaged.
    """
    entry = read_record(path.parent).get(path.name, {})
    for part in filter(None, ({"file": path.name, **entry}, entry.get("data"))):
        file = path.with_name(part["file"])
        if "sha256" in part and not (file.is_file() and digest(file) == part["sha256"]):
            raise DataError(
                f"{file}: this is not what was exported: its digest is not that"
                f" in {RECORD}. Export it again."
            )
    if holds_weights_alone(path) and (fault := find_digest_fault(path)):
        raise DataError(f"{path}: {fault}. Export it again.")


def is_recorded(path: Path, folder: Path) -> bool:
    """Check whether ``export.json`` in a folder has the digest of a file, under any name."""
    return digest(path) in [entry.get("sha256") for entry in read_record(folder).values()]


def embed_digest(path: Path) -> None:
    """Write, into a safetensors file, its own digest.

    Its metadata have `NO_DIGEST` under `DIGEST_KEY`.
    """
    found = _DIGEST_FIELD.search(read_safetensors_header(path))
    assert found is not None
    content_digest = _digest_without(path, found.start(2))
    with path.open("r+b") as file:
        file.seek(found.start(2))
        file.write(content_digest.encode())


def find_digest_fault(path: Path) -> str | None:
    """Describe how a safetensors file differs from its embedded digest.

    None if it does not, or has none.

    Raises:
        OSError: If it cannot be read.
    """
    found = _DIGEST_FIELD.search(read_safetensors_header(path))
    if found is None or _digest_without(path, found.start(2)) == found[2].decode():
        return None
    return "this is not what was exported: its content has not the digest that its metadata name"


def _digest_without(path: Path, position: int) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        hasher.update(file.read(position) + NO_DIGEST.encode())
        file.seek(len(NO_DIGEST), 1)
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest()
