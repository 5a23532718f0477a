"""How often all ranks of a launch have been started, counted where several launchers have a hand in it.

Torch's agents, one on each machine, count their own restarts: one that begins anew because another one has come or gone
does not. What they agree upon is where the ranks meet, a port that is chosen anew at each start of all ranks.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["generation_of"]

_POLL_S = 0.05
_WRITTEN_S = 5.0


def generation_of(folder: Path, meeting: str) -> int:
    """Give the number of a start of all ranks: the first rank to ask takes the next one, the others find it.

    Args:
        folder: Folder of the launch.
        meeting: Where the ranks meet, the same for all of them and for no other start.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers = sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("generation-*.txt"))
    known = next((number for number in reversed(numbers) if _meeting_of(folder, number) == meeting), None)
    if known is not None:
        return known
    number = numbers[-1] + 1 if numbers else 0
    while not _took(folder, number, meeting):  # another rank was faster; a network disk's listing may lag behind
        if _meeting_of(folder, number) == meeting:
            break
        number += 1
    return number


def _took(folder: Path, number: int, meeting: str) -> bool:
    try:
        descriptor = os.open(_path(folder, number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{meeting}\n")
    return True


def _meeting_of(folder: Path, number: int) -> str:
    """What a file says, waiting a little for who has just made it; nothing where that one has died meanwhile."""
    path = _path(folder, number)
    deadline = time.monotonic() + _WRITTEN_S
    while not (text := path.read_text(encoding="utf-8")).endswith("\n") and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return text.strip()


def _path(folder: Path, number: int) -> Path:
    return folder / f"generation-{number}.txt"
