"""What the log of promotions tells of single versions: which were champions of late, and their scores. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.registry.promotion import Move, champions

__all__ = ["champions_of_late", "last_scored"]


def champions_of_late(moves: Sequence[Move], alias: str, window: int) -> list[Move]:
    """Give the last versions that an alias pointed to and was not rolled back from, one move each, the newest last.

    Args:
        moves: The log.
        alias: The alias.
        window: How many at most.

    Returns:
        For each version the move that has its scores, else one without any.
    """
    newest_first = list(dict.fromkeys(reversed(champions(moves, alias))))
    of_late = newest_first[:window][::-1]
    return [last_scored(moves, version) or Move("promote", alias, None, version) for version in of_late]


def last_scored(moves: Sequence[Move], version: str) -> Move | None:
    """Give the last move to a version that has scores; None where there is none."""
    return next((move for move in reversed(moves) if move.to == version and move.scores), None)
