"""The formats of exported files: how each is opened.

Also the script of the fresh process in which a file is proved.

A new format is a module ``lightkit.export.NAME`` with a function ``write``, and an entry of
`FORMATS`. This module imports nothing of lightkit, and no runtime but that of the file: the proof
is that a file needs no more.

The script ``formats.py FILE INPUTS FOLDER THREADS [untimed]`` runs a file on the batches of
``INPUTS/SIZE-NUMBER.npz``. It writes their joined outputs into the folder, as ``SIZE.npz``, and
``result.json``: ``loaded``, those of `TRACKED_PACKAGES` that it had to load, and ``latency``, empty
if untimed. For a file of weights the folder has `MODULE_FILE`, a pickled module for them.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import struct
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Arrays = list[Any]
"""Of numpy, which is imported late: 0.1 s that commands which only ask for a file's format do not
spend."""
Runner = Callable[[Arrays], Arrays]
BATCH_SIZES = (1, 7, 32)
"""One, an odd one, and a usual one: a model that was fixed to the batch of its example differs at
one of them."""
TIMED_BATCH_SIZES = (1, 32)
TRACKED_PACKAGES = ("torch", "lightkit", "pytorch_lightning", "torchvision", "onnxruntime")
METADATA_KEY = "lightkit"
"""Key of the metadata in ONNX and safetensors files."""
METADATA_FILE = "lightkit.json"
"""Extra file with the metadata in torch's archives."""
MODULE_FILE = "module.pickle"
_MAX_HEADER_BYTES = 100_000_000  # safetensors refuses longer headers itself
_NUM_REPETITIONS = 40
_MAX_TIMING_S = 4.0
_SLOW_CALL_S = 0.5
_TIMEOUT_S = 1800  # after which the process counts as hanging


@dataclass(frozen=True)
class Format:
    """A format of exported files.

    It has either ``open`` or, if its files hold weights alone, ``load_weights``.

    Args:
        file: Name of the file in float32; its suffix is the format's.
        read_metadata: Returns the JSON text of the metadata in a file, without running anything in
            it.
        open: Returns a file as a function of arrays, for a number of threads (None: the runtime's
            default).
        load_weights: Loads the weights into a module of torch, all of them or a ``RuntimeError``.
        packages: Those of `TRACKED_PACKAGES` that may be loaded to run it; a module of weights may
            load anything.
        requires: Packages that writing it needs, of the extra ``lightkit-train[NAME]``.
        precisions: Those that its weights can have.
        runs_code: Whether opening a file can run code that is in it.
    """

    file: str
    read_metadata: Callable[[Path], str]
    open: Callable[[Path, int | None], Runner] | None = None
    load_weights: Callable[[Any, Path], object] | None = None
    packages: tuple[str, ...] = TRACKED_PACKAGES
    requires: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("float32",)
    runs_code: bool = False


def open_model(path: Path, *, threads: int | None = None) -> Runner:
    """Open an exported file that is no file of weights.

    Loading a ``.pt2`` can run code that is in it; the caller checks whether the file is trusted.

    Args:
        path: ``.onnx`` is run by onnxruntime on the CPU, ``.pt2`` and ``.ts`` by torch.
        threads: Number of threads of the runtime; the runtime's default if None.

    Returns:
        A function from the inputs, each with a batch, in the order of the metadata, to the outputs
        in that order; outputs in a mapping or a tuple are flattened.

    Raises:
        Exception: Any of its runtime, if the file is damaged or cut short.
        ImportError: If its runtime is not installed.
    """
    run = FORMATS[str(format_of(path))].open
    assert run is not None
    return run(path, threads)


def format_of(path: Path | str) -> str | None:
    """Look up the format of a file's suffix; None for a suffix of no format."""
    suffix = Path(path).suffix.lower()
    return next((name for name, each in FORMATS.items() if Path(each.file).suffix == suffix), None)


def holds_weights_alone(path: Path | str) -> bool:
    """Return whether a file, by its suffix, is an export that needs its module's code to run."""
    kind = format_of(path)
    return kind is not None and FORMATS[kind].open is None


def wrap_module(module: Callable[..., Any]) -> Runner:
    """Wrap a module of torch, which takes tensors by position, as a function of arrays."""
    import numpy as np
    import torch  # here, because ONNX files are run without it

    def run(arrays: Arrays) -> Arrays:
        with torch.no_grad():
            return to_arrays(
                module(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))
            )

    return run


