"""A table of paths and labels.

Columns, several labels, splits, and each odd table is an error with its line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from lightkit.cli.starter import find_table
from lightkit.cli.starter_images import find_image_table
from lightkit.data import ImageTable
from lightkit.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures, 0.png to 11.png, each of another content."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(1)
    for at in range(12):
        Image.fromarray(random.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(
            folder / f"{at}.png"
        )
    return folder


SPLITS = ["train"] * 8 + ["val"] * 2 + ["test"] * 2
LABELS = [
    "cat|dog",
    "dog",
    "",
    "cat",
    "fish|cat",
    "fish",
    "dog",
    "cat|fish",
    "dog",
    "cat",
    "fish",
    "",
]


def write(
    pictures: Path, tmp_path: Path, text: str, name: str = "labels.csv", encoding: str = "utf-8"
) -> Path:
    folder = tmp_path / "data"
    if not folder.exists():
        folder.mkdir()
        (folder / "pictures").symlink_to(pictures)
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


def table(
    rows: list[tuple[Any, ...]], header: str = "path,labels,split", separator: str = ","
) -> str:
    return "\n".join([header, *(separator.join(map(str, row)) for row in rows)]) + "\n"


def several() -> str:
    return table([(f"pictures/{at}.png", LABELS[at], SPLITS[at]) for at in range(12)])


def build(path: Path, **options: Any) -> ImageTable:
    return ImageTable(str(path), image_size=16, batch_size=4, num_workers=0, **options)


def targets_of(data: ImageTable, split: Any = "train") -> Any:
    source = data.read_split(split, decoded=False)
    return torch.tensor([source.label(at) for at in range(len(source))])


EXPECTED = [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_several_labels_stand_in_one_cell(
    end: str, encoding: str, pictures: Path, tmp_path: Path
) -> None:
    path = write(pictures, tmp_path, several().replace("\n", end), encoding=encoding)
    data = build(path, separator="|")
    assert data.class_names == ["cat", "dog", "fish"]
    assert data.is_multilabel
    assert data.counts == {"train": 8, "val": 2, "test": 2}
    assert targets_of(data).tolist() == EXPECTED
    assert data.label_counts == [4, 3, 3]
    images, targets = next(iter(data.train_dataloader()))
    assert images.shape == (4, 3, 16, 16)
    assert (targets.shape, targets.dtype) == ((4, 3), torch.int64)


def test_several_labels_stand_in_columns_of_0_and_1(pictures: Path, tmp_path: Path) -> None:
    rows = [
        (
            f"pictures/{at}.png",
            *(int(name in LABELS[at].split("|")) for name in ("cat", "dog", "fish")),
            SPLITS[at],
        )
        for at in range(12)
    ]
    path = write(pictures, tmp_path, table(rows, "image,cat,dog,fish,split"))
    data = build(path, label=["cat", "dog", "fish"])
    assert targets_of(data).tolist() == EXPECTED


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_several_labels_stand_in_a_column_of_lists(
    kind: str, pictures: Path, tmp_path: Path
) -> None:
    folder = write(pictures, tmp_path, "").parent
    columns = {
        "path": [f"pictures/{at}.png" for at in range(12)],
        "labels": [[each for each in label.split("|") if each] for label in LABELS],
        "split": SPLITS,
    }
    place = folder / "table.parquet"
    if kind == "parquet":
        parquet.write_table(pa.table(columns), place)
    else:
        deltalake = pytest.importorskip("deltalake")
        place = folder / "table"
        deltalake.write_deltalake(str(place), pa.table(columns))
    data = build(place)
    assert data.is_multilabel
    assert sorted(targets_of(data).tolist()) == sorted(EXPECTED)


def test_one_label_an_image_makes_classes_as_a_folder_does(pictures: Path, tmp_path: Path) -> None:
    rows = [(f"pictures/{at}.png", at % 3, SPLITS[at]) for at in range(12)]
    data = build(write(pictures, tmp_path, table(rows)))
    assert not data.is_multilabel
    assert data.class_names == ["0", "1", "2"]
    assert targets_of(data).tolist() == [at % 3 for at in range(8)]


def test_without_a_column_the_content_decides_the_split(pictures: Path, tmp_path: Path) -> None:
    rows = [(f"pictures/{at}.png", "ab"[at % 2]) for at in range(12)]
    first = build(write(pictures, tmp_path, table(rows, "path,label")), val_fraction=0.3)
    second = build(
        write(pictures, tmp_path, table(rows[::-1], "path,label"), "b.csv"), val_fraction=0.3
    )
    assert first.counts == second.counts
    assert first.index.fingerprint == second.index.fingerprint


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, ["is empty"]),
        ("path,label\n", {}, ["no rows"]),
        ("path,label\npictures/0.png,a\npictures/1.png\n", {}, ["line 3", "1 cells; expected 2"]),
        ("path,label\npictures/0.png,a,b\n", {}, ["line 2", "3 cells"]),
        ("path,label\npictures/0.png,a\npictures/none.png,b\n", {},
         ["line 3", "none.png does not exist"]),
        ("path,label\n,a\n", {}, ["line 2", "no path"]),
        ("path,label\npictures/0.png,a\npictures/1.png,\n", {}, ["line 3", "no label"]),
        ("path,label\npictures/0.png,a\npictures/1.png,cat\n", {"classes": ["a", "cats"]},
         ["line 3", "'cat'", "cats"]),
        ("path,label,split\npictures/0.png,a,train\npictures/1.png,b,val\n", {},
         ["line 3", "'b' is no class"]),
        ("path,label,split\npictures/0.png,a,maybe\n", {}, ["line 2", "'maybe'"]),
        ("path,a,b\npictures/0.png,1,0\npictures/1.png,2,0\n", {"label": ["a", "b"]},
         ["line 3", "'2'", "0 or 1"]),
        ("path,path\npictures/0.png,1\n", {}, ["line 1", "'path'"]),
        ("name,label\npictures/0.png,1\n", {}, ["image", "name"]),
        ("path,label\npictures/0.png,\"a\n", {}, ["line 2"]),
        ("path,label\npictures/0.png,1\npictures/1.png,NaN\n", {}, ["line 3", "no label"]),
        ("path,label\npictures/0.png,1\npictures/1.png,1.0\n", {}, ["'1' and '1.0'", "one value"]),
    ],
    ids=["empty", "no rows", "short row", "long row", "missing file", "no path", "no label",
         "no class",
         "class of another split", "split", "mark", "two columns", "no column", "open quote",
         "not a number", "two spellings"],
)  # fmt: skip
def test_an_odd_table_is_an_error_with_its_line(
    text: str, options: dict[str, Any], words: list[str], pictures: Path, tmp_path: Path
) -> None:
    path = write(pictures, tmp_path, text)
    with pytest.raises(DataError) as error:
        build(path, **options).setup()
    assert str(path) in str(error.value) or "data.init_args" in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_table_that_is_not_utf_8_names_the_line(pictures: Path, tmp_path: Path) -> None:
    path = write(pictures, tmp_path, "path,label\npictures/0.png,é\n", encoding="latin-1")
    with pytest.raises(DataError, match=r"line 2: this table is not in UTF-8"):
        build(path).setup()


def test_an_empty_separator_is_refused(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="separator"):
        build(write(pictures, tmp_path, several()), separator="")


def compose(path: Path) -> str:
    found = find_image_table(path, find_table(path))
    assert found is not None
    return found.compose("labels.yaml").text


def test_init_writes_a_config_for_a_table_of_paths(pictures: Path, tmp_path: Path) -> None:
    path = write(pictures, tmp_path, several())
    text = compose(path)
    assert "class_path: ImageTable" in text
    assert 'separator: "|"' in text
    assert "multilabel: true" in text
    assert "metric: test/map" in text
    rows = [(f"pictures/{at}.png", "ab"[at % 2]) for at in range(12)]
    single = compose(write(pictures, tmp_path, table(rows, "path,label"), "b.csv"))
    alone = [(name, "a") for name, _ in rows]
    refused = "12 images with 1 class, path column 'path'; expected two .* labels in .* 'label'"
    with pytest.raises(DataError, match=refused):
        compose(write(pictures, tmp_path, table(alone, "path,label"), "c.csv"))
    assert "multilabel" not in single
    assert "separator" not in single
