"""End a loading process that cannot send a batch.

The batch goes from a thread of the loading process. Where that thread cannot send it, since no
thread or open file is left or the batch cannot be pickled, Python prints the error and drops the
batch, and the training waits for it for ever: torch 2.15 sees only processes that have ended.

`Queue._on_queue_feeder_error` is a private hook of Python (3.8 to 3.14, bpo-30006) that is there to
be overridden.
"""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing.queues import Queue
from typing import Any


def end_workers_that_cannot_send() -> None:
    """End a loading process with 1 at the first batch that cannot be sent.

    It must be forked from this one.
    """
    Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]


def _end_worker(error: BaseException, _batch: Any) -> None:
    """Print the error, and end a loading process; in any other go on, as Python does."""
    traceback.print_exception(error)
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and torch_data.get_worker_info() is not None:
        sys.stderr.flush()
        os._exit(1)
