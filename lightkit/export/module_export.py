"""Export by hooks of the module itself: `export_model` writes, `check_export` proves.

They make formats that lightkit does not know, of models whose ``forward`` takes or returns what it
cannot compare. Each file has an entry of ``export.json`` with the fields of
`lightkit.export.exporter`, of which those that belong to lightkit's own proof are empty, and with
``checked``: what the module's own test has returned.
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pytorch_lightning import LightningModule
from torch import Tensor

from lightkit.errors import ConfigError, ExportError, LightkitError, visible
from lightkit.export.exporter import lock_folder, update_record
from lightkit.export.metadata import Metadata, installed_versions
from lightkit.export.options import MODULE_FORMAT, describe_missing_hooks
from lightkit.hardware.processor import cpu_model, instruction_sets
from lightkit.runs.checkpoints import digest
from lightkit.runs.files import finite, flush

_log = logging.getLogger("lightkit")


def require_hooks(module: LightningModule, formats: Sequence[str]) -> None:
    """Refuse formats of the module's own where it has no hooks for them.

    Raises:
        ConfigError: If one of the two methods is missing.
    """
    missing = describe_missing_hooks(type(module), formats)
    if missing is not None:
        raise ConfigError(f"--format {missing}")


def export_by_module(
    module: LightningModule,
    folder: Path,
    formats: Sequence[str],
    *,
    source: Mapping[str, str],
    class_names: Sequence[str] | None,
    on_step: Callable[[str], None] = lambda _: None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Export a module to formats of its own.

    Each in a folder of its name, which it gets once the module's test passes.

    As for `export`, an earlier export stays until the new one is proved, and goes where the new one
    differs.

    Args:
        module: In eval mode, on the CPU, with its weights and its trainer, which has the data.
        folder: Of the run's exports; created if missing.
        formats: Names that `export_model` gets.
        source: Origin of the weights.
        class_names: Names of the classes that the weights were trained for.
        on_step: Called with a line at each step.

    Returns:
        The files' entries of export.json, and why each other format could not be made, or differs
        from the model.

    Raises:
        ConfigError: If the folder cannot be written.
        RunLocked: If another export holds the folder.
    """
    entries: list[dict[str, Any]] = []
    failures = []
    with lock_folder(folder):
        for name in formats:
            on_step(f"{name}/: writing and proving")
            try:
                entries += _export_format(
                    module, folder, name, source=source, class_names=class_names
                )
            except _Differs as error:
                _drop(folder, name)
                failures.append(f"{error} The files were removed.")
            except LightkitError as error:
                failures.append(str(error))
            else:
                on_step(f"{name}/: proved")
    return entries, failures


class _Differs(ExportError):
    """The module's own test says that the files are not its model."""


def _export_format(
    module: LightningModule,
    folder: Path,
    name: str,
    *,
    source: Mapping[str, str],
    class_names: Sequence[str] | None,
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(
        prefix=".", suffix=".aside", dir=folder, ignore_cleanup_errors=True
    ) as aside:
        written = Path(aside, name)
        written.mkdir()
        _call_hook(module, "export_model", written, name)
        files = sorted(
            path for path in written.rglob("*") if path.is_file() and not path.is_symlink()
        )
        if not files:
            raise ExportError(
                f"{name}/: {type(module).__name__}.export_model has written no file. Expected at"
                f" least one in the folder that it is given, or an error for a format {name!r} that"
                " it does not know."
            )
        checked = _call_hook(module, "check_export", written, name)
        if checked is False:
            raise _Differs(f"{name}/: {type(module).__name__}.check_export returned False.")
        common = _describe(module, name, source=source, class_names=class_names, checked=checked)
        entries = []
        for path in files:
            flush(path)
            own = {"sha256": digest(path), "size_bytes": path.stat().st_size}
            entries.append(
                {"file": f"{name}/{path.relative_to(written).as_posix()}", **common, **own}
            )
        _drop(folder, name)
        written.replace(folder / name)
    flush(folder)
    for entry in entries:
        update_record(folder, entry["file"], entry)
    return entries


def _call_hook(module: LightningModule, hook: str, folder: Path, name: str) -> Any:
    """Call a hook of the module, with its error as one line.

    Raises:
        ExportError: If it fails; of `check_export`, the files differ from the model.
    """
    try:
        return getattr(module, hook)(folder, name)
    except LightkitError:
        raise
    except Exception as error:  # the user's
        _log.debug("%s", name, exc_info=True)
        text = visible(str(error).strip()) or "no message"
        kind = _Differs if hook == "check_export" else ExportError
        where = f"{type(module).__name__}.{hook}"
        raise kind(
            f"{name}/: {where} failed: {type(error).__name__}: {text.rstrip('.')}."
        ) from error


def _describe(
    module: LightningModule,
    name: str,
    *,
    source: Mapping[str, str],
    class_names: Sequence[str] | None,
    checked: Any,
) -> dict[str, Any]:
    """Return the fields of the entry that all files of a format have."""
    metadata = Metadata(
        format=f"{MODULE_FORMAT}{name}",
        model=f"{type(module).__module__}.{type(module).__qualname__}",
        inputs=(),
        outputs=(),
        class_names=None if class_names is None else tuple(map(str, class_names)),
        source=dict(source),
        how=f"{type(module).__name__}.export_model",
    )
    figures = (
        {str(key): _to_plain(value) for key, value in checked.items()}
        if isinstance(checked, Mapping)
        else {}
    )
    reason = f"{type(module).__name__}.check_export is its proof"
    return {
        **{key: value for key, value in metadata.as_dict().items() if key != "schema"},
        "precision": None,
        "data": None,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **installed_versions()},
        "verified_on": {"processor": cpu_model(), "instruction_sets": instruction_sets()},
        "samples": None,
        "parity": {},
        "metrics": {"scored": False, "reason": reason},
        "latency": None,
        "checked": finite(figures),
    }


def _to_plain(value: Any) -> Any:
    """Return a figure of the module's test as JSON takes it.

    A tensor of one number as that, an object as its text.
    """
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        return value.item()
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


def _drop(folder: Path, name: str) -> None:
    """Remove an earlier export of a format, with its entries."""
    path = folder / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    update_record(folder, None, None)
