"""A config that runs under a plain `LightningCLI()` runs unchanged under `lightkit fit -c`.

To the same weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.command_table import Command, Ended, run_commands
from tests.contract.conftest import Once
from tests.contract.workspace import Workspace, load_checkpoint, read_json

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("superset_examples.py")
HERE = "tests.contract.superset_models"
BASE = f"""\
seed_everything: 3
model: {{class_path: {HERE}.LinearModel, init_args: {{width: 4}}}}
data: {{class_path: {HERE}.Dots}}
"""
TRAINER = "trainer: {accelerator: cpu, max_epochs: 1, log_every_n_steps: 1"
STOPPING = "{class_path: EarlyStopping, init_args: {monitor: val_loss}}"
PARTS = {
    "parts/model.yaml": f"class_path: {HERE}.OtherModel\ninit_args: {{depth: 2}}",
    "parts/trainer.yaml": "{accelerator: cpu, max_epochs: 1}",
    "parts/head.yaml": "class_path: torch.nn.Linear\ninit_args: {in_features: 2, out_features: 3}",
}
CONFIGS = {
    "class_path": BASE + TRAINER + "}",
    "arguments_without_init_args": (
        f"seed_everything: 3\nmodel: {HERE}.OtherModel\ndata: {HERE}.Dots\n{TRAINER}}}"
    ),
    "dict_kwargs": BASE.replace("init_args: {width: 4}", "dict_kwargs: {width: 4}") + TRAINER + "}",
    "list_of_callbacks": (
        BASE + TRAINER + f", callbacks: [{STOPPING}, {{class_path:"
        " pytorch_lightning.callbacks.LearningRateMonitor}]}"
    ),
    "one_callback": BASE + TRAINER + f", callbacks: {STOPPING}}}",
    "callbacks_with_a_plus": BASE + TRAINER + f", callbacks+: {STOPPING}}}",
    "lr_scheduler": (
        BASE + TRAINER + "}\noptimizer: {class_path: SGD, init_args: {lr: 0.25}}\n"
        "lr_scheduler: {class_path: ExponentialLR, init_args: {gamma: 0.5}}"
    ),
    "plateau": (
        BASE + TRAINER + "}\noptimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.25}}\n"
        "lr_scheduler: {class_path: ReduceLROnPlateau, init_args: {monitor: val_loss}}"
    ),
    "optimizer_of_the_model": (
        f"seed_everything: 3\ndata: {HERE}.Dots\nmodel:\n  class_path: {HERE}.InjectedModel\n"
        "  init_args:\n    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.25}}\n"
        + TRAINER
        + "}"
    ),
    "no_logger_and_a_profiler": BASE + TRAINER + ", profiler: simple, logger: false}",
    "list_of_loggers": (
        BASE + TRAINER + ", logger: [{class_path: CSVLogger, init_args: {save_dir: logs}}, "
        "{class_path: TensorBoardLogger, init_args: {save_dir: logs}}]}"
    ),
    "a_block_of_the_command": f"fit:\n  {BASE.replace(chr(10), chr(10) + '  ')}{TRAINER}}}",
    "null_sections": (
        BASE
        + "ckpt_path: null\noptimizer: null\nlr_scheduler: null\n"
        + TRAINER
        + ", callbacks: null}"
    ),
    "json": json.dumps(
        {**yaml.safe_load(BASE), "trainer": {"accelerator": "cpu", "max_epochs": 1}}
    ),
    "dotted_keys": BASE + "trainer.accelerator: cpu\ntrainer.max_epochs: 1",
    "files_of_sections": (
        f"seed_everything: 3\nmodel: parts/model.yaml\ndata: {HERE}.Dots\ntrainer:"
        " parts/trainer.yaml"
    ),
    "a_file_of_a_part": (
        f"seed_everything: 3\ndata: {HERE}.Dots\nmodel:\n  class_path: {HERE}.NestedModel\n"
        f"  init_args:\n    head: parts/head.yaml\n{TRAINER}}}"
    ),
    "words_that_look_like_others": (
        BASE.replace("width: 4", "note: 'on', width: 0b100, learning_rate: 1e-2")
        + TRAINER
        + ", max_time: '00:00:10:00', devices: '1'}"
    ),
}
PRINTED = (
    "list_of_callbacks",
    "lr_scheduler",
    "optimizer_of_the_model",
    "list_of_loggers",
    "callbacks_with_a_plus",
)
FEW = f"model: {HERE}.LinearModel\ndata: {HERE}.Dots\ntrainer: {{accelerator: cpu}}\n"

ROOT_PY = {
    "root_callback.py": (
        "from pathlib import Path\nfrom pytorch_lightning import Callback\n\n\n"
        "class Root(Callback):\n    def on_train_start(self, trainer, module):\n"
        "        Path('root.txt').write_text(trainer.default_root_dir)\n"
    )
}
KEPT = {
    "own_checkpoints": ["--trainer.callbacks=ModelCheckpoint", "callbacks.checkpoint=null"],
    "no_checkpoints": ["--trainer.enable_checkpointing=false"],
    "fast_dev_run": ["--trainer.fast_dev_run=true"],
    "default_root_dir": ["callbacks.root=root_callback.Root"],
    "own_root_dir": ["callbacks.root=root_callback.Root", "--trainer.default_root_dir=mine"],
}


def _run_lightning(workspace: Workspace) -> None:
    cases = []
    for name, text in CONFIGS.items():
        words = (
            ["-c", "job.yaml", "fit"]
            if name == "a_block_of_the_command"
            else ["fit", "-c", "job.yaml"]
        )
        case = {
            "name": name,
            "open": True,
            "options": {},
            "environ": {},
            "files": {"job.yaml": text, **PARTS},
        }
        cases.append({**case, "words": words})
        if name in PRINTED:
            cases.append({**case, "name": f"{name} printed", "words": [*words, "--print_config"]})
    workspace.write("cases.json", json.dumps(cases))
    environ = {"PYTHONPATH": str(ROOT), "JSONARGPARSE_DEPRECATION_WARNINGS": "off"}
    workspace.run(
        "lightning", "cases.json", "results.json", script=SCRIPT, environ=environ, timeout_s=280
    ).ok()


@pytest.fixture(scope="module")
def lightning_folder(made_once: Once) -> Path:
    """Where `LightningCLI()` has run each config, in a folder of its name."""
    return made_once("lightning-front", _run_lightning)


@pytest.fixture(scope="module")
def lightning(lightning_folder: Path) -> dict[str, Any]:
    """What became of each config."""
    results: dict[str, Any] = read_json(lightning_folder / "results.json")
    return results


@pytest.fixture(scope="module")
def lightkit(
    made_once: Once, lightning_folder: Path, lightning: dict[str, Any]
) -> dict[str, Ended]:
    """How `lightkit` ended with each config, and with what Lightning has left."""
    fit = ["fit", "-c", "config.yaml"]
    (saved,) = (lightning_folder / "lr_scheduler").glob("lightning_logs/*/config.yaml")
    (checkpoint,) = (lightning_folder / "class_path").glob("lightning_logs/*/checkpoints/*.ckpt")
    commands = {
        **{name: Command(fit, {"config.yaml": text, **PARTS}) for name, text in CONFIGS.items()},
        **{
            f"{name} printed": Command(fit, {"config.yaml": lightning[f"{name} printed"]["out"]})
            for name in PRINTED
        },
        **{
            name: Command([*fit, *words], {"config.yaml": CONFIGS["class_path"], **ROOT_PY})
            for name, words in KEPT.items()
        },
        "saved": Command(fit, {"config.yaml": saved.read_text(encoding="utf-8")}),
        "gone_on": Command(
            [*fit, f"--ckpt_path={checkpoint}", "--trainer.max_epochs=2"],
            {"config.yaml": CONFIGS["class_path"]},
        ),
        "tested": Command(
            ["test", "-c", "few.yaml", "--model.width=4", f"--ckpt_path={checkpoint}"],
            {"few.yaml": FEW},
        ),
    }
    return run_commands("lightkit-front", commands, made_once, import_path=ROOT)


def weights_of(ended: Ended) -> dict[str, list[float]]:
    """Weights in last.ckpt of the only run."""
    ended.result.ok()
    (path,) = ended.folder.glob("runs/*/2*/checkpoints/last.ckpt")
    return {
        name: each.flatten().tolist() for name, each in load_checkpoint(path)["state_dict"].items()
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_lightningcli_trains_to_the_same_weights(
    name: str, lightning: dict[str, Any], lightkit: dict[str, Ended]
) -> None:
    assert lightning[name]["code"] is None, lightning[name]["err"]
    assert weights_of(lightkit[name]) == lightning[name]["built"]["weights"]


@pytest.mark.parametrize("name", PRINTED)
def test_a_config_that_lightningcli_prints_trains_to_the_same_weights(
    name: str, lightning: dict[str, Any], lightkit: dict[str, Ended]
) -> None:
    assert weights_of(lightkit[f"{name} printed"]) == lightning[name]["built"]["weights"]


def test_a_config_that_lightningcli_saves_trains_to_the_same_weights(
    lightning: dict[str, Any], lightkit: dict[str, Ended]
) -> None:
    assert weights_of(lightkit["saved"]) == lightning["lr_scheduler"]["built"]["weights"]


def test_a_checkpoint_of_lightningcli_goes_on(lightkit: dict[str, Ended]) -> None:
    lightkit["gone_on"].result.ok()
    (path,) = lightkit["gone_on"].folder.glob("runs/*/2*/checkpoints/last.ckpt")
    assert load_checkpoint(path)["global_step"] == 4


def test_a_checkpoint_of_lightningcli_is_tested(lightkit: dict[str, Ended]) -> None:
    assert "test_loss" in lightkit["tested"].result.ok().out


# -- where things are kept -------------------------------------------------------------------------


def names_of(ended: Ended, pattern: str) -> list[str]:
    """Names of the files that match a pattern below the working directory."""
    ended.result.ok()
    return sorted(path.name for path in ended.folder.glob(pattern))


def test_a_checkpoint_callback_of_the_trainers_list_writes_into_the_run_folder(
    lightkit: dict[str, Ended],
) -> None:
    assert names_of(lightkit["own_checkpoints"], "runs/*/2*/checkpoints/*.ckpt") == [
        "epoch=0-step=2.ckpt"
    ]


def test_checkpoints_can_be_switched_off(lightkit: dict[str, Ended]) -> None:
    assert names_of(lightkit["no_checkpoints"], "**/*.ckpt") == []


def test_a_fast_dev_run_keeps_no_checkpoint_and_is_not_the_latest(
    lightkit: dict[str, Ended],
) -> None:
    assert names_of(lightkit["fast_dev_run"], "**/*.ckpt") == []
    assert names_of(lightkit["fast_dev_run"], "runs/*/latest") == []


def test_the_default_root_dir_is_the_run_folder_unless_the_user_says_one(
    lightkit: dict[str, Ended],
) -> None:
    roots = [
        Path((lightkit[name].folder / "root.txt").read_text(encoding="utf-8"))
        for name in ("default_root_dir", "own_root_dir")
    ]
    assert roots[0].parent.parent == lightkit["default_root_dir"].folder / "runs"
    assert roots[1].name == "mine"


# -- later stages of a run -------------------------------------------------------------------------


def test_a_test_of_a_run_takes_the_words_of_its_command_line(finished: Workspace) -> None:
    few, all_points = (
        finished.run("test", "--run", "latest", *words).ok() for words in (["--data.count=4"], [])
    )
    losses = [
        next(line for line in ended.out.splitlines() if "test/loss" in line)
        for ended in (few, all_points)
    ]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    "elsewhere",
    [
        {
            "launch": {
                "engine": "torchrun",
                "processes": 2,
                "nodes": "1:4",
                "rendezvous": "far:29500",
            }
        },
        {"launch": {"engine": "spark", "processes": 2, "master": "spark://far:7077"}},
        {"trainer": {"num_nodes": 3, "devices": 2, "strategy": "ddp"}},
    ],
    ids=["torchrun", "spark", "num_nodes"],
)
def test_what_was_trained_on_several_machines_is_tested_in_one_process(
    elsewhere: dict[str, dict[str, Any]], finished: Workspace
) -> None:
    path = finished.only_run / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    for section, values in elsewhere.items():
        config[section] = {**(config.get(section) or {}), **values}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert "test/loss" in finished.run("test", "--run", str(finished.only_run)).ok().out


# -- what LightningCLI's users are used to ---------------------------------------------------------

OWN = {
    "class_path": "ModelCheckpoint",
    "init_args": {"monitor": "val/loss", "mode": "max", "filename": "mine-{epoch}"},
}


def test_the_users_checkpoint_callback_is_best_and_lightkit_adds_what_resumes(
    workspace: Workspace,
) -> None:
    sender = {
        "class_path": "my_project.SendSignal",
        "init_args": {"hook": "on_train_batch_start", "step": 9},
    }
    workspace.write("mine.yaml", {"trainer": {"callbacks": [OWN]}, "callbacks": {"sender": sender}})
    words = ("fit", "-c", "small.yaml", "-c", "mine.yaml")
    assert workspace.run(*words).code == 75
    workspace.run(*words).ok()
    run = workspace.only_run
    assert names_of(Ended(workspace.run("runs").ok(), run), "checkpoints/*.ckpt") == [
        "mine-epoch=0.ckpt",
        "resume.ckpt",
    ]
    summary = read_json(run / "summary.json")
    assert (summary["best"]["mode"], summary["best"]["epoch"]) == ("max", 0)
    assert summary["paths"]["best_checkpoint"] == "checkpoints/mine-epoch=0.ckpt"
    events = [
        json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [event["checkpoint"] for event in events if event["event"] == "resume"] == [
        "checkpoints/resume.ckpt"
    ]


def test_a_command_refuses_a_strategy_that_spawns_and_names_ddp(workspace: Workspace) -> None:
    for strategy in ("ddp_spawn", "ddp_notebook", "ddp_fork_find_unused_parameters_true"):
        result = workspace.run("fit", "-c", "small.yaml", f"--trainer.strategy={strategy}")
        assert result.code == 2
        assert result.err.startswith("error: trainer.strategy: ")
        assert "ddp trains the same" in result.err.splitlines()[0]


def test_a_command_takes_yaml_text_for_a_config_file(workspace: Workspace) -> None:
    words = ("-c", "{trainer: {max_epochs: 10}}", "--trainer", "{min_epochs: 2}", "--print_config")
    trainer = workspace.run("fit", "-c", "small.yaml", *words).yaml["trainer"]
    assert (trainer["max_epochs"], trainer["min_epochs"]) == (10, 2)


def test_a_config_of_a_script_with_fixed_classes_is_recognised(workspace: Workspace) -> None:
    workspace.write("job.yaml", "model: {hidden: 8}\ndata: {batch_size: 4}\n")
    result = workspace.run("check", "-c", "job.yaml")
    assert result.code == 2
    for name, argument in (("model", "hidden"), ("data", "batch_size")):
        assert (
            f"{name}: names no class, only arguments ({argument}), as a config of"
            " LightningCLI(Model, Data)" in result.err
        )
        assert (
            f"{name}: {{class_path: my_module.MyClass, init_args: {{{argument}: ...}}}}"
            in result.err
        )
    assert "LightkitCLI(Model, Data)" in result.err
