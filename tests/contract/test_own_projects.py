"""Projects as people have them: a package of one's own, loaders and nets written in any way."""

from __future__ import annotations

import csv

import pytest

from tests.contract.workspace import Workspace

PROJECT = """
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_net(width: int = 4, **more) -> nn.Module:
    return NETS["deep"](width, **more)


def build_deep(width, depth=1):
    layers = [nn.LazyLinear(width) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(width, 2))


NETS = {"deep": build_deep}


class Net(pl.LightningModule):
    def __init__(self, net: nn.Module, rate: float = 0.1):
        super().__init__()
        self.net = net
        self.rate = rate

    def forward(self, numbers):
        return self.net(numbers)

    def training_step(self, batch, index):
        return self._step(batch, "train")

    def validation_step(self, batch, index):
        self._step(batch, "val")

    def _step(self, batch, split):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log(f"{split}/loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


class ByName(Net):
    def forward(self, **inputs):
        return self.net(inputs["numbers"])


class OtherInput(Net):
    def forward(self, numbers):
        return self.net(numbers[:, :1])


class Data(pl.LightningDataModule):
    def loader(self, seed):
        numbers = torch.randn(24, 3, generator=torch.Generator().manual_seed(seed))
        return DataLoader(TensorDataset(numbers, (numbers.sum(1) > 0).long()), 8)

    def train_dataloader(self):
        return self.loader(1)

    def val_dataloader(self):
        return self.loader(2)


class Predicted(Data):
    def predict_dataloader(self):
        return self.loader(2)


class Named(Data):
    def predict_dataloader(self):
        return DataLoader(self.loader(2).dataset, batch_size=8)
"""
CONFIG = """
seed_everything: 1
model:
  class_path: project.Net
  init_args:
    net: {class_path: project.build_net, init_args: {width: 4}}
data: {class_path: project.Predicted}
trainer: {max_epochs: 2, logger: false}
run: {name: job}
"""


@pytest.fixture
def project(workspace: Workspace) -> Workspace:
    """A module that takes its net, whose first batch gives the layers a size, and its data."""
    workspace.write("project.py", PROJECT)
    workspace.write("job.yaml", CONFIG)
    return workspace


def test_a_loader_that_lightning_cannot_make_again_is_told_what_to_write(
    project: Workspace,
) -> None:
    project.fit("-c", "job.yaml")
    failed = project.run("predict", "--run", "latest")
    assert (failed.code, "Traceback" in failed.err) == (2, False)
    assert "predict_dataloader gives its DataLoader batch_size by position" in failed.err
    assert "DataLoader(dataset, batch_size=...)" in failed.err
    failed = project.run("predict", "--run", "latest", "--data=project.Data")
    assert (failed.code, "Traceback" in failed.err) == (2, False)
    assert "def predict_dataloader(self):\n        return self.test_dataloader()" in failed.err


def test_a_function_in_the_place_of_a_class_takes_what_it_passes_on_as_dict_kwargs(
    project: Workspace,
) -> None:
    project.write("deep.yaml", CONFIG.replace("{width: 4}", "{width: 4, depth: 2}"))
    failed = project.run("check", "-c", "deep.yaml")
    assert failed.code == 2
    assert "net.init_args.depth: project.build_net has no such argument" in failed.err
    assert "dict_kwargs" in failed.err
    assert "--> deep.yaml:6:" in failed.err
    passed_on = "init_args: {width: 4}, dict_kwargs: {depth: 2}"
    project.write("deep.yaml", CONFIG.replace("init_args: {width: 4}", passed_on))
    project.run("check", "-c", "deep.yaml", "--deep").ok()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ByName", "forward(**inputs) does not take: expected arguments with names of their own"),
        ("OtherInput", "If forward takes other inputs than these, set them by example_input_array"),
    ],
)
def test_an_export_says_how_forward_gets_its_inputs(
    name: str, says: str, project: Workspace
) -> None:
    project.write("job.yaml", CONFIG.replace("project.Net", f"project.{name}"))
    project.fit("-c", "job.yaml")
    failed = project.run("export", "--run", "latest", "--format", "torch_export")
    assert failed.code in (2, 5)
    assert says in failed.err
    assert "Traceback" not in failed.err


def test_a_package_below_src_that_is_not_installed_is_named(project: Workspace) -> None:
    (project.folder / "src" / "mine").mkdir(parents=True)
    (project.folder / "src" / "mine" / "__init__.py").write_text(PROJECT, encoding="utf-8")
    project.write("job.yaml", CONFIG.replace("project.Net", "mine.Net"))
    failed = project.run("check", "-c", "job.yaml")
    assert failed.code == 2
    assert "No module named 'mine', but src/mine is there: install it" in failed.err


def test_a_sweep_of_a_net_whose_first_batch_sizes_it_counts_its_parameters(
    project: Workspace,
) -> None:
    words = ("sweep", "-c", "job.yaml", "--space", "model.rate=0.1,0.2")
    swept = project.run(*words, timeout_s=400).ok()
    assert "seems to have no effect" not in swept.out  # 0.1 is the default, which trial 0 has
    (path,) = project.folder.glob("sweeps/*/trials.csv")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["params"] for row in rows] == ["26"] * 3  # 3 * 4 + 4 and 4 * 2 + 2
    assert rows[0]["val/loss"] == rows[1]["val/loss"] != rows[2]["val/loss"]


def test_a_folder_whose_files_come_and_go_is_no_error(project: Workspace) -> None:
    place = project.folder / "busy"
    place.mkdir()
    files = [place / f"{at}.txt" for at in range(5000)]
    project.write(
        "project.py",
        PROJECT.replace(
            "class Data(pl.LightningDataModule):\n",
            "class Data(pl.LightningDataModule):\n    def __init__(self, root: str = 'busy'):\n"
            "        super().__init__()\n\n",
        ),
    )
    fit = project.start("fit", "-c", "job.yaml")
    while fit.poll() is None:
        for file in files:
            file.write_text("x", encoding="utf-8")
        for file in files:
            file.unlink()
    fit.result().ok()
