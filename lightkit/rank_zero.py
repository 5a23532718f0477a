"""Work that rank 0 does for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from pytorch_lightning import Trainer

from lightkit.errors import DataError, LightkitError

Made = TypeVar("Made")


def make_on_rank_zero(make: Callable[[], Made], trainer: Trainer | None) -> Made:
    """Broadcast what rank 0 makes, such as the state of a table that grows.

    Broadcast its error in its place, for which all ranks wait.

    Raises:
        LightkitError: As ``make`` does, on every rank; on the others also for any other error of
            rank 0.
    """
    if trainer is None or trainer.world_size == 1:
        return make()
    made: Made | None = None
    error: Exception | None = None
    if trainer.is_global_zero:
        try:
            made = make()
        except Exception as raised:  # noqa: BLE001  # it is raised again once the others know
            error = raised
    known = error
    if error is not None and not isinstance(error, LightkitError):
        known = DataError(f"rank 0 failed ({type(error).__name__}: {error}). See its output.")
    made, known = trainer.strategy.broadcast((made, known))
    if error or known:
        raise error or known  # type: ignore[misc]  # one of them is there
    return cast(Made, made)
