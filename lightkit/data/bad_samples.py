"""Samples that cannot be read.

What a batch has in their place, how they are noted, and how many are too many.

In training such a sample is replaced by the next one of the epoch's order that can be read, so that
every batch has its size; that one counts twice in the means of the epoch. In validation and test,
where it would count twice in the result, it is left out, and the batch is smaller. In predictions,
whose rows stand beside the names of the files, it is an error.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TypeVar

import torch
from pytorch_lightning import Trainer

from lightkit.errors import DataError
from lightkit.images.image_file import UnreadableImageError
from lightkit.images.image_index import Defect

K = TypeVar("K")
R = TypeVar("R")


class Defects:
    """Samples that a data module cannot use.

    Those that come up later are lines of a temporary file, which this process and all that were
    forked from it, or got a pickled copy, append to: that needs no lock, which a killed process
    could leave held. This process removes it.

    Args:
        found: By the scan before training.
    """

    def __init__(self, found: Sequence[Defect] = ()) -> None:
        self.found = list(found)
        self._noted: set[str] = set()  # by this process
        self._num_taken = 0
        self._spool = Path(
            tempfile.gettempdir(), f"lightkit-defects-{os.getpid()}-{secrets.token_hex(8)}"
        )
        # Not `weakref.finalize`: processes of multiprocessing, such as a stage of a retrain, end
        # without `atexit`.
        Finalize(self, _remove, args=(self._spool,), exitpriority=0)

    def note(self, defect: Defect) -> None:
        """Note a sample that cannot be read; in any process, once each."""
        if defect.name not in self._noted:
            self._noted.add(defect.name)
            # on a line of its own, whatever a kill has torn before
            with self._spool.open("ab", buffering=0) as file:
                file.write(f"\n{json.dumps(defect)}\n".encode())

    def collect(self) -> dict[str, Defect]:
        """Return what all processes have noted, by the samples' names."""
        noted: dict[str, Defect] = {}
        with suppress(FileNotFoundError):
            for line in self._spool.read_bytes().splitlines():
                with suppress(ValueError):  # torn, or the empty one between two
                    defect = Defect(*json.loads(line))
                    noted.setdefault(defect.name, defect)
        return noted

    def take_noted(self) -> list[Defect]:
        """Return those noted in this process or its workers since the last call."""
        noted = [*self.collect().values()][self._num_taken :]
        self._num_taken += len(noted)
        return noted


def _remove(spool: Path) -> None:
    """Remove the file; `Finalize` calls it in the process that made it.

    No worker calls it: it has a copy.
    """
    spool.unlink(missing_ok=True)


def read_samples(
    keys: Sequence[K],
    read: Callable[[K], R],
    *,
    name: Callable[[K], str],
    defects: Defects | None,
    replacements: Callable[[K], Iterable[K]] | None,
) -> list[tuple[K, R]]:
    """Read the samples of a batch.

    Args:
        keys: Of the samples; at least one.
        read: Reads one, or raises `UnreadableImageError`.
        name: The sample's name in lists and errors.
        defects: Notes what cannot be read; None where that is an error.
        replacements: In training, generates the keys that follow one in the epoch's order; None
            leaves out what cannot be read.

    Returns:
        The keys and samples that were read, in order.

    Raises:
        UnreadableImageError: If a sample cannot be read and ``defects`` is None, or no sample can
            be read.
    """
    found: list[tuple[K, R]] = []
    for key in keys:
        for candidate in chain([key], () if replacements is None else replacements(key)):
            try:
                found.append((candidate, read(candidate)))
                break
            except UnreadableImageError as error:
                if defects is None:
                    raise
                defects.note(Defect(name(candidate), error.reason))
        else:
            if replacements is not None:  # nor can any after it
                break
    if not found:
        raise UnreadableImageError(
            f"{name(keys[0])}: neither this sample nor any other of"
            f" {'its epoch' if replacements else f'its batch of {len(keys)}'} could be read. Repair"
            " or replace them; bad_images.csv in the run folder lists them."
        )
    return found


def check_bad_samples(
    defects: Defects, num_samples: int, *, what: str, max_fraction: float, trainer: Trainer | None
) -> None:
    """Refuse to go on where too many samples could not be read since the scan.

    Called by all ranks together.

    Args:
        defects: Of the data module.
        num_samples: Number of samples that a stage reads, on all ranks.
        what: Plural noun for the samples, such as images.
        max_fraction: Share of them that may be bad.
        trainer: Knows the ranks; without one there is this process alone.

    Raises:
        DataError: If more are.
    """
    names = set(defects.collect())
    # a sample is in another rank's share in each epoch
    if trainer is not None and trainer.world_size > 1:
        num_noted = torch.tensor(float(len(names)), device=trainer.strategy.root_device)
        if not trainer.strategy.reduce(num_noted, reduce_op="sum"):
            return
        of_ranks = [
            trainer.strategy.broadcast(names, src=rank) for rank in range(trainer.world_size)
        ]
        names = set().union(*of_ranks)
    if len(names) > max_fraction * num_samples:
        raise DataError(
            f"{len(names)} of the {num_samples} {what} could not be read any more, more than"
            f" data.init_args.max_bad_fraction ({max_fraction:.4g}) allows. Repair or replace them;"
            " bad_images.csv in the run folder lists them."
        )
