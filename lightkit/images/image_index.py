"""Index of a folder of images: files, classes and splits, without the images that cannot be decoded."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightkit import runs
from lightkit.config import shown_path
from lightkit.config.origins import near_files
from lightkit.errors import DataError, join_names, visible
from lightkit.images.image_file import IMAGE_SUFFIXES, walk_files
from lightkit.images.progress import is_first_rank, show_progress
from lightkit.images.splits import Split, split_of
from lightkit.images.verdicts import judge_images
from lightkit.runs.bad_images import BadImage, most_frequent, write_bad_images

log = logging.getLogger("lightkit.data")

_NUM_SHOWN = 5
OnBadImage = Literal["skip", "error"]


class Defect(NamedTuple):
    """An image or row that cannot be used.

    Args:
        name: Its path, or its table and row.
        reason: Why, in a few words.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Photo:
    """One image file that was decoded once.

    Args:
        path: The file.
        label: Its class; counts into the index's ``class_names``.
        digest: SHA-256 of its bytes, hexadecimal.
        height: Of the upright image, in pixels.
        width: In the same way.
    """

    path: Path
    label: int
    digest: str
    height: int
    width: int


@dataclass(frozen=True)
class ImageIndex:
    """All photos of a data set by split; a split that there is none of is an empty list.

    Args:
        class_names: Names of the classes; a photo's label counts into them.
        splits: The photos.
        defects: Files that are left out.
        given: Splits that stand as folders; empty where the content of the photos decides.
    """

    class_names: list[str]
    splits: dict[Split, list[Photo]]
    defects: list[Defect] = field(default_factory=list)
    given: list[Split] = field(default_factory=list)

    @property
    def counts(self) -> dict[Split, int]:
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


def index_images(
    root: Path,
    *,
    val_fraction: float,
    test_fraction: float,
    on_bad_image: OnBadImage = "skip",
    max_bad_fraction: float = 0.05,
) -> ImageIndex:
    """Decode every photo under ``root`` once, and sort it into a class and a split.

    A class whose photos would all go into other splits keeps one for training, with a warning.

    Args:
        root: Holds one folder a class, or ``train``, ``val`` and ``test`` with one folder a class each.
        val_fraction: Share that goes into validation, where no validation folder is given.
        test_fraction: Share that is kept for testing, where no splits are given.
        on_bad_image: `skip` leaves out what cannot be decoded, `error` refuses it.
        max_bad_fraction: Share of all files that may be left out.

    Raises:
        DataError: If the folder, its classes, too many of its files or a split is missing or unusable.
    """
    given = _find_split_folders(root)
    passed_over, unfollowed = Counter[str](), list[Path]()
    folders = given or {"train": root}
    found = {split: class_files(folder, passed_over, unfollowed) for split, folder in folders.items()}
    class_names = found["train"][0]
    for split, (names, _) in found.items():
        if differing := {*names} ^ {*class_names}:
            raise DataError(
                f"{folders[split]} and {folders['train']} differ in their classes ({', '.join(sorted(differing))}). "
                "Every split needs the same class folders: rename or move them."
            )
    if unfollowed:
        log.warning(
            "%d links that lead back up or to another class, whose images would get a wrong label, are not followed: "
            "%s", len(unfollowed), join_names([*map(str, unfollowed)]),
        )  # fmt: skip
    if passed_over:
        log.warning("%s", _describe_others(passed_over))
    paths = [path for _, files in found.values() for path, _ in files]
    # a later scan decodes only content that is new
    verdicts = iter([*show_progress(judge_images(paths), len(paths), "images checked")])
    judged = {split: [(*file, next(verdicts)) for file in files] for split, (_, files) in found.items()}
    every = [(path, verdict) for files in judged.values() for path, _, verdict in files]
    defects = [Defect(str(path), verdict.defect) for path, verdict in every if verdict.defect is not None]
    check_defects(defects, len(every), what=f"images in {root}", on_bad=on_bad_image, max_fraction=max_bad_fraction)
    if defects and runs.current() is None and is_first_rank():  # a run lists them in its folder
        images = "image" if len(defects) == 1 else "images"
        frequent = most_frequent(defect.reason for defect in defects)
        log.warning("%d %s cannot be used and will be left out (%s)", len(defects), images, frequent)
    for label, name in enumerate(class_names):
        reasons = [verdict.defect for _, its_label, verdict in judged["train"] if its_label == label]
        if None not in reasons:
            raise DataError(
                f"{folders['train'] / name}: none of the {len(reasons)} images of this class can be used "
                f"({most_frequent(map(str, reasons))}). Replace them, or remove the folder."
            )
    photos = {
        split: [
            Photo(path, label, verdict.digest, verdict.height, verdict.width)
            for path, label, verdict in files
            if verdict.defect is None
        ]
        for split, files in judged.items()
    }
    _warn_of_copies(photos, class_names)
    splits: dict[Split, list[Photo]] = {"train": [], "val": [], "test": [], **photos}
    if not given or "val" not in given:
        held_out = {"val_fraction": val_fraction, "test_fraction": 0.0 if given else test_fraction}
        parts = _divide(photos["train"], class_names, **held_out)
        splits |= parts if not given else {"train": parts["train"], "val": parts["val"]}
    wanted: dict[Split, bool] = {"train": True, "val": val_fraction > 0, "test": test_fraction > 0 and not given}
    for split, is_wanted in wanted.items():
        if is_wanted and not splits[split]:
            fraction = "test_fraction" if split == "test" else "val_fraction"
            raise DataError(
                f"{root}: the {split} split is empty. Its {sum(map(len, splits.values()))} photos are too few for "
                f"val_fraction and test_fraction: add photos, or change data.init_args.{fraction} (0 goes without)."
            )
    return ImageIndex(class_names, splits, defects, [*given])


