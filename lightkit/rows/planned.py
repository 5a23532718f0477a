"""The rows of a data set by their splits.

Planned once, encoded once, and kept in the cache as arrays. No torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightkit.hardware.cache_folder import make_once
from lightkit.images.splits import SPLITS, Split
from lightkit.rows.plan import (
    Codes,
    PlanMaker,
    RowPlan,
    RowRules,
    RowSettings,
    RowSource,
    TargetRows,
    TypedRows,
    read_plan,
    read_source_targets,
    read_typed_targets,
    write_plan,
)
from lightkit.rows.preprocessing import (
    Array,
    RowPreprocessing,
    dump_preprocessing,
    load_preprocessing,
)
from lightkit.rows.values import ColumnType

_SCHEMA = 6  # of the files in the cache, and of how a plan is made
_TARGET = "target"
_WEIGHTS = "weights"


class Arrays(NamedTuple):
    """All rows of a data set, encoded; they are mapped from files.

    Args:
        inputs: Of the model's ``forward``, each ``(rows, ...)``.
        target: int64 classes ``(rows,)``, or float32 values ``(rows, 1)``.
        weights: float32 ``(rows,)``; None without.
    """

    inputs: list[Array]
    target: Array
    weights: Array | None


class PlannedRows:
    """Rows of tables, with their plan.

    Args:
        settings: Of the data set.
        rules: Of the model's columns.
        classes: Names of the classes of a checkpoint, in their order; None for those of the tables.
    """

    def __init__(
        self, settings: RowSettings, rules: RowRules, classes: Sequence[str] | None = None
    ) -> None:
        self.source = RowSource(settings, rules)
        self._classes = None if classes is None else list(classes)

    @cached_property
    def folder(self) -> Path:
        """Folder of the plan in the cache, which is made where it is not there.

        Raises:
            DataError: If the tables cannot be used.
        """
        settings = self.source.settings
        decided_by = {
            "schema": _SCHEMA,
            "fingerprint": self.source.fingerprint,
            "rules": self.source.rules.record,
            "settings": {
                name: value
                for name, value in vars(settings).items()
                if name not in ("places", "state")
            },
            "classes": self._classes,
        }
        digest = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()
        name = f"rows-{digest}"

        def make(folder: Path) -> None:
            typed = TypedRows(folder / "typed.arrow")
            plan, splits = PlanMaker(self.source, typed, self._classes).make()
            write_plan(folder, plan, splits)
            own = load_preprocessing(plan.preprocessing)
            if own is not None:  # for the training, while the cells are at hand
                parts = read_typed_targets(typed)
                _encode_once(
                    name, own, lambda aside: _encode_rows(parts, own, plan, len(splits), aside)
                )
            typed.file.unlink()

        return make_once(name, make)

    @cached_property
    def _read(self) -> tuple[RowPlan, Codes]:
        return read_plan(self.folder)

    @property
    def plan(self) -> RowPlan:
        """The plan."""
        return self._read[0]

    def find_numbers(self, split: Split) -> npt.NDArray[np.int64]:
        """Return the numbers of a split's rows, in the order of the tables."""
        return np.flatnonzero(self._read[1] == SPLITS.index(split))

    @cached_property
    def preprocessing(self) -> RowPreprocessing | None:
        """Preparation that was fitted on the training rows; None where there are none."""
        return load_preprocessing(self.plan.preprocessing)

    def encode(self, preprocessing: RowPreprocessing | None) -> Arrays:
        """Return all rows as a preparation encodes them, without one their targets.

        They are encoded the first time.

        Raises:
            DataError: If the tables do not have its columns, or cells are none of their types.
        """
        columns: Mapping[str, ColumnType] = {} if preprocessing is None else preprocessing.columns
        plan = self.plan
        num_rows = len(self._read[1])

        def make(aside: Path) -> None:
            parts = read_source_targets(self.source, columns, plan.target_type)
            _encode_rows(parts, preprocessing, plan, num_rows, aside)

        folder = _encode_once(self.folder.name, preprocessing, make)
        num_inputs = len(list(folder.glob("input_*.npy")))
        inputs = [_map_array(folder / f"input_{at}.npy") for at in range(num_inputs)]
        weights = folder / f"{_WEIGHTS}.npy"
        return Arrays(
            inputs,
            _map_array(folder / f"{_TARGET}.npy"),
            _map_array(weights) if weights.exists() else None,
        )

    def read_rows(
        self,
        split: Split,
        columns: Sequence[str],
        indices: Sequence[int] | None = None,
        *,
        with_names: bool = True,
    ) -> tuple[pa.RecordBatch, list[str]]:
        """Read rows of a split as they are in the tables, and their names.

        Args:
            split: The split.
            columns: Of the tables.
            indices: Of the rows in the split, ascending; None for all.
            with_names: Whether the names are wanted, for which a file of text is read more slowly.
        """
        wanted = self.find_numbers(split)
        if indices is not None:
            wanted = wanted[np.asarray(indices, np.int64)]
        parts: list[pa.RecordBatch] = []
        names: list[str] = []
        first = 0
        for table in self.source.tables.values():
            for batch in table.read(list(columns), with_lines=with_names):
                begin, end = np.searchsorted(wanted, (first, first + batch.rows.num_rows))
                chosen = wanted[begin:end] - first
                first += batch.rows.num_rows
                if len(chosen):
                    parts.append(batch.rows.take(pa.array(chosen)))
                    names += batch.name_rows(chosen.tolist()) if with_names else []
        (rows,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
        return rows, names


def _encode_once(
    plan_name: str, preprocessing: RowPreprocessing | None, make: Callable[[Path], None]
) -> Path:
    """Return the folder of the cache with the rows of a plan as a preparation encodes them."""
    record = json.dumps(dump_preprocessing(preprocessing), sort_keys=True)
    digest = hashlib.sha256(f"{plan_name}\n{record}".encode()).hexdigest()
    return make_once(f"encoded-{digest}", make)


def _encode_rows(
    parts: Iterable[TargetRows],
    preprocessing: RowPreprocessing | None,
    plan: RowPlan,
    num_rows: int,
    folder: Path,
) -> None:
    """Encode all rows into files, some thousand at a time."""
    files: dict[str, Any] = {}
    first = 0
    for part in parts:
        encoded = () if preprocessing is None else preprocessing.encode(part.rows)
        arrays = {f"input_{at}": array for at, array in enumerate(encoded)}
        arrays[_TARGET] = _encode_target(part.target, plan)
        if part.weight is not None:
            arrays[_WEIGHTS] = np.asarray(part.weight.to_numpy(), np.float32)
        for name, array in arrays.items():
            if name not in files:
                files[name] = np.lib.format.open_memmap(
                    folder / f"{name}.npy",
                    mode="w+",
                    dtype=array.dtype,
                    shape=(num_rows, *array.shape[1:]),
                )
            files[name][first : first + len(array)] = array
        first += len(part.target)
    for file in files.values():
        file.flush()


def _encode_target(column: pa.ChunkedArray, plan: RowPlan) -> Array:
    if plan.target_type == "value":
        return np.asarray(column.to_numpy(), np.float32)[:, None]
    names = pa.array(plan.class_names, pa.string())
    return np.asarray(pc.index_in(column, value_set=names).to_numpy(), np.int64)


def _map_array(path: Path) -> Array:
    array: Array = np.load(path, mmap_mode="r")
    return array
