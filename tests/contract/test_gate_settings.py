"""A gate compares two models, each by its own data settings and classes, on the same samples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet

from tests.contract.rank_jobs import run_joined
from tests.contract.registry import read_registry
from tests.contract.workspace import ForkServer, Result, Workspace, read_json

pytestmark = pytest.mark.timeout(1800)  # on a busy machine

KINDS = '''\
"""Four kinds of animals in four columns, in batches of any form, and a model that logs accuracy and
F1 of them."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
import torchmetrics
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, default_collate

KINDS = ["ape", "bee", "cat", "dog"]


class Pair(NamedTuple):
    inputs: torch.Tensor
    labels: torch.Tensor


@dataclass
class Sample:
    image: torch.Tensor
    target: torch.Tensor


FORMS = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "named tuple": Pair,
    "mapping": lambda x, y: {"y": y, "x": x},
    "dataclass": Sample,
    "object": lambda x, y: SimpleNamespace(x=x, labels=y),
    "three": lambda x, y: {"x": x, "first": y, "second": y},
}


def draw(names, split):
    """Draw inputs ``(samples, 4)`` and kinds, which do not depend on the order of the names."""
    generator = np.random.default_rng({"train": 1, "val": 2, "test": 3}[split])
    kinds = generator.choice(sorted(names), size=90)
    x = generator.normal(size=(90, 4)) + 1.6 * (kinds[:, None] == np.array(KINDS))
    return x.astype(np.float32), kinds


class Data(LightningDataModule):
    """Prepares its inputs in its own way.

    Args:
        class_names: Names in the order of the labels.
        form: Form of a batch.
        mean: Is subtracted.
        std: Is divided by.
        columns: Order of the columns.
        flip: Turn signs.
        batch_size: Samples of a batch.
    """

    sample_arguments = ("class_names",)

    def __init__(
        self,
        class_names: list[str] = ["ape", "bee", "cat"],
        form: str = "tuple",
        mean: float = 0.0,
        std: float = 1.0,
        columns: list[int] = [0, 1, 2, 3],
        flip: bool = False,
        batch_size: int = 16,
    ):
        super().__init__()
        self.class_names, self.form, self.mean, self.std = class_names, form, mean, std
        self.columns, self.flip, self.batch_size = columns, flip, batch_size

    def samples(self, split):
        x, kinds = draw(self.class_names, split)
        x = ((x - self.mean) / self.std)[:, self.columns] * (-1 if self.flip else 1)
        return x.astype(np.float32), np.array([self.class_names.index(kind) for kind in kinds])

    def loader(self, split):
        x, y = map(torch.from_numpy, self.samples(split))
        collate = lambda items: FORMS[self.form](*default_collate(items))
        return DataLoader(list(zip(x, y)), batch_size=self.batch_size, collate_fn=collate)

    def train_dataloader(self):
        return self.loader("train")

    def val_dataloader(self):
        return self.loader("val")

    def test_dataloader(self):
        return self.loader("test")


class Undeclared(Data):
    """The same, of whose arguments it is unknown which choose the samples."""

    sample_arguments = None


class Net(LightningModule):
    """A linear model.

    Args:
        returns_outputs: Whether its steps return predictions.
    """

    def __init__(self, returns_outputs: bool = True):
        super().__init__()
        self.returns_outputs = returns_outputs

    def setup(self, stage):
        if not hasattr(self, "linear"):
            num = len(self.trainer.datamodule.class_names)
            self.linear = torch.nn.Linear(4, num)
            self.f1 = torchmetrics.F1Score("multiclass", num_classes=num, average="macro")

    def split(self, batch):
        if isinstance(batch, (tuple, list)):
            return tuple(batch)
        parts = batch if isinstance(batch, dict) else vars(batch)
        inputs = next(parts[name] for name in ("x", "image") if name in parts)
        return inputs, next(
            parts[name] for name in ("y", "target", "labels", "first") if name in parts
        )

    def training_step(self, batch, index):
        x, y = self.split(batch)
        return torch.nn.functional.cross_entropy(self.linear(x), y)

    def evaluate(self, batch, split):
        x, y = self.split(batch)
        logits = self.linear(x)
        self.f1(logits, y)
        self.log(f"{split}/f1", self.f1, on_epoch=True)
        self.log(f"{split}/accuracy", (logits.argmax(1) == y).float().mean(), batch_size=len(y))
        return {"logits": logits, "target": y} if self.returns_outputs else None

    def validation_step(self, batch, index):
        return self.evaluate(batch, "val")

    def test_step(self, batch, index):
        return self.evaluate(batch, "test")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
