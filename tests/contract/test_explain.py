"""`lightkit explain`: what set a value, and what that replaced.

Also `--print_config`, which prints what counts.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.contract.command_table import Command, Ended, run_commands
from tests.contract.conftest import Once
from tests.contract.workspace import Workspace, read_json

SECRET = "sesame-1234"
ENVIRON = {"TOKEN": SECRET}
BASE = """\
trainer: {max_epochs: 10}
model:
  class_path: my_project.Net
  init_args: {hidden: 8, name: "${oc.env:TOKEN}", tags: [a]}
callbacks:
  early_stopping: {monitor: val/loss, patience: 5}
run: {name: "job-${trainer.max_epochs}"}
"""
TOP = """\
extends: base
trainer:
  max_epochs: 20
model:
  init_args: {tags+: [b]}
"""
LISTED = """\
model:
  class_path: my_project.Net
  init_args: {tags: [a, "${oc.env:NOPE}", b]}
trainer:
  callbacks: [{class_path: EarlyStopping, init_args: {monitor: a, patience: 3}}]
"""
NUMBERS = """\
extends: base
seed_everything: 7
model:
  init_args: {hidden: "${oc.env:WIDTH,8}"}
trainer:
  max_epochs: ${seed_everything}
  limit_val_batches: 1${trainer.max_epochs}
  gradient_clip_val: ${oc.env:CLIP}
  accumulate_grad_batches: ${oc.env:API_KEY}
