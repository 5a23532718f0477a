"""Read the first images that a command line names while the process still imports torch.

No torch.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from pathlib import Path

from PIL import Image

from lightkit.images.image_file import count_libtiff_errors, count_threads, try_read_rgb
from lightkit.images.inputs import TABLE_SUFFIXES, find_images, is_delta
from lightkit.images.preprocessing import Preprocessing

_MAX_BYTES = 128 << 20  # of crops that wait for the model
_NUM_CHANNELS = 3


class EarlyImages:
    """Crops of images, made in threads from now on, until the reader of all images begins.

    An image that cannot be read is left to the reader of all images, so that its error is reported
    once.

    Args:
        words: Folders, files and patterns, as on the command line; no tables.
        preprocessing: Makes the crops.
    """

    def __init__(self, words: Sequence[str], preprocessing: Preprocessing) -> None:
        # what threads would import, and what they must not print, is settled here, before others
        # import anything
        Image.preinit()
        count_libtiff_errors()
        warnings.filterwarnings("ignore", module=r"PIL\.")

        self.words = list(words)
        self.preprocessing = preprocessing
        self._crops: dict[str, Future[Image.Image | None]] = {}
        self._is_over = False
        num_threads = max(1, count_threads() - 1)  # the imports have a core of their own
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="lightkit-early")
        self._listed = self._pool.submit(self._list)

    def list_paths(self) -> list[str]:
        """List all images; waits until they are listed.

        Raises:
            DataError: If there is no image.
        """
        return self._listed.result()

    def take(self, path: str) -> Image.Image | None:
        """Return the crop of an image, once.

        None where there is none, or it has not been begun. It ends the reading.

        Args:
            path: The image, as `list_paths` names it.
        """
        self.close()
        future = self._crops.pop(path, None)
        if future is None:
            return None
        try:
            return future.result()
        except CancelledError:
            return None

    def wait_for(self, path: str) -> None:
        """Wait until an image is cropped; its crop is still to be taken."""
        wait([self._crops[path]])

    def close(self) -> None:
        """Begin no further image."""
        if not self._is_over:
            self._is_over = True
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _list(self) -> list[str]:
        """List all images, and begin with the first ones."""
        paths = list(find_images(self.words))
        height, width = self.preprocessing.crop
        for path in paths[: _MAX_BYTES // (_NUM_CHANNELS * height * width)]:
            if self._is_over or path in self._crops:
                continue
            try:
                self._crops[path] = self._pool.submit(self._crop, path)
            except RuntimeError:  # closed meanwhile
                break
        return paths

    def _crop(self, path: str) -> Image.Image | None:
        """Crop one image; None where it cannot be read, or has so many pixels that Pillow warns."""
        try:
            if not stat.S_ISREG(Path(path).stat().st_mode):
                return None
            image, _ = try_read_rgb(path)
            if image is None or image.width * image.height > (
                Image.MAX_IMAGE_PIXELS or image.width * image.height
            ):
                return None
            return self.preprocessing.cropped(image)
        except Exception:  # noqa: BLE001 (the reader of all images meets it again, and reports it)
            return None


def begin_early(words: Sequence[str], preprocessing: Preprocessing) -> EarlyImages | None:
    """Begin to read images.

    None where a table names them, standard input does, or there is no core to spare.
    """
    if count_threads() == 1:
        return None
    for word in words:
        path = Path(os.path.expanduser(word))  # noqa: PTH111 (pathlib raises for a user that is not there)
        if word == "-" or path.suffix.lower() in TABLE_SUFFIXES or is_delta(path):
            return None
    return EarlyImages(words, preprocessing)
