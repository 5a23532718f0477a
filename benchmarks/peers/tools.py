"""The commands of each tool.

As its documentation has them, and made as equal as its options allow.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measure import Measured

HERE = Path(__file__).parent
TRAININGS = HERE / "trainings"
RATE = 1e-3


@dataclass(frozen=True)
class Setting:
    """What is trained, and where things are.

    Args:
        photos: Folder with `train` and `val`, each with a folder a class.
        unsplit: Folder of the same photos, a folder a class.
        environments: Folder of the tools' environments.
        weights: State dict of torchvision's MobileNetV2.
        epochs: Of each training.
        size: Side of the crops in pixels.
        seed: Of the training.
        num_classes: Classes.
    """

    photos: Path
    unsplit: Path
    environments: Path
    weights: Path
    epochs: int = 4
    size: int = 160
    seed: int = 0
    num_classes: int = 5

    def find_python(self, tool: str) -> str:
        """Return the Python of a tool's environment; that of lightkit's for a tool without one."""
        return str(self.environments / tool / "bin" / "python")


@dataclass(frozen=True)
class Job:
    """A command of a tool.

    Args:
        tool: Its name in the table.
        command: The words.
        epoch: Expression that the line at the end of an epoch matches.
        find_accuracy: Returns the accuracy of the last epoch from the folder and the output; None
            without one.
        environ: Variables in addition.
        files: Text of files that are written before, by name.
    """

    tool: str
    command: Sequence[str]
    epoch: str | None = None
    find_accuracy: Callable[[Path, Measured], float | None] = lambda *_: None
    environ: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def read_printed(_: Path, measured: Measured) -> float | None:
    """Return the last accuracy that a script has printed."""
    found = [re.search(r"^epoch \d+ accuracy ([\d.]+)", line) for line in measured.output]
    values = [float(each[1]) for each in found if each is not None]
    return values[-1] if values else None


def read_table(
    pattern: str, column: str, *, scale: float = 1.0
) -> Callable[[Path, Measured], float | None]:
    """Return a function that reads the last value of a column of a CSV file below the folder."""

    def read(folder: Path, _: Measured) -> float | None:
        files = sorted(folder.glob(pattern))
        if not files:
            return None
        with files[-1].open(newline="", encoding="utf-8") as file:
            rows = [
                {name.strip(): value.strip() for name, value in row.items() if name}
                for row in csv.DictReader(file)
            ]
        values = [float(row[column]) for row in rows if row.get(column)]
        return values[-1] * scale if values else None

    return read


def _script(name: str) -> str:
    return str(TRAININGS / f"{name}.py")


_PRINTED = r"^epoch \d+ accuracy"
_OWN = {"PYTHONPATH": str(HERE.parent)}


def list_trainings(setting: Setting, *, equal: bool) -> list[Job]:
    """List the trainings of ResNet-18 from random weights.

    Those that are compared first stand at the beginning.
    """
    counts = [
        "--epochs",
        str(setting.epochs),
        "--size",
        str(setting.size),
        "--seed",
        str(setting.seed),
    ]
    more = ["--equal"] if equal else []
    workers = ["--workers", "1"] if equal else []
    loop = [sys.executable, _script("loop"), str(setting.photos), *counts, *workers]
    return [
        Job("hand-written loop", loop, _PRINTED, read_printed, _OWN),
        _make_lightkit(setting, equal=equal),
        _make_timm(setting, equal=equal),
        _make_ultralytics(setting, equal=equal),
        _make_lightning_cli(setting),
        Job(
            "fastai 2.8.12",
            [
                setting.find_python("fastai"),
                _script("fastai_train"),
                str(setting.photos),
                *counts,
                *more,
            ],
            _PRINTED,
            read_printed,
        ),
        Job(
            "Trainer of transformers",
            [
                setting.find_python("transformers"),
                _script("transformers_train"),
                str(setting.photos),
                *counts,
                *more,
            ],
            _PRINTED,
            read_printed,
            _OWN,
        ),
    ]


def _make_lightkit(setting: Setting, *, equal: bool) -> Job:
    """Train with what `lightkit init --data` writes, but for network, crop and the epochs."""
    words = [
        "model.weights=null", "model.backbone=resnet18", "model.freeze=none", "data.augment=true",
        f"data.image_size={setting.size}", "data.batch_size=32",
        f"trainer.max_epochs={setting.epochs}",
        f"seed_everything={setting.seed}",
    ]  # fmt: skip
    if equal:
        words += [
            "accelerator.precision=32-true", "accelerator.memory_format=contiguous",
            "data.num_workers=1",
            "data.cache=none", "optimizer.class_path=torch.optim.AdamW",
            f"optimizer.init_args.lr={RATE}",
        ]  # fmt: skip
    fit = [sys.executable, "-m", "lightkit", "fit", "-c", "photos.yaml", *words]
    return Job(
        "lightkit", fit, r"^epoch \d+ \(", read_table("runs/*/2*/metrics.csv", "val/accuracy")
    )


def _make_timm(setting: Setting, *, equal: bool) -> Job:
    command = [
        setting.find_python("timm"), str(setting.environments / "timm" / "train.py"),
        str(setting.photos), "--train-split", "train", "--val-split", "val", "--model", "resnet18",
        "--num-classes", str(setting.num_classes),
        "--input-size", "3", str(setting.size), str(setting.size), "-b", "32", "--epochs",
        str(setting.epochs), "--opt", "adamw", "--lr", str(RATE), "--device", "cpu", "--seed",
        str(setting.seed),
        "--output", "out",
    ]  # fmt: skip
    if equal:
        command += [
            "-j", "1", "--sched", "step", "--decay-epochs", "1000", "--warmup-epochs", "0",
            "--weight-decay", "0.01", "--smoothing", "0", "--scale", "0.35", "1.0",
            "--color-jitter", "0", "--crop-pct",
            "0.875",
        ]  # fmt: skip
    return Job(
        "timm 1.0.31",
        command,
        r"Current checkpoints",
        read_table("out/*/summary.csv", "eval_top1", scale=0.01),
    )


_YOLO_NET = """\
nc: {num_classes}
backbone:
  - [-1, 1, TorchVision, [{channels}, {network}, {weights}, True, {num_cut}]]
