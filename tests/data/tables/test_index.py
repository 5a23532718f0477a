from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from lightkit.data.tables import index as indexes
from lightkit.data.tables.columns import find_columns
from lightkit.data.tables.index import Index, index_table
from lightkit.errors import ConfigError, DataError
from lightkit.images.image_index import index_images
from lightkit.images.splits import Split, split_of
from lightkit.rows.parquet_table import RowGroup, Snapshot, open_table
from tests.data.tables.conftest import WriteDelta, WriteParquet, delete_by_vector

SPLITS: tuple[Split, ...] = ("train", "val", "test")
LETTERS = {"x": [float(x) for x in range(6)], "label": ["b", "a", "b", "a", "b", "a"]}


def indexed(
    table: Path,
    *,
    features: str | Sequence[str] | None = "x",
    index: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Index:
    snapshot = open_table(str(table))
    return index_table(
        {None: snapshot},
        find_columns(snapshot.schema, features=features, **columns),
        **(index or {}),
    )


def selected(index: Index, split: Split) -> list[Any]:
    return [row for group, _ in index.rows(split) for row in index.read(split, group)]


def test_without_splits_all_rows_are_for_training(write_parquet: WriteParquet) -> None:
    index = indexed(write_parquet(LETTERS))
    assert index.counts == {"train": 6, "val": 0, "test": 0}
    assert index.class_names == ["a", "b"]
    assert [num for _, num in index.rows("train")] == [2, 2, 2]
    assert [(row.features.tolist(), row.label) for row in selected(index, "train")] == [
        ([x], 1 - x % 2) for x in range(6)
    ]  # fmt: skip
    assert selected(index, "train")[3].name.endswith("part-0.parquet, row 3")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 9, 100], ["9", "10", "100"]),
        (["10", "9", "100"], ["10", "100", "9"]),
        ([True, False, True], ["false", "true"]),
        (pa.array(["z", "y", "z"]).dictionary_encode(), ["y", "z"]),
    ],
    ids=["integers", "text", "booleans", "dictionary"],
)
def test_classes_are_sorted_as_what_they_are(
    write_parquet: WriteParquet, labels: Any, names: list[str]
) -> None:
    index = indexed(write_parquet({"x": [0, 1, 2], "label": labels}))
    assert index.class_names == names
    plain = [
        str(label).lower() for label in (labels if isinstance(labels, list) else labels.to_pylist())
    ]
    assert [row.label for row in selected(index, "train")] == [
        names.index(label) for label in plain
    ]


def test_floats_are_values(write_parquet: WriteParquet) -> None:
    index = indexed(write_parquet({"x": [1, 2, 3, 4], "label": [0.5, 1.5, 2.5, 3.5]}))
    assert index.class_names == []
    assert [row.label for row in selected(index, "train")] == [0.5, 1.5, 2.5, 3.5]


def test_floats_may_be_classes_where_they_are_whole(write_parquet: WriteParquet) -> None:
    index = indexed(
        write_parquet({"x": [0, 1, 2, 3], "label": [1.0, None, 0.0, 0.5]}), target="class"
    )
    assert index.class_names == ["0", "1"]
    assert [defect.reason for defect in index.defects] == [
        "no label (null in column 'label')",
        "the label in column 'label' is no whole number, as a class has to be",
    ]  # fmt: skip


def test_a_column_names_the_splits(write_parquet: WriteParquet) -> None:
    words = ["train", "VAL", "valid", "Validation", "test", " Train "]
    index = indexed(
        write_parquet({**LETTERS, "label": ["a"] * 6, "of": words}),
        split="of",
        index={"val_fraction": 0.5},
    )
    found = {split: [row.features.tolist() for row in selected(index, split)] for split in SPLITS}
    assert found == {"train": [[0], [5]], "val": [[1], [2], [3]], "test": [[4]]}


def test_folders_may_name_the_splits(write_parquet: WriteParquet) -> None:
    write_parquet(LETTERS, "split=train/a.parquet")
    index = indexed(write_parquet(LETTERS, "split=test/a.parquet"), split="split")
    assert index.counts == {"train": 6, "val": 0, "test": 6}


@pytest.mark.parametrize("word", ["hold-out", None], ids=["other", "null"])
def test_other_words_for_splits_are_refused(write_parquet: WriteParquet, word: str | None) -> None:
    table = write_parquet({**LETTERS, "of": ["train"] * 5 + [word]})
    with pytest.raises(
        DataError, match=rf"column 'of' names the split '{str(word).lower()}'\. Expected train"
    ):
        indexed(table, split="of")


