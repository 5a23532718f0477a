"""Networks of tables against their formulas, and what a model of a table computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn import metrics as sk  # type: ignore[import-untyped]

from lightkit.data import TableData
from lightkit.errors import DataError
from lightkit.models.importance import measure_importance
from lightkit.models.tabular import TabularModel
from lightkit.models.tabular_layers import EnsembleLinear, PiecewiseLinear, TabM
from lightkit.rows.table import TableFit, TablePreprocessing
from lightkit.rows.values import ColumnType
from tests.trainers import quiet_trainer


def prepare() -> TablePreprocessing:
    types: dict[str, ColumnType] = {"a": "number", "b": "number", "c": "category"}
    fitted = TableFit(types, scaling="standard")
    random = np.random.default_rng(0)
    fitted.add(
        pa.table(
            {"a": random.normal(size=90), "b": random.normal(size=90), "c": ["x", "y", "z"] * 30}
        )
    )
    return fitted.finish()


def test_a_number_is_the_share_of_each_bin_below_it() -> None:
    layer = PiecewiseLinear([[0.0, 1.0, 3.0], [0.0, 2.0]], width=2)
    torch.nn.init.zeros_(layer.linear)
    torch.nn.init.zeros_(layer.bias)
    with torch.no_grad():
        layer.steps.copy_(torch.eye(2).repeat(2, 1, 1))  # the embedding is the shares themselves
    found = layer(torch.tensor([[2.0, 1.0], [-1.0, 3.0], [5.0, 0.0]]))
    # equation 1 of arXiv:2203.05556; no upper bound in the last bin, no lower one in the first
    assert found[:, 0].tolist() == [[1.0, 0.5], [-1.0, 0.0], [1.0, 2.0]]
    assert found[:, 1].tolist() == [[0.5, 0.0], [1.5, 0.0], [0.0, 0.0]]


def test_each_member_of_tabm_is_a_network_of_its_own() -> None:
    torch.manual_seed(0)
    net = TabM([2, 3], 4, hidden=6, blocks=2, dropout=0.0, members=3, draws_signs=True).eval()
    first, second = (layer for layer in net.layers if isinstance(layer, EnsembleLinear))
    assert set(first.input_scale.flatten().tolist()) <= {1.0, -1.0}
    assert torch.equal(first.input_scale[:, 0], first.input_scale[:, 1])  # one number for a column
    with torch.no_grad():
        for layer in (first, second):
            layer.output_scale.uniform_(0.5, 2)
            layer.bias.normal_()
    rows = torch.randn(5, 5)
    found = net(rows)
    for member in range(3):
        hidden = rows
        for layer in (first, second):
            weight = layer.output_scale[member][:, None] * layer.weight * layer.input_scale[member]
            hidden = (hidden @ weight.T + layer.bias[member]).relu()
        expected = hidden @ net.head[member] + net.head_bias[member]
        torch.testing.assert_close(found[:, member], expected)


@pytest.mark.parametrize("network", ["mlp", "resnet", "tabm"])
@pytest.mark.parametrize("embedding", ["piecewise", "none"])
def test_a_prediction_is_the_mean_over_the_members(network: str, embedding: str) -> None:
    torch.manual_seed(0)
    model = TabularModel(network=network, embedding=embedding, hidden=8, members=4)  # type: ignore[arg-type]
    model.build_for_rows(prepare(), ["no", "yes"])
    model.eval()
    inputs = (torch.randn(6, 2), torch.randint(0, 5, (6, 1)))
    members = model._compute_members(*inputs)
    assert members.shape == (6, 4 if network == "tabm" else 1, 2)
    torch.testing.assert_close(model(*inputs).softmax(1), members.softmax(2).mean(1))
    model.build_for_rows(prepare(), None)
    model.target_mean.fill_(100)
    model.target_std.fill_(20)
    model.eval()
    members = model._compute_members(*inputs)
    torch.testing.assert_close(model(*inputs), 100 + 20 * members.mean(1))


def test_each_member_is_trained_for_itself() -> None:
    model = TabularModel(hidden=8, members=4)
    model.build_for_rows(prepare(), ["no", "yes", "maybe"])
    members = torch.randn(5, 4, 3)
    targets = torch.tensor([0, 1, 2, 0, 1])
    losses = model._compute_member_losses(members, targets)
    expected = [
        np.mean([-members[row, at].log_softmax(0)[targets[row]].item() for at in range(4)])
        for row in range(5)
    ]
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-5)


def write_weighted(path: Path) -> list[tuple[Any, ...]]:
    """Write 47 rows to test on, of which a third has the weight 0, and 60 to train on."""
    random = np.random.default_rng(9)
    rows: list[tuple[Any, ...]] = []
    for at in range(107):
        kind = str(random.choice(["low", "mid", "high"], p=[0.6, 0.3, 0.1]))
        value = round(1000 + 50 * random.normal(), 2)
        rows.append(
            (
                round(random.normal(), 3),
                kind,
                value,
                (0, 0.5, 3)[at % 3],
                "train" if at < 60 else "test",
            )
        )
    lines = [",".join(map(str, row)) for row in [("a", "kind", "value", "w", "split"), *rows]]
    path.write_text("\n".join(lines), encoding="utf-8")
    return rows


def predict_test(target: str, path: Path) -> tuple[dict[str, float], np.ndarray[Any, Any]]:
    """Test an untrained model on the rows.

    Return what it logs, and its outputs for all rows of the test split.
    """
    torch.manual_seed(3)
    model = TabularModel(network="mlp", hidden=8)
    columns = ["a"] if target == "kind" else ["a", "kind"]
    data = TableData(path=str(path), target=target, weight="w", columns=columns, batch_size=8)
    trainer = quiet_trainer(path.parent, limit_train_batches=1, limit_val_batches=0)
    trainer.fit(model, data)
    (logged,) = trainer.test(model, data, verbose=False)
    inputs = data.encoded("test").__getitems__(range(47))[0]
    with torch.no_grad():
        outputs = model.eval()(*inputs)
    return {
        name.partition("/")[2]: value for name, value in logged.items()
    }, outputs.double().numpy()


@pytest.fixture
def weighted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[tuple[Any, ...]]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "t.csv", write_weighted(tmp_path / "t.csv")


def test_metrics_of_classes_are_those_of_scikit_learn_on_the_rows_that_count(
    weighted: tuple[Path, list[tuple[Any, ...]]],
) -> None:
    path, rows = weighted
    logged, logits = predict_test("kind", path)
    names = ["high", "low", "mid"]
    tested = rows[60:]
    weights = np.array([row[3] for row in tested])
    label = np.array([names.index(row[1]) for row in tested])[weights > 0]
    probability = np.exp(logits - np.log(np.exp(logits).sum(1, keepdims=True)))[weights > 0]
    predicted = probability.argmax(1)
    macro = {"average": "macro", "labels": sorted({*label, *predicted}), "zero_division": 0}
    expected = {
        "accuracy": sk.accuracy_score(label, predicted),
        "f1": sk.f1_score(label, predicted, **macro),
        "precision": sk.precision_score(label, predicted, **macro),
        "recall": sk.recall_score(label, predicted, **macro),
        "loss": sk.log_loss(
            label, probability, labels=[0, 1, 2], sample_weight=weights[weights > 0]
        ),
    }
    assert logged == pytest.approx(expected, rel=1e-5)


def test_metrics_of_values_are_those_of_scikit_learn_in_the_units_of_the_target(
    weighted: tuple[Path, list[tuple[Any, ...]]],
) -> None:
    path, rows = weighted
    logged, outputs = predict_test("value", path)
    tested = rows[60:]
    weights = np.array([row[3] for row in tested])
    counts = weights > 0
    value = np.array([row[2] for row in tested])[counts]
    trained = np.array([row[2] for row in rows[:60] if row[3]])
    expected = {
        "mae": sk.mean_absolute_error(value, outputs[counts, 0]),
        "mse": sk.mean_squared_error(value, outputs[counts, 0]),
        "loss": (
            sk.mean_squared_error(value, outputs[counts, 0], sample_weight=weights[counts])
            / trained.var()
        ),
    }
    assert 20 < expected["mae"] < 200  # in units of the target, of which the deviation is 50
    assert logged == pytest.approx(expected, rel=1e-4)


def test_a_test_split_of_weight_0_is_an_error_and_no_score_of_0(
    weighted: tuple[Path, list[tuple[Any, ...]]],
) -> None:
    path, rows = weighted
    lines = [",".join(map(str, (*row[:3], 0 if row[4] == "test" else 1, row[4]))) for row in rows]
    path.write_text("\n".join(["a,kind,value,w,split", *lines]), encoding="utf-8")
    for target in ("kind", "value"):
        with pytest.raises(DataError, match="each sample of the test split has the weight 0"):
            predict_test(target, path)


def test_the_importance_of_a_column_is_what_its_shuffling_costs() -> None:
    preprocessing = prepare()
    numbers = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    categories = torch.full((500, 1), 2)
    found = measure_importance(
        # of the second number alone
        lambda parts: torch.stack([-parts[0][:, 1], parts[0][:, 1]], dim=1),
        [numbers, categories],
        (numbers[:, 1] > 0).long(),
        preprocessing,
    )
    assert found["value"] == 1
    importance = {each["name"]: each["importance"] for each in found["columns"]}
    assert importance["b"] == pytest.approx(0.5, abs=0.06)
    assert importance["a"] == importance["c"] == 0
    assert found["columns"][0]["name"] == "b"
