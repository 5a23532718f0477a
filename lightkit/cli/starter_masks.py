"""The config that `lightkit init` writes for a folder of images and their masks. No torch."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lightkit.errors import DataError, format_count

# promoted models; a slide of less than a tenth of the margin at each promotion goes through
DRIFT_WINDOW = 10
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
        splits: Number of images of each split.
        pixels: Number of the pixels that were looked at, by value or colour.
        are_colors: Whether the values are colours.
    """

    folder: Path
    names: tuple[str, str]
    images: Sequence[Path]
    splits: Mapping[str, int]
    pixels: Mapping[int, int]
    are_colors: bool


def summarize_masks(folder: Path, images: str, masks: str) -> MaskSummary:
    """Pair images with their masks, and look at the values of some masks.

    Args:
        folder: Holds both folders, or splits with them.
        images: Name of the folder of images.
        masks: Likewise of masks.

    Raises:
        DataError: If images and masks do not fit, see `pair_files`, or a mask is none.
    """
    # here: numpy, as few commands need it
    from lightkit.images.mask_index import find_pairs_of_folders, pair_files

    folders = find_pairs_of_folders(folder, images, masks)
    by_split = {split: pair_files(*each) for split, each in folders.items()}
    pairs = [pair for of_split in by_split.values() for pair in of_split]
    splits = {
        str(split): len(of_split) for split, of_split in by_split.items() if split is not None
    }
    if not splits:  # the shares of MaskFolder
        splits = {"train": round(len(pairs) * 0.7), "test": round(len(pairs) * 0.1)}
    pixels, are_colors = _count_pixels([mask for _, mask in pairs])
    return MaskSummary(
        folder, (images, masks), [image for image, _ in pairs], splits, pixels, are_colors
    )


def _count_pixels(masks: Sequence[Path], *, are_colors: bool = False) -> tuple[Counter[int], bool]:
    """Count the values of pixels in some rows of some masks; and return whether they are colours.

    Raises:
        DataError: If they are no masks.
    """
    # here: Pillow, as few commands need it
    from lightkit.images.image_file import UnreadableImageError
    from lightkit.images.mask_file import read_codes

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


def _name_classes(summary: MaskSummary) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """Name the values of masks.

    Returns:
        The argument ``classes``, None where the values are 0, 1, 2 and so on; and the share of each
        class in the pixels that count, by name.
    """
    from lightkit.images.mask_file import IGNORED_VALUE  # here: numpy

    values = sorted(summary.pixels)
    if summary.are_colors:
        named = {f"class_{at}": value for at, value in enumerate(values)}
        classes: dict[str, Any] | None = {
            name: [code >> 16, code >> 8 & 255, code & 255] for name, code in named.items()
        }
    elif values == [0, IGNORED_VALUE]:
        named = {"background": 0, "object": IGNORED_VALUE}
        classes = dict(named)
    else:
        values = [value for value in values if value != IGNORED_VALUE]
        is_counted = values == list(range(len(values)))
        named = {str(value) if is_counted else f"class_{value}": value for value in values}
        classes = None if is_counted else dict(named)
    total = sum(summary.pixels[value] for value in named.values())
    return classes, {name: summary.pixels[value] / max(total, 1) for name, value in named.items()}


def format_mask_config(summary: MaskSummary, name: str, *, sizes: Sequence[int]) -> str:
    """Write a config for images and their masks: each setting with its reason as a comment.

    Args:
        summary: The images and masks.
        name: File name of the config.
        sizes: Shorter side of some of the images, in pixels.
    """
    side = round(median(sizes)) if sizes else 256
    num_train = summary.splits.get("train", 0)
    batch_size = 8 if num_train < _FEW_IMAGES else 16
    classes, shares = _name_classes(summary)
    batches = f"{format_count(num_train // batch_size, 'batch', 'batches')} of about "
    batches += format_count(num_train, "training image")
    if num_train < batch_size:
        batches = f"about {format_count(num_train, 'training image')}, which are fewer than a batch"

    arguments: list[tuple[str, Any, str]] = [("root", summary.folder.as_posix(), "")]
    if summary.names != ("images", "masks"):
        arguments += [("images", summary.names[0], ""), ("masks", summary.names[1], "")]
    if classes is not None:
        arguments.append(("classes", classes, "the names are yours to choose"))
    reason = f"the whole image as a square; the shorter side is {side} pixels (median)"
    arguments.append(("image_size", min(256, max(32, side // 32 * 32)), reason))
    arguments.append(("batch_size", batch_size, batches))
    lines = [
        f"    {key}: {json.dumps(value, ensure_ascii=False)}{f'   # {reason}' if reason else ''}\n"
        for key, value, reason in arguments
    ]
    listed = ", ".join(
        f"{each} {share:.0%}" for each, share in list(shares.items())[:_SHOWN_CLASSES]
    )
    more = f" and {len(shares) - _SHOWN_CLASSES} more" if len(shares) > _SHOWN_CLASSES else ""
    return f"""\
# {format_count(len(summary.images), "image")} with masks, {side} pixels at the \
shorter side (median).
#   lightkit fit -c {shlex.quote(name)}
# Classes, by their share of the pixels: {listed}{more}
extends: [lightkit:base, lightkit:accelerator/auto, lightkit:logger/tensorboard]

# a U-Net on ImageNet weights, 45 MB, downloaded once; weights: null begins with random ones
model: {{class_path: Segmenter, init_args: {{backbone: resnet18, weights: default}}}}

data:
  class_path: MaskFolder
  init_args:
{"".join(lines)}
trainer: {{max_epochs: 30}}
{_format_gate(summary.splits.get("test", 0), shares)}"""


def _format_gate(num_test: int, shares: Mapping[str, float]) -> str:
    """Write the conditions on the IoU, in one line with the reasons above it.

    Empty without test images.
    """
    from lightkit.reports.statistics import suggest_mean_margin  # here: it loads numpy

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
