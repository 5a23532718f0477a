"""Index of a folder of images and their masks: pairs by equal names, splits, classes. No torch."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from lightkit.config.origins import near_files
from lightkit.errors import DataError, format_count, join_lines, join_names
from lightkit.images.image_file import (
    IMAGE_SUFFIXES,
    UnreadableImageError,
    walk_files,
)
from lightkit.images.image_index import (
    Defect,
    OnBadImage,
    Photo,
    check_defects,
    index_files,
    list_folders,
)
from lightkit.images.mask_file import (
    IGNORED,
    MaskClasses,
    describe_values,
    find_values,
    number_classes,
    parse_classes,
)
from lightkit.images.progress import show_progress
from lightkit.images.splits import Split, split_named
from lightkit.images.verdicts import Decoded, Verdict, judge_files

log = logging.getLogger("lightkit.data")

_ENDING = re.compile(
    r"[_\-. ](mask|masks|seg|segmentation|label|labels|labelids|gt|l)$", re.IGNORECASE
)
_LABEL = 0  # of all photos: what they show is in their masks


@dataclass(frozen=True)
class MaskIndex:
    """All pairs of an image and its mask, by split.

    Args:
        classes: Of the masks.
        splits: The images.
        masks: The mask of each image.
        digests: SHA-256 of each mask.
        defects: Images that are left out.
        given: Splits that stand as folders; empty where the content of the images decides.
    """

    classes: MaskClasses
    splits: dict[Split, list[Photo]]
    masks: Mapping[Path, Path]
    digests: Mapping[Path, str]
    defects: list[Defect] = field(default_factory=list)
    given: list[Split] = field(default_factory=list)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; the pixels of a mask count into them."""
        return list(self.classes.names)

    @property
    def counts(self) -> dict[Split, int]:
        """Images of each split."""
        return {split: len(photos) for split, photos in self.splits.items()}

    @property
    def fingerprint(self) -> str:
        """SHA-256 over classes, and over split and content of every image and mask.

        Names of files do not count.
        """
        lines = sorted(
            f"{split}\0{self.digests[photo.path]}\0{photo.digest}\n"
            for split, photos in self.splits.items()
            for photo in photos
        )
        text = "".join(
            [repr((self.classes.codes, self.classes.ignored, self.classes.names)), *lines]
        )
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def find_pairs_of_folders(
    root: Path, images: str, masks: str
) -> dict[Split | None, tuple[Path, Path]]:
    """Find the folders of images and of their masks, by split.

    One pair under None where no folder names a split.

    Splits stand above these folders, as train/images and train/masks, or in both of them, as
    images/train and masks/train.

    Raises:
        DataError: If there are none, or one lacks its counterpart.
    """
    if not root.is_dir():
        where = f"data.init_args.root, from {Path.cwd()}"
        raise DataError(
            f"{root}: this data folder does not exist"
            f" ({where}){near_files(root, is_folder=True) or '.'}"
        )
    found: dict[Split | None, tuple[Path, Path]] = {}
    if (root / images).is_dir():
        for folder in list_folders(root / images):
            if (split := split_named(folder.name)) is not None:
                found[split] = (folder, root / masks / folder.name)
        if "train" not in found:
            found = {None: (root / images, root / masks)}
    else:
        for folder in list_folders(root):
            split = split_named(folder.name)
            if split is not None and (folder / images).is_dir():
                found[split] = (folder / images, folder / masks)
    if not found or not ({"train", None} & found.keys()):
        raise DataError(
            f"{root}: expected {images}/ and {masks}/ with files of equal names in them, such as"
            f" {images}/1.jpg and {masks}/1.png; or train/, and val/ or test/ if there are any,"
            " with both of them each. data.init_args.images and data.init_args.masks name folders"
            " with other names."
        )
    for _, folder in found.values():
        if not folder.is_dir():
            raise DataError(f"{folder}: there is no such folder of masks (data.init_args.masks).")
    return found


