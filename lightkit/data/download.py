"""Download a file and unpack an archive, so that the target afterwards is complete or absent."""

from __future__ import annotations

import errno
import gzip
import logging
import shutil
import tarfile
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import requests
from filelock import FileLock, Timeout
from urllib3.exceptions import HTTPError

from lightkit.data.progress import show_progress
from lightkit.data.splits import content_digest
from lightkit.errors import ConfigError, DataError

log = logging.getLogger("lightkit.data")

_CHUNK_BYTES = 1 << 16
_TIMEOUT_S = 30.0
_NUM_ATTEMPTS = 5
_TEMPORARY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


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


def download(remote: RemoteFile, target: Path) -> Path:
    """Download a file to ``target``, or continue a download that was interrupted, from ``target.part``.

    Raises:
        DataError: If it cannot be downloaded, has another digest, or does not fit on the disk.
    """
    if target.is_file() and content_digest(target, remote.algorithm) == remote.digest:
        return target
    part, lock = target.with_name(f"{target.name}.part"), FileLock(target.with_name(f".{target.name}.lock"), timeout=0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock:
            _fill(remote, part)
            part.replace(target)
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        raise DataError(f"{part}: another process is fetching this file. Wait for it, then try again.") from None
    except OSError as error:
        raise DataError(
            f"{target}: cannot write here ({error.strerror or error}); wanted for {remote.url}. Once there is room, "
            "the same command continues where it stopped."
        ) from error
    return target


def _fill(remote: RemoteFile, part: Path) -> None:
    """Append to ``part`` until it is the remote file."""
    problem = ""
    for attempt in range(_NUM_ATTEMPTS):
        if attempt:
            pause_s = 2 ** (attempt - 1)
            log.info(
                "%s: %s; trying again in %g s (%d of %d)", remote.url, problem, pause_s, attempt + 1, _NUM_ATTEMPTS
            )
            time.sleep(pause_s)
        begin = part.stat().st_size if part.is_file() else 0
        try:
            status, is_complete = _transfer(remote, part, begin)
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
        if (found := content_digest(part, remote.algorithm)) == remote.digest:
            return
        problem = f"its {remote.algorithm} is {found}, {remote.digest} was expected"
        part.unlink()  # complete, but wrong: it cannot be continued
        if begin == 0:
            raise DataError(
                f"{remote.url}: {problem}. The file on the server has changed, or something on the way alters it. "
                "Nothing was kept."
            )
    raise DataError(
        f"{remote.url}: {problem}; gave up after {_NUM_ATTEMPTS} attempts. The bytes so far are kept in {part}: check "
        "the network, then run the same command again to continue."
    )


def _transfer(remote: RemoteFile, part: Path, begin: int) -> tuple[int, bool]:
    """Connect once and append to ``part``, from its start if the server does not continue at byte ``begin``.

    Returns:
        The status, and whether the file has all its bytes.
    """
    headers = {"User-Agent": "lightkit", "Accept-Encoding": "identity"} | (
        {"Range": f"bytes={begin}-"} if begin else {}
    )
    with requests.get(remote.url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
        if not response.ok:
            return response.status_code, response.status_code == 416  # no more bytes: it is complete, or too long
        if not response.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
            begin = 0
        length = response.headers.get("Content-Length")
        end = begin + int(length) if length else remote.size_bytes
        if end is not None and shutil.disk_usage(part.parent).free < end - begin:
            raise OSError(errno.ENOSPC, "the disk is full")
        log.info("fetching %s%s", part.stem, f" from byte {begin}" if begin else "")
        response.raw.enforce_content_length = False  # or the last bytes of a broken connection were lost
        chunks = response.raw.stream(_CHUNK_BYTES)
        with part.open("ab" if begin else "wb") as file:
            for chunk in show_progress(chunks, (end or 0) - begin, f"bytes of {part.stem}", size=len):
                file.write(chunk)
    return response.status_code, end is None or part.stat().st_size >= end


def unpack(archive: Path, target: Path, *, member: str = ".") -> Path:
    """Unpack a tar archive aside, and rename its folder ``member`` to ``target`` when it is complete.

    Links are refused altogether: pictures need none, and links are what got past tarfile's own filter (CVE-2025-4517).

    Raises:
        DataError: If ``target`` has files already, a member would land outside or is no plain file or folder, the
            archive is broken, or the disk is full.
    """

    def check_member(entry: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        if entry.name.startswith(("/", "\\")) or not (entry.isfile() or entry.isdir()):
            raise tarfile.SpecialFileError(entry)
        return tarfile.data_filter(entry, folder)

    if target.is_dir() and any(target.iterdir()):
        raise DataError(
            f"{target}: there are files here already. Move them away to unpack {archive.name} in their place."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as aside:
            with tarfile.open(archive) as tar:
                tar.extractall(aside, filter=check_member)  # noqa: S202 (each member is checked)
            folder = Path(aside, member)
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
    return target
