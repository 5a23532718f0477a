"""What Lightning's ``weights_only`` comes to: a command line's ``--trust`` decides it, and no config does."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lightkit import runs

__all__ = ["restrict_loading"]

_log = logging.getLogger("lightkit")


def restrict_loading(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Let the trainer load tensors and plain values only, or what ``--trust`` allows.

    Strategies and checkpoint plugins that read files by themselves go by it; `CheckpointReader` needs no telling.

    Args:
        arguments: Those of the trainer's method, as the config has them.
    """
    if "weights_only" not in arguments:
        return dict(arguments)
    if arguments["weights_only"] is False and not runs.is_trusting():
        _log.warning(
            "weights_only: false has no effect: checkpoints are loaded as tensors and plain values; --trust on the "
            "command line allows more"
        )
    return {**arguments, "weights_only": not runs.is_trusting()}