def to_arrays(outputs: Any) -> Arrays:
    """Flatten outputs of torch as `flatten` does; bfloat16, which numpy lacks, becomes float32."""
    tensors = [tensor.detach().cpu() for tensor in flatten(outputs)]
    return [
        (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
        for tensor in tensors
    ]


def flatten(outputs: Any) -> list[Any]:
    """Flatten tensors in mappings, tuples and lists, in the metadata's order."""
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    if isinstance(outputs, list | tuple):
        return [leaf for output in outputs for leaf in flatten(output)]
    return [outputs]


def _open_onnx(path: Path, threads: int | None) -> Runner:
    session = _onnx_session(path, threads)
    inputs = [value.name for value in session.get_inputs()]
    return lambda arrays: list(session.run(None, dict(zip(inputs, arrays, strict=True))))


def _read_onnx_metadata(path: Path) -> str:
    return str(_onnx_session(path, None).get_modelmeta().custom_metadata_map[METADATA_KEY])


def _onnx_session(path: Path, threads: int | None) -> Any:
    import onnxruntime  # each file's own runtime, and no other

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise ValueError(f"{path}: onnxruntime cannot read it: {first_line(error)}") from error


def _open_archive(path: Path, threads: int | None) -> Runner:
    import torch  # as above

    if threads:
        torch.set_num_threads(threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.15: "torch.jit.load is deprecated"
        if path.suffix.lower() == ".pt2":
            return wrap_module(torch.export.load(str(path)).module())
        return wrap_module(torch.jit.load(str(path), map_location="cpu"))  # type: ignore[no-untyped-call]


def _read_archive_metadata(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(f"extra/{METADATA_FILE}")]
        if not names:
            raise ValueError(f"it has no extra file {METADATA_FILE}")
        return archive.read(names[0]).decode()


def _load_safetensors(module: Any, path: Path) -> object:
    from safetensors.torch import load_model  # it loads torch

    return load_model(module, path)


def _read_safetensors_metadata(path: Path) -> str:
    return str(json.loads(read_safetensors_header(path)[8:])["__metadata__"][METADATA_KEY])


def read_safetensors_header(path: Path) -> bytes:
    """Read the header of a safetensors file after its length of 8 bytes.

    Empty if there can be none.
    """
    with path.open("rb") as file:
        length = file.read(8)
        if len(length) < 8 or (num_bytes := struct.unpack("<Q", length)[0]) > _MAX_HEADER_BYTES:
            return b""
        return length + file.read(num_bytes)


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message that is not empty, else its class."""
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


FORMATS = {
    "onnx": Format(
        "model.onnx",
        _read_onnx_metadata,
        open=_open_onnx,
        packages=("onnxruntime",),
        requires=("onnx", "onnxscript", "onnxruntime"),
        precisions=("float32", "float16", "int8"),
    ),
    "torch_export": Format(
        "model.pt2", _read_archive_metadata, open=_open_archive, packages=("torch",), runs_code=True
    ),
    "torchscript": Format(
        "model.ts", _read_archive_metadata, open=_open_archive, packages=("torch",)
    ),
    "safetensors": Format(
        "model.safetensors", _read_safetensors_metadata, load_weights=_load_safetensors
    ),
}
"""By name, which is that of the module that writes the format; first those that need least to
run."""


def measure_latency(call: Callable[[], object]) -> dict[str, float]:
    """Time a call after a warm-up of two calls, or of one that takes longer than half a second.

    Returns:
        ``median_s`` and ``p95_s`` over ``repetitions`` calls: 40, or as many as start within four
        seconds of the first call of the warm-up, at least one.
    """
    import numpy as np

    begin = time.perf_counter()
    call()
    if time.perf_counter() - begin <= _SLOW_CALL_S:
        call()
    times: list[float] = []
    while not times or (
        len(times) < _NUM_REPETITIONS and time.perf_counter() - begin < _MAX_TIMING_S
    ):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    median, p95 = np.percentile(times, [50, 95])
    return {"median_s": float(median), "p95_s": float(p95), "repetitions": len(times)}


def join_batches(batches: Sequence[Arrays], size: int) -> Arrays:
    """Join outputs of batches: their rows.

    What has no row for each sample, as a parameter, gets a new dimension.
    """
    import numpy as np

    outputs = zip(*batches, strict=True)
    return [
        np.concatenate(parts) if parts[0].shape[:1] == (size,) else np.stack(parts)
        for parts in outputs
    ]


def load_arrays(file: Path) -> Arrays:
    """Load arrays, which have the names 0, 1, ..."""
    import numpy as np

    with np.load(file, allow_pickle=False) as archive:
        return [archive[str(index)] for index in range(len(archive.files))]


def save_arrays(file: Path, arrays: Sequence[Any]) -> None:
    """Save arrays."""
    import numpy as np

    np.savez(file, allow_pickle=False, **{str(index): array for index, array in enumerate(arrays)})


def _run_file(file: Path, inputs: Path, folder: Path, threads: int, *, is_timed: bool) -> None:
    format_ = FORMATS[str(format_of(file))]
    if format_.load_weights is None:
        run = open_model(file, threads=threads)
    else:
        import torch  # the runtime of this kind of file

        torch.set_num_threads(threads)
        from lightkit.lightning_namespace import install  # the user's module may import lightning

        install()
        # The finder alone is needed: `loaded` says whether the module itself imports lightkit.
        for name in [name for name in sys.modules if name.partition(".")[0] == "lightkit"]:
            del sys.modules[name]
        module = pickle.loads((folder / MODULE_FILE).read_bytes())  # noqa: S301 (of the parent process, a moment ago)
        for weight in module.state_dict().values():  # what the file lacks stays NaN
            weight.fill_(float("nan") if weight.dtype.is_floating_point else 0)
        format_.load_weights(module, file)
        run = wrap_module(module.eval())
    for size in BATCH_SIZES:
        batches = [run(load_arrays(batch)) for batch in sorted(inputs.glob(f"{size}-*.npz"))]
        save_arrays(folder / f"{size}.npz", join_batches(batches, size))
    loaded = [name for name in TRACKED_PACKAGES if name in sys.modules]
    latency = {}
    for size in TIMED_BATCH_SIZES if is_timed else ():
        latency[str(size)] = measure_latency(
            partial(run, load_arrays(inputs / f"{size}-000000.npz"))
        )
    (folder / "result.json").write_text(
        json.dumps({"loaded": loaded, "latency": latency}), encoding="utf-8"
    )


def _exit_with_parent(parent: int) -> None:
    """End this process once its parent has gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent  # whose onnx.py would hide the package onnx
    sys.path[:] = [folder for folder in sys.path if not folder or Path(folder).resolve() != here]
    signal.alarm(_TIMEOUT_S)
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    _run_file(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        int(sys.argv[4]),
        is_timed="untimed" not in sys.argv[5:],
    )