head:
  - [-1, 1, Classify, [nc]]
"""


def _make_ultralytics(setting: Setting, *, equal: bool) -> Job:
    net = _YOLO_NET.format(
        num_classes=setting.num_classes, channels=512, network="resnet18", weights="null", num_cut=2
    )
    words = [f"seed={setting.seed}"]
    if equal:
        words += [
            "optimizer=AdamW", f"lr0={RATE}", "lrf=1.0", "warmup_epochs=0", "weight_decay=0.01",
            "nbs=32", "workers=1", "scale=0.65", "hsv_h=0", "hsv_s=0", "hsv_v=0", "erasing=0",
            "auto_augment=None",
            "amp=False",
        ]  # fmt: skip
    return Job(
        "Ultralytics 8.4.190",
        _yolo(setting, "train", "model=net.yaml", *words),
        r"^\s+all\s",
        read_table("runs/classify/**/results.csv", "metrics/accuracy_top1"),
        _list_yolo_variables(setting),
        {"net.yaml": net},
    )


def _list_yolo_variables(setting: Setting) -> dict[str, str]:
    """List the variables by which Ultralytics asks no server.

    With them it also leaves out the trackers that it finds installed.
    """
    return {
        "YOLO_OFFLINE": "true",
        "YOLO_CONFIG_DIR": str(setting.environments / "ultralytics" / "config"),
    }


def _yolo(setting: Setting, mode: str, *words: str) -> list[str]:
    yolo = str(setting.environments / "ultralytics" / "bin" / "yolo")
    common = ["device=cpu", f"imgsz={setting.size}"]
    if mode == "train":
        common += [f"data={setting.photos}", f"epochs={setting.epochs}", "batch=32"]
    return [yolo, "classify", mode, *common, *words]


def _make_lightning_cli(setting: Setting) -> Job:
    config = {
        "seed_everything": setting.seed,
        "model": {
            "backbone": "resnet18",
            "num_classes": setting.num_classes,
            "learning_rate": RATE,
        },
        "data": {"root": str(setting.photos), "image_size": setting.size, "batch_size": 32},
        "trainer": {
            "max_epochs": setting.epochs,
            "logger": {"class_path": "CSVLogger", "init_args": {"save_dir": "."}},
        },
    }
    return Job(
        "LightningCLI 2.6.6",
        [sys.executable, "-m", "benches.end_to_end_cli", "fit", "-c", "cli.yaml"],
        None,
        read_table("lightning_logs/*/metrics.csv", "val/accuracy"),
        _OWN,
        {"cli.yaml": json.dumps(config)},
    )


def list_frozen(setting: Setting) -> list[Job]:
    """List the trainings of a new head on a frozen MobileNetV2 with torchvision's weights."""
    counts = [
        "--epochs",
        str(setting.epochs),
        "--size",
        str(setting.size),
        "--seed",
        str(setting.seed),
    ]
    # where the weights are under the name that is asked for
    home = {"TORCH_HOME": str(setting.environments / "torch")}
    net = _YOLO_NET.format(
        num_classes=setting.num_classes,
        channels=1280,
        network="mobilenet_v2",
        weights="DEFAULT",
        num_cut=1,
    )
    lightkit = [
        f"model.weights={setting.weights}", "model.backbone=mobilenet_v2", "model.freeze=backbone",
        f"data.image_size={setting.size}", "data.batch_size=32",
        f"trainer.max_epochs={setting.epochs}",
        f"seed_everything={setting.seed}", "callbacks.early_stopping=null",
    ]  # fmt: skip
    return [
        Job(
            "hand-written loop",
            [
                sys.executable,
                _script("loop"),
                str(setting.photos),
                *counts,
                "--frozen",
                str(setting.weights),
            ],
            _PRINTED,
            read_printed,
            _OWN,
        ),
        Job(
            "lightkit",
            [sys.executable, "-m", "lightkit", "fit", "-c", "photos.yaml", *lightkit],
            r"^epoch \d+ \(",
            read_table("runs/*/2*/metrics.csv", "val/accuracy"),
        ),
        Job(
            "Ultralytics 8.4.190",
            _yolo(setting, "train", "model=net.yaml", "freeze=1", f"seed={setting.seed}"),
            r"^\s+all\s",
            read_table("runs/classify/**/results.csv", "metrics/accuracy_top1"),
            {**home, **_list_yolo_variables(setting)},
            {"net.yaml": net},
        ),
        Job(
            "fastai 2.8.12",
            [
                setting.find_python("fastai"),
                _script("fastai_train"),
                str(setting.photos),
                *counts,
                "--frozen",
            ],
            _PRINTED,
            read_printed,
            home,
        ),
    ]


def list_inference(
    setting: Setting, *, run: Path, model: Path, yolo_weights: Path | None
) -> list[Job]:
    """List the predictions of all photos by a model that was trained before.

    Args:
        setting: Says where the photos are.
        run: Run of lightkit.
        model: Its ONNX file.
        yolo_weights: Weights of Ultralytics; None where it has none.
    """
    photos = str(setting.unsplit)
    predict = [sys.executable, "-m", "lightkit", "predict"]
    jobs = [
        Job("lightkit predict --model", [*predict, "--model", str(model), photos]),
        Job(
            "two decoding threads, ONNX Runtime",
            [sys.executable, _script("onnx_loop"), str(model), photos, str(setting.size)],
        ),
        Job("lightkit predict --run", [*predict, "--run", str(run), photos]),
    ]
    if yolo_weights is not None:
        words = [f"model={yolo_weights}", f"source={setting.unsplit}/**/*.jpg", "save=False"]
        jobs.append(
            Job(
                "yolo classify predict",
                _yolo(setting, "predict", *words),
                environ=_list_yolo_variables(setting),
            )
        )
    return jobs
