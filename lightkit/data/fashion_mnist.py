"""FashionMNIST: 70,000 grey pictures of clothes, 28 pixels wide (Xiao et al. 2017)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torchvision

from lightkit.config.bounds import Part
from lightkit.data.image_dataset import Decoded, ImageSource
from lightkit.data.image_module import ImageModule
from lightkit.errors import DataError
from lightkit.images.splits import Split, check_fractions, split_of


class GrayImages(ImageSource):
    """Gray images with their labels, as sources of three equal channels.

    Args:
        arrays: ``(num, height, width)`` uint8.
        labels: ``(num,)`` integers.
        file: Of torchvision's names, for those of the images, which have no files of their own.
    """

    def __init__(
        self,
        arrays: np.ndarray[Any, np.dtype[np.uint8]],
        labels: np.ndarray[Any, np.dtype[np.int64]],
        *,
        file: str,
    ) -> None:
        self.arrays = arrays
        self.labels = labels
        self.file = file

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, index: int) -> Decoded:
        """Return an image in three equal channels."""
        return Decoded(np.repeat(self.arrays[index][:, :, None], 3, axis=2))

    def label(self, index: int) -> int:
        """Return its label."""
        return int(self.labels[index])

    def name(self, index: int) -> str:
        """Return its number."""
        return f"{self.file}/{index:05d}"

    def digest(self) -> str:
        """Compute a digest of all images in their order."""
        return hashlib.sha256(self.arrays.tobytes()).hexdigest()


class FashionMNIST(ImageModule):
    """Ten kinds of clothes, from local idx files that `lightkit fetch` downloads.

    As with ImageFolder, batches leave the loaders as uint8, and are normalised on the device.

    Args:
        root: Folder that holds FashionMNIST/raw with the four files, as torchvision lays them.
        val_fraction: Share of the 60,000 training images used for validation, chosen by their
            content.
        crop_scale: Least and greatest share of an image's area that a random training crop keeps.
        mirrors: Addresses of folders with the four .gz files, for `lightkit fetch`; default is
            torchvision's list.
        kwargs: Sizes, loading and augmentation, as for LoadingModule.
    """

    sample_arguments = ("root", "val_fraction")

    def __init__(
        self,
        root: str = "data",
        val_fraction: Part = 0.1,
        crop_scale: tuple[float, float] = (0.6, 1.0),
        mirrors: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(crop_scale=crop_scale, **kwargs)
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
        kind = torchvision.datasets.FashionMNIST
        names = [name.removesuffix(".gz") for name, _ in kind.resources]
        if missing := [name for name in names if not (self._raw / name).is_file()]:
            raise DataError(
                f"{self._raw}: {', '.join(missing)} missing. Run `lightkit fetch` with the same -c"
                " FILE to download them, or set data.init_args.root to the folder that holds"
                " FashionMNIST/raw."
            )
        try:
            given = [kind(str(self.root), train=train) for train in (True, False)]
        except (RuntimeError, ValueError, TypeError, AssertionError, IndexError, KeyError) as error:
            raise DataError(
                f"{self._raw}: the files are not what torchvision expects"
                f" ({error or type(error).__name__}). Delete them and run `lightkit fetch` again."
            ) from error
        (images, labels), test = ((each.data.numpy(), each.targets.numpy()) for each in given)
        chosen: dict[Split, list[int]] = {"train": [], "val": []}
        for index, pixels in enumerate(images):
            digest = hashlib.sha256(pixels.tobytes()).hexdigest()
            chosen[split_of(digest, val_fraction=self.val_fraction, test_fraction=0)].append(index)
        self._splits = {
            split: GrayImages(images[indices], labels[indices], file=split)
            for split, indices in chosen.items()
        }
        self._splits["test"] = GrayImages(*test, file="t10k")
        content = b"".join(array.tobytes() for array in (images, labels, *test))
        self._fingerprint = hashlib.sha256(content).hexdigest()

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
                f"{self._raw}: the files cannot be downloaded from {', '.join(addresses)}, or are"
                f" not those of torchvision's list of md5 ({' '.join(str(error).split())})."
            ) from error

    @property
    def _raw(self) -> Path:
        return self.root / "FashionMNIST" / "raw"

    @property
    def label_counts(self) -> list[int]:
        """Number of training images of each class, for factors of the loss."""
        counts: list[int] = np.bincount(
            self._splits["train"].labels, minlength=len(self.class_names)
        ).tolist()
        return counts

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

    def describe(self) -> dict[str, Any]:
        """Return the manifest's entry of the data."""
        self.setup()
        return {
            "source": "FashionMNIST",
            "root": str(self.root),
            "fingerprint": self._fingerprint,
            "counts": self.counts,
            "class_names": self.class_names,
        }
