"""`lightkit predict --model FILE IMAGES`: predictions by an exported model, without a run or a config."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lightkit import runs
from lightkit.cli.command_line import Invocation, refuse_without_effect
from lightkit.cli.console import choose_output_mode, configure_console
from lightkit.cli.predict_options import parse_predict_options, print_predict_end
from lightkit.config import Flag
from lightkit.config.run_root import find_run_root
from lightkit.errors import ConfigError, DataError
from lightkit.export.formats import FORMATS, Runner, first_line, format_of, open_model
from lightkit.export.metadata import Metadata, check_digest, is_recorded, read_metadata
from lightkit.images.image_file import count_threads, pillow_warnings, prepare_images
from lightkit.images.inputs import find_images
from lightkit.images.progress import show_progress
from lightkit.prediction.table import Prediction

_log = logging.getLogger("lightkit")
_BATCH_SIZE = 32
_DTYPES = ("uint8", "float16", "float32", "float64")
_MAX_PIXELS = 4_000_000  # of a batch whose images are resized in the graph, which keeps 8 bytes a value
Array = np.ndarray[Any, Any]


def predict_by_file(invocation: Invocation) -> int:
    """Predict the images that the command line names, and return the exit code.

    Raises:
        ConfigError: If an option is wrong, the file's runtime is not installed, or the file needs ``--trust``.
        DataError: If the file is damaged or takes no images, an image or folder is missing, or no image can be read.
    """
    invocation.raise_errors()
    given = invocation.options
    subject = f"an exported model, which --model {given['model']} names"
    keys = ("run.root",) if "run" in given else ()
    refuse_without_effect(invocation, subject, options=("ckpt_path", "print_config"), keys=keys)
    options = parse_predict_options(given, invocation.inputs)
    images = find_images(invocation.inputs)
    mode = choose_output_mode(given, is_path=True)
    configure_console(mode)
    file, run = _find_file(given["model"], given.get("run"), invocation.overrides)
    metadata = read_metadata(file)
    check_digest(file)
    num_values = check_image_model(metadata, file)
    if FORMATS[str(format_of(file))].runs_code:
        _check_trust(file, run, is_trusted=bool(given.get("trust")))
    with _explain_failure(file):
        model = open_model(file)
    class_names = metadata.task.choose_names(metadata.outputs[0].shape, metadata.class_names)
    open_writer = options.bind_writer()
    with (
        pillow_warnings(),
        open_writer(class_names=class_names, num_values=num_values, task=metadata.task) as writer,
    ):
        predictions: Iterable[Prediction] = predict_images(model, metadata, images, file=file)
        if mode in ("terminal", "plain"):
            predictions = show_progress(
                predictions, images.count(), "images", stream=options.screen, print_line=options.print_progress
            )
        for prediction in predictions:
            writer.add(prediction)
        if not writer.num:  # any other input without images was refused before
            raise DataError("-: standard input has no paths")
    print_predict_end(writer, options, mode)
    if mode == "json":
        metrics = {"images": writer.num, "bad_images": writer.num_bad}
        sheet = None if options.contact_sheet is None else str(options.contact_sheet)
        runs.print_event("result", stage="predict", metrics=metrics, table=str(options.output), contact_sheet=sheet)
    return 0


def _find_file(text: str, run: Any, flags: Sequence[Flag]) -> tuple[Path, Path | None]:
    """Find the file, as named or in the folder ``export`` of the run that ``--run`` names; return that folder, too."""
    path = Path(text).expanduser()
    if run is None:
        return path, None
    folder = runs.find(str(run), find_run_root(flags)).folder / "export"
    return path if path.is_file() or not (folder / text).is_file() else folder / text, folder


def _check_trust(file: Path, run_exports: Path | None, *, is_trusted: bool) -> None:
    """Refuse a file of torch.export that no ``export.json`` records, unless ``--trust`` allows it.

    ``torch.export.load`` (torch 2.15) unpickles some of its records and evaluates others as Python, so that loading a
    file of unknown origin can run code.

    Args:
        file: The file.
        run_exports: Exports of the run that ``--run`` names, whose record counts too.
        is_trusted: Whether ``--trust`` was given.

    Raises:
        ConfigError: If it is neither recorded nor trusted.
    """
    if is_recorded(file, file.parent) or (run_exports is not None and is_recorded(file, run_exports)):
        return
    if not is_trusted:
        raise ConfigError(
            f"{file}: its digest is in no export.json beside it, so lightkit may not have written it. Loading a .pt2 "
            "can run code, so it was not loaded. Name the run of its export with --run; or, if you know who made the "
            "file, --trust on the command line allows it."
        )
    _log.warning("--trust: %s is in no export.json beside it; loading it may run code", file)


@contextmanager
def _explain_failure(file: Path) -> Iterator[None]:
    """Turn any exception of a file's runtime into a `DataError`."""
    try:
        yield
    except Exception as error:  # onnxruntime's have no common base class, and torch raises anything
        raise DataError(
            f"{file}: its model cannot be loaded, or run on these images ({first_line(error)}). Export it again."
        ) from error


