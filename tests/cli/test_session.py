"""Layers, variables and flags through the real command, in what it resolves and what it builds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cli.conftest import House, read_json

STOPPING = "callbacks: {early_stopping: {init_args: {monitor: val/loss, patience: 3}}}"
PATIENCE = "callbacks.early_stopping.init_args.patience"
EPOCHS = "trainer.max_epochs"
HIDDEN = "model.init_args.hidden"


@dataclass
class Layers:
    """A command line on top of small.yaml, and what it comes to.

    Args:
        promise: What it shows.
        words: Words after ``fit -c small.yaml``.
        expected: Values of the resolved config by dotted key.
        files: Further files by name.
        environ: Variables.
    """

    promise: str
    words: list[str]
    expected: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)


CASES = [
    Layers("one file", [], {EPOCHS: 1, HIDDEN: 4}),
    Layers(
        "the later of two files wins",
        ["-c", "c.yaml", "-c", "b.yaml"],
        {EPOCHS: 2, "trainer.accelerator": "cpu"},
        files={"b.yaml": "trainer: {max_epochs: 2}", "c.yaml": "trainer: {max_epochs: 3}"},
    ),
    Layers(
        "a file wins over what it extends",
        ["--config=b.yaml"],
        {EPOCHS: 2, "trainer.min_epochs": 1},
        files={
            "b.yaml": "extends: [sub/c]\ntrainer: {max_epochs: 2}",
            "sub/c.yaml": "trainer: {max_epochs: 9, min_epochs: 1}",
        },
    ),
    Layers("-cFILE in one word", ["-cb.yaml"], {EPOCHS: 2}, files={"b.yaml": "trainer: {max_epochs: 2}"}),
    Layers(
        "a variable wins over a file",
        ["-c", "b.yaml"],
        {EPOCHS: 5},
        files={"b.yaml": "trainer: {max_epochs: 2}"},
        environ={"LIGHTKIT_TRAINER__MAX_EPOCHS": "5"},
    ),
    Layers("a variable inside init_args", [], {HIDDEN: 5}, environ={"LIGHTKIT_MODEL__INIT_ARGS__HIDDEN": "5"}),
    Layers("a variable without init_args", [], {HIDDEN: 5}, environ={"LIGHTKIT_MODEL__HIDDEN": "5"}),
    Layers(
        "a flag wins over a variable",
        ["--trainer.max_epochs=6"],
        {EPOCHS: 6},
        environ={"LIGHTKIT_TRAINER__MAX_EPOCHS": "5"},
    ),
    Layers("LIGHTKIT_DATA is no layer", [], {"data.init_args.count": 8}, environ={"LIGHTKIT_DATA": "/nowhere"}),
    Layers("--key value", ["--trainer.max_epochs", "6"], {EPOCHS: 6}),
    Layers("key=value", ["trainer.max_epochs=6"], {EPOCHS: 6}),
    Layers("the last flag wins", ["trainer.max_epochs=6", "--trainer.max_epochs=7"], {EPOCHS: 7}),
    Layers("--key=-1", ["--trainer.max_epochs=-1"], {EPOCHS: -1}),
    Layers("--key -1", ["--trainer.max_epochs", "-1"], {EPOCHS: -1}),
    Layers("1e-3 is a number", ["--trainer.gradient_clip_val=1e-3"], {"trainer.gradient_clip_val": 0.001}),
    Layers("init_args may be left out", ["--model.hidden=5"], {HIDDEN: 5}),
    Layers("key+=value appends", ["model.tags=[a]", "model.tags+=b"], {"model.init_args.tags": ["a", "b"]}),
    Layers("--key+=value appends to nothing", ["--model.tags+=a"], {"model.init_args.tags": ["a"]}),
    Layers(
        "a new class drops the old arguments",
        ["--model.hidden=7", "--model=my_models.Wide", "--model.width=3"],
        {"model.init_args": {"width": 3}},
    ),
    Layers("a named entry", ["-c", "b.yaml"], {PATIENCE: 3}, files={"b.yaml": STOPPING}),
    Layers(
        "a later layer changes a named entry",
        ["-c", "b.yaml", f"--{PATIENCE}=4"],
        {PATIENCE: 4, "callbacks.early_stopping.init_args.monitor": "val/loss"},
        files={"b.yaml": STOPPING},
    ),
    Layers(
        "a later layer removes a named entry",
        ["-c", "b.yaml", "callbacks.early_stopping=null"],
        {"callbacks.early_stopping": None},
        files={"b.yaml": STOPPING},
    ),
    Layers("a default entry can be removed", ["callbacks.checkpoint=null"], {"callbacks": {"checkpoint": None}}),
    Layers("an entry by its class", ["callbacks.mine=my_models.Told"], {"callbacks.mine.init_args.word": "told"}),
    Layers("no logger at all", ["trainer.logger=false"], {"trainer.logger": False}),
    Layers("the default logger", ["trainer.logger=true"], {"logger.tensorboard.init_args.prefix": ""}),
    Layers(
        "one logger of LightningCLI's",
        ["trainer.logger=CSVLogger", "trainer.logger.save_dir=x"],
        {"trainer.logger.class_path": "pytorch_lightning.loggers.CSVLogger", "trainer.logger.init_args.save_dir": "x"},
    ),
    Layers("a logger that is named takes the default's place", ["logger.csv={}"], {"logger.csv.init_args.prefix": ""}),
    Layers("interpolation", ["model.name=${trainer.accelerator}-net"], {"model.init_args.name": "cpu-net"}),
    Layers(
        "the environment stays a reference",
        ["model.name=${oc.env:ABSENT,none}"],
        {"model.init_args.name": "${oc.env:ABSENT,none}"},
    ),
    Layers(
        "the block of the command",
        ["-c", "b.yaml"],
        {EPOCHS: 4},
        files={"b.yaml": "fit: {trainer: {max_epochs: 4}}\ntest: {trainer: {max_epochs: 5}}"},
    ),
    Layers(
        "a section's file by flag",
        ["--model=m.yaml"],
        {"model.init_args.width": 2},
        files={"m.yaml": "class_path: my_models.Wide\ninit_args: {width: 2}"},
    ),
    Layers(
        "a section's file beside the file that names it",
        ["-c", "conf/b.yaml"],
        {EPOCHS: 8, "trainer.accelerator": "cpu"},
        files={"conf/b.yaml": "trainer: t.yaml", "conf/t.yaml": "max_epochs: 8"},
    ),
    Layers("seed_everything: false", ["--seed_everything=false"], {"seed_everything": False}),
    Layers(
        "the run section",
        ["--run.name=x", "run.root=y", "--run.resume", "never"],
        {"run.name": "x", "run.root": "y", "run.resume": "never"},
    ),
    Layers("the job has the last file's name", ["-c", "b.yaml"], {"run.name": "b"}, files={"b.yaml": "{}"}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.promise.replace(" ", "_"))
def test_layers(case: Layers, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in case.files.items():
        house.write(name, text)
    for name, value in case.environ.items():
        monkeypatch.setenv(name, value)
    config = house.resolved("-c", "small.yaml", *case.words)
    assert {key: _at(config, key) for key in case.expected} == case.expected


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


def test_a_config_before_the_command_is_the_same_as_after_it(house: House) -> None:
    before = house("-c", "small.yaml", "fit", "--print_config")
    assert before.config == house.resolved("-c", "small.yaml")


def test_a_named_logger_is_the_only_one(house: House) -> None:
    assert list(house.resolved("-c", "small.yaml", "logger.csv={}")["logger"]) == ["csv"]


def test_named_callbacks_come_before_those_of_the_list(house: House) -> None:
    house.write(
        "b.yaml",
        "callbacks: {one: {class_path: my_models.Told, init_args: {word: one}}, two: {class_path: my_models.Told}}\n"
        "trainer: {callbacks: [{class_path: my_models.Told, init_args: {word: three}}]}",
    )
    house.write("c.yaml", "callbacks: {two: {init_args: {word: two}}}")
    house.fit("-c", "small.yaml", "-c", "b.yaml", "-c", "c.yaml")
    assert (house.folder / "told.txt").read_text().split() == ["one", "two", "three"]


def test_callbacks_can_be_appended_to_the_list(house: House) -> None:
    house.write("b.yaml", "trainer: {callbacks: [my_models.Told]}")
    house.write("c.yaml", "trainer: {callbacks+: [{class_path: my_models.Told, init_args: {word: more}}]}")
    house.fit("-c", "small.yaml", "-c", "b.yaml", "-c", "c.yaml", "--trainer.callbacks+={class_path: my_models.Told}")
    assert (house.folder / "told.txt").read_text().split() == ["told", "more", "told"]


def test_a_removed_callback_is_not_built(house: House) -> None:
    run = house.fit(
        "-c", "small.yaml", "callbacks.checkpoint=null", "callbacks.told=my_models.Told", "callbacks.told=null"
    )
    assert not (house.folder / "told.txt").exists()
    assert not list(run.rglob("best.ckpt"))


def test_without_a_logger_there_is_a_tensorboard_in_the_run_folder(house: House) -> None:
    run = house.fit("-c", "small.yaml")
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))


def test_no_logger_means_none(house: House) -> None:
    run = house.fit("-c", "small.yaml", "--trainer.logger=false")
    assert not (run / "tensorboard").exists()
    assert not (house.folder / "lightning_logs").exists()


def test_several_loggers_in_a_list_all_log(house: House) -> None:
    house.write(
        "b.yaml",
        "trainer: {logger: [{class_path: CSVLogger, init_args: {save_dir: one}}, "
        "{class_path: CSVLogger, init_args: {save_dir: two}}]}",
    )
    house.fit("-c", "small.yaml", "-c", "b.yaml")
    tables = [list((house.folder / name).rglob("metrics.csv")) for name in ("one", "two")]
    assert [len(found) for found in tables] == [1, 1]


def test_quiet_prints_nothing_that_went_well(house: House) -> None:
    done = house("fit", "-c", "small.yaml", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_output_json_prints_the_events_of_the_run(house: House) -> None:
    done = house("fit", "-c", "small.yaml", "--output", "json")
    assert done.code == 0
    assert done.out == (house.runs[-1] / "events.jsonl").read_text()


def test_a_pipe_gets_plain_lines(house: House) -> None:
    done = house("fit", "-c", "small.yaml", "--trainer.max_epochs=3")
    assert "\r" not in done.out + done.err
    assert "\x1b" not in done.out + done.err
    assert [line[:9] for line in done.out.splitlines() if line.startswith("epoch")] == [
        "epoch 1/3",
        "epoch 2/3",
        "epoch 3/3",
    ]


def test_the_manifest_has_the_command_line_as_typed(house: House) -> None:
    run = house.fit("-c", "small.yaml", "--model.hidden=5")
    assert read_json(run / "manifest.json")["command"] == ["lightkit", "fit", "-c", "small.yaml", "--model.hidden=5"]
