"""The same table for all ranks: rank 0 looks first, and the others at what it has found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from pytorch_lightning import Trainer

from lightkit.data.tables.snapshot import Snapshot
from lightkit.errors import ConfigError, DataError

__all__ = ["opened_alike", "rank_zero_first"]

Made = TypeVar("Made")


def opened_alike(opening: Callable[[int | None], Snapshot], *, trainer: Trainer | None) -> Snapshot:
    """Open a table on every rank in the state in which rank 0 has found it.

    A Delta table may get a new version between two ranks' looks at it.

    Args:
        opening: Opens the table: a version of Delta, or, for None, what the user has asked for.
        trainer: Knows the ranks; without one there is only this process.

    Raises:
        ConfigError: As ``opening`` does, on every rank.
        DataError: As ``opening`` does, on every rank, and if one sees other files than rank 0. Of any other error of
            rank 0, the others say that there was one.
    """
    found = _of_rank_zero(lambda: opening(None), trainer)
    if trainer is None or trainer.world_size == 1:
        assert found is not None
        return found
    state = None if found is None else (found.version, found.fingerprint)
    version, fingerprint = cast(tuple[int | None, str], trainer.strategy.broadcast(state))
    found = found or opening(version)
    if found.fingerprint != fingerprint:
        raise DataError(
            f"{found.place}: rank {trainer.global_rank} finds another table there than rank 0. All ranks must see the "
            "same files: put the table where they do, and leave it alone while it is trained on."
        )
    return found


def rank_zero_first(make: Callable[[], Made], *, trainer: Trainer | None) -> Made:
    """Let rank 0 do what takes long and is kept on disk, and only then the others.

    Args:
        make: Does it.
        trainer: Knows the ranks; without one there is only this process.

    Raises:
        ConfigError: As ``make`` does; where rank 0 fails, no rank waits for it.
        DataError: As ``make`` does, likewise; on the other ranks also for any other error of rank 0.
    """
    made = _of_rank_zero(make, trainer)
    return make() if made is None else made


def _of_rank_zero(make: Callable[[], Made], trainer: Trainer | None) -> Made | None:
    """Give what rank 0 makes, there; None on the others, and its error on all, because they wait to hear of it."""
    if trainer is None or trainer.world_size == 1:
        return make()
    made: Made | None = None
    error: Exception | None = None
    if trainer.is_global_zero:
        try:
            made = make()
        except Exception as raised:  # noqa: BLE001  # whatever it is: it is raised again once the others know
            error = raised
    says = trainer.strategy.broadcast(None if error is None else _said_of(error))
    if error is not None:
        raise error
    if says is not None:
        raise (ConfigError if says[0] else DataError)(says[1])
    return made


def _said_of(error: Exception) -> tuple[bool, str]:
    """Whether it is an error of the config, and its words."""
    if isinstance(error, ConfigError | DataError):
        return isinstance(error, ConfigError), str(error)
    return False, f"rank 0 could not open the table ({type(error).__name__}: {error}). Its own output says more."
