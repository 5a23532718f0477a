"""The samples of a gate: every one of a split, in one order, the same for each model that is scored on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from lightkit.config import near
from lightkit.errors import ConfigError, DataError
from lightkit.registry.passes import Passes, class_labels, is_by_sample

__all__ = ["EvaluationData", "evaluated"]


class EvaluationData(LightningDataModule):
    """One split of a data module, for evaluation: no sample is left out, none comes twice, and the order stays.

    Args:
        data: The data module; its hooks do for each batch what they do in any evaluation.
        split: ``test`` or ``val``.
    """

    def __init__(self, data: LightningDataModule, split: str) -> None:
        super().__init__()
        self.data = data
        self.split = split
        self.class_names: list[str] | None = None
        self._label_of: Tensor | None = None
        self._chosen: int | None = None
        self._passes: list[Passes] = []

    # What Lightning asks for.

    def prepare_data(self) -> None:
        """Let the data module prepare."""
        self.data.trainer = self.trainer
        self.data.prepare_data()

    def setup(self, stage: str) -> None:
        """Set the data module up, once, and take its class names.

        Raises:
            DataError: If there is no such split.
        """
        self.data.trainer = self.trainer
        if self._passes:
            return
        self.data.setup(stage)
        if self.class_names is None:
            self.class_names = self.own_names
        made: Any = self.data.test_dataloader() if self.split == "test" else self.data.val_dataloader()
        loaders = list(made) if isinstance(made, (list, tuple)) else [made]
        if not loaders:
            raise DataError(f"gate.metric: {type(self.data).__name__} has no {self.split} split.")
        self._passes = [Passes(loader) for loader in loaders]

    def test_dataloader(self) -> Any:
        """The batches of the split."""
        loaders = [_Selected(passes, self) for passes in self._passes]
        return loaders[0] if len(loaders) == 1 else loaders

    val_dataloader = test_dataloader

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Do what the data module does, or else the model."""
        return self._hook("on_before_batch_transfer")(batch, dataloader_idx)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Do what the data module does, or else the model."""
        return self._hook("transfer_batch_to_device")(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Do what the data module does, or else the model."""
        return self._hook("on_after_batch_transfer")(batch, dataloader_idx)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the data module take from a checkpoint what it has put there."""
        self.data.load_state_dict(state_dict)

    def teardown(self, stage: str) -> None:
        """Let the data module judge what it has left out."""
        self.data.teardown(stage)

    def __getattr__(self, name: str) -> Any:
        """Tell what else a model asks the data for, such as the image size."""
        if name.startswith("__") or "data" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.data, name)

    def _hook(self, name: str) -> Any:
        assert self.trainer is not None
        return getattr(self.data if is_overridden(name, self.data) else self.trainer.lightning_module, name)

    # What a gate asks for.

    @property
    def own_names(self) -> list[str] | None:
        """Names of the classes in the order of the labels; None where the data tells none."""
        names = getattr(self.data, "class_names", None)
        return [str(name) for name in names] if isinstance(names, Sequence) and not isinstance(names, str) else None

    @property
    def is_stateful(self) -> bool:
        """Whether a checkpoint changes the data, so that each model needs data of its own."""
        return is_overridden("load_state_dict", self.data)

    @property
    def num_samples(self) -> int:
        """Samples of the split, once a pass is complete."""
        return sum(passes.num_samples for passes in self._passes)

    @property
    def fingerprint(self) -> str:
        """Of the samples as they are before the device takes them, once a pass is complete."""
        return "-".join(passes.digest[:32] for passes in self._passes)

    @property
    def labels_digest(self) -> str:
        """Of the labels alone: the same samples at another size have the same."""
        return "-".join(passes.labels_digest[:32] for passes in self._passes)

    def for_classes(self, names: Sequence[str] | None) -> None:
        """Count labels into the classes of a model that has them in another order, or more of them.

        Args:
            names: Its class names; None for the data's own.

        Raises:
            ConfigError: If it does not know a class of the data.
        """
        own = self.own_names
        self._label_of, self.class_names = None, own
        if own is None or names is None or list(names) == own or _is_numbered(names, own):
            return
        if unknown := [name for name in own if name not in names]:
            raise ConfigError(
                f"gate.baseline: it does not know {_listed(unknown)}, which the data has; it knows {_listed(names)}. "
                f"Say --gate.baseline=null to judge by the thresholds alone."
            )
        self.class_names = list(names)
        self._label_of = torch.tensor([self.class_names.index(name) for name in own])

    def of_class(self, name: str | None) -> None:
        """Give only the samples of a class from now on; None gives all.

        Raises:
            ConfigError: If there is no such class.
        """
        self._chosen = None if name is None else self._label(name)

    def selected(self, batch: Any) -> Any:
        """Leave out what is of another class, and write labels as the model knows them; None where nothing is left."""
        if self._chosen is not None:
            labels = class_labels(batch)
            if labels is None:
                raise ConfigError(
                    "gate.slices: the batches have no labels of classes: expected (inputs, labels, ...) with whole "
                    "numbers as labels. Leave gate.slices out."
                )
            chosen = labels == self._chosen
            if not bool(chosen.any()):
                return None
            batch = [part[chosen] if is_by_sample(part, len(chosen)) else part for part in batch]
        if self._label_of is None or (labels := class_labels(batch)) is None:
            return batch
        return [batch[0], self._label_of[labels], *batch[2:]]

    def _label(self, name: str) -> int:
        own = self.own_names or []
        if name in own:
            return own.index(name)
        if name.isdecimal() and (not own or int(name) < len(own)):
            return int(name)
        known = f"classes: {_listed(own)}" if own else "the data names no classes; say their numbers"
        raise ConfigError(f"gate.slices.{name}: there is no such class{near(name, own)}\n{known}")


class _Selected:
    """One pass over a loader, as a loader."""

    def __init__(self, passes: Passes, data: EvaluationData) -> None:
        self._passes = passes
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        for batch in self._passes:
            if (selected := self._data.selected(batch)) is not None:
                yield selected


def evaluated(data: LightningDataModule, split: str) -> EvaluationData:
    """Give a split of a data module, under whose name a checkpoint keeps the state of that data module."""
    name = type(data).__qualname__
    made: EvaluationData = type(name, (EvaluationData,), {"__qualname__": name})(data, split)
    return made


def _is_numbered(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether one of two lists only numbers the classes that the other names."""
    numbers = [str(number) for number in range(len(names))]
    return len(names) == len(others) and numbers in (list(names), list(others))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
