"""Export a model to verified files.

Written aside, proved in a fresh process, renamed, and recorded in export.json.

=================  =================================================================================
schema             1
artefacts          by file name, each with what follows; files of earlier exports that are still
                   there are kept
file, format       its name in this folder; a key of `lightkit.export.formats.FORMATS`, or
                   ``module:NAME``, see `lightkit.export.module_export`
sha256             digest of the file
size_bytes         of the file and of its external data
data               ``file``, ``sha256`` of ONNX's external data; null if there is none
created            ISO 8601, UTC
model              class of the module
how                ``script`` or ``trace`` for TorchScript, else the exporter
precision          ``float32``, ``float16`` or ``int8``: of the weights
opset              of ONNX, else null
in_graph           whether the file does the preprocessing itself
inputs, outputs    lists of ``name``, ``dtype``, ``shape``; null is a dimension of any length
output_kind        ``logits``, ``probabilities`` or ``other``: of the first output
class_names        in the order of the columns; null if it is no classifier
thresholds         probability from which on each label is predicted, of several labels; null where
                   each is 0.5
preprocessing      of an image; null if unknown
rows               preparation of the rows of a table; null if it takes none
source             ``checkpoint``, its ``epoch`` and ``sha256``, ``run``, as far as they are known
versions           of Python, lightkit and the packages that wrote and ran the file
samples            number of samples that it was proved on
tolerance          ``rtol``, ``atol`` of the comparison; ``of_largest``: relative to the largest
                   output; ``of_spread``: of the root mean square, relative to the output's spread
                   over the samples, 0 for no limit
parity             by batch size: ``max_abs``, ``max_rel`` (of the largest output), ``outputs``
                   compared, ``outside``
metrics            ``scored``; then ``eager``, ``exported`` (metric -> value) and ``tolerance``,
                   else the ``reason``
in_float16         ``parity`` and ``metrics`` with each value rounded to float16, as a GPU does it;
                   null for others
verified_on        ``processor`` and ``instruction_sets`` of the machine of the proof
loaded             which of torch, lightkit, pytorch_lightning, torchvision, onnxruntime the proof's
                   process had loaded
threads            of file and eager model
latency            ``exported`` and ``eager``: by batch size ``median_s``, ``p95_s``,
                   ``repetitions``
=================  =================================================================================
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lightkit.errors import ConfigError, LightkitError, RunLocked, visible
from lightkit.export.formats import FORMATS
from lightkit.export.metadata import RECORD, Metadata, installed_versions
from lightkit.export.options import ExportOptions
from lightkit.export.proof import Mismatch, Proof
from lightkit.export.target import ExportTarget
from lightkit.hardware.processor import cpu_model, instruction_sets
from lightkit.runs.checkpoints import digest
from lightkit.runs.files import find_value, flush, read_json, write_json

_DATA_SUFFIX = ".data"
"""Added to the name of an ONNX file for that of its external data."""
_LOCK = ".export.lock"
_DISK_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.ENOSPC,
        errno.EPERM,
        errno.EROFS,
        errno.ESTALE,
    }
)
"""Of a folder that cannot be written."""
_log = logging.getLogger("lightkit")
# on the same disk, where a file can have its final name, as ONNX's data needs
_temporary_folder = partial(
    tempfile.TemporaryDirectory[str], prefix=".", suffix=".aside", ignore_cleanup_errors=True
)


def export(
    target: ExportTarget,
    folder: Path,
    options: ExportOptions,
    *,
    on_step: Callable[[str], None] = lambda _: None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Export a model to one or several formats, each of which is verified before it gets its name.

    A file of an earlier export stays until the new one is verified. If the new one differs from the
    model, the earlier one is removed too: another model's file in the folder could be taken for it.
    One format that fails does not stop the others.

    Args:
        target: Model to export.
        folder: Of the files and export.json; created if missing.
        options: Formats, precisions, opset and tolerances.
        on_step: Called with a line at each step.

    Returns:
        The files' entries of export.json, in the order of the request; and why each other file
        could not be made, or differs from the model.

    Raises:
        ConfigError: If the folder cannot be written, or there is no sample to calibrate int8 on.
        DataError: If the first sample to calibrate on cannot be read.
        RunLocked: If another export holds the folder.
    """
    if options.int8:
        # which raises, before anything is written, if there is none
        next(iter(target.calibration()), None)
    precisions = {"float32": True, "float16": options.half, "int8": options.int8}
    variants = [
        (kind, each)
        for kind in options.own_formats
        for each in FORMATS[kind].precisions
        if precisions[each]
    ]
    artefacts: list[dict[str, Any]] = []
    failures = []
    with lock_folder(folder), _temporary_folder(dir=folder) as inputs:

        @cache
        def prepare_proof(subject: ExportTarget) -> Proof:
            return Proof(subject, Path(inputs, "plain" if subject.plain is None else "in_graph"))

        for kind, precision in variants:
            # which weights alone are
            subject = target if target.plain is None or FORMATS[kind].open else target.plain
            metadata = replace(
                subject.metadata,
                format=kind,
                precision=precision,
                opset=options.opset,
                versions=installed_versions(),
            )
            path = folder / metadata.file_name
            on_step(f"{path.name}: writing, then verifying in a fresh process")
            try:
                with _temporary_folder(dir=folder) as written:
                    file = Path(written, path.name)
                    # late: torch.onnx is heavy, onnx an extra
                    format_module = import_module(f"lightkit.export.{kind}")
                    metadata = format_module.write(subject, metadata, file)
                    _write_files_of_rows(metadata, file.parent)
                    figures = prepare_proof(subject).check(
                        file, metadata, rtol=options.rtol, atol=options.atol
                    )
                    artefacts.append(_publish(file, path, metadata, figures))
            except Mismatch as error:
                update_record(folder, path.name, None)
                also = ", and so was that of an earlier export" if _remove(path) else ""
                failures.append(f"{error} The file was removed{also}.")
            except OSError as error:
                failures.append(_describe_os_error(error, name=path.name, folder=folder))
            except LightkitError as error:  # of the data too, which the calibration reads
                failures.append(str(error))
            except Exception as error:  # noqa: BLE001 (of a format's library or the model; the other formats go on)
                _log.debug("%s", path.name, exc_info=True)
                text = visible(str(error).strip()) or "no message"
                failures.append(
                    f"{path.name}: {metadata.model} cannot be exported:"
                    f" {type(error).__name__}: {text}"
                )
            else:
                on_step(f"{path.name}: proved")
    return artefacts, failures


