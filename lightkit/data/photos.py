"""Finding the photos of a folder, their classes and their splits, and refusing what cannot be trained on."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from PIL.Image import Image

from lightkit.data.splits import Split, content_digest, split_of
from lightkit.errors import DataError
from lightkit.images.reading import IMAGE_SUFFIXES, defect_of, pillow_warnings, read_rgb

__all__ = ["Catalogue", "Photo", "PhotoFiles", "catalogue_of"]

log = logging.getLogger("lightkit.data")

_SPLIT_FOLDERS: dict[str, Split] = {
    "train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"
}  # fmt: skip
_NUM_SHOWN = 5


@dataclass(frozen=True)
class Photo:
    """One image file; ``label`` counts into the catalogue's ``class_names``."""

    path: Path
    label: int
    digest: str


@dataclass(frozen=True)
class Catalogue:
    """All photos of a data set by split; a split that there is none of is an empty list."""

    class_names: list[str]
    splits: dict[Split, list[Photo]]

    @property
    def counts(self) -> dict[str, int]:
        """Photos of each split."""
        return {split: len(photos) for split, photos in self.splits.items()}

    @property
    def fingerprint(self) -> str:
        """SHA-256 over split, class and content of every photo; names and places of files do not count."""
        lines = sorted(
            f"{split}\0{self.class_names[photo.label]}\0{photo.digest}\n"
            for split, photos in self.splits.items()
            for photo in photos
        )
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


class PhotoFiles:
    """A split's photos as decoded images with their labels.

    Args:
        photos: The split.
    """

    def __init__(self, photos: Sequence[Photo]) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        photo = self.photos[index]
        return read_rgb(photo.path), photo.label


def catalogue_of(root: Path, *, val_fraction: float, test_fraction: float) -> Catalogue:
    """Read every photo under ``root``, and sort it into a class and a split.

    Args:
        root: Holds one folder a class, or ``train``, ``val`` and ``test`` with one folder a class each.
        val_fraction: Share that goes into validation, where no validation folder is given.
        test_fraction: Share that is kept for testing, where no splits are given.

    Raises:
        DataError: If the folder, its classes, one of its files or a split is missing or unusable.
    """
    given = _given_splits(_class_folders(root, required=f"{root}: no class folders here."))
    if given:
        splits, class_names = _read_given(given, val_fraction)
    else:
        photos, class_names = _read_classes(root)
        splits = _split(photos, val_fraction=val_fraction, test_fraction=test_fraction)
    _refuse_empty(splits, class_names, root, val_wanted=val_fraction > 0, test_wanted=test_fraction > 0 and not given)
    return Catalogue(class_names, splits)


def _class_folders(folder: Path, *, required: str) -> list[Path]:
    """Visible folders of ``folder``, by name."""
    if not folder.is_dir():
        raise DataError(_missing(folder))
    try:
        folders = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: this data folder cannot be read ({error.strerror}).") from error
    if not folders:
        raise DataError(
            f"{required} Expected one folder a class, each with its images (such as {folder}/roses/1.jpg), or train/, "
            f"val/ and test/ with such folders. Set data.init_args.root to the folder that holds them."
        )
    return folders


def _missing(folder: Path) -> str:
    if folder.exists():
        return f"{folder}: data.init_args.root is a file. Expected a folder with one folder a class."
    parent = next(parent for parent in folder.absolute().parents if parent.is_dir())
    missing = folder.absolute().relative_to(parent).parts[0]
    try:
        siblings = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
    except OSError:
        siblings = []
    near = [str(parent / name) for name in get_close_matches(missing, siblings, n=3)]
    shown = ", ".join(siblings[:_NUM_SHOWN]) + (", ..." if len(siblings) > _NUM_SHOWN else "")
    hint = f"did you mean {' or '.join(near)}?" if near else f"folders in {parent}: {shown or 'none'}."
    return f"{folder}: this data folder does not exist (data.init_args.root, from {Path.cwd()}); {hint}"


def _given_splits(folders: list[Path]) -> dict[Split, Path]:
    """The split folders among ``folders``; none where a folder named train holds a class of that name."""
    found: dict[Split, Path] = {}
    for folder in folders:
        split = _SPLIT_FOLDERS.get(folder.name.lower())
        if split is None:
            continue
        if split in found:
            raise DataError(f"{folder} and {found[split]} both hold the {split} split. Leave one of them in place.")
        found[split] = folder
    if "train" not in found:
        return {}
    has_folders = any(entry.is_dir() and not entry.name.startswith(".") for entry in found["train"].iterdir())
    return found if has_folders else {}


def _read_given(given: dict[Split, Path], val_fraction: float) -> tuple[dict[Split, list[Photo]], list[str]]:
    read = {split: _read_classes(folder) for split, folder in given.items()}
    _refuse_other_classes({str(given[split]): names for split, (_, names) in read.items()}, base=str(given["train"]))
    _warn_of_copies({split: photos for split, (photos, _) in read.items()})
    splits: dict[Split, list[Photo]] = {"train": [], "val": [], "test": []}
    splits.update({split: photos for split, (photos, _) in read.items()})
    if "val" not in given:
        parts = _split(splits["train"], val_fraction=val_fraction, test_fraction=0)
        splits["train"], splits["val"] = parts["train"], parts["val"]
    return splits, read["train"][1]


