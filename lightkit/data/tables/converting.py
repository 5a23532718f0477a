"""The photos of a folder as the rows of a table."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

from lightkit.data.image_index import ImageIndex, Photo
from lightkit.data.splits import Split
from lightkit.errors import DataError
from lightkit.images.table_writer import ImageRow

__all__ = ["image_rows"]


def image_rows(catalogue: ImageIndex, images: Path) -> list[ImageRow]:
    """Give every photo as a row.

    Args:
        catalogue: The photos by split.
        images: Folder that they are in, to which paths are relative.

    Raises:
        DataError: If a photo has gone since it was looked at, or two classes have the same name in a table.
    """
    labels = _labels(catalogue.class_names, images)
    return [
        _image_row(photo, images, label=labels[photo.label], split=split)
        for split, photos in catalogue.splits.items()
        for photo in photos
    ]


def _labels(class_names: list[str], images: Path) -> list[str]:
    labels = [_text(name) for name in class_names]
    for at, label in enumerate(labels):
        if label in labels[:at]:
            raise DataError(
                f"{images}: two class folders have the name {label} in a table, which holds text: the bytes of one "
                "of them are no UTF-8. Rename it."
            )
    return labels


def _image_row(photo: Photo, images: Path, *, label: str, split: Split) -> ImageRow:
    try:
        num_bytes = photo.path.stat().st_size
    except OSError as error:
        says = error.strerror or error
        raise DataError(f"{photo.path}: {says}, and was an image a moment ago. Run the same command again.") from error
    return ImageRow(
        file=photo.path,
        path=_text(photo.path.relative_to(images).as_posix()),
        label=label,
        split=split,
        digest=photo.digest,
        num_bytes=num_bytes,
        width=photo.width,
        height=photo.height,
    )


def _text(name: str | PurePath) -> str:
    r"""Write a name as UTF-8; bytes that are none as ``\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
