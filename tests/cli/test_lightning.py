"""What runs under a plain LightningCLI runs here, and builds the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LightningArgumentParser, SaveConfigCallback

from lightkit.cli.lightning import LightkitCLI
from lightkit.errors import ConfigError
from tests.cli.conftest import House, read_json
from tests.cli.superset.compared import OurFit, TheirFit, built, weights

SMALL = ["--config", "small.yaml"]
STOPPING = "--trainer.callbacks=EarlyStopping --trainer.callbacks.monitor=val/loss --trainer.callbacks.patience=7"
PLATEAU = """\
optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.5}}
lr_scheduler: {class_path: ReduceLROnPlateau, init_args: {monitor: val/loss, factor: 0.25}}
"""
LISTS = """\
trainer:
  callbacks:
    - class_path: EarlyStopping
      init_args: {monitor: val/loss, patience: 7}
    - LearningRateMonitor
"""


@dataclass
class Plain:
    """A command line that LightningCLI understands.

    Args:
        name: What of LightningCLI it uses.
        words: Words after ``fit --config small.yaml``.
        files: Further files by name.
    """

    name: str
    words: str = ""
    files: dict[str, str] = field(default_factory=dict)


PLAIN = [
    Plain("one file"),
    Plain("class_path and init_args", "--config b.yaml",
          {"b.yaml": "model: {class_path: my_models.Net, init_args: {hidden: 5, name: b}}"}),
    Plain("--model and --model.hidden", "--model my_models.Net --model.hidden 5"),
    Plain("--model.init_args.hidden", "--model.init_args.hidden=6"),
    Plain("another class", "--model my_models.Wide --model.width=3"),
    Plain("a file for a section", "--model=model.yaml",
          {"model.yaml": "class_path: my_models.Net\ninit_args: {hidden: 9}"}),
    Plain("a file for the trainer", "--trainer=trainer.yaml", {"trainer.yaml": "{accelerator: cpu, max_epochs: 2}"}),
    Plain("a block of the command", "--config b.yaml", {"b.yaml": "trainer: {max_epochs: 2}"}),
    Plain("optimizer by flags", "--optimizer=Adam --optimizer.lr=0.125"),
    Plain("optimizer and schedule by flags",
          "--optimizer=SGD --optimizer.lr=0.5 --lr_scheduler=StepLR --lr_scheduler.step_size=3"),
    Plain("plateau in YAML", "--config b.yaml", {"b.yaml": PLATEAU}),
    Plain("callbacks as a list", "--config b.yaml", {"b.yaml": LISTS}),
    Plain("callbacks by flags", STOPPING),
    Plain("callbacks+", "--trainer.callbacks+=LearningRateMonitor --trainer.callbacks+=my_models.Told"),
    Plain("callbacks+ on top of a file", "--config b.yaml --trainer.callbacks+=my_models.Told", {"b.yaml": LISTS}),
    Plain("a checkpoint callback",
          "--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.monitor=val/loss --trainer.callbacks.save_top_k=2"),
    Plain("one logger", "--trainer.logger=CSVLogger --trainer.logger.save_dir=logs"),
    Plain("no logger", "--trainer.logger=false"),
    Plain("seed", "--seed_everything=12"),
    Plain("no seed", "--seed_everything=false"),
    Plain("max_steps", "--trainer.max_epochs=-1 --trainer.max_steps=3"),
    Plain("fast_dev_run", "--trainer.fast_dev_run=true"),
    Plain("no checkpoints", "--trainer.enable_checkpointing=false"),
    Plain("no bars", "--trainer.enable_progress_bar=false --trainer.enable_model_summary=false"),
    Plain("numbers", "--trainer.gradient_clip_val=1e-3 --trainer.limit_train_batches=0.5"),
    Plain("precision", "--trainer.precision=bf16-mixed"),
    Plain("accumulate", "--trainer.accumulate_grad_batches=2"),
    Plain("a list of texts", "--model.tags=[a,b] --model.tags+=c"),
    Plain("odd text", "--model.name=a:b"),
]  # fmt: skip


# 2026-11-20: a plain LightningCLI leaves the advice of Lightning 2.6.6 to everybody on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def script(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """A working directory as Python sees it that runs a script there."""
    monkeypatch.syspath_prepend(house.folder)
    return house


@pytest.mark.parametrize("plain", PLAIN, ids=lambda plain: plain.name.replace(" ", "_"))
def test_a_plain_config_builds_the_same(plain: Plain, script: House) -> None:
    for name, text in plain.files.items():
        script.write(name, text)
    words = ["fit", *SMALL, *plain.words.split()]
    theirs = TheirFit(args=words, save_config_kwargs={"overwrite": True})
    ours = OurFit(args=words)
    assert built(ours) == built(theirs)
    assert weights(ours) == weights(theirs)


# -- scripts of people's own ---------------------------------------------------------------------------------------


def _classes() -> tuple[Any, Any]:
    from my_models import Net, Points  # type: ignore[import-not-found]  # beside the script, in the working directory

    return Net, Points


def test_a_subclass_links_arguments_and_fixes_classes(script: House) -> None:
    class Linked(OurFit):
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.link_arguments("data.batch_size", "model.hidden")

    cli = Linked(*_classes(), args=["fit", "--trainer.max_epochs=1", "--data.batch_size=2", "--model.name=x"])
    assert (cli.model.hparams["hidden"], cli.model.hparams["name"], cli.datamodule.batch_size) == (2, "x", 2)
    run = script.runs[0]
    assert read_json(run / "summary.json")["status"] == "done"
    assert (run / "checkpoints" / "best.ckpt").is_file()


def test_a_script_can_fit_twice(script: House) -> None:
    for width in (2, 3):
        OurFit(*_classes(), args=["fit", "--trainer.max_epochs=1", f"--model.hidden={width}"])
    assert len(script.runs) == 2
    assert not list(script.folder.glob("runs/*/lock.json"))


def test_an_error_of_a_script_says_what_is_wrong(script: House) -> None:
    with pytest.raises(ConfigError, match=r"^model\.hiden: no such key; did you mean 'model\.hidden'"):
        OurFit(*_classes(), args=["fit", "--model.hiden=2"], parser_kwargs={"exit_on_error": False})


def test_an_error_of_a_script_ends_it_as_lightning_does(script: House, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        OurFit(*_classes(), args=["fit", "--model.hiden=2"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: model.hiden: no such key; did you mean 'model.hidden'")


def test_run_false_builds_and_leaves_the_rest_to_the_script(script: House) -> None:
    words = ["--trainer.max_epochs=1", "--model.hidden=2", "--trainer.enable_checkpointing=false"]
    cli = LightkitCLI(*_classes(), run=False, args=words)
    assert (cli.trainer.max_epochs, cli.model.hparams["hidden"]) == (1, 2)
    assert cli.trainer.checkpoint_callbacks == []
    cli.trainer.fit(cli.model, cli.datamodule)
    assert script.runs == []


@pytest.mark.parametrize(
    "args",
    [
        {"subcommand": "fit", "fit": {"model.hidden": 2, "trainer.max_epochs": 1}},
        {"subcommand": "fit", "fit": {"model": {"hidden": 2}, "trainer": {"max_epochs": 1}}},
    ],
    ids=["dotted", "nested"],
)
def test_arguments_may_be_a_dict_as_in_lightning(args: dict[str, Any], script: House) -> None:
    cli = OurFit(*_classes(), args=args)
    assert (cli.trainer.max_epochs, cli.model.hparams["hidden"], cli.trainer.global_step) == (1, 2, 2)


@pytest.mark.parametrize("run", [True, False])
def test_trainer_defaults_hold_until_somebody_sets_another(run: bool, script: House) -> None:
    told = pl.callbacks.Timer()
    defaults = {"max_epochs": 2, "logger": False, "callbacks": [told], "accelerator": "cpu"}
    words = [*(["fit"] if run else []), "--trainer.max_epochs=1"]
    cli = OurFit(*_classes(), args=words, run=run, trainer_defaults=defaults, seed_everything_default=3)
    assert (cli.trainer.max_epochs, cli.trainer.loggers, cli._get(cli.config, "seed_everything")) == (1, [], 3)
    assert told in cli.trainer.callbacks  # type: ignore[attr-defined]


def test_a_save_config_callback_is_used_where_it_is_given(script: House) -> None:
    class MySave(SaveConfigCallback): ...

    OurFit(*_classes(), MySave, args=["fit", "--trainer.max_epochs=1", "--trainer.logger=false"])
    assert {path.name for path in script.runs[0].glob("*.yaml")} == {"config.yaml", "lightning_config.yaml"}


def test_print_config_and_help_end_a_script_well(script: House) -> None:
    with pytest.raises(SystemExit) as done:
        OurFit(*_classes(), args=["fit", "--help"])
    assert done.value.code == 0


# -- what LightningCLI gets wrong --------------------------------------------------------------------------------------


def test_the_users_words_win_over_the_hyperparameters_of_a_checkpoint(house: House) -> None:
    """A plain LightningCLI lets those of the checkpoint win, also in `test`."""
    house.fit("-c", "small.yaml", "--model.name=old", "--data.note=old")
    checkpoint = str(house.runs[0] / "checkpoints" / "last.ckpt")
    house.write("new.yaml", "model: {init_args: {name: new}}")
    run = house.fit(
        "-c", "small.yaml", "-c", "new.yaml", "--data.note=newer", f"--ckpt_path={checkpoint}", "--trainer.max_epochs=2"
    )
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=False)
    assert saved["hyper_parameters"]["name"] == "new"
    assert saved["datamodule_hyper_parameters"]["note"] == "newer"
    assert saved["epoch"] == 1
    assert read_json(run / "manifest.json")["parent"] == str(house.runs[0])


def test_a_test_of_a_run_uses_the_words_of_its_command_line(house: House) -> None:
    house.fit("-c", "small.yaml")
    few = house("test", "--run", "latest", "--data.count=4")
    all_points = house("test", "--run", "latest")
    assert few.code == all_points.code == 0
    assert few.out != all_points.out


def test_a_checkpoint_callback_of_the_users_own_writes_into_the_run_folder(house: House) -> None:
    run = house.fit("-c", "small.yaml", "--trainer.callbacks=ModelCheckpoint", "callbacks.checkpoint=null")
    assert [path.name for path in (run / "checkpoints").glob("*.ckpt")] == ["epoch=0-step=2.ckpt"]


def test_checkpoints_can_be_switched_off(house: House) -> None:
    run = house.fit("-c", "small.yaml", "--trainer.enable_checkpointing=false")
    assert not list(run.rglob("*.ckpt"))


def test_a_fast_dev_run_says_that_it_keeps_nothing(house: House) -> None:
    done = house("fit", "-c", "small.yaml", "--trainer.fast_dev_run=true")
    assert done.code == 0
    assert "Dummy" not in done.out
    assert not list(house.folder.glob("runs/*/latest"))


def test_the_users_default_root_dir_is_kept(house: House) -> None:
    house.write("user_callback.py", "from pytorch_lightning import Callback\n\n\nclass Root(Callback):\n"
                "    def on_train_start(self, trainer, module):\n"
                "        open('root.txt', 'w').write(trainer.default_root_dir)\n")  # fmt: skip
    run = house.fit("-c", "small.yaml", "callbacks.root=user_callback.Root")
    assert (house.folder / "root.txt").read_text() == str(run)
    house.fit("-c", "small.yaml", "callbacks.root=user_callback.Root", "--trainer.default_root_dir=mine")
    assert Path((house.folder / "root.txt").read_text()).name == "mine"


def test_the_optimizer_of_the_config_is_used(house: House) -> None:
    run = house.fit(
        "-c", "small.yaml", "--optimizer=SGD", "--optimizer.lr=0.5", "--lr_scheduler=StepLR",
        "--lr_scheduler.step_size=1", "--lr_scheduler.gamma=0.5", "--trainer.max_epochs=3",
    )  # fmt: skip
    rows = (run / "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("lr")
    assert [float(row.split(",")[column]) for row in rows[1:]] == [0.5, 0.25, 0.125]
