"""The config that `lightkit init` writes for a folder of images and their masks."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lightkit.cli.starter import (
    DRIFT_WINDOW,
    Starter,
    count_splits,
    describe_batches,
    format_arguments,
    format_json,
    measure_images,
)
from lightkit.errors import DataError, format_count
from lightkit.images.image_file import UnreadableImageError
from lightkit.images.image_index import find_mask_folders
from lightkit.images.mask_file import IGNORED_VALUE, read_codes
from lightkit.images.mask_index import find_pairs_of_folders, pair_files
from lightkit.reports.statistics import suggest_mean_margin

_NUM_READ = 200  # masks whose values are looked at
_NUM_ROWS = 512  # of a mask
_MOST_CLASSES = 300  # a photo has more colours
_SHOWN_CLASSES = 12
_FEW_IMAGES = 1000
# of the difference of the IoU of an image between two trainings, for the suggestion of a margin
_DEVIATION = 0.1


@dataclass(frozen=True)
class MaskSummary:
    """Images with masks, and what the values of the masks are.

    Args:
        folder: Holds both folders, or splits with them.
        names: Names of the folder of images and of that of masks.
        images: All images.
        num_train: Number of training images.
        num_test: Number of test images.
        pixels: Number of the pixels that were looked at, by value or colour.
        are_colors: Whether the values are colours.
    """

    folder: Path
    names: tuple[str, str]
    images: Sequence[Path]
    num_train: int
    num_test: int
    pixels: Mapping[int, int]
    are_colors: bool

    def compose(self, name: str) -> Starter:
        """Write the config: each setting with its reason as a comment.

        Args:
            name: File name of the config.
        """
        side = round(median(measure_images(self.images) or [256]))
        named = self._name_values()
        total = sum(self.pixels[value] for value in named.values())
        shares = {name: self.pixels[value] / max(total, 1) for name, value in named.items()}
        listed = ", ".join(
            f"{each} {share:.0%}" for each, share in list(shares.items())[:_SHOWN_CLASSES]
        )
        more = f" and {len(shares) - _SHOWN_CLASSES} more" if len(shares) > _SHOWN_CLASSES else ""
        return Starter(f"""\
# {format_count(len(self.images), "image")} with masks, {side} pixels at the \
shorter side (median).
#   lightkit fit -c {shlex.quote(name)}
# Classes, by their share of the pixels: {listed}{more}
extends: [lightkit:base, lightkit:accelerator/auto, lightkit:logger/tensorboard]

# a U-Net on ImageNet weights, 45 MB, downloaded once; weights: null begins with random ones
model: {{class_path: Segmenter, init_args: {{backbone: resnet18, weights: default}}}}