def check_image_model(metadata: Metadata, file: Path) -> int:
    """Refuse a model that cannot predict an image file, and return the number of values that it gives for each.

    Raises:
        DataError: If it takes several inputs or one of another type, its preprocessing is unknown, or the first output
            has no row of fixed length for each image.
    """
    batch, *sizes = metadata.outputs[0].shape or (0,)
    is_prepared = metadata.in_graph or metadata.preprocessing is not None
    takes_images = len(metadata.inputs) == 1 and metadata.inputs[0].dtype in _DTYPES and is_prepared
    if not takes_images or batch is not None or None in sizes:
        takes = ", ".join(f"{spec.name} ({spec.dtype})" for spec in metadata.inputs) or "nothing"
        known = "" if is_prepared else "; what is done to an image before is not known"
        raise DataError(
            f"{file}: this model takes {takes} and gives the shape {(batch, *sizes)}{known}. Expected "
            f"images alone, as one of {', '.join(_DTYPES)}, prepared as the `preprocessing` of the data module of its "
            "export says, and an output with a row for each image."
        )
    return math.prod(size for size in sizes if size is not None)


def predict_images(run: Runner, metadata: Metadata, paths: Iterable[str], *, file: Path) -> Iterator[Prediction]:
    """Run a model on images, in their order.

    Images are read in threads ahead of the model, and no more than two batches are in memory.

    Args:
        run: The model.
        metadata: Of its file; see `check_image_model`.
        paths: The image files.
        file: Its file, for errors.

    Raises:
        DataError: If the model returns something else than a row for each image, or as many values as it has classes.
    """
    ahead = 2 * count_threads() if metadata.in_graph else max(2 * count_threads(), _BATCH_SIZE)
    images = prepare_images(paths, partial(_prepare, metadata), ahead=ahead)
    index = 0
    while batch := list(islice(images, _BATCH_SIZE)):
        by_shape: dict[tuple[int, ...], list[tuple[int, Array]]] = defaultdict(list)
        for at, item in enumerate(batch):
            if item.image is not None:
                by_shape[item.image.shape].append((at, item.image))
        values: dict[int, Array] = {}
        for shape, group in by_shape.items():
            num = max(1, _MAX_PIXELS // (shape[0] * shape[1])) if metadata.in_graph else len(group)
            for start in range(0, len(group), num):
                places, arrays = zip(*group[start : start + num], strict=True)
                values.update(zip(places, _run_batch(run, metadata, file, np.stack(arrays)), strict=True))
        for at, item in enumerate(batch):
            yield Prediction(index + at, item.path, values.get(at), item.defect)
        index += len(batch)


def _prepare(metadata: Metadata, image: Image.Image) -> Array:
    dtype = np.dtype(metadata.inputs[0].dtype)
    if metadata.in_graph:
        return np.asarray(image, dtype=np.uint8).astype(dtype, copy=False)
    assert metadata.preprocessing is not None
    return metadata.preprocessing(image).astype(dtype, copy=False)


def _run_batch(run: Runner, metadata: Metadata, file: Path, inputs: Array) -> Array:
    """Return ``(batch, values)``, float32 or float64: probabilities if the output is of classes or labels."""
    with _explain_failure(file):
        output = np.asarray(run([inputs])[0])
    if output.shape[:1] != (len(inputs),):
        raise DataError(
            f"{file}: the model gives an output of shape {output.shape} for {len(inputs)} images; expected a row for "
            "each. Export it again."
        )
    values = metadata.task.probabilities(output, num_classes=len(metadata.class_names or ()))
    return values.reshape(len(values), -1)
