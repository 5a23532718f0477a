"""The options of `predict` for images that the command line names, and the lines of its end.

No torch.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lightkit.cli.console import OutputMode
from lightkit.cli.validation import check_writable
from lightkit.config import shown_path
from lightkit.config.origins import near_files
from lightkit.errors import ConfigError, DataError, visible

if TYPE_CHECKING:
    from lightkit.prediction.table import PredictionWriter, TopK

_DEFAULT_OUTPUT = (  # in the working directory: the images need not belong to the run
    "predictions.csv"
)
_NUM_BAD = 5  # images without a prediction that are named in the end


@dataclass(frozen=True)
class PredictOptions:
    """Where predictions of images are written.

    Args:
        output: The table; ``-`` for CSV on standard output.
        contact_sheet: A page of thumbnails, in addition.
        top_k: Number of classes of each image; None for the default, ``all`` for a column of each
            class.
        unit: What is predicted, an image or a row.
    """

    output: Path = Path(_DEFAULT_OUTPUT)
    contact_sheet: Path | None = None
    top_k: TopK = None
    unit: str = "image"

    @property
    def is_stdout(self) -> bool:
        """Return whether the table goes to standard output."""
        return self.output == Path("-")

    @property
    def screen(self) -> TextIO:
        """Where people read: standard error if the table is on standard output."""
        return sys.stderr if self.is_stdout else sys.stdout

    def print_progress(self, text: str) -> None:
        """Print a line where people read."""
        print("predict ", text, file=self.screen, flush=True)

    def bind_writer(self) -> Callable[..., AbstractContextManager[PredictionWriter]]:
        """Return `write_predictions`, to which the names of the classes are still to be given."""
        # here: numpy, which other commands need not load
        from lightkit.prediction.table import write_predictions

        return partial(
            write_predictions, self.output, top_k=self.top_k, contact_sheet=self.contact_sheet
        )


def parse_predict_options(
    options: Mapping[str, Any], inputs: Sequence[str], *, takes_rows: bool = False
) -> PredictOptions:
    """Parse where predictions are written.

    Check before anything is loaded that images or tables are there.

    Args:
        options: Of the command line.
        inputs: Words that name the images; without them, that there is no option about them.
        takes_rows: Whether the words name tables, whose rows are predicted.

    Raises:
        ConfigError: If options do not go together, or have no effect without images; an output has
            another format, cannot be written, or is a file that is read for the predictions; or a
            number is none.
        DataError: If a named file or folder has no image.
    """
    artefact = options.get("model")
    if artefact and "ckpt_path" in options:
        raise ConfigError(
            f"--model {artefact}: --ckpt_path names other weights; leave one of the two out"
        )
    if not inputs:
        _refuse_image_options(options)
        return PredictOptions()

    from lightkit.images.inputs import find_images, find_named_files  # here: numpy, as above

    parsed = _parse_outputs(options)
    if takes_rows:
        parsed = _check_tables(parsed, inputs)

    models = [
        Path(str(options[name])).expanduser() for name in ("model", "ckpt_path") if name in options
    ]
    _check_outputs(parsed, [*find_named_files(inputs), *models])
    if not takes_rows:
        find_images(inputs)
    return parsed


def explain_numbers(table: str, *, trained: object) -> str:
    """Explain how the rows of another table are predicted by a model of numbers in a table.

    Args:
        table: The other table.
        trained: Table of the training; None where it is unknown.
    """
    settings = (
        f"--data.train={shlex.quote(str(trained or 'TABLE'))} --data.test={shlex.quote(table)}"
    )
    return (
        "data: the model was trained on rows of numbers, and predict takes IMAGES after its"
        " options. To predict the rows of another Parquet file or Delta table, name it as the test"
        " split of the data, without IMAGES: lightkit predict --run"
        f" RUN --data.path=null {settings}"
    )


def _check_tables(parsed: PredictOptions, inputs: Sequence[str]) -> PredictOptions:
    """Check that tables are there, and that no option is about images.

    Raises:
        ConfigError: If one is.
        DataError: If a table is missing.
    """
    # here: pyarrow, which images need not have
    from lightkit.rows.parquet_table import is_remote, local_path

    if parsed.contact_sheet is not None:
        raise ConfigError(
            f"--contact-sheet {parsed.contact_sheet}: it shows images, and"
            " rows of a table are predicted"
        )
    for word in inputs:
        if word != "-" and not is_remote(word) and not local_path(word).exists():
            raise DataError(f"{word}: there is no such table{near_files(local_path(word)) or '.'}")
    return replace(parsed, unit="row")


def _parse_outputs(options: Mapping[str, Any]) -> PredictOptions:
    """Parse the options about the predictions of images.

    Raises:
        ConfigError: If an output has another format, or a number is none.
    """
    from lightkit.prediction.table import check_output_path  # here: numpy, as above

    top_k = _parse_top_k(options.get("top-k"))
    output = check_output_path(str(options.get("output", _DEFAULT_OUTPUT)))
    sheet = options.get("contact-sheet")
    if sheet is not None:
        sheet = check_output_path(str(sheet), option="--contact-sheet", suffixes=(".html", ".htm"))
    return PredictOptions(output, sheet, top_k)


def _parse_top_k(value: Any) -> TopK:
    """Parse how many classes of each image are listed.

    Raises:
        ConfigError: If it is no number.
    """
    if value is None:
        return None
    if value == "all":
        return "all"
    if not (str(value).isdecimal() and int(value) > 0):
        raise ConfigError(
            f"--top-k {value}: expected a whole number of at least 1, of classes to tell of each"
            " image, or all for a column of each class"
        )
    return int(value)


def _refuse_image_options(options: Mapping[str, Any]) -> None:
    """Refuse options about the predictions of images where none are named.

    Raises:
        ConfigError: If one is given.
    """
    if artefact := options.get("model"):
        raise ConfigError(
            f"--model {artefact}: predict with an exported file needs"
            " IMAGES: files, folders or a table"
        )
    for name in ("contact-sheet", "top-k", "output"):
        if options.get(name) is not None:
            raise ConfigError(
                f"--{name} {options[name]}: it is about the predictions of IMAGES, and none are"
                " named. Without them predict writes a table into the run."
            )


def _check_outputs(parsed: PredictOptions, read: Sequence[Path]) -> None:
    """Check that each output can be written, and is no file that is read for the predictions.

    Raises:
        ConfigError: If not.
    """
    table = None if parsed.is_stdout else parsed.output
    for option, path in (("--output", table), ("--contact-sheet", parsed.contact_sheet)):
        if path is None:
            continue
        check_writable(path.parent, setting=option)
        for file in read:
            if file.is_file() and path.is_file() and file.samefile(path):
                raise ConfigError(
                    f"{option} {path}: the predictions would replace {file}, which is read for"
                    f" them. Name another file with {option}."
                )


def print_predict_end(writer: PredictionWriter, options: PredictOptions, mode: OutputMode) -> None:
    """Print what was written, and which images have no prediction.

    Raises:
        DataError: If none of them has one.
    """
    where = "standard output" if options.is_stdout else _format_path(options.output)
    bad = [
        f"bad    {visible(f'{each.path}: {each.defect}', in_line=True)}"
        for each in writer.bad[:_NUM_BAD]
    ]
    if writer.num_bad > len(bad):
        bad.append(f"bad    and {writer.num_bad - len(bad)} more")
    if writer.num and writer.num == writer.num_bad:
        unit = options.unit
        which = (
            f"The {unit} has no" if writer.num == 1 else f"None of the {writer.num} {unit}s has a"
        )
        raise DataError("\n".join([f"{which} prediction; {where} says why.", *bad]))
    if mode not in ("terminal", "plain"):
        return
    num_bad = f", {writer.num_bad} of them bad" if writer.num_bad else ""
    lines = [f"{f'{options.unit}s':<6} {writer.num}{num_bad}", *bad, f"table  {where}"]
    if options.contact_sheet is not None:
        lines.append(f"sheet  {_format_path(options.contact_sheet)}")
    print("\n".join(lines), file=options.screen, flush=True)


def _format_path(path: Path) -> str:
    return visible(shown_path(path), in_line=True)