data:
  class_path: MaskFolder
  init_args:
{format_arguments(self._list_data_arguments(side, named))}
trainer: {{max_epochs: 30}}
{_format_gate(self.num_test, shares)}""")

    def _name_values(self) -> dict[str, int]:
        """Name the values of masks that are classes; a number is named as it is written."""
        values = sorted(self.pixels)
        if self.are_colors:
            return {f"class_{at}": value for at, value in enumerate(values)}
        if values == [0, IGNORED_VALUE]:
            return {"background": 0, "object": IGNORED_VALUE}
        values = [value for value in values if value != IGNORED_VALUE]
        prefix = "" if values == list(range(len(values))) else "class_"
        return {f"{prefix}{value}": value for value in values}

    def _list_data_arguments(
        self, side: int, named: Mapping[str, int]
    ) -> list[tuple[str, Any, str]]:
        """List the arguments of the data, each with its value and reason."""
        arguments: list[tuple[str, Any, str]] = []
        arguments.append(("root", format_json(self.folder.as_posix()), ""))
        if self.names != ("images", "masks"):
            images, masks = self.names
            arguments.append(("images", format_json(images), ""))
            arguments.append(("masks", format_json(masks), ""))
        classes: Mapping[str, Any] = named
        if self.are_colors:
            classes = {
                name: [code >> 16, code >> 8 & 255, code & 255] for name, code in named.items()
            }
        if any(name != str(value) for name, value in named.items()):  # else they need no names
            arguments.append(("classes", format_json(classes), "the names are yours to choose"))
        reason = f"the whole image as a square; the shorter side is {side} pixels (median)"
        batch_size = 8 if self.num_train < _FEW_IMAGES else 16
        arguments.append(("image_size", min(256, max(32, side // 32 * 32)), reason))
        arguments.append(("batch_size", batch_size, describe_batches(self.num_train, batch_size)))
        return arguments


def find_masks(path: Path) -> MaskSummary | None:
    """Pair the images of a folder with their masks, and look at the values of some masks.

    Returns:
        None where it has no folders of images and masks.

    Raises:
        DataError: If images and masks do not fit, see `pair_files`, or a mask is none.
    """
    names = find_mask_folders(path) if path.is_dir() else None
    if names is None:
        return None
    folders = find_pairs_of_folders(path, *names)
    by_split = {split: pair_files(*each) for split, each in folders.items()}
    pairs = [pair for of_split in by_split.values() for pair in of_split]
    given = {split: len(of_split) for split, of_split in by_split.items() if split is not None}
    num_train, num_test = count_splits(given, len(pairs))
    pixels, are_colors = _count_pixels([mask for _, mask in pairs])
    images = [image for image, _ in pairs]
    return MaskSummary(path, names, images, num_train, num_test, pixels, are_colors)


def _count_pixels(masks: Sequence[Path], *, are_colors: bool = False) -> tuple[Counter[int], bool]:
    """Count the values of pixels in some rows of some masks; and return whether they are colours.

    Raises:
        DataError: If they are no masks.
    """
    pixels: Counter[int] = Counter()
    for path in masks[:: max(1, len(masks) // _NUM_READ)]:
        try:
            found = read_codes(path, are_colors=are_colors)
        except UnreadableImageError as error:
            if "colours" in error.reason and not are_colors:
                return _count_pixels(masks, are_colors=True)
            continue  # fit lists it
        pixels.update(found[:: max(1, len(found) // _NUM_ROWS)].ravel().tolist())
        if len(pixels) > _MOST_CLASSES:
            raise DataError(
                f"--data: {path} is no mask: the files so far have more than {_MOST_CLASSES}"
                " values. Expected the number or the colour of a class for each pixel, saved"
                " without loss, as in PNG."
            )
    return pixels, are_colors


def _format_gate(num_test: int, shares: Mapping[str, float]) -> str:
    """Write the conditions on the IoU, in one line with the reasons above it.

    Empty without test images.
    """
    if not num_test or not shares:
        return ""
    # the IoU of the class that each pixel has is its share, and that of the others is 0
    largest = max(shares, key=lambda each: shares[each])
    chance = shares[largest] / len(shares)
    least = round((1 + chance) / 2, 2)
    reasons = [
        "The gate, for lightkit gate, promote and retrain.",
        (
            f"min: {largest!r} for each pixel gives {chance:.2f} on all"
            " images; halfway from there to 1."
        ),
    ]
    margin = suggest_mean_margin(num_test, deviation=_DEVIATION)
    rules = f"metric: test/iou, min: {least}"
    if margin is None:
        are = "image is" if num_test == 1 else "images are"
        reasons.append(
            f"max_drop: no worse than the champion; {num_test} test"
            f" {are} too few to measure a drop."
        )
        rules += ", max_drop: 0"
    else:
        reasons += [
            (
                "margin: shown to be less than this worse than the champion, with 95 % confidence."
                f" With {num_test} test"
            ),
            (
                "images an equally good model passes four times of five, where the IoU of an image"
                " differs by about 0.1 between two trainings."
            ),
            (
                f"drift: below the best of the last {DRIFT_WINDOW} champions, so that no model"
                " sinks step by step."
            ),
        ]
        rules += f", margin: {margin:g}, drift: {{window: {DRIFT_WINDOW}, max_drop: {margin:g}}}"
    comments = "".join(f"# {line}\n" for line in reasons)
    return f"\n{comments}gate: {{{rules}}}\n"
