"""`lightkit predict --model FILE IMAGES`: predictions by an exported model.

Without a run or a config.

A model of rows takes tables in place of images.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.command_line import Invocation, refuse_without_effect
from lightkit.cli.console import choose_output_mode, configure_console
from lightkit.cli.predict_options import parse_predict_options, print_predict_end
from lightkit.config import Flag, Problems
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError, DataError, LightkitError
from lightkit.export.formats import FORMATS, Runner, format_of, open_model
from lightkit.export.metadata import Metadata, check_digest, is_recorded, read_metadata
from lightkit.images.image_file import pillow_warnings
from lightkit.images.inputs import find_images
from lightkit.images.progress import show_progress
from lightkit.prediction.exported import check_image_model, explain_failure, predict_images
from lightkit.prediction.rows import check_row_model, predict_rows
from lightkit.prediction.table import Prediction

_log = logging.getLogger("lightkit")


def predict_by_file(invocation: Invocation) -> int:
    """Predict the images or rows that the command line names, and return the exit code.

    Raises:
        ConfigError: If an option is wrong, the file's runtime is not installed, or the file needs
            ``--trust``.
        DataError: If the file is damaged or takes no images, an image or folder is missing, or no
            image can be read.
    """
    invocation.raise_errors()
    given = invocation.options
    subject = f"an exported model, which --model {given['model']} names"
    keys = ("run.root",) if "run" in given else ()
    refuse_without_effect(invocation, subject, options=("ckpt_path", "print_config"), keys=keys)
    # it says which files are samples: a table is one of rows, or of paths of images
    try:
        file, run = _find_file(given["model"], given.get("run"), invocation.overrides)
        metadata = read_metadata(file)
    except LightkitError as error:
        problems = Problems()
        with problems.noted():
            parse_predict_options(given, invocation.inputs)
        problems.add(error)
        problems.raise_any()
        raise
    takes_rows = metadata.rows is not None
    options = parse_predict_options(given, invocation.inputs, takes_rows=takes_rows)
    mode = choose_output_mode(given)
    configure_console(mode)
    check_digest(file)
    check_model, predict = _KINDS[options.unit]
    num_values = check_model(metadata, file)
    if FORMATS[str(format_of(file))].runs_code:
        _check_trust(file, run, is_trusted=bool(given.get("trust")))
    with explain_failure(file):
        model = open_model(file)
    class_names = metadata.task.choose_names(metadata.outputs[0].shape, metadata.class_names)
    open_writer = options.bind_writer()
    with (
        pillow_warnings(),
        open_writer(class_names=class_names, num_values=num_values, task=metadata.task) as writer,
    ):
        predictions, count = predict(model, metadata, invocation.inputs, file)
        if mode in ("terminal", "plain"):
            predictions = show_progress(
                predictions,
                count(),
                f"{options.unit}s",
                stream=options.screen,
                print_line=options.print_progress,
            )
        for prediction in predictions:
            writer.add(prediction)
        if not writer.num:  # any other input without images was refused before
            raise DataError(f"-: standard input has no {'rows' if takes_rows else 'paths'}")
    print_predict_end(writer, options, mode)
    if mode == "json":
        metrics = {f"{options.unit}s": writer.num, f"bad_{options.unit}s": writer.num_bad}
        sheet = None if options.contact_sheet is None else str(options.contact_sheet)
        runs.print_event(
            "result",
            stage="predict",
            metrics=metrics,
            table=str(options.output),
            contact_sheet=sheet,
        )
    return 0


_Predicted = tuple[Iterable[Prediction], Callable[[], int | None]]
"""Predictions, and a function that counts them before; None where only their end tells."""


def _predict_rows(
    model: Runner, metadata: Metadata, words: Sequence[str], file: Path
) -> _Predicted:
    preprocessing = metadata.row_preprocessing
    assert preprocessing is not None
    return predict_rows(model, metadata, words, preprocessing, file=file), lambda: None


def _predict_images(
    model: Runner, metadata: Metadata, words: Sequence[str], file: Path
) -> _Predicted:
    images = find_images(words)
    return predict_images(model, metadata, images, file=file), images.count


_KINDS = {
    "image": (check_image_model, _predict_images),
    "row": (check_row_model, _predict_rows),
}
"""How a model is checked and run, by the unit that is predicted."""


def _find_file(text: str, run: Any, flags: Sequence[Flag]) -> tuple[Path, Path | None]:
    """Find the file, as named or in the folder ``export`` of the run that ``--run`` names.

    Return that folder, too.
    """
    path = Path(text).expanduser()
    if run is None:
        return path, None
    folder = runs.find(str(run), find_run_root(flags)).folder / "export"
    return path if path.is_file() or not (folder / text).is_file() else folder / text, folder


def _check_trust(file: Path, run_exports: Path | None, *, is_trusted: bool) -> None:
    """Refuse a file of torch.export that no ``export.json`` records, unless ``--trust`` allows it.

    ``torch.export.load`` (torch 2.15) unpickles some of its records and evaluates others as Python,
    so that loading a file of unknown origin can run code.

    Args:
        file: The file.
        run_exports: Exports of the run that ``--run`` names, whose record counts too.
        is_trusted: Whether ``--trust`` was given.

    Raises:
        ConfigError: If it is neither recorded nor trusted.
    """
    if is_recorded(file, file.parent) or (
        run_exports is not None and is_recorded(file, run_exports)
    ):
        return
    if not is_trusted:
        raise ConfigError(
            f"{file}: its digest is in no export.json beside it, so lightkit may not have written"
            " it. Loading a .pt2 can run code, so it was not loaded. Name the run of its export"
            " with --run; or, if you know who made the file, --trust"
            " on the command line allows it."
        )
    _log.warning("--trust: %s is in no export.json beside it; loading it may run code", file)
