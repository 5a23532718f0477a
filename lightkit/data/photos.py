"""The photos of a folder, their classes and their splits, without those that cannot be trained on."""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL.Image import Image

from lightkit.data.class_folders import ClassFiles, class_files, given_splits, refuse_other_classes, tell_passed_over
from lightkit.data.defects import Defect
from lightkit.data.scanning import OnBadImage, check_bad_fraction, defects_among, scanned
from lightkit.data.splits import Split, split_of
from lightkit.errors import DataError
from lightkit.images.reading import read_rgb
from lightkit.images.verdicts import Verdict
from lightkit.runs.bad_images import most_frequent

__all__ = ["Catalogue", "Photo", "PhotoFiles", "catalogue_of"]

log = logging.getLogger("lightkit.data")

_NUM_SHOWN = 5
_OF_FIT: tuple[Split, ...] = ("train", "val")
_Judged = tuple[Path, int, Verdict]  # file, class, what was found


@dataclass(frozen=True)
class Photo:
    """One image file that was decoded once.

    Args:
        path: The file.
        label: Its class; counts into the catalogue's ``class_names``.
        digest: SHA-256 of its bytes, hexadecimal.
        height: Of the upright image, in pixels.
        width: In the same way.
        is_jpeg: Whether any decoder of the JPEG library reads it as Pillow does, see `Verdict`.
    """

    path: Path
    label: int
    digest: str
    height: int
    width: int
    is_jpeg: bool


