"""A config that runs under a plain `LightningCLI()` runs unchanged under `lightkit fit -c`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pytorch_lightning.cli import LightningCLI

import tests.cli.superset.models  # noqa: F401  (a class that is imported is known by its short name)
from tests.cli.conftest import House, read_json
from tests.cli.superset.compared import HERE, Both, TheirFit, parsed

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

BASE = f"""\
seed_everything: 3
model: {{class_path: {HERE}.LinearModel, init_args: {{width: 4}}}}
data: {{class_path: {HERE}.Dots}}
"""
TRAINER = "trainer: {accelerator: cpu, max_epochs: 1, log_every_n_steps: 1"
CONFIGS = {
    "class_path": BASE + TRAINER + "}",
    "short_names": "seed_everything: 3\nmodel: LinearModel\ndata: {class_path: FewDots}\n" + TRAINER + "}",
    "arguments_without_init_args": f"seed_everything: 3\nmodel: {HERE}.OtherModel\ndata: {HERE}.Dots\n{TRAINER}}}",
    "list_of_callbacks": BASE + TRAINER + ", callbacks: [{class_path: EarlyStopping, init_args: {monitor: val_loss}}, "
                         "{class_path: pytorch_lightning.callbacks.LearningRateMonitor}]}",
    "one_callback": BASE + TRAINER + ", callbacks: {class_path: EarlyStopping, init_args: {monitor: val_loss}}}",
    "callbacks+": BASE + TRAINER + ", callbacks+: {class_path: EarlyStopping, init_args: {monitor: val_loss}}}",
    "optimizer": BASE + TRAINER + "}\noptimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.25}}",
    "lr_scheduler": BASE + TRAINER + "}\noptimizer: {class_path: SGD, init_args: {lr: 0.25}}\n"
                    "lr_scheduler: {class_path: ExponentialLR, init_args: {gamma: 0.5}}",
    "plateau": BASE + TRAINER + "}\noptimizer: {class_path: SGD, init_args: {lr: 0.25}}\n"
               "lr_scheduler: {class_path: ReduceLROnPlateau, init_args: {monitor: val_loss}}",
    "injected": f"seed_everything: 3\ndata: {HERE}.Dots\nmodel:\n  class_path: {HERE}.InjectedModel\n  init_args:\n"
                "    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.25}}\n" + TRAINER + "}",
    "no_logger": BASE + TRAINER + ", logger: false}",
    "logger": BASE + TRAINER + ", logger: {class_path: CSVLogger, init_args: {save_dir: logs}}}",
    "loggers": BASE + TRAINER + ", logger: [{class_path: CSVLogger, init_args: {save_dir: logs}}, "
               "{class_path: TensorBoardLogger, init_args: {save_dir: logs}}]}",
    "profiler": BASE + TRAINER + ", profiler: simple, logger: false}",
    "strategy_and_plugins": BASE + TRAINER + ", devices: 1, num_nodes: 1, strategy: auto, plugins: null}",
    "command_block": f"fit:\n  {BASE.replace(chr(10), chr(10) + '  ')}{TRAINER}}}",
    "random_seed": BASE.replace("3\n", "true\n", 1) + TRAINER + "}",
    "no_seed": BASE.replace("3\n", "false\n", 1) + TRAINER + "}",
    "ckpt_path": BASE + "ckpt_path: null\n" + TRAINER + "}",
}  # fmt: skip


def fit_with_lightning(*words: str) -> LightningCLI:
    return TheirFit(args=["fit", "--config", "config.yaml", *words], save_config_kwargs={"overwrite": True})


def last_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that the only run left."""
    found: Any = torch.load(folder / "checkpoints/last.ckpt", weights_only=False)["state_dict"]
    return dict(found)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_a_plain_lightning_cli(name: str, house: House) -> None:
    house.write("config.yaml", CONFIGS[name])
    theirs = fit_with_lightning() if name != "command_block" else TheirFit(args=["-c", "config.yaml", "fit"])
    run = house.fit("-c", "config.yaml")
    ours = last_weights(run)
    assert read_json(run / "summary.json")["status"] == "done"
    assert list(ours) == list(theirs.model.state_dict())
    if "seed" not in name:
        for key, weight in theirs.model.state_dict().items():
            torch.testing.assert_close(ours[key], weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    "name", ["list_of_callbacks", "optimizer", "lr_scheduler", "injected", "loggers", "callbacks+"]
)
def test_the_config_that_lightning_prints(name: str, both: Both, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    both.files["config.yaml"] = CONFIGS[name]
    printed = both.theirs(lambda _: fit_with_lightning("--print_config"))
    assert printed.code == 0
    monkeypatch.chdir(house.folder)
    house.write("printed.yaml", printed.out)
    house.write("config.yaml", CONFIGS[name])
    theirs, ours = last_weights(house.fit("-c", "config.yaml")), last_weights(house.fit("-c", "printed.yaml"))
    assert all(torch.equal(ours[key], weight) for key, weight in theirs.items())


def test_the_config_that_lightning_saves(house: House) -> None:
    house.write("config.yaml", CONFIGS["lr_scheduler"])
    theirs = fit_with_lightning()
    (saved,) = house.folder.glob("lightning_logs/*/config.yaml")
    ours = last_weights(house.fit("-c", str(saved)))
    assert all(torch.equal(ours[key], weight) for key, weight in theirs.model.state_dict().items())


def test_a_checkpoint_of_lightning_goes_on(house: House) -> None:
    house.write("config.yaml", CONFIGS["class_path"])
    fit_with_lightning()
    (checkpoint,) = house.folder.glob("lightning_logs/*/checkpoints/*.ckpt")
    run = house.fit("-c", "config.yaml", f"--ckpt_path={checkpoint}", "--trainer.max_epochs=2")
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=False)["global_step"] == 4


