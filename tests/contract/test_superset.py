"""Scripts and words of LightningCLI's users build the same with `LightkitCLI`.

Each runs once with either class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.conftest import Once
from tests.contract.workspace import Workspace, read_json

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("superset_examples.py")
HERE = "tests.contract.superset_models"
FIT = ("fit", "--trainer.accelerator=cpu", "--trainer.fast_dev_run=1", "--seed_everything=1")
STOPPING = ("--trainer.callbacks.monitor=val_loss", "--trainer.callbacks.patience=7")
ES = "{class_path: EarlyStopping, init_args: {monitor: val_loss, patience: 7}}"
STOPPED = {"callbacks": [["EarlyStopping", ["val_loss", 7, 0.0, "min"]]]}
"""Lightning writes min_delta with the sign of the mode; 0.0 equals -0.0."""


@dataclass(frozen=True)
class Case:
    """What is run with either class.

    Args:
        becomes: Some of what must have been built, so that not nothing is compared with nothing.
        words: Words of the command line, where the example is no function of the script.
        open: Model and data are chosen by the words.
        files: Files that it finds.
        environ: Variables that are set.
        options: Arguments of the class.
    """

    becomes: Mapping[str, Any]
    words: Sequence[str] = ()
    open: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def fixed(becomes: Mapping[str, Any], *words: str, **rest: Any) -> Case:
    """A case of `LightningCLI(LinearModel, Dots)`."""
    return Case(becomes, [*FIT, *words], **rest)


def chosen(becomes: Mapping[str, Any], *words: str, **rest: Any) -> Case:
    """A case of `LightningCLI()`."""
    return Case(becomes, [*FIT, *words], open=True, **rest)


def hparams(**values: Any) -> dict[str, Any]:
    """Hyper-parameters of the model."""
    return {"hparams": {"learning_rate": 0.02, "width": 2, "note": "plain", **values}}


CLASSES = {
    "one_model_and_one_data_class": fixed({"model": "LinearModel", "data": "Dots"}),
    "arguments_of_fixed_classes": fixed(
        hparams(learning_rate=0.125), "--model.learning_rate=0.125", "--data.batch_size", "2"
    ),
    "by_class_path": chosen(
        {"model": "OtherModel", "data": "FewDots"},
        *(
            f"--model={HERE}.OtherModel",
            "--model.depth=3",
            f"--data={HERE}.FewDots",
            "--data.batch_size=1",
        ),
    ),
    "by_short_name": chosen(
        {"model": "LinearModel", **hparams(note="short")},
        *("--model=OtherModel", "--data=FewDots", "--model", "LinearModel", "--model.note=short"),
    ),
    "with_init_args": chosen(
        {"model": "OtherModel"},
        f"--model={HERE}.OtherModel",
        "--model.init_args.depth=3",
        "--data=Dots",
    ),
    "a_model_without_a_data_class": Case({"data": None}),
    "a_function_that_builds_the_model": Case(hparams(width=4, note="built")),
    "subclass_mode": Case({"model": "OtherModel", "data": "FewDots"}),
    "subclass_mode_of_the_model_alone": Case({"model": "OtherModel", "data": "Dots"}),
}
LINKS = {
    "a_link_when_parsing": Case({"data_hparams": {"batch_size": 2, "count": 8}}),
    "a_link_in_subclass_mode": Case({"model": "ShapedModel"}),
    "a_link_that_computes": Case({"data_hparams": {"batch_size": 4, "count": 12}}),
    "a_link_when_building": Case({"model": "ShapedModel"}),
    "a_link_of_an_argument_of_the_script": Case(hparams(note="me@email.com")),
}
OPTIMIZER_FILE = """\
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 0.125, betas: [0.8, 0.9]}
lr_scheduler:
  class_path: torch.optim.lr_scheduler.CosineAnnealingLR
  init_args: {T_max: 3}
