from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from lightkit.callbacks import PredictionTable
from lightkit.errors import DataError


class Scores(pl.LightningModule):
    """Gives its batch back, and says that these are probabilities."""

    output_kind = "probabilities"

    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.answer = answer

    def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return batch if self.answer is None else self.answer


class Data(pl.LightningDataModule):
    def __init__(self, *, names: list[str] | None = None, paths: list[str] | None = None) -> None:
        super().__init__()
        if names:
            self.class_names = names
        if paths:
            self.predict_paths = paths

    def predict_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.tensor([[0.25, 0.75], [0.5, 0.125], [0.0, 1.0]]), batch_size=2)  # type: ignore[arg-type]


def predict(folder: Path, data: Data, model: pl.LightningModule | None = None) -> list[list[str]]:
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[PredictionTable(folder)],
    )  # fmt: skip
    trainer.predict(model or Scores(), datamodule=data)
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_a_classifier_has_a_row_with_path_label_and_probability(tmp_path: Path) -> None:
    data = Data(names=["rose", "tulip, red"], paths=["a.jpg", "b.jpg", "c.jpg"])
    assert predict(tmp_path, data) == [
        ["path", "label", "probability"],
        ["a.jpg", "tulip, red", "0.750000"],
        ["b.jpg", "rose", "0.500000"],
        ["c.jpg", "tulip, red", "1.000000"],
    ]


def test_other_tensors_have_a_column_an_element(tmp_path: Path) -> None:
    assert predict(tmp_path, Data()) == [
        ["prediction_0", "prediction_1"], ["0.25", "0.75"], ["0.5", "0.125"], ["0.0", "1.0"],
    ]  # fmt: skip


class TwoLoaders(Data):
    """The second loader gives other numbers than the first."""

    def predict_dataloader(self) -> Any:
        other: Any = [torch.tensor([0.1, 0.2, 0.3])]
        return [super().predict_dataloader(), DataLoader(other)]


def test_loaders_of_unlike_widths_have_each_their_columns(tmp_path: Path) -> None:
    rows = predict(tmp_path, TwoLoaders())
    assert rows[0] == ["prediction_0", "prediction_1", "prediction_2"]
    assert rows[-2:] == [["0.0", "1.0", ""], ["0.1", "0.2", "0.3"]]
    # no paths: the data does not say which loader's they are
    rows = predict(tmp_path, TwoLoaders(names=["rose", "tulip"], paths=["a.jpg", "b.jpg", "c.jpg"]))
    assert rows[0] == ["label", "probability", "prediction_0", "prediction_1", "prediction_2"]
    assert rows[-2:] == [["tulip", "1.000000", "", "", ""], ["", "", "0.1", "0.2", "0.3"]]


def test_no_cell_is_a_formula_or_a_code_of_a_terminal(tmp_path: Path) -> None:
    rows = predict(tmp_path, Data(names=["=rose", "tulip"], paths=["=1.jpg", "b.jpg", "\x1b.jpg"]))
    assert [row[0] for row in rows[1:]] == ["./=1.jpg", "b.jpg", "\\x1b.jpg"]
    assert rows[2][1] == "'=rose"


def test_a_row_of_no_finite_probabilities_has_the_reason_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = torch.tensor([[0.25, 0.75], [torch.nan, 0.5], [1.004, -0.004]])

    class ThreeAtOnce(Data):
        def predict_dataloader(self) -> DataLoader[Any]:
            return DataLoader(answer, batch_size=3)  # type: ignore[arg-type]

    rows = predict(tmp_path, ThreeAtOnce(names=["rose", "tulip"]))
    reason = "the model's output has values that are not finite"
    assert rows == [
        ["label", "probability", "error"], ["tulip", "0.750000", ""], ["", "", reason],
        ["rose", "1.000000", ""],
    ]  # fmt: skip
    assert "1 rows have no prediction" in caplog.text


