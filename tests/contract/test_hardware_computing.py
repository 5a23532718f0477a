"""How a training computes where the config fixes it: layout, fused optimizers, compilation."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.contract.conftest import Once
from tests.contract.examples import PICTURES, write_pictures
from tests.contract.workspace import Workspace, load_checkpoint, read_events, read_json
from tests.gpu.gpu_jobs import MY_GPU

LOOK = "callbacks.look.class_path=my_gpu.WriteComputation"


def write_job(workspace: Workspace) -> None:
    workspace.write("my_gpu.py", MY_GPU)
    workspace.write(
        "pictures.yaml", {**PICTURES, "trainer": {**PICTURES["trainer"], "max_epochs": 1}}
    )
    write_pictures(workspace.folder / "pictures", 32)


def train_channels_last(workspace: Workspace) -> None:
    write_job(workspace)
    words = ("accelerator.memory_format=channels_last", "accelerator.fused=true", LOOK)
    workspace.run("fit", "-c", "pictures.yaml", *words).ok()


@pytest.fixture(scope="module")
def channels_last(made_once: Once) -> Path:
    """Working directory of a training with channels_last and a fused optimizer."""
    return made_once("channels_last", train_channels_last)


def test_channels_last_is_the_layout_of_weights_in_training(channels_last: Path) -> None:
    assert read_json(channels_last / "computation.json")["channels_last"]


def test_a_checkpoint_holds_ordinary_tensors_whatever_the_layout(channels_last: Path) -> None:
    (file,) = channels_last.glob("runs/pictures/2*/checkpoints/last.ckpt")
    assert all(weight.is_contiguous() for weight in load_checkpoint(file)["state_dict"].values())


def test_an_optimizer_is_fused_where_the_config_says_so(channels_last: Path) -> None:
    fused = read_json(channels_last / "computation.json")["fused"]
    assert fused
    assert all(fused)


def test_an_optimizer_that_cannot_be_fused_is_named(workspace: Workspace) -> None:
    write_job(workspace)
    words = (
        "accelerator.fused=true",
        "optimizer.class_path=Adadelta",
        "optimizer.init_args.lr=0.1",
    )
    result = workspace.run("fit", "-c", "pictures.yaml", *words)
    assert result.code == 2, result.err
    assert re.search(r"accelerator\.fused.*Adadelta", result.err, re.DOTALL)
    assert "Traceback" not in result.err


def test_auto_is_a_rule_and_nothing_is_measured(workspace: Workspace) -> None:
    block = {
        "kind": "cpu",
        **dict.fromkeys(("precision", "memory_format", "compile", "threads"), "auto"),
    }
    workspace.write("auto.yaml", {"accelerator": block})
    result = workspace.run("fit", "-c", "small.yaml", "-c", "auto.yaml").ok()
    (line,) = [line for line in result.out.splitlines() if line.startswith("auto ")]
    saved = yaml.safe_load((workspace.only_run / "config.yaml").read_text(encoding="utf-8"))
    assert f"precision {saved['trainer']['precision']}" in line
    assert f"memory_format {saved['accelerator']['memory_format']}" in line
    assert "auto" not in saved["accelerator"].values()
    assert {event["event"] for event in read_events(workspace.only_run)} <= {
        "start",
        "epoch",
        "checkpoint",
        "end",
    }
    assert not (workspace.folder / "runs" / ".tuning").exists()


def test_explain_says_what_auto_comes_to_here(workspace: Workspace) -> None:
    words = ("-c", "small.yaml", "--accelerator.precision=auto", "--accelerator.memory_format=auto")
    result = workspace.run(
        "explain", *words, "accelerator.precision", "accelerator.memory_format"
    ).ok()
    assert re.search(
        r"\n +trainer\.precision: \S+-(true|mixed)  --accelerator\.precision=auto", result.out
    )
    assert re.search(
        r"accelerator\.memory_format: c\w+  --accelerator\.memory_format=auto", result.out
    )


@pytest.mark.parametrize("key", ["batch_size", "learning_rate"])
def test_a_size_or_rate_that_is_auto_is_an_error_that_names_tune(
    workspace: Workspace, key: str
) -> None:
    workspace.write("auto.yaml", {"accelerator": {key: "auto"}})
    result = workspace.run("fit", "-c", "small.yaml", "-c", "auto.yaml")
    assert result.code == 2
    assert f"lightkit tune --{key.replace('_', '-')}" in result.err
    assert "auto.yaml:2:" in result.err


def test_tf32_on_a_cpu_warns_that_it_has_no_effect(workspace: Workspace) -> None:
    result = workspace.run(
        "fit", "-c", "small.yaml", "accelerator.tf32=true", "trainer.max_epochs=1"
    ).ok()
    assert re.search(r"accelerator\.tf32.*no effect", result.err)


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("c++") is None,
    reason="torch.compile needs a compiler",
)
def test_a_compiled_model_keeps_the_names_of_its_parameters(
    workspace: Workspace, channels_last: Path
) -> None:
    write_job(workspace)
    workspace.run(
        "fit", "-c", "pictures.yaml", "accelerator.compile=true", LOOK, timeout_s=280
    ).ok()
    assert read_json(workspace.folder / "computation.json")["compiled"]
    (plain,) = channels_last.glob("runs/pictures/2*/checkpoints/last.ckpt")
    files = (workspace.only_run / "checkpoints" / "last.ckpt", plain)
    names = [[*load_checkpoint(file)["state_dict"]] for file in files]
    assert names[0] == names[1]


NARROW = '''\
"""A convolution in whose gradient NaN stands where torch may leave what it finds in memory."""

import torch
from pytorch_lightning import LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Narrow(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.layer.weight.register_hook(self.poison)

    def poison(self, gradient):
        gradient = gradient.clone()
        gradient[..., [0, 2]] = torch.nan
        return gradient

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(4, 4, 1, 1)), batch_size=2)
'''


@pytest.mark.parametrize(("precision", "code"), [("bf16-mixed", 0), ("32-true", 1)])
def test_a_fit_in_bf16_on_a_cpu_writes_the_zeros_that_torch_leaves_out(
    workspace: Workspace, precision: str, code: int
) -> None:
    workspace.write("narrow.py", NARROW)
    workspace.write(
        "job.yaml", "model: narrow.Narrow\ntrainer: {max_epochs: 1, accelerator: cpu}\n"
    )
    done = workspace.run("fit", "-c", "job.yaml", f"--trainer.precision={precision}")
    assert done.code == code, done.err
    assert ("layer.weight" in done.err) is (code == 1)


NORMALIZED = '''\
"""A layer norm whose bias has the number of rows for its gradient."""

import torch
from pytorch_lightning import LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Normalized(LightningModule):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.LayerNorm(8)

    def training_step(self, batch, batch_idx):
        return self.norm(self.first(batch[0])).sum()

    def on_after_backward(self):
        print("gradient", *self.norm.bias.grad.tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.rand(3000, 4)), batch_size=3000)
'''


def test_a_fit_in_bf16_on_a_cpu_sums_the_gradient_of_a_layer_norm_in_float32(
    workspace: Workspace,
) -> None:
    workspace.write("normalized.py", NORMALIZED)
    workspace.write(
        "job.yaml", "model: normalized.Normalized\ntrainer: {max_epochs: 1, accelerator: cpu}\n"
    )
    done = workspace.run("fit", "-c", "job.yaml", "--trainer.precision=bf16-mixed").ok()
    assert f"gradient {' '.join(['3000.0'] * 8)}" in done.out + done.err


COUNTED = '''\
"""A validation whose loss of a sample is the sample: 2,000 times 1 and 2,000 times 0.5."""

import torch
from pytorch_lightning import LightningModule
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric


class Counted(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.mean = MeanMetric()

    def validation_step(self, batch, batch_idx):
        self.mean.update(batch[0] + 0 * self.layer(batch[0]))

    def on_validation_epoch_end(self):
        self.log("val/loss", self.mean.compute())

    def val_dataloader(self):
        losses = torch.tensor([[1.0], [0.5]]).repeat(2000, 1)
        return DataLoader(TensorDataset(losses), batch_size=8)
'''


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_metrics_are_counted_in_float32_where_weights_are_in_16_bits(
    workspace: Workspace, precision: str
) -> None:
    workspace.write("counted.py", COUNTED)
    workspace.write("job.yaml", "model: counted.Counted\ntrainer: {accelerator: cpu}\n")
    workspace.run("validate", "-c", "job.yaml", f"--trainer.precision={precision}").ok()
    assert read_json(workspace.only_run / "summary.json")["stages"]["validate"]["val/loss"] == 0.75
