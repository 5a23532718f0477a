"""An exported file as a function of arrays, with numpy and the one runtime that it needs.

Apart from the rest of the room, because a process that has never heard of lightkit loads this file by itself.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Arrays", "Runner", "flatten", "of_module", "open_model"]

Arrays = list[np.ndarray[Any, Any]]
Runner = Callable[[Arrays], Arrays]
_KEY = "lightkit"
_EXTRA = "lightkit.json"


def open_model(path: Path | str, *, threads: int | None = None) -> Runner:
    """Open an exported file.

    Loading a ``.pt2`` can run code that is in it; whether it is trusted is for the caller to check.

    Args:
        path: ``.onnx`` is run by onnxruntime on the CPU, ``.pt2`` and ``.ts`` by torch.
        threads: Number of threads of the runtime; its own choice if None.

    Returns:
        A function from the inputs, each with a batch, in the order of the metadata, to the outputs in that order;
        outputs in a mapping or a tuple are laid side by side.

    Raises:
        ValueError: If the file is damaged, cut short or of no format that is known here. In words.
        ImportError: If its runtime is not installed.
    """
    path = Path(path)
    openers = {".onnx": _open_onnx, ".pt2": _open_torch_export, ".ts": _open_torchscript}
    if path.suffix.lower() not in openers:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(openers)}")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    return openers[path.suffix.lower()](path, threads)


def of_module(module: Callable[..., Any], names: Sequence[str] = ()) -> Runner:
    """Give a module of torch as a function of arrays.

    Args:
        module: Takes tensors by position.
        names: Of the outputs, in the order that is wanted, where it gives a mapping.
    """
    import torch  # here, because files of ONNX are run without it

    def run(arrays: Arrays) -> Arrays:
        with torch.no_grad():
            outputs = module(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))
        return [_array(output) for output in flatten(outputs, names)]

    return run


def flatten(outputs: Any, names: Sequence[str] = ()) -> list[Any]:
    """Lay tensors in mappings, tuples and lists side by side; those of a mapping in the order of ``names``."""
    if isinstance(outputs, Mapping):
        keys = list(names) if set(names) == set(outputs) else list(outputs)
        return [leaf for key in keys for leaf in flatten(outputs[key])]
    if isinstance(outputs, list | tuple):
        return [leaf for output in outputs for leaf in flatten(output)]
    return [outputs]


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu()
    known: np.ndarray[Any, Any] = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return known


def _open_onnx(path: Path, threads: int | None) -> Runner:
    import onnxruntime  # each file's own runtime, and no other

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        raise ValueError(f"{path}: onnxruntime cannot read it: {_first_line(error)}") from error
    inputs, outputs = (_names(session.get_modelmeta().custom_metadata_map.get(_KEY), way) for way in _WAYS)
    feeds = _ordered(inputs, [value.name for value in session.get_inputs()])
    fetches = _ordered(outputs, [value.name for value in session.get_outputs()])

    def run(arrays: Arrays) -> Arrays:
        _check_count(path, arrays, feeds)
        return list(session.run(fetches, dict(zip(feeds, arrays, strict=True))))

    return run


def _open_torch_export(path: Path, threads: int | None) -> Runner:
    import torch  # as above

    extra = {_EXTRA: ""}
    _set_threads(threads)
    try:
        module = torch.export.load(str(path), extra_files=extra).module()
    except Exception as error:  # whatever the reader of a damaged archive raises
        raise ValueError(f"{path}: torch.export cannot read it: {_first_line(error)}") from error
    return _checked(path, module, extra[_EXTRA])


def _open_torchscript(path: Path, threads: int | None) -> Runner:
    import torch  # as above

    extra = {_EXTRA: ""}
    _set_threads(threads)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.15: "torch.jit.load is deprecated"
            module = torch.jit.load(str(path), map_location="cpu", _extra_files=extra)  # type: ignore[no-untyped-call]
    except Exception as error:  # as above
        raise ValueError(f"{path}: TorchScript cannot read it: {_first_line(error)}") from error
    return _checked(path, module, extra[_EXTRA])


def _checked(path: Path, module: Callable[..., Any], metadata: str | bytes) -> Runner:
    """The module, with a plain word about a wrong number of inputs."""
    inputs, outputs = (_names(metadata, way) for way in _WAYS)
    run = of_module(module, outputs)

    def checked(arrays: Arrays) -> Arrays:
        if inputs:
            _check_count(path, arrays, inputs)
        return run(arrays)

    return checked


_WAYS = ("inputs", "outputs")


def _names(metadata: str | bytes | None, way: str) -> list[str]:
    """The names of inputs or outputs in the metadata; none where the file is not of lightkit."""
    try:
        return [str(spec["name"]) for spec in json.loads(metadata or "{}").get(way, [])]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def _ordered(wanted: list[str], there: list[str]) -> list[str]:
    return wanted if sorted(wanted) == sorted(there) else there


def _check_count(path: Path, arrays: Arrays, names: Sequence[str]) -> None:
    if len(arrays) != len(names):
        raise ValueError(f"{path}: expected {len(names)} inputs ({', '.join(names)}), got {len(arrays)}")


def _set_threads(threads: int | None) -> None:
    if threads:
        import torch  # as above

        torch.set_num_threads(threads)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