def test_a_table_without_a_prediction_is_an_error(tmp_path: Path) -> None:
    class Lost(Scores):
        def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return batch * torch.nan

    with pytest.raises(DataError, match="no row has a prediction"):
        predict(tmp_path, Data(names=["rose", "tulip"]), Lost())
    assert (tmp_path / "predictions.csv").is_file()


@pytest.mark.parametrize("kind", [None, "other", "values"])
def test_outputs_that_are_no_declared_probabilities_are_numbers(tmp_path: Path, kind: Any) -> None:
    class Silent(Scores):
        output_kind = kind

    assert predict(tmp_path, Data(names=["rose", "tulip"]), Silent())[:2] == [
        ["prediction_0", "prediction_1"], ["0.25", "0.75"],
    ]  # fmt: skip


def test_numbers_of_double_precision_keep_it(tmp_path: Path) -> None:
    class Wide(Scores):
        output_kind = "values"

        def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return batch.double() + 1.7e9

    assert predict(tmp_path, Data(), Wide())[1] == ["1700000000.25", "1700000000.75"]


def test_another_number_of_classes_is_no_classifier(tmp_path: Path) -> None:
    assert predict(tmp_path, Data(names=["a", "b", "c"]))[0] == ["prediction_0", "prediction_1"]


def read_lines(folder: Path) -> list[Any]:
    return [
        json.loads(line)
        for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    ]


class Boxes(Scores):
    """A detector: as many boxes as the first number of a sample says in quarters.

    With scores and a note.
    """

    def find(self, sample: torch.Tensor) -> dict[str, Any]:
        count = int(sample[0] * 4)
        return {
            "boxes": torch.tensor([[0.1, 2.0, 3.0, 4.5]]).repeat(count, 1),
            "labels": torch.arange(count),
            "scores": sample[1],
            "note": "none" if count == 0 else "some",
        }

    def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return [self.find(sample) for sample in batch]


BOX = [0.1, 2.0, 3.0, 4.5]
LINES = [
    {"boxes": [BOX], "labels": [0], "scores": 0.75, "note": "some"},
    {"boxes": [BOX, BOX], "labels": [0, 1], "scores": 0.125, "note": "some"},
    {"boxes": [], "labels": [], "scores": 1.0, "note": "none"},
]


def predict_lines(folder: Path, data: Data, model: pl.LightningModule) -> list[Any]:
    with pytest.raises(FileNotFoundError):
        predict(folder, data, model)
    return read_lines(folder)


