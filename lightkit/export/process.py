"""A fresh process that runs an exported file: what it is given, and what comes back."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightkit.artefacts.metadata import Metadata
from lightkit.errors import ExportError
from lightkit.export.fresh import run
from lightkit.export.parity import Arrays, Batch

__all__ = ["ALLOWED", "TIMED", "Answer", "ask", "lay_inputs"]

TIMED = (1, 32)
"""Batch sizes whose latency is told."""
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "onnx": ("onnxruntime",),
    "torch_export": ("torch",),
    "torchscript": ("torch",),
}
"""What a format may load of the packages that are watched; weights alone need the module's own code, so anything."""
_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Answer:
    """What a fresh process gave.

    Args:
        outputs: By batch size, for each batch the outputs side by side.
        latency: By batch size: ``median_s``, ``p95_s``, ``repetitions``.
        loaded: Which of the watched packages it had loaded.
    """

    outputs: Mapping[int, Sequence[Arrays]]
    latency: Mapping[int, Mapping[str, float]]
    loaded: Sequence[str]


def lay_inputs(batches: Mapping[int, Sequence[Batch]], folder: Path) -> None:
    """Write the inputs of all batches to a folder, where the processes of all formats find them."""
    for size, of_size in batches.items():
        place = folder / str(size)
        place.mkdir(parents=True)
        for index, batch in enumerate(of_size):
            named = {str(at): array for at, array in enumerate(batch.inputs)}
            np.savez(place / f"{index}.npz", allow_pickle=False, **named)


def ask(
    file: Path,
    metadata: Metadata,
    *,
    inputs: Path,
    batches: Mapping[int, Sequence[Batch]],
    plain: nn.Module,
    folder: Path,
    threads: int,
    timeout_s: float = _TIMEOUT_S,
) -> Answer:
    """Run a file in a fresh process.

    Args:
        file: The exported file.
        metadata: What it says of itself.
        inputs: Folder that `lay_inputs` filled.
        batches: The batches that were laid there.
        plain: The model, whose code a file of weights alone needs.
        folder: Private, and empty.
        threads: Of the runtime.
        timeout_s: After it the process counts as hanging.

    Raises:
        ExportError: If the file cannot be run there, or only with packages that it should not need.
    """
    (folder / "in").symlink_to(inputs.resolve(), target_is_directory=True)
    job = {
        "file": str(file.resolve()),
        "threads": threads,
        "sizes": sorted(batches),
        "timed": [size for size in TIMED if size in batches],
        "module": None,
        "path": [str(Path.cwd()), *(place for place in sys.path if place)],
        "outputs": [spec.name for spec in metadata.outputs],
    }
    if metadata.format == "safetensors":
        job["module"] = str(_emptied(plain, folder / "module.pickle").resolve())
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    _run(file.name, folder, timeout_s)
    return _answer(file.name, metadata, folder, batches)


def _answer(name: str, metadata: Metadata, folder: Path, batches: Mapping[int, Sequence[Batch]]) -> Answer:
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    needless = set(result["loaded"]) - set(ALLOWED.get(metadata.format, result["loaded"]))
    if needless:
        raise ExportError(
            f"{name}: the fresh process had loaded {', '.join(sorted(needless))}, so this does not prove that the file "
            f"runs without. Look for what imports it at Python's start: sitecustomize, or a .pth file."
        )
    outputs = {
        size: [_load(folder / "out" / str(size) / f"{index}.npz") for index in range(len(of_size))]
        for size, of_size in batches.items()
    }
    latency = {int(size): figures for size, figures in result["latency"].items()}
    return Answer(outputs, latency, result["loaded"])


def _load(file: Path) -> list[np.ndarray[Any, Any]]:
    with np.load(file, allow_pickle=False) as archive:
        return [archive[str(at)] for at in range(len(archive.files))]


def _run(name: str, folder: Path, timeout_s: float) -> None:
    words = folder / "stderr.txt"
    with words.open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, run.__file__, str(folder.resolve())],
            stdin=subprocess.PIPE,  # its other end is this process's life
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                f"{name}: the fresh process gave no answer for {timeout_s:.0f} s. {_tail(words)}"
            ) from error
        finally:
            child.kill()
            child.wait()
            assert child.stdin is not None
            child.stdin.close()
    if code != 0:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with code {code}"
        raise ExportError(f"{name} cannot be run in a fresh process, which {how}. {_tail(words)}")


def _tail(words: Path) -> str:
    """The last words of the process, in one line: of a traceback, the exception."""
    lines = [line.strip() for line in words.read_text(errors="replace").splitlines() if line.strip()]
    return f"Its last words: {lines[-1][-400:]}" if lines else "It said nothing."


def _emptied(module: nn.Module, file: Path) -> Path:
    """Pickle a module without its weights; a class of a script or a notebook goes by value, with its code."""
    cloudpickle: Any = importlib.import_module("cloudpickle")  # mlflow brings it, and it has no types
    numbers = {id(value): number for number, value in enumerate(module.state_dict(keep_vars=True).values())}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, value: object) -> object:
            if id(value) not in numbers or not isinstance(value, Tensor):
                return None
            dtype = str(value.dtype).removeprefix("torch.")
            layout = tuple(torch.empty_like(value, device="meta").stride())  # channels last: several times as fast
            kind = value.requires_grad, isinstance(value, nn.Parameter)
            return numbers[id(value)], tuple(value.shape), layout, dtype, *kind

    trainer = module.__dict__.get("_trainer")
    try:
        with file.open("wb") as target:
            if trainer is not None:
                module.__dict__["_trainer"] = None  # holds processes, loaders, and what not
            Pickler(target).dump(module)
    except OSError:
        raise
    except Exception as error:  # whatever the user's module raises when pickled
        raise ExportError(
            f"{type(module).__name__} cannot be pickled ({type(error).__name__}: {error}), so no fresh process can "
            f"fill the weights into it. Choose another --format, or keep what cannot be pickled out of the module."
        ) from error
    finally:
        if trainer is not None:
            module.__dict__["_trainer"] = trainer
    return file
