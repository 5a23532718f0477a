"""Texts as a data module: columns, splits, batches, order and what is wrong with a table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from pytorch_lightning import LightningModule, Trainer

from lightkit.data import TextData
from lightkit.data.sampler import ResumableSampler, group_by_length
from lightkit.data.text_data import TextSamples
from lightkit.errors import ConfigError, DataError
from lightkit.models import TextClassifier
from lightkit.rows.text import TextPreprocessing
from lightkit.texts.ngrams import NgramHashing

ROWS = [
    (f"text number {at} " * (1 + at % 3), "ab"[at % 2], ("train", "train", "val", "test")[at % 4])
    for at in range(40)
]


def write_csv(folder: Path, lines: list[str], name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [f'"{text}",{label},{split}' for text, label, split in ROWS]
    return write_csv(tmp_path, ["review,label,split", *lines])


def make(path: Path, **options: Any) -> TextData:
    return TextData(str(path), **{"num_workers": 0, "batch_size": 4, **options})


def test_each_kind_of_table_has_the_same_texts(table: Path, tmp_path: Path) -> None:
    texts, labels, splits = zip(*ROWS, strict=True)
    columns = pa.table(
        {"review": texts, "label": pa.array(labels).dictionary_encode(), "split": splits}
    )
    parquet.write_table(columns, tmp_path / "t.parquet")
    lines = [
        json.dumps({"review": text, "label": label, "split": split}) for text, label, split in ROWS
    ]
    (tmp_path / "t.jsonl").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    found = [make(each) for each in (table, tmp_path / "t.parquet", tmp_path / "t.jsonl")]
    assert len({data.index.fingerprint for data in found}) == 1
    assert {data.text_column for data in found} == {"review"}
    assert found[0].counts == {"train": 20, "val": 10, "test": 10}
    assert found[0].class_names == ["a", "b"]
    assert found[0].label_counts == [10, 10]
    assert found[0].predict_paths[0] == f"{table}, line 5"
    assert [data.list_cells("test", "split") for data in found] == [["test"] * 10] * 3
    assert found[2].predict_paths[0] == f"{tmp_path / 't.jsonl'}, line 4"


def test_a_folder_of_text_files_is_read_too(tmp_path: Path) -> None:
    for at in range(30):
        path = tmp_path / "news" / "ab"[at % 2] / f"{at}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {at}", encoding="utf-8")
    data = make(tmp_path / "news")
    assert sum(data.counts.values()) == 30
    assert all(name.endswith(".txt") for name in data.predict_paths)
    assert data.describe()["row_kind"] == "text"


class Reader(LightningModule):
    """A model that takes texts as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def validation_step(self, batch: Any) -> None:
        self.seen.append(batch)


def test_a_model_without_a_preprocessing_gets_the_texts(table: Path, tmp_path: Path) -> None:
    model = Reader()
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, enable_checkpointing=False,
    )  # fmt: skip
    trainer.validate(model, make(table), verbose=False)
    texts, labels = model.seen[0]
    assert texts == [text for text, _, split in ROWS if split == "val"][:4]
    assert labels.tolist() == [0, 0, 0, 0]


def test_batches_that_were_made_for_another_model_are_refused(table: Path) -> None:
    """A loader that a model has made encodes as that model wants it."""
    data = make(table)
    one, other = TextClassifier(buckets=100), TextClassifier(buckets=200)
    trainers = []
    for model in (one, other):
        trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
        trainer.strategy.connect(model)
        trainers.append(trainer)
        model.trainer = trainer
        data.trainer = trainer
        trainer.datamodule = data  # type: ignore[attr-defined]
        model.configure_model()
    raw = next(iter(make(table).val_dataloader()))
    assert isinstance(raw[0], list)
    for model, trainer in zip((one, other), trainers, strict=True):
        data.trainer = trainer
        ids = data.on_before_batch_transfer(raw, 0)[0][0]
        assert int(ids.max()) <= (100 if model is one else 200)
    data.trainer = trainers[0]
    batch = next(iter(data.val_dataloader()))
    assert batch[0][0].shape == batch[0][1].shape
    assert data.on_before_batch_transfer(batch, 0) is batch
    data.trainer = trainers[1]
    with pytest.raises(ConfigError, match="encoded for another model"):
        data.on_before_batch_transfer(batch, 0)


