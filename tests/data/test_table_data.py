"""Batches of rows: encoded for the model that gets them, with targets and weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from lightkit.data import TableData
from lightkit.errors import ConfigError, DataError
from lightkit.rows.table import TableFit, TablePreprocessing

ROWS = [
    (at / 10, "rg"[at % 2], at * 2.5, 1 + at % 3, ("train", "val", "test")[min(at // 10, 2)])
    for at in range(30)
]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "t.csv"
    path.write_text(
        "a,c,y,w,split\n" + "".join(f"{','.join(map(str, row))}\n" for row in ROWS),
        encoding="utf-8",
    )
    return str(path)


def test_a_batch_has_inputs_targets_and_weights(table: str) -> None:
    data = TableData(path=table, target="y", weight="w", scaling="standard", batch_size=4)
    data.setup("fit")
    inputs, target, weights = next(iter(data.val_dataloader()))
    training = np.array([row[0] for row in ROWS[:10]])
    expected = (np.array([row[0] for row in ROWS[10:14]]) - training.mean()) / training.std()
    np.testing.assert_allclose(inputs[0][:, 0].numpy(), expected, rtol=1e-5)
    assert inputs[1].flatten().tolist() == [3, 2, 3, 2]  # red and green, after unknown and missing
    assert target.tolist() == [[row[2]] for row in ROWS[10:14]]
    assert weights.tolist() == [row[3] for row in ROWS[10:14]]
    assert data.mean_weight == pytest.approx(np.mean([row[3] for row in ROWS[:10]]))
    assert data.target_scale == pytest.approx(
        (np.mean([row[2] for row in ROWS[:10]]), np.std([r[2] for r in ROWS[:10]]))
    )
    counted = sum(len(batch[1]) for batch in data.train_dataloader())
    assert counted == 10


def test_a_column_that_is_ignored_may_be_that_of_the_weights_too(table: str) -> None:
    # as where a gate gives the weights of one run to the settings of another, which ignores them
    data = TableData(path=table, target="y", weight="w", ignore=["w", "split"], batch_size=4)
    data.setup("test")
    assert list(data.plan.types) == ["a", "c"]
    with pytest.raises(DataError, match=r"data\.init_args\.ignore: the table has no column 'x'"):
        TableData(path=table, target="y", ignore=["x"]).setup("test")


def test_rows_are_encoded_for_the_model_that_gets_them(table: str) -> None:
    data = TableData(path=table, target="y", scaling="standard", batch_size=4)
    data.setup("test")
    loader = data.test_dataloader()  # made once, as a gate does, for two models
    own = next(iter(loader))[0][0]
    fitted = TableFit({"a": "number"}, scaling="standard")
    fitted.add(pa.table({"a": [-1.0, 1.0]}))
    other: Any = fitted.finish()
    assert isinstance(other, TablePreprocessing)
    data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(row_preprocessing=other))  # type: ignore[assignment]
    (numbers,) = next(iter(loader))[0]
    # mean 0, deviation 1
    assert torch.equal(numbers[:, 0], torch.tensor([row[0] for row in ROWS[20:24]]))
    assert not torch.equal(own[:, 0], numbers[:, 0])


def test_a_training_split_of_weight_0_is_an_error(table: str) -> None:
    path = Path(table)
    lines = [f"{a},{c},{y},{0 if split == 'train' else w},{split}\n" for a, c, y, w, split in ROWS]
    path.write_text("a,c,y,w,split\n" + "".join(lines), encoding="utf-8")
    with pytest.raises(
        DataError, match="each row of the training split has the weight 0 in column 'w'"
    ):
        TableData(path=table, target="y", weight="w").setup("fit")
    TableData(path=table, target="y", weight="w").setup("test")


def test_a_few_whole_numbers_are_values_where_they_were_in_the_training(table: str) -> None:
    path = Path(table)
    path.write_text(
        "a,c,y\n" + "".join(f"{a},{c},{at % 3}\n" for at, (a, c, *_) in enumerate(ROWS)),
        encoding="utf-8",
    )
    data = TableData(test=table, target="y")
    data.setup("test")
    assert data.class_names == ["0", "1", "2"]
    data.load_state_dict({"class_names": [], "fingerprint": None})
    assert data.class_names == []
    _, target = data.encoded("test").__getitems__([0, 1, 2, 3])
    assert target.tolist() == [[0.0], [1.0], [2.0], [0.0]]


def test_one_thing_decides_the_splits(table: str) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.init_args\.time: data\.init_args\.key decides the splits already"
    ):
        TableData(path=table, key="c", time="a")
