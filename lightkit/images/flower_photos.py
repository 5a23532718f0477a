"""The folder of the flower photos, for training on them and for the digest of the data.

No torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lightkit.errors import DataError

CLASSES = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
DEFAULT_ROOT = Path("data/flower_photos")
FOLDER = "flower_photos"


def flower_photos(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Find the folder of the photos if the config names none; None if there is none.

    Args:
        environ: Environment variables, of which LIGHTKIT_DATA counts: that folder, or its
            ``flower_photos``.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder that does not hold them.
    """
    if named := environ.get("LIGHTKIT_DATA"):
        folder = Path(named).expanduser()
        for candidate in (folder, folder / FOLDER):
            if has_classes(candidate):
                return candidate
        raise DataError(
            f"LIGHTKIT_DATA={named}: {'no flower photos' if folder.is_dir() else 'no such folder'}."
            f" Looked for the folders {', '.join(CLASSES)} in it and in {folder / FOLDER}. Correct"
            " it, unset it, or run `lightkit fetch` to put them there."
        )
    return DEFAULT_ROOT if has_classes(DEFAULT_ROOT) else None


def has_classes(folder: Path) -> bool:
    """Check whether a folder has one folder for each kind of flower."""
    return all((folder / name).is_dir() for name in CLASSES)
