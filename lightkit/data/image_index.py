"""Index of a folder of images: files, classes and splits, without the images that cannot be decoded."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, NoReturn

from PIL.Image import Image

from lightkit import runs
from lightkit.config import shown_path
from lightkit.data.bad_samples import Defect
from lightkit.data.progress import is_first_rank, show_progress
from lightkit.data.splits import Split, split_of
from lightkit.errors import ConfigError, DataError, visible
from lightkit.images.reading import IMAGE_SUFFIXES, read_rgb
from lightkit.images.verdicts import Verdict, judge_images
from lightkit.runs.bad_images import BadImage, BadImageList, most_frequent

log = logging.getLogger("lightkit.data")

_NUM_SHOWN = 5
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
    return ImageIndex(class_names, splits, defects, [*given])


def _judged(found: Mapping[Split, ClassFiles]) -> dict[Split, list[_Judged]]:
    """Scan all splits at once; a later scan decodes only content that is new."""
    paths = [path for files in found.values() for path, _ in files.files]
    said = iter([*show_progress(judge_images(paths), len(paths), "images checked")])
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


_SPLIT_FOLDERS: dict[str, Split] = {
    "train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"
}  # fmt: skip
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
            _list_entries(unfollowed),
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
        reason += f" Not followed, as it leads back up or to another class: {_list_entries(walk.unfollowed)}."
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


def _list_entries(paths: Sequence[Path]) -> str:
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


OnBadImage = Literal["skip", "error"]


def defects_among(
    judged: Sequence[tuple[Path, Verdict]], *, root: Path, on_bad_image: OnBadImage, max_bad_fraction: float
) -> list[Defect]:
    """Give the files that cannot be used, where it is right to go on without them.

    Args:
        judged: All files.
        root: Folder that they are from.
        on_bad_image: `skip` leaves them out; with `error` there must be none.
        max_bad_fraction: Share of all files that may be left out.

    Raises:
        DataError: With the list, if there are any and none are allowed, or there are too many. Of a run, the whole list
            is in its job's folder.
    """
    defects = [Defect(str(path), verdict.defect) for path, verdict in judged if verdict.defect is not None]
    too_many = len(defects) > max_bad_fraction * len(judged)
    if not defects or (on_bad_image == "skip" and not too_many):
        _tell_nobody_elses(defects)
        return defects
    share = f"{len(defects)} of {len(judged)} images in {root} cannot be used"
    if on_bad_image == "error":
        what = "data.init_args.on_bad_image is error. Replace or remove them, or set it to skip"
    else:
        what = (
            f"that is {len(defects) / len(judged):.1%}, and data.init_args.max_bad_fraction allows "
            f"{max_bad_fraction:.4g}. Replace or remove them, or allow more"
        )
    raise DataError("\n".join([f"{share}; {what}:", *_listed(defects)]))


def check_bad_fraction(max_bad_fraction: float) -> None:
    """Refuse what is no share.

    Raises:
        ConfigError: If it is outside [0, 1].
    """
    if not 0 <= max_bad_fraction <= 1:
        raise ConfigError(
            f"data.init_args.max_bad_fraction: expected a share from 0 to 1 of all images, got {max_bad_fraction}"
        )


def _listed(defects: Sequence[Defect]) -> list[str]:
    """Name the first few, and where all are; outside of a run nowhere but here."""
    place = _written(defects)
    shown = defects if place is None else defects[:_NUM_SHOWN]
    lines = [f"  {visible(defect.name, in_line=True)}: {visible(defect.reason, in_line=True)}" for defect in shown]
    more = f"  and {len(defects) - len(shown)} more; " if len(defects) > len(shown) else "  "
    return lines if place is None else [*lines, f"{more}all are listed in {shown_path(place)}"]


def _written(defects: Sequence[Defect]) -> Path | None:
    """Write the whole list beside the run's folder, which is removed where training could not begin."""
    run = runs.current()
    if run is None:
        return None
    place = run.folder.parent / "bad_images.csv"
    if is_first_rank():
        try:
            BadImageList(place).write(BadImage(defect.name, defect.reason, "scan") for defect in defects)
        except OSError:
            return None
    return place


def _tell_nobody_elses(defects: Sequence[Defect]) -> None:
    """Say what is left out where no run does, which lists them in its folder."""
    if defects and runs.current() is None and is_first_rank():
        reasons = most_frequent(defect.reason for defect in defects)
        images = "image" if len(defects) == 1 else "images"
        log.warning("%d %s cannot be used and will be left out (%s)", len(defects), images, reasons)