def _warn_of_copies(splits: Mapping[Split, Sequence[Photo]], names: Sequence[str]) -> None:
    """Warn of photos that stand byte for byte in several of the given splits, or in several classes."""
    by_split: dict[str, dict[Any, str]] = defaultdict(dict)
    by_class: dict[str, dict[Any, str]] = defaultdict(dict)
    for split, photos in splits.items():
        for photo in photos:
            by_split[photo.digest].setdefault(split, str(photo.path))
            by_class[photo.digest].setdefault(photo.label, f"{photo.path} ({names[photo.label]})")
    for places, effect in (
        (by_split, "one of the given splits, which makes results look better than they are"),
        (by_class, "one class, so that at least one of the labels is wrong"),
    ):
        if shared := [" = ".join(found.values()) for found in places.values() if len(found) > 1]:
            photo_s = "1 photo stands" if len(shared) == 1 else f"{len(shared)} photos stand"
            log.warning("%s byte for byte in more than %s: %s", photo_s, effect, join_names(shared))


def _divide(
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
        more = f" and {len(nearest) - _NUM_SHOWN} more classes" if len(nearest) > _NUM_SHOWN else ""
        log.warning(
            "all photos of %s%s are held out by val_fraction and test_fraction; one of each class is trained on "
            "instead: %s. Add photos of them",
            ", ".join(names[label] for label in sorted(nearest)[:_NUM_SHOWN]), more,
            join_names([str(photo.path) for _, photo in sorted(nearest.items())]),
        )  # fmt: skip
    split_by_digest.update({photo.digest: "train" for photo in nearest.values()})
    splits: dict[Split, list[Photo]] = {"train": [], "val": [], "test": []}
    for photo in photos:
        splits[split_by_digest[photo.digest]].append(photo)
    return splits


_SPLIT_FOLDERS: dict[str, Split] = {
    "train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"
}  # fmt: skip
_HEIC_SUFFIXES = frozenset({".heic", ".heif"})
# What stands next to images on purpose: notes, annotations, and what file managers leave.
_COMPANIONS = frozenset(
    {
        ".cfg", ".csv", ".db", ".html", ".ini", ".json", ".jsonl", ".log", ".md", ".mat", ".npy", ".npz", ".parquet",
        ".pdf", ".py", ".rst", ".sh", ".tsv", ".txt", ".xml", ".xmp", ".yaml", ".yml",
    }
)  # fmt: skip


def _find_split_folders(root: Path) -> dict[Split, Path]:
    """Find the folders in ``root`` that are named after splits; none where a folder named train holds such a class.

    Raises:
        DataError: If the folder is missing, cannot be read or has no folders, or two folders hold one split.
    """
    found: dict[Split, Path] = {}
    for folder in _list_classes(root):
        split = _SPLIT_FOLDERS.get(folder.name.lower())
        if split in found:
            raise DataError(f"{folder} and {found[split]} both hold the {split} split. Leave one of them in place.")
        found |= {} if split is None else {split: folder}
    return found if "train" in found and _list_folders(found["train"]) else {}


def class_files(
    folder: Path, passed_over: Counter[str], unfollowed: list[Path]
) -> tuple[list[str], list[tuple[Path, int]]]:
    """List the images in the class folders of ``folder``, and in all folders below them, by their suffix.

    Args:
        folder: Holds one folder a class.
        passed_over: Gets the suffixes of other files, and how many have each; "" is none.
        unfollowed: Gets the links that lead up, or to another class.

    Returns:
        Names of the classes; and the files, each with its class, which counts into the names.

    Raises:
        DataError: If a folder cannot be read, or a class has no file with an image's suffix.
    """
    classes, found = _list_classes(folder), list[tuple[Path, int]]()
    places = [class_folder.resolve() for class_folder in classes]
    for label, class_folder in enumerate(classes):
        others = Counter[str]()
        files = _find_images(class_folder, [*places[:label], *places[label + 1 :]], others, unfollowed)
        if not files:
            raise DataError(
                f"{class_folder}: this class has no images. Add some ({', '.join(sorted(IMAGE_SUFFIXES))}), or remove "
                f"the folder.{f' {_describe_others(others)}.' if others else ''}"
            )
        found.extend((path, label) for path in sorted(files))
        passed_over.update(others)
    return [class_folder.name for class_folder in classes], found


def _find_images(folder: Path, others: Sequence[Path], passed_over: Counter[str], unfollowed: list[Path]) -> list[Path]:
    """Find visible files with an image's suffix, also in deeper folders and behind links that lead out.

    Args:
        folder: Of the class.
        others: Folders of the other classes, resolved; a link to or above one is not followed.
        passed_over: Gets suffixes of other files.
        unfollowed: Gets links that are not followed.
    """

    def leads_out(link: str) -> bool:
        target = Path(link).resolve()
        if any(target.is_relative_to(other) or other.is_relative_to(target) for other in others):
            unfollowed.append(Path(link))
            return False
        return not target.is_relative_to(folder.resolve())

    files = list[Path]()
    for path in map(Path, walk_files(str(folder), follows=leads_out, once=True)):
        suffix = path.suffix.lower()
        if suffix in IMAGE_SUFFIXES:
            files.append(path)
        elif suffix not in _COMPANIONS:
            passed_over[suffix] += 1
    return files


def _list_folders(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: this data folder cannot be read ({error.strerror}).") from error


def _list_classes(folder: Path) -> list[Path]:
    """List the visible folders of ``folder``, by name.

    Raises:
        DataError: If there are none.
    """
    if not folder.exists():
        where = f"data.init_args.root, from {Path.cwd()}"
        raise DataError(f"{folder}: this data folder does not exist ({where}){near_files(folder) or '.'}")
    if folders := _list_folders(folder):
        return folders
    raise DataError(
        f"{folder}: no class folders here. Expected one folder a class, each with its images (such as "
        f"{folder}/roses/1.jpg), or train/, val/ and test/ with such folders. Set data.init_args.root to the folder "
        "that holds them."
    )


def _describe_others(passed_over: Counter[str]) -> str:
    """Describe how many files are no images by their names, and what to do."""
    kinds = [f"{num} {suffix or 'without suffix'}" for suffix, num in passed_over.most_common()]
    total, heic = passed_over.total(), "; Pillow cannot read HEIC: convert them to JPEG"
    text = f"{total} file{'s' if total > 1 else ''} passed over ({join_names(kinds)})"
    return text if _HEIC_SUFFIXES.isdisjoint(passed_over) else text + heic


def check_defects(
    defects: Sequence[Defect], num_samples: int, *, what: str, on_bad: Literal["skip", "error"], max_fraction: float,
    num_bad: int | None = None, repair: str = "Replace or remove them", most_shown: int | None = None,
) -> None:  # fmt: skip
    """Refuse samples that cannot be used, where none are allowed or there are too many.

    Args:
        defects: The samples, or the first ones.
        num_samples: Number of all samples.
        what: Plural noun for them, with the data that they are in.
        on_bad: Value of ``data.init_args.on_bad_image``.
        max_fraction: Value of ``data.init_args.max_bad_fraction``.
        num_bad: Number of samples that cannot be used, if they are not all in ``defects``.
        repair: What to do about them.
        most_shown: Number of them that the message names where no file lists them; default is all.

    Raises:
        DataError: With the list. Of a run, all of ``defects`` are in its job's folder.
    """
    num = len(defects) if num_bad is None else num_bad
    if not num or (on_bad == "skip" and num <= max_fraction * num_samples):
        return
    advice = f"data.init_args.on_bad_image is error. {repair}, or set it to skip"
    if on_bad == "skip":
        advice = (
            f"that is {num / num_samples:.1%}, and data.init_args.max_bad_fraction allows {max_fraction:.4g}. "
            f"{repair}, or allow more"
        )
    run = runs.current()
    file = None if run is None else run.folder.parent / "bad_images.csv"  # the run's folder goes
    if file is not None and is_first_rank():
        try:
            write_bad_images(file, [BadImage(defect.name, defect.reason, "scan") for defect in defects])
        except OSError:
            file = None
    shown = defects[: most_shown if file is None else _NUM_SHOWN]
    lines = [f"  {visible(defect.name, in_line=True)}: {visible(defect.reason, in_line=True)}" for defect in shown]
    others = [f"and {num - len(shown)} more"] if num > len(shown) else []
    listed = "all" if len(defects) == num else f"the first {len(defects):,}"
    others += [] if file is None else [f"{listed} are listed in {shown_path(file)}"]
    lines += [f"  {'; '.join(others)}"] if others else []
    raise DataError("\n".join([f"{num} of {num_samples} {what} cannot be used; {advice}:", *lines]))
