"""Index of a folder of images: files, classes and splits, without undecodable images."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightkit import runs
from lightkit.config import shown_path
from lightkit.config.origins import near_files
from lightkit.errors import DataError, format_count, join_names, visible
from lightkit.images.image_file import IMAGE_SUFFIXES, walk_files
from lightkit.images.progress import is_first_rank, show_progress
from lightkit.images.splits import Split, split_named, split_of
from lightkit.images.verdicts import Verdict, judge_images
from lightkit.runs.bad_images import BadImage, most_frequent, write_bad_images

log = logging.getLogger("lightkit.data")

_NUM_SHOWN = 5
OnBadImage = Literal["skip", "error"]
Label = int | tuple[int, ...]
"""Number of a class, or 0 or 1 for each of several labels."""


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
        label: Its class; counts into the index's ``class_names``. Of labels that are independent, 0
            or 1 for each.
        digest: SHA-256 of its bytes, hexadecimal.
        height: Of the upright image, in pixels.
        width: In the same way.
    """

    path: Path
    label: Label
    digest: str
    height: int
    width: int

    @property
    def classes(self) -> tuple[int, ...]:
        """Numbers of its class, or of the labels that it has."""
        if isinstance(self.label, int):
            return (self.label,)
        return tuple(number for number, is_there in enumerate(self.label) if is_there)


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

    def name_label(self, photo: Photo) -> str:
        """Return the name of a photo's class, or the names of its labels joined by line breaks."""
        return "\n".join(self.class_names[number] for number in photo.classes)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over split, class and content of every photo.

        Names and places of files do not count.
        """
        lines = sorted(
            f"{split}\0{self.name_label(photo)}\0{photo.digest}\n"
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
        root: Holds one folder a class, or ``train``, ``val`` and ``test`` with one folder a class
            each.
        val_fraction: Share that goes into validation, where no validation folder is given.
        test_fraction: Share that is kept for testing, where no splits are given.
        on_bad_image: `skip` leaves out what cannot be decoded, `error` refuses it.
        max_bad_fraction: Share of all files that may be left out.

    Raises:
        DataError: If the folder, its classes, too many of its files or a split is missing or
            unusable.
    """
    _list_classes(root)
    given = find_split_folders(root)
    _warn_of_other_folders(root, given)
    folders = given or {"train": root}
    class_names, files = _list_files(folders)
    return index_files(
        root, class_names, files, given=given, val_fraction=val_fraction,
        test_fraction=test_fraction,
        on_bad_image=on_bad_image, max_bad_fraction=max_bad_fraction,
        locate=lambda name: str(folders["train"] / name),
    )  # fmt: skip


def index_files(
    root: Path,
    class_names: list[str],
    files: Mapping[Split, Sequence[tuple[Path, Label]]],
    *,
    given: Mapping[Split, Path],
    val_fraction: float,
    test_fraction: float,
    on_bad_image: OnBadImage,
    max_bad_fraction: float,
    locate: Callable[[str], str],
) -> ImageIndex:
    """Decode every photo once, and sort it into a split.

    Args:
        root: Folder or table that names the photos, for messages.
        class_names: Names of the classes; a label counts into them.
        files: Photos of each split with their labels; all of them under ``train`` where no splits
            are given.
        given: Splits that are given, and where they are.
        val_fraction: As for `index_images`.
        test_fraction: Likewise.
        on_bad_image: Likewise.
        max_bad_fraction: Likewise.
        locate: Names a class in messages.

    Raises:
        DataError: If too many files are unusable, or a class or a split has none.
    """
    # A later scan decodes only content that is new.
    judged, defects = _judge_files(files)
    num_files = sum(map(len, files.values()))
    check_defects(
        defects,
        num_files,
        what=f"images in {root}",
        on_bad=on_bad_image,
        max_fraction=max_bad_fraction,
    )
    if runs.current() is None and is_first_rank():  # a run lists them in its folder
        _warn_of_defects(defects)
    _require_usable_classes(class_names, judged["train"], locate)

    photos = {split: _list_photos(each) for split, each in judged.items()}
    _warn_of_copies(photos, class_names)
    for split in given:
        _warn_of_missing_classes(split, given[split], photos[split], class_names)

    # The content of the photos decides where no folders do.
    splits: dict[Split, list[Photo]] = {"train": [], "val": [], "test": [], **photos}
    if not given:
        splits |= _divide(
            photos["train"], class_names, val_fraction=val_fraction, test_fraction=test_fraction
        )
    elif "val" not in given:
        parts = _divide(photos["train"], class_names, val_fraction=val_fraction, test_fraction=0.0)
        splits["train"] = parts["train"]
        splits["val"] = parts["val"]
    wanted: list[Split] = ["train"]
    if val_fraction > 0:
        wanted.append("val")
    if test_fraction > 0 and not given:
        wanted.append("test")
    _require_splits(root, splits, wanted)
    return ImageIndex(class_names, splits, defects, [*given])


