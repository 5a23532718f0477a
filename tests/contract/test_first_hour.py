"""What a new user meets in the first hour.

Mistakes are sentences with a way out, and the screen shows what counts.
"""

from __future__ import annotations

import json
import re
import socket

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.contract.workspace import Workspace, read_json

NETS = """
import pytorch_lightning as pl
import torch
from torch import nn


class Plain(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, numbers):
        return self.layer(numbers)

    def _step(self, batch, split):
        loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log(f"{split}/loss", loss)
        return loss

    def training_step(self, batch, index):
        return self._step(batch, "train")

    def validation_step(self, batch, index):
        self._step(batch, "val")

    def test_step(self, batch, index):
        self._step(batch, "test")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class NoForward(Plain):
    forward = pl.LightningModule.forward


class Undescribed(pl.LightningModule):
    def __init__(self, width: int = 3):
        super().__init__()
"""
DATA = "data: {class_path: Table, init_args: {path: t.parquet, features: [a, b], num_workers: 0}}\n"
CONFIG = (
    f"model: {{class_path: nets.Plain}}\n{DATA}trainer: {{max_epochs: 1}}\nlogger: {{csv: {{}}}}\n"
)
GATE = "gate: {metric: test/loss, max: 9}\n"


@pytest.fixture
def numbers(workspace: Workspace) -> Workspace:
    """A table of numbers, and nets for them."""
    values = [at / 50 - 1 for at in range(100)]
    labels = ["high" if value > 0 else "low" for value in values]
    columns = {
        "a": pa.array(values, pa.float32()),
        "b": pa.array(values[::-1], pa.float32()),
        "label": labels,
    }
    pq.write_table(pa.table(columns), workspace.folder / "t.parquet")
    workspace.write("nets.py", NETS)
    workspace.write("own.yaml", CONFIG)
    return workspace


def test_numbers_for_a_model_of_images_are_refused_with_the_recipe(numbers: Workspace) -> None:
    numbers.write(
        "images.yaml",
        f"model: {{class_path: ImageClassifier, init_args: {{backbone: small_cnn}}}}\n{DATA}",
    )
    for words in (["check", "-c", "images.yaml", "--deep"], ["fit", "-c", "images.yaml"]):
        failed = numbers.run(*words)
        assert failed.code == 2
        assert "ImageClassifier classifies images (batch, 3, height, width)" in failed.err
        assert '"Numbers in a table"' in failed.err
        assert "Traceback" not in failed.err


def test_a_net_without_a_predict_step_is_told_what_its_forward_was_given(
    numbers: Workspace,
) -> None:
    numbers.fit("-c", "own.yaml")
    failed = numbers.run("predict", "--run", "latest")
    assert failed.code == 2
    assert "Plain has no predict_step" in failed.err
    assert "def predict_step(self, batch, batch_idx):\n        return self(batch[0])" in failed.err
    assert "Traceback" not in failed.err