def test_ngrams_that_are_kept_are_those_of_the_texts(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make(table)
    hashing = NgramHashing(1000, 2, (3, 4), 100)
    preprocessing = TextPreprocessing("review", hashing)
    for room in (256_000_000, 300, 0):
        monkeypatch.setattr("lightkit.data.text_data._KEPT_BYTES", room)
        samples = TextSamples(data.index, "train", preprocessing)
        for rows in ([3, 1, 2], [2, 3, 4], [0]):
            expected = preprocessing.encode_texts(
                [data.index.texts[data.index.splits["train"][at]].as_py() for at in rows]
            )
            for mine, theirs in zip(samples.__getitems__(rows)[0], expected, strict=True):
                np.testing.assert_array_equal(mine.numpy(), theirs)


def test_batches_of_like_length_have_each_text_once_and_others_in_each_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 1003)
    order = torch.randperm(1003, generator=torch.Generator().manual_seed(1)).tolist()
    found = group_by_length(order, lengths, size=8, seed=1)
    assert sorted(found) == list(range(1003))
    assert found[1000:] == order[1000:]
    spreads = [np.ptp(lengths[found[at : at + 8]]) for at in range(0, 1000, 8)]
    plain = [np.ptp(lengths[order[at : at + 8]]) for at in range(0, 1000, 8)]
    assert np.mean(spreads) < np.mean(plain) / 4
    assert group_by_length(order, lengths, size=8, seed=1) == found


def test_a_resumed_order_of_lengths_is_the_rest_of_the_epoch_on_each_rank() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 101)
    every = []
    for rank in range(2):
        sampler = ResumableSampler(range(101), batch_size=4, num_replicas=2, rank=rank, seed=3)
        sampler.lengths = lengths
        sampler.set_epoch(2)
        whole = list(sampler)
        sampler.resume(epoch=2, batches=5)
        assert list(sampler) == whole[20:]
        every.append([key.index for key in whole])
        sampler.set_epoch(3)
        assert [key.index for key in sampler] != every[-1]
    assert {*every[0], *every[1]} == set(range(101))
    # batches of the two ranks at the same step are of like length
    steps = [lengths[every[0][at : at + 4] + every[1][at : at + 4]] for at in range(0, 48, 4)]
    assert np.mean([np.ptp(step) for step in steps]) < 300


