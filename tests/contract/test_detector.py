"""A detector of a user.

Metrics of whatever name, predictions of unequal size, and an export of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.workspace import ForkServer, Workspace, read_json

DETECTOR = '''\
"""A detector of bright columns in a row of pixels, with its data, a callback that scores it, and an
export."""

import json
from pathlib import Path

import torch
import torchmetrics
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from torch.utils.data import DataLoader


class MeanPrecision(torchmetrics.Metric):
    """Mean over the samples of the share of the predicted columns that are bright."""

    higher_is_better = True

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, found, targets):
        for one, target in zip(found, targets):
            hits = torch.isin(one["boxes"][:, 0], target["boxes"][:, 0].float())
            self.total += hits.float().mean() if len(hits) else 0.0
            self.count += 1

    def compute(self):
        return self.total / self.count


class Detector(LightningModule):
    def __init__(self, width: int = 8, drift: float = 0.0):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, width)
        self.precision = MeanPrecision()

    def find(self, images):
        results = []
        for image in images:
            scores = self.layer(image).sigmoid()
            columns = (scores > 0.5).nonzero()[:, 0]
            boxes = torch.stack([columns, columns + 1], 1).float()
            results.append({"boxes": boxes, "scores": scores[columns], "label": "bright"})
        return results

    def training_step(self, batch, index):
        images, targets = batch
        wanted = torch.zeros(len(images), self.hparams.width)
        for row, target in zip(wanted, targets):
            row[target["boxes"][:, 0]] = 1.0
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            self.layer(torch.stack(images)), wanted
        )
        self.log("train/loss", loss, batch_size=len(images))
        return loss

    def validation_step(self, batch, index):
        found = self.find(batch[0])
        self.precision.update(found, batch[1])
        return {"results": found}

    test_step = validation_step

    def on_validation_epoch_end(self):
        self.log("val/mAP", self.precision.compute())
        self.precision.reset()

    def on_test_epoch_end(self):
        self.log("test/mAP", self.precision.compute())
        self.precision.reset()

    def predict_step(self, batch, index, dataloader_idx=0):
        return self.find(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)

    # -- the export --------------------------------------------------------------------------------

    def export_model(self, folder, format):
        if format != "columns":
            raise ValueError(f"the detector knows the format columns, not {format}")
        (folder / "weights").mkdir()
        torch.save(self.layer.weight + self.hparams.drift, folder / "weights" / "weight.pt")
        torch.save(self.layer.bias, folder / "weights" / "bias.pt")
        (folder / "about.json").write_text(json.dumps({"width": self.hparams.width}))

    def check_export(self, folder, format):
        weight, bias = (
            torch.load(folder / "weights" / f"{name}.pt") for name in ("weight", "bias")
        )
        images = [image for batch, _ in self.trainer.datamodule.val_dataloader() for image in batch]
        gap = max((image @ weight.T + bias - self.layer(image)).abs().max() for image in images)
        if gap > 1e-5:
            raise AssertionError(f"scores differ by up to {gap:.2f}")
        return {"samples": len(images), "gap": gap, "by": Path(folder.name)}


class Plain(Detector):
    """Exports nothing by itself."""

    export_model = None
    check_export = None


class Rows(LightningDataModule):
    """Rows of eight pixels, of which one to three are bright."""

    def load(self, num, seed):
        generator = torch.Generator().manual_seed(seed)
        samples = []
        for number in range(num):
            columns = torch.randperm(8, generator=generator)[: 1 + number % 3].sort().values
            image = torch.zeros(8)
            image[columns] = 1.0
            target = {
                "boxes": torch.stack([columns, columns + 1], 1),
                "labels": torch.ones(len(columns)),
            }
            samples.append((image, target))
        return DataLoader(
            samples, batch_size=4, collate_fn=lambda batch: tuple(map(list, zip(*batch)))
        )

    def train_dataloader(self):
        return self.load(24, 1)

    def val_dataloader(self):
        return self.load(10, 2)

    def test_dataloader(self):
        return self.load(11, 3)

    def predict_dataloader(self):
        self.predict_paths = [f"row-{number}.png" for number in range(11)]
        return self.load(11, 3)


class Counting(Callback):
    """Logs how many columns are found in a sample, and never had a checkpoint's help."""

    def __init__(self, at_least: float = 0.0):
        self.at_least, self.counts = at_least, []

    def on_test_batch_end(self, trainer, module, outputs, batch, index, dataloader_idx=0):
        self.counts += [int((each["scores"] >= self.at_least).sum()) for each in outputs["results"]]

    def on_test_epoch_end(self, trainer, module):
        module.log("test/found", sum(self.counts) / len(self.counts), logger=True)
        self.counts = []
