"""Lightning's ``weights_only``: the command line's ``--trust`` decides it, and no config does."""

from __future__ import annotations

import logging

from lightkit import runs

__all__ = ["restrict_loading"]


def restrict_loading(weights_only: bool | None) -> bool:
    """Return the value of ``weights_only`` for the trainer's method, which strategies and checkpoint plugins follow.

    Args:
        weights_only: The config's value, which cannot allow more than ``--trust``.
    """
    if weights_only is False and not runs.is_trusting():
        logging.getLogger("lightkit").warning(
            "weights_only: false has no effect: checkpoints are loaded as tensors and plain values; --trust on the "
            "command line allows more"
        )
    return not runs.is_trusting()
