"""Images that the command line names, in the place of a config's data; where their predictions go; whose weights."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning import LightningDataModule, LightningModule

from lightkit.callbacks.listed_predictions import ListedPredictions
from lightkit.cli.console import OutputMode, print_line
from lightkit.cli.context import RunContext
from lightkit.cli.resume import RunStart
from lightkit.cli.targets import Targets, end_of, targets_of
from lightkit.config import mistake
from lightkit.data.listed import ListedImages
from lightkit.errors import LightkitError
from lightkit.models.exported import load_exported
from lightkit.prediction.sink import Sink
from lightkit.prediction.tables import STANDARD_OUTPUT

__all__ = ["images_of", "lift_limits", "writer_of"]

_log = logging.getLogger("lightkit")
_LIMITS = {"limit_predict_batches": None, "fast_dev_run": False}


def images_of(
    session: RunContext, model: LightningModule, data: LightningDataModule | None, start: RunStart
) -> ListedImages:
    """Give the images in the place of the config's data, prepared as that prepares them; load weights that are named.

    Args:
        session: The invocation.
        model: Gets the weights.
        data: The config's data, of which nothing is read from the disk.
        start: How the stage begins.

    Raises:
        ConfigError: If the data does not say how an image is prepared, or the weights do not fit the model.
        DataError: If the weights cannot be read.
    """
    preprocessing = getattr(data, "preprocessing", None)
    if not callable(preprocessing):
        raise mistake(f"data: {_unprepared(data)}", session.resolved.origin_of("data"))
    if session.weights is not None:
        load_exported(model, session.weights)
    is_untrained = start.checkpoint is None and session.weights is None
    return ListedImages(
        session.inputs,
        preprocessing,
        folder=start.run.folder,
        batch_size=_number(data, "batch_size") or 32,
        num_threads=_number(data, "num_workers"),
        class_names=getattr(data, "class_names", None) if is_untrained else None,
        names_of_data=partial(_names_of, data),
        image_size=getattr(data, "image_size", None),
    )


def _unprepared(data: LightningDataModule | None) -> str:
    asked = (
        "IMAGES are prepared as the data module's attribute `preprocessing` says, such as "
        "lightkit.images.preprocessing.Preprocessing(resize=256, crop=(224, 224), mean=(...), std=(...))"
    )
    return f"{'missing' if data is None else f'{type(data).__name__} has none'}; {asked}"


def _number(data: object, name: str) -> int | None:
    value = getattr(data, name, None)
    return value if isinstance(value, int) and value > 0 else None


def _names_of(data: LightningDataModule | None) -> Any:
    """Give the class names of the data, for a model that has none: the data may have to be there for it."""
    try:
        return getattr(data, "class_names", None)
    except LightkitError as error:
        _log.warning("the classes have no names: the model names none, and the data cannot (%s)", error)
        return None


def lift_limits(trainer: Namespace) -> None:
    """Take out of the trainer's section what would leave out images that were asked for, and what tracks the training.

    A logger would open the training's run again, wherever it is tracked, and give it a new end.
    """
    if "logger" in trainer:
        trainer["logger"] = False
    for name, free in _LIMITS.items():
        value = trainer.get(name)
        is_all = isinstance(value, float) and value == 1  # as a whole number, 1 is one batch
        if not (value is None or value is False or is_all):
            _log.warning("trainer.%s: %s does not hold for IMAGES; all are predicted", name, value)
        if name in trainer:
            trainer[name] = free


def writer_of(session: RunContext) -> ListedPredictions:
    """Give the callback that writes the predictions where the options say.

    Raises:
        ConfigError: If they name something else than a place.
    """
    targets = targets_of(session.options)
    return ListedPredictions(
        targets.output,
        top_k=targets.top_k,
        contact_sheet=targets.contact_sheet,
        on_written=partial(_tell, targets=targets, mode=session.mode),
        told_to=None if session.mode != "plain" else sys.stderr if targets.output == STANDARD_OUTPUT else sys.stdout,
    )


def _tell(sink: Sink, *, targets: Targets, mode: OutputMode) -> None:
    text = end_of(sink, targets)
    if targets.output != STANDARD_OUTPUT:
        print_line(text, mode)
    elif sink.num_bad:
        _log.warning(text)
