"""Import Lightning in less time.

`torchmetrics/__init__.py` (1.9) loads `scipy.signal` to give an old name back to a package for speech, and
`torchmetrics/utilities/plot.py` loads Matplotlib to decorate the functions behind `Metric.plot`. Together they take a
quarter of the time in which Lightning is imported. Here both stay away until they are used. Python's garbage collector
looks at all modules again and again while more of them come, and finds nothing: it waits until they are there.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["import_lightning", "import_torchmetrics"]

_KNOWN = "1.9."
_MATPLOTLIB, _AXES, _PYPLOT, _SIGNAL = "matplotlib", "matplotlib.axes", "matplotlib.pyplot", "scipy.signal"
_NEED_THEM = ("srmrpy", "scienceplots")  # torchmetrics imports these two, where they are, and they import the others


def import_lightning() -> None:
    """Import torch, torchmetrics and Lightning while the garbage collector waits."""
    if "pytorch_lightning" in sys.modules or not gc.isenabled():
        import_torchmetrics()
        return
    gc.disable()
    try:
        import_torchmetrics()
        importlib.import_module("lightkit.cli.lightning")
    finally:
        gc.enable()


def import_torchmetrics() -> None:
    """Import torchmetrics; its plots work as ever, and load Matplotlib when the first is drawn.

    A version of torchmetrics that is not known here is imported as it is, as is any where one of the three has been
    imported before.
    """
    if not {"torchmetrics", _MATPLOTLIB, _SIGNAL}.isdisjoint(sys.modules) or not _is_known():
        return
    with _standing_in(_stand_ins()):
        importlib.import_module("torchmetrics")
        plot = importlib.import_module("torchmetrics.utilities.plot")
    vars(plot).update(matplotlib=_Later(_MATPLOTLIB), plt=_Later(_PYPLOT))


def _is_known() -> bool:
    try:
        version = metadata.version("torchmetrics")
    except metadata.PackageNotFoundError:
        return False
    return version.startswith(_KNOWN) and not any(map(importlib.util.find_spec, _NEED_THEM))


class _Later(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def _stand_ins() -> dict[str, ModuleType]:
    """Give modules with as much in them as torchmetrics asks for while it is imported: types are `object`."""
    names: Mapping[str, Mapping[str, Any]] = {
        _SIGNAL: {"hamming": None},
        _AXES: {"Axes": object},
        _PYPLOT: {"Figure": object, "style": SimpleNamespace(context=_styled_later)},
        _MATPLOTLIB: {"__path__": [], "colors": SimpleNamespace(Colormap=object)},
    }
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        vars(module).update(names[name], __spec__=ModuleSpec(name, None))
    vars(modules[_MATPLOTLIB]).update(axes=modules[_AXES], pyplot=modules[_PYPLOT])
    return modules


def _styled_later(style: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate as `matplotlib.style.context` does, with the style looked up when the function is called."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def plotted(*args: Any, **kwargs: Any) -> Any:
            with importlib.import_module(_PYPLOT).style.context(style):
                return function(*args, **kwargs)

        return plotted

    return decorated


@contextmanager
def _standing_in(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Let imports find these modules, and afterwards the real ones again."""
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in modules.items():
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if vars(sys.modules.get(parent, ModuleType(""))).get(child) is module:
                delattr(sys.modules[parent], child)
