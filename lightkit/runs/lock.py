"""One process a job: a second start learns who runs it, and a dead process's lock is nobody's.

It holds on a shared file system, where `flock` may be blind: a lock appears by a hard link to a file that is whole
(`O_EXCL` where there are no hard links), which the server grants to one process only. To take over a dead holder's,
a process first has to win the claim to that very holder, a file of its own that is granted in the same way, and only
then renames its own lock over the dead one's. Whoever is killed in between leaves a claim of a dead process, which is
claimed in turn; so nothing blocks for ever, and no moment is without a lock.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lightkit.errors import ConfigError, RunLocked
from lightkit.runs.files import aside_of
from lightkit.runs.granted import appears, lines_of, unwritten, write_new, write_whole
from lightkit.runs.holders import Holder, claim_to, last_claimant, now_of, read_holder
from lightkit.runs.process import describe_process

__all__ = ["HELD_LOCK", "Lock"]

HELD_LOCK = "_LIGHTKIT_LOCK"
"""Variable by which a process that holds a job lets those that it starts work on it."""

_TRIES = 100
_LONGEST_BEAT_S = 15.0
_LONGEST_PAUSE_S = 2.0
_log = logging.getLogger("lightkit")


class Lock:
    """The right to run a job, held by one process at a time; a context manager.

    ``runs/<name>/lock.json`` says who holds it. Its time of change is the holder's heartbeat.

    Args:
        root: Folder that holds the runs of all jobs.
        name: Name of the job.
        wait_s: Seconds to wait for another holder.
        stale_s: Seconds without a heartbeat after which a holder on another host counts as dead.
        tell: Told once who holds the job, where this process waits.
        lost: Called, from a thread, with the words about whoever has taken the lock over while this process could
            not be heard of, as after the machine was suspended.
    """

    def __init__(
        self,
        root: Path | str,
        name: str,
        wait_s: float = 0.0,
        stale_s: float = 300.0,
        *,
        tell: Callable[[str], None] = _log.info,
        lost: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.path = (Path(root) / name / "lock.json").absolute()
        self._wait_s = _seconds("wait_s", wait_s)
        self._stale_s = _seconds("stale_s", stale_s, least=1e-3)
        self._tell = tell
        self._lost = lost
        self._mine: dict[str, Any] | None = None
        self._said: dict[str, Any] = {}
        self._is_heir = False
        self._file: int | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock, from a dead holder too, or share it with the holder that has started this process.

        Raises:
            RunLocked: If a living process holds it, or one elsewhere whose heartbeat is not old enough.
            ConfigError: If the lock cannot be written.
            LightkitError: If the disk is full.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._mine = self._inherited() or self._taken()
            self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            if self._is_heir:
                self._note(heir=describe_process())
        except OSError as error:
            raise unwritten(self.path, error) from error
        self._ended.clear()
        self._thread = threading.Thread(target=self._beat, name="lightkit-lock", daemon=True)
        self._thread.start()

    def note_folder(self, folder: Path) -> None:
        """Add the run's folder to what others are told; only while the lock is held."""
        self._note(folder=str(folder))

    def bequeath(self) -> dict[str, str]:
        """Give the variables with which processes that this one starts may work on the job that it holds."""
        assert self._mine is not None, "only a lock that is held can be left to others"
        return {HELD_LOCK: json.dumps({"path": str(self.path), "token": self._mine["token"]})}

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not this process's."""
        # The number, because a forked child has this object too, and its end is not the run's.
        if self._mine is None or self._mine["pid"] != os.getpid():
            return
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)
        try:
            if self._is_heir:
                self._note(heir=None)
            elif self.path.parent.is_dir():
                self._give_back()
        finally:
            if self._file is not None:
                os.close(self._file)
            self._mine, self._file, self._is_heir = None, None, False

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _inherited(self) -> dict[str, Any] | None:
        """Share the lock that the holder has left to this process, if it still is the holder."""
        try:
            told = json.loads(os.environ.get(HELD_LOCK, "null")) or {}
        except ValueError:
            return None
        if told.get("path") != str(self.path) or not told.get("token"):
            return None
        holder = read_holder(self.path)
        if holder is None or holder.token != told["token"]:
            return None
        self._is_heir = True
        return {"token": holder.token, "pid": os.getpid()}

    def _taken(self) -> dict[str, Any]:
        deadline, pause_s, is_told = time.monotonic() + self._wait_s, 0.1, False
        token = secrets.token_hex(8)
        while (holder := self._blocked_by(token)) is not None:
            words = holder.words(self.name, stale_s=self._stale_s, now_s=now_of(self.path.parent))
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise RunLocked(f"{words} Waited {self._wait_s:g} s for it." if self._wait_s else words)
            if not is_told:
                self._tell(f"waits up to {self._wait_s:g} s: {words.partition(' Try again')[0]}")
                is_told = True
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        self._sweep()
        return {"token": token, "pid": os.getpid()}

    def _blocked_by(self, token: str) -> Holder | None:
        """Take the lock; give the holder that is in the way, if there is one."""
        aside = aside_of(self.path)
        holder = None
        try:
            self._said = self._description(token)
            write_new(aside, self._said)
            for _ in range(_TRIES):
                if appears(aside, self.path, token):
                    return None
                first = read_holder(self.path)
                if first is None:
                    continue  # given back meanwhile
                holder = last_claimant(first)
                os.utime(aside)
                if holder.lives(stale_s=self._stale_s, now_s=aside.stat().st_mtime):
                    return holder
                if self._replaced(aside, first, claim_to(holder), token):
                    return None
            return holder or read_holder(self.path)
        finally:
            aside.unlink(missing_ok=True)

    def _replaced(self, aside: Path, first: Holder, claim: Path, token: str) -> bool:
        """Put the own lock in the place of a dead one, if no other process is the one that may."""
        if not appears(aside, claim, token):
            return False
        now = read_holder(self.path)
        is_still = now is not None and now.key == first.key
        if is_still:
            aside.replace(self.path)  # of those who come later none can win the claim and find the same dead holder
        claim.unlink(missing_ok=True)
        return is_still

    def _give_back(self) -> None:
        """Remove the lock under the claim to it, so that no other can take it over between the look and the end."""
        assert self._mine is not None
        holder = read_holder(self.path)
        if holder is None or holder.token != self._mine["token"]:
            return
        aside, claim, token = aside_of(self.path), claim_to(holder), secrets.token_hex(8)
        try:
            write_new(aside, self._description(token))
            may_remove = appears(aside, claim, token)
        except OSError:  # the disk is full, and others can claim nothing either
            may_remove = True
        try:
            now = read_holder(self.path)
            if may_remove and now is not None and now.token == self._mine["token"]:
                self.path.unlink()
            if may_remove:
                claim.unlink(missing_ok=True)
        finally:
            aside.unlink(missing_ok=True)

    def _description(self, token: str) -> dict[str, Any]:
        started = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S UTC}"
        about = {"started": started, "folder": None, "token": token, "beat_s": self._beat_s, "heir": None}
        return {**describe_process(), **about}

    def _note(self, **changes: Any) -> None:
        """Change what the own lock says, in its place: were it another's by now, that one's is not touched."""
        assert self._mine is not None
        assert self._file is not None
        holder = read_holder(self.path)
        if holder is not None and holder.token == self._mine["token"]:
            said = {**holder.said, **changes}
            write_whole(self._file, lines_of(said, least=os.fstat(self._file).st_size))
            self._said = said

    @property
    def _beat_s(self) -> float:
        return min(self._stale_s / 6, _LONGEST_BEAT_S)

    def _beat(self) -> None:
        """Let others know that this process lives, and notice when it is not the holder any more."""
        while not self._ended.wait(self._beat_s):
            try:
                words = self._beaten()
            except OSError:  # a file server that is away for a while
                continue
            if words is not None:
                if self._lost is not None and not self._ended.is_set():
                    self._lost(words)
                return

    def _beaten(self) -> str | None:
        """Beat once; give the words about another holder where there is one."""
        assert self._mine is not None
        assert self._file is not None
        holder = read_holder(self.path)
        if holder is None and not self._is_heir and not self._ended.is_set():
            holder = self._put_back()
        if holder is None:
            return None
        if holder.said and holder.token != self._mine["token"]:
            return holder.words(self.name, stale_s=self._stale_s, now_s=now_of(self.path.parent))
        os.utime(self._file)
        return None

    def _put_back(self) -> Holder | None:
        """Let the lock appear again that somebody has removed; give the holder that there is now."""
        assert self._mine is not None
        assert self._file is not None
        aside = aside_of(self.path)
        try:
            write_new(aside, self._said)
            if appears(aside, self.path, self._mine["token"]):
                file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(file, self._file, inheritable=False)
                os.close(file)
        finally:
            aside.unlink(missing_ok=True)
        return read_holder(self.path)

    def _sweep(self) -> None:
        """Remove what processes that were killed have left beside the lock."""
        os.utime(self.path)
        now_s = self.path.stat().st_mtime
        for path in (*self.path.parent.glob(".lock.*.claim"), *self.path.parent.glob(".lock.json.*.aside")):
            with suppress(OSError):
                holder = read_holder(path)
                if holder is not None and not holder.lives(stale_s=self._stale_s, now_s=now_s):
                    path.unlink(missing_ok=True)


def _seconds(key: str, value: float, *, least: float = 0.0) -> float:
    if not (isinstance(value, int | float) and least <= value < math.inf):
        raise ConfigError(
            f"run.{key}: expected a number of seconds, {'0 or more' if not least else 'above 0'}, got {value!r}"
        )
    return float(value)
