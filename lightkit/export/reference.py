"""The real samples in batches of 1, 7 and 32, and what the eager model gives for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.artefacts.metadata import Metadata
from lightkit.errors import ExportError
from lightkit.export.fresh.runtimes import flatten
from lightkit.export.parity import Batch
from lightkit.export.subject import Samples, Subject, own
from lightkit.images.preprocessing import Preprocessing

__all__ = ["BATCH_SIZES", "Reference"]

BATCH_SIZES = (1, 7, 32)
"""One, an odd one, and one that is usual: a model that was fixed to the batch of its example shows at one of them."""
_LONGEST_SIDE = 640
"""In pixels, of images that are brought to one size for a batch: 32 photos of a phone would take a gigabyte."""


class Reference:
    """What the eager model gives for the samples.

    A file with the preprocessing in its graph takes ``Samples.images``: one by one at their own sizes, in larger
    batches at the size of the first of them. What is expected then is not that graph run eagerly, but what
    `Preprocessing` (the one that predictions use) and the plain model make of the same pixels, with a softmax after it
    where the file promises probabilities and the plain model's rows are none. So a resize that is wrong in the graph
    shows.

    Args:
        subject: The model.
        samples: The samples.
        in_graph: Whether the file has the preprocessing in its graph.

    Attributes:
        batches: By batch size.
        template: What ``forward`` of the plain model gives: a tensor, tuple, list or mapping.
        is_softened: Whether a softmax was applied to it.

    Raises:
        ExportError: If there is nothing to run, or the model itself fails on the samples.
    """

    def __init__(self, subject: Subject, samples: Samples, *, in_graph: bool) -> None:
        self.subject = subject
        self.samples = samples
        self.in_graph = in_graph
        self.template: Any = None
        self.is_softened = False
        if self.num == 0:
            raise ExportError("There are no samples to prove an export on. Give the data a validation split.")
        self.batches: Mapping[int, Sequence[Batch]] = {size: list(self._of(size)) for size in BATCH_SIZES}

    @property
    def num(self) -> int:
        """Number of samples."""
        return len(self._images if self.in_graph else self.samples.inputs[0])

    @property
    def timed(self) -> Callable[[Batch], object]:
        """What is timed as eager: the model with as much in it as the file has."""
        model = self.subject.model if self.in_graph else self.subject.plain

        def call(batch: Batch) -> object:
            with torch.no_grad():
                return model(*(torch.from_numpy(array) for array in batch.inputs))

        return call

    @property
    def _images(self) -> Sequence[np.ndarray[Any, np.dtype[np.uint8]]]:
        return self.samples.images or ()

    def _of(self, size: int) -> Iterator[Batch]:
        for start in range(0, self.num, size):
            rows = [row % self.num for row in range(start, start + size)]
            inputs = [_at_one_size(self._images, rows)] if self.in_graph else self._inputs(rows)
            yield Batch(rows, inputs, self._expected(inputs))

    def _inputs(self, rows: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        return [np.ascontiguousarray(values[list(rows)].detach().cpu().numpy()) for values in self.samples.inputs]

    def _expected(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        names = [spec.name for spec in self.subject.metadata.outputs]
        if self.in_graph:
            inputs = [_prepared(inputs[0], self.subject.metadata)]
        outputs = self._run([torch.from_numpy(array) for array in inputs])
        self.template = {name: outputs[name] for name in names} if _has(outputs, names) else outputs
        leaves = [_widened(leaf) for leaf in flatten(self.template)]
        if self.in_graph and self.subject.metadata.output_kind == "probabilities" and not _sums_to_one(leaves[0]):
            leaves[0] = leaves[0].softmax(dim=1)
            self.is_softened = True
        return [leaf.detach().cpu().numpy() for leaf in leaves]

    def _run(self, inputs: Sequence[Tensor]) -> Any:
        try:
            with torch.no_grad():
                return self.subject.plain(*own(inputs))
        except Exception as error:  # whatever the user's forward raises is told
            lines = str(error).strip().splitlines() or [""]
            raise ExportError(
                f"{type(self.subject.plain).__name__} itself fails on a batch of {len(inputs[0])} samples "
                f"({type(error).__name__}: {lines[0]}), so no export can be proved. Expected a forward that takes any "
                f"batch size."
            ) from error


def _has(outputs: object, names: Sequence[str]) -> bool:
    return isinstance(outputs, Mapping) and set(outputs) == set(names)


def _sums_to_one(output: Tensor) -> bool:
    """Whether the plain model gives probabilities by itself; the metadata speak of the graph's output only."""
    return bool((output >= 0).all() and ((output.sum(dim=1) - 1).abs() < 1e-3).all())


def _widened(leaf: Tensor) -> Tensor:
    return leaf.float() if leaf.dtype == torch.bfloat16 else leaf  # numpy has none


def _prepared(images: np.ndarray[Any, Any], metadata: Metadata) -> np.ndarray[Any, Any]:
    from PIL import Image  # here, for models without images

    if metadata.preprocessing is None:
        raise ExportError("The preprocessing is in the graph, but the metadata do not say which.")
    prepare: Preprocessing = metadata.preprocessing
    return np.stack([prepare(Image.fromarray(image)) for image in images])


def _at_one_size(
    images: Sequence[np.ndarray[Any, np.dtype[np.uint8]]], rows: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 ``(batch, height, width, 3)``; one image alone keeps its size."""
    if len(rows) == 1:
        return np.ascontiguousarray(images[rows[0]][None])
    from PIL import Image  # as above

    height, width = images[rows[0]].shape[:2]
    scale = min(1.0, _LONGEST_SIDE / max(height, width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.stack([np.asarray(Image.fromarray(images[row]).resize(size, Image.Resampling.BILINEAR)) for row in rows])
