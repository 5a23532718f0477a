"""Scores of a gate: its samples in one fixed order, the models, and their own test or validation steps on them."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning import LightningDataModule, LightningModule, seed_everything
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from lightkit import runs
from lightkit.callbacks import VerifiedCheckpointIO
from lightkit.callbacks.checkpoint_io import read_checkpoint
from lightkit.callbacks.prediction_recorder import PredictionRecorder
from lightkit.config import near, shown_path
from lightkit.errors import ConfigError, DataError, join_names
from lightkit.export.bare_trainer import build_bare_trainer
from lightkit.registry.gate import ModelScores
from lightkit.registry.store import KEPT, Registry
from lightkit.runs.resume import locate_checkpoint

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class BaselineModel:
    """A model to compare with.

    Args:
        name: Its name in messages.
        version: Of the registered model; None for a run.
        config: File of its config.
        checkpoint: File of its weights.
        sha256: Digest of the weights.
        run: Run that trained it, as ``name/id``.
    """

    name: str
    version: str | None
    config: Path
    checkpoint: Path
    sha256: str
    run: str | None


def fetch_baseline(
    registry: Registry, version: ModelVersion, folder: Path, *, alias: str | None = None
) -> BaselineModel:
    """Find config and checkpoint of a version: in its run folder, else as `lightkit promote` has kept them in MLflow.

    Args:
        registry: MLflow.
        version: The version.
        folder: Folder for downloads.
        alias: Alias by which it was found.

    Raises:
        ConfigError: If neither has the checkpoint that was registered.
    """
    from mlflow.artifacts import download_artifacts  # 2 s

    tags = version.tags
    name = f"{version.name} version {version.version}{f' ({alias})' if alias else ''}"
    advice = "name another with --gate.baseline, or give --gate.baseline=null to judge by the thresholds alone."
    sha256, run_folder = tags.get("checkpoint_sha256"), tags.get("run_folder")
    if not sha256 or not run_folder:
        raise ConfigError(
            f"gate.baseline: {name} was not registered by lightkit, and cannot be scored. {advice.capitalize()}"
        )

    def find_folders() -> Iterator[tuple[Path, Path]]:
        """Yield the files of checkpoint and config where they may be."""
        yield Path(run_folder) / tags.get("checkpoint", ""), Path(run_folder) / "config.yaml"
        if kept := tags.get(KEPT):
            with registry.attempt(f"download {kept}"):
                copy = Path(download_artifacts(kept, dst_path=str(folder), tracking_uri=registry.client.tracking_uri))
            yield next(copy.glob("*.ckpt"), copy), copy / "config.yaml"

    for checkpoint, config in find_folders():
        if checkpoint.is_file() and config.is_file() and runs.digest(checkpoint) == sha256:
            return BaselineModel(name, str(version.version), config, checkpoint, sha256, tags.get("run"))
    raise ConfigError(
        f"gate.baseline: {name} cannot be scored: {shown_path(Path(run_folder))} has not the checkpoint and the config "
        f"that were registered. Put them back, {advice}"
    )


def run_as_baseline(reference: str, root: Path) -> BaselineModel:
    """Find the best checkpoint of a run.

    Raises:
        ConfigError: If there is no such run, or it has none.
    """
    run = runs.find(reference, root)
    checkpoint = locate_checkpoint(run, "best")
    if checkpoint is None:
        raise ConfigError(f"gate.baseline: {run.folder} has no best checkpoint.")
    name = f"{run.name}/{run.id}"
    return BaselineModel(f"run {name}", None, run.config_path, checkpoint, runs.digest(checkpoint), name)


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
            tensors: list[Tensor] = []
            if not self.digest:
                apply_to_collection(batch, Tensor, tensors.append)
                num_samples += _count(batch, tensors)
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


def _count(batch: Any, tensors: Sequence[Tensor]) -> int:
    """Count the samples of a batch, without those of weight 0."""
    weights = batch[2] if isinstance(batch, (tuple, list)) and len(batch) > 2 else None
    if isinstance(weights, Tensor) and weights.ndim == 1 and weights.is_floating_point():
        return int((weights > 0).sum())
    return 0 if not tensors else len(tensors[0]) if tensors[0].ndim else 1


def _memory(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() if tensor.numel() else b""


class EvaluationData(LightningDataModule):
    """One split of a data module, for evaluation: every sample once, always in the same order.

    Its hooks are those of the data module, which stays an object of its own, with its own names.

    Args:
        data: The data module.
        split: ``test`` or ``val``.
    """

    def __init__(self, data: LightningDataModule, split: str) -> None:
        super().__init__()
        self.data, self.split = data, split
        self._loaders: list[FixedOrderLoader] = []
        self._stages: set[str | None] = set()
        self._model_classes: list[str] | None = None
        self._chosen: int | None = None

    @property
    def own_classes(self) -> list[str] | None:
        """Class names of the data, in the order of its labels; None where it has none."""
        names = getattr(self.data, "class_names", None)
        return [str(name) for name in names] if isinstance(names, Sequence) and not isinstance(names, str) else None

    @property
    def class_names(self) -> list[str] | None:
        """Class names in the order of the labels that the model gets."""
        own = self.own_classes
        return own if own is None else self._model_classes or own

    def prepare_data(self) -> None:
        """Let the data module prepare."""
        self.data.trainer = self.trainer
        self.data.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Set the data module up, once for each stage; some know their classes from then on."""
        self.data.trainer = self.trainer
        if stage not in self._stages:
            self._stages.add(stage)
            self.data.setup(stage)  # type: ignore[arg-type]
            self._check_classes()

    def test_dataloader(self) -> Any:
        """Return the loader of the split, or the loaders where it has several.

        Raises:
            DataError: If there is no such split.
        """
        if not self._loaders:
            made: Any = self.data.test_dataloader() if self.split == "test" else self.data.val_dataloader()
            loaders = made if isinstance(made, (list, tuple)) else [made]
            self._loaders = [FixedOrderLoader(loader, select=self._select) for loader in loaders]
            if not self._loaders:
                raise DataError(f"gate.metric: {type(self).__name__} has no {self.split} split.")
        return self._loaders[0] if len(self._loaders) == 1 else self._loaders

    val_dataloader = test_dataloader

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Call the hook of the data module, or else of the model."""
        return self._hook("on_before_batch_transfer")(batch, dataloader_idx)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Call the hook of the data module, or else of the model."""
        return self._hook("transfer_batch_to_device")(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Call the hook of the data module, or else of the model."""
        return self._hook("on_after_batch_transfer")(batch, dataloader_idx)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the data module its state from a checkpoint."""
        self.data.load_state_dict(state_dict)

    def teardown(self, stage: str) -> None:
        """Tear the data module down."""
        self.data.teardown(stage)

    def __getattr__(self, name: str) -> Any:
        """Return other attributes of the data module that a model may read, such as the image size."""
        if name.startswith("__") or "data" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.data, name)

    def _hook(self, name: str) -> Any:
        assert self.trainer is not None
        is_own = is_overridden(name, self.data, parent=LightningDataModule)
        return getattr(self.data if is_own else self.trainer.lightning_module, name)

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

    def map_classes(self, names: Sequence[str] | None) -> None:
        """Number the labels as the model does, which may have the classes in another order, or more of them.

        Args:
            names: Its class names; None for the data's own.

        Raises:
            ConfigError: If it does not know a class of the data.
        """
        self._model_classes = None if names is None else list(names)
        self._check_classes()

    def _check_classes(self) -> None:
        known = self._model_classes
        if known is not None and (unknown := [name for name in self.own_classes or () if name not in known]):
            raise ConfigError(
                f"gate.baseline: it does not know {join_names(unknown, most=10)}, which the data has; it knows "
                f"{join_names(known, most=10)}. Give --gate.baseline=null to judge by the thresholds alone."
            )

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
        """Leave out samples of other classes, and number the labels as the model does; None where nothing is left."""
        labels, own = _labels(batch), self.own_classes
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
        if self._model_classes is None or self._model_classes == own or own is None or labels is None:
            return batch
        numbers = torch.tensor([self._model_classes.index(name) for name in own])
        return [batch[0], numbers[labels], *batch[2:]]