def _write_files_of_rows(metadata: Metadata, folder: Path) -> None:
    """Write the files with which a program prepares rows without lightkit.

    Into the folder of an exported file.
    """
    preprocessing = metadata.row_preprocessing
    if preprocessing is None:
        return
    for name, content in preprocessing.list_files().items():
        (folder / name).write_text(content, encoding="utf-8")


def _describe_os_error(error: OSError, *, name: str, folder: Path) -> str:
    """Describe an error of reading or writing.

    With the file that it names, and advice on the disk where that is full.

    Args:
        error: The error.
        name: Of the file that was to be exported.
        folder: Folder of the exported files.
    """
    reason = error.strerror or str(error)
    named = [str(path) for path in (error.filename, error.filename2) if path is not None]
    is_of_folder = not named or any(
        Path(path).absolute().is_relative_to(folder.absolute()) for path in named
    )
    if is_of_folder and error.errno in _DISK_ERRORS:
        return (
            f"{name}: {folder} cannot be written ({reason}). Make room, look at its permissions and"
            " at `ulimit -f`, or choose another --output."
        )
    where = f"{visible(' -> '.join(named), in_line=True)}: " if named else ""
    return f"{name}: it cannot be made: {where}{reason} ({type(error).__name__})."


def _publish(
    file: Path, path: Path, metadata: Metadata, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """Rename a proved file, and what was written with it, to its final name.

    Return its entry of export.json.

    Two renames are not atomic. If ONNX's external data changes, the old model is removed first, so
    that a kill leaves no model rather than one with another's weights. The entry is dropped before
    and written afterwards, so that none is another file's.
    """
    update_record(path.parent, path.name, None)
    os.umask(mask := os.umask(0))
    parts = sorted(file.parent.iterdir())
    for part in parts:
        part.chmod(0o666 & ~mask)  # safetensors writes them for the owner alone
        flush(part)
    if len(parts) > 1 or _data_path(path).exists():
        _remove(path)
    for part in sorted(parts, key=lambda part: part == file):  # the model last
        part.replace(path.with_name(part.name))
    flush(path.parent)
    data = _data_path(path)
    entry = {
        "file": path.name,
        **asdict(metadata),
        "sha256": digest(path),
        "size_bytes": sum(part.stat().st_size for part in (path, data) if part.exists()),
        "data": {"file": data.name, "sha256": digest(data)} if data.exists() else None,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **metadata.versions},
        "verified_on": {"processor": cpu_model(), "instruction_sets": instruction_sets()},
        **figures,
    }
    update_record(path.parent, path.name, entry)
    return entry


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
            f"Another export is writing to {folder}. Try again when it has"
            " ended, or choose another --output."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"--output: cannot write to {folder}: {error.strerror or error}. Choose a folder that"
            " can be written."
        ) from error
    try:
        for leftover in folder.glob(".*.aside"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def _remove(path: Path) -> bool:
    """Remove a file and its external data; return whether there was one."""
    existed = path.exists()
    path.unlink(missing_ok=True)
    _data_path(path).unlink(missing_ok=True)
    return existed


def update_record(folder: Path, name: str | None, entry: Mapping[str, Any] | None) -> None:
    """Replace a file's entry in export.json, or drop it.

    Entries of files that are gone are dropped, too. A damaged record counts as missing.
    """
    recorded = find_value(read_json(folder / RECORD), "artefacts") or {}
    entries = {
        key: value for key, value in recorded.items() if key != name and (folder / key).is_file()
    }
    if name is not None and entry is not None:
        entries[name] = dict(entry)
    if entries.keys() != recorded.keys() or entry is not None:
        write_json(folder / RECORD, {"schema": 1, "artefacts": entries})


def _data_path(path: Path) -> Path:
    return path.with_name(path.name + _DATA_SUFFIX)
