"""The samples of a gate: one split of a data module.

Every sample once, in one fixed order at each pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from lightkit.callbacks.class_names import names_of_labels
from lightkit.config import near
from lightkit.errors import ConfigError, DataError, join_names
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.registry.batches import (
    count_samples,
    find_labels,
    list_tensors,
    map_labels,
    replace_labels,
    take_samples,
)
from lightkit.reports.predictions import Predictions
from lightkit.task import UNDECLARED, Task


class FixedOrderLoader:
    """A loader that gives all samples in one order at each pass.

    With their number and digests once one is complete.

    Args:
        loader: A data loader, or any iterable of batches. A data loader neither shuffles nor drops
            a batch any more.
        select: Returns the part of a batch to give; None to leave it out.
        name_labels: Returns labels in a form that does not depend on the order of the classes, for
            their digest.
    """

    def __init__(
        self,
        loader: Any,
        *,
        select: Callable[[Any], Any] = lambda batch: batch,
        name_labels: Callable[[Tensor], Tensor] = lambda labels: labels,
    ) -> None:
        sampler = getattr(loader, "batch_sampler", None)
        self.drops_last = bool(getattr(loader, "drop_last", False))
        if isinstance(loader, DataLoader) and type(sampler) is BatchSampler:
            sampler.drop_last = False
            if isinstance(sampler.sampler, RandomSampler):
                sampler.sampler = SequentialSampler(loader.dataset)  # type: ignore[arg-type]  # it had a sampler
        self.loader = loader
        self._select = select
        self._name_labels = name_labels
        self.digest = self.labels_digest = ""
        self.num_samples = 0

    def __iter__(self) -> Iterator[Any]:
        digests = _Digests(self._name_labels)
        for batch in self.loader:
            if not self.digest:
                digests.add(batch)
            if (selected := self._select(batch)) is not None:
                yield selected
        if not self.digest:
            self.digest = digests.of_samples
            self.labels_digest = digests.labels.hexdigest()
            self.num_samples = digests.num_samples


class _Digests:
    """Number and digests of the samples of a pass, which do not depend on the size of the batches.

    Args:
        name_labels: As for `FixedOrderLoader`.
    """

    def __init__(self, name_labels: Callable[[Tensor], Tensor]) -> None:
        self.num_samples = 0
        self.labels = hashlib.sha256()
        self._name_labels = name_labels
        self._parts: list[Any] = []  # a digest for each tensor of a batch

    def add(self, batch: Any) -> None:
        """Add a batch."""
        tensors = list(list_tensors(batch))
        self.num_samples += count_samples(batch)
        self._parts += [hashlib.sha256() for _ in tensors[len(self._parts) :]]
        for part, tensor in zip(self._parts, tensors, strict=False):
            part.update(_memory(tensor))
        if (labels := find_labels(batch)) is not None:
            self.labels.update(_memory(self._name_labels(labels)))

    @property
    def of_samples(self) -> str:
        """Digest of all tensors."""
        return hashlib.sha256(b"".join(part.digest() for part in self._parts)).hexdigest()


def _memory(tensor: Tensor) -> Any:
    return (
        tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        if tensor.numel()
        else b""
    )


class EvaluationData(LightningDataModule):
    """One split of a data module, for evaluation.

    Its hooks are those of the data module, which stays an object of its own, with its own names.

    Args:
        data: The data module.
        split: ``test`` or ``val``.
        task: Of the models, whose targets are numbered anew.
    """

    def __init__(self, data: LightningDataModule, split: str, task: Task = UNDECLARED) -> None:
        super().__init__()
        self.data = data
        self.task = task
        self.split = split
        self.model_name = "the model"
        """Name of the model that is scored, in messages."""
        self.model_classes: list[str] | None = None
        """Class names of the model, which may have the classes in another order, or more of them;
        None if unknown."""
        self.num_given = 0
        """Samples that the model got in the last pass."""
        self._given_labels: list[Tensor] = []  # of the last pass, where they were numbered anew
        self._loaders: list[FixedOrderLoader] = []
        self._stages: set[str | None] = set()
        self._chosen: tuple[int, bool] | None = None
        hooks = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
        for name in ("load_state_dict", "teardown", *hooks):
            if is_overridden(name, data, parent=LightningDataModule):  # else the model's counts
                setattr(self, name, getattr(data, name))

    @property
    def own_classes(self) -> list[str] | None:
        """Class names of the data, in the order of its labels; None where it has none."""
        return names_of_labels(self.data)

    @property
    def class_names(self) -> list[str] | None:
        """Class names in the order of the labels that the model gets."""
        own = self.own_classes
        return own if own is None else self.model_classes or own

    def prepare_data(self) -> None:
        """Prepare the data module."""
        self.data.trainer = self.trainer
        self.data.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Set the data module up, once for each stage."""
        self.data.trainer = self.trainer
        if stage not in self._stages:
            self._stages.add(stage)
            self.data.setup(stage)  # type: ignore[arg-type]

    def test_dataloader(self) -> Any:
        """Return the loader of the split, or the loaders where it has several."""
        if not self._loaders:
            made: Any = (
                self.data.test_dataloader() if self.split == "test" else self.data.val_dataloader()
            )
            loaders = made if isinstance(made, (list, tuple)) else [made]
            self._loaders = [
                FixedOrderLoader(loader, select=self._select, name_labels=self._name_labels)
                for loader in loaders
            ]
        return self._loaders[0] if len(self._loaders) == 1 else self._loaders

    val_dataloader = test_dataloader

    def __getattr__(self, name: str) -> Any:
        """Return other attributes of the data module for a model, such as the image size."""
        if name.startswith("__") or "data" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.data, name)

    def measure(self) -> bool:
        """Read all samples once, for number and digests.

        Return whether the data module's own loaders give all.
        """
        self.trainer = build_bare_trainer()
        self.prepare_data()
        self.setup("test" if self.split == "test" else "validate")
        self.test_dataloader()
        for loader in self._loaders:
            for _ in loader:
                pass
        return not any(loader.drops_last for loader in self._loaders)

    @property
    def num_samples(self) -> int:
        """Samples of the split, once a pass is complete."""
        return sum(loader.num_samples for loader in self._loaders)

    @property
    def sample_source(self) -> Any:
        """Names and images of the samples, as `lightkit.data`'s ``PixelSource``.

        None where the data has none.
        """
        dataset = (
            getattr(self._loaders[0].loader, "dataset", None) if len(self._loaders) == 1 else None
        )
        return getattr(dataset, "source", None)

    @property
    def names_digest(self) -> str | None:
        """Digest of the names of the samples; None where the data has none."""
        source = self.sample_source
        digest = hashlib.sha256()
        if not callable(getattr(source, "name", None)):
            return None
        for index in range(len(source)):
            digest.update(f"{source.name(index)}\n".encode())
        return digest.hexdigest()

    @property
    def fingerprint(self) -> str:
        """Digest of the samples as they are before the device takes them, after a whole pass."""
        return "-".join(loader.digest[:32] for loader in self._loaders)

    @property
    def labels_digest(self) -> str:
        """Digest of the labels alone.

        The same samples at another size, or with other numbers, have the same.
        """
        return "-".join(loader.labels_digest[:32] for loader in self._loaders)

    def number_of_class(self, name: str) -> int:
        """Return the number of a class in the labels of the data.

        Raises:
            ConfigError: If there is no such class.
        """
        own = self.own_classes or []
        if name in own:
            return own.index(name)
        if not name.isdecimal() or (own and int(name) >= len(own)):
            known = (
                f"classes: {join_names(own, most=10)}"
                if own
                else "the data names no classes; give their numbers"
            )
            raise ConfigError(
                f"gate.slices.{name}: there is no such class{near(name, own)}\n{known}"
            )
        return int(name)

    def choose_class(self, name: str, *, is_left_out: bool = False) -> None:
        """Select the samples of a class from now on, or those of all others.

        Raises:
            ConfigError: If there is no such class.
        """
        self._chosen = (self.number_of_class(name), is_left_out)

    def is_column_slice(self, name: str) -> bool:
        """Return whether a slice is of rows by a column, as ``sex=f``, and no class."""
        return (
            "=" in name
            and name not in (self.own_classes or [])
            and callable(getattr(self.data, "list_cells", None))
        )

    def add_slices(
        self, predictions: Predictions | None, names: Sequence[str]
    ) -> Predictions | None:
        """Return the predictions with the samples of slices by a column.

        Args:
            predictions: Of the last pass.
            names: Of the slices.

        Raises:
            DataError: If the table has no such column.
        """
        of_columns = [name for name in names if self.is_column_slice(name)]
        if predictions is None or not of_columns:
            return predictions
        masks = {}
        for name in of_columns:
            column, _, value = name.partition("=")
            cells: Any = self.data.list_cells(self.split, column)  # type: ignore[attr-defined]
            masks[name] = np.array([cell == value for cell in cells], np.bool_)[predictions.index]
        return replace(predictions, slices=masks)

    def choose_all(self) -> None:
        """Select the samples of all classes from now on."""
        self._chosen = None

    def begin_pass(self) -> None:
        """Count from here on what the model gets."""
        self.num_given = 0
        self._given_labels = []

    def number_of_label(self, name: str) -> int:
        """Return the number of a class in the labels that the model gets.

        Raises:
            ConfigError: If there is no such class.
        """
        number = self.number_of_class(name)
        own = self.own_classes
        return (
            number
            if own is None or self.model_classes is None
            else self.model_classes.index(own[number])
        )

    def name_predictions(self, predictions: Predictions | None) -> Predictions | None:
        """Return the predictions of the last pass with the names of the data.

        Labels are numbered anew by them.

        Raises:
            ConfigError: If the labels of the model are not those that were numbered anew.
        """
        if predictions is None or not predictions.class_names:
            return predictions
        if self._given_labels and len(predictions) == sum(map(len, self._given_labels)):
            given = torch.cat(self._given_labels).cpu().numpy()
            if given.shape == predictions.target.shape and (given != predictions.target).any():
                raise ConfigError(
                    f"gate: {self._describe_order()}, and what was"
                    " renumbered is not what its steps take"
                )
        names = self.class_names
        is_complete = names is not None and len(names) == len(predictions.class_names)
        return replace(predictions, class_names=tuple(names or ())) if is_complete else predictions

    def _describe_order(self) -> str:
        own = self.own_classes or []
        known = self.model_classes or []
        return (
            f"the labels of these batches cannot be renumbered, and {self.model_name} has the"
            f" classes in another order ({join_names(known, most=10)}) than the data"
            f" ({join_names(own, most=10)})"
        )

    def _name_labels(self, labels: Tensor) -> Tensor:
        """Put a number that is made of the name in the place of each class's number."""
        own = self.own_classes
        if own is None:
            return labels
        renumbered = self.task.form.renumber(labels, own, sorted(own))
        if renumbered is not None:
            return cast(Tensor, renumbered)
        numbers = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:7]) for name in own]
        named = map_labels(labels.long(), numbers) if not labels.is_floating_point() else None
        return labels if named is None else named

    def _select(self, batch: Any) -> Any:
        """Leave out samples of other classes, and number the labels as the model does.

        None where nothing is left.

        Raises:
            ConfigError: If the labels are of no classes, or cannot be numbered as the model's.
            DataError: If the data has a class that the model does not know.
        """
        if self._chosen is not None:
            batch = self._take_class(batch, *self._chosen)
        own = self.own_classes
        known = self.model_classes
        if batch is None:
            return None
        self.num_given += count_samples(batch)
        if known is None or own is None or known == own:
            return batch

        # the names of the labels are not in the model's order
        if unknown := [name for name in own if name not in known]:
            raise DataError(
                f"gate: {self.model_name} does not know {join_names(unknown, most=10)}, which the"
                f" data has. It knows {len(known)} classes ({join_names(known, most=10)}), the data"
                f" has {len(own)} ({join_names(own, most=10)}). Score it on data of the classes"
                " that it was trained on; if it is the baseline, --gate.baseline=null judges by"
                " the thresholds alone."
            )
        labels = find_labels(batch)
        renumbered = None if labels is None else self.task.form.renumber(labels, own, known)
        if renumbered is None and labels is not None:
            renumbered = map_labels(labels, [known.index(name) for name in own])
        if renumbered is None:
            raise ConfigError(
                f"gate: {self._describe_order()}. Expected (inputs, labels, ...), or a mapping or"
                " an object with one of label, labels, target, targets and y. Give the data the"
                " order of the model; if it is the baseline's, --gate.baseline=null judges by the"
                " thresholds alone."
            )
        self._given_labels.append(renumbered)
        return replace_labels(batch, renumbered)

    def _take_class(self, batch: Any, number: int, is_left_out: bool) -> Any:
        labels = find_labels(batch)
        if labels is None or labels.is_floating_point() or labels.is_complex() or labels.ndim != 1:
            raise ConfigError(
                "gate.slices: the batches have no labels of classes: expected (inputs, labels,"
                " ...), or a mapping or an object with one of label, labels, target, targets and y,"
                " with whole numbers as labels. Leave gate.slices out."
            )
        chosen = (labels == number) != is_left_out
        return take_samples(batch, chosen) if bool(chosen.any()) else None


def evaluation_data(
    data: LightningDataModule, split: str, task: Task = UNDECLARED
) -> EvaluationData:
    """Wrap a split of a data module in a class of its name.

    A checkpoint keeps that data module's state under it.
    """
    name = type(data).__qualname__
    made: EvaluationData = type(name, (EvaluationData,), {"__qualname__": name})(data, split, task)
    return made