def test_the_training_rows_give_validation_where_no_column_names_it(
    write_parquet: WriteParquet,
) -> None:
    rows = {"x": list(range(200)), "label": [0] * 200, "of": ["train"] * 150 + ["test"] * 50}
    counts = indexed(
        write_parquet(rows, rows=40), split="of", index={"val_fraction": 0.4, "test_fraction": 0.3}
    ).counts
    assert counts["test"] == 50
    assert 40 <= counts["val"] <= 80


def test_a_hash_of_the_images_gives_the_splits_of_a_folder(
    write_parquet: WriteParquet, make_images: Any
) -> None:
    folder = make_images(*(f"{kind}/{number}.png" for kind in ("a", "b") for number in range(20)))
    files = sorted(folder.rglob("*.png"))
    table = write_parquet(
        {
            "image": [file.read_bytes() for file in files],
            "label": [file.parent.name for file in files],
        },
        rows=7,
    )
    fractions = {"val_fraction": 0.3, "test_fraction": 0.2}
    index = indexed(table, features=None, index=fractions)
    catalogue = index_images(folder, val_fraction=0.3, test_fraction=0.2)
    for split in SPLITS:
        expected = [
            hashlib.sha256(photo.path.read_bytes()).hexdigest() for photo in catalogue.splits[split]
        ]
        found = [hashlib.sha256(row.image).hexdigest() for row in selected(index, split)]
        assert sorted(found) == sorted(expected)
    assert index.class_names == catalogue.class_names


def test_a_key_decides_in_place_of_the_content(write_parquet: WriteParquet) -> None:
    keys = [f"patient-{number // 4}" for number in range(40)]
    table = write_parquet({"x": list(range(40)), "label": [0] * 40, "who": keys}, rows=9)
    index = indexed(table, key="who", index={"val_fraction": 0.3, "test_fraction": 0.2})
    for split in SPLITS:
        for row in selected(index, split):
            digest = hashlib.sha256(keys[int(row.features[0])].encode()).hexdigest()
            assert split_of(digest, val_fraction=0.3, test_fraction=0.2) == split


def test_equal_features_and_labels_go_the_same_way(write_parquet: WriteParquet) -> None:
    table = write_parquet({"x": [number % 10 for number in range(60)], "label": [0] * 60}, rows=13)
    index = indexed(table, index={"val_fraction": 0.3, "test_fraction": 0.2})
    found = [{float(row.features[0]) for row in selected(index, split)} for split in SPLITS]
    assert sum(len(numbers) for numbers in found) == 10
    assert sum(index.counts.values()) == 60