def _refuse_other_classes(names_of: dict[str, list[str]], *, base: str) -> None:
    for folder, names in names_of.items():
        missing, extra = sorted(set(names_of[base]) - set(names)), sorted(set(names) - set(names_of[base]))
        if missing or extra:
            parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(extra)} besides"] * bool(extra)
            raise DataError(
                f"{folder} {' and '.join(parts)}, compared with {base}. Every split needs the same class folders: "
                "rename or move them."
            )


def _warn_of_copies(splits: dict[Split, list[Photo]]) -> None:
    places: dict[str, dict[Split, Path]] = defaultdict(dict)
    for split, photos in splits.items():
        for photo in photos:
            places[photo.digest].setdefault(split, photo.path)
    shared = [list(found.values()) for found in places.values() if len(found) > 1]
    if shared:
        shown = "; ".join(" = ".join(map(str, paths)) for paths in shared[:_NUM_SHOWN])
        log.warning(
            "%d photos stand byte for byte in more than one of the given splits, which makes results look better than "
            "they are: %s%s",
            len(shared), shown, "; ..." if len(shared) > _NUM_SHOWN else "",
        )  # fmt: skip


def _read_classes(folder: Path) -> tuple[list[Photo], list[str]]:
    """Digest every image in the class folders of ``folder``."""
    classes = _class_folders(folder, required=f"{folder}: no class folders here.")
    files: list[tuple[Path, int]] = []
    for label, class_folder in enumerate(classes):
        images = sorted(_images_under(class_folder))
        if not images:
            raise DataError(
                f"{class_folder}: this class has no images. Add some ({', '.join(sorted(IMAGE_SUFFIXES))}), or "
                "remove the folder."
            )
        files.extend((path, label) for path in images)
    # a digest and a look at the header both wait for the disk, and hashlib lets other threads run meanwhile
    with pillow_warnings(), ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        examined = list(pool.map(_examine, [path for path, _ in files]))
    _refuse_defects((path, defect) for (path, _), (_, defect) in zip(files, examined, strict=True))
    photos = [Photo(path, label, digest) for (path, label), (digest, _) in zip(files, examined, strict=True)]
    return photos, [class_folder.name for class_folder in classes]


def _images_under(folder: Path) -> Iterator[Path]:
    """Visible files with an image's suffix, also in deeper folders and behind links."""
    seen: set[tuple[int, int]] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        status = os.stat(parent)  # noqa: PTH116 (os.walk gives strings)
        if (status.st_dev, status.st_ino) in seen:  # a link that leads back up
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES:
                yield Path(parent, name)


def _examine(path: Path) -> tuple[str, str | None]:
    """A file's digest, and what is wrong with it if it is no image."""
    defect = defect_of(path)
    return ("", defect) if defect else (content_digest(path), None)


def _refuse_defects(examined: Iterable[tuple[Path, str | None]]) -> None:
    broken = [f"  {path}: {defect}" for path, defect in examined if defect]
    if broken:
        more = [f"  and {len(broken) - _NUM_SHOWN} more"] if len(broken) > _NUM_SHOWN else []
        raise DataError(
            f"{len(broken)} files have an image's name, but are none. Replace or remove them:\n"
            + "\n".join(broken[:_NUM_SHOWN] + more)
        )


def _split(photos: list[Photo], *, val_fraction: float, test_fraction: float) -> dict[Split, list[Photo]]:
    splits: dict[Split, list[Photo]] = {"train": [], "val": [], "test": []}
    for photo in photos:
        splits[split_of(photo.digest, val_fraction=val_fraction, test_fraction=test_fraction)].append(photo)
    return splits


def _refuse_empty(
    splits: dict[Split, list[Photo]], class_names: list[str], root: Path, *, val_wanted: bool, test_wanted: bool
) -> None:
    wanted: dict[Split, bool] = {"train": True, "val": val_wanted, "test": test_wanted}
    for split, is_wanted in wanted.items():
        if is_wanted and not splits[split]:
            fraction = "test_fraction" if split == "test" else "val_fraction"
            raise DataError(
                f"{root}: the {split} split is empty. Its {sum(map(len, splits.values()))} photos are too few for "
                f"val_fraction and test_fraction: add photos, or change data.init_args.{fraction} (0 goes without)."
            )
    absent = set(range(len(class_names))) - {photo.label for photo in splits["train"]}
    if absent:
        names = ", ".join(class_names[label] for label in sorted(absent))
        raise DataError(
            f"{root}: no photo of {names} is left for training, all are in the other splits. Add photos of it, or make "
            "data.init_args.val_fraction and test_fraction smaller."
        )