@pytest.mark.parametrize(
    ("lines", "options", "says"),
    [
        (["text,label", "one,a", "two"], {}, r"t\.csv, line 3: this row has 1 cells; expected 2"),
        (["text,label", "one,a", "two,nan"], {}, r"t\.csv, line 3: there is no label \('nan'\)"),
        (["text,label", "one,a", "two,"], {}, r"t\.csv, line 3: there is no label"),
        ([""], {}, r"t\.csv: this table is empty"),
        (
            ["a,b,label", "one,two,x"],
            {},
            r"none of its columns is named text, .*data\.init_args\.text",
        ),
        (
            ["text,kind", "one,a"],
            {},
            r"none of its columns is named label, .*data\.init_args\.label",
        ),
        (["text,label", "one,a"], {"text": "txet"}, r"no column 'txet'; did you mean 'text'"),
        (["text,label,w", "one,a,x"], {"weight": "w"}, r"t\.csv, line 2: the weight is 'x'"),
        (["text,label,w", "one,a,"], {"weight": "w"}, r"t\.csv, line 2: the weight is ''"),
    ],
    ids=["ragged", "nan", "no label", "empty", "text", "label", "misspelt", "weight", "no weight"],
)
def test_what_is_wrong_with_a_table_is_reported(
    tmp_path: Path, lines: list[str], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        _ = make(write_csv(tmp_path, lines), **options).index


def test_odd_files_are_read_or_reported(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"text,label\none,a\ntw\xff,b\n")
    with pytest.raises(DataError, match=r"t\.csv, line 3: this table is not in UTF-8"):
        _ = make(tmp_path / "t.csv").index
    (tmp_path / "t.jsonl").write_text('{"text": "one", "label": "a"}\n{"text": ', encoding="utf-8")
    with pytest.raises(DataError, match=r"t\.jsonl, line 2: this line is no JSON"):
        _ = make(tmp_path / "t.jsonl").index
    with pytest.raises(DataError, match="does not exist"):
        _ = make(tmp_path / "nowhere.csv").index
    huge = "word " * 150_000
    path = write_csv(
        tmp_path,
        ["text,label", *[f'"{huge}{at}",{"ab"[at % 2]}' for at in range(4)]],
        encoding="utf-8-sig",
    )
    data = make(path, val_fraction=0.0, test_fraction=0.0)
    assert data.index.lengths.tolist() == [len(huge) + 1] * 4
    assert data.text_column == "text"


MARKED = {
    "two": ("1", "2", r"t\.csv, line 3: column 'red' has '2', expected 0 or 1"),
    "nothing": ("1", "", r"t\.csv, line 3: column 'red' has '', expected 0 or 1"),
    "nan": ("0.0", "NaN", r"t\.csv, line 3: column 'red' has 'NaN', expected 0 or 1"),
    "word": ("True", "yes", r"t\.csv, line 3: column 'red' has 'yes', expected 0 or 1"),
}


@pytest.mark.parametrize(("first", "second", "says"), MARKED.values(), ids=MARKED)
def test_a_mark_that_is_neither_0_nor_1_is_an_error(
    tmp_path: Path, first: str, second: str, says: str
) -> None:
    path = write_csv(tmp_path, ["text,red,blue", f"one,{first},0", f"two,{second},1"])
    with pytest.raises(DataError, match=says):
        _ = make(path, label=["red", "blue"]).index


def test_a_label_that_is_no_class_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = write_csv(tmp_path, ["text,label,split", "one,a,train", "two,b,train", "three,c,test"])
    with pytest.raises(
        DataError, match=r"t\.csv, line 4: the label 'c' is no class; the classes are a, b"
    ):
        _ = make(path, val_fraction=0.0).index
    with pytest.raises(
        DataError, match=r"t\.csv, line 2: the label 'a' is no class; the classes are b, c"
    ):
        _ = make(path, val_fraction=0.0, classes=["b", "c"]).index


def test_texts_that_are_numbers_and_cells_that_are_missing_are_texts(tmp_path: Path) -> None:
    lines = [
        {"text": 7, "label": "a"},
        {"text": None, "label": "b"},
        {"label": "a"},
        {"text": "NaN", "label": "b"},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    data = make(path, val_fraction=0.0, test_fraction=0.0)
    assert data.index.texts.to_pylist() == ["7", "", "", "NaN"]
    assert data.index.targets.tolist() == [0, 1, 0, 1]


def test_a_separator_for_labels_in_columns_is_refused(table: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.init_args\.separator: it is of one column of labels"
    ):
        make(table, label=["a", "b"], separator="|")


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_several_labels_in_lines_of_json(tmp_path: Path, name: str) -> None:
    lines = [{"text": f"t {at}", "tags": [["a", "b"], [], ["b"]][at % 3]} for at in range(30)]
    path = tmp_path / name
    content = "".join(json.dumps(each) + "\n" for each in lines).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    data = make(path)
    assert data.is_multilabel
    assert data.class_names == ["a", "b"]
    _, targets = next(iter(data.val_dataloader()))
    assert targets.dtype == torch.int64
    assert targets.shape[1] == 2
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    with pytest.raises(ConfigError, match="several labels a text"):
        trainer.validate(TextClassifier(), make(path), verbose=False)