def test_predict_of_rows_of_numbers_says_how_to_predict_another_table(numbers: Workspace) -> None:
    step = "    def predict_step(self, batch, index):\n        return self(batch[0])\n\n"
    numbers.write("nets.py", NETS.replace("    def configure", f"{step}    def configure", 1))
    numbers.fit("-c", "own.yaml")
    table = pq.read_table(numbers.folder / "t.parquet")
    pq.write_table(table.slice(0, 30), numbers.folder / "new.parquet")
    failed = numbers.run("predict", "--run", "latest", "new.parquet")
    assert failed.code == 2
    words = ["--data.path=null", "--data.train=t.parquet", "--data.test=new.parquet"]
    assert f"lightkit predict --run RUN {' '.join(words)}" in failed.err
    numbers.run("predict", "--run", "latest", *words).ok()
    rows = (numbers.runs[-1] / "predictions.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 31


@pytest.mark.parametrize("words", [[], ["--skip=export"]], ids=["whole", "without an export"])
def test_a_retrain_whose_gate_would_promote_a_module_without_forward_is_refused_before_the_training(
    words: list[str], numbers: Workspace
) -> None:
    numbers.write("gated.yaml", CONFIG.replace("Plain", "NoForward") + GATE)
    failed = numbers.run("retrain", "-c", "gated.yaml", *words)
    assert failed.code == 2
    assert (
        "model: NoForward has no forward, by which a model in the registry is called" in failed.err
    )
    assert "gated.yaml:1:" in failed.err
    assert numbers.runs == []


def test_a_retrain_that_would_export_a_module_without_forward_is_refused_before_the_training(
    numbers: Workspace,
) -> None:
    numbers.write("plain.yaml", CONFIG.replace("Plain", "NoForward"))
    failed = numbers.run("retrain", "-c", "plain.yaml")
    assert failed.code == 2
    assert "model: NoForward has no forward, by which an exported model is called" in failed.err
    assert "lightkit retrain --skip export" in failed.err
    assert "plain.yaml:1:" in failed.err
    assert numbers.runs == []


@pytest.mark.parametrize("words", [["predict"], ["check", "predict"]], ids=" ".join)
def test_a_prediction_by_a_module_without_forward_is_refused_with_its_place(
    words: list[str], numbers: Workspace
) -> None:
    numbers.write("plain.yaml", CONFIG.replace("Plain", "NoForward"))
    failed = numbers.run(*words, "-c", "plain.yaml")
    assert failed.code == 2
    assert "model: NoForward has neither predict_step nor forward, by which predict" in failed.err
    assert "Add forward(self, inputs) to NoForward" in failed.err
    assert "plain.yaml:1:" in failed.err
    assert numbers.runs == []


def test_a_sweep_of_what_a_class_of_ones_own_lacks_is_refused_before_the_training(
    numbers: Workspace,
) -> None:
    numbers.write("wide.yaml", CONFIG.replace("Plain", "Undescribed"))
    numbers.write("space.yaml", "sweep: {space: {model.widht: [2, 3]}, sampler: grid}\n")
    words = ["-c", "wide.yaml", "-c", "space.yaml"]
    for command in ("check", "sweep"):
        page = numbers.folder / f"{command}.md"
        failed = numbers.run(command, *words, environ={"GITHUB_STEP_SUMMARY": str(page)})
        assert failed.code == 2
        assert page.read_text(encoding="utf-8").count("### ") == 1
        assert "sweep.space.model.widht: " in failed.err
        assert "Undescribed has no such argument; did you mean 'width'?" in failed.err
        assert "space.yaml:1:" in failed.err
    assert numbers.runs == []
    assert not (numbers.folder / "sweeps").exists()


def test_check_warns_of_a_gate_for_a_module_without_forward(numbers: Workspace) -> None:
    numbers.write("gated.yaml", CONFIG.replace("Plain", "NoForward") + GATE)
    checked = numbers.run("check", "-c", "gated.yaml").ok()
    assert (
        "model: NoForward has no forward, by which a model in the registry is called" in checked.err
    )
    assert "gated.yaml:1:" in checked.err


def test_a_module_without_forward_trains_and_is_not_registered(numbers: Workspace) -> None:
    numbers.write("gated.yaml", CONFIG.replace("Plain", "NoForward") + GATE)
    numbers.fit("-c", "gated.yaml")
    failed = numbers.run("register", "--run", "latest", "--name", "net")
    assert failed.code == 2
    assert (
        "NoForward has no forward, by which an exported or registered model is called" in failed.err
    )


def test_a_loss_of_each_output_with_each_target_is_refused(numbers: Workspace) -> None:
    table = pq.read_table(numbers.folder / "t.parquet")
    # targets (batch, 1)
    pq.write_table(table.set_column(2, "label", table["a"]), numbers.folder / "t.parquet")
    step = "nn.functional.cross_entropy(self.layer(batch[0]), batch[1])"
    assert step in NETS
    numbers.write(
        "nets.py",
        NETS.replace(step, "nn.functional.mse_loss(self.layer(batch[0])[:, 0], batch[1])"),
    )
    message = re.compile(
        r"outputs of shape \((\d+),\) and targets of shape \(\1, 1\), so that torch compares each"
        r" output with each "
        r"target, and the result is the loss of no model\. Take targets\.squeeze\(1\) in the step"
    )
    for words in (["check", "-c", "own.yaml", "--deep"], ["fit", "-c", "own.yaml"]):
        failed = numbers.run(*words)
        assert failed.code == 2
        assert message.search(failed.err)
        assert "Traceback" not in failed.err

    numbers.write(
        "nets.py",
        NETS.replace(step, "nn.functional.mse_loss(self.layer(batch[0])[:, :1], batch[1])"),
    )
    assert "Take" not in numbers.run("fit", "-c", "own.yaml").ok().err


def test_a_rate_without_an_optimizer_is_reported_with_the_key_of_the_model(
    numbers: Workspace,
) -> None:
    numbers.write(
        "images.yaml",
        f"model: {{class_path: ImageClassifier, init_args: {{backbone: small_cnn}}}}\n{DATA}",
    )
    failed = numbers.run("fit", "-c", "images.yaml", "--optimizer.lr=0.1")
    assert failed.code == 2
    assert (
        "optimizer: 'lr' is set, but no class that takes it; name one, such as --optimizer=AdamW;"
        " the rate of the model's own optimizer is model.init_args.learning_rate\n  -->"
        " --optimizer.lr=0.1" in failed.err
    )
    assert numbers.runs == []


def test_a_port_that_is_in_use_is_named(numbers: Workspace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = (
            "-c",
            "own.yaml",
            "--trainer.accelerator=cpu",
            "--trainer.devices=2",
            "--trainer.strategy=ddp",
        )
        failed = numbers.run(
            "fit", *words, environ={"MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
        )
    assert failed.code == 2, failed.err
    assert f"MASTER_PORT: the port {port} of this machine" in failed.err
    assert "Traceback" not in failed.err


def test_checkpoint_names_the_callback_that_has_more_arguments(numbers: Workspace) -> None:
    failed = numbers.run("check", "-c", "own.yaml", "--callbacks.checkpoint.save_top_k=5")
    assert failed.code == 2
    assert "class_path: ModelCheckpoint, init_args: {save_top_k: ...}" in failed.err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["callbacks", "swa"], "Implements the Stochastic Weight Averaging"),
        (["callbacks", "pruning"], "Model pruning Callback"),
    ],
    ids=["swa", "pruning"],
)
def test_help_of_a_class_is_its_own(words: list[str], shown: str, workspace: Workspace) -> None:
    text = workspace.run("fit", "--help", *words).ok().out
    assert shown in text
    assert "Abstract base class" not in text