_Judged = tuple[Path, Label, Verdict]
"""A file, the label of its class, and the verdict on its content."""


def _list_files(
    folders: Mapping[Split, Path],
) -> tuple[list[str], dict[Split, list[tuple[Path, int]]]]:
    """List the images of each split with their labels.

    Warn of other files and of links that are not followed.

    The training split has the classes; another one may lack some of them.

    Returns:
        The names of the classes; and by split the files, each with its label.
    """
    passed_over = Counter[str]()
    unfollowed = list[Path]()
    class_names, of_train = class_files(folders["train"], passed_over, unfollowed)
    files: dict[Split, list[tuple[Path, int]]] = {"train": of_train}
    for split, folder in folders.items():
        if split != "train":
            _, files[split] = class_files(folder, passed_over, unfollowed, trained=class_names)
    if unfollowed:
        log.warning(
            "%d links that lead back up or to another class, whose images would get a wrong label, "
            "are not followed: %s", len(unfollowed), join_names([*map(str, unfollowed)]),
        )  # fmt: skip
    if passed_over:
        log.warning("%s", _describe_others(passed_over))
    return class_names, files


def _judge_files(
    files: Mapping[Split, Sequence[tuple[Path, Label]]],
) -> tuple[dict[Split, list[_Judged]], list[Defect]]:
    """Decode each image once, or read the verdict on its content.

    Return the verdicts, and the files with a defect.
    """
    paths = [path for of_split in files.values() for path, _ in of_split]
    verdicts = iter([*show_progress(judge_images(paths), len(paths), "images checked")])
    judged: dict[Split, list[_Judged]] = {}
    defects = []
    for split, of_split in files.items():
        judged[split] = []
        for path, label in of_split:
            verdict = next(verdicts)
            judged[split].append((path, label, verdict))
            if verdict.defect is not None:
                defects.append(Defect(str(path), verdict.defect))
    return judged, defects


def _warn_of_defects(defects: Sequence[Defect]) -> None:
    if not defects:
        return
    frequent = most_frequent(defect.reason for defect in defects)
    log.warning(
        "%s cannot be used and will be left out (%s)", format_count(len(defects), "image"), frequent
    )


def _require_usable_classes(
    class_names: Sequence[str], judged: Sequence[_Judged], locate: Callable[[str], str]
) -> None:
    """Check that each class has an image to train on.

    Raises:
        DataError: If none of the images of a class can be used.
    """
    for number, name in enumerate(class_names):
        reasons = [verdict.defect for _, label, verdict in judged if _is_of_class(label, number)]
        if reasons and None not in reasons:
            raise DataError(
                f"{locate(name)}: none of the {len(reasons)} images of this class can be used "
                f"({most_frequent(map(str, reasons))}). Replace them, or remove the folder."
            )


def _is_of_class(label: Label, number: int) -> bool:
    return label == number if isinstance(label, int) else bool(label[number])


def _list_photos(judged: Sequence[_Judged]) -> list[Photo]:
    return [
        Photo(path, label, verdict.digest, verdict.height, verdict.width)
        for path, label, verdict in judged
        if verdict.defect is None
    ]


