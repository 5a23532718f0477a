"""Stand-ins for packages of which torchmetrics takes a name or two while it is imported.

Lightning imports torchmetrics, and torchmetrics 1.9 imports three packages wherever they are
installed, a third of the time between torch and the first step:

- `scipy.signal`, with SciPy's statistics, interpolation and optimization, to give it the old name
  `hamming`, for a package of one metric of audio;
- Matplotlib, for the annotations of its `plot` methods;
- transformers, for two classes that metrics of texts use.

A training uses none of that before it has ended, and most use none of it at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_NEEDS_OLD_NAME = "gammatone"
"""Package without which torchmetrics has no metric that uses `scipy.signal.hamming`."""
_FORWARDED = ("__all__", "__version__")
"""Names with underscores that mean the real module; `inspect` asks each module for others."""


class _Late:
    """Stands for a class of a module that is imported when the class is used.

    Args:
        load: Returns the class.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # typing asks each annotation for some
            raise AttributeError(name)
        return getattr(self._load(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._load()(*args, **kwargs)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._load())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._load())

    def __or__(self, other: Any) -> Any:
        return self._load() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._load()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._load(),)  # a class that is derived from it has the real one as its base


class _LateContext(_Late):
    """Stands for a context manager; as a decorator of a function it is loaded with a call of it."""

    @contextmanager
    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with self._load()(*args, **kwargs) as value:
            yield value


def _use_hamming(_load: Callable[[], Any]) -> Any:
    """Return a function for the old name, which SciPy itself has no more."""
    return _Late(lambda: import_module("scipy.signal.windows").hamming)


_Names = Mapping[str, Mapping[str, Callable[[Callable[[], Any]], Any]]]

_SCIPY_SIGNAL: _Names = {"scipy.signal": {"hamming": _use_hamming}}
_MATPLOTLIB: _Names = {
    "matplotlib": {},
    "matplotlib.axes": {"Axes": _Late},
    "matplotlib.colors": {"Colormap": _Late},
    "matplotlib.style": {"context": _LateContext},
    "matplotlib.pyplot": {"Figure": _Late},
}
_TRANSFORMERS: _Names = {"transformers": {"AutoModel": _Late, "AutoTokenizer": _Late}}
"""By the modules of a package the names that torchmetrics takes, and what stands for each.

A module comes after its parent.
"""


@contextmanager
def deferring_imports() -> Iterator[None]:
    """Have torchmetrics, where this block imports it, import the packages when they are used.

    No other module gets a stand-in: not those of the user's that the block imports.
    """
    finder = _TorchmetricsFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _TorchmetricsFinder:
    """Finds torchmetrics once, and replaces the packages while it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how torchmetrics is loaded; None for all others."""
        if name != "torchmetrics":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_with_stand_ins(module: ModuleType) -> None:
            del loader.exec_module
            with replacing_packages():
                execute(module)

        loader.exec_module = execute_with_stand_ins
        return spec


@contextmanager
def replacing_packages() -> Iterator[None]:
    """Replace `scipy.signal`, Matplotlib and transformers by stand-ins in this block.

    After it they are imported as ever. The stand-ins have the names that torchmetrics takes. Any
    other name, and so `from scipy.signal import hilbert` in a package that torchmetrics imports,
    imports the real module and comes from there.
    """
    with ExitStack() as stack:
        for modules in (_SCIPY_SIGNAL, _MATPLOTLIB, _TRANSFORMERS):
            if _can_stand_in(modules):
                stack.enter_context(_standing_in(modules))
        yield


def _can_stand_in(modules: _Names) -> bool:
    """Return whether a package is installed, and neither imported nor needed at once."""
    first = next(iter(modules))
    top = first.partition(".")[0]
    if any(name in sys.modules for name in modules) or find_spec(top) is None:
        return False
    needs_real = modules is _SCIPY_SIGNAL and find_spec(_NEEDS_OLD_NAME) is not None
    return not needs_real and find_spec(first) is not None


@contextmanager
def _standing_in(modules: _Names) -> Iterator[None]:
    """Put stand-ins for the modules of a package into their place in this block."""
    stand_ins: dict[str, ModuleType] = {}
    remove = partial(_remove, stand_ins)
    for name, names in modules.items():
        spec = find_spec(name)
        if spec is None:  # another version of the package
            continue
        stand_in = module_from_spec(spec)
        find = partial(_find, remove, name)
        stands = {each: make(partial(find, each)) for each, make in names.items()}
        vars(stand_in).update(stands, __getattr__=find)
        parent = stand_ins.get(name.rpartition(".")[0])
        if parent is not None:
            setattr(parent, name.rpartition(".")[2], stand_in)
        stand_ins[name] = stand_in
        sys.modules[name] = stand_in
    pyplot = stand_ins.get("matplotlib.pyplot")
    style = stand_ins.get("matplotlib.style")
    if pyplot is not None and style is not None:
        vars(pyplot).update(style=style)
    finder = _ChildFinder(stand_ins, remove)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        remove()
        sys.meta_path.remove(finder)


def _remove(stand_ins: Mapping[str, ModuleType]) -> None:
    for name, stand_in in stand_ins.items():
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]


class _ChildFinder:
    """Finds the modules in a package that has a stand-in: the real package is imported first.

    Args:
        stand_ins: The stand-ins, by the name of the module.
        remove: Removes them.
    """

    def __init__(self, stand_ins: Mapping[str, ModuleType], remove: Callable[[], None]) -> None:
        self._stand_ins = stand_ins
        self._remove = remove

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is loaded that its package has imported; None for all others."""
        parent = name.rpartition(".")[0]
        stand_in = self._stand_ins.get(parent)
        if stand_in is None or sys.modules.get(parent) is not stand_in:
            return None
        self._remove()
        import_module(parent)
        # out of its place: Python executes a module again that is there when its finder returns
        module = sys.modules.pop(name, None)
        if module is None:
            return None
        loader: Any = _Loaded(module)
        return ModuleSpec(name, loader)


class _Loaded:
    """Loads a module that has been imported already.

    Args:
        module: The module.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Put back the specification that the import system has just set."""
        module.__spec__ = self._spec


def _find(remove: partial[None], module: str, name: str) -> Any:
    """Return a name of the real module, which takes the place of its stand-in.

    Raises:
        AttributeError: If it has none of this name.
    """
    if name.startswith("__") and name not in _FORWARDED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    remove()
    real = import_module(module)
    if name == "__all__":  # else `import *` would take the names of the stand-in
        return getattr(real, name, [each for each in vars(real) if not each.startswith("_")])
    return getattr(real, name)
