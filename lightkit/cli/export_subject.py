"""From a built config to a model with its weights, an example of its inputs, and samples that prove an export of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pytorch_lightning import LightningDataModule, LightningModule

from lightkit.cli.export_options import ExportOptions
from lightkit.cli.model_loading import LoadedModel, load_model
from lightkit.config import shown_path
from lightkit.errors import ConfigError
from lightkit.export.describing import graph_subject, plain_subject
from lightkit.export.inputs import Shape, described, example_of_module, example_of_shapes
from lightkit.export.sampling import Drawn, calibration_of, drawn_from, imagined, loader_of, misprepared
from lightkit.export.soundness import check_itself
from lightkit.export.subject import Subject, WriteOptions

if TYPE_CHECKING:
    from lightkit.cli.context import RunContext

__all__ = ["Exportable", "subject_of", "write_options"]

_log = logging.getLogger("lightkit")


@dataclass(frozen=True)
class Exportable:
    """A model that is ready to be exported.

    Args:
        subject: The model.
        drawn: The samples that prove it.
        options: How it is written.
        origin: Where it is from, in words.
    """

    subject: Subject
    drawn: Drawn
    options: WriteOptions
    origin: str


def subject_of(
    session: RunContext, module: LightningModule, data: LightningDataModule | None, options: ExportOptions
) -> Exportable:
    """Load the weights, find what ``forward`` takes, and draw the samples.

    Args:
        session: The invocation: its checkpoint and its run.
        module: The model, without its weights.
        data: The data, if there is any.
        options: What is to be exported.

    Raises:
        ConfigError: If the inputs cannot be found, or the preprocessing cannot go into the graph.
        ExportError: If ``forward`` fails, or gives NaN, or something else each time.
    """
    checkpoint = Path(session.ckpt_path) if session.ckpt_path else None
    if checkpoint is None:
        _log.warning("the model is untrained: neither --run nor --ckpt_path names a checkpoint")
    restored = load_model(module, data, checkpoint)
    example, drawn = _inputs(restored, options)
    names = getattr(module, "class_names", None) or getattr(data, "class_names", None)
    module.trainer = None  # it is no part of the model, and would be pickled with it
    plain = plain_subject(
        module,
        example,
        class_names=names if isinstance(names, (list, tuple)) else None,
        preprocessing=getattr(data, "preprocessing", None),
        source=_source(session, checkpoint, restored.sha256),
    )
    _check_preparation(plain, drawn)
    check_itself(plain, drawn.samples)
    subject = graph_subject(plain) if options.with_preprocessing else plain
    if options.with_preprocessing and drawn.samples.images is None:
        drawn = _imagined_images(plain, drawn, options)
    written = replace(
        write_options(options),
        calibration=calibration_of(module, data, in_graph=options.with_preprocessing) if options.int8 else None,
    )
    epoch = "" if restored.epoch is None else f" (epoch {restored.epoch + 1})"
    origin = "an untrained model" if checkpoint is None else f"{shown_path(checkpoint)}{epoch}"
    return Exportable(subject, drawn, written, origin)


def _inputs(restored: LoadedModel, options: ExportOptions) -> tuple[Any, Drawn]:
    """Find an example of what ``forward`` takes, and samples of it: real ones where there is data."""
    module, data = restored.module, restored.data
    example, named = None, ""
    if options.input_shapes:
        shapes = [Shape(sizes, name=name, dtype=dtype) for name, sizes, dtype in options.input_shapes]
        example, named = example_of_shapes(module, shapes), "--input-shape"
    elif (example := example_of_module(module)) is not None:
        named = "example_input_array"
    found = loader_of(module, data)
    if found is None:
        if example is None:
            raise ConfigError(
                f"{type(module).__name__}: what forward takes is unknown: there are no data, and no "
                f"example_input_array. Say --input-shape, such as --input-shape 1,3,224,224."
            )
        return example, _weaker(example, options, named, "there are no data")
    try:
        drawn = drawn_from(module, data, options.num_samples, found=found, with_images=options.with_preprocessing)
    except ConfigError as error:
        if not options.input_shapes:
            raise
        return example, _weaker(example, options, named, str(error).rstrip("."))
    if example is None:
        return tuple(tensor[:2] for tensor in drawn.samples.inputs), drawn
    if (unlike := _unlike(example, drawn)) is not None:
        return example, _weaker(example, options, named, unlike)
    if found[0] != "val":
        _log.info("there is no validation split: proved on the %s", drawn.source)
    return example, drawn


def _unlike(example: Sequence[Any], drawn: Drawn) -> str | None:
    """Say how samples of the data differ from the example in number, shape or dtype; None where they do not."""
    given, wanted = (
        " and ".join(described(tensor[0]) for tensor in tensors) for tensors in (drawn.samples.inputs, example)
    )
    return None if given == wanted else f"a sample of the {drawn.source} is {given}, and the export is for {wanted}"


def _weaker(example: Any, options: ExportOptions, named: str, why: str) -> Drawn:
    drawn = imagined(example, options.num_samples, source=named)
    _log.warning("the proof is weaker: %s, so that it is made on %s", why, drawn.source)
    return drawn


def _imagined_images(plain: Subject, drawn: Drawn, options: ExportOptions) -> Drawn:
    """Make images of many sizes where the data gives none of its own before its preprocessing."""
    preprocessing = plain.metadata.preprocessing
    assert preprocessing is not None
    generator = np.random.default_rng(0)
    sizes = generator.integers(preprocessing.resize // 2, 2 * preprocessing.resize + 2, (options.num_samples, 2))
    images = [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes.tolist()]
    names = [f"made-up image {number}" for number in range(len(images))]
    _log.warning(
        "the proof is weaker: the data module has no `untransformed(split)`, so that it is made on random images"
    )
    return Drawn(replace(drawn.samples, images=images, names=names, batches=()), "random images")


def _check_preparation(plain: Subject, drawn: Drawn) -> None:
    """Hold what the data module says of its preprocessing, which every file repeats, against what its loader does."""
    preprocessing = plain.metadata.preprocessing
    if preprocessing is not None and (says := misprepared(drawn, preprocessing)) is not None:
        raise ConfigError(f"data: its `preprocessing` is not what its loader does: {says}. Make the two agree.")


def _source(session: RunContext, checkpoint: Path | None, sha256: str | None) -> dict[str, str]:
    if checkpoint is None or sha256 is None:
        return {}
    source = {"checkpoint": shown_path(checkpoint), "sha256": sha256}
    return source if session.base is None else {**source, "run": f"{session.base.name}/{session.base.id}"}


def write_options(options: ExportOptions) -> WriteOptions:
    """Give what the writers of files need to know."""
    return WriteOptions(opset=options.opset, half=options.half, int8=options.int8)
