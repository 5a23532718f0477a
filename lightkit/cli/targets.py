"""What `predict` is asked to do with images that the command line names, and how it tells the end. No torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.config import shown_path
from lightkit.errors import ConfigError, DataError, visible

if TYPE_CHECKING:
    from lightkit.prediction.sink import Sink

__all__ = [
    "DEFAULT_OUTPUT",
    "Targets",
    "check_places_of_images",
    "check_words",
    "end_of",
    "refuse_overwriting",
    "targets_of",
]

DEFAULT_OUTPUT = "predictions.csv"
"""In the working directory: the images need not have anything to do with the run."""


@dataclass(frozen=True)
class Targets:
    """Where predictions go.

    Args:
        output: The table; ``-`` for CSV on standard output.
        contact_sheet: A page of thumbnails besides.
        top_k: How many classes of each image are told; None for what is usual.
    """

    output: Path = Path(DEFAULT_OUTPUT)
    contact_sheet: Path | None = None
    top_k: int | None = None


def check_words(options: Mapping[str, str | bool], inputs: Sequence[str]) -> None:
    """Refuse what is of no use without images.

    Raises:
        ConfigError: If there are none, and an option is about them.
    """
    artefact = options.get("artefact")
    if artefact and "ckpt_path" in options:
        raise ConfigError(f"--model {artefact}: --ckpt_path names other weights; leave one of the two out")
    if inputs:
        return
    if artefact:
        raise ConfigError(f"--model {artefact}: predict with an exported file needs IMAGES: files, folders or a table")
    told = [name for name in ("contact-sheet", "top-k") if name in options]
    if options.get("output") not in (None, "json"):
        told.append("output")
    if told:
        says = "it is about the predictions of IMAGES, and none are named"
        raise ConfigError(f"--{told[0]} {options[told[0]]}: {says}. Without them predict writes a table into the run.")


def check_places_of_images(options: Mapping[str, str | bool], inputs: Sequence[str]) -> None:
    """Find out, before anything is loaded, whether images and places are there.

    Raises:
        ConfigError: If an option is wrong, or names a place that cannot be written.
        DataError: If there is no image where one is named.
    """
    from lightkit.images.listing import listed  # here: numpy and Pillow, which other commands need not load

    check_words(options, inputs)
    if inputs:
        refuse_overwriting(targets_of(options), options, inputs)
        listed(inputs)


def refuse_overwriting(targets: Targets, options: Mapping[str, str | bool], inputs: Sequence[str]) -> None:
    """Refuse to write predictions over the table that names the images, or over the model.

    Args:
        targets: Where they would go.
        options: Those of the command line.
        inputs: What names the images.

    Raises:
        ConfigError: If a place is a file that is read, by whatever name or link.
    """
    from lightkit.images.listing import named_files  # as above

    models = [Path(str(options[word])).expanduser() for word in ("artefact", "ckpt_path") if word in options]
    for option, place in (("output", targets.output), ("contact-sheet", targets.contact_sheet)):
        if place is None or not place.is_file():
            continue
        same = [str(file) for file in (*named_files(inputs), *models) if _is_same(file, place)]
        same += ["standard input"] if "-" in inputs and _is_standard_input(place) else []
        if same:
            raise ConfigError(
                f"--{option} {place}: the predictions would replace {same[0]}, which is read for them. "
                f"Name another file with --{option}."
            )


def _is_same(file: Path, place: Path) -> bool:
    return file.is_file() and file.samefile(place)


def _is_standard_input(place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(sys.stdin.fileno()), place.stat())
    except (OSError, ValueError, AttributeError):  # it is closed, or no file of the system
        return False


def _shown(path: Path) -> str:
    return visible(shown_path(path), in_line=True)


def targets_of(options: Mapping[str, str | bool]) -> Targets:
    """Read where predictions go.

    Raises:
        ConfigError: If a place has another format or cannot be written, or a number is none.
    """
    from lightkit.prediction.tables import checked_output  # here: numpy, which other commands need not load

    output, sheet, top_k = (options.get(name) for name in ("output", "contact-sheet", "top-k"))
    if top_k is not None and not (str(top_k).isdecimal() and int(top_k) > 0):
        raise ConfigError(f"--top-k {top_k}: expected a whole number of at least 1, of classes to tell of each image")
    return Targets(
        output=checked_output(DEFAULT_OUTPUT if output in (None, "json") else str(output)),
        contact_sheet=None
        if sheet is None
        else checked_output(str(sheet), option="--contact-sheet", suffixes=(".html", ".htm")),
        top_k=None if top_k is None else int(top_k),
    )


def end_of(sink: Sink, targets: Targets) -> str:
    """Tell what was written, and of which images there is nothing.

    Raises:
        DataError: If of none of them there is anything.
    """
    from lightkit.prediction.tables import STANDARD_OUTPUT  # as above

    where = "standard output" if targets.output == STANDARD_OUTPUT else _shown(targets.output)
    bad = [f"bad    {visible(f'{each.path}: {each.defect}', in_line=True)}" for each in sink.bad]
    if sink.num_bad > len(bad):
        bad.append(f"bad    and {sink.num_bad - len(bad)} more")
    if sink.num and sink.num == sink.num_bad:
        which = "The image has no" if sink.num == 1 else f"None of the {sink.num} images has a"
        raise DataError("\n".join([f"{which} prediction; {where} says why.", *bad]))
    count = f"images {sink.num}" + (f", {sink.num_bad} of them bad" if sink.num_bad else "")
    sheet = [] if targets.contact_sheet is None else [f"sheet  {_shown(targets.contact_sheet)}"]
    return "\n".join([count, *bad, f"table  {where}", *sheet])
