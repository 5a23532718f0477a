"""lightkit export: of a run, of a module of the user's own, and what it says where that cannot be done."""

from __future__ import annotations

import hashlib
import json
import runpy
from pathlib import Path

import pytest

from tests.cli.conftest import House, read_json

MY_TWO = """\
import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader


class Two(LightningModule):
    def __init__(self, width: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.body = torch.nn.Linear(3, width)
        self.head = torch.nn.Linear(width + 2, 2)

    def forward(self, image, extra):
        features = self.body(image).relu()
        return {"logits": self.head(torch.cat([features, extra], 1)), "features": features}

    def _loss(self, batch):
        return torch.nn.functional.cross_entropy(self(batch["image"], batch["extra"])["logits"], batch["y"])

    def training_step(self, batch, index):
        return self._loss(batch)

    def validation_step(self, batch, index):
        self.log("val/loss", self._loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Failing(Two):
    def forward(self, image, extra):
        raise ValueError("images are out of stock")


class Texts(Two):
    def forward(self, image, extra):
        return "a text"


class Rows(LightningDataModule):
    def _loader(self):
        generator = torch.Generator().manual_seed(3)
        rows = [{"image": torch.randn(3, generator=generator), "extra": torch.ones(2), "y": i % 2} for i in range(9)]
        return DataLoader(rows, batch_size=4)

    train_dataloader = val_dataloader = _loader
"""
TWO = "model: my_two.Two\ndata: my_two.Rows\ntrainer: {accelerator: cpu, max_epochs: 1}\nlogger: {csv: {}}\n"
SCRIPT = """\
from my_models import Net, Points
from lightkit.cli.lightning import LightkitCLI

LightkitCLI(Net, Points)
"""


def _digests(run: Path) -> dict[str, str]:
    """Of all files of a run but its exports."""
    files = [path for path in run.rglob("*") if path.is_file() and "export" not in path.relative_to(run).parts]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_a_run_of_ones_own_module_is_exported_and_stays_as_it_is(house: House) -> None:
    house.write("my_two.py", MY_TWO)
    house.write("two.yaml", TWO)
    run = house.fit("-c", "two.yaml")
    before = _digests(run)
    done = house("export", "--run", "latest", "--format", "torchscript,safetensors")
    assert done.code == 0, done.err
    assert "warning" not in done.err
    assert _digests(run) == before
    assert {path.name for path in (run / "export").glob("model.*")} == {"model.ts", "model.safetensors"}
    assert f"from  runs/two/{run.name}/checkpoints/best.ckpt (epoch 1)\n" in done.out
    assert "proof 9 samples: validation split\n" in done.out
    assert "\r" not in done.out
    assert "\x1b" not in done.out
    entry = read_json(run / "export" / "export.json")["artefacts"]["model.ts"]
    assert [spec["name"] for spec in entry["inputs"]] == ["image", "extra"]
    assert [(spec["name"], spec["shape"]) for spec in entry["outputs"]] == [
        ("logits", [None, 2]),
        ("features", [None, 4]),
    ]
    checkpoint = run / "checkpoints" / "best.ckpt"
    assert entry["source"]["sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert entry["source"]["run"] == f"two/{run.name}"
    assert entry["metrics"]["scored"] is True


@pytest.mark.slow
def test_a_model_without_data_that_was_trained_elsewhere_is_exported_with_a_weaker_proof(house: House) -> None:
    elsewhere = ["--trainer.accelerator=gpu", "--trainer.devices=8", "--trainer.strategy=ddp"]
    done = house(
        *("export", "-c", "small.yaml", "--data=null", *elsewhere, "--input-shape", "1,3", "--num-samples", "8"),
        *("--format", "torchscript", "--output", "json"),
    )
    assert done.code == 0, done.err
    assert "warning: the model is untrained" in done.err
    assert (
        "warning: the proof is weaker: there are no data, so that it is made on random inputs shaped like" in done.err
    )
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["event"] for event in events if event["event"] != "step"] == ["start", "export"]
    assert events[0]["samples"] == 8
    assert events[-1]["artefacts"][0]["inputs"][0]["name"] == "x"
    assert (house.folder / "export" / "model.ts").is_file()
    assert not (house.folder / "runs").exists()


@pytest.mark.slow
def test_a_script_of_ones_own_can_export(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.write("train.py", SCRIPT)
    words = [
        "train.py",
        "export",
        "--format",
        "torchscript",
        "--output",
        "there",
        "--num-samples=4",
        "--seed_everything=1",
    ]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.syspath_prepend(house.folder)
    runpy.run_path("train.py", run_name="__main__")
    assert (house.folder / "there" / "model.ts").is_file()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ["--model=my_two.Failing"],
            5,
            r"error: Failing.forward fails on float32 (2, 3) and float32 (2, 2): ValueError: images are out of stock "
            r"(my_two.py:32)",
        ),
        (["--model=my_two.Texts"], 5, "error: Texts.forward gives a str; an export has a tensor"),
        (
            ["--with-preprocessing"],
            2,
            "error: --with-preprocessing: the model takes image (batch, 3) and extra (batch, 2)",
        ),
        (
            ["--input-shape", "1,3"],
            2,
            "error: --input-shape: forward(image, extra) of Two does not take 1 shape (1x3).",
        ),
        (["--half"], 2, "error: --half: it is for ONNX files, and --format is torch_export."),
        (
            ["--data=null"],
            2,
            "error: Two: what forward takes is unknown: there are no data, and no example_input_array.",
        ),
        (["--ckpt_path=none.ckpt"], 2, "none.ckpt"),
    ],
    ids=["raises", "gives_text", "no_image", "shape", "option", "no_inputs", "checkpoint"],
)
def test_what_cannot_be_exported_is_told_in_a_line(house: House, words: list[str], code: int, says: str) -> None:
    house.write("my_two.py", MY_TWO)
    house.write("two.yaml", TWO)
    done = house("export", "-c", "two.yaml", *words)
    assert done.code == code, done.err
    assert says in done.err
    assert "Traceback" not in done.err
    assert not (house.folder / "export").exists()
    assert not (house.folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "error: model: missing; name a run with --run, or set it in a file given with -c, or with --model=VALUE"),
        (["--run", "latest"], "error: There is no run"),
        (["--format", "onx", "-c", "small.yaml"], "got 'onx'; did you mean 'onnx'?"),
        (["-c", "small.yaml", "--output", "small.yaml/there"], "error: --output: cannot write small.yaml/there: Not a"),
    ],
    ids=["nothing", "no_run", "format", "folder"],
)
def test_what_is_missing_is_told_before_anything_is_built(house: House, words: list[str], says: str) -> None:
    done = house("export", *words)
    assert done.code == 2
    assert says in done.err
    assert len(done.err.splitlines()) <= 2
