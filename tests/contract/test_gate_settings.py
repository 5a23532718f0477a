"""A gate compares two models each with its own data settings, classes and units, on the same samples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from sklearn.metrics import accuracy_score, f1_score

from tests.contract.workspace import ForkServer, Workspace, read_json

pytestmark = pytest.mark.timeout(1800)  # on a busy machine

KINDS = '''\
"""Four kinds of animals in four columns, in batches of any form, and a model that logs accuracy and F1 of them."""

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
        return inputs, next(parts[name] for name in ("y", "target", "labels", "first") if name in parts)

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
        "accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False, "enable_progress_bar": False,
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
        code, _, err = run("fit", "-c", "job.yaml", f"--run.name={job}", f"--seed_everything={seed}", "--quiet", *given)
        assert code == 0, (name, err)
        entry[role] = str(Path("runs", job, "latest").resolve())
        entry["codes"].append(run("test", "--run", f"{job}/latest", "--quiet")[0])
        checkpoint = torch.load(next(Path(entry[role]).glob("checkpoints/best.ckpt")), weights_only=True)
        entry[f"{role}_weights"] = [checkpoint["state_dict"][f"linear.{part}"].tolist() for part in ("weight", "bias")]
    job = name.replace(" ", "-")
    words = ["gate", f"{job}-new/latest", f"--baseline={job}-base/latest", "--json"]
    entry["gate"], entry["out"], entry["err"] = run(*words)
Path("found.json").write_text(json.dumps(found))
"""

CASES: dict[str, tuple[list[str], dict[str, Any], list[str]]] = {
    # words of both, settings of the baseline's inputs, the baseline's classes
    "batch size": (["base:--data.batch_size=7"], {}, []),
    "mean and std": (["base:--data.mean=0.4", "base:--data.std=3.0"], {"mean": 0.4, "std": 3.0}, []),
    "columns": (["base:--data.columns=[2, 0, 3, 1]"], {"columns": [2, 0, 3, 1]}, []),
    "transform": (["base:--data.flip=true"], {"flip": True}, []),
    "double precision": (["base:--trainer.precision=64-true"], {}, []),
    "mixed precision": (["base:--trainer.precision=bf16-mixed"], {}, []),
    "a class more": (["base:--data.class_names=[cat, dog, ape, bee]"], {}, ["cat", "dog", "ape", "bee"]),
    **{
        f"order in a {form}": (
            [f"--data.form={form}", "base:--data.class_names=[cat, ape, bee]"], {}, ["cat", "ape", "bee"],
        )
        for form in ("tuple", "list", "named tuple", "mapping", "dataclass", "object")
    },
    "forms": (["base:--data.form=mapping", "base:--data.class_names=[bee, cat, ape]"], {}, ["bee", "cat", "ape"]),
    "without predictions": (["--model.returns_outputs=false", "base:--data.mean=0.4", "--gate.metric=test/accuracy"],
                            {"mean": 0.4}, []),
}  # fmt: skip
REFUSED: dict[str, tuple[list[str], int, str]] = {
    "unknown argument": (
        ["--data=kinds.Undeclared", "base:--data.mean=0.4"], 2,
        r"gate\.baseline: run unknown-argument-base/.* data\.init_args\.mean \(0\.4 there\).*sample_arguments",
    ),
    "no labels": (
        ["--data.form=three", "base:--data.class_names=[cat, ape, bee]"], 2,
        r"cannot be renumbered.*no-labels-base/.*another order \(cat, ape, bee\) than the data \(ape, bee, cat\)",
    ),
    "unknown class": (
        ["new:--data.class_names=[ape, bee, dog]"], 3,
        r"unknown-class-base/.* does not know dog.*ape, bee, cat.*ape, bee, dog",
    ),
    "mean over classes": (
        ["--model.returns_outputs=false"], 2, r"gate\.slices: test/f1 is no mean over samples",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[dict[str, Any]]:
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
    """Accuracy, macro F1, and the F1 of each class, by scikit-learn."""
    f1 = f1_score(target, predicted, average=None, labels=classes, zero_division=0)
    return {
        "test/accuracy": accuracy_score(target, predicted),
        "test/f1": f1_score(target, predicted, average="macro", zero_division=0),
        **dict(zip(classes, f1, strict=True)),
    }


def draw_test_samples() -> tuple[Any, Any]:
    """Draw inputs and kinds of the test split, as `kinds.py` does."""
    space: dict[str, Any] = {}
    exec(compile(KINDS.partition("class Data(")[0], "kinds.py", "exec"), space)
    x, kinds = space["draw"](["ape", "bee", "cat"], "test")
    return x, kinds


def recompute(weights: list[Any], settings: dict[str, Any], classes: list[str]) -> dict[str, Any]:
    """Score a linear model on the samples of three kinds in numpy, from weights and the settings of its inputs."""
    kinds = ["ape", "bee", "cat"]
    x, target = draw_test_samples()
    x = (x - np.float32(settings.get("mean", 0))) / np.float32(settings.get("std", 1))
    x = x[:, settings.get("columns", [0, 1, 2, 3])] * (-1 if settings.get("flip") else 1)
    logits = x @ np.array(weights[0]).T + np.array(weights[1])
    return score(target, np.array(classes or kinds)[logits.argmax(axis=1)], kinds)


@pytest.mark.parametrize("name", CASES)
def test_each_model_of_a_gate_is_scored_with_its_own_settings(walked: dict[str, Any], name: str) -> None:
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

        # the file of its own test, which computes in the precision of the training, and has the classes of then
        has_file = name not in ("without predictions", "mixed precision", "a class more")
        if has_file:
            rows = parquet.read_table(Path(entry[role]) / "test_predictions.parquet").to_pydict()
            of_file = score(rows["label"], rows["predicted"], ["ape", "bee", "cat"])
            assert of_file == pytest.approx(expected, abs=1e-6)


def test_the_accuracy_of_a_class_without_predictions_is_that_of_its_samples(walked: dict[str, Any]) -> None:
    entry = walked["without predictions"]
    decision = json.loads(entry["out"])
    for role, which, settings in (("base", "baseline", {"mean": 0.4}), ("new", "challenger", {})):
        kinds = ["ape", "bee", "cat"]
        x, target = draw_test_samples()
        logits = (x - settings.get("mean", 0.0)) @ np.array(entry[f"{role}_weights"][0]).T
        predicted = np.array(kinds)[(logits + np.array(entry[f"{role}_weights"][1])).argmax(axis=1)]
        for kind in ("ape", "cat"):
            of_kind = target == kind
            assert decision["slices"][kind][which] == pytest.approx((predicted[of_kind] == kind).mean(), abs=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused_by_name(walked: dict[str, Any], name: str) -> None:
    _, code, says = REFUSED[name]
    assert walked[name]["gate"] == code, walked[name]["err"]
    assert re.search(says, walked[name]["err"], re.DOTALL)
    assert "Traceback" not in walked[name]["err"]
