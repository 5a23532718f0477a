"""The samples of a gate: one split of a data module, every sample once, in one fixed order at each pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from lightkit.config import near
from lightkit.errors import ConfigError, join_names
from lightkit.export.bare_trainer import build_bare_trainer


class FixedOrderLoader:
    """A loader that gives all samples in one order at each pass, with their number and digests once one is complete.

    Args:
        loader: A data loader, or any iterable of batches. A data loader neither shuffles nor drops a batch any more.
        select: Returns the part of a batch to give; None to leave it out.
    """

    def __init__(self, loader: Any, *, select: Callable[[Any], Any] = lambda batch: batch) -> None:
        sampler = getattr(loader, "batch_sampler", None)
        self.drops_last = bool(getattr(loader, "drop_last", False))
        if isinstance(loader, DataLoader) and type(sampler) is BatchSampler:
            sampler.drop_last = False
            if isinstance(sampler.sampler, RandomSampler):
                sampler.sampler = SequentialSampler(loader.dataset)  # type: ignore[arg-type]  # it had a sampler
        self.loader, self._select = loader, select
        self.digest = self.labels_digest = ""
        self.num_samples = 0

    def __iter__(self) -> Iterator[Any]:
        samples, labels, num_samples = hashlib.sha256(), hashlib.sha256(), 0
        for batch in self.loader:
            if not self.digest:
                tensors: list[Tensor] = []
                apply_to_collection(batch, Tensor, tensors.append)
                num_samples += next((len(tensor) for tensor in tensors if tensor.ndim), 0)
                for tensor in tensors:
                    samples.update(_memory(tensor))
                if (its_labels := _labels(batch)) is not None:
                    labels.update(_memory(its_labels))
            if (selected := self._select(batch)) is not None:
                yield selected
        if not self.digest:
            self.digest, self.labels_digest, self.num_samples = samples.hexdigest(), labels.hexdigest(), num_samples


def _labels(batch: Any) -> Tensor | None:
    is_pair = isinstance(batch, (tuple, list)) and len(batch) >= 2
    return batch[1] if is_pair and isinstance(batch[1], Tensor) else None


def _memory(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() if tensor.numel() else b""


class EvaluationData(LightningDataModule):
    """One split of a data module, for evaluation.

    Its hooks are those of the data module, which stays an object of its own, with its own names.

    Args:
        data: The data module.
        split: ``test`` or ``val``.
    """

    def __init__(self, data: LightningDataModule, split: str) -> None:
        super().__init__()
        self.data, self.split = data, split
        self.model_classes: list[str] | None = None
        """Class names of the model, which may have the classes in another order, or more of them; None if unknown."""
        self._loaders: list[FixedOrderLoader] = []
        self._stages: set[str | None] = set()
        self._chosen: int | None = None
        hooks = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
        for name in ("load_state_dict", "teardown", *hooks):
            if is_overridden(name, data, parent=LightningDataModule):  # else the model's counts
                setattr(self, name, getattr(data, name))

    @property
    def own_classes(self) -> list[str] | None:
        """Class names of the data, in the order of its labels; None where it has none."""
        names = getattr(self.data, "class_names", None)
        return [str(name) for name in names] if isinstance(names, Sequence) and not isinstance(names, str) else None

    @property
    def class_names(self) -> list[str] | None:
        """Class names in the order of the labels that the model gets."""
        own = self.own_classes
        return own if own is None else self.model_classes or own

    def prepare_data(self) -> None:
        """Let the data module prepare."""
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
            made: Any = self.data.test_dataloader() if self.split == "test" else self.data.val_dataloader()
            loaders = made if isinstance(made, (list, tuple)) else [made]
            self._loaders = [FixedOrderLoader(loader, select=self._select) for loader in loaders]
        return self._loaders[0] if len(self._loaders) == 1 else self._loaders

    val_dataloader = test_dataloader

    def __getattr__(self, name: str) -> Any:
        """Return other attributes of the data module that a model may read, such as the image size."""
        if name.startswith("__") or "data" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.data, name)

    def measure(self) -> bool:
        """Read all samples once, for number and digests; return whether the data module's own loaders give all."""
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
        """Names and images of the samples, as `lightkit.data`'s ``PixelSource``; None where the data has none."""
        dataset = getattr(self._loaders[0].loader, "dataset", None) if len(self._loaders) == 1 else None
        return getattr(dataset, "source", None)

    @property
    def fingerprint(self) -> str:
        """Digest of the samples as they are before the device takes them, once a pass is complete."""
        return "-".join(loader.digest[:32] for loader in self._loaders)

    @property
    def labels_digest(self) -> str:
        """Digest of the labels alone: the same samples at another size have the same."""
        return "-".join(loader.labels_digest[:32] for loader in self._loaders)

    def choose_class(self, name: str) -> None:
        """Give only the samples of a class from now on.

        Raises:
            ConfigError: If there is no such class.
        """
        own = self.own_classes or []
        if name not in own and not (name.isdecimal() and (not own or int(name) < len(own))):
            known = f"classes: {join_names(own, most=10)}" if own else "the data names no classes; give their numbers"
            raise ConfigError(f"gate.slices.{name}: there is no such class{near(name, own)}\n{known}")
        self._chosen = own.index(name) if name in own else int(name)

    def _select(self, batch: Any) -> Any:
        """Leave out samples of other classes, and number the labels as the model does; None where nothing is left.

        Raises:
            ConfigError: If the labels are of no classes, or of one that the model does not know.
        """
        labels, own, known = _labels(batch), self.own_classes, self.model_classes
        if labels is not None and (labels.is_floating_point() or labels.is_complex() or labels.ndim != 1):
            labels = None  # of no classes
        if self._chosen is not None:
            if labels is None:
                raise ConfigError(
                    "gate.slices: the batches have no labels of classes: expected (inputs, labels, ...) with whole "
                    "numbers as labels. Leave gate.slices out."
                )
            chosen = labels == self._chosen
            if not bool(chosen.any()):
                return None
            batch = [
                part[chosen] if isinstance(part, Tensor) and part.ndim > 0 and len(part) == len(chosen) else part
                for part in batch
            ]
            labels = batch[1]
        if known is None or known == own or own is None or labels is None:
            return batch
        if unknown := [name for name in own if name not in known]:
            raise ConfigError(
                f"gate.baseline: it does not know {join_names(unknown, most=10)}, which the data has; it knows "
                f"{join_names(known, most=10)}. Give --gate.baseline=null to judge by the thresholds alone."
            )
        return [batch[0], torch.tensor([known.index(name) for name in own])[labels], *batch[2:]]


def evaluation_data(data: LightningDataModule, split: str) -> EvaluationData:
    """Wrap a split of a data module in a class of its name, under which a checkpoint keeps that data module's state."""
    name = type(data).__qualname__
    made: EvaluationData = type(name, (EvaluationData,), {"__qualname__": name})(data, split)
    return made
