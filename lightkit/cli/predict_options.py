"""The options of `predict` for images that the command line names, and the lines of its end. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.cli.validation import explain_unwritable
from lightkit.config import shown_path
from lightkit.errors import ConfigError, DataError, visible

if TYPE_CHECKING:
    from lightkit.prediction.writer import PredictionWriter

_DEFAULT_OUTPUT = "predictions.csv"  # in the working directory: the images need not belong to the run


@dataclass(frozen=True)
class PredictOptions:
    """Where predictions of images are written.

    Args:
        output: The table; ``-`` for CSV on standard output.
        contact_sheet: A page of thumbnails, in addition.
        top_k: Number of classes of each image; None for the default.
    """

    output: Path
    contact_sheet: Path | None = None
    top_k: int | None = None


def check_option_conflicts(options: Mapping[str, str | bool], inputs: Sequence[str]) -> None:
    """Refuse options that do not go together, or have no effect without images.

    Raises:
        ConfigError: If there are any.
    """
    artefact = options.get("artefact")
    if artefact and "ckpt_path" in options:
        raise ConfigError(f"--model {artefact}: --ckpt_path names other weights; leave one of the two out")
    if inputs:
        return
    if artefact:
        raise ConfigError(f"--model {artefact}: predict with an exported file needs IMAGES: files, folders or a table")
    given = [name for name in ("contact-sheet", "top-k") if name in options]
    if options.get("output") not in (None, "json"):
        given.append("output")
    if given:
        reason = "it is about the predictions of IMAGES, and none are named"
        raise ConfigError(
            f"--{given[0]} {options[given[0]]}: {reason}. Without them predict writes a table into the run."
        )


def check_predict_options(options: Mapping[str, str | bool], inputs: Sequence[str]) -> None:
    """Check, before anything is loaded, that images are there and outputs can be written.

    Raises:
        ConfigError: If an option is wrong, or an output cannot be written.
        DataError: If a named file or folder has no image.
    """
    from lightkit.images.inputs import find_images  # here: numpy and Pillow, which other commands need not load

    check_option_conflicts(options, inputs)
    if inputs:
        parse_predict_options(options, inputs)
        find_images(inputs)


def parse_predict_options(options: Mapping[str, str | bool], inputs: Sequence[str]) -> PredictOptions:
    """Parse where predictions are written.

    Args:
        options: Of the command line.
        inputs: Words that name the images.

    Raises:
        ConfigError: If an output has another format, cannot be written, or is a file that is read for the predictions;
            or a number is none.
    """
    from lightkit.images.inputs import find_named_files  # here: numpy, which other commands need not load
    from lightkit.prediction.table import STANDARD_OUTPUT, check_output_path

    output, sheet, top_k = (options.get(name) for name in ("output", "contact-sheet", "top-k"))
    if top_k is not None and not (str(top_k).isdecimal() and int(top_k) > 0):
        raise ConfigError(f"--top-k {top_k}: expected a whole number of at least 1, of classes to tell of each image")
    output_path = check_output_path(_DEFAULT_OUTPUT if output in (None, "json") else str(output))
    sheet_path = None
    if sheet is not None:
        sheet_path = check_output_path(str(sheet), option="--contact-sheet", suffixes=(".html", ".htm"))
    for option, path in (("--output", output_path), ("--contact-sheet", sheet_path)):
        if path is not None and path != STANDARD_OUTPUT and (error := explain_unwritable(path.parent, setting=option)):
            raise error
    models = [Path(str(options[name])).expanduser() for name in ("artefact", "ckpt_path") if name in options]
    for option, path in (("output", output_path), ("contact-sheet", sheet_path)):
        if path is None or not path.is_file():
            continue
        same = [str(file) for file in (*find_named_files(inputs), *models) if file.is_file() and file.samefile(path)]
        if same:
            raise ConfigError(
                f"--{option} {path}: the predictions would replace {same[0]}, which is read for them. "
                f"Name another file with --{option}."
            )
    return PredictOptions(output_path, sheet_path, None if top_k is None else int(top_k))


def format_predict_end(writer: PredictionWriter, options: PredictOptions) -> str:
    """Format what was written, and which images have no prediction.

    Raises:
        DataError: If none of them has one.
    """
    from lightkit.prediction.table import STANDARD_OUTPUT  # as above

    output, sheet = (
        None if path is None else visible(shown_path(path), in_line=True)
        for path in (options.output, options.contact_sheet)
    )
    where = "standard output" if options.output == STANDARD_OUTPUT else output
    bad = [f"bad    {visible(f'{each.path}: {each.defect}', in_line=True)}" for each in writer.bad]
    if writer.num_bad > len(bad):
        bad.append(f"bad    and {writer.num_bad - len(bad)} more")
    if writer.num and writer.num == writer.num_bad:
        which = "The image has no" if writer.num == 1 else f"None of the {writer.num} images has a"
        raise DataError("\n".join([f"{which} prediction; {where} says why.", *bad]))
    count = f"images {writer.num}" + (f", {writer.num_bad} of them bad" if writer.num_bad else "")
    return "\n".join([count, *bad, f"table  {where}", *([] if sheet is None else [f"sheet  {sheet}"])])
