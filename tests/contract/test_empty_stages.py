"""A job that did nothing does not succeed.

Code 3, unless the config asks for nothing or nothing is left.
"""

from __future__ import annotations

import re

import pytest

from tests.contract.workspace import Workspace

MY_EMPTY = """\
import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Net(LightningModule):
    def __init__(self, skips: str = ""):
        super().__init__()
        self.skips = skips
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, index):
        loss = self(batch[0]).square().mean()
        return {"": loss, "none": None, "nan": loss * float("nan")}[self.skips]

    def validation_step(self, batch, index):
        self.log("val/loss", self(batch[0]).square().mean())

    def test_step(self, batch, index):
        self.log("test/loss", self(batch[0]).square().mean())

    def predict_step(self, batch, index):
        return self(batch[0])[: 0 if self.skips == "rows" else None]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


class Rows(LightningDataModule):
    def __init__(
        self, num_train: int = 8, batch_size: int = 4, num_test: int = 4, streams: bool = False
    ):
        super().__init__()
        self.save_hyperparameters()

    def _rows(self, number):
        return TensorDataset(torch.ones(number, 2))

    def train_dataloader(self):
        if self.hparams.streams:
            return DataLoader(Nothing(), batch_size=None)
        return DataLoader(
            self._rows(self.hparams.num_train), batch_size=self.hparams.batch_size, drop_last=True
        )

    def val_dataloader(self):
        return DataLoader(self._rows(4), batch_size=4)

    def test_dataloader(self):
        return DataLoader(self._rows(self.hparams.num_test), batch_size=4)

    predict_dataloader = test_dataloader
"""
JOB = """\
model: {class_path: my_empty.Net}
data: {class_path: my_empty.Rows}
trainer: {max_epochs: 1, accelerator: cpu, logger: false}
run: {report: false}
"""
EMPTY = {
    "drop_last": (
        ["fit", "--data.num_train=3"],
        r"given no batch: it has 3 samples, batches of 4, .*At least 4 samples",
    ),
    "stream": (
        ["fit", "--data.streams=true"],
        r"the training loader has given no batch\. Look at what it yields",
    ),
    "steps_without_loss": (
        ["fit", "--model.skips=none"],
        r"each of the 2 training batches was skipped",
    ),
    "losses_left_out": (
        ["fit", "--model.skips=nan", "--watchdog.on_nonfinite=skip"],
        r"each of the 2 training batches was skipped",
    ),
    "test": (
        ["test", "--run", "job/latest", "--data.num_test=0"],
        r"the test loader has given no batch",
    ),
    "rows": (
        ["predict", "--run", "job/latest", "--model.skips=rows"],
        r"predict_step has returned no row for any batch",
    ),
    "predict": (
        ["predict", "--run", "job/latest", "--data.num_test=0"],
        r"the predict loader has given no batch",
    ),
}
ZERO = {
    "batches": ["fit", "--trainer.limit_train_batches=0"],
    "epochs": ["fit", "--trainer.max_epochs=0"],
    "steps": ["fit", "--trainer.max_steps=0"],
    "test_batches": ["test", "--run", "job/latest", "--trainer.limit_test_batches=0"],
    "nothing_left": ["fit", "--run.resume=job/latest"],
}


@pytest.fixture
def trained(workspace: Workspace) -> Workspace:
    workspace.write("my_empty.py", MY_EMPTY)
    workspace.write("job.yaml", JOB)
    workspace.fit("-c", "job.yaml")
    return workspace


def run(workspace: Workspace, words: list[str]) -> tuple[int, str]:
    config = ["-c", "job.yaml"] if words[0] == "fit" else []
    result = workspace.run(words[0], *config, *words[1:])
    return result.code, result.err


@pytest.mark.parametrize(("words", "says"), EMPTY.values(), ids=EMPTY)
def test_a_stage_that_did_nothing_is_an_error_of_the_data(
    words: list[str], says: str, trained: Workspace
) -> None:
    code, err = run(trained, words)
    assert code == 3, err
    assert "Traceback" not in err
    assert re.search(says, err), err


@pytest.mark.parametrize("words", ZERO.values(), ids=ZERO)
def test_an_explicit_zero_and_nothing_left_to_train_are_no_error(
    words: list[str], trained: Workspace
) -> None:
    code, err = run(trained, words)
    assert code == 0, err