def _require_splits(
    root: Path, splits: Mapping[Split, Sequence[Photo]], wanted: Sequence[Split]
) -> None:
    """Check that each split that is wanted has photos.

    Raises:
        DataError: If one has none.
    """
    for split in wanted:
        if splits[split]:
            continue
        fraction = "test_fraction" if split == "test" else "val_fraction"
        raise DataError(
            f"{root}: the {split} split is empty. Its {sum(map(len, splits.values()))} photos are"
            " too few for val_fraction and test_fraction: add photos, or change"
            f" data.init_args.{fraction} (0 goes without)."
        )


def _warn_of_missing_classes(
    split: Split, folder: Path, photos: Sequence[Photo], class_names: Sequence[str]
) -> None:
    """Warn of classes that a given split has no photo of.

    Raises:
        DataError: If it has no photo at all.
    """
    present = {number for photo in photos for number in photo.classes}
    missing = [name for label, name in enumerate(class_names) if label not in present]
    if not photos:
        raise DataError(
            f"{folder}: the {split} split has no images. Add some, or remove the folder."
        )
    if missing:
        log.warning(
            "%s: the %s split has no images of %s (%d of %d classes), so its scores say nothing of "
            "them. Add some",
            visible(str(folder), in_line=True), split,
            join_names([visible(name, in_line=True) for name in missing]),
            len(missing), len(class_names),
        )  # fmt: skip


def _warn_of_copies(splits: Mapping[Split, Sequence[Photo]], names: Sequence[str]) -> None:
    """Warn of photos whose files are equal and are in several of the given splits.

    Warn of those in several classes, too.
    """
    by_split: dict[str, dict[Any, str]] = defaultdict(dict)
    by_class: dict[str, dict[Any, str]] = defaultdict(dict)
    for split, photos in splits.items():
        for photo in photos:
            by_split[photo.digest].setdefault(split, str(photo.path))
            labels = ", ".join(names[number] for number in photo.classes)
            by_class[photo.digest].setdefault(photo.label, f"{photo.path} ({labels})")
    for places, effect in (
        (by_split, "one of the given splits, which makes results look better than they are"),
        (by_class, "one class, so that at least one of the labels is wrong"),
    ):
        if shared := [" = ".join(found.values()) for found in places.values() if len(found) > 1]:
            are_in = format_count(len(shared), "photo is", "photos are")
            log.warning(
                "%s in more than %s (the files are equal): %s", are_in, effect, join_names(shared)
            )


def _divide(
    photos: Sequence[Photo], names: Sequence[str], *, val_fraction: float, test_fraction: float
) -> dict[Split, list[Photo]]:
    """Divide photos by their content; of each class there is one to train on."""
    split_by_digest = {
        photo.digest: split_of(photo.digest, val_fraction=val_fraction, test_fraction=test_fraction)
        for photo in photos
    }
    trained = {
        number
        for photo in photos
        if split_by_digest[photo.digest] == "train"
        for number in photo.classes
    }
    nearest: dict[int, Photo] = {}  # training is at the upper end of the digests
    for photo in photos:
        for number in photo.classes:
            if number not in trained:
                nearest[number] = max(photo, nearest.get(number, photo), key=lambda one: one.digest)
    if nearest:
        more = f" and {len(nearest) - _NUM_SHOWN} more classes" if len(nearest) > _NUM_SHOWN else ""
        log.warning(
            "all photos of %s%s are held out by val_fraction and test_fraction; one of each class "
            "is trained on instead: %s. Add photos of them",
            ", ".join(names[label] for label in sorted(nearest)[:_NUM_SHOWN]), more,
            join_names([str(photo.path) for _, photo in sorted(nearest.items())]),
        )  # fmt: skip
    split_by_digest.update({photo.digest: "train" for photo in nearest.values()})
    splits: dict[Split, list[Photo]] = {"train": [], "val": [], "test": []}
    for photo in photos:
        splits[split_by_digest[photo.digest]].append(photo)
    return splits


