"""FashionMNIST: 70,000 grey pictures of clothes, 28 pixels wide (Xiao et al. 2017)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torchvision
from PIL import Image

from lightkit.data.image_module import ImageModule
from lightkit.data.image_sources import Decoded
from lightkit.data.loader import LabelledSource
from lightkit.data.splits import Split, check_fractions, split_of
from lightkit.errors import DataError


class GrayImages:
    """Gray images with their labels, as sources of three equal channels.

    Args:
        arrays: ``(num, height, width)`` uint8.
        labels: ``(num,)`` integers.
    """

    def __init__(
        self, arrays: np.ndarray[Any, np.dtype[np.uint8]], labels: np.ndarray[Any, np.dtype[np.int64]]
    ) -> None:
        self.arrays, self.labels = arrays, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.arrays[index]).convert("RGB"), int(self.labels[index])

    def pixels(self, index: int) -> Decoded:
        """Give an image in three equal channels."""
        return Decoded(np.repeat(self.arrays[index][:, :, None], 3, axis=2))

    def label(self, index: int) -> int:
        """Give its label."""
        return int(self.labels[index])

    def name(self, index: int) -> str:
        """Give its number, as it has no file of its own."""
        return f"{index:05d}"

    def digest(self) -> str:
        """Compute a digest of all images in their order."""
        return hashlib.sha256(self.arrays.tobytes()).hexdigest()


class FashionMNIST(ImageModule):
    """Ten kinds of clothes, from local idx files that `lightkit fetch` downloads.

    As with ImageFolder, batches leave the loaders as uint8, and are normalised on the device.

    Args:
        root: Folder that holds FashionMNIST/raw with the four files, as torchvision lays them.
        image_size: Side of the square images that the model gets, in pixels; three equal channels.
        batch_size: Images of one batch on one process.
        num_workers: Processes that load images; 0 loads in the training process, `auto` chooses by cores and device,
            and says what it chose.
        val_fraction: Share of the 60,000 training images used for validation, chosen by their content.
        augment: Show training random crops, flipped or not, and what else is asked for; false shows it what evaluation
            sees. ImageClassifier then computes the features of a frozen backbone only once.
        crop_scale: Least and greatest share of an image's area that a random training crop keeps.
        color_jitter: Strength of random changes of brightness, contrast, saturation and hue in training, from 0 (none)
            to 1.
        rand_augment: Apply RandAugment in training.
        seed: Decides order and augmentation; default is the run's seed_everything.
        mirrors: Addresses of folders with the four .gz files, for `lightkit fetch`; default is torchvision's list.
        prefetch_factor: Batches that each worker prepares ahead.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Hand batches to a GPU from memory that it can read by itself; `auto` does so where there is one.
    """

    def __init__(
        self,
        root: str = "data",
        image_size: int = 224,
        batch_size: int = 32,
        num_workers: int | Literal["auto"] = "auto",
        val_fraction: float = 0.1,
        augment: bool = True,
        crop_scale: tuple[float, float] = (0.6, 1.0),
        color_jitter: float = 0.0,
        rand_augment: bool = False,
        seed: int | None = None,
        mirrors: list[str] | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            image_size=image_size, batch_size=batch_size, num_workers=num_workers, augment=augment,
            crop_scale=crop_scale, color_jitter=color_jitter, rand_augment=rand_augment, seed=seed,
            prefetch_factor=prefetch_factor, persistent_workers=persistent_workers, pin_memory=pin_memory,
        )  # fmt: skip
        check_fractions(val_fraction=val_fraction, test_fraction=0)
        self.root = Path(root).expanduser()
        self.val_fraction = val_fraction
        self.mirrors = mirrors
        self.class_names: list[str] = list(torchvision.datasets.FashionMNIST.classes)
        self.num_classes = len(self.class_names)
        self._splits: dict[Split, GrayImages] = {}
        self._fingerprint = ""

    def setup(self, stage: str | None = None) -> None:
        """Read the idx files, once.

        Raises:
            DataError: If they are missing or broken.
        """
        super().setup(stage)
        if self._splits:
            return
        training, test = (self._read(train=train) for train in (True, False))
        digests = [hashlib.sha256(pixels.tobytes()).hexdigest() for pixels in training.arrays]
        chosen: dict[Split, list[int]] = {"train": [], "val": []}
        for index, digest in enumerate(digests):
            chosen[split_of(digest, val_fraction=self.val_fraction, test_fraction=0)].append(index)
        self._splits = {
            split: GrayImages(training.arrays[indices], training.labels[indices]) for split, indices in chosen.items()
        }
        self._splits["test"] = test
        arrays = (training.arrays, training.labels, test.arrays, test.labels)
        self._fingerprint = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

    def fetch(self) -> None:
        """Download the four files of torchvision's list, unless they are there.

        Raises:
            DataError: If one of them cannot be downloaded or unpacked.
        """
        kind = torchvision.datasets.FashionMNIST
        addresses = [f"{address.rstrip('/')}/" for address in self.mirrors or kind.mirrors]
        try:
            type("FashionMNIST", (kind,), {"mirrors": addresses})(str(self.root), download=True)
        except (RuntimeError, OSError, EOFError, ValueError) as error:
            raise DataError(
                f"{self._raw}: the files cannot be downloaded from {', '.join(addresses)}, or are not those of "
                f"torchvision's list of md5 ({' '.join(str(error).split())})."
            ) from error

    @property
    def _raw(self) -> Path:
        return self.root / "FashionMNIST" / "raw"

    def _read(self, *, train: bool) -> GrayImages:
        """Read the images of training, or of the test."""
        names = [name.removesuffix(".gz") for name, _ in torchvision.datasets.FashionMNIST.resources]
        missing = [name for name in names if not (self._raw / name).is_file()]
        if missing:
            raise DataError(
                f"{self._raw}: {', '.join(missing)} missing. Run `lightkit fetch` with the same -c FILE to download "
                "them, or set data.init_args.root to the folder that holds FashionMNIST/raw."
            )
        try:
            dataset = torchvision.datasets.FashionMNIST(str(self.root), train=train)
        except (RuntimeError, ValueError, TypeError, AssertionError, IndexError, KeyError) as error:
            raise DataError(
                f"{self._raw}: the {'training' if train else 'test'} files are not what torchvision expects "
                f"({error or type(error).__name__}). Delete them and run `lightkit fetch` again."
            ) from error
        return GrayImages(dataset.data.numpy(), dataset.targets.numpy())

    @property
    def counts(self) -> dict[Split, int]:
        """Number of images of each split."""
        return {split: len(images) for split, images in self._splits.items()}

    @property
    def are_decoded(self) -> bool:
        """Images need no decoding."""
        return True

    def read_split(self, split: Split, *, decoded: bool) -> GrayImages:
        """Return the images of a split."""
        return self._splits[split]

    def untransformed(self, split: Split) -> LabelledSource:
        """Give a split's images as they are, in RGB, with their labels; known after `setup`."""
        return self._splits[split]

    def describe(self) -> dict[str, Any]:
        """What a run's manifest says of the data."""
        self.setup()
        return {
            "source": "FashionMNIST",
            "root": str(self.root),
            "fingerprint": self._fingerprint,
            "counts": self.counts,
            "class_names": self.class_names,
        }

    @property
    def predict_paths(self) -> list[str]:
        """Names of the pictures behind `predict_dataloader`, in its order; they are no files of their own."""
        return [f"t10k/{number:05d}" for number in range(len(self._splits["test"]))]
