"""`import lightning` and `import pytorch_lightning` are the same code.

In modules, YAML, scripts, ranks and files.
"""

from __future__ import annotations

import pytest
import torch

from tests.contract.rank_jobs import run_joined
from tests.contract.workspace import Workspace, load_checkpoint

MODULE = """\
import torch
import lightning as L
from lightning.fabric.utilities.seed import seed_everything
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, hidden: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1)
        )

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val/loss", torch.nn.functional.mse_loss(self(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Rows(L.LightningDataModule):
    def setup(self, stage):
        x = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
        self.rows = TensorDataset(x, x.sum(1, keepdim=True))

    def train_dataloader(self):
        return DataLoader(self.rows, batch_size=4, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.rows, batch_size=4)


class Seeded(Callback):
    def on_train_start(self, trainer, pl_module):
        assert isinstance(trainer, L.Trainer)
        assert isinstance(pl_module, L.LightningModule)
        seed_everything(11)
"""
CONFIG = """\
seed_everything: 1
model: {class_path: my_lightning.Net}
data: {class_path: my_lightning.Rows}
trainer: {max_epochs: 2, accelerator: cpu, enable_progress_bar: false}
"""
SCRIPT = """\
from lightkit import LightkitCLI
import lightning as L
from lightning.pytorch.cli import LightningCLI
from my_lightning import Net, Rows

assert issubclass(LightkitCLI, LightningCLI)
assert issubclass(Net, L.LightningModule)

if __name__ == "__main__":
    cli = LightkitCLI(Net, Rows, args=ARGS, save_config_kwargs={"overwrite": True})
    assert isinstance(cli.trainer, L.Trainer)
    cli.trainer.save_checkpoint("end.ckpt")
"""
FIT = '["fit", "--seed_everything=1", "--trainer.max_epochs=2", "--trainer.accelerator=cpu"'
PROJECTS = {
    "module": (CONFIG, None),
    "classes_in_yaml": (
        CONFIG.replace(
            "enable_progress_bar: false}",
            "enable_progress_bar: false, callbacks: [{class_path:"
            " lightning.pytorch.callbacks.LearningRateMonitor}, my_lightning.Seeded], logger:"
            " {class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir:"
            " logs}}}\ncallbacks: {stop: {class_path: lightning.pytorch.callbacks.EarlyStopping,"
            " init_args: {monitor: val/loss}}}\n",
        ),
        None,
    ),
    "two_ranks": (CONFIG + "accelerator: {num_processes: 2}\n", None),
    "script": (None, SCRIPT.replace("ARGS", f"{FIT}]")),
    "script_that_spawns": (None, SCRIPT.replace("ARGS", f'{FIT}, "--trainer.strategy=ddp_spawn"]')),
}


def in_the_other_spelling(text: str) -> str:
    text = text.replace("import lightning as L", "import pytorch_lightning as L")
    return text.replace("lightning.pytorch", "pytorch_lightning").replace(
        "lightning.fabric", "lightning_fabric"
    )


def train(
    workspace: Workspace, config: str | None, script: str | None, *, is_other: bool
) -> dict[str, torch.Tensor]:
    folder = workspace.folder / ("pytorch_lightning_spelling" if is_other else "lightning_spelling")
    change = in_the_other_spelling if is_other else str
    workspace.write(f"{folder.name}/my_lightning.py", change(MODULE))
    if config is not None:
        workspace.write(f"{folder.name}/job.yaml", change(config))
        workspace.run("check", "-c", "job.yaml", folder=folder).ok()
        if "num_processes: 2" in config:
            run_joined(workspace, "fit", "-c", "job.yaml", folder=folder)
        else:
            workspace.run("fit", "-c", "job.yaml", folder=folder).ok()
        path = folder / "runs" / "job" / "latest" / "checkpoints" / "last.ckpt"
    else:
        workspace.write(f"{folder.name}/script.py", change(str(script)))
        workspace.run(script=folder / "script.py", folder=folder).ok()
        path = folder / "end.ckpt"
    state: dict[str, torch.Tensor] = load_checkpoint(path)["state_dict"]
    return state


@pytest.mark.parametrize(
    ("config", "script"),
    [
        pytest.param(
            *project, id=name, marks=pytest.mark.long if name == "script_that_spawns" else ()
        )
        for name, project in PROJECTS.items()
    ],
)
def test_a_project_in_either_spelling_trains_to_the_same_weights(
    config: str | None, script: str | None, workspace: Workspace
) -> None:
    one = train(workspace, config, script, is_other=False)
    other = train(workspace, config, script, is_other=True)
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


def test_a_checkpoint_of_one_spelling_goes_on_and_is_exported_in_the_other(
    workspace: Workspace,
) -> None:
    workspace.write("my_lightning.py", MODULE)
    workspace.write("job.yaml", CONFIG)
    run = workspace.fit("-c", "job.yaml")
    checkpoint = load_checkpoint(run / "checkpoints" / "last.ckpt")
    assert checkpoint["hyper_parameters"]["hidden"] == 4

    exported = workspace.run("export", "--run", "job/latest", "--format", "safetensors")
    assert "Verified in a fresh process" in exported.ok().out + exported.err

    workspace.write("my_lightning.py", in_the_other_spelling(MODULE))
    gone_on = workspace.fit("-c", "job.yaml", "--run.resume=job/latest", "--trainer.max_epochs=3")
    assert load_checkpoint(gone_on / "checkpoints" / "last.ckpt")["epoch"] == 2


def test_a_module_that_lightning_lacks_is_missing_under_the_name_that_was_asked_for(
    workspace: Workspace,
) -> None:
    workspace.write("my_lightning.py", MODULE + "\nimport lightning.pytorch.no_such_module\n")
    workspace.write("job.yaml", CONFIG)
    result = workspace.run("check", "-c", "job.yaml")
    assert result.code == 2
    assert "No module named 'lightning.pytorch.no_such_module'" in result.err


def test_a_package_lightning_of_another_version_is_not_loaded_and_said(
    workspace: Workspace,
) -> None:
    workspace.write(
        "elsewhere/lightning/__init__.py",
        "raise AssertionError('the other package was imported')\n",
    )
    workspace.write(
        "elsewhere/lightning-2.5.0.dist-info/METADATA", "Name: lightning\nVersion: 2.5.0\n"
    )
    workspace.write("my_lightning.py", MODULE)
    workspace.write("job.yaml", CONFIG)
    environ = {"PYTHONPATH": str(workspace.folder / "elsewhere")}
    result = workspace.run_cold("fit", "-c", "job.yaml", environ=environ)
    assert "lightning 2.5.0 is installed and not used" in result.ok().err


def test_a_package_lightning_that_was_imported_first_is_an_error_that_says_so(
    workspace: Workspace,
) -> None:
    workspace.write("lightning.py", "class LightningModule: pass\n")
    workspace.write("script.py", "import lightning\nfrom lightkit import LightkitCLI\n")
    result = workspace.run_cold(script="script.py")
    assert result.code == 1
    assert (
        "Import lightkit first: put `from lightkit import LightkitCLI` above `import lightning`"
        in result.err
    )


def test_the_package_itself_leaves_lightning_alone(workspace: Workspace) -> None:
    workspace.write("lightning.py", "NAME = 'mine'\n")
    workspace.write("script.py", "import lightkit, lightning\nprint(lightning.NAME)\n")
    assert workspace.run_cold(script="script.py").ok().out == "mine\n"