"""
OPTIMIZERS = {
    "optimizer_by_name": fixed({"optimizers": ["Adam"]}, "--optimizer=Adam", "--optimizer.lr=0.25"),
    "optimizer_by_class_path": fixed(
        {"optimizers": ["SGD"]}, "--optimizer", "torch.optim.SGD", "--optimizer.lr", "1e-3"
    ),
    "optimizer_and_schedule": fixed(
        {"optimizers": ["SGD"]},
        *("--optimizer=SGD", "--optimizer.init_args.lr=0.5", "--lr_scheduler=ExponentialLR"),
        "--lr_scheduler.gamma=0.1",
    ),
    "plateau": fixed(
        {"optimizers": ["RMSprop"]},
        *(
            "--optimizer=RMSprop",
            "--lr_scheduler=ReduceLROnPlateau",
            "--lr_scheduler.monitor=val_loss",
        ),
    ),
    "optimizer_in_a_file": fixed(
        {"optimizers": ["AdamW"]},
        "--config=optimizer.yaml",
        files={"optimizer.yaml": OPTIMIZER_FILE},
    ),
    "a_file_for_the_optimizer": fixed(
        {"optimizers": ["AdamW"]},
        "--optimizer=alone.yaml",
        files={"alone.yaml": "class_path: AdamW\ninit_args: {lr: 0.25}\n"},
    ),
    "one_class_of_optimizer_and_of_schedule": Case({"optimizers": ["Adam"]}),
    "a_choice_of_optimizers": Case({"optimizers": ["SGD"]}),
    "several_optimizers_that_are_linked_to_the_model": Case({"optimizers": ["Adam", "SGD"]}),
    "configure_optimizers_of_the_script": Case({"optimizers": ["SGD"]}),
    "a_part_of_the_model_and_a_function_as_default": Case({"model": "NestedModel"}),
    "an_optimizer_as_argument_of_the_model": Case({"optimizers": ["SGD"]}),
    "an_optimizer_in_a_file_for_the_model": Case(
        {"optimizers": ["RMSprop"]},
        files={
            "injected.yaml": (
                "model:\n  optimizer: {class_path: torch.optim.RMSprop, init_args: {lr: 0.125}}\n "
                " scheduler: {class_path: torch.optim.lr_scheduler.ExponentialLR, init_args:"
                " {gamma: 0.5}}\n"
            )
        },
    ),
    "no_optimizers_of_the_config": fixed(
        {"optimizers": ["SGD"]}, options={"auto_configure_optimizers": False}
    ),
}
CALLBACKS = {
    "one_callback_by_flags": fixed(STOPPED, "--trainer.callbacks=EarlyStopping", *STOPPING),
    "callbacks_appended_by_flags": fixed(
        {},
        "--trainer.callbacks+=EarlyStopping",
        *STOPPING,
        "--trainer.callbacks+=DeviceStatsMonitor",
    ),
    "a_callback_as_yaml_in_a_flag": fixed(STOPPED, f"--trainer.callbacks+={ES}"),
    "callbacks_as_json_in_a_flag": fixed(
        STOPPED,
        '--trainer.callbacks=[{"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss",'
        ' "patience": 7}}]',
    ),
    "a_list_in_a_file": fixed(
        {},
        "--config=callbacks.yaml",
        files={
            "callbacks.yaml": f"trainer: {{callbacks: [{ES}, {{class_path: DeviceStatsMonitor}}]}}"
        },
    ),
    "a_list_in_a_file_and_a_flag": fixed(
        {},
        *("--config=callbacks.yaml", "--trainer.callbacks+=DeviceStatsMonitor"),
        files={"callbacks.yaml": f"trainer: {{callbacks: [{ES}]}}"},
    ),
    "a_file_that_appends": fixed(
        STOPPED,
        "--config=callbacks.yaml",
        files={"callbacks.yaml": f"trainer: {{callbacks+: [{ES}]}}"},
    ),
    "one_callback_in_a_file": fixed(
        STOPPED,
        "--config=callbacks.yaml",
        files={"callbacks.yaml": f"trainer: {{callbacks: {ES}}}"},
    ),
    "a_callback_with_a_section_of_its_own": Case(STOPPED),
}
TRAINERS = {
    "defaults_of_the_trainer": Case({}),
    "defaults_of_the_trainer_by_the_parser": Case({**STOPPED, **hparams(width=4), "loggers": []}),
    "a_trainer_class": Case({"trainer_class": "MyTrainer", "facts": "hi"}),
    "a_function_that_builds_the_trainer": Case({"trainer_class": "Trainer", "loggers": []}),
    "a_trainer_built_by_the_script": Case(STOPPED),
    "a_function_without_a_logger": Case({"trainer_class": "Trainer"}),
    "numbers": fixed({}, "--trainer.gradient_clip_val=1e-3", "--trainer.limit_val_batches=0.5"),
    "precision": fixed({}, "--trainer.precision=bf16-mixed"),
    "accumulate": fixed({}, "--trainer.accumulate_grad_batches=2"),
    "no_bars_and_checkpoints": fixed(
        {},
        *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"),
        "--trainer.enable_checkpointing=false",
    ),
    "max_steps": Case(
        {"optimizers": ["SGD"]},
        [
            "fit",
            "--trainer.accelerator=cpu",
            "--trainer.max_epochs=-1",
            "--trainer.max_steps=3",
            "--seed_everything=1",
        ],
    ),
    "a_checkpoint_callback": Case(
        {"checkpoints": [["val_loss", 2]]},
        [
            *("fit", "--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--seed_everything=1"),
            *("--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor=val_loss"),
            "--trainer.callbacks.save_top_k=2",
        ],
    ),
}
CONFIG = f"{{callbacks: [{ES}]}}"
FILES = {
    "config_several_times": fixed(
        hparams(width=4, note="second"),
        *("--config", "first.yaml", "--config=second.yaml", "--trainer.gradient_clip_val=0.25"),
        files={
            "first.yaml": "model: {width: 4, note: first}\ntrainer: {gradient_clip_val: 0.5}",
            "second.yaml": "model: {note: second}",
        },
    ),
    "files_for_sections": chosen(
        {"model": "OtherModel", "data": "FewDots"},
        *(
            "--model=model.yaml",
            "--model.depth=3",
            "--data",
            "data.yaml",
            "--trainer",
            "trainer.yaml",
        ),
        "--trainer.accelerator=cpu",
        files={
            "trainer.yaml": "gradient_clip_val: 0.5\nfast_dev_run: 1",
            "model.yaml": f"class_path: {HERE}.OtherModel\ninit_args: {{depth: 2}}",
            "data.yaml": "class_path: FewDots",
        },
    ),
    "files_for_sections_in_a_config": chosen(
        {"model": "OtherModel", "data": "FewDots"},
        *("--config=config.yaml", "--trainer.accelerator=cpu"),
        files={
            "config.yaml": "trainer: trainer.yaml\nmodel: model.yaml\ndata: data.yaml",
            "trainer.yaml": "gradient_clip_val: 0.5\nfast_dev_run: 1",
            "model.yaml": f"class_path: {HERE}.OtherModel\ninit_args: {{depth: 2}}",
            "data.yaml": "class_path: FewDots",
        },
    ),
    "a_file_for_a_fixed_class": fixed(
        hparams(width=4), "--model=model.yaml", files={"model.yaml": "width: 4"}
    ),
    "one_file_for_all_commands": Case(
        {"model": "OtherModel"},
        ["--config", "config.yaml", *FIT],
        open=True,
        files={"config.yaml": f"fit: {{model: {HERE}.OtherModel, data: Dots}}\n"},
    ),
    "variables": Case(
        {**hparams(width=4), **STOPPED, "loggers": []},
        ["fit", "--model.width=4"],
        open=True,
        environ={
            "PL_FIT__TRAINER__ACCELERATOR": "cpu",
            "PL_FIT__TRAINER__FAST_DEV_RUN": "1",
            "PL_FIT__TRAINER__LOGGER": "false",
            "PL_FIT__TRAINER__CALLBACKS": f"[{ES}]",
            "PL_FIT__SEED_EVERYTHING": "1",
            "PL_FIT__MODEL": "LinearModel",
            "PL_FIT__DATA": "{class_path: Dots, init_args: {count: 4}}",
        },
        options={"parser_kwargs": {"default_env": True}},
    ),
    "variables_of_another_prefix": fixed(
        hparams(width=4),
        environ={"MY_FIT__MODEL__WIDTH": "4", "PL_FIT__MODEL__WIDTH": "5"},
        options={"parser_kwargs": {"default_env": True, "env_prefix": "MY"}},
    ),
    "variables_that_nobody_asked_for": fixed(hparams(), environ={"PL_FIT__MODEL__WIDTH": "5"}),
    "a_config_that_a_variable_names": fixed(
        {**hparams(width=4), **STOPPED},
        environ={"PL_FIT__CONFIG": "config.yaml"},
        files={"config.yaml": f"trainer: {CONFIG}\nmodel: {{width: 4}}"},
        options={"parser_kwargs": {"default_env": True}},
    ),
    "default_config_files_of_a_command": fixed(
        {**hparams(width=4, note="flag"), **STOPPED},
        "--model.note=flag",
        files={"defaults.yaml": f"trainer: {CONFIG}\nmodel: {{width: 4}}"},
        options={
            "parser_kwargs": {"fit": {"default_config_files": ["defaults.yaml", "missing.yaml"]}}
        },
    ),
    "default_config_files_of_all_commands": fixed(
        hparams(width=4),
        files={"defaults.yaml": "fit: {model: {width: 4}}"},
        options={"parser_kwargs": {"default_config_files": ["defaults.yaml"]}},
    ),
    "interpolation_of_omegaconf": fixed(
        {"data_hparams": {"batch_size": 4, "count": 8}},
        "--config=config.yaml",
        files={"config.yaml": "model: {width: 4, note: w}\ndata: {batch_size: '${model.width}'}"},
        options={"parser_kwargs": {"parser_mode": "omegaconf"}},
    ),
}
CALLS = {
    "arguments_in_their_places": Case({}),
    "words_of_the_process": Case(hparams(width=4)),
    "a_dict_with_dotted_keys": Case(hparams(width=4)),
    "a_nested_dict": Case(hparams(width=4)),
    "no_command_and_words": Case({"facts": [0, 1, 4]}),
    "no_command_and_a_dict": Case({"facts": [0, 1, 4]}),
    "no_command_and_a_namespace": Case({"facts": [0, 1, 4]}),
    "a_default_seed": Case({}),
    "a_parser_class": Case({"facts": "MyParser"}),
    "all_commands": Case({"model": "LinearModel"}),
    "a_command_of_the_trainer_class": Case({"facts": 2}),
    "a_command_in_the_script": Case({"facts": "validate"}),
    "hooks": Case({"facts": [False, 0, 0, 1], **hparams(note="changed")}),
    "two_fits": Case(hparams(width=3)),
    "a_config_saved_in_another_place": Case(
        {"facts": {"learning_rate": 0.02, "width": 2, "note": "plain"}}
    ),
    "a_checkpoint_that_the_class_loads": Case({"facts": 4}),
    "a_checkpoint_is_tested": Case({"facts": True}),
}
KEPT = {
    "a_checkpoint_callback_of_the_users": Case(
        {
            "checkpoints": [["val_loss", 1]],
            "facts": ["ModelCheckpoint", "max", "mine-epoch=0.ckpt", ["mine-epoch=0.ckpt"], True],
        }
    )
}
SPAWNED = {
    "ddp_spawn": Case({"model": "LinearModel"}),
    "ddp_notebook": Case({"model": "LinearModel"}),
}
WORDS = {
    "an_argument_of_several_words": Case({"facts": ["a", "b c"], **hparams(width=4)}),
    "an_option_that_lightkit_has_too": Case({"facts": "there"}),
}
COMMAND_IN_A_FILE = {
    "a_block_names_the_command": Case(
        hparams(width=4),
        ["--config", "sub.yaml"],
        files={
            "sub.yaml": (
                "fit: {model: {width: 4}, seed_everything: 1, trainer: {accelerator: cpu,"
                " fast_dev_run: 1}}"
            )
        },
    ),
    "a_key_names_the_command": Case(
        hparams(width=4),
        ["--config", "sub.yaml"],
        files={
            "sub.yaml": (
                "subcommand: fit\nfit: {model: {width: 4}, seed_everything: 1, "
                "trainer: {accelerator: cpu, fast_dev_run: 1}}"
            )
        },
    ),
}
YAML_TEXT = {
    "a_config_as_text": fixed(hparams(width=4), "--config={model: {width: 4}}"),
    "a_section_as_text": fixed(
        hparams(width=4), "--model={width: 4}", "--trainer", "{max_epochs: 1}"
    ),
}
SAVED = {"a_saved_config_that_is_there": Case({"facts": [[True], True]})}
SAME = {
    **CLASSES,
    **KEPT,
    **SPAWNED,
    **WORDS,
    **COMMAND_IN_A_FILE,
    **YAML_TEXT,
    **SAVED,
    **LINKS,
    **OPTIMIZERS,
    **CALLBACKS,
    **TRAINERS,
    **FILES,
    **CALLS,
}
REFUSED = {
    "subclass_mode_with_a_class_of_another_kind": Case({}),
    "an_optimizer_outside_the_choice": Case({}),
    "an_optimizer_where_none_is_configured": fixed(
        {}, "--optimizer=Adam", options={"auto_configure_optimizers": False}
    ),
    "a_misspelt_argument": chosen({}, "--model=OtherModel", "--data=Dots", "--model.depht=3"),
    "a_wrong_type": fixed({}, "--trainer.max_epochs=ten"),
    "a_missing_file": fixed({}, "--config=missing.yaml"),
    "a_misspelt_section": fixed({}, "--modle.width=3"),
    "a_word": fixed({}, "LinearModel"),
    "no_command": Case({}),
}
PRINTED = {
    "print_config_before_any_hook": Case({}),
    "help_without_a_command": Case({}, ["-h"]),
    "long_help_without_a_command": Case({}, ["--help"]),
    "print_config": fixed({}, "--model.width=4", "--print_config"),
    "print_config_without_a_command": Case(
        {}, ["--model.width=4", "--print_config"], options={"run": False}
    ),
    "help": fixed({}, "--help"),
    "help_of_a_class": chosen({}, "--model.help=OtherModel"),
    "help_of_a_class_path": chosen({}, "--model.help", f"{HERE}.OtherModel"),
    "help_of_an_optimizer": fixed({}, "--optimizer.help=SGD"),
    "help_with_a_description": fixed(
        {},
        "--help",
        options={"parser_kwargs": {"fit": {"description": "Fits what was asked for."}}},
    ),
}
APART = {
    "no_default_seed": Case({}),
    "two_automatic_optimizers": Case({}),
    "another_class_after_arguments": chosen(
        {},
        "--model=OtherModel",
        "--model.note=of the other",
        "--data=FewDots",
        "--model=LinearModel",
    ),
    "a_checkpoint_and_another_flag": Case({}),
    "an_error_that_does_not_exit": Case({}),
    "reserved_names": Case({}),
    "a_checkpoint_of_another_width": Case({}),
}
CASES = {**SAME, **REFUSED, **PRINTED, **APART}
Results = dict[str, dict[str, Any]]


def _run(workspace: Workspace, base: str) -> None:
    cases = [{"name": name, **{key: value for key,
                               value in asdict(case).items() if key != "becomes"}}
             for name, case in CASES.items()]  # fmt: skip
    workspace.write("cases.json", json.dumps(cases))
    environ = {"PYTHONPATH": str(ROOT), "JSONARGPARSE_DEPRECATION_WARNINGS": "off"}
    words = (base, "cases.json", "results.json")
    workspace.run(*words, script=SCRIPT, environ=environ, timeout_s=280).ok()


@pytest.fixture(scope="module")
def lightning(made_once: Once) -> Results:
    """What became of each case with `LightningCLI`."""
    results: Results = read_json(
        made_once("lightning", lambda space: _run(space, "lightning")) / "results.json"
    )
    return results


@pytest.fixture(scope="module")
def lightkit_folder(made_once: Once) -> Path:
    """Where each case was run with `LightkitCLI`, in a folder of its name."""
    return made_once("lightkit", lambda space: _run(space, "lightkit"))


@pytest.fixture(scope="module")
def lightkit(lightkit_folder: Path) -> Results:
    """What became of each case with `LightkitCLI`."""
    results: Results = read_json(lightkit_folder / "results.json")
    return results


def assert_same(name: str, lightning: Results, lightkit: Results) -> None:
    """Assert that config, objects, weights and steps are the same, and what they should be."""
    theirs, ours = lightning[name], lightkit[name]
    assert theirs["code"] is None, theirs["err"]
    assert ours["code"] is None, ours["err"]
    differs = {
        key: (ours["built"][key], value)
        for key, value in theirs["built"].items()
        if ours["built"][key] != value
    }
    assert not differs
    becomes = CASES[name].becomes
    assert {key: ours["built"][key] for key in becomes} == dict(becomes)


@pytest.mark.parametrize("name", CLASSES)
def test_models_and_data_are_those_of_lightningcli(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", LINKS)
def test_linked_arguments_are_those_of_lightningcli(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_and_schedules_are_those_of_lightningcli(
    name: str, lightning: Results, lightkit: Results
) -> None:  # fmt: skip
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_are_those_of_lightningcli(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", TRAINERS)
def test_trainers_are_those_of_lightningcli(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", FILES)
def test_files_and_variables_mean_what_they_mean_to_lightningcli(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", CALLS)
def test_a_script_does_what_it_does_with_lightningcli(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", KEPT)
def test_the_users_checkpoint_callback_is_best_as_with_lightningcli(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", SPAWNED)
def test_a_script_may_spawn_its_processes(name: str, lightning: Results, lightkit: Results) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", WORDS)
def test_arguments_of_a_script_take_the_words_that_they_take_with_lightningcli(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", COMMAND_IN_A_FILE)
def test_a_file_may_name_the_command_of_a_script(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", YAML_TEXT)
def test_yaml_text_stands_for_a_file(name: str, lightning: Results, lightkit: Results) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", SAVED)
def test_a_script_saves_its_config_as_lightningcli_does(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert_same(name, lightning, lightkit)


@pytest.mark.parametrize("name", REFUSED)
def test_what_lightningcli_refuses_ends_with_2_and_makes_no_run(
    name: str, lightning: Results, lightkit: Results, lightkit_folder: Path
) -> None:
    assert (lightning[name]["code"], lightkit[name]["code"]) == (2, 2)
    assert lightkit[name]["err"].startswith("error: ")
    assert not (lightkit_folder / name / "runs").exists()


def test_two_optimizers_without_a_say_are_refused_as_lightningcli_does(
    lightning: Results, lightkit: Results
) -> None:
    for result in (lightning, lightkit):
        assert "at most one optimizer" in str(result["two_automatic_optimizers"]["code"])


def test_seed_everything_false_fixes_no_seed(lightning: Results, lightkit: Results) -> None:
    built = [result["no_default_seed"]["built"] for result in (lightning, lightkit)]
    assert [each["config"]["seed_everything"] for each in built] == [False, False]


@pytest.mark.parametrize("name", ["print_config", "print_config_without_a_command"])
def test_print_config_of_a_script_prints_what_lightningcli_prints(
    name: str, lightning: Results, lightkit: Results
) -> None:
    assert (lightning[name]["code"], lightkit[name]["code"]) == (0, 0)
    theirs, ours = (yaml.safe_load(result[name]["out"]) for result in (lightning, lightkit))
    assert ours["model"] == theirs["model"] == {"learning_rate": 0.02, "width": 4, "note": "plain"}
    assert ours["data"] == theirs["data"]
    kept = {
        "accelerator",
        "fast_dev_run",
        "max_epochs",
        "check_val_every_n_epoch",
        "gradient_clip_val",
    }
    assert {key: ours["trainer"][key] for key in kept} == {
        key: theirs["trainer"][key] for key in kept
    }


def test_print_config_of_a_script_runs_no_hook(lightkit: Results, lightkit_folder: Path) -> None:
    assert lightkit["print_config_before_any_hook"]["code"] == 0
    assert yaml.safe_load(lightkit["print_config_before_any_hook"]["out"])["model"]["width"] == 2
    assert not (lightkit_folder / "print_config_before_any_hook" / "hook.txt").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("help", "--model.width"),
        ("help_without_a_command", "fit"),
        ("long_help_without_a_command", "fit"),
        ("help_of_a_class", "depth"),
        ("help_of_a_class_path", "depth"),
        ("help_of_an_optimizer", "momentum"),
        ("help_with_a_description", "Fits what was asked for."),
    ],
)
def test_help_of_a_script_ends_well(
    name: str, says: str, lightning: Results, lightkit: Results
) -> None:
    assert (lightning[name]["code"], lightkit[name]["code"]) == (0, 0)
    assert says in lightning[name]["out"]
    assert says in lightkit[name]["out"]


def test_lightkitcli_takes_every_argument_that_lightningcli_takes(
    lightning: Results, lightkit: Results
) -> None:
    theirs, ours = lightning["parameters"], lightkit["parameters"]
    assert [(name, ours[name]) for name in ours if name in theirs] == list(theirs.items())
    assert {each.partition(":")[0] for name, each in ours.items() if name not in theirs} <= {
        "keyword-only"
    }


# -- what lightkit does otherwise ------------------------------------------------------------------


def test_another_class_begins_with_its_own_arguments(lightning: Results, lightkit: Results) -> None:
    notes = [
        result["another_class_after_arguments"]["built"]["hparams"]["note"]
        for result in (lightning, lightkit)
    ]
    assert notes == ["of the other", "plain"]


def test_the_users_words_win_over_hyperparameters_of_a_checkpoint(
    lightning: Results, lightkit: Results
) -> None:
    built = [result["a_checkpoint_and_another_flag"]["built"] for result in (lightning, lightkit)]
    assert [each["hparams"]["note"] for each in built] == ["old", "new"]
    assert [each["trainer"]["global_step"] for each in built] == [2, 2]


def test_a_script_that_wants_no_exit_gets_the_error(lightkit: Results) -> None:
    code = lightkit["an_error_that_does_not_exit"]["code"]
    assert code.startswith("ConfigError: model.widht: ")
    assert "did you mean 'model.width'" in code


def test_a_name_that_lightkit_has_is_refused_in_one_line(lightkit: Results) -> None:
    lines = lightkit["reserved_names"]["err"].splitlines()
    assert len(lines) == 5
    for name, line in zip(("run", "launch", "accelerator", "watchdog", "gate"), lines, strict=True):
        assert line.startswith(f"error: --{name}: ")
        assert "run, launch, watchdog, gate, accelerator" in line


def test_a_checkpoint_that_does_not_fit_the_model_of_a_script_is_one_line(
    lightkit: Results,
) -> None:
    result = lightkit["a_checkpoint_of_another_width"]
    assert result["code"] == 2
    (line,) = [line for line in result["err"].splitlines() if line.startswith("error: ")]
    assert line.startswith("error: the checkpoint does not fit the model: ")
    assert "layer.weight" in line


@pytest.mark.parametrize(
    ("name", "runs"), [("a_link_of_an_argument_of_the_script", 1), ("two_fits", 2)]
)
def test_a_fit_of_a_script_is_a_run(
    name: str, runs: int, lightkit: Results, lightkit_folder: Path
) -> None:
    assert lightkit[name]["code"] is None
    summaries = [
        read_json(path) for path in (lightkit_folder / name).glob("runs/*/2*/summary.json")
    ]
    assert [summary["status"] for summary in summaries] == ["done"] * runs


def test_without_a_command_there_is_no_run(lightkit: Results, lightkit_folder: Path) -> None:
    assert lightkit["no_command_and_words"]["code"] is None
    assert not (lightkit_folder / "no_command_and_words" / "runs").exists()