# A folder of segmentation data by the letters of its name, and one of the masks that belong to its
# images.
_IMAGE_FOLDERS = frozenset(
    {"image", "images", "img", "imgs", "jpegimages", "photo", "photos", "input", "inputs"}
)
_MASK_FOLDERS = frozenset(
    {
        "annotation", "annotations", "groundtruth", "gt", "label", "labels", "mask", "masks", "seg",
        "segmentation", "segmentationclass", "segmentations", "target", "targets",
    }
)  # fmt: skip
_MOST_FOLDERS = 4
"""A folder of images and masks has few others, such as notes; one of many classes may have one
named photos."""
_MASK_ENDING = re.compile(r"[_\-. ]?(mask|masks|seg|segmentation|label|labels|gt)$")
_HEIC_SUFFIXES = frozenset({".heic", ".heif"})
# What stands next to images on purpose: notes, annotations, and what file managers leave.
_COMPANIONS = frozenset(
    {
        ".cfg", ".csv", ".db", ".html", ".ini", ".json", ".jsonl", ".log", ".md", ".mat", ".npy",
        ".npz", ".parquet", ".pdf", ".py", ".rst", ".sh", ".tsv", ".txt", ".xml", ".xmp", ".yaml",
        ".yml",
    }
)  # fmt: skip


def find_split_folders(root: Path) -> dict[Split, Path]:
    """Find the folders in ``root`` that are named after splits; none where its folders are classes.

    They are splits if the one of training has folders itself; a class may be named train.

    Raises:
        DataError: If the folder cannot be read, two folders hold one split, or all are named after
            splits and none holds the training split's classes.
    """
    named = [(split_named(folder.name), folder) for folder in list_folders(root)]
    splits = [
        (split, folder)
        for split, folder in named
        if split is not None and (split != "train" or list_folders(folder))
    ]
    if all(split != "train" for split, _ in splits):
        _refuse_untrained_splits(root, named)
        return {}

    # each split is one folder
    found: dict[Split, Path] = {}
    for split, folder in splits:
        if split in found:
            raise DataError(
                f"{folder} and {found[split]} both hold the {split}"
                " split. Leave one of them in place."
            )
        found[split] = folder

    return found


def _refuse_untrained_splits(root: Path, named: Sequence[tuple[Split | None, Path]]) -> None:
    """Refuse folders that are all named after splits, where none has the classes of training.

    Args:
        root: The folder with the folders.
        named: Each folder with the split that it is named after; None for a folder of a class.

    Raises:
        DataError: If all are named so.
    """
    if len(named) < 2 or any(split is None for split, _ in named):
        return
    names = join_names([f"{visible(folder.name, in_line=True)}/" for _, folder in named])
    raise DataError(
        f"{root}: its folders {names} are named after splits, and none of them is a"
        " training split with one folder a class. Expected train/, and val/ or test/ if"
        f" there are any, each with the class folders (such as {root}/train/roses/1.jpg),"
        " or one folder a class, with other names."
    )


def check_class_folders(root: Path) -> None:
    """Check that folders are those of splits and classes.

    Also check that each class of the training has an image by its name.

    Raises:
        DataError: As `find_split_folders` and `class_files` do.
    """
    folder = find_split_folders(root).get("train", root)
    for class_folder in _list_classes(folder):
        if not any(
            Path(path).suffix.lower() in IMAGE_SUFFIXES for path in walk_files(str(class_folder))
        ):
            class_files(folder, Counter(), [])


def _warn_of_other_folders(root: Path, given: Mapping[Split, Path]) -> None:
    """Warn of folders next to the splits.

    They may be splits under unusual names, or of splits within classes.
    """
    if not given:
        _warn_of_splits_in_classes(list_folders(root))
        return
    others = [folder.name for folder in list_folders(root) if folder not in given.values()]
    if others:
        log.warning(
            "%s: not read next to the splits %s: %s. A split's folder is named train, val or test",
            visible(str(root), in_line=True),
            ", ".join(f"{folder.name}/" for folder in given.values()),
            join_names([f"{visible(name, in_line=True)}/" for name in others]),
        )  # fmt: skip


