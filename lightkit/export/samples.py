"""The samples that prove an export and those that calibrate int8.

Evenly spaced, or random where there is no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from lightkit.errors import ConfigError, LightkitError
from lightkit.export.forward import clone_inputs, find_inputs
from lightkit.images.preprocessing import Preprocessing
from lightkit.rows.preprocessing import RowPreprocessing, find_preprocessing

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
_SPLIT_NAMES = {"val": "validation", "train": "training"}
_SEED = 0
_NUM_CALIBRATION = 128
_MAX_PREPROCESSING_GAP = 1e-3
"""Between the loader's input for an image and that of the preprocessing, in units of the normalised
input."""


@dataclass(frozen=True)
class EvaluationSamples:
    """Samples that an export is proved on.

    Args:
        inputs: Of the plain model's ``forward``, each ``(num, ...)``.
        names: Of each sample, for errors; such as the path of its file.
        batches: The same samples in the same order in the loader's form, for the model's own
            validation; empty if there are none, so that no metric is computed.
        source: Their origin, such as ``validation split``.
        not_scored: Why there are no batches, where that is not for want of data.
        load_image: Loads the image of a sample before preprocessing, uint8 ``(height, width, 3)``,
            each of its own size; None if there is none, or the loader prepares it at random, as for
            training.
        rows: Cells of the samples before any preparation, of a model that takes rows of a table;
            None of others.
    """

    inputs: tuple[Tensor, ...]
    names: Sequence[str]
    batches: Sequence[Any] = ()
    source: str = ""
    not_scored: str = ""
    load_image: Callable[[int], Pixels] | None = None
    rows: pa.RecordBatch | None = None


def draw_samples(
    module: LightningModule,
    data: LightningDataModule | None,
    num_samples: int,
    *,
    splits: Sequence[str] = ("val", "test", "train"),
) -> EvaluationSamples | None:
    """Draw samples that are spread over the first split that there is, in its order.

    None if there is none.

    They are evenly spaced: most splits are sorted by class, and on one class alone a file that
    always predicts this class would pass. A stream, and a loader with a batch sampler or a sampler
    of its own, gives its first batches, in full. If batches differ in more than their length, as
    padded texts do, only those like the first are drawn, unless the module's row preprocessing has
    `open_axes`.

    Args:
        module: Decides which part of a batch its inputs are. Has the loaders if the data module has
            none.
        data: Set up. Knows the samples' names and images, if it can.
        num_samples: Fewer if the data has fewer; rounded up to whole batches of a stream.
        splits: Names of the splits.

    Raises:
        ConfigError: If a batch is not what ``forward`` takes, or the loader has none.
    """
    split, loader = _find_loader(module, data, splits)
    if loader is None:
        return None
    chosen = choose_batches(loader, num_samples)
    batches, inputs = _read_batches(
        loader if chosen is None else chosen[0], module, data, num_samples
    )
    source = f"{_SPLIT_NAMES.get(split, split)} split"
    if not inputs:
        raise ConfigError(
            f"The {source} gives no batch, so there is nothing to prove an export on. Give the data"
            " a validation split, or set --input-shape."
        )
    joined = _join_batches(inputs, find_preprocessing(module))
    indices = list(range(len(joined[0]))) if chosen is None else chosen[1][: len(joined[0])]
    names = [f"{split}/{index:05d}" for index in indices]
    read_rows = getattr(data, "read_rows", None)
    if callable(read_rows) and chosen is not None:  # of lightkit's data modules for rows of a table
        rows, names = read_rows(split, indices)
        return EvaluationSamples(joined, names, batches, source, rows=rows)
    # those of training are shuffled or augmented
    images = None if split == "train" else _find_images(data, split)
    if images is None or len(images) <= max(indices):
        return EvaluationSamples(joined, names, batches, source)
    if (photos := getattr(images, "photos", None)) is not None:
        names = [str(photos[index].path) for index in indices]

    def load_image(at: int) -> Pixels:
        # a copy: torch wants writable memory
        return np.array(images[indices[at]][0], dtype=np.uint8)

    return EvaluationSamples(joined, names, batches, source, load_image=load_image)


def _read_batches(
    loader: Any, module: LightningModule, data: LightningDataModule | None, num_samples: int
) -> tuple[list[Any], list[tuple[Tensor, ...]]]:
    """Read batches until there are enough samples, up to the first with samples of another shape.

    Returns:
        The batches for the module's steps, and the inputs of each.
    """
    batches: list[Any] = []
    inputs: list[tuple[Tensor, ...]] = []
    preprocessing = find_preprocessing(module)
    is_padded = preprocessing is not None and bool(preprocessing.open_axes)
    missing = num_samples
    for batch in loader:
        transferred, tensors = _transfer_batch(batch, module, data)
        shapes = [tensor.shape[1:] for tensor in tensors]
        if not is_padded and inputs and shapes != [tensor.shape[1:] for tensor in inputs[0]]:
            break
        batches.append(transferred)
        inputs.append(clone_inputs(tensors))
        missing -= len(tensors[0])
        if missing <= 0:
            break
    return batches, inputs


def _join_batches(
    batches: Sequence[tuple[Tensor, ...]], preprocessing: RowPreprocessing | None
) -> tuple[Tensor, ...]:
    """Join the inputs of batches.

    They differ in more than their length where the preprocessing says so.
    """
    if preprocessing is None or not preprocessing.open_axes:
        return tuple(map(torch.cat, zip(*batches, strict=True)))
    rows = [
        tuple(tensor[at].numpy() for tensor in batch)
        for batch in batches
        for at in range(len(batch[0]))
    ]
    return tuple(map(torch.from_numpy, preprocessing.stack(rows)))


def make_random_samples(
    example: Sequence[Tensor], num_samples: int, *, source: str
) -> EvaluationSamples:
    """Make samples without data.

    Args:
        example: Inputs of the model; they come first.
        num_samples: Number of samples.
        source: Origin of the example.
    """
    names = [
        f"{'example' if at < len(example[0]) else 'made-up sample'} {at}"
        for at in range(num_samples)
    ]
    inputs = tuple(extend_example(tensor, num_samples) for tensor in example)
    return EvaluationSamples(inputs, names, source=f"random inputs shaped like {source}")


def extend_example(example: Tensor, num: int) -> Tensor:
    """Return the samples of an example, and more of the same kind after them, the same each time.

    Args:
        example: ``(batch, ...)``.
        num: Number of samples.

    Returns:
        ``(num, ...)`` of the same dtype: floats are normal with the example's mean and deviation,
        bytes are uniform, other whole numbers and booleans are drawn from the example's own.
    """
    missing = num - len(example)
    if missing <= 0:
        return example[:num]
    generator = torch.Generator().manual_seed(_SEED)
    shape = (missing, *example.shape[1:])
    if example.dtype.is_floating_point:
        deviation = example.std(correction=0) or 1.0
        more = (torch.randn(shape, generator=generator) * deviation + example.mean()).to(
            example.dtype
        )
    elif example.dtype == torch.uint8:
        more = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    else:
        more = example.flatten()[torch.randint(example.numel(), shape, generator=generator)]
    return torch.cat([example, more])


def read_calibration(
    module: LightningModule, data: LightningDataModule | None, *, in_graph: bool
) -> Iterator[tuple[Array, ...]]:
    """Read training samples, prepared as for evaluation, to calibrate a quantised model.

    If the data module has images and their preprocessing, they are evenly spaced; otherwise they
    are the first of the training loader.

    Args:
        module: Decides which part of a batch its inputs are.
        data: The data.
        in_graph: Whether the model takes uint8 images ``(1, height, width, 3)``.

    Raises:
        ConfigError: If there is no training loader.
    """
    preprocessing = getattr(data, "preprocessing", None)
    images = _find_images(data, "train")
    if images is not None and isinstance(preprocessing, Preprocessing):
        for index in space_evenly(len(images), _NUM_CALIBRATION):
            image = images[index][0]
            yield ((np.array(image)[None] if in_graph else preprocessing(image)[None]),)
        return
    samples = draw_samples(module, data, _NUM_CALIBRATION, splits=("train",))
    if samples is None:
        raise ConfigError(
            "--int8 is calibrated on training samples, and there is no"
            " training loader. Leave it out."
        )
    yield from zip(*(tensor[:, None].numpy() for tensor in samples.inputs), strict=True)


def space_evenly(count: int, num: int) -> list[int]:
    """Choose ``num`` of ``count`` samples, at most.

    So a split that is sorted by class gives some of each.
    """
    num = min(num, count)
    return [(2 * at + 1) * count // (2 * num) for at in range(num)]


def choose_batches(loader: Any, num: int) -> tuple[DataLoader[Any], list[int]] | None:
    """Build a loader of samples that are spread over another's split.

    In the split's order and in batches as large.

    Args:
        loader: Any loader.
        num: Number of samples, at most.

    Returns:
        The loader, and the indices in the dataset. None if a sample has no index, or the loader
        decides itself which samples belong together: a stream, a batch sampler or a sampler of the
        user's own.
    """
    if not (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__
        and type(loader.batch_sampler) is BatchSampler
        and type(loader.sampler) in (SequentialSampler, RandomSampler)
    ):
        return None
    chosen = space_evenly(len(loader.dataset), num)  # type: ignore[arg-type]  # it has a sampler
    size = loader.batch_size or 1
    batches = [chosen[start : start + size] for start in range(0, len(chosen), size)]
    return DataLoader(loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn), chosen


def check_preprocessing(samples: EvaluationSamples, preprocessing: Preprocessing) -> None:
    """Compare the loader's inputs with the data module's `preprocessing`, which every file repeats.

    Args:
        samples: Without images behind them nothing is compared.
        preprocessing: Of the data module.

    Raises:
        ConfigError: If they differ.
    """
    if samples.load_image is None:
        return
    for at, (name, given) in enumerate(zip(samples.names, samples.inputs[0], strict=True)):
        expected = preprocessing(Image.fromarray(samples.load_image(at)))
        if expected.shape != tuple(given.shape):
            gap = (
                f"is {tuple(given.shape)} in the loader's batch, and {expected.shape} by the"
                " preprocessing"
            )
        elif not (size := float(np.abs(expected - given.numpy()).max())) <= _MAX_PREPROCESSING_GAP:
            gap = f"differs by up to {size:.3g} between the loader's batch and the preprocessing"
        else:
            continue
        raise ConfigError(
            "data: its `preprocessing` is not what its loader does:"
            f" {name} {gap}. Make the two agree."
        )


def check_row_preprocessing(
    samples: EvaluationSamples, preprocessing: RowPreprocessing | None
) -> None:
    """Encode the rows of the samples, and compare with the loader's inputs.

    The files are proved on these.

    Args:
        samples: Without rows nothing is compared.
        preprocessing: As it was read from a file, or the model's.

    Raises:
        ConfigError: If they differ in any bit.
    """
    if samples.rows is None or preprocessing is None:
        return
    rows, defects = preprocessing.read(samples.rows)
    if defects:
        raise ConfigError(f"{samples.names[defects[0].row]}: {defects[0].reason}.")
    encoded = preprocessing.encode(rows)
    given = [tensor.numpy() for tensor in samples.inputs]
    are_equal = len(encoded) == len(given) and all(
        one.dtype == other.dtype and np.array_equal(one, other)
        for one, other in zip(encoded, given, strict=True)
    )
    if not are_equal:
        raise ConfigError(
            "data: the inputs of its loader are not those that the model's row_preprocessing makes"
            f" of the same rows ({samples.names[0]} and others). Make the two agree."
        )


def _find_loader(
    module: LightningModule, data: LightningDataModule | None, splits: Sequence[str]
) -> tuple[str, Any]:
    """Find the first split that there is, and its first loader.

    None in its place if there is no split.
    """
    for split, (owner, base) in product(
        splits, ((data, LightningDataModule), (module, LightningModule))
    ):
        if owner is not None and is_overridden(f"{split}_dataloader", owner, parent=base):
            with suppress(LightkitError):  # a data module of lightkit without that split
                loaders = getattr(owner, f"{split}_dataloader")()
                loaders = getattr(loaders, "iterables", loaders)  # Lightning's CombinedLoader
                while isinstance(loaders, (Mapping, list, tuple)):
                    loaders = next(
                        iter(loaders.values() if isinstance(loaders, Mapping) else loaders), None
                    )
                if loaders is not None:
                    return split, loaders
    return "", None


def _transfer_batch(
    batch: Any, module: LightningModule, data: LightningDataModule | None
) -> tuple[Any, tuple[Tensor, ...]]:
    """Run the transfer hooks, which may normalise a batch: the data module's, else the module's.

    Returns:
        The batch for the module's steps, whose own hooks Lightning runs; and the inputs after all
        hooks.
    """
    names = ("on_before_batch_transfer", "on_after_batch_transfer")
    hooks = (
        []
        if data is None
        else [n for n in names if is_overridden(n, data, parent=LightningDataModule)]
    )
    for hook in hooks:
        batch = getattr(data, hook)(batch, 0)
    transferred = batch
    for hook in names if not hooks else ():
        if is_overridden(hook, module, parent=LightningModule):
            transferred = getattr(module, hook)(transferred, 0)
    return batch, find_inputs(module, transferred)


def _find_images(data: LightningDataModule | None, split: str) -> Any:
    """Find a split's images before any preprocessing, in its dataset's order.

    None if the data has none.
    """
    method = getattr(data, "untransformed", None)
    if not callable(method):
        return None
    try:
        images = method(split)
    except (KeyError, LightkitError):
        return None
    return images if len(images) else None