'''

JOB = {
    "seed_everything": 1,
    "model": {"class_path": "kinds.Net"},
    "data": {"class_path": "kinds.Data"},
    "trainer": {
        "accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False,
        "enable_progress_bar": False,
    },
    "run": {"report": False},
    "gate": {"metric": "test/f1", "max_drop": 1.0, "slices": {"ape": 0.0, "cat": 0.0}},
}  # fmt: skip

WALK = """\
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch

from kinds import Data
from lightkit.main import main


def run(*words):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*words])
    return code, out.getvalue(), err.getvalue()


found = {}
for name, words in json.loads(Path("walk.json").read_text()).items():
    of_baseline = [word.removeprefix("base:") for word in words if not word.startswith("new:")]
    of_challenger = [word.removeprefix("new:") for word in words if not word.startswith("base:")]
    entry = found[name] = {"codes": []}
    for role, given, seed in (("base", of_baseline, 1), ("new", of_challenger, 2)):
        job = f"{name.replace(' ', '-')}-{role}"
        code, _, err = run(
            "fit",
            "-c",
            "job.yaml",
            f"--run.name={job}",
            f"--seed_everything={seed}",
            "--quiet",
            *given,
        )
        assert code == 0, (name, err)
        entry[role] = str(Path("runs", job, "latest").resolve())
        entry["codes"].append(run("test", "--run", f"{job}/latest", "--quiet")[0])
        checkpoint = torch.load(
            next(Path(entry[role]).glob("checkpoints/best.ckpt")), weights_only=True
        )
        entry[f"{role}_weights"] = [
            checkpoint["state_dict"][f"linear.{part}"].tolist() for part in ("weight", "bias")
        ]
    job = name.replace(" ", "-")
    words = ["gate", f"{job}-new/latest", f"--baseline={job}-base/latest", "--json"]
    entry["gate"], entry["out"], entry["err"] = run(*words)
Path("found.json").write_text(json.dumps(found))
"""

CASES: dict[str, tuple[list[str], dict[str, Any], list[str]]] = {
    # words of both, settings of the baseline's inputs, the baseline's classes
    "batch size": (["base:--data.batch_size=7"], {}, []),
    "mean and std": (["base:--data.mean=0.4", "base:--data.std=3.0"], {"mean": 0.4, "std": 3.0},
                     []),
    "columns": (["base:--data.columns=[2, 0, 3, 1]"], {"columns": [2, 0, 3, 1]}, []),
    "transform": (["base:--data.flip=true"], {"flip": True}, []),
    "double precision": (["base:--trainer.precision=64-true"], {}, []),
    "mixed precision": (["base:--trainer.precision=bf16-mixed"], {}, []),
    "a class more": (["base:--data.class_names=[cat, dog, ape, bee]"], {},
                     ["cat", "dog", "ape", "bee"]),
    **{
        f"order in a {form}": (
            [f"--data.form={form}", "base:--data.class_names=[cat, ape, bee]"], {},
            ["cat", "ape", "bee"],
        )
        for form in ("tuple", "list", "named tuple", "mapping", "dataclass", "object")
    },
    "forms": (["base:--data.form=mapping", "base:--data.class_names=[bee, cat, ape]"], {},
              ["bee", "cat", "ape"]),
    "without predictions": (["--model.returns_outputs=false", "base:--data.mean=0.4",
                             "--gate.metric=test/accuracy"],
                            {"mean": 0.4}, []),
}  # fmt: skip
REFUSED: dict[str, tuple[list[str], int, str]] = {
    "unknown argument": (
        ["--data=kinds.Undeclared", "base:--data.mean=0.4"], 2,
        r"gate\.baseline: run unknown-argument-base/.* data\.init_args\.mean \(0\.4 "
        r"there\).*sample_arguments",
    ),
    "no labels": (
        ["--data.form=three", "base:--data.class_names=[cat, ape, bee]"], 2,
        r"cannot be renumbered.*no-labels-base/.*another order \(cat, ape, bee\) than the data "
        r"\(ape, bee, cat\)",
    ),
    "unknown class": (
        ["new:--data.class_names=[ape, bee, dog]", "--gate.slices=null"], 3,
        r"unknown-class-base/.* does not know dog.*ape, bee, cat.*ape, bee, dog",
    ),
    "mean over classes": (
        ["--model.returns_outputs=false"], 2, r"gate\.slices: test/f1 is no mean over samples",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def walked(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[dict[str, Any]]:
    """Each case trained, tested and judged, in one process; read only."""
    workspace = Workspace(tmp_path_factory.mktemp("walk") / "work", fork_server)
    words = {name: given for name, (given, *_) in (CASES | REFUSED).items()}
    for name, text in {"kinds.py": KINDS, "walk.py": WALK, "walk.json": json.dumps(words)}.items():
        workspace.write(name, text)
    workspace.write("job.yaml", JOB)
    workspace.run(script="walk.py", timeout_s=1500).ok()
    yield read_json(workspace.folder / "found.json")
    workspace.close()


def score(target: Any, predicted: Any, classes: list[str]) -> dict[str, Any]:
    """Accuracy, macro F1 over the classes that occur, and the F1 of each class.

    As scikit-learn computes them.
    """
    target, predicted = np.array(target), np.array(predicted)
    f1 = {}
    for name in {*target, *predicted}:
        hits = ((target == name) & (predicted == name)).sum()
        f1[str(name)] = 2 * hits / ((target == name).sum() + (predicted == name).sum())
    return {
        "test/accuracy": (target == predicted).mean(),
        "test/f1": np.mean([*f1.values()]),
        **{name: f1[name] for name in classes},
    }


def draw_test_samples() -> tuple[Any, Any]:
    """Draw inputs and kinds of the test split, as `kinds.py` does."""
    space: dict[str, Any] = {}
    exec(compile(KINDS.partition("class Data(")[0], "kinds.py", "exec"), space)
    x, kinds = space["draw"](["ape", "bee", "cat"], "test")
    return x, kinds


def recompute(weights: list[Any], settings: dict[str, Any], classes: list[str]) -> dict[str, Any]:
    """Score a linear model on the samples of three kinds in numpy.

    From weights and the settings of its inputs.
    """
    kinds = ["ape", "bee", "cat"]
    x, target = draw_test_samples()
    x = (x - np.float32(settings.get("mean", 0))) / np.float32(settings.get("std", 1))
    x = x[:, settings.get("columns", [0, 1, 2, 3])] * (-1 if settings.get("flip") else 1)
    logits = x @ np.array(weights[0]).T + np.array(weights[1])
    return score(target, np.array(classes or kinds)[logits.argmax(axis=1)], kinds)


@pytest.mark.parametrize("name", CASES)
def test_each_model_of_a_gate_is_scored_with_its_own_settings(
    walked: dict[str, Any], name: str
) -> None:
    entry = walked[name]
    assert (entry["codes"], entry["gate"]) == ([0, 0], 0), entry["err"]
    decision = json.loads(entry["out"])
    assert decision["num_samples"] == 90
    _, settings, classes = CASES[name]
    for role, which, own, names in (
        ("base", "baseline", settings, classes), ("new", "challenger", {}, [])
    ):  # fmt: skip
        expected = recompute(entry[f"{role}_weights"], own, names)
        found = decision["scores"][which]
        assert found["test/accuracy"] == pytest.approx(expected["test/accuracy"], abs=1e-6)
        assert found["test/f1"] == pytest.approx(expected["test/f1"], abs=1e-6)
        if decision["metric"] == "test/f1":
            slices = {kind: decision["slices"][kind][which] for kind in ("ape", "cat")}
            assert slices == pytest.approx({kind: expected[kind] for kind in slices}, abs=1e-6)

        # the file of its own test, which computes in the precision of the training, and has the
        # classes of then
        has_file = name not in ("without predictions", "mixed precision", "a class more")
        if has_file:
            rows = parquet.read_table(Path(entry[role]) / "test_predictions.parquet").to_pydict()
            of_file = score(rows["label"], rows["predicted"], ["ape", "bee", "cat"])
            assert of_file == pytest.approx(expected, abs=1e-6)


def test_the_accuracy_of_a_class_without_predictions_is_that_of_its_samples(
    walked: dict[str, Any],
) -> None:
    entry = walked["without predictions"]
    decision = json.loads(entry["out"])
    for role, which, settings in (("base", "baseline", {"mean": 0.4}), ("new", "challenger", {})):
        kinds = ["ape", "bee", "cat"]
        x, target = draw_test_samples()
        logits = (x - settings.get("mean", 0.0)) @ np.array(entry[f"{role}_weights"][0]).T
        predicted = np.array(kinds)[(logits + np.array(entry[f"{role}_weights"][1])).argmax(axis=1)]
        for kind in ("ape", "cat"):
            of_kind = target == kind
            assert decision["slices"][kind][which] == pytest.approx(
                (predicted[of_kind] == kind).mean(), abs=1e-6
            )


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused_by_name(walked: dict[str, Any], name: str) -> None:
    _, code, says = REFUSED[name]
    assert walked[name]["gate"] == code, walked[name]["err"]
    assert re.search(says, walked[name]["err"], re.DOTALL)
    assert "Traceback" not in walked[name]["err"]


TABLE = """\
import numpy as np
import pyarrow as pa
from pyarrow import parquet

generator = np.random.default_rng(3)
x = generator.normal(size=(131, 2)).astype("f4")
y = (3 * x[:, 0] - 2 * x[:, 1] + generator.normal(size=131) * 0.5 + 100).astype("f4")
split = np.array(["train"] * 80 + ["val"] * 27 + ["test"] * 24)
weight = generator.integers(0, 4, 131).astype("f4")
columns = {"x0": x[:, 0], "x1": x[:, 1], "y": y, "split": split, "w": weight}
parquet.write_table(pa.table(columns), "table.parquet", row_group_size=13)
"""
REGRESSION = {
    "seed_everything": 1,
    "model": {"class_path": "Regressor", "init_args": {"num_inputs": 2}},
    "data": {
        "class_path": "Table",
        "init_args": {"path": "table.parquet", "features": ["x0", "x1"], "label": "y",
                      "batch_size": 8},
    },
    "trainer": {
        "accelerator": "cpu", "devices": 1, "max_epochs": 6, "logger": False,
        "enable_progress_bar": False,
    },
    "run": {"report": False},
    "gate": {"metric": "test/mae", "mode": "min", "max_drop": 0.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def regressors(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Workspace]:
    """Regressors on a table: of six epochs, of one with other columns, and of two on fewer rows.

    Read only.
    """
    workspace = Workspace(tmp_path_factory.mktemp("regressors") / "work", fork_server)
    workspace.write("table.py", TABLE)
    workspace.write("job.yaml", REGRESSION)
    workspace.run(script="table.py").ok()
    workspace.fit("-c", "job.yaml", "--run.name=old")
    workspace.run("test", "--run", "old/latest").ok()
    words = ("--trainer.max_epochs=1", "--seed_everything=2")
    workspace.fit("-c", "job.yaml", "--run.name=other", "--data.features=[x1, x0]", *words)
    workspace.run("test", "--run", "other/latest").ok()
    workspace.fit("-c", "job.yaml", "--run.name=fewer", "--data.filter=[[x0, '<', 1]]", *words)
    yield workspace
    workspace.close()


def read_errors(workspace: Workspace, name: str) -> Any:
    """Read what the test of a run has predicted too much, row by row."""
    path = workspace.folder / "runs" / name / "latest" / "test_predictions.parquet"
    rows = parquet.read_table(path).to_pydict()
    return np.array(rows["prediction"]) - np.array(rows["target"])


def test_a_baseline_gets_the_columns_that_it_was_trained_on(regressors: Workspace) -> None:
    result = regressors.run("gate", "other/latest", "--baseline=old/latest", "--json")
    assert result.code == 4, result.err
    decision = json.loads(result.out)
    for which, name in (("baseline", "old"), ("challenger", "other")):
        expected = np.abs(read_errors(regressors, name)).mean()
        assert decision["scores"][which]["test/mae"] == pytest.approx(expected, rel=1e-5)
    assert "data.init_args.features ['x0', 'x1']" in " ".join(decision["notices"])


def test_the_loss_of_two_regressors_has_one_unit_where_their_training_splits_are_the_same(
    regressors: Workspace,
) -> None:
    words = ("--baseline=old/latest", "--gate.metric=test/loss", "--json")
    result = regressors.run("gate", "other/latest", *words)
    assert result.code == 4, result.err
    decision = json.loads(result.out)
    rows = parquet.read_table(regressors.folder / "table.parquet").to_pydict()
    of_training = [
        value for value, split in zip(rows["y"], rows["split"], strict=True) if split == "train"
    ]
    for which, name in (("baseline", "old"), ("challenger", "other")):
        expected = np.square(read_errors(regressors, name)).mean() / np.var(of_training)
        assert decision["scores"][which]["test/loss"] == pytest.approx(expected, rel=1e-4)


def test_a_loss_in_units_of_each_run_is_not_compared(regressors: Workspace) -> None:
    words = ("--baseline=old/latest", "--gate.metric=test/loss", "--data.filter=null")
    result = regressors.run("gate", "fewer/latest", *words)
    assert result.code == 2
    assert re.search(
        r"gate\.metric: test/loss is in units of each run's own training data.*test/mse", result.err
    )
    # in units of y
    assert regressors.run("gate", "fewer/latest", *words[:1], "--data.filter=null").code in (0, 4)


def test_a_baseline_is_scored_on_the_rows_of_the_run_that_is_judged(regressors: Workspace) -> None:
    regressors.write(
        "more.py", TABLE.replace("default_rng(3)", "default_rng(4)").replace("table.p", "other.p")
    )
    regressors.run(script="more.py").ok()
    # the run that is judged says which rows: the baseline is scored on them too
    result = regressors.run(
        "gate", "other/latest", "--baseline=old/latest", "--data.path=other.parquet", "--json"
    )
    assert result.code in (0, 4), result.err
    known = json.loads(result.out)["scores"]["baseline"]["test/mae"]
    assert known != pytest.approx(np.abs(read_errors(regressors, "old")).mean(), rel=1e-3)


def test_a_baseline_is_scored_with_the_weights_of_the_run_that_is_judged(
    regressors: Workspace,
) -> None:
    words = ("--data.weight=w", "--seed_everything=2", "--trainer.max_epochs=1")
    regressors.fit("-c", "job.yaml", "--run.name=weighted", *words)
    result = regressors.run("gate", "weighted/latest", "--baseline=old/latest", "--json")
    assert result.code in (0, 4), result.err
    decision = json.loads(result.out)
    rows = parquet.read_table(regressors.folder / "table.parquet").to_pydict()
    weights = np.array(rows["w"])[np.array(rows["split"]) == "test"]
    # by hand: the baseline's errors on the rows that weigh something, as those of the run
    expected = np.abs(read_errors(regressors, "old"))[weights > 0].mean()
    assert decision["scores"]["baseline"]["test/mae"] == pytest.approx(expected, rel=1e-5)
    assert decision["significance"]["num_samples"] == (weights > 0).sum()


def test_scales_of_a_regressor_are_those_of_the_rows_that_count(regressors: Workspace) -> None:
    words = ("--data.weight=w", "--data.batch_size=4", "--trainer.max_epochs=1")
    regressors.fit("-c", "job.yaml", "--run.name=one", *words)
    run_joined(
        regressors,
        "fit",
        "-c",
        "job.yaml",
        "--run.name=two",
        "--trainer.devices=2",
        "--seed_everything=8",
        *words,
    )
    rows = parquet.read_table(regressors.folder / "table.parquet").to_pydict()
    counts = (np.array(rows["split"]) == "train") & (np.array(rows["w"]) > 0)
    x = np.stack([rows["x0"], rows["x1"]], axis=1)[counts].astype(float)
    y = np.array(rows["y"])[counts].astype(float)
    for name in ("one", "two"):
        path = regressors.folder / "runs" / name / "latest" / "checkpoints" / "last.ckpt"
        state = torch.load(path, weights_only=True)["state_dict"]
        assert state["input_mean"].tolist() == x.mean(axis=0).astype("f4").tolist()
        assert state["input_std"].tolist() == x.std(axis=0).astype("f4").tolist()
        assert state["output_mean"].tolist() == [float(np.float32(y.mean()))]
        assert state["output_std"].tolist() == [float(np.float32(y.std()))]


COLOURS = """\
import pytorch_lightning as pl
import torch


class Net(pl.LightningModule):
    output_kind = "logits"

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x.mean((2, 3)))

    def predict_step(self, batch, index):
        x = batch if isinstance(batch, torch.Tensor) else batch[0]
        return self(x).softmax(1)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def evaluate(self, batch, split):
        logits = self(batch[0])
        right = (logits.argmax(1) == batch[1]).float().mean()
        self.log(f"{split}/accuracy", right, batch_size=len(batch[1]))
        return {"logits": logits, "target": batch[1]}

    def validation_step(self, batch, index):
        return self.evaluate(batch, "val")

    def test_step(self, batch, index):
        return self.evaluate(batch, "test")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)
"""
PICTURES = """\
from pathlib import Path

import numpy as np
from PIL import Image

generator = np.random.default_rng(0)
for split, num in (("train", 8), ("val", 3), ("test", 4)):
    for name, channel in (("blue", 2), ("green", 1), ("red", 0)):
        folder = Path("pics", split, name)
        folder.mkdir(parents=True)
        for number in range(num):
            pixels = generator.integers(0, 60, (16, 16, 3)).astype("u1")
            pixels[..., channel] += 180
            Image.fromarray(pixels).save(folder / f"{number}.png")
"""
COLOUR_JOB = {
    "seed_everything": 1,
    "model": {"class_path": "colours.Net"},
    "data": {
        "class_path": "ImageFolder",
        "init_args": {"root": "pics", "image_size": 16, "batch_size": 6, "num_workers": 0,
                      "augment": False},
    },
    "trainer": {
        "accelerator": "cpu", "devices": 1, "max_epochs": 6, "logger": False,
        "enable_progress_bar": False,
    },
    "run": {"report": False},
    "gate": {"metric": "test/accuracy", "max_drop": 0.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def renamed(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Workspace]:
    """A model of three colours, one of whose folders was renamed since.

    Also a model of today's names; read only.
    """
    workspace = Workspace(tmp_path_factory.mktemp("colours") / "work", fork_server)
    workspace.write("colours.py", COLOURS)
    workspace.write("pictures.py", PICTURES)
    workspace.write("job.yaml", COLOUR_JOB)
    workspace.run(script="pictures.py").ok()
    workspace.fit("-c", "job.yaml", "--run.name=old")
    for split in ("train", "val", "test"):
        (workspace.folder / "pics" / split / "red").rename(
            workspace.folder / "pics" / split / "Red"
        )
    workspace.fit("-c", "job.yaml", "--run.name=new")
    yield workspace
    workspace.close()


def predicted_label(result: Result) -> str:
    """Return the label of the one image."""
    _, row = result.ok().out.splitlines()[:2]
    return row.split(",")[1]


def test_a_model_predicts_the_names_that_it_was_trained_with(renamed: Workspace) -> None:
    assert (
        predicted_label(
            renamed.run("predict", "pics/test/Red/0.png", "--run", "old/latest", "--output=-")
        )
        == "red"
    )
    assert (
        predicted_label(
            renamed.run("predict", "pics/test/Red/0.png", "--run", "new/latest", "--output=-")
        )
        == "Red"
    )


def test_the_predictions_of_a_split_have_the_names_of_the_training(renamed: Workspace) -> None:
    renamed.run("predict", "--run", "old/latest", "--quiet").ok()
    text = (renamed.folder / "runs" / "old" / "latest" / "predictions.csv").read_text(
        encoding="utf-8"
    )
    labels = {line.split(",")[1] for line in text.splitlines()[1:]}
    assert labels == {"blue", "green", "red"}


def test_an_export_has_the_names_of_the_training_and_is_scored_on_no_other_classes(
    renamed: Workspace,
) -> None:
    result = renamed.run("export", "--run", "old/latest", "--format=safetensors").ok()
    assert re.search(r"not scored.*blue, green, red.*Red, blue, green", result.err)
    record = read_json(renamed.folder / "runs" / "old" / "latest" / "export" / "export.json")
    (entry,) = record["artefacts"].values()
    assert entry["class_names"] == ["blue", "green", "red"]
    assert entry["metrics"]["scored"] is False
    weights = next((renamed.folder / "runs" / "old" / "latest" / "export").glob("*.safetensors"))
    words = ("predict", "pics/test/Red/0.png", "--model", str(weights), "--output=-")
    assert predicted_label(renamed.run(*words)) == "red"


def test_a_registered_model_has_the_names_of_the_training(renamed: Workspace) -> None:
    renamed.run("register", "--run", "old/latest", "--name", "colours").ok()
    version = read_registry(renamed)["colours"]["versions"]["1"]
    assert json.loads(version["tags"]["class_names"]) == ["blue", "green", "red"]


@pytest.mark.parametrize(
    "words",
    [
        ("test", "--run", "old/latest"),
        ("validate", "--run", "old/latest"),
        (
            "test",
            "-c",
            "job.yaml",
            "--ckpt_path",
            "runs/old/latest/checkpoints/best.ckpt",
            "--run.name=again",
        ),
        ("gate", "old/latest", "--gate.min=0.5", "--gate.max_drop=null"),
        ("gate", "new/latest", "--baseline=old/latest"),
    ],
    ids=["test", "validate", "checkpoint", "gate", "baseline"],
)
def test_a_model_is_not_scored_on_labels_of_other_classes(
    renamed: Workspace, words: tuple[str, ...]
) -> None:
    result = renamed.run(*words)
    assert result.code == 3, result.out + result.err
    assert re.search(r"blue, green, red.*Red, blue, green", result.err)
    assert "Traceback" not in result.err


def test_a_checkpoint_of_weights_alone_has_the_names_of_its_run(renamed: Workspace) -> None:
    path = renamed.folder / "runs" / "old" / "latest" / "checkpoints" / "alone.ckpt"
    checkpoint = torch.load(
        renamed.folder / "runs" / "old" / "latest" / "checkpoints" / "best.ckpt", weights_only=True
    )
    assert checkpoint.pop("lightkit_class_names") == {
        "outputs": ["blue", "green", "red"],
        "labels": ["blue", "green", "red"],
    }
    torch.save(checkpoint, path)
    words = (
        "predict",
        "pics/test/Red/0.png",
        "--run",
        "old/latest",
        "--ckpt_path",
        str(path),
        "--output=-",
    )
    assert predicted_label(renamed.run(*words)) == "red"