def _warn_of_splits_in_classes(classes: Sequence[Path]) -> None:
    """Warn where each class has folders that are named after splits.

    They are not the splits of the training.
    """
    inner = [{split_named(folder.name) for folder in list_folders(each)} for each in classes]
    if inner and all("train" in splits and len(splits - {None}) > 1 for splits in inner):
        log.warning(
            "%s: the folders of the classes have folders named after splits, whose images are "
            "divided anew. For these splits, place the class folders in train/, val/ and test/",
            visible(str(classes[0].parent), in_line=True),
        )  # fmt: skip


def refuse_masks(images: Mapping[Path, Sequence[Path]]) -> None:
    """Refuse folders of images and of their masks, which are no classes.

    Args:
        images: Files of each class folder.

    Raises:
        DataError: For a folder such as images/ and one such as masks/ where half of the names are
            the same.
    """
    pictures = [folder for folder in images if _letters(folder) in _IMAGE_FOLDERS]
    masks = [folder for folder in images if _letters(folder) in _MASK_FOLDERS]
    for picture, mask in product(pictures, masks):
        stems = _name_files(images[picture], picture)
        names = {
            name if name in stems else _MASK_ENDING.sub("", name)
            for name in _name_files(images[mask], mask)
        }
        shared = stems & names
        if shared and 2 * len(shared) >= min(len(stems), len(names)):
            raise DataError(
                f"{picture} and {mask} hold images and their masks, by {len(shared)} equal names"
                f" such as {min(shared)!r}; expected one folder a class. For masks, the data is"
                " MaskFolder and the model Segmenter; `lightkit init --data FOLDER`, of the folder"
                " with both, writes a config."
            )


def find_mask_folders(root: Path) -> tuple[str, str] | None:
    """Find the names of the folders of images and of masks in a folder, or in its training split.

    Returns:
        None without both, or where no file of the one has the name of a file of the other: they may
        be classes.
    """
    for folder in (
        root,
        *(each for each in list_folders(root) if split_named(each.name) == "train"),
    ):
        names = list_folders(folder)
        pictures = [each for each in names if _letters(each) in _IMAGE_FOLDERS]
        masks = [each for each in names if _letters(each) in _MASK_FOLDERS]
        if len(pictures) != 1 or len(masks) != 1 or len(names) > _MOST_FOLDERS:
            continue
        of_images, of_masks = (_list_stems(each[0]) for each in (pictures, masks))
        if of_images & (of_masks | {_MASK_ENDING.sub("", stem) for stem in of_masks}):
            return pictures[0].name, masks[0].name
    return None


def _list_stems(folder: Path) -> set[str]:
    """Return the paths of the images below a folder, in it and without suffix."""
    files = map(Path, walk_files(str(folder)))
    return {
        path.relative_to(folder).with_suffix("").as_posix()
        for path in files
        if path.suffix.lower() in IMAGE_SUFFIXES
    }


def _letters(folder: Path) -> str:
    return re.sub(r"[\s_.\-]+", "", folder.name.lower())


def _name_files(files: Iterable[Path], folder: Path) -> set[str]:
    """List the paths of files in a folder, without suffix and in small letters."""
    return {path.relative_to(folder).with_suffix("").as_posix().lower() for path in files}


def class_files(
    folder: Path,
    passed_over: Counter[str],
    unfollowed: list[Path],
    *,
    trained: Sequence[str] | None = None,
) -> tuple[list[str], list[tuple[Path, int]]]:
    """List the images in the class folders of ``folder``and all folders below, by suffix.

    Args:
        folder: Holds one folder a class.
        passed_over: Gets the suffixes of other files, and how many have each; "" is none.
        unfollowed: Gets the links that lead up, or to another class.
        trained: Names of the training split's classes, for another split, which may lack some or
            have no image of them. None for training itself.

    Returns:
        Names of the classes; and the files, each with its class, which counts into the names.

    Raises:
        DataError: If a folder cannot be read, a class of training has no file with an image's
            suffix, or training lacks a class.
    """
    classes = _list_classes(folder)
    names = [class_folder.name for class_folder in classes]
    class_names = names if trained is None else list(trained)
    if unknown := [name for name in names if name not in class_names]:
        known = join_names(class_names)
        raise DataError(
            f"{folder} has classes that the training split does not have: {join_names(unknown)};"
            f" that has {known}. Rename these folders, move them away, or add such images to the"
            " training split."
        )

    found = list[tuple[Path, int]]()
    images = dict[Path, list[Path]]()
    places = [class_folder.resolve() for class_folder in classes]
    for at, class_folder in enumerate(classes):
        others = Counter[str]()
        files = _find_images(class_folder, [*places[:at], *places[at + 1 :]], others, unfollowed)
        if not files and trained is None:
            raise DataError(
                f"{class_folder}: this class has no images. Add some"
                f" ({', '.join(sorted(IMAGE_SUFFIXES))}), or remove the"
                f" folder.{f' {_describe_others(others)}.' if others else ''}"
            )
        label = class_names.index(class_folder.name)
        found.extend((path, label) for path in sorted(files))
        images[class_folder] = files
        passed_over.update(others)
    refuse_masks(images)
    return class_names, found