def test_help_of_an_own_class_without_a_docstring_shows_none(numbers: Workspace) -> None:
    text = numbers.run("fit", "--help", "model", "nets.Undescribed").ok().out
    assert "width" in text
    assert "Hooks to be used" not in text
    assert "LightningModule" not in text


SCRIPT = """
from lightkit import LightkitCLI

import nets
from lightkit.data import Table

if __name__ == "__main__":
    LightkitCLI(nets.Plain, Table)
"""


def test_a_script_is_as_quiet_as_a_command_and_shows_best_and_next(numbers: Workspace) -> None:
    numbers.write("train.py", SCRIPT)
    words = (
        "--data.path=t.parquet",
        "--data.features=[a,b]",
        "--data.num_workers=0",
        "--trainer.max_epochs=2",
    )
    done = numbers.run("fit", *words, script="train.py").ok()
    printed = done.out + done.err
    for advert in (
        "weights_only",
        "litlogger",
        "litmodels",
        "Lightning Cloud",
        "GPU available",
        "Tip:",
    ):
        assert advert not in printed
    assert re.search(r"^best  runs/\S+/best\.ckpt", done.out, re.MULTILINE)
    assert re.search(r"^next  python \S*train\.py test --run runs/", done.out, re.MULTILINE)


def test_a_resumed_script_without_a_logger_leaves_the_config_of_the_user_alone(
    numbers: Workspace,
) -> None:
    """Lightning's folder is the working one then, where the first start saves a config.yaml.

    It is the user's own later.
    """
    given = (
        "data: {path: t.parquet, features: [a, b], num_workers: 0}\ntrainer: {max_epochs: 2,"
        " logger: false}\n"
    )
    numbers.write("mine.yaml", given)
    numbers.write("train.py", SCRIPT)
    numbers.run("fit", "-c", "mine.yaml", "--run.name=lone", script="train.py").ok()
    (run,) = (path for path in numbers.folder.glob("runs/lone/2*") if not path.is_symlink())
    text = f"# mine now\n{given}"
    numbers.write("config.yaml", text)
    longer = (f"--run.resume={run}", "--trainer.max_epochs=3")
    numbers.run("fit", "-c", "config.yaml", "--run.name=lone", *longer, script="train.py").ok()
    assert read_json(run / "summary.json")["epochs"] == 3
    numbers.run("test", "--run", f"lone/{run.name}", script="train.py").ok()
    assert (numbers.folder / "config.yaml").read_text(encoding="utf-8") == text