"""
FILES = {
    "base.yaml": BASE,
    "top.yaml": TOP,
    "listed.yaml": LISTED,
    "wide.yaml": "extends: top\nmodel: my_project.Wide\n",
    "bad.yaml": "extends: top\nmodel: {name: '${absent}'}\ncallbacks: {none: {}}\n",
    "gpus.yaml": "extends: top\naccelerator: {gpus: 2}\n",
    "staged.yaml": "extends: top\ntest: {trainer: {max_epochs: 1}}\n",
    "numbers.yaml": NUMBERS,
}


def explain(*words: str, file: str = "top.yaml", **environ: str) -> Command:
    """Explain one of the files."""
    return Command(["explain", "-c", file, *words], FILES, {**ENVIRON, **environ})


KEYS: dict[str, tuple[Command, list[str]]] = {
    "a_nested_value": (
        explain("callbacks.early_stopping.patience"),
        ["callbacks.early_stopping.patience: 5", "base.yaml:6:49"],
    ),
    "with_init_args": (
        explain("callbacks.early_stopping.init_args.patience"),
        ["patience: 5", "base.yaml:6:49"],
    ),
    "as_lightning_counts_callbacks": (
        explain("trainer.callbacks.0.init_args.patience"),
        ["callbacks.early_stopping.patience: 5", "base.yaml:6:49"],
    ),
    "a_section": (explain("callbacks.early_stopping"), ["patience: 5", "# base.yaml:6:49"]),
    "the_class_of_a_name": (
        explain("callbacks.checkpoint.mode=max", "callbacks.checkpoint"),
        ["lightkit.callbacks.Checkpoint", "the name callbacks.checkpoint"],
    ),
    "a_list_of_two_layers": (
        explain("model.tags"),
        ["- a", "# base.yaml:4:58", "- b", "# top.yaml:5:23", "replaced"],
    ),
    "with_the_plus_of_the_file": (explain("model.tags+"), ["- a", "- b", "# top.yaml:5:23"]),
    "an_interpolation": (
        explain("run.name"),
        ["run.name: job-20", "base.yaml:7:13", "job-${trainer.max_epochs}"],
    ),
    "a_number_by_another_key": (
        explain("trainer.max_epochs", file="numbers.yaml", API_KEY="424242", CLIP="0.5"),
        [
            "trainer.max_epochs: 7\n",
            "written  ${seed_everything}",
            "type     integer",
            "from     seed_everything: 7  numbers.yaml:2:18",
        ],
    ),
    "a_number_made_of_text": (
        explain("trainer.limit_val_batches", file="numbers.yaml", API_KEY="424242", CLIP="0.5"),
        [
            "trainer.limit_val_batches: 17\n",
            "type     integer",
            "from     trainer.max_epochs: 7  numbers.yaml:6:15",
            "seed_everything: 7  numbers.yaml:2:18",
        ],
    ),
    "a_number_by_a_default": (
        explain("model.hidden", file="numbers.yaml", API_KEY="424242", CLIP="0.5"),
        [
            "model.hidden: 8\n",
            "written  ${oc.env:WIDTH,8}",
            "type     integer",
            "from     environment variable WIDTH, which is not set: the default in the text counts",
        ],
    ),
    "a_number_of_the_environment": (
        explain("trainer.gradient_clip_val", file="numbers.yaml", API_KEY="424242", CLIP="5e-1"),
        [
            "trainer.gradient_clip_val: 0.5\n",
            "written  ${oc.env:CLIP}",
            "type     number",
            "from     environment variable CLIP\n",
        ],
    ),
    "a_text_of_the_environment": (
        explain("model.name"),
        ["model.name: ${oc.env:TOKEN}\n", "from     environment variable TOKEN\n"],
    ),
    "a_default_of_lightning": (
        explain("trainer.min_epochs"),
        ["trainer.min_epochs: null", "default of pytorch_lightning.Trainer"],
    ),
    "a_default_of_an_entrys_class": (
        explain("callbacks.early_stopping.mode"),
        ["mode: min", "default of pytorch_lightning.callbacks.EarlyStopping"],
    ),
    "a_default_of_an_own_class": (
        explain("model.width", file="wide.yaml"),
        ["model.width: 16", "default of my_project.Wide"],
    ),
    "a_default_of_lightkit": (
        explain("seed_everything"),
        ["seed_everything: true", "default of lightkit"],
    ),
    "a_section_that_is_not_set": (explain("optimizer"), ["optimizer: not set"]),
    "what_a_hardware_key_became": (
        explain("accelerator.gpus", file="gpus.yaml"),
        ["accelerator.gpus: 2", "gpus.yaml:2:21", "trainer.accelerator: gpu"],
    ),
    "what_became_a_hardware_key": (
        explain("trainer.devices", file="gpus.yaml"),
        ["trainer.devices: 2", "gpus.yaml:2:21", "accelerator.gpus: 2"],
    ),
    "a_hardware_key_that_a_flag_overrules": (
        explain("--trainer.devices=1", "accelerator.gpus", file="gpus.yaml"),
        ["trainer.devices: 1", "--trainer.devices=1"],
    ),
    "an_old_word": (
        explain("--trainer.strategy=horovod", "--trainer.gpus=2", "launch.processes"),
        ["launch.processes: 2", "--trainer.gpus=2"],
    ),
    "a_jobs_name_by_its_rule": (
        Command(
            ["explain", "-c", "gpus.yaml", "-c", "layers/two.yaml", "--run.name=null", "run.name"],
            {**FILES, "layers/two.yaml": ""},
            ENVIRON,
        ),
        ["run.name: gpus", "the first -c file's name"],
    ),
    "an_element_of_a_list": (
        explain("trainer.callbacks.0.patience", file="listed.yaml"),
        ["trainer.callbacks.0.patience: 3", "listed.yaml:5:77"],
    ),
    "an_element_in_brackets": (
        explain("trainer.callbacks[0].patience", file="listed.yaml"),
        ["patience: 3"],
    ),
    "an_element_beside_named_entries": (
        explain(
            "--callbacks.early_stopping.monitor=val/loss",
            "trainer.callbacks.0.patience",
            file="listed.yaml",
        ),
        ["trainer.callbacks.0.patience: 3", "listed.yaml:5:77"],
    ),
    "the_end_of_one_key_that_is_set": (
        explain("patience"),
        ["callbacks.early_stopping.patience: 5\n", "base.yaml:6:49"],
    ),
    "the_end_of_one_key_that_is_not_set": (
        explain("min_epochs"),
        ["trainer.min_epochs: null\n", "default of pytorch_lightning.Trainer"],
    ),
    "the_end_of_one_key_of_an_own_class": (
        explain("width", file="wide.yaml"),
        ["model.width: 16\n", "default of my_project.Wide"],
    ),
    "the_end_of_one_key_in_parts": (
        explain("early_stopping.mode"),
        ["callbacks.early_stopping.mode: min\n"],
    ),
    "after_the_subcommand": (explain("fit.trainer.max_epochs"), ["trainer.max_epochs: 20"]),
    "with_the_json_of_other_commands": (
        explain("model.hidden", "--output", "json"),
        ['"value": 8'],
    ),
    "what_cannot_be_resolved": (
        explain("model.tags.1", file="listed.yaml"),
        ["${oc.env:NOPE}", "listed.yaml:3:25"],
    ),
    "another_stage": (
        Command(["explain", "test", "-c", "staged.yaml", "trainer.max_epochs"], FILES, ENVIRON),
        ["trainer.max_epochs: 1", "staged.yaml:2:30"],
    ),
    "of_an_entry_taken_out": (
        explain("--callbacks.early_stopping=null", "callbacks.early_stopping"),
        [
            "callbacks.early_stopping: null",
            "--callbacks.early_stopping=null",
            "replaced",
            "patience: 5",
        ],
    ),
    "two_at_once": (
        explain("trainer.max_epochs", "model.hidden"),
        ["trainer.max_epochs: 20", "top.yaml:3:15", "model.hidden: 8", "base.yaml:4:23"],
    ),
}
WRONG: dict[str, tuple[Command, list[str]]] = {
    "a_misspelt_key": (explain("trainer.max_epoch"), ["max_epoch", "did you mean 'max_epochs'"]),
    "a_misspelt_section": (explain("trainr"), ["trainr", "did you mean 'trainer'"]),
    "a_misspelt_end": (
        explain("max_epoch"),
        ["no 'max_epoch' at the top; did you mean 'trainer.max_epochs' or 'trainer.min_epochs'"],
    ),
    "a_misspelt_end_of_a_class": (explain("hiden"), ["did you mean 'model.hidden'?"]),
    "a_misspelt_key_of_a_section_not_set": (
        explain("gate.mim"),
        ["no 'mim' in gate; did you mean 'min'"],
    ),
    "a_misspelt_entry": (explain("callbacks.early_stoping"), ["did you mean 'early_stopping'"]),
    "the_end_of_several_keys": (
        explain("name"),
        ["name: 3 keys end in this name: gate.name, model.name, run.name. Name one of them."],
    ),
    "the_end_of_no_key": (explain("widht"), ["there is no 'widht' at the top"]),
    "a_file_without_c": (explain("top.yaml"), ["-c top.yaml"]),
    "a_missing_file": (explain("-c", "none.yaml"), ["none.yaml"]),
    "an_element_that_is_not_there": (
        explain("trainer.callbacks.5.patience", file="listed.yaml"),
        ["no element 5", "1 element"],
    ),
    "no_key": (explain("."), ["dotted key"]),
    "two_stages": (explain("fit", "test"), ["fit", "test"]),
}
COMMANDS = {
    **{f"key_{name}": command for name, (command, _) in KEYS.items()},
    **{f"wrong_{name}": command for name, (command, _) in WRONG.items()},
    "four_layers": explain(
        "--trainer.max_epochs=40", "trainer.max_epochs", LIGHTKIT_TRAINER__MAX_EPOCHS="30"
    ),
    "four_layers_json": explain(
        "--trainer.max_epochs=40", "trainer.max_epochs", "--json", LIGHTKIT_TRAINER__MAX_EPOCHS="30"
    ),
    "known_and_unknown": explain("modl", "trainer.max_epochs"),
    "whole": explain(),
    "whole_json": explain("--json"),
    "whole_bad": explain(file="bad.yaml"),
    "key_in_bad": explain("trainer.max_epochs", file="bad.yaml"),
    "key_replacing_a_secret": explain("--model.name=other", "model.name"),
    "secret_number": explain(
        "trainer.accumulate_grad_batches", file="numbers.yaml", API_KEY="424242", CLIP="0.5"
    ),
    "secret_number_json": explain(
        "trainer", "--json", file="numbers.yaml", API_KEY="424242", CLIP="0.5"
    ),
    "printed": Command(["fit", "-c", "top.yaml", "--print_config"], FILES, ENVIRON),
    "printed_by_flag": Command(
        ["fit", "--print_config", "-c=top.yaml", "--model.name=x"], FILES, ENVIRON
    ),
    "class_help": Command(["fit", "--model.help", "my_project.Wide"], FILES),
}


@pytest.fixture(scope="module")
def explained(made_once: Once) -> dict[str, Ended]:
    """How each command ended."""
    return run_commands("explain", COMMANDS, made_once)


@pytest.mark.parametrize("name", KEYS)
def test_explain_reports_a_value_and_its_place(name: str, explained: dict[str, Ended]) -> None:
    output = explained[f"key_{name}"].result.ok().out
    assert [words for words in KEYS[name][1] if words not in output] == []


@pytest.mark.parametrize("name", WRONG)
def test_explain_of_a_wrong_key_reports_the_near_one(
    name: str, explained: dict[str, Ended]
) -> None:
    ended = explained[f"wrong_{name}"].result
    assert (ended.code, ended.out) == (2, "")
    assert [words for words in WRONG[name][1] if words not in ended.err] == []


def test_explain_reports_what_was_replaced_lowest_layer_first(explained: dict[str, Ended]) -> None:
    output = explained["four_layers"].result.ok().out
    places = [
        "trainer.max_epochs: 40",
        "--trainer.max_epochs=40",
        "10  base.yaml:1:23",
        "20  top.yaml:3:15",
        "30  environment variable LIGHTKIT_TRAINER__MAX_EPOCHS",
    ]
    assert [place for place in places if place not in output] == []
    assert [output.index(place) for place in places] == sorted(
        output.index(place) for place in places
    )


def test_explain_reports_what_a_key_is_for(explained: dict[str, Ended]) -> None:
    assert (
        "help     Stop training once this number of epochs is reached."
        in explained["four_layers"].result.out
    )


def test_explain_as_json_reports_the_same(explained: dict[str, Ended]) -> None:
    (key,) = json.loads(explained["four_layers_json"].result.ok().out)["keys"]
    assert (key["key"], key["value"]) == ("trainer.max_epochs", 40)
    assert key["set_by"] == {"kind": "flag", "name": "--trainer.max_epochs=40"}
    assert key["replaced"][0] == {
        "value": 10,
        "set_by": {"kind": "file", "name": "base.yaml", "line": 1, "column": 23},
    }
    assert [each["value"] for each in key["replaced"]] == [10, 20, 30]


def test_explain_reports_the_known_keys_next_to_the_unknown(explained: dict[str, Ended]) -> None:
    ended = explained["known_and_unknown"].result
    assert ended.code == 2
    assert ended.out.startswith("trainer.max_epochs: 20\n")
    assert "modl" in ended.err


def test_explain_of_the_whole_is_yaml_with_places_next_to_it(explained: dict[str, Ended]) -> None:
    output = explained["whole"].result.ok().out
    config = yaml.safe_load(output)
    assert config["trainer"] == {"max_epochs": 20}
    assert config["model"]["init_args"] == {
        "hidden": 8,
        "name": "${oc.env:TOKEN}",
        "tags": ["a", "b"],
    }
    assert config == json.loads(explained["whole_json"].result.ok().out)["config"]
    (line,) = [line for line in output.splitlines() if line.startswith("  max_epochs:")]
    assert line.endswith("# top.yaml:3:15  (replaced 10 of base.yaml:1:23)")


def test_explain_of_a_config_with_errors_elsewhere_counts_them(explained: dict[str, Ended]) -> None:
    ended = explained["key_in_bad"].result.ok()
    assert ended.out.startswith("trainer.max_epochs: 20\n")
    assert "2 mistakes" in ended.err
    assert "lightkit check" in ended.err
    whole = yaml.safe_load(explained["whole_bad"].result.ok().out)
    assert whole["model"]["init_args"]["name"] == "${absent}"


@pytest.mark.parametrize("name", ["whole", "whole_json", "key_replacing_a_secret", "printed"])
def test_what_came_from_the_environment_is_shown_as_the_reference(
    name: str, explained: dict[str, Ended]
) -> None:
    output = explained[name].result.ok().out
    assert "${oc.env:TOKEN}" in output
    assert SECRET not in output


@pytest.mark.parametrize("name", ["secret_number", "secret_number_json"])
def test_a_number_of_a_secret_variable_is_not_shown(name: str, explained: dict[str, Ended]) -> None:
    output = explained[name].result.ok().out
    assert "${oc.env:API_KEY}" in output
    assert "424242" not in output


def test_print_config_prints_defaults_and_what_was_set(explained: dict[str, Ended]) -> None:
    config = explained["printed"].result.yaml
    assert config["trainer"]["max_epochs"] == 20
    assert config["trainer"]["check_val_every_n_epoch"] == 1
    assert config["callbacks"]["early_stopping"]["init_args"]["patience"] == 5
    assert explained["printed_by_flag"].result.yaml["model"]["init_args"]["name"] == "x"


def test_model_help_prints_the_arguments_of_a_class(explained: dict[str, Ended]) -> None:
    assert "width" in explained["class_help"].result.ok().out
    assert "Width of the hidden layer" in explained["class_help"].result.out


# -- a run, and its config fed back ----------------------------------------------------------------

JOB = """\
extends: small
model: {init_args: {name: "${oc.env:TOKEN}"}}
callbacks: {named: {class_path: my_project.WriteWord, init_args: {word: named}}}
trainer:
  max_epochs: 1
  callbacks: [{class_path: my_project.WriteWord, init_args: {word: listed}}]
