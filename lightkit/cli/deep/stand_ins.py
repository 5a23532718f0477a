"""What takes the place of a run's loggers and of the files of its checkpoints."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.loggers.logger import DummyLogger

from lightkit.callbacks.checkpoint_reading import CheckpointReader
from lightkit.errors import CheckpointError

__all__ = ["MeasuredCheckpoints", "NoLogger", "size_of"]

_MOST_WRITTEN_BYTES = 100_000_000


class NoLogger(DummyLogger):
    """Takes what is logged, and keeps nothing.

    Args:
        folder: Where code that asks for a logger's folder may write.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    @property
    def save_dir(self) -> str:
        """A folder that is removed at the end."""
        return self._folder


class MeasuredCheckpoints(CheckpointReader):
    """Measures checkpoints; small ones are written too, for code that reads them again, but only where they go away.

    Args:
        folder: It is removed at the end.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.last_size_bytes = 0

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Serialize a checkpoint, to find out how large it is.

        Raises:
            CheckpointError: If something in it cannot be written.
        """
        try:
            self.last_size_bytes = size_of(checkpoint)
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # as Python's version has it
            raise CheckpointError(f"a checkpoint of this model cannot be written: {error}") from error
        if self._goes_away(path) and self.last_size_bytes <= _MOST_WRITTEN_BYTES:
            super().save_checkpoint(checkpoint, path, storage_options)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove what was written here."""
        if self._goes_away(path):
            super().remove_checkpoint(path)

    def _goes_away(self, path: str | Path) -> bool:
        return self._folder in Path(path).absolute().parents


def size_of(content: Any) -> int:
    """Give the number of bytes that `torch.save` would write."""
    counted = _Counted()
    torch.save(content, counted)  # type: ignore[arg-type]
    return counted.num_bytes


class _Counted(io.RawIOBase):
    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.num_bytes += size
        return size
