"""What the C library does with memory that is given back: apart, because it is set before a training begins."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping

__all__ = ["keep_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's <malloc.h>
_NEVER_TRIM = -1
_LARGEST_THRESHOLD_BYTES = 32 << 20  # glibc refuses more (HEAP_MAX_SIZE / 2)


def keep_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Let glibc keep the memory of a training step for the next one, in place of giving it back to the system.

    Else each step asks for its pages anew, and the kernel fills them with zeros, which costs a convolutional network on
    the CPU up to a quarter of its time. Variables that say otherwise (``MALLOC_TRIM_THRESHOLD_``,
    ``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``), and another allocator (``LD_PRELOAD``), are left alone.

    Returns:
        Whether it has been told so; False where the C library is not glibc.
    """
    says = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES", "LD_PRELOAD")
    if any(environ.get(name) for name in says) or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_THRESHOLD_BYTES)) & bool(mallopt(_TRIM_THRESHOLD, _NEVER_TRIM))
