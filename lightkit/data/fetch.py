"""Downloading a file, so that what is there afterwards is complete or absent."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import logging
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lightkit.errors import ConfigError, DataError

__all__ = ["Remote", "download"]

log = logging.getLogger("lightkit.data")

_CHUNK_BYTES = 1 << 16
_TIMEOUT_S = 30.0
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_MORE_BYTES = 416  # what is there is as long as the file, or longer
_BROKEN_CONNECTION = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


@dataclass(frozen=True)
class Remote:
    """A file on a server, and how to know it.

    Args:
        url: Its http or https address.
        digest: Hexadecimal digest of its bytes.
        algorithm: Name of the digest, as `hashlib` knows it.
        size_bytes: Its length, where it is known.
    """

    url: str
    digest: str
    algorithm: str = "sha256"
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"data.init_args.url: expected an http:// or https:// address, got {self.url!r}")

    def is_at(self, path: Path) -> bool:
        """Whether the file at ``path`` is this one, byte for byte."""
        if not path.is_file() or (self.size_bytes is not None and path.stat().st_size != self.size_bytes):
            return False
        return self.digest_of(path) == self.digest

    def digest_of(self, path: Path) -> str:
        """The digest of a local file."""
        digest = hashlib.new(self.algorithm, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()


def download(remote: Remote, target: Path, *, num_attempts: int = 5, backoff_s: float = 1.0) -> Path:
    """Give ``target`` with the remote file's bytes, going on where an earlier download was cut off.

    Args:
        remote: What to fetch.
        target: Where to put it; ``target.part`` holds what has come so far.
        num_attempts: How often to connect before giving up.
        backoff_s: Pause after the first broken connection; it doubles with each.

    Raises:
        DataError: If it cannot be fetched, is not what was expected, or does not fit on the disk.
    """
    if remote.is_at(target):
        log.info("%s is there already", target)
        return target
    with _readable_errors(target, remote):
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        with part.open("ab") as file:
            _lock(file, part)
            _fill(remote, file, part, num_attempts=num_attempts, backoff_s=backoff_s)
            part.replace(target)
    _tag_path(part).unlink(missing_ok=True)
    return target


def _lock(file: BinaryIO, part: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise DataError(f"{part}: another process is fetching this file. Wait for it, then try again.") from error


@contextmanager
def _readable_errors(target: Path, remote: Remote) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(target, remote) from error
        raise DataError(f"{target}: cannot write here ({error.strerror or error}); wanted for {remote.url}") from error


def _no_room(target: Path, remote: Remote) -> DataError:
    free = shutil.disk_usage(target.parent).free / 1e6
    wanted = f"{remote.size_bytes / 1e6:.0f} MB" if remote.size_bytes else "more"
    return DataError(
        f"{target}: the disk is full: {remote.url} needs {wanted}, {free:.0f} MB are free. Make room and run the same "
        "command again: it goes on where it stopped."
    )


def _fill(remote: Remote, file: BinaryIO, part: Path, *, num_attempts: int, backoff_s: float) -> None:
    """Append to the part until it is the remote file."""
    problem = ""
    for attempt in range(num_attempts):
        if attempt:
            pause_s = backoff_s * 2 ** (attempt - 1)
            log.info("%s: %s; trying again in %g s (%d of %d)", remote.url, problem, pause_s, attempt + 1, num_attempts)
            time.sleep(pause_s)
        had_bytes = part.stat().st_size
        try:
            _transfer(remote, file, part)
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"the server answers {error.code} {error.reason}"
            if error.code in _TRY_AGAIN:
                continue
            if error.code != _NO_MORE_BYTES:
                raise DataError(f"{remote.url}: {problem}. Is the address right? See data.init_args.url.") from error
        except _BROKEN_CONNECTION as error:
            problem = f"the connection failed ({getattr(error, 'reason', None) or error or type(error).__name__})"
            continue
        complaint = _complaint(remote, part)
        if complaint is None:
            return
        problem = complaint
        if part.stat().st_size >= (remote.size_bytes or 0):  # complete, but wrong: nothing to go on from
            _start_over(file, part)
            if had_bytes == 0:
                raise DataError(
                    f"{remote.url}: {problem}. The file on the server has changed, or something on the way "
                    "alters it. Nothing was kept."
                )
    raise DataError(
        f"{remote.url}: {problem}; gave up after {num_attempts} attempts. What has come is kept in {part}: check the "
        "network, then run the same command again to go on."
    )


def _complaint(remote: Remote, part: Path) -> str | None:
    size = part.stat().st_size
    if remote.size_bytes is not None and size != remote.size_bytes:
        return f"{size} bytes came, {remote.size_bytes} were expected"
    found = remote.digest_of(part)
    return None if found == remote.digest else f"its {remote.algorithm} is {found}, {remote.digest} was expected"


def _transfer(remote: Remote, file: BinaryIO, part: Path) -> None:
    """Connect once, and append what comes; from the start if the server will not go on."""
    tag_path = _tag_path(part)
    have = part.stat().st_size
    headers = {"User-Agent": "lightkit", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag_path.is_file():
            headers["If-Range"] = tag_path.read_text()
    request = urllib.request.Request(remote.url, headers=headers)  # noqa: S310 (Remote allows http and https only)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == _NO_MORE_BYTES and not remote.is_at(part):
            _start_over(file, part)
        raise
    with response:
        if have and not (response.status == 206 and _starts_at(response, have)):
            _start_over(file, part)
            have = 0
        tag = response.headers.get("ETag", "")
        if tag.startswith('"'):  # a weak tag does not promise the same bytes (RFC 9110, 13.1.5)
            tag_path.write_text(tag)
        length = response.headers.get("Content-Length")
        end = have + int(length) if length else remote.size_bytes
        if end is not None and shutil.disk_usage(part.parent).free < end - have:
            raise OSError(errno.ENOSPC, "the disk is full")
        _copy(response, file, have=have, end=end, name=part.stem)


def _copy(response: Any, file: BinaryIO, *, have: int, end: int | None, name: str) -> None:
    try:
        with _progress(name, have=have, end=end) as advance:
            while chunk := _received(response):
                file.write(chunk)
                have += len(chunk)
                advance(have)
    finally:
        file.flush()  # the next attempt goes by the file's length
    if end is not None and have < end:  # http.client tells of this only when everything is read at once
        raise ConnectionError(f"cut off after {have} of {end} bytes")


def _received(response: Any) -> bytes:
    """The next bytes; what breaks here is the connection, what breaks around it is the disk."""
    try:
        return bytes(response.read(_CHUNK_BYTES))
    except OSError as error:
        raise ConnectionError(error.strerror or str(error) or type(error).__name__) from error


def _starts_at(response: Any, offset: int) -> bool:
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {offset}-")


def _start_over(file: BinaryIO, part: Path) -> None:
    file.truncate(0)
    _tag_path(part).unlink(missing_ok=True)


def _tag_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.etag")


@contextmanager
def _progress(name: str, *, have: int, end: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, and a line for every tenth elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(name, total=end, completed=have)
            yield lambda done: bar.update(task, completed=done)
        return
    told = have * 10 // end if end else 0
    log.info("fetching %s%s", name, f" from byte {have}" if have else "")

    def tell(done: int) -> None:
        nonlocal told
        if end and done * 10 // end > told:
            told = done * 10 // end
            log.info("%s: %d %% of %.1f MB", name, told * 10, end / 1e6)

    yield tell