def test_a_run_of_a_script_and_one_of_a_config_are_told_apart_under_one_name(
    numbers: Workspace,
) -> None:
    numbers.write("train.py", SCRIPT)
    arguments = (
        "--data.path=t.parquet",
        "--data.features=[a,b]",
        "--data.num_workers=0",
        "--trainer.max_epochs=1",
    )
    numbers.run("fit", *arguments, "--run.name=own", script="train.py").ok()
    (of_script,) = (path for path in numbers.folder.glob("runs/own/2*") if not path.is_symlink())
    refused = numbers.run("test", "--run", "latest")
    assert refused.code == 2
    assert (
        f"--run latest: the config of own/{of_script.name} has no class for its data" in refused.err
    )
    assert (
        f"python SCRIPT test --run own/{of_script.name}. own has no run of this form."
        in refused.err
    )

    of_config = numbers.fit("-c", "own.yaml")
    refused = numbers.run("test", "--run", "latest", script="train.py")
    assert refused.code == 2
    for words in (
        (
            f"--run latest: the config of own/{of_config.name} names the class of its model,"
            " nets.Plain, and this script has one of its own, nets.Plain, whose runs name none."
        ),
        f"The newest run of this form: --run own/{of_script.name}.",
        f"lightkit test --run own/{of_config.name}",
    ):
        assert words in refused.err
    numbers.run("test", "--run", f"own/{of_script.name}", script="train.py").ok()


def test_the_report_of_a_resumed_run_has_the_first_start_and_each_resume(
    numbers: Workspace,
) -> None:
    run = numbers.fit("-c", "own.yaml")
    manifest = read_json(run / "manifest.json")
    manifest |= {
        "created": "2026-11-22T07:00:00+00:00",
        "earlier": [{"created": "2026-11-21T03:00:00+00:00"}],
    }
    numbers.write(str((run / "manifest.json").relative_to(numbers.folder)), json.dumps(manifest))
    numbers.run("report", "latest").ok()
    text = re.sub(r"<[^>]+>", " ", (run / "report.html").read_text(encoding="utf-8"))
    assert re.search(r"Started\s+2026-11-21 03:00", text)
    assert re.search(r"Resumed\s+2026-11-22 07:00", text)


def test_a_refusal_names_the_run_and_the_page_of_the_decision(numbers: Workspace) -> None:
    numbers.write("gated.yaml", CONFIG + "gate: {metric: test/loss, max: 0.0001}\n")
    run = numbers.fit("-c", "gated.yaml")
    refused = numbers.run("gate", "latest", "--quiet")
    assert refused.code == 4
    assert f"(run gated/{run.name}; runs/gated/{run.name}/gate.html)" in refused.err
