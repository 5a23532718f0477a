"""Loaders over tables that processes may, or may not, read after a fork."""

from __future__ import annotations

import pytest

from lightkit.data.tables.module import Table
from tests.data.tables.conftest import ObjectStore, WriteDelta

NUMBERS = {"x": [float(n) for n in range(12)], "label": [float(n) for n in range(12)]}


@pytest.mark.long
def test_workers_that_read_from_an_object_store_are_started_anew(
    write_delta: WriteDelta, object_store: ObjectStore
) -> None:
    folder = write_delta(NUMBERS)
    data = Table(
        path=f"s3://{object_store.bucket}/{folder.name}",
        storage_options=object_store.options,
        features="x",
        val_fraction=0.0,
        test_fraction=0.0,
        batch_size=4,
        num_workers=1,
    )
    data.setup("fit")
    loader = data.train_dataloader()
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    rows = [
        (inputs.item(), label.item())
        for batch in loader
        for inputs, label in zip(*batch, strict=True)
    ]
    assert sorted(rows) == [(float(n), float(n)) for n in range(12)]
    assert list(data.predict_paths) == []


def test_workers_that_read_local_files_are_started_in_the_machines_way(
    write_delta: WriteDelta,
) -> None:
    data = Table(
        path=str(write_delta(NUMBERS)),
        features="x",
        num_workers=1,
        val_fraction=0.5,
        test_fraction=0.0,
    )
    data.setup("fit")
    assert data.train_dataloader().multiprocessing_context is None
    loader = data.val_dataloader()
    assert not isinstance(loader, list)
    assert loader.multiprocessing_context is None