'''
CONFIG = """\
run: {name: detector}
seed_everything: 1
trainer: {max_epochs: 12, accelerator: cpu, devices: 1, num_sanity_val_steps: 0}
callbacks:
  counting: {class_path: detector.Counting}
model: {class_path: detector.Detector}
data: {class_path: detector.Rows}
gate: {metric: test/mAP, min: 0.6}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Workspace]:
    """A workspace with a trained and tested detector, which the tests of this file share."""
    workspace = Workspace(tmp_path_factory.mktemp("detector") / "work", fork_server)
    workspace.write("detector.py", DETECTOR)
    workspace.write("detector.yaml", CONFIG)
    workspace.fit("-c", "detector.yaml", "--trainer.max_epochs=3", "--run.name=short")
    workspace.fit("-c", "detector.yaml")
    workspace.run("test", "--run", "detector/latest").ok()
    yield workspace
    workspace.close()


def run_of(place: Workspace) -> Path:
    (run,) = place.folder.glob("runs/detector/2*")
    return run


def test_a_gate_judges_a_metric_of_any_name_that_the_module_logs(place: Workspace) -> None:
    place.run("gate", "--run", "detector/latest").ok()
    decision = read_json(run_of(place) / "gate.json")
    tested = read_json(run_of(place) / "summary.json")["stages"]["test"]
    assert decision["mode"] == "max"
    assert decision["scores"]["challenger"]["test/mAP"] == pytest.approx(
        tested["test/mAP"], abs=1e-6
    )
    assert decision["num_samples"] == 11


def test_a_gate_judges_a_metric_that_a_callback_of_the_config_logs(place: Workspace) -> None:
    (short,) = place.folder.glob("runs/short/2*")
    words = [
        "--gate.metric=test/found",
        "--gate.mode=min",
        "--gate.max=3",
        f"--gate.baseline=short/{short.name}",
    ]
    result = place.run(
        "gate", "--run", "detector/latest", *words, "--gate.max_drop=3", "--gate.min=null"
    ).ok()
    assert "logger" not in result.err
    decision = read_json(run_of(place) / "gate.json")
    tested = read_json(run_of(place) / "summary.json")["stages"]["test"]
    assert decision["mode"] == "min"
    assert decision["scores"]["challenger"]["test/found"] == pytest.approx(
        tested["test/found"], abs=1e-6
    )
    assert decision["scores"]["baseline"]["test/found"] >= 0
    missing = place.run(
        "gate", "--run", "detector/latest", "--gate.metric=test/foud", "--gate.min=0"
    )
    assert missing.code == 2
    assert "logs no 'test/foud' on the test split; did you mean 'test/found'?" in missing.err


def test_a_report_has_a_metric_of_any_name(place: Workspace) -> None:
    place.run("report", "detector/latest").ok()
    page = (run_of(place) / "report.html").read_text(encoding="utf-8")
    assert "val/mAP" in page
    assert "test/found" in page


def test_predictions_of_unequal_size_are_one_json_line_a_sample(place: Workspace) -> None:
    place.run("predict", "--run", "detector/latest", "--run.name=labelled").ok()
    (file,) = place.folder.glob("runs/*/2*/predictions.jsonl")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line["path"] for line in lines] == [f"row-{number}.png" for number in range(11)]
    for line in lines:
        assert line.keys() == {"path", "boxes", "scores", "label"}
        assert len(line["boxes"]) == len(line["scores"])
    assert len({len(line["boxes"]) for line in lines}) > 1


def test_a_module_exports_itself_and_proves_it(place: Workspace) -> None:
    result = place.run("export", "--run", "detector/latest", "--format", "module:columns").ok()
    folder = run_of(place) / "export"
    entries = read_json(folder / "export.json")["artefacts"]
    assert entries.keys() == {
        "columns/about.json",
        "columns/weights/bias.pt",
        "columns/weights/weight.pt",
    }
    entry = entries["columns/weights/weight.pt"]
    assert (
        entry["sha256"]
        == hashlib.sha256((folder / "columns/weights/weight.pt").read_bytes()).hexdigest()
    )
    assert (entry["format"], entry["model"]) == ("module:columns", "detector.Detector")
    assert entry["checked"] == {"samples": 10, "gap": pytest.approx(0, abs=1e-5), "by": "columns"}
    assert entry["source"]["checkpoint"].endswith("best.ckpt")
    assert "samples 10" in result.out
    assert not list(folder.glob(".*.aside"))
    place.run("report", "detector/latest").ok()
    assert "columns/weights/weight.pt" in (run_of(place) / "report.html").read_text(
        encoding="utf-8"
    )


def test_an_export_of_a_module_that_fails_its_test_is_removed(place: Workspace) -> None:
    words = [
        "-c",
        "detector.yaml",
        "--ckpt_path",
        str(run_of(place) / "checkpoints" / "best.ckpt"),
        "--output=out",
    ]
    place.run("export", *words, "--format=module:columns").ok()
    result = place.run("export", *words, "--format=module:columns", "--model.init_args.drift=0.5")
    assert result.code == 5
    assert (
        "columns/: Detector.check_export failed: AssertionError: scores differ by up to "
        in result.err
    )
    assert "The files were removed." in result.err
    assert not (place.folder / "out" / "columns").exists()
    assert read_json(place.folder / "out" / "export.json")["artefacts"] == {}

    # a format that the module does not know leaves what was there
    place.run("export", *words, "--format=module:columns").ok()
    unknown = place.run("export", *words, "--format=module:rows")
    assert unknown.code == 5
    assert (
        "rows/: Detector.export_model failed: ValueError: the detector knows the format columns,"
        " not rows" in unknown.err
    )
    assert (place.folder / "out" / "columns" / "about.json").is_file()


def test_a_module_without_an_export_of_its_own_is_refused_with_what_to_write(
    place: Workspace,
) -> None:
    plain = place.run(
        "export",
        "-c",
        "detector.yaml",
        "--model.class_path=detector.Plain",
        "--format=module:columns",
    )
    assert plain.code == 2
    assert (
        "--format module:columns: Plain has no method export_model and no check_export."
        in plain.err
    )
    bad = place.run("export", "--run", "detector/latest", "--format=module:../here")
    assert bad.code == 2
    assert "module:NAME, or several with commas between them, got 'module:../here'" in bad.err


PLAIN = (
    "-c",
    "detector.yaml",
    "--model.class_path=detector.Plain",
    "--export-format=torch_export,module:columns",
)


@pytest.mark.parametrize("command", ["check", "retrain"])
def test_a_module_without_an_export_of_its_own_is_found_before_it_trains(
    command: str, place: Workspace
) -> None:
    before = sorted(place.folder.glob("runs/*/*"))
    result = place.run(command, *PLAIN)
    assert result.code == 2
    assert (
        "--export-format module:columns: Plain has no method export_model and no check_export."
        in result.err
    )
    assert "--model.class_path" in result.err, "where the class was named"
    assert sorted(place.folder.glob("runs/*/*")) == before


def test_a_module_with_an_export_of_its_own_passes_the_check_of_its_format(
    place: Workspace,
) -> None:
    place.run("check", "-c", "detector.yaml", "--export-format=module:columns").ok()
    unknown = place.run("check", "-c", "detector.yaml", "--export-format=colums")
    assert unknown.code == 2
    assert "--export-format: expected " in unknown.err
    assert "'colums'" in unknown.err
