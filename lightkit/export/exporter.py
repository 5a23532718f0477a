"""Export a model to proved files: written aside, proved in a fresh process, renamed, and recorded in export.json.

=================  ===================================================================================================
schema             1
artefacts          by file name, each with what follows; files of earlier exports that are still there are kept
file, format       its name in this folder; ``torch_export``, ``onnx``, ``torchscript`` or ``safetensors``
sha256             digest of the file
size_bytes         of the file and of its external data
data               ``file``, ``sha256`` of ONNX's external data; null if there is none
created            ISO 8601, UTC
model              class of the module
how                ``script`` or ``trace`` for TorchScript, else the exporter
precision          ``float32``, ``float16`` or ``int8``: of the weights
in_graph           whether the file does the preprocessing itself
inputs, outputs    lists of ``name``, ``dtype``, ``shape``; null is a dimension of any length
output_kind        ``logits``, ``probabilities`` or ``other``: of the first output
class_names        in the order of the columns; null if it is no classifier
preprocessing      of an image; null if unknown
source             ``checkpoint``, its ``sha256``, ``run``, as far as they are known
versions           of Python, lightkit and the packages that wrote and ran the file
samples            number of real samples that it was proved on
tolerance          ``rtol``, ``atol`` of the comparison, and ``of_largest``: relative to the largest output;
                   ``of_spread``, null but for int8: relative to the differences between samples, without a metric
parity             by batch size: ``max_abs``, ``max_rel`` (of the largest output), ``outputs`` compared, ``outside``;
                   ``of_spread`` if it is limited
metrics            ``scored``; then ``eager``, ``exported`` (metric -> value) and ``tolerance``, else the ``reason``
verified_on        ``processor`` and ``instruction_sets`` of the machine of the proof
loaded             which of torch, lightkit, pytorch_lightning, torchvision, onnxruntime the proof's process had loaded
threads            of file and eager model
latency            ``exported`` and ``eager``: by batch size ``median_s``, ``p95_s``, ``repetitions``
=================  ===================================================================================================
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lightkit.errors import ConfigError, ExportError, LightkitError, RunLocked
from lightkit.export.compare import Tolerance
from lightkit.export.metadata import FILES, RECORD, Metadata
from lightkit.export.proof import Mismatch, Proof, Reference, prove
from lightkit.export.samples import EvaluationSamples
from lightkit.export.target import ExportTarget, WriteOptions
from lightkit.hardware.packages import describe_packages
from lightkit.hardware.processor import cpu_model, instruction_sets
from lightkit.runs.checkpoints import digest
from lightkit.runs.files import flush, read_json, write_json
from lightkit.version import __version__

# torch's exporter writes 18 and converts that to others (2.15 downwards as well, if an operator allows it); those from
# 24 on are too new for some of the onnxruntime releases that the extra allows, 1.31 reads up to 26.
OPSETS = range(18, 24)
"""Tested: written by torch's exporter and read by onnxruntime."""
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_PACKAGES = ("torch", "torchvision", *_ONNX_PACKAGES, "safetensors", "numpy", "pytorch-lightning")
_DATA_SUFFIX = ".data"
"""Added to the name of an ONNX file for that of its external data."""
_LOCK = ".export.lock"


@dataclass(frozen=True)
class Artefact:
    """A file that was proved and published.

    Args:
        path: The file.
        metadata: Its metadata.
        proof: Its proof.
    """

    path: Path
    metadata: Metadata
    proof: Proof

    @property
    def size_bytes(self) -> int:
        """Of the file and its external data."""
        return sum(part.stat().st_size for part in (self.path, _data_path(self.path)) if part.exists())

    def as_dict(self) -> dict[str, Any]:
        """Convert to the entry of export.json."""
        record, data, proof = self.metadata.as_dict(), _data_path(self.path), self.proof
        kept = ("format", "model", "how", "precision", "in_graph", "inputs", "outputs", "output_kind", "class_names")
        return {
            "file": self.path.name,
            **{name: record[name] for name in (*kept, "preprocessing", "source")},
            "sha256": digest(self.path),
            "size_bytes": self.size_bytes,
            "data": {"file": data.name, "sha256": digest(data)} if data.exists() else None,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": {"python": platform.python_version(), **self.metadata.versions},
            "samples": proof.num_samples,
            "tolerance": asdict(proof.tolerance),
            "parity": {str(size): found.as_dict() for size, found in proof.comparisons.items()},
            "metrics": proof.score.as_dict(),
            "verified_on": {"processor": cpu_model(), "instruction_sets": instruction_sets()},
            "loaded": list(proof.loaded),
            "threads": proof.threads,
            "latency": {"exported": proof.latency, "eager": proof.eager_latency},
        }