def _find_images(
    folder: Path, others: Sequence[Path], passed_over: Counter[str], unfollowed: list[Path]
) -> list[Path]:
    """Find visible files with an image's suffix, also deeper and behind links that lead out.

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


def list_folders(folder: Path) -> list[Path]:
    """List the visible folders in a folder, by name.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        return sorted(
            entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        raise DataError(f"{folder}: this data folder cannot be read ({error.strerror}).") from error


def _list_classes(folder: Path) -> list[Path]:
    """List the visible folders of ``folder``, by name.

    Raises:
        DataError: If there are none.
    """
    if not folder.exists():
        where = f"data.init_args.root, from {Path.cwd()}"
        raise DataError(
            f"{folder}: this data folder does not exist"
            f" ({where}){near_files(folder, is_folder=True) or '.'}"
        )
    if folders := list_folders(folder):
        return folders
    raise DataError(
        f"{folder}: no class folders here. Expected one folder a class, each with its images (such"
        f" as {folder}/roses/1.jpg), or train/, val/ and test/ with such folders. Set"
        " data.init_args.root to the folder that holds them."
    )


def _describe_others(passed_over: Counter[str]) -> str:
    """Describe how many files are no images by their names, and what to do."""
    kinds = [f"{num} {suffix or 'without suffix'}" for suffix, num in passed_over.most_common()]
    total = passed_over.total()
    heic = "; Pillow cannot read HEIC: convert them to JPEG"
    text = f"{format_count(total, 'file')} passed over ({join_names(kinds)})"
    return text if _HEIC_SUFFIXES.isdisjoint(passed_over) else text + heic


def check_defects(
    defects: Sequence[Defect], num_samples: int, *, what: str, on_bad: Literal["skip", "error"],
    max_fraction: float,
    num_bad: int | None = None, repair: str = "Replace or remove them",
    most_shown: int | None = None,
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
            f"that is {num / num_samples:.1%}, and data.init_args.max_bad_fraction allows"
            f" {max_fraction:.4g}. {repair}, or allow more"
        )
    file = _list_defects(defects)
    shown = defects[: most_shown if file is None else _NUM_SHOWN]
    lines = [
        f"  {visible(defect.name, in_line=True)}: {visible(defect.reason, in_line=True)}"
        for defect in shown
    ]
    others = []
    if num > len(shown):
        others.append(f"and {num - len(shown)} more")
    if file is not None:
        listed = "all" if len(defects) == num else f"the first {len(defects):,}"
        others.append(f"{listed} are listed in {shown_path(file)}")
    if others:
        lines.append(f"  {'; '.join(others)}")
    raise DataError("\n".join([f"{num} of {num_samples} {what} cannot be used; {advice}:", *lines]))


def _list_defects(defects: Sequence[Defect]) -> Path | None:
    """Write the samples into the folder of a run's job and return the file.

    None without a run, or where that fails.
    """
    run = runs.current()
    if run is None:
        return None
    file = run.folder.parent / "bad_images.csv"  # the run's folder goes
    if is_first_rank():
        try:
            write_bad_images(
                file, [BadImage(defect.name, defect.reason, "scan") for defect in defects]
            )
        except OSError:
            return None
    return file
