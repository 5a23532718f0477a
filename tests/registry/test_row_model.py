"""A model of rows in MLflow.

Labels of raw rows, in either form of its graph, and refused where it was altered.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from lightkit.errors import DataError
from lightkit.export.metadata import RECORD
from lightkit.export.samples import EvaluationSamples
from lightkit.export.target import ExportTarget, describe_model
from lightkit.registry.package import PackageFormat, is_servable, write_package
from lightkit.rows.preprocessing import RowPreprocessing, dump_preprocessing
from lightkit.rows.table import TableFit

pytestmark = [
    pytest.mark.slow,
    # 2026-11: mlflow 3.17 to itself while it is imported, and torch 2.15 on TorchScript and pickled
    # pt2 archives.
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning"),
    pytest.mark.filterwarnings("ignore:'torch.load' received a zip file:UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROWS = {"size": [1.0, 2.0, 4.0, None], "wood": ["oak", "elm", "oak", None]}


class Labels(nn.Module):
    """Logits of three labels, of a number and a category."""

    output_kind = "multilabel_logits"

    def __init__(self, preprocessing: RowPreprocessing) -> None:
        super().__init__()
        self.row_preprocessing = preprocessing
        self.numbers = nn.Linear(2, 3)
        self.categories = nn.Embedding(4, 3)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        outputs: Tensor = self.numbers(numbers) + self.categories(categories[:, 0])
        return outputs


def make_target() -> ExportTarget:
    fitted = TableFit({"size": "number", "wood": "category"}, scaling="standard", min_count=1)
    rows = pa.table(ROWS)
    fitted.add(rows)
    preprocessing = fitted.finish()
    torch.manual_seed(3)
    model = Labels(preprocessing).eval()
    example = tuple(map(torch.from_numpy, preprocessing.encode(rows)))
    names = ["warm", "hard", "old"]
    metadata = describe_model(
        model, example, class_names=names, rows=dump_preprocessing(preprocessing)
    )
    return ExportTarget(model, example, metadata, EvaluationSamples((), ()))


@pytest.mark.parametrize("form", ["torch_export", "torchscript"])
def test_labels_of_raw_rows_are_those_of_the_model(form: PackageFormat, tmp_path: Path) -> None:
    import mlflow.pyfunc  # late: 2 s

    target = make_target()
    assert is_servable(target)
    write_package(target, tmp_path / "model", form=form)
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    frame = pd.DataFrame(
        {"other": 0, "wood": ROWS["wood"], "size": ROWS["size"]}, index=[7, 5, 3, 1]
    )
    answers = loaded.predict(frame)
    assert list(answers.columns) == ["probability_warm", "probability_hard", "probability_old"]
    assert list(answers.index) == [7, 5, 3, 1]
    expected = target.model(*target.example).sigmoid().detach().numpy()
    np.testing.assert_allclose(answers.to_numpy(), expected, atol=1e-6)
    assert loaded.predict(frame.iloc[:0]).shape == (0, 3)
    graph = mlflow.pytorch.load_model(str(tmp_path / "model"))
    torch.testing.assert_close(graph(*target.example), target.model(*target.example))
    asked = (tmp_path / "model" / "requirements.txt").read_text(encoding="utf-8")
    assert "lightkit-train==" in asked
    assert "tokenizers" not in asked
    example: Any = loaded.input_example
    assert example.to_dict("records")[0] == {"size": pytest.approx(7 / 3), "wood": "elm"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "script") == ["model"]


def test_a_graph_that_was_altered_is_not_loaded(tmp_path: Path) -> None:
    import mlflow.pyfunc  # late: 2 s

    write_package(make_target(), tmp_path / "model", form="torch_export")
    (record,) = (tmp_path / "model").rglob(RECORD)
    entries = json.loads(record.read_text(encoding="utf-8"))
    entries["artefacts"]["model.pt2"]["sha256"] = "0" * 64
    record.write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"model\.pt2: this is not the graph that lightkit register wrote"
    ):
        mlflow.pyfunc.load_model(str(tmp_path / "model"))
