"""An exported file as a function of arrays, and the script of the fresh process that runs it for the proof.

The script has one argument, a private folder with ``job.json``::

    file      the exported file
    threads   number of threads
    inputs    folder with the inputs of batch I of size N in ``N/I.npz``, with the names 0, 1, ...
    sizes     batch sizes
    timed     batch sizes whose first batch is timed
    outputs   names of the outputs
    module    for a file of weights: a pickled module to load them into, else null
    path      added to the import path, for the module's classes

It writes ``out/N/I.npz`` with the outputs, and ``result.json``. This module imports numpy and the file's own runtime
only, nothing of lightkit: the proof is that a file needs no more.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Arrays = list[np.ndarray[Any, Any]]
Runner = Callable[[Arrays], Arrays]
TRACKED_PACKAGES = ("torch", "lightkit", "pytorch_lightning", "torchvision", "onnxruntime")
_EXTRA_FILE = "lightkit.json"
_NUM_REPETITIONS = 40
_MAX_TIMING_S = 4.0
_SLOW_CALL_S = 0.5


def open_model(path: Path | str, *, threads: int | None = None) -> Runner:
    """Open an exported file.

    Loading a ``.pt2`` can run code that is in it; the caller checks whether the file is trusted.

    Args:
        path: ``.onnx`` is run by onnxruntime on the CPU, ``.pt2`` and ``.ts`` by torch.
        threads: Number of threads of the runtime; the runtime's default if None.

    Returns:
        A function from the inputs, each with a batch, in the order of the metadata, to the outputs in that order;
        outputs in a mapping or a tuple are flattened.

    Raises:
        ValueError: If the file is damaged, cut short or of an unknown format; with a message for users.
        ImportError: If its runtime is not installed.
    """
    path = Path(path)
    openers = {".onnx": _open_onnx, ".pt2": _open_torch, ".ts": _open_torch}
    if path.suffix.lower() not in openers:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(openers)}")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    return openers[path.suffix.lower()](path, threads)


def wrap_module(module: Callable[..., Any], names: Sequence[str] = ()) -> Runner:
    """Wrap a module of torch as a function of arrays.

    Args:
        module: Takes tensors by position.
        names: Order of the outputs of a mapping.
    """
    import torch  # here, because ONNX files are run without it

    def run(arrays: Arrays) -> Arrays:
        with torch.no_grad():
            outputs = module(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))
        tensors = (tensor.detach().cpu() for tensor in flatten(outputs, names))
        return [(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for tensor in tensors]

    return run


def flatten(outputs: Any, names: Sequence[str] = ()) -> list[Any]:
    """Flatten tensors in mappings, tuples and lists; those of a mapping in the order of ``names``."""
    if isinstance(outputs, Mapping):
        keys = list(names) if set(names) == set(outputs) else list(outputs)
        return [leaf for key in keys for leaf in flatten(outputs[key])]
    if isinstance(outputs, list | tuple):
        return [leaf for output in outputs for leaf in flatten(output)]
    return [outputs]


def _open_onnx(path: Path, threads: int | None) -> Runner:
    import onnxruntime  # each file's own runtime, and no other

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise ValueError(f"{path}: onnxruntime cannot read it: {_first_line(error)}") from error
    inputs = [value.name for value in session.get_inputs()]

    def run(arrays: Arrays) -> Arrays:
        _check_count(path, arrays, inputs)
        return list(session.run(None, dict(zip(inputs, arrays, strict=True))))

    return run


def _open_torch(path: Path, threads: int | None) -> Runner:
    import torch  # as above

    if threads:
        torch.set_num_threads(threads)
    extra: dict[str, Any] = {_EXTRA_FILE: ""}
    is_graph = path.suffix.lower() == ".pt2"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.15: "torch.jit.load is deprecated"
            if is_graph:
                module = torch.export.load(str(path), extra_files=extra).module()
            else:
                module = torch.jit.load(str(path), map_location="cpu", _extra_files=extra)  # type: ignore[no-untyped-call]
    except Exception as error:  # the readers raise anything for a damaged archive
        reader = "torch.export" if is_graph else "TorchScript"
        raise ValueError(f"{path}: {reader} cannot read it: {_first_line(error)}") from error
    inputs = _read_names(extra[_EXTRA_FILE], "inputs")
    run = wrap_module(module, _read_names(extra[_EXTRA_FILE], "outputs"))

    def run_checked(arrays: Arrays) -> Arrays:
        if inputs:
            _check_count(path, arrays, inputs)
        return run(arrays)

    return run_checked


def _read_names(metadata: str | bytes | None, key: str) -> list[str]:
    """Read the names of inputs or outputs; empty for a file that is not of lightkit."""
    try:
        return [str(spec["name"]) for spec in json.loads(metadata or "{}").get(key, [])]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def _check_count(path: Path, arrays: Arrays, names: Sequence[str]) -> None:
    if len(arrays) != len(names):
        raise ValueError(f"{path}: expected {len(names)} inputs ({', '.join(names)}), got {len(arrays)}")


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def measure_latency(call: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Time a call after a warm-up of two calls, or of one that takes longer than half a second.

    Args:
        call: The call.
        clock: Returns the time in seconds.

    Returns:
        ``median_s`` and ``p95_s`` over ``repetitions`` calls: 40, or as many as start within four seconds of the first
        call of the warm-up, at least one.
    """
    begin = clock()
    call()
    if clock() - begin <= _SLOW_CALL_S:
        call()
    times: list[float] = []
    while not times or (len(times) < _NUM_REPETITIONS and clock() - begin < _MAX_TIMING_S):
        start = clock()
        call()
        times.append(clock() - start)
    median, p95 = np.percentile(times, [50, 95])
    return {"median_s": float(median), "p95_s": float(p95), "repetitions": len(times)}