def evaluation_data(data: LightningDataModule, split: str) -> EvaluationData:
    """Wrap a split of a data module in a class of its name, under which a checkpoint keeps that data module's state."""
    name = type(data).__qualname__
    made: EvaluationData = type(name, (EvaluationData,), {"__qualname__": name})(data, split)
    return made


def score(
    module: LightningModule,
    checkpoint: Path,
    data: EvaluationData,
    *,
    name: str,
    metric: str,
    slices: Sequence[str] = (),
    accelerator: str | None = "cpu",
) -> ModelScores:
    """Run a model's own test or validation steps over all samples, and again over those of each class.

    Args:
        module: The model, which gets its weights here.
        checkpoint: File of its weights.
        data: The samples, prepared as this model takes them.
        name: Its name in messages.
        metric: The metric that is judged.
        slices: Classes, by name or number.
        accelerator: Configured accelerator: on the CPU for ``cpu`` or without CUDA, else on one GPU.

    Raises:
        ConfigError: If the checkpoint does not fit, the model logs no such metric, or there is no such class.
    """
    class_names = read_checkpoint(checkpoint, mmap=True).get("class_names")
    data.map_classes(class_names if isinstance(class_names, (list, tuple)) else None)
    device = "gpu" if accelerator != "cpu" and torch.cuda.is_available() else "cpu"
    trainer = build_bare_trainer(VerifiedCheckpointIO(), accelerator=device)
    recorder = PredictionRecorder(None)
    trainer.callbacks.append(recorder)  # type: ignore[attr-defined]

    def evaluate(ckpt_path: str | None) -> Mapping[str, float]:
        run_split = trainer.test if data.split == "test" else trainer.validate
        seed_everything(0, workers=True, verbose=False)  # the same samples, where preparing them draws numbers
        with warnings.catch_warnings():  # Lightning 2.6.6, of a trainer without the callbacks of the training
            warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`, callbacks")
            run_split(
                module,
                datamodule=data,
                ckpt_path=ckpt_path,
                verbose=False,
                weights_only=not runs.is_trusting(),
            )
        return {key: float(value) for key, value in trainer.callback_metrics.items()}

    metrics = evaluate(str(checkpoint))
    predictions = recorder.predictions
    if metric not in metrics:
        logged = ", ".join(sorted(metrics)) or "none"
        raise ConfigError(
            f"gate.metric: {name} logs no {metric!r} on the {data.split} split{near(metric, metrics)}\nlogged: {logged}"
        )
    by_class: dict[str, float | None] = {}
    for each in slices:
        data.choose_class(each)
        value = evaluate(None).get(metric)
        by_class[each] = value if value is not None and math.isfinite(value) else None
    return ModelScores(name, metrics, by_class, predictions)
