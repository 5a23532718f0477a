"""`lightkit diff` prints what differs between configs and runs.

`lightkit schema` prints what an editor needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.contract.command_table import Command, Ended, run_commands
from tests.contract.conftest import Once
from tests.contract.workspace import Workspace, read_json

OLD = """\
trainer: {max_epochs: 10, callbacks: [{class_path: Timer, init_args: {verbose: true}}]}
model: {class_path: my_project.Net, init_args: {tags: [a, b], name: "${oc.env:TOKEN}"}}
callbacks: {lr_monitor: {}}
"""
NEW = """\
trainer: {max_epochs: 20, callbacks: [{class_path: Timer, init_args: {verbose: false}}, \
{class_path: ModelSummary}]}
model: {class_path: my_project.Net, init_args: {tags: [a, c], name: "${oc.env:TOKEN}", hidden: 4}}
"""
FILES = {
    "old.yaml": OLD,
    "new.yaml": NEW,
    "same.yaml": OLD + "# a comment\n",
    "other.yaml": OLD.replace("TOKEN", "OTHER"),
    "child.yaml": "extends: old\ntrainer: {max_epochs: 11}\n",
}
ENVIRON = {"TOKEN": "sesame-1234", "OTHER": "open-5678"}


def diff(*words: str, **environ: str) -> Command:
    """Compare two of the files."""
    return Command(["diff", *words], FILES, {**ENVIRON, **environ})


WRONG: dict[str, tuple[Command, list[str]]] = {
    "nothing_to_compare": (diff(), ["two", "usage: lightkit diff A B"]),
    "one": (diff("old.yaml"), ["two", "1"]),
    "three": (diff("old.yaml", "new.yaml", "old.yaml"), ["two", "3"]),
    "a_misspelt_option": (
        diff("old.yaml", "new.yaml", "--jsn"),
        ["--jsn", "did you mean '--json'"],
    ),
    "a_missing_file": (diff("old.yaml", "none.yaml"), ["none.yaml"]),
    "a_missing_run": (diff("old.yaml", "latest"), ["latest"]),
    "schema_misspelt_option": (
        Command(["schema", "--outptu", "x"]),
        ["--outptu", "did you mean '--output'"],
    ),
    "schema_without_its_file": (Command(["schema", "-o"]), ["-o"]),
    "schema_into_no_folder": (Command(["schema", "-o", "no/x.json"]), ["no/x.json"]),
}
COMMANDS = {
    **{f"wrong_{name}": command for name, (command, _) in WRONG.items()},
    "changed": diff("old.yaml", "new.yaml"),
    "changed_json": diff("old.yaml", "new.yaml", "--json"),
    "changed_code": diff("old.yaml", "new.yaml", "--exit-code"),
    "same_code": diff("old.yaml", "same.yaml", "--exit-code"),
    "extends": diff("old.yaml", "child.yaml", "--json"),
    "variable": diff("old.yaml", "new.yaml", "--json", LIGHTKIT_TRAINER__MAX_EPOCHS="3"),
    "secrets": diff("old.yaml", "other.yaml"),
    "schema": Command(["schema"]),
    "schema_file": Command(["schema", "-o", "lightkit.schema.json"]),
}


@pytest.fixture(scope="module")
def ended(made_once: Once) -> dict[str, Ended]:
    """How each command ended."""
    return run_commands("diff", COMMANDS, made_once)


def changes_of(ended: Ended) -> dict[str, Any]:
    """Changes by key."""
    return {change["key"]: change for change in json.loads(ended.result.ok().out)["changes"]}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_words_for_diff_and_schema_are_refused(name: str, ended: dict[str, Ended]) -> None:
    result = ended[f"wrong_{name}"].result
    assert (result.code, result.out) == (2, "")
    assert [words for words in WRONG[name][1] if words not in result.err] == []


@pytest.mark.parametrize(
    "block",
    [
        "trainer.max_epochs\n  - 10  old.yaml:1:23\n  + 20  new.yaml:1:23\n",
        "model.init_args.tags\n  - [a, b]  old.yaml:2:55\n  + [a, c]  new.yaml:2:55\n",
        "model.init_args.hidden\n  + 4  new.yaml:2:96\n",
        (
            "trainer.callbacks.0.init_args.verbose\n  - true   old.yaml:1:80\n  + false "
            " new.yaml:1:80\n"
        ),
        "trainer.callbacks.1.class_path\n  + ModelSummary  new.yaml:1:102\n",
        "callbacks.lr_monitor.class_path\n  - pytorch_lightning.callbacks.LearningRateMonitor",
    ],
    ids=["scalar", "list", "added", "in_a_list", "added_to_a_list", "removed"],
)
def test_diff_prints_what_differs_with_both_places(block: str, ended: dict[str, Ended]) -> None:
    output = ended["changed"].result.ok().out
    assert output.startswith("- old.yaml\n+ new.yaml\n")
    assert f"\n\n{block}" in output


def test_diff_prints_nothing_but_what_differs(ended: dict[str, Ended]) -> None:
    assert set(changes_of(ended["changed_json"])) == {
        "callbacks.lr_monitor.class_path",
        "trainer.max_epochs",
        "trainer.callbacks.0.init_args.verbose",
        "trainer.callbacks.1.class_path",
        "model.init_args.tags",
        "model.init_args.hidden",
    }


def test_diff_as_json_reports_the_same(ended: dict[str, Ended]) -> None:
    changes = changes_of(ended["changed_json"])
    assert changes["trainer.max_epochs"] == {
        "key": "trainer.max_epochs",
        "in": "config",
        "change": "changed",
        "old": {
            "value": 10,
            "set_by": {"kind": "file", "name": "old.yaml", "line": 1, "column": 23},
        },
        "new": {
            "value": 20,
            "set_by": {"kind": "file", "name": "new.yaml", "line": 1, "column": 23},
        },
    }
    assert changes["model.init_args.hidden"]["change"] == "added"
    assert changes["callbacks.lr_monitor.class_path"]["change"] == "removed"


def test_diff_has_an_exit_code_for_a_difference_where_asked(ended: dict[str, Ended]) -> None:
    assert (ended["changed_code"].result.code, ended["same_code"].result.code) == (1, 0)
    assert "no difference" in ended["same_code"].result.out


def test_diff_counts_what_a_file_extends(ended: dict[str, Ended]) -> None:
    assert set(changes_of(ended["extends"])) == {"trainer.max_epochs"}


def test_diff_leaves_variables_out(ended: dict[str, Ended]) -> None:
    assert changes_of(ended["variable"])["trainer.max_epochs"]["old"]["value"] == 10


def test_diff_reports_references_and_no_secrets(ended: dict[str, Ended]) -> None:
    output = ended["secrets"].result.ok().out
    assert "- ${oc.env:TOKEN}  old.yaml" in output
    assert "+ ${oc.env:OTHER}  other.yaml" in output
    assert [value for value in ENVIRON.values() if value in output] == []


# -- runs ------------------------------------------------------------------------------------------

LAYERED = """\
extends: small
callbacks: {early_stopping: {monitor: val/loss}}
optimizer: {class_path: Adam}
trainer: {max_epochs: 1, limit_train_batches: 1}
"""


def _fit_two(workspace: Workspace) -> None:
    workspace.write("job.yaml", LAYERED)
    flags = ("--optimizer.lr=0.5", "--trainer.limit_train_batches=1.0")  # all batches, not one
    first = workspace.fit("-c", "job.yaml", *flags)
    workspace.fit("-c", "job.yaml", *flags, "--model.hidden=4")
    kept = workspace.folder / "kept"
    kept.mkdir()
    for name, pair in {
        "runs": [first.name, "latest"],
        "run_and_config": ["latest", "job.yaml"],
    }.items():
        (kept / f"{name}.json").write_text(
            workspace.run("diff", *pair, "--json").ok().out, encoding="utf-8"
        )


@pytest.fixture(scope="module")
def two_runs(made_once: Once) -> Path:
    """Two runs that differ in one value, and what `diff` says of them."""
    return made_once("diff-runs", _fit_two) / "kept"


def test_diff_of_two_runs_reports_their_configs_and_metrics_apart(two_runs: Path) -> None:
    changes = {change["key"]: change for change in read_json(two_runs / "runs.json")["changes"]}
    hidden = changes["model.init_args.hidden"]
    assert (hidden["old"]["value"], hidden["new"]["value"]) == (8, 4)
    assert "summary.metrics.last.train/loss" in changes
    assert [
        key for key in changes if key.startswith(("trainer.", "callbacks.", "optimizer."))
    ] == []


def test_diff_of_a_run_and_its_config_leaves_defaults_out(two_runs: Path) -> None:
    changes = {
        change["key"]: change for change in read_json(two_runs / "run_and_config.json")["changes"]
    }
    assert changes.keys() == {
        "model.init_args.hidden",
        "optimizer.init_args.lr",
        "trainer.limit_train_batches",
    }
    batches = changes["trainer.limit_train_batches"]
    assert [repr(batches[side]["value"]) for side in ("old", "new")] == ["1.0", "1"]
    hidden = changes["model.init_args.hidden"]
    assert hidden["old"]["value"] == 4
    assert hidden["new"] == {"value": 8, "set_by": {"kind": "signature", "name": "my_project.Net"}}


# -- schema ----------------------------------------------------------------------------------------

CONFIGS = Path(__file__).parents[2] / "configs"
VALID = {
    "nothing": "",
    "extends": "extends: [base, logger/mlflow]\nfit: {trainer: {max_epochs: 3}}\ntest: stage.yaml",
    "interpolation": (
        "trainer: {max_epochs: '${epochs}'}\nlogger: {mlflow: {tracking_uri: '${oc.env:URI,null}'}}"
    ),
    "append": "trainer: {callbacks+: [Timer]}",
    "lightning_1": "trainer: {gpus: 2, precision: 16, strategy: ddp_cpu}",
    "file_for_a_section": "trainer: trainer.yaml\ndata: some.yaml",
    "list_of_callbacks": (
        "trainer: {callbacks: [{class_path: Timer, init_args: {interval: step}}], logger: false}"
    ),
    "own_class": (
        "model: {class_path: my_models.Net, init_args: {anything: 3}, dict_kwargs: {x: 1}}"
    ),
    "class_by_name": "model: ImageClassifier",
    "without_init_args": "model: {class_path: ImageClassifier, backbone: resnet50}",
    "named_entries": (
        "callbacks: {early_stopping: {patience: 3}, lr_monitor: null, mine: {class_path:"
        " my.Callback}}"
    ),
    "accelerator": "accelerator: {gpus: [0, 3], precision: bf16-mixed, strategy: horovod}",
    "dotted_keys": "trainer.max_epochs: 3\ncallbacks.early_stopping.patience: 3",
    "quoted_number": "trainer: {max_epochs: '3', gradient_clip_val: '1e-3'}",
}
INVALID = {
    "section": "modle: Net",
    "trainer_argument": "trainer: {max_epoch: 3}",
    "type": "trainer: {max_epochs: ten}",
    "type_in_a_block": "fit: {trainer: {max_epochs: ten}}",
    "class_argument": "model: {class_path: ImageClassifier, init_args: {bakbone: x}}",
    "append_to_a_pair": "data: {class_path: Flowers, init_args: {crop_scale+: 1}}",
    "class_argument_type": (
        "model: {class_path: lightkit.models.ImageClassifier, init_args: {backbone: 3}}"
    ),
    "entry_argument": "callbacks: {early_stopping: {patiense: 3}}",
    "entry_type": "callbacks: {x: {class_path: EarlyStopping, init_args: {patience: x}}}",
    "list_of_callbacks": (
        "trainer: {callbacks: [{class_path: Timer, init_args: {intervall: step}}]}"
    ),
    "hardware_key": "accelerator: {gpu: 2}",
    "hardware_word": "accelerator: gup",
    "run_key": "run: {nmae: x}",
    "dotted_key": "modle.hidden: 3",
    "list": "[a, list]",
}


@pytest.fixture(scope="module")
def validator(ended: dict[str, Ended]) -> jsonschema.Draft202012Validator:
    """A validator of the printed schema."""
    return jsonschema.Draft202012Validator(json.loads(ended["schema"].result.ok().out))


def test_schema_prints_a_valid_json_schema(validator: jsonschema.Draft202012Validator) -> None:
    jsonschema.Draft202012Validator.check_schema(validator.schema)


def test_schema_writes_a_file_and_says_how_an_editor_finds_it(ended: dict[str, Ended]) -> None:
    written = ended["schema_file"].folder / "lightkit.schema.json"
    assert written.read_text(encoding="utf-8") == ended["schema"].result.out
    assert (
        "# yaml-language-server: $schema=lightkit.schema.json"
        in ended["schema_file"].result.ok().out
    )


def test_schema_says_what_a_key_means(validator: jsonschema.Draft202012Validator) -> None:
    described = json.dumps(validator.schema)
    assert "Stop training once this number of epochs is reached" in described
    assert "Monitor a metric and stop training" in described


@pytest.mark.parametrize(
    "file", sorted(CONFIGS.rglob("*.yaml")), ids=lambda file: file.relative_to(CONFIGS).as_posix()
)
def test_every_config_of_the_repository_is_valid_by_the_schema(
    file: Path, validator: jsonschema.Draft202012Validator
) -> None:
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(config)] == []


@pytest.mark.parametrize("name", VALID)
def test_the_schema_takes_what_lightkit_takes(
    name: str, validator: jsonschema.Draft202012Validator
) -> None:
    assert [error.message for error in validator.iter_errors(yaml.safe_load(VALID[name]))] == []


@pytest.mark.parametrize("name", INVALID)
def test_the_schema_refuses_what_is_wrong(
    name: str, validator: jsonschema.Draft202012Validator
) -> None:
    assert not validator.is_valid(yaml.safe_load(INVALID[name]))


NO_TORCH = """\
import sys
from lightkit.main import main
codes = [main(words.split()) for words in sys.argv[1:]]
loaded = [
    name
    for name in ("torch", "pytorch_lightning", "jsonargparse", "mlflow", "numpy")
    if name in sys.modules
]
print(codes, loaded, file=sys.stderr)
"""


def test_explain_diff_schema_and_upgrade_load_no_torch(workspace: Workspace) -> None:
    workspace.write("no_torch.py", NO_TORCH)
    workspace.write("other.yaml", "extends: small\ntrainer: {max_epochs: 1}\n")
    commands = (
        "explain -c other.yaml",
        "explain -c other.yaml trainer.min_epochs",
        "diff small.yaml other.yaml",
        "schema",
        "upgrade small.yaml",
    )
    # 6: there is nothing to upgrade
    assert (
        workspace.run_cold(*commands, script="no_torch.py").err.splitlines()[-1]
        == "[0, 0, 0, 0, 6] []"
    )
