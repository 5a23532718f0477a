"""The JSON Schema for editors: what is right is valid, what is wrong is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lightkit.cli.config_loader import NAMED_CLASSES, STAGES
from lightkit.config.json_schema import file_schema
from lightkit.config.schema import load_schema

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = file_schema(load_schema(), default_classes=NAMED_CLASSES, subcommands=STAGES)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.yaml")), ids=lambda file: file.relative_to(CONFIGS).as_posix())
def test_every_shipped_config_is_valid(validator: jsonschema.Draft202012Validator, file: Path) -> None:
    assert [error.message for error in validator.iter_errors(yaml.safe_load(file.read_text()))] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "extends: base",
        "extends: [base, logger/mlflow]\nfit: {trainer: {max_epochs: 3}}\ntest: stage.yaml",
        "trainer: {max_epochs: '${epochs}', callbacks+: [Timer], gpus: 2, precision: 16, strategy: ddp_cpu}",
        "trainer: trainer.yaml",
        "trainer: {callbacks: [{class_path: Timer, init_args: {interval: step}}], logger: false}",
        "model: ImageClassifier",
        "model: my_models.Net",
        "model: {class_path: my_models.Net, init_args: {anything: 3}, dict_kwargs: {x: 1}}",
        "model: {init_args: {backbone: resnet50}}",
        "model: {class_path: ImageClassifier, backbone: resnet50}",
        "data: some.yaml",
        "callbacks: {early_stopping: {patience: 3}, lr_monitor: null, checkpoint: {}}",
        "callbacks: {early_stopping: {class_path: Timer, init_args: {interval: step}}}",
        "callbacks: {early_stopping: my.Stopping, mine: {class_path: my.Callback, x: 3}}",
        "logger: {mlflow: {init_args: {tracking_uri: '${oc.env:URI,null}'}}}",
        "optimizer: {class_path: Adam, init_args: {lr: 0.1, betas: [0.9, 0.99]}}",
        "accelerator: cpu",
        "accelerator: {gpus: [0, 3], precision: bf16-mixed, strategy: horovod}",
        "accelerator: {precision: auto, memory_format: channels_last, compile: true, tf32: auto, fused: 'false'}",
        "accelerator: {threads: 2, num_workers: auto, batch_size: '32', learning_rate: 1e-3}",
        "accelerator: {learning_rate: '${oc.env:RATE}', threads: null}",
        "launch: {engine: torchrun, nodes: '1:4', slurm: {partition: gpu}}",
        "seed_everything: 7\nckpt_path: last",
        "trainer.max_epochs: 3\nmodel.hidden: 3\ncallbacks.early_stopping.patience: 3\nfit.trainer.max_epochs: 3",
        "fit: {trainer.max_epochs: 3}",
        "trainer: {max_epochs: '3', gradient_clip_val: '1e-3', limit_val_batches: '0.5'}",
        "launch: {engine: null}",
    ],
)
def test_what_lightkit_takes_is_valid(validator: jsonschema.Draft202012Validator, text: str) -> None:
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "modle: Net",
        "trainer: {max_epoch: 3}",
        "trainer: {max_epochs: ten}",
        "trainer: {callbacks: [{class_path: Timer, init_args: {intervall: step}}]}",
        "fit: {trainer: {max_epochs: ten}}",
        "model: {class_path: ImageClassifier, init_args: {bakbone: x}}",
        "model: {class_path: lightkit.models.ImageClassifier, init_args: {backbone: 3}}",
        "callbacks: {early_stopping: {patiense: 3}}",
        "callbacks: {x: {class_path: EarlyStopping, init_args: {patience: x}}}",
        "logger: {mlflow: {init_args: {tracking_url: x}}}",
        "accelerator: {gpu: 2}",
        "accelerator: gup",
        "run: {nmae: x}",
        "launch: {proceses: 2}",
        "launch: {engine: foo}",
        "modle.hidden: 3",
        "trainer: {max_epochs: 3x}",
        "[a, list]",
    ],
)
def test_what_is_wrong_is_not_valid(validator: jsonschema.Draft202012Validator, text: str) -> None:
    assert not validator.is_valid(yaml.safe_load(text))


def test_an_editor_can_say_what_a_key_means(validator: jsonschema.Draft202012Validator) -> None:
    schema: Any = validator.schema
    trainer = schema["properties"]["trainer"]["anyOf"][0]["properties"]
    assert "epochs" in trainer["max_epochs"]["description"]
    assert trainer["gpus"]["deprecated"] is True
    entry = schema["properties"]["callbacks"]["anyOf"][0]["properties"]["early_stopping"]
    assert entry["description"].startswith("Monitor a metric and stop training")