"""


def _fit_and_explain(workspace: Workspace) -> None:
    workspace.write("job.yaml", JOB)
    kept = workspace.folder / "kept"
    kept.mkdir()
    for name, words in {
        "printed": ["fit", "-c", "job.yaml", "--model.hidden=4", "--print_config"],
        "fit": ["fit", "-c", "job.yaml", "--model.hidden=4"],
        "again": ["fit", "-c", "runs/job/latest/config.yaml", "--print_config"],
        "explained": ["explain", "--run", "latest", "model.hidden", "--json"],
    }.items():
        ended = workspace.run(*words, environ=ENVIRON).ok()
        (kept / f"{name}.out").write_text(ended.out, encoding="utf-8")


@pytest.fixture(scope="module")
def run_of_layers(made_once: Once, fork_server: Any) -> Workspace:
    """A run of a layered config with a secret.

    In `kept/` is what was printed before and afterwards. Only read it.
    """
    return Workspace(made_once("explain-run", _fit_and_explain), fork_server)


def test_print_config_is_what_the_run_saves(run_of_layers: Workspace) -> None:
    printed = yaml.safe_load(
        (run_of_layers.folder / "kept/printed.out").read_text(encoding="utf-8")
    )
    saved = yaml.safe_load((run_of_layers.only_run / "config.yaml").read_text(encoding="utf-8"))
    assert {
        key: (saved.get(key), value) for key, value in printed.items() if saved.get(key) != value
    } == {}


def test_a_saved_config_fed_back_prints_the_same_text(run_of_layers: Workspace) -> None:
    saved = (run_of_layers.only_run / "config.yaml").read_text(encoding="utf-8")
    again = (run_of_layers.folder / "kept/again.out").read_text(encoding="utf-8")
    assert _without_comments(again) == _without_comments(saved)


def _without_comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_explain_reports_the_values_of_a_run(run_of_layers: Workspace) -> None:
    (key,) = read_json(run_of_layers.folder / "kept/explained.out")["keys"]
    assert key["value"] == 4
    assert key["set_by"]["name"].endswith("config.yaml")


def test_lists_of_the_trainer_come_after_named_entries(run_of_layers: Workspace) -> None:
    assert (run_of_layers.folder / "words.txt").read_text(encoding="utf-8").split() == [
        "named",
        "listed",
    ]


def test_a_run_keeps_the_reference_and_nowhere_the_value_from_the_environment(
    run_of_layers: Workspace,
) -> None:
    files = [path for path in run_of_layers.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".ckpt" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    saved = yaml.safe_load((run_of_layers.only_run / "config.yaml").read_text(encoding="utf-8"))
    assert saved["model"]["init_args"]["name"] == "${oc.env:TOKEN}"
