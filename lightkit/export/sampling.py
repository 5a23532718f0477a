"""The real samples that prove an export, and those that calibrate one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from lightkit.errors import ConfigError, LightkitError
from lightkit.export.inputs import inputs_of
from lightkit.export.spreading import chosen_batches, labels_of, spread
from lightkit.export.subject import Samples
from lightkit.images.preprocessing import Preprocessing

__all__ = ["Drawn", "calibration_of", "drawn_from", "imagined", "loader_of", "misprepared"]

_SPLITS = ("val", "predict", "test", "train")
_SPLIT_NAMES = {"val": "validation", "train": "training"}
_SEED = 0
_NUM_CALIBRATION = 128
_MOST_APART = 1e-3
"""Between what a loader gives for an image and what the preprocessing does: in units of the normalised input."""

Array = np.ndarray[Any, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Drawn:
    """Samples, and where they come from.

    Args:
        samples: The samples.
        source: In words, such as ``validation split``.
        image_at: Gives the image behind a sample as it is, uint8 ``(height, width, 3)``; None where the data has none,
            or prepares it at random, as for training.
    """

    samples: Samples
    source: str
    image_at: Callable[[int], Pixels] | None = None


def loader_of(module: LightningModule, data: LightningDataModule | None) -> tuple[str, Any] | None:
    """Find the first loader of validation, or else of prediction, test or training, with the name of its split.

    Args:
        module: Has loaders of its own where there is no data module.
        data: Set up.
    """
    for split in _SPLITS:
        hook = f"{split}_dataloader"
        for owner, base in ((data, LightningDataModule), (module, LightningModule)):
            if owner is None or not is_overridden(hook, owner, parent=base):
                continue
            try:
                loader = _first(getattr(owner, hook)())
            except LightkitError:  # a data module of ours that has no such split
                continue
            if loader is not None:
                return split, loader
    return None


def drawn_from(
    module: LightningModule,
    data: LightningDataModule | None,
    num_samples: int,
    *,
    found: tuple[str, Any],
    with_images: bool = False,
) -> Drawn:
    """Take samples of a loader that are spread over its split, in the split's order.

    Of every class alike where the data module tells labels, otherwise evenly over the order: most splits are sorted by
    class, and on one class alone a file that always says this class would pass. Only of a stream, and of a loader
    with a batch sampler or a sampler of its own, the first samples are taken. Where batches differ in more than their
    length, as padded texts do, only those like the first are taken.

    Args:
        module: Tells what of a batch are its inputs.
        data: Names the samples and gives the images behind them, if it can.
        num_samples: At most; fewer where the data has fewer.
        found: What `loader_of` found.
        with_images: Whether the images as they are, before any preprocessing, are wanted, too.

    Raises:
        ConfigError: If a batch is not what ``forward`` takes, or the loader has none.
    """
    split, loader = found
    behind = _source(data, split)
    chosen = chosen_batches(loader, num_samples, None if behind is None else labels_of(behind))
    batches: list[Any] = []
    inputs: list[tuple[Tensor, ...]] = []
    missing = num_samples
    for batch in _transferred(loader if chosen is None else chosen[0], data):
        taken = inputs_of(module, _after_transfer(batch, module, data))
        if inputs and [t.shape[1:] for t in taken] != [t.shape[1:] for t in inputs[0]]:
            break
        size = min(missing, len(taken[0]))
        batches.append(_cut(batch, len(taken[0]), size))
        inputs.append(tuple(tensor[:size].clone() for tensor in taken))
        missing -= size
        if missing <= 0:
            break
    source = f"{_SPLIT_NAMES.get(split, split)} split"
    if not inputs:
        raise ConfigError(f"The {source} gives no batch, so there is nothing to prove an export on. {_INSTEAD}")
    together = tuple(torch.cat(parts) for parts in zip(*inputs, strict=True))
    places = list(range(len(together[0]))) if chosen is None else chosen[1][: len(together[0])]
    if (chosen is None and split == "train") or (behind is not None and len(behind) <= max(places, default=0)):
        behind = None  # shuffled, so nobody knows which they are; or the images of something else
    samples = Samples(
        together,
        _names(data, split, behind, places),
        batches if split in ("val", "test", "train") else (),
        [_pixels(behind, place) for place in places] if with_images and behind is not None else None,
    )
    is_random = behind is None or split == "train"
    return Drawn(samples, source, None if is_random else lambda at: _pixels(behind, places[at]))


def imagined(example: Sequence[Tensor], num_samples: int, *, source: str) -> Drawn:
    """Make samples where there is no data: normal noise for floats, the example again for whole numbers.

    Args:
        example: Inputs of the model.
        num_samples: How many.
        source: Where the example is from, in words.
    """
    generator = torch.Generator().manual_seed(_SEED)
    made = []
    for tensor in example:
        times = -(-num_samples // len(tensor))
        repeated = torch.cat([tensor] * times)[:num_samples].clone()
        if repeated.is_floating_point():  # the example comes first: it may be all that the model makes sense of
            noise = torch.randn(repeated.shape, generator=generator, dtype=torch.float32).to(repeated.dtype)
            repeated = torch.cat([tensor, noise])[:num_samples]
        made.append(repeated)
    names = [f"made-up sample {number}" for number in range(num_samples)]
    return Drawn(Samples(tuple(made), names), f"random inputs shaped like {source}")


def calibration_of(
    module: LightningModule, data: LightningDataModule | None, *, in_graph: bool
) -> Callable[[], Iterator[tuple[Array, ...]]]:
    """Give what gives training samples as they are prepared for evaluation, to calibrate a quantised model.

    Where the data module has images and tells their preprocessing, they are chosen evenly over the classes by a fixed
    seed; otherwise they are the first of the training loader.

    Args:
        module: Tells what of a batch are its inputs.
        data: The data.
        in_graph: Whether the model takes uint8 images ``(1, height, width, 3)`` itself.
    """

    def samples() -> Iterator[tuple[Array, ...]]:
        preprocessing = getattr(data, "preprocessing", None)
        source = _source(data, "train")
        if source is not None and isinstance(preprocessing, Preprocessing):
            for index in spread(len(source), _NUM_CALIBRATION, labels_of(source)):
                image = source[index][0]
                yield ((np.array(image)[None] if in_graph else preprocessing(image)[None]),)
            return
        yield from _first_of_training(module, data)

    return samples


def misprepared(drawn: Drawn, preprocessing: Preprocessing) -> str | None:
    """Say in words where the loader prepares an image in another way than the preprocessing says; None where not.

    Args:
        drawn: The samples; where the images behind them are unknown, nothing can be said.
        preprocessing: What the data module says.
    """
    if drawn.image_at is None:
        return None
    from PIL import Image  # here, for only exports of images have it

    for at, (name, given) in enumerate(zip(drawn.samples.names, drawn.samples.inputs[0], strict=False)):
        said = preprocessing(Image.fromarray(drawn.image_at(at)))
        if said.shape != tuple(given.shape):
            return f"{name} is {tuple(given.shape)} in the loader's batch, and {said.shape} by the preprocessing"
        apart = float(np.abs(said - given.numpy()).max())
        if not apart <= _MOST_APART:
            return f"{name} differs by up to {apart:.3g} between the loader's batch and the preprocessing"
    return None


_INSTEAD = "Give the data a validation split, or say --input-shape."


def _first(loaders: Any) -> Any:
    """Give the first of one or several loaders; None where there is none."""
    loaders = getattr(loaders, "iterables", loaders)  # Lightning's CombinedLoader
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, (list, tuple)):
        return next((found for loader in loaders if (found := _first(loader)) is not None), None)
    return loaders


def _transferred(loader: Any, data: LightningDataModule | None) -> Iterator[Any]:
    """Give batches as the module's steps get them, for a data module may normalise them on their way to the device."""
    for batch in loader:
        yield _hooked(batch, data, LightningDataModule)


