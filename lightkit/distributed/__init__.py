"""Strategies and callbacks for ranks that train one model together.

- `HorovodStrategy`: one process a device under Horovod's launcher; `make horovod` installs Horovod.
- `ScaledLearningRate`: the learning rate times the number of ranks, after a warm-up, under any
  strategy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightkit.distributed.horovod import HorovodEnvironment, HorovodStrategy
    from lightkit.distributed.learning_rate import ScaledLearningRate

__all__ = ["HorovodEnvironment", "HorovodStrategy", "ScaledLearningRate"]

_HOMES = {
    "HorovodEnvironment": "horovod",
    "HorovodStrategy": "horovod",
    "ScaledLearningRate": "learning_rate",
}


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for: Horovod's is needed by few."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
