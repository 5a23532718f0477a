"""Import Lightning while the garbage collector waits: it would look at all modules again and again as more come."""

from __future__ import annotations

import gc
import importlib

__all__ = ["import_lightning"]


def import_lightning() -> None:
    """Import torch, Lightning and what stands on them, which takes a tenth less time without the garbage collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("lightkit.cli.lightning_cli")
    finally:
        if was_enabled:
            gc.enable()
