"""The end of torch's process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed

from lightkit.errors import Interrupted


@contextmanager
def process_group_left() -> Iterator[None]:
    """Leave the process group that is made within, as soon as it is no longer needed.

    Gloo's threads may otherwise still hold tensors when the interpreter ends, which aborts one rank
    in thirty although all went well (torch 2.15; pytorch pull request 179291). Lightning leaves the
    group only where it is NCCL's. After a failure the group stays: leaving it would wait for work
    in which the other ranks no longer take part.
    """
    was_there = _is_in_group()
    try:
        yield
    except Interrupted:
        _leave(was_there)
        raise
    _leave(was_there)


def _leave(was_there: bool) -> None:
    if _is_in_group() and not was_there:  # whoever has made it before leaves it
        distributed.destroy_process_group()


def _is_in_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()
