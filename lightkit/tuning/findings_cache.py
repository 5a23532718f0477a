"""What was measured of a model on a machine, kept below the folder of runs so that it is not measured again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from lightkit.hardware.cores import threads_as_set
from lightkit.hardware.gpus import visible_gpus
from lightkit.hardware.packages import describe_packages
from lightkit.hardware.processor import cpu_model, instruction_sets, num_cores
from lightkit.version import __version__

__all__ = ["key_of", "name_of", "read", "read_all", "write"]

_FOLDER = ".tuning"
_FORMAT = 5
_PACKAGES = ("torch", "torchvision", "pytorch-lightning", "timm")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def key_of(parts: Mapping[str, Any]) -> str:
    """Give a digest of what findings are for.

    Args:
        parts: Plain values that decide how fast the model trains: its class, code and arguments, the
            optimizer, the batch, what is fixed, the trainer's values of a step. The machine, the threads
            that the user's environment asks for, and the versions are added. A function or a class counts by its name.

    Raises:
        ValueError: If a value has no name and no text that another process would give it too.
    """
    gpus = visible_gpus(os.environ).visible
    machine = {
        "cpu": cpu_model(),
        "cores": num_cores(),
        "instruction_sets": instruction_sets(),
        "gpus": None if gpus is None else [[gpu.name, gpu.memory_bytes] for gpu in gpus],
        "threads": threads_as_set(),
    }
    versions = {"lightkit": __version__, "python": sys.version.split()[0], **describe_packages(_PACKAGES)}
    text = json.dumps(_plain([_FORMAT, parts, machine, versions]))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """Give what JSON knows, a mapping as pairs: its keys may be of kinds that cannot be sorted, or that JSON lacks."""
    if isinstance(value, Mapping):
        pairs = ([_plain(key), _plain(each)] for key, each in value.items())
        return {"pairs": sorted(pairs, key=lambda pair: json.dumps(pair[0]))}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, float, type(None))) else _text_of(value)


def _text_of(value: Any) -> str:
    """Give a text for a value that JSON does not know, the same in each process."""
    name, owner = getattr(value, "__qualname__", None), getattr(value, "__self__", None)
    if name is not None and "<" not in name and isinstance(owner, (type, ModuleType, type(None))):
        return f"{value.__module__}.{name}"
    text = str(value)
    if _ADDRESS.search(text):
        raise ValueError(f"{text} says no more than where it is in memory")
    return text


def name_of(search: str, key: str, *more: Any) -> str:
    """Give the name of a file of findings.

    Args:
        search: What was looked for.
        key: What `key_of` gives.
        more: Plain values that tell apart what was found for the same.
    """
    digest = hashlib.sha256(json.dumps(more, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"{search}-{key}-{digest}" if more else f"{search}-{key}"


def read(root: Path, name: str) -> dict[str, Any] | None:
    """Give what was found before; None where there is nothing, or nothing that can be read.

    Args:
        root: Folder of runs.
        name: What `name_of` gives.
    """
    return _content(root / _FOLDER / f"{name}.json")


def read_all(root: Path, start: str) -> list[dict[str, Any]]:
    """Give all that was found before under names with this start, newest first.

    Args:
        root: Folder of runs.
        start: Of the names.
    """
    files = sorted((root / _FOLDER).glob(f"{start}*.json"), key=_written_at, reverse=True)
    return [content for file in files if (content := _content(file)) is not None]


def _written_at(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # gone meanwhile
        return 0


def _content(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # ValueError: cut off
        return None
    return content if isinstance(content, dict) else None


def write(root: Path, name: str, content: Mapping[str, Any]) -> Path:
    """Keep findings; of two processes that do so at once, the last one wins.

    Args:
        root: Folder of runs.
        name: What `name_of` gives.
        content: What was found, as JSON can hold it.

    Returns:
        The file.
    """
    folder = root / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.json"
    descriptor, aside = tempfile.mkstemp(dir=folder, prefix=f".{name}-", suffix=".aside")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        Path(aside).chmod(0o644)
        Path(aside).replace(target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return target