@pytest.mark.parametrize(("width", "expected"), [(None, 4), (4, 4)], ids=["unsaid", "said"])
def test_a_checkpoint_of_lightning_is_tested(width: int | None, expected: int, house: House) -> None:
    """Its hyper-parameters fill in what neither YAML nor flags say."""
    house.write("config.yaml", CONFIGS["class_path"])
    fit_with_lightning()
    (checkpoint,) = house.folder.glob("lightning_logs/*/checkpoints/*.ckpt")
    house.write("few.yaml", f"model: {HERE}.LinearModel\ndata: {HERE}.Dots\ntrainer: {{accelerator: cpu}}\n")
    words = [] if width is None else [f"--model.width={width}"]
    done = house("test", "-c", "few.yaml", f"--ckpt_path={checkpoint}", *words)
    assert done.code == 0, done.err
    config = yaml.safe_load((house.runs[-1] / "config.yaml").read_text())
    assert config["model"]["init_args"]["width"] == expected


def test_the_users_words_win_over_a_checkpoint_of_lightning(house: House) -> None:
    """Known difference: LightningCLI 2.6 lets the checkpoint's hyper-parameters win over YAML and flags."""
    house.write("config.yaml", CONFIGS["class_path"])
    fit_with_lightning("--model.note=old")
    (checkpoint,) = house.folder.glob("lightning_logs/*/checkpoints/*.ckpt")
    words = ["--model.note=new", f"--ckpt_path={checkpoint}", "--trainer.max_epochs=2"]
    assert fit_with_lightning(*words).model.hparams["note"] == "old"
    saved = torch.load(house.fit("-c", "config.yaml", *words) / "checkpoints/last.ckpt", weights_only=False)
    assert saved["hyper_parameters"]["note"] == "new"


ODD = {
    "json": '{"seed_everything": 3, "model": "LinearModel", "data": {"class_path": "Dots"}, "trainer": '
            '{"accelerator": "cpu", "fast_dev_run": 1}}',
    "dotted_keys": "seed_everything: 3\nmodel: LinearModel\ndata: Dots\ntrainer.accelerator: cpu\n"
                   "trainer.fast_dev_run: 1",
    "anchors": "seed_everything: 3\nmodel: LinearModel\ndata: Dots\n"
               "trainer: &base {accelerator: cpu, fast_dev_run: 1}",
    "section_files": "seed_everything: 3\nmodel: parts/model.yaml\ndata: Dots\ntrainer: parts/trainer.yaml",
    "file_of_a_part": "seed_everything: 3\ndata: Dots\nmodel:\n  class_path: NestedModel\n  init_args:\n"
                      "    head: parts/head.yaml\n" + TRAINER + "}",
    "max_time": BASE + TRAINER + ", max_time: '00:00:10:00'}",
    "max_time_mapping": BASE + TRAINER + ", max_time: {minutes: 10}}",
    "devices_text": BASE + TRAINER + ", devices: '1'}",
    "words": BASE.replace("width: 4", "note: 'on', width: 0b100, learning_rate: 1e-2") + TRAINER + "}",
    "dict_kwargs": BASE.replace("init_args: {width: 4}", "dict_kwargs: {width: 4}") + TRAINER + "}",
    "null_sections": BASE + "optimizer: null\nlr_scheduler: null\n" + TRAINER + ", callbacks: null, logger: null}",
    "header": "# pytorch_lightning==2.6.6\n" + BASE + TRAINER + "}",
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_but_valid_yaml(name: str, house: House) -> None:
    house.write("config.yaml", ODD[name])
    house.write("parts/model.yaml", "class_path: OtherModel\ninit_args: {depth: 2}")
    house.write("parts/trainer.yaml", "{accelerator: cpu, fast_dev_run: 1}")
    house.write("parts/head.yaml", "class_path: torch.nn.Linear\ninit_args: {in_features: 2, out_features: 3}")
    theirs = parsed(fit_with_lightning())
    ours = house.resolved("-c", "config.yaml")
    for section in ("model", "data", "seed_everything"):
        assert _said(ours[section]) == _said(theirs[section])
    assert _said(ours["trainer"]) == _said(theirs["trainer"])


def _said(values: Any) -> Any:
    """Leave out what is null, which Lightning leaves out itself, and what lightkit adds."""
    if not isinstance(values, dict):
        return values
    kept = {key: value for key, value in values.items() if key not in ("callbacks", "logger")}
    return {key: _said(value) for key, value in kept.items() if value is not None}


def test_help_of_a_class(house: House) -> None:
    done = house("fit", f"--model.help={HERE}.OtherModel")
    assert done.code == 0
    assert "depth" in done.out
