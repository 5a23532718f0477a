"""The objects of torch and Lightning, a million of them.

A search for garbage need not go over them, and the end of a process need not free each.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightkit.cli.console import flush_or_discard
from lightkit.cli.deferred_imports import deferring_imports

_FOREIGN = ("mpi4py", "horovod", "torch_xla")
"""Modules that leave a job, or a device, with the end of Python."""
_allowed: list[bool] = []


@contextmanager
def freezing_imports() -> Iterator[None]:
    """Import torch and Lightning in this block without searches for garbage, then or later.

    The garbage collector would go over all objects again and again while they become more, which is
    a sixth of the time of the imports, and over all of them in later full collections. What is
    created afterwards is collected as ever. What torchmetrics imports for a name or two is left
    out until it is used. Where torch is imported already, in a notebook or a test, nothing is
    changed.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        with deferring_imports():
            yield
    finally:
        freeze()
        gc.enable()


def freeze() -> None:
    """Hide all objects of this process from the garbage collector, until the end of the process.

    At the end they are collected: nanobind, with which triton is made, complains of functions that
    nobody has freed.
    """
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)


def allow_quick_end() -> None:
    """Allow `end_quickly`: this process holds nothing that only the end of Python writes or closes.

    That is so where only classes of lightkit and Lightning have run, in the only process of a
    stage.
    """
    _allowed[:] = [True]


def end_quickly(code: int) -> None:
    """End this process as Python does, but leave its memory to the system.

    To free a million objects takes more than a second after torch. Return where `allow_quick_end`
    was not called, where a program such as a profiler runs lightkit and goes on, or where a thread
    or a library needs the whole end.

    Args:
        code: Exit code.
    """
    if not _allowed or _is_embedded() or any(name in sys.modules for name in _FOREIGN):
        return
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    if any(not each.daemon for each in others):
        return
    # as multiprocessing does at the end of its processes, from Python 3.13 on
    atexit._run_exitfuncs()
    flush_or_discard(sys.stdout)
    flush_or_discard(sys.stderr)
    os._exit(code)


def _is_embedded() -> bool:
    """Return whether this process is more than the command.

    That is a fork, an interactive Python, or a program that runs the command and goes on.
    """
    multiprocess = sys.modules.get("multiprocessing")
    if multiprocess is not None and multiprocess.parent_process() is not None:
        return True
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = Path(getattr(main, "__file__", None) or "").stem if spec is None else spec.name
    if name not in ("lightkit", "lightkit.__main__") or sys.flags.interactive:
        return True
    # a profiler has put the command into its own place, and stands between Python and its words
    num_before = len(sys.orig_argv) - len(sys.argv)
    return any(not word.startswith("-") for word in sys.orig_argv[1:num_before])