def _after_transfer(batch: Any, module: LightningModule, data: LightningDataModule | None) -> Any:
    return batch if data is not None and _hooks(data, LightningDataModule) else _hooked(batch, module, LightningModule)


def _hooked(batch: Any, owner: Any, base: type) -> Any:
    for hook in [] if owner is None else _hooks(owner, base):
        batch = getattr(owner, hook)(batch, 0)
    return batch


def _hooks(owner: Any, base: type) -> list[str]:
    names = ("on_before_batch_transfer", "on_after_batch_transfer")
    return [name for name in names if is_overridden(name, owner, parent=base)]


def _cut(value: Any, length: int, size: int) -> Any:
    """Leave only the first ``size`` samples of a batch of ``length``."""
    if size == length:
        return value
    if isinstance(value, Tensor):
        return value[:size] if value.ndim and len(value) == length else value
    if isinstance(value, Mapping):
        return {key: _cut(item, length, size) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cut(item, length, size) for item in value))
    if isinstance(value, (list, tuple)):
        is_flat = len(value) == length and not any(isinstance(item, (Tensor, list, tuple, Mapping)) for item in value)
        return value[:size] if is_flat else type(value)(_cut(item, length, size) for item in value)
    return value


def _source(data: LightningDataModule | None, split: str) -> Any:
    """Give a split's images before any preprocessing, in its dataset's order; None where the data has none."""
    give = getattr(data, "untransformed", None)
    if not callable(give) or split == "predict":
        return None
    try:
        source = give(split)
    except (KeyError, LightkitError):
        return None
    return source if len(source) else None


def _names(data: LightningDataModule | None, split: str, source: Any, places: Sequence[int]) -> list[str]:
    photos = getattr(source, "photos", None)
    if photos is not None:
        return [str(photos[place].path) for place in places]
    paths = getattr(data, "predict_paths", None) if split == "predict" else None
    if isinstance(paths, Sequence) and len(paths) > max(places, default=0):
        return [str(paths[place]) for place in places]
    return [f"{split}/{place:05d}" for place in places]


def _pixels(source: Any, index: int) -> Pixels:
    return np.array(source[index][0], dtype=np.uint8)  # a copy: torch wants one that it could write to


def _first_of_training(module: LightningModule, data: LightningDataModule | None) -> Iterable[tuple[Array, ...]]:
    owner: Any = data if data is not None else module
    loader = _first(owner.train_dataloader()) if is_overridden("train_dataloader", owner) else None
    if loader is None:
        raise ConfigError("--int8 is calibrated on training samples, and there is no training loader. Leave it out.")
    missing = _NUM_CALIBRATION
    for batch in _transferred(loader, data):
        inputs = inputs_of(module, _after_transfer(batch, module, data))
        yield tuple(tensor[:missing].numpy() for tensor in inputs)
        missing -= len(inputs[0])
        if missing <= 0:
            return