def pair_files(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Pair the images of a folder with their masks, by their names without suffix, also deeper.

    The name of a mask may end in ``_mask`` or the like. A mask without an image is a warning.

    Raises:
        DataError: If an image has no mask, or two files have the same name.
    """
    pictures = _list_by_stem(images)
    found = _list_by_stem(masks)
    by_stem: dict[str, Path] = {}
    for stem, path in found.items():
        name = stem if stem in pictures else _ENDING.sub("", stem)
        if name in by_stem:
            raise _explain_same_name(by_stem[name], path)
        by_stem[name] = path
    if not pictures:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise DataError(f"{images}: there are no images here ({suffixes}).")
    if missing := {stem: str(path) for stem, path in pictures.items() if stem not in by_stem}:
        first = next(iter(missing))
        raise DataError(
            f"{format_count(len(missing), 'image has', 'images have')} no mask of the same name in"
            f" {masks}; expected, for the first, {masks / first}.png. Add the masks, or move these"
            f" images away:{join_lines([*missing.values()])}"
        )
    if idle := [str(path) for stem, path in by_stem.items() if stem not in pictures]:
        log.warning(
            "%d masks have no image of the same name, and are not read: %s",
            len(idle),
            join_names(idle),
        )
    return [(path, by_stem[stem]) for stem, path in pictures.items()]


def _list_by_stem(folder: Path) -> dict[str, Path]:
    """List the images below a folder by their path in it without suffix.

    Raises:
        DataError: If two have the same.
    """
    found: dict[str, Path] = {}
    for path in map(Path, walk_files(str(folder))):
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        stem = path.relative_to(folder).with_suffix("").as_posix()
        if stem in found:
            raise _explain_same_name(found[stem], path)
        found[stem] = path
    return found


def _explain_same_name(one: Path, other: Path) -> DataError:
    return DataError(
        f"{one} and {other} have the same name, so that nobody knows which belongs to the file of"
        " this name in the other folder. Rename one of them, or move it away."
    )


def index_masks(
    root: Path,
    *,
    images: str,
    masks: str,
    classes: Sequence[str] | Mapping[str, Any] | None,
    ignore_index: int | Sequence[int] | str | None,
    val_fraction: float,
    test_fraction: float,
    on_bad_image: OnBadImage = "skip",
    max_bad_fraction: float = 0.05,
) -> MaskIndex:
    """Read every image and every mask under ``root`` once, and sort the pairs into splits.

    Args:
        root: Holds the folders of images and masks, or splits with them.
        images: Name of the folder of images.
        masks: Likewise of masks.
        classes: See `parse_classes`.
        ignore_index: Likewise.
        val_fraction: As for `lightkit.images.image_index.index_images`, like the rest.
        test_fraction: Likewise.
        on_bad_image: Likewise, for files that cannot be decoded.
        max_bad_fraction: Likewise.

    Raises:
        ConfigError: If the classes are unknown.
        DataError: If a mask is missing, has another size than its image, or a value that is no
            class; or too many files cannot be decoded.
    """
    known = parse_classes(classes, ignore_index)
    folders = find_pairs_of_folders(root, images, masks)
    pairs = {split: pair_files(*each) for split, each in folders.items()}
    given = {split: each[0] for split, each in folders.items() if split is not None}
    mask_of = dict(chain.from_iterable(pairs.values()))
    files = [*mask_of.values()]
    verdicts, values = _judge_masks(files, known)
    defects = [
        Defect(str(path), found.defect)
        for path, found in verdicts.items()
        if found.defect is not None
    ]
    check_defects(
        defects,
        len(files),
        what=f"masks in {root}",
        on_bad=on_bad_image,
        max_fraction=max_bad_fraction,
    )
    if known is None:
        number: int | Literal["auto"] | None = ignore_index  # type: ignore[assignment]  # a colour was refused
        known = number_classes(sorted({*chain.from_iterable(values.values())}), number, root=root)
    else:
        _refuse_values(values, known)
    _refuse_ignored_class(files, known, where=root / masks)

    # the images, but for those whose mask is lost
    listed: dict[Split, list[tuple[Path, Any]]] = {}
    for split, of_split in pairs.items():
        listed[split or "train"] = [
            (image, _LABEL) for image, mask in of_split if verdicts[mask].defect is None
        ]
    index = index_files(
        root, ["image"], listed, given=given, val_fraction=val_fraction,
        test_fraction=test_fraction,
        on_bad_image=on_bad_image, max_bad_fraction=max_bad_fraction,
        locate=lambda _: str(root / images),
    )  # fmt: skip
    _refuse_sizes(index.splits, mask_of, verdicts)
    photos = chain.from_iterable(index.splits.values())
    digests = {photo.path: verdicts[mask_of[photo.path]].digest for photo in photos}
    return MaskIndex(known, index.splits, mask_of, digests, [*defects, *index.defects], [*given])


def _judge_masks(
    files: Sequence[Path], classes: MaskClasses | None
) -> tuple[dict[Path, Verdict], dict[Path, dict[int, int]]]:
    """Read each mask once, or the verdict on its content.

    Returns:
        The verdicts; and, of masks that have some, the values that are no class with their numbers
        of pixels. Without classes, these are all values.
    """
    values: dict[Path, dict[int, int]] = {}

    def decode(file: BinaryIO, path: Path | str) -> tuple[Decoded, bool]:
        try:
            (height, width), others = find_values(Path(path), classes, file=file)
        except UnreadableImageError as error:
            return (error.reason, 0, 0), False
        if others:
            values[Path(path)] = others
        return (None, height, width), not others

    judged = judge_files(files, decode, rules=f"masks of {classes}")
    return dict(zip(files, show_progress(judged, len(files), "masks checked"), strict=True)), values


def _refuse_values(wrong: Mapping[Path, Mapping[int, int]], classes: MaskClasses) -> None:
    """Refuse masks with values that are no class.

    Raises:
        DataError: With the files and the values.
    """
    if not wrong:
        return
    lines = [
        f"{path}: {describe_values(values, classes)}" for path, values in sorted(wrong.items())
    ]
    known = [
        f"{name} {classes.describe(code)}"
        for name, code in zip(classes.names, classes.codes, strict=True)
    ]
    lossy = (
        " JPEG changes values; save masks as PNG."
        if any(".jp" in path.suffix.lower() for path in wrong)
        else ""
    )
    ignored = "none" if classes.ignored is None else classes.describe(classes.ignored)
    raise DataError(
        f"{format_count(len(wrong), 'mask has', 'masks have')} pixels that are no class;"
        f" data.init_args.classes has {join_names(known, most=10)}, and data.init_args.ignore_index"
        f" is {ignored}. Add the class, or repair the masks.{lossy}{join_lines(lines)}"
    )


def _refuse_ignored_class(files: Sequence[Path], classes: MaskClasses, *, where: Path) -> None:
    """Refuse masks of one class in which all else is ignored, such as an object that is 255.

    The masks are read until two classes are found, which is often the first one.

    Raises:
        DataError: If there is no second class.
    """
    found: set[int] = set()
    for path in files:
        try:
            found.update(np.unique(classes.read(path)).tolist())
        except UnreadableImageError:
            continue
        if len(found - {IGNORED}) > 1:
            return
    if IGNORED not in found or classes.ignored is None:
        return
    known = [classes.names[number] for number in sorted(found - {IGNORED})]
    ignored = classes.describe(classes.ignored)
    raise DataError(
        f"{where}: no pixel is of another class than {join_names(known) or 'none'}; all others have"
        f" the value {ignored}, which counts for nothing (data.init_args.ignore_index), so that"
        f" there is nothing to learn. If {ignored} is a class, write the value of each class, such"
        " as classes: {background: 0, object: 255}."
    )


def _refuse_sizes(
    splits: Mapping[Split, Sequence[Photo]],
    mask_of: Mapping[Path, Path],
    verdicts: Mapping[Path, Verdict],
) -> None:
    """Refuse masks of another size than their images.

    Raises:
        DataError: With the files and the sizes.
    """
    lines = []
    for photos in splits.values():
        for photo in photos:
            found = verdicts[mask_of[photo.path]]
            if (found.height, found.width) != (photo.height, photo.width):
                sizes = (
                    f"{found.width} x {found.height}, its image"
                    f" {photo.width} x {photo.height} pixels"
                )
                lines.append(f"{mask_of[photo.path]}: {sizes}")
    if lines:
        raise DataError(
            f"{format_count(len(lines), 'mask has', 'masks have')} another size than their images"
            " (width x height, upright). Save each in the size of its image, without"
            f" interpolation:{join_lines(lines)}"
        )
