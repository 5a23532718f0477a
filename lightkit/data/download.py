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
from pathlib import Path

import requests
from filelock import FileLock, Timeout
from urllib3.exceptions import HTTPError

from lightkit import runs
from lightkit.errors import DataError
from lightkit.images.progress import show_progress

log = logging.getLogger("lightkit.data")

_CHUNK_BYTES = 1 << 16
_TIMEOUT_S = 30.0
_NUM_ATTEMPTS = 5
_TEMPORARY_STATUS = (408, 425, 429)  # and those of the server's own errors, from 500


def download(url: str, target: Path, *, sha256: str, size_bytes: int | None = None) -> None:
    """Download a file to ``target``, or continue a download that was interrupted, from ``target.part``.

    Args:
        url: http or https address.
        target: The file.
        sha256: Its digest, hexadecimal.
        size_bytes: Its length, if it is known.

    Raises:
        DataError: If it cannot be downloaded, has another digest, or does not fit on the disk.
    """
    part, lock = target.with_name(f"{target.name}.part"), FileLock(target.with_name(f".{target.name}.lock"), timeout=0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock:
            if not (target.is_file() and runs.digest(target) == sha256):
                _fill(part, url, sha256, size_bytes)
                part.replace(target)
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        raise DataError(f"{part}: another process is fetching this file. Wait for it, then try again.") from None
    except OSError as error:
        raise DataError(
            f"{target}: cannot write here ({error.strerror or error}); wanted for {url}. Once there is room, the same "
            "command continues where it stopped."
        ) from error


def _fill(part: Path, url: str, sha256: str, size_bytes: int | None) -> None:
    """Append to ``part`` until it is the remote file."""
    problem = ""
    for attempt in range(_NUM_ATTEMPTS):
        if attempt:
            pause_s = 2 ** (attempt - 1)
            log.info("%s: %s; trying again in %g s (%d of %d)", url, problem, pause_s, attempt + 1, _NUM_ATTEMPTS)
            time.sleep(pause_s)
        begin = part.stat().st_size if part.is_file() else 0
        try:
            if not _transfer(part, url, begin, size_bytes):
                problem = "the connection was cut off"
                continue
        except (requests.RequestException, HTTPError, ConnectionError) as error:
            response = getattr(error, "response", None)
            if response is None:
                problem = f"the connection failed ({error or type(error).__name__})"
                continue
            problem = f"the server answers {response.status_code}"
            if response.status_code >= 500 or response.status_code in _TEMPORARY_STATUS:
                continue
            raise DataError(f"{url}: {problem}. Is the address right? See data.init_args.url.") from error
        if (found := runs.digest(part)) == sha256:
            return
        problem = f"its sha256 is {found}, {sha256} was expected"
        part.unlink()  # complete, but wrong: it cannot be continued
        if begin == 0:
            raise DataError(
                f"{url}: {problem}. The file on the server has changed, or something on the way alters it. Nothing was "
                "kept."
            )
    raise DataError(
        f"{url}: {problem}; gave up after {_NUM_ATTEMPTS} attempts. The bytes so far are kept in {part}: check the "
        "network, then run the same command again to continue."
    )


def _transfer(part: Path, url: str, begin: int, size_bytes: int | None) -> bool:
    """Connect once and append to ``part``, from its start if the server does not continue at byte ``begin``.

    Returns:
        Whether the file has all its bytes.
    """
    headers = {"User-Agent": "lightkit", "Accept-Encoding": "identity"} | (
        {"Range": f"bytes={begin}-"} if begin else {}
    )
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
        if response.status_code == 416:  # no more bytes: it is complete, or too long
            return True
        response.raise_for_status()
        if not response.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
            begin = 0
        length = response.headers.get("Content-Length")
        end = begin + int(length) if length else size_bytes
        if end is not None and shutil.disk_usage(part.parent).free < end - begin:
            raise OSError(errno.ENOSPC, "the disk is full")
        log.info("fetching %s%s", part.stem, f" from byte {begin}" if begin else "")
        response.raw.enforce_content_length = False  # or the last bytes of a broken connection were lost
        chunks = response.raw.stream(_CHUNK_BYTES)
        with part.open("ab" if begin else "wb") as file:
            for chunk in show_progress(chunks, (end or 0) - begin, f"bytes of {part.stem}", size=len):
                file.write(chunk)
    return end is None or part.stat().st_size >= end


def unpack(archive: Path, target: Path, *, member: str) -> None:
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
