"""RF-DETR, a project with a LightningCLI of its own.

Trained, killed, resumed, tested, reported, judged, exported.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.workspace import LIGHTKIT, load_checkpoint, read_json, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
CLASSES = {"red": (220, 40, 40), "green": (40, 220, 40)}
SIDE = 96
CONFIG = """\
seed_everything: 1
trainer: {max_epochs: 2, accelerator: cpu, devices: 1, num_sanity_val_steps: 0}
callbacks:
  checkpoint: {monitor: val/mAP_50_95}
  coco:
    class_path: rfdetr.training.callbacks.COCOEvalCallback
    init_args: {eval_base_model: true, log_per_class_metrics: true, in_notebook: false}
model:
  class_path: rfdetr.training.module_model.RFDETRModelModule
  init_args:
    model_config: &model
      encoder: dinov2_windowed_small
      out_feature_indexes: [3, 6, 9, 12]
      num_windows: 2
      dec_layers: 2
      patch_size: 16
      hidden_dim: 256
      sa_nheads: 8
      ca_nheads: 16
      dec_n_points: 2
      projector_scale: [P4]
      resolution: 64
      positional_encoding_size: 4
      num_classes: 2
      num_queries: 20
      num_select: 20
      group_detr: 2
      pretrain_weights: null
      device: cpu
    train_config: &train
      dataset_dir: pictures
      batch_size: 4
      num_workers: 0
      epochs: 2
      multi_scale: "OFF"
      use_ema: false
      tensorboard: false
data:
  class_path: rfdetr.training.module_data.RFDETRDataModule
  init_args: {model_config: *model, train_config: *train}
gate: {metric: test/mAP_50, min: 0.0}
"""
EXPORTING = '''\
"""RF-DETR that exports its network to TorchScript by itself."""

import copy

import torch
from rfdetr.training.module_model import RFDETRModelModule


class Exporting(RFDETRModelModule):
    def _images(self):
        size = self.model_config.resolution
        return torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))

    def _network(self):
        network = copy.deepcopy(self.model).eval()
        network.export()  # for good: its forward takes plain images from here on
        return network

    def export_model(self, folder, format):
        traced = torch.jit.trace(self._network(), self._images(), check_trace=False, strict=False)
        traced.save(folder / "detector.ts")

    def check_export(self, folder, format):
        with torch.no_grad():
            expected, found = (
                self._network()(self._images()),
                torch.jit.load(folder / "detector.ts")(self._images()),
            )
        gap = max((one - other).abs().max().item() for one, other in zip(expected[:2], found[:2]))
        assert gap < 1e-4, f"boxes and scores differ by {gap}"
        return {"gap": gap}
'''


def draw_pictures(folder: Path) -> None:
    """Draw 40 pictures of red and green rectangles, with COCO's annotations, in three splits."""
    numbers = np.random.default_rng(0)
    for split, count in {"train": 24, "valid": 8, "test": 8}.items():
        (folder / split).mkdir(parents=True)
        annotations: list[dict[str, Any]] = []
        for image in range(count):
            pixels = np.full((SIDE, SIDE, 3), 30, np.uint8)
            for _ in range(int(numbers.integers(1, 4))):
                label = int(numbers.integers(len(CLASSES)))
                width, height = (int(each) for each in numbers.integers(20, 45, 2))
                x, y = int(numbers.integers(SIDE - width)), int(numbers.integers(SIDE - height))
                pixels[y : y + height, x : x + width] = list(CLASSES.values())[label]
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": image,
                        "category_id": label + 1,
                        "bbox": [x, y, width, height],
                        "area": width * height,
                        "iscrowd": 0,
                    }
                )
            Image.fromarray(pixels).save(folder / split / f"{image:03}.png")
        content = {
            "images": [
                {"id": image, "file_name": f"{image:03}.png", "width": SIDE, "height": SIDE}
                for image in range(count)
            ],
            "annotations": annotations,
            "categories": [
                {"id": at + 1, "name": name, "supercategory": "none"}
                for at, name in enumerate(CLASSES)
            ],
        }
        (folder / split / "_annotations.coco.json").write_text(
            json.dumps(content), encoding="utf-8"
        )


