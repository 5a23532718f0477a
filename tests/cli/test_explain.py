"""`lightkit explain`: what set a value, and what that replaced."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from tests.cli.conftest import House

BASE = """\
trainer: {max_epochs: 10}
model:
  class_path: my_models.Net
  init_args: {hidden: 8, name: "${oc.env:TOKEN}", tags: [a]}
callbacks:
  early_stopping: {monitor: val/loss, patience: 3}
run: {name: "job-${trainer.max_epochs}"}
"""
TOP = """\
extends: base
trainer:
  max_epochs: 20
model:
  init_args: {tags+: [b]}
"""


@pytest.fixture
def layered(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """A working directory with two layers, of which one uses the environment."""
    house.write("base.yaml", BASE)
    house.write("top.yaml", TOP)
    monkeypatch.setenv("TOKEN", "sesame-1234")
    return house


def test_a_value_is_told_with_its_place_and_what_it_replaced_lowest_first(
    layered: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTKIT_TRAINER__MAX_EPOCHS", "30")
    told = layered("explain", "-c", "top.yaml", "--trainer.max_epochs=40", "trainer.max_epochs")
    assert (told.code, told.err) == (0, "")
    assert told.out == (
        "trainer.max_epochs: 40\n"
        "  set by   --trainer.max_epochs=40\n"
        "  replaced 10  base.yaml:1:23\n"
        "           20  top.yaml:3:15\n"
        "           30  environment variable LIGHTKIT_TRAINER__MAX_EPOCHS\n"
        "  help     Stop training once this number of epochs is reached.\n"
    )


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("callbacks.early_stopping.patience", "callbacks.early_stopping.patience: 3\n  set by   base.yaml:6:49\n"),
        ("callbacks.early_stopping.init_args.patience", "callbacks.early_stopping.patience: 3\n"),
        ("trainer.callbacks.1.init_args.patience", "callbacks.early_stopping.patience: 3\n"),
        ("callbacks.early_stopping", "    patience: 3                                          # base.yaml:6:49\n"),
        ("callbacks.checkpoint", "lightkit.callbacks.Checkpoint  # the name callbacks.checkpoint\n"),
        ("model.tags", "model.tags:\n  - a  # base.yaml:4:58\n  - b  # top.yaml:5:23\n  replaced [a]  base.yaml"),
        ("model.name", "model.name: ${oc.env:TOKEN}\n  set by   base.yaml:4:32\n"),
        ("run.name", "run.name: job-20\n  set by   base.yaml:7:13\n  written  job-${trainer.max_epochs}\n"),
        ("trainer.min_epochs", "trainer.min_epochs: null\n  set by   default of pytorch_lightning.Trainer\n  help "),
        (
            "callbacks.early_stopping.mode",
            "callbacks.early_stopping.mode: min\n  set by   default of pytorch_lightning.callbacks.EarlyStopping\n",
        ),
        ("callbacks.timer.verbose", "  note     callbacks.timer is not in this config\n"),
        ("optimizer", "optimizer: not set\n"),
        ("seed_everything", "seed_everything: true\n  set by   default of lightkit\n"),
    ],
    ids=lambda value: value.split("\n")[0].strip()[:30],
)
def test_keys_as_users_write_them(key: str, says: str, layered: House) -> None:
    told = layered("explain", "-c", "top.yaml", key)
    assert told.code == 0, told.err
    assert says in told.out


def test_the_default_of_a_class_of_ones_own_is_told(layered: House) -> None:
    layered.write("wide.yaml", "extends: top\nmodel: my_models.Wide\n")
    assert (
        "model.width: 8\n  set by   default of my_models.Wide\n"
        in layered("explain", "-c", "wide.yaml", "model.width").out
    )


def test_an_entry_taken_out_tells_what_it_was(layered: House) -> None:
    told = layered("explain", "-c", "top.yaml", "--callbacks.early_stopping=null", "callbacks.early_stopping")
    assert told.out.startswith("callbacks.early_stopping: null\n  set by   --callbacks.early_stopping=null\n")
    assert (
        "replaced {class_path: pytorch_lightning.callbacks.EarlyStopping, init_args: {monitor: val/loss, pat"
        in told.out
    )


def test_hardware_keys_tell_what_they_became(layered: House) -> None:
    told = layered("explain", "-c", "top.yaml", "--accelerator.gpus=2", "trainer.devices", "accelerator.gpus").out
    assert "trainer.devices: 2\n  set by   --accelerator.gpus=2\n  from     accelerator.gpus: 2\n" in told
    assert (
        "accelerator.gpus: 2\n  set by   --accelerator.gpus=2\n  became   trainer.accelerator: gpu, trainer.dev" in told
    )


def test_a_hardware_key_that_a_higher_layer_overrules_is_told(layered: House) -> None:
    layered.write("gpus.yaml", "extends: top\naccelerator: {gpus: 2}\n")
    told = layered("explain", "-c", "gpus.yaml", "--trainer.devices=1", "trainer.devices", "accelerator.gpus").out
    assert "trainer.devices: 1\n  set by   --trainer.devices=1\n  replaced 2  gpus.yaml:2:21\n" in told
    assert "  note     trainer.devices: 1 counts in its place (--trainer.devices=1)\n" in told


def test_the_old_word_for_horovod_is_told(layered: House) -> None:
    told = layered("explain", "-c", "top.yaml", "--trainer.strategy=horovod", "--trainer.gpus=2", "launch.processes")
    assert "launch.processes: 2\n  set by   --trainer.gpus=2\n  from     trainer.gpus: 2\n" in told.out


def test_the_whole_config_is_yaml_with_aligned_places(layered: House) -> None:
    told = layered("explain", "-c", "top.yaml")
    config = yaml.safe_load(told.out)
    assert config["trainer"] == {"max_epochs": 20}
    assert config["model"]["init_args"] == {"hidden": 8, "name": "${oc.env:TOKEN}", "tags": ["a", "b"]}
    (line,) = [line for line in told.out.splitlines() if line.startswith("  max_epochs:")]
    assert line.endswith("# top.yaml:3:15  (replaced 10 of base.yaml:1:23)")
    assert len({line.index("  # ") for line in told.out.splitlines() if "  # " in line}) == 1
    assert "sesame" not in told.out


def test_what_explain_prints_can_be_fed_back(layered: House) -> None:
    layered.write("printed.yaml", layered("explain", "-c", "top.yaml").out)
    first, second = (layered("explain", "-c", name, "--json").out for name in ("top.yaml", "printed.yaml"))
    assert json.loads(first)["config"] == json.loads(second)["config"]


@pytest.mark.parametrize("words", [[], ["model.name"], ["model"]], ids=["all", "key", "section"])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_no_secret_is_told(words: list[str], form: list[str], layered: House) -> None:
    told = layered("explain", "-c", "top.yaml", "--model.name=other", *form, *words)
    assert told.code == 0
    assert "sesame" not in told.out
    assert "${oc.env:TOKEN}" in told.out


def test_json_tells_the_same(layered: House) -> None:
    (key,) = json.loads(layered("explain", "-c", "top.yaml", "--json", "trainer.max_epochs").out)["keys"]
    assert key["value"] == 20
    assert key["set_by"] == {"kind": "file", "name": "top.yaml", "line": 3, "column": 15}
    assert key["replaced"] == [{"value": 10, "set_by": {"kind": "file", "name": "base.yaml", "line": 1, "column": 23}}]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trainer.max_epoch"], "trainer.max_epoch: there is no 'max_epoch' in trainer; did you mean 'max_epochs'"),
        (["trainr"], "trainr: there is no 'trainr' at the top; did you mean 'trainer'?"),
        (["callbacks.early_stoping"], "did you mean 'early_stopping'"),
        (["top.yaml"], "a config file comes after -c: -c top.yaml"),
        (["-c", "none.yaml"], "none.yaml: no such file"),
        (["optimizer.lr"], "optimizer.lr: optimizer is not in this config, and nothing says which keys it would have"),
        (["callbacks.timer.verbos"], "there is no 'verbos' in callbacks.timer; did you mean 'verbose'?"),
        (["."], "expected a dotted key, such as trainer.max_epochs"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_is_not_there_is_said_so(words: list[str], says: str, layered: House) -> None:
    told = layered("explain", "-c", "top.yaml", *words)
    assert (told.code, told.out) == (2, "")
    assert says in told.err


def test_a_config_with_mistakes_elsewhere_is_told_too(layered: House) -> None:
    layered.write("bad.yaml", "extends: top\nmodel: {name: '${absent}'}\ncallbacks: {none: {}}\n")
    told = layered("explain", "-c", "bad.yaml", "trainer.max_epochs")
    assert told.code == 0
    assert told.out.startswith("trainer.max_epochs: 20\n")
    assert told.err == "note: there are 2 mistakes in this config, which `lightkit check` tells\n"
    assert "${absent}" in layered("explain", "-c", "bad.yaml", "model.name").out


def test_help_needs_no_config(house: House) -> None:
    told = house("explain", "--help")
    assert told.code == 0
    assert told.out.startswith("usage: lightkit explain")


@pytest.mark.slow
def test_explain_and_diff_import_neither_torch_nor_lightning(layered: House) -> None:
    script = (
        "import sys\nfrom lightkit.cli import main\n"
        "codes = [main(['explain', '-c', 'top.yaml']), main(['explain', '-c', 'top.yaml', 'trainer.min_epochs']),"
        " main(['diff', 'base.yaml', 'top.yaml'])]\n"
        "assert codes == [0, 0, 0], codes\n"
        "assert not {'torch', 'pytorch_lightning'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


LISTED = """\
model:
  class_path: my_models.Net
  init_args: {tags: [a, "${oc.env:NOPE}", b, '\\${literal}']}
