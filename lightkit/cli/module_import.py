"""Import people's own modules, also where a full disk has cut their compiled files."""

from __future__ import annotations

import marshal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import TypeVar

_Found = TypeVar("_Found")
_HEADER = 16
"""Bytes of a `.pyc` file before its code (PEP 552)."""


def import_past_cut_bytecode(find: Callable[[], _Found]) -> _Found:
    """Import, and once more from the sources where a compiled file has been cut.

    Python before 3.12.8 writes a part of a `.pyc` file where the disk is full, and fails with an
    EOFError at each later import of that module, also once there is room. The cut files are
    removed, so that other processes can import the modules, too.

    Args:
        find: Imports modules. It is called a second time after an EOFError.

    Returns:
        What `find` returns.
    """
    known = set(sys.modules)
    try:
        return find()
    except EOFError:
        with _compiling_elsewhere():
            found = find()
        _remove_cut_bytecode(set(sys.modules) - known)
        return found


@contextmanager
def _compiling_elsewhere() -> Iterator[None]:
    """Keep compiled files apart from those that are there."""
    former = sys.pycache_prefix
    with tempfile.TemporaryDirectory(prefix="lightkit-") as folder:
        sys.pycache_prefix = folder
        try:
            yield
        finally:
            sys.pycache_prefix = former


def _remove_cut_bytecode(names: Iterable[str]) -> None:
    """Remove the compiled files of modules that cannot be read."""
    for name in names:
        source = getattr(sys.modules[name], "__file__", None)
        if source is None or not source.endswith(".py"):
            continue
        compiled = Path(cache_from_source(source))
        with suppress(OSError):
            try:
                marshal.loads(compiled.read_bytes()[_HEADER:])  # noqa: S302, as an import does
            except EOFError:
                compiled.unlink()
