"""Images and rows that cannot be used: found by the scan, or later in any process."""

from __future__ import annotations

import errno
import json
import os
import secrets
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkit.errors import visible

__all__ = ["Defect", "Defects"]


@dataclass(frozen=True)
class Defect:
    """One image or row that was left out.

    Args:
        name: Its path, or its table and row.
        reason: Why, in a few words.
    """

    name: str
    reason: str


class Defects:
    """What a data module has left out.

    It may be copied to other processes, by a fork or pickled. What they note goes through a file among the temporary
    ones, which is there from the first such note on and is removed by the process that made this object: adding a line
    to a file needs no lock, which a kill could leave held. Where it cannot be written, a process says so once.

    Args:
        found: By the scan before training.
    """

    def __init__(self, found: Sequence[Defect] = ()) -> None:
        self.found = list(found)
        self._spool = _spool()
        self._owner: int | None = os.getpid()
        self._noted: dict[str, Defect] = {}
        self._taken: set[str] = set()
        self._read_bytes = 0
        self._is_told = False
        weakref.finalize(self, _remove, self._spool, os.getpid())

    def note(self, defect: Defect) -> None:
        """Keep one that came up while batches were made; from any process, again and again for the same one."""
        if defect.name in self._noted:
            return
        self._noted[defect.name] = defect  # which is enough for the process that takes it
        if os.getpid() == self._owner:
            return
        try:
            _add_line(self._spool, defect)
        except OSError as error:
            self._tell_unwritten(defect, error)

    def take_noted(self) -> list[Defect]:
        """Give those noted in this process or its workers since the last call; each is given once."""
        noted = {**self._noted, **{defect.name: defect for defect in self._spooled()}}
        new = [defect for name, defect in noted.items() if name not in self._taken]
        self._taken.update(noted)
        return new

    def _spooled(self) -> list[Defect]:
        try:
            with open(self._spool, "rb") as file:  # noqa: PTH123 (plain text, as pickle has it)
                file.seek(self._read_bytes)
                content = file.read()
        except OSError:
            return []
        whole = content[: content.rfind(b"\n") + 1]  # a line may be on its way
        self._read_bytes += len(whole)
        return [defect for line in whole.splitlines() if (defect := _defect(line)) is not None]

    def _tell_unwritten(self, defect: Defect, error: OSError) -> None:
        if self._is_told:
            return
        self._is_told = True
        name, reason = visible(defect.name, in_line=True), visible(defect.reason, in_line=True)
        words = (
            f"warning: {name} is left out ({reason}). It and others that this worker cannot read are missing in the "
            f"list of bad images, as {self._spool or 'a temporary file'} cannot be written "
            f"({error.strerror or error}): make room there, or set TMPDIR\n"
        )
        with suppress(OSError):  # not by way of logging, whose locks may be held in a process that was forked
            os.write(2, words.encode(errors="backslashreplace"))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the process that takes them needs."""
        fresh = {"_noted": {}, "_taken": set(), "_read_bytes": 0, "_is_told": False}
        return {"found": self.found, "_spool": self._spool, "_owner": None, **fresh}


def _spool() -> str:
    name = f"lightkit-defects-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        return str(Path(tempfile.gettempdir(), name))
    except OSError:  # no folder for temporary files can be written
        return ""


def _add_line(spool: str, defect: Defect) -> None:
    # on a line of its own, whatever a process that was killed has left
    line = f"\n{json.dumps([defect.name, defect.reason])}\n".encode()
    descriptor = os.open(spool, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def _defect(line: bytes) -> Defect | None:
    try:
        name, reason = json.loads(line)
    except ValueError:  # torn by a kill, or the empty one between two
        return None
    return Defect(name, reason)


def _remove(spool: str, owner: int) -> None:
    if spool and os.getpid() == owner:  # a forked worker that ends has a copy
        with suppress(OSError):
            os.unlink(spool)  # noqa: PTH108 (runs when the interpreter ends)
