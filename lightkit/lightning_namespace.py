"""Answer `import lightning` with the modules of `pytorch_lightning` and `lightning_fabric`.

Lightning is published twice: as `lightning`, which its documentation imports, and as
`pytorch_lightning` with `lightning_fabric`, which lightkit imports. The two copies are the same
code, but their classes are different objects: a `lightning.LightningModule` is no
`pytorch_lightning.LightningModule`, and a Trainer of one refuses the other. With this finder there
is one copy: the names of `lightning` lead to the modules that lightkit uses, whether or not the
package `lightning` is installed.

It can go when Lightning publishes one package, or makes one name an alias of the other.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from lightkit.errors import ConfigError

_TOP = "lightning"
_REAL = {"lightning.pytorch": "pytorch_lightning", "lightning.fabric": "lightning_fabric"}
_EXPORTS = {
    "pytorch_lightning": (
        "Callback",
        "LightningDataModule",
        "LightningModule",
        "Trainer",
        "__version__",
    ),
    "lightning_fabric": ("Fabric", "seed_everything"),
}
"""Names that `lightning/__init__.py` of version 2.6 imports, by the module that has them here."""


def real_name(name: str) -> str:
    """Return the path of a module or class with its real package in the place of `lightning`.

    Args:
        name: Dotted path, such as `lightning.pytorch.callbacks.EarlyStopping`; any other name is
            returned as it is.
    """
    for alias, real in _REAL.items():
        if name == alias or name.startswith(f"{alias}."):
            return real + name[len(alias) :]
    for package, exports in _EXPORTS.items():
        if name.removeprefix(f"{_TOP}.") in exports and name.startswith(f"{_TOP}."):
            return f"{package}.{name.removeprefix(f'{_TOP}.')}"
    return name


def install() -> None:
    """Answer imports of `lightning` from here on. A second call does nothing.

    Raises:
        ConfigError: If the package `lightning` itself has been imported already.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if _TOP in sys.modules:
        raise ConfigError(
            "the package lightning was imported before lightkit, so that its classes are not those"
            " that lightkit trains. Import lightkit first: put `from lightkit import LightkitCLI`"
            " above `import lightning`."
        )
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds `lightning`, `lightning.pytorch` and `lightning.fabric`, and all modules below them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of `lightning` is loaded.

        None for a module that there is not, and for all others.
        """
        loader: Any
        if name == _TOP:
            loader = _TopLoader()
            return ModuleSpec(name, loader, is_package=True)
        if not name.startswith(f"{_TOP}."):
            return None
        real = real_name(name)
        found = None if real == name else importlib.util.find_spec(real)
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        loader = _AliasLoader(real)
        return ModuleSpec(name, loader, origin=found.origin, is_package=is_package)


class _TopLoader:
    """Makes the module `lightning`, which only has what its `__init__.py` imports."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None, for an ordinary new module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Import the two packages into the module."""
        # Both first: the names below are those of whole modules.
        for alias in _REAL:
            importlib.import_module(alias)
        for package, names in _EXPORTS.items():
            for name in names:
                setattr(module, name, getattr(importlib.import_module(package), name))
        module.__dict__["__all__"] = sorted(name for names in _EXPORTS.values() for name in names)
        _warn_of_another_version(str(module.__dict__["__version__"]))


class _AliasLoader:
    """Loads a module under a second name: the module itself, not a copy.

    Args:
        real: Its real name.
    """

    def __init__(self, real: str) -> None:
        self._real = real
        self._kept: dict[str, Any] = {}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the real module."""
        module = importlib.import_module(self._real)
        self._kept = {
            key: module.__dict__.get(key)
            for key in ("__spec__", "__loader__", "__package__", "__path__")
        }
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Put back the attributes that the import system has just set.

        With those of the second name, a reload and relative imports of the module would look for
        that one.
        """
        for key, value in self._kept.items():
            if value is not None:
                module.__dict__[key] = value


def _warn_of_another_version(version: str) -> None:
    """Warn where a package `lightning` of another version is installed: it is never loaded."""
    if PathFinder.find_spec(_TOP) is None:
        return
    from importlib import metadata  # here, because it loads the standard library's reader of mail

    try:
        installed = metadata.version(_TOP)
    except metadata.PackageNotFoundError:  # a folder of that name
        return
    if installed != version:
        warnings.warn(
            f"the package lightning {installed} is installed and not used: `import lightning` gives"
            f" the code of pytorch-lightning {version}",
            stacklevel=2,
        )
