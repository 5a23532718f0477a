from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightkit.data.tables.columns import find_columns
from lightkit.data.tables.index import index_table
from lightkit.data.tables.module import _check_images
from lightkit.data.tables.source import open_table
from lightkit.errors import DataError
from tests.data.tables.conftest import WriteParquet


def test_a_file_that_one_rank_cannot_read_is_told_by_all(write_parquet: WriteParquet) -> None:
    write_parquet({"image": [b"a"], "label": ["x"]}, "a.parquet")
    table = write_parquet({"image": [b"b"], "label": ["x"]}, "b.parquet")
    snapshot = open_table(str(table))
    index = index_table({None: snapshot}, find_columns(snapshot.schema))
    (table / "b.parquet").unlink()  # read by rank 1 alone
    told: dict[int, Any] = {0: None, 1: None}

    def trainer(rank: int) -> Any:
        def broadcast(value: Any, *, src: int) -> Any:
            told[rank] = value
            return told[src] if told[src] is not None else ([], None)

        return SimpleNamespace(world_size=2, global_rank=rank, strategy=SimpleNamespace(broadcast=broadcast))

    for rank in (1, 0):
        with pytest.raises(DataError, match=r"b\.parquet: this file of the table is gone"):
            _check_images(index, trainer=trainer(rank))
    assert told[0][1] is None  # it could read its own
