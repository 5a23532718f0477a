"""Predictions by a run or a config of what the command line names, images or rows.

In place of the config's data.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jsonargparse import Namespace
from pytorch_lightning import LightningDataModule, LightningModule

from lightkit.callbacks.class_names import read_trained_classes
from lightkit.callbacks.predictions import ListedPredictions
from lightkit.cli.predict_options import explain_numbers, parse_predict_options, print_predict_end
from lightkit.cli.stage_config import StageConfig
from lightkit.config import error_at
from lightkit.data.listed import ListedImages
from lightkit.data.listed_rows import ListedRows
from lightkit.errors import ConfigError
from lightkit.images.early import EarlyImages
from lightkit.models.backbones import load_exported
from lightkit.runs.resume import RunStart

_log = logging.getLogger("lightkit")


def build_image_data(
    stage_config: StageConfig,
    model: LightningModule,
    data: LightningDataModule | None,
    start: RunStart,
    *,
    early_images: EarlyImages | None = None,
) -> ListedImages:
    """Build a data module of the images, and load exported weights.

    The images are prepared as the config's data prepares them.

    Args:
        stage_config: The invocation.
        model: Gets the weights that ``--model`` names.
        data: The config's data, of which nothing is read from the disk.
        start: Start of the stage.
        early_images: Those that are read already, if any.

    Raises:
        ConfigError: If the data has no preprocessing, or the weights do not fit the model.
        DataError: If the weights cannot be read.
    """
    preprocessing = getattr(data, "preprocessing", None)
    if not callable(preprocessing):
        raise error_at(
            _explain_preparation(stage_config.images, data), stage_config.resolved.origin_of("data")
        )
    trained_names = _load_names(stage_config.weights, model, start)
    is_untrained = start.checkpoint is None and stage_config.weights is None
    batch_size, num_workers = (
        value if isinstance(value := getattr(data, name, None), int) and value > 0 else None
        for name in ("batch_size", "num_workers")
    )
    return ListedImages(
        stage_config.images,
        preprocessing,
        batch_size=batch_size or 32,
        num_threads=num_workers,
        class_names=getattr(data, "class_names", None) if is_untrained else None,
        trained_names=trained_names,
        names_of_data=partial(getattr, data, "class_names", None),
        image_size=getattr(data, "image_size", None),
        early=early_images,
    )


def build_row_data(
    tables: Sequence[str], weights: Path | None, model: LightningModule, start: RunStart
) -> ListedRows:
    """Build a data module of the rows of the tables, and load exported weights.

    The model's own preparation is in its checkpoint.

    Args:
        tables: The tables.
        weights: Exported weights that ``--model`` names, if it does.
        model: Gets these weights.
        start: Start of the stage.

    Raises:
        ConfigError: If there is no checkpoint, or the weights do not fit the model.
        DataError: If the weights cannot be read.
    """
    if weights is None and start.checkpoint is None:
        raise ConfigError(
            "predict: the preparation of rows is that of a training, in its checkpoint. Name a run"
            " with --run, or an exported file with --model."
        )
    return ListedRows(tables, trained_names=_load_names(weights, model, start))


def _load_names(
    weights: Path | None, model: LightningModule, start: RunStart
) -> Sequence[str] | None:
    """Load exported weights into the model.

    Return the names of the classes that its weights were trained for.
    """
    if weights is not None:
        return load_exported(model, weights).class_names
    return None if start.checkpoint is None else read_trained_classes(start.checkpoint).outputs


def _explain_preparation(images: Sequence[str], data: LightningDataModule | None) -> str:
    """Explain why images cannot be prepared for a model, and what to do."""
    if getattr(data, "source", None) == "table":  # of numbers: one of images has a preprocessing
        return explain_numbers(
            images[0], trained=next(iter(getattr(data, "places", {}).values()), None)
        )
    found = (
        "the config has no data"
        if data is None
        else f"{type(data).__name__} has no `preprocessing`"
    )
    return (
        f"data: {found}, which says how an image is prepared for the model. Set it on the data"
        " module: lightkit.images.preprocessing.Preprocessing(resize=256, crop=(224, 224),"
        " mean=(...), std=(...)), or a function from a PIL image to an"
        " array (channels, height, width)"
    )


def drop_limits(trainer: Namespace) -> None:
    """Remove from the trainer's section its limits on batches and its loggers.

    So all images are predicted.

    A logger would open the training's run again, on its server too, and end it once more.
    """
    if "logger" in trainer:
        trainer["logger"] = False
    for name, default in (("limit_predict_batches", None), ("fast_dev_run", False)):
        value = trainer.get(name)
        is_all = isinstance(value, float) and value == 1  # as a whole number, 1 is one batch
        if not (value is None or value is False or is_all):
            _log.warning("trainer.%s: %s does not hold for IMAGES; all are predicted", name, value)
        if name in trainer:
            trainer[name] = default


def build_prediction_callback(stage_config: StageConfig) -> ListedPredictions:
    """Build the callback that writes the predictions to the files of the options.

    Raises:
        ConfigError: If an output cannot be written.
    """
    options = parse_predict_options(
        stage_config.options, stage_config.images, takes_rows=stage_config.takes_rows
    )
    return ListedPredictions(
        options.bind_writer(),
        on_written=partial(print_predict_end, options=options, mode=stage_config.mode),
        print_progress=options.print_progress if stage_config.mode == "plain" else None,
    )