class ExportsFailed(ExportError):
    """Some of the files could not be made, or differ from their model.

    Args:
        message: Reasons, a line each.
        artefacts: The other files, which were published.
    """

    def __init__(self, message: str, *, artefacts: Sequence[Artefact]) -> None:
        super().__init__(message)
        self.artefacts = artefacts


def check_options(kinds: Sequence[str], options: WriteOptions) -> None:
    """Refuse what cannot be written, before anything is built.

    Args:
        kinds: Formats, keys of `FILES`.
        options: Of the writers.

    Raises:
        ConfigError: If a format is unknown or named twice, an option of ONNX has no ONNX format, its packages are
            missing, or the opset is not one of `OPSETS`.
    """
    unknown = [kind for kind in kinds if kind not in FILES]
    if unknown or not kinds:
        raise ConfigError(f"--format: expected some of {', '.join(FILES)}, got {', '.join(unknown) or 'none'}.")
    if twice := sorted({kind for kind in kinds if list(kinds).count(kind) > 1}):
        raise ConfigError(f"--format: {', '.join(twice)} is named twice; name each format once.")
    given = {"--half": options.half, "--int8": options.int8, "--opset": options.opset is not None}
    flags = [flag for flag, is_given in given.items() if is_given]
    if "onnx" not in kinds:
        if flags:
            raise ConfigError(
                f"{', '.join(flags)}: it is for ONNX files, and --format is {','.join(kinds)}. "
                f"Add onnx to the formats, or leave {'them' if len(flags) > 1 else 'it'} out."
            )
        return
    if missing := [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"--format onnx needs {', '.join(missing)}: pip install 'lightkit[onnx]'.")
    if options.opset is not None and options.opset not in OPSETS:
        raise ConfigError(
            f"--opset: expected {OPSETS.start} to {OPSETS.stop - 1}, which torch writes and onnxruntime reads, "
            f"got {options.opset}."
        )


def write_file(kind: str, target: ExportTarget, path: Path, options: WriteOptions) -> Metadata:
    """Write a model to one file, without a proof, and return its metadata.

    Large ONNX weights go to a second file beside it, ``<final name>.data``, whatever the name of ``path``: the model
    refers to it by that name, so that both can be moved to another folder, and the first one renamed. Write into a
    folder that holds nothing else.

    Args:
        kind: Format, of which the module ``lightkit.export.KIND`` has a function ``write``.
        target: Model to export.
        path: The file; its folder exists.
        options: Of the writer. Of ``half`` and ``int8`` one at most.

    Raises:
        ExportError: If the model cannot be exported; with the exporter's reason in one line.
    """
    metadata = _describe_file(target, kind, options)
    format_module = import_module(f"lightkit.export.{kind}")  # late: torch.onnx is heavy, and onnx an extra
    written: Metadata = format_module.write(target, metadata, path, options)
    return written


def _describe_file(target: ExportTarget, kind: str, options: WriteOptions) -> Metadata:
    precision = "float16" if options.half else "int8" if options.int8 else "float32"
    versions = {"lightkit": __version__, **describe_packages(_PACKAGES)}
    return replace(target.metadata, format=kind, precision=precision, versions=versions)


