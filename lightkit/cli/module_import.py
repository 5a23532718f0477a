"""Import modules, also where a full disk or a power failure has damaged their compiled files."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType
from zipimport import zipimporter


class _SourceLoader(SourceFileLoader):
    """Loader of a Python source that is compiled again where its compiled file is damaged.

    Python 3.11 writes a part of a `.pyc` file where the disk is full, and each later import of the
    module fails with an EOFError, also once there is room. A power failure leaves zeros in its
    place, which are a ValueError.
    """

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module, and remove its compiled file where that is damaged."""
        with suppress(EOFError, ImportError, TypeError, ValueError):
            return super().get_code(fullname)
        with suppress(OSError):
            Path(cache_from_source(self.path)).unlink(missing_ok=True)
        return self.source_to_code(self.get_data(self.path), self.path)


_HOOK = FileFinder.path_hook(
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (_SourceLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


def install() -> None:
    """Compile a module's source from here on where its compiled file is damaged.

    The modules of packages as well as people's own. The compiled file is removed, so that other
    programs can import the module, too. A second call does nothing.
    """
    if _HOOK not in sys.path_hooks:
        # right before Python's own, and behind those that tools have put before both
        at = sys.path_hooks.index(zipimporter) + 1 if zipimporter in sys.path_hooks else 0
        sys.path_hooks.insert(at, _HOOK)
        sys.path_importer_cache.clear()
