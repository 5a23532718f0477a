"""Compiling the parts of a model in place, so that names of parameters stay, and undoing it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric

from lightkit.errors import ConfigError

__all__ = ["compile_parts", "missing_for_compiling", "refuse_without_compiler", "uncompile"]

_COMPILERS = ("g++", "clang++", "c++")


def missing_for_compiling(device: str) -> str | None:
    """Say what `torch.compile` lacks on this machine; None where it has all that it needs.

    Args:
        device: Type of the device that trains.
    """
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if device == "cpu":
        compiler = os.environ.get("CXX") or next(filter(shutil.which, _COMPILERS), None)
        if compiler is None or shutil.which(compiler) is None:
            return f"a C++ compiler ({compiler or ', '.join(_COMPILERS)} is not on the PATH)"
        return None if header.is_file() else f"Python's headers ({header} is not there)"
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "triton, which is not installed"
        compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "clang", "cc")), None)
        return None if compiler and shutil.which(compiler) else "a C compiler, which triton builds its launcher with"
    return None


def refuse_without_compiler(device: str) -> None:
    """Refuse to compile where that would fail in the first step.

    Raises:
        ConfigError: If something is missing.
    """
    if missing := missing_for_compiling(device):
        raise ConfigError(
            f"accelerator.compile: true, but torch.compile needs {missing}. Install it, or set accelerator.compile: "
            "false."
        )


def compile_parts(module: nn.Module, *, when: Callable[[], bool]) -> int:
    """Have the first-level children of a model that have parameters compiled when they are first called.

    The parts, not the model: what its steps log and count would break into pieces that cost more than they give.

    Args:
        module: The model.
        when: Tells whether a call is to be compiled.

    Returns:
        Number of these parts.
    """
    parts = [*_parts(module)]
    for part in parts:
        part.compile()
        compiled = part._compiled_call_impl
        assert callable(compiled)
        part._compiled_call_impl = _SteadyBatches(compiled, part._call_impl, when)
    return len(parts)


def uncompile(module: nn.Module) -> None:
    """Undo `compile_parts`."""
    for part in module.modules():
        if isinstance(vars(part).get("_compiled_call_impl"), _SteadyBatches):
            part._compiled_call_impl = None


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # these are never called themselves
            yield from _parts(child)
        elif not isinstance(child, Metric) and any(True for _ in child.parameters()):
            yield child


class _SteadyBatches:
    """A compiled call for the usual size of batch, and the plain one for what is smaller.

    The last batch of an epoch would be compiled once more, for tens of seconds, or have all batches use a slower
    program for any size.
    """

    def __init__(self, compiled: Callable[..., Any], plain: Callable[..., Any], when: Callable[[], bool]) -> None:
        self._compiled, self._plain, self._when = compiled, plain, when
        self._largest = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._when():
            return self._plain(*args, **kwargs)
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.dim()]
        size = tensors[0].shape[0] if tensors else self._largest
        if size < self._largest:
            return self._plain(*args, **kwargs)
        self._largest = size
        return self._compiled(*args, **kwargs)