def test_features_that_differ_in_the_sign_of_a_zero_go_the_same_way(
    write_parquet: WriteParquet,
) -> None:
    cells = {"x": [0.0, -0.0] * 100, "z": [number // 2 for number in range(200)]}
    table = write_parquet({**cells, "label": [0] * 200}, rows=13)
    index = indexed(table, features=["x", "z"], index={"val_fraction": 0.3, "test_fraction": 0.2})
    found = [{float(row.features[1]) for row in selected(index, split)} for split in SPLITS]
    assert sum(len(numbers) for numbers in found) == 100
    assert sum(index.counts.values()) == 200


def test_tables_may_be_a_split_each(write_parquet: WriteParquet, tmp_path: Path) -> None:
    tables: dict[Split | None, Snapshot] = {}
    for split in SPLITS:
        write_parquet({"x": [SPLITS.index(split)], "label": ["a"]}, f"{split}/part.parquet")
        tables[split] = open_table(str(tmp_path / "table" / split))
    columns = find_columns(tables["train"].schema, features="x")
    index = index_table(tables, columns, val_fraction=0.5)
    assert [[row.features.tolist() for row in selected(index, split)] for split in SPLITS] == [
        [[0]],
        [[1]],
        [[2]],
    ]
    with pytest.raises(ConfigError, match=r"split has no effect on tables that are a split each"):
        index_table(tables, replace(columns, split="x"))


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "null label": ({"label": ["a", None, "b"]}, {}, "no label (null in column 'label')"),
    "null value": ({"label": [0.5, None, 1.5]}, {}, "no label (null in column 'label')"),
    "NaN value": ({"label": [0.5, float("nan"), 1.5]}, {},
                  "the label in column 'label' is not a finite number"),
    "NaN features": ({"x": [0.0, float("nan"), 1.0]}, {},
                     "a null, NaN, infinity or another length in x"),
    "list length": ({"x": [[0.0, 1.0], [2.0], [3.0, 4.0]]}, {},
                    "a null, NaN, infinity or another length in x"),
    "null weight": ({"w": [1.0, None, 0.0]}, {"weight": "w"},
                    "column 'w' has no weight of 0 or more"),
    "negative weight": ({"w": [1.0, -1.0, 0.0]}, {"weight": "w"},
                        "column 'w' has no weight of 0 or more"),
    "null image": ({"i": [b"a", None, b"c"]}, {"features": None, "image": "i"},
                   "no image (null in column 'i')"),
    "null bytes": (
        {"i": [{"bytes": b"a"}, {"bytes": None}, {"bytes": b"c"}]},
        {"features": None, "image": "i"},
        "no image (null in column 'i')",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "arguments", "reason"), BAD.values(), ids=BAD.keys())
def test_a_row_that_cannot_be_used_is_left_out_and_listed(
    write_parquet: WriteParquet, columns: dict[str, Any], arguments: dict[str, Any], reason: str
) -> None:
    table = write_parquet({"x": [0.0, 1.0, 2.0], "label": ["a", "b", "a"], **columns}, rows=3)
    index = indexed(table, **arguments)
    assert (index.counts["train"], index.num_bad) == (2, 1)
    assert [(defect.name, defect.reason) for defect in index.defects] == [
        (f"{table}/part-0.parquet, row 1", reason)
    ]
    assert [row.name.rpartition(" ")[2] for row in selected(index, "train")] == ["0", "2"]


def test_a_list_column_of_nothing_but_nulls_is_refused(write_parquet: WriteParquet) -> None:
    with pytest.raises(
        DataError, match=r"column 'x' \(data\.init_args\.features\) has nothing but nulls"
    ):
        indexed(
            write_parquet(
                {"x": pa.array([None, None], pa.list_(pa.float32())), "label": ["a", "b"]}
            )
        )


def test_too_many_classes_are_refused(
    write_parquet: WriteParquet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "MAX_CLASSES", 3)
    table = write_parquet({"x": list(range(6)), "label": list(range(6))})
    with pytest.raises(
        DataError,
        match=r"more than 3 different values, too many for classes\. Set .*target to value",
    ):
        indexed(table)


def test_a_second_look_is_spared_until_the_table_or_a_rule_changes(
    write_parquet: WriteParquet, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    plain = indexes._scan

    def noting(group: RowGroup, *args: Any) -> Any:
        looked.append(group.number)
        return plain(group, *args)

    monkeypatch.setattr(indexes, "_scan", noting)
    table = write_parquet(LETTERS)
    first = indexed(table)
    again = indexed(table)
    assert sorted(looked) == [0, 1, 2]
    assert (again.fingerprint, again.counts, again.class_names) == (
        first.fingerprint,
        first.counts,
        first.class_names,
    )
    assert indexed(table, index={"val_fraction": 0.5}).fingerprint != first.fingerprint
    assert len(looked) == 6
    write_parquet({**LETTERS, "x": [9.0] * 6})
    assert indexed(table).fingerprint != first.fingerprint
    assert len(looked) == 9


def test_an_index_reads_the_same_after_it_was_sent_elsewhere(write_parquet: WriteParquet) -> None:
    index = indexed(write_parquet(LETTERS))
    sent = pickle.loads(pickle.dumps(index))
    (first, _), *_ = sent.rows("train")
    assert [row.label for row in sent.read("train", first)] == [1, 0]
    assert [row.label for row in sent.read("train", first, start=1)] == [0]


def test_an_index_is_sent_without_the_codes_of_its_rows(write_parquet: WriteParquet) -> None:
    index = indexed(write_parquet({"x": [0.0] * 100_000, "label": [0, 1] * 50_000}, rows=100_000))
    sent = pickle.dumps(index)
    assert len(sent) < 10_000
    assert np.array_equal(pickle.loads(sent).codes, index.codes)


def test_an_index_that_cannot_be_written_is_an_error(
    write_parquet: WriteParquet, cache_home: Path
) -> None:
    table = write_parquet(LETTERS)
    cache_home.mkdir(exist_ok=True)
    (cache_home / "table-index").write_text("no folder")
    with pytest.raises(DataError, match=r"table-index/.*: cannot be written .*XDG_CACHE_HOME"):
        indexed(table)


def test_deleted_rows_are_in_no_split(write_delta: WriteDelta) -> None:
    table = write_delta(LETTERS)
    delete_by_vector(table, [0, 3])
    index = indexed(table)
    assert [row.features.tolist() for row in selected(index, "train")] == [[1], [2], [4], [5]]
    assert [row.name.rpartition(" ")[2] for row in selected(index, "train")] == ["1", "2", "4", "5"]


def test_tensors_keep_their_shape_and_images_their_bytes(write_parquet: WriteParquet) -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, "PNG")
    table = write_parquet(pa.table({
        "t": pa.FixedShapeTensorArray.from_numpy_ndarray(numbers), "label": ["a", "b"],
        "image": [{"bytes": file.getvalue(), "path": "a.png"}] * 2,
    }))  # fmt: skip
    index = indexed(table, features="t")
    assert index.feature_shape == (2, 3)
    np.testing.assert_array_equal(
        np.stack([row.features for row in selected(index, "train")]), numbers
    )
    assert selected(indexed(table, features=None), "train")[0].image == file.getvalue()


def test_images_are_read_only_where_statistics_leave_nulls_open(
    write_parquet: WriteParquet, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_parquet({"image": [b"a", b"b"], "label": [0, 1]})
    asked: list[list[str]] = []
    plain = pq.ParquetFile.iter_batches

    def noting(*args: Any, **options: Any) -> Any:
        asked.append(options["columns"])
        return plain(*args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noting)
    indexed(table, features=None)
    assert asked == [["label"]]


def test_a_file_that_is_written_over_is_looked_at_again_though_size_and_footer_are_the_same(
    write_parquet: WriteParquet, tmp_path: Path
) -> None:
    def written(words: list[str]) -> tuple[str, str, list[float], bytes]:
        table = write_parquet({"x": [0.0, 1.0, 2.0, 3.0], "label": [0] * 4, "of": words}, rows=4)
        index = indexed(table, split="of")
        trained = [row.features.item() for row in selected(index, "train")]
        content = (table / "part-0.parquet").read_bytes()
        return open_table(str(table)).fingerprint, index.fingerprint, trained, content

    before, first, trained, _ = written(["train", "val", "val", "train"])
    assert trained == [0, 3]
    after, second, trained, content = written(["val", "train", "train", "val"])
    assert before == after  # or this test shows nothing
    assert trained == [1, 2]
    assert first != second
    copy = tmp_path / "copy" / "part-0.parquet"
    copy.parent.mkdir()
    copy.write_bytes(content)
    assert indexed(copy.parent, split="of").fingerprint == second


def test_other_labels_and_features_are_other_data(write_parquet: WriteParquet) -> None:
    fingerprints = {
        indexed(write_parquet({"x": x, "label": label}, rows=4)).fingerprint
        for x in ([0, 1, 2, 3], [0, 2, 1, 3])
        for word in ("abab", "abba")
        for label in [list(word)]
    }
    assert len(fingerprints) == 4


def test_a_table_within_another_keeps_its_own_rows(
    write_parquet: WriteParquet, tmp_path: Path
) -> None:
    write_parquet({"x": [0, 1, 2], "label": ["a", "b", "a"]}, "nf/a.parquet")
    write_parquet({"x": [3, 4], "label": ["a", "b"]}, "nf/val/b.parquet")
    places: dict[Split | None, Path] = {
        "train": tmp_path / "table" / "nf",
        "val": tmp_path / "table" / "nf" / "val",
    }
    tables = {split: open_table(str(place)) for split, place in places.items()}
    index = index_table(tables, find_columns(tables["train"].schema, features="x"))
    assert index.counts == {"train": 5, "val": 2, "test": 0}
    assert [row.features.item() for row in selected(index, "train")] == [0, 1, 2, 3, 4]
    assert [row.features.item() for row in selected(index, "val")] == [3, 4]


def rows_with_a_rare_class(num_rare: int = 1) -> dict[str, Any]:
    """Sixty rows of common classes, and rows of a class that the hash never trains on."""
    rare = [
        x
        for x in range(1000, 2000)
        if split_of(
            hashlib.sha256(str(x).encode()).hexdigest(), val_fraction=0.3, test_fraction=0.2
        )
        == "val"
    ]
    numbers = [*range(60), *rare[:num_rare]]
    return {
        "x": list(numbers),
        "label": ["ab"[x % 2] if x < 60 else "rare" for x in numbers],
        "who": numbers,
    }


def test_an_index_that_no_run_has_used_for_months_is_removed(
    write_parquet: WriteParquet, cache_home: Path
) -> None:
    table = write_parquet(LETTERS)
    folders = []
    for fraction in (0.0, 0.3):
        indexed(table, index={"val_fraction": fraction})
        (folder,) = [
            path.parent
            for path in cache_home.glob("table-index/*/codes")
            if path.parent not in folders
        ]
        folders.append(folder)
    for folder in folders:
        os.utime(folder, (0, 0))
    indexed(table, index={"val_fraction": 0.3})
    indexed(table, index={"val_fraction": 0.4})
    assert [folder.exists() for folder in folders] == [False, True]
