"""The class folders and files of a folder of photos, found without opening a file."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from lightkit.data.splits import Split
from lightkit.errors import DataError
from lightkit.images.reading import IMAGE_SUFFIXES

__all__ = ["ClassFiles", "class_files", "given_splits", "refuse_other_classes", "tell_passed_over"]

log = logging.getLogger("lightkit.data")

_SPLIT_FOLDERS: dict[str, Split] = {
    "train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"
}  # fmt: skip
_NUM_SHOWN = 5
_HEIC_SUFFIXES = frozenset({".heic", ".heif"})
# What stands beside images on purpose: notes, annotations, and what file managers leave.
_COMPANIONS = frozenset(
    {
        ".cfg", ".csv", ".db", ".html", ".ini", ".json", ".jsonl", ".log", ".md", ".mat", ".npy", ".npz", ".parquet",
        ".pdf", ".py", ".rst", ".sh", ".tsv", ".txt", ".xml", ".xmp", ".yaml", ".yml",
    }
)  # fmt: skip


@dataclass(frozen=True)
class ClassFiles:
    """What has the name of an image, by class.

    Args:
        folder: Holds one folder a class.
        class_names: Names of these folders, in their order.
        files: Each with its class, which counts into the names.
        passed_over: Suffixes of the other files, of how many each; "" is none.
        unfollowed: Links that lead up, or to another class.
    """

    folder: Path
    class_names: list[str]
    files: list[tuple[Path, int]]
    passed_over: Counter[str] = field(default_factory=Counter)
    unfollowed: list[Path] = field(default_factory=list)


def given_splits(root: Path) -> dict[Split, Path]:
    """Give the folders in ``root`` that are named after splits; none where a folder named train holds such a class.

    Raises:
        DataError: If the folder is missing, cannot be read or has no folders, or two folders hold one split.
    """
    found: dict[Split, Path] = {}
    for folder in _folders_in(root):
        split = _SPLIT_FOLDERS.get(folder.name.lower())
        if split is None:
            continue
        if split in found:
            raise DataError(f"{folder} and {found[split]} both hold the {split} split. Leave one of them in place.")
        found[split] = folder
    return found if "train" in found and _has_folders(found["train"]) else {}


def class_files(folder: Path) -> ClassFiles:
    """List the images in the class folders of ``folder``, and in all folders below them, by their suffix.

    Raises:
        DataError: If a folder cannot be read, or a class has no file with an image's suffix.
    """
    classes = _folders_in(folder)
    found = ClassFiles(folder, [class_folder.name for class_folder in classes], [])
    places = [class_folder.resolve() for class_folder in classes]
    for label, class_folder in enumerate(classes):
        walk = _Walk(folder.resolve(), [*places[:label], *places[label + 1 :]])
        images = sorted(walk.images_under(class_folder))
        found.unfollowed.extend(walk.unfollowed)
        found.passed_over.update(walk.passed_over)
        if not images:
            raise DataError(_without_images(class_folder, walk))
        found.files.extend((path, label) for path in images)
    return found


def tell_passed_over(found: Iterable[ClassFiles]) -> None:
    """Say in a line which links are not followed, and in another how many files have no image's suffix."""
    unfollowed = [link for files in found for link in files.unfollowed]
    if unfollowed:
        log.warning(
            "%d link%s back up or to another class, whose images would get a wrong label, and %s not followed: %s",
            len(unfollowed),
            " leads" if len(unfollowed) == 1 else "s lead",
            "is" if len(unfollowed) == 1 else "are",
            _listed(unfollowed),
        )
    passed_over = sum((files.passed_over for files in found), Counter[str]())
    if passed_over:
        log.warning("%s", _words_for(passed_over))


def refuse_other_classes(found: dict[Split, ClassFiles]) -> None:
    """Refuse splits whose classes are not those of training.

    Raises:
        DataError: With the names that differ.
    """
    base = found["train"]
    for other in found.values():
        missing = sorted(set(base.class_names) - set(other.class_names))
        extra = sorted(set(other.class_names) - set(base.class_names))
        if missing or extra:
            parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(extra)} besides"] * bool(extra)
            raise DataError(
                f"{other.folder} {' and '.join(parts)}, compared with {base.folder}. Every split needs the same class "
                "folders: rename or move them."
            )