trainer:
  log_every_n_steps: ${trainer.max_epochs}
  min_epochs: ${.log_every_n_steps}
  callbacks: [{class_path: EarlyStopping, init_args: {monitor: a, patience: 3}}]
"""


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("trainer.callbacks.0.init_args.patience", "trainer.callbacks.0.patience: 3\n  set by   listed.yaml:7:77\n"),
        ("trainer.callbacks[0].patience", "trainer.callbacks.0.patience: 3\n"),
        ("trainer.callbacks.0", "trainer.callbacks.0:\n  class_path: EarlyStopping"),
        ("trainer.callbacks.0.mode", "trainer.callbacks.0.mode: min\n  set by   default of "),
        ("trainer.callbacks.1.patience", "trainer.callbacks.0.patience: 3\n"),
    ],
    ids=["element", "brackets", "whole", "default", "as LightningCLI counts"],
)
def test_an_index_counts_the_users_own_list_where_it_has_that_element(key: str, says: str, house: House) -> None:
    house.write("listed.yaml", LISTED)
    assert house("explain", "-c", "listed.yaml", key).out.startswith(says)


def test_an_element_that_is_not_there_is_told_with_the_number_of_those_that_are(house: House) -> None:
    house.write("listed.yaml", LISTED)
    told = house("explain", "-c", "listed.yaml", "trainer.callbacks.5.patience")
    assert (told.code, told.out) == (2, "")
    assert "there is no element 5 in trainer.callbacks, which has 1 element, from 0 on" in told.err


def test_an_element_that_cannot_be_resolved_leaves_the_others_in_their_places(house: House) -> None:
    house.write("listed.yaml", LISTED)
    told = house("explain", "-c", "listed.yaml", "model.tags.1", "model.tags.2")
    assert "model.tags.1: ${oc.env:NOPE}\n  set by   listed.yaml:3:25\n" in told.out
    assert "model.tags.2: b\n  set by   listed.yaml:3:43\n" in told.out
    whole = yaml.safe_load(house("explain", "-c", "listed.yaml").out)
    assert whole["model"]["init_args"]["tags"] == ["a", "${oc.env:NOPE}", "b", "\\${literal}"]


def test_a_number_of_a_flag_is_a_number_also_through_interpolations(house: House) -> None:
    house.write("listed.yaml", LISTED)
    whole = yaml.safe_load(house("explain", "-c", "listed.yaml", "--trainer.max_epochs", "9").out)
    assert (whole["trainer"]["log_every_n_steps"], whole["trainer"]["min_epochs"]) == (9, 9)


def test_what_is_known_is_told_although_other_keys_are_not_and_then_every_mistake(layered: House) -> None:
    told = layered("explain", "-c", "top.yaml", "modl", "trainer.max_epochs", "trainer.max_epoch")
    assert told.code == 2
    assert told.out.startswith("trainer.max_epochs: 20\n")
    assert "error: modl: there is no 'modl'" in told.err
    assert "error: trainer.max_epoch: there is no 'max_epoch'" in told.err


def test_a_key_may_be_spelled_as_in_the_file_that_appends_to_it(layered: House) -> None:
    for key in ("model.tags+", "model.init_args.tags+"):
        assert layered("explain", "-c", "top.yaml", key).out.startswith("model.tags:\n  - a  #")


def test_the_stage_may_stand_after_the_files(layered: House) -> None:
    layered.write("staged.yaml", "extends: top\ntest: {trainer: {max_epochs: 1}}\n")
    told = layered("explain", "-c", "staged.yaml", "test", "trainer.max_epochs")
    assert told.out.startswith("trainer.max_epochs: 1\n")
    told = layered("explain", "fit", "-c", "staged.yaml", "test")
    assert (told.code, told.err) == (2, "error: explain: expected one stage, got fit and test\n")


def test_what_cannot_be_resolved_stands_in_the_whole_config_as_it_is_written(layered: House) -> None:
    layered.write("bad.yaml", "extends: top\nmodel: {name: '${absent}'}\ntrainer: {min_epochs: '${oc.env:NOPE}'}\n")
    layered.write("list.yaml", "extends: bad\ntrainer: {callbacks: [{class_path: '${oc.env:NOPE}'}, EarlyStopping]}\n")
    whole = yaml.safe_load(layered("explain", "-c", "list.yaml").out)
    assert whole["model"]["init_args"]["name"] == "${absent}"
    assert whole["trainer"] == {
        "max_epochs": 20,
        "min_epochs": "${oc.env:NOPE}",
        "callbacks": [{"class_path": "${oc.env:NOPE}"}, "EarlyStopping"],
    }