def export(
    target: ExportTarget,
    kinds: Sequence[str],
    folder: Path,
    samples: EvaluationSamples,
    *,
    options: WriteOptions | None = None,
    tolerance: Tolerance | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> list[Artefact]:
    """Export a model to one or several formats, each of which is proved before it gets its name.

    A file of an earlier export stays until the new one is proved. If the new one differs from the model, the earlier
    one is removed too: nobody may find another model's file in the folder. One format that fails does not stop the
    others; all failures are reported together.

    Args:
        target: Model to export.
        kinds: Formats, keys of `FILES`.
        folder: Of the files and export.json; created if missing.
        samples: Samples of the proof.
        options: Of the writers. ``half`` and ``int8`` add ``model.half.onnx`` and ``model.int8.onnx``.
        tolerance: Of the comparison; that of each file's precision if None.
        on_step: Called with a line at each step.

    Returns:
        The files, in the order of the request.

    Raises:
        ExportsFailed: If a file could not be made or differs from the model; with the others.
        ConfigError: If the folder cannot be written, or there is no sample to calibrate int8 on.
        DataError: If the first sample to calibrate on cannot be read.
        RunLocked: If another export holds the folder.
    """
    options = options or WriteOptions()
    calibration = options.calibration() if options.calibration is not None else ()
    if "onnx" in kinds and options.int8 and next(iter(calibration), None) is None:
        raise ConfigError("--int8: there are no training samples to calibrate on. Give the data module in the config.")
    plain, variants = replace(options, half=False, int8=False), []
    for kind in kinds:
        variants.append((kind, plain))
        if kind == "onnx":
            variants += [(kind, replace(plain, half=True))] * options.half
            variants += [(kind, replace(plain, int8=True))] * options.int8
    artefacts: list[Artefact] = []
    failures = []
    with lock_folder(folder), _temporary_folder(folder, "samples") as inputs:

        @cache
        def find_reference(in_graph: bool) -> Reference:
            """By the file's inputs: a file of weights alone takes no images."""
            on_step("eager model: running and timing it")
            return Reference(target, samples, in_graph=in_graph, folder=inputs / f"in_graph_{in_graph}")

        for kind, variant in variants:
            path = folder / _describe_file(target, kind, variant).file_name
            try:
                artefacts.append(_export_file(kind, target, path, variant, find_reference, tolerance, on_step))
            except LightkitError as error:  # of the data too, which the calibration reads
                on_step(f"{path.name}: failed")
                failures.append(str(error))
    if failures:
        raise ExportsFailed("\nerror: ".join(failures), artefacts=artefacts)
    return artefacts


def _export_file(
    kind: str,
    target: ExportTarget,
    path: Path,
    options: WriteOptions,
    find_reference: Callable[[bool], Reference],
    tolerance: Tolerance | None,
    on_step: Callable[[str], None],
) -> Artefact:
    """Write, prove, publish and record one file."""
    try:
        with _temporary_folder(path.parent, path.name) as temporary:
            for name in ("file", "process"):
                (temporary / name).mkdir()
            file = temporary / "file" / path.name
            on_step(f"{path.name}: writing")
            metadata = write_file(kind, target, file, options)
            reference = find_reference(metadata.in_graph)
            on_step(f"{path.name}: proving on {reference.num_samples} samples")
            try:
                proof = prove(file, metadata, reference, folder=temporary / "process", tolerance=tolerance)
            except Mismatch as error:
                _update_record(path.parent, path.name, None)
                also = ", and so was the one of an earlier export" if _remove(path) else ""
                raise Mismatch(f"{error} It was removed{also}. {error.hint}".rstrip()) from error
            _update_record(path.parent, path.name, None)  # before the file changes, so that no entry is another file's
            publish(file, path)
            artefact = Artefact(path, metadata, proof)
            try:
                _update_record(path.parent, path.name, artefact.as_dict())
            except OSError:
                _remove(path)  # without an entry it counts as not proved
                raise
    except BrokenPipeError:  # of a step's line: the reader of a pipe has left, which is no error
        raise
    except OSError as error:
        raise ExportError(
            f"{path.name}: {path.parent} cannot be written ({error.strerror or error}). Make room, look at its "
            "permissions and at `ulimit -f`, or choose another --output."
        ) from error
    on_step(f"{path.name}: proved")
    return artefact


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder, keep other exports out of it, and remove what killed ones left there.

    Raises:
        ConfigError: If it cannot be written.
        RunLocked: If another export holds it.
    """
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise RunLocked(
            f"Another export is writing to {folder}. Try again when it has ended, or choose another --output."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"--output: cannot write to {folder}: {error.strerror or error}. Choose a folder that can be written."
        ) from error
    try:
        for leftover in folder.glob(".*.aside"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def publish(written: Path, path: Path) -> None:
    """Rename a proved file, and what was written beside it, to its final name.

    Two renames are not atomic. If ONNX's external data changes, the old model is removed first, so that a kill leaves
    no model rather than one with another's weights.
    """
    os.umask(mask := os.umask(0))
    parts = sorted(written.parent.iterdir())
    for part in parts:
        part.chmod(0o666 & ~mask)  # torch and onnx may have written them for the owner alone
        flush(part)
    if len(parts) > 1 or _data_path(path).exists():
        _remove(path)
    for part in parts:
        if part != written:
            part.replace(path.with_name(part.name))
    written.replace(path)
    flush(path.parent)


def _remove(path: Path) -> bool:
    """Remove a file and its external data; return whether there was one."""
    existed = path.exists()
    path.unlink(missing_ok=True)
    _data_path(path).unlink(missing_ok=True)
    return existed


def _update_record(folder: Path, name: str, entry: Mapping[str, Any] | None) -> None:
    """Replace a file's entry in export.json, or drop it; entries of files that are gone are dropped, too."""
    recorded = (read_json(folder / RECORD) or {}).get("artefacts")
    entries = dict(recorded) if isinstance(recorded, dict) else {}
    if entry is None and name not in entries:
        return
    entries = {key: value for key, value in entries.items() if key != name and (folder / key).is_file()}
    write_json(folder / RECORD, {"schema": 1, "artefacts": {**entries, **({name: entry} if entry else {})}})


@contextmanager
def _temporary_folder(folder: Path, name: str) -> Iterator[Path]:
    """Create a hidden folder on the same disk, in which a file can have its final name, as ONNX's data needs."""
    with tempfile.TemporaryDirectory(
        dir=folder, prefix=f".{name}.", suffix=".aside", ignore_cleanup_errors=True
    ) as temporary:
        yield Path(temporary)


def _data_path(path: Path) -> Path:
    return path.with_name(path.name + _DATA_SUFFIX)