def _folders_in(folder: Path) -> list[Path]:
    """Visible folders of ``folder``, by name."""
    if not folder.is_dir():
        raise DataError(_missing(folder))
    try:
        folders = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: this data folder cannot be read ({error.strerror}).") from error
    if not folders:
        raise DataError(
            f"{folder}: no class folders here. Expected one folder a class, each with its images (such as "
            f"{folder}/roses/1.jpg), or train/, val/ and test/ with such folders. Set data.init_args.root to the "
            "folder that holds them."
        )
    return folders


def _has_folders(folder: Path) -> bool:
    try:
        return any(entry.is_dir() and not entry.name.startswith(".") for entry in folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: this data folder cannot be read ({error.strerror}).") from error


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


class _Walk:
    """Finds the images of one class, and keeps what it leaves out.

    Args:
        root: Where the folder of all classes really is.
        others: Where those of the other classes really are.
    """

    def __init__(self, root: Path, others: Sequence[Path]) -> None:
        self._root, self._others = root, others
        self.passed_over: Counter[str] = Counter()
        self.unfollowed: list[Path] = []

    def images_under(self, folder: Path) -> Iterator[Path]:
        """Give visible files with an image's suffix, also in deeper folders and behind links that lead out."""
        seen: set[tuple[int, int]] = set()
        for parent, folders, names in os.walk(folder, followlinks=True, onerror=_refuse_unreadable):
            this = _identity(parent)
            if this in seen or self._leads_astray(Path(parent)):
                folders.clear()
                continue
            seen.add(this)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (Path(parent, name) for name in names if self._is_image(name))

    def _leads_astray(self, folder: Path) -> bool:
        """Whether it is a link to the other classes, to one of them, or to what holds one."""
        if not folder.is_symlink():
            return False
        target = folder.resolve()
        is_astray = self._root.is_relative_to(target) or any(
            target.is_relative_to(other) or other.is_relative_to(target) for other in self._others
        )
        if is_astray:
            self.unfollowed.append(folder)
        return is_astray

    def _is_image(self, name: str) -> bool:
        if name.startswith("."):
            return False
        suffix = Path(name).suffix.lower()
        if suffix not in IMAGE_SUFFIXES and suffix not in _COMPANIONS:
            self.passed_over[suffix] += 1
        return suffix in IMAGE_SUFFIXES


def _without_images(folder: Path, walk: _Walk) -> str:
    reason = f" {_words_for(walk.passed_over)}." if walk.passed_over else ""
    if walk.unfollowed:
        reason += f" Not followed, as it leads back up or to another class: {_listed(walk.unfollowed)}."
    suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
    return f"{folder}: this class has no images. Add some ({suffixes}), or remove the folder.{reason}"


def _words_for(passed_over: Counter[str]) -> str:
    """Say how many files are no images by their names, and what to do."""
    kinds = [f"{num} {suffix or 'without suffix'}" for suffix, num in passed_over.most_common(_NUM_SHOWN)]
    more = ["..."] * (len(passed_over) > _NUM_SHOWN)
    total = passed_over.total()
    words = f"{total} file{'s' if total > 1 else ''} passed over ({', '.join(kinds + more)})"
    is_heic = not _HEIC_SUFFIXES.isdisjoint(passed_over)
    return f"{words}; Pillow cannot read HEIC: convert them to JPEG" if is_heic else words


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths[:_NUM_SHOWN])) + (", ..." if len(paths) > _NUM_SHOWN else "")


def _identity(folder: str) -> tuple[int, int]:
    try:
        status = os.stat(folder)  # noqa: PTH116 (os.walk gives strings)
    except OSError as error:
        _refuse_unreadable(error)
    return status.st_dev, status.st_ino


def _refuse_unreadable(error: OSError) -> NoReturn:
    """Nobody knows how many images would be missing; and a folder is put right in a moment."""
    raise DataError(
        f"{error.filename}: this folder cannot be read ({error.strerror}). Make it readable, or move it out of "
        "the data."
    ) from error
