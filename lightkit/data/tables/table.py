"""A Delta table or a folder of Parquet as a Lightning data module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader

from lightkit.data.image_settings import check_arguments, loading_of, training_view_of, warn_unaugmented
from lightkit.data.loader import LabelledSource
from lightkit.data.skipped_samples import Defects
from lightkit.data.splits import Split, check_fractions
from lightkit.data.tables.arguments import Asked, no_row_of, places_of
from lightkit.data.tables.bad_rows import refuse_bad_epoch, refuse_undecodable
from lightkit.data.tables.batches import TableImages
from lightkit.data.tables.index import Index
from lightkit.data.tables.loader import TableLoader
from lightkit.data.tables.opened import Opened, Opening
from lightkit.data.tables.opening import Format
from lightkit.data.tables.sharing import warn_of_order, warn_of_other_rows, warn_of_shares
from lightkit.data.tables.split_rows import RowLabels, RowNames
from lightkit.data.tables.streams import Streams
from lightkit.data.transforms import EvalView, after_transfer, preprocessing_of
from lightkit.errors import DataError
from lightkit.images.preprocessing import Preprocessing

__all__ = ["Table"]


class Table(LightningDataModule):
    """Images or numbers from a Delta table or a folder of Parquet, read as a stream, never whole in memory.

    The table is read by row group; in training the row groups come in another order in each epoch, and
    ``shuffle_buffer`` rows are kept in memory and mixed. Each row is in one batch of one process. A resumed training
    goes on at the right row, also with another number of workers; with another number of processes or another
    ``batch_size`` it says that the rest of the epoch differs.

    A batch is uint8 images ``(batch, 3, image_size, image_size)``, normalised on the device, or float32 features
    ``(batch, numbers)``, or of the shape that a single tensor column has; then int64 labels ``(batch,)``, or float32
    values ``(batch, 1)``; then, where there is a column of weights or nothing could be read, float32 weights
    ``(batch,)``.

    Args:
        path: Folder of a Delta table, a folder or file of Parquet, or an address such as s3://bucket/table.
        train: A table for training alone, in place of ``path``; likewise ``val`` and ``test``.
        val: Table for validation.
        test: Table for testing.
        format: `auto` takes for Delta what has a folder `_delta_log`.
        version: Number of the Delta table's state to read; default is the newest.
        timestamp: Moment (ISO 8601) whose state of the Delta table is read.
        storage_options: For an object store, as deltalake or the classes of pyarrow.fs take them.
        filter: Rows to take: a list of [column, operator, value] that must all hold, such as [[height, ">=", 100]], or
            a list of such lists of which one must.
        image: Column of encoded images; default is `image`, where no ``features`` are given.
        features: Column of numbers, lists or tensors, or several, which are joined into one vector.
        label: Column of what is to be predicted; null where there is none.
        weight: Column of numbers by which the loss of a row is multiplied.
        split: Column that says train, val or test; `auto` takes a column `split` where there is one and ``path`` is
            given. Without one, a hash of the image, the features or the ``key`` decides.
        key: Column by whose hash the split is decided, such as a patient, so that rows with the same go the same way.
        val_fraction: Share of the rows used for validation, where nothing says the splits.
        test_fraction: Share of the rows kept for testing, where nothing says the splits.
        target: Whether labels are classes or numbers to tell; `auto` takes floating point for numbers.
        image_size: Side of the square images that the model gets, in pixels.
        batch_size: Rows of one batch on one process.
        num_workers: Processes that load; 0 loads in the training process, `auto` chooses by cores and device.
        shuffle_buffer: Rows that each process keeps in memory and mixes; its workers share them.
        augment: Change training images at random; false shows training what evaluation sees.
        crop_scale: Least and greatest share of an image's area that a random training crop keeps.
        color_jitter: Strength of random changes of colours in training, from 0 for none to 1.
        rand_augment: Apply RandAugment in training.
        seed: Decides order and augmentation; default is the run's seed_everything.
        on_bad_image: What to do about rows that cannot be used: `skip` leaves them out and lists them in the run
            folder, `error` decodes every image before training and ends the command with the list.
        max_bad_fraction: Share of such rows from which on it is an error in either case: of the table before training,
            and of those of an epoch at its end.
        prefetch_factor: Batches that each worker prepares ahead.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Hand batches to a GPU from memory that it can read by itself; `auto` does so where there is one.
    """

    source = "table"
    input_paths: ClassVar[tuple[str, ...]] = ("path", "train", "val", "test")
    """Arguments that must be files or folders which are there already, unless they are addresses."""

    def __init__(
        self,
        path: str | None = None,
        train: str | None = None,
        val: str | None = None,
        test: str | None = None,
        format: Format = "auto",  # noqa: A002  # the user's word for it, in their YAML
        version: int | None = None,
        timestamp: str | None = None,
        storage_options: dict[str, Any] | None = None,
        filter: list[Any] | None = None,  # noqa: A002
        image: str | None = None,
        features: str | list[str] | None = None,
        label: str | None = "label",
        weight: str | None = None,
        split: str | None = "auto",
        key: str | None = None,
        val_fraction: float = 0.2,
        test_fraction: float = 0.1,
        target: Literal["auto", "class", "value"] = "auto",
        image_size: int = 224,
        batch_size: int = 32,
        num_workers: int | Literal["auto"] = "auto",
        shuffle_buffer: int = 2048,
        augment: bool = True,
        crop_scale: tuple[float, float] = (0.35, 1.0),
        color_jitter: float = 0.0,
        rand_augment: bool = False,
        seed: int | None = None,
        on_bad_image: Literal["skip", "error"] = "skip",
        max_bad_fraction: float = 0.05,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__()
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        check_arguments(
            image_size=image_size, batch_size=batch_size, shuffle_buffer=shuffle_buffer, num_workers=num_workers,
            prefetch_factor=prefetch_factor, max_bad_fraction=max_bad_fraction, crop_scale=crop_scale,
            color_jitter=color_jitter,
        )  # fmt: skip
        columns = {
            "image": image, "features": features, "label": label, "weight": weight, "split": split, "key": key,
            "target": target,
        }  # fmt: skip
        self.asked = Asked(
            places_of(path=path, train=train, val=val, test=test, version=version),
            columns=columns, format=format, version=version, timestamp=timestamp, storage_options=storage_options,
            filter=filter, val_fraction=val_fraction, test_fraction=test_fraction,
        )  # fmt: skip
        self.image_size, self.batch_size, self.num_workers = image_size, batch_size, num_workers
        self.shuffle_buffer, self.prefetch_factor = shuffle_buffer, prefetch_factor
        self.persistent_workers, self.pin_memory = persistent_workers, pin_memory
        self.augment, self.crop_scale = augment, crop_scale
        self.color_jitter, self.rand_augment = color_jitter, rand_augment
        self.seed, self.on_bad_image, self.max_bad_fraction = seed, on_bad_image, max_bad_fraction
        self.defects = Defects()
        self._opening = Opening(self.asked)
        self._training: TableLoader | None = None

    def setup(self, stage: str | None = None) -> None:
        """Open the table and look at labels and splits, once; with ``on_bad_image: error`` decode every image.

        Raises:
            ConfigError: If arguments exclude each other or fit no column.
            DataError: If the table cannot be used, or ``stage`` needs a split that there is none of.
        """
        if self._opening.opened is None:
            warn_of_shares(self._opening.open(trainer=self.trainer), trainer=self.trainer)
            self.defects = Defects(self.index.defects)
            self.index.check_bad(on_bad=self.on_bad_image, max_fraction=self.max_bad_fraction)
        if stage == "fit" and not self.augment:
            warn_unaugmented(self, "crop_scale", "color_jitter", "rand_augment")
        if stage == "fit" and self.on_bad_image == "error" and self.index.columns.image:
            refuse_undecodable(self.index, trainer=self.trainer)
        needed: dict[str | None, Split] = {"fit": "train", "test": "test", "validate": "val"}
        if stage in needed and not self.index.counts[needed[stage]]:
            raise no_row_of(needed[stage], self.asked.places)

    @property
    def index(self) -> Index:
        """The table's classes, and which rows are in which split; known after `setup`."""
        return self._known.index

    @property
    def _known(self) -> Opened:
        if self._opening.opened is None:
            self.setup()
        assert self._opening.opened is not None
        return self._opening.opened

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, which the training split decides; a label counts into this list. Empty for values."""
        return self.index.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for values."""
        return len(self.class_names)

    @property
    def has_weights(self) -> bool:
        """Whether a column of weights is the third element of each batch."""
        return self.index.columns.weight is not None

    @property
    def scaling(self) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation of the training split: ``input`` of features, ``target`` of values."""
        return self.index.scaling

    @property
    def predict_paths(self) -> Sequence[str]:
        """File and row of what `predict_dataloader` gives, in its order."""
        return RowNames(self.index, self._predict_split)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """What is done to an image before the model sees it, outside training; None for features."""
        return preprocessing_of(self.image_size) if self.index.columns.image else None

    def untransformed(self, split: Split) -> LabelledSource:
        """Give a split's images as they are, in RGB, with their labels; known after `setup`.

        Raises:
            DataError: If the table has features in place of images.
        """
        if not self.index.columns.image:
            raise DataError("The table has features, no images.")
        return TableImages(self._streams.stored(split), RowLabels(self.index, split))

    def describe(self) -> dict[str, Any]:
        """What a run's manifest says of the data."""
        return self._known.describe(source=self.source, places=self.asked.places)

    # Checkpoints: the classes that the model has learnt to tell apart.

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the classes, and which state of the table they are from."""
        said = self.describe()
        return {name: said[name] for name in ("class_names", "version", "fingerprint")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Count labels into the classes of the checkpoint.

        Raises:
            DataError: If the table has others.
        """
        self._opening.count_into(state["class_names"], trainer=self.trainer)
        warn_of_other_rows(state, self.describe(), trainer=self.trainer)

    def train_dataloader(self) -> TableLoader:
        """Shuffled batches, augmented unless asked not to; after a restored checkpoint, the rest of its epoch first."""
        view = training_view_of(self, preprocessing_of(self.image_size))
        loader = self._streams.training(view, shuffle_buffer=self.shuffle_buffer, defects=self.defects)
        if self._training is None:
            warn_of_order(self.index, loader.order, trainer=self.trainer)
        loader.order.before_epoch = self._refuse_bad_epoch
        self._training = loader
        return loader

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """The validation split, in stored order; no loader where there is none."""
        return self._evaluation("val") if self.index.counts["val"] else []

    def test_dataloader(self) -> DataLoader[Any]:
        """The test split, in stored order."""
        if not self.index.counts["test"]:
            raise no_row_of("test", self.asked.places)
        return self._evaluation("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test split if there is one, else the validation split, in stored order; each row must be readable."""
        return self._streams.prediction(self._predict_split, self._centre)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scale and normalise a batch's uint8 images where it is; then the model's hook of this name has its turn."""
        return after_transfer(self, batch, dataloader_idx, preprocessing_of(self.image_size))

    def teardown(self, stage: str) -> None:
        """Refuse a fit whose last epoch lacked too many rows; its checkpoints are written.

        Raises:
            DataError: If they are more than ``max_bad_fraction``.
        """
        if stage == "fit":
            self._refuse_bad_epoch()

    def _evaluation(self, split: Split) -> DataLoader[Any]:
        return self._streams.evaluation(split, self._centre, defects=self.defects)

    @property
    def _centre(self) -> EvalView:
        return EvalView(preprocessing_of(self.image_size))

    @property
    def _predict_split(self) -> Split:
        return "test" if self.index.counts["test"] else "val"

    @property
    def _streams(self) -> Streams:
        are_numbers = not self.index.columns.image
        loading = loading_of(self, num_samples=max(self.index.counts.values()), is_cached=are_numbers)
        return Streams(self.index, is_local=self._known.is_local, **loading)

    def _refuse_bad_epoch(self) -> None:
        if self._training is not None:
            refuse_bad_epoch(self._training, max_fraction=self.max_bad_fraction, trainer=self.trainer)
