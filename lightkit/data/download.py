"""Download a file and unpack an archive, so that the target afterwards is complete or absent."""

from __future__ import annotations

import errno
import gzip
import hashlib
import logging
import shutil
import tarfile
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import requests
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from urllib3.exceptions import HTTPError

from lightkit.errors import ConfigError, DataError

log = logging.getLogger("lightkit.data")

_CHUNK_BYTES = 1 << 16
_TIMEOUT_S = 30.0
_TEMPORARY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_EXPANSION = 20  # photos and idx files expand to about twice their archive's length
_LARGE_BYTES = 100_000_000


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, known by its digest.

    Args:
        url: http or https address.
        digest: Hexadecimal digest of the content.
        algorithm: Name of the digest in `hashlib`.
        size_bytes: Length, if it is known.
    """

    url: str
    digest: str
    algorithm: str = "sha256"
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"data.init_args.url: expected an http:// or https:// address, got {self.url!r}")

    def digest_of(self, path: Path) -> str:
        """Compute the digest of a local file."""
        with path.open("rb") as file:
            return _hash(file, self.algorithm)

    def is_at(self, path: Path) -> bool:
        """Compare a local file with this one, byte for byte."""
        if not path.is_file() or (self.size_bytes is not None and path.stat().st_size != self.size_bytes):
            return False
        return self.digest_of(path) == self.digest


def _hash(file: BinaryIO, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def download(remote: RemoteFile, target: Path, *, num_attempts: int = 5, backoff_s: float = 1.0) -> Path:
    """Download a file to ``target``; continue a download that was interrupted.

    Args:
        remote: The file.
        target: Its local path; ``target.part`` holds the bytes so far.
        num_attempts: Number of connections before giving up.
        backoff_s: Pause after the first failed connection; it doubles with each.

    Raises:
        DataError: If it cannot be downloaded, has another digest, or does not fit on the disk.
    """
    if remote.is_at(target):
        log.info("%s is there already", target)
        return target
    part = target.with_name(f"{target.name}.part")
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock.acquire(timeout=0):
            _fill(remote, part, num_attempts=num_attempts, backoff_s=backoff_s)
            part.replace(target)
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        raise DataError(f"{part}: another process is fetching this file. Wait for it, then try again.") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"{target}: cannot write here ({error.strerror or error}); wanted for {remote.url}"
            ) from error
        wanted = f"{remote.size_bytes / 1e6:.0f} MB" if remote.size_bytes else "more"
        free_mb = shutil.disk_usage(target.parent).free / 1e6
        raise DataError(
            f"{target}: the disk is full: {remote.url} needs {wanted}, {free_mb:.0f} MB are free. Make room and run "
            "the same command again: it goes on where it stopped."
        ) from error
    return target


def _fill(remote: RemoteFile, part: Path, *, num_attempts: int, backoff_s: float) -> None:
    """Append to ``part`` until it is the remote file."""
    problem = ""
    for attempt in range(num_attempts):
        if attempt:
            pause_s = backoff_s * 2 ** (attempt - 1)
            log.info("%s: %s; trying again in %g s (%d of %d)", remote.url, problem, pause_s, attempt + 1, num_attempts)
            time.sleep(pause_s)
        try:
            status, is_complete, began_at = _transfer(remote, part)
        except (requests.RequestException, HTTPError, ConnectionError) as error:
            problem = f"the connection failed ({error or type(error).__name__})"
            continue
        if status not in (200, 206, 416):
            problem = f"the server answers {status}"
            if status in _TEMPORARY_STATUS:
                continue
            raise DataError(f"{remote.url}: {problem}. Is the address right? See data.init_args.url.")
        if not is_complete:
            problem = "the connection was cut off"
            continue
        found_bytes, found = part.stat().st_size, remote.digest_of(part)
        if found == remote.digest:
            return
        problem = f"its {remote.algorithm} is {found}, {remote.digest} was expected"
        if remote.size_bytes not in (None, found_bytes):
            problem = f"{found_bytes} bytes came, {remote.size_bytes} were expected"
        part.unlink()  # complete, but wrong: it cannot be continued
        if began_at == 0:
            raise DataError(
                f"{remote.url}: {problem}. The file on the server has changed, or something on the way alters it. "
                "Nothing was kept."
            )
    raise DataError(
        f"{remote.url}: {problem}; gave up after {num_attempts} attempts. What has come is kept in {part}: check the "
        "network, then run the same command again to go on."
    )


def _transfer(remote: RemoteFile, part: Path) -> tuple[int, bool, int]:
    """Connect once and append to ``part``, from its start if the server does not continue.

    Returns:
        The status, whether the file has all its bytes, and the byte that the transfer began at.
    """
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "lightkit", "Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with requests.get(remote.url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
        if response.status_code == 416:  # no more bytes: it is complete, or too long
            return 416, True, have
        if not response.ok:
            return response.status_code, False, have
        if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
        length = response.headers.get("Content-Length")
        end = have + int(length) if length else remote.size_bytes
        if end is not None and shutil.disk_usage(part.parent).free < end - have:
            raise OSError(errno.ENOSPC, "the disk is full")
        console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        log.info("fetching %s%s", part.stem, f" from byte {have}" if have else "")
        with (
            part.open("ab" if have else "wb") as file,
            Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar,
        ):
            task, at = bar.add_task(part.stem, total=end, completed=have), have
            response.raw.enforce_content_length = False  # or the last bytes of a broken connection were lost
            for chunk in response.raw.stream(_CHUNK_BYTES):
                file.write(chunk)
                bar.advance(task, len(chunk))
                if end and not console.is_terminal and (at + len(chunk)) * 10 // end > at * 10 // end:
                    log.info("%s: %d %% of %.1f MB", part.stem, (at + len(chunk)) * 10 // end * 10, end / 1e6)
                at += len(chunk)
    return response.status_code, end is None or at >= end, have


def unpack(archive: Path, target: Path, *, member: str = ".") -> Path:
    """Unpack a tar archive aside, and rename its folder ``member`` to ``target`` when it is complete.

    Links are refused altogether: pictures need none, and links are what got past tarfile's own filter (CVE-2025-4517).

    Raises:
        DataError: If ``target`` has files already, a member would land outside or is no plain file or folder, the
            content is more than 20 times as long as the archive, the archive is broken, or the disk is full.
    """
    if target.is_dir() and any(target.iterdir()):
        raise DataError(
            f"{target}: there are files here already. Move them away to unpack {archive.name} in their place."
        )
    aside: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        limit_bytes, num_bytes = max(_LARGE_BYTES, _MAX_EXPANSION * archive.stat().st_size), 0
        with tarfile.open(archive) as tar:
            for entry in tar:
                if entry.name.startswith(("/", "\\")) or not (entry.isfile() or entry.isdir()):
                    raise tarfile.SpecialFileError(entry)
                num_bytes += entry.size
                if num_bytes > limit_bytes:
                    raise DataError(
                        f"{archive}: not unpacked, because its content is longer than {limit_bytes / 1e6:,.0f} MB "
                        f"(limit: {_MAX_EXPANSION} times the archive). Unpack it by hand if that is right."
                    )
                tar.extract(entry, aside, filter="data")
        folder = aside / member
        if not folder.is_dir():
            raise DataError(f"{archive}: there is no folder {member} in this archive. Is it the right one?")
        folder.chmod(0o755)
        folder.rename(target)
    except tarfile.FilterError as error:
        raise DataError(f"{archive}: not unpacked, because of a member that does not belong there: {error}") from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{archive}: this archive is broken ({reason}). Delete it and fetch it again.") from error
    except OSError as error:
        raise DataError(f"{target}: cannot unpack {archive.name} here ({error.strerror or error}).") from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
    return target
