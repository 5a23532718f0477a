"""Unpacking an archive, so that what is there afterwards is complete or absent, and nothing is anywhere else."""

from __future__ import annotations

import gzip
import shutil
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

from lightkit.errors import DataError

__all__ = ["unpack"]


def unpack(archive: Path, target: Path, *, member: str = ".") -> Path:
    """Unpack a tar archive aside, and rename its folder ``member`` to ``target`` when it is complete.

    Raises:
        DataError: If ``target`` has files already, a member would land outside or is no plain file or folder, the
            archive is broken, or the disk is full.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DataError(
            f"{archive}: Python {sys.version.split()[0]} cannot unpack archives safely (tarfile has no data_filter). "
            "Update to the newest patch release of your Python."
        )
    if target.is_dir() and any(target.iterdir()):
        raise DataError(
            f"{target}: there are files here already. Move them away to unpack {archive.name} in their place."
        )
    aside: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        with tarfile.open(archive) as tar:
            tar.extractall(aside, filter=_plain_member)  # noqa: S202 (the filter is below)
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


def _plain_member(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Let files and folders pass that land inside.

    Links are refused altogether: pictures need none, and links are what got past tarfile's own filter (CVE-2025-4517).
    An absolute name is refused too, where the filter would strip the slash.
    """
    if member.name.startswith(("/", "\\")):
        raise tarfile.AbsolutePathError(member)
    if not (member.isfile() or member.isdir()):
        raise tarfile.SpecialFileError(member)
    return tarfile.data_filter(member, folder)
