"""The predictions of several processes, each kept in a file of its own, and joined in the order of the images.

A share's file has one record after another: a head, the path, the defect, the values; and then an end, so that a file
that was cut short is noticed.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from lightkit.errors import DataError
from lightkit.prediction.rows import Prediction
from lightkit.prediction.tables import writing

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

__all__ = ["ShareWriter", "joined"]

_HEAD = struct.Struct("<qiii")  # index; then bytes of the path, bytes of the defect, number of values; -1 for None
_END = -1  # in the place of an index


class ShareWriter:
    """Write the predictions of one process, in increasing index; left by an exception, it removes them.

    Args:
        folder: Where the shares of all processes are; it is made. All of them must see it.
        rank: The process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = _share(folder, rank)
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")
        self._last = -1

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the share, or remove it after an exception."""
        is_whole = False
        try:
            with suppress(OSError) if kind is not None else writing(self._path), self._file:
                if kind is None:
                    self._file.write(_HEAD.pack(_END, 0, 0, 0))
            is_whole = kind is None
        finally:
            if not is_whole:
                self._path.unlink(missing_ok=True)

    def add(self, prediction: Prediction) -> None:
        """Append a prediction.

        Raises:
            ValueError: If its index is not above that of the one before.
            LightkitError: If the disk is full, or the like.
        """
        if prediction.index <= self._last:
            raise ValueError(f"prediction {prediction.index} comes after {self._last}; a share is in increasing order")
        self._last = prediction.index
        path = _bytes(prediction.path)
        defect = None if prediction.defect is None else _bytes(prediction.defect)
        values = None if prediction.values is None else np.ascontiguousarray(prediction.values, dtype="<f4").ravel()
        sizes = [len(path), *(-1 if part is None else len(part) for part in (defect, values))]
        with writing(self._path):
            self._file.write(_HEAD.pack(prediction.index, *sizes) + path + (defect or b""))
            if values is not None:
                self._file.write(values.tobytes())


def joined(folder: Path, num_ranks: int) -> Iterator[Prediction]:
    """Give the predictions of all processes in the order of their indices, each index once.

    No more than one prediction of each process is in memory. Two processes may have predicted the same image, where
    their number does not divide that of the images: the one of the lower rank counts.

    Args:
        folder: That of the `ShareWriter` of each.
        num_ranks: Number of processes.

    Raises:
        DataError: If a share is missing or cut short.
    """
    shares = [_records(_share(folder, rank)) for rank in range(num_ranks)]
    in_order = heapq.merge(*shares, key=attrgetter("index"))
    for _, same in groupby(in_order, key=attrgetter("index")):
        yield next(same)


def _share(folder: Path, rank: int) -> Path:
    return folder / f"rank={rank}.share"


def _records(path: Path) -> Iterator[Prediction]:
    try:
        with path.open("rb") as file:
            while (head := _HEAD.unpack(_exactly(file, _HEAD.size)))[0] != _END:
                yield _record(file, *head)
    except (FileNotFoundError, EOFError) as error:
        says = "is missing" if isinstance(error, FileNotFoundError) else "was cut short"
        raise DataError(
            f"{path}: this share of the predictions {says}. Its process ended too early, or sees another disk."
        ) from error


def _record(file: BinaryIO, index: int, path_size: int, defect_size: int, num_values: int) -> Prediction:
    path = _text(_exactly(file, path_size))
    defect = None if defect_size < 0 else _text(_exactly(file, defect_size))
    values = None if num_values < 0 else np.frombuffer(_exactly(file, 4 * num_values), dtype="<f4").astype(np.float32)
    return Prediction(index, path, values, defect)


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise EOFError
    return data


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # names of files may be no text


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