def test_boxes_of_unequal_number_are_one_json_line_a_sample(tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text("of an earlier model\n")
    (tmp_path / "predictions.pt").write_text("of an earlier model\n")
    assert predict_lines(tmp_path, Data(), Boxes()) == LINES
    assert [file.name for file in tmp_path.iterdir()] == ["predictions.jsonl"]

    data = Data(names=["rose", "tulip"], paths=["a.jpg", "b.jpg", "c.jpg"])
    paths = [{"path": name} for name in ("a.jpg", "b.jpg", "c.jpg")]
    assert predict_lines(tmp_path, data, Boxes()) == [
        path | line for path, line in zip(paths, LINES, strict=True)
    ]

    # the next model has a table
    assert predict(tmp_path, Data())[1] == ["0.25", "0.75"]
    assert [file.name for file in tmp_path.iterdir()] == ["predictions.csv"]


class Pair(NamedTuple):
    depth: torch.Tensor
    names: list[str]


COLUMNS = {
    "mapping": lambda batch: {"depth": batch[:, 0], "names": ["x"] * len(batch)},
    "named tuple": lambda batch: Pair(batch[:, 0], ["x"] * len(batch)),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_of_a_batch_are_one_line_a_sample(tmp_path: Path, kind: str) -> None:
    class Columns(Scores):
        def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return COLUMNS[kind](batch)  # type: ignore[no-untyped-call]

    assert predict_lines(tmp_path, Data(), Columns()) == [
        {"depth": 0.25, "names": "x"}, {"depth": 0.5, "names": "x"}, {"depth": 0.0, "names": "x"},
    ]  # fmt: skip


def test_a_tuple_of_columns_is_one_line_a_sample(tmp_path: Path) -> None:
    class Columns(Scores):
        def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return batch.bfloat16(), batch[:, 1] / 0

    assert predict_lines(tmp_path, Data(), Columns()) == [
        {"prediction": [[0.25, 0.75], None]}, {"prediction": [[0.5, 0.125], None]},
        {"prediction": [[0.0, 1.0], None]},
    ]  # fmt: skip


def test_batches_with_rows_and_without_are_all_lines(tmp_path: Path) -> None:
    class Sometimes(Boxes):
        def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return batch if batch_idx else super().predict_step(batch, batch_idx)

    assert predict_lines(tmp_path, Data(), Sometimes())[1:] == [
        LINES[1],
        {"prediction": [0.0, 1.0]},
    ]
    named = predict_lines(
        tmp_path, Data(names=["rose", "tulip"], paths=["a", "b", "c"]), Sometimes()
    )
    assert named[2] == {"path": "c", "label": "tulip", "probability": 1.0}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [({"logits": 1}, {"logits": 1}), (torch.tensor(1.5), 1.5)],
    ids=["mapping", "scalar"],
)
def test_a_batch_that_cannot_be_divided_is_one_line(
    tmp_path: Path, answer: Any, expected: Any
) -> None:
    lines = predict_lines(tmp_path, Data(paths=["a.jpg", "b.jpg", "c.jpg"]), Scores(answer))
    assert lines == [{"batch": 0, "prediction": expected}, {"batch": 1, "prediction": expected}]


def test_what_json_has_no_form_for_is_kept_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = torch.tensor(1 + 2j)
    with pytest.raises(FileNotFoundError):
        predict(tmp_path, Data(), Scores(answer))
    assert torch.load(tmp_path / "predictions.pt", weights_only=True) == [answer, answer]
    assert [file.name for file in tmp_path.iterdir()] == ["predictions.pt"]
    assert "an array of complex64 has no form in JSON" in caplog.text


class Broken(Scores):
    """Fails in its second batch."""

    def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
        if batch_idx == 1:
            raise ZeroDivisionError
        return super().predict_step(batch, batch_idx)


@pytest.mark.parametrize("answer", [None, {"logits": 1}], ids=["table", "lines"])
def test_a_failed_predict_leaves_what_was_there_before(tmp_path: Path, answer: Any) -> None:
    (tmp_path / "predictions.csv").write_text("path,label\n")
    (tmp_path / "predictions.pt").write_bytes(b"whole")
    with pytest.raises(ZeroDivisionError):
        predict(tmp_path, Data(), Broken(answer))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["predictions.csv", "predictions.pt"]
    assert (tmp_path / "predictions.csv").read_text() == "path,label\n"
    assert (tmp_path / "predictions.pt").read_bytes() == b"whole"


def test_the_table_appears_when_it_is_complete(tmp_path: Path) -> None:
    class Looking(Scores):
        def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
            assert not list(tmp_path.iterdir())
            return super().predict_step(batch, batch_idx)

    assert len(predict(tmp_path, Data(), Looking())) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["predictions.csv"]


def test_the_data_is_asked_once(tmp_path: Path) -> None:
    asked: list[str] = []

    class Listing(Data):
        @property
        def class_names(self) -> list[str]:  # type: ignore[override]
            asked.append("class_names")
            return ["rose", "tulip"]

        @property
        def predict_paths(self) -> list[str]:  # type: ignore[override]
            asked.append("predict_paths")
            return ["a.jpg", "b.jpg", "c.jpg"]

    assert predict(tmp_path, Listing())[1] == ["a.jpg", "tulip", "0.750000"]
    assert asked == ["class_names", "predict_paths"]


def ranks(folder: Path, shares: Sequence[Sequence[tuple[list[int] | None, Any]]]) -> Path:
    """Let ranks write their shares of batches, each with its indices; gives what rank 0 leaves."""
    data = SimpleNamespace(predict_paths=[f"{index}.jpg" for index in range(9)])
    gathered: list[Any] = []

    def gather_objects(value: Any) -> list[Any]:
        gathered.append(value)
        return list(gathered)

    strategy = SimpleNamespace(gather_objects=gather_objects)
    trainers: list[Any] = [
        SimpleNamespace(
            world_size=len(shares),
            global_rank=rank,
            datamodule=data,
            strategy=strategy,
            lightning_module=None,
            ckpt_path=None,
            state=SimpleNamespace(fn=TrainerFn.PREDICTING),
        )
        for rank in range(len(shares))
    ]
    tables = [PredictionTable(folder) for _ in shares]
    module: Any = Scores()
    # rank 0 comes last
    for table, trainer, share in reversed([*zip(tables, trainers, shares, strict=True)]):
        table.on_predict_start(trainer, module)
        for number, (indices, prediction) in enumerate(share):
            table.write_on_batch_end(trainer, module, prediction, indices, None, number, 0)
        table.on_predict_end(trainer, module)
    assert [file.name for file in folder.iterdir()] == [tables[0].path.name]
    return tables[0].path


def column(*values: float) -> torch.Tensor:
    return torch.tensor([[value] for value in values])


def test_ranks_make_one_table_in_the_order_of_the_data_each_sample_once(tmp_path: Path) -> None:
    first = [([0, 2], column(0.0, 2.0)), ([8], column(8.0))]
    second = [([5, 1], column(5.0, 1.0)), ([0], column(0.0))]  # a share that was filled up
    lines = ranks(tmp_path, [first, second, []]).read_text(encoding="utf-8").split()
    assert lines == [
        "path,prediction_0",
        "0.jpg,0.0",
        "1.jpg,1.0",
        "2.jpg,2.0",
        "5.jpg,5.0",
        "8.jpg,8.0",
    ]


def test_shares_of_a_loader_that_does_not_report_its_samples_take_turns(tmp_path: Path) -> None:
    shares: list[Any] = [
        [(None, column(rank + 0.0)), (None, column(rank + 0.5))] for rank in (0, 1)
    ]
    lines = ranks(tmp_path, shares).read_text(encoding="utf-8").split()
    assert lines == ["path,prediction_0", ",0.0", ",1.0", ",0.5", ",1.5"]


def test_boxes_of_ranks_are_lines_in_the_order_of_the_data_each_sample_once(tmp_path: Path) -> None:
    first = [([0, 2], [{"boxes": column(1.0, 2.0)}, {"boxes": []}])]
    second = [
        ([3, 1], [{"boxes": column(3.0)}, {"boxes": column(4.0)}]),
        ([0], [{"boxes": column(1.0, 2.0)}]),
    ]
    ranks(tmp_path, [first, second])
    assert read_lines(tmp_path) == [
        {"path": "0.jpg", "boxes": [[1.0], [2.0]]},
        {"path": "1.jpg", "boxes": [[4.0]]},
        {"path": "2.jpg", "boxes": []},
        {"path": "3.jpg", "boxes": [[3.0]]},
    ]


def test_batches_of_ranks_that_cannot_be_divided_are_lines_in_turn(tmp_path: Path) -> None:
    ranks(
        tmp_path, [[([0, 2], {"a": Path("x")}), ([4], {"c": 1})], [([1, 3], {"b": np.arange(3)})]]
    )
    assert read_lines(tmp_path) == [
        {"batch": 0, "prediction": {"a": "x"}},
        {"batch": 0, "prediction": {"b": [0, 1, 2]}},
        {"batch": 1, "prediction": {"c": 1}},
    ]


def test_predictions_of_any_class_are_one_list_of_all_ranks(tmp_path: Path) -> None:
    path = ranks(tmp_path, [[([0], {"a": 1 + 2j})], [([1], {"b": np.arange(3)})]])
    first, second = torch.load(path, weights_only=False)
    assert first == {"a": 1 + 2j}
    assert second["b"].tolist() == [0, 1, 2]