def load_arrays(file: Path) -> Arrays:
    """Load the arrays of one batch, which have the names 0, 1, ..."""
    with np.load(file, allow_pickle=False) as archive:
        return [archive[str(index)] for index in range(len(archive.files))]


def save_arrays(file: Path, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Save the arrays of one batch."""
    np.savez(file, allow_pickle=False, **{str(index): array for index, array in enumerate(arrays)})


def _run_job(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    if job["module"] is None:
        run = open_model(job["file"], threads=job["threads"])
    else:
        run = wrap_module(_load_weights(job), job["outputs"])
    inputs = Path(job["inputs"])
    for size in map(str, job["sizes"]):
        (folder / "out" / size).mkdir(parents=True)
        for file in (inputs / size).glob("*.npz"):
            save_arrays(folder / "out" / size / file.name, run(load_arrays(file)))
    loaded = [name for name in TRACKED_PACKAGES if name in sys.modules]
    latency = {}
    for size in job["timed"]:
        arrays = load_arrays(inputs / str(size) / "0.npz")
        latency[str(size)] = measure_latency(lambda arrays=arrays: run(arrays))  # type: ignore[misc]
    (folder / "result.json").write_text(json.dumps({"loaded": loaded, "latency": latency}), encoding="utf-8")


def _load_weights(job: Mapping[str, Any]) -> Any:
    """Load a safetensors file into the pickled module; a weight that the file lacks stays NaN."""
    sys.path[:0] = [folder for folder in job["path"] if folder not in sys.path]
    import torch  # the runtime of this kind of file
    from safetensors.torch import load_model

    torch.set_num_threads(job["threads"])
    with Path(job["module"]).open("rb") as file:
        module = pickle.load(file)  # noqa: S301 (written by the parent process a moment ago)
    load_model(module, job["file"], strict=True)
    return module.eval()


def _exit_with_parent() -> None:
    """End this process when the parent, which holds the other end of standard input, is gone."""
    while os.read(0, 1):  # not sys.stdin, whose lock a thread must not hold when the interpreter ends
        pass
    os._exit(1)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent  # whose onnx.py would hide the package onnx
    sys.path[:] = [folder for folder in sys.path if not folder or Path(folder).resolve() != here]
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _run_job(Path(sys.argv[1]))
