"""What a module of one's own declares of its outputs decides the columns of its predictions.

In every command.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.contract.workspace import ForkServer, Workspace

MODULE = '''
import numpy as np
import pytorch_lightning as pl
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightkit.images.preprocessing import Preprocessing


class Data(pl.LightningDataModule):
    """Two grey images, of which the first is brighter."""

    preprocessing = Preprocessing(
        resize=8, crop=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)
    )

    def __init__(self, names: list[str] | None = None):
        super().__init__()
        self.class_names = names

    def loader(self):
        grey = torch.tensor([(200 / 255 - 0.5) / 0.25, (60 / 255 - 0.5) / 0.25])
        images = grey[:, None, None, None].expand(2, 3, 8, 8).clone()
        return DataLoader(TensorDataset(images, torch.tensor([1, 0])), batch_size=2)

    def untransformed(self, split):
        return [
            (Image.new("RGB", (16, 16), (grey,) * 3), label) for grey, label in ((200, 1), (60, 0))
        ]

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader


class Net(pl.LightningModule):
    """Multiples of the mean of an image, as many as asked for."""

    def __init__(
        self,
        kind: str | None = None,
        factors: list[float] = [1.0, -1.0, 0.5],
        task: str = "multiclass",
    ):
        super().__init__()
        if kind is not None:
            self.output_kind = kind
        self.task = task  # a word of one's own
        self.register_buffer("factors", torch.tensor(factors), persistent=False)
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        x = x[0] if isinstance(x, (list, tuple)) else x
        return self.scale * x.mean((1, 2, 3))[:, None] * self.factors

    def training_step(self, batch, index):
        return self.scale.square() * 0

    def validation_step(self, batch, index):
        self.log("val/loss", self(batch).square().mean() * 0)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)
'''
CONFIG = """\
seed_everything: 1
model: {class_path: nets.Net}
data: {class_path: nets.Data}
trainer: {accelerator: cpu, devices: 1, max_epochs: 1, logger: false}
"""
GREYS = np.array([200, 60]) / 255
MEANS = (GREYS - 0.5) / 0.25
NAMES = "[a,b,c]"
THREE = 3 * MEANS[:, None] * np.array([1, -1, 0.5])
ONE = 3 * MEANS[:, None]


def softmax(values: Any) -> Any:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-values))


CASES: dict[str, tuple[str | None, list[float], str, Any, str]] = {
    "logits": ("logits", [1, -1, 0.5], NAMES, softmax(THREE), "classes"),
    "one logit": ("logits", [1], "[a,b]", np.hstack([1 - sigmoid(ONE), sigmoid(ONE)]), "classes"),
    "binary logit": (
        "binary_logit",
        [1],
        "[a,b]",
        np.hstack([1 - sigmoid(ONE), sigmoid(ONE)]),
        "classes",
    ),
    "labels": ("multilabel_logits", [1, -1, 0.5], NAMES, sigmoid(THREE), "labels"),
    "no probabilities": ("probabilities", [1, -1, 0.5], NAMES, THREE, "numbers"),
    "values": ("values", [1, -1, 0.5], NAMES, THREE, "numbers"),
    "undeclared": (None, [1, -1, 0.5], NAMES, THREE, "numbers"),
    "undeclared, one": (None, [1], "[a,b]", ONE, "numbers"),
}


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Workspace]:
    """A run of the module, whose kind the commands set."""
    workspace = Workspace(tmp_path_factory.mktemp("kinds") / "work", fork_server)
    workspace.write("nets.py", MODULE)
    workspace.write("c.yaml", CONFIG)
    (workspace.folder / "pics").mkdir()
    for name, grey in (("0", 200), ("1", 60)):
        Image.new("RGB", (16, 16), (grey, grey, grey)).save(
            workspace.folder / "pics" / f"{name}.png"
        )
    workspace.run("fit", "-c", "c.yaml").ok()
    yield workspace
    workspace.close()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {key: value for key, value in row.items() if value != ""}
            for row in csv.DictReader(file)
        ]


def check(
    rows: list[dict[str, str]], expected: Any, form: str, names: str, *, num_ranks: int
) -> None:
    """Compare a table with what numpy computes."""
    letters = names.strip("[]").split(",")
    assert len(rows) == len(expected)
    for row, values in zip(rows, expected, strict=True):
        row.pop("path", None)
        if form == "classes":
            order = np.argsort(-values)[:num_ranks]
            suffixes = [f"_{rank + 1}" if rank else "" for rank in range(len(order))]
            assert [row[f"label{suffix}"] for suffix in suffixes] == [letters[at] for at in order]
            found = [float(row[f"probability{suffix}"]) for suffix in suffixes]
            assert found == pytest.approx(values[order], abs=1e-5)
            assert len(row) == 2 * len(order)
        else:
            columns = [f"prediction_{at}" for at in range(len(values))]
            if form == "labels":
                columns = [f"probability_{letter}" for letter in letters]
            assert list(row) == columns
            assert [float(row[column]) for column in columns] == pytest.approx(values, abs=1e-5)
        assert all(
            0 <= float(value) <= 1 for name, value in row.items() if name.startswith("probability")
        )


@pytest.mark.parametrize("case", CASES)
def test_columns_are_what_a_module_declares_in_every_prediction(
    trained: Workspace, case: str
) -> None:
    kind, factors, names, expected, form = CASES[case]
    words = [f"--model.init_args.factors={factors}", f"--data.init_args.names={names}"]
    words += [] if kind is None else [f"--model.init_args.kind={kind}"]

    # those of the data's loader, and of images
    trained.run("predict", "--run", "latest", *words).ok()
    check(read(trained.only_run / "predictions.csv"), expected, form, names, num_ranks=1)
    trained.run("predict", "--run", "latest", *words, "pics", "--output", "images.csv").ok()
    check(read(trained.folder / "images.csv"), expected, form, names, num_ranks=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("one logit", []),
        ("one logit", ["--with-preprocessing"]),
        ("labels", []),
        ("labels", ["--with-preprocessing"]),
        ("values", []),
        ("undeclared", []),
    ],
)
def test_columns_of_an_exported_file_are_those_of_its_model(
    trained: Workspace, case: str, options: list[str]
) -> None:
    kind, factors, names, expected, form = CASES[case]
    words = [f"--model.init_args.factors={factors}", f"--data.init_args.names={names}"]
    words += [] if kind is None else [f"--model.init_args.kind={kind}"]
    trained.run("export", "--run", "latest", *words, *options, "--output", "out").ok()
    trained.run("predict", "--model", "out/model.pt2", "pics", "--output", "file.csv").ok()
    check(read(trained.folder / "file.csv"), expected, form, names, num_ranks=3)


def test_a_kind_that_does_not_exist_is_a_warning(trained: Workspace) -> None:
    words = (
        "--model.init_args.kind=logit",
        f"--data.init_args.names={NAMES}",
        "pics",
        "--output",
        "typo.csv",
    )
    result = trained.run("predict", "--run", "latest", *words).ok()
    assert "Net.output_kind: expected one of logits, binary_logit, multilabel_logits" in result.err
    assert list(read(trained.folder / "typo.csv")[0])[1:] == [
        "prediction_0",
        "prediction_1",
        "prediction_2",
    ]
