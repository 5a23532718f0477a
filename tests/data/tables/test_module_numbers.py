"""Numbers on their way into a model.

What float32 loses, weights of rows, missing keys, and names of classes.
"""

from __future__ import annotations

import json
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightkit.data.tables.module import Table
from lightkit.errors import DataError

SECONDS = np.random.default_rng(0).permutation(1000).astype("f8")
SPLIT = np.array(["train"] * 800 + ["val"] * 200)
NAMES = ["daisy", "roses", "tulips"]


def opened(
    path: Path,
    columns: dict[str, Any],
    *,
    rows: int = 100,
    stage: str | None = None,
    **settings: Any,
) -> Table:
    path.mkdir(exist_ok=True)
    pq.write_table(
        columns if isinstance(columns, pa.Table) else pa.table(columns), path / "t.parquet", rows
    )
    given: dict[str, Any] = {
        "features": ["x"],
        "label": "y",
        "num_workers": 0,
        "batch_size": 8,
        "seed": 3,
    }
    data = Table(str(path), **{**given, **settings})
    data.setup(stage)
    return data


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (1.7e9 + SECONDS, "'x' lose their differences in float32"),
        ((1.7e9 + SECONDS).astype("i8"), "'x' lose their differences in float32"),
        (
            [Decimal(f"{1700000000 + second:.2f}") for second in SECONDS],
            "'x' lose their differences in float32",
        ),
        ([[1.0, 1.7e9 + second] for second in SECONDS], "'x' lose their differences in float32"),
        (1e6 + SECONDS / 2**20, "'x' lose their differences in float32"),
        (2**24 + SECONDS, "'x' lose their differences in float32"),
        (SECONDS, ""),
        (1.7e9 + 86400 * 30 * SECONDS, ""),
        ((1.7e9 + SECONDS).astype("f4"), ""),
        (np.where(SECONDS % 2, 1e-300, 0.25), ""),
        (np.full(1000, 1.7e9 + 0.5), ""),
        (np.random.default_rng(1).normal(size=1000), ""),
        (SECONDS.astype("i4"), ""),
    ],
    ids=[
        "times",
        "whole",
        "decimal",
        "list",
        "small steps",
        "just above",
        "small",
        "months",
        "float32",
        "tiny",
        "constant",
        "real",
        "int32",
    ],
)
def test_a_column_whose_differences_float32_loses_is_reported(
    x: Any, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        opened(tmp_path / "t", {"x": pa.array(x), "y": SECONDS, "split": SPLIT})
    assert says in caplog.text
    assert bool(says) == bool(caplog.records)


def test_targets_are_reported_as_well_with_how_many_values_are_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    y = 1.7e9 + np.arange(1000)
    with caplog.at_level(logging.WARNING):
        opened(tmp_path / "t", {"x": SECONDS, "y": y, "split": SPLIT}, rows=1000)
    before, after = len(np.unique(y)), len(np.unique(y.astype("f4")))
    assert (
        f"column 'y' lose their differences in float32, in which a model gets them: of {before} "
        f"different values {after} are left"
    ) in caplog.text


def test_rows_without_a_key_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = [None if number % 5 == 0 else f"patient {number % 50}" for number in range(1000)]
    with caplog.at_level(logging.WARNING):
        data = opened(tmp_path / "t", {"x": SECONDS, "y": SECONDS, "who": keys}, key="who")
    assert "200 rows have no key (null in column 'who')" in caplog.text
    assert sum(data.counts.values()) == 1000
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        opened(
            tmp_path / "t",
            {"x": SECONDS, "y": SECONDS, "who": [key or "nobody" for key in keys]},
            key="who",
        )
        # decides nothing
        opened(tmp_path / "u", {"x": SECONDS, "y": SECONDS, "who": keys, "split": SPLIT}, key="who")
    assert not caplog.records


def test_the_mean_weight_is_of_the_training_rows_that_count(tmp_path: Path) -> None:
    weights = np.random.default_rng(2).integers(0, 20, 1000).astype("f8")
    x = SECONDS.copy()
    x[:7] = np.nan  # left out
    data = opened(tmp_path / "t", {"x": x, "y": SECONDS, "w": weights, "split": SPLIT}, weight="w")
    assert data.mean_weight == pytest.approx(weights[7:800].mean(), rel=1e-12)
    assert opened(tmp_path / "u", {"x": x, "y": SECONDS, "split": SPLIT}).mean_weight is None


def test_a_training_of_nothing_but_weights_of_0_is_refused(tmp_path: Path) -> None:
    columns = {
        "x": SECONDS,
        "y": SECONDS,
        "w": np.where(SPLIT == "train", 0.0, 1.0),
        "split": SPLIT,
    }
    with pytest.raises(
        DataError, match=r"each row of the training split has the weight 0 in column 'w'"
    ):
        opened(tmp_path / "t", columns, weight="w", stage="fit")
    opened(tmp_path / "t", columns, weight="w", stage="validate")


# -- names of classes as Hugging Face's datasets writes them
# --------------------------------------------------------


def named(names: list[str] | None, labels: Any, **more: Any) -> pa.Table:
    """Table whose schema has the metadata that ``datasets.Dataset.to_parquet`` (5.0.1) writes."""
    columns = {"x": SECONDS[: len(labels)], "y": labels, **more}
    features: dict[str, Any] = {"x": {"dtype": "float64", "_type": "Value"}}
    if names is not None:
        features["y"] = {"names": names, "_type": "ClassLabel"}
    return pa.table(columns).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def test_numbers_of_classes_have_the_names_in_the_files(tmp_path: Path) -> None:
    labels = np.arange(300) % 3
    data = opened(tmp_path / "t", named(NAMES[::-1], labels))
    assert data.class_names == NAMES[::-1]
    found = [data.index.class_names[int(row.label or 0)] for group, _ in data.index.rows("train")
             for row in data.index.read("train", group)]  # fmt: skip
    shares = {name: found.count(name) for name in NAMES}
    assert sum(shares.values()) == data.counts["train"]
    rows = [row for group, _ in data.index.rows("train") for row in data.index.read("train", group)]
    numbers = [labels[int(row.name.rpartition(" ")[2])] for row in rows]
    assert [NAMES[::-1][number] for number in numbers] == found


def test_classes_that_do_not_occur_are_none_and_a_number_without_a_name_is_a_bad_row(
    tmp_path: Path,
) -> None:
    labels = np.where(np.arange(300) % 3 == 1, 0, np.arange(300) % 3)
    labels[:5] = -1
    data = opened(tmp_path / "t", named(NAMES, labels))
    assert data.class_names == ["daisy", "tulips"]
    assert data.index.num_bad == 5
    assert "none of the 3 classes that the table names" in data.index.defects[0].reason


@pytest.mark.parametrize(
    "metadata", [b"no json", b"[]", b'{"info": null}', b'{"info": {"features": {"y": 3}}}']
)
def test_metadata_of_another_form_names_nothing(tmp_path: Path, metadata: bytes) -> None:
    table = named(None, np.arange(300) % 3).replace_schema_metadata({b"huggingface": metadata})
    assert opened(tmp_path / "t", table).class_names == ["0", "1", "2"]


def test_files_that_name_one_number_differently_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(named(NAMES[::-1], np.arange(30) % 3), tmp_path / "t" / "other.parquet")
    with pytest.raises(DataError, match=r"name the classes of column 'y' differently"):
        opened(tmp_path / "t", named(NAMES, np.arange(300) % 3))


def test_a_model_that_was_trained_on_the_numbers_goes_on_with_them(tmp_path: Path) -> None:
    data = opened(tmp_path / "t", named(NAMES, np.arange(300) % 3))
    data.load_state_dict({"class_names": ["0", "1", "2"], "version": None, "fingerprint": None})
    assert data.class_names == ["0", "1", "2"]
    data.load_state_dict({"class_names": NAMES, "version": None, "fingerprint": None})
    assert data.class_names == NAMES
