from __future__ import annotations

import numpy as np
import pytest

from lightkit.data.tables.columns import columns_of
from lightkit.data.tables.filters import Filter, filter_of
from lightkit.data.tables.moments import Moments
from lightkit.data.tables.opening import open_table
from lightkit.data.tables.scan import BAD, LEFT_OUT, Rules, scan
from tests.data.tables.conftest import WriteParquet


def test_moments_of_parts_are_those_of_the_whole() -> None:
    numbers = np.random.default_rng(0).normal(1e6, 2.0, 1000)
    total = Moments()
    for part in np.split(numbers, [0, 1, 400, 400]):
        total.add(Moments.of(part))
    assert total.num == 1000
    assert total.scaling == pytest.approx((numbers.mean(), numbers.std()), rel=1e-9)
    assert Moments().scaling == (0.0, 0.0)


def test_each_row_has_the_code_of_what_becomes_of_it(write_parquet: WriteParquet) -> None:
    snapshot = open_table(str(write_parquet({
        "x": [0.0, 1.0, 2.0, float("nan"), float("nan")], "label": ["a"] * 5,
        "of": ["train", "val", "test", "val", "x"], "keep": [True, True, True, True, False],
    }, rows=5)))  # fmt: skip
    columns = columns_of(snapshot.schema, features="x", split="of")
    where = filter_of([["keep", "==", True]], snapshot.schema)
    found = scan(snapshot.fragments[0], Rules(columns, where, shapes=((),)))
    assert found.codes.tolist() == [0, 1, 2, BAD, LEFT_OUT]  # what is left out may name any split
    assert found.num_bad == 1
    assert found.inputs.num == 1
    assert found.classes["val"] == {"a": (1, snapshot.fragments[0].place(1))}


def test_rows_of_a_table_for_one_split_are_all_in_it(write_parquet: WriteParquet) -> None:
    snapshot = open_table(str(write_parquet({"x": [0, 1], "label": [0.5, 1.5]})))
    rules = Rules(columns_of(snapshot.schema, features="x"), Filter(), shapes=((),), given="test", val_fraction=0.9)
    found = scan(snapshot.fragments[0], rules)
    assert found.codes.tolist() == [2, 2]
    assert found.targets.num == 0  # only what is trained on counts