@dataclass(frozen=True)
class Catalogue:
    """All photos of a data set by split; a split that there is none of is an empty list.

    Args:
        class_names: Names of the classes; a photo's label counts into them.
        splits: The photos.
        defects: Files that are left out.
    """

    class_names: list[str]
    splits: dict[Split, list[Photo]]
    defects: list[Defect] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Photos of each split."""
        return {split: len(photos) for split, photos in self.splits.items()}

    @property
    def of_fit(self) -> dict[Split, list[Photo]]:
        """Photos that a fit reads: those of training and validation."""
        return {split: self.splits[split] for split in _OF_FIT}

    @property
    def num_in_fit(self) -> int:
        """Number of photos that a fit reads."""
        return sum(map(len, self.of_fit.values()))

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


def catalogue_of(
    root: Path,
    *,
    val_fraction: float,
    test_fraction: float,
    on_bad_image: OnBadImage = "skip",
    max_bad_fraction: float = 0.05,
) -> Catalogue:
    """Decode every photo under ``root`` once, and sort it into a class and a split.

    A class whose photos would all go into other splits keeps one for training, with a warning.

    Args:
        root: Holds one folder a class, or ``train``, ``val`` and ``test`` with one folder a class each.
        val_fraction: Share that goes into validation, where no validation folder is given.
        test_fraction: Share that is kept for testing, where no splits are given.
        on_bad_image: `skip` leaves out what cannot be decoded, `error` refuses it.
        max_bad_fraction: Share of all files that may be left out.

    Raises:
        ConfigError: If ``max_bad_fraction`` is no share.
        DataError: If the folder, its classes, too many of its files or a split is missing or unusable.
    """
    check_bad_fraction(max_bad_fraction)
    given = given_splits(root)
    found = {split: class_files(folder) for split, folder in given.items()} or {"train": class_files(root)}
    refuse_other_classes(found)
    tell_passed_over(list(found.values()))
    judged = _judged(found)
    every = [(file, verdict) for files in judged.values() for file, _, verdict in files]
    defects = defects_among(every, root=root, on_bad_image=on_bad_image, max_bad_fraction=max_bad_fraction)
    _refuse_unusable_classes(found["train"], judged["train"])
    photos = {split: _usable(files) for split, files in judged.items()}
    _warn_of_copies(photos)
    class_names = found["train"].class_names
    _warn_of_contradictions(photos, class_names)
    splits = _splits(photos, is_given=bool(given), names=class_names, val=val_fraction, test=test_fraction)
    _refuse_empty(splits, root, val_wanted=val_fraction > 0, test_wanted=test_fraction > 0 and not given)
    return Catalogue(class_names, splits, defects)


def _judged(found: Mapping[Split, ClassFiles]) -> dict[Split, list[_Judged]]:
    """Scan all splits at once."""
    said = iter(scanned([path for files in found.values() for path, _ in files.files]))
    return {split: [(path, label, next(said)) for path, label in files.files] for split, files in found.items()}


def _refuse_unusable_classes(found: ClassFiles, judged: Sequence[_Judged]) -> None:
    usable = {label for _, label, verdict in judged if verdict.defect is None}
    for label, name in enumerate(found.class_names):
        if label not in usable:
            reasons = [verdict.defect or "" for _, its_label, verdict in judged if its_label == label]
            raise DataError(
                f"{found.folder / name}: none of the {len(reasons)} images of this class can be used "
                f"({most_frequent(reasons)}). Replace them, or remove the folder."
            )


def _usable(judged: Sequence[_Judged]) -> list[Photo]:
    return [
        Photo(path, label, verdict.digest, verdict.height, verdict.width, verdict.is_jpeg)
        for path, label, verdict in judged
        if verdict.defect is None
    ]


def _warn_of_copies(splits: Mapping[Split, Sequence[Photo]]) -> None:
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


def _warn_of_contradictions(splits: Mapping[Split, Sequence[Photo]], names: Sequence[str]) -> None:
    places: dict[str, dict[int, Path]] = defaultdict(dict)
    for photos in splits.values():
        for photo in photos:
            places[photo.digest].setdefault(photo.label, photo.path)
    shared = [list(found.items()) for found in places.values() if len(found) > 1]
    if shared:
        shown = "; ".join(
            " = ".join(f"{path} ({names[label]})" for label, path in found) for found in shared[:_NUM_SHOWN]
        )
        log.warning(
            "%d photo%s byte for byte in more than one class, so that at least one of the labels is wrong: %s%s",
            len(shared), " stands" if len(shared) == 1 else "s stand",
            shown, "; ..." if len(shared) > _NUM_SHOWN else "",
        )  # fmt: skip


def _splits(
    photos: Mapping[Split, list[Photo]], *, is_given: bool, names: Sequence[str], val: float, test: float
) -> dict[Split, list[Photo]]:
    splits: dict[Split, list[Photo]] = {"train": [], "val": [], "test": [], **photos}
    if not is_given:
        return _divided(photos["train"], names, val_fraction=val, test_fraction=test)
    if "val" in photos:
        return splits
    parts = _divided(photos["train"], names, val_fraction=val, test_fraction=0)
    return {**splits, "train": parts["train"], "val": parts["val"]}


def _divided(
    photos: Sequence[Photo], names: Sequence[str], *, val_fraction: float, test_fraction: float
) -> dict[Split, list[Photo]]:
    """Divide photos by their content; of each class there is one to train on."""
    split_by_digest = {
        photo.digest: split_of(photo.digest, val_fraction=val_fraction, test_fraction=test_fraction) for photo in photos
    }
    trained = {photo.label for photo in photos if split_by_digest[photo.digest] == "train"}
    nearest: dict[int, Photo] = {}  # training is at the upper end of the digests
    for photo in photos:
        if photo.label not in trained:
            nearest[photo.label] = max(photo, nearest.get(photo.label, photo), key=lambda one: one.digest)
    if nearest:
        _tell_moved([(names[label], photo.path) for label, photo in sorted(nearest.items())])
    split_by_digest.update({photo.digest: "train" for photo in nearest.values()})
    splits: dict[Split, list[Photo]] = {"train": [], "val": [], "test": []}
    for photo in photos:
        splits[split_by_digest[photo.digest]].append(photo)
    return splits


def _tell_moved(moved: Sequence[tuple[str, Path]]) -> None:
    more = f" and {len(moved) - _NUM_SHOWN} more classes" if len(moved) > _NUM_SHOWN else ""
    log.warning(
        "all photos of %s%s are held out by val_fraction and test_fraction; one of each class is trained on instead: "
        "%s%s. Add photos of them",
        ", ".join(name for name, _ in moved[:_NUM_SHOWN]), more,
        ", ".join(str(path) for _, path in moved[:_NUM_SHOWN]), more and ", ...",
    )  # fmt: skip


def _refuse_empty(splits: Mapping[Split, Sequence[Photo]], root: Path, *, val_wanted: bool, test_wanted: bool) -> None:
    wanted: dict[Split, bool] = {"train": True, "val": val_wanted, "test": test_wanted}
    for split, is_wanted in wanted.items():
        if is_wanted and not splits[split]:
            fraction = "test_fraction" if split == "test" else "val_fraction"
            raise DataError(
                f"{root}: the {split} split is empty. Its {sum(map(len, splits.values()))} photos are too few for "
                f"val_fraction and test_fraction: add photos, or change data.init_args.{fraction} (0 goes without)."
            )