class Project:
    """A folder with pictures and a config, and `lightkit` in RF-DETR's environment."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self._words = [str(python), str(LIGHTKIT)]
        draw_pictures(folder / "pictures")
        (folder / "rfdetr.yaml").write_text(CONFIG, encoding="utf-8")
        (folder / "exporting.py").write_text(EXPORTING, encoding="utf-8")

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*self._words, *words], cwd=self.folder, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *words: str, code: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=1800)
        assert process.returncode == code, (
            f"{words}: {process.returncode}\n{out[-3000:]}\n{err[-6000:]}"
        )
        return out + err

    def folder_of(self, name: str) -> Path:
        (run,) = self.folder.glob(f"runs/{name}/2*")
        return run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """RF-DETR trained for two epochs without an interruption."""
    environment = Path(sys.prefix).with_name(".venv-rfdetr")
    script = [sys.executable, str(ROOT / "scripts" / "rfdetr_environment.py"), str(environment)]
    made = subprocess.run(script, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        shutil.rmtree(environment, ignore_errors=True)
        pytest.skip(f"RF-DETR cannot be installed: {made.stderr.strip().splitlines()[-1]}")
    project = Project(tmp_path_factory.mktemp("rfdetr"), Path(made.stdout.strip()))
    project.run("check", "-c", "rfdetr.yaml")
    project.run("fit", "-c", "rfdetr.yaml", "--run.name=whole")
    return project


def test_rfdetr_trains_and_logs_its_map(project: Project) -> None:
    rows = (project.folder_of("whole") / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 3
    assert {"val/mAP_50_95", "val/mAP_50", "val/AP/red", "train/loss"} <= set(rows[0].split(","))


def test_rfdetr_is_equal_after_a_kill(project: Project) -> None:
    words = ("fit", "-c", "rfdetr.yaml", "--run.name=killed")
    first = project.start(*words)

    def has_epoch() -> bool:
        assert first.poll() is None, first.communicate()
        return any(project.folder.glob("runs/killed/2*/checkpoints/last.ckpt"))

    wait_until(has_epoch, timeout_s=1800)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    project.run(*words)
    whole, killed = (
        load_checkpoint(project.folder_of(name) / "checkpoints/last.ckpt")
        for name in ("whole", "killed")
    )
    assert whole["epoch"] == killed["epoch"] == 1
    for name, weight in whole["state_dict"].items():
        assert torch.equal(weight, killed["state_dict"][name]), name


def test_rfdetr_is_tested_reported_and_judged_by_its_map(project: Project) -> None:
    run = project.folder_of("whole")
    project.run("test", "--run", "whole/latest")
    tested = read_json(run / "summary.json")["stages"]["test"]
    assert "test/mAP_50" in tested
    project.run("gate", "--run", "whole/latest")
    decision = read_json(run / "gate.json")
    assert decision["passed"]
    assert decision["mode"] == "max"
    assert decision["num_samples"] == 8
    assert decision["scores"]["challenger"]["test/mAP_50"] == pytest.approx(
        tested["test/mAP_50"], abs=1e-6
    )
    project.run("gate", "--run", "whole/latest", "--gate.min=1.01", code=4)
    project.run("report", "whole/latest")
    assert "val/mAP_50_95" in (run / "report.html").read_text(encoding="utf-8")


def test_rfdetr_predicts_a_json_line_a_picture(project: Project) -> None:
    project.run("predict", "--run", "whole/latest")
    (file,) = project.folder.glob("runs/*/2*/predictions.jsonl")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 8
    for line in lines:
        assert {"boxes", "labels", "scores"} <= line.keys()
        assert len(line["boxes"]) == len(line["labels"]) == len(line["scores"])


def test_rfdetr_exports_itself(project: Project) -> None:
    best = project.folder_of("whole") / "checkpoints" / "best.ckpt"
    config = CONFIG.replace("rfdetr.training.module_model.RFDETRModelModule", "exporting.Exporting")
    (project.folder / "exporting.yaml").write_text(config, encoding="utf-8")
    words = ("--ckpt_path", str(best), "--output=export", "--format=module:torchscript")
    project.run("export", "-c", "exporting.yaml", *words)
    entry = read_json(project.folder / "export" / "export.json")["artefacts"][
        "torchscript/detector.ts"
    ]
    assert entry["checked"]["gap"] < 1e-4
