"""The program of a fresh process: it runs one exported file on given inputs, and tells what it had to load.

It is started as a script with one argument, a private folder. That holds ``job.json``::

    file      the exported file
    threads   number of threads
    sizes     batch sizes; the inputs of batch I of size N are in ``in/N/I.npz``, with the names 0, 1, ...
    timed     batch sizes whose first batch is timed
    module    where the file holds weights only: a pickled module whose weights are to be filled in
    path      what is put on the import path for the module's classes

and gets ``out/N/I.npz`` with the outputs and ``result.json``. Nothing of lightkit is imported here, and the file beside
is loaded by its path, so that no folder of the package is on the import path.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

WATCHED = ("torch", "lightkit", "pytorch_lightning", "torchvision", "onnxruntime")
_NUM_REPETITIONS = 40
_LONGEST_S = 4.0
_SLOW_S = 0.5


def measure(call: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Time a call after a warm-up of two calls, or of one that takes longer than half a second.

    Args:
        call: What is timed.
        clock: Gives the time in seconds.

    Returns:
        ``median_s`` and ``p95_s`` over ``repetitions`` calls: 40, or as many as start within four seconds of the first
        call of the warm-up, at least one.
    """
    begin = clock()
    call()
    if clock() - begin <= _SLOW_S:
        call()
    times: list[float] = []
    while not times or (len(times) < _NUM_REPETITIONS and clock() - begin < _LONGEST_S):
        start = clock()
        call()
        times.append(clock() - start)
    median, p95 = np.percentile(times, [50, 95])
    return {"median_s": float(median), "p95_s": float(p95), "repetitions": len(times)}


def main(folder: Path) -> None:
    """Do the job in a folder."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    run = _runner(job)
    for size in job["sizes"]:
        _run_all(run, folder / "in" / str(size), folder / "out" / str(size))
    loaded = [name for name in WATCHED if name in sys.modules]
    latency = {str(size): _timed(run, folder / "in" / str(size)) for size in job["timed"]}
    result = {"loaded": loaded, "latency": latency}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


def _timed(run: Any, folder: Path) -> dict[str, float]:
    inputs = _load(folder / "0.npz")
    return measure(lambda: run(inputs))


def _run_all(run: Any, source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for index in range(len(list(source.glob("*.npz")))):
        outputs = run(_load(source / f"{index}.npz"))
        np.savez(target / f"{index}.npz", **{str(at): output for at, output in enumerate(outputs)})


def _load(file: Path) -> list[np.ndarray[Any, Any]]:
    with np.load(file, allow_pickle=False) as archive:
        return [archive[str(at)] for at in range(len(archive.files))]


def _runner(job: Mapping[str, Any]) -> Any:
    runtimes = _sibling("runtimes")
    if job["module"] is None:
        return runtimes.open_model(job["file"], threads=job["threads"])
    return runtimes.of_module(_poured(job), job["outputs"])


def _poured(job: Mapping[str, Any]) -> Any:
    """A module whose weights are those of a safetensors file, and nothing else: what it lacks stays NaN."""
    sys.path[:0] = [place for place in job["path"] if place not in sys.path]
    import torch  # the runtime of this kind of file
    from safetensors.torch import load_model

    class Unpickler(pickle.Unpickler):
        def __init__(self, file: Any) -> None:
            super().__init__(file)
            self._made: dict[int, Any] = {}

        def persistent_load(self, number: Any) -> Any:
            key, shape, layout, dtype, grad, is_parameter = number
            if key not in self._made:
                empty = torch.empty_strided(shape, layout, dtype=getattr(torch, dtype))
                empty.fill_(float("nan") if empty.is_floating_point() else 0)
                self._made[key] = torch.nn.Parameter(empty, requires_grad=grad) if is_parameter else empty
            return self._made[key]

    torch.set_num_threads(job["threads"])
    with Path(job["module"]).open("rb") as file:
        module = Unpickler(file).load()  # written by the process that started this one, a moment ago
    load_model(module, job["file"], strict=True)
    return module.eval()


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"_lightkit_{name}", Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing beside {__file__}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _end_with_parent() -> None:
    """End when the process that holds the other end of standard input is gone, however it went."""
    while os.read(0, 1):  # not sys.stdin, whose lock a thread must not hold when the interpreter ends
        pass
    os._exit(1)


if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if not place or str(Path(place).resolve()) != here]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(Path(sys.argv[1]))
